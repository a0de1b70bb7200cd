//! No order of jobs: job managers place all tasks themselves. The master sends them what their jobs are entitled to,
//! and how much of that they may hold now.
//!
//! The latter corresponds to the tokens of Boutin et al. 2014 (Apollo, section 2.1), each the right to run some
//! guaranteed work, counted in resources: a job's **allowance**. The allowances of all jobs together do not exceed the
//! resources to share. When a job's entitlement shrinks, its allowance shrinks at once, and what its tasks hold beyond
//! that becomes free for others when they end; so a job entitled to more gets it when it is free, the job with the
//! smallest part of its entitlement first.
//!
//! The total entitlement of a queue's jobs is divided among them by fair shares, or given to the job that would be done
//! first by fair shares ([`Within`], `sojourn.rs`).
//!
//! Departs: a job's entitlement is its present fair share, as far as it has use for it, and not a number that it states
//! at submission and keeps. A job without an allowance has its manager already, and may send opportunistic tasks.

use super::QueueTree;
use super::shares::{Shares, put};
use super::sojourn::Sojourn;
use crate::policy::{
    AskSlot, DemandChange, InterJobPolicy, JobSlot, NewAllowance, NextAsk, Offer, Outcome, QueueUsage,
};
use crate::protocol::Rule;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{AllowanceRequest, JobId, QueueId, Resources, Totals};
use crate::why::Why;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Bound;

/// An allowance is sent to its job if it has changed by one part in this many.
const REPORTED_WITHIN: u64 = 16;

/// All of an entitlement.
const ALL: u64 = 1_000_000;

/// How the total entitlement of a queue's jobs is divided among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Within {
    /// Each job gets its fair share.
    FairShares,
    /// The job that would be done first by fair shares gets all that it has use for; then the next one.
    FairSojourn,
}

pub struct Entitlement {
    shares: Shares,
    /// Set unless jobs simply get their fair shares.
    sojourn: Option<Sojourn>,
    /// Percentage of the cluster that is shared: the rest compensates for gaps that tasks leave on nodes.
    guaranteed: u32,
    shared: Totals,
    jobs: Vec<Option<Account>>,
    /// What all jobs in total may hold.
    may_hold: Totals,
    /// Jobs that are entitled to more than they are allowed, in the order in which they get it.
    waiting: BTreeSet<WaitKey>,
    /// By kind: how many of them lack some of it.
    lacking: [usize; WIDTH],
    /// Jobs to which an allowance has to be sent.
    news: BTreeSet<JobSlot>,
    /// Something has changed since the last call of `give`, so there may be something to give.
    may_give: bool,
}

/// Higher priority first; then the smaller part of the entitlement, or the earlier end by fair shares; then the smaller
/// id.
type WaitKey = (Reverse<i32>, u64, JobId, JobSlot);

#[derive(Clone, Copy)]
struct Account {
    id: JobId,
    priority: i32,
    /// The resources of one of its smallest tasks.
    one: Totals,
    due: Totals,
    /// `None` if the order depends on parts of entitlements.
    rank: Option<u64>,
    allowed: Totals,
    /// The number of the message with its allowance: the last one sent, or the next one.
    number: u32,
    /// The number of its last message.
    last_request: u32,
    /// The most that its guaranteed tasks can hold, whichever allowances it has received: more than it is allowed if
    /// its allowance shrank.
    may_hold: Totals,
}

impl Account {
    /// The allowed part of its entitlement, in the kind in which it is smallest.
    fn part(&self) -> u64 {
        let kinds = self.due.0.iter().zip(&self.allowed.0).filter(|(due, _)| **due > 0);
        let part = |(&due, &allowed): (&u64, &u64)| u128::from(allowed.min(due)) * u128::from(ALL) / u128::from(due);
        kinds.map(part).min().map_or(ALL, |part| part as u64)
    }

    fn lacks(&self) -> impl Iterator<Item = bool> {
        self.due.0.iter().zip(&self.allowed.0).map(|(due, allowed)| due > allowed)
    }

    /// `None` if it has (about) what it is entitled to.
    fn key(&self, slot: JobSlot) -> Option<WaitKey> {
        let has_none = !self.one.fits_in(&self.allowed) && self.due != Totals::ZERO;
        let rank = || self.rank.unwrap_or_else(|| self.part());
        (has_none || is_more(&self.allowed, &self.due)).then(|| (Reverse(self.priority), rank(), self.id, slot))
    }
}

impl Entitlement {
    pub fn new(tree: QueueTree, guaranteed: u32, within: Within) -> Entitlement {
        let sojourn = (within == Within::FairSojourn).then(|| Sojourn::new(tree.len()));
        Entitlement {
            shares: Shares::new(tree),
            sojourn,
            guaranteed,
            shared: Totals::ZERO,
            jobs: Vec::new(),
            may_hold: Totals::ZERO,
            waiting: BTreeSet::new(),
            lacking: [0; WIDTH],
            news: BTreeSet::new(),
            may_give: false,
        }
    }

    /// Changes a job's account and its place among those that wait. `change` returns whether the allowance has to be
    /// sent.
    fn change(&mut self, slot: JobSlot, change: impl FnOnce(&mut Account) -> bool) {
        let account = self.jobs[slot as usize].as_mut().expect("a job slot in use");
        let before = *account;
        let is_reported = change(account);
        let after = *account;
        if is_reported {
            account.number += 1;
            self.news.insert(slot);
        }
        if before.may_hold != after.may_hold {
            self.may_hold = self.may_hold.saturating_sub(&before.may_hold).zip(&after.may_hold, u64::saturating_add);
            self.may_give = true;
        }
        self.queue(slot, &before, Some(&after));
    }

    /// Updates its place among those that wait.
    fn queue(&mut self, slot: JobSlot, before: &Account, after: Option<&Account>) {
        let keys = (before.key(slot), after.and_then(|after| after.key(slot)));
        if let Some(key) = &keys.0 {
            self.waiting.remove(key);
            before.lacks().enumerate().for_each(|(kind, lacks)| self.lacking[kind] -= usize::from(lacks));
        }
        if let (Some(key), Some(after)) = (keys.1, after) {
            self.waiting.insert(key);
            after.lacks().enumerate().for_each(|(kind, lacks)| self.lacking[kind] += usize::from(lacks));
        }
        self.may_give |= keys.0 != keys.1;
    }

    fn on_allowance_request(&mut self, slot: JobSlot, request: &AllowanceRequest) {
        self.change(slot, |account| {
            // This includes allowances of another master, which `review` considers.
            let may_hold = request.may_hold();
            // Until it has received the last allowance, it may act on any earlier one.
            let has_received = request.number == account.number;
            account.may_hold = if has_received { may_hold } else { account.may_hold.larger_of(&may_hold) };
            account.one = Totals::ZERO;
            account.one.add(&request.one);
            account.last_request = request.report;
            false
        });
        // The job waits for an answer, even without a change.
        self.news.insert(slot);
    }

    /// Updates what the job is entitled to.
    fn review(&mut self, slot: JobSlot) {
        let one = self.jobs[slot as usize].as_ref().expect("a job slot in use").one;
        match &mut self.sojourn {
            Some(sojourn) => sojourn.on_due(slot, self.shares.due(slot, &Totals::ZERO), &one),
            // It has no use for less than one of its tasks.
            None => self.set_due(slot, self.shares.due(slot, &one).larger_of(&one), None),
        }
    }

    /// Divides the total entitlement of a queue's jobs again if that, or their order, has changed.
    fn share_out(&mut self) {
        let Some(mut sojourn) = self.sojourn.take() else { return };
        sojourn.share_out(|slot, due, rank| self.set_due(slot, due, Some(rank)));
        self.sojourn = Some(sojourn);
    }

    /// The allowance shrinks with the entitlement at once, and grows up to what the job may still hold.
    fn set_due(&mut self, slot: JobSlot, due: Totals, rank: Option<u64>) {
        let account = self.jobs[slot as usize].as_ref().expect("a job slot in use");
        let has_all = due.smaller_of(&account.may_hold).fits_in(&account.allowed);
        if (account.due, account.rank) == (due, rank) && has_all {
            return;
        }
        self.change(slot, |account| {
            (account.due, account.rank) = (due, rank);
            let allowed = account.allowed.smaller_of(&account.due);
            let allowed = allowed.larger_of(&account.due.smaller_of(&account.may_hold));
            // Too little for any of its tasks would only be kept from others.
            let allowed = if account.one.fits_in(&allowed) { allowed } else { Totals::ZERO };
            let is_news = is_more(&allowed, &account.allowed) || is_more(&account.allowed, &allowed);
            if is_news {
                account.allowed = allowed;
            }
            is_news
        });
    }

    /// Gives free resources to jobs that wait. What is too little for the first is not given to those after it.
    fn give(&mut self) {
        if !std::mem::take(&mut self.may_give) {
            return;
        }
        let mut free = self.shared.saturating_sub(&self.may_hold);
        let mut next = self.waiting.first().copied();
        while let Some(key) = next.filter(|_| !self.is_exhausted(&free)) {
            let slot = key.3;
            let account = *self.jobs[slot as usize].as_ref().expect("waiting jobs have accounts");
            let others = self.may_hold.saturating_sub(&account.may_hold);
            let mut allowed = part_within(&account, &free);
            if !account.one.fits_in(&allowed) && none_holds(&others, &account.one) {
                // Its task is larger than the guaranteed part of the cluster.
                allowed = allowed.larger_of(&account.one);
            }
            if account.one.fits_in(&allowed) && is_more(&account.allowed, &allowed) {
                let may_hold = account.may_hold.larger_of(&allowed);
                free = free.saturating_sub(&may_hold.saturating_sub(&account.may_hold));
                self.change(slot, |account| {
                    (account.allowed, account.may_hold) = (allowed, may_hold);
                    true
                });
            } else {
                free = free.saturating_sub(&account.due.saturating_sub(&account.may_hold));
            }
            next = self.waiting.range((Bound::Excluded(key), Bound::Unbounded)).next().copied();
        }
        self.may_give = false;
    }

    /// All jobs that wait lack a kind that is used up.
    fn is_exhausted(&self, free: &Totals) -> bool {
        free.0.iter().zip(&self.lacking).any(|(&free, &lacking)| free == 0 && lacking == self.waiting.len())
    }
}

/// What the job could be allowed: all that it is entitled to, or the same part of what it lacks in every kind, as far
/// as it is free.
fn part_within(account: &Account, free: &Totals) -> Totals {
    let Account { due, allowed, may_hold, .. } = account;
    let room = may_hold.zip(free, u64::saturating_add);
    let lacks = due.saturating_sub(allowed);
    // The smallest of these fractions, not rounded: a rounded one would be too small for whole tasks.
    let mut part = (1, 1);
    for (kind, &lacks) in lacks.0.iter().enumerate().filter(|(_, lacks)| **lacks > 0) {
        let more = u128::from(room.0[kind].saturating_sub(allowed.0[kind]));
        if more * part.1 < u128::from(lacks) * part.0 {
            part = (more, u128::from(lacks));
        }
    }
    let (part, of) = part;
    lacks.zip(allowed, |lacks, allowed| allowed + (u128::from(lacks) * part / of) as u64)
}

/// No other job may hold any of the kinds that `one` needs.
fn none_holds(others: &Totals, one: &Totals) -> bool {
    others.0.iter().zip(&one.0).all(|(held, of_one)| *held == 0 || *of_one == 0)
}

/// Whether `now` is significantly larger than `known` in some kind.
fn is_more(known: &Totals, now: &Totals) -> bool {
    known.0.iter().zip(&now.0).any(|(&known, &now)| now.saturating_sub(known).saturating_mul(REPORTED_WITHIN) > known)
}

impl InterJobPolicy for Entitlement {
    fn on_change(&mut self, change: &DemandChange) {
        match change {
            DemandChange::Capacity(total) => {
                self.shared = total.hundredths(self.guaranteed);
                self.may_give = true;
                return self.shares.on_change(&DemandChange::Capacity(self.shared));
            }
            DemandChange::JobAdded { job, id, queue, priority, .. } => {
                let (id, priority, number, last_request, nothing) = (*id, *priority, 0, 0, Totals::ZERO);
                let ([one, due, allowed, may_hold], rank) = ([nothing; 4], None);
                put(
                    &mut self.jobs,
                    *job,
                    Account { id, priority, one, due, rank, allowed, number, last_request, may_hold },
                );
                if let Some(sojourn) = &mut self.sojourn {
                    sojourn.add(*job, *queue, id, priority);
                }
            }
            DemandChange::Work { job, work } => {
                if let Some(sojourn) = &mut self.sojourn {
                    let [total, left] = [work.total, work.remaining].map(|work| work.on_whole(&self.shared));
                    sojourn.on_work(*job, total, left);
                }
            }
            DemandChange::JobRemoved { job } => {
                let gone = self.jobs[*job as usize].take().expect("a job slot in use");
                self.queue(*job, &gone, None);
                if let Some(sojourn) = &mut self.sojourn {
                    sojourn.remove(*job);
                }
                self.news.remove(job);
                self.may_hold = self.may_hold.saturating_sub(&gone.may_hold);
                self.may_give = true;
            }
            DemandChange::Queues(tree) => {
                if let Some(sojourn) = &mut self.sojourn {
                    sojourn.add_queues(tree.len());
                }
            }
            DemandChange::AllowanceRequest { job, request } => {
                self.shares.on_change(change);
                self.on_allowance_request(*job, request);
                if let Some(sojourn) = &mut self.sojourn {
                    sojourn.on_allowance_request(*job, request.all);
                }
                return self.review(*job);
            }
            _ => {}
        }
        self.shares.on_change(change);
    }

    fn share(&self, job: JobSlot) -> Totals {
        self.shares.of(job)
    }

    fn reported_share(&self, job: JobSlot) -> Option<Totals> {
        Some(self.shares.of(job))
    }

    fn new_shares(&mut self) -> Vec<JobSlot> {
        let is_due = self.shares.is_due();
        let changed = self.shares.review();
        if is_due {
            let slots: Vec<JobSlot> =
                (0..self.jobs.len() as JobSlot).filter(|slot| self.jobs[*slot as usize].is_some()).collect();
            slots.into_iter().for_each(|slot| self.review(slot));
        }
        self.share_out();
        changed
    }

    fn new_allowances(&mut self) -> Vec<NewAllowance> {
        self.give();
        let allowance = |slot: JobSlot| {
            let account = self.jobs[slot as usize].as_ref().expect("jobs with news have accounts");
            NewAllowance {
                job: slot,
                number: account.number,
                answers: account.last_request,
                allowance: account.allowed,
            }
        };
        std::mem::take(&mut self.news).into_iter().map(allowance).collect()
    }

    fn next(&mut self, _: &Offer<'_>) -> Option<NextAsk> {
        None
    }

    fn outcome(&mut self, _: AskSlot, _: Outcome) {}

    fn blocked(&self, _: &mut dyn FnMut(AskSlot) -> bool) {}

    fn limit_on(&self, _: AskSlot) -> Option<Why> {
        None
    }

    fn limit_for(&self, _: JobSlot, _: &Resources) -> Option<Why> {
        None
    }

    fn ahead_of(&self, _: AskSlot) -> Option<(u32, JobId)> {
        None
    }

    fn rule(&self) -> Rule {
        Rule::DominantShare
    }

    fn queue_usage(&self, _: QueueId) -> QueueUsage {
        QueueUsage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::resources::{CPU, MEMORY};
    use crate::vocabulary::{Chance, Duration, JobWork, UserId, Work};
    use std::collections::VecDeque;

    const CORES: u64 = 40;

    /// A job manager: it launches tasks of one size up to its allowance, and sends the messages that it should.
    #[derive(Default)]
    struct Manager {
        of_one: u64,
        demand: u64,
        holds: u64,
        allowed: u64,
        number: u32,
        /// Number of reports sent.
        reports: u32,
        /// Messages on their way to it and from it.
        inbox: VecDeque<NewAllowance>,
        outbox: VecDeque<AllowanceRequest>,
    }

    fn cpu(amount: u64) -> Totals {
        Totals(std::array::from_fn(|kind| if kind == 0 { amount } else { 0 }))
    }

    impl Manager {
        fn launch(&mut self) {
            while self.holds + self.of_one <= self.allowed && self.holds + self.of_one <= self.demand {
                self.holds += self.of_one;
            }
        }

        fn report(&mut self) {
            self.reports += 1;
            let one = Resources(std::array::from_fn(
                |kind| if kind == 0 && self.demand > 0 { self.of_one as u32 } else { 0 },
            ));
            let (allowance, number, report) = (cpu(self.allowed), self.number, self.reports);
            let request =
                AllowanceRequest { all: cpu(self.demand), one, allowance, number, holds: cpu(self.holds), report };
            self.outbox.push_back(request);
        }
    }

    struct Cluster {
        policy: Entitlement,
        jobs: Vec<Manager>,
        within: Within,
    }

    impl Cluster {
        /// With jobs that have tasks of these sizes; 30 cores may be guaranteed.
        fn new(sizes: &[u64], priority: impl Fn(usize) -> i32) -> Cluster {
            Cluster::within(Within::FairShares, sizes, priority)
        }

        /// The later a job comes, the less work it has, which it reports at once.
        fn within(within: Within, sizes: &[u64], priority: impl Fn(usize) -> i32) -> Cluster {
            let tree = QueueTree::single();
            let queue = tree.find("root.default").expect("the default queue");
            let mut policy = Entitlement::new(tree, 75, within);
            policy.on_change(&DemandChange::Capacity(cpu(CORES)));
            for job in 0..sizes.len() {
                let (id, user, priority) = (JobId(job as u64), UserId(0), priority(job));
                policy.on_change(&DemandChange::JobAdded { job: job as u32, id, queue, user, priority });
                let work = Work::of(&Resources::new(1_000, 0), Duration::from_secs(1), (sizes.len() - job) as u32);
                let work = JobWork { total: work, remaining: work };
                policy.on_change(&DemandChange::Work { job: job as u32, work });
            }
            let jobs = sizes.iter().map(|&of_one| Manager { of_one, ..Manager::default() }).collect();
            Cluster { policy, jobs, within }
        }

        fn deliver_to_master(&mut self, job: usize) {
            let Some(request) = self.jobs[job].outbox.pop_front() else { return };
            self.policy.on_change(&DemandChange::AllowanceRequest { job: job as u32, request: Box::new(request) });
            self.policy.new_shares();
            for sent in self.policy.new_allowances() {
                self.jobs[sent.job as usize].inbox.push_back(sent);
            }
        }

        fn deliver_to_manager(&mut self, job: usize) {
            let manager = &mut self.jobs[job];
            let Some(received) = manager.inbox.pop_front() else { return };
            let is_less = received.allowance.0[0] < manager.allowed;
            (manager.allowed, manager.number) = (received.allowance.0[0], received.number);
            manager.launch();
            if is_less {
                manager.report();
            }
        }

        fn request(&mut self, job: usize, demand: u64) {
            let manager = &mut self.jobs[job];
            manager.demand = demand.max(manager.holds);
            manager.launch();
            manager.report();
        }

        fn end_one(&mut self, job: usize) {
            let manager = &mut self.jobs[job];
            if manager.holds > 0 {
                manager.holds -= manager.of_one;
                manager.demand -= manager.of_one;
                manager.launch();
                manager.report();
            }
        }

        fn settle(&mut self) {
            while self.jobs.iter().any(|job| !job.inbox.is_empty() || !job.outbox.is_empty()) {
                for job in 0..self.jobs.len() {
                    self.deliver_to_master(job);
                    self.deliver_to_manager(job);
                }
            }
        }

        /// Another master, which receives messages of all jobs before it allows them anything; messages on their way
        /// are lost.
        fn restart(&mut self, sizes: &[u64], priority: impl Fn(usize) -> i32) {
            let jobs = std::mem::take(&mut self.jobs);
            *self = Cluster { jobs, ..Cluster::within(self.within, sizes, priority) };
            for (job, manager) in (0..).zip(&mut self.jobs) {
                manager.inbox.clear();
                manager.outbox.clear();
                manager.number = 0;
                manager.report();
                let request = Box::new(manager.outbox.pop_front().expect("just reported"));
                self.policy.on_change(&DemandChange::AllowanceRequest { job, request });
            }
            self.policy.new_shares();
            for sent in self.policy.new_allowances() {
                self.jobs[sent.job as usize].inbox.push_back(sent);
            }
        }

        fn held(&self) -> Vec<u64> {
            self.jobs.iter().map(|job| job.holds).collect()
        }
    }

    /// Whichever messages are on their way: no more is held than may be, except for one task that is larger than that
    /// and alone.
    #[test]
    fn jobs_in_total_never_hold_more_than_is_shared() {
        for seed in 0..600 {
            let within = [Within::FairShares, Within::FairSojourn][seed as usize % 2];
            let mut chance = Chance::new(seed / 2, "entitlement");
            let sizes: Vec<u64> =
                (0..2 + chance.below(6_u64)).map(|_| [1, 1, 2, 5, 35][chance.below(5_u64) as usize]).collect();
            let jobs = sizes.len();
            let mut cluster = Cluster::within(within, &sizes, |job| job as i32 % 2);
            for _ in 0..400 {
                let job = chance.below(jobs as u64) as usize;
                match chance.below(8_u32) {
                    0 if chance.below(8_u32) == 0 => cluster.restart(&sizes, |job| job as i32 % 2),
                    0 => cluster.request(job, sizes[job] * chance.below(60_u64)),
                    1 | 2 => cluster.end_one(job),
                    3..=5 => cluster.deliver_to_master(job),
                    _ => cluster.deliver_to_manager(job),
                }
                let held = cluster.held();
                let is_alone = held.iter().filter(|held| **held > 0).count() == 1;
                assert!(held.iter().sum::<u64>() <= 30 || is_alone, "seed {seed}: {held:?} of {sizes:?}");
            }
            // All requested work is done in the end.
            for _ in 0..2_000 {
                cluster.settle();
                (0..jobs).for_each(|job| cluster.end_one(job));
            }
            let left: Vec<u64> = cluster.jobs.iter().map(|job| job.demand).collect();
            assert_eq!(left, vec![0; jobs], "seed {seed}: {sizes:?}");
        }
    }

    #[test]
    fn a_new_job_gets_freed_resources_up_to_its_entitlement() {
        let mut cluster = Cluster::new(&[1, 1, 1], |_| 0);
        cluster.request(0, 200);
        cluster.settle();
        assert_eq!(cluster.held(), [30, 0, 0]);
        cluster.request(1, 200);
        cluster.settle();
        assert_eq!(cluster.held(), [30, 0, 0], "running tasks are not given back");
        for held in [[29, 1, 0], [28, 2, 0], [27, 3, 0]] {
            cluster.end_one(0);
            cluster.settle();
            assert_eq!(cluster.held(), held);
        }
        (0..20).for_each(|_| {
            cluster.end_one(0);
            cluster.settle();
        });
        assert_eq!(cluster.held(), [15, 15, 0]);
        // The newest job has the smallest part of its entitlement, and use for a small amount only.
        cluster.request(2, 4);
        cluster.settle();
        cluster.end_one(0);
        cluster.end_one(1);
        cluster.settle();
        assert_eq!(cluster.held(), [14, 14, 2]);
    }

    #[test]
    fn by_fair_sojourn_the_shortest_job_gets_all_it_requests_and_others_the_rest() {
        let mut cluster = Cluster::within(Within::FairSojourn, &[1, 1, 1], |_| 0);
        cluster.request(0, 200);
        cluster.settle();
        assert_eq!(cluster.held(), [30, 0, 0]);
        cluster.request(1, 12);
        cluster.request(2, 20);
        cluster.settle();
        (0..30).for_each(|_| {
            cluster.end_one(0);
            cluster.settle();
        });
        assert_eq!(cluster.held(), [0, 10, 20], "the last has the least work, and the first comes after all others");
        (0..20).for_each(|_| {
            cluster.end_one(2);
            cluster.settle();
        });
        assert_eq!(cluster.held(), [18, 12, 0]);
    }

    #[test]
    fn the_waiting_job_with_the_higher_priority_is_first() {
        let mut cluster = Cluster::new(&[1, 1, 1], |job| job as i32);
        cluster.request(0, 30);
        cluster.settle();
        (1..3).for_each(|job| cluster.request(job, 30));
        cluster.settle();
        (0..8).for_each(|_| {
            cluster.end_one(0);
            cluster.settle();
        });
        assert_eq!(cluster.held(), [22, 0, 8]);
    }

    #[test]
    fn resources_too_small_for_the_first_job_are_kept_for_it() {
        let mut cluster = Cluster::new(&[1, 12, 1], |_| 0);
        cluster.request(0, 30);
        cluster.settle();
        cluster.request(1, 12);
        cluster.settle();
        cluster.request(2, 10);
        cluster.settle();
        (0..11).for_each(|_| {
            cluster.end_one(0);
            cluster.settle();
        });
        assert_eq!(cluster.held(), [19, 0, 0]);
        cluster.end_one(0);
        cluster.settle();
        assert_eq!(cluster.held(), [18, 12, 0]);
    }

    #[test]
    fn a_job_that_needs_no_exhausted_kind_gets_its_entitlement_before_those_that_do() {
        let mut cluster = Cluster::new(&[1; 3], |_| 0);
        let of = |kind: usize, amount: u64| Totals(std::array::from_fn(|other| if other == kind { amount } else { 0 }));
        cluster.policy.on_change(&DemandChange::Capacity(cpu(CORES).larger_of(&of(MEMORY, CORES))));
        let mut allowed = |job: u32, kind: usize| {
            let one = Resources(std::array::from_fn(|other| u32::from(other == kind)));
            let request =
                Box::new(AllowanceRequest { all: of(kind, 30), one, report: 1, ..AllowanceRequest::default() });
            cluster.policy.on_change(&DemandChange::AllowanceRequest { job, request });
            cluster.policy.new_shares();
            let sent = cluster.policy.new_allowances();
            sent.iter().find(|sent| sent.job == job).map(|sent| sent.allowance)
        };
        assert_eq!(allowed(0, CPU), Some(cpu(30)));
        assert_eq!(allowed(1, CPU), Some(Totals::ZERO), "job 0 may hold all of it");
        assert_eq!(allowed(2, MEMORY), Some(of(MEMORY, 30)));
    }

    #[test]
    fn a_new_master_counts_the_allowances_of_the_last_one() {
        let mut cluster = Cluster::new(&[1, 1], |_| 0);
        cluster.request(0, 30);
        cluster.settle();
        let jobs = std::mem::take(&mut cluster.jobs);
        cluster = Cluster::new(&[1, 1], |_| 0);
        cluster.jobs = jobs;
        cluster.jobs[0].number = 0;
        cluster.request(0, 30);
        cluster.request(1, 30);
        cluster.settle();
        assert_eq!((cluster.held(), cluster.jobs[0].allowed), (vec![30, 0], 15));
    }
}
