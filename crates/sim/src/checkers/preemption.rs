//! Guaranteed work is not preempted, unless the preset declares that it preempts for shares. Booked guaranteed work
//! waits for opportunistic work at most as long as killing that takes.
//!
//! Guaranteed work without a grant waits in order in its node's queue (ADR 30), so only its first entry is checked, and
//! only if nodes distinguish it from opportunistic work.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{
    AttemptId, Duration, EndReason, EntryId, ExecutionType, Instant, JobId, QueuedEntry, Resources, TaskId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub struct Preemption {
    preempts_for_shares: bool,
    /// The longest wait of a guaranteed attempt for opportunistic ones.
    kill_grace: Duration,
    jobs: BTreeMap<JobId, Arc<AdmittedJob>>,
    /// Whether nodes queue guaranteed work that is not booked.
    queues_unbooked: bool,
    /// Attempts that hold a grant.
    booked: BTreeSet<AttemptId>,
    /// Attempts without a grant that were launched as guaranteed.
    unbooked: BTreeSet<AttemptId>,
    /// Attempts that were promoted without a grant.
    promoted: BTreeSet<AttemptId>,
    /// Running attempts by node: what they hold, and whether they are guaranteed.
    running: BTreeMap<usize, BTreeMap<AttemptId, (Resources, bool)>>,
    /// The full resources of the attempts that yield their CPU.
    yielding: BTreeMap<AttemptId, Resources>,
    /// Nodes at which an attempt has queued.
    queues: BTreeSet<usize>,
    /// Since when a guaranteed attempt would have room without the opportunistic ones.
    held_up: BTreeMap<AttemptId, Instant>,
    /// How often a guaranteed attempt started to wait for opportunistic ones, and how often any attempt was preempted.
    waits: u64,
    preemptions: u64,
    /// Number of checks of guaranteed attempts that wait at their nodes, for any reason.
    looks: u64,
}

impl Preemption {
    pub fn new(preempts_for_shares: bool, queues_unbooked: bool, kill_grace: Duration) -> Preemption {
        Preemption {
            preempts_for_shares,
            queues_unbooked,
            unbooked: BTreeSet::new(),
            promoted: BTreeSet::new(),
            kill_grace,
            jobs: BTreeMap::new(),
            booked: BTreeSet::new(),
            running: BTreeMap::new(),
            yielding: BTreeMap::new(),
            queues: BTreeSet::new(),
            held_up: BTreeMap::new(),
            waits: 0,
            preemptions: 0,
            looks: 0,
        }
    }

    fn take_in(&mut self, happening: &Happening) -> Result<(), Breach> {
        match happening {
            Happening::TaskStarted { node, attempt, resources, execution, .. } => {
                // The promotion may reach the node later.
                let entry = (*resources, is_guaranteed(*execution) || self.promoted.contains(attempt));
                self.running.entry(*node).or_default().insert(*attempt, entry);
                self.held_up.remove(attempt);
            }
            Happening::Ended { node, attempt, .. } => {
                self.running.entry(*node).or_default().remove(attempt);
                self.yielding.remove(attempt);
            }
            Happening::Yielded { node, attempt, .. } => {
                if let Some((resources, _)) = self.running.entry(*node).or_default().get_mut(attempt) {
                    self.yielding.insert(*attempt, *resources);
                    *resources = resources.with(CPU, 0);
                }
            }
            Happening::Resumed { node, attempt, .. } => {
                if let Some(whole) = self.yielding.remove(attempt) {
                    let running = self.running.entry(*node).or_default();
                    running.entry(*attempt).and_modify(|(resources, _)| *resources = whole);
                }
            }
            _ => {}
        }
        match (happening.change(), happening.record()) {
            (Some(Change::JobAdmitted { job, .. }), _) => {
                self.jobs.insert(job.id, Arc::clone(job));
            }
            (
                Some(
                    Change::Launched { attempt, grant: Some(_), .. } | Change::Promoted { attempt, grant: Some(_), .. },
                ),
                _,
            ) => {
                self.booked.insert(*attempt);
            }
            (Some(Change::Promoted { attempt, .. }), _) => {
                self.promoted.insert(*attempt);
                for running in self.running.values_mut() {
                    running.entry(*attempt).and_modify(|(_, guaranteed)| *guaranteed = true);
                }
            }
            (Some(Change::Launched { attempt, opportunistic: false, .. }), _) => {
                self.unbooked.insert(*attempt);
            }
            (Some(Change::Finished { attempt, task, ended, .. }), _) if ended.reason == EndReason::Preempted => {
                self.preemptions += 1;
                self.check_preempted(*attempt, *task)?;
            }
            (_, Some(Record::Queued { node, .. })) => {
                self.queues.insert(node.0 as usize);
            }
            _ => {}
        }
        Ok(())
    }

    fn check_preempted(&self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        let is_launched_so = self.booked.contains(&attempt) || self.unbooked.contains(&attempt);
        let is_guaranteed = is_launched_so || self.accepts_only_guaranteed(task);
        if !self.preempts_for_shares && is_guaranteed {
            return Err(Breach::of_task(task, format!("guaranteed attempt {attempt} was preempted")));
        }
        Ok(())
    }

    fn accepts_only_guaranteed(&self, task: TaskId) -> bool {
        let stage = self.jobs.get(&task.job).and_then(|job| job.spec.stages.get(task.stage as usize));
        stage.is_some_and(|stage| stage.execution == ExecutionType::Guaranteed)
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
        let fits = entry.shape.resources.fits_in(&left(&|_| true));
        let would_fit = entry.shape.resources.fits_in(&left(&|guaranteed| guaranteed));
        if fits || !would_fit {
            self.held_up.remove(&attempt);
            return Ok(());
        }
        let since = *self.held_up.entry(attempt).or_insert_with(|| {
            self.waits += 1;
            now
        });
        if now.since(since) > self.kill_grace {
            let waited = now.since(since);
            let what =
                format!("guaranteed attempt {attempt} has waited on n{node} for opportunistic ones for {waited}");
            return Err(Breach::of_job(attempt.job, what));
        }
        Ok(())
    }
}

impl Checker for Preemption {
    fn rule(&self) -> &'static str {
        "guaranteed work is not preempted and waits for opportunistic work at most the kill grace"
    }

    /// Waits of guaranteed attempts for opportunistic ones, and preemptions.
    fn subjects(&self) -> u64 {
        self.waits + self.preemptions
    }

    fn saw(&self) -> Vec<(&'static str, u64)> {
        vec![("check of a guaranteed attempt that waits at its node", self.looks)]
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        happened.iter().try_for_each(|happening| self.take_in(happening))?;
        for node in self.queues.clone() {
            let Some(agent) = world.agent(node).filter(|agent| !agent.queued().is_empty()) else {
                self.queues.remove(&node);
                continue;
            };
            let mut is_first = true;
            let waits_for_room =
                |entry: &&QueuedEntry| is_guaranteed(entry.shape.execution) && !agent.awaits_files(entry.id);
            for entry in agent.queued().iter().filter(waits_for_room) {
                // A probe has no claim to resources before its job has chosen a task for it.
                let EntryId::Attempt(attempt) = entry.id else { continue };
                let is_next = std::mem::take(&mut is_first) && self.queues_unbooked;
                if !self.booked.contains(&attempt) && !is_next {
                    continue;
                }
                self.looks += 1;
                if world.hangs(node) {
                    // The agent cannot stop anything while it hangs. The grace restarts when it continues.
                    self.held_up.remove(&attempt);
                    continue;
                }
                self.check_queue(world.now(), node, &world.capacity(node), (attempt, entry))?;
            }
        }
        Ok(())
    }
}

/// In a preset without opportunistic work, `auto` is guaranteed.
fn is_guaranteed(execution: ExecutionType) -> bool {
    execution != ExecutionType::Opportunistic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{admitted, attempt, finished, launched, launched_under, quiet_world, task_started};
    use amalgam_core::vocabulary::{GrantId, TaskShape};

    const GRACE: Duration = Duration::from_secs(11);

    #[test]
    fn a_preempted_guaranteed_attempt_is_noticed_unless_the_preset_declares_it() {
        let world = quiet_world();
        let check = |preempts_for_shares, accepts, grant| {
            let mut checker = Preemption::new(preempts_for_shares, false, GRACE);
            let preempted = finished(attempt(1), EndReason::Preempted, false);
            let checked = checker.check(&world, &[admitted(accepts), launched_under(attempt(1), grant), preempted]);
            assert_eq!(checker.subjects(), 1, "one preemption");
            checked
        };
        let (unbooked, booked) = (None, Some(GrantId::default()));
        assert_eq!(check(false, ExecutionType::Opportunistic, unbooked), Ok(()));
        assert_eq!(check(false, ExecutionType::Auto, unbooked), Ok(()));
        assert!(check(false, ExecutionType::Auto, booked).is_err());
        assert!(check(false, ExecutionType::Guaranteed, unbooked).is_err());
        assert_eq!(check(true, ExecutionType::Guaranteed, booked), Ok(()));
    }

    #[test]
    fn an_attempt_that_starts_at_once_and_ends_on_its_own_is_no_subject_of_the_rule() {
        let mut checker = Preemption::new(false, false, GRACE);
        let story = [
            admitted(ExecutionType::Guaranteed),
            launched(attempt(1)),
            task_started(0, attempt(1), 1_000),
            finished(attempt(1), EndReason::Exit(0), true),
        ];
        assert_eq!(checker.check(&quiet_world(), &story), Ok(()));
        assert_eq!(checker.subjects(), 0);
    }

    /// Checks a guaranteed attempt of one core that waits on a node of two cores, both held by another attempt, at
    /// these seconds.
    fn waits_beside(
        other_is_guaranteed: bool,
        kill_grace: Duration,
        looks: &[u64],
    ) -> (Preemption, Result<(), Breach>) {
        let mut checker = Preemption::new(false, false, kill_grace);
        let capacity = Resources::new(2_000, 0);
        checker.running.entry(0).or_default().insert(attempt(1), (capacity, other_is_guaranteed));
        let entry = QueuedEntry {
            id: EntryId::Attempt(attempt(2)),
            shape: Arc::new(TaskShape { resources: Resources::new(1_000, 0), execution: ExecutionType::Guaranteed }),
            booked: true,
            queued_at: Instant(0),
            expected: None,
            weight: 1,
        };
        let checked = looks.iter().try_for_each(|seconds| {
            checker.check_queue(Instant(seconds * 1_000_000), 0, &capacity, (attempt(2), &entry))
        });
        (checker, checked)
    }

    #[test]
    fn a_guaranteed_attempt_that_waits_for_an_opportunistic_one_is_noticed_after_the_kill_grace() {
        let (checker, checked) = waits_beside(false, GRACE, &[0, 10, 11]);
        assert_eq!((checker.subjects(), checked), (1, Ok(())));
        assert!(waits_beside(false, GRACE, &[0, 10, 12]).1.is_err());
        // If a kill takes no time, no wait is allowed.
        assert_eq!(waits_beside(false, Duration::ZERO, &[5, 5]).1, Ok(()));
        assert!(waits_beside(false, Duration::ZERO, &[5, 6]).1.is_err());
    }

    #[test]
    fn waiting_for_a_guaranteed_attempt_breaks_nothing() {
        let (checker, checked) = waits_beside(true, Duration::ZERO, &[0, 1_000]);
        assert_eq!((checker.subjects(), checked), (0, Ok(())));
    }
}
