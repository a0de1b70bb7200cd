//! The files of a job: the inputs of a launch, and the recovery of lost files.

use super::{JobManager, RunningAttempt};
use crate::progress::{TaskOutputs, TaskRecord, TaskState};
use crate::protocol::{Launch, ToNode};
use crate::role::{Change, Outbox, Record};
use crate::vocabulary::{AttemptId, Digest, EndReason, Ended, InputFile, Instant, NodeId, TaskId};
use std::collections::BTreeSet;
use std::sync::Arc;

impl JobManager {
    /// The input files of the task. All of them are committed once its stage is ready.
    pub(super) fn inputs_of(&mut self, task: TaskId) -> Arc<[InputFile]> {
        let reads_files = self.reads_files(task);
        match &mut self.files {
            Some(files) if reads_files => files.inputs_of(&self.job.spec, (task.stage, task.index)),
            _ => Arc::default(),
        }
    }

    fn reads_files(&self, task: TaskId) -> bool {
        !self.job.spec.stages[task.stage as usize].inputs.is_empty()
    }

    /// Records the input files that the node lacks as far as is known. Returns whether it lacks any.
    pub(super) fn record_awaited(&self, launch: &Launch, node: NodeId, out: &mut Outbox) -> bool {
        let Some(files) = self.files.as_ref().filter(|_| !launch.inputs.is_empty()) else { return false };
        let (count, bytes) = files.missing_at(node, &launch.inputs);
        if count > 0 {
            let Launch { attempt, task, .. } = *launch;
            out.record(Record::AwaitsFiles { task, attempt, node, files: count, bytes });
        }
        count > 0
    }

    /// Reports the input locations of runnable stages to the job's own scheduler, if all tasks of the stage read the same.
    pub(super) fn locate_inputs(&mut self) {
        let (Some(files), Some(scheduler)) = (&mut self.files, &mut self.own.scheduler) else { return };
        for stage in self.dag.runnable() {
            let Some(parts) = files.locate(&self.job.spec, stage) else { continue };
            for is_opportunistic in [false, true] {
                scheduler.set_parts(self.requests.ask_of(stage, is_opportunistic), &parts);
            }
        }
    }

    /// An attempt started: its node has all its input files.
    pub(super) fn note_arrival(&mut self, task: TaskId, node: NodeId) {
        let reads_files = self.reads_files(task);
        if let Some(files) = self.files.as_mut().filter(|_| reads_files) {
            files.arrive(&self.job.spec, (task.stage, task.index), node);
        }
    }

    /// Applies what the end of an attempt reports about files, before the DAG handles the end.
    pub(super) fn take_files(&mut self, task: TaskId, attempt: AttemptId, node: NodeId, ended: &Ended) {
        if let Some(files) = &mut self.files {
            files.take_end((task.stage, task.index), attempt, node, ended);
        }
    }

    /// The files of tasks, from this stage and position on, in order.
    pub fn outputs_from(&self, from: (u32, u32)) -> impl Iterator<Item = TaskOutputs<'_>> {
        let committed = self.files.iter().flat_map(move |files| files.outputs_from(from));
        committed.map(|((stage, index), attempt, files)| {
            let task = TaskId { job: self.job().id, stage, index };
            TaskOutputs { task, attempt, files }
        })
    }

    /// The nodes that may have one of these files: those known to have it, else the node of the attempt.
    pub fn holders(&self, left: &TaskOutputs<'_>, digest: &Digest) -> Vec<NodeId> {
        let known = self.files.as_ref().map(|files| files.holders_of(digest)).unwrap_or_default();
        if !known.is_empty() {
            return known;
        }
        let status = self.dag().stage(left.task.stage).status(left.task.index);
        let record = status.and_then(|status| status.record);
        record
            .filter(|record| record.attempt(left.task.job) == left.attempt)
            .map(|record| record.node)
            .into_iter()
            .collect()
    }

    /// All files of the node are out of reach.
    pub(super) fn forget_files_at(&mut self, node: NodeId) {
        if let Some(files) = &mut self.files {
            files.drop_holder(node, None);
        }
    }

    /// Runs tasks again whose output is lost and still read, and those whose lost output these need in turn.
    pub(super) fn reopen_lost(&mut self, now: Instant, out: &mut Outbox) {
        let mut reopened = BTreeSet::new();
        while let Some((task, file)) = self.next_lost() {
            if reopened.insert(task.stage) {
                self.stop_readers(task.stage, &file, out);
            }
            out.persist(Change::OutputLost { task, file: file.clone(), at: now });
            self.reopen(task, &file);
            self.drop_idle_copies(now, out);
            self.policy.came_back(task.stage);
        }
        if !reopened.is_empty() {
            self.master.work.recount(&self.job, &self.dag);
        }
    }

    /// Attempts of a stage whose process has not started: they may still wait for files.
    pub(super) fn unstarted(&self, stage: u32) -> impl Iterator<Item = (AttemptId, &RunningAttempt)> {
        self.attempts.of_stage(stage).filter(|(_, running)| running.started_at.is_none())
    }

    /// Stops attempts that wait for a file that is written again: the new one may differ and be on another node.
    fn stop_readers(&self, writer: u32, file: &str, out: &mut Outbox) {
        for &reader in &self.dag.stage(writer).dependents {
            let inputs = &self.job.spec.stages[reader as usize].inputs;
            for (attempt, RunningAttempt { task, node, .. }) in self.unstarted(reader) {
                if inputs.iter().any(|input| input.stage == writer) {
                    let reason = EndReason::Withdrawn(format!("its input `{file}` is lost, and is written again"));
                    out.record(Record::Stopping { task: *task, attempt, node: *node, reason: reason.clone() });
                    out.send(*node, ToNode::Stop { attempt, reason, grace: self.settings.stop_grace });
                }
            }
        }
    }

    pub(super) fn reads_from(&self, reader: u32, writer: u32) -> bool {
        self.job.spec.stages[reader as usize].inputs.iter().any(|input| input.stage == writer)
    }

    /// Whether tasks that have not started still read the output of the stage.
    pub(super) fn is_read_still(&self, writer: u32) -> bool {
        self.dag.stage(writer).dependents.iter().any(|&reader| {
            let stage = self.dag.stage(reader);
            let is_left = stage.waiting() > 0 || self.unstarted(reader).next().is_some();
            is_left && !stage.abandoned && self.reads_from(reader, writer)
        })
    }

    fn next_lost(&self) -> Option<(TaskId, String)> {
        let files = self.files.as_ref().filter(|_| !self.lifecycle.is_stopping())?;
        let mut read = files.lost().filter(|((stage, _), _)| self.is_read_still(*stage));
        read.next().map(|((stage, index), file)| (TaskId { job: self.id(), stage, index }, file.to_owned()))
    }

    /// The task waits for another attempt, although one succeeded.
    pub(super) fn reopen(&mut self, task: TaskId, file: &str) {
        let TaskId { stage, index, .. } = task;
        if let Some(files) = &mut self.files {
            files.uncommit((stage, index));
        }
        let is_done = |record: &TaskRecord| record.state == TaskState::Succeeded;
        if self.dag.stage(stage).record(index).is_some_and(is_done) {
            self.dag.reopen(stage, index, &format!("its output `{file}` is lost: it runs again"));
        }
    }
}
