//! Reads job files: all formats, keys and notations, and the errors for wrong files.

use amalgam_core::vocabulary::byte_string::shown;
use amalgam_core::vocabulary::{ByteString, Duration, ExecutionType, JobSpec, Resources, TaskSet, Workdir};
use amalgam_workload::inherit::{Export, Submitter};
use amalgam_workload::{CommandOptions, Context, FileError, Format, from_command, json_schema, read_job, read_job_of};
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
    let said: Vec<(bool, i32)> = job.stages.iter().map(|stage| (stage.gang, stage.priority_in(&job))).collect();
    assert_eq!(said, [(true, 3), (false, -2)]);
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
        let said = complaint(&format!("command = ['cat', {word}]"));
        assert!(said.starts_with("job.toml:1:19: ") && said.contains(why), "{said}");
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
        let said = read(yaml, Format::Yaml).expect_err(yaml).to_string();
        assert!(said.starts_with(&format!("job.yaml:{at}: found nothing")) && said.contains("in quotes"), "{said}");
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
fn reserved_and_oversized_variables_are_refused() {
    assert_eq!(
        complaint("command = ['x']\nenv = { AMALGAM_INDEX = '1' }"),
        "job.toml:2:9: `AMALGAM_INDEX` cannot be set: variables that start with AMALGAM_ are reserved\n  help: use another name"
    );
    let long = "x".repeat(128 << 10);
    let said = complaint(&format!("command = ['x']\nenv = {{ A = '{long}' }}"));
    assert!(
        said.contains("`A` with its value has 131074 bytes") && said.contains("128 KiB") && said.contains("file"),
        "{said}"
    );
    let said = complaint(&format!("[[stage]]\nname = 's'\ncommand = ['x', '{long}']"));
    assert!(said.starts_with("job.toml:1:1: argument 1 of the command has 131072 bytes"), "{said}");
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
fn errors_about_unknown_keys_suggest_a_key() {
    assert_eq!(complaint("comand = ['x']"), "job.toml:1:1: unknown key `comand`\n  help: did you mean `command`?");
    assert_eq!(
        complaint("[[stage]]\nname = 'a'\ncommand = ['x']\nretires = 1"),
        "job.toml:4:1: unknown key `retires`\n  help: did you mean `retries`?"
    );
    assert_eq!(
        complaint("command = 'x'\nresources = { memry = '1GB' }"),
        "job.toml:2:15: unknown resource `memry`\n  help: did you mean `memory`?"
    );
    assert_eq!(
        complaint("command = 'x'\neach = { glob = 'x' }"),
        "job.toml:2:10: unknown key `glob`\n  help: known: files, lines, json, items"
    );
    let resource = complaint("command = 'true'\nmemory = '1GiB'\n");
    assert_eq!(resource, "job.toml:2:1: unknown key `memory`\n  help: write `resources = { memory = \"1GiB\" }`");
    let unlike = complaint("command = 'x'\ncolour = 'red'");
    assert!(unlike.starts_with("job.toml:2:1: unknown key `colour`\n  help: known: name, queue, "), "{unlike}");
}

#[test]
fn errors_about_values_have_their_position_and_a_remedy() {
    for (line, expected) in [
        ("tasks = 'many'", "2:9: found the text `many`\n  help: write a whole number, at least 0"),
        ("tasks = -1", "2:9: the number `-1` is out of range\n  help: write a whole number, at least 0"),
        (
            "resources = { cpu = 'two' }",
            "2:21: `two` is not a number of CPUs\n  help: write for instance `2`, `0.5` or `500m`",
        ),
        (
            "resources = { memory = '5 parsecs' }",
            "2:24: `5 parsecs` is not a size\n  help: write for instance `256MiB` or `1.5GB`",
        ),
        (
            "resources = { memory = 512 }",
            "2:24: the size `512` has no unit\n  help: write a unit, for instance `512MiB`",
        ),
        (
            "timeout = 'soon'",
            "2:11: `soon` is not a duration\n  help: write for instance `90s`, `5m`, `1h30m`, `250ms` or `00:01:30`",
        ),
        (
            "timeout = '0s'",
            "2:11: a timeout of zero would stop every task at once\n  help: leave it out for no timeout",
        ),
        (
            "constraints = ['arch=x86_64', 'kernel']",
            "2:31: `kernel` is not a constraint\n  help: write for instance `arch=x86_64` or `kernel>=5.10`",
        ),
        (
            "array = '0-9,5'",
            "2:9: the index 5 is not greater than 9\n  help: write the ranges in ascending order without overlaps",
        ),
        (
            "array = 'all'",
            "2:9: `all` is not a range of indexes\n  help: write for instance `0-199`, `7` or `0-100:10`",
        ),
        ("execution = 'sometimes'", "2:13: unknown value `sometimes`\n  help: known: guaranteed, opportunistic, auto"),
        (
            "workdir = 'here'",
            "2:11: `here` is not a working directory\n  help: write `submitted`, `own` or an absolute path",
        ),
        (
            "env = { 'A=B' = 'x' }",
            "2:9: `A=B` is not a valid name of a variable\n  help: use letters, digits and underscores",
        ),
        (
            "env = { A = \"\\u0000\" }",
            "2:13: the text contains a NUL character\n  help: remove it: no process can receive it",
        ),
        ("hold = 'yes'", "2:8: found the text `yes`\n  help: write `true` or `false`"),
        ("name = ''", "2:8: the job has an empty name\n  help: write a name, or leave it out"),
    ] {
        assert_eq!(complaint(&format!("command = ['x']\n{line}")), format!("job.toml:{expected}"));
    }
}

#[test]
fn jobs_that_cannot_run_are_refused() {
    for (text, expected) in [
        (
            "name = 'x'",
            "1:1: the stage `main` has no command\n  help: add one, for instance `command = [\"sort\", \"-n\"]`",
        ),
        (
            "command = []",
            "1:11: the stage `main` has no command\n  help: add one, for instance `command = [\"sort\", \"-n\"]`",
        ),
        (
            "command = ''",
            "1:11: the stage `main` has no command\n  help: add one, for instance `command = [\"sort\", \"-n\"]`",
        ),
        ("", "1:1: the file describes no job\n  help: write at least `command = [\"program\", \"argument\"]`"),
        ("command = 'x'\ntasks = 0", "2:9: the stage has no tasks\n  help: define at least one"),
        (
            "command = 'x'\ntasks = 20000001",
            "2:9: 20000001 tasks are too many\n  help: split the job: at most 20000000 are allowed",
        ),
        (
            "command = 'x'\narray = '0-18446744073709551614'",
            "2:9: 18446744073709551615 tasks are too many\n  help: split the job: at most 20000000 are allowed",
        ),
        (
            "command = 'x'\ntasks = 2\narray = '0-1'",
            "3:9: the stage defines its tasks more than once\n  help: keep one of tasks, array and each",
        ),
        (
            "command = 'x'\neach = '*.nothing'",
            "2:8: `*.nothing` matches no file in /nowhere\n  help: correct the pattern, or submit from the directory that has the files",
        ),
        (
            "command = 'x'\neach = { lines = 'none' }",
            "2:8: cannot read `/nowhere/none`: No such file or directory (os error 2)\n  help: check the path: it is relative to the directory of the submission",
        ),
        ("command = 'x'\neach = {}", "2:8: `each` has no source\n  help: give one of files, lines, json, items"),
        ("stage = []", "1:9: the job has 0 stages\n  help: give it between 1 and 100000"),
        (
            "command = 'x'\ntasks = 16385\ngang = true",
            "3:8: 16385 tasks are too many for a gang\n  help: split the stage: at most 16384 are allowed",
        ),
        (
            "command = 'x'\ngang = true\nexecution = 'opportunistic'",
            "2:8: a gang cannot be opportunistic\n  help: remove `gang` or `execution`",
        ),
        (
            "gang = true\n[[stage]]\nname = 'a'\ncommand = 'x'",
            "1:8: `gang` is not allowed beside a list of stages\n  help: move it into the stage that it belongs to",
        ),
        (
            "command = 'x'\n[[stage]]\nname = 'a'\ncommand = 'x'",
            "1:11: `command` is not allowed beside a list of stages\n  help: move it into the stage that it belongs to",
        ),
    ] {
        assert_eq!(complaint(text), format!("job.toml:{expected}"), "{text}");
    }
}

#[test]
fn errors_in_dependencies_name_the_stages() {
    let stage = |name: &str, after: &str| format!("[[stage]]\nname = '{name}'\nafter = [{after}]\ncommand = 'x'\n");
    assert_eq!(
        complaint(&(stage("count", "") + &stage("merge", "'cuont'"))),
        "job.toml:7:10: stage `cuont` not found\n  help: did you mean `count`?"
    );
    assert_eq!(
        complaint(&(stage("a", "") + &stage("b", "'zebra'"))),
        "job.toml:7:10: stage `zebra` not found\n  help: use one of: a, b"
    );
    assert_eq!(
        complaint(&(stage("a", "") + &stage("a", ""))),
        "job.toml:6:8: two stages are named `a`\n  help: rename one; the first is on line 2"
    );
    assert_eq!(
        complaint(&(stage("a", "'b'") + &stage("b", "'a'"))),
        "job.toml:1:1: the stages form a cycle: a -> b -> a\n  help: remove one `after` of it"
    );
    assert_eq!(
        complaint(&(stage("a", "") + "[[stage]]\ncommand = 'x'")),
        "job.toml:5:1: this stage has no name\n  help: add one, for instance `name = \"count\"`"
    );
}

/// A stage `map` of two tasks with these outputs, and after it, from line 6, a stage `reduce` with these inputs.
fn map_and_reduce(outputs: &str, inputs: &str) -> String {
    format!(
        "[[stage]]\nname = 'map'\ntasks = 2\ncommand = 'x'\noutputs = [{outputs}]\n\
         [[stage]]\nname = 'reduce'\ncommand = 'x'\nafter = ['map']\ninputs = [{inputs}]\n"
    )
}

#[test]
fn a_stage_reads_outputs_of_an_earlier_stage() {
    // The reader is written before the stages that it depends on.
    let reversed = "[[stage]]\nname = 'reduce'\ncommand = 'x'\nafter = ['map', 'a']\ninputs = ['map/*']\n\
                    [[stage]]\nname = 'a'\ncommand = 'x'\n\
                    [[stage]]\nname = 'map'\ncommand = 'x'\nafter = ['a']\noutputs = ['o']\n";
    for text in [&map_and_reduce("'a', 'b/part-{index}'", "'map/*', 'map/b/part-{index}'"), reversed] {
        let text = text.replace("name = 'reduce'", "name = 'reduce'\ntasks = 2");
        let job = read(&text, Format::Toml).unwrap();
        let (map, reduce) = (&job.stages[job.stages.len() - 2], &job.stages[job.stages.len() - 1]);
        assert_eq!((map.name.as_str(), reduce.name.as_str()), ("map", "reduce"));
        assert_eq!((&map.program.workdir, &reduce.program.workdir), (&Workdir::Own, &Workdir::Own));
        assert_eq!(job.stages[reduce.inputs[0].stage as usize].name, "map");
        assert_eq!(reduce.inputs[0].files, "*");
    }
    let alone = read("command = 'x'\noutputs = ['o']", Format::Toml).unwrap();
    assert_eq!(
        (&alone.stages[0].outputs[..], &alone.stages[0].program.workdir),
        (&["o".to_owned()][..], &Workdir::Own)
    );
}

#[test]
fn errors_about_inputs_and_outputs_have_a_remedy() {
    let own = |text: &str| map_and_reduce("'o'", "'map/o'").replacen("tasks = 2", text, 1);
    for (text, expected) in [
        (
            map_and_reduce("'/tmp/o'", ""),
            "5:12: `/tmp/o` cannot be an output: it is absolute\n  help: write a path relative to the task's working \
             directory, such as `counts.txt`",
        ),
        (
            map_and_reduce("'o', '../o'", ""),
            "5:17: `../o` cannot be an output: it has an empty part, `.` or `..`\n  help: write a path that stays in the \
             task's working directory",
        ),
        (
            map_and_reduce("'o', 'o'", ""),
            "5:17: the output `o` is declared twice\n  help: remove one; the first is on line 5",
        ),
        (
            map_and_reduce("'a', 'a/b'", ""),
            "5:12: `a` is an output and also the directory of `a/b`\n  help: rename one of them",
        ),
        (
            map_and_reduce("'part-1', 'part-{index}'", ""),
            "5:22: the outputs `part-1` and `part-{index}` are the same file for the task of index 1\n  help: rename \
             one of them",
        ),
        (
            map_and_reduce("'a{index}', 'a1/b'", ""),
            "5:24: `a{index}` is an output and also the directory of `a1/b` for the task of index 1\n  help: rename \
             one of them",
        ),
        (
            map_and_reduce("'{item}'", ""),
            "5:12: `{item}` cannot be an output: the only placeholder in braces is `{index}`\n  help: use \
             `{index}`, or remove the braces",
        ),
        (
            map_and_reduce("'o'", "'map'"),
            "10:11: `map` does not name outputs of a stage\n  help: write STAGE/PATTERN, such as `map/*` for all outputs of \
             `map`, or `map/part-{index}.txt`",
        ),
        (map_and_reduce("'o'", "'mapp/o'"), "10:11: stage `mapp` not found\n  help: did you mean `map/o`?"),
        (
            map_and_reduce("'o'", "'map/o'").replace("after = ['map']", "retries = 1"),
            "10:11: `reduce` reads outputs of `map`, which is not in its `after`\n  help: add `map` to its `after`",
        ),
        (
            map_and_reduce("'o'", "'map/o', 'map/o'"),
            "10:20: the input `map/o` is declared twice\n  help: remove one; the first is on line 10",
        ),
        (
            map_and_reduce("'o', 'p-{index}'", "'map/x'"),
            "10:11: `map/x` matches no output of `map`\n  help: its outputs are o, p-{index}",
        ),
        (
            map_and_reduce("'p-{index}'", "'map/p-{index}'").replace("after =", "tasks = 3\nafter ="),
            "11:11: `map/p-{index}` matches no output of `map` for the task of index 2\n  help: its outputs are p-{index}",
        ),
        (
            map_and_reduce("", "'map/*'"),
            "10:11: `map/*` matches no output of `map`\n  help: declare its outputs: `outputs = [\"FILE\"]` in the stage \
             `map`",
        ),
        (
            map_and_reduce("'o', 'p'", "'map/o', 'map/p'").replace("tasks = 2", "tasks = 60000"),
            "10:20: a task of `reduce` has 120000 input files; at most 100000 are allowed\n  help: merge the files in \
             a stage between the two",
        ),
        (
            own("workdir = 'submitted'"),
            "3:11: tasks with `inputs` or `outputs` require directories of their own\n  help: remove `workdir`, or \
             write `own`; `$AMALGAM_SUBMIT_DIR` is the directory of the submission",
        ),
        (
            "outputs = ['o']\n".to_owned() + &map_and_reduce("'o'", ""),
            "1:11: `outputs` is not allowed beside a list of stages\n  help: move it into the stage that it belongs to",
        ),
    ] {
        assert_eq!(complaint(&text), format!("job.toml:{expected}"), "{text}");
    }
}

#[test]
fn syntax_errors_have_their_position_in_every_format() {
    let told = |text, format| read(text, format).unwrap_err().to_string();
    for (text, format, start) in [
        ("command = [", Format::Toml, "job.toml:1:12: this is not TOML: "),
        ("command = 'x'\ncommand = 'y'", Format::Toml, "job.toml:2:1: this is not TOML: duplicate key"),
        ("command: [a\nb: c", Format::Yaml, "job.yaml:2:2: this is not YAML: "),
        ("command: x\n---\ncommand: y", Format::Yaml, "job.yaml:2:1: a second YAML document starts here"),
        ("{\"command\": [}", Format::Json, "job.json:1:14: this is not JSON: "),
        ("{\"command\": \"x\", \"command\": \"y\"}", Format::Json, "job.json:1:1: duplicate key `command`"),
    ] {
        let message = told(text, format);
        assert!(message.starts_with(start), "{message}");
    }
    for (text, format) in [
        ("command = 'x'\ntasks = 99999999999999999999", Format::Toml),
        ("command: x\ntasks: 99999999999999999999", Format::Yaml),
        ("{\"command\": \"x\",\n\"tasks\": 99999999999999999999}", Format::Json),
    ] {
        let wrong = read(text, format).unwrap_err();
        assert!(wrong.at.line == 2 && (wrong.at.column > 7), "{wrong}");
    }
    assert_eq!(
        told("command: x\nretires: 2", Format::Yaml),
        "job.yaml:2:1: unknown key `retires`\n  help: did you mean `retries`?"
    );
    assert_eq!(
        told("{\n  \"command\": \"x\",\n  \"retires\": 2\n}", Format::Json),
        "job.json:3:3: unknown key `retires`\n  help: did you mean `retries`?"
    );
    assert_eq!(
        told("{\"command\": \"x\", \"timeout\": \"soon\"}", Format::Json).lines().next(),
        Some("job.json:1:29: `soon` is not a duration")
    );
}

#[test]
fn deep_nesting_and_many_aliases_are_refused() {
    let deep = format!("{{\"command\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    assert!(read(&deep, Format::Json).unwrap_err().problem.contains("nested"));
    let deep = format!("command: {}1{}", "[".repeat(5000), "]".repeat(5000));
    assert!(read(&deep, Format::Yaml).is_err());
    let deep = format!("command = {}1{}", "[".repeat(5000), "]".repeat(5000));
    assert!(read(&deep, Format::Toml).is_err());
    let mut laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in ('b'..='j').zip('a'..) {
        let uses = vec![format!("*{before}"); 10].join(", ");
        laughs += &format!("{name}: &{name} [{uses}]\n");
    }
    assert!(read(&laughs, Format::Yaml).unwrap_err().problem.contains("aliases"));
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
