//! A random one of the k nodes that are ranked best (Karanasos et al. 2015: Mercury, section 4.2). All schedulers with the
//! same ranking would choose the best node.
//!
//! Nodes that do not suit the ask are skipped in favour of the next best. If no node is ranked, any suitable node is chosen.
//! "While respecting locality": a node with the input is preferred if its wait is not longer than that of the k-th node, then
//! one of the k nodes that is in a rack with the input.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Chance, Instant, NodeViews};

/// Draws before the best nodes are examined one by one.
const DRAWS: u32 = 8;

pub struct TopRanked {
    chance: Chance,
    k: u32,
}

impl TopRanked {
    pub fn new(chance: Chance, k: u32) -> TopRanked {
        TopRanked { chance, k: k.max(1) }
    }

    fn choose(&mut self, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let (best, suits) = (view.best(), |node: usize| view.has_room(node, ask.class, &ask.shape));
        let among = self.k.min(best.len() as u32);
        if among == 0 {
            return self.anywhere(ask, view);
        }
        let near = if view.local(ask.class).is_empty() { None } else { self.near(ask, view, among) };
        if near.is_some() {
            return near;
        }
        for _ in 0..DRAWS {
            let node = best[self.chance.below(among) as usize] as usize;
            if suits(node) {
                return Some(node);
            }
        }
        let suitable = || best.iter().map(|node| *node as usize).filter(|node| suits(*node)).take(self.k as usize);
        match suitable().count() as u32 {
            0 => self.anywhere(ask, view),
            count => suitable().nth(self.chance.below(count) as usize),
        }
    }

    /// A node with the input or in a rack with it, if it ranks no worse than the best `among` nodes.
    fn near(&mut self, ask: &OpenAsk, view: &dyn NodeViews, among: u32) -> Option<usize> {
        let best = &view.best()[..among as usize];
        let longest = best.last().map(|last| view.rank(*last as usize))?;
        let suits = |node: &usize| view.has_room(*node, ask.class, &ask.shape);
        let local = view.local(ask.class).iter().map(|node| node.0 as usize).filter(|node| *node < view.len());
        let mut near: Vec<usize> = local.filter(|node| view.rank(*node) <= longest && suits(node)).collect();
        if near.is_empty() {
            let best = best.iter().map(|node| *node as usize);
            near.extend(best.filter(|node| view.is_rack_local(*node, ask.class) && suits(node)));
        }
        match near.len() as u32 {
            0 => None,
            count => Some(near[self.chance.below(count) as usize]),
        }
    }

    fn anywhere(&mut self, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let nodes = u32::try_from(view.len()).expect("a node's number has 32 bits");
        let from = if nodes == 0 { return None } else { self.chance.below(nodes) as usize };
        view.find_room(ask.class, &ask.shape, from)
    }
}

impl PlacementPolicy for TopRanked {
    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        let asks = asks.iter().take(budget.starts as usize);
        out.extend(asks.map(|ask| Decision::on(ask, self.choose(ask, view))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::placement::tests::Nodes;
    use crate::vocabulary::{Duration, NodeId, NodeView, Resources};
    use std::collections::BTreeSet;

    /// Nodes, their ranking, and the nodes with the input. The wait in seconds is the place in the ranking. Racks have ten nodes.
    struct Ranked(Nodes, Vec<u32>, Vec<NodeId>);

    impl NodeViews for Ranked {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn best(&self) -> &[u32] {
            &self.1
        }

        fn rank(&self, index: usize) -> Duration {
            let place = self.1.iter().position(|node| *node as usize == index);
            Duration::from_secs(place.map_or(u64::MAX / 1_000_000, |place| place as u64))
        }

        fn local(&self, _: u32) -> &[NodeId] {
            &self.2
        }

        fn is_rack_local(&self, index: usize, _: u32) -> bool {
            self.2.iter().any(|local| local.0 as usize / 10 == index / 10)
        }

        fn view(&self, index: usize) -> NodeView {
            self.0.view(index)
        }

        fn has_room(&self, index: usize, class: u32, shape: &Resources) -> bool {
            self.0.has_room(index, class, shape)
        }
    }

    fn chosen(k: u32, ask: &OpenAsk, nodes: &Ranked) -> Vec<usize> {
        let mut policy = TopRanked::new(Chance::new(1, "placement"), k);
        let mut decisions = Vec::new();
        for _ in 0..4_000 {
            policy.place(Instant::ZERO, &[*ask], Budget { starts: 1 }, nodes, &mut decisions);
        }
        let start = |decision: &Decision| match *decision {
            Decision::Start { node, .. } => Some(node),
            _ => None,
        };
        decisions.iter().filter_map(start).collect()
    }

    #[test]
    fn the_k_best_that_suit_are_chosen_and_each_about_equally_often() {
        for seed in 0..20 {
            let nodes = Nodes::random(seed, 60);
            let ask = Nodes::ask(500, 500);
            let suitable: Vec<usize> = nodes.fitting(&ask).collect();
            let best: Vec<u32> = suitable.iter().rev().map(|node| *node as u32).collect();
            let ranked = Ranked(nodes, best.clone(), Vec::new());
            let k = 5.min(best.len());
            let chosen = chosen(5, &ask, &ranked);
            assert_eq!(chosen.len(), 4_000);
            for node in &best[..k] {
                let times = chosen.iter().filter(|chosen| **chosen == *node as usize).count();
                assert!(times.abs_diff(4_000 / k) < 4_000 / k / 5, "node {node} of seed {seed}: {times}");
            }
        }
    }

    #[test]
    fn nodes_that_do_not_suit_are_passed_over_and_without_a_ranking_any_that_suits_is_taken() {
        for seed in 0..20 {
            let nodes = Nodes::random(seed, 60);
            let ask = Nodes::ask(2_500, 500);
            let suitable: Vec<usize> = nodes.fitting(&ask).collect();
            let all: Vec<u32> = (0..60).collect();
            for best in [all, Vec::new()] {
                let ranked = Ranked(Nodes::random(seed, 60), best, Vec::new());
                let chosen = chosen(3, &ask, &ranked);
                assert_eq!(chosen.len(), if suitable.is_empty() { 0 } else { 4_000 });
                assert!(chosen.iter().all(|node| suitable.contains(node)));
            }
        }
    }

    #[test]
    fn the_input_is_near_where_that_costs_no_wait() {
        for seed in 0..20 {
            let ask = Nodes::ask(100, 100);
            let suitable: Vec<usize> = Nodes::random(seed, 60).fitting(&ask).collect();
            let best: Vec<u32> = suitable.iter().map(|node| *node as u32).collect();
            let on = |local: usize| {
                let ranked = Ranked(Nodes::random(seed, 60), best.clone(), vec![NodeId(suitable[local] as u32)]);
                chosen(10, &ask, &ranked).into_iter().collect::<BTreeSet<usize>>()
            };
            assert_eq!(on(7), BTreeSet::from([suitable[7]]), "one of the ten best has it");
            // Too busy itself: one of the ten best nodes in its rack is taken if there is one, otherwise any of the ten.
            let rack: BTreeSet<usize> =
                suitable[..10].iter().copied().filter(|node| node / 10 == suitable[10] / 10).collect();
            let all: BTreeSet<usize> = suitable[..10].iter().copied().collect();
            assert_eq!(on(10), if rack.is_empty() { all } else { rack });
        }
    }
}
