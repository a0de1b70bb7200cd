//! The precedence of opportunistic work and of attempts that yield.

use crate::agent::{self, Agent, Home, cgroups_or_skip, change_shape, sh};
use amalgam_core::protocol::{ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::EnforcementChoice;
use std::fs;
use std::path::Path;
use std::time::Duration;

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
