//! Resources that a job donates to others and receives from them, added up over time. This module is the definition (ADR 38):
//!
//! * a job **donates** the resources of deferred runnable tasks, as far as they fit into its share after what it holds and needs;
//! * it **receives** what it holds of each kind beyond its share, as far as it was launched on leftover resources.
//!
//! A job whose share is not known donates and receives nothing.

use super::JobManager;
use super::requests::{OpenDemand, Progress};
use super::work::run_times;
use crate::policy::is_near;
use crate::protocol::Rule;
use crate::role::{Change, Outbox, Record};
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{Duration, Exchange, Instant, Resources, Totals};
use std::collections::BTreeSet;

/// The sums are stored when a task ends, at most this often, and when the job ends. Later changes may be lost with the server.
const KEPT_EVERY: Duration = Duration::from_secs(10);

/// The account of a job whose policy yields.
#[derive(Default)]
pub(super) struct Account {
    /// Up to `since`.
    sum: Exchange,
    since: Instant,
    /// From then on.
    rates: Rates,
    held: Totals,
    /// The part of `held` that was launched on leftover resources.
    leftover: Totals,
    /// The sums as last stored, and when.
    kept: Exchange,
    kept_at: Instant,
    /// The end alone was estimated before a restart, with more knowledge of the job's start.
    alone_is_known: bool,
    /// Expected run times by stage that the estimate used.
    run_times: Vec<Duration>,
    /// Stages whose deferred tasks are recorded.
    deferring: BTreeSet<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Rates {
    given: Totals,
    received: Totals,
}

impl Rates {
    fn of(share: Option<&Totals>, open: &OpenDemand, held: &Totals, leftover: &Totals) -> Rates {
        let Some(share) = share else { return Rates::default() };
        let spare = Totals(std::array::from_fn(|kind| {
            share.0[kind].saturating_sub(held.0[kind]).saturating_sub(open.needed.0[kind])
        }));
        let beyond = |kind: usize| held.0[kind].saturating_sub(share.0[kind]).min(leftover.0[kind]);
        Rates { given: part_that_fits(&open.deferred, &spare), received: Totals(std::array::from_fn(beyond)) }
    }
}

/// The largest fraction of the demand that fits, equal for all kinds.
fn part_that_fits(demand: &Totals, room: &Totals) -> Totals {
    // The kind with the smallest fraction that fits, compared by cross multiplication.
    let mut tightest: Option<usize> = None;
    for kind in (0..WIDTH).filter(|&kind| demand.0[kind] > room.0[kind]) {
        let part = |kind: usize| (u128::from(room.0[kind]), u128::from(demand.0[kind]));
        let is_tighter = |than: usize| part(kind).0 * part(than).1 < part(than).0 * part(kind).1;
        if tightest.is_none_or(is_tighter) {
            tightest = Some(kind);
        }
    }
    let Some(tightest) = tightest else { return *demand };
    let (fits, of) = (u128::from(room.0[tightest]), u128::from(demand.0[tightest]));
    Totals(demand.0.map(|amount| (u128::from(amount) * fits / of) as u64))
}

impl Account {
    /// Adds up to now.
    fn advance(&mut self, now: Instant) {
        if self.rates != Rates::default() {
            let time = now.since(self.since);
            self.sum.given.add_over(&self.rates.given, time);
            self.sum.received.add_over(&self.rates.received, time);
        }
        self.since = now;
    }

    pub(super) fn on_held(&mut self, resources: &Resources, rule: Rule) {
        self.held.add(resources);
        if rule == Rule::Leftover {
            self.leftover.add(resources);
        }
    }

    pub(super) fn on_freed(&mut self, resources: &Resources, rule: Rule) {
        self.held.sub(resources);
        if rule == Rule::Leftover {
            self.leftover.sub(resources);
        }
    }

    /// Restores the stored sums and the run times that they were estimated with.
    pub(super) fn recover(&mut self, kept: &Exchange, run_times: Vec<Duration>) {
        (self.sum, self.kept, self.run_times) = (*kept, *kept, run_times);
        self.alone_is_known = kept.alone.is_some();
    }

    /// The sums as last stored.
    pub(super) fn kept(&self) -> Exchange {
        self.kept
    }
}

impl JobManager {
    /// Resources donated and received until now; `None` if the policy never yields.
    pub fn exchange(&self, now: Instant) -> Option<Exchange> {
        let account = self.account.as_ref()?;
        let mut sum = account.sum;
        let time = now.since(account.since);
        sum.given.add_over(&account.rates.given, time);
        sum.received.add_over(&account.rates.received, time);
        Some(sum)
    }

    /// In tests and debug builds.
    pub(super) fn check_account(&self) {
        let Some(account) = &self.account else { return };
        let mut again = Account::default();
        for running in self.attempts.values() {
            again.on_held(&self.job.resources[running.task.stage as usize], running.rule);
        }
        assert_eq!((account.held, account.leftover), (again.held, again.leftover), "held resources");
    }

    /// Before an event.
    pub(super) fn add_up(&mut self, now: Instant) {
        if let Some(account) = &mut self.account {
            account.advance(now);
        }
    }

    /// After an event: updates the rates.
    pub(super) fn review_exchange(&mut self) {
        if let Some(account) = &mut self.account {
            account.rates =
                Rates::of(self.master.share(), self.requests.open_demand(), &account.held, &account.leftover);
        }
    }

    /// Estimates when the job would end alone.
    pub(super) fn review_alone(&mut self, now: Instant) {
        let Some(account) = self.account.as_mut().filter(|account| !account.alone_is_known) else { return };
        let (job, dag, attempts, gangs) = (&self.job, &self.dag, &self.attempts, &self.gangs);
        let progress = Progress { job, dag, attempts, gangs };
        // A held job starts nothing, like a job without a share.
        let share = self.master.share().filter(|_| !self.lifecycle.is_held());
        if let Some(alone) = self.policy.end_alone(now, &progress, share) {
            account.sum.alone = Some(alone);
            account.run_times = run_times(&self.dag).collect();
        }
    }

    /// A rerun is compared from its own start.
    pub(super) fn forget_alone(&mut self) {
        self.policy.rerun();
        if let Some(account) = &mut self.account {
            (account.sum.alone, account.kept.alone) = (None, None);
            account.alone_is_known = false;
        }
    }

    /// After a policy call: records stages that defer tasks and did not before.
    pub(super) fn note_demand(&mut self, now: Instant, out: &mut Outbox) {
        let Some(account) = &mut self.account else { return };
        let before = std::mem::take(&mut account.deferring);
        for part in self.requests.deferrable() {
            if !before.contains(&part.stage) {
                let (job, stage, tasks, left) = (self.job.id, part.stage, part.count, part.due.since(now));
                out.record(Record::Deferred { job, stage, tasks, left });
            }
            account.deferring.insert(part.stage);
        }
    }

    /// Stores the sums, if that was long ago.
    pub(super) fn keep_exchange_now_and_then(&mut self, now: Instant, out: &mut Outbox) {
        if self.account.as_ref().is_some_and(|account| now.since(account.kept_at) >= KEPT_EVERY) {
            self.review_alone(now);
            self.keep_exchange(now, out);
        }
    }

    pub(super) fn keep_exchange(&mut self, now: Instant, out: &mut Outbox) {
        let Some(account) = &mut self.account else { return };
        account.kept_at = now;
        if !account.run_times.iter().zip(run_times(&self.dag)).all(|(&taken, expected)| is_near(taken, expected)) {
            // The estimate used other run times. Drop it: the history behind it would be gone.
            account.sum.alone = None;
        }
        if account.kept != account.sum {
            account.kept = account.sum;
            out.persist(Change::Exchanged { job: self.job.id, exchange: Box::new(account.sum), at: now });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cpu: u64, memory: u64) -> Totals {
        let mut totals = Totals::ZERO;
        (totals.0[0], totals.0[1]) = (cpu, memory);
        totals
    }

    fn rates(share: Totals, needed: Totals, deferred: Totals, held: Totals, leftover: Totals) -> (Totals, Totals) {
        let Rates { given, received } = Rates::of(Some(&share), &OpenDemand { needed, deferred }, &held, &leftover);
        (given, received)
    }

    #[test]
    fn deferred_tasks_are_donated_as_far_as_they_fit_into_the_rest_of_the_share() {
        let given = |share, needed, deferred, held| rates(share, needed, deferred, held, Totals::ZERO).0;
        let share = of(4_000, 8_000);
        assert_eq!(given(share, of(0, 0), of(1_000, 500), of(1_000, 500)), of(1_000, 500), "all of it");
        assert_eq!(given(share, of(1_000, 0), of(4_000, 2_000), of(1_000, 0)), of(2_000, 1_000), "half of it");
        assert_eq!(given(share, of(0, 0), of(1_000, 16_000), of(1_000, 0)), of(500, 8_000), "limited by memory");
        assert_eq!(given(share, of(0, 0), of(1_000, 500), of(4_000, 0)), of(0, 0), "memory alone runs nothing");
        assert_eq!(given(share, of(0, 0), of(1_000, 500), of(5_000, 0)), of(0, 0), "it holds more than its share");
        // The two jobs of Carbyne's section 2.1, before they hold anything.
        assert_eq!(given(of(500, 0), of(210, 0), of(500, 0), of(0, 0)), of(290, 0));
        assert_eq!(given(of(500, 0), of(290, 0), of(290, 0), of(0, 0)), of(210, 0));
    }

    #[test]
    fn leftover_resources_beyond_the_share_are_received() {
        let received = |held, leftover| rates(of(4_000, 8_000), of(0, 0), of(0, 0), held, leftover).1;
        assert_eq!(received(of(4_000, 8_000), of(4_000, 8_000)), of(0, 0));
        assert_eq!(received(of(6_000, 4_000), of(3_000, 1_000)), of(2_000, 0));
        assert_eq!(received(of(6_000, 9_000), of(1_000, 3_000)), of(1_000, 1_000));
    }

    #[test]
    fn a_job_without_a_share_donates_and_receives_nothing() {
        let open = OpenDemand { needed: of(0, 0), deferred: of(1, 1) };
        assert_eq!(Rates::of(None, &open, &of(5, 5), &of(5, 5)), Rates::default());
    }
}
