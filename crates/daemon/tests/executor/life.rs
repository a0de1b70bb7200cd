//! The life of an executor: its agents, its end and its successor.

use crate::BOTH;
use crate::agent::{self, Agent, Home, exists, patience, sh};
use amalgam_core::protocol::{ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, ExecutorFrame};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel releases the lock of a killed executor after it has closed the socket.
#[test]
fn an_agent_waits_for_the_lock_of_an_executor_that_has_just_died() {
    let home = Home::new(EnforcementChoice::None);
    let lock = fs::File::create(home.state.join("executor.lock")).unwrap();
    lock.lock().unwrap();
    let released = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(lock);
    });
    let mut agent = home.agent();
    released.join().unwrap();
    assert_eq!(agent.run(sh(1, "true")).reason, EndReason::Exit(0));
}

#[test]
fn tasks_continue_and_ends_are_kept_while_the_agent_is_not_connected() {
    let home = Home::new(EnforcementChoice::Auto);
    let mut first = home.agent();
    let pids = home.state.join("pids");
    let short = format!("echo $$ > {}; sleep 0.2; exit 9", pids.display());
    let (short, long) = (first.start(sh(1, &short)), first.start(sh(2, "sleep 1000")));
    home.wait_for_lines(&pids, 1);
    let pid = first.hello.pid;
    drop(first);
    home.wait_until("the short task has ended", || home.pids(&pids).iter().all(|pid| !exists(*pid)));

    let mut second = home.agent();
    assert_eq!(second.hello.pid, pid);
    second.send(ToExecutor::List { node: NodeId(1) });
    let Some(ExecutorReport::Executing { attempts }) = second.report_beside_ends() else {
        panic!("List was not answered")
    };
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].order, sh(2, "sleep 1000"));
    assert!(attempts[0].running_for.as_millis() >= 100);
    assert_eq!(second.end_of(short).reason, EndReason::Exit(9));
    // A repeated order is answered with the current state and starts nothing.
    assert_eq!(second.run(sh(1, "exit 1")).reason, EndReason::Exit(9));
    second.send(ToExecutor::Launch(Box::new(sh(2, "sleep 1000"))));
    let again = second.report_beside_ends();
    assert_eq!(again, Some(ExecutorReport::Started { attempt: long, pid: attempts[0].pid }));

    second.send(ToExecutor::Acknowledge { attempt: short });
    second.send(ToExecutor::List { node: NodeId(2) });
    let of_another = second.report_beside_ends();
    assert_eq!(of_another, Some(ExecutorReport::Executing { attempts: Vec::new() }));
    second.send(ToExecutor::List { node: NodeId(1) });
    assert!(matches!(second.report_within(patience(5)), Some(ExecutorReport::Executing { .. })));
    assert!(second.report_within(Duration::from_millis(200)).is_none(), "an acknowledged end was repeated");
}

#[test]
fn attempts_of_nodes_that_are_no_longer_served_are_killed() {
    let home = Home::new(EnforcementChoice::Auto);
    let mut agent = home.agent();
    let pids = home.state.join("pids");
    let script = format!("echo $$ >> {}; exec sleep 1000", pids.display());
    let kept = agent.start(sh(1, &script));
    home.wait_for_lines(&pids, 1);
    let mut elsewhere = sh(2, &script);
    elsewhere.node = NodeId(2);
    agent.start(elsewhere);
    home.wait_for_lines(&pids, 2);
    let (of_kept, of_other) = (home.pids(&pids)[0], home.pids(&pids)[1]);

    agent.send_frame(&ExecutorFrame::Serve { nodes: vec![NodeId(1)] });
    home.wait_until("the other node's task has been killed", || !exists(of_other));
    assert!(exists(of_kept));
    // Its process has exited shortly before the executor has processed the end.
    let mut reports = Vec::new();
    while reports.last() != Some(&ExecutorReport::Executing { attempts: Vec::new() }) {
        assert!(reports.len() < 1_000, "it is still listed");
        agent.send(ToExecutor::List { node: NodeId(2) });
        reports.push(agent.report_within(patience(5)).expect("a list is answered"));
    }
    let reported = reports.iter().any(|report| matches!(report, ExecutorReport::Finished { .. }));
    assert!(!reported, "its end is not reported");
    agent.send(ToExecutor::Signal { attempt: kept, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    assert_eq!(agent.end_of(kept).reason, EndReason::Cancelled);
}

#[test]
fn tasks_die_with_their_executor_and_the_next_one_cleans_up() {
    for enforcement in BOTH {
        let home = Home::new(enforcement);
        let mut agent = home.agent();
        let pids = home.state.join("pids");
        agent.start(sh(1, &format!("setsid sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait", pids.display())));
        home.wait_for_lines(&pids, 2);
        home.kill_executor(agent.hello.pid);
        let mut next = home.agent();
        assert_ne!(next.hello.pid, agent.hello.pid);
        home.wait_until("the remaining processes have exited", || home.pids(&pids).iter().all(|pid| !exists(*pid)));
        next.send(ToExecutor::List { node: NodeId(1) });
        let listed = next.report_within(patience(5));
        assert_eq!(listed, Some(ExecutorReport::Executing { attempts: Vec::new() }));
        assert_eq!(agent::cgroups_of(agent.hello.pid), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_second_executor_on_the_same_state_is_refused() {
    let home = Home::new(EnforcementChoice::None);
    let agent = home.agent();
    let mut config = home.config.clone();
    config.socket = home.state.join("other-socket");
    let output = home.run_executor(&config);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains(&format!("pid {}", agent.hello.pid)) && error.contains("another executor"), "{error}");
}

#[test]
fn sigterm_and_shutdown_stop_the_executor_and_its_tasks() {
    for by_signal in [true, false] {
        let home = Home::new(EnforcementChoice::Auto);
        let mut agent = home.agent();
        let pids = home.state.join("pids");
        agent.start(sh(1, &format!("trap '' TERM; echo $$ >> {}; sleep 1000", pids.display())));
        home.wait_for_lines(&pids, 1);
        if by_signal {
            home.signal(agent.hello.pid, libc::SIGINT);
            home.signal(agent.hello.pid, libc::SIGTERM);
        } else {
            agent.send_frame(&ExecutorFrame::Shutdown);
        }
        home.wait_until("the executor has exited", || !exists(agent.hello.pid as i32));
        assert!(!exists(home.pids(&pids)[0]));
        assert!(!home.config.socket.exists());
        assert!(agent::cgroups_of(agent.hello.pid).is_empty());
    }
}

#[test]
fn an_idle_executor_exits_unless_it_has_an_unacknowledged_end() {
    let mut home = Home::new(EnforcementChoice::None);
    home.config.idle_exit = Duration::from_millis(200);
    let mut agent = home.agent();
    let pid = agent.hello.pid as i32;
    let attempt = agent.start(sh(1, "exit 0"));
    drop(agent);
    std::thread::sleep(Duration::from_millis(600));
    assert!(exists(pid));
    let mut agent = home.agent();
    agent.send(ToExecutor::Acknowledge { attempt });
    drop(agent);
    home.wait_until("the executor has exited", || !exists(pid));
}

#[test]
fn a_malformed_frame_only_closes_its_connection() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let attempt = agent.start(sh(1, "sleep 0.3; exit 2"));
    for junk in [&[255; 64][..], &[3, 0, 0, 0, 99, 99, 99]] {
        let mut rogue = home.agent();
        rogue.send_bytes(junk);
        assert!(rogue.is_closed());
    }
    let mut agent = home.agent();
    agent.send(ToExecutor::List { node: NodeId(1) });
    assert_eq!(agent.end_of(attempt).reason, EndReason::Exit(2));
    let log = fs::read_to_string(home.state.join("executor.log")).unwrap();
    assert_eq!(log.matches("dropped the agent's connection").count(), 2, "{log}");
}

#[test]
fn two_thousand_launches_leak_no_resources() {
    for enforcement in BOTH {
        let home = Home::new(enforcement);
        let mut agent = home.agent();
        let pid = agent.hello.pid;
        let run_some = |from: u32, count: u32, agent: &mut Agent| {
            for first in (from..from + count).step_by(10) {
                let batch: Vec<LaunchOrder> =
                    (first..first + 10).map(|number| sh(number, "echo x > $TMPDIR/f")).collect();
                for attempt in agent.run_batch(batch) {
                    agent.send(ToExecutor::Acknowledge { attempt });
                }
            }
        };
        let open = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        run_some(1, 20, &mut agent);
        let (open_before, groups_before) = (open(), agent::cgroups_of(pid).len());
        run_some(21, 2_000, &mut agent);
        agent.send(ToExecutor::List { node: NodeId(1) });
        agent.report_within(patience(5));
        // The order of the ends varies, so the pool may have grown to ten groups with five descriptors each.
        assert!(open() <= open_before + 50, "{open_before} open files became {}", open());
        assert!(agent::cgroups_of(pid).len() <= groups_before.max(24), "{:?}", agent::cgroups_of(pid));
        assert_eq!(home.scratch_files(), 0);
        assert!(!Path::new(&home.state).join("output").exists());
    }
}
