//! When the next task with a retry delay is tried again, and the reason that is shown until then.

use super::JobManager;
use crate::vocabulary::{Duration, Instant};
use crate::why::Why;

impl JobManager {
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.dag.next_due().filter(|_| self.lifecycle.has_started())
    }

    /// Why a task that failed is not tried again yet.
    pub fn why_delayed(&self, stage: u32, index: u32, now: Instant) -> Option<Why> {
        let left = self.dag.delayed_until(stage, index)?.since(now);
        let failures = self.dag.stage(stage).record(index).map_or(0, |record| u32::from(record.failures));
        let spec = &self.job.spec.stages[stage as usize];
        let task = if spec.tasks.len() == 1 { spec.name.clone() } else { format!("{}/{index}", spec.name) };
        (left > Duration::ZERO).then_some(Why::TriedAgain { task, left, failures, others: 0 })
    }

    /// The same for the task that is tried again next, with the number of other resting tasks.
    pub fn why_some_delayed(&self, now: Instant) -> Option<Why> {
        let mut resting = self.dag.resting();
        let others = resting.len().saturating_sub(1) as u64;
        let (_, stage, index) = resting.next()?;
        match self.why_delayed(stage, index, now)? {
            Why::TriedAgain { task, left, failures, .. } => Some(Why::TriedAgain { task, left, failures, others }),
            why => Some(why),
        }
    }
}
