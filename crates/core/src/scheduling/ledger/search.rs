//! The search for room on the nodes of a class, which skips blocks of nodes without room.

use super::{BLOCK, Ledger};
use crate::vocabulary::{Partition, Resources};

impl Ledger {
    /// How many tasks of the shape find room on the nodes of a class, counted up to `wanted`.
    pub fn rooms_for(&self, class: u32, shape: &Resources, wanted: u64) -> u64 {
        let (mut rooms, mut next) = (0, 0);
        while rooms < wanted {
            let Some(index) = self.find_in(class, shape, next, self.nodes.len(), |_| u64::MAX) else { break };
            rooms += u64::from(shape.times_in(&self.room[index]));
            next = index + 1;
        }
        rooms
    }

    /// The first node in `from..to` that has room, among the nodes whose bits `word` sets for each block of 64 nodes.
    #[inline]
    pub(super) fn find_in(
        &self,
        class: u32,
        shape: &Resources,
        from: usize,
        to: usize,
        word: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        let cpu = shape.cpu_millis();
        let mut index = from;
        while index < to {
            let block = index / BLOCK;
            if index.is_multiple_of(BLOCK * BLOCK) && !shape.fits_in(&self.super_room[block / BLOCK]) {
                index += BLOCK * BLOCK;
                continue;
            }
            let end = ((block + 1) * BLOCK).min(to);
            if shape.fits_in(&self.block_room[block]) {
                let mut candidates =
                    self.classes.table().word(class, block) & word(block) & (u64::MAX << (index % BLOCK));
                while candidates != 0 {
                    let at = block * BLOCK + candidates.trailing_zeros() as usize;
                    if at >= end {
                        break;
                    }
                    if cpu <= self.cpu[at]
                        && shape.fits_in(&self.room[at])
                        && self.nodes[at].takes_work()
                        && !self.nodes[at].reserved
                    {
                        return Some(at);
                    }
                    candidates &= candidates - 1;
                }
            }
            index = end;
        }
        None
    }

    /// The first node at or cyclically after `start` that has room, among the nodes whose bits `word` sets.
    #[inline]
    pub(super) fn find_around(
        &self,
        class: u32,
        shape: &Resources,
        start: usize,
        word: impl Fn(usize) -> u64 + Copy,
    ) -> Option<usize> {
        let len = self.nodes.len();
        if len == 0 {
            return None;
        }
        let start = start % len;
        self.find_in(class, shape, start, len, word).or_else(|| self.find_in(class, shape, 0, start, word))
    }

    /// The same in a partition, and not cyclically.
    pub(super) fn find_in_part(
        &self,
        class: u32,
        shape: &Resources,
        partition: &Partition,
        start: usize,
        word: impl Fn(usize) -> u64 + Copy,
    ) -> Option<usize> {
        let to = partition.to.min(self.nodes.len());
        let start = start.clamp(partition.from, to.max(partition.from));
        let word = |block| partition.word(block) & word(block);
        let before = || self.find_in(class, shape, partition.from, start, word);
        self.find_in(class, shape, start, to, word).or_else(before)
    }
}
