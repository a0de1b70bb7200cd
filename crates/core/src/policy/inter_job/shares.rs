//! The shares of jobs whose managers plan by them (Carbyne 3.3, lines 8 to 15 of its pseudocode): the fair dominant
//! share in closed form, computed again when demands have changed.
//!
//! A share is a fraction of the cluster, the same of every kind: a job that mostly uses one kind of resource now may
//! need another one later. It is never less than the job's part by weight, to which it is entitled whatever the others
//! request, and with which it may plan although it requests less now. A job's demand is the total of its running and
//! its runnable tasks.

use super::queue_tree::WHOLE;
use super::{Demand, QueueTree, fair_shares};
use crate::policy::{AskSlot, DemandChange, JobSlot};
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{QueueId, Resources, Totals, UserId};
use std::collections::BTreeMap;

/// A share is sent to its job if it differs from the last one sent by one part in this many.
const REPORTED_WITHIN: u64 = 16;

/// Shares are computed again when the resources that jobs take have changed by one part in this many of the smallest
/// share.
const FOUND_WITHIN: u64 = 32;

/// The whole cluster, in the unit of parts by weight.
const WHOLE_PART: u64 = 1_000_000_000;
/// Number of these parts in one unit of shares.
const OF_A_SHARE: u64 = WHOLE_PART / WHOLE as u64;

pub struct Shares {
    tree: QueueTree,
    capacity: Totals,
    /// The capacity when shares were computed last.
    found_for: Totals,
    /// The capacity when the jobs were last sent their fractions of it.
    reported_capacity: Totals,
    jobs: Vec<Option<JobShare>>,
    asks: Vec<Option<Asked>>,
    /// Number of jobs in each leaf, and below each other queue.
    jobs_below: Vec<u32>,
    /// Some queue or user may not use the whole cluster.
    has_limits: bool,
    /// The set of jobs, the cluster, or the kinds that some job lacks have changed.
    stale: bool,
    /// By kind: how much the total use has changed since shares were computed, and how much of that is tolerated.
    drift: [i64; WIDTH],
    tolerated: [u64; WIDTH],
    kinds: [Use; WIDTH],
}

/// The use of a kind of resource, in parts of the whole.
#[derive(Clone, Copy, Default)]
struct Use {
    all: u64,
    /// By jobs that lack it, and by those among them that lack more than a significant part.
    short: u64,
    lacking_much: u64,
    /// The job with the highest level: the level, and its use.
    highest: (u64, u64),
}

struct JobShare {
    queue: QueueId,
    user: UserId,
    wanted: Totals,
    /// In millionths of the cluster.
    share: u64,
    /// Its demand was no more than its share when that was computed.
    is_met: bool,
    /// The kind that it lacks, and whether it lacks more than a significant part of it.
    short_of: Option<usize>,
    lacks_much: bool,
    /// Its use when shares were computed.
    took: [u64; WIDTH],
    reported: Option<u64>,
}

struct Asked {
    job: JobSlot,
    shape: Resources,
    open: u64,
}

/// Whether some queue or user may not use the whole cluster.
fn has_limits(tree: &QueueTree) -> bool {
    tree.specs().iter().any(|spec| spec.maximum < WHOLE || spec.user_limit < WHOLE)
}

impl Shares {
    pub fn new(tree: QueueTree) -> Shares {
        let (jobs_below, has_limits) = (vec![0; tree.len()], has_limits(&tree));
        Shares {
            tree,
            capacity: Totals::ZERO,
            found_for: Totals::ZERO,
            reported_capacity: Totals::ZERO,
            jobs: Vec::new(),
            asks: Vec::new(),
            jobs_below,
            has_limits,
            stale: false,
            drift: [0; WIDTH],
            tolerated: [0; WIDTH],
            kinds: [Use::default(); WIDTH],
        }
    }

    pub fn on_change(&mut self, change: &DemandChange) {
        match *change {
            DemandChange::Capacity(total) => {
                self.capacity = total;
                self.stale |= is_off(&self.found_for, &total, FOUND_WITHIN);
            }
            DemandChange::JobAdded { job, queue, user, .. } => {
                put(
                    &mut self.jobs,
                    job,
                    JobShare {
                        queue,
                        user,
                        wanted: Totals::ZERO,
                        share: 0,
                        is_met: true,
                        short_of: None,
                        lacks_much: false,
                        took: [0; WIDTH],
                        reported: None,
                    },
                );
                self.count(queue, 1);
            }
            DemandChange::JobRemoved { job } => {
                let gone = self.jobs[job as usize].take().expect("a job slot in use");
                self.count(gone.queue, -1);
            }
            DemandChange::AskAdded { ask, job, shape, .. } => put(&mut self.asks, ask, Asked { job, shape, open: 0 }),
            DemandChange::AskRemoved { ask } => {
                self.set_open(ask, 0);
                self.asks[ask as usize] = None;
            }
            DemandChange::Open { ask, count, .. } => self.set_open(ask, count),
            DemandChange::Taken { job, resources } => self.want(job, |wanted| wanted.add(&resources)),
            DemandChange::Freed { job, resources } => self.want(job, |wanted| wanted.sub(&resources)),
            DemandChange::AllowanceRequest { job, ref request } => self.want(job, |all| *all = request.all),
            DemandChange::Work { .. }
            | DemandChange::Class { .. }
            | DemandChange::RoomFor { .. }
            | DemandChange::RoomOpened => {}
            DemandChange::Queues(ref tree) => {
                self.tree = tree.as_ref().clone();
                self.jobs_below.resize(self.tree.len(), 0);
                (self.has_limits, self.stale) = (has_limits(&self.tree), true);
            }
        }
    }

    /// An open task is held from now on: the demand is unchanged.
    pub fn on_started(&mut self, ask: AskSlot) {
        let asked = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        asked.open = asked.open.checked_sub(1).expect("only what is open starts");
    }

    /// Computes the shares if something has changed. Returns the jobs to which theirs have to be sent, by slot.
    pub fn review(&mut self) -> Vec<JobSlot> {
        if !self.is_due() {
            return Vec::new();
        }
        (self.stale, self.drift, self.found_for) = (false, [0; WIDTH], self.capacity);
        let mut parts = vec![None; self.jobs_below.len()];
        let (mut slots, mut demands) = (Vec::new(), Vec::new());
        for (slot, job) in self.jobs.iter().enumerate() {
            let Some(job) = job else { continue };
            let weight = *parts[job.queue.0 as usize].get_or_insert_with(|| self.part_by_weight(job.queue));
            slots.push(slot);
            demands.push(Demand { weight, wanted: job.wanted, most: u64::from(WHOLE) });
        }
        self.limit(&slots, &mut demands);
        let shares = fair_shares(&demands, &self.capacity);
        let mut kinds = [Use::default(); WIDTH];
        // The same fraction of another cluster is another share.
        let is_other_cluster = is_off(&self.reported_capacity, &self.capacity, REPORTED_WITHIN);
        if is_other_cluster {
            self.reported_capacity = self.capacity;
        }
        let mut to_report = Vec::new();
        for ((slot, demand), fair) in slots.into_iter().zip(demands).zip(shares) {
            let entry = self.jobs[slot].as_mut().expect("a job slot in use");
            entry.share = fair.share.max(demand.weight / OF_A_SHARE).min(demand.most);
            entry.is_met = !entry.lacks(&self.capacity);
            entry.took = entry.takes(&self.capacity);
            let level = fair.share * WHOLE_PART / demand.weight;
            // A job that is limited by its queue may get what other jobs of the queue leave.
            let most_used = || (0..WIDTH).max_by_key(|kind| entry.took[*kind]).filter(|_| !entry.is_met);
            entry.short_of = fair.short_of.or_else(most_used);
            entry.lacks_much = entry.lacks_much(&self.capacity);
            for (kind, &took) in entry.took.iter().enumerate().filter(|(_, took)| **took > 0) {
                let is_short = entry.short_of == Some(kind);
                kinds[kind].count(took, level, is_short, is_short && entry.lacks_much);
            }
            if is_other_cluster
                || entry.reported.is_none_or(|reported| reported.abs_diff(entry.share) * REPORTED_WITHIN > reported)
            {
                entry.reported = Some(entry.share);
                to_report.push(slot as JobSlot);
            }
        }
        (self.kinds, self.tolerated) = (kinds, kinds.map(|kind| kind.tolerated(self.has_limits)));
        to_report
    }

    pub(super) fn is_due(&self) -> bool {
        self.stale || self.drift.iter().zip(&self.tolerated).any(|(drift, tolerated)| drift.unsigned_abs() > *tolerated)
    }

    /// The share as last sent.
    pub fn of(&self, job: JobSlot) -> Totals {
        let share = u128::from(self.job(job).reported.unwrap_or_default());
        Totals(self.capacity.0.map(|amount| (u128::from(amount) * share / u128::from(WHOLE)) as u64))
    }

    /// The part of its share that it has use for now: its whole demand, or the same fraction of every kind as its share
    /// allows, in whole multiples of `of_one`, the resources of one task.
    pub fn due(&self, job: JobSlot, of_one: &Totals) -> Totals {
        let JobShare { wanted, share, .. } = self.job(job);
        let dominant = wanted.dominant_share(&self.capacity).max(1);
        let part = |amount: u64| (u128::from(amount) * u128::from(*share) / u128::from(dominant)) as u64;
        let whole = |amount: u64, of_one: u64| part(amount) - part(amount).checked_rem(of_one).unwrap_or(0);
        if dominant <= *share { *wanted } else { wanted.zip(of_one, whole) }
    }

    /// The part by weight of each job of the leaf.
    fn part_by_weight(&self, leaf: QueueId) -> u64 {
        let part = self.tree.part_by_weight(leaf, WHOLE_PART, |queue| self.jobs_below[queue.0 as usize] > 0);
        (part / u64::from(self.jobs_below[leaf.0 as usize].max(1))).max(1)
    }

    /// The maximum of a queue or user is divided among its jobs as if it were a separate cluster.
    fn limit(&self, slots: &[usize], demands: &mut [Demand]) {
        let mut groups: BTreeMap<(QueueId, Option<UserId>), Vec<usize>> = BTreeMap::new();
        for (at, &slot) in slots.iter().enumerate() {
            let JobShare { queue: leaf, user, .. } = *self.job(slot as JobSlot);
            let of_user = (self.tree.spec(leaf).user_limit < WHOLE).then_some((leaf, Some(user)));
            let queues = std::iter::successors(Some(leaf), |queue| self.tree.parent(*queue));
            let of_queues = queues.filter(|queue| self.tree.spec(*queue).maximum < WHOLE).map(|queue| (queue, None));
            of_user.into_iter().chain(of_queues).for_each(|group| groups.entry(group).or_default().push(at));
        }
        for ((queue, user), members) in groups {
            let spec = self.tree.spec(queue);
            let limit = u64::from(if user.is_some() { spec.user_limit } else { spec.maximum });
            let part = |amount: u64, of: u64| (u128::from(amount) * u128::from(limit) / u128::from(of)) as u64;
            let capacity = Totals(self.capacity.0.map(|amount| part(amount, u64::from(WHOLE))));
            let together: Vec<Demand> = members.iter().map(|&at| demands[at]).collect();
            let weights: u64 = together.iter().map(|demand| demand.weight).sum();
            for ((at, demand), fair) in members.into_iter().zip(&together).zip(fair_shares(&together, &capacity)) {
                let most = part(fair.share, u64::from(WHOLE)).max(part(demand.weight, weights)).max(1);
                demands[at].most = demands[at].most.min(most);
            }
        }
    }

    fn set_open(&mut self, ask: AskSlot, count: u64) {
        let Asked { job, shape, open } = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        let (job, shape, before) = (*job, *shape, std::mem::replace(open, count));
        if before == count {
            return;
        }
        self.want(job, |wanted| {
            for (amount, &of_one) in wanted.0.iter_mut().zip(&shape.0) {
                let (less, more) = (u64::from(of_one).saturating_mul(before), u64::from(of_one).saturating_mul(count));
                *amount = amount.saturating_sub(less).saturating_add(more);
            }
        });
    }

    fn want(&mut self, job: JobSlot, change: impl FnOnce(&mut Totals)) {
        let Shares { found_for: capacity, jobs, drift, stale, kinds, tolerated, has_limits, .. } = self;
        let entry = jobs[job as usize].as_mut().expect("a job slot in use");
        let (before, lacked) = (entry.takes(capacity), entry.lacks(capacity));
        change(&mut entry.wanted);
        let (after, lacks) = (entry.takes(capacity), entry.lacks(capacity));
        let own = entry.share * OF_A_SHARE / FOUND_WITHIN;
        for kind in 0..WIDTH {
            let (before, after) = (before[kind], after[kind]);
            drift[kind] = drift[kind].saturating_add_unsigned(after).saturating_sub_unsigned(before);
            // A job that starts to use a kind that is full is limited by it, however little it uses.
            let of_other_kinds = (lacked || lacks) && (before == 0) != (after == 0);
            *stale |= of_other_kinds || after.abs_diff(entry.took[kind]) > own;
        }
        if let Some(kind) = entry.short_of {
            let lacks_much = entry.lacks_much(capacity);
            if lacks_much != std::mem::replace(&mut entry.lacks_much, lacks_much) {
                kinds[kind].lack(entry.took[kind], lacks_much);
                tolerated[kind] = kinds[kind].tolerated(*has_limits);
            }
        }
    }

    fn count(&mut self, leaf: QueueId, change: i32) {
        let mut next = Some(leaf);
        while let Some(queue) = next {
            let below = &mut self.jobs_below[queue.0 as usize];
            *below = below.strict_add_signed(change);
            next = self.tree.parent(queue);
        }
        self.stale = true;
    }

    fn job(&self, job: JobSlot) -> &JobShare {
        self.jobs[job as usize].as_ref().expect("a job slot in use")
    }
}

impl Use {
    fn count(&mut self, took: u64, level: u64, is_short: bool, lacks_much: bool) {
        self.all += took;
        self.short += if is_short { took } else { 0 };
        self.lacking_much += if lacks_much { took } else { 0 };
        self.highest = self.highest.max((level, took));
    }

    /// A job that lacks this kind now lacks much of it, or no longer does.
    fn lack(&mut self, took: u64, much: bool) {
        let all = self.lacking_much;
        self.lacking_much = if much { all.saturating_add(took) } else { all.saturating_sub(took) };
    }

    /// How much the use of the kind may change before some share is off by a significant part. A change moves all jobs
    /// that lack the kind by the same fraction, unless some of them are almost met and leave the rest to the others. If
    /// no job lacks it, half of the rest may be used before the job with the highest level is affected. The rest is not
    /// meaningful if queues or users may not use it.
    fn tolerated(self, has_limits: bool) -> u64 {
        let moved = match self {
            Use { lacking_much: 1.., .. } => self.lacking_much,
            Use { short: 1.., .. } => self.short,
            _ => self.highest.1,
        };
        let left = if has_limits { 0 } else { WHOLE_PART.saturating_sub(self.all) / 2 };
        (moved / FOUND_WITHIN).max(left)
    }
}

impl JobShare {
    fn lacks(&self, capacity: &Totals) -> bool {
        self.wanted.dominant_share(capacity) > self.share
    }

    fn lacks_much(&self, capacity: &Totals) -> bool {
        let wanted = self.wanted.dominant_share(capacity);
        wanted.saturating_mul(REPORTED_WITHIN) > self.share.saturating_mul(REPORTED_WITHIN + 1)
    }

    /// What is not available to others, by kind in parts of the whole: its whole demand, or the part of it that its
    /// share allows. A job whose demand exceeds its share before and after a change, in the same proportions, moves no
    /// other share.
    fn takes(&self, capacity: &Totals) -> [u64; WIDTH] {
        let part = |(&wanted, &of): (&u64, &u64)| match (wanted, of) {
            (0, _) | (_, 0) => 0,
            _ => u64::try_from(u128::from(wanted) * u128::from(WHOLE_PART) / u128::from(of)).unwrap_or(u64::MAX),
        };
        let mut parts = [0; WIDTH];
        for (into, amounts) in parts.iter_mut().zip(self.wanted.0.iter().zip(&capacity.0)) {
            *into = part(amounts);
        }
        let (largest, most) = (parts.iter().copied().max().unwrap_or_default(), self.share * OF_A_SHARE);
        if !self.is_met && largest > most {
            for part in parts.iter_mut().filter(|part| **part > 0) {
                *part = (u128::from(*part) * u128::from(most) / u128::from(largest)) as u64;
            }
        }
        parts
    }
}

/// Whether they differ by more than one part in `within`.
fn is_off(known: &Totals, now: &Totals, within: u64) -> bool {
    known.0.iter().zip(&now.0).any(|(&known, &now)| known.abs_diff(now).saturating_mul(within) > known)
}

pub(super) fn put<T>(slots: &mut Vec<Option<T>>, slot: u32, value: T) {
    if slots.len() <= slot as usize {
        slots.resize_with(slot as usize + 1, || None);
    }
    slots[slot as usize] = Some(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Chance, JobId, QueueSpec, UserId};

    /// This many jobs that ask for tasks of the first kinds of resources, on a cluster of 100,000 of each.
    fn shares(jobs: u32, kinds: usize, chance: &mut Chance) -> Shares {
        let tree = QueueTree::single();
        let queue = tree.find("root.default").expect("the default queue");
        let mut shares = Shares::new(tree);
        shares.on_change(&DemandChange::Capacity(Totals(std::array::from_fn(
            |kind| if kind < kinds { 100_000 } else { 0 },
        ))));
        for job in 0..jobs {
            let (id, user) = (JobId(u64::from(job)), UserId(0));
            shares.on_change(&DemandChange::JobAdded { job, id, queue, user, priority: 0 });
            for ask in [2 * job, 2 * job + 1] {
                let shape = std::array::from_fn(|kind| if kind < kinds { chance.below(4_u32) } else { 0 });
                shares.on_change(&DemandChange::AskAdded {
                    ask,
                    job,
                    shape: Resources(shape),
                    class: 0,
                    priority: 0,
                    is_gang: false,
                });
            }
        }
        shares
    }

    /// The largest relative error of the sent shares after this many changes, and how often shares were computed.
    fn worst_of(changes: u32, jobs: u32, kinds: usize) -> (f64, u32) {
        let mut chance = Chance::new(u64::from(jobs), "changes");
        let mut shares = shares(jobs, kinds, &mut chance);
        let (mut worst, mut found): (f64, u32) = (0.0, 0);
        for _ in 0..changes {
            let (ask, more) = (chance.below(2 * jobs), chance.below(5_u64));
            let open = shares.asks[ask as usize].as_ref().expect("it was added").open;
            let count = if chance.below(20_u32) == 0 { 20_000 * more } else { (open + more).saturating_sub(2) };
            shares.on_change(&DemandChange::Open { ask, count, needed: count, rank: 0 });
            found += u32::from(shares.is_due());
            shares.review();
            let entries = || shares.jobs.iter().flatten();
            let most = u64::from(WHOLE);
            let demand = |job: &JobShare| Demand { weight: shares.part_by_weight(job.queue), wanted: job.wanted, most };
            let demands: Vec<Demand> = entries().map(demand).collect();
            for ((job, demand), fair) in entries().zip(&demands).zip(fair_shares(&demands, &shares.capacity)) {
                let (received, exact) = (job.reported.unwrap_or_default(), fair.share.max(demand.weight / OF_A_SHARE));
                worst = worst.max(received.abs_diff(exact) as f64 / received as f64);
            }
        }
        (worst, found)
    }

    /// Jobs with demands far above their shares come to their last tasks: what they leave from then on goes to those
    /// with more demand, although the part of each is small.
    #[test]
    fn resources_left_by_many_jobs_are_sent_to_the_remaining_one() {
        const LEAVING: u32 = 99;
        let mut shares = shares(LEAVING + 1, 0, &mut Chance::new(1, "unused"));
        shares.on_change(&DemandChange::Capacity(Totals(std::array::from_fn(
            |kind| if kind == 0 { 100_000 } else { 0 },
        ))));
        let one = Resources(std::array::from_fn(|kind| u32::from(kind == 0)));
        let put_open = |shares: &mut Shares, job: u32, count| {
            shares.on_change(&DemandChange::Open { ask: 1_000 + job, count, needed: count, rank: 0 });
            shares.review();
        };
        for job in 0..=LEAVING {
            shares.on_change(&DemandChange::AskAdded {
                ask: 1_000 + job,
                job,
                shape: one,
                class: 0,
                priority: 0,
                is_gang: false,
            });
            put_open(&mut shares, job, if job < LEAVING { 10_000 } else { 100_000 });
        }
        let received = |shares: &Shares| shares.of(LEAVING).0[0];
        assert_eq!(received(&shares), 1_000);
        (0..LEAVING).for_each(|job| put_open(&mut shares, job, 1_000));
        assert_eq!(received(&shares), 1_000, "their demands equal their shares");
        (0..LEAVING).for_each(|job| put_open(&mut shares, job, 970));
        assert!((3_600..=3_970).contains(&received(&shares)), "{}", received(&shares));
    }

    #[test]
    fn a_share_never_exceeds_queue_and_user_limits() {
        let half = QueueSpec { maximum: 500_000, user_limit: 200_000, ..QueueSpec::named("root.half") };
        let tree = QueueTree::new(vec![half, QueueSpec::named("root.other")]).expect("a valid tree");
        let queue = tree.find("root.half").expect("a configured queue");
        let mut shares = Shares::new(tree);
        shares.on_change(&DemandChange::Capacity(Totals([1_000; WIDTH])));
        let mut received = Vec::new();
        for (job, user) in (0..).zip([1, 1, 2, 3, 4, 5]) {
            shares.on_change(&DemandChange::JobAdded { job, id: JobId(1), queue, user: UserId(user), priority: 0 });
            let shape = Resources(std::array::from_fn(|kind| u32::from(kind == 0)));
            shares.on_change(&DemandChange::AskAdded { ask: job, job, shape, class: 0, priority: 0, is_gang: false });
            shares.on_change(&DemandChange::Open { ask: job, count: 900, needed: 900, rank: 0 });
            shares.review();
            received.push((0..=job).map(|job| shares.of(job).0[0]).collect::<Vec<_>>());
        }
        assert_eq!(received[0], [200]);
        assert_eq!(received[1], [100, 100]);
        assert_eq!(received[2], [100, 100, 166]);
        assert_eq!(received[5], [83, 83, 83, 83, 83, 83]);
        // Jobs with small demands leave the queue's maximum to the others, up to the user limit.
        (0..5).for_each(|job| {
            shares.on_change(&DemandChange::Open { ask: job, count: 70, needed: 70, rank: 0 });
        });
        shares.review();
        assert_eq!(shares.of(5).0[0], 150);
    }

    /// A job's part of the cluster may be too small for the unit of shares.
    #[test]
    fn weights_of_queues_may_differ_by_any_factor() {
        let queue = |name: &str, weight| QueueSpec { weight, ..QueueSpec::named(name) };
        let tree =
            QueueTree::new(vec![queue("root.small", 1), queue("root.large", 1_000_000_000)]).expect("a valid tree");
        let leaves = ["root.small", "root.large"].map(|name| tree.find(name).expect("a configured queue"));
        let mut shares = Shares::new(tree);
        shares.on_change(&DemandChange::Capacity(Totals([1_000; WIDTH])));
        for (job, queue) in (0..).zip([leaves[0], leaves[0], leaves[1]]) {
            shares.on_change(&DemandChange::JobAdded { job, id: JobId(1), queue, user: UserId(0), priority: 0 });
            shares.review();
        }
        assert_eq!(shares.of(2).0[0], 999);
    }

    #[test]
    fn shares_are_computed_rarely_and_sent_ones_are_nearly_exact() {
        for jobs in [2, 10, 40] {
            let (worst, found) = worst_of(2_000, jobs, 1);
            assert!(worst < 0.1 && found < 100, "{jobs} jobs: computed {found} times, off by {worst}");
            // Small uses of a kind that is full cause more computations.
            let (worst, _) = worst_of(2_000, jobs, 4);
            assert!(worst < 0.1, "{jobs} jobs, four kinds: off by {worst}");
        }
    }
}
