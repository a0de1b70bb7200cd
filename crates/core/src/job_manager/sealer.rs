//! The tokens of a job manager's launches.

use crate::vocabulary::{Allocation, Generation, NodeId, Sealing, Token};

/// Makes tokens of the newest known generation.
pub(super) struct Sealer {
    sealing: Sealing,
    pub(super) generation: Generation,
}

impl Sealer {
    pub(super) fn new(sealing: Sealing) -> Sealer {
        Sealer { sealing, generation: Generation::default() }
    }

    /// A late message may name an earlier generation.
    pub(super) fn advance(&mut self, generation: Generation) {
        self.generation = generation.max(self.generation);
    }

    pub(super) fn token(&self, node: NodeId, allocation: &Allocation<'_>) -> Token {
        self.sealing.token(node, self.generation, allocation)
    }
}
