//! Guaranteed work before all opportunistic work (Karanasos et al. 2015: Mercury, section 3.4). Within a kind, the order is
//! that of arrival or, with re-ordering (section 4.3), of the jobs' submission. Jobs are numbered in that order.
//!
//! No opportunistic task starts while a guaranteed one waits for room: it would be preempted soon.

use crate::policy::QueuePolicy;
use crate::vocabulary::{Instant, QueueView, QueuedEntry, Resources, RunningEntry};

pub struct ByKind {
    pub reorder: bool,
}

impl ByKind {
    /// The first entry of a kind.
    fn first(&self, queue: &QueueView<'_>, opportunistic: bool) -> Option<usize> {
        let mut of_kind =
            queue.entries.iter().enumerate().filter(|(_, entry)| entry.is_opportunistic() == opportunistic);
        if !self.reorder {
            return of_kind.next().map(|(at, _)| at);
        }
        of_kind.min_by_key(|(at, entry)| (entry.id.job(), *at)).map(|(at, _)| at)
    }
}

impl QueuePolicy for ByKind {
    fn pick(
        &mut self,
        _: Instant,
        queue: &QueueView<'_>,
        _: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
    ) -> Option<usize> {
        let fits = |at: &usize, room: &Resources| queue.entries[*at].shape.resources.fits_in(room);
        if let Some(guaranteed) = self.first(queue, false) {
            return Some(guaranteed).filter(|at| fits(at, free));
        }
        let room = free.smaller_of(&queue.opportunistic_room);
        self.first(queue, true).filter(|at| fits(at, &room))
    }

    fn last(&self, queue: &QueueView<'_>, may_go: &dyn Fn(&QueuedEntry) -> bool) -> Option<usize> {
        let mut of_kind =
            queue.entries.iter().enumerate().filter(|(_, entry)| entry.is_opportunistic() && may_go(entry));
        if !self.reorder {
            return of_kind.next_back().map(|(at, _)| at);
        }
        of_kind.max_by_key(|(at, entry)| (entry.id.job(), *at)).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{AttemptId, Duration, EntryId, ExecutionType, JobId, TaskShape};
    use std::sync::Arc;

    fn entry(job: u64, execution: ExecutionType, cpu_millis: u32) -> QueuedEntry {
        let shape = Arc::new(TaskShape { resources: Resources::new(cpu_millis, 0), execution });
        let id = EntryId::Attempt(AttemptId { job: JobId(job), ..AttemptId::default() });
        let booked = execution == ExecutionType::Guaranteed;
        QueuedEntry { id, shape, booked, queued_at: Instant::ZERO, expected: Some(Duration::from_secs(1)), weight: 1 }
    }

    fn pick(reorder: bool, entries: &[QueuedEntry], free: u32, opportunistic_room: u32) -> Option<usize> {
        let queue = QueueView { entries, opportunistic_room: Resources::new(opportunistic_room, 0) };
        ByKind { reorder }.pick(Instant::ZERO, &queue, &mut std::iter::empty(), &Resources::new(free, 0))
    }

    use ExecutionType::{Guaranteed, Opportunistic};

    #[test]
    fn guaranteed_work_goes_first_and_its_room_is_left_to_it() {
        let entries = [entry(1, Opportunistic, 500), entry(2, Guaranteed, 1_000)];
        assert_eq!(pick(true, &entries, 1_000, 1_000), Some(1));
        assert_eq!(pick(true, &entries, 900, 900), None, "the opportunistic one would fit");
        assert_eq!(pick(true, &entries[..1], 900, 900), Some(0));
    }

    #[test]
    fn the_job_that_was_submitted_first_goes_first_where_queues_are_reordered() {
        let entries = [entry(3, Opportunistic, 500), entry(2, Opportunistic, 500), entry(2, Opportunistic, 100)];
        assert_eq!(pick(true, &entries, 1_000, 1_000), Some(1));
        assert_eq!(pick(false, &entries, 1_000, 1_000), Some(0));
        let queue = QueueView { entries: &entries, opportunistic_room: Resources::MAX };
        let last = |reorder, may_go: &dyn Fn(&QueuedEntry) -> bool| ByKind { reorder }.last(&queue, may_go);
        assert_eq!((last(true, &|_| true), last(false, &|_| true)), (Some(0), Some(2)));
        assert_eq!(last(false, &|entry| entry.shape.resources.cpu_millis() == 500), Some(1));
    }

    #[test]
    fn opportunistic_work_keeps_within_its_limit_and_guaranteed_work_knows_none() {
        let entries = [entry(1, Opportunistic, 500)];
        assert_eq!(pick(false, &entries, 1_000, 499), None);
        assert_eq!(pick(false, &[entry(1, Guaranteed, 500)], 1_000, 0), Some(0));
    }
}
