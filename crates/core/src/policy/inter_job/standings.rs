//! What jobs are entitled to where a job's work beyond that may be preempted: queues get their fair shares, and within a
//! queue the first job of the order gets all that it has use for, then the next, up to the share of the queue.

use super::fair_deadlines::{FairJob, order};
use super::queue_tree::WHOLE;
use super::{Accounts, Demand, fair_shares};
use crate::policy::{JobSlot, Standing};
use crate::vocabulary::{JobId, QueueId, Resources, Totals};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A job in its queue's order: higher priority first, then the smaller rank, then the smaller id.
type Place = (Reverse<i32>, u64, JobId, JobSlot);

/// Of all jobs that hold resources or have open asks. Takes O(n log n) steps for n of them.
pub(super) fn standings(accounts: &mut Accounts, rank: impl Fn(&Accounts, JobSlot) -> u64) -> Vec<Standing> {
    let mut queues: BTreeMap<QueueId, Vec<Place>> = BTreeMap::new();
    for slot in accounts.active_jobs() {
        let job = accounts.job(slot);
        queues.entry(job.queue).or_default().push((Reverse(job.priority()), 0, job.id, slot));
    }
    for queue in accounts.tree.leaves().filter(|queue| !queues.contains_key(queue)).collect::<Vec<_>>() {
        accounts.queues[queue.0 as usize].clock.set_level(u64::MAX, 0);
    }
    let mut all = Vec::new();
    let shares = shares(accounts, &queues);
    for (share, (queue, line)) in shares.into_iter().zip(queues) {
        of_queue(accounts, queue, line, share, &rank, &mut all);
    }
    all
}

/// Of the jobs of the same queue as if all queues had work, so that none is lent anything; of that one job. Takes O(n log n) steps for
/// n jobs of the queue.
pub(super) fn standing_if_all_have_work(
    accounts: &mut Accounts,
    of: JobSlot,
    rank: impl Fn(&Accounts, JobSlot) -> u64,
) -> Option<Standing> {
    let queue = accounts.job(of).queue;
    let in_queue: Vec<JobSlot> = accounts.active_jobs().filter(|job| accounts.job(*job).queue == queue).collect();
    let place = |slot: &JobSlot| (Reverse(accounts.job(*slot).priority()), 0, accounts.job(*slot).id, *slot);
    let line = in_queue.iter().map(place).collect();
    let tree = &accounts.tree;
    let above = std::iter::successors(Some(queue), |queue| tree.parent(*queue));
    let most = above.map(|queue| u64::from(tree.spec(queue).maximum)).min().unwrap_or_default();
    let share = tree.part_of_cluster(queue, &|_| true).min(most);
    let mut all = Vec::new();
    of_queue(accounts, queue, line, share, &rank, &mut all);
    all.into_iter().find(|standing| standing.job == of)
}

/// Appends the standings of the jobs of a queue that has this share of the cluster, in its order.
fn of_queue(
    accounts: &mut Accounts,
    queue: QueueId,
    mut line: Vec<Place>,
    share: u64,
    rank: &impl Fn(&Accounts, JobSlot) -> u64,
    all: &mut Vec<Standing>,
) {
    set_level(accounts, queue, &line, share);
    let mut left = Totals(accounts.capacity.0.map(|amount| of_whole(amount, share)));
    set_places(accounts, queue, &mut line);
    line.iter_mut().for_each(|place| place.1 = rank(accounts, place.3));
    line.sort_unstable();
    for (_, _, _, job) in line {
        let due = part_within(&accounts.job(job).wanted, &left);
        left = left.saturating_sub(&due);
        all.push(Standing { job, used: accounts.job(job).used, due, is_wide: accounts.is_wide(job) });
    }
}

impl Accounts {
    /// Whether a queue below the root that has the job, and not the other one, is guaranteed what it would hold with this much more.
    pub(super) fn is_guaranteed(&self, job: JobSlot, more: &Resources, other: Option<JobSlot>) -> bool {
        let queues = |job| std::iter::successors(Some(self.job(job).queue), |queue| self.tree.parent(*queue));
        let has_other = |queue: QueueId| other.is_some_and(|other| queues(other).any(|of_other| of_other == queue));
        let own = queues(job).take_while(|queue| self.tree.parent(*queue).is_some() && !has_other(*queue));
        own.into_iter().any(|queue| {
            let mut with = self.queues[queue.0 as usize].used;
            with.add(more);
            with.dominant_share(&self.capacity) <= u64::from(self.tree.spec(queue).guaranteed)
        })
    }
}

/// The share of each queue that has jobs: the same fraction of every kind of resource.
fn shares(accounts: &Accounts, queues: &BTreeMap<QueueId, Vec<Place>>) -> Vec<u64> {
    let tree = &accounts.tree;
    let above = |queue: QueueId| std::iter::successors(Some(queue), |queue| tree.parent(*queue));
    let active: BTreeSet<QueueId> = queues.keys().flat_map(|queue| above(*queue)).collect();
    let is_active = |queue: QueueId| active.contains(&queue);
    let demand = |(&queue, line): (&QueueId, &Vec<Place>)| {
        let wanted =
            line.iter().fold(Totals::ZERO, |sum, place| sum.zip(&accounts.job(place.3).wanted, u64::saturating_add));
        let most = above(queue).map(|queue| u64::from(tree.spec(queue).maximum)).min().unwrap_or_default();
        Demand { weight: tree.part_of_cluster(queue, &is_active).max(1), wanted, most }
    };
    let demands: Vec<Demand> = queues.iter().map(demand).collect();
    let fair = fair_shares(&demands, &accounts.capacity);
    fair.iter().map(|fair| fair.share).collect()
}

/// Jobs that want less than the level get that; the others would have the level if they were equal.
fn set_level(accounts: &mut Accounts, queue: QueueId, line: &[Place], share: u64) {
    let mut wanted: Vec<u64> =
        line.iter().map(|place| accounts.job(place.3).wanted.dominant_share(&accounts.capacity)).collect();
    wanted.sort_unstable();
    let (mut left, mut wide) = (share, wanted.len() as u64);
    for wanted in wanted {
        if wanted > left / wide {
            break;
        }
        left -= wanted;
        wide -= 1;
    }
    accounts.queues[queue.0 as usize].clock.set_level(left.checked_div(wide).unwrap_or(u64::MAX), wide);
}

/// Places the jobs that want more than the level in the order of their deadlines with fair shares.
fn set_places(accounts: &mut Accounts, queue: QueueId, line: &mut [Place]) {
    line.sort_unstable_by_key(|place| place.2);
    let wide: Vec<JobSlot> = line.iter().map(|place| place.3).filter(|job| accounts.is_wide(*job)).collect();
    let jobs: Vec<FairJob> = wide.iter().map(|job| accounts.fair_job(*job)).collect();
    let gone: Vec<u64> = accounts.clock(queue).gone().collect();
    for (place, job) in (0..).zip(order(&jobs, &gone)) {
        accounts.job_mut(wide[job]).fair.place = Some(place);
    }
}

fn of_whole(amount: u64, millionths: u64) -> u64 {
    (u128::from(amount) * u128::from(millionths)).div_ceil(u128::from(WHOLE)) as u64
}

/// All that is wanted, or the same fraction of every kind that is left.
fn part_within(wanted: &Totals, left: &Totals) -> Totals {
    if wanted.fits_in(left) {
        return *wanted;
    }
    let kinds = wanted.0.iter().zip(&left.0).filter(|(wanted, _)| **wanted > 0);
    let smallest = kinds.map(|(&wanted, &left)| (u128::from(left.min(wanted)), u128::from(wanted)));
    let (part, of) = smallest.reduce(|a, b| if a.0 * b.1 <= b.0 * a.1 { a } else { b }).unwrap_or((0, 1));
    Totals(wanted.0.map(|wanted| (u128::from(wanted) * part / of) as u64))
}
