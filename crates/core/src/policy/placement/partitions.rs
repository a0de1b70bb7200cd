//! Megha's match (section IV-B): search the partitions that are internal to the global master, in turns over the clusters. If
//! none of them has room, search the external partitions in turns.
//!
//! Departs: one search over all nodes, instead of one for each partition, finds that no partition has room.
//! Beyond the paper, if conflicts are to be avoided: a search within a partition starts at a random node, so that two global
//! masters seldom choose the same room. For 500 ms after a refusal, an internal partition is searched after the other internal
//! ones, but always before external ones. External room is found by a search over all nodes that starts at a random node.
//! Unlike turns, this seldom takes room in a partition that has little left and whose owner is about to use it.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Chance, ClusterId, Duration, Federation, GlobalId, Instant, NodeId, NodeViews};

/// For this time after a refused launch, an internal partition is searched last: other global masters are placing tasks there.
const LAST_FOR: Duration = Duration::from_millis(500);

pub struct Partitions {
    federation: Federation,
    own: GlobalId,
    /// The cluster whose internal partition is searched next.
    internal: u32,
    /// The external partition that is searched next: those of the next global master in each cluster, then the one after.
    external: u32,
    avoidance: Option<Avoidance>,
}

/// How conflicts with other global masters are avoided.
struct Avoidance {
    /// Draws the node at which a search starts.
    scatter: Chance,
    /// For each cluster, when a launch in its internal partition was last refused.
    refused_at: Vec<Option<Instant>>,
}

impl Partitions {
    /// With `scatter`, conflicts are avoided and searches start at random nodes.
    pub fn new(federation: Federation, own: GlobalId, scatter: Option<Chance>) -> Partitions {
        // Global masters that start at the same time start with different clusters.
        let clusters = u32::from(federation.clusters);
        let internal = u32::from(own.0) % clusters;
        let avoidance = scatter.map(|scatter| Avoidance { scatter, refused_at: vec![None; clusters as usize] });
        Partitions { federation, own, internal, external: internal, avoidance }
    }

    fn find(&mut self, now: Instant, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        if !self.comes_last(now, self.internal)
            && let Some(node) = self.search_internal(self.internal, ask, view)
        {
            return Some(node);
        }
        let start = self.draw(view.len());
        let anywhere = view.find_room(ask.class, &ask.shape, start)?;
        if let Some(node) = self.find_internal(now, ask, view) {
            return Some(node);
        }
        // Then `anywhere` is in an external partition.
        if self.avoidance.is_some() { Some(anywhere) } else { self.find_external(ask, view) }
    }

    fn find_internal(&mut self, now: Instant, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let (first, clusters) = (self.internal, u32::from(self.federation.clusters));
        let mut find = |last| {
            let mut in_turn = (0..clusters).map(|turn| (first + turn) % clusters);
            in_turn.find_map(|cluster| {
                let is_wanted = self.comes_last(now, cluster) == last;
                is_wanted.then(|| self.search_internal(cluster, ask, view)).flatten()
            })
        };
        find(false).or_else(|| find(true))
    }

    fn search_internal(&mut self, cluster: u32, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let node = self.search(cluster, self.own, ask, view)?;
        self.internal = (cluster + 1) % u32::from(self.federation.clusters);
        Some(node)
    }

    fn find_external(&mut self, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let (clusters, globals) = (u32::from(self.federation.clusters), u32::from(self.federation.globals));
        let all = (globals - 1) * clusters;
        for turn in 0..all {
            let place = (self.external + turn) % all;
            let global = GlobalId(((u32::from(self.own.0) + 1 + place / clusters) % globals) as u8);
            if let Some(node) = self.search(place % clusters, global, ask, view) {
                self.external = (place + 1) % all;
                return Some(node);
            }
        }
        None
    }

    /// Whether the internal partition of this cluster is searched last because of a recent refusal.
    fn comes_last(&self, now: Instant, cluster: u32) -> bool {
        let refused_at = |avoidance: &Avoidance| avoidance.refused_at[cluster as usize];
        self.avoidance.as_ref().and_then(refused_at).is_some_and(|at| now.since(at) < LAST_FOR)
    }

    fn search(&mut self, cluster: u32, global: GlobalId, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let partition = self.federation.partition(ClusterId(cluster as u8), global);
        let start = partition.from + self.draw(partition.to.min(view.len()).saturating_sub(partition.from));
        view.find_in_partition(ask.class, &ask.shape, &partition, start)
    }

    /// An offset below `length` at which a search starts: random if conflicts are avoided, otherwise 0.
    fn draw(&mut self, length: usize) -> usize {
        match &mut self.avoidance {
            Some(avoidance) if length > 0 => avoidance.scatter.below(length as u64) as usize,
            _ => 0,
        }
    }
}

impl PlacementPolicy for Partitions {
    /// Decides one start for each ask and call, so that each decision sees the room that the previous one left.
    fn place(&mut self, now: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks.iter().take(budget.starts as usize) {
            let node = self.find(now, ask, view);
            out.push(Decision::on(ask, node));
        }
    }

    fn on_refused(&mut self, now: Instant, node: usize) {
        let node = NodeId(node as u32);
        if let Some(avoidance) = &mut self.avoidance
            && self.federation.internal_to(node) == self.own
        {
            avoidance.refused_at[usize::from(self.federation.cluster_of(node).0)] = Some(now);
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
            // Few nodes are large enough.
            let ask = Nodes::ask(3_500, 3_200);
            let mut policy = Partitions::new(federation, own, (seed % 2 == 0).then(|| Chance::new(seed, "scatter")));
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

    #[test]
    fn where_it_was_refused_it_looks_before_it_takes_others_room() {
        let federation = Federation::new(3, 4, 20).unwrap();
        for (seed, own) in (0..50).flat_map(|seed| [0, 3].map(|own| (seed, GlobalId(own)))) {
            let (nodes, ask) = (Nodes::random(seed, 60), Nodes::ask(2_000, 1_500));
            let internal = |node: usize| federation.internal_to(NodeId(node as u32)) == own;
            let has_internal = nodes.fitting(&ask).any(internal);
            let mut policy = Partitions::new(federation, own, Some(Chance::new(seed, "scatter")));
            let mut chance = Chance::new(seed, "refused");
            for _ in 0..20 {
                let chosen = one_start(&mut policy, &ask, &nodes);
                assert_eq!(chosen.is_some_and(internal), has_internal, "seed {seed}: {chosen:?}");
                policy.on_refused(Instant::ZERO, chance.below(60_u64) as usize);
            }
        }
    }

    /// In one external partition all nodes are free, in another only one node.
    #[test]
    fn of_others_room_it_takes_most_where_there_is_most() {
        let federation = Federation::new(2, 4, 100).unwrap();
        let partition = |node: u32| (federation.cluster_of(NodeId(node)).0, federation.internal_to(NodeId(node)).0);
        let nodes = Nodes::with_room(200, |node| partition(node) == (0, 1) || node == 102);
        let ask = Nodes::ask(1_000, 1_000);
        let from_the_last = |scatter: Option<Chance>| {
            let mut policy = Partitions::new(federation, GlobalId(0), scatter);
            (0..400).filter(|_| one_start(&mut policy, &ask, &nodes) == Some(102)).count()
        };
        assert_eq!(from_the_last(None), 200, "by turns");
        // From five of the 200 nodes on it is the first.
        for seed in 0..20 {
            let drawn = from_the_last(Some(Chance::new(seed, "scatter")));
            assert!(drawn < 40, "seed {seed}: {drawn} of 400");
        }
    }
}
