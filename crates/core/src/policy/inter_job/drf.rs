//! Weighted dominant resource fairness over hierarchical queues (Ghodsi et al. 2011; the baseline of Carbyne 3.3).
//!
//! From the root down, the queue furthest below its guarantee goes first, then the one with the smallest dominant
//! share for its weight. Within a leaf the higher priority goes first, then the job with the smaller dominant share,
//! then the earlier one. Maximum shares and user limits hold at every start. Whoever does not fit is passed over.

use super::{Accounts, QueueTree};
use crate::policy::{AskSlot, Choice, DemandChange, InterJobPolicy, JobSlot, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, Totals};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Priority, dominant share in millionths, id.
type Key = (Reverse<i32>, u64, JobId, JobSlot);

pub struct Drf {
    accounts: Accounts,
    lines: Vec<Line>,
    /// The key under which a job stands in its line.
    keys: Vec<Option<Key>>,
    /// Children of the queues on the way down, sorted; kept to save allocations.
    order: Vec<(QueueKey, u32)>,
}

/// What waits in a queue: jobs in a leaf, counts above.
#[derive(Default)]
struct Line {
    waiting: BTreeSet<Key>,
    fresh: BTreeSet<Key>,
    waiting_below: u32,
    fresh_below: u32,
}

/// Below its guarantee or not, then how far, in millionths of the guarantee or of a share of weight 1.
type QueueKey = (bool, u64);

impl Drf {
    pub fn new(tree: QueueTree) -> Drf {
        let lines = (0..tree.len()).map(|_| Line::default()).collect();
        Drf { accounts: Accounts::new(tree), lines, keys: Vec::new(), order: Vec::new() }
    }

    fn put_in_place(&mut self, slot: JobSlot) {
        let job = self.accounts.job(slot);
        let key = (Reverse(job.priority), job.share, job.id, slot);
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

    fn has_candidates(&self, queue: u32, offer: &Offer<'_>) -> bool {
        let line = &self.lines[queue as usize];
        match offer {
            Offer::Cluster => line.fresh_below > 0,
            Offer::Node { .. } => line.waiting_below > 0,
        }
    }

    fn queue_key(&self, queue: u32) -> QueueKey {
        let spec = self.accounts.tree.spec(QueueId(queue));
        let share = self.accounts.queues[queue as usize].share;
        if share < u64::from(spec.guaranteed) {
            (false, share * 1_000_000 / u64::from(spec.guaranteed))
        } else {
            (true, share * 1_000 / u64::from(spec.weight))
        }
    }

    fn descend(&mut self, queue: u32, offer: &Offer<'_>, passed_over: &mut u32) -> Option<AskSlot> {
        if self.accounts.tree.children(QueueId(queue)).is_empty() {
            return self.first_in_line(queue, offer, passed_over);
        }
        let start = self.order.len();
        for at in 0..self.accounts.tree.children(QueueId(queue)).len() {
            let child = self.accounts.tree.children(QueueId(queue))[at];
            if self.has_candidates(child, offer) {
                self.order.push((self.queue_key(child), child));
            }
        }
        let end = self.order.len();
        self.order[start..end].sort_unstable();
        let found = (start..end).find_map(|at| {
            let (_, child) = self.order[at];
            self.descend(child, offer, passed_over)
        });
        self.order.truncate(start);
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

impl InterJobPolicy for Drf {
    fn on_change(&mut self, change: &DemandChange) {
        if let Some(job) = self.accounts.on_change(change) {
            self.put_in_place(job);
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

    /// The job's queue's part of the cluster by weight, among queues with jobs, divided by the jobs that wait there.
    fn share(&self, job: JobSlot) -> Totals {
        let queue = self.accounts.job(job).queue;
        let mut part = self.accounts.capacity;
        let mut next = queue;
        while let Some(parent) = self.accounts.tree.parent(next) {
            let siblings = self.accounts.tree.children(parent);
            let active = |queue: u32| {
                queue == next.0
                    || self.lines[queue as usize].waiting_below > 0
                    || self.accounts.queues[queue as usize].share > 0
            };
            let weight = |queue: u32| u128::from(self.accounts.tree.spec(QueueId(queue)).weight);
            let all: u128 = siblings.iter().filter(|&&queue| active(queue)).map(|&queue| weight(queue)).sum();
            for amount in &mut part.0 {
                *amount = (u128::from(*amount) * weight(next.0) / all) as u64;
            }
            next = parent;
        }
        let jobs = u64::from(self.lines[queue.0 as usize].waiting_below.max(1));
        for amount in &mut part.0 {
            *amount /= jobs;
        }
        part
    }

    fn next(&mut self, offer: &Offer<'_>) -> Option<Choice> {
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
        let parked = jobs.filter_map(|(queue, key)| {
            let asks = &self.accounts.job(key.3).asks;
            let is_blocked = |ask: &AskSlot| self.accounts.ask(*ask).parked && self.accounts.limit_on(*ask).is_none();
            Some((self.queue_key(queue), key, asks.iter().copied().find(is_blocked)?))
        });
        parked.min().map(|(_, _, ask)| ask)
    }

    fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        self.accounts.limit_on(ask)
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
        Rule::DominantShare
    }

    fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.accounts.queue_usage(queue)
    }
}
