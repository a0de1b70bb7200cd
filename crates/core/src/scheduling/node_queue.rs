//! What waits at a node, in order of arrival; a queue policy says who starts.

use crate::policy::QueuePolicy;
use crate::vocabulary::{Duration, EntryId, Instant, QueueView, QueuedEntry, Resources, RunningEntry};

#[derive(Default)]
pub struct NodeQueue {
    entries: Vec<QueuedEntry>,
}

impl NodeQueue {
    pub fn push(&mut self, entry: QueuedEntry) {
        self.entries.push(entry);
    }

    /// Puts an entry before all others: its turn has come already.
    pub fn push_front(&mut self, entry: QueuedEntry) {
        self.entries.insert(0, entry);
    }

    pub fn remove(&mut self, id: EntryId) -> Option<QueuedEntry> {
        let at = self.entries.iter().position(|entry| entry.id == id)?;
        Some(self.entries.remove(at))
    }

    /// Takes out the entry that starts next.
    pub fn pick(
        &mut self,
        now: Instant,
        policy: &mut dyn QueuePolicy,
        running: &[RunningEntry],
        free: &Resources,
    ) -> Option<QueuedEntry> {
        let at = policy.pick(now, &QueueView { entries: &self.entries }, running, free)?;
        Some(self.entries.remove(at))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> &[QueuedEntry] {
        &self.entries
    }

    /// The expected run times of what waits, one after the other; unknown ones count as nothing.
    pub fn expected_work(&self) -> Duration {
        self.entries.iter().filter_map(|entry| entry.expected).fold(Duration::ZERO, |sum, next| sum + next)
    }
}
