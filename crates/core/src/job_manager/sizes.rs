//! Input sizes of tasks. If the tasks of a stage read different amounts, the largest start first (Boutin et al. 2014, section
//! 3.3), and their expected run times depend on the size.
//!
//! The input of a task is the files that its stage declares, once they are written, and the sizes that the job states for its
//! items. Departs: in a stage with more tasks than its line holds ([`super::Dag::line_up`]), the largest in the line is
//! first. If adding up sizes is expensive, the line grows by few tasks at once, and is short at first.

use super::JobManager;
use crate::progress::files::{Files, is_by_index};
use crate::vocabulary::{JobSpec, StageSpec, TaskId};

/// Maximum number of file names processed at once, so that the job manager's other events do not wait for long; those of one
/// task at least.
const NAMES_AT_ONCE: u64 = 20_000;

impl JobManager {
    /// Called before the next task of the stage is chosen.
    pub(super) fn line_up(&mut self, stage: u32) {
        let JobManager { job, dag, files, .. } = self;
        if reads_unevenly(&job.spec.stages[stage as usize])
            && let Some(next) = dag.next_task(stage)
        {
            let at_once = (NAMES_AT_ONCE / names(&job.spec, stage, next)).max(1);
            let mut size = |index| kib(input_bytes(&job.spec, files.as_deref_mut(), stage, index));
            dag.line_up(stage, at_once as usize, &mut size);
        }
    }

    /// Input size of the task, as far as is known.
    pub(super) fn input_bytes(&mut self, task: TaskId) -> u64 {
        input_bytes(&self.job.spec, self.files.as_deref_mut(), task.stage, task.index)
    }

    /// Restores the input size of a task that was launched before a restart.
    pub(super) fn recall_size(&mut self, task: TaskId) {
        if reads_unevenly(&self.job.spec.stages[task.stage as usize]) {
            let bytes = self.input_bytes(task);
            self.dag.recall_size(task, kib(bytes));
        }
    }
}

/// Whether the tasks of the stage may read different amounts.
fn reads_unevenly(stage: &StageSpec) -> bool {
    !stage.input_kib.is_empty() || stage.inputs.iter().any(is_by_index)
}

fn input_bytes(spec: &JobSpec, files: Option<&mut Files>, stage: u32, index: u32) -> u64 {
    let stated = spec.stages[stage as usize].input_kib.get(index as usize).copied().unwrap_or(0);
    let declared = files.map_or(0, |files| files.input_bytes(spec, (stage, index)));
    declared.saturating_add(u64::from(stated) * 1_024)
}

/// Number of names processed to find the input of a task of the stage, about equal for all its tasks.
fn names(spec: &JobSpec, stage: u32, index: u32) -> u64 {
    let reader = &spec.stages[stage as usize];
    let names = reader.inputs.iter().map(|input| {
        let writer = &spec.stages[input.stage as usize];
        writer.outputs.len() as u64 + writer.count_outputs(&input.files, reader.tasks.index_value(index))
    });
    1 + names.sum::<u64>()
}

/// Rounded up.
fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1_024)).unwrap_or(u32::MAX)
}
