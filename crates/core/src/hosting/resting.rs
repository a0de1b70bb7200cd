//! Node agents that rest, for a simulator (ADR 90).

use super::Roles;
use crate::node::Rest;
use crate::protocol::Address;
use crate::role::Role;
use crate::vocabulary::{Generation, Instant, NodeId};

impl Roles {
    /// Whether the agent of this node rests, see [`NodeAgent::rest`](crate::node::NodeAgent::rest).
    pub fn rest_of(&self, node: NodeId, reads_progress: bool, oldest: Generation) -> Option<Rest> {
        self.nodes.get(node)?.rest(reads_progress, oldest)
    }

    /// Leaves out the reports of a resting agent that were due by then. Returns their number, and when the last one was due.
    pub fn skip_reports(&mut self, node: NodeId, until: Instant) -> Option<(u64, Instant)> {
        let agent = self.nodes.get_mut(node)?;
        let skipped = agent.skip_reports(until);
        self.wakeups.set(Address::Node(node), agent.next_wakeup());
        skipped
    }
}
