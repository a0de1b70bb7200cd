//! Federations across network namespaces: an interface goes down in the middle of an array, packets are lost without an error,
//! and every task ends once, whichever process is cut off.

use crate::federations::{all_ran_once, go_half_way, let_go, nodes};
use crate::support::{Federation, Network, is_alive, until_true};
use amalgam_daemon::api::{ClusterSummary, JobState, NodeState};
use std::io::Write;

/// Two clusters of a node each under two global masters, each process in its own namespace, with the first four of six tasks
/// running. `None` if namespaces are not permitted, which is printed.
fn half_way() -> Option<(Federation, String, Vec<String>)> {
    match Network::new(6) {
        Ok(network) => Some(go_half_way(Federation::across(Some(network), [2, 2, 1], "heartbeat = '200ms'"))),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "skipped: a federation across network namespaces: {why}");
            None
        }
    }
}

/// Cuts a host off, lets all running tasks end, calls `look`, and heals the host.
fn while_cut_off(host: impl Fn(&Federation) -> usize, look: impl Fn(&Federation, &str)) {
    let Some((federation, id, pids)) = half_way() else { return };
    let (scene, network) = (&federation.scene, federation.network.as_ref().unwrap());
    network.cut(host(&federation));
    let_go(scene, 0..6);
    until_true("the ends of all that runs", || pids.iter().all(|pid| !is_alive(pid)));
    look(&federation, &id);
    assert_eq!(scene.job(&id).summary.state, JobState::Running);
    network.heal(host(&federation));
    all_ran_once(scene, &id, "ran", 6);
    assert!(scene.tasks(&id).iter().all(|task| task.attempts == 1));
    until_true("the whole federation", || nodes(scene).values().all(|node| node.state == NodeState::Up));
}

/// For longer than several heartbeats.
fn is_silent(federation: &Federation, cluster: usize) -> bool {
    let top: ClusterSummary = federation.scene.json(&["top"]);
    top.clusters[cluster].told_seconds.is_some_and(|seconds| seconds > 1.0)
}

fn what_waited_runs_in_the_other_cluster(federation: &Federation, id: &str) {
    let succeeded = || federation.scene.job(id).summary.tasks.succeeded;
    until_true("all but what ended out of sight", || succeeded() == 4);
}

#[test]
fn ends_in_a_cluster_whose_master_is_cut_off_are_told_when_its_interface_is_up_again() {
    while_cut_off(
        |_| 0,
        |federation, id| {
            what_waited_runs_in_the_other_cluster(federation, id);
            until_true("a cluster that is silent", || is_silent(federation, 0) && !is_silent(federation, 1));
        },
    );
}

#[test]
fn ends_on_a_node_that_is_cut_off_are_told_when_its_interface_is_up_again() {
    while_cut_off(
        |federation| federation.agent_host(0, 0),
        |federation, id| {
            what_waited_runs_in_the_other_cluster(federation, id);
            until_true("the news that it is away", || nodes(&federation.scene)["c0-0"].state == NodeState::Unreachable);
        },
    );
}

#[test]
fn a_global_master_that_is_cut_off_hears_all_when_its_interface_is_up_again_and_another_goes_on() {
    while_cut_off(
        |federation| federation.global_host(0),
        |federation, id| {
            until_true("silence", || is_silent(federation, 0) && is_silent(federation, 1));
            assert_eq!(federation.scene.job(id).summary.tasks.succeeded, 0, "it hears of nothing");
            let elsewhere = federation.ok_at(1, &["submit", "-q", "--array", "0-3", "--", "true"]);
            federation.ok_at(1, &["wait", elsewhere.trim()]);
        },
    );
}
