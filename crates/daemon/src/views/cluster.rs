//! A cluster or a federation as a whole.

use super::amounts::named_totals;
use super::nodes::{AtNode, own_cluster, unbooked};
use super::queues::queues;
use super::stages::attempt_counts;
use super::{Hosts, look};
use crate::api::{AttemptCounts, ClusterSummary, ClusterView, ManagerPlace, TaskCounts};
use crate::versions::PROGRAM;
use amalgam_core::dispatch;
use amalgam_core::hosting::Roles;
use amalgam_core::scheduling::NodeState as Presence;
use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{ClusterId, Duration, HostId, Instant, JobId, Resources, Totals};
use std::collections::{BTreeMap, BTreeSet};

pub fn cluster(
    roles: &Roles,
    (hosts, clusters): (&Hosts, &[ClusterId]),
    started: Instant,
    ended_lately: f64,
    now: Instant,
) -> Option<ClusterSummary> {
    let dispatch = roles.dispatch()?;
    let rooms = rooms(roles, now);
    let (mut capacity, mut used) = (Totals::ZERO, Totals::ZERO);
    for room in rooms.iter().filter(|room| room.is_up) {
        capacity.add(&room.capacity);
        used.add(&room.capacity.saturating_sub(&room.free));
    }
    let mut opportunistic_used = Totals::ZERO;
    for AtNode { guaranteed, opportunistic } in unbooked(roles).values() {
        (0..WIDTH).for_each(|kind| used.0[kind] += guaranteed.used.0[kind]);
        (0..WIDTH).for_each(|kind| opportunistic_used.0[kind] += opportunistic.used.0[kind]);
    }
    let mut attempts = AttemptCounts::default();
    roles.jobs.values().for_each(|manager| attempts.add(&attempt_counts(manager)));
    let mut jobs: BTreeMap<String, u64> = BTreeMap::new();
    let mut tasks = TaskCounts::default();
    for id in dispatch.jobs_from(JobId(0)).map(|(job, _)| job.id) {
        let Some(job) = look(roles, id, now) else { continue };
        *jobs.entry(job.state().word().to_owned()).or_default() += 1;
        if matches!(job.state, dispatch::JobState::Ended(_)) {
            continue;
        }
        tasks.add(&job.counts());
    }
    Some(ClusterSummary {
        version: PROGRAM.to_owned(),
        preset: roles.preset().name().to_owned(),
        uptime_seconds: now.since(started).as_secs_f64(),
        job_managers: job_managers(roles, hosts),
        global: roles.global.as_ref().map(|global| global.own().0.into()),
        cluster: own_cluster(roles),
        clusters: cluster_views(roles, clusters, now),
        nodes_up: rooms.iter().filter(|room| room.is_up).count() as u32,
        nodes_total: rooms.len() as u32,
        capacity: named_totals(&capacity, &dispatch.kinds),
        used: named_totals(&used, &dispatch.kinds),
        opportunistic_used: named_totals(&opportunistic_used, &dispatch.kinds),
        jobs,
        tasks,
        attempts,
        tasks_per_second: ended_lately,
        queues: queues(roles, now),
    })
}

/// Job hosts in the configuration, and others that have jobs.
fn job_managers(roles: &Roles, hosts: &Hosts) -> Vec<ManagerPlace> {
    let Some(dispatch) = roles.dispatch() else { return Vec::new() };
    let unended = dispatch.jobs_from(JobId(0)).filter(|(_, state)| !matches!(state, dispatch::JobState::Ended(_)));
    let with_jobs = unended.map(|(job, _)| job.host).filter(|host| *host != HostId::SERVER);
    let all: BTreeSet<HostId> = (1..=dispatch.settings.hosts).map(HostId).chain(with_jobs).collect();
    let place = |host: HostId| {
        let connected = hosts.get(&host);
        let program = connected.cloned().flatten();
        ManagerPlace { number: host.0.into(), connected: connected.is_some(), program }
    };
    all.into_iter().map(place).collect()
}

/// The resources of a node, in the ledger or in a view.
struct NodeRoom {
    is_up: bool,
    capacity: Resources,
    free: Resources,
}

fn rooms(roles: &Roles, now: Instant) -> Vec<NodeRoom> {
    let room = |state, capacity, free| NodeRoom { is_up: state == Presence::Up, capacity, free };
    match (&roles.global, &roles.master) {
        (Some(global), _) => {
            global.believed_nodes(now).iter().map(|node| room(node.state, node.capacity, node.free)).collect()
        }
        (None, Some(master)) => {
            master.node_statuses(now).iter().map(|node| room(node.state, node.capacity, node.free)).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The clusters of a global master; `connected` are those with a connected master.
fn cluster_views(roles: &Roles, connected: &[ClusterId], now: Instant) -> Vec<ClusterView> {
    let Some(global) = &roles.global else { return Vec::new() };
    let nodes = global.believed_nodes(now);
    let view = |cluster: ClusterId| {
        let of_it = || nodes.iter().filter(|node| node.cluster == cluster);
        ClusterView {
            number: cluster.0.into(),
            connected: connected.contains(&cluster),
            nodes_up: of_it().filter(|node| node.state == Presence::Up).count() as u32,
            nodes_total: of_it().count() as u32,
            told_seconds: of_it().find_map(|node| node.age).map(Duration::as_secs_f64),
        }
    };
    global.federation().clusters().map(view).collect()
}
