//! Megha's match (section IV-B): the partitions that are internal to a global master, by turns of the clusters; and where none
//! of them has room, all others, by turns.
//!
//! Departs: where no node of any partition has room, that is found by one search of all nodes and not by one of each partition.
//! Beyond the paper, if it is told to: within a partition it begins at a node that it draws, so that two global masters seldom
//! choose the same room.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Chance, ClusterId, Federation, GlobalId, Instant, NodeViews};

pub struct Partitions {
    federation: Federation,
    own: GlobalId,
    /// The cluster whose turn it is.
    internal: u32,
    /// The partition whose turn it is, of those that are not internal: of each cluster in turn the next global master's.
    external: u32,
    /// Where searches of a partition begin; without it, at its first node.
    scatter: Option<Chance>,
}

impl Partitions {
    pub fn new(federation: Federation, own: GlobalId, scatter: Option<Chance>) -> Partitions {
        // Global masters that begin together do not all begin with the same cluster.
        let clusters = u32::from(federation.clusters);
        let internal = u32::from(own.0) % clusters;
        Partitions { federation, own, internal, external: internal, scatter }
    }

    fn find(&mut self, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let clusters = u32::from(self.federation.clusters);
        let first = self.find_internal(self.internal, ask, view);
        if first.is_some() {
            self.internal = (self.internal + 1) % clusters;
            return first;
        }
        view.find_room(ask.class, &ask.shape, 0)?;
        for turn in 1..clusters {
            let cluster = (self.internal + turn) % clusters;
            if let Some(node) = self.find_internal(cluster, ask, view) {
                self.internal = (cluster + 1) % clusters;
                return Some(node);
            }
        }
        let others = u32::from(self.federation.globals) - 1;
        for turn in 0..others * clusters {
            let place = (self.external + turn) % (others * clusters);
            let global = (u32::from(self.own.0) + 1 + place / clusters) % (others + 1);
            if let Some(node) = self.search(place % clusters, GlobalId(global as u8), ask, view) {
                self.external = (place + 1) % (others * clusters);
                return Some(node);
            }
        }
        None
    }

    fn find_internal(&mut self, cluster: u32, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        self.search(cluster, self.own, ask, view)
    }

    fn search(&mut self, cluster: u32, global: GlobalId, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let partition = self.federation.partition(ClusterId(cluster as u8), global);
        let length = partition.to.min(view.len()).saturating_sub(partition.from) as u64;
        let start = match &mut self.scatter {
            Some(chance) if length > 0 => partition.from + chance.below(length) as usize,
            _ => partition.from,
        };
        view.find_in_partition(ask.class, &ask.shape, &partition, start)
    }
}

impl PlacementPolicy for Partitions {
    /// Decides one start per ask and call, so that every decision sees the room that the one before left.
    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks.iter().take(budget.starts as usize) {
            let node = self.find(ask, view);
            out.push(Decision::on(ask, node));
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
}
