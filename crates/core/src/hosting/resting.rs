//! Node agents that rest, for a simulator (ADR 90).

use super::Roles;
use crate::node::Rest;
use crate::protocol::Address;
use crate::role::Role;
use crate::vocabulary::{Instant, NodeId};

impl Roles {
    /// Whether the agent of this node rests, see [`NodeAgent::rest`](crate::node::NodeAgent::rest).
    pub fn rest_of(&self, node: NodeId, reads_progress: bool) -> Option<Rest> {
        self.nodes.get(node)?.rest(reads_progress)
    }

    /// Leaves out the reports of a resting agent that were due by now. Returns their number.
    pub fn skip_reports(&mut self, node: NodeId, now: Instant) -> u64 {
        let Some(agent) = self.nodes.get_mut(node) else { return 0 };
        let skipped = agent.skip_reports(now);
        self.wakeups.set(Address::Node(node), agent.next_wakeup());
        skipped
    }
}
