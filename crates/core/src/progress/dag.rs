//! The states of a job's stages and tasks: which have run, which can run, and which never will.
//!
//! Untouched tasks are stored as ranges: only launched tasks need a record each.

use crate::vocabulary::{
    AttemptId, ClockOffset, Duration, EndReason, Ended, Instant, JobSpec, NodeId, StageSpec, TaskId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use super::LostCause;
use super::estimate::Estimate;
use super::retry_delays::{RetryDelays, retry_delay_after};
use super::stage::{Stage, TaskState, message, pack};

/// Maximum number of waiting tasks that are sorted by input size, in a stage whose tasks read different amounts. The others
/// stay ranges and cost nothing.
const LINE: usize = 4_096;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dag {
    pub stages: Vec<Stage>,
    /// Stages with tasks that could run now.
    runnable: BTreeSet<u32>,
    /// Failed tasks that wait before the next try.
    pub(crate) retry_delays: RetryDelays,
    /// Nodes whose attempts no record shows, because their tasks had other attempts.
    passed: BTreeSet<NodeId>,
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
        let retry_delays =
            RetryDelays::new(spec.stages.iter().map(StageSpec::first_retry_delay).max().unwrap_or_default());
        Dag { stages, runnable, retry_delays, passed: BTreeSet::new() }
    }

    /// Stages with tasks that could run now, in the order of the job file.
    pub fn runnable(&self) -> impl Iterator<Item = u32> {
        self.runnable.iter().copied()
    }

    pub fn stage(&self, stage: u32) -> &Stage {
        &self.stages[stage as usize]
    }

    pub(crate) fn review(&mut self, stage: u32) {
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
        let is_rested = self.retry_delays.remove(stage, index);
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
        match retry_delay_after(reason, entry.retry_delay, record.failures, record.losses) {
            Duration::ZERO => entry.wait_again(index),
            rest => {
                entry.resting += 1;
                self.retry_delays.add(stage, index, at + rest);
            }
        }
    }

    /// Tasks whose rest has ended wait like any other.
    pub fn end_retry_delays(&mut self, now: Instant) {
        while let Some((stage, index)) = self.retry_delays.take_due(now) {
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
    pub(crate) fn set_clock(&mut self, offset: ClockOffset) {
        for stage in &mut self.stages {
            stage.first_launch = stage.first_launch.map(|at| at.by_clock(offset));
            stage.records.iter_mut().for_each(|(_, record)| record.at = record.at.by_clock(offset));
        }
        self.retry_delays.set_clock(|at| at.by_clock(offset));
    }

    /// When the first task of the job was launched.
    pub fn first_launch(&self) -> Option<Instant> {
        self.stages.iter().filter_map(|stage| stage.first_launch).min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::KEPT_MESSAGES;
    use super::*;
    use crate::vocabulary::{Epoch, JobId, TaskSet, Usage};
    use std::sync::Arc;

    /// A stage whose attempts end with the given reasons.
    fn ends(total: u32, ends: &[(u32, EndReason)]) -> Dag {
        let mut dag = Dag {
            stages: vec![Stage::new(
                &StageSpec { tasks: TaskSet::Count(total), ..StageSpec::default() },
                0,
                Estimate::new(None, None),
            )],
            runnable: BTreeSet::new(),
            retry_delays: RetryDelays::default(),
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
}
