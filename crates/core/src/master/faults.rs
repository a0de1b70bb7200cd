//! Duty: know the nodes, and which of them fail: nodes report attempts that succeeded, job managers report attempts
//! that failed because of a node, and lost nodes count as failures. The estimate for each node is published with it.

use super::Master;
use crate::scheduling::NodeState;
use crate::vocabulary::{Duration, Instant, NodeId};

impl Master {
    /// `succeeded`: attempts that succeeded since the node's agent started.
    pub(super) fn count_successes(&mut self, now: Instant, node: NodeId, succeeded: u32) {
        let before = self.nodes.report(node).map_or(0, |report| report.succeeded);
        // A new agent starts at zero, and reports that after its welcome.
        let new = succeeded.saturating_sub(before);
        self.successes += u64::from(new);
        if new > 0 {
            self.reliability.on_success(now, node, new);
        }
    }

    /// An attempt failed because of the node, or because of one of `suspects` nodes.
    pub(super) fn on_node_failed(&mut self, now: Instant, node: NodeId, suspects: u32) {
        if self.is_in_use(node) {
            self.reliability.on_failure(now, node, suspects);
            self.dispatch.scheduler.note_failure(node);
        }
    }

    /// A task failed at several nodes, each this long ago.
    pub(super) fn on_task_fails(&mut self, now: Instant, at: &[(NodeId, Duration)]) {
        self.reliability.on_bad_task(now, at);
    }

    /// The node is lost. A node that was not up in this incarnation of the master did not fail in it.
    pub(super) fn count_loss(&mut self, now: Instant, node: NodeId) {
        if self.dispatch.rooms.state(node) == Some(NodeState::Unreachable) && self.is_in_use(node) {
            self.reliability.on_failure(now, node, 1);
            self.dispatch.scheduler.note_failure(node);
        }
    }

    /// Tells the scheduler how likely attempts succeed on nodes with failures. Examines all nodes if there are any such, so it is
    /// called at reviews and not for each failure.
    pub(super) fn report_success_rates(&mut self, now: Instant) {
        let failing = self.dispatch.scheduler.failing_nodes();
        if failing.is_empty() {
            return;
        }
        let usual = self.reliability.usual(now);
        for node in failing {
            let success = self.reliability.success(now, node, usual) as u32;
            self.dispatch.scheduler.on_success_rate(now, node, success, &mut self.dispatch.rooms);
        }
    }

    /// Whether the node is known and not drained: failures of a drained node are maintenance.
    fn is_in_use(&self, node: NodeId) -> bool {
        self.dispatch.rooms.state(node).is_some() && !self.nodes.is_drained(node)
    }
}
