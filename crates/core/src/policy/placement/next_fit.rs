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
            match view.find_room(ask.class, &ask.shape, self.next) {
                Some(node) => {
                    self.next = node + 1;
                    out.push(Decision::Start { ask: ask.slot, node });
                }
                None => out.push(Decision::Wait { ask: ask.slot }),
            }
        }
    }
}
