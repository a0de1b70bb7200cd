//! An opportunistic attempt that has waited for too long is the next of its job to become guaranteed: before any task
//! of the job that was not sent yet, and before any attempt that has waited for less time.
//!
//! A job manager is judged by its own reports, in their order: the start of an attempt, or a larger allowance of its
//! job, counts once the manager knows of it.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::places::{self, ProcessId};
use crate::simulation::Simulation;
use amalgam_core::preset::Preset;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, Duration, HostId, Instant, JobId, Resources, TaskId, Totals};
use std::collections::{BTreeMap, BTreeSet};

pub struct Starvation {
    preset: Preset,
    jobs: BTreeMap<JobId, Rules>,
    /// The allowance for guaranteed tasks of each job, if the present incarnation of its manager has reported it.
    most: BTreeMap<JobId, Totals>,
    /// The attempts of each task that have not ended.
    open: BTreeMap<TaskId, BTreeSet<AttemptId>>,
    /// Opportunistic attempts that may wait.
    waiting: BTreeMap<AttemptId, Waiting>,
    /// Those of them whose start their managers learned in this turn. Whether that was before or after a change of the
    /// turn is not reported.
    started: BTreeSet<AttemptId>,
    /// Those that started before. The next incarnation of their manager does not know that and treats them as waiting.
    running: BTreeMap<AttemptId, Waiting>,
    looks: u64,
}

struct Waiting {
    task: TaskId,
    since: Instant,
    /// Whether its manager would report its start. It does not for attempts that an earlier incarnation launched.
    is_known: bool,
}

struct Rules {
    /// The process of its manager.
    host: HostId,
    starved_after: Duration,
    /// By stage: the resources of a task.
    resources: Vec<Resources>,
}

impl Starvation {
    pub fn new(preset: Preset) -> Starvation {
        let (jobs, most, open, waiting) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (started, running) = (BTreeSet::new(), BTreeMap::new());
        Starvation { preset, jobs, most, open, waiting, started, running, looks: 0 }
    }

    fn on_change(&mut self, change: &Change) -> Result<(), Breach> {
        match change {
            Change::JobAdmitted { job, .. } => {
                if let Some(settings) = self.preset.of_job(job).entitled() {
                    let starved_after = settings.allowance.starved_after;
                    let (host, resources) = (job.host, job.resources.clone());
                    self.jobs.insert(job.id, Rules { host, starved_after, resources });
                }
            }
            Change::Launched { attempt, task, grant: None, opportunistic, rule, at, .. } => {
                let is_next = !opportunistic && !rule.is_second();
                let checked = if is_next { self.check_next(*attempt, *task, *at) } else { Ok(()) };
                self.open.entry(*task).or_default().insert(*attempt);
                if *opportunistic {
                    let (task, since, is_known) = (*task, *at, true);
                    self.waiting.insert(*attempt, Waiting { task, since, is_known });
                }
                return checked;
            }
            Change::Promoted { attempt, task, grant, at, .. } => {
                let was_starved = self.waiting.remove(attempt).is_some_and(|waiting| {
                    self.jobs.get(&task.job).is_some_and(|rules| at.since(waiting.since) >= rules.starved_after)
                });
                self.looks += u64::from(was_starved);
                if grant.is_none() && !was_starved {
                    return self.check_next(*attempt, *task, *at);
                }
            }
            Change::Finished { attempt, task, .. } | Change::Lost { attempt, task, .. } => {
                self.waiting.remove(attempt);
                self.running.remove(attempt);
                if let Some(open) = self.open.get_mut(task) {
                    open.remove(attempt);
                }
            }
            // The manager that runs the job again knows no allowance yet.
            Change::Rerun { job, .. } | Change::JobEnded { job, .. } | Change::JobReopened { job, .. } => {
                self.most.remove(job);
            }
            _ => {}
        }
        Ok(())
    }

    /// A process with job managers restarted: its managers know no allowances yet, and do not report the starts of
    /// attempts that their earlier incarnations launched.
    fn start_again(&mut self, place: ProcessId) {
        let host = match place {
            ProcessId::Managers(number) => places::host(number),
            _ => HostId::SERVER,
        };
        self.most.retain(|job, _| self.jobs.get(job).is_none_or(|rules| rules.host != host));
        let (theirs, others) =
            std::mem::take(&mut self.running).into_iter().partition(|(id, _)| id.epoch.host() == host);
        self.running = others;
        self.waiting.extend::<BTreeMap<_, _>>(theirs);
        let theirs = self.waiting.iter_mut().filter(|(attempt, _)| attempt.epoch.host() == host);
        theirs.for_each(|(_, waiting)| waiting.is_known = false);
    }

    /// Checks an attempt that becomes guaranteed and has not waited for too long itself.
    fn check_next(&self, attempt: AttemptId, task: TaskId, now: Instant) -> Result<(), Breach> {
        let (Some(rules), Some(most)) = (self.jobs.get(&task.job), self.most.get(&task.job)) else { return Ok(()) };
        let waits = |other: &AttemptId| other.job == task.job && !self.started.contains(other);
        let mut of_job = self.waiting.iter().filter(|(other, _)| waits(other));
        let is_starved = |waiting: &Waiting| {
            waiting.is_known
                && now.since(waiting.since) >= rules.starved_after
                && most.holds(&rules.resources[waiting.task.stage as usize]) > 0
                && self.open.get(&waiting.task).is_some_and(|open| open.len() == 1)
        };
        let Some((first, _)) = of_job.find(|(_, waiting)| is_starved(waiting)) else {
            return Ok(());
        };
        let what = format!("{attempt} becomes guaranteed, but {first} has waited for at least {}", rules.starved_after);
        Err(Breach::of_task(task, what))
    }
}

impl Checker for Starvation {
    fn rule(&self) -> &'static str {
        "an opportunistic attempt that has waited for too long is the next of its job to become guaranteed"
    }

    /// Attempts that were promoted when they had waited for too long.
    fn subjects(&self) -> u64 {
        self.looks
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        // The records of a turn are listed after its changes, but contain what the changes are based on.
        let mut allowed = BTreeMap::new();
        for record in happened.iter().filter_map(Happening::record) {
            match record {
                Record::Allowed { job, most } => {
                    self.most.entry(*job).and_modify(|before| *before = before.smaller_of(most)).or_insert(**most);
                    allowed.insert(*job, **most);
                }
                Record::Started { attempt, .. } => drop(self.started.insert(*attempt)),
                _ => {}
            }
        }
        for happening in happened {
            if let Happening::Started(place @ (ProcessId::Server | ProcessId::Managers(_))) = happening {
                self.start_again(*place);
            }
            if let Some(change) = happening.change() {
                self.on_change(change)?;
            }
        }
        self.most.extend(allowed);
        for attempt in std::mem::take(&mut self.started) {
            self.running.extend(self.waiting.remove(&attempt).map(|waiting| (attempt, waiting)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{admitted, attempt, launched_under, quiet_world, reported};
    use amalgam_core::hosting::Fact;
    use amalgam_core::protocol::Rule;
    use amalgam_core::role::LostCause;
    use amalgam_core::vocabulary::{ExecutionType, NodeId};

    const TASK: TaskId = TaskId { job: JobId(1), stage: 0, index: 0 };
    const STARVED: Instant = Instant(Preset::APOLLO.entitled().unwrap().allowance.starved_after.0);

    fn allowed(cores: u64) -> Happening {
        let mut most = Totals::ZERO;
        most.add_times(&Resources::new(1_000, 0), cores);
        let record = Record::Allowed { job: TASK.job, most: Box::new(most) };
        Happening::Reported(ProcessId::Server, Fact::Record(record))
    }

    fn started(attempt: AttemptId) -> Happening {
        let (waited, node) = (Duration::ZERO, NodeId(0));
        let (expected, opportunistic, promoted, allocation) = (None, true, false, None);
        let task = TASK;
        let record = Record::Started { task, attempt, node, waited, expected, opportunistic, promoted, allocation };
        Happening::Reported(ProcessId::Server, Fact::Record(record))
    }

    /// The launch of another task as guaranteed.
    fn guaranteed(number: u32, rule: Rule, at: Instant) -> Happening {
        let (task, attempt, node) = (TaskId { index: number, ..TASK }, attempt(number), NodeId(0));
        let (grant, opportunistic, weight, passed_over) = (None, false, 1, 0);
        reported(Change::Launched { attempt, task, node, grant, opportunistic, weight, rule, passed_over, at })
    }

    /// The launch of another task as opportunistic.
    fn sent(number: u32, at: Instant) -> Change {
        let (task, attempt, node) = (TaskId { index: number, ..TASK }, attempt(number), NodeId(0));
        let (grant, opportunistic, weight, rule, passed_over) = (None, true, 1, Rule::Completion, 0);
        Change::Launched { attempt, task, node, grant, opportunistic, weight, rule, passed_over, at }
    }

    fn promoted(number: u32, at: Instant) -> Happening {
        reported(Change::Promoted { attempt: attempt(number), task: TASK, node: NodeId(0), grant: None, at })
    }

    /// Checks these happenings after an opportunistic attempt was sent.
    fn check(happened: &[Happening]) -> Result<(), Breach> {
        let start = [admitted(ExecutionType::Auto), allowed(1), launched_under(attempt(1), None)];
        Starvation::new(Preset::APOLLO).check(&quiet_world(), &[&start, happened].concat())
    }

    #[test]
    fn a_guaranteed_launch_before_an_attempt_that_has_waited_for_too_long_is_noticed() {
        let next = |at| guaranteed(2, Rule::Completion, at);
        assert!(check(&[next(STARVED)]).is_err());
        assert_eq!(check(&[next(Instant(STARVED.0 - 1))]), Ok(()), "it has not waited for too long");
        assert_eq!(check(&[started(attempt(1)), next(STARVED)]), Ok(()), "it runs");
        assert_eq!(check(&[promoted(1, STARVED), next(STARVED)]), Ok(()), "it was promoted first");
        let at_once = [promoted(1, STARVED), next(STARVED), started(attempt(1))];
        assert_eq!(check(&at_once), Ok(()), "it started in the same turn");
        assert_eq!(check(&[allowed(0), next(STARVED)]), Ok(()), "the allowance is too small for it");
        assert_eq!(check(&[guaranteed(2, Rule::Straggler, STARVED)]), Ok(()), "a duplicate of another attempt");
    }

    #[test]
    fn the_next_incarnation_of_a_manager_does_not_know_which_attempts_have_started() {
        let start = [admitted(ExecutionType::Auto), allowed(1), launched_under(attempt(1), None), started(attempt(1))];
        let mut checker = Starvation::new(Preset::APOLLO);
        assert_eq!(checker.check(&quiet_world(), &start), Ok(()));
        let younger = reported(sent(2, Instant(STARVED.0 - 1)));
        assert_eq!(
            checker.check(&quiet_world(), &[Happening::Started(ProcessId::Server), allowed(1), younger]),
            Ok(())
        );
        let late = Instant(2 * STARVED.0);
        assert!(checker.check(&quiet_world(), &[guaranteed(3, Rule::Completion, late)]).is_err(), "the second waits");
        assert_eq!(checker.check(&quiet_world(), &[promoted(1, late)]), Ok(()), "the first is older");
        assert!(
            checker.check(&quiet_world(), &[guaranteed(3, Rule::Completion, late)]).is_err(),
            "the second still waits"
        );
    }

    #[test]
    fn an_attempt_that_has_started_and_ended_does_not_count_as_waiting() {
        let start = [admitted(ExecutionType::Auto), allowed(1), launched_under(attempt(1), None), started(attempt(1))];
        let mut checker = Starvation::new(Preset::APOLLO);
        assert_eq!(checker.check(&quiet_world(), &start), Ok(()));
        assert_eq!((checker.waiting.len(), checker.running.len()), (0, 1));
        let (attempt, cause, node) = (attempt(1), LostCause::Unknown, NodeId(0));
        let lost = Change::Lost { attempt, task: TASK, node, cause, last: false, at: STARVED };
        let happened = [reported(lost), Happening::Started(ProcessId::Server)];
        assert_eq!(checker.check(&quiet_world(), &happened), Ok(()));
        assert_eq!((checker.waiting.len(), checker.running.len()), (0, 0));
    }

    #[test]
    fn a_promotion_before_an_older_waiting_attempt_is_noticed() {
        assert!(check(&[reported(sent(2, STARVED)), promoted(2, STARVED)]).is_err());
    }
}
