//! A server that accepts connections and does not answer, like a paused one: no command runs longer than its user wants.

use crate::support::{Scene, read, until, until_true};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Pauses the server until this is dropped.
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

/// Whether it handles SIGTERM.
fn catches_signals(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
}

#[test]
fn run_ends_by_signals_while_the_server_answers_nothing() {
    let scene = Scene::dev(&[]);
    for (first, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        // While it submits: the result of the submission is unknown.
        let paused = Paused::now(&scene);
        let mut child = spawn(&scene, &["run", "--", "true"]);
        until_true("its submission", || catches_signals(&child));
        signal(&child, first);
        ends_within(&mut child, Duration::from_secs(15), first);
        let result = read(child.wait_with_output().unwrap());
        assert_eq!(result.code, code, "{result:?}");
        assert!(result.err.contains("has not answered the submission"), "{result:?}");
        drop(paused);
    }
}

#[test]
fn run_exits_at_the_second_signal_or_if_the_server_does_not_cancel() {
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
        let mut output = String::new();
        err.read_line(&mut output).unwrap();
        for name in signals {
            signal(&child, name);
            // The same signal twice may count as one; a different one is a second one.
            if *name == signals[0] {
                err.read_line(&mut output).unwrap();
            }
        }
        ends_within(&mut child, Duration::from_secs(10), "the signals");
        if signals.len() == 2 {
            assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        }
        err.read_to_string(&mut output).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{output}");
        let id = scene_job(&output);
        let words = format!("job {id} may still run: `amalgam info {id}` shows it, `amalgam cancel {id}` ends it\n");
        assert!(output.contains(&format!("cancelling job {id}")) && output.ends_with(&words), "{output}");
        drop(paused);
        scene.run(&["cancel", "all"]);
        assert_eq!(scene.run(&["wait", &id]).code, 130);
    }
}

fn scene_job(output: &str) -> String {
    output.strip_prefix("job ").and_then(|rest| Some(rest.split_once(' ')?.0)).unwrap().to_owned()
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
        let result = scene.run(verb);
        assert_eq!(result.code, 124, "{verb:?} {result:?}");
        assert!(result.err.contains("does not answer") && started.elapsed() < Duration::from_secs(6), "{result:?}");
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
    let result = read(list.wait_with_output().unwrap());
    assert!(
        result.code == 1 && result.err.contains("does not answer: it accepts connections, but did not answer in time"),
        "{result:?}"
    );
    assert!(result.err.contains("\n  help: it may be stopped or overloaded"), "{result:?}");
}
