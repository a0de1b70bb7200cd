//! Nodes verify launches by themselves: each has a key, and the master counts the generations by which tokens expire.
//!
//! Job managers learn of a new generation from grants and from lists of nodes, nodes when they report. While the master is
//! away neither changes, and work goes on with the last.

use super::Master;
use crate::protocol::ToNode;
use crate::role::Outbox;
use crate::vocabulary::{Allocation, Generation, Instant, Key, NodeId, Sealing, Token};

pub(super) struct Tokens {
    sealing: Sealing,
    generation: Generation,
    /// When the next generation begins; looked at whenever the master wakes up.
    advance_at: Option<Instant>,
}

impl Tokens {
    pub(super) fn new(sealing: Sealing) -> Tokens {
        Tokens { sealing, generation: Generation::default(), advance_at: None }
    }

    pub(super) fn node_key(&self, node: NodeId) -> Key {
        self.sealing.node_key(node)
    }

    /// For a launch that somebody proposed and the ledger took.
    pub(super) fn seal(&self, node: NodeId, allocation: &Allocation) -> Token {
        self.sealing.token(node, self.generation, allocation)
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// What was made just before the last advance may still be on its way.
    pub(super) fn oldest(&self) -> Generation {
        Generation(self.generation.0.saturating_sub(1))
    }
}

impl Master {
    pub(super) fn advance_when_due(&mut self, now: Instant) {
        let (life, is_told) = (self.settings.token_life, self.tells_generation());
        let Tokens { generation, advance_at, .. } = &mut self.claims.tokens;
        let advance_at = advance_at.get_or_insert(now + life);
        // Nobody who hears of generations from lists is two behind, however seldom these come.
        if *advance_at <= now && is_told {
            *advance_at = now + life;
            generation.0 += 1;
        }
    }

    /// The answer to a report, where the node has not been told.
    pub(super) fn expire_tokens(&mut self, node: NodeId, out: &mut Outbox) {
        let before = self.claims.tokens.oldest();
        if self.nodes.is_new_expiry(node, before) {
            out.send(node, ToNode::Expire { before });
        }
    }
}
