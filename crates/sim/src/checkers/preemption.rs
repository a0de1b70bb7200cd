//! Guaranteed work is not preempted, and where a ledger holds its resources it waits for opportunistic work at most as
//! long as that takes to be killed.
//!
//! Work without a grant waits for its turn in its node's queue whatever its execution type (ADR 30), so nothing is said
//! of how long.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::node::STOP_GRACE;
use crate::simulation::Simulation;
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{
    AttemptId, Duration, EndReason, EntryId, ExecutionType, Instant, JobId, QueuedEntry, Resources, TaskId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// From the end of a process to the start of the next: reports, messages, launches.
const HAND_OVER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Preemption {
    jobs: BTreeMap<JobId, Arc<AdmittedJob>>,
    /// Attempts that hold a grant.
    booked: BTreeSet<AttemptId>,
    /// What runs, by node, and whether it is guaranteed.
    running: BTreeMap<usize, BTreeMap<AttemptId, (Resources, bool)>>,
    /// Nodes where something queued.
    queues: BTreeSet<usize>,
    /// Since when a guaranteed attempt would fit but for opportunistic ones.
    held_up: BTreeMap<AttemptId, Instant>,
    /// Times that a booked guaranteed attempt was seen to wait at its node.
    waits: u64,
    guaranteed: u64,
}

impl Preemption {
    fn take_in(&mut self, happening: &Happening) -> Result<(), Breach> {
        match happening {
            Happening::Began { node, attempt, resources, execution, .. } => {
                let entry = (*resources, is_guaranteed(*execution));
                self.running.entry(*node).or_default().insert(*attempt, entry);
            }
            Happening::Ended { node, attempt, .. } => {
                self.running.entry(*node).or_default().remove(attempt);
            }
            _ => {}
        }
        match (happening.change(), happening.record()) {
            (Some(Change::JobAdmitted { job, .. }), _) => {
                self.jobs.insert(job.id, Arc::clone(job));
            }
            (Some(Change::Launched { attempt, task, grant: Some(_), .. }), _) => {
                self.booked.insert(*attempt);
                self.guaranteed += u64::from(self.is_of_guaranteed_stage(*task));
            }
            (Some(Change::Finished { attempt, task, ended, .. }), _) if ended.reason == EndReason::Preempted => {
                self.check_preempted(*attempt, *task)?;
            }
            (_, Some(Record::Queued { node, .. })) => {
                self.queues.insert(node.0 as usize);
            }
            _ => {}
        }
        Ok(())
    }

    /// No preset declares that it preempts for the sake of shares, so only opportunistic attempts may be.
    fn check_preempted(&self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        if self.is_of_guaranteed_stage(task) {
            return Err(Breach::of_task(task, format!("guaranteed attempt {attempt} was preempted")));
        }
        Ok(())
    }

    fn is_of_guaranteed_stage(&self, task: TaskId) -> bool {
        let stage = self.jobs.get(&task.job).and_then(|job| job.spec.stages.get(task.stage as usize));
        stage.is_some_and(|stage| is_guaranteed(stage.execution))
    }

    fn check_queue(
        &mut self,
        now: Instant,
        node: usize,
        capacity: &Resources,
        (attempt, entry): (AttemptId, &QueuedEntry),
    ) -> Result<(), Breach> {
        let running = self.running.entry(node).or_default();
        let left = |counts: &dyn Fn(bool) -> bool| {
            let used = running.values().filter(|(_, guaranteed)| counts(*guaranteed));
            used.fold(*capacity, |left, (resources, _)| left.saturating_sub(resources))
        };
        let fits = entry.resources.fits_in(&left(&|_| true));
        let would_fit = entry.resources.fits_in(&left(&|guaranteed| guaranteed));
        if fits || !would_fit {
            self.held_up.remove(&attempt);
            return Ok(());
        }
        let since = *self.held_up.entry(attempt).or_insert(now);
        if now.since(since) > STOP_GRACE + HAND_OVER {
            let waited = now.since(since);
            let what = format!("guaranteed attempt {attempt} waits on n{node} for opportunistic ones for {waited}");
            return Err(Breach::of_job(attempt.job, what));
        }
        Ok(())
    }
}

impl Checker for Preemption {
    fn rule(&self) -> &'static str {
        "guaranteed work is not preempted and waits for opportunistic work at most the kill grace"
    }

    /// Attempts that hold a grant and are not opportunistic.
    fn subjects(&self) -> u64 {
        self.guaranteed
    }

    fn saw(&self) -> Vec<(&'static str, u64)> {
        vec![("look at a guaranteed attempt that waits at its node", self.waits)]
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        happened.iter().try_for_each(|happening| self.take_in(happening))?;
        for node in self.queues.clone() {
            let Some(agent) = world.agent(node).filter(|agent| !agent.queued().is_empty()) else {
                self.queues.remove(&node);
                continue;
            };
            for entry in agent.queued().iter().filter(|entry| is_guaranteed(entry.execution)) {
                // Resources of a probe are nobody's before its job has a task for them.
                let EntryId::Attempt(attempt) = entry.id else { continue };
                if !self.booked.contains(&attempt) {
                    continue;
                }
                self.waits += 1;
                self.check_queue(world.now(), node, &world.capacity(node), (attempt, entry))?;
            }
        }
        Ok(())
    }
}

/// Where a preset has no opportunistic place for it, `auto` is guaranteed.
fn is_guaranteed(execution: ExecutionType) -> bool {
    execution != ExecutionType::Opportunistic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{admitted, attempt, finished, quiet_world};

    #[test]
    fn a_preempted_guaranteed_attempt_is_noticed() {
        let world = quiet_world();
        let preempted = || finished(attempt(1), EndReason::Preempted, false);
        let check = |execution| Preemption::default().check(&world, &[admitted(execution), preempted()]);
        assert_eq!(check(ExecutionType::Opportunistic), Ok(()));
        assert!(check(ExecutionType::Guaranteed).is_err());
    }

    #[test]
    fn a_guaranteed_attempt_that_waits_for_an_opportunistic_one_is_noticed_after_the_kill_grace() {
        let mut checker = Preemption::default();
        let capacity = Resources::new(2_000, 0);
        checker.running.entry(0).or_default().insert(attempt(1), (capacity, false));
        let entry = QueuedEntry {
            id: EntryId::Attempt(attempt(2)),
            resources: Resources::new(1_000, 0),
            execution: ExecutionType::Guaranteed,
            queued_at: Instant(0),
            expected: None,
        };
        let mut check =
            |seconds: u64| checker.check_queue(Instant(seconds * 1_000_000), 0, &capacity, (attempt(2), &entry));
        assert_eq!((check(0), check(10)), (Ok(()), Ok(())));
        assert!(check(12).is_err());
    }
}
