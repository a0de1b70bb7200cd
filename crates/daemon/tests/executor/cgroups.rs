//! The groups of executors and tasks, and those that tasks create.

use crate::agent::{self, Agent, Home, PROGRAM, cgroups_or_skip, change_shape, exists, sh};
use crate::users;
use amalgam_core::protocol::{ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, Mechanism};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

#[test]
fn members_of_groups_below_a_tasks_own_are_killed_and_the_groups_are_removed() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut agent = home.agent();
    // The next attempt gets the group of this one.
    assert_eq!(agent.run(sh(1, ":")).reason, EndReason::Exit(0));
    let is_leaf = |path: &PathBuf| path.file_name().is_some_and(|name| name == "1");
    let leaves: Vec<PathBuf> = agent::cgroups_of(agent.hello.pid).into_iter().filter(is_leaf).collect();
    assert!(!leaves.is_empty());
    let shown = leaves.iter().map(|leaf| leaf.display().to_string()).collect::<Vec<_>>().join(" ");
    let pids = home.state.join("pids");
    // Both processes leave the group. Then version 2 allows controllers in it, and no further member.
    let script = format!(
        "setsid sleep 100 & for leaf in {shown}; do mkdir $leaf/below && echo $! > $leaf/below/cgroup.procs && \
         echo $$ > $leaf/below/cgroup.procs; [ ! -e $leaf/cgroup.subtree_control ] || \
         echo +memory > $leaf/cgroup.subtree_control; done; echo $! > {}; exit 5",
        pids.display()
    );
    assert_eq!(agent.run(sh(2, &script)).reason, EndReason::Exit(5));
    assert!(home.pids(&pids).into_iter().all(|pid| pid > 0 && !exists(pid)), "{:?} still exist", home.pids(&pids));
    assert_eq!(agent.run(sh(3, "exit 6")).reason, EndReason::Exit(6));
    let below: Vec<PathBuf> =
        agent::cgroups_of(agent.hello.pid).into_iter().filter(|path| path.ends_with("below")).collect();
    assert!(below.is_empty(), "{below:?}");
}

#[test]
fn processes_that_keep_starting_others_are_killed() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut agent = home.agent();
    let (pids, link) = (home.state.join("pids"), home.state.join("link"));
    // Each process starts the next one in a session of its own, and exits.
    fs::write(&link, format!("echo $$ >> {}; sleep 0.02; setsid sh {} &\n", pids.display(), link.display())).unwrap();
    let attempt = agent.start(sh(1, &format!("for chain in 1 2 3; do setsid sh {} & done; sleep 100", link.display())));
    home.wait_for_lines(&pids, 20);
    agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    assert_eq!(agent.end_of(attempt).reason, EndReason::Cancelled);
    let started = home.pids(&pids).len();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(home.pids(&pids).len(), started, "a chain goes on");
}

#[test]
fn an_opportunistic_task_gets_only_the_cpu_that_others_leave() {
    // Both tasks inherit this. They compete for one processor, and each may use all of it.
    let Some(home) = on_one_processor().then(cgroups_or_skip).flatten() else { return };
    let mut agent = home.agent();
    let spinning = |number, execution| {
        let mut order = sh(number, "while :; do :; done");
        change_shape(&mut order).execution = execution;
        change_shape(&mut order).resources = Resources::new(1_000, 0);
        order
    };
    let lower = agent.start(spinning(1, ExecutionType::Opportunistic));
    let usual = agent.start(spinning(2, ExecutionType::Guaranteed));
    let used = used_during_a_second(&home, &mut agent, lower, usual);
    assert!(used < 200, "the opportunistic task used {used} ms of CPU while the other used 1000 ms");
}

/// The milliseconds of CPU that one attempt uses while another one uses a second.
fn used_during_a_second(home: &Home, agent: &mut Agent, one: AttemptId, other: AttemptId) -> u64 {
    let cpu_of = |agent: &mut Agent| {
        agent.send(ToExecutor::Measure { node: NodeId(1), attempts: vec![one, other] });
        match agent.report_beside_ends() {
            Some(ExecutorReport::Measured { samples, .. }) => [0, 1].map(|place| samples[place].1.cpu.as_millis()),
            other => panic!("expected samples: {other:?}"),
        }
    };
    let before = cpu_of(agent);
    home.wait_until("it has used a second", || cpu_of(agent)[1] >= before[1] + 1_000);
    cpu_of(agent)[0] - before[0]
}

#[test]
fn a_user_with_many_busy_processes_does_not_starve_another_one() {
    let Some(_) = on_one_processor().then(cgroups_or_skip).flatten() else { return };
    let Some(home) = users::home_or_skip(false) else { return };
    let mut agent = home.agent();
    let busy = |number, user, script: &str| {
        let mut order = users::task(number, user, script);
        change_shape(&mut order).resources = Resources::new(1_000, 0);
        order
    };
    let many = busy(1, users::ONE, "for n in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait");
    let many = agent.start(many);
    let one = agent.start(busy(2, users::OTHER, "while :; do :; done"));
    let used = used_during_a_second(&home, &mut agent, many, one);
    // By processes it would be 8000 ms, and by users 1000 ms.
    assert!(used < 2_000, "eight processes of one user used {used} ms of CPU while one of another used 1000 ms");
}

/// Binds this thread, and what it starts, to one processor.
fn on_one_processor() -> bool {
    // SAFETY: the set is plain data, and both calls get its size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed);
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &allowed));
        libc::CPU_SET(first.unwrap_or(0), &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one) == 0
    }
}

/// A group of version 2 with the controllers of limits, as a unit with `Delegate=yes` has it.
struct Delegated {
    group: PathBuf,
    /// A program that runs the executor in this group or one below it.
    program: PathBuf,
}

impl Delegated {
    /// `None` if this machine has version 1.
    fn new(home: &Home, name: &str) -> Option<Delegated> {
        let agent = home.agent();
        if agent.hello.enforcement.mechanism != Mechanism::CgroupV2 {
            println!("skipped: limits are not enforced by cgroup version 2 here");
            return None;
        }
        let groups = agent::cgroups_of(agent.hello.pid);
        let parent = groups.iter().min_by_key(|path| path.as_os_str().len()).and_then(|path| path.parent())?;
        home.kill_executor(agent.hello.pid);
        let group = parent.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        Some(Delegated { group, program: home.state.join("start") })
    }

    /// Starts the next executor in a group below this one.
    fn start_in(&self, below: &str) {
        let file = self.group.join(below).join("cgroup.procs");
        let script = format!("#!/bin/sh\necho $$ > {}\nexec {PROGRAM} \"$@\"\n", file.display());
        fs::write(&self.program, script).unwrap();
        fs::set_permissions(&self.program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Names of the groups in this one.
    fn groups(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.group).unwrap().map(|entry| entry.unwrap());
        let groups = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        let mut names: Vec<String> = groups.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for name in self.groups() {
            let _ = fs::remove_dir(self.group.join(name));
        }
        let _ = fs::remove_dir(&self.group);
    }
}

fn group_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap().trim().rsplit_once("::").unwrap().1.to_owned()
}

#[test]
fn each_executor_of_a_delegated_group_has_its_parent_group_in_it() {
    let home = Home::new(EnforcementChoice::Auto);
    let Some(delegated) = Delegated::new(&home, "unit") else { return };
    let parent = |pid: u32| delegated.groups().into_iter().find(|name| name.starts_with(&format!("amalgam-{pid}-")));
    delegated.start_in("");
    let mut first = home.agent_by(&delegated.program);
    assert_eq!(first.hello.enforcement.mechanism, Mechanism::CgroupV2);
    let supervisor = group_of(first.hello.pid);
    assert!(supervisor.ends_with("/amalgam-supervisor"), "a group with controllers may have no members: {supervisor}");
    assert!(parent(first.hello.pid).is_some());
    let pids = home.state.join("pids");
    first.start(sh(
        1,
        &format!("env -i setsid /bin/sh -c 'echo $$ > {}; exec /bin/sleep 1000'; exit 1", pids.display()),
    ));
    home.wait_for_lines(&pids, 1);
    home.kill_executor(first.hello.pid);

    // The agent was moved too, so it starts the next executor in the group of supervisors.
    delegated.start_in("amalgam-supervisor");
    let mut second = home.agent_by(&delegated.program);
    assert_eq!(second.hello.enforcement.mechanism, Mechanism::CgroupV2);
    assert_eq!(group_of(second.hello.pid), supervisor);
    assert!(parent(second.hello.pid).is_some() && parent(first.hello.pid).is_none(), "{:?}", delegated.groups());
    home.wait_until("the remaining process has exited", || home.pids(&pids).iter().all(|pid| !exists(*pid)));
    assert_eq!(second.run(sh(2, "exit 3")).reason, EndReason::Exit(3));
    second.send_frame(&amalgam_daemon::executor::ExecutorFrame::Shutdown);
    home.wait_until("the executor has exited", || !exists(second.hello.pid as i32));
}

#[test]
fn other_programs_in_the_group_of_an_executor_prevent_cgroups_and_nothing_moves() {
    struct Killed(Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).unwrap();
        }
    }
    let mut home = Home::new(EnforcementChoice::Auto);
    let Some(delegated) = Delegated::new(&home, "shared") else { return };
    let other = Killed(Command::new("sleep").arg("100").spawn().unwrap());
    fs::write(delegated.group.join("cgroup.procs"), other.0.id().to_string()).unwrap();
    delegated.start_in("");
    home.config.enforcement = EnforcementChoice::Cgroup;
    let output = Command::new(&delegated.program).args(home.config.arguments()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("other programs are in this group; start under a unit with Delegate=yes"), "{error}");
    assert_eq!(delegated.groups(), Vec::<String>::new());
    // Without an explicit request for cgroups, it runs with other means.
    home.config.enforcement = EnforcementChoice::Auto;
    let mut agent = home.agent_by(Path::new(&delegated.program));
    assert_eq!(agent.hello.enforcement.mechanism, Mechanism::Polling);
    assert_eq!(agent.run(sh(1, "exit 3")).reason, EndReason::Exit(3));
    home.kill_executor(agent.hello.pid);
}
