//! Output of the command line about real jobs: every byte of the tasks' output, and one line for each other text.

use crate::support::{Scene, read};
use amalgam_daemon::api::{StoryLine, TaskSummary};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Stdio;

#[test]
fn all_output_reaches_a_slow_reader_through_a_pipe_that_does_not_block() {
    let scene = Scene::dev(&[]);
    for verb in [&["run", "-q", "--"][..], &["run", "-q", "--no-prefix", "--array", "0-1", "--"]] {
        let mut ends = [0; 2];
        // SAFETY: there is room for two descriptors, and no other code owns them.
        let (mut reader, writer) = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
        };
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let task = ["sh", "-c", "head -c 1000000 /dev/zero"];
        let mut child = scene.command(&[verb, &task].concat()).stdout(writer).spawn().unwrap();
        let (mut count, mut piece) = (0, vec![0; 4096]);
        loop {
            match reader.read(&mut piece).unwrap() {
                0 => break,
                bytes => count += bytes,
            }
        }
        let tasks = if verb.contains(&"--array") { 2 } else { 1 };
        assert_eq!((count, child.wait().unwrap().code()), (tasks * 1_000_000, Some(0)), "{verb:?}");
    }
}

#[test]
fn a_job_whose_output_cannot_be_written_is_cancelled_and_no_success() {
    let scene = Scene::dev(&[]);
    for script in ["echo hi", "echo hi; exec sleep 600"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = scene.command(&["run", "--", "sh", "-c", script]);
        let result = read(command.stdout(full).stderr(Stdio::piped()).output().unwrap());
        assert_eq!(result.code, 1, "{result:?}");
        assert!(result.err.contains("No space left on device"), "{result:?}");
    }
    assert_eq!(scene.run(&["wait", "2"]).code, 130);
}

#[test]
fn messages_of_tasks_stay_within_a_line() {
    let scene = Scene::dev(&[]);
    let script = r"printf 'a\n\033[31mb\007\r\302\233c' > $AMALGAM_ERROR_FILE; printf '\033[1mraw'; exit 3";
    let run = scene.run(&["run", "--retries", "0", "--", "sh", "-c", script]);
    let misleads = |text: &str| text.chars().any(|c| c != '\n' && c.is_control());
    assert!(run.out == "\u{1b}[1mraw" && !misleads(&run.err), "{run:?}");
    for verb in [
        &["list", "--all"][..],
        &["history"],
        &["info", "1"],
        &["info", "1", "--tasks"],
        &["story", "1"],
        &["wait", "1"],
        &["usage"],
    ] {
        let result = scene.run(verb);
        assert!(!misleads(&result.out) && !misleads(&result.err), "{verb:?} {result:?}");
    }
    assert_eq!(scene.run(&["list", "--all"]).out.lines().count(), 2);
    let reason = scene.tasks("1")[0].reason.clone().unwrap();
    assert!(reason.contains("a\n\u{1b}[31mb\u{7}\r\u{9b}c"), "{reason:?}");
    assert!(scene.run(&["info", "1", "--tasks"]).out.contains("a\\n\\u{1b}[31mb\\u{7}\\r\\u{9b}c"));
    let json = scene.run(&["info", "1", "--tasks", "--json"]).out;
    assert!(json.contains("\\u009b") && !misleads(&json), "{json}");
}

#[test]
fn cancel_all_ends_jobs_and_those_that_come_after_them() {
    let scene = Scene::dev(&[]);
    scene.submit(&["--", "true"]);
    scene.ok(&["wait", "1"]);
    scene.submit(&["--hold", "--", "true"]);
    scene.submit(&["--after", "2", "--", "true"]);
    let result = scene.run(&["cancel", "all"]);
    assert_eq!((result.code, result.out.as_str(), result.err.as_str()), (0, "job 2 cancelled\njob 3 cancelled\n", ""));
    scene.submit(&["--hold", "--", "true"]);
    scene.submit(&["--after", "4", "--", "true"]);
    let result = scene.run(&["cancel", "4", "5"]);
    assert_eq!((result.code, result.out.as_str()), (0, "job 4 cancelled\njob 5 cancelled\n"));
    let result = scene.run(&["rerun-failed", "all"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert_eq!(scene.run(&["wait", "1-9"]).code, 0);
}

#[test]
fn past_jobs_are_a_table_with_what_they_used() {
    let scene = Scene::dev(&[]);
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; printf 'a,\"b\"\nc' > $AMALGAM_ERROR_FILE; exit 3";
    assert_eq!(scene.run(&["run", "--name", "busy", "--", "sh", "-c", script]).code, 3);
    let table = scene.ok(&["history", "--since", "1h", "--csv"]);
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let headings = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let cell = |name: &str| rows[0].get(headings.iter().position(|heading| heading == name).unwrap()).unwrap();
    assert_eq!((rows.len(), cell("name"), cell("state"), cell("failed")), (1, "busy", "failed", "1"));
    assert!(cell("cpu_seconds").parse::<f64>().unwrap() > 0.0, "{table}");
    assert!(cell("max_memory_bytes").parse::<u64>().unwrap() > 0, "{table}");
    assert!(cell("reason").contains("a,\"b\"\nc"), "{table}");
}

/// The interface calls a task `1.0.2`, people call it `1.main.2`, and stories use its attempts.
#[test]
fn every_verb_takes_every_name_of_a_task_that_is_printed() {
    let scene = Scene::dev(&[]);
    let id = scene.submit(&["--array", "5-7", "--", "sh", "-c", "echo $AMALGAM_INDEX; echo x > out"]);
    scene.ok(&["wait", &id]);
    let tasks: Vec<TaskSummary> = scene.json(&["info", &id, "--tasks"]);
    let task = &tasks[1];
    let attempt = task.attempt.clone().unwrap();
    for name in [task.task.clone(), format!("{id}.{}.1", task.stage), "last.main.1".to_owned(), attempt] {
        assert_eq!(scene.ok(&["logs", &name]), "6\n", "{name}");
        let shown: Vec<TaskSummary> = scene.json(&["info", &name]);
        assert_eq!(shown.iter().map(|task| task.task.as_str()).collect::<Vec<_>>(), [task.task.as_str()], "{name}");
        let story: Vec<StoryLine> = scene.json(&["story", &name]);
        let of_tasks: BTreeSet<&str> = story.iter().filter_map(|line| line.task.as_deref()).collect();
        assert_eq!(of_tasks, BTreeSet::from([task.task.as_str()]), "{name}");
        assert_eq!(scene.ok(&["info", "--attempts", &name]).lines().count(), 2, "{name}");
        let result = scene.run(&["cancel", &name]);
        assert!(!result.err.contains("Usage") && result.code != 2, "{result:?}");
        let result = scene.run(&["wait", &name]);
        assert!(result.code == 2 && (result.err.contains("it names tasks") || name.contains("last")), "{result:?}");
        let result = scene.run(&["outputs", &name, "--list"]);
        assert!(result.code == 1 && result.err.contains("no outputs of"), "{result:?}");
    }
    for range in [format!("{id}.main.0-1"), format!("{id}.0.0,1")] {
        let lines = scene.ok(&["logs", "--no-prefix", &range]);
        assert_eq!(lines.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["5", "6"]), "{range}");
        assert_eq!(scene.json::<Vec<TaskSummary>>(&["info", &range]).len(), 2, "{range}");
        let story: Vec<StoryLine> = scene.json(&["story", &range]);
        assert!(story.iter().all(|line| line.task.as_ref() != Some(&tasks[2].task)), "{range}");
    }
    let result = scene.run(&["logs", &format!("{id}-9-9")]);
    assert!(result.code == 1 && result.err.contains(&format!("job {id} has no attempt {id}-9-9")), "{result:?}");
}
