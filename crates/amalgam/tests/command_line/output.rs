//! Output of a verb is complete, or the exit code reports the loss; and no output contains escapes for a terminal.

use super::{Cluster, command, result, says};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

const VERBS_THAT_PRINT: [&[&str]; 19] = [
    &["list", "--all"],
    &["list", "--all", "--json"],
    &["history"],
    &["info", "1"],
    &["info", "1", "--tasks"],
    &["logs", "1"],
    &["logs", "-f", "1"],
    &["story", "1"],
    &["wait", "1"],
    &["queue", "list"],
    &["node", "list"],
    &["node", "info", "1"],
    &["usage"],
    &["top"],
    &["token", "list"],
    &["completions", "bash"],
    &["man"],
    &["config", "schema"],
    &["workload", "formats"],
];

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn unwritten_output_is_a_failure() {
    let cluster = Cluster::start();
    assert_eq!(cluster.run(&["submit", "-q", "--", "echo", "x"]).code, 0);
    let more: [&[&str]; 5] = [
        &["run", "--", "echo", "x"],
        &["run", "--json", "--", "echo"],
        &["--help"],
        &["--version"],
        &["list", "--help"],
    ];
    for arguments in VERBS_THAT_PRINT.into_iter().chain(more) {
        let result = result(cluster.command(arguments).stdout(full()).stderr(Stdio::piped()).output().unwrap());
        assert_eq!(result.code, 1, "{arguments:?} {result:?}");
        assert!(result.err.contains("cannot write to standard output"), "{arguments:?} {result:?}");
        assert!(result.err.contains("No space left on device"), "{arguments:?} {result:?}");
    }
}

#[test]
fn a_simulation_in_which_no_job_can_run_fails() {
    let nowhere = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let arguments = [&["sim", "run", "--workload", "synthetic", "--nodes", "2"], more].concat();
        result(command(nowhere.path(), &arguments).output().unwrap())
    };
    for more in [&["--cpus", "0.1"][..], &["--cpus", "0.1", "--json"], &["--cpus", "0.1", "--preset", "drf,fifo"]] {
        let result = run(more);
        assert!(result.code == 1 && result.out.is_empty(), "{result:?}");
        let expected = "error: 100 jobs can never run on these nodes, and `synthetic` has no other; the first: job-1: ";
        assert!(result.err.contains(expected), "{result:?}");
    }
}

#[test]
fn a_closed_standard_output_is_no_place_for_output() {
    let cluster = Cluster::start();
    for arguments in [&["list", "--all"][..], &["run", "--", "echo", "x"]] {
        let mut command = cluster.command(arguments);
        // SAFETY: it only closes a descriptor.
        unsafe {
            command.pre_exec(|| {
                libc::close(libc::STDOUT_FILENO);
                Ok(())
            })
        };
        let result = result(command.stderr(Stdio::piped()).stdout(Stdio::null()).output().unwrap());
        assert!(result.code == 1 && result.err.contains("Bad file descriptor"), "{arguments:?} {result:?}");
    }
}

#[test]
fn standard_error_counts_too() {
    let cluster = Cluster::start();
    for arguments in [&["run", "--", "warn", "x"][..], &["token", "add", "bob"]] {
        let result = result(cluster.command(arguments).stdout(Stdio::piped()).stderr(full()).output().unwrap());
        assert_eq!(result.code, 1, "{arguments:?} {result:?}");
    }
}

#[test]
fn a_pipe_that_does_not_block_gets_every_byte() {
    let cluster = Cluster::start();
    let line = "x".repeat(120_000);
    let words = [line.as_str(), &line, &line, &line, &line];
    for verb in [&["run", "--", "echo"][..], &["submit", "-q", "--", "echo"], &["logs", "2"], &["info", "2", "--json"]]
    {
        let is_run_or_submit = verb.contains(&"--");
        let arguments: Vec<&str> = verb.iter().chain(words.iter().filter(|_| is_run_or_submit)).copied().collect();
        let blocking = cluster.run(if is_run_or_submit { &[] } else { verb }).out;
        let mut ends = [0; 2];
        // SAFETY: there is room for two descriptors, and no other code owns them.
        let (mut reader, writer) = unsafe {
            use std::os::fd::FromRawFd;
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
        };
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let mut child = cluster.command(&arguments).stdout(writer).stderr(Stdio::null()).spawn().unwrap();
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{verb:?}");
        match verb[0] {
            "run" => assert_eq!(out.len(), 5 * line.len() + 5),
            "submit" => assert_eq!(out, "2\n"),
            _ => assert!(out.len() > 5 * line.len() && out == blocking, "{} of {}", out.len(), blocking.len()),
        }
    }
}

#[test]
fn names_of_jobs_contain_no_escapes_in_output() {
    let cluster = Cluster::start();
    let name = "a\u{1b}[31m\rb\u{202e}c";
    let submitted = cluster.run(&["submit", "--name", name, "--", "echo"]);
    assert!(submitted.code == 2 && submitted.err.contains("a\\u{1b}[31m\\rb\\u{202e}c"), "{submitted:?}");
    let word = "x\u{7}\ny\u{202e}z";
    assert_eq!(cluster.run(&["submit", "--", "echo", word]).code, 0);
    let misleads = |text: &str| text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}'));
    assert!(!misleads(&submitted.out) && !misleads(&submitted.err), "{submitted:?}");
    for arguments in VERBS_THAT_PRINT {
        let result = cluster.run(arguments);
        let is_raw = arguments[0] == "logs" || arguments[0] == "completions";
        assert!(is_raw || !misleads(&result.out) && !misleads(&result.err), "{arguments:?} {result:?}");
    }
    assert_eq!(cluster.run(&["logs", "1"]).out, format!("{word}\n"));
    assert_eq!(cluster.run(&["info", "1"]).out.lines().count(), cluster.run(&["info", "1"]).out.matches('\n').count());
    assert!(cluster.run(&["info", "1"]).out.contains("echo x\\u{7}\\ny\\u{202e}z"));
    let details = cluster.json::<Vec<amalgam_daemon::api::JobDetail>>(&["info", "1"]);
    assert_eq!(details[0].stages[0].command, ["echo", word]);
    let wrong = cluster.run(&["logs", "1.ma\u{1b}[2Jin"]);
    assert!(wrong.code == 1 && !misleads(&wrong.err), "{wrong:?}");
}

#[test]
fn run_prints_the_jobs_id_also_for_scripts() {
    let cluster = Cluster::start();
    std::fs::write(cluster.state.path().join("words"), "a\nb\n").unwrap();
    let many = ["--each-line", "words", "--", "item"];
    let result = cluster.run(&[&["run", "-q", "--no-prefix"], &many[..]].concat());
    assert_eq!(result, says(0, "a\nb\n", ""));
    cluster.run(&["submit", "-q", "--each-line", "words", "--", "item"]);
    assert_eq!(cluster.run(&["logs", "2", "--no-prefix"]).out, "a\nb\n");
    let result = cluster.run(&["run", "--json", "-q", "--", "exit", "7"]);
    let job: amalgam_daemon::api::JobDetail = serde_json::from_str(&result.out).unwrap();
    assert_eq!((result.code, job.summary.id, job.exit_code, result.err.as_str()), (7, 3, Some(7), ""));
    let result = cluster.run(&["run", "--json", "--", "echo", "x"]);
    assert!(result.err.starts_with("job 4 submitted: echo, 1 task\n") && result.err.contains("x\n"), "{result:?}");
    assert!(serde_json::from_str::<amalgam_daemon::api::JobDetail>(&result.out).is_ok(), "{result:?}");
}

#[test]
fn a_reader_that_goes_away_ends_a_verb_like_any_filter() {
    let cluster = Cluster::start();
    let mut child = cluster.command(&["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().unwrap();
    assert!(status.success() || status.signal() == Some(libc::SIGPIPE), "{status:?}");
}

#[test]
fn empty_variables_count_as_unset_and_invalid_ones_are_refused() {
    let cluster = Cluster::start();
    for name in ["AMALGAM_SERVER", "AMALGAM_TOKEN", "AMALGAM_TOKEN_FILE", "AMALGAM_LOG", "AMALGAM_LOG_FORMAT"] {
        let result = result(cluster.command(&["list"]).env(name, "").output().unwrap());
        assert_eq!((result.code, result.err.as_str()), (0, ""), "{name}");
    }
    let nowhere = tempfile::tempdir().unwrap();
    let empty = result(
        command(nowhere.path(), &["list"]).env("AMALGAM_STATE", "").env("HOME", nowhere.path()).output().unwrap(),
    );
    assert!(empty.code == 1 && empty.err.contains("no running server was found"), "{empty:?}");
    for arguments in [&["list"][..], &["dev"], &["server"], &["agent"], &["config", "schema"]] {
        let result = result(cluster.command(arguments).env("AMALGAM_LOG", "wrongvalue").output().unwrap());
        let expected = "error: AMALGAM_LOG is `wrongvalue`, which is not a level\n  help: set it to one of off, error, warn, info, debug, trace, also for parts as in `info,http=debug`, or unset it\n";
        assert_eq!(result, says(2, "", expected), "{arguments:?}");
    }
    for (name, value) in [
        ("AMALGAM_SERVER", " "),
        ("AMALGAM_SERVER", "http://"),
        ("AMALGAM_SERVER", "a b"),
        ("AMALGAM_TOKEN", "a\nb"),
        ("AMALGAM_LOG", "disk=info"),
        ("AMALGAM_LOG_FORMAT", "xml"),
    ] {
        let result = result(cluster.command(&["list"]).env(name, value).output().unwrap());
        assert!(result.code == 2 && result.err.contains(name), "{name} {value:?} {result:?}");
    }
    for level in ["INFO", "trace", "off", "warn,http=debug,loop=info"] {
        assert_eq!(result(cluster.command(&["list"]).env("AMALGAM_LOG", level).output().unwrap()).code, 0, "{level}");
    }
}

#[test]
fn ranges_and_all_select_existing_jobs_that_allow_the_action() {
    let cluster = Cluster::start();
    for arguments in [&["--", "echo"][..], &["--", "hang"], &["--hold", "--", "hang"]] {
        assert_eq!(cluster.run(&[&["submit", "-q"], arguments].concat()).code, 0);
    }
    assert_eq!(cluster.run(&["wait", "1,90-95"]), says(0, "job 1 succeeded\n", ""));
    let none = "error: jobs 90-95 not found\n  help: `amalgam list --all` shows the jobs\n";
    assert_eq!(cluster.run(&["wait", "90-95"]), says(1, "", none));
    assert_eq!(cluster.run(&["cancel", "90-95"]), says(1, "", none));
    assert_eq!(cluster.run(&["info", "1-9", "--json"]).code, 0);
    assert_eq!(cluster.run(&["usage", "1-9"]).code, 0);
    assert_eq!(cluster.run(&["submit", "-q", "--after", "1-3", "--after", "3-9", "--", "echo"]), says(0, "4\n", ""));
    assert_eq!(cluster.run(&["cancel", "1-6"]), says(0, "job 2 cancelled\njob 3 cancelled\n", ""));
    let ended = cluster.run(&["cancel", "1-6"]);
    assert!(ended.code == 0 && ended.out.is_empty() && ended.err.starts_with("nothing to do"), "{ended:?}");
    let named = cluster.run(&["cancel", "3"]);
    assert!(named.code == 1 && named.err.starts_with("error: job 3 "), "{named:?}");
    assert_eq!(cluster.run(&["cancel", "all"]), says(0, "", ""));
    assert_eq!(cluster.run(&["cancel", "2-3,3"]).code, 1);
}
