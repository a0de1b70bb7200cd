//! If a task waits long for a file because the node of the file is slow or down, the task that wrote the file runs again on
//! another node. The copy that arrives first is read. The task that runs again keeps its result.
//!
//! This is the re-run of a slow upstream task of Boutin et al. 2014, section 3.4. Departs: it starts when tasks wait for
//! declared files, and not by the rate at which a process reads.

use super::stragglers::Written;
use super::{JobManager, RunningAttempt};
use crate::protocol::{Address, Rule, ToNode};
use crate::role::{Change, LostCause, Outbox, Record};
use crate::vocabulary::{AttemptId, Digest, Duration, Ended, Instant, NodeId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// An attempt that waits for a file, and for how long.
#[derive(Clone, Copy)]
struct Waiting {
    attempt: AttemptId,
    task: TaskId,
    node: NodeId,
    digest: Digest,
    waited: Duration,
}

impl JobManager {
    /// A node still waits for files that an attempt reads.
    pub(super) fn on_lacks(
        &mut self,
        now: Instant,
        from: Address,
        attempt: AttemptId,
        files: &[(Digest, Duration)],
        out: &mut Outbox,
    ) {
        let Some(running) = self.attempts.get(&attempt) else { return };
        let RunningAttempt { task, node, started_at, .. } = *running;
        if !self.stragglers.are_watched()
            || from != Address::Node(node)
            || started_at.is_some()
            || self.lifecycle.is_stopping()
            || self.lifecycle.is_held()
        {
            return;
        }
        for &(digest, waited) in files {
            self.review_fetch(now, Waiting { attempt, task, node, digest, waited }, out);
        }
    }

    fn review_fetch(&mut self, now: Instant, waiting: Waiting, out: &mut Outbox) {
        let Waiting { attempt, task, node, digest, waited } = waiting;
        let Some((place, bytes)) = self.files.as_ref().and_then(|files| files.writer_of(&digest)) else { return };
        let writer = TaskId { job: self.id(), stage: place.0, index: place.1 };
        let expected = self.dag.expected(writer.stage, writer.index);
        let from = self.dag.stage(writer.stage).record(writer.index);
        let Some(from) = from.map(|record| record.node) else { return };
        let written = Written { task: writer, node: from, bytes, expected };
        let Some(slow) = self.stragglers.find_slow_fetch(&written, waited) else { return };
        if self.dag.stage(writer.stage).is_limited() {
            return;
        }
        let Some(target) = self.target_of_another(now, &slow, Rule::Copy) else { return };
        let (elsewhere, execution) = (target.node, target.execution);
        self.stragglers.on_copied(writer);
        out.record(Record::SlowInput { task, attempt, node, waited, writer, from, elsewhere });
        self.launch(now, target, writer, execution, out);
    }

    /// A copy ended. If its files equal those of the task, the nodes that wait for them are notified.
    pub(super) fn end_copy(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        copy: &RunningAttempt,
        ended: &Ended,
        out: &mut Outbox,
    ) {
        let (task, node) = (copy.task, copy.node);
        self.take_files(task, attempt, node, ended);
        let files = self.files.as_mut().filter(|_| ended.reason.is_success());
        let copied = files.map(|files| files.add_copy((task.stage, task.index), node, ended)).unwrap_or_default();
        for digest in copied {
            for reader in self.waiting_readers(task.stage) {
                out.send(reader, ToNode::Holder { digest, node });
            }
        }
        self.lose_copy(now, attempt, copy, LostCause::Copied, out);
        self.update_demand(now, out);
    }

    pub(super) fn lose_copy(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        copy: &RunningAttempt,
        cause: LostCause,
        out: &mut Outbox,
    ) {
        let (task, node) = (copy.task, copy.node);
        self.dag.pass(node);
        self.note_given_up(attempt, task, cause);
        out.persist(Change::Lost { attempt, task, node, cause, last: false, at: now });
    }

    /// Stops copies that no task waits for any more, and those whose task is to run again as a whole.
    pub(super) fn drop_idle_copies(&mut self, now: Instant, out: &mut Outbox) {
        if self.stragglers.copies().next().is_none() {
            return;
        }
        let mut read_still: BTreeMap<u32, bool> = BTreeMap::new();
        let mut is_wanted = |TaskId { stage, index, .. }: TaskId| {
            let is_committed = self.files.as_ref().is_some_and(|files| files.has_outputs((stage, index)));
            is_committed
                && !self.lifecycle.is_stopping()
                && *read_still.entry(stage).or_insert_with(|| self.is_read_still(stage))
        };
        let idle = self.stragglers.copies().filter(|(_, task)| !is_wanted(*task));
        let idle: Vec<AttemptId> = idle.map(|(attempt, _)| attempt).collect();
        idle.into_iter().for_each(|attempt| self.discard(now, attempt, out));
    }

    /// Nodes where tasks wait that read the output of the stage.
    fn waiting_readers(&self, writer: u32) -> BTreeSet<NodeId> {
        let readers = self.dag.stage(writer).dependents.iter().copied();
        let readers = readers.filter(|reader| self.reads_from(*reader, writer));
        readers.flat_map(|reader| self.unstarted(reader).map(|(_, running)| running.node)).collect()
    }
}
