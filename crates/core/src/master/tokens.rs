//! Nodes verify launches without the master: each has a key, and the master counts the generations with which tokens
//! expire.
//!
//! Job managers learn the current generation from grants and from lists of nodes, nodes from the answers to their
//! reports. While the master is down, the generation stays the same and work continues with it.

use super::Master;
use crate::protocol::ToNode;
use crate::role::Outbox;
use crate::vocabulary::{Allocation, Generation, Instant, Key, NodeId, Sealing, Token};

pub(super) struct Tokens {
    sealing: Sealing,
    generation: Generation,
    /// When the next generation starts; checked whenever the master wakes up.
    advance_at: Option<Instant>,
}

impl Tokens {
    pub(super) fn new(sealing: Sealing) -> Tokens {
        Tokens { sealing, generation: Generation::default(), advance_at: None }
    }

    pub(super) fn node_key(&self, node: NodeId) -> Key {
        self.sealing.node_key(node)
    }

    /// The token for a proposed launch that the ledger has accepted.
    pub(super) fn seal(&self, node: NodeId, allocation: &Allocation) -> Token {
        self.sealing.token(node, self.generation, allocation)
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// The oldest valid generation: tokens made just before the last advance may still be in transit.
    pub(super) fn oldest(&self) -> Generation {
        Generation(self.generation.0.saturating_sub(1))
    }
}

impl Master {
    pub(super) fn advance_when_due(&mut self, now: Instant) {
        let (life, is_reported) = (self.settings.token_life, self.reports_generation());
        let Tokens { generation, advance_at, .. } = &mut self.claims.tokens;
        let advance_at = advance_at.get_or_insert(now + life);
        // Advances only once the current generation is published, so that receivers of lists are never two behind,
        // however rarely lists are sent.
        if *advance_at <= now && is_reported {
            *advance_at = now + life;
            generation.0 += 1;
        }
    }

    /// Sent in answer to a report, if the node has not been notified.
    pub(super) fn expire_tokens(&mut self, node: NodeId, out: &mut Outbox) {
        let before = self.claims.tokens.oldest();
        if self.nodes.is_new_expiry(node, before) {
            out.send(node, ToNode::Expire { before });
        }
    }
}
