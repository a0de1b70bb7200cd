//! Tests of the executor with real processes.

mod agent;

use agent::{Agent, Home, cgroups_or_skip, change, change_program, change_shape, exists, order, sh};
use amalgam_core::protocol::{ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, ExecutorFrame, Mechanism, output_path, own_dir};
use amalgam_daemon::files::{FileStore, Left};
use std::fs;
use std::path::{Path, PathBuf};
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
fn a_failed_launch_has_a_reason() {
    let home = Home::new(EnforcementChoice::Auto);
    let mut agent = home.agent();
    let mut why = |order: LaunchOrder| match agent.run(order).reason {
        EndReason::LaunchFailed(why) => why,
        other => panic!("it was launched: {other}"),
    };
    let missing = why(order(1, &["no-such-command"]));
    assert!(missing.contains("`no-such-command` was not found") && missing.contains("PATH is /"), "{missing}");
    assert!(why(order(2, &["/no/such/program"])).contains("does not exist"));
    assert!(why(order(3, &["/etc/passwd"])).contains("not executable"));
    let mut elsewhere = order(4, &["true"]);
    change(&mut elsewhere).submit_dir = "/no/such/dir".into();
    let no_dir = why(elsewhere);
    assert!(no_dir.contains("no directory /no/such/dir") && no_dir.contains("workdir = \"own\""), "{no_dir}");
    assert!(why(order(5, &[])).contains("empty"));
    assert!(why(order(6, &["true", "zero\0byte"])).contains("zero byte"));
    assert_eq!(home.scratch_files(), 0);
}

#[test]
fn a_launch_that_fails_because_of_the_node_is_a_node_fault() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    // A file at the path of the tasks' directories is moved away.
    fs::remove_dir_all(home.state.join("tasks")).unwrap();
    fs::write(home.state.join("tasks"), "in the way").unwrap();
    assert_eq!(agent.run(sh(1, ":")).reason, EndReason::Exit(0));
    // This cannot be repaired if the state directory is a file.
    let moved = home.state.with_extension("moved");
    fs::rename(&home.state, &moved).unwrap();
    fs::write(&home.state, "in the way").unwrap();
    let ended = agent.run(sh(2, ":"));
    fs::remove_file(&home.state).unwrap();
    fs::rename(&moved, &home.state).unwrap();
    assert!(
        matches!(&ended.reason, EndReason::NodeFault(why) if why.contains("cannot create a directory")),
        "{ended:?}"
    );
}

#[test]
fn removed_directories_of_tasks_are_created_again() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let script = "[ -d $TMPDIR ] && touch $TMPDIR/f";
    for number in 1..4 {
        // In the second round the task would reuse a directory of an earlier task.
        assert_eq!(agent.run(sh(number * 2, ":")).reason, EndReason::Exit(0));
        if number == 3 {
            fs::remove_dir_all(home.state.join("tasks")).unwrap();
        }
        for left in fs::read_dir(home.state.join("tasks")).into_iter().flatten().flatten() {
            fs::remove_dir_all(left.path()).unwrap();
        }
        assert_eq!(agent.run(sh(number * 2 + 1, script)).reason, EndReason::Exit(0));
    }
}

#[test]
fn the_removal_of_many_files_does_not_delay_other_tasks() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let many = "cd $TMPDIR && seq 1 60000 | xargs touch";
    assert_eq!(agent.run(sh(1, many)).reason, EndReason::Exit(0));
    let waits = || fs::read_dir(home.state.join("removed")).unwrap().count();
    assert_eq!((waits(), home.scratch_files()), (1, 0), "the directory is moved away and not removed yet");
    assert_eq!(agent.run(sh(2, "exit 7")).reason, EndReason::Exit(7));
    assert_eq!(waits(), 1, "another task has run meanwhile");
    // The next executor continues the removal.
    home.kill_executor(agent.hello.pid);
    home.agent();
    home.wait_until("it is removed", || waits() == 0);
}

#[test]
fn leftovers_of_an_earlier_executors_tasks_are_removed() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let script = "mkdir -p $TMPDIR/m/n; touch $TMPDIR/m/f; chmod 000 $TMPDIR/m/n; chmod a-w $TMPDIR/m; echo $TMPDIR > $0; sleep 100";
    let said = home.state.join("said");
    let mut left = sh(1, script);
    change_program(&mut left).command.push(said.to_str().unwrap().into());
    agent.start(left);
    home.wait_until("the task has created its files", || {
        fs::read_to_string(&said).is_ok_and(|text| text.ends_with('\n'))
    });
    home.kill_executor(agent.hello.pid);
    let mut next = home.agent();
    assert!(!Path::new(fs::read_to_string(&said).unwrap().trim()).join("m").exists());
    assert_eq!(next.run(sh(2, "touch $TMPDIR/f")).reason, EndReason::Exit(0));
    home.wait_until("it is removed", || fs::read_dir(home.state.join("removed")).unwrap().count() == 0);
}

#[test]
fn only_text_is_executed_by_a_shell() {
    let home = Home::new(EnforcementChoice::Auto);
    let mut agent = home.agent();
    let elf = fs::read("/bin/true").unwrap();
    let program = home.state.join("program");
    let mut run = |number: u32, contents: &[u8], memory_mib: u32| {
        fs::write(&program, contents).unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut order = order(number, &[program.to_str().unwrap()]);
        change_shape(&mut order).resources = Resources::new(0, memory_mib);
        agent.run(order)
    };
    for (number, contents) in
        [(1, &elf[..100]), (2, &elf[..5]), (3, &b"\x7fELF\x02\x01\x01"[..]), (4, b""), (8, &elf[..3_000])]
    {
        let ended = run(number, contents, 0);
        assert!(matches!(&ended.reason, EndReason::LaunchFailed(why) if why.contains("cannot execute")), "{ended:?}");
        assert_eq!(ended.reason.exit_code(), 126);
    }
    assert_eq!(run(5, b"exit 3", 0).reason, EndReason::Exit(3));
    let crlf = run(6, b"#!/bin/sh\r\nexit 3\r\n", 0).reason.to_string();
    assert!(crlf.contains("its first line ends with a carriage return") && crlf.contains("sed -i"), "{crlf}");
    let by_env = run(7, b"#!/usr/bin/env sh\r\nexit 3\r\n", 0);
    assert_eq!(by_env.reason, EndReason::Exit(127));
    assert!(by_env.message.unwrap().contains("ends with a carriage return"));
}

#[test]
fn a_memory_limit_that_prevents_a_start_is_reported() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut launch = order(1, &["/bin/true"]);
    change_program(&mut launch).env =
        (0..18).map(|number| (format!("BIG{number}").into(), "x".repeat(100_000).into())).collect();
    change_shape(&mut launch).resources = Resources::new(0, 1);
    let mut agent = home.agent();
    let ended = agent.run(launch);
    assert!(
        matches!(&ended.reason, EndReason::LaunchFailed(why) if why.contains("its memory limit of 1 MiB is too low")),
        "{ended:?}"
    );
    assert_eq!(agent.run(sh(2, "exit 0")).reason, EndReason::Exit(0), "the executor still works");
}

#[test]
fn a_script_without_a_first_line_runs_in_the_shell() {
    let home = Home::new(EnforcementChoice::None);
    let script = home.state.join("script");
    fs::write(&script, "echo \"$0 $1\"; exit 5\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    assert_eq!(home.agent().run(order(1, &[script, "argument"])).reason, EndReason::Exit(5));
    assert_eq!(home.output(1, Stream::Stdout), format!("{script} argument\n"));
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

const HOG: &str = "python3 -c 'x = bytearray(300 << 20)'";

#[test]
fn a_task_over_its_memory_is_reported_as_out_of_memory_under_cgroups() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut agent = home.agent();
    let limited = |number, script: &str| {
        let mut order = sh(number, script);
        change_shape(&mut order).resources = Resources::new(1_000, 64);
        order
    };
    let killed = agent.run(limited(1, &format!("exec {HOG}")));
    assert_eq!(killed.reason, EndReason::OutOfMemory);
    assert_eq!(killed.message.as_deref(), Some("used 64 of 64 MiB; request more with -r memory"));
    // The shell returns the exit status of its killed child.
    assert_eq!(agent.run(limited(2, &format!("{HOG}; exit $?"))).reason, EndReason::OutOfMemory);
    let coped = agent.run(limited(3, &format!("{HOG}; exit 0")));
    assert_eq!(coped.reason, EndReason::Exit(0));
    assert!(coped.message.unwrap().contains("memory limit"));
    // The counter of the reused group has increased, which must not affect the next attempt.
    assert_eq!(agent.run(limited(4, "exit 7")).reason, EndReason::Exit(7));
}

#[test]
fn a_task_over_its_memory_is_detected_by_polling() {
    let home = Home::new(EnforcementChoice::Polling);
    let mut agent = home.agent();
    assert_eq!(agent.hello.enforcement.mechanism, Mechanism::Polling);
    let mut order = sh(1, "python3 -c 'import time; x = bytearray(300 << 20); time.sleep(60)'; exit 1");
    change_shape(&mut order).resources = Resources::new(1_000, 64);
    let ended = agent.run(order);
    assert_eq!(ended.reason, EndReason::OutOfMemory);
    let message = ended.message.unwrap();
    let used: u64 = message.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(used > 64 && message.ends_with(" of 64 MiB; request more with -r memory"), "{message}");
}

#[test]
fn without_cgroups_a_fast_task_is_stopped_by_its_data_limit() {
    let home = Home::new(EnforcementChoice::Polling);
    let mut agent = home.agent();
    let mut order = sh(1, "ulimit -d");
    change_shape(&mut order).resources = Resources::new(1_000, 64);
    assert_eq!(agent.run(order).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout).trim(), ((64 * 2 + 1_024) << 10).to_string(), "in KiB");
    agent.run(sh(2, "ulimit -d"));
    assert_eq!(home.output(2, Stream::Stdout).trim(), "unlimited", "without a memory request there is no limit");
}

#[test]
fn a_task_gets_no_more_cpu_than_it_requested() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut order = sh(1, "end=$(($(date +%s%N) + 1000000000)); while [ $(date +%s%N) -lt $end ]; do :; done");
    change_shape(&mut order).resources = Resources::new(200, 0);
    let usage = home.agent().run(order).usage;
    let share = usage.cpu.as_secs_f64() / usage.wall.as_secs_f64();
    assert!(share < 0.35, "it used {share} of a core instead of 0.2: {usage:?}");
}

#[test]
fn a_cgroup_that_cannot_be_entered_is_not_used_again() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut agent = home.agent();
    assert_eq!(agent.run(sh(1, "exit 0")).reason, EndReason::Exit(0));
    let is_leaf = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u64>().is_ok());
    for leaf in agent::cgroups_of(agent.hello.pid).into_iter().filter(is_leaf) {
        fs::remove_dir(leaf).unwrap();
    }
    let fault = agent.run(sh(2, "exit 0")).reason;
    assert!(matches!(fault, EndReason::NodeFault(_)), "{fault}");
    assert_eq!(agent.run(sh(3, "exit 0")).reason, EndReason::Exit(0));
}

#[test]
fn a_task_sees_its_variables_and_directories() {
    let home = Home::new(EnforcementChoice::None);
    let mut order = sh(
        1,
        "echo $AMALGAM_JOB_ID $OMP_NUM_THREADS $MINE; [ $TMPDIR = $AMALGAM_TASK_DIR ] && [ -d $TMPDIR ] && \
         echo $AMALGAM_TASK_DIR && touch $TMPDIR/scratch && echo broken wheel > $AMALGAM_ERROR_FILE; exit 1",
    );
    change_shape(&mut order).resources = Resources::new(2_000, 0);
    change_program(&mut order).env = vec![
        ("MINE".into(), "yes".into()),
        ("OMP_NUM_THREADS".into(), "8".into()),
        ("AMALGAM_JOB_ID".into(), "forged".into()),
    ];
    let ended = home.agent().run(order);
    assert_eq!(ended.message.as_deref(), Some("broken wheel"));
    let output = home.output(1, Stream::Stdout);
    let task_dir = output.strip_prefix("1 8 yes\n").expect("the variables").trim_end();
    assert!(Path::new(task_dir).starts_with(home.state.join("tasks")), "{task_dir}");
    assert!(!Path::new(task_dir).exists());
}

#[test]
fn files_in_a_tasks_own_directory_are_kept() {
    let home = Home::new(EnforcementChoice::None);
    let mut order = sh(1, "pwd; ls | wc -l; echo kept > file");
    change_program(&mut order).workdir = Workdir::Own;
    change(&mut order).submit_dir = "/no/such/dir".into();
    let own = own_dir(&home.state, order.attempt);
    assert_eq!(home.agent().run(order).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout), format!("{}\n0\n", own.display()));
    assert_eq!(fs::read_to_string(own.join("file")).unwrap(), "kept\n");
    assert_eq!(amalgam_daemon::executor::forget_job(&home.state, JobId(1)), Vec::<String>::new());
    assert!(!own.exists());
}

/// Adds an input file of the node's store to the order, and its own working directory.
fn with_input(home: &Home, mut order: LaunchOrder) -> LaunchOrder {
    fs::write(home.state.join("o"), "text").unwrap();
    let left = Left::find(&home.state, "o").unwrap();
    let StoredFile { digest, bytes } = FileStore::of(&home.state, order.node).put(&left, false).unwrap();
    let path = "inputs/a/0/o".to_owned();
    order.inputs = std::sync::Arc::new([InputFile { path, digest, bytes, holders: Vec::new() }]);
    change_program(&mut order).workdir = Workdir::Own;
    order
}

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
fn inputs_exist_only_while_a_task_runs() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let inputs = |order: &LaunchOrder| own_dir(&home.state, order.attempt).join("inputs");
    let reads = with_input(&home, sh(1, "cat inputs/a/0/o; stat -c ' %a' inputs/a/0/o"));
    assert_eq!(agent.run(reads.clone()).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout), "text 444\n");
    assert!(!inputs(&reads).exists());

    let fails = with_input(&home, order(2, &["no-such-command"]));
    assert!(matches!(agent.run(fails.clone()).reason, EndReason::LaunchFailed(_)));
    assert!(own_dir(&home.state, fails.attempt).exists() && !inputs(&fails).exists());

    let lasts = with_input(&home, sh(3, "sleep 1000"));
    agent.start(lasts.clone());
    assert!(inputs(&lasts).exists());
    home.kill_executor(agent.hello.pid);
    home.agent();
    assert!(!inputs(&lasts).exists());
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
    assert!(matches!(second.report_within(Duration::from_secs(5)), Some(ExecutorReport::Executing { .. })));
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
        reports.push(agent.report_within(Duration::from_secs(5)).expect("a list is answered"));
    }
    let told = reports.iter().any(|report| matches!(report, ExecutorReport::Finished { .. }));
    assert!(!told, "its end is not reported");
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
        let listed = next.report_within(Duration::from_secs(5));
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
        agent.report_within(Duration::from_secs(5));
        // The order of the ends varies, so the pool may have grown to ten groups with five descriptors each.
        assert!(open() <= open_before + 50, "{open_before} open files became {}", open());
        assert!(agent::cgroups_of(pid).len() <= groups_before.max(24), "{:?}", agent::cgroups_of(pid));
        assert_eq!(home.scratch_files(), 0);
        assert!(!Path::new(&home.state).join("output").exists());
    }
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
             setsid sh -c 'while :; do :; done'",
            input.display()
        );
        let busy = agent.start(sh(2, &script));
        let is_there = |sample: &Sample| sample.said == Some(400_000) && sample.cpu.as_millis() >= 200;
        let samples = measure_until(&mut agent, &[idle, busy], is_there);
        assert!((3 << 20..4 << 20).contains(&samples[1].read_bytes), "{enforcement}: {:?}", samples[1]);
        assert!(samples[1].running_for >= samples[1].cpu, "only one process works: {:?}", samples[1]);
        assert_eq!(samples[0].said, None);
        assert!(samples[0].read_bytes < 1 << 20 && samples[0].cpu.as_millis() < 100, "{enforcement}: {:?}", samples[0]);
        assert!(samples[0].running_for >= samples[1].running_for);
        agent.send(ToExecutor::Signal { attempt: busy, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
        agent.end_of(busy);
        assert_eq!(measure(&mut agent, &[busy]), [], "it does not run any more");
        // The next attempt in the same place starts with zero.
        let next = agent.start(sh(3, "sleep 100"));
        let sample = measure(&mut agent, &[next])[0].1;
        assert!(sample.said.is_none() && sample.cpu.as_millis() < 100, "{enforcement}: {sample:?}");
    }
}

/// Nice value and IO class of a process.
fn precedence_of(pid: i32) -> (String, i64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let nice = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned();
    // SAFETY: it touches no memory.
    (nice, unsafe { libc::syscall(libc::SYS_ioprio_get, 1, pid) } >> 13)
}

fn opportunistic(mut launch: LaunchOrder) -> LaunchOrder {
    change_shape(&mut launch).execution = ExecutionType::Opportunistic;
    change_shape(&mut launch).resources = Resources::new(500, 0);
    launch
}

/// Two processes in two groups, which write their ids to the file.
fn family(number: u32, pids: &Path) -> LaunchOrder {
    let file = pids.display();
    sh(number, &format!("set -m; sh -c 'echo $$ >> {file}; sleep 60; :' & echo $$ >> {file}; sleep 60; :"))
}

#[test]
fn opportunistic_work_has_lower_precedence_until_it_is_promoted() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let own = precedence_of(std::process::id() as i32).0;
    let (usual, lower) = ((own, 0), ("19".to_owned(), 3));
    let pids = home.state.join("pids");
    let attempt = agent.start(opportunistic(family(1, &pids)));
    home.wait_for_lines(&pids, 2);
    let all = |expected: &(String, i64)| home.pids(&pids).iter().all(|pid| precedence_of(*pid) == *expected);
    assert!(all(&lower), "{:?}", home.pids(&pids).into_iter().map(precedence_of).collect::<Vec<_>>());
    agent.send(ToExecutor::Promote { attempt, grant: None });
    // Without the privilege it keeps its nice value, which the notes report.
    let may_raise = agent.hello.enforcement.notes.iter().all(|note| !note.contains("stays nice"));
    let promoted = if may_raise { usual.clone() } else { ("19".to_owned(), 0) };
    home.wait_until("it has its new precedence", || all(&promoted));

    let (guaranteed, booked) = (home.state.join("guaranteed"), home.state.join("booked"));
    agent.start(family(2, &guaranteed));
    let grant = Some(GrantId::default());
    agent.start(LaunchOrder { grant, ..opportunistic(family(3, &booked)) });
    for file in [&guaranteed, &booked] {
        home.wait_for_lines(file, 2);
        assert!(home.pids(file).iter().all(|pid| precedence_of(*pid) == usual));
    }
}

#[test]
fn the_group_of_opportunistic_work_is_idle_until_it_is_promoted() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut agent = home.agent();
    let pids = home.state.join("pids");
    let attempt = agent.start(opportunistic(family(1, &pids)));
    home.wait_for_lines(&pids, 2);
    let executor = agent.hello.pid;
    let weights = || -> Vec<String> {
        let groups = agent::cgroups_of(executor);
        let read = |name: &str| {
            groups.iter().filter_map(|group| fs::read_to_string(group.join("1").join(name)).ok()).collect()
        };
        let weights: Vec<String> = read("cpu.idle");
        if weights.is_empty() { read("cpu.shares") } else { weights }
    };
    let is_lower = |weights: &[String]| matches!(weights, [one] if ["1\n", "2\n"].contains(&one.as_str()));
    let class = || home.pids(&pids).into_iter().map(|pid| precedence_of(pid).1).collect::<Vec<_>>();
    assert!(is_lower(&weights()), "{:?}", weights());
    assert_eq!(class(), [3, 3]);
    agent.send(ToExecutor::Promote { attempt, grant: None });
    home.wait_until("its group has its new weight", || !is_lower(&weights()) && class() == [0, 0]);
    agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    agent.end_of(attempt);
    // The group of the next opportunistic attempt is idle again.
    let (first, second) = (home.state.join("first"), home.state.join("second"));
    let mut guaranteed = opportunistic(family(2, &first));
    change_shape(&mut guaranteed).execution = ExecutionType::Guaranteed;
    agent.start(guaranteed);
    agent.start(opportunistic(family(3, &second)));
    home.wait_for_lines(&second, 2);
    let groups = agent::cgroups_of(agent.hello.pid);
    let idle =
        |number: &str| groups.iter().find_map(|group| fs::read_to_string(group.join(number).join("cpu.idle")).ok());
    assert_eq!((idle("1").as_deref(), idle("2").as_deref()), (Some("0\n"), Some("1\n")));
}

#[test]
fn an_attempt_that_yields_has_lower_precedence_and_a_stopped_clock() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    if agent.hello.enforcement.notes.iter().any(|note| note.contains("stays nice")) {
        return println!("skipped: this user cannot raise the priority again");
    }
    let usual = (precedence_of(std::process::id() as i32).0, 0);
    let pids = home.state.join("pids");
    let attempt = agent.start(family(1, &pids));
    home.wait_for_lines(&pids, 2);
    let all = |expected: &(String, i64)| home.pids(&pids).iter().all(|pid| precedence_of(*pid) == *expected);
    agent.send(ToExecutor::Yield { attempt });
    home.wait_until("it yields", || all(&("19".to_owned(), 3)));
    let listed = |agent: &mut Agent| {
        agent.send(ToExecutor::List { node: NodeId(1) });
        match agent.report_beside_ends() {
            Some(ExecutorReport::Executing { attempts }) => (attempts[0].running_for, attempts[0].yields_for),
            other => panic!("a list: {other:?}"),
        }
    };
    let (first, yields_for) = listed(&mut agent);
    std::thread::sleep(Duration::from_millis(50));
    let (second, longer) = listed(&mut agent);
    assert!(first == second && longer > yields_for && yields_for.is_some(), "{first:?} {second:?}");
    agent.send(ToExecutor::Resume { attempt });
    home.wait_until("it continues", || all(&usual));
    let (third, none) = listed(&mut agent);
    assert!(third > second && none.is_none());
    agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    let usage = agent.end_of(attempt).usage;
    assert!(usage.yielded.as_micros() >= 50_000 && usage.run_time() >= third, "{usage:?}");
}
