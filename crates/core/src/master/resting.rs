//! What a simulator needs to leave out reports that say nothing new (ADR 90). Daemons do not use it.

use super::{Master, Publish};
use crate::dispatch::Decide;
use crate::vocabulary::{Generation, Instant, NodeId};

impl Master {
    /// Whether a report that says the same as the one before has no effects but these: the node was heard, it learns of the oldest valid
    /// generation of tokens, and [`Master::on_same_report`].
    pub fn needs_no_repeated_reports(&self) -> bool {
        let decides_on_events = matches!(self.settings.dispatch.decide, Decide::OnEvents);
        // Reports confirm the waits that were published.
        let publishes_waits = self.settings.publish >= Publish::Waits;
        decides_on_events && !publishes_waits && self.settings.steer.is_none() && self.federated.is_none()
    }

    /// Whether it publishes how much running work is left at nodes.
    pub fn reads_progress(&self) -> bool {
        self.settings.publish > Publish::Nodes
    }

    /// The oldest valid generation of tokens, of which the answer to a report tells the node.
    pub fn oldest_tokens(&self) -> Generation {
        self.claims.tokens.oldest()
    }

    /// The node is connected and rests: it sends no reports, and is not silent.
    pub fn on_rest(&mut self, node: NodeId) {
        *self.nodes.rest_mut(node).0 = true;
    }

    /// The node reports again. `heard`: when the last report that was left out would have arrived.
    pub fn on_awake(&mut self, node: NodeId, heard: Option<Instant>) {
        let (rests, last_contact) = self.nodes.rest_mut(node);
        (*rests, *last_contact) = (false, (*last_contact).max(heard));
    }

    /// What a report that says nothing new causes: tasks that wait for longer than predicted are counted, at most once per second.
    pub fn on_same_report(&mut self, now: Instant) {
        self.dispatch.count_late(now);
    }
}
