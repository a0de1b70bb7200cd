//! Duty: nodes are reserved for large asks, as by a master of one cluster (ADR 93): of the own partition, and of others only if that
//! could not hold the ask. The masters of the clusters keep these nodes from other global masters. If two want the same node, it is
//! kept for who has waited longest, and the other one gives up its reservation.

use super::GlobalMaster;
use crate::protocol::ToMaster;
use crate::role::Outbox;
use crate::vocabulary::{ClusterId, Duration, Instant, NodeId};

/// Reserved nodes, and those that the masters of clusters keep.
#[derive(Default)]
pub(super) struct Kept {
    reviewed_at: Instant,
    /// At the last review, in ascending order.
    reserved: Vec<NodeId>,
    /// What the masters of clusters were told, in ascending order. Nodes are kept until the launches of the gang that gets them have
    /// arrived: for an interval of reviews longer than they are reserved.
    told: Vec<NodeId>,
    /// Since when the task or gang has waited for which nodes were reserved last.
    since: Instant,
}

impl GlobalMaster {
    /// Least interval of reviews. They follow the notifications of clusters, so they are not more frequent than heartbeats.
    const REVIEWED_EVERY: Duration = Duration::from_secs(1);

    pub(super) fn review_reservation(&mut self, now: Instant, out: &mut Outbox) {
        let is_of_use = self.dispatch.scheduler.open_tasks() > 0 || !self.kept.told.is_empty();
        if !self.dispatch.scheduler.reserves() || !is_of_use || now.since(self.kept.reviewed_at) < Self::REVIEWED_EVERY
        {
            return;
        }
        self.kept.reviewed_at = now;
        self.dispatch.scheduler.review_reservation(now, &mut self.dispatch.rooms);
        let reserved = self.dispatch.scheduler.reserved_nodes().to_vec();
        self.kept.since = self.dispatch.scheduler.reserved_since().unwrap_or(self.kept.since);
        let before = std::mem::replace(&mut self.kept.reserved, reserved.clone());
        self.tell_kept(&before, out);
        self.dispatch.decide(now, &reserved, &mut self.proposals, out);
    }

    fn tell_kept(&mut self, reserved_before: &[NodeId], out: &mut Outbox) {
        let mut kept = [reserved_before, &self.kept.reserved].concat();
        kept.sort_unstable();
        kept.dedup();
        let before = std::mem::replace(&mut self.kept.told, kept);
        for cluster in self.federation.clusters() {
            if self.in_cluster(cluster, &before) != self.in_cluster(cluster, &self.kept.told) {
                let nodes = self.in_cluster(cluster, &self.kept.told).to_vec();
                out.send(cluster, ToMaster::Keep { nodes, since: self.kept.since });
            }
        }
    }

    /// After an introduction, which ends what was kept before.
    pub(super) fn repeat_kept(&self, cluster: ClusterId, out: &mut Outbox) {
        let nodes = self.in_cluster(cluster, &self.kept.told);
        if !nodes.is_empty() {
            out.send(cluster, ToMaster::Keep { nodes: nodes.to_vec(), since: self.kept.since });
        }
    }

    fn in_cluster<'a>(&self, cluster: ClusterId, nodes: &'a [NodeId]) -> &'a [NodeId] {
        let span = self.federation.nodes_of(cluster);
        let before = |limit: u32| nodes.partition_point(|node| node.0 < limit);
        &nodes[before(span.start)..before(span.end)]
    }
}
