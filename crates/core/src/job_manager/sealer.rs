//! The tokens of a job manager's launches.

use crate::vocabulary::{Allocation, Generation, NodeId, Sealing, Token};

/// Makes tokens of the newest known generation.
pub(super) struct Sealer {
    sealing: Sealing,
    generation: Generation,
}

impl Sealer {
    pub(super) fn new(sealing: Sealing) -> Sealer {
        Sealer { sealing, generation: Generation::default() }
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn set_generation(&mut self, generation: Generation) {
        self.generation = generation;
    }

    /// A late message may name an earlier generation.
    pub(super) fn advance(&mut self, generation: Generation) {
        self.generation = generation.max(self.generation);
    }

    pub(super) fn token(&self, node: NodeId, allocation: &Allocation<'_>) -> Token {
        self.sealing.token(node, self.generation, allocation)
    }
}
