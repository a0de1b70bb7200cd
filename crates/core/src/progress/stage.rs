//! One stage of a job: the states of its tasks. Untouched tasks are stored as ranges: only launched tasks need a record each.

use super::chosen::HeldTasks;
use super::estimate::Estimate;
use super::records::Records;
use super::usage::Spent;
use crate::vocabulary::{
    AttemptId, Duration, EndReason, Ended, Epoch, Instant, JobId, NodeId, OUTPUT_UNWRITTEN, Spans, StageSpec,
};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of task messages that a stage keeps; the story has all of them.
pub(super) const KEPT_MESSAGES: usize = 1_000;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stage {
    pub total: u32,
    /// Number of dependencies that have not succeeded yet.
    pub inputs_missing: u32,
    pub dependents: Vec<u32>,
    /// Tasks that were never launched, may start, and are not in the line.
    pub(crate) fresh: Spans,
    /// Other tasks that may start: the largest input first, then the smallest index.
    pub(crate) line: BTreeSet<(Reverse<u32>, u32)>,
    /// Tasks that a user holds.
    pub(crate) held: HeldTasks,
    /// Tasks that a user cancelled before their first launch.
    pub(crate) cancelled_fresh: Spans,
    /// All tasks that a user cancelled, including running ones.
    pub(crate) to_cancel: Spans,
    /// Maximum number of tasks that run at once.
    pub(super) at_once: Option<u32>,
    pub(crate) records: Records,
    /// Failed tasks that wait before the next try.
    pub resting: u32,
    /// Delay after a first failure.
    pub(super) retry_delay: Duration,
    /// By task, the message of its latest end, if there was one.
    pub(super) messages: BTreeMap<u32, String>,
    /// Resources used by its attempts.
    pub spent: Spent,
    /// The same by task, for tasks with more than one attempt.
    pub(crate) spent_again: BTreeMap<u32, Spent>,
    pub running: u32,
    pub succeeded: u32,
    pub failed: u32,
    pub cancelled: u32,
    /// Bytes of its attempts' output that were dropped.
    pub dropped_bytes: u64,
    /// Attempts preempted by guaranteed work.
    pub preempted: u32,
    /// Attempts shed from nodes' queues.
    pub shed: u32,
    /// When its first task was launched.
    pub first_launch: Option<Instant>,
    /// No more tasks start: a dependency or a task of the gang failed, or the job was cancelled.
    pub abandoned: bool,
    pub estimate: Estimate,
}

/// A task that was launched at least once, and its latest attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskRecord {
    /// When the latest attempt ended, or was launched if it has not.
    pub at: Instant,
    pub wall: Duration,
    pub cpu_millis: u32,
    /// Part of the wall time during which it yielded its CPU.
    pub(super) yielded_millis: u32,
    pub max_memory_kib: u32,
    /// Input size; zero unless the tasks of its stage read different amounts.
    pub input_kib: u32,
    pub node: NodeId,
    pub(super) epoch: Epoch,
    pub(super) number: u32,
    pub attempts: u16,
    pub failures: u16,
    /// Attempts that failed because of their nodes: lost with them, or never launched there.
    pub losses: u8,
    pub state: TaskState,
    pub(super) reason: u8,
    pub(super) code: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum TaskState {
    /// Waits for inputs, for resources, or for another try.
    Waiting,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

/// One task, for display.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskStatus {
    pub index: u32,
    pub state: TaskState,
    pub record: Option<TaskRecord>,
    pub reason: Option<EndReason>,
    pub message: Option<String>,
}

impl Stage {
    pub(super) fn new(spec: &StageSpec, inputs_missing: u32, estimate: Estimate) -> Stage {
        let total = spec.tasks.len();
        Stage {
            total,
            inputs_missing,
            dependents: Vec::new(),
            fresh: Spans::below(total),
            line: BTreeSet::new(),
            held: HeldTasks::default(),
            cancelled_fresh: Spans::default(),
            to_cancel: Spans::default(),
            at_once: spec.at_once,
            records: Records::default(),
            resting: 0,
            retry_delay: spec.first_retry_delay(),
            messages: BTreeMap::new(),
            spent: Spent::default(),
            spent_again: BTreeMap::new(),
            running: 0,
            succeeded: 0,
            failed: 0,
            cancelled: 0,
            dropped_bytes: 0,
            preempted: 0,
            shed: 0,
            first_launch: None,
            abandoned: false,
            estimate,
        }
    }

    /// Tasks that could start now.
    pub fn ready(&self) -> u32 {
        match self.at_once {
            _ if self.inputs_missing > 0 || self.abandoned => 0,
            Some(most) => self.startable().min(most.saturating_sub(self.running)),
            None => self.startable(),
        }
    }

    /// Waiting tasks that are neither held nor resting.
    fn startable(&self) -> u32 {
        self.fresh.len() + self.line.len() as u32
    }

    /// The limit of tasks that run at once, if it keeps other tasks from starting now.
    pub fn limit_that_binds(&self) -> Option<u32> {
        let is_open = self.inputs_missing == 0 && !self.abandoned;
        self.at_once.filter(|most| is_open && self.running >= *most && self.startable() > 0)
    }

    /// Whether the number of tasks that run at once is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.at_once.is_some()
    }

    /// Whether all waiting tasks could start now.
    pub fn may_all_start(&self) -> bool {
        self.ready() == self.waiting()
    }

    /// Number of ready tasks that start before this one, which has not started, as far as sizes are known.
    pub fn place_in_line(&self, index: u32) -> u32 {
        if self.fresh.contains(index) {
            return self.line.len() as u32 + self.fresh.rank(index);
        }
        self.record(index).map_or(0, |_| self.line.range(..self.place_of(index)).count() as u32)
    }

    pub(crate) fn place_of(&self, index: u32) -> (Reverse<u32>, u32) {
        (Reverse(self.records[index].input_kib), index)
    }

    pub(super) fn put_in_line(&mut self, index: u32, kib: u32) {
        self.records[index].input_kib = kib;
        self.wait_again(index);
    }

    pub(crate) fn wait_again(&mut self, index: u32) {
        if self.held.all.contains(index) {
            self.held.touched.insert(index);
        } else {
            self.line.insert(self.place_of(index));
        }
    }

    /// Removes the task from wherever it waits.
    pub(super) fn leave_line(&mut self, index: u32) {
        let place = self.place_of(index);
        let _ = self.fresh.remove(index)
            || self.line.remove(&place)
            || self.held.fresh.remove(index)
            || self.held.touched.remove(index);
    }

    /// Tasks that succeeded: place, run time without the time without CPU, and CPU time.
    pub(crate) fn succeeded_runs(&self) -> impl Iterator<Item = (u32, Duration, Duration)> {
        let succeeded = self.records.iter().filter(|(_, record)| record.state == TaskState::Succeeded);
        let millis = |millis| Duration::from_millis(u64::from(millis));
        succeeded.map(move |(index, one)| (index, one.wall - millis(one.yielded_millis), millis(one.cpu_millis)))
    }

    /// Nodes of the tasks that succeeded.
    pub fn ran_on(&self) -> impl Iterator<Item = NodeId> {
        self.records.iter().filter(|(_, record)| record.state == TaskState::Succeeded).map(|(_, record)| record.node)
    }

    pub(super) fn has_run(&self) -> bool {
        self.succeeded > 0 || self.records.iter().any(|(_, record)| record.wall > Duration::ZERO)
    }

    /// The first failed task: its position, and why.
    pub fn first_failure(&self) -> Option<(u32, EndReason)> {
        let (index, _) = self.records.iter().find(|(_, record)| record.state == TaskState::Failed)?;
        Some((index, self.status(index)?.reason.unwrap_or(EndReason::NodeLost)))
    }

    /// Tasks that have not ended and do not run.
    pub fn waiting(&self) -> u32 {
        self.startable() + self.resting + self.held.fresh.len() + self.held.touched.len()
    }

    /// Tasks that run or will run.
    pub fn unfinished(&self) -> u32 {
        self.running + if self.abandoned { 0 } else { self.waiting() }
    }

    pub fn is_complete(&self) -> bool {
        self.succeeded == self.total
    }

    /// Why output below the size limit was dropped, for one of the tasks.
    pub fn why_output_unwritten(&self) -> Option<&str> {
        self.messages.values().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix(OUTPUT_UNWRITTEN))
    }

    /// Replaces the message of an earlier attempt of the task.
    pub(super) fn keep_message(&mut self, index: u32, text: Option<&String>) {
        self.messages.remove(&index);
        if let Some(text) = text.filter(|_| self.messages.len() < KEPT_MESSAGES) {
            self.messages.insert(index, text.clone());
        }
    }

    pub(super) fn settle(&mut self, index: u32, last: bool, cancelled: bool) {
        let record = &mut self.records[index];
        if !last {
            record.state = TaskState::Waiting;
        } else if cancelled {
            record.state = TaskState::Cancelled;
            self.cancelled += 1;
        } else {
            record.state = TaskState::Failed;
            self.failed += 1;
        }
    }

    pub(super) fn reopen(&mut self) {
        self.abandoned = false;
        self.reopen_tasks(&Spans::below(self.total));
    }

    pub fn record(&self, index: u32) -> Option<&TaskRecord> {
        self.records.get(index).filter(|record| record.attempts > 0 || record.input_kib > 0)
    }

    /// One task, for display; `None` past the last.
    pub fn status(&self, index: u32) -> Option<TaskStatus> {
        if index >= self.total {
            return None;
        }
        let record = self.records.get(index).copied().filter(|record| record.attempts > 0);
        let is_cancelled = self.abandoned || self.cancelled_fresh.contains(index);
        let waiting = if is_cancelled { TaskState::Cancelled } else { TaskState::Waiting };
        let state = record.map(|record| record.state).filter(|state| *state != TaskState::Waiting).unwrap_or(waiting);
        let message = self.messages.get(&index).cloned();
        let ended = record.filter(|record| record.reason != NOT_ENDED && record.state != TaskState::Running);
        let reason = ended.map(|record| unpack(record.reason, record.code, message.as_deref().unwrap_or("")));
        Some(TaskStatus { index, state, record, reason, message })
    }

    /// Bytes held for its tasks.
    pub fn bytes(&self) -> usize {
        self.records.bytes() + self.line.len() * 16 + self.spent_again.len() * 48
    }
}

const NOT_ENDED: u8 = u8::MAX;

impl TaskRecord {
    pub(crate) const UNTOUCHED: TaskRecord = TaskRecord {
        at: Instant::ZERO,
        wall: Duration::ZERO,
        cpu_millis: 0,
        yielded_millis: 0,
        max_memory_kib: 0,
        input_kib: 0,
        node: NodeId(0),
        epoch: Epoch(0),
        number: 0,
        attempts: 0,
        failures: 0,
        losses: 0,
        state: TaskState::Waiting,
        reason: NOT_ENDED,
        code: 0,
    };

    /// Resources used by its latest ended attempt.
    pub(crate) fn spent(&self) -> Spent {
        let cpu = Duration::from_millis(u64::from(self.cpu_millis));
        Spent { wall: self.wall, cpu, max_memory_bytes: u64::from(self.max_memory_kib) << 10 }
    }

    pub(crate) fn set_reason(&mut self, reason: &EndReason) {
        (self.reason, self.code) = pack(reason);
    }

    /// The latest attempt.
    pub fn attempt(&self, job: JobId) -> AttemptId {
        AttemptId { job, epoch: self.epoch, number: self.number }
    }
}

/// The message of an end.
pub(super) fn message(ended: &Ended) -> Option<&String> {
    match &ended.reason {
        EndReason::LaunchFailed(why)
        | EndReason::NodeFault(why)
        | EndReason::NoInput(why)
        | EndReason::NoOutput(why)
        | EndReason::Withdrawn(why) => Some(why),
        _ => ended.message.as_ref(),
    }
}

pub(super) fn pack(reason: &EndReason) -> (u8, u8) {
    match reason {
        EndReason::Exit(code) => (0, *code),
        EndReason::Signal(signal) => (1, *signal),
        EndReason::OutOfMemory => (2, 0),
        EndReason::Timeout => (3, 0),
        EndReason::Preempted => (4, 0),
        EndReason::Shed => (5, 0),
        EndReason::NodeLost => (6, 0),
        EndReason::Cancelled => (7, 0),
        EndReason::DependencyFailed => (8, 0),
        EndReason::LaunchFailed(_) => (9, 0),
        EndReason::NodeFault(_) => (10, 0),
        EndReason::NoInput(_) => (11, 0),
        EndReason::NoOutput(_) => (12, 0),
        EndReason::Withdrawn(_) => (13, 0),
    }
}

pub(super) fn unpack(reason: u8, code: u8, message: &str) -> EndReason {
    match reason {
        0 => EndReason::Exit(code),
        1 => EndReason::Signal(code),
        2 => EndReason::OutOfMemory,
        3 => EndReason::Timeout,
        4 => EndReason::Preempted,
        5 => EndReason::Shed,
        6 => EndReason::NodeLost,
        7 => EndReason::Cancelled,
        8 => EndReason::DependencyFailed,
        9 => EndReason::LaunchFailed(message.to_owned()),
        10 => EndReason::NodeFault(message.to_owned()),
        11 => EndReason::NoInput(message.to_owned()),
        12 => EndReason::NoOutput(message.to_owned()),
        _ => EndReason::Withdrawn(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_ran_costs_less_than_100_bytes() {
        assert!(size_of::<TaskRecord>() <= 56, "{}", size_of::<TaskRecord>());
    }

    #[test]
    fn every_reason_survives_packing() {
        let reasons = [
            EndReason::Exit(3),
            EndReason::Signal(9),
            EndReason::OutOfMemory,
            EndReason::Timeout,
            EndReason::Preempted,
            EndReason::Shed,
            EndReason::NodeLost,
            EndReason::Cancelled,
            EndReason::DependencyFailed,
            EndReason::LaunchFailed("why".to_owned()),
            EndReason::NodeFault("why".to_owned()),
            EndReason::NoInput("why".to_owned()),
            EndReason::NoOutput("why".to_owned()),
            EndReason::Withdrawn("why".to_owned()),
        ];
        for reason in reasons {
            let (kind, code) = pack(&reason);
            assert_eq!(unpack(kind, code, "why"), reason);
        }
    }
}
