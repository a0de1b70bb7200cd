//! The records of a stage's tasks, in pieces. Pieces of untouched tasks take almost no memory.

use super::TaskRecord;
use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

const PIECE: u32 = 64;

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Records {
    pieces: Vec<Option<Box<[TaskRecord]>>>,
}

impl Records {
    /// Makes a record for a task of a stage with `total` tasks.
    pub(crate) fn make(&mut self, index: u32, total: u32) {
        let place = (index / PIECE) as usize;
        if self.pieces.len() <= place {
            // By an eighth at most: with a million tasks, doubling would waste as much as it holds.
            let more = (place / 8).max(4).min((total / PIECE) as usize + 1 - self.pieces.len());
            self.pieces.reserve_exact(more.max(place + 1 - self.pieces.len()));
            self.pieces.resize(place + 1, None);
        }
        let length = (total - index / PIECE * PIECE).min(PIECE) as usize;
        self.pieces[place].get_or_insert_with(|| vec![TaskRecord::UNTOUCHED; length].into());
    }

    pub(crate) fn get(&self, index: u32) -> Option<&TaskRecord> {
        self.pieces.get((index / PIECE) as usize)?.as_ref()?.get((index % PIECE) as usize)
    }

    /// With their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &TaskRecord)> {
        let pieces = (0..).step_by(PIECE as usize).zip(&self.pieces);
        pieces.flat_map(|(first, piece)| (first..).zip(piece.iter().flatten()))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut TaskRecord)> {
        let pieces = (0..).step_by(PIECE as usize).zip(&mut self.pieces);
        pieces.flat_map(|(first, piece)| (first..).zip(piece.iter_mut().flatten()))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let records: usize = self.pieces.iter().flatten().map(|piece| piece.len() * size_of::<TaskRecord>()).sum();
        records + self.pieces.capacity() * size_of::<Option<Box<[TaskRecord]>>>()
    }
}

/// Panics for a task without a record.
impl Index<u32> for Records {
    type Output = TaskRecord;
    fn index(&self, index: u32) -> &TaskRecord {
        self.get(index).expect("the task has a record")
    }
}

impl IndexMut<u32> for Records {
    fn index_mut(&mut self, index: u32) -> &mut TaskRecord {
        let piece = self.pieces[(index / PIECE) as usize].as_mut().expect("the task has a record");
        &mut piece[(index % PIECE) as usize]
    }
}
