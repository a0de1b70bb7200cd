//! Single tasks of a job that users select, and the actions that they request for them.

use super::{JobSpec, Spans};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tasks of a job, by stage.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Chosen(pub BTreeMap<u32, Spans>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TaskAction {
    /// Running tasks are stopped, and waiting ones never start; nor do tasks that depend on them.
    Cancel,
    /// No waiting task starts, and no running one is retried.
    Hold,
    Release,
    /// In a job that has ended, tasks that failed or were cancelled wait again, and the others do not.
    RerunFailed,
}

/// The present effect of all actions that users requested for single tasks.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RequestedTaskActions {
    pub held: Chosen,
    pub cancelled: Chosen,
    /// The present run of the job is for these tasks only.
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

    /// The first one that the job does not have: its stage, and its place unless the whole stage is missing.
    pub fn missing_in(&self, spec: &JobSpec) -> Option<(u32, Option<u32>)> {
        self.0.iter().find_map(|(&number, spans)| match spec.stages.get(number as usize) {
            None => Some((number, None)),
            Some(stage) => spans.last().filter(|last| *last >= stage.tasks.len()).map(|last| (number, Some(last))),
        })
    }
}

impl RequestedTaskActions {
    /// Adds the newest action. Tasks can be held and cancelled at the same time.
    pub fn take_in(&mut self, action: TaskAction, tasks: &Chosen) {
        match action {
            TaskAction::Cancel => self.cancelled.add_all(tasks),
            TaskAction::Hold => self.held.add_all(tasks),
            TaskAction::Release => self.held.take_all(tasks),
            TaskAction::RerunFailed => self.rerun = Some(tasks.clone()),
        }
    }

    /// The actions that lead from none to these.
    pub fn actions(&self) -> impl Iterator<Item = (TaskAction, &Chosen)> {
        let some = [(TaskAction::Hold, &self.held), (TaskAction::Cancel, &self.cancelled)];
        let rerun = self.rerun.iter().map(|tasks| (TaskAction::RerunFailed, tasks));
        some.into_iter().filter(|(_, tasks)| !tasks.is_empty()).chain(rerun)
    }
}
