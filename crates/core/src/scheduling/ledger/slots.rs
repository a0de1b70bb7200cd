//! The bookings of a ledger, in blocks that never move.

use super::Booking;
use crate::vocabulary::SharedGpu;

pub(super) struct Slot {
    pub(super) booking: Option<Booking>,
    pub(super) previous: u32,
    pub(super) next: u32,
    /// The slot of the booking for which this one is preempted.
    pub(super) preempted_for: u32,
    /// The GPU of which it holds a part.
    pub(super) shared_gpu: Option<SharedGpu>,
}

/// A growing list whose entries are never moved: moving a million of them takes half a second.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) chunks: Vec<Vec<Slot>>,
}

impl Slots {
    const CHUNK: usize = 4_096;

    pub(super) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * Slots::CHUNK + last.len())
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Slot> {
        self.chunks.get(slot as usize / Slots::CHUNK)?.get(slot as usize % Slots::CHUNK)
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.chunks[slot as usize / Slots::CHUNK][slot as usize % Slots::CHUNK]
    }

    pub(super) fn push(&mut self, slot: Slot) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < Slots::CHUNK => last.push(slot),
            _ => {
                let mut chunk = Vec::with_capacity(Slots::CHUNK);
                chunk.push(slot);
                self.chunks.push(chunk);
            }
        }
    }
}
