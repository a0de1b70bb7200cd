//! How tasks start, and the reasons of those that do not.

use crate::agent::{Home, cgroups_or_skip, change, change_program, change_shape, order, sh};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::EnforcementChoice;
use std::fs;
use std::path::Path;

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
