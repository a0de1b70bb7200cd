//! Tests of the executor with real processes.

mod agent;
mod cgroups;
mod containers;
mod devices;
mod files;
mod isolation;
mod launches;
mod life;
mod limits;
mod precedence;
mod sandbox;
mod users;
mod virtual_machine;

use agent::{Agent, Home, change_program, exists, order, sh};
use amalgam_core::protocol::{ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, output_path};
use std::fs;
use std::time::Duration;

const BOTH: [EnforcementChoice; 2] = [EnforcementChoice::Auto, EnforcementChoice::None];

#[test]
fn exit_codes_signals_and_output_are_reported() {
    for enforcement in BOTH {
        let home = Home::new(enforcement);
        let mut agent = home.agent();
        let ended = agent.run(sh(1, "echo out; echo err >&2; exit 3"));
        assert_eq!(ended.reason, EndReason::Exit(3));
        assert_eq!((ended.usage.stdout_bytes, ended.usage.stderr_bytes), (4, 4));
        assert!(ended.usage.max_memory_bytes > 0 && ended.usage.wall.as_micros() > 0);
        assert_eq!(home.output(1, Stream::Stdout), "out\n");
        assert_eq!(home.output(1, Stream::Stderr), "err\n");
        assert_eq!(agent.run(sh(2, "kill -SEGV $$")).reason, EndReason::Signal(11));
        assert_eq!(agent.run(sh(3, ":")).reason, EndReason::Exit(0));
        assert!(!output_path(&home.state, order(3, &["true"]).attempt, Stream::Stdout).exists());
    }
}

#[test]
fn output_past_the_cap_is_dropped_and_counted() {
    let home = Home::new(EnforcementChoice::None);
    let mut launch = sh(1, "yes | head -c 5000000");
    change_program(&mut launch).output_cap = 100_000;
    let ended = home.agent().run(launch);
    assert_eq!(ended.reason, EndReason::Exit(0));
    assert_eq!((ended.usage.stdout_bytes, ended.usage.dropped_bytes), (5_000_000, 4_900_000));
    assert_eq!(home.output(1, Stream::Stdout).len(), 100_000);
    assert!(ended.message.unwrap().contains("the last 4900000 bytes of the output, above its cap, were not kept"));
}

#[test]
fn output_that_cannot_be_written_does_not_stop_the_task() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let path = output_path(&home.state, order(1, &["true"]).attempt, Stream::Stdout);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let ended = agent.run(sh(1, "echo lost; exit 4"));
    assert_eq!((ended.reason, ended.usage.dropped_bytes), (EndReason::Exit(4), 5));
    let message = ended.message.unwrap();
    assert!(message.contains("No space left") && !message.contains("cap"), "{message}");
    let directory = path.parent().unwrap().display();
    assert!(message.contains(&format!("the disk of {directory} is full")), "{message}");
}

#[test]
fn signals_that_the_executor_ignores_kill_tasks() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    for (number, signal) in [(1, libc::SIGXFSZ), (2, libc::SIGPIPE), (3, libc::SIGHUP)] {
        home.signal(agent.hello.pid, signal);
        let ended = agent.run(sh(number, &format!("kill -{signal} $$; exit 0")));
        assert_eq!(ended.reason, EndReason::Signal(signal as u8), "{ended:?}");
    }
}

#[test]
fn a_process_tree_that_ignores_sigterm_is_killed() {
    for enforcement in BOTH {
        let home = Home::new(enforcement);
        let mut agent = home.agent();
        let pids = home.state.join("pids");
        let tree = format!(
            "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >> {0}; while :; do sleep 1; done' & echo $$ >> {0}; wait; wait",
            pids.display()
        );
        let attempt = agent.start(sh(1, &tree));
        home.wait_for_lines(&pids, 2);
        agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Terminate, reason: EndReason::Cancelled });
        assert!(agent.report_within(Duration::from_millis(300)).is_none(), "it ignores TERM");
        agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
        assert_eq!(agent.end_of(attempt).reason, EndReason::Cancelled);
        for pid in home.pids(&pids) {
            assert!(!exists(pid), "{pid} still exists");
        }
    }
}

#[test]
fn a_stopped_task_can_be_terminated_and_killed() {
    let home = Home::new(EnforcementChoice::Auto);
    let mut agent = home.agent();
    for (number, signal, reason) in
        [(1, TaskSignal::Terminate, EndReason::Timeout), (2, TaskSignal::Kill, EndReason::Cancelled)]
    {
        let ready = home.state.join(format!("ready{number}"));
        let attempt = agent.start(sh(number, &format!("echo $$ > {}; kill -STOP $$; sleep 60", ready.display())));
        home.wait_for_lines(&ready, 1);
        agent.send(ToExecutor::Signal { attempt, signal, reason: reason.clone() });
        assert_eq!(agent.end_of(attempt).reason, reason, "the end has the reason of the order");
    }
}

#[test]
fn leftovers_are_killed_before_the_end_is_reported() {
    for enforcement in BOTH {
        let home = Home::new(enforcement);
        let mut agent = home.agent();
        let pids = home.state.join("pids");
        let shown = pids.display();
        // One in the task's group, one that became a daemon, and one that also cleared its environment. All of them
        // hold the pipe.
        let script = format!(
            "sleep 100 & echo $! >> {shown}; \
             (setsid sh -c 'echo $$ >> {shown}; exec sleep 100' &); \
             (env -i setsid /bin/sh -c 'echo $$ >> {shown}; exec /bin/sleep 100' &); \
             while [ $(wc -l < {shown}) -lt 3 ]; do sleep 0.01; done; echo done; exit 6"
        );
        let ended = agent.run(sh(1, &script));
        assert_eq!(ended.reason, EndReason::Exit(6));
        assert!(ended.usage.wall.as_millis() < 5_000, "the leftovers delayed the end: {}", ended.usage.wall);
        assert_eq!(home.output(1, Stream::Stdout), "done\n");
        let left: Vec<i32> = home.pids(&pids).into_iter().filter(|pid| exists(*pid)).collect();
        assert!(left.is_empty(), "{left:?} still exist under {enforcement}");
    }
}

#[test]
fn a_daemon_of_a_running_task_continues_when_another_task_ends() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let pids = home.state.join("pids");
    let shown = pids.display();
    let long = agent.start(sh(1, &format!("(setsid sh -c 'echo $$ >> {shown}; exec sleep 100' &); sleep 100")));
    home.wait_for_lines(&pids, 1);
    assert_eq!(agent.run(sh(2, "exit 0")).reason, EndReason::Exit(0));
    let daemon = home.pids(&pids)[0];
    assert!(exists(daemon));
    agent.send(ToExecutor::Signal { attempt: long, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    agent.end_of(long);
    assert!(!exists(daemon));
}

/// The executor's measurements of these attempts.
fn measure(agent: &mut Agent, attempts: &[AttemptId]) -> Vec<(AttemptId, Sample)> {
    agent.send(ToExecutor::Measure { node: NodeId(1), attempts: attempts.to_vec() });
    match agent.report_beside_ends() {
        Some(ExecutorReport::Measured { node: NodeId(1), samples }) => samples.into_vec(),
        other => panic!("expected samples: {other:?}"),
    }
}

/// Measures until the last of the attempts meets the condition.
fn measure_until(agent: &mut Agent, attempts: &[AttemptId], is_there: impl Fn(&Sample) -> bool) -> Vec<Sample> {
    for _ in 0..400 {
        let samples = measure(agent, attempts);
        assert_eq!(samples.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), attempts);
        if is_there(&samples[attempts.len() - 1].1) {
            return samples.into_iter().map(|(_, sample)| sample).collect();
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("the condition is not met: {:?}", measure(agent, attempts));
}

#[test]
fn measurements_include_the_reported_progress_and_all_child_processes() {
    for enforcement in BOTH {
        let home = Home::new(enforcement);
        let mut agent = home.agent();
        let input = home.state.join("input");
        fs::write(&input, vec![b'x'; 3 << 20]).unwrap();
        let idle = agent.start(sh(1, "sleep 100"));
        // The process that reads has ended when a process in another session continues to work.
        let script = format!(
            "cat {} > /dev/null; echo 0.25 > $AMALGAM_PROGRESS_FILE; echo 40% >> $AMALGAM_PROGRESS_FILE; \
             setsid sh -c 'while :; do :; done'; exit 1",
            input.display()
        );
        let busy = agent.start(sh(2, &script));
        let is_there = |sample: &Sample| sample.reported == Some(400_000) && sample.cpu.as_millis() >= 200;
        let samples = measure_until(&mut agent, &[idle, busy], is_there);
        assert!((3 << 20..4 << 20).contains(&samples[1].read_bytes), "{enforcement}: {:?}", samples[1]);
        assert!(samples[1].running_for >= samples[1].cpu, "only one process works: {:?}", samples[1]);
        assert_eq!(samples[0].reported, None);
        assert!(samples[0].read_bytes < 1 << 20 && samples[0].cpu.as_millis() < 100, "{enforcement}: {:?}", samples[0]);
        assert!(samples[0].running_for >= samples[1].running_for);
        agent.send(ToExecutor::Signal { attempt: busy, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
        agent.end_of(busy);
        assert_eq!(measure(&mut agent, &[busy]), [], "it does not run any more");
        // The next attempt in the same place starts with zero.
        let next = agent.start(sh(3, "sleep 100"));
        let sample = measure(&mut agent, &[next])[0].1;
        assert!(sample.reported.is_none() && sample.cpu.as_millis() < 100, "{enforcement}: {sample:?}");
    }
}
