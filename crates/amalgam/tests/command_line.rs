//! The program with a fake cluster: its output, its streams, and its exit codes.

#[path = "command_line/lists.rs"]
mod lists;
#[path = "command_line/output.rs"]
mod output;

use amalgam_core::preset::Preset;
use amalgam_daemon::api::{JobDetail, JobState, JobSummary, Waited};
use amalgam_daemon::http::fake::FakeServer;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Cluster {
    state: TempDir,
    _server: FakeServer,
}

impl Cluster {
    fn start() -> Cluster {
        let state = tempfile::tempdir().unwrap();
        let server = FakeServer::start(state.path(), "ada");
        Cluster { state, _server: server }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        command(self.state.path(), arguments)
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        result(self.command(arguments).output().unwrap())
    }

    fn json<T: serde::de::DeserializeOwned>(&self, arguments: &[&str]) -> T {
        let result = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&result.out).unwrap_or_else(|error| panic!("{error}: {result:?}"))
    }
}

fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amalgam"));
    command.args(arguments).current_dir(state).env_clear().env("AMALGAM_STATE", state).env("USER", "ada");
    command
}

#[derive(PartialEq, Eq, Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

fn result(output: Output) -> CommandOutput {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn says(code: i32, out: &str, err: &str) -> CommandOutput {
    CommandOutput { code, out: out.to_owned(), err: err.to_owned() }
}

#[test]
fn the_help_of_execution_names_the_presets_in_which_it_means_something() {
    let help = result(command(Path::new("/"), &["submit", "--help"]).output().unwrap()).out;
    let (_, after) = help.split_once("--execution").unwrap();
    let (about, _) = after.split_once("--workdir").unwrap();
    for preset in Preset::HYBRID {
        assert!(about.contains(preset.name()), "{about}");
    }
}

#[test]
fn run_passes_output_and_exit_code_on() {
    let cluster = Cluster::start();
    assert_eq!(
        cluster.run(&["run", "--", "echo", "hello", "you"]),
        says(0, "hello you\n", "job 1 submitted: echo, 1 task\n")
    );
    assert_eq!(cluster.run(&["run", "-q", "--", "warn", "careful"]), says(0, "", "careful\n"));
    assert_eq!(cluster.run(&["run", "-q", "--", "exit", "7"]), says(7, "", ""));
    assert_eq!(cluster.run(&["run", "-q", "--", "exit", "143"]).code, 143);
}

#[test]
fn run_prefixes_the_lines_of_many_tasks_and_prints_progress_of_stages() {
    let cluster = Cluster::start();
    std::fs::write(
        cluster.state.path().join("job.yaml"),
        "stages:\n  - { name: say, command: [item], each: [a, b] }\n  - { name: sum, command: [echo, ab], after: [say] }\n  - { name: end, command: [exit, 3], after: [sum] }\n",
    )
    .unwrap();
    let result = cluster.run(&["run", "job.yaml"]);
    assert_eq!((result.code, result.out.as_str()), (3, "say/0: a\nsay/1: b\nsum: ab\n"));
    assert_eq!(
        result.err,
        "job 1 submitted: job, 4 tasks\nsay: succeeded, 2/2 done\nsum: succeeded, 1/1 done\nend: failed, 0/1 done, 1 failed\njob 1 failed\n"
    );
}

#[test]
fn an_interrupt_cancels_the_job() {
    let cluster = Cluster::start();
    let mut child =
        cluster.command(&["run", "--", "hang"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hanging\n");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let jobs: Vec<JobSummary> = cluster.json(&["list", "--all"]);
    assert_eq!(jobs[0].state, JobState::Cancelled);
}

#[test]
fn a_reader_that_goes_away_cancels_the_job() {
    let cluster = Cluster::start();
    let mut child =
        cluster.command(&["run", "--", "hang"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()),
        (Some(141), "job 1 submitted: hang, 1 task\n")
    );
    let jobs: Vec<JobSummary> = cluster.json(&["list", "--all"]);
    assert_eq!(jobs[0].state, JobState::Cancelled);
}

#[test]
fn submitted_jobs_are_listed_shown_waited_for_and_have_stories() {
    let cluster = Cluster::start();
    assert_eq!(cluster.run(&["submit", "--", "echo", "x"]), says(0, "job 1 submitted: echo, 1 task\n", ""));
    assert_eq!(
        cluster.run(&["submit", "-q", "--array", "0-2", "--name", "many", "--priority", "-4", "--", "exit", "5"]).out,
        "2\n"
    );
    assert_eq!(cluster.run(&["submit", "-q", "--", "hang"]).out, "3\n");

    assert_eq!(cluster.run(&["list", "-q"]).out, "3\n");
    assert_eq!(cluster.run(&["list", "-q", "--all", "--user", "me"]).out, "1\n2\n3\n");
    assert_eq!(cluster.run(&["history", "-q", "--state", "failed"]).out, "2\n");
    let list = cluster.run(&["list", "--all"]).out;
    assert!(list.starts_with("ID  NAME  USER  QUEUE  PRIO  STATE      DONE           TIME"), "{list}");
    assert!(list.contains("2   many  ada          -4    failed     0/3, 3 failed"), "{list}");

    let details: Vec<JobDetail> = cluster.json(&["info", "2"]);
    assert_eq!((details[0].summary.name.as_str(), details[0].exit_code), ("many", Some(5)));
    let info = cluster.run(&["info", "last", "--tasks"]).out;
    assert!(info.contains("job 3  hang  running") && info.contains("3.0.0  main   running"), "{info}");

    assert_eq!(cluster.run(&["wait", "1"]), says(0, "job 1 succeeded\n", ""));
    assert_eq!(cluster.run(&["wait", "1,2", "-q"]), says(5, "", ""));
    assert_eq!(cluster.json::<Vec<Waited>>(&["wait", "1-2"]).len(), 2);
    assert_eq!(cluster.run(&["wait", "last", "--timeout", "00:00:00.05"]).code, 124);
    let story = cluster.run(&["story", "2.main.1"]);
    assert!(story.out.contains("task-ended") && story.out.lines().count() == 1, "{story:?}");
}

#[test]
fn logs_print_one_task_or_all() {
    let cluster = Cluster::start();
    cluster.run(&["submit", "--", "echo", "x"]);
    std::fs::write(cluster.state.path().join("words"), "a\nb\n").unwrap();
    cluster.run(&["submit", "--each-line", "words", "--", "item"]);
    cluster.run(&["submit", "--", "warn", "oh"]);
    assert_eq!(cluster.run(&["logs", "1"]).out, "x\n");
    assert_eq!(cluster.run(&["logs", "2"]).out, "main/0: a\nmain/1: b\n");
    assert_eq!(cluster.run(&["logs", "-f", "2.main"]).out, "main/0: a\nmain/1: b\n");
    assert_eq!(cluster.run(&["logs", "2.0.1"]).out, "b\n");
    assert_eq!(cluster.run(&["logs", "last"]), says(0, "", ""));
    assert_eq!(cluster.run(&["logs", "last", "--stderr"]).out, "oh\n");
    assert_eq!(cluster.run(&["logs", "-f", "last", "--both"]), says(0, "", "oh\n"));
    let beyond = cluster.run(&["logs", "last.main.9"]);
    let expected = "error: no task 9 in stage `main` of job 3, which has 1 task\n";
    assert!(
        beyond.code == 1 && beyond.err.starts_with(expected) && beyond.err.contains("info 3 --tasks"),
        "{beyond:?}"
    );
    let wrong = cluster.run(&["logs", "2.mian.0"]);
    assert_eq!(wrong, says(1, "", "error: job 2 has no stage `mian`\n  help: did you mean `main`?\n"));
}

#[test]
fn jobs_are_held_released_cancelled_and_run_again() {
    let cluster = Cluster::start();
    assert_eq!(cluster.run(&["submit", "-q", "--hold", "--", "hang"]).out, "1\n");
    assert_eq!(cluster.json::<Vec<JobSummary>>(&["list"])[0].reason.as_deref(), Some("held by its owner"));
    assert_eq!(cluster.run(&["release", "last"]), says(0, "job 1 released\n", ""));
    assert_eq!(
        cluster.run(&["cancel", "1,9"]),
        says(1, "job 1 cancelled\n", "error: job 9 not found\n  help: `amalgam list --all` shows the jobs\n")
    );
    assert_eq!(cluster.run(&["rerun-failed", "1", "-q"]), says(0, "1\n", ""));
    assert_eq!(cluster.run(&["cancel", "all"]), says(0, "job 1 cancelled\n", ""));
    assert_eq!(cluster.run(&["cancel", "all"]), says(0, "", ""));
}

#[test]
fn jobs_come_after_those_that_selectors_name() {
    let cluster = Cluster::start();
    for after in [&[][..], &["--after", "last"], &["--after", "1-2"], &["--after", "1,2", "--after", "last"]] {
        assert_eq!(cluster.run(&[&["submit", "-q"], after, &["--", "true"]].concat()).code, 0, "{after:?}");
    }
    let jobs: Vec<JobDetail> = cluster.json(&["info", "2-4"]);
    let after: Vec<&[u64]> = jobs.iter().map(|job| &job.after_jobs[..]).collect();
    assert_eq!(after, [&[1][..], &[1, 2], &[1, 2, 3]]);
    assert_eq!(cluster.run(&["submit", "--after", "x", "--", "true"]).code, 2);
}

#[test]
fn the_cluster_is_shown_and_nodes_are_drained() {
    let cluster = Cluster::start();
    let nodes = cluster.run(&["node", "list"]).out;
    assert!(nodes.contains("1   fake  up     0        0              2 cpu, 4 GiB memory"), "{nodes}");
    assert_eq!(cluster.run(&["node", "drain", "fake"]), says(0, "node fake is draining\n", ""));
    assert!(cluster.run(&["node", "info", "n1"]).out.contains("drained"));
    assert_eq!(
        cluster.run(&["node", "drain", "nowhere", "n1", "9"]),
        says(
            1,
            "node fake is draining\n",
            "error: node `nowhere` not found\n  help: `amalgam node list` shows them\nerror: node n9 not found\n  help: `amalgam node list` shows the nodes\n"
        )
    );
    assert_eq!(cluster.run(&["node", "undrain", "1"]).code, 0);
    assert_eq!(
        cluster.run(&["node", "info", "fakr"]),
        says(1, "", "error: node `fakr` not found\n  help: did you mean `fake`?\n")
    );
    assert_eq!(cluster.run(&["queue", "list", "-q"]).out, "root.default\n");
    let top = cluster.run(&["top"]).out;
    assert!(top.contains("1 of 1 nodes") && top.contains("root.default"), "{top}");
}

#[test]
fn users_with_tokens_cannot_change_jobs_of_others() {
    let cluster = Cluster::start();
    let added = cluster.run(&["token", "add", "bob"]);
    assert!(
        added.err.starts_with("warning: tasks of bob run as the agent's user where agents do not run as root"),
        "{added:?}"
    );
    let token = added.out;
    let ci = cluster.run(&["token", "add", "bob", "--name", "ci", "--scope", "read", "--ttl", "2h"]);
    let list = cluster.run(&["token", "list"]).out;
    let words: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["HOLDER", "ROLE", "NAME", "SCOPES", "UNTIL", "LAST", "USED"]);
    assert_eq!(words[1..3], [vec!["ada", "administrator", "admin"], vec!["bob", "user", "read,submit"]]);
    assert!(words[3].starts_with(&["bob", "user", "ci", "read"]) && words[3].len() == 5, "{list}");
    let with = |token: &str, arguments: &[&str]| {
        let mut call = command(cluster.state.path(), arguments);
        call.env("AMALGAM_TOKEN", token.trim());
        result(call.output().unwrap())
    };
    assert_eq!(with(&ci.out, &["list"]).code, 0);
    let refused = with(&ci.out, &["submit", "--", "true"]);
    assert!(refused.code == 1 && refused.err.contains("the token of bob is only for read"), "{refused:?}");
    let list = cluster.run(&["token", "list"]).out;
    assert!(list.lines().nth(3).unwrap().split_whitespace().count() == 6, "it has been used: {list}");
    cluster.run(&["token", "revoke", "bob", "--name", "ci"]);
    assert_eq!(with(&ci.out, &["list"]).code, 1);
    let agent = cluster.run(&["token", "add", "--agent", "vm-1"]).out;
    let of_agent = result(cluster.command(&["list"]).env("AMALGAM_TOKEN", agent.trim()).output().unwrap());
    let no_user = "error: the token belongs to the agent of node `vm-1`, not to a user\n";
    assert!(of_agent.code == 1 && of_agent.err.starts_with(no_user), "{of_agent:?}");
    assert_eq!(cluster.run(&["token", "remove", "--agent", "vm-1"]).code, 0);
    assert_eq!(cluster.run(&["token", "rotate", "--agent", "vm-1"]).code, 1);
    assert_eq!(cluster.run(&["token", "add"]).code, 2);
    cluster.run(&["submit", "--", "hang"]);
    let bob =
        |arguments: &[&str]| result(cluster.command(arguments).env("AMALGAM_TOKEN", token.trim()).output().unwrap());
    assert_eq!(bob(&["list", "-q"]).out, "1\n");
    let refused = "error: job 1 belongs to ada, and you are bob\n  help: ask ada or an administrator\n";
    assert_eq!(bob(&["cancel", "1"]), says(1, "", refused));
    assert_eq!(bob(&["logs", "1"]), says(1, "", refused));
    assert_eq!(bob(&["cancel", "all"]), says(0, "", ""));
    let stranger = result(cluster.command(&["list"]).env("AMALGAM_TOKEN", "wrong").output().unwrap());
    assert!(
        stranger.code == 1 && stranger.err.starts_with("error: this server does not know the token"),
        "{stranger:?}"
    );
}

#[test]
fn wrong_command_lines_exit_with_2_and_print_a_remedy() {
    let cluster = Cluster::start();
    for arguments in [
        &["lsit"][..],
        &["submit"],
        &["cancel", "x-y"],
        &["cancel"],
        &["wait", "1", "--timeout", "soon"],
        &["submit", "-r", "cpu=two", "--", "x"],
        &["submit", "-r", "memory=512", "--", "x"],
        &["submit", "--array", "9-1", "--", "x"],
        &["submit", "--env", "novalue", "--", "x"],
        &["submit", "--each-line", "missing", "--", "x"],
        &["submit", "--retries", "2", "job.toml"],
        &["submit", "--timeout", "0s", "--", "x"],
        &["run", "--name", "", "--", "x"],
        &["list", "--state", "bogus"],
        &["history", "--state", "running"],
        &["info", "1", "--tasks", "--state", "held"],
        &["dev", "--cpus", "0"],
        &["dev", "--listen", "nonsense"],
        &["server", "--listen", "0.0.0.0"],
        &["agent", "--join", "nonsense"],
        &["agent", "--join", "head:7434/0"],
        &["token", "join", "--ttl", "soon"],
        &["token", "join", "--uses", "0"],
        &["list", "--server", "https://head:7433"],
        &["list", "--server", "http://head:7433"],
        &["submit", "job.txt"],
        &["submit", "missing.toml"],
    ] {
        let result = cluster.run(arguments);
        assert_eq!((result.code, result.out.as_str()), (2, ""), "{arguments:?} {result:?}");
        assert!(result.err.starts_with("error: "), "{arguments:?} {result:?}");
    }
    let slip = cluster.run(&["submit", "-r", "memori=1GiB", "--", "x"]);
    assert!(slip.code == 2 && slip.err.contains("unknown resource `memori`; did you mean `memory`?"), "{slip:?}");
    for arguments in [
        &["list", "--limit", "x"][..],
        &["usage", "-n", "0"],
        &["submit", "--retries", "x", "--", "x"],
        &["top", "-i", "abc"],
    ] {
        let result = cluster.run(arguments);
        assert!(result.code == 2 && result.err.contains("\n  help: write a "), "{arguments:?} {result:?}");
    }
    let bare = cluster.run(&["run"]);
    assert!(
        bare.err.contains("Usage: amalgam run [OPTIONS] FILE\n       amalgam run [OPTIONS] -- COMMAND"),
        "{bare:?}"
    );
    std::fs::write(cluster.state.path().join("job.toml"), "comand = ['x']\n").unwrap();
    let expected = "error: job.toml:1:1: unknown key `comand`\n  help: did you mean `command`?\n";
    assert_eq!(cluster.run(&["submit", "job.toml"]), says(2, "", expected));
    assert_eq!(cluster.run(&["config", "check", "job.toml"]), says(2, "", expected));
    std::fs::write(cluster.state.path().join("job.toml"), b"\xff").unwrap();
    for arguments in
        [&["submit", "job.toml"][..], &["config", "check", "--server-config", "job.toml"], &["sim", "run", "job.toml"]]
    {
        let result = cluster.run(arguments);
        let expected =
            "error: cannot read job.toml: line 1 is not UTF-8; convert the file to UTF-8\n  help: name a text file";
        assert!(result.code == 2 && result.err.starts_with(expected), "{arguments:?} {result:?}");
    }
    std::fs::write(cluster.state.path().join("job.toml"), "command = ['x']\ntasks = 4\n").unwrap();
    assert_eq!(cluster.run(&["config", "check", "job.toml"]).out, "job.toml: ok (1 stage, 4 tasks)\n");
}

#[test]
fn a_configuration_that_the_server_would_refuse_is_not_ok() {
    let directory = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        std::fs::write(directory.path().join("server.toml"), text).unwrap();
        result(command(directory.path(), &["config", "check", "--server-config", "server.toml"]).output().unwrap())
    };
    assert_eq!(check("listen = '127.0.0.1:9999'\n").out, "server.toml: ok (preset amalgam, 1 queue)\n");
    for (text, problem) in [
        ("listen_names = ['two words']", "`two words` is neither the name nor the address of a machine"),
        ("[[account]]\nuser = 'ada'\nname = 'a:b'", "`a:b` cannot be the name of an account"),
        ("listen_agents = 'localhost'", "invalid address `localhost` to listen on"),
        ("preset = 'megha'", "preset `megha` is for federations"),
    ] {
        let refused = check(text);
        assert!(refused.code != 0 && refused.out.is_empty() && refused.err.contains(problem), "{text}: {refused:?}");
        let server = ["server", "--config", "server.toml", "--state-dir", "state"];
        let started = result(command(directory.path(), &server).output().unwrap());
        assert_eq!(started.err, refused.err, "the server gives the same answer");
    }
}

#[test]
fn an_authority_without_its_key_is_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    std::fs::write(state.join("ca.pem"), "").unwrap();
    let server = ["server", "--listen", "0.0.0.0:0", "--listen-agents", "127.0.0.1:0", "--state-dir", "state"];
    let refused = result(command(directory.path(), &server).output().unwrap());
    assert!(refused.code == 1 && refused.err.contains("ca-key.pem is missing"), "{refused:?}");
    assert!(refused.err.contains("help: restore it from a backup"), "{refused:?}");
}

#[test]
fn an_error_about_a_join_string_does_not_contain_its_secret() {
    let directory = tempfile::tempdir().unwrap();
    let secret = "5a".repeat(32);
    let rest = format!("{}/{secret}", "0e".repeat(32));
    for (flags, problem) in [
        (&["--join", &format!("http://head:7434/{rest}")][..], "invalid join string"),
        (&["--join", &format!("head/{rest}")], "invalid join string"),
        (&["--join", &format!("head:7434/{rest}"), "--server", "head:7434"], "cannot be used with"),
    ] {
        let refused = result(command(directory.path(), &[&["agent"], flags].concat()).output().unwrap());
        let hidden = !refused.err.contains(&secret);
        assert!(refused.code == 2 && hidden && refused.err.contains(problem), "{flags:?}: {refused:?}");
    }
}

#[test]
fn tokens_are_not_changed_through_a_connection() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["token", "add", "--agent", "node-1", "--server", "http://127.0.0.1:7433"];
    let refused = result(command(directory.path(), &arguments).output().unwrap());
    assert!(refused.code == 2 && refused.err.contains("leave --server and --context out"), "{refused:?}");
}

#[test]
fn a_job_that_nobody_could_release_is_refused() {
    let nowhere = tempfile::tempdir().unwrap();
    let refused = result(command(nowhere.path(), &["run", "--hold", "--", "true"]).output().unwrap());
    assert!(refused.code == 2 && refused.err.contains("\n  help: run it without --hold"), "{refused:?}");
}

#[test]
fn without_a_server_the_remedy_is_named() {
    let state = tempfile::tempdir().unwrap();
    let reported_without = |arguments: &[&str]| result(command(state.path(), arguments).output().unwrap());
    let list = reported_without(&["list"]);
    assert!(list.code == 1 && list.err.contains("help: start one with `amalgam dev`"), "{list:?}");
    // The file of a server that died is not a running server.
    drop(FakeServer::start(state.path(), "ada"));
    assert_eq!(reported_without(&["list"]).err, list.err);
    let named = reported_without(&["list", "--server", "127.0.0.1:1"]);
    assert!(named.code == 1 && named.err.contains("http://127.0.0.1:1 does not answer"), "{named:?}");
    assert_eq!(reported_without(&["list", "--server", "https://x"]).code, 2);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let cluster = Cluster::start();
    for verb in [&["list", "--all"][..], &["config", "schema"], &["completions", "bash"], &["man"]] {
        let mut child = cluster.command(verb).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{verb:?}");
    }
}

#[test]
fn a_million_tasks_are_submitted_quickly() {
    let cluster = Cluster::start();
    let lines: String = (0..1_000_000).map(|number| format!("input/file-{number:07}.dat\n")).collect();
    std::fs::write(cluster.state.path().join("lines"), lines).unwrap();
    for tasks in [["--array", "0-999999"], ["--each-line", "lines"]] {
        let started = Instant::now();
        let result = cluster.run(&[&["submit", "-q", "--hold"], &tasks[..], &["--", "x"]].concat());
        println!("{}: {:?}", tasks[0], started.elapsed());
        assert_eq!(result.code, 0, "{result:?}");
        // The fake cluster, in a debug build, has a record for each task.
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_server_that_is_not_there_is_not_waited_for() {
    let cluster = Cluster::start();
    let started = Instant::now();
    for verb in [&["submit", "--", "x"][..], &["run", "--", "x"], &["wait", "all"]] {
        assert_eq!(cluster.run(&[&["--server", "127.0.0.1:1"], verb].concat()).code, 1);
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn completions_and_manual_pages_are_made() {
    let state = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        assert!(result(command(state.path(), &["completions", shell]).output().unwrap()).out.contains("rerun-failed"));
    }
    assert!(result(command(state.path(), &["man"]).output().unwrap()).out.starts_with(".ie"));
    assert_eq!(result(command(state.path(), &["man", "--directory", "pages"]).output().unwrap()).code, 0);
    assert!(state.path().join("pages/amalgam-submit.1").exists());
}

#[test]
fn a_call_costs_little_more_than_a_process() {
    let cluster = Cluster::start();
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let started = Instant::now();
            assert_eq!(cluster.run(&["submit", "-q", "--", "echo"]).code, 0);
            started.elapsed()
        })
        .collect();
    times.sort();
    println!("submit, the process included: median {:?}, slowest {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(500));
}
