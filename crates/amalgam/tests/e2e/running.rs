//! One command from its start to its exit code: variables, directories, output.

use crate::support::{Scene, until_true};
use amalgam_core::vocabulary::{AttemptId, Epoch, JobId, Stream};
use amalgam_daemon::api::{NodeDetail, TaskState};
use amalgam_daemon::executor::output_path;
use amalgam_daemon::server::executor_paths;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// A script that continues when the file `go` appears.
pub const AWAIT_GO: &str = "while [ ! -e go ]; do sleep 0.02; done";

#[test]
fn the_end_of_a_command_is_the_end_of_run() {
    let scene = Scene::dev(&[]);
    let code = |arguments: &[&str]| scene.run(&[&["run"], arguments].concat()).code;
    assert_eq!(code(&["--", "true"]), 0);
    assert_eq!(code(&["--", "sh", "-c", "exit 7"]), 7);
    assert_eq!(code(&["--", "sh", "-c", "kill -TERM $$"]), 128 + 15);
    assert_eq!(code(&["--", "sh", "-c", "kill -KILL $$"]), 128 + 9);
    assert_eq!(code(&["--timeout", "200ms", "--", "sleep", "60"]), 124);
    assert_eq!(code(&["--no-such-option"]), 2);
    assert_eq!(code(&["no-such-file.toml"]), 2);
    assert_eq!(scene.run(&["wait", "1-3"]).code, 7, "the first that failed");

    let late = scene.run(&["run", "--timeout", "1s", "--", "sleep", "60"]);
    assert!(late.code == 124 && late.err.contains("task main timed out after 1.00s\n"), "{late:?}");
    assert_eq!(scene.tasks("last")[0].reason.as_deref(), Some("timed out after 1.00s"));
    let missing = scene.run(&["run", "--", "no-such-program"]);
    assert_eq!(missing.code, 126, "{missing:?}");
    assert!(missing.err.contains("no-such-program"), "{missing:?}");
    let directory = scene.run(&["run", "--workdir", "/no/such/directory", "--", "true"]);
    assert!(directory.code != 0 && directory.err.contains("/no/such/directory"), "{directory:?}");
}

#[test]
fn a_task_over_its_memory_is_killed_and_said_to_be() {
    let scene = Scene::dev(&[]);
    let nodes: NodeDetail = scene.json(&["node", "info", "0"]);
    if !nodes.enforcement.starts_with("cgroup") {
        println!("skipped: no cgroups here ({})", nodes.enforcement);
        return;
    }
    // `tail` keeps a line without an end in memory.
    let result = scene.run(&["run", "-r", "memory=24MiB", "--", "sh", "-c", "head -c 300m /dev/zero | tail; exit $?"]);
    assert_eq!(result.code, 137, "{result:?}");
    let wanted = "used 24 of 24 MiB; request more with -r memory";
    assert!(result.err.contains(wanted), "{result:?}");
    let task = &scene.tasks("last")[0];
    assert!(task.reason.as_deref().is_some_and(|reason| reason.ends_with(wanted)), "{task:?}");
}

#[test]
fn a_task_knows_who_it_is() {
    let scene = Scene::dev(&[]);
    scene.write("words", "one\ntwo words\nthree\n");
    let arguments =
        ["run", "--name", "known", "--each-line", "words", "--env", "COLOUR=blue", "-r", "cpu=0.5,memory=64MiB"];
    let script = "[ $AMALGAM_INDEX = 1 ] && env | sort; true";
    let result = scene.run(&[&arguments[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(result.code, 0, "{result:?}");
    let work = scene.work().display().to_string();
    for line in [
        "AMALGAM_ITEM=two words",
        "AMALGAM_JOB_ID=1",
        "AMALGAM_JOB_NAME=known",
        "AMALGAM_STAGE=main",
        "AMALGAM_TASK_ID=1.0.1",
        "AMALGAM_INDEX=1",
        "AMALGAM_COUNT=3",
        "AMALGAM_CPUS=0.5",
        "AMALGAM_MEM_BYTES=67108864",
        "AMALGAM_EXECUTION=auto",
        "COLOUR=blue",
        "OMP_NUM_THREADS=1",
        &format!("AMALGAM_SUBMIT_DIR={work}"),
        &format!("PWD={work}"),
    ] {
        assert!(result.out.contains(&format!("main/1: {line}\n")), "{line} is missing in {}", result.out);
    }
    let value = |name: &str| {
        let (_, rest) = result.out.split_once(&format!("main/1: {name}=")).unwrap_or_else(|| panic!("no {name}"));
        rest.lines().next().unwrap().to_owned()
    };
    assert!(value("AMALGAM_ATTEMPT").starts_with("1-"), "{}", value("AMALGAM_ATTEMPT"));
    assert_ne!(value("AMALGAM_TASK_DIR"), work);
    assert!(value("TMPDIR").starts_with(&value("AMALGAM_TASK_DIR")), "{}", result.out);
    assert!(value("AMALGAM_ERROR_FILE").starts_with('/'));
    assert!(value("AMALGAM_PROGRESS_FILE").starts_with('/'));
}

#[test]
fn a_task_runs_where_it_was_submitted_or_in_a_directory_of_its_own() {
    let scene = Scene::dev(&[]);
    scene.write("here", "found\n");
    assert_eq!(scene.ok(&["run", "--", "cat", "here"]), "found\n");
    let own = "ls -A; echo mine > file; pwd";
    let first = scene.ok(&["run", "--workdir", "own", "--", "sh", "-c", own]);
    let second = scene.ok(&["run", "--workdir", "own", "--", "sh", "-c", own]);
    assert!(first.starts_with('/') && second.starts_with('/') && first != second, "{first}{second}");
    assert_eq!(scene.ok(&["run", "--workdir", "/", "--", "pwd"]), "/\n");
    // A task's own message becomes the reason.
    scene.run(&["run", "--", "sh", "-c", "echo the sensor is offline > $AMALGAM_ERROR_FILE; exit 3"]);
    let task = &scene.tasks("last")[0];
    assert!(task.reason.as_deref().is_some_and(|reason| reason.contains("the sensor is offline")), "{task:?}");
}

#[test]
fn output_can_be_read_during_and_after_the_run() {
    let scene = Scene::dev(&[]);
    let script = format!("echo one; echo warning >&2; {AWAIT_GO}; echo two");
    let id = scene.submit(&["--", "sh", "-c", &script]);
    until_true("the first line", || scene.ok(&["logs", &id]) == "one\n");
    until_true("news of its start", || scene.tasks(&id)[0].state == TaskState::Running);

    let mut follow = scene.command(&["logs", "-f", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    scene.write("go", "");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), follow.wait().unwrap().code()), ("two\n", Some(0)));

    assert_eq!(scene.ok(&["logs", &id]), "one\ntwo\n");
    assert_eq!(scene.ok(&["logs", "--stderr", &id]), "warning\n");
    let both = scene.run(&["logs", "--both", &id]);
    assert_eq!((both.out.as_str(), both.err.as_str()), ("one\ntwo\n", "warning\n"));
}

#[test]
fn output_past_the_cap_is_said_to_be_dropped() {
    let scene = Scene::dev(&[]);
    let result = scene.run(&["run", "--output-cap", "1KiB", "--", "sh", "-c", "yes | head -c 3072"]);
    assert_eq!((result.code, result.out.len()), (0, 1024), "{result:?}");
    assert!(result.err.contains("main: 2.0 KiB of output were not kept"), "{result:?}");
    assert!(scene.ok(&["info", "last"]).contains("main: 2.0 KiB of output were not kept"));
    assert_eq!(scene.run(&["run", "-q", "--output-cap", "1KiB", "--", "sh", "-c", "yes | head -c 3072"]).err, "");
}

#[test]
fn output_that_finds_the_disk_full_is_said_to_be_lost_for_that() {
    let scene = Scene::dev(&[]);
    let (executor, _) = executor_paths(&scene.state());
    let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number: 1 };
    let path = output_path(&executor, attempt, Stream::Stdout);
    let directory = path.parent().unwrap().to_str().unwrap();
    // Every write to its output directory finds the disk full.
    let script = format!("mkdir -p {directory}; ln -s /dev/full {directory}/$AMALGAM_ATTEMPT.out; echo lost");
    let id = scene.submit(&["--", "sh", "-c", &script]);
    assert_eq!(scene.run(&["wait", &id]).code, 0);
    let wanted = format!("main: 5 B of output were not kept: the disk of {directory} is full");
    let info = scene.ok(&["info", &id]);
    assert!(info.contains(&wanted) && !info.contains("cap"), "{info}");
}

#[test]
fn an_interrupted_run_ends_its_task() {
    let scene = Scene::dev(&[]);
    let script = "echo $$ > pid; exec sleep 300";
    let run = scene.command(&["run", "--", "sh", "-c", script]).stderr(Stdio::piped()).spawn().unwrap();
    let pid = scene.line_in("pid");
    // SAFETY: kill has no preconditions.
    unsafe { libc::kill(run.id() as libc::pid_t, libc::SIGINT) };
    let output = run.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(text.ends_with("job 1 cancelled by ada\n"), "{text}");
    until_true("the task's end", || !crate::support::is_alive(&pid));
}

#[test]
fn a_cluster_for_one_run_has_the_requested_size() {
    let scene = Scene::new();
    // Four tasks that run only at the same time.
    let script = "touch here-$AMALGAM_INDEX; while [ $(ls here-* | wc -l) -lt 4 ]; do sleep 0.02; done";
    let size = ["run", "--nodes", "2", "--cpus", "2", "--array", "0-3", "--", "sh", "-c", script];
    let result = scene.run(&size);
    assert_eq!(result.code, 0, "{result:?}");
    assert_eq!(scene.run(&["run", "--", "sh", "-c", "exit 11"]).code, 11);
    let none = scene.run(&["list"]);
    assert!(none.code == 1 && none.err.contains("no running server was found"), "{none:?}");
}

#[test]
fn a_state_directory_that_cannot_be_read_is_not_one_without_a_server() {
    let scene = Scene::new();
    let file = scene.write("file", "");
    let around = scene.work().join("around");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    for (place, why) in [(&file, "Not a directory"), (&around, "symbolic links")] {
        for verb in [&["list"][..], &["run", "--", "true"]] {
            let result = crate::support::result({
                let mut command = scene.command(verb);
                command.env("AMALGAM_STATE", place);
                command
            });
            let wanted = format!("error: cannot read server.json in the state directory {}: ", place.display());
            assert!(result.code == 1 && result.err.starts_with(&wanted) && result.err.contains(why), "{result:?}");
            assert!(
                result.err.contains("help: name another directory with --state-dir or AMALGAM_STATE"),
                "{result:?}"
            );
        }
    }
    let closed = scene.work().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    // Root may read everything.
    if fs::read_dir(&closed).is_err() {
        let mut command = scene.command(&["list"]);
        command.env("AMALGAM_STATE", &closed);
        let result = crate::support::result(command);
        assert!(result.code == 1 && result.err.contains("Permission denied"), "{result:?}");
        assert!(result.err.contains("help: make both readable for your user, or name another"), "{result:?}");
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_killed_run_takes_its_cluster_along() {
    let scene = Scene::new();
    let mut run = scene.command(&["run", "--", "sh", "-c", "echo $$ > pid; exec sleep 300"]).spawn().unwrap();
    let pid = scene.line_in("pid");
    run.kill().unwrap();
    run.wait().unwrap();
    until_true("the task's end", || !crate::support::is_alive(&pid));
}

#[test]
fn a_failed_task_is_named_as_the_verbs_find_it() {
    let scene = Scene::dev(&[]);
    let script = "echo $AMALGAM_INDEX; [ $AMALGAM_INDEX != 9 ]";
    let result = scene.run(&["run", "--array", "0-9:3", "--", "sh", "-c", script]);
    assert!(result.err.contains("task main/3 (value 9) exited with code 1"), "{result:?}");
    assert_eq!(scene.run(&["logs", "last.main.3"]).out, "9\n");
}
