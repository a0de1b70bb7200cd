//! The states of a job's stages and tasks: which have run, which can run, and which never will.
//!
//! Untouched tasks are stored as ranges: only launched tasks need a record each.

use crate::vocabulary::{
    AttemptId, ClockOffset, Duration, EndReason, Ended, Epoch, Instant, JobSpec, NodeId, OUTPUT_UNWRITTEN, Spans,
    StageSpec, TaskId,
};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::chosen::HeldTasks;
use super::estimate::Estimate;
use super::records::Records;
use super::rests::{Rests, rest_after};
use super::spent::Spent;
use crate::policy::run_time;
use crate::role::LostCause;

/// Maximum number of waiting tasks that are sorted by input size, in a stage whose tasks read different amounts. The others
/// stay ranges and cost nothing.
const LINE: usize = 4_096;

/// Maximum number of task messages that a stage keeps; the story has all of them.
const KEPT_MESSAGES: usize = 1_000;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dag {
    pub stages: Vec<Stage>,
    /// Stages with tasks that could run now.
    runnable: BTreeSet<u32>,
    /// Failed tasks that wait before the next try.
    pub(super) rests: Rests,
    /// Nodes whose attempts no record shows, because their tasks had other attempts.
    passed: BTreeSet<NodeId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stage {
    pub total: u32,
    /// Number of dependencies that have not succeeded yet.
    pub inputs_missing: u32,
    pub dependents: Vec<u32>,
    /// Tasks that were never launched, may start, and are not in the line.
    pub(super) fresh: Spans,
    /// Other tasks that may start: the largest input first, then the smallest index.
    pub(super) line: BTreeSet<(Reverse<u32>, u32)>,
    /// Tasks that a user holds.
    pub(super) held: HeldTasks,
    /// Tasks that a user cancelled before their first launch.
    pub(super) cancelled_fresh: Spans,
    /// All tasks that a user cancelled, including running ones.
    pub(super) to_cancel: Spans,
    /// Maximum number of tasks that run at once.
    at_once: Option<u32>,
    pub(super) records: Records,
    /// Failed tasks that wait before the next try.
    pub resting: u32,
    /// Delay after a first failure.
    retry_delay: Duration,
    /// By task, the message of its latest end, if there was one.
    messages: BTreeMap<u32, String>,
    /// Resources used by its attempts.
    pub spent: Spent,
    /// The same by task, for tasks with more than one attempt.
    pub(super) spent_again: BTreeMap<u32, Spent>,
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
    yielded_millis: u32,
    pub max_memory_kib: u32,
    /// Input size; zero unless the tasks of its stage read different amounts.
    pub input_kib: u32,
    pub node: NodeId,
    epoch: Epoch,
    number: u32,
    pub attempts: u16,
    pub failures: u16,
    /// Attempts that failed because of their nodes: lost with them, or never launched there.
    pub losses: u8,
    pub state: TaskState,
    reason: u8,
    code: u8,
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

impl Dag {
    /// `recalled`: by stage, the run time of a task in earlier runs; may be shorter than the list of stages.
    pub fn new(spec: &JobSpec, recalled: &[Option<Duration>]) -> Dag {
        let mut stages: Vec<Stage> = spec
            .stages
            .iter()
            .zip(recalled.iter().copied().chain(std::iter::repeat(None)))
            .map(|(stage, recalled)| {
                let estimate = Estimate::new(stage.expected, recalled);
                Stage::new(stage, stage.after.len() as u32, estimate)
            })
            .collect();
        let mut runnable = BTreeSet::new();
        for (index, stage) in spec.stages.iter().enumerate() {
            for &before in &stage.after {
                stages[before as usize].dependents.push(index as u32);
            }
            if stage.after.is_empty() {
                runnable.insert(index as u32);
            }
        }
        let rests = Rests::new(spec.stages.iter().map(StageSpec::first_retry_delay).max().unwrap_or_default());
        Dag { stages, runnable, rests, passed: BTreeSet::new() }
    }

    /// Stages with tasks that could run now, in the order of the job file.
    pub fn runnable(&self) -> impl Iterator<Item = u32> {
        self.runnable.iter().copied()
    }

    pub fn stage(&self, stage: u32) -> &Stage {
        &self.stages[stage as usize]
    }

    pub(super) fn review(&mut self, stage: u32) {
        if self.stages[stage as usize].ready() > 0 {
            self.runnable.insert(stage);
        } else {
            self.runnable.remove(&stage);
        }
    }

    /// The task of a stage that starts next: the first in the line, else the next untouched one.
    pub fn next_task(&self, stage: u32) -> Option<u32> {
        let entry = &self.stages[stage as usize];
        let first = || entry.line.first().map(|(_, index)| *index).or_else(|| entry.fresh.first());
        if entry.ready() > 0 { first() } else { None }
    }

    /// The tasks of a stage that could start, in start order.
    pub fn upcoming(&self, stage: u32) -> impl Iterator<Item = u32> {
        let entry = self.stage(stage);
        let in_line = entry.line.iter().map(|(_, index)| *index);
        in_line.chain(entry.fresh.iter()).take(entry.ready() as usize)
    }

    /// Whether the task is one of [`Dag::upcoming`].
    pub fn is_upcoming(&self, stage: u32, index: u32) -> bool {
        let entry = self.stage(stage);
        let in_line = |index| entry.line.contains(&entry.place_of(index));
        entry.ready() > 0 && (entry.fresh.contains(index) || entry.record(index).is_some() && in_line(index))
    }

    /// Puts up to `at_once` next tasks of a stage in line by input size. Called before each task is taken, so that the line
    /// grows to its full length.
    pub fn line_up(&mut self, stage: u32, at_once: usize, size: &mut dyn FnMut(u32) -> u32) {
        let entry = &mut self.stages[stage as usize];
        if entry.ready() == 0 {
            return;
        }
        for _ in 0..at_once {
            let Some(index) = entry.fresh.first().filter(|_| entry.line.len() < LINE) else { break };
            entry.fresh.remove(index);
            entry.records.make(index, entry.total);
            entry.put_in_line(index, size(index));
        }
    }

    /// Sets the input size of a task that was launched before a restart.
    pub fn recall_size(&mut self, task: TaskId, kib: u32) {
        self.stages[task.stage as usize].records[task.index].input_kib = kib;
    }

    /// Expected run time of the task.
    pub fn expected(&self, stage: u32, index: u32) -> Option<Duration> {
        let entry = self.stage(stage);
        entry.estimate.expected_for(entry.record(index).map_or(0, |record| record.input_kib))
    }

    /// An attempt of the task was launched.
    pub fn launched(&mut self, stage: u32, index: u32, attempt: AttemptId, node: NodeId, at: Instant) {
        let is_rested = self.rests.remove(stage, index);
        let entry = &mut self.stages[stage as usize];
        entry.resting -= u32::from(is_rested);
        entry.records.make(index, entry.total);
        entry.leave_line(index);
        entry.running += 1;
        entry.first_launch.get_or_insert(at);
        let record = &mut entry.records[index];
        record.attempts = record.attempts.saturating_add(1);
        record.state = TaskState::Running;
        if record.attempts > 1 && record.node != node {
            // Files of the earlier attempt on that node have to be deleted in the end, too.
            self.passed.insert(record.node);
        }
        (record.node, record.epoch, record.number, record.at) = (node, attempt.epoch, attempt.number, at);
        self.review(stage);
    }

    /// A second attempt of a running task was launched. The record still shows the first one.
    pub fn launched_beside(&mut self, stage: u32, index: u32) {
        let record = &mut self.stages[stage as usize].records[index];
        record.attempts = record.attempts.saturating_add(1);
    }

    /// The attempt that the record of a task shows.
    pub fn shown(&self, task: TaskId) -> Option<AttemptId> {
        let record = self.stage(task.stage).record(task.index).filter(|record| record.attempts > 0)?;
        Some(AttemptId { job: task.job, epoch: record.epoch, number: record.number })
    }

    /// The node had an attempt that no record shows.
    pub fn pass(&mut self, over: NodeId) {
        self.passed.insert(over);
    }

    /// One of two attempts of a task ended, on node `over`. The other one continues.
    pub fn went_on(&mut self, task: TaskId, over: NodeId, failed: bool, other: AttemptId, node: NodeId) {
        self.passed.insert(over);
        let record = &mut self.stages[task.stage as usize].records[task.index];
        record.failures = record.failures.saturating_add(u16::from(failed));
        (record.node, record.epoch, record.number) = (node, other.epoch, other.number);
    }

    /// The running attempt of the task ended; `last` if the task is not tried again. Returns the stages that become ready.
    pub fn ended(&mut self, stage: u32, index: u32, ended: &Ended, last: bool, at: Instant) -> Vec<u32> {
        let entry = &mut self.stages[stage as usize];
        entry.running -= 1;
        entry.dropped_bytes = entry.dropped_bytes.saturating_add(ended.usage.dropped_bytes);
        entry.preempted = entry.preempted.saturating_add(u32::from(ended.reason == EndReason::Preempted));
        entry.shed = entry.shed.saturating_add(u32::from(ended.reason == EndReason::Shed));
        entry.keep_message(index, message(ended));
        let record = &mut entry.records[index];
        record.at = at;
        record.wall = ended.usage.wall;
        record.cpu_millis = u32::try_from(ended.usage.cpu.as_millis()).unwrap_or(u32::MAX);
        record.yielded_millis = u32::try_from(ended.usage.yielded.as_millis()).unwrap_or(u32::MAX);
        record.max_memory_kib = u32::try_from(ended.usage.max_memory_bytes / 1024).unwrap_or(u32::MAX);
        (record.reason, record.code) = pack(&ended.reason);
        let succeeded = ended.reason.is_success();
        if !succeeded && !ended.reason.is_infrastructure() && ended.reason != EndReason::Cancelled {
            record.failures = record.failures.saturating_add(1);
        }
        if ended.reason.is_loss() {
            record.losses = record.losses.saturating_add(1);
        }
        if succeeded {
            record.state = TaskState::Succeeded;
            entry.succeeded += 1;
            entry.estimate.learn(entry.records[index].input_kib, ended.usage.run_time());
        } else {
            // In a cancelled job, an attempt may be preempted or shed at the same time.
            let was_displaced = last && matches!(ended.reason, EndReason::Preempted | EndReason::Shed);
            entry.settle(index, last, was_displaced || ended.reason == EndReason::Cancelled);
            if !last {
                self.wait_again(stage, index, &ended.reason, at);
            }
        }
        self.review(stage);
        if succeeded { self.release_dependents(stage) } else { Vec::new() }
    }

    /// The running attempt of the task was written off.
    pub fn lost(&mut self, stage: u32, index: u32, cause: LostCause, last: bool, at: Instant) {
        let entry = &mut self.stages[stage as usize];
        entry.running -= 1;
        entry.keep_message(index, None);
        let record = &mut entry.records[index];
        record.at = at;
        // An attempt that never ran is not a loss.
        record.losses = record.losses.saturating_add(u8::from(cause == LostCause::NodeLost));
        (record.reason, record.code) = pack(&EndReason::NodeLost);
        entry.settle(index, last, entry.is_to_be_cancelled(index));
        if !last {
            // For the same reason, its task is tried again at once.
            let reason = if cause == LostCause::NodeLost { EndReason::NodeLost } else { EndReason::Shed };
            self.wait_again(stage, index, &reason, at);
        }
        self.review(stage);
    }

    /// The task is tried again, after the rest that `reason` requires.
    fn wait_again(&mut self, stage: u32, index: u32, reason: &EndReason, at: Instant) {
        let entry = &mut self.stages[stage as usize];
        let record = &entry.records[index];
        match rest_after(reason, entry.retry_delay, record.failures, record.losses) {
            Duration::ZERO => entry.wait_again(index),
            rest => {
                entry.resting += 1;
                self.rests.add(stage, index, at + rest);
            }
        }
    }

    /// Tasks whose rest has ended wait like any other.
    pub fn end_rests(&mut self, now: Instant) {
        while let Some((stage, index)) = self.rests.take_due(now) {
            let entry = &mut self.stages[stage as usize];
            entry.resting -= 1;
            entry.wait_again(index);
            self.review(stage);
        }
    }

    /// A task that succeeded waits again because its output is lost. Its message says why.
    pub fn reopen(&mut self, stage: u32, index: u32, why: &str) {
        let entry = &mut self.stages[stage as usize];
        let was_complete = entry.is_complete();
        let record = &mut entry.records[index];
        assert_eq!(record.state, TaskState::Succeeded, "only a task that succeeded has output to lose");
        record.state = TaskState::Waiting;
        entry.succeeded -= 1;
        entry.wait_again(index);
        entry.keep_message(index, Some(&why.to_owned()));
        if was_complete {
            for dependent in self.stages[stage as usize].dependents.clone() {
                self.stages[dependent as usize].inputs_missing += 1;
                self.review(dependent);
            }
        }
        self.review(stage);
    }

    fn release_dependents(&mut self, stage: u32) -> Vec<u32> {
        if !self.stages[stage as usize].is_complete() {
            return Vec::new();
        }
        let mut released = Vec::new();
        for dependent in self.stages[stage as usize].dependents.clone() {
            let entry = &mut self.stages[dependent as usize];
            entry.inputs_missing -= 1;
            if entry.inputs_missing == 0 && !entry.abandoned {
                released.push(dependent);
            }
            self.review(dependent);
        }
        released
    }

    /// Abandons all stages that depend on a failed one, directly or indirectly.
    pub fn abandon_dependents(&mut self, stage: u32) {
        let mut failed = vec![stage];
        while let Some(stage) = failed.pop() {
            for dependent in self.stages[stage as usize].dependents.clone() {
                if !std::mem::replace(&mut self.stages[dependent as usize].abandoned, true) {
                    failed.push(dependent);
                }
                self.review(dependent);
            }
        }
    }

    /// No more tasks of the stage start.
    pub fn abandon(&mut self, stage: u32) {
        self.stages[stage as usize].abandoned = true;
        self.review(stage);
    }

    /// No more tasks of the job start.
    pub fn abandon_all(&mut self) {
        for stage in 0..self.stages.len() {
            if !self.stages[stage].is_complete() {
                self.stages[stage].abandoned = true;
            }
            self.review(stage as u32);
        }
    }

    /// Tasks that did not succeed wait again.
    pub fn rerun(&mut self) {
        for stage in 0..self.stages.len() {
            self.stages[stage].reopen();
            self.review(stage as u32);
        }
    }

    /// Whether no task runs and none ever will.
    pub fn is_finished(&self) -> bool {
        self.stages.iter().all(|stage| stage.running == 0 && (stage.abandoned || stage.waiting() == 0))
    }

    /// Expected run times by stage, above zero.
    pub fn run_times(&self) -> impl Iterator<Item = Duration> {
        self.stages.iter().map(|stage| Duration(run_time(stage.estimate.expected()).0.max(1)))
    }

    /// The nodes that ran attempts of its tasks.
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        let records = self.stages.iter().flat_map(|stage| stage.records.iter());
        let shown = records.filter(|(_, record)| record.attempts > 0).map(|(_, record)| record.node);
        shown.chain(self.passed.iter().copied()).collect()
    }

    pub fn failed_tasks(&self) -> u64 {
        self.stages.iter().map(|stage| u64::from(stage.failed)).sum()
    }

    /// The first failed task in the order of stages: its stage, its position, and why.
    pub fn first_failure(&self) -> Option<(u32, u32, EndReason)> {
        self.stages.iter().enumerate().filter(|(_, stage)| stage.failed > 0).find_map(|(number, stage)| {
            let (index, reason) = stage.first_failure()?;
            Some((number as u32, index, reason))
        })
    }

    /// Whether any attempt of its tasks is known to have run.
    pub fn has_run(&self) -> bool {
        self.stages.iter().any(Stage::has_run)
    }

    /// See [`crate::role::Change::set_clock`].
    pub(super) fn set_clock(&mut self, offset: ClockOffset) {
        for stage in &mut self.stages {
            stage.first_launch = stage.first_launch.map(|at| at.by_clock(offset));
            stage.records.iter_mut().for_each(|(_, record)| record.at = record.at.by_clock(offset));
        }
        self.rests.set_clock(|at| at.by_clock(offset));
    }

    /// When the first task of the job was launched.
    pub fn first_launch(&self) -> Option<Instant> {
        self.stages.iter().filter_map(|stage| stage.first_launch).min()
    }
}

impl Stage {
    fn new(spec: &StageSpec, inputs_missing: u32, estimate: Estimate) -> Stage {
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
    pub(super) fn is_limited(&self) -> bool {
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

    pub(super) fn place_of(&self, index: u32) -> (Reverse<u32>, u32) {
        (Reverse(self.records[index].input_kib), index)
    }

    fn put_in_line(&mut self, index: u32, kib: u32) {
        self.records[index].input_kib = kib;
        self.wait_again(index);
    }

    pub(super) fn wait_again(&mut self, index: u32) {
        if self.held.all.contains(index) {
            self.held.touched.insert(index);
        } else {
            self.line.insert(self.place_of(index));
        }
    }

    /// Removes the task from wherever it waits.
    fn leave_line(&mut self, index: u32) {
        let place = self.place_of(index);
        let _ = self.fresh.remove(index)
            || self.line.remove(&place)
            || self.held.fresh.remove(index)
            || self.held.touched.remove(index);
    }

    /// Tasks that succeeded: place, run time without the time without CPU, and CPU time.
    pub(super) fn succeeded_runs(&self) -> impl Iterator<Item = (u32, Duration, Duration)> {
        let succeeded = self.records.iter().filter(|(_, record)| record.state == TaskState::Succeeded);
        let millis = |millis| Duration::from_millis(u64::from(millis));
        succeeded.map(move |(index, one)| (index, one.wall - millis(one.yielded_millis), millis(one.cpu_millis)))
    }

    /// Nodes of the tasks that succeeded.
    pub fn ran_on(&self) -> impl Iterator<Item = NodeId> {
        self.records.iter().filter(|(_, record)| record.state == TaskState::Succeeded).map(|(_, record)| record.node)
    }

    fn has_run(&self) -> bool {
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
    fn keep_message(&mut self, index: u32, text: Option<&String>) {
        self.messages.remove(&index);
        if let Some(text) = text.filter(|_| self.messages.len() < KEPT_MESSAGES) {
            self.messages.insert(index, text.clone());
        }
    }

    fn settle(&mut self, index: u32, last: bool, cancelled: bool) {
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

    fn reopen(&mut self) {
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
    pub(super) const UNTOUCHED: TaskRecord = TaskRecord {
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
    pub(super) fn spent(&self) -> Spent {
        let cpu = Duration::from_millis(u64::from(self.cpu_millis));
        Spent { wall: self.wall, cpu, max_memory_bytes: u64::from(self.max_memory_kib) << 10 }
    }

    pub(super) fn set_reason(&mut self, reason: &EndReason) {
        (self.reason, self.code) = pack(reason);
    }

    /// The latest attempt.
    pub fn attempt(&self, job: crate::vocabulary::JobId) -> AttemptId {
        AttemptId { job, epoch: self.epoch, number: self.number }
    }
}

/// The message of an end.
fn message(ended: &Ended) -> Option<&String> {
    match &ended.reason {
        EndReason::LaunchFailed(why)
        | EndReason::NodeFault(why)
        | EndReason::NoInput(why)
        | EndReason::NoOutput(why)
        | EndReason::Withdrawn(why) => Some(why),
        _ => ended.message.as_ref(),
    }
}

fn pack(reason: &EndReason) -> (u8, u8) {
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

fn unpack(reason: u8, code: u8, message: &str) -> EndReason {
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
    use crate::vocabulary::{JobId, TaskSet, Usage};
    use std::sync::Arc;

    #[test]
    fn a_task_that_ran_costs_less_than_100_bytes() {
        assert!(size_of::<TaskRecord>() <= 56, "{}", size_of::<TaskRecord>());
    }

    /// A stage whose attempts end with the given reasons.
    fn ends(total: u32, ends: &[(u32, EndReason)]) -> Dag {
        let mut dag = Dag {
            stages: vec![Stage::new(
                &StageSpec { tasks: TaskSet::Count(total), ..StageSpec::default() },
                0,
                Estimate::new(None, None),
            )],
            runnable: BTreeSet::new(),
            rests: Rests::default(),
            passed: BTreeSet::new(),
        };
        for (number, (index, reason)) in ends.iter().enumerate() {
            let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number: number as u32 };
            dag.launched(0, *index, attempt, NodeId(0), Instant(1));
            dag.ended(0, *index, &Ended::without_run(reason.clone()), false, Instant(2));
        }
        dag
    }

    #[test]
    fn the_message_of_an_earlier_attempt_is_dropped() {
        let fault = EndReason::NodeFault("no room".to_owned());
        let message_of = |ends: &Dag| ends.stage(0).status(0).unwrap().message;
        assert_eq!(message_of(&ends(1, &[(0, fault.clone())])).as_deref(), Some("no room"));
        assert_eq!(message_of(&ends(1, &[(0, fault.clone()), (0, EndReason::Exit(1))])), None);
        let mut lost = ends(1, &[(0, fault)]);
        let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number: 9 };
        lost.launched(0, 0, attempt, NodeId(0), Instant(3));
        lost.lost(0, 0, LostCause::NodeLost, false, Instant(4));
        assert_eq!(message_of(&lost), None);
    }

    #[test]
    fn run_times_exclude_the_time_without_cpu() {
        let mut dag = ends(2, &[(0, EndReason::Exit(1))]);
        let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number: 9 };
        dag.launched(0, 1, attempt, NodeId(0), Instant(1));
        let [wall, yielded, cpu] = [10, 4, 5].map(Duration::from_secs);
        let mut ended = Ended::without_run(EndReason::Exit(0));
        Arc::make_mut(&mut ended).usage = Usage { wall, yielded, cpu, ..Usage::default() };
        dag.ended(0, 1, &ended, true, Instant(2));
        let runs: Vec<_> = dag.stage(0).succeeded_runs().collect();
        assert_eq!(runs, [(1, Duration::from_secs(6), cpu)]);
    }

    #[test]
    fn nodes_of_earlier_attempts_are_remembered() {
        let mut dag = ends(1, &[(0, EndReason::Exit(1))]);
        let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number: 9 };
        dag.launched(0, 0, attempt, NodeId(7), Instant(3));
        assert_eq!(dag.nodes(), BTreeSet::from([NodeId(0), NodeId(7)]));
    }

    #[test]
    fn replaced_messages_leave_room_for_others() {
        let total = KEPT_MESSAGES as u32;
        let fault = |index| (index, EndReason::NodeFault("no room".to_owned()));
        let repaired = (0..total).map(|index| (index, EndReason::Exit(0)));
        let all: Vec<_> = (0..total).map(fault).chain(repaired).chain([fault(total)]).collect();
        assert!(ends(total + 1, &all).stage(0).status(total).unwrap().message.is_some());
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
