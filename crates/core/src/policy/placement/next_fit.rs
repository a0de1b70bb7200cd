//! The next node, cyclically, that has room. It spreads tasks over the nodes and finds room without visiting the
//! occupied ones.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Instant, NodeViews};

#[derive(Default)]
pub struct NextFit {
    next: usize,
}

impl PlacementPolicy for NextFit {
    /// Decides one start per ask and call, so that every decision sees the room that the one before left.
    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks.iter().take(budget.starts as usize) {
            let node = view.find_room(ask.class, &ask.shape, self.next);
            self.next = node.map_or(self.next, |node| node + 1);
            out.push(Decision::on(ask, node));
        }
    }
}
