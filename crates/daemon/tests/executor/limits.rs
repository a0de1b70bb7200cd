//! The limits of memory and CPU.

use crate::agent::{self, Home, cgroups_or_skip, change_shape, sh};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, Mechanism};
use std::fs;
use std::path::{Path, PathBuf};

/// Uses 300 MiB of memory until it is killed.
const HOG: &str = "dd if=/dev/zero of=/dev/null bs=300M";

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
    let mut order = sh(1, &format!("{HOG}; exit 1"));
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
fn a_task_that_starts_processes_without_end_leaves_others_enough() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut agent = home.agent();
    let own = match agent.hello.enforcement.mechanism {
        Mechanism::CgroupV2 => "/sys/fs/cgroup$(sed s/^0::// /proc/self/cgroup)",
        _ if Path::new("/sys/fs/cgroup/pids").exists() => {
            "/sys/fs/cgroup/pids$(sed -n s/^.*:pids://p /proc/self/cgroup)"
        }
        _ => return eprintln!("skipped: there is no pids controller"),
    };
    // Lowered by the task itself, as root, so that it takes no long time in a virtual machine.
    let breed = format!(
        "cat {own}/pids.max; echo 50 > {own}/pids.max; while :; do sleep 100 & cat {own}/pids.current > current; done"
    );
    let bred = agent.run(sh(1, &breed));
    assert!(matches!(bred.reason, EndReason::Exit(code) if code != 0), "{:?}", bred.reason);
    let most: u64 = home.output(1, Stream::Stdout).trim().parse().unwrap();
    let kernel: u64 = fs::read_to_string("/proc/sys/kernel/threads-max").unwrap().trim().parse().unwrap();
    assert!(most >= 64 && most <= kernel / 4, "{most} of {kernel}");
    assert!(home.output(1, Stream::Stderr).contains("fork"), "{}", home.output(1, Stream::Stderr));
    assert_eq!(agent.run(sh(2, "for i in 1 2 3; do sleep 0 & done; wait")).reason, EndReason::Exit(0));
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
