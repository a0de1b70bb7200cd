//! Reads job files: all formats, keys and notations, and the errors for wrong files.

mod errors;
mod files;

use amalgam_core::vocabulary::byte_string::shown;
use amalgam_core::vocabulary::{ByteString, Duration, ExecutionType, Isolation, JobSpec, Resources, TaskSet, Workdir};
use amalgam_workload::inherit::{Export, Submitter};
use amalgam_workload::{
    CommandOptions, Context, FileError, Format, JobOptions, from_command, json_schema, read_job, read_job_of,
};
use std::path::Path;
use std::{env, fs};

fn read_in(directory: &Path, text: &str, format: Format) -> Result<amalgam_core::vocabulary::JobSpec, FileError> {
    let extension = format!("{format:?}").to_lowercase();
    let context = Context { submit_dir: directory.to_owned() };
    read_job(text, format, Path::new(&format!("job.{extension}")), &context)
}

fn read(text: &str, format: Format) -> Result<amalgam_core::vocabulary::JobSpec, FileError> {
    read_in(Path::new("/nowhere"), text, format)
}

/// The error message for a wrong TOML file.
fn complaint(text: &str) -> String {
    read(text, Format::Toml).expect_err(text).to_string()
}

const TOML: &str = r#"
name = "wordcount"
queue = "root.analytics"
priority = 3
max_fails = 2
after = [7]
env = { LANG = "C" }

[[stage]]
name = "merge"
after = ["count"]
command = "./merge.sh"
env = { LANG = "en", N = 4 }
workdir = "own"
timeout = 90

[[stage]]
name = "count"
array = "0-3,10-30:10"
command = ["wc", "-l"]
resources = { cpu = 0.5, memory = "256MiB", gpu = 1, disk-read = 100, fpga = 2 }
expected = "3s"
execution = "opportunistic"
constraints = ["arch=x86_64", "kernel>=5.10"]
near = ["node-1", "node-2"]
retries = 2
timeout = "5m"
output_cap = "1MiB"
"#;

const YAML: &str = r#"
name: wordcount
queue: root.analytics
priority: 3
max-fails: 2
after: 7
env: { LANG: C }
stages:
  - name: merge
    after: [count]
    command: ./merge.sh
    env: { LANG: en, N: 4 }
    workdir: own
    timeout: 90s
  - name: count
    array: 0-3,10-30:10
    command: [wc, -l]
    resources: { cpu: 500m, memory: 256 MiB, gpu: 1, disk-read: 100, fpga: 2 }
    expected: 00:00:03
    execution: opportunistic
    constraints: [arch=x86_64, kernel>=5.10]
    near: [node-1, node-2]
    retries: 2
    timeout: 5m
    output-cap: 1MiB
"#;

const JSON: &str = r#"{
  "name": "wordcount", "queue": "root.analytics", "priority": 3, "max_fails": 2, "after": [7],
  "env": { "LANG": "C" },
  "stage": [
    { "name": "merge", "after": ["count"], "command": "./merge.sh", "env": { "LANG": "en", "N": 4 },
      "workdir": "own", "timeout": 90 },
    { "name": "count", "array": "0-3,10-30:10", "command": ["wc", "-l"],
      "resources": { "cpu": 0.5, "memory": "256MiB", "gpu": 1, "disk-read": 100, "fpga": 2 },
      "expected": "3s", "execution": "opportunistic", "constraints": ["arch=x86_64", "kernel>=5.10"],
      "near": ["node-1", "node-2"],
      "retries": 2, "timeout": "5m", "output_cap": "1MiB" }
  ]
}"#;

#[test]
fn the_three_formats_describe_the_same_job() {
    let job = read(TOML, Format::Toml).unwrap();
    assert_eq!(read(YAML, Format::Yaml).unwrap(), job);
    assert_eq!(read(JSON, Format::Json).unwrap(), job);

    let [count, merge] = &job.stages[..] else { panic!("two stages") };
    assert_eq!((count.name.as_str(), merge.name.as_str(), &merge.after[..]), ("count", "merge", &[0][..]));
    assert_eq!((count.resources.basic.cpu_millis(), count.resources.basic.memory_mib()), (500, 256));
    assert_eq!(count.resources.custom, [("fpga".to_owned(), 2)]);
    assert_eq!((&count.near[..], &merge.near[..]), (&["node-1".to_owned(), "node-2".to_owned()][..], &[][..]));
    assert_eq!((count.tasks.len(), count.tasks.index_value(6)), (7, 30));
    assert_eq!(count.execution, ExecutionType::Opportunistic);
    assert_eq!((count.timeout, merge.timeout), (Some(Duration::from_secs(300)), Some(Duration::from_secs(90))));
    assert_eq!(merge.program.command, ["sh", "-c", "./merge.sh"]);
    assert_eq!(merge.program.env, [("LANG".into(), "en".into()), ("N".into(), "4".into())]);
    assert_eq!((&merge.program.workdir, merge.resources.basic.cpu_millis()), (&Workdir::Own, 1000));
    assert_eq!((job.max_fails, job.after_jobs[0].0, &job.submit_dir), (Some(2), 7, &"/nowhere".into()));
}

#[test]
fn a_job_of_one_stage_needs_no_list_and_is_named_after_its_file() {
    let job = read("command = ['true']\ntasks = 3\nretries = 1", Format::Toml).unwrap();
    assert_eq!((job.name.as_str(), job.stages.len(), job.stages[0].name.as_str()), ("job", 1, "main"));
    assert_eq!((&job.stages[0].tasks, job.stages[0].retries), (&TaskSet::Count(3), 1));
}

#[test]
fn a_stage_may_be_a_gang_and_may_have_its_own_priority() {
    let stages = "priority = 3\n[[stage]]\nname = 'a'\ncommand = 'x'\ntasks = 4\ngang = true\n\
                  [[stage]]\nname = 'b'\ncommand = 'x'\npriority = -2";
    let job = read(stages, Format::Toml).unwrap();
    let output: Vec<(bool, i32)> = job.stages.iter().map(|stage| (stage.gang, stage.priority_in(&job))).collect();
    assert_eq!(output, [(true, 3), (false, -2)]);
    assert!(read("command = 'x'\ngang = true", Format::Toml).unwrap().stages[0].gang);
}

#[test]
fn a_task_may_request_no_cpu_but_not_no_resources() {
    let needs = |table: &str| read(&format!("command = ['true']\nresources = {table}"), Format::Toml);
    let job = needs("{ cpu = 0, memory = '64MiB' }").unwrap();
    assert_eq!(job.stages[0].resources.basic, Resources::new(0, 64));
    let parts = ["0.25", "'250m'", "'0.25'"].map(|part| needs(&format!("{{ gpu = {part} }}")).unwrap());
    assert!(parts.iter().all(|job| job.stages[0].resources.basic.gpu_millis() == 250));
    let refused = needs("{ cpu = 0, memory = '0' }").unwrap_err();
    assert!(refused.problem.contains("request no resources") && refused.remedy.contains("cpu=0.001"));
    assert_eq!((refused.at.line, refused.at.column), (2, 13));
    for table in
        ["{ gpu = 1.5 }", "{ fpga = 1.5 }", "{ cpu = 0.0001 }", "{ gpu = -1 }", "{ cpu = 1e19 }", "{ gpu = 1e19 }"]
    {
        let refused = needs(table).unwrap_err();
        assert!(refused.at.line == 2 && !refused.remedy.is_empty(), "{table}: {refused:?}");
    }
}

#[test]
fn a_stage_may_limit_the_tasks_at_once_and_set_the_retry_delay() {
    let stage = |keys: &str| read(&format!("command = 'x'\n{keys}"), Format::Toml).map(|mut job| job.stages.remove(0));
    assert_eq!(stage("array = '0-99%10'").unwrap().at_once, Some(10));
    assert_eq!(stage("tasks = 5\nat_once = 2").unwrap().at_once, Some(2));
    assert_eq!(stage("array = '0-99%10'\nat_once = 10").unwrap().at_once, Some(10));
    for keys in [
        "array = '0-99%0'",
        "tasks = 5\nat_once = 0",
        "array = '0-9%3'\nat_once = 4",
        "tasks = 5\nat_once = 4\ngang = true",
    ] {
        assert!(stage(keys).is_err(), "{keys}");
    }
    assert_eq!(stage("tasks = 4\nat_once = 4\ngang = true").unwrap().at_once, Some(4));
    assert_eq!(stage("retry_delay = '5s'").unwrap().first_retry_delay(), Duration::from_secs(5));
    assert_eq!(stage("retry-delay = 0").unwrap().first_retry_delay(), Duration::ZERO);
    assert_eq!(stage("").unwrap().first_retry_delay(), Duration::from_secs(1));
    let of_job = "retry_delay = '7s'\n[[stage]]\nname = 'a'\ncommand = 'x'\n[[stage]]\nname = 'b'\ncommand = 'x'\nretry_delay = '1s'";
    let delays: Vec<_> = read(of_job, Format::Toml).unwrap().stages.iter().map(|stage| stage.retry_delay).collect();
    assert_eq!(delays, [7, 1].map(|delay| Some(Duration::from_secs(delay))));
}

#[test]
fn tasks_come_from_files_lines_json_and_items() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("b.txt", ""),
        ("a.txt", ""),
        ("list", "one\r\ntwo three\n\nfour"),
        ("values.json", "[1, \"x y\", {\"k\": [2]}]"),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    for (each, expected) in [
        ("'*.txt'", &["a.txt", "b.txt"][..]),
        ("{ files = '?.txt' }", &["a.txt", "b.txt"]),
        ("{ lines = 'list' }", &["one", "two three", "", "four"]),
        ("{ json = 'values.json' }", &["1", "x y", "{\"k\": [2]}"]),
        ("{ items = ['p', 2] }", &["p", "2"]),
        ("['p', true]", &["p", "true"]),
    ] {
        let job = read_in(directory.path(), &format!("command = 'x'\neach = {each}"), Format::Toml).unwrap();
        let TaskSet::Each(items) = &job.stages[0].tasks else { panic!("items") };
        assert_eq!(items.iter().map(shown).collect::<Vec<_>>(), expected, "{each}");
    }
}

#[test]
fn texts_for_a_process_may_contain_any_bytes_but_nul() {
    let toml = r"
        command = ['cat', { bytes = 'caf\xe9 \\' }]
        env = { NAME = { bytes = '\xff' } }
        workdir = { bytes = '/srv/caf\xe9' }
        each = { items = ['a', { bytes = 'b\xe9' }] }";
    let job = read(toml, Format::Toml).unwrap();
    let stage = &job.stages[0];
    assert_eq!(stage.program.command, ["cat".into(), ByteString::from(&b"caf\xe9 \\"[..])]);
    assert_eq!(stage.program.env, [("NAME".into(), ByteString::from(&b"\xff"[..]))]);
    assert_eq!(stage.program.workdir, Workdir::Path(ByteString::from(&b"/srv/caf\xe9"[..])));
    assert_eq!(stage.tasks.item(1), Some(&b"b\xe9"[..]));
    let json = serde_json::to_string(&job).unwrap();
    assert!(json.contains(r#"{"bytes":"caf\\xe9 \\\\"}"#) && json.contains(r#""NAME",{"bytes":"\\xff"}"#), "{json}");
    assert_eq!(serde_json::from_str::<JobSpec>(&json).unwrap(), job);

    for (word, why) in [
        (r"{ bytes = '\xe' }", "is not an escape sequence"),
        ("{ bits = 'x' }", "`bytes`"),
        (r"{ bytes = '\x00' }", "NUL"),
    ] {
        let output = complaint(&format!("command = ['cat', {word}]"));
        assert!(output.starts_with("job.toml:1:19: ") && output.contains(why), "{output}");
    }
}

#[test]
fn a_text_without_quotes_is_read_exactly_as_written() {
    let words = ["1.10", "012", "0x1F", "1e3", "-0", "true", "2026-11-01", "1_000", "+5", "1e400"];
    let in_toml = ["1.10", "0x1F", "1e3", "-0", "true", "2026-11-01", "1_000", "+5", "99999999999999999999"];
    let in_json = ["1.10", "1e3", "-0", "true", "1E+2", "10000000000000000000", "1e19"];
    let list = |words: &[&str]| words.join(", ");
    for (format, words, text) in [
        (
            Format::Yaml,
            &words[..],
            format!("command: [{0}]\neach: [{0}]\nenv: {{ V: 1.10 }}\nname: 012\n", list(&words)),
        ),
        (
            Format::Toml,
            &in_toml,
            format!("command = [{0}]\neach = [{0}]\nenv = {{ V = 1.10 }}\nname = 0o12", list(&in_toml)),
        ),
        (
            Format::Json,
            &in_json,
            format!("{{\"command\": [{0}], \"each\": [{0}], \"env\": {{\"V\": 1.10}}, \"name\": 1.0}}", list(&in_json)),
        ),
    ] {
        let job = read(&text, format).unwrap_or_else(|wrong| panic!("{wrong}"));
        let stage = &job.stages[0];
        assert_eq!(stage.program.command, *words, "{format:?}");
        let TaskSet::Each(items) = &stage.tasks else { panic!("items") };
        assert_eq!(items.iter().map(shown).collect::<Vec<_>>(), *words, "{format:?}");
        assert_eq!(stage.program.env[0].1, "1.10");
        assert!(["012", "0o12", "1.0"].contains(&job.name.as_str()), "{}", job.name);
    }
    for (yaml, at) in
        [("command: [a, ~]", "1:14"), ("command: a\nenv: { V: }", "2:9"), ("command: a\nenv: { V: null }", "2:11")]
    {
        let output = read(yaml, Format::Yaml).expect_err(yaml).to_string();
        assert!(
            output.starts_with(&format!("job.yaml:{at}: found nothing")) && output.contains("in quotes"),
            "{output}"
        );
    }
    let amount = read("command: a\nresources: { cpu: 0x2, memory: 1GiB }\ntimeout: 1e1", Format::Yaml).unwrap();
    assert_eq!(amount.stages[0].resources.basic.cpu_millis(), 2_000, "an amount is read as a number");
    let large = read("{\"command\": \"a\", \"tasks\": 10000000000000000000}", Format::Json).unwrap_err().to_string();
    assert!(large.contains("too large a number") && !large.contains("is not JSON"), "{large}");
}

#[test]
fn byte_order_marks_and_crlf_line_ends_are_ignored() {
    let toml = r#"command = """
if true; then
  echo a \
    b
fi"""
env = { A = '''
x
y''', B = "c\r\n" }
# end
"#;
    let yaml = "command: |\n  if true\n  then echo a\n  fi\nenv:\n  A: >\n    x\n    y\n  B: \"c\\r\\n\"\n";
    for (text, format) in
        [(toml, Format::Toml), (yaml, Format::Yaml), (TOML, Format::Toml), (YAML, Format::Yaml), (JSON, Format::Json)]
    {
        let job = read(text, format).unwrap_or_else(|wrong| panic!("{wrong}"));
        let windows = format!("\u{feff}{}", text.replace('\n', "\r\n"));
        assert_eq!(read(&windows, format).unwrap_or_else(|wrong| panic!("{wrong}")), job, "{format:?}");
        assert!(
            job.stages.iter().flat_map(|stage| &stage.program.command).all(|word| !word.as_bytes().contains(&b'\r'))
        );
    }
    assert_eq!(read(toml, Format::Toml).unwrap().stages[0].program.env[1].1, "c\r\n", "escaped line ends are kept");

    let directory = tempfile::tempdir().unwrap();
    let items = |name: &str, bytes: &[u8], each: &str| {
        fs::write(directory.path().join(name), bytes).unwrap();
        read_in(directory.path(), &format!("command = 'x'\neach = {each}"), Format::Toml).map(|job| {
            let TaskSet::Each(items) = &job.stages[0].tasks else { panic!("items") };
            items.iter().map(shown).collect::<Vec<_>>()
        })
    };
    assert_eq!(items("list", b"\xef\xbb\xbfone\r\ntwo\r\n", "{ lines = 'list' }").unwrap(), ["one", "two"]);
    assert_eq!(items("list", b"caf\xe9\n", "{ lines = 'list' }").unwrap(), ["caf\\xe9"]);
    assert_eq!(items("json", b"\xef\xbb\xbf[\"a\", 1.10]", "{ json = 'json' }").unwrap(), ["a", "1.10"]);
    for each in ["{ lines = 'wide' }", "{ json = 'wide' }"] {
        let wrong = items("wide", b"\xff\xfe[\0]\0", each).unwrap_err().to_string();
        assert!(wrong.contains("UTF-16") && wrong.contains("iconv"), "{wrong}");
    }
}

#[test]
fn a_job_takes_over_requested_variables_and_umask_of_its_submitter() {
    let environment =
        [("A", "1"), ("B", "2"), ("AMALGAM_TOKEN", "secret")].map(|(name, value)| (name.into(), value.into()));
    let submitter = Submitter { environment: Some(environment.into()), umask: Some(0o27), ..Submitter::default() };
    let context = Context { submit_dir: "/".into() };
    let read = |submitter: &Submitter, text: &str| {
        let job =
            read_job_of(submitter, &format!("command = 'x'\n{text}"), Format::Toml, Path::new("job.toml"), &context)?;
        let program = &job.stages[0].program;
        let env: Vec<String> = program.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Ok::<_, FileError>((env.join(" "), program.umask))
    };
    assert_eq!(read(&submitter, "").unwrap(), (String::new(), None));
    assert_eq!(read(&submitter, "export = 'all'\nenv = { B = '3' }").unwrap().0, "A=1 B=3");
    assert_eq!(read(&submitter, "export = 'A,C=4'").unwrap().0, "A=1 C=4");
    assert_eq!(read(&submitter, "umask = 'submitter'").unwrap().1, Some(0o27));
    assert_eq!(read(&submitter, "umask = 077").unwrap_err().at.line, 2);
    assert_eq!(read(&submitter, "umask = '077'").unwrap().1, Some(0o77));
    let other = Submitter { export: Some(Export::None), ..submitter.clone() };
    assert_eq!(read(&other, "export = 'all'").unwrap().0, "");
    let nobody = read(&Submitter::default(), "export = 'all'").unwrap_err().to_string();
    assert!(nobody.starts_with("job.toml:2:10: the environment of the submitter is not known"), "{nobody}");
    assert!(read(&submitter, "export = 'NO'").unwrap_err().to_string().contains("`NO` is not set"));
}

#[test]
fn the_isolation_of_a_stage_replaces_that_of_the_job_and_the_command_line_both() {
    let context = Context { submit_dir: "/".into() };
    let read = |text: &str| read_job_of(&Submitter::default(), text, Format::Toml, Path::new("job.toml"), &context);
    let of = |job: &JobSpec| job.stages.iter().map(|stage| stage.program.isolation).collect::<Vec<_>>();
    let text = "isolation = 'private-tmp'\n[[stage]]\nname = 'a'\ncommand = 'x'\n\
                [[stage]]\nname = 'b'\ncommand = 'x'\nisolation = 'none'\n";
    let mut job = read(text).unwrap();
    assert_eq!(of(&job), [Some(Isolation::PrivateTmp), Some(Isolation::None)]);
    assert_eq!(of(&read("command = 'x'").unwrap()), [None]);
    let options = JobOptions { isolation: Some(Isolation::PrivateTmp), ..JobOptions::default() };
    options.apply_to(&mut job);
    assert_eq!(of(&job), [Some(Isolation::PrivateTmp); 2]);
    let container = read("container = 'a:1'\n[[stage]]\nname = 'a'\ncommand = 'x'\n[[stage]]\nname = 'b'\ncommand = 'x'\ncontainer = 'b'").unwrap();
    let images: Vec<_> = container.stages.iter().map(|stage| stage.program.container.as_deref()).collect();
    assert_eq!(images, [Some("a:1"), Some("b")]);
    for image in ["", "--privileged", "a b", "$(x)", "a\\n"] {
        let wrong = read(&format!("command = 'x'\ncontainer = \"{image}\"")).unwrap_err().to_string();
        assert!(wrong.contains("image") && wrong.contains(":2:13"), "{image}: {wrong}");
    }
    let wrong = read("command = 'x'\nisolation = 'private'").unwrap_err().to_string();
    assert!(wrong.starts_with("job.toml:2:13: ") && wrong.contains("private-tmp"), "{wrong}");
}

#[test]
fn a_program_with_any_name_gives_the_job_a_valid_name() {
    let context = Context { submit_dir: "/".into() };
    let named = |program: &[u8]| from_command(vec![program.into()], &CommandOptions::default(), &context).unwrap().name;
    let long = [b'x'; 300];
    for (program, name) in [
        (&b"/bin/true"[..], "true"),
        (b"./caf\xe9", "caf\\xe9"),
        (b"a\nb\x1b[1m", "a_b_[1m"),
        (b"/", "job"),
        (b"..", "job"),
        (b" ", "job"),
        (&long, &"x".repeat(255)),
    ] {
        assert_eq!(named(program), name);
    }
}

#[test]
fn a_million_lines_become_items_with_little_overhead() {
    let directory = tempfile::tempdir().unwrap();
    let lines: String = (0..1_000_000).map(|number| format!("input/file-{number:07}.dat\n")).collect();
    fs::write(directory.path().join("lines"), &lines).unwrap();
    let job = read_in(directory.path(), "command = ['x']\neach = { lines = 'lines' }", Format::Toml).unwrap();
    assert_eq!(job.task_count(), 1_000_000);
    let TaskSet::Each(items) = &job.stages[0].tasks else { panic!("items") };
    assert_eq!(items.get(999_999), Some(&b"input/file-0999999.dat"[..]));
    assert!(items.bytes() <= lines.len() + 4_000_000, "{}", items.bytes());
}

#[test]
fn the_published_schema_matches_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/job.schema.json");
    let schema = json_schema();
    if env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap_or_default();
    assert!(published == schema, "docs/job.schema.json is out of date: run this test with UPDATE_SCHEMA=1");
}

proptest::proptest! {
    #[test]
    fn no_input_panics(text in "\\PC{0,200}", seams in proptest::collection::vec((0usize..600, "[\\[\\]{}:=,'\"&* \n-]{1,3}"), 0..6)) {
        for (whole, format) in [(TOML, Format::Toml), (YAML, Format::Yaml), (JSON, Format::Json)] {
            let _ = read(&text, format);
            let mut damaged = whole.to_owned();
            for (at, piece) in &seams {
                let at = at % damaged.len();
                damaged.insert_str(at, piece);
            }
            let _ = read(&damaged, format);
        }
    }
}
