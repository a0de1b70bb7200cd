//! An attempt ends once, a task has at most one live attempt and one duplicate, and a task starts again only for a
//! recorded reason. A task that has succeeded starts again only if its output is lost.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::protocol::Rule;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{AttemptId, JobId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// Follows each task through the durable changes.
#[derive(Default)]
pub struct Attempts {
    launched: BTreeSet<AttemptId>,
    ended: BTreeSet<AttemptId>,
    /// Attempts that write the files of succeeded tasks again.
    copies: BTreeSet<AttemptId>,
    tasks: BTreeMap<TaskId, Progress>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Runs(AttemptId),
    /// The task has a duplicate.
    RunsTwice(AttemptId, AttemptId),
    /// The task is to be retried.
    Again,
    Succeeded,
    Failed,
}

impl Attempts {
    fn on_change(&mut self, change: &Change) -> Result<(), Breach> {
        match change {
            Change::Launched { attempt, task, rule: Rule::Copy, .. } => self.on_copied(*attempt, *task),
            Change::Lost { attempt, task, .. } if self.copies.contains(attempt) => self.on_copy_ended(*attempt, *task),
            Change::Launched { attempt, task, rule, .. } if rule.is_second() => self.on_duplicated(*attempt, *task),
            Change::Launched { attempt, task, .. } => self.on_launched(*attempt, *task),
            Change::Finished { attempt, task, ended, last, .. } => {
                let progress = match last {
                    _ if ended.reason.is_success() => Progress::Succeeded,
                    true => Progress::Failed,
                    false => Progress::Again,
                };
                self.on_ended(*attempt, *task, progress)
            }
            Change::Lost { attempt, task, last, .. } => {
                self.on_ended(*attempt, *task, if *last { Progress::Failed } else { Progress::Again })
            }
            Change::OutputLost { task, .. } => {
                let before = self.tasks.insert(*task, Progress::Again);
                match before {
                    Some(Progress::Succeeded) => Ok(()),
                    _ => Err(Breach::of_task(*task, format!("task {task} lost its output although it was {before:?}"))),
                }
            }
            Change::Rerun { job, .. } => {
                self.on_rerun(*job);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_launched(&mut self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        if !self.launched.insert(attempt) {
            return Err(Breach::of_task(task, format!("attempt id {attempt} was used twice")));
        }
        match self.tasks.insert(task, Progress::Runs(attempt)) {
            None | Some(Progress::Again) => Ok(()),
            Some(before) => {
                let what = format!("task {task} was launched as {attempt} although it was {before:?}");
                Err(Breach::of_task(task, what))
            }
        }
    }

    fn on_duplicated(&mut self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        if !self.launched.insert(attempt) {
            return Err(Breach::of_task(task, format!("attempt id {attempt} was used twice")));
        }
        match self.tasks.get(&task) {
            Some(Progress::Runs(first)) => {
                self.tasks.insert(task, Progress::RunsTwice(*first, attempt));
                Ok(())
            }
            before => {
                Err(Breach::of_task(task, format!("{attempt} is a duplicate of task {task}, which was {before:?}")))
            }
        }
    }

    fn on_copied(&mut self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        let is_new = self.launched.insert(attempt) && self.copies.insert(attempt);
        match self.tasks.get(&task) {
            Some(Progress::Succeeded) if is_new => Ok(()),
            before => Err(Breach::of_task(task, format!("{attempt} is a copy of task {task}, which was {before:?}"))),
        }
    }

    fn on_copy_ended(&mut self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        let is_first = self.ended.insert(attempt);
        let twice = || Breach::of_task(task, format!("attempt {attempt} ended twice"));
        is_first.then_some(()).ok_or_else(twice)
    }

    fn on_ended(&mut self, attempt: AttemptId, task: TaskId, progress: Progress) -> Result<(), Breach> {
        if !self.ended.insert(attempt) {
            return Err(Breach::of_task(task, format!("attempt {attempt} ended twice")));
        }
        if let Some(&Progress::RunsTwice(first, second)) = self.tasks.get(&task) {
            let other = if first == attempt { second } else { first };
            if (first != attempt && second != attempt) || progress != Progress::Again {
                let what = format!("attempt {attempt} ended as {progress:?}, but {other} of its task continues");
                return Err(Breach::of_task(task, what));
            }
            self.tasks.insert(task, Progress::Runs(other));
            return Ok(());
        }
        let before = self.tasks.insert(task, progress);
        if before != Some(Progress::Runs(attempt)) {
            return Err(Breach::of_task(task, format!("attempt {attempt} ended although task {task} was {before:?}")));
        }
        Ok(())
    }

    /// Failed tasks of the job may run again.
    fn on_rerun(&mut self, job: JobId) {
        let of_job = self.tasks.iter_mut().filter(|(task, _)| task.job == job);
        for (_, progress) in of_job.filter(|(_, progress)| **progress == Progress::Failed) {
            *progress = Progress::Again;
        }
    }
}

impl Checker for Attempts {
    fn rule(&self) -> &'static str {
        "an attempt ends once, and no finished task starts again"
    }

    /// Attempts that ended.
    fn subjects(&self) -> u64 {
        self.ended.len() as u64
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        happened.iter().filter_map(Happening::change).try_for_each(|change| self.on_change(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{attempt, finished, launched, quiet_world};
    use amalgam_core::hosting::Fact;
    use amalgam_core::vocabulary::EndReason;

    fn check(happened: &[Happening]) -> Result<(), Breach> {
        Attempts::default().check(&quiet_world(), happened)
    }

    #[test]
    fn a_task_that_failed_may_be_retried() {
        let failed = finished(attempt(1), EndReason::Exit(1), false);
        let succeeded = finished(attempt(2), EndReason::Exit(0), true);
        assert_eq!(check(&[launched(attempt(1)), failed, launched(attempt(2)), succeeded]), Ok(()));
    }

    fn duplicate(number: u32) -> Happening {
        let Happening::Reported(
            place,
            Fact::Change(Change::Launched { attempt, task, node, grant, passed_over, at, .. }),
        ) = launched(attempt(number))
        else {
            unreachable!("a launch")
        };
        let (opportunistic, rule) = (true, Rule::Duplicate);
        let launched = Change::Launched { attempt, task, node, grant, opportunistic, weight: 1, rule, passed_over, at };
        Happening::Reported(place, Fact::Change(launched))
    }

    #[test]
    fn a_task_may_have_a_duplicate_and_continues_with_either() {
        let over = |number| finished(attempt(number), EndReason::Preempted, false);
        let succeeded = |number| finished(attempt(number), EndReason::Exit(0), true);
        let start = [launched(attempt(1)), duplicate(2)];
        for (first, other) in [(1, 2), (2, 1)] {
            assert_eq!(check(&[&start[..], &[over(first), succeeded(other)]].concat()), Ok(()));
        }
        assert!(check(&[&start[..], &[succeeded(1)]].concat()).is_err(), "the other one continues");
        assert!(check(&[&start[..], &[duplicate(3)]].concat()).is_err(), "a third one");
        assert!(check(&[duplicate(2)]).is_err(), "a duplicate without a first attempt");
    }

    #[test]
    fn an_attempt_that_ends_twice_is_noticed() {
        let end = finished(attempt(1), EndReason::Exit(0), true);
        assert!(check(&[launched(attempt(1)), end.clone(), end]).is_err());
    }

    #[test]
    fn a_finished_task_that_starts_again_is_noticed() {
        let end = finished(attempt(1), EndReason::Exit(0), true);
        assert!(check(&[launched(attempt(1)), end, launched(attempt(2))]).is_err());
    }

    #[test]
    fn a_task_that_runs_twice_at_once_is_noticed() {
        assert!(check(&[launched(attempt(1)), launched(attempt(2))]).is_err());
    }

    #[test]
    fn an_attempt_id_that_is_used_twice_is_noticed() {
        let failed = finished(attempt(1), EndReason::Exit(1), false);
        assert!(check(&[launched(attempt(1)), failed, launched(attempt(1))]).is_err());
    }
}
