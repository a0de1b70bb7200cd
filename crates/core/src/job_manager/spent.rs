//! What the attempts of a job used, whatever became of them: those that were tried again, gave way or were first given up count like
//! the ones that succeeded. Of an attempt that never said how it ended nothing is known.

use super::{Dag, JobManager};
use crate::role::{Change, LostCause, Outbox};
use crate::vocabulary::{AttemptId, Duration, Ended, Instant, NodeId, TaskId, Usage};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What several attempts used together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Spent {
    pub wall: Duration,
    pub cpu: Duration,
    /// The most that one of them had at a time.
    pub max_memory_bytes: u64,
}

impl Spent {
    pub fn add(&mut self, more: &Spent) {
        self.wall += more.wall;
        self.cpu += more.cpu;
        self.max_memory_bytes = self.max_memory_bytes.max(more.max_memory_bytes);
    }
}

impl From<&Usage> for Spent {
    fn from(usage: &Usage) -> Spent {
        Spent { wall: usage.wall, cpu: usage.cpu, max_memory_bytes: usage.max_memory_bytes }
    }
}

impl Dag {
    /// Counts what an attempt used, before the record of its task shows it; of one that was given up no record does.
    pub(super) fn spend(&mut self, task: TaskId, usage: &Usage, is_late: bool) {
        let entry = &mut self.stages[task.stage as usize];
        let spent = Spent::from(usage);
        entry.spent.add(&spent);
        let Some(record) = entry.record(task.index).filter(|record| is_late || record.attempts > 1) else {
            return;
        };
        // Until its second attempt a task's record says it all.
        let first = record.spent();
        entry.spent_again.entry(task.index).or_insert(first).add(&spent);
    }

    /// What all attempts of a task used that have ended.
    pub fn spent_by(&self, stage: u32, index: u32) -> Spent {
        let entry = self.stage(stage);
        let last = || entry.record(index).map(super::TaskRecord::spent).unwrap_or_default();
        entry.spent_again.get(&index).copied().unwrap_or_else(last)
    }

    /// What all attempts of the job used that have ended.
    pub fn spent(&self) -> Spent {
        let mut all = Spent::default();
        self.stages.iter().for_each(|stage| all.add(&stage.spent));
        all
    }
}

impl JobManager {
    /// The attempt is not awaited any more, and may say later what it used.
    pub(super) fn note_given_up(&mut self, attempt: AttemptId, task: TaskId, cause: LostCause) {
        match cause {
            LostCause::NotTaken | LostCause::Refused(_) => return,
            LostCause::NodeLost | LostCause::Unknown | LostCause::Superseded | LostCause::Copied => {}
        }
        self.attempts.give_up(attempt, task);
    }

    /// It does.
    pub(super) fn end_late(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        node: NodeId,
        ended: &Arc<Ended>,
        out: &mut Outbox,
    ) {
        if let Some(task) = self.attempts.take_given_up(attempt) {
            self.dag.spend(task, &ended.usage, true);
            let ended = Arc::clone(ended);
            out.persist(Change::EndedLate { attempt, task, node, ended, at: now });
        }
    }
}
