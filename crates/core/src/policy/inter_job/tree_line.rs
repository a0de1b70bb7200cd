//! Jobs in the leaves of a tree of queues. What siblings, and the jobs of a leaf, go by is a [`QueueOrder`]. Maximum
//! shares and user limits hold at every start. Whoever does not fit is passed over.

use super::accounts::{JobAccount, QueueAccount};
use super::{Accounts, QueueTree};
use crate::policy::{AskSlot, Choice, DemandChange, InterJobPolicy, JobSlot, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, QueueSpec, Resources, Totals};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::marker::PhantomData;

/// By what sibling queues are ordered, and by what the jobs of equal priority in a leaf.
pub trait QueueOrder: Send {
    const RULE: Rule;
    /// The smaller goes first; where it is equal, the queue whose name comes first.
    fn queue_key(spec: &QueueSpec, account: &QueueAccount) -> QueueKey;
    /// The smaller goes first; where it is equal, the job that was submitted earlier.
    fn job_rank(job: &JobAccount) -> u64;
}

/// Whether jobs are held to their fair shares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limits {
    None,
    FairShares {
        /// Some demand has changed since they were found.
        stale: bool,
    },
}

/// All of the cluster, where weights are parts of it.
const WHOLE_PART: u64 = 1_000_000_000;

/// Whether it comes in the second group, then its place there.
pub type QueueKey = (bool, u64);

/// Priority, rank, id.
type Key = (Reverse<i32>, u64, JobId, JobSlot);

pub struct TreeLine<O> {
    accounts: Accounts,
    lines: Vec<Line>,
    /// The key under which a job stands in its line.
    keys: Vec<Option<Key>>,
    /// Children of the queues on the way down, sorted; kept to save allocations.
    siblings: Vec<(QueueKey, u32)>,
    limits: Limits,
    order: PhantomData<O>,
}

/// What waits in a queue: jobs in a leaf, counts above.
#[derive(Default)]
struct Line {
    waiting: BTreeSet<Key>,
    fresh: BTreeSet<Key>,
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

    /// Nobody gets more than its fair share.
    pub fn strict(tree: QueueTree) -> TreeLine<O> {
        TreeLine { limits: Limits::FairShares { stale: true }, ..TreeLine::new(tree) }
    }

    fn put_in_place(&mut self, slot: JobSlot) {
        let job = self.accounts.job(slot);
        let key = (Reverse(job.priority), O::job_rank(job), job.id, slot);
        let (open, fresh, queue) = (job.open_asks > 0, job.fresh_asks > 0, job.queue);
        if self.keys.len() <= slot as usize {
            self.keys.resize(slot as usize + 1, None);
        }
        let old = self.keys[slot as usize];
        if old == Some(key) && open && fresh == self.lines[queue.0 as usize].fresh.contains(&key) {
            return;
        }
        let line = &mut self.lines[queue.0 as usize];
        let (mut waiting, mut was_fresh) = (0, 0);
        if let Some(old) = old {
            waiting -= i32::from(line.waiting.remove(&old));
            was_fresh -= i32::from(line.fresh.remove(&old));
        }
        if open {
            waiting += i32::from(line.waiting.insert(key));
        }
        if fresh {
            was_fresh += i32::from(line.fresh.insert(key));
        }
        self.keys[slot as usize] = open.then_some(key);
        if (waiting, was_fresh) != (0, 0) {
            self.count_below(queue, waiting, was_fresh);
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

    /// The job's queue's part of an amount by weight, among queues with jobs, divided by the jobs that wait there.
    fn part_of(&self, job: JobSlot, amount: u64) -> u64 {
        let queue = self.accounts.job(job).queue;
        let is_active = |queue: QueueId| {
            self.lines[queue.0 as usize].waiting_below > 0 || self.accounts.queues[queue.0 as usize].share > 0
        };
        let jobs = self.lines[queue.0 as usize].waiting_below.max(1);
        self.accounts.tree.part_by_weight(queue, amount, is_active) / u64::from(jobs)
    }

    fn has_candidates(&self, queue: u32, offer: &Offer<'_>) -> bool {
        let line = &self.lines[queue as usize];
        match offer {
            Offer::Cluster => line.fresh_below > 0,
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
        let jobs = if matches!(offer, Offer::Cluster) { &line.fresh } else { &line.waiting };
        if !self.accounts.find_within(QueueId(leaf), offer) {
            *passed_over += jobs.len() as u32;
            return None;
        }
        for &(_, _, _, job) in jobs {
            if let Some(ask) = self.accounts.first_found(job) {
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
        if let Limits::FairShares { stale } = &mut self.limits {
            *stale = true;
        }
        match change {
            // Every share and every key may have changed.
            DemandChange::Capacity(_) | DemandChange::RoomOpened => {
                for slot in 0..self.accounts.jobs.len() {
                    if self.accounts.jobs[slot].is_some() {
                        self.put_in_place(slot as JobSlot);
                    }
                }
            }
            DemandChange::JobRemoved { job } => {
                assert!(self.keys.get(*job as usize).is_none_or(Option::is_none), "a removed job stands in line");
            }
            _ => {}
        }
    }

    fn share(&self, job: JobSlot) -> Totals {
        Totals(self.accounts.capacity.0.map(|amount| self.part_of(job, amount)))
    }

    fn next(&mut self, offer: &Offer<'_>) -> Option<Choice> {
        self.find_fair_shares();
        if !self.has_candidates(0, offer) || !self.accounts.find(offer) {
            return None;
        }
        let mut passed_over = 0;
        let first = self.descend(0, offer, &mut passed_over);
        for job in self.accounts.unpark_limited() {
            self.put_in_place(job);
        }
        first.map(|ask| Choice { ask, passed_over, parked: self.accounts.ask(ask).parked })
    }

    fn outcome(&mut self, ask: AskSlot, outcome: Outcome) {
        if let Some(job) = self.accounts.on_outcome(ask, outcome) {
            self.put_in_place(job);
        }
    }

    fn first_blocked(&self) -> Option<AskSlot> {
        let lines = self.lines.iter().enumerate();
        let jobs = lines.flat_map(|(queue, line)| line.waiting.iter().map(move |key| (queue as u32, *key)));
        let parked =
            jobs.filter_map(|(queue, key)| Some((self.queue_key(queue), key, self.accounts.first_blocked(key.3)?)));
        parked.min().map(|(_, _, ask)| ask)
    }

    fn blocked_in(&self, queue: QueueId, is_enough: &mut dyn FnMut(AskSlot) -> bool) {
        let jobs = self.lines[queue.0 as usize].waiting.iter();
        let mut asks = jobs.flat_map(|&(_, _, _, job)| self.accounts.blocked(job));
        let _ = asks.any(is_enough);
    }

    fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        self.accounts.limit_on(ask)
    }

    fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why> {
        self.accounts.limit_for(job, more)
    }

    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)> {
        let slot = self.accounts.ask(ask).job;
        let key = (*self.keys.get(slot as usize)?)?;
        let line = &self.lines[self.accounts.job(slot).queue.0 as usize];
        let mut ahead = line.waiting.range(..key);
        let (_, _, first, _) = *ahead.next()?;
        Some((ahead.count() as u32 + 1, first))
    }

    fn rule(&self) -> Rule {
        O::RULE
    }

    fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.accounts.queue_usage(queue)
    }
}
