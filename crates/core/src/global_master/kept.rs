//! Duty: nodes are reserved for large asks, as by a master of one cluster (ADR 93): of the own partition, and of others only if that
//! could not hold the ask. The masters of the clusters keep these nodes from other global masters. If two have reserved the same node, it
//! is kept for the gang that has waited longest, and the other global master gives up its reservation.

use super::GlobalMaster;
use crate::protocol::ToMaster;
use crate::role::Outbox;
use crate::vocabulary::{ClusterId, Duration, Instant, NodeId};

/// Reserved nodes, and those that the masters of clusters keep.
pub(super) struct Kept {
    reviewed_at: Instant,
    /// At the last review.
    reserved: Reserved,
    /// What the master of each cluster was sent, by its number. Nodes are kept until the launches of the gang that gets them have
    /// arrived: for an interval of reviews longer than they are reserved.
    sent: Vec<Reserved>,
}

/// Nodes in ascending order, and since when the task or gang has waited for which they are reserved.
#[derive(Clone, Default, PartialEq)]
struct Reserved {
    nodes: Vec<NodeId>,
    since: Instant,
}

impl Kept {
    pub(super) fn new(clusters: usize) -> Kept {
        Kept { reviewed_at: Instant::ZERO, reserved: Reserved::default(), sent: vec![Reserved::default(); clusters] }
    }
}

impl Reserved {
    /// The nodes of both, with the earlier time.
    fn with(&self, other: &Reserved) -> Reserved {
        let mut nodes = [&self.nodes[..], &other.nodes].concat();
        nodes.sort_unstable();
        nodes.dedup();
        let times = [self, other].into_iter().filter(|one| !one.nodes.is_empty()).map(|one| one.since);
        Reserved { nodes, since: times.min().unwrap_or_default() }
    }
}

impl GlobalMaster {
    /// Least interval of reviews. They follow the notifications of clusters, so they are not more frequent than heartbeats.
    const REVIEWED_EVERY: Duration = Duration::from_secs(1);

    pub(super) fn review_reservation(&mut self, now: Instant, out: &mut Outbox) {
        let keeps_some = self.federation.clusters().any(|cluster| self.keeps_nodes_of(cluster));
        let is_of_use = self.dispatch.scheduler.open_tasks() > 0 || keeps_some;
        if !self.dispatch.scheduler.reserves() || !is_of_use || now.since(self.kept.reviewed_at) < Self::REVIEWED_EVERY
        {
            return;
        }
        self.kept.reviewed_at = now;
        self.dispatch.scheduler.review_reservation(now, &mut self.dispatch.rooms);
        let nodes = self.dispatch.scheduler.reserved_nodes().to_vec();
        let since = self.dispatch.scheduler.reserved_since().unwrap_or_default();
        let reserved = Reserved { nodes: nodes.clone(), since };
        let before = std::mem::replace(&mut self.kept.reserved, reserved);
        self.send_kept(now, &before, out);
        self.dispatch.decide(now, &nodes, &mut self.proposals, out);
    }

    fn send_kept(&mut self, now: Instant, before: &Reserved, out: &mut Outbox) {
        let all = self.kept.reserved.with(before);
        for cluster in self.federation.clusters() {
            let nodes = self.in_cluster(cluster, &all.nodes).to_vec();
            let since = if nodes.is_empty() { Instant::ZERO } else { all.since };
            let next = Reserved { nodes, since };
            let sent = &mut self.kept.sent[usize::from(cluster.0)];
            if *sent != next {
                *sent = next;
                self.repeat_kept(now, cluster, out);
            }
        }
    }

    /// Also after an introduction, which ends what was kept before.
    pub(super) fn repeat_kept(&self, now: Instant, cluster: ClusterId, out: &mut Outbox) {
        if let Some(Reserved { nodes, since }) = self.kept.sent.get(usize::from(cluster.0)) {
            out.send(cluster, ToMaster::Keep { nodes: nodes.clone(), waited: now.since(*since) });
        }
    }

    pub(super) fn keeps_nodes_of(&self, cluster: ClusterId) -> bool {
        self.kept.sent.get(usize::from(cluster.0)).is_some_and(|sent| !sent.nodes.is_empty())
    }

    fn in_cluster<'a>(&self, cluster: ClusterId, nodes: &'a [NodeId]) -> &'a [NodeId] {
        let span = self.federation.nodes_of(cluster);
        let before = |limit: u32| nodes.partition_point(|node| node.0 < limit);
        &nodes[before(span.start)..before(span.end)]
    }
}
