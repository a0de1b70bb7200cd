//! The outcome of a job follows from the ends of its tasks, and after all jobs have ended no state of them is left on
//! nodes.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::protocol::{AdmittedJob, JobOutcome};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{JobId, NodeId, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default)]
pub struct Endings {
    jobs: BTreeMap<JobId, Fate>,
    outcomes: u64,
}

struct Fate {
    job: Arc<AdmittedJob>,
    has_started: bool,
    is_cancelled: bool,
    succeeded: BTreeSet<TaskId>,
    failed: BTreeSet<TaskId>,
}

impl Fate {
    fn new(job: &Arc<AdmittedJob>) -> Fate {
        Fate {
            job: Arc::clone(job),
            has_started: false,
            is_cancelled: false,
            succeeded: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    fn take_in(&mut self, change: &Change) {
        match change {
            Change::JobStarted { .. } => self.has_started = true,
            // A job that waits to start again is cancelled by the master alone.
            Change::JobReopened { .. } => self.has_started = false,
            Change::Cancelled { .. } => self.is_cancelled = true,
            Change::Rerun { .. } => {
                self.is_cancelled = false;
                self.failed.clear();
            }
            Change::Finished { task, ended, .. } if ended.reason.is_success() => {
                self.succeeded.insert(*task);
            }
            Change::OutputLost { task, .. } => {
                self.succeeded.remove(task);
            }
            Change::Finished { task, last: true, .. } | Change::Lost { task, last: true, .. } => {
                self.failed.insert(*task);
            }
            _ => {}
        }
    }

    fn explains(&self, outcome: JobOutcome) -> bool {
        let all_succeeded = self.succeeded.len() as u64 == self.job.spec.task_count();
        match outcome {
            JobOutcome::Succeeded => all_succeeded && !self.is_cancelled,
            JobOutcome::Failed { .. } => !self.failed.is_empty() && !self.is_cancelled,
            JobOutcome::Cancelled => self.is_cancelled || !self.has_started,
            JobOutcome::DependencyFailed { after } => self.job.spec.after_jobs.contains(&after),
        }
    }
}

impl Endings {
    fn on_change(&mut self, change: &Change) -> Result<(), Breach> {
        if let Change::JobAdmitted { job, .. } = change {
            self.jobs.insert(job.id, Fate::new(job));
        }
        let Some(fate) = change.job().and_then(|job| self.jobs.get_mut(&job)) else { return Ok(()) };
        fate.take_in(change);
        self.outcomes += u64::from(matches!(change, Change::JobEnded { .. }));
        match change {
            Change::JobEnded { job, outcome, .. } if !fate.explains(*outcome) => {
                let what = format!(
                    "job {job} ended as {outcome:?} with {} of {} tasks succeeded, {} failed, cancelled: {}",
                    fate.succeeded.len(),
                    fate.job.spec.task_count(),
                    fate.failed.len(),
                    fate.is_cancelled
                );
                Err(Breach::of_job(*job, what))
            }
            _ => Ok(()),
        }
    }
}

impl Checker for Endings {
    fn rule(&self) -> &'static str {
        "a job's outcome follows from its tasks, and an ended job leaves no state on nodes"
    }

    /// Outcomes of jobs.
    fn subjects(&self) -> u64 {
        self.outcomes
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        happened.iter().filter_map(Happening::change).try_for_each(|change| self.on_change(change))
    }

    fn check_end(&mut self, world: &Simulation) -> Result<(), Breach> {
        for node in world.nodes() {
            let bookings = world.ledger_of(node).map_or(0, |ledger| ledger.node_bookings(NodeId(node as u32)));
            let live = world.agent(node).map_or(0, |agent| agent.live().count());
            let ends = world.unacknowledged(node);
            if (bookings, live, ends) != (0, 0, 0) {
                let what =
                    format!("n{node} keeps {bookings} bookings, {live} attempts and {ends} ends of jobs that ended");
                return Err(Breach::new(what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{admitted, attempt, ended, finished, quiet_world, world_with_a_task};
    use amalgam_core::vocabulary::{EndReason, ExecutionType};

    fn check(reason: EndReason, outcome: JobOutcome) -> Result<(), Breach> {
        let happened = [admitted(ExecutionType::Auto), finished(attempt(1), reason, true), ended(outcome)];
        Endings::default().check(&quiet_world(), &happened)
    }

    #[test]
    fn an_outcome_that_no_task_explains_is_noticed() {
        let failed = JobOutcome::Failed { exit_code: 1 };
        assert_eq!(check(EndReason::Exit(0), JobOutcome::Succeeded), Ok(()));
        assert_eq!(check(EndReason::Exit(1), failed), Ok(()));
        assert!(check(EndReason::Exit(1), JobOutcome::Succeeded).is_err());
        assert!(check(EndReason::Exit(0), failed).is_err());
        assert!(check(EndReason::Exit(0), JobOutcome::DependencyFailed { after: JobId(1) }).is_err());
    }

    #[test]
    fn state_that_is_left_at_the_end_is_noticed() {
        assert_eq!(Endings::default().check_end(&quiet_world()), Ok(()));
        assert!(Endings::default().check_end(&world_with_a_task()).is_err());
    }
}
