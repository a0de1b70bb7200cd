//! The asks of jobs, in slots with which policies index their vectors.

use super::locality::Reach;
use super::predicting::Waiting;
use crate::policy::node_speeds::Ratios;
use crate::policy::{AskSlot, JobSlot};
use crate::protocol::Holder;
use crate::vocabulary::{AskId, Duration, ExecutionType, Instant, JobId, Resources};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub struct RequestQueue {
    asks: Vec<Option<OpenRequest>>,
    free_asks: Vec<AskSlot>,
    ask_slots: BTreeMap<AskId, AskSlot>,
    jobs: Vec<Option<JobEntry>>,
    free_jobs: Vec<JobSlot>,
    job_slots: BTreeMap<JobId, JobSlot>,
}

/// A counted request, and how much of it was met.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    pub id: AskId,
    pub job: JobSlot,
    pub shape: Resources,
    /// The class of the nodes that it may use now.
    pub class: u32,
    /// The class of the nodes that meet its constraints.
    pub widest_class: u32,
    pub locality: Arc<Vec<Holder>>,
    pub reach: Reach,
    /// When its delays started.
    pub delayed_since: Instant,
    pub execution: ExecutionType,
    /// All of its open tasks are granted at once, or none.
    pub is_gang: bool,
    /// Among all asks of its queue.
    pub priority: i32,
    /// How long a task probably runs, and after how long it is stopped.
    pub expected: Option<Duration>,
    pub limit: Option<Duration>,
    /// Total since the job started.
    pub wanted: u64,
    /// How many of these are duplicates of slow tasks, which are granted last.
    pub duplicates: u64,
    /// Total since the job started.
    pub granted: u64,
    /// Since when nothing of it was granted although tasks were open.
    pub waiting_since: Instant,
    /// The ledger's count of growths of room when no node had room for it.
    pub no_room_at: Option<u64>,
    /// The run times of its tasks that have ended, compared with what was expected.
    pub ratios: Ratios,
    /// Predictions for its open tasks.
    pub waiting: Waiting,
}

#[derive(Clone, Debug)]
pub struct JobEntry {
    pub id: JobId,
    /// Whether all tasks of some of its stages start together.
    pub has_gangs: bool,
    pub asks: Vec<AskSlot>,
    /// Grants that have not been freed.
    pub bookings: u32,
    pub ended: bool,
}

impl OpenRequest {
    /// When a task that starts now ends, as far as that is known, and when it is stopped.
    pub fn ends(&self, now: Instant) -> (Option<Instant>, Option<Instant>) {
        let limit = self.limit.map(|limit| now + limit);
        (self.expected.map(|expected| now + expected).into_iter().chain(limit).min(), limit)
    }

    pub fn open(&self) -> u64 {
        self.wanted.saturating_sub(self.granted)
    }

    /// Whether more is open than duplicates, for which no other work has to leave.
    pub fn has_tasks(&self) -> bool {
        self.open() > self.duplicates
    }
}

impl RequestQueue {
    pub fn add_job(&mut self, id: JobId, has_gangs: bool) -> JobSlot {
        let slot = self.free_jobs.pop().unwrap_or(self.jobs.len() as JobSlot);
        let entry = Some(JobEntry { id, has_gangs, asks: Vec::new(), bookings: 0, ended: false });
        if slot as usize == self.jobs.len() {
            self.jobs.push(entry);
        } else {
            self.jobs[slot as usize] = entry;
        }
        self.job_slots.insert(id, slot);
        slot
    }

    pub fn job_slot(&self, id: JobId) -> Option<JobSlot> {
        self.job_slots.get(&id).copied()
    }

    pub fn job(&self, slot: JobSlot) -> &JobEntry {
        self.jobs[slot as usize].as_ref().expect("a job slot in use")
    }

    pub fn job_mut(&mut self, slot: JobSlot) -> &mut JobEntry {
        self.jobs[slot as usize].as_mut().expect("a job slot in use")
    }

    /// Removes a job that has no asks and no bookings left.
    pub fn remove_job(&mut self, slot: JobSlot) {
        let job = self.jobs[slot as usize].take().expect("a job slot in use");
        assert!(job.asks.is_empty() && job.bookings == 0, "job {} still has asks or bookings", job.id);
        self.job_slots.remove(&job.id);
        self.free_jobs.push(slot);
    }

    pub fn add_ask(&mut self, request: OpenRequest) -> AskSlot {
        let slot = self.free_asks.pop().unwrap_or(self.asks.len() as AskSlot);
        self.ask_slots.insert(request.id, slot);
        self.job_mut(request.job).asks.push(slot);
        if slot as usize == self.asks.len() {
            self.asks.push(Some(request));
        } else {
            self.asks[slot as usize] = Some(request);
        }
        slot
    }

    pub fn ask_slot(&self, id: AskId) -> Option<AskSlot> {
        self.ask_slots.get(&id).copied()
    }

    pub fn ask(&self, slot: AskSlot) -> &OpenRequest {
        self.asks[slot as usize].as_ref().expect("an ask slot in use")
    }

    pub fn ask_mut(&mut self, slot: AskSlot) -> &mut OpenRequest {
        self.asks[slot as usize].as_mut().expect("an ask slot in use")
    }

    pub fn remove_ask(&mut self, slot: AskSlot) {
        let ask = self.asks[slot as usize].take().expect("an ask slot in use");
        self.ask_slots.remove(&ask.id);
        self.job_mut(ask.job).asks.retain(|&other| other != slot);
        self.free_asks.push(slot);
    }

    /// The asks in `most` slots from this one on.
    pub fn asks_from(&mut self, slot: AskSlot, most: usize) -> impl Iterator<Item = &mut OpenRequest> {
        self.asks.iter_mut().skip(slot as usize).take(most).flatten()
    }

    pub fn slots(&self) -> usize {
        self.asks.len()
    }

    /// Tasks that were requested and not granted.
    pub fn open_tasks(&self) -> u64 {
        self.asks.iter().flatten().map(OpenRequest::open).sum()
    }
}
