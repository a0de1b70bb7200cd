//! The policy that orders the stages of a job.

use crate::policy::{DagProgress, IntraJobPolicy, JobDemand, RunnableStage, StageGraph};
use crate::vocabulary::{Instant, Totals};

/// Calls the policy, and passes it what it has to know of the current event.
pub(super) struct JobPolicy {
    policy: Box<dyn IntraJobPolicy>,
    /// Whether the current event is more than a wakeup.
    is_news: bool,
    /// Whether no call took long during the current event so far.
    has_time: bool,
}

impl JobPolicy {
    pub(super) fn new(policy: Box<dyn IntraJobPolicy>) -> JobPolicy {
        JobPolicy { policy, is_news: true, has_time: true }
    }

    /// The next event is handled. `is_news`: it is more than a wakeup.
    pub(super) fn on_event(&mut self, is_news: bool) {
        (self.is_news, self.has_time) = (is_news, true);
    }

    /// `runnable`: the stages that have tasks ready to run, in the order of the job file.
    pub(super) fn demand(
        &mut self,
        now: Instant,
        runnable: &[RunnableStage],
        graph: &dyn StageGraph,
        share: Option<&Totals>,
    ) -> JobDemand {
        let demand = self.policy.demand(now, &DagProgress { is_news: self.is_news, runnable, graph }, share);
        self.has_time &= !demand.took_long;
        demand
    }

    /// When the job would end with exactly its share; `None` if that is not known or has not changed.
    pub(super) fn end_alone(
        &mut self,
        now: Instant,
        graph: &dyn StageGraph,
        share: Option<&Totals>,
    ) -> Option<Instant> {
        self.policy.end_alone(now, graph, share, self.has_time)
    }

    /// The job had ended, and some of its tasks run again.
    pub(super) fn rerun(&mut self) {
        self.policy.rerun();
    }

    /// A task of the stage had started and is waiting again.
    pub(super) fn came_back(&mut self, stage: u32) {
        self.policy.came_back(stage);
    }
}
