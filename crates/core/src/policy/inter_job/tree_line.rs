//! Jobs in the leaves of a tree of queues. A [`QueueOrder`] orders siblings, and the jobs of a leaf. Maximum shares and
//! user limits apply to every start. Jobs that do not fit are skipped.

use super::accounts::{Level, QueueAccount};
use super::line::{Key, ahead};
use super::standings::{standing_if_all_have_work, standings};
use super::{Accounts, QueueTree};
use crate::policy::{AskSlot, DemandChange, InterJobPolicy, JobSlot, NextAsk, Offer, Outcome, QueueUsage, Standing};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, QueueSpec, Resources, Totals};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::marker::PhantomData;

/// The order of sibling queues, and of jobs of equal priority in a leaf.
pub trait QueueOrder: Send {
    const RULE: Rule;
    /// Whether work of jobs beyond what they are entitled to may be preempted.
    const ENTITLES: bool = false;
    /// The queue with the smaller key is first; among equals, the one whose name comes first.
    fn queue_key(spec: &QueueSpec, account: &QueueAccount) -> QueueKey;
    /// The job with the smaller rank is first; among equals, the one that was submitted earlier.
    fn job_rank(accounts: &Accounts, job: JobSlot) -> u64;
}

/// Whether jobs are limited to their fair shares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limits {
    None,
    FairShares {
        /// Some demand has changed since they were computed.
        stale: bool,
    },
}

/// The whole cluster, in the unit of parts by weight.
const WHOLE_PART: u64 = 1_000_000_000;

/// Whether the queue is in the second group, then its position there.
pub type QueueKey = (bool, u64);

pub struct TreeLine<O> {
    accounts: Accounts,
    lines: Vec<Line>,
    /// The keys of a job in its line: one for each priority of its open asks.
    keys: Vec<Vec<Key>>,
    /// Children of the queues on the way down, sorted; kept to save allocations.
    siblings: Vec<(QueueKey, u32)>,
    limits: Limits,
    order: PhantomData<O>,
}

/// What waits in a queue: jobs in a leaf, counts above. A job with open asks of several priorities is listed once for
/// each.
#[derive(Default)]
struct Line {
    waiting: BTreeSet<Key>,
    fresh: BTreeSet<Key>,
    /// Number of jobs in this line, each counted once.
    jobs: u32,
    waiting_below: u32,
    fresh_below: u32,
}

impl<O: QueueOrder> TreeLine<O> {
    pub fn new(tree: QueueTree) -> TreeLine<O> {
        let lines = (0..tree.len()).map(|_| Line::default()).collect();
        TreeLine {
            accounts: Accounts::new(tree),
            lines,
            keys: Vec::new(),
            siblings: Vec::new(),
            limits: Limits::None,
            order: PhantomData,
        }
    }

    /// Limits every job to its fair share.
    pub fn strict(tree: QueueTree) -> TreeLine<O> {
        TreeLine { limits: Limits::FairShares { stale: true }, ..TreeLine::new(tree) }
    }

    fn put_in_place(&mut self, slot: JobSlot) {
        let TreeLine { accounts, lines, keys, .. } = self;
        let job = accounts.job(slot);
        let (rank, queue) = (O::job_rank(accounts, slot), job.queue);
        let key = |level: &Level| (Reverse(level.priority), rank, job.id, slot);
        if keys.len() <= slot as usize {
            keys.resize(slot as usize + 1, Vec::new());
        }
        let (line, keys) = (&mut lines[queue.0 as usize], &mut keys[slot as usize]);
        if let ([level], [old]) = (&job.levels[..], &keys[..])
            && *old == key(level)
            && level.open_asks > 0
            && (level.fresh_asks > 0) == line.fresh.contains(old)
        {
            return;
        }
        let (mut waiting, mut fresh) = (0, 0);
        line.jobs -= u32::from(!keys.is_empty());
        for old in keys.drain(..) {
            waiting -= i32::from(line.waiting.remove(&old));
            fresh -= i32::from(line.fresh.remove(&old));
        }
        for level in job.levels.iter().filter(|level| level.open_asks > 0) {
            waiting += i32::from(line.waiting.insert(key(level)));
            if level.fresh_asks > 0 {
                fresh += i32::from(line.fresh.insert(key(level)));
            }
            keys.push(key(level));
        }
        line.jobs += u32::from(!keys.is_empty());
        if (waiting, fresh) != (0, 0) {
            self.count_below(queue, waiting, fresh);
        }
    }

    fn count_below(&mut self, leaf: QueueId, waiting: i32, fresh: i32) {
        let mut next = Some(leaf);
        while let Some(queue) = next {
            let line = &mut self.lines[queue.0 as usize];
            line.waiting_below = line.waiting_below.strict_add_signed(waiting);
            line.fresh_below = line.fresh_below.strict_add_signed(fresh);
            next = self.accounts.tree.parent(queue);
        }
    }

    fn find_fair_shares(&mut self) {
        if self.limits != (Limits::FairShares { stale: true }) {
            return;
        }
        self.limits = Limits::FairShares { stale: false };
        let active = self.accounts.active_jobs();
        let weights: Vec<(JobSlot, u64)> = active.map(|job| (job, self.part_of(job, WHOLE_PART))).collect();
        self.accounts.limit_to_fair_shares(&weights);
    }

    /// The part of an amount for the job's queue by weight, among queues with jobs, divided by the number of jobs that
    /// wait there.
    fn part_of(&self, job: JobSlot, amount: u64) -> u64 {
        let queue = self.accounts.job(job).queue;
        let is_active = |queue: QueueId| {
            self.lines[queue.0 as usize].waiting_below > 0 || self.accounts.queues[queue.0 as usize].share > 0
        };
        let jobs = self.lines[queue.0 as usize].jobs.max(1);
        self.accounts.tree.part_by_weight(queue, amount, is_active) / u64::from(jobs)
    }

    fn has_candidates(&self, queue: u32, offer: &Offer<'_>) -> bool {
        let line = &self.lines[queue as usize];
        match offer {
            Offer::Cluster { .. } => line.fresh_below > 0,
            Offer::Node { .. } => line.waiting_below > 0,
        }
    }

    fn queue_key(&self, queue: u32) -> QueueKey {
        O::queue_key(self.accounts.tree.spec(QueueId(queue)), &self.accounts.queues[queue as usize])
    }

    fn descend(&mut self, queue: u32, offer: &Offer<'_>, passed_over: &mut u32) -> Option<AskSlot> {
        if self.accounts.tree.children(QueueId(queue)).is_empty() {
            return self.first_in_line(queue, offer, passed_over);
        }
        let start = self.siblings.len();
        for at in 0..self.accounts.tree.children(QueueId(queue)).len() {
            let child = self.accounts.tree.children(QueueId(queue))[at];
            if self.has_candidates(child, offer) {
                self.siblings.push((self.queue_key(child), child));
            }
        }
        let end = self.siblings.len();
        self.siblings[start..end].sort_unstable();
        let found = (start..end).find_map(|at| {
            let (_, child) = self.siblings[at];
            self.descend(child, offer, passed_over)
        });
        self.siblings.truncate(start);
        found
    }

    fn first_in_line(&mut self, leaf: u32, offer: &Offer<'_>, passed_over: &mut u32) -> Option<AskSlot> {
        let line = &self.lines[leaf as usize];
        let jobs = if matches!(offer, Offer::Cluster { .. }) { &line.fresh } else { &line.waiting };
        if !self.accounts.find_within(QueueId(leaf), offer) {
            *passed_over += jobs.len() as u32;
            return None;
        }
        for &(Reverse(priority), _, _, job) in jobs {
            if let Some(ask) = self.accounts.first_found_of(job, Some(priority)) {
                return Some(ask);
            }
            *passed_over += 1;
        }
        None
    }
}

impl<O: QueueOrder> InterJobPolicy for TreeLine<O> {
    fn on_change(&mut self, change: &DemandChange) {
        if let Some(job) = self.accounts.on_change(change) {
            self.put_in_place(job);
        }
        self.lines.resize_with(self.accounts.tree.len(), Line::default);
        if let Limits::FairShares { stale } = &mut self.limits {
            *stale = true;
        }
        match change {
            // Every share and every key may have changed.
            DemandChange::Capacity(_) | DemandChange::RoomOpened | DemandChange::Queues(_) => {
                for slot in 0..self.accounts.jobs.len() {
                    if self.accounts.jobs[slot].is_some() {
                        self.put_in_place(slot as JobSlot);
                    }
                }
            }
            DemandChange::JobRemoved { job } => {
                assert!(self.keys.get(*job as usize).is_none_or(Vec::is_empty), "a removed job is still in line");
            }
            _ => {}
        }
    }

    fn share(&self, job: JobSlot) -> Totals {
        Totals(self.accounts.capacity.0.map(|amount| self.part_of(job, amount)))
    }

    fn is_guaranteed(&self, job: JobSlot, more: &Resources, other: Option<JobSlot>) -> bool {
        self.accounts.is_guaranteed(job, more, other)
    }

    fn has_new_jobs(&self) -> bool {
        O::ENTITLES && self.accounts.has_new
    }

    fn standings(&mut self) -> Vec<Standing> {
        if !O::ENTITLES {
            return Vec::new();
        }
        self.accounts.has_new = false;
        let standings = standings(&mut self.accounts, O::job_rank);
        for slot in 0..self.accounts.jobs.len() {
            if self.accounts.jobs[slot].is_some() {
                self.put_in_place(slot as JobSlot);
            }
        }
        standings
    }

    fn standing_if_all_have_work(&self, job: JobSlot) -> Option<Standing> {
        if !O::ENTITLES || self.accounts.active_jobs().nth(Standing::MOST_JOBS).is_some() {
            return None;
        }
        // The order of the jobs stays as it is.
        let queue = self.accounts.job(job).queue;
        standing_if_all_have_work(&mut self.accounts.without_asks(queue), job, O::job_rank)
    }

    fn next(&mut self, offer: &Offer<'_>) -> Option<NextAsk> {
        self.find_fair_shares();
        if !self.has_candidates(0, offer) || !self.accounts.find(offer) {
            return None;
        }
        let mut passed_over = 0;
        let first = self.descend(0, offer, &mut passed_over);
        for job in self.accounts.unpark_limited() {
            self.put_in_place(job);
        }
        first.map(|ask| NextAsk { ask, passed_over, parked: self.accounts.ask(ask).parked })
    }

    fn outcome(&mut self, ask: AskSlot, outcome: Outcome) {
        if let Some(job) = self.accounts.on_outcome(ask, outcome) {
            self.put_in_place(job);
        }
    }

    fn blocked(&self, is_enough: &mut dyn FnMut(AskSlot) -> bool) {
        let asks = |key: &Key| self.accounts.blocked(key.3, key.0.0);
        // Queues in the order in which the first job of each would be served.
        let first = |(queue, line): (usize, &Line)| {
            let key = line.waiting.iter().find(|key| asks(key).next().is_some())?;
            Some((self.queue_key(queue as u32), *key, queue))
        };
        let mut queues: Vec<_> = self.lines.iter().enumerate().filter_map(first).collect();
        queues.sort_unstable();
        let lines = queues.iter().map(|(_, first, queue)| self.lines[*queue].waiting.range(first..));
        let _ = lines.flatten().flat_map(asks).any(is_enough);
    }

    fn blocked_in(&self, queue: QueueId, is_enough: &mut dyn FnMut(AskSlot) -> bool) {
        let jobs = self.lines[queue.0 as usize].waiting.iter();
        let mut asks = jobs.flat_map(|&(Reverse(priority), _, _, job)| self.accounts.blocked(job, priority));
        let _ = asks.any(is_enough);
    }

    fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        self.accounts.limit_on(ask)
    }

    fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why> {
        self.accounts.limit_for(job, more)
    }

    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)> {
        let (slot, priority) = (self.accounts.ask(ask).job, self.accounts.ask(ask).priority);
        let key = *self.keys.get(slot as usize)?.iter().find(|key| key.0.0 == priority)?;
        let line = &self.lines[self.accounts.job(slot).queue.0 as usize];
        ahead(&self.accounts, slot, line.waiting.range(..key))
    }

    fn rule(&self) -> Rule {
        O::RULE
    }

    fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.accounts.queue_usage(queue)
    }
}
