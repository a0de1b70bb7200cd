//! The errors for wrong files.

use crate::{complaint, read};
use amalgam_workload::Format;

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

#[test]
fn reserved_and_oversized_variables_are_refused() {
    assert_eq!(
        complaint("command = ['x']\nenv = { AMALGAM_INDEX = '1' }"),
        "job.toml:2:9: `AMALGAM_INDEX` cannot be set: variables that start with AMALGAM_ are reserved\n  help: use another name"
    );
    let long = "x".repeat(128 << 10);
    let output = complaint(&format!("command = ['x']\nenv = {{ A = '{long}' }}"));
    assert!(
        output.contains("`A` with its value has 131074 bytes") && output.contains("128 KiB") && output.contains("file"),
        "{output}"
    );
    let output = complaint(&format!("[[stage]]\nname = 's'\ncommand = ['x', '{long}']"));
    assert!(output.starts_with("job.toml:1:1: argument 1 of the command has 131072 bytes"), "{output}");
}

#[test]
fn syntax_errors_have_their_position_in_every_format() {
    let reported = |text, format| read(text, format).unwrap_err().to_string();
    for (text, format, start) in [
        ("command = [", Format::Toml, "job.toml:1:12: this is not TOML: "),
        ("command = 'x'\ncommand = 'y'", Format::Toml, "job.toml:2:1: duplicate key `command`"),
        ("command: [a\nb: c", Format::Yaml, "job.yaml:2:2: this is not YAML: "),
        ("command: x\n---\ncommand: y", Format::Yaml, "job.yaml:2:1: a second YAML document starts here"),
        ("{\"command\": [}", Format::Json, "job.json:1:14: this is not JSON: "),
        ("{\"command\": \"x\", \"command\": \"y\"}", Format::Json, "job.json:1:1: duplicate key `command`"),
    ] {
        let message = reported(text, format);
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
        reported("command: x\nretires: 2", Format::Yaml),
        "job.yaml:2:1: unknown key `retires`\n  help: did you mean `retries`?"
    );
    assert_eq!(
        reported("{\n  \"command\": \"x\",\n  \"retires\": 2\n}", Format::Json),
        "job.json:3:3: unknown key `retires`\n  help: did you mean `retries`?"
    );
    assert_eq!(
        reported("{\"command\": \"x\", \"timeout\": \"soon\"}", Format::Json).lines().next(),
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
