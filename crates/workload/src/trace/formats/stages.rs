//! Collects stages from logs, which have the dependencies first and then the tasks that succeeded.

use super::fields;
use crate::trace::RunTimes;
use crate::trace::reading::DraftStage;
use amalgam_core::vocabulary::Duration;
use std::collections::BTreeMap;

/// The stages of one job, by their numbers in the log.
#[derive(Default)]
pub(super) struct Stages {
    stages: BTreeMap<u64, Stage>,
}

#[derive(Default)]
struct Stage {
    befores: Vec<u64>,
    /// For each task, the run time of its last successful attempt, and the bytes that it read.
    runs: BTreeMap<u64, (Duration, u64)>,
}

impl Stages {
    pub fn declare(&mut self, stage: u64, befores: Vec<u64>) {
        self.stages.entry(stage).or_default().befores = befores;
    }

    /// Records that a task succeeded, with its start and its end in milliseconds, and the bytes that it read (0 if the
    /// log does not state them).
    ///
    /// # Errors
    /// The task ended before it started.
    pub fn succeeded(&mut self, stage: u64, task: u64, start: u64, finish: u64, read: u64) -> Result<(), String> {
        let millis = finish.checked_sub(start).ok_or("the task ended before it started")?;
        let stage = self.stages.entry(stage).or_default();
        stage.runs.insert(task, (fields::from_millis(millis), read));
        Ok(())
    }

    /// The stages that ran. A stage without tasks is left out: its output existed already, so no stage waits for it.
    pub fn into_drafts(self) -> Vec<DraftStage> {
        let ran: BTreeMap<u64, Stage> = self.stages.into_iter().filter(|(_, stage)| !stage.runs.is_empty()).collect();
        let index_of: BTreeMap<u64, usize> = ran.keys().enumerate().map(|(index, number)| (*number, index)).collect();
        let draft = |(number, stage): (u64, Stage)| {
            let after: Vec<usize> = stage.befores.iter().filter_map(|before| index_of.get(before).copied()).collect();
            let read: Vec<u64> = stage.runs.values().map(|(_, read)| *read).collect();
            let times: Vec<Duration> = stage.runs.into_values().map(|(time, _)| time).collect();
            DraftStage::new(format!("stage-{number}"), times.len() as u32, RunTimes::Each(times))
                .after(after)
                .reading(&read)
        };
        ran.into_iter().map(draft).collect()
    }
}
