//! Duty: know the nodes, and which of them fail: what they say of attempts that ended well, what job managers say of those
//! that failed through a node, and which nodes were lost. What is thought of each is published with it.

use super::Master;
use crate::scheduling::NodeState;
use crate::vocabulary::{Duration, Instant, NodeId};

impl Master {
    /// So many attempts have ended well since the node's agent began.
    pub(super) fn count_successes(&mut self, now: Instant, node: NodeId, succeeded: u32) {
        let before = self.nodes.report(node).map_or(0, |report| report.succeeded);
        // Another agent begins with none, and says so when it is welcomed.
        let new = succeeded.saturating_sub(before);
        self.successes += u64::from(new);
        if new > 0 {
            self.reliability.on_success(now, node, new);
        }
    }

    /// An attempt failed through the node, or one of so many.
    pub(super) fn on_node_failed(&mut self, now: Instant, node: NodeId, suspects: u32) {
        if self.is_in_use(node) {
            self.reliability.on_failure(now, node, suspects);
        }
    }

    /// A task failed at several nodes, so long ago at each.
    pub(super) fn on_task_fails(&mut self, now: Instant, at: &[(NodeId, Duration)]) {
        self.reliability.on_bad_task(now, at);
    }

    /// The node stayed away. One that was not there in this life of the master did not fail in it.
    pub(super) fn count_loss(&mut self, now: Instant, node: NodeId) {
        if self.dispatch.rooms.state(node) == Some(NodeState::Unreachable) && self.is_in_use(node) {
            self.reliability.on_failure(now, node, 1);
        }
    }

    /// Whether it is known, and no operator took it out of use: what fails then is maintenance.
    fn is_in_use(&self, node: NodeId) -> bool {
        self.dispatch.rooms.state(node).is_some() && !self.nodes.is_drained(node)
    }
}
