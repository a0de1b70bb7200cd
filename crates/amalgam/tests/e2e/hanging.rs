//! A server that is there and says nothing, as one whose machine is paused: no command outlives what its user wants of it.

use crate::support::{Scene, read, until, until_true};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the server does while this lives.
struct Paused<'a>(&'a Scene);

impl<'a> Paused<'a> {
    fn now(scene: &'a Scene) -> Paused<'a> {
        scene.signal_daemon("STOP");
        Paused(scene)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.signal_daemon("CONT");
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
}

fn spawn(scene: &Scene, arguments: &[&str]) -> Child {
    scene.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ends_within(child: &mut Child, patience: Duration, what: &str) {
    let started = Instant::now();
    until(what, || child.try_wait().unwrap());
    assert!(started.elapsed() < patience, "{what}: {:?}", started.elapsed());
}

/// Whether it has a connection to the server.
fn is_connected(child: &Child) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", child.id())) else { return false };
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.into_iter().any(|link| link.to_string_lossy().starts_with("socket:"))
}

/// Whether TERM would not just end it.
fn catches_signals(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
}

#[test]
fn run_ends_by_signals_while_the_server_answers_nothing() {
    let scene = Scene::dev(&[]);
    for (first, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        // While it submits: what came of that is not known.
        let paused = Paused::now(&scene);
        let mut child = spawn(&scene, &["run", "--", "true"]);
        until_true("its submission", || catches_signals(&child));
        signal(&child, first);
        ends_within(&mut child, Duration::from_secs(15), first);
        let told = read(child.wait_with_output().unwrap());
        assert_eq!(told.code, code, "{told:?}");
        assert!(told.err.contains("has not answered the submission"), "{told:?}");
        drop(paused);
    }
}

#[test]
fn the_second_signal_leaves_a_job_at_once_and_the_first_if_nobody_cancels_it() {
    let scene = Scene::dev(&[]);
    for (signals, code) in [(&["INT", "INT"][..], 130), (&["TERM"], 143), (&["HUP", "TERM"], 143)] {
        let mut child = spawn(&scene, &["run", "--", "sh", "-c", "echo started; exec sleep 600"]);
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
        let paused = Paused::now(&scene);
        let started = Instant::now();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        err.read_line(&mut said).unwrap();
        for name in signals {
            signal(&child, name);
            // The next one is another.
            if *name == signals[0] {
                err.read_line(&mut said).unwrap();
            }
        }
        ends_within(&mut child, Duration::from_secs(10), "the signals");
        if signals.len() == 2 {
            assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        }
        err.read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{said}");
        let id = scene_job(&said);
        let words = format!("job {id} may still run: `amalgam info {id}` shows it, `amalgam cancel {id}` ends it\n");
        assert!(said.contains(&format!("cancelling job {id}")) && said.ends_with(&words), "{said}");
        drop(paused);
        scene.run(&["cancel", "all"]);
        assert_eq!(scene.run(&["wait", &id]).code, 130);
    }
}

fn scene_job(said: &str) -> String {
    said.strip_prefix("job ").and_then(|rest| Some(rest.split_once(' ')?.0)).unwrap().to_owned()
}

#[test]
fn a_wait_ends_by_its_timeout_and_other_verbs_end_like_any_program() {
    let scene = Scene::dev(&[]);
    scene.submit(&["--", "sleep", "600"]);
    let follow = spawn(&scene, &["logs", "-f", "1"]);
    let top = spawn(&scene, &["wait", "1"]);
    until_true("their connections", || is_connected(&follow) && is_connected(&top));
    let _paused = Paused::now(&scene);
    for verb in [
        &["wait", "1", "--timeout", "1s"][..],
        &["wait", "all", "--timeout", "1s"],
        &["wait", "last", "--timeout", "1s"],
    ] {
        let started = Instant::now();
        let told = scene.run(verb);
        assert_eq!(told.code, 124, "{verb:?} {told:?}");
        assert!(told.err.contains("does not answer") && started.elapsed() < Duration::from_secs(6), "{told:?}");
    }
    let others = [
        &["list"][..],
        &["submit", "--", "true"],
        &["cancel", "1"],
        &["info", "1"],
        &["story", "1"],
        &["logs", "-f", "1"],
    ];
    for (mut child, name) in
        [(follow, "INT"), (top, "TERM")].into_iter().chain(others.map(|verb| (spawn(&scene, verb), "INT")))
    {
        until_true("its connection", || is_connected(&child));
        signal(&child, name);
        ends_within(&mut child, Duration::from_secs(3), name);
    }
}

#[test]
fn a_question_to_a_server_that_hangs_is_given_up() {
    let scene = Scene::dev(&[]);
    let _paused = Paused::now(&scene);
    let mut list = spawn(&scene, &["list"]);
    ends_within(&mut list, Duration::from_secs(45), "list");
    let told = read(list.wait_with_output().unwrap());
    assert!(
        told.code == 1 && told.err.contains("does not answer: it takes connections, but said nothing in time"),
        "{told:?}"
    );
    assert!(told.err.contains("\n  help: it may be stopped or overloaded"), "{told:?}");
}

#[test]
fn all_output_reaches_a_slow_reader_through_a_pipe_that_does_not_block() {
    let scene = Scene::dev(&[]);
    for verb in [&["run", "-q", "--"][..], &["run", "-q", "--no-prefix", "--array", "0-1", "--"]] {
        let mut ends = [0; 2];
        // SAFETY: there is room for two descriptors, which are ours.
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
        let told = read(command.stdout(full).stderr(Stdio::piped()).output().unwrap());
        assert_eq!(told.code, 1, "{told:?}");
        assert!(told.err.contains("No space left on device"), "{told:?}");
    }
    assert_eq!(scene.run(&["wait", "2"]).code, 130);
}

#[test]
fn what_tasks_say_of_themselves_stays_within_its_line() {
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
        let told = scene.run(verb);
        assert!(!misleads(&told.out) && !misleads(&told.err), "{verb:?} {told:?}");
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
    let told = scene.run(&["cancel", "all"]);
    assert_eq!((told.code, told.out.as_str(), told.err.as_str()), (0, "job 2 cancelled\njob 3 cancelled\n", ""));
    scene.submit(&["--hold", "--", "true"]);
    scene.submit(&["--after", "4", "--", "true"]);
    let told = scene.run(&["cancel", "4", "5"]);
    assert_eq!((told.code, told.out.as_str()), (0, "job 4 cancelled\njob 5 cancelled\n"));
    let told = scene.run(&["rerun-failed", "all"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert_eq!(scene.run(&["wait", "1-9"]).code, 0);
}
