//! The entries that wait at a node, in order of arrival; a queue policy chooses the next one to start.

use crate::policy::QueuePolicy;
use crate::vocabulary::{Duration, EntryId, Instant, QueueView, QueuedEntry, Resources, RunningEntry};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct NodeQueue {
    /// Entries from `first` on wait; the ones before it have left. Those are removed when they are half of all, so that
    /// removing the first entry of a long queue costs as little as of a short one.
    entries: Vec<QueuedEntry>,
    first: usize,
    /// The sum of the expected run times of entries without a booking, in microseconds.
    unbooked_work: u128,
    /// The number of guaranteed entries.
    guaranteed: usize,
    /// Entries that cannot start yet, and what they wait for.
    held: BTreeSet<(EntryId, Lack)>,
}

/// What an entry waits for before it can start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lack {
    Files,
    /// The other tasks of its gang.
    Others,
}

impl Lack {
    const ALL: [Lack; 2] = [Lack::Files, Lack::Others];
}

impl NodeQueue {
    pub fn push(&mut self, entry: QueuedEntry) {
        self.count(&entry);
        self.entries.push(entry);
    }

    fn count(&mut self, entry: &QueuedEntry) {
        self.unbooked_work += unbooked_work(entry);
        self.guaranteed += usize::from(entry.is_guaranteed());
    }

    /// Puts an entry before all others: it was chosen to start before.
    pub fn push_front(&mut self, entry: QueuedEntry) {
        self.count(&entry);
        if self.first > 0 {
            self.first -= 1;
            self.entries[self.first] = entry;
        } else {
            self.entries.insert(0, entry);
        }
    }

    pub fn remove(&mut self, id: EntryId) -> Option<QueuedEntry> {
        let at = self.entries().iter().position(|entry| entry.id == id)?;
        Some(self.take(at))
    }

    fn take(&mut self, at: usize) -> QueuedEntry {
        let entry = self.take_out(at);
        self.unbooked_work -= unbooked_work(&entry);
        self.guaranteed -= usize::from(entry.is_guaranteed());
        Lack::ALL.into_iter().for_each(|lack| self.release(entry.id, lack));
        entry
    }

    /// The queue skips the entry until it lacks nothing any more.
    pub fn hold(&mut self, id: EntryId, lack: Lack) {
        self.held.insert((id, lack));
    }

    pub fn release(&mut self, id: EntryId, lack: Lack) {
        self.held.remove(&(id, lack));
    }

    pub fn lacks(&self, id: EntryId, lack: Lack) -> bool {
        self.held.contains(&(id, lack))
    }

    pub fn is_held(&self, id: EntryId) -> bool {
        !self.held.is_empty() && Lack::ALL.into_iter().any(|lack| self.lacks(id, lack))
    }

    fn take_out(&mut self, at: usize) -> QueuedEntry {
        if at > 0 {
            return self.entries.remove(self.first + at);
        }
        let entry = self.entries[self.first].clone();
        self.first += 1;
        if self.first == self.entries.len() {
            self.entries.clear();
            self.first = 0;
        } else if self.first * 2 >= self.entries.len() {
            self.entries.drain(..std::mem::take(&mut self.first));
        }
        entry
    }

    /// Takes out the entry that starts next.
    pub fn pick(
        &mut self,
        now: Instant,
        policy: &mut dyn QueuePolicy,
        running: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
        opportunistic_room: Resources,
    ) -> Option<QueuedEntry> {
        if self.held.is_empty() {
            let queue = QueueView { entries: self.entries(), opportunistic_room };
            let at = policy.pick(now, &queue, running, free)?;
            return Some(self.take(at));
        }
        let of_all: Vec<usize> = (0..self.len()).filter(|at| !self.is_held(self.entries()[*at].id)).collect();
        let entries: Vec<QueuedEntry> = of_all.iter().map(|at| self.entries()[*at].clone()).collect();
        let queue = QueueView { entries: &entries, opportunistic_room };
        let at = policy.pick(now, &queue, running, free)?;
        Some(self.take(of_all[at]))
    }

    /// Takes out the opportunistic entry that is given up first, of those that `may_go` selects.
    pub fn drop_last(
        &mut self,
        policy: &dyn QueuePolicy,
        may_go: &dyn Fn(&QueuedEntry) -> bool,
    ) -> Option<QueuedEntry> {
        let queue = QueueView { entries: self.entries(), opportunistic_room: Resources::ZERO };
        policy.last(&queue, may_go).map(|at| self.take(at))
    }

    /// The sum of the expected run times of entries without a booking; unknown ones count as zero.
    pub fn expected_work(&self) -> Duration {
        Duration(u64::try_from(self.unbooked_work).unwrap_or(u64::MAX))
    }

    pub fn has_guaranteed(&self) -> bool {
        self.guaranteed > 0
    }

    pub fn len(&self) -> usize {
        self.entries().len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    pub fn entries(&self) -> &[QueuedEntry] {
        &self.entries[self.first..]
    }
}

fn unbooked_work(entry: &QueuedEntry) -> u128 {
    let counted = entry.expected.filter(|_| !entry.booked);
    counted.map_or(0, |expected| u128::from(expected.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Chance, JobId, ProbeId};
    use std::sync::Arc;

    fn entry(number: u32) -> QueuedEntry {
        let id = EntryId::Probe(ProbeId { job: JobId(1), number, ..ProbeId::default() });
        let (booked, expected) = (number.is_multiple_of(3), Some(Duration(u64::from(number))));
        QueuedEntry { id, shape: Arc::default(), booked, queued_at: Instant::ZERO, expected, weight: 1 }
    }

    #[test]
    fn entries_leave_from_any_position_and_the_others_keep_their_order() {
        let mut chance = Chance::new(1, "node queue");
        let (mut queue, mut expected) = (NodeQueue::default(), Vec::new());
        for number in 0..3_000 {
            match chance.below(6_u64) {
                0 => {
                    queue.push_front(entry(number));
                    expected.insert(0, entry(number));
                }
                1 if !expected.is_empty() => {
                    let at = chance.below(expected.len() as u64) as usize;
                    assert_eq!(queue.remove(expected[at].id), Some(expected.remove(at)));
                }
                2 | 3 if !expected.is_empty() => assert_eq!(queue.take(0), expected.remove(0)),
                _ => {
                    queue.push(entry(number));
                    expected.push(entry(number));
                }
            }
            assert_eq!((queue.entries(), queue.len()), (&expected[..], expected.len()));
            let work: u64 =
                expected.iter().filter(|entry| !entry.booked).filter_map(|entry| Some(entry.expected?.0)).sum();
            assert_eq!(queue.expected_work(), Duration(work));
            assert_eq!(queue.has_guaranteed(), expected.iter().any(QueuedEntry::is_guaranteed));
        }
    }
}
