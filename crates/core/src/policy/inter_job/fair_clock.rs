//! What each job would have done with fair shares, as a clock of its queue that advances by the work that jobs have done,
//! divided by the number of those that would have shared it (Golestani 1994, self-clocked fair queueing).
//!
//! Departs: the clock counts the work actually done. Jobs that never wanted more than an equal part do not share: they
//! would have all that they want.

use super::Accounts;
use super::accounts::JobAccount;
use super::fair_deadlines::FairJob;
use crate::policy::JobSlot;
use crate::vocabulary::{JobId, JobWork, QueueId};
use std::collections::BTreeSet;

/// The clock of a queue, in nanoseconds of the whole cluster.
#[derive(Clone, Default)]
pub struct FairClock {
    now: u64,
    /// When the clock reaches the ends of jobs that have ended earlier than with fair shares.
    gone: BTreeSet<(u64, JobId)>,
    /// The dominant share that jobs would have if they were equal, in millionths of the cluster; and the number of jobs
    /// that want more.
    level: u64,
    sharing: u64,
}

/// A job's place in fair shares.
#[derive(Clone, Copy)]
pub struct InFairShares {
    /// The clock when the job came.
    came: u64,
    has_reported: bool,
    /// Its place in the order of the jobs that want more than an equal part, when that was computed last.
    pub place: Option<u32>,
}

impl FairClock {
    pub fn enter(&self) -> InFairShares {
        InFairShares { came: self.now, has_reported: false, place: None }
    }

    fn advance(&mut self, done: u64) {
        self.now = self.now.saturating_add(done / (self.sharing + self.gone.len() as u64).max(1));
        if self.gone.first().is_some_and(|first| first.0 <= self.now) {
            self.gone = self.gone.split_off(&(self.now.saturating_add(1), JobId(0)));
        }
    }

    /// What jobs that have ended would have left with fair shares.
    pub fn gone(&self) -> impl Iterator<Item = u64> {
        self.gone.iter().map(|(end, _)| end - self.now)
    }

    /// Sets the share with which jobs are equal, and how many want more.
    pub fn set_level(&mut self, level: u64, sharing: u64) {
        (self.level, self.sharing) = (level, sharing);
        if sharing == 0 {
            self.gone.clear();
        }
    }
}

impl JobAccount {
    /// The clock of its queue when it would be done with fair shares; jobs that have not reported their work come last.
    pub fn fair_end(&self) -> u64 {
        if self.fair.has_reported { self.fair.came.saturating_add(self.total_time) } else { u64::MAX }
    }

    fn done(&self) -> u64 {
        self.total_time.saturating_sub(self.remaining_time)
    }
}

impl Accounts {
    pub(super) fn on_work(&mut self, slot: JobSlot, work: JobWork) {
        let capacity = self.capacity;
        let job = self.job_mut(slot);
        let (before, was_known) = (job.done(), job.fair.has_reported);
        job.set_work(work, &capacity);
        job.fair.has_reported = true;
        // What was done before the first report was done under another master.
        let done = if was_known { job.done().saturating_sub(before) } else { 0 };
        let queue = job.queue;
        self.has_new |= !was_known;
        let shares = self.job(slot).fair.place.is_some() || self.is_wide(slot);
        if done > 0 && shares {
            self.queues[queue.0 as usize].clock.advance(done);
        }
    }

    /// With fair shares the job would still do what it has done beyond the clock.
    pub(super) fn leave_fair_shares(&mut self, slot: JobSlot) {
        let job = self.job(slot);
        let (id, end, was_placed) = (job.id, job.fair.came.saturating_add(job.done()), job.fair.place.is_some());
        let queue = job.queue;
        let clock = &mut self.queues[queue.0 as usize].clock;
        if was_placed && end > clock.now {
            clock.gone.insert((end, id));
        }
    }

    /// What the job has left, and would have left with fair shares.
    pub(super) fn fair_job(&self, slot: JobSlot) -> FairJob {
        let job = self.job(slot);
        let now = self.clock(job.queue).now;
        FairJob { left: job.remaining_time, fair_left: job.fair_end().saturating_sub(now) }
    }

    pub(super) fn clock(&self, queue: QueueId) -> &FairClock {
        &self.queues[queue.0 as usize].clock
    }

    /// Whether the job wants more than its queue's jobs would have if they were equal.
    pub(super) fn is_wide(&self, slot: JobSlot) -> bool {
        let job = self.job(slot);
        job.wanted.dominant_share(&self.capacity) > self.clock(job.queue).level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances_by_what_each_would_have_done_and_waits_for_jobs_that_ended_early() {
        let mut clock = FairClock::default();
        clock.set_level(500_000, 2);
        clock.advance(100);
        assert_eq!(clock.now, 50);
        // One of them is done with 80, of which it would have done 50.
        clock.gone.insert((80, JobId(1)));
        clock.set_level(1_000_000, 1);
        assert_eq!(clock.gone().collect::<Vec<_>>(), [30]);
        clock.advance(40);
        assert_eq!((clock.now, clock.gone().collect::<Vec<_>>()), (70, vec![10]));
        clock.advance(30);
        assert_eq!((clock.now, clock.gone().count()), (85, 0), "both are done");
        clock.advance(30);
        assert_eq!(clock.now, 115, "one is left");
    }

    #[test]
    fn jobs_that_have_ended_share_nothing_once_all_are_content_with_an_equal_part() {
        let mut clock = FairClock::default();
        clock.gone.insert((80, JobId(1)));
        clock.set_level(u64::MAX, 0);
        assert_eq!(clock.gone().count(), 0);
    }
}
