//! Duty: know the nodes, and steer opportunistic work at them: how long their queues may be, and how much that work may
//! hold. The limits are sent when a node reports.

use super::Master;
use super::queues::Waiting;
use crate::policy::Forecast;
use crate::protocol::{Steer, ToNode};
use crate::role::Outbox;
use crate::scheduling::NodeState;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{NodeId, Resources};
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
        if let Some(from) = self.nodes.queues().longest().filter(|_| !room.is_zero()) {
            let (queues, queue) = self.nodes.queue_mut(from);
            queues.on_asked(from, queue);
            out.send(from, ToNode::Move { to, room: Box::new(room) });
        }
    }

    /// If nothing could be moved, asks the node with the next longest queue.
    pub(super) fn on_moved(&mut self, from: NodeId, to: NodeId, left: Resources, queue: Waiting, out: &mut Outbox) {
        let (queues, counted) = self.nodes.queue_mut(from);
        if !queues.on_answered(from, counted, queue) {
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
    fn the_limit_for_opportunistic_work_is_everything_a_part_or_the_forecast() {
        let capacity = Resources::new(32_000, 1_000);
        let mut forecast = Forecast::default();
        forecast.learn(&Resources::new(22_000, 1_500));
        assert_eq!(room(OpportunisticLimit::Everything, &capacity, &forecast), Resources::MAX);
        assert_eq!(room(OpportunisticLimit::Part(200_000), &capacity, &forecast), Resources::new(6_400, 200));
        assert_eq!(room(OpportunisticLimit::Forecast, &capacity, &forecast), Resources::new(10_000, 0));
    }
}
