//! Megha's match (section IV-B): the partitions that are internal to a global master, by turns of the clusters; and where none
//! of them has room, all others, by turns.
//!
//! Departs: where no node of any partition has room, that is found by one search of all nodes and not by one of each partition.
//! Beyond the paper, if it is told to avoid conflicts: within a partition it begins at a node that it draws, so that two global
//! masters seldom choose the same room; and a partition where it was refused comes after all others for a while.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Chance, ClusterId, Duration, Federation, GlobalId, Instant, NodeId, NodeViews, Partition};

/// For so long a partition comes last where a launch was refused: others place there just now.
const LAST_FOR: Duration = Duration::from_millis(500);

pub struct Partitions {
    federation: Federation,
    own: GlobalId,
    /// The cluster whose turn it is.
    internal: u32,
    /// The partition whose turn it is, of those that are not internal: of each cluster in turn the next global master's.
    external: u32,
    avoidance: Option<Avoidance>,
}

/// How conflicts with other global masters are avoided.
struct Avoidance {
    /// Where searches of a partition begin; without it, at its first node.
    scatter: Chance,
    /// When each partition was the last to be refused, by cluster and then by global master.
    refused_at: Vec<Option<Instant>>,
}

impl Partitions {
    /// With `scatter`, conflicts are avoided, and it says where searches begin.
    pub fn new(federation: Federation, own: GlobalId, scatter: Option<Chance>) -> Partitions {
        // Global masters that begin together do not all begin with the same cluster.
        let clusters = u32::from(federation.clusters);
        let internal = u32::from(own.0) % clusters;
        let partitions = usize::from(federation.clusters) * usize::from(federation.globals);
        let avoidance = scatter.map(|scatter| Avoidance { scatter, refused_at: vec![None; partitions] });
        Partitions { federation, own, internal, external: internal, avoidance }
    }

    fn find(&mut self, now: Instant, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let clusters = u32::from(self.federation.clusters);
        if !self.comes_last(now, self.internal, self.own) {
            let first = self.search(self.internal, self.own, ask, view);
            if first.is_some() {
                self.internal = (self.internal + 1) % clusters;
                return first;
            }
        }
        view.find_room(ask.class, &ask.shape, 0)?;
        let found = self.find_among(now, false, ask, view);
        if found.is_some() || self.avoidance.is_none() { found } else { self.find_among(now, true, ask, view) }
    }

    /// In the partitions that come last now, or in the others.
    fn find_among(&mut self, now: Instant, last: bool, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let clusters = u32::from(self.federation.clusters);
        for turn in 0..clusters {
            let cluster = (self.internal + turn) % clusters;
            if self.comes_last(now, cluster, self.own) == last
                && let Some(node) = self.search(cluster, self.own, ask, view)
            {
                self.internal = (cluster + 1) % clusters;
                return Some(node);
            }
        }
        let others = u32::from(self.federation.globals) - 1;
        for turn in 0..others * clusters {
            let place = (self.external + turn) % (others * clusters);
            let global = GlobalId(((u32::from(self.own.0) + 1 + place / clusters) % (others + 1)) as u8);
            if self.comes_last(now, place % clusters, global) == last
                && let Some(node) = self.search(place % clusters, global, ask, view)
            {
                self.external = (place + 1) % (others * clusters);
                return Some(node);
            }
        }
        None
    }

    fn comes_last(&self, now: Instant, cluster: u32, global: GlobalId) -> bool {
        let refused_at = |avoidance: &Avoidance| avoidance.refused_at[self.number(cluster, global)];
        self.avoidance.as_ref().and_then(refused_at).is_some_and(|at| now.since(at) < LAST_FOR)
    }

    fn number(&self, cluster: u32, global: GlobalId) -> usize {
        cluster as usize * usize::from(self.federation.globals) + usize::from(global.0)
    }

    fn search(&mut self, cluster: u32, global: GlobalId, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let partition = self.federation.partition(ClusterId(cluster as u8), global);
        let start = self.start(&partition, view);
        view.find_in_partition(ask.class, &ask.shape, &partition, start)
    }

    fn start(&mut self, partition: &Partition, view: &dyn NodeViews) -> usize {
        let length = partition.to.min(view.len()).saturating_sub(partition.from) as u64;
        match &mut self.avoidance {
            Some(avoidance) if length > 0 => partition.from + avoidance.scatter.below(length) as usize,
            _ => partition.from,
        }
    }
}

impl PlacementPolicy for Partitions {
    /// Decides one start per ask and call, so that every decision sees the room that the one before left.
    fn place(&mut self, now: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks.iter().take(budget.starts as usize) {
            let node = self.find(now, ask, view);
            out.push(Decision::on(ask, node));
        }
    }

    fn on_refused(&mut self, now: Instant, node: usize) {
        let node = NodeId(node as u32);
        let (cluster, global) = (self.federation.cluster_of(node), self.federation.internal_to(node));
        let number = self.number(u32::from(cluster.0), global);
        if let Some(avoidance) = &mut self.avoidance {
            avoidance.refused_at[number] = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::placement::tests::{Nodes, one_start};

    #[test]
    fn internal_partitions_come_first_and_clusters_take_turns() {
        let federation = Federation::new(3, 2, 20).unwrap();
        for (seed, own) in (0..40).flat_map(|seed| [0, 1].map(|own| (seed, GlobalId(own)))) {
            let nodes = Nodes::random(seed, 60);
            let ask = Nodes::ask(500, 300);
            let internal = |node: &usize| federation.internal_to(crate::vocabulary::NodeId(*node as u32)) == own;
            let cluster = |node: usize| federation.cluster_of(crate::vocabulary::NodeId(node as u32)).0;
            let clusters: Vec<u8> = nodes.fitting(&ask).filter(internal).map(cluster).collect();
            let has_all = (0..3).all(|cluster| clusters.contains(&cluster));
            let mut policy = Partitions::new(federation, own, (seed % 2 == 0).then(|| Chance::new(seed, "scatter")));
            let chosen: Vec<usize> = (0..6).filter_map(|_| one_start(&mut policy, &ask, &nodes)).collect();
            assert!(chosen.len() == 6 && chosen.iter().all(internal), "{chosen:?}");
            if has_all {
                let visited: Vec<u8> = chosen.iter().map(|node| cluster(*node)).collect();
                let first = own.0;
                assert_eq!(visited, (0..6).map(|turn| (first + turn) % 3).collect::<Vec<u8>>());
            }
        }
    }

    #[test]
    fn others_partitions_are_searched_where_the_own_have_no_room_and_nothing_is_overlooked() {
        let federation = Federation::new(3, 4, 20).unwrap();
        let own = GlobalId(2);
        for seed in 0..100 {
            let nodes = Nodes::random(seed, 60);
            // Few nodes are as large.
            let ask = Nodes::ask(3_500, 3_200);
            let mut policy = Partitions::new(federation, own, None);
            let internal = |node: &usize| federation.internal_to(crate::vocabulary::NodeId(*node as u32)) == own;
            let chosen = one_start(&mut policy, &ask, &nodes);
            assert_eq!(chosen.is_some(), nodes.fitting(&ask).next().is_some(), "seed {seed}");
            let has_internal = nodes.fitting(&ask).any(|node| internal(&node));
            assert_eq!(chosen.is_some_and(|node| internal(&node)), has_internal, "seed {seed}");
        }
    }

    #[test]
    fn where_it_was_refused_it_looks_last_for_a_while() {
        let federation = Federation::new(2, 2, 32).unwrap();
        let (own, nodes, ask) = (GlobalId(0), Nodes::random(3, 64), Nodes::ask(100, 100));
        let cluster = |node: usize| federation.cluster_of(NodeId(node as u32)).0;
        let chosen = |avoids: bool, at: u64| {
            let mut policy = Partitions::new(federation, own, avoids.then(|| Chance::new(1, "scatter")));
            let mut place = |at| {
                let mut out = Vec::new();
                policy.place(Instant(at), &[ask], Budget { starts: 1 }, &nodes, &mut out);
                match out[0] {
                    Decision::Start { node, .. } => node,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(cluster(place(0)), 0);
            let (second, refused) = (place(0), place(0));
            assert_eq!((cluster(second), cluster(refused)), (1, 0));
            policy.on_refused(Instant(0), second);
            let mut again = Vec::new();
            policy.place(Instant(at), &[ask], Budget { starts: 1 }, &nodes, &mut again);
            matches!(again[0], Decision::Start { node, .. } if cluster(node) == 1)
        };
        let later = LAST_FOR.as_micros();
        assert_eq!([chosen(true, 1), chosen(true, later), chosen(false, 1)], [false, true, true]);
    }
}
