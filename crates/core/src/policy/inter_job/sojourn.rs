//! The order of a queue's jobs by when they would be done with fair shares (Friedman and Henderson 2003, "Fairness and
//! efficiency in web server protocols": the fair sojourn protocol). The first job gets all that it has use for, then
//! the next, up to the total entitlement of the queue's jobs. So short jobs are done sooner than with fair shares, and
//! a long job is overtaken only by jobs that would have overtaken it with fair shares as well.
//!
//! A queue has a clock, which advances by the work that its jobs have done, divided by their number: what each would
//! have done with fair shares (Golestani 1994, self-clocked fair queueing). A job is done when the clock has advanced
//! by its work since it came, so its rank is known when it comes and changes only with the estimate of its work.
//!
//! Departs: the clock counts the work actually done and the jobs present; it ignores that a job cannot use its share
//! when few of its tasks are ready.

use crate::policy::JobSlot;
use crate::vocabulary::{JobId, QueueId, Totals};
use std::cmp::Reverse;
use std::collections::BTreeSet;

pub(super) struct Sojourn {
    queues: Vec<Queue>,
    jobs: Vec<Option<Member>>,
    /// Queues in which something has changed.
    stale: Vec<QueueId>,
    /// Kept to save allocations.
    order: Vec<JobSlot>,
}

#[derive(Clone, Default)]
struct Queue {
    line: BTreeSet<SortKey>,
    /// The total entitlement of its jobs.
    due: Totals,
    /// In nanoseconds of the whole guaranteed part of the cluster.
    clock: u64,
    is_stale: bool,
}

/// Higher priority first, then the earlier end with fair shares, then the smaller id.
type SortKey = (Reverse<i32>, u64, JobId, JobSlot);

struct Member {
    queue: QueueId,
    id: JobId,
    priority: i32,
    /// The clock when the job came.
    came: u64,
    /// Its total and remaining work; `None` before its first report.
    work: Option<(u64, u64)>,
    wanted: Totals,
    /// What it adds to the total entitlement of the queue's jobs.
    due: Totals,
    /// The resources of one of its smallest tasks.
    one: Totals,
}

impl Member {
    fn sort_key(&self, slot: JobSlot) -> SortKey {
        (Reverse(self.priority), self.rank(), self.id, slot)
    }

    /// The clock when it would be done; jobs that have not reported their work come last.
    fn rank(&self) -> u64 {
        self.work.map_or(u64::MAX, |(total, _)| self.came.saturating_add(total))
    }

    /// All that it requests, or the same fraction of every kind that is left, in whole multiples of one of its tasks.
    fn part_of(&self, left: &Totals, is_first: bool) -> Totals {
        if self.wanted.fits_in(left) {
            return self.wanted;
        }
        let kinds = self.wanted.0.iter().zip(&left.0).filter(|(wanted, _)| **wanted > 0);
        // The smallest of these fractions, not rounded.
        let smallest = kinds.map(|(&wanted, &left)| (u128::from(left.min(wanted)), u128::from(wanted)));
        let (part, of) = smallest.reduce(|a, b| if a.0 * b.1 <= b.0 * a.1 { a } else { b }).unwrap_or((0, 1));
        let whole = |wanted: u64, of_one: u64| {
            let amount = (u128::from(wanted) * part / of) as u64;
            amount - amount.checked_rem(of_one).unwrap_or(0)
        };
        let due = self.wanted.zip(&self.one, whole);
        match (self.one.fits_in(&due), is_first) {
            (true, _) => due,
            // The first job gets one task, however large.
            (false, true) => due.larger_of(&self.one),
            (false, false) => Totals::ZERO,
        }
    }
}

impl Sojourn {
    pub(super) fn new(queues: usize) -> Sojourn {
        Sojourn { queues: vec![Queue::default(); queues], jobs: Vec::new(), stale: Vec::new(), order: Vec::new() }
    }

    /// Adds queues until there are this many.
    pub(super) fn add_queues(&mut self, all: usize) {
        self.queues.resize(all, Queue::default());
    }

    pub(super) fn add(&mut self, job: JobSlot, queue: QueueId, id: JobId, priority: i32) {
        let came = self.queues[queue.0 as usize].clock;
        let [wanted, due, one] = [Totals::ZERO; 3];
        let member = Member { queue, id, priority, came, work: None, wanted, due, one };
        self.queues[queue.0 as usize].line.insert(member.sort_key(job));
        super::shares::put(&mut self.jobs, job, member);
    }

    pub(super) fn remove(&mut self, job: JobSlot) {
        let gone = self.jobs[job as usize].take().expect("a job slot in use");
        let queue = &mut self.queues[gone.queue.0 as usize];
        queue.line.remove(&gone.sort_key(job));
        queue.due = queue.due.saturating_sub(&gone.due);
        self.note(gone.queue);
    }

    /// Reports the total and remaining work of a job.
    pub(super) fn on_work(&mut self, job: JobSlot, total: u64, left: u64) {
        let member = self.jobs[job as usize].as_mut().expect("a job slot in use");
        let queue = &mut self.queues[member.queue.0 as usize];
        queue.line.remove(&member.sort_key(job));
        // Work done before the first report was done under another master.
        let done = member.work.map_or(0, |(total_then, left_then)| {
            total.saturating_sub(left).saturating_sub(total_then.saturating_sub(left_then))
        });
        member.work = Some((total, left));
        queue.line.insert(member.sort_key(job));
        queue.clock = queue.clock.saturating_add(done / queue.line.len() as u64);
        self.note(self.jobs[job as usize].as_ref().expect("just seen").queue);
    }

    pub(super) fn on_allowance_request(&mut self, job: JobSlot, wanted: Totals) {
        let member = self.jobs[job as usize].as_mut().expect("a job slot in use");
        member.wanted = wanted;
        let queue = member.queue;
        self.note(queue);
    }

    /// Sets what the job adds to the total entitlement of the queue's jobs.
    pub(super) fn on_due(&mut self, job: JobSlot, due: Totals, one: &Totals) {
        let member = self.jobs[job as usize].as_mut().expect("a job slot in use");
        let queue = &mut self.queues[member.queue.0 as usize];
        queue.due = queue.due.saturating_sub(&member.due).zip(&due, u64::saturating_add);
        (member.due, member.one) = (due, *one);
        let queue = member.queue;
        self.note(queue);
    }

    fn note(&mut self, queue: QueueId) {
        if !std::mem::replace(&mut self.queues[queue.0 as usize].is_stale, true) {
            self.stale.push(queue);
        }
    }

    /// Passes the entitlement and rank of each job in queues that have changed to `report`.
    pub(super) fn share_out(&mut self, mut report: impl FnMut(JobSlot, Totals, u64)) {
        while let Some(queue) = self.stale.pop() {
            let queue = &mut self.queues[queue.0 as usize];
            queue.is_stale = false;
            self.order.clear();
            self.order.extend(queue.line.iter().map(|key| key.3));
            let (mut left, mut is_first) = (queue.due, true);
            for &slot in &self.order {
                let member = self.jobs[slot as usize].as_ref().expect("jobs in line have members");
                let due = member.part_of(&left, is_first);
                is_first &= member.wanted == Totals::ZERO;
                left = left.saturating_sub(&due);
                report(slot, due, member.rank());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(amount: u64) -> Totals {
        Totals(std::array::from_fn(|kind| if kind == 0 { amount } else { 0 }))
    }

    struct Line(Sojourn);

    impl Line {
        /// Adds a job with this entitlement.
        fn add(&mut self, job: JobSlot, priority: i32, work: u64, demand: u64, due: u64) {
            self.0.add(job, QueueId(0), JobId(u64::from(job)), priority);
            self.0.on_work(job, work, work);
            self.0.on_allowance_request(job, cpu(demand));
            self.0.on_due(job, cpu(due), &cpu(1));
        }

        fn dues(&mut self) -> Vec<(JobSlot, u64)> {
            let mut dues = Vec::new();
            self.0.note(QueueId(0));
            self.0.share_out(|job, due, _| dues.push((job, due.0[0])));
            dues
        }
    }

    #[test]
    fn the_job_done_first_gets_all_it_requests_and_the_last_the_rest() {
        let mut line = Line(Sojourn::new(1));
        line.add(0, 0, 900, 30, 10);
        line.add(1, 0, 100, 12, 10);
        line.add(2, 0, 400, 15, 10);
        assert_eq!(line.dues(), [(1, 12), (2, 15), (0, 3)], "30 in total");
        line.add(3, 1, 5_000, 20, 0);
        assert_eq!(line.dues(), [(3, 20), (1, 10), (2, 0), (0, 0)], "its priority is higher");
        line.0.remove(3);
        line.0.remove(1);
        assert_eq!(line.dues(), [(2, 15), (0, 5)]);
    }

    #[test]
    fn less_than_one_task_goes_to_the_next_job_except_for_the_first() {
        let mut line = Line(Sojourn::new(1));
        line.add(0, 0, 100, 80, 10);
        line.0.on_due(0, cpu(10), &cpu(20));
        line.add(1, 0, 50, 4, 0);
        assert_eq!(line.dues(), [(1, 4), (0, 0)]);
        line.0.on_allowance_request(1, Totals::ZERO);
        assert_eq!(line.dues(), [(1, 0), (0, 20)], "one task, however large, if no job before it has a demand");
    }

    #[test]
    fn a_long_job_is_overtaken_only_as_with_fair_shares() {
        let mut line = Line(Sojourn::new(1));
        line.add(0, 0, 1_000, 10, 10);
        // Jobs come one after the other; each is done at once and leaves. With fair shares each would take twice its
        // work, so half of the work done belongs to the long job.
        let mut before = 0;
        for job in 1..=100 {
            line.add(job, 0, 100, 10, 0);
            before += u32::from(line.dues()[0].0 == job);
            line.0.on_work(job, 100, 0);
            line.0.remove(job);
        }
        // The clock has advanced by 50 with each: after 18 jobs the next one would be done later.
        assert_eq!(before, 18);
    }
}
