//! What each job is entitled to, for job managers that plan by it (Carbyne 3.3, lines 8 to 15 of its pseudocode): its fair
//! dominant share in closed form, found anew when what jobs want has changed.
//!
//! A share is a part of the cluster, the same of every kind: a job that runs long on one kind of resource needs another
//! tomorrow. It is never less than the job's part by weights, which is its own whatever the others want, and which it may
//! plan with although it wants less today. What a job wants is all that its running and its runnable tasks hold together.

use super::queue_tree::WHOLE;
use super::{Demand, QueueTree, fair_shares};
use crate::policy::{AskSlot, DemandChange, JobSlot};
use crate::vocabulary::{QueueId, Resources, Totals};

/// A job is told its share when what it knows is off by one part in so many.
const TOLD_WITHIN: u64 = 16;

/// All of the cluster, where weights are parts of it.
const WHOLE_PART: u64 = 1_000_000_000;

pub struct Shares {
    tree: QueueTree,
    capacity: Totals,
    jobs: Vec<Option<Entitled>>,
    asks: Vec<Option<Asked>>,
    /// Jobs by leaf, and by all queues above it.
    jobs_below: Vec<u32>,
    /// Something has changed by which shares may differ.
    stale: bool,
}

struct Entitled {
    queue: QueueId,
    wants: Totals,
    /// In millionths of the cluster.
    share: u64,
    told: Option<u64>,
}

struct Asked {
    job: JobSlot,
    shape: Resources,
    open: u64,
}

impl Shares {
    pub fn new(tree: QueueTree) -> Shares {
        let jobs_below = vec![0; tree.len()];
        Shares { tree, capacity: Totals::ZERO, jobs: Vec::new(), asks: Vec::new(), jobs_below, stale: false }
    }

    pub fn on_change(&mut self, change: &DemandChange) {
        match *change {
            DemandChange::Capacity(total) => {
                self.capacity = total;
                self.stale = true;
            }
            DemandChange::JobAdded { job, queue, .. } => {
                put(&mut self.jobs, job, Entitled { queue, wants: Totals::ZERO, share: 0, told: None });
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
            DemandChange::Taken { job, resources } => {
                self.job_mut(job).wants.add(&resources);
                self.stale = true;
            }
            DemandChange::Freed { job, resources } => {
                self.job_mut(job).wants.sub(&resources);
                self.stale |= self.is_met(job);
            }
            DemandChange::Work { .. } | DemandChange::Class { .. } | DemandChange::RoomOpened => {}
        }
    }

    /// What was open is held from now on: the job wants as much as before.
    pub fn on_started(&mut self, ask: AskSlot) {
        let asked = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        asked.open = asked.open.checked_sub(1).expect("only what is open starts");
    }

    /// Finds the shares anew where something has changed. Returns the jobs that are to be told, by slot.
    pub fn review(&mut self) -> Vec<JobSlot> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        let slots: Vec<JobSlot> =
            (0..self.jobs.len() as JobSlot).filter(|&job| self.jobs[job as usize].is_some()).collect();
        let weights: Vec<u64> = slots.iter().map(|&job| self.part_by_weight(job)).collect();
        let wants = slots.iter().map(|&job| self.job(job).wants);
        let demands: Vec<Demand> = weights.iter().zip(wants).map(|(&weight, wants)| Demand { weight, wants }).collect();
        let shares = fair_shares(&demands, &self.capacity);
        let mut to_tell = Vec::new();
        for ((&job, &weight), fair) in slots.iter().zip(&weights).zip(shares) {
            let guaranteed = weight / (WHOLE_PART / u64::from(WHOLE));
            let entry = self.job_mut(job);
            entry.share = fair.max(guaranteed);
            if entry.told.is_none_or(|told| told.abs_diff(entry.share) * TOLD_WITHIN > told) {
                entry.told = Some(entry.share);
                to_tell.push(job);
            }
        }
        to_tell
    }

    /// As it was told last.
    pub fn of(&self, job: JobSlot) -> Totals {
        let share = u128::from(self.job(job).told.unwrap_or_default());
        Totals(self.capacity.0.map(|amount| (u128::from(amount) * share / u128::from(WHOLE)) as u64))
    }

    fn part_by_weight(&self, job: JobSlot) -> u64 {
        let queue = self.job(job).queue;
        let part = self.tree.part_by_weight(queue, WHOLE_PART, |queue| self.jobs_below[queue.0 as usize] > 0);
        part / u64::from(self.jobs_below[queue.0 as usize].max(1))
    }

    fn set_open(&mut self, ask: AskSlot, count: u64) {
        let Asked { job, shape, open } = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        let (job, shape, before) = (*job, *shape, std::mem::replace(open, count));
        if before == count {
            return;
        }
        // What it wants is of other kinds now.
        self.stale |= before == 0 || count == 0 || self.is_met(job);
        let wants = &mut self.job_mut(job).wants;
        for (wanted, &of_one) in wants.0.iter_mut().zip(&shape.0) {
            let (less, more) = (u64::from(of_one).saturating_mul(before), u64::from(of_one).saturating_mul(count));
            *wanted = wanted.saturating_sub(less).saturating_add(more);
        }
        self.stale |= self.is_met(job);
    }

    /// Who wants more than its share before a change and after it moves nobody's share.
    fn is_met(&self, job: JobSlot) -> bool {
        let entry = self.job(job);
        entry.wants.dominant_share(&self.capacity) <= entry.share
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

    fn job(&self, job: JobSlot) -> &Entitled {
        self.jobs[job as usize].as_ref().expect("a job slot in use")
    }

    fn job_mut(&mut self, job: JobSlot) -> &mut Entitled {
        self.jobs[job as usize].as_mut().expect("a job slot in use")
    }
}

fn put<T>(slots: &mut Vec<Option<T>>, slot: u32, value: T) {
    if slots.len() <= slot as usize {
        slots.resize_with(slot as usize + 1, || None);
    }
    slots[slot as usize] = Some(value);
}
