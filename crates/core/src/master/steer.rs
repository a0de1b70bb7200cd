//! Duty: know the nodes, and steer opportunistic work at them: how long their queues may be, and how much that work may
//! hold. The limits are sent when a node reports.

use super::Master;
use super::load::Waiting;
use crate::policy::Forecast;
use crate::protocol::{Steer, ToNode};
use crate::role::Outbox;
use crate::scheduling::NodeState;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{Duration, NodeId, Resources};
use serde::{Deserialize, Serialize};

/// How opportunistic work is limited.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Steering {
    /// How many standard deviations a queue may exceed the mean of all queues, in thousandths; `None`: no limit.
    pub deviations: Option<u32>,
    pub limit: OpportunisticLimit,
    /// Whether entries of the longest queue are moved to a node that reports room and no queue.
    pub moves: bool,
}

/// How much of a node opportunistic work may hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum OpportunisticLimit {
    /// All that is free.
    #[default]
    Everything,
    /// A fixed part of each kind, in millionths.
    Part(u32),
    /// The resources that guaranteed work is not predicted to use.
    Forecast,
}

/// Sums over the queues that nodes reported last.
#[derive(Clone, Copy, Default)]
pub(super) struct Queues {
    nodes: u64,
    sum: u128,
    squares: u128,
}

impl Queues {
    /// Replaces the length of a node's queue; `None` for a queue that is not counted.
    pub(super) fn replace(&mut self, old: Option<Duration>, new: Option<Duration>) {
        if let Some(old) = old {
            self.nodes -= 1;
            self.sum -= u128::from(old.0);
            self.squares -= u128::from(old.0) * u128::from(old.0);
        }
        if let Some(new) = new {
            self.nodes += 1;
            self.sum += u128::from(new.0);
            self.squares += u128::from(new.0) * u128::from(new.0);
        }
    }

    /// Their mean plus `deviations` thousandths of their standard deviation.
    fn beyond(&self, deviations: u32) -> Option<Duration> {
        let nodes = u128::from(self.nodes);
        let mean = self.sum.checked_div(nodes)?;
        let variance = (self.squares / nodes).saturating_sub(mean * mean);
        let over = variance.isqrt() * u128::from(deviations) / 1_000;
        Some(Duration(u64::try_from(mean + over).unwrap_or(u64::MAX)))
    }
}

impl Master {
    /// Sends the limits in answer to a report, if they have changed.
    pub(super) fn steer(&mut self, node: NodeId, out: &mut Outbox) {
        let Some(Steering { deviations, limit, .. }) = self.settings.steer else { return };
        let (capacity, free) = (self.dispatch.rooms.node_capacity(node), self.dispatch.rooms.node_free(node));
        let forecast = self.nodes.forecast(node);
        forecast.learn(&capacity.saturating_sub(&free));
        let room = room(limit, &capacity, forecast);
        let longest_wait = deviations.and_then(|deviations| self.nodes.queues().beyond(deviations));
        let steer = Steer { longest_wait, room };
        if self.nodes.is_new_steer(node, steer) {
            out.send(node, ToNode::Steer(Box::new(steer)));
        }
    }

    /// Moves entries of the longest queue to a node with spare room, less what was granted there since, if the
    /// published list has the node.
    pub(super) fn on_room(&mut self, to: NodeId, spare: Resources, out: &mut Outbox) {
        let moves = self.settings.steer.is_some_and(|steer| steer.moves);
        if !moves || self.dispatch.rooms.state(to) != Some(NodeState::Up) || !self.publication.offers(to) {
            return;
        }
        // Only tasks without constraints are moved, which tolerate no taint.
        if self.dispatch.rooms.attributes(to).has_taints() {
            return;
        }
        let room = spare.smaller_of(&self.dispatch.rooms.node_free(to));
        if let Some(from) = self.nodes.longest_queue().filter(|_| !room.is_zero()) {
            out.send(from, ToNode::Move { to, room: Box::new(room) });
        }
    }

    /// If nothing could be moved, asks the node with the next longest queue.
    pub(super) fn on_moved(&mut self, from: NodeId, to: NodeId, left: Resources, queue: Waiting, out: &mut Outbox) {
        if !self.nodes.handed_over(from, queue) {
            self.on_room(to, left, out);
        }
    }
}

fn room(limit: OpportunisticLimit, capacity: &Resources, forecast: &Forecast) -> Resources {
    match limit {
        OpportunisticLimit::Everything => Resources::MAX,
        OpportunisticLimit::Part(millionths) => {
            let mut part = *capacity;
            for kind in 0..WIDTH {
                part.0[kind] = (u64::from(capacity.0[kind]) * u64::from(millionths.min(1_000_000)) / 1_000_000) as u32;
            }
            part
        }
        OpportunisticLimit::Forecast => capacity.saturating_sub(&forecast.demand()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_the_mean_plus_deviations_of_the_reported_queues() {
        let mut queues = Queues::default();
        assert_eq!(queues.beyond(2_000), None);
        for (old, new) in [(None, Some(100)), (None, Some(8)), (Some(100), Some(2)), (None, Some(9)), (Some(9), None)] {
            queues.replace(old.map(Duration), new.map(Duration));
        }
        // 8 and 2 remain.
        assert_eq!(queues.beyond(0), Some(Duration(5)));
        assert_eq!(queues.beyond(2_000), Some(Duration(11)));
        assert_eq!(queues.beyond(1_500), Some(Duration(9)));
    }

    #[test]
    fn the_limit_for_opportunistic_work_is_everything_a_part_or_the_forecast() {
        let capacity = Resources::new(32_000, 1_000);
        let mut forecast = Forecast::default();
        forecast.learn(&Resources::new(22_000, 1_500));
        assert_eq!(room(OpportunisticLimit::Everything, &capacity, &forecast), Resources::MAX);
        assert_eq!(room(OpportunisticLimit::Part(200_000), &capacity, &forecast), Resources::new(6_400, 200));
        assert_eq!(room(OpportunisticLimit::Forecast, &capacity, &forecast), Resources::new(10_000, 0));
    }
}
