//! Single tasks of a job that users pick, and what they want of them.

use super::{JobSpec, Spans};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tasks of a job, by stage.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Chosen(pub BTreeMap<u32, Spans>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TaskAction {
    /// Those that run are ended, and those that wait never start; what depends on them does not either.
    Cancel,
    /// None that waits starts, and none that runs is tried again.
    Hold,
    Release,
    /// Of a job that has ended, those that failed or were cancelled wait again, and the others do not.
    RerunFailed,
}

/// What users want of single tasks now.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TaskWishes {
    pub held: Chosen,
    pub cancelled: Chosen,
    /// The present run of the job is for these alone.
    pub rerun: Option<Chosen>,
}

impl Chosen {
    pub fn is_empty(&self) -> bool {
        self.0.values().all(Spans::is_empty)
    }

    fn add_all(&mut self, more: &Chosen) {
        for (stage, spans) in &more.0 {
            self.0.entry(*stage).or_default().add_all(spans);
        }
    }

    fn take_all(&mut self, gone: &Chosen) {
        for (stage, spans) in &gone.0 {
            self.0.entry(*stage).or_default().take_all(spans);
        }
    }

    /// The first that the job does not have: its stage, and its place if it is that.
    pub fn missing_in(&self, spec: &JobSpec) -> Option<(u32, Option<u32>)> {
        self.0.iter().find_map(|(&number, spans)| match spec.stages.get(number as usize) {
            None => Some((number, None)),
            Some(stage) => spans.last().filter(|last| *last >= stage.tasks.len()).map(|last| (number, Some(last))),
        })
    }
}

impl TaskWishes {
    /// The newest counts: who cancels what was held, or holds what was cancelled, wants both.
    pub fn take_in(&mut self, action: TaskAction, tasks: &Chosen) {
        match action {
            TaskAction::Cancel => self.cancelled.add_all(tasks),
            TaskAction::Hold => self.held.add_all(tasks),
            TaskAction::Release => self.held.take_all(tasks),
            TaskAction::RerunFailed => self.rerun = Some(tasks.clone()),
        }
    }

    /// What leads from nothing to these.
    pub fn actions(&self) -> impl Iterator<Item = (TaskAction, &Chosen)> {
        let some = [(TaskAction::Hold, &self.held), (TaskAction::Cancel, &self.cancelled)];
        let rerun = self.rerun.iter().map(|tasks| (TaskAction::RerunFailed, tasks));
        some.into_iter().filter(|(_, tasks)| !tasks.is_empty()).chain(rerun)
    }
}
