//! A random node with room, and the better of two of them (the power of two choices; Mitzenmacher 2001): the one with the
//! shorter queue; of equal queues, the one with the smaller dominant share of resources in use.
//!
//! Nodes are drawn until one has room. After [`DRAWS`] draws without success, the first node with room after the last drawn
//! one is chosen, so that a full cluster costs no more than a search. In this case, nodes after many full ones are more likely.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Chance, Instant, NodeView, NodeViews, Totals};

const DRAWS: u32 = 32;

pub struct Random {
    chance: Chance,
}

pub struct PowerOfTwo {
    chance: Chance,
}

impl Random {
    pub fn new(chance: Chance) -> Random {
        Random { chance }
    }
}

impl PowerOfTwo {
    pub fn new(chance: Chance) -> PowerOfTwo {
        PowerOfTwo { chance }
    }
}

impl PlacementPolicy for Random {
    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        let asks = asks.iter().take(budget.starts as usize);
        out.extend(asks.map(|ask| Decision::on(ask, draw(&mut self.chance, ask, view))));
    }
}

impl PlacementPolicy for PowerOfTwo {
    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks.iter().take(budget.starts as usize) {
            let first = draw(&mut self.chance, ask, view);
            let second = first.and_then(|_| draw(&mut self.chance, ask, view));
            let better = first.into_iter().chain(second).min_by_key(|&node| (load(&view.view(node)), node));
            out.push(Decision::on(ask, better));
        }
    }
}

/// A random node with room for the ask.
fn draw(chance: &mut Chance, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
    if view.is_empty() {
        return None;
    }
    let nodes = u32::try_from(view.len()).expect("a node's number has 32 bits");
    let mut node = 0;
    for _ in 0..DRAWS {
        node = chance.below(nodes) as usize;
        if view.has_room(node, ask.class, &ask.shape) {
            return Some(node);
        }
    }
    view.find_room(ask.class, &ask.shape, node)
}

/// The length of the node's queue, and the dominant share of resources in use, in millionths.
fn load(node: &NodeView) -> (u32, u64) {
    let mut taken = Totals::ZERO;
    taken.add(&node.capacity.saturating_sub(&node.free));
    (node.queued, taken.dominant_share(&Totals(node.capacity.0.map(u64::from))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::placement::tests::{Nodes, one_start};

    #[test]
    fn random_finds_room_wherever_it_is_and_spreads_over_it() {
        let mut counts = [0u32; 8];
        let mut policy = Random::new(Chance::new(1, "placement"));
        let nodes = Nodes::random(1, 8);
        let ask = Nodes::ask(500, 500);
        let fitting: Vec<usize> = nodes.fitting(&ask).collect();
        for _ in 0..4_000 {
            let node = one_start(&mut policy, &ask, &nodes).expect("some node has room");
            counts[node] += 1;
        }
        for (node, &count) in counts.iter().enumerate() {
            let expected = if fitting.contains(&node) { 4_000 / fitting.len() as u32 } else { 0 };
            assert!(count.abs_diff(expected) <= expected / 4, "{counts:?} of {fitting:?}");
        }
    }

    #[test]
    fn of_two_draws_the_less_loaded_is_taken() {
        for seed in 0..200 {
            let nodes = Nodes::random(seed, 40);
            let ask = Nodes::ask(800, 800);
            let mut policy = PowerOfTwo::new(Chance::new(seed, "placement"));
            let mut same = policy.chance.clone();
            let drawn = [(); 2].map(|()| draw(&mut same, &ask, &nodes));
            let better = drawn.into_iter().flatten().min_by_key(|&node| (load(&nodes.view(node)), node));
            assert_eq!(one_start(&mut policy, &ask, &nodes), better);
            assert!(better.is_none_or(|node| nodes.has_room(node, ask.class, &ask.shape)));
        }
    }
}
