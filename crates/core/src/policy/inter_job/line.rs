//! All jobs of all queues in one order: by priority, then by a [`JobOrder`], then by submission. Jobs that do not fit
//! are skipped; queue and user limits apply.

use super::accounts::{JobAccount, Level};
use super::{Accounts, QueueTree};
use crate::policy::{AskSlot, DemandChange, InterJobPolicy, JobSlot, NextAsk, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, Resources, Totals};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::marker::PhantomData;

/// The order of jobs of equal priority.
pub trait JobOrder: Send {
    const RULE: Rule;
    /// The job with the smaller rank is scheduled first; among equals, the one that was submitted earlier.
    fn rank(job: &JobAccount) -> u64;
}

/// Priority, rank, id.
pub(super) type Key = (Reverse<i32>, u64, JobId, JobSlot);

pub struct Line<O> {
    accounts: Accounts,
    /// Jobs with open asks.
    waiting: BTreeSet<Key>,
    /// Waiting jobs with an ask that is not known to lack room.
    fresh: BTreeSet<Key>,
    /// The keys under which a job waits: one for each priority of its open asks.
    keys: Vec<Vec<Key>>,
    order: PhantomData<O>,
}

impl<O: JobOrder> Line<O> {
    pub fn new(tree: QueueTree) -> Line<O> {
        let accounts = Accounts::new(tree);
        Line { accounts, waiting: BTreeSet::new(), fresh: BTreeSet::new(), keys: Vec::new(), order: PhantomData }
    }

    fn put_in_place(&mut self, slot: JobSlot) {
        let Line { accounts, waiting, fresh, keys, .. } = self;
        let job = accounts.job(slot);
        let rank = O::rank(job);
        let key = |level: &Level| (Reverse(level.priority), rank, job.id, slot);
        if keys.len() <= slot as usize {
            keys.resize(slot as usize + 1, Vec::new());
        }
        let keys = &mut keys[slot as usize];
        for old in keys.drain(..).filter(|old| job.levels.iter().all(|level| key(level) != *old)) {
            waiting.remove(&old);
            fresh.remove(&old);
        }
        for level in &job.levels {
            let (is_open, is_fresh) = (level.open_asks > 0, level.fresh_asks > 0);
            place(waiting, key(level), is_open);
            place(fresh, key(level), is_fresh);
            keys.extend(is_open.then(|| key(level)));
        }
    }

    fn put_all_in_place(&mut self) {
        for slot in 0..self.accounts.jobs.len() {
            if self.accounts.jobs[slot].is_some() {
                self.put_in_place(slot as JobSlot);
            }
        }
    }
}

/// The number of other jobs at these places, and the first of them. Each job is counted at its highest priority only.
pub(super) fn ahead<'a>(
    accounts: &Accounts,
    of: JobSlot,
    places: impl Iterator<Item = &'a Key>,
) -> Option<(u32, JobId)> {
    let is_first = |&&(Reverse(priority), _, _, job): &&Key| job != of && accounts.job(job).priority() == priority;
    let mut ahead = places.filter(is_first);
    let (_, _, first, _) = *ahead.next()?;
    Some((ahead.count() as u32 + 1, first))
}

fn place(set: &mut BTreeSet<Key>, key: Key, belongs: bool) {
    if belongs {
        set.insert(key);
    } else {
        set.remove(&key);
    }
}

impl<O: JobOrder> InterJobPolicy for Line<O> {
    fn on_change(&mut self, change: &DemandChange) {
        if let Some(job) = self.accounts.on_change(change) {
            self.put_in_place(job);
        }
        match change {
            DemandChange::RoomOpened | DemandChange::Queues(_) => self.fresh = self.waiting.clone(),
            // Work is measured relative to it.
            DemandChange::Capacity(_) => self.put_all_in_place(),
            _ => {}
        }
    }

    fn share(&self, _: JobSlot) -> Totals {
        self.accounts.capacity
    }

    fn next(&mut self, offer: &Offer<'_>) -> Option<NextAsk> {
        if !self.accounts.find(offer) {
            return None;
        }
        let Line { accounts, waiting, fresh, .. } = self;
        let mut jobs = if matches!(offer, Offer::Cluster { .. }) { fresh.iter() } else { waiting.iter() }.enumerate();
        let first = jobs.find_map(|(before, &(Reverse(priority), _, _, job))| {
            Some((accounts.first_found_of(job, Some(priority))?, before as u32))
        });
        for job in self.accounts.unpark_limited() {
            self.put_in_place(job);
        }
        let (ask, passed_over) = first?;
        Some(NextAsk { ask, passed_over, parked: self.accounts.ask(ask).parked })
    }

    fn outcome(&mut self, ask: AskSlot, outcome: Outcome) {
        if let Some(job) = self.accounts.on_outcome(ask, outcome) {
            self.put_in_place(job);
        }
    }

    fn blocked(&self, is_enough: &mut dyn FnMut(AskSlot) -> bool) {
        let places = self.waiting.iter();
        let mut asks = places.flat_map(|&(Reverse(priority), _, _, job)| self.accounts.blocked(job, priority));
        let _ = asks.any(is_enough);
    }

    fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        self.accounts.limit_on(ask)
    }

    fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why> {
        self.accounts.limit_for(job, more)
    }

    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)> {
        let (job, priority) = (self.accounts.ask(ask).job, self.accounts.ask(ask).priority);
        let key = *self.keys.get(job as usize)?.iter().find(|key| key.0.0 == priority)?;
        ahead(&self.accounts, job, self.waiting.range(..key))
    }

    fn rule(&self) -> Rule {
        O::RULE
    }

    fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.accounts.queue_usage(queue)
    }
}
