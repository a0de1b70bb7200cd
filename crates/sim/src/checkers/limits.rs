//! Every start keeps the limits of its queue, of the queue's parents and of its user.
//!
//! Shares limit booked resources. Work that job managers place themselves is not booked, so only the limit on running
//! jobs applies to it (ADR 30).

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::dispatch::JobState;
use amalgam_core::master::Master;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::scheduling::{Booking, Ledger};
use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{Epoch, JobId, NodeId, NodeViews, QueueId, Totals};
use std::collections::{BTreeMap, BTreeSet};

/// The whole cluster, in millionths.
const WHOLE: u32 = 1_000_000;

/// Sums all bookings after every event, and checks the new ones.
#[derive(Default)]
pub struct Limits {
    known: BTreeSet<(Epoch, u64)>,
    newest: (Epoch, u64),
    capacity: Totals,
    /// Starts in queues with a limit.
    limited: u64,
    /// Starts after which the limit leaves no room for another task of the same shape.
    bound_by_queue: u64,
    bound_by_user: u64,
}

/// A booking of a running job.
struct Use<'a> {
    booking: Booking,
    job: &'a AdmittedJob,
    queue: QueueId,
}

/// The cluster's resources.
struct Capacity {
    /// Of which queues and users may have parts.
    shared: Totals,
    /// All that can be booked at the same time.
    whole: Totals,
}

/// What stays booked on nodes beyond their capacities.
fn beyond(ledger: &Ledger) -> Totals {
    let mut all = Totals::ZERO;
    for node in ledger.ids() {
        let (mut booked, mut capacity) = (Totals::ZERO, Totals::ZERO);
        ledger.staying_on(node).for_each(|booking| booked.add(&booking.resources));
        capacity.add(&ledger.node_capacity(node));
        all = all.zip(&booked.saturating_sub(&capacity), |all, more| all + more);
    }
    all
}

impl Limits {
    fn check_starts(&mut self, master: &Master, queues: &QueueTree) -> Result<(), Breach> {
        let (ledger, known, newest) = (master.ledger(), std::mem::take(&mut self.known), self.newest);
        let mut uses = Vec::new();
        // What is being preempted holds its room until its end, beside its successor.
        for booking in (0..ledger.len()).flat_map(|node| ledger.staying_on(NodeId(node as u32))) {
            let number = (booking.grant.epoch, booking.grant.number);
            self.known.insert(number);
            self.newest = self.newest.max(number);
            // Bookings that were adopted now were started earlier.
            if number > newest || known.contains(&number) {
                uses.extend(Limits::usage(master, booking));
            }
        }
        // Nodes may have left after the start, in the same turn.
        let before = std::mem::replace(&mut self.capacity, *ledger.capacity());
        let capacity = larger_of(&before, &self.capacity);
        // A node that registers again keeps what was being preempted there beside its successor.
        let whole = capacity.zip(&beyond(ledger), |capacity, beyond| capacity + beyond);
        let capacity = Capacity { shared: capacity, whole };
        let is_new = |entry: &&Use<'_>| (entry.booking.grant.epoch, entry.booking.grant.number) > newest;
        for start in uses.iter().filter(is_new) {
            check_start(start, &uses, queues, &capacity)?;
            if is_limited(queues, start.queue) {
                self.limited += 1;
                self.bound_by_user += u64::from(limit_of_user(start, 1, &uses, queues, &capacity));
                self.bound_by_queue += u64::from(limit_of_queues(start, 1, &uses, queues, &capacity).is_some());
            }
        }
        Ok(())
    }

    fn usage(master: &Master, booking: Booking) -> Option<Use<'_>> {
        let (job, state) = master.dispatch().job(booking.job)?;
        let queue = master.dispatch().queue_of(booking.job)?;
        (*state == JobState::Started).then_some(Use { booking, job, queue })
    }
}

fn check_start(start: &Use<'_>, uses: &[Use<'_>], queues: &QueueTree, capacity: &Capacity) -> Result<(), Breach> {
    let breach = |what: String| Err(Breach::of_job(start.job.id, what));
    if limit_of_user(start, 0, uses, queues, capacity) {
        let queue = &queues.spec(start.queue).name;
        return breach(format!("{} exceeds the limit of its user in {queue}", start.booking.grant));
    }
    match limit_of_queues(start, 0, uses, queues, capacity) {
        Some(queue) => breach(format!("{} exceeds the maximum of {queue}", start.booking.grant)),
        None => Ok(()),
    }
}

/// Whether the start, with `more` more like it, exceeds the limit of its user.
fn limit_of_user(start: &Use<'_>, more: u64, uses: &[Use<'_>], queues: &QueueTree, capacity: &Capacity) -> bool {
    let of_user = uses.iter().filter(|other| other.queue == start.queue && other.job.user == start.job.user);
    exceeds(start, more, of_user, capacity, queues.spec(start.queue).user_limit)
}

/// The queue whose maximum the start, with `more` more like it, exceeds: its own or a parent.
fn limit_of_queues<'a>(
    start: &Use<'_>,
    more: u64,
    uses: &[Use<'_>],
    queues: &'a QueueTree,
    capacity: &Capacity,
) -> Option<&'a str> {
    let chain = std::iter::successors(Some(start.queue), |queue| queues.parent(*queue));
    let mut passed = chain.filter(|queue| {
        let within = uses.iter().filter(|other| is_within(queues, other.queue, *queue));
        exceeds(start, more, within, capacity, queues.spec(*queue).maximum)
    });
    passed.next().map(|queue| queues.spec(queue).name.as_str())
}

/// Whether these uses, with `more` more like the start, exceed a share of the cluster, in millionths, in a kind that
/// the start uses.
fn exceeds<'a>(
    start: &Use<'_>,
    more: u64,
    uses: impl Iterator<Item = &'a Use<'a>>,
    capacity: &Capacity,
    share: u32,
) -> bool {
    let mut used = Totals::ZERO;
    uses.for_each(|other| used.add(&other.booking.resources));
    let limit = |kind: usize| match share {
        WHOLE => capacity.whole.0[kind],
        share => (u128::from(capacity.shared.0[kind]) * u128::from(share) / 1_000_000) as u64,
    };
    let taken = |kind: usize| u64::from(start.booking.resources.0[kind]);
    let counts = more == 0 || share < WHOLE;
    (0..WIDTH).any(|kind| counts && taken(kind) > 0 && used.0[kind] + more * taken(kind) > limit(kind))
}

fn is_within(queues: &QueueTree, mut queue: QueueId, ancestor: QueueId) -> bool {
    while queue != ancestor {
        match queues.parent(queue) {
            Some(parent) => queue = parent,
            None => return false,
        }
    }
    true
}

/// Whether the queue has a limit on shares, of its own or from a parent.
fn is_limited(queues: &QueueTree, queue: QueueId) -> bool {
    let spec = queues.spec(queue);
    let of_parent = queues.parent(queue).is_some_and(|parent| is_limited(queues, parent));
    spec.maximum < WHOLE || spec.user_limit < WHOLE || of_parent
}

fn larger_of(a: &Totals, b: &Totals) -> Totals {
    let mut larger = *a;
    larger.0.iter_mut().zip(b.0).for_each(|(amount, other)| *amount = other.max(*amount));
    larger
}

fn check_job_counts(master: &Master, queues: &QueueTree) -> Result<(), Breach> {
    let mut running: BTreeMap<QueueId, u32> = BTreeMap::new();
    for (job, _) in master.dispatch().jobs_from(JobId(0)).filter(|(_, state)| **state == JobState::Started) {
        let Some(queue) = master.dispatch().queue_of(job.id) else { continue };
        let count = running.entry(queue).or_default();
        *count += 1;
        let spec = queues.spec(queue);
        if spec.max_running_jobs.is_some_and(|limit| *count > limit) {
            return Err(Breach::of_job(job.id, format!("{} runs more jobs than its limit", spec.name)));
        }
    }
    Ok(())
}

impl Checker for Limits {
    fn rule(&self) -> &'static str {
        "limits of queues and users hold at every start"
    }

    /// Starts in queues with a limit.
    fn subjects(&self) -> u64 {
        self.limited
    }

    fn saw(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("start that fills its queue's maximum", self.bound_by_queue),
            ("start that fills its user's limit", self.bound_by_user),
        ]
    }

    fn check(&mut self, world: &Simulation, _happened: &[Happening]) -> Result<(), Breach> {
        let Some(master) = world.master().filter(|_| world.server_moved()) else { return Ok(()) };
        let queues = &world.settings().queues;
        check_job_counts(master, queues)?;
        self.check_starts(master, queues)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::world_with_a_task;
    use amalgam_core::vocabulary::QueueSpec;

    fn check(spec: QueueSpec) -> Result<(), Breach> {
        let world = world_with_a_task();
        let queues = QueueTree::new(vec![spec]).unwrap();
        let master = world.master().unwrap();
        check_job_counts(master, &queues)?;
        Limits::default().check_starts(master, &queues)
    }

    /// The master knows no limits, so it exceeds the limits of this test.
    #[test]
    fn starts_past_a_limit_are_noticed() {
        let named = || QueueSpec::named("root.default");
        assert_eq!(check(named()), Ok(()));
        assert!(check(QueueSpec { maximum: 400_000, ..named() }).is_err());
        assert!(check(QueueSpec { user_limit: 400_000, ..named() }).is_err());
        assert!(check(QueueSpec { max_running_jobs: Some(0), ..named() }).is_err());
    }
}
