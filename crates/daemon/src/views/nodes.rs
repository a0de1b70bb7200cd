//! The nodes of a cluster, and the attempts at them.

use super::amounts::{named, named_totals};
use crate::api::{Guarantee, NodeDetail, NodeDoubt, NodeState, NodeSummary, RunningAttempt, Timestamp};
use amalgam_core::global_master::BelievedNode;
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::OpenAttempt;
use amalgam_core::master::NodeStatus;
use amalgam_core::scheduling::NodeState as Presence;
use amalgam_core::vocabulary::{Attribute, Attributes, Duration, Instant, Kinds, NodeId, Seat, TAINT, Totals};
use std::collections::BTreeMap;

pub fn nodes(roles: &Roles, now: Instant) -> Vec<NodeSummary> {
    if let Some(global) = &roles.global {
        let kinds = &global.dispatch().kinds;
        return global.believed_nodes(now).iter().map(|node| believed_summary(node, kinds)).collect();
    }
    let Some(master) = &roles.master else { return Vec::new() };
    let unbooked = unbooked(roles);
    let cluster = own_cluster(roles);
    let summary = |status: &NodeStatus| NodeSummary {
        cluster,
        ..node_summary(status, unbooked.get(&status.node), master.kinds())
    };
    master.node_statuses(now).iter().map(summary).collect()
}

/// The cluster of this process's master, in a federation.
pub(super) fn own_cluster(roles: &Roles) -> Option<u32> {
    match roles.seat() {
        Some(Seat::Cluster(_, cluster)) => Some(cluster.0.into()),
        _ => None,
    }
}

pub fn node(roles: &Roles, node: NodeId, now: Instant) -> Option<NodeDetail> {
    if let Some(global) = &roles.global {
        let believed = global.believed_nodes(now).into_iter().find(|believed| believed.node == node)?;
        return Some(NodeDetail {
            summary: believed_summary(&believed, &global.dispatch().kinds),
            attributes: named_attributes(&believed.attributes),
            labels: BTreeMap::new(),
            enforcement: format!(
                "known only to the master of {}, like attempts of other global masters",
                believed.cluster
            ),
            notes: Vec::new(),
            paused: None,
            pause_left_seconds: None,
            attempts: attempts_at(roles, node, now),
        });
    }
    let master = roles.master.as_ref()?;
    let status = master.node_statuses(now).into_iter().find(|status| status.node == node)?;
    let mut enforcement = status.enforcement.clone();
    let mechanism = if enforcement.is_empty() { String::new() } else { enforcement.remove(0) };
    let summary = node_summary(&status, unbooked(roles).get(&node), master.kinds());
    Some(NodeDetail {
        summary: NodeSummary { cluster: own_cluster(roles), ..summary },
        attributes: named_attributes(&status.attributes),
        labels: named_attributes(&status.labels),
        enforcement: mechanism,
        notes: enforcement,
        paused: status.paused.as_ref().map(|pause| pause.why.clone()),
        pause_left_seconds: status.paused.as_ref().map(|pause| pause.left.as_secs_f64()),
        attempts: attempts_at(roles, node, now),
    })
}

fn named_attributes(attributes: &Attributes) -> BTreeMap<String, String> {
    attributes.iter().map(|pair| (pair.name.clone(), pair.value.clone())).collect()
}

fn named_taints(attributes: &Attributes) -> BTreeMap<String, String> {
    let without_prefix =
        |taint: &Attribute| (taint.name.strip_prefix(TAINT).unwrap_or(&taint.name).to_owned(), taint.value.clone());
    attributes.taints().map(without_prefix).collect()
}

fn attempts_at(roles: &Roles, node: NodeId, now: Instant) -> Vec<RunningAttempt> {
    let open = roles.jobs.values().flat_map(|manager| manager.open_attempts());
    open.filter(|open| open.node == node).map(|open| running_attempt(&open, now)).collect()
}

/// A node in the view of a global master. It was last heard when its cluster's master sent the last report.
fn believed_summary(node: &BelievedNode, kinds: &Kinds) -> NodeSummary {
    let state = match node.state {
        Presence::Up if node.is_open => NodeState::Up,
        Presence::Up => NodeState::Closed,
        Presence::Unreachable | Presence::Expected => NodeState::Unreachable,
        Presence::Lost => NodeState::Lost,
    };
    NodeSummary {
        id: node.node.0,
        name: node.name.clone(),
        cluster: Some(node.cluster.0.into()),
        state,
        capacity: named(&node.capacity, kinds),
        free: named(&node.free, kinds),
        running: node.bookings,
        last_heard_seconds: node.age.map(Duration::as_secs_f64),
        taints: named_taints(&node.attributes),
        ..NodeSummary::default()
    }
}

fn running_attempt(open: &OpenAttempt, now: Instant) -> RunningAttempt {
    RunningAttempt {
        attempt: open.attempt.to_string(),
        task: open.task.to_string(),
        guarantee: if open.opportunistic { Guarantee::Opportunistic } else { Guarantee::Guaranteed },
        waiting: open.started_at.is_none(),
        running_seconds: open.started_at.map_or(0.0, |at| now.since(at).as_secs_f64()),
    }
}

/// A node's attempts without booked resources: only their job managers know them.
#[derive(Clone, Copy, Default)]
pub(super) struct AtNode {
    pub(super) guaranteed: Tally,
    pub(super) opportunistic: Tally,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    running: u32,
    waiting: u32,
    pub(super) used: Totals,
}

pub(super) fn unbooked(roles: &Roles) -> BTreeMap<NodeId, AtNode> {
    let mut nodes: BTreeMap<NodeId, AtNode> = BTreeMap::new();
    for manager in roles.jobs.values() {
        for open in manager.open_attempts().filter(|open| !open.booked) {
            let at = nodes.entry(open.node).or_default();
            let tally = if open.opportunistic { &mut at.opportunistic } else { &mut at.guaranteed };
            if open.started_at.is_some() {
                tally.running += 1;
                tally.used.add(&manager.job().resources[open.task.stage as usize]);
            } else {
                tally.waiting += 1;
            }
        }
    }
    nodes
}

fn node_summary(status: &NodeStatus, unbooked: Option<&AtNode>, kinds: &Kinds) -> NodeSummary {
    let AtNode { guaranteed, opportunistic } = unbooked.copied().unwrap_or_default();
    let mut free = Totals::ZERO;
    free.add(&status.free);
    NodeSummary {
        id: status.node.0,
        name: status.name.clone(),
        cluster: None,
        state: node_state(status),
        capacity: named(&status.capacity, kinds),
        free: named_totals(&free.saturating_sub(&guaranteed.used), kinds),
        running: status.bookings + guaranteed.running,
        opportunistic: opportunistic.running,
        opportunistic_waiting: opportunistic.waiting,
        opportunistic_used: named_totals(&opportunistic.used, kinds),
        last_heard_seconds: status.silent_for.map(Duration::as_secs_f64),
        unheard_since: status.unheard_since.map(Timestamp::from),
        doubt: status.doubt.map(|doubt| NodeDoubt {
            success: f64::from(doubt.success) / 1e6,
            failures: doubt.failures,
            since_seconds: doubt.since.as_secs_f64(),
            avoided: status.is_avoided,
        }),
        slowness: status.slowness.map(|times| f64::from(times) / 1e3),
        program: status.program.clone(),
        taints: named_taints(&status.attributes),
    }
}

fn node_state(status: &NodeStatus) -> NodeState {
    match status.state {
        Presence::Lost => NodeState::Lost,
        Presence::Unreachable | Presence::Expected => NodeState::Unreachable,
        Presence::Up if status.drained && status.bookings > 0 => NodeState::Draining,
        Presence::Up if status.drained => NodeState::Drained,
        Presence::Up if status.paused.is_some() => NodeState::Paused,
        Presence::Up => NodeState::Up,
    }
}
