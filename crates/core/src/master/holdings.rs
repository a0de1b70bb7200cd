//! Resources that the tasks of each queue hold in a cluster of a federation, without attempts that are being preempted.

use crate::scheduling::{Booking, BookingChange, Ledger};
use crate::vocabulary::{JobId, NodeId, QueueId, Resources, Totals};
use std::collections::BTreeMap;

pub(super) struct Holdings {
    jobs: BTreeMap<JobId, JobHeld>,
    /// The queues of jobs that had started when their global masters introduced themselves.
    announced: BTreeMap<JobId, QueueId>,
    usage: BTreeMap<QueueId, Totals>,
    /// By the index of the node, sorted by queue. Kept only if queues have shares; otherwise it is not needed.
    on_nodes: Option<Vec<Vec<(QueueId, Resources)>>>,
}

/// A job with tasks here.
#[derive(Default)]
struct JobHeld {
    /// Unknown for a job that runs since before this incarnation, until its global master reports it.
    queue: Option<QueueId>,
    bookings: u32,
}

impl Holdings {
    pub(super) fn new(has_shares: bool) -> Holdings {
        let on_nodes = has_shares.then(Vec::new);
        Holdings { jobs: BTreeMap::new(), announced: BTreeMap::new(), usage: BTreeMap::new(), on_nodes }
    }

    pub(super) fn usage(&self) -> Vec<(QueueId, Totals)> {
        self.usage.iter().map(|(queue, used)| (*queue, *used)).collect()
    }

    pub(super) fn on_node(&self, index: usize) -> Box<[(QueueId, Resources)]> {
        self.on_nodes.as_ref().map_or_else(Box::default, |nodes| held(nodes, index).into())
    }

    pub(super) fn queue_of(&self, job: JobId) -> Option<QueueId> {
        self.jobs.get(&job)?.queue
    }

    pub(super) fn apply(&mut self, booking: &Booking, change: BookingChange, index: usize) {
        if change == BookingChange::Booked {
            let queue = self.announced.get(&booking.job).copied();
            self.jobs.entry(booking.job).or_insert(JobHeld { queue, bookings: 0 }).bookings += 1;
        }
        let Some(entry) = self.jobs.get_mut(&booking.job) else { return };
        let queue = entry.queue;
        if let BookingChange::Freed { .. } = change {
            entry.bookings -= 1;
            if entry.bookings == 0 {
                self.jobs.remove(&booking.job);
            }
        }
        let Some(queue) = queue else { return };
        match change {
            BookingChange::Booked | BookingChange::Stays => self.add(queue, &booking.resources, index),
            BookingChange::Preempted | BookingChange::Freed { was_preempted: false } => {
                self.sub(queue, &booking.resources, index);
            }
            BookingChange::Freed { was_preempted: true } => {}
        }
    }

    fn add(&mut self, queue: QueueId, resources: &Resources, index: usize) {
        self.usage.entry(queue).or_default().add(resources);
        let Some(nodes) = &mut self.on_nodes else { return };
        if nodes.len() <= index {
            nodes.resize(index + 1, Vec::new());
        }
        match nodes[index].binary_search_by_key(&queue, |(queue, _)| *queue) {
            Ok(at) => nodes[index][at].1 = nodes[index][at].1.saturating_add(resources),
            Err(at) => nodes[index].insert(at, (queue, *resources)),
        }
    }

    fn sub(&mut self, queue: QueueId, resources: &Resources, index: usize) {
        let used = self.usage.entry(queue).or_default();
        used.sub(resources);
        if *used == Totals::ZERO {
            self.usage.remove(&queue);
        }
        let Some(held) = self.on_nodes.as_mut().and_then(|nodes| nodes.get_mut(index)) else { return };
        if let Ok(at) = held.binary_search_by_key(&queue, |(queue, _)| *queue) {
            held[at].1 = held[at].1.saturating_sub(resources);
            if held[at].1.is_zero() {
                held.remove(at);
            }
        }
    }

    /// Sets the queue of a job that proposes a launch, if it is unknown. True if bookings of the job exist that were
    /// not counted before.
    pub(super) fn learn(&mut self, job: JobId, queue: QueueId) -> bool {
        let entry = self.jobs.entry(job).or_default();
        let is_new = entry.queue.is_none();
        entry.queue.get_or_insert(queue);
        is_new && entry.bookings > 0
    }

    /// Sets the queues of all started jobs of a global master; `is_its` returns whether a job belongs to it.
    pub(super) fn learn_all(&mut self, jobs: &[(JobId, QueueId)], is_its: impl Fn(JobId) -> bool) {
        self.announced.retain(|job, _| !is_its(*job));
        for (job, queue) in jobs.iter().filter(|(job, _)| is_its(*job)) {
            self.announced.insert(*job, *queue);
            if let Some(entry) = self.jobs.get_mut(job) {
                entry.queue = Some(*queue);
            }
        }
    }

    /// Counts all bookings again, with the queues that are known now. Returns the nodes whose counts have changed.
    pub(super) fn count(&mut self, ledger: &Ledger) -> Vec<NodeId> {
        self.usage.clear();
        let before = self.on_nodes.as_mut().map(std::mem::take);
        for node in ledger.ids() {
            for booking in ledger.staying_on(node) {
                if let Some(queue) = self.queue_of(booking.job) {
                    self.add(queue, &booking.resources, ledger.index(node));
                }
            }
        }
        let (Some(before), Some(now)) = (before, &self.on_nodes) else { return Vec::new() };
        let is_other = |node: &NodeId| held(&before, ledger.index(*node)) != held(now, ledger.index(*node));
        ledger.ids().filter(is_other).collect()
    }

    /// Whether a booking counts for this queue.
    pub(super) fn is_of(&self, booking: &Booking, queue: QueueId) -> bool {
        self.queue_of(booking.job) == Some(queue)
    }
}

fn held(nodes: &[Vec<(QueueId, Resources)>], index: usize) -> &[(QueueId, Resources)] {
    nodes.get(index).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, GrantId};

    const NODE: NodeId = NodeId(0);
    const QUEUE: QueueId = QueueId(3);
    const HELD: Resources = Resources::new(1_500, 0);

    fn booking(job: u64) -> Booking {
        let grant = GrantId { epoch: Epoch(1), number: job, slot: 0 };
        Booking { grant, job: JobId(job), node: NODE, resources: HELD }
    }

    #[test]
    fn bookings_that_are_being_preempted_are_not_counted_unless_they_stay() {
        let mut holdings = Holdings::new(true);
        holdings.learn_all(&[(JobId(1), QUEUE), (JobId(2), QUEUE)], |_| true);
        let totals = |times| {
            let mut totals = Totals::ZERO;
            totals.add_times(&HELD, times);
            totals
        };
        let freed = |was_preempted| BookingChange::Freed { was_preempted };
        let story = [
            (1, BookingChange::Booked, 1),
            (2, BookingChange::Booked, 2),
            (1, BookingChange::Preempted, 1),
            (1, BookingChange::Stays, 2),
            (1, BookingChange::Preempted, 1),
            (1, freed(true), 1),
            (2, freed(false), 0),
        ];
        for (job, change, left) in story {
            holdings.apply(&booking(job), change, 5);
            let usage: Vec<(QueueId, Totals)> = (left > 0).then_some((QUEUE, totals(left))).into_iter().collect();
            assert_eq!(holdings.usage(), usage, "job {job}: {change:?}");
            let on_node: Vec<u32> = holdings.on_node(5).iter().map(|(_, held)| held.cpu_millis() / 1_500).collect();
            assert_eq!(on_node, if left > 0 { vec![left as u32] } else { vec![] });
        }
        assert!(holdings.jobs.is_empty() && holdings.on_node(4).is_empty());
    }

    #[test]
    fn nodes_are_reported_again_once_the_queues_of_their_tasks_are_known() {
        let mut ledger = Ledger::new();
        ledger.join(NODE, Resources::new(4_000, 0), crate::vocabulary::Attributes::default());
        ledger.adopt(booking(1));
        let mut holdings = Holdings::new(true);
        holdings.apply(&booking(1), BookingChange::Booked, 0);
        assert!(holdings.on_node(0).is_empty(), "its queue is not known");
        holdings.learn_all(&[(JobId(1), QUEUE), (JobId(2), QUEUE)], |job| job == JobId(1));
        assert_eq!(holdings.count(&ledger), [NODE]);
        assert_eq!(*holdings.on_node(0), [(QUEUE, HELD)]);
        assert_eq!(holdings.count(&ledger), [], "nothing is new");
        assert!(!holdings.learn(JobId(1), QueueId(9)), "a job's queue stays");
        assert_eq!(holdings.queue_of(JobId(1)), Some(QUEUE));
    }
}
