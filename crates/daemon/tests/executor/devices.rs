//! Access to the devices of a node. Harmless devices stand for GPUs.

use crate::agent::{Agent, Home, cgroups_of, order, sh};
use amalgam_core::protocol::{TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::EnforcementChoice;

/// Prints the names of the devices that it can read.
const READ: &str = "for name in zero full random null; do head -c 1 /dev/$name > /dev/null && echo $name; done 2> /dev/null; \
                    mknod $TMPDIR/copy c 1 5 2> /dev/null && head -c 1 $TMPDIR/copy > /dev/null && echo copy";

fn with_devices(enforcement: EnforcementChoice) -> Home {
    let mut home = Home::new(enforcement);
    home.config.devices =
        ["gpu:0=/dev/zero", "gpu:1=/dev/full", "fpga:0=/dev/random"].map(|one| one.parse().unwrap()).into();
    home
}

fn is_enforced(agent: &Agent) -> bool {
    let notes = &agent.hello.enforcement.notes;
    if let Some(why) = notes.iter().find(|note| note.starts_with("devices are not enforced")) {
        println!("skipped: {why}");
        return false;
    }
    assert!(notes.contains(&"devices are enforced: gpu 0, gpu 1, fpga 0".to_owned()), "{notes:?}");
    true
}

fn assigned(mut launch: LaunchOrder, gpus: &[u32], fpgas: &[u32]) -> LaunchOrder {
    launch.devices = vec![("gpu".to_owned(), gpus.to_vec()), ("fpga".to_owned(), fpgas.to_vec())];
    launch
}

#[test]
fn a_task_can_use_only_the_devices_that_are_assigned_to_it() {
    let home = with_devices(EnforcementChoice::Auto);
    let mut agent = home.agent();
    if !is_enforced(&agent) {
        return;
    }
    let may_copy = rustix::process::geteuid().is_root();
    let mut number = 0;
    // Each attempt reuses the group of the one before.
    for (gpus, fpgas, expected) in [
        (&[0][..], &[][..], "zero null"),
        (&[1], &[], "full null"),
        (&[], &[], "null"),
        (&[0, 1], &[0], "zero full random null"),
        (&[], &[0], "random null"),
        (&[0], &[], "zero null"),
    ] {
        number += 1;
        agent.run(assigned(sh(number, READ), gpus, fpgas));
        let copy = if gpus.contains(&0) && may_copy { " copy" } else { "" };
        let read = home.output(number, Stream::Stdout).trim().replace('\n', " ");
        assert_eq!(read, format!("{expected}{copy}"), "with {gpus:?} and {fpgas:?}");
    }
    let groups = cgroups_of(agent.hello.pid);
    assert!(groups.iter().all(|group| !group.ends_with("2")), "the first group is reused: {groups:?}");
}

#[test]
fn tasks_that_run_together_use_different_devices() {
    let home = with_devices(EnforcementChoice::Auto);
    let mut agent = home.agent();
    if !is_enforced(&agent) {
        return;
    }
    let sleeping = agent.start(assigned(order(1, &["sleep", "100"]), &[0], &[]));
    agent.run(assigned(sh(2, READ), &[1], &[]));
    assert_eq!(home.output(2, Stream::Stdout), "full\nnull\n");
    agent.send(ToExecutor::Signal { attempt: sleeping, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    agent.end_of(sleeping);
    // Its group, and with it the processes of the next attempt, must not keep the access to its device.
    agent.run(assigned(sh(3, READ), &[1], &[0]));
    agent.run(assigned(sh(4, READ), &[], &[]));
    assert_eq!(
        (home.output(3, Stream::Stdout), home.output(4, Stream::Stdout)),
        ("full\nrandom\nnull\n".to_owned(), "null\n".to_owned())
    );
}

#[test]
fn without_cgroups_the_executor_reports_that_devices_are_not_enforced() {
    for enforcement in [EnforcementChoice::Polling, EnforcementChoice::None] {
        let home = with_devices(enforcement);
        let mut agent = home.agent();
        let expected = "devices are not enforced, a task can use those of others: that requires cgroups";
        let notes = &agent.hello.enforcement.notes;
        assert!(notes.iter().any(|note| note == expected), "{notes:?}");
        agent.run(assigned(sh(1, READ), &[], &[]));
        assert!(home.output(1, Stream::Stdout).starts_with("zero\nfull\nrandom\nnull\n"));
    }
}
