//! First come, first served: the higher priority, then the earlier submission, over all queues. Whoever does not fit
//! is passed over; queue and user limits hold.

use super::{Accounts, QueueTree};
use crate::policy::{AskSlot, Choice, DemandChange, InterJobPolicy, JobSlot, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, Totals};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::BTreeSet;

type Key = (Reverse<i32>, JobId, JobSlot);

pub struct Fifo {
    accounts: Accounts,
    /// Jobs with open asks.
    waiting: BTreeSet<Key>,
    /// Those of them with an ask that was not yet found without room.
    fresh: BTreeSet<Key>,
}

impl Fifo {
    pub fn new(tree: QueueTree) -> Fifo {
        Fifo { accounts: Accounts::new(tree), waiting: BTreeSet::new(), fresh: BTreeSet::new() }
    }

    fn key(&self, slot: JobSlot) -> Key {
        let job = self.accounts.job(slot);
        (Reverse(job.priority), job.id, slot)
    }

    fn put_in_place(&mut self, slot: JobSlot) {
        let key = self.key(slot);
        let job = self.accounts.job(slot);
        let (open, fresh) = (job.open_asks > 0, job.fresh_asks > 0);
        place(&mut self.waiting, key, open);
        place(&mut self.fresh, key, fresh);
    }
}

fn place(set: &mut BTreeSet<Key>, key: Key, belongs: bool) {
    if belongs {
        set.insert(key);
    } else {
        set.remove(&key);
    }
}

impl InterJobPolicy for Fifo {
    fn on_change(&mut self, change: &DemandChange) {
        if let Some(job) = self.accounts.on_change(change) {
            self.put_in_place(job);
        }
        if *change == DemandChange::RoomOpened {
            self.fresh = self.waiting.clone();
        }
    }

    fn share(&self, _: JobSlot) -> Totals {
        self.accounts.capacity
    }

    fn next(&mut self, offer: &Offer<'_>) -> Option<Choice> {
        if !self.accounts.find(offer) {
            return None;
        }
        let Fifo { accounts, waiting, fresh } = self;
        let mut jobs = if matches!(offer, Offer::Cluster) { fresh.iter() } else { waiting.iter() }.enumerate();
        let first = jobs.find_map(|(before, &(_, _, job))| Some((accounts.first_found(job)?, before as u32)));
        for job in self.accounts.unpark_limited() {
            self.put_in_place(job);
        }
        let (ask, passed_over) = first?;
        Some(Choice { ask, passed_over, parked: self.accounts.ask(ask).parked })
    }

    fn outcome(&mut self, ask: AskSlot, outcome: Outcome) {
        if let Some(job) = self.accounts.on_outcome(ask, outcome) {
            self.put_in_place(job);
        }
    }

    fn first_blocked(&self) -> Option<AskSlot> {
        let blocked = |&(_, _, job): &Key| {
            let asks = &self.accounts.job(job).asks;
            asks.iter().copied().find(|&ask| self.accounts.ask(ask).parked && self.accounts.limit_on(ask).is_none())
        };
        self.waiting.iter().find_map(blocked)
    }

    fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        self.accounts.limit_on(ask)
    }

    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)> {
        let key = self.key(self.accounts.ask(ask).job);
        let mut ahead = self.waiting.range(..key);
        let (_, first, _) = *ahead.next()?;
        Some((ahead.count() as u32 + 1, first))
    }

    fn rule(&self) -> Rule {
        Rule::Submission
    }

    fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.accounts.queue_usage(queue)
    }
}
