//! The node whose room is best aligned with the task (Grandl et al. 2014, Tetris; the measure is [`Alignment`]).
//!
//! Departs: Tetris fills one machine at a time as it reports; here this happens when room becomes free
//! (`inter_job/tetris.rs`). This file places new asks. It examines only the next [`CANDIDATES`] nodes with room, cyclically,
//! so that a decision on a large and empty cluster costs no more than on a small one.

use crate::policy::{Alignment, Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Instant, NodeViews};
use std::cmp::Reverse;

const CANDIDATES: usize = 32;

#[derive(Default)]
pub struct Aligned {
    next: usize,
}

impl Aligned {
    fn best(&mut self, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let first = view.find_room(ask.class, &ask.shape, self.next)?;
        let mut candidates = Vec::with_capacity(CANDIDATES);
        let mut node = first;
        while candidates.len() < CANDIDATES {
            candidates.push(node);
            match view.find_room(ask.class, &ask.shape, node + 1) {
                Some(next) if next != first => node = next,
                _ => break,
            }
        }
        self.next = node + 1;
        candidates.into_iter().min_by_key(|&node| {
            let view = view.view(node);
            (Reverse(Alignment::with(&view.free, &view.capacity).of(&ask.shape)), node)
        })
    }
}

impl PlacementPolicy for Aligned {
    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks.iter().take(budget.starts as usize) {
            out.push(Decision::on(ask, self.best(ask, view)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::placement::tests::{Nodes, one_start};

    #[test]
    fn of_as_many_nodes_as_it_looks_at_none_is_better_aligned() {
        for seed in 0..200 {
            let nodes = Nodes::random(seed, CANDIDATES as u32);
            let ask = Nodes::ask(700, 300);
            let alignment = |node: usize| {
                let view = nodes.view(node);
                Alignment::with(&view.free, &view.capacity).of(&ask.shape)
            };
            let chosen = one_start(&mut Aligned::default(), &ask, &nodes);
            assert_eq!(chosen.map(alignment), nodes.fitting(&ask).map(alignment).max());
        }
    }
}
