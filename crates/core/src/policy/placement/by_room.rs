//! Best fit and worst fit (Johnson 1973, for bin packing): of the nodes on which the task fits, the one with the least
//! room, or with the most. Best fit keeps room together for large tasks, worst fit evens out the load.
//!
//! Rooms with several kinds of resources are compared by [`RoomScale`](crate::vocabulary::RoomScale): the sum over
//! kinds, each as a part of the largest node. A task takes the same amount on every node, so the node with the least room
//! before the placement also has the least room after it.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Instant, NodeViews};

/// The node with the least room.
pub struct BestFit;
/// The node with the most room.
pub struct WorstFit;

impl PlacementPolicy for BestFit {
    fn compares_room(&self) -> bool {
        true
    }

    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        let asks = asks.iter().take(budget.starts as usize);
        out.extend(asks.map(|ask| Decision::on(ask, view.least_room(ask.class, &ask.shape))));
    }
}

impl PlacementPolicy for WorstFit {
    fn compares_room(&self) -> bool {
        true
    }

    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        let asks = asks.iter().take(budget.starts as usize);
        out.extend(asks.map(|ask| Decision::on(ask, view.most_room(ask.class, &ask.shape))));
    }
}
