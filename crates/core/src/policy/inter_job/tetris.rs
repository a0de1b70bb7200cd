//! Multi-resource packing (Grandl et al. 2014, Tetris; a baseline of Carbyne 5.1): among the tasks that fit on a node,
//! the one with the best score is first, where score = a - (ā / p̄) p, with a the task's [`Alignment`] with the node's
//! room, p its job's remaining work, and ā and p̄ their means over the tasks that are compared.
//!
//! The fairness knob f: only the ceil((1 - f) n) of the n waiting jobs that are furthest below their fair share, at
//! least one, are considered, so f near 1 is fair and f = 0 packs. Fair shares are equal, so these are the jobs with
//! the smallest dominant shares. If none of their tasks fits, the others are considered: no room stays idle.
//!
//! Higher priorities precede everything else, and queues matter through their limits only. Departs: a new ask is tried
//! on the whole cluster once, in the order of dominant shares; placement then chooses the node. Remaining work is that
//! of `srtf.rs`. Leaves out: the penalty for remote inputs.

use super::accounts::JobAccount;
use super::queue_tree::WHOLE;
use super::{Accounts, QueueTree};
use crate::policy::{Alignment, AskSlot, DemandChange, InterJobPolicy, JobSlot, NextAsk, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, Resources, Totals};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Priority, dominant share in millionths, id.
type Key = (Reverse<i32>, u64, JobId, JobSlot);

pub struct Tetris {
    accounts: Accounts,
    /// Jobs with open asks.
    waiting: Neediest,
    /// Waiting jobs with an ask that is not known to lack room.
    fresh: BTreeSet<Key>,
    /// The key under which a job waits.
    keys: Vec<Option<Key>>,
    /// Tasks that fit; kept to save allocations.
    candidates: Vec<Candidate>,
}

/// Keys, split into those that are considered and the rest.
struct Neediest {
    /// The fraction that is considered, in millionths.
    part: u32,
    considered: BTreeSet<Key>,
    rest: BTreeSet<Key>,
}

#[derive(Clone, Copy)]
struct Candidate {
    ask: AskSlot,
    job: JobId,
    /// Whether its job is considered, then its priority.
    group: (bool, i32),
    alignment: u64,
    /// The remaining work of its job, in nanoseconds of the whole cluster.
    remaining: u64,
}

impl Tetris {
    /// `fairness` is the knob f in millionths.
    ///
    /// # Panics
    /// If it is 1 or more: then no job would be considered.
    pub fn new(tree: QueueTree, fairness: u32) -> Tetris {
        let part = WHOLE.checked_sub(fairness).filter(|part| *part > 0).expect("the fairness knob is below 1");
        Tetris {
            accounts: Accounts::new(tree),
            waiting: Neediest { part, considered: BTreeSet::new(), rest: BTreeSet::new() },
            fresh: BTreeSet::new(),
            keys: Vec::new(),
            candidates: Vec::new(),
        }
    }

    fn put_in_place(&mut self, slot: JobSlot) {
        let job = self.accounts.job(slot);
        let key = key(job, slot);
        let (open, fresh) = (job.has_open(), job.has_fresh());
        if self.keys.len() <= slot as usize {
            self.keys.resize(slot as usize + 1, None);
        }
        let old = std::mem::replace(&mut self.keys[slot as usize], open.then_some(key));
        if let Some(old) = old {
            self.fresh.remove(&old);
        }
        if fresh {
            self.fresh.insert(key);
        }
        self.waiting.replace(old, open.then_some(key));
    }

    fn put_all_in_place(&mut self) {
        for slot in 0..self.accounts.jobs.len() {
            if self.accounts.jobs[slot].is_some() {
                self.put_in_place(slot as JobSlot);
            }
        }
    }

    /// The task with the best score for this room.
    fn best_on(&mut self, alignment: &Alignment) -> Option<AskSlot> {
        let last_considered = *self.waiting.considered.last()?;
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        self.accounts.each_found(|ask, account, job| {
            let is_considered = key(job, account.job) <= last_considered;
            candidates.push(Candidate {
                ask,
                job: job.id,
                group: (is_considered, account.priority),
                alignment: alignment.of(&account.shape),
                remaining: job.remaining_time,
            });
        });
        let best = best(&mut candidates);
        self.candidates = candidates;
        best
    }

    fn first_fresh(&mut self) -> Option<AskSlot> {
        let Tetris { accounts, fresh, .. } = self;
        fresh.iter().find_map(|&(_, _, _, job)| accounts.first_found(job))
    }
}

fn key(job: &JobAccount, slot: JobSlot) -> Key {
    (Reverse(job.priority()), job.share, job.id, slot)
}

/// The candidate with the best score in the first group; among equals, the one of the earlier job.
fn best(candidates: &mut Vec<Candidate>) -> Option<AskSlot> {
    let group = candidates.iter().map(|candidate| candidate.group).max()?;
    candidates.retain(|candidate| candidate.group == group);
    let alignments: i128 = candidates.iter().map(|candidate| i128::from(candidate.alignment)).sum();
    let remaining: i128 = candidates.iter().map(|candidate| i128::from(candidate.remaining)).sum();
    // The score times the sum of p, which avoids a division; if all p are 0, the alignment decides.
    let score = |candidate: &Candidate| {
        i128::from(candidate.alignment) * remaining.max(1) - alignments * i128::from(candidate.remaining)
    };
    let best = candidates.iter().min_by_key(|candidate| (Reverse(score(candidate)), candidate.job, candidate.ask));
    best.map(|candidate| candidate.ask)
}

impl Neediest {
    fn replace(&mut self, old: Option<Key>, new: Option<Key>) {
        if old == new {
            return;
        }
        if let Some(old) = old
            && !self.considered.remove(&old)
        {
            self.rest.remove(&old);
        }
        if let Some(new) = new {
            if self.considered.last().is_some_and(|last| new < *last) {
                self.considered.insert(new);
            } else {
                self.rest.insert(new);
            }
        }
        self.balance();
    }

    fn balance(&mut self) {
        let all = (self.considered.len() + self.rest.len()) as u64;
        let wanted = (all * u64::from(self.part)).div_ceil(u64::from(WHOLE)) as usize;
        while self.considered.len() > wanted {
            self.rest.extend(self.considered.pop_last());
        }
        while self.considered.len() < wanted {
            self.considered.extend(self.rest.pop_first());
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Key> {
        self.considered.iter().chain(&self.rest)
    }
}

impl InterJobPolicy for Tetris {
    fn on_change(&mut self, change: &DemandChange) {
        if let Some(job) = self.accounts.on_change(change) {
            self.put_in_place(job);
        }
        if matches!(change, DemandChange::Capacity(_) | DemandChange::RoomOpened | DemandChange::Queues(_)) {
            self.put_all_in_place();
        }
    }

    /// An equal part for every waiting job.
    fn share(&self, _: JobSlot) -> Totals {
        let jobs = self.waiting.iter().count().max(1) as u64;
        Totals(self.accounts.capacity.0.map(|amount| amount / jobs))
    }

    fn next(&mut self, offer: &Offer<'_>) -> Option<NextAsk> {
        if !self.accounts.find(offer) {
            return None;
        }
        let ask = match offer {
            Offer::Node { room, capacity, .. } => self.best_on(&Alignment::with(room, capacity)),
            Offer::Cluster { .. } => self.first_fresh(),
        };
        for job in self.accounts.unpark_limited() {
            self.put_in_place(job);
        }
        ask.map(|ask| NextAsk { ask, passed_over: 0, parked: self.accounts.ask(ask).parked })
    }

    fn outcome(&mut self, ask: AskSlot, outcome: Outcome) {
        if let Some(job) = self.accounts.on_outcome(ask, outcome) {
            self.put_in_place(job);
        }
    }

    fn blocked(&self, is_enough: &mut dyn FnMut(AskSlot) -> bool) {
        let of = |job| self.accounts.job(job).levels.iter().map(move |level| (job, level.priority));
        let places = self.waiting.iter().flat_map(|&(_, _, _, job)| of(job));
        let _ = places.flat_map(|(job, priority)| self.accounts.blocked(job, priority)).any(is_enough);
    }

    fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        self.accounts.limit_on(ask)
    }

    fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why> {
        self.accounts.limit_for(job, more)
    }

    /// Jobs that are further below their fair share. (The order among considered jobs depends on the node.)
    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)> {
        let key = (*self.keys.get(self.accounts.ask(ask).job as usize)?)?;
        let mut ahead = self.waiting.iter().take_while(|other| **other < key);
        let (_, _, first, _) = *ahead.next()?;
        Some((ahead.count() as u32 + 1, first))
    }

    fn rule(&self) -> Rule {
        Rule::Packing
    }

    fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.accounts.queue_usage(queue)
    }
}
