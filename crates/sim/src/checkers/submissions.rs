//! A client that received an id for its job has that job, and only that one.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::JobId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Submissions {
    admitted: BTreeSet<JobId>,
    forgotten: BTreeSet<JobId>,
    /// By number in the workload, which is the key of the client's submission.
    answered: BTreeMap<u32, JobId>,
    answers: u64,
}

impl Submissions {
    fn on_answer(&mut self, job: u32, id: JobId) -> Result<(), Breach> {
        self.answers += 1;
        if !self.admitted.contains(&id) {
            return Err(Breach::of_job(id, format!("a client received job id {id}, which is not on disk")));
        }
        match self.answered.insert(job, id) {
            Some(before) if before != id && !self.forgotten.contains(&before) => {
                Err(Breach::of_job(id, format!("one submission became job {before} and job {id}")))
            }
            _ => Ok(()),
        }
    }
}

impl Checker for Submissions {
    fn rule(&self) -> &'static str {
        "a job that was acknowledged is on disk, once"
    }

    /// Answers to clients.
    fn subjects(&self) -> u64 {
        self.answers
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for change in happened.iter().filter_map(Happening::change) {
            match change {
                Change::JobAdmitted { job, .. } if !self.admitted.insert(job.id) => {
                    return Err(Breach::of_job(job.id, format!("the id of job {} was used twice", job.id)));
                }
                Change::JobForgotten { job } => {
                    self.forgotten.insert(*job);
                }
                _ => {}
            }
        }
        happened.iter().try_for_each(|happening| match happening {
            Happening::Answered { job, id } => self.on_answer(*job, *id),
            _ => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{admitted, quiet_world};
    use amalgam_core::vocabulary::ExecutionType;

    #[test]
    fn an_answer_without_a_job_on_disk_is_noticed() {
        let answer = Happening::Answered { job: 0, id: JobId(1) };
        let world = quiet_world();
        assert!(Submissions::default().check(&world, std::slice::from_ref(&answer)).is_err());
        assert_eq!(Submissions::default().check(&world, &[answer, admitted(ExecutionType::Auto)]), Ok(()));
    }

    #[test]
    fn a_job_id_that_is_used_twice_is_noticed() {
        let twice = [admitted(ExecutionType::Auto), admitted(ExecutionType::Auto)];
        assert!(Submissions::default().check(&quiet_world(), &twice).is_err());
    }

    #[test]
    fn a_submission_that_became_two_jobs_is_noticed() {
        let mut checker = Submissions { admitted: [JobId(1), JobId(2)].into(), ..Submissions::default() };
        let answers = [1, 2].map(|id| Happening::Answered { job: 0, id: JobId(id) });
        assert!(checker.check(&quiet_world(), &answers).is_err());
    }
}
