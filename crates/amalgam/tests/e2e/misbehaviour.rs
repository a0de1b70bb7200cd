//! Clients that disconnect, and tasks that flood and fork.

use crate::support::{Scene, is_alive, until_true};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Resident memory of a process in kilobytes.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_client_that_goes_away_while_it_submits_leaves_nothing() {
    let scene = Scene::dev(&[]);
    let http = scene.http();
    let head = |length: usize| {
        format!(
            "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n",
            http.token
        )
    };
    for _ in 0..20 {
        let mut half = TcpStream::connect(&http.address).unwrap();
        half.write_all(head(10_000).as_bytes()).unwrap();
        half.write_all(b"{\"name\": \"half a job\", \"stages\": [").unwrap();
    }
    // A client that stays connected and sends nothing more does no harm either.
    let mut idle = TcpStream::connect(&http.address).unwrap();
    idle.write_all(head(10_000).as_bytes()).unwrap();
    let mut huge = TcpStream::connect(&http.address).unwrap();
    huge.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    huge.write_all(head(1 << 40).as_bytes()).unwrap();
    let mut status = [0; 12];
    huge.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
    assert_eq!(scene.run(&["run", "--", "true"]).code, 0);
    assert_eq!(scene.jobs().len(), 1);
}

#[test]
fn a_flood_of_output_is_capped() {
    let scene = Scene::dev(&[]);
    scene.write("flood.toml", "output_cap = '1MiB'\ncommand = 'yes | head -c 300000000; echo end >&2'\n");
    let daemon = scene.daemons.borrow()[0].pid();
    let before = resident_kib(daemon);
    let id = scene.submit(&["flood.toml"]);
    scene.ok(&["wait", &id]);
    let kept = scene.ok(&["logs", &id]);
    assert!(((1 << 20)..(1 << 20) + 1_000).contains(&kept.len()), "{} bytes were kept", kept.len());
    assert!(kept.starts_with("y\ny\n"));
    assert_eq!(scene.ok(&["logs", "--stderr", &id]), "end\n");
    let grown = resident_kib(daemon).saturating_sub(before);
    assert!(grown < 40 << 10, "the daemon grew by {grown} KiB");
}

#[test]
fn children_that_a_task_leaves_behind_end_with_it() {
    let scene = Scene::dev(&[]);
    // One in the same group, one that moved into a session of its own, one whose parent has exited.
    let script = "sleep 300 & echo $! >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 300' & \
                  (sleep 300 & echo $! >> pids); while [ $(wc -l < pids) -lt 3 ]; do sleep 0.02; done; exit 6";
    assert_eq!(scene.run(&["run", "--", "sh", "-c", script]).code, 6);
    let pids = scene.read("pids");
    assert_eq!(pids.lines().count(), 3);
    for pid in pids.lines() {
        until_true("the end of what a task left", || !is_alive(pid));
    }
}

#[test]
fn a_task_that_ignores_requests_to_end_is_killed() {
    let scene = Scene::dev(&[]);
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let id = scene.submit(&["--", "sh", "-c", script]);
    let pid = scene.line_in("pid");
    scene.ok(&["cancel", &id]);
    until_true("its end after the time of grace", || !is_alive(&pid));
}

#[test]
fn a_reader_that_goes_away_does_not_hurt_a_task() {
    let scene = Scene::dev(&[]);
    let id = scene.submit(&["--", "sh", "-c", "yes | head -n 100000; echo $? > ended"]);
    let follow = scene.command(&["logs", "-f", &id]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut follow = follow;
    let mut some = [0; 100];
    follow.stdout.take().unwrap().read_exact(&mut some).unwrap();
    // The pipe is closed by now.
    follow.wait().unwrap();
    scene.ok(&["wait", &id]);
    assert_eq!(scene.read("ended"), "0\n");
}
