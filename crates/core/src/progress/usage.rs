//! Resources used by the attempts of a job, however they ended: retried, preempted and given-up attempts count like those
//! that succeeded. The usage of an attempt that never reported its end is not known.

use super::{Dag, TaskRecord};
use crate::vocabulary::{Duration, TaskId, Usage};
use serde::{Deserialize, Serialize};

/// Total usage of several attempts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Spent {
    pub wall: Duration,
    pub cpu: Duration,
    /// The highest value of a single attempt.
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
    /// Counts the usage of an attempt before its task's record shows it. No record shows a given-up attempt (`is_late`).
    pub(crate) fn spend(&mut self, task: TaskId, usage: &Usage, is_late: bool) {
        let entry = &mut self.stages[task.stage as usize];
        let spent = Spent::from(usage);
        entry.spent.add(&spent);
        let Some(record) = entry.record(task.index).filter(|record| is_late || record.attempts > 1) else {
            return;
        };
        // Until its second attempt, the record of a task has its whole usage.
        let first = record.spent();
        entry.spent_again.entry(task.index).or_insert(first).add(&spent);
    }

    /// Usage of all ended attempts of a task.
    pub fn spent_by(&self, stage: u32, index: u32) -> Spent {
        let entry = self.stage(stage);
        let last = || entry.record(index).map(TaskRecord::spent).unwrap_or_default();
        entry.spent_again.get(&index).copied().unwrap_or_else(last)
    }

    /// Usage of all ended attempts of the job.
    pub fn spent(&self) -> Spent {
        let mut all = Spent::default();
        self.stages.iter().for_each(|stage| all.add(&stage.spent));
        all
    }
}
