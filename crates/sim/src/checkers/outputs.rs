//! The files of a task are those of one attempt: the first that succeeded, until they are lost and the task has run
//! again. Tasks that read them get exactly these files.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{AttemptId, Digest, Ended, JobId, JobSpec, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default)]
pub struct Outputs {
    jobs: BTreeMap<JobId, Arc<JobSpec>>,
    /// By task: the files, by name, of the attempt with which it succeeded.
    committed: BTreeMap<TaskId, BTreeMap<String, Digest>>,
    /// The files that launched attempts have to get when they start. Attempts that were written off may still start, so
    /// they stay here.
    reads: BTreeMap<AttemptId, BTreeSet<Digest>>,
    read: u64,
}

impl Outputs {
    fn on_change(&mut self, change: &Change) -> Result<(), Breach> {
        match change {
            Change::JobAdmitted { job, .. } => drop(self.jobs.insert(job.id, Arc::clone(&job.spec))),
            Change::Launched { attempt, task, .. } => {
                let reads = self.reads_of(*task);
                if !reads.is_empty() {
                    self.reads.insert(*attempt, reads);
                }
            }
            Change::Finished { attempt, task, ended, .. } => return self.on_finished(*task, *attempt, ended),
            Change::OutputLost { task, .. } => drop(self.committed.remove(task)),
            _ => {}
        }
        Ok(())
    }

    fn on_finished(&mut self, task: TaskId, attempt: AttemptId, ended: &Ended) -> Result<(), Breach> {
        if !ended.reason.is_success() || ended.outputs().is_empty() {
            return Ok(());
        }
        let files = ended.outputs().iter().map(|file| (file.name.clone(), file.digest)).collect();
        match self.committed.insert(task, files) {
            None => Ok(()),
            Some(_) => {
                let what = format!("{attempt} succeeded, but {task} has files already that are not lost");
                Err(Breach::of_task(task, what))
            }
        }
    }

    /// The committed files of other tasks that this task reads.
    fn reads_of(&self, task: TaskId) -> BTreeSet<Digest> {
        let Some(job) = self.jobs.get(&task.job) else { return BTreeSet::new() };
        let reader = &job.stages[task.stage as usize];
        let index = reader.tasks.index_value(task.index);
        let files = reader.inputs.iter().flat_map(|input| {
            let named = job.stages[input.stage as usize].select_outputs(&input.files, index);
            named.into_iter().map(|(from, name)| (TaskId { stage: input.stage, index: from, ..task }, name))
        });
        files.filter_map(|(writer, name)| self.committed.get(&writer)?.get(&name).copied()).collect()
    }

    fn on_started(&mut self, task: TaskId, attempt: AttemptId, given: &BTreeSet<Digest>) -> Result<(), Breach> {
        let reads = self.reads.remove(&attempt).unwrap_or_default();
        self.read += given.len() as u64;
        if *given == reads {
            return Ok(());
        }
        let (strange, missing) = (given.difference(&reads).count(), reads.difference(given).count());
        let what = format!(
            "{attempt} started with {strange} files that were not committed at its launch, and without {missing} files"
        );
        Err(Breach::of_task(task, what))
    }
}

impl Checker for Outputs {
    fn rule(&self) -> &'static str {
        "each task's files are committed once, and tasks that read them get these"
    }

    /// Files that attempts got.
    fn subjects(&self) -> u64 {
        self.read
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            if let Some(change) = happening.change() {
                self.on_change(change)?;
            }
            if let Happening::TaskStarted { node, attempt, task, .. } = happening
                && let Some(given) = world.inputs_of(*node, *attempt)
            {
                self.on_started(*task, *attempt, &given.collect())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{admitted, attempt, launched, reported};
    use amalgam_core::hosting::Fact;
    use amalgam_core::vocabulary::{
        EndReason, EndedFiles, ExecutionType, InputSpec, Instant, NodeId, OutputFile, StageSpec, TaskSet,
    };

    const WRITER: TaskId = TaskId { job: JobId(1), stage: 0, index: 0 };
    const READER: TaskId = TaskId { stage: 1, ..WRITER };

    fn left(by: u8) -> Digest {
        Digest([by; 32])
    }

    fn wrote(number: u32) -> Change {
        let file = OutputFile { name: "o".to_owned(), digest: left(number as u8), bytes: 1 };
        let mut ended = Ended::without_run(EndReason::Exit(0));
        Arc::make_mut(&mut ended).files = Some(Box::new(EndedFiles { outputs: vec![file], missing: Vec::new() }));
        let (task, node, at) = (WRITER, NodeId(0), Instant(0));
        Change::Finished { attempt: attempt(number), task, node, ended, last: true, at }
    }

    fn reads(number: u32) -> Change {
        let Some(Change::Launched { node, grant, opportunistic, weight, rule, passed_over, at, .. }) =
            launched(attempt(number)).change().cloned()
        else {
            unreachable!("a launch")
        };
        let (attempt, task) = (attempt(number), READER);
        Change::Launched { attempt, task, node, grant, opportunistic, weight, rule, passed_over, at }
    }

    fn lost() -> Change {
        Change::OutputLost { task: WRITER, file: "o".to_owned(), at: Instant(0) }
    }

    /// The checker after these changes of a job with one writer and one reader.
    fn after(changes: &[Change]) -> Result<Outputs, Breach> {
        let Happening::Reported(_, Fact::Change(Change::JobAdmitted { mut job, key })) = admitted(ExecutionType::Auto)
        else {
            unreachable!("an admission")
        };
        let mut spec = (*job.spec).clone();
        spec.stages[0].outputs = vec!["o".to_owned()];
        let inputs = vec![InputSpec { stage: 0, files: "o".to_owned() }];
        spec.stages.push(StageSpec { after: vec![0], inputs, tasks: TaskSet::Count(1), ..StageSpec::default() });
        Arc::make_mut(&mut job).spec = Arc::new(spec);
        let mut outputs = Outputs::default();
        let all: Vec<Happening> =
            [Change::JobAdmitted { job, key }].into_iter().chain(changes.iter().cloned()).map(reported).collect();
        outputs.check(&crate::checkers::testing::quiet_world(), &all)?;
        Ok(outputs)
    }

    #[test]
    fn files_that_are_committed_twice_are_noticed() {
        assert!(after(&[wrote(1), wrote(2)]).is_err());
        assert!(after(&[wrote(1), lost(), wrote(2)]).is_ok(), "the first files are lost");
    }

    #[test]
    fn a_reader_that_gets_other_files_is_noticed() {
        let given = |changes: &[Change], files: &[u8]| {
            let given = files.iter().map(|by| left(*by)).collect();
            after(changes).unwrap().on_started(READER, attempt(3), &given)
        };
        assert_eq!(given(&[wrote(1), reads(3)], &[1]), Ok(()));
        assert!(given(&[wrote(1), reads(3)], &[2]).is_err(), "the files of another attempt");
        assert!(given(&[wrote(1), reads(3)], &[]).is_err(), "no files");
        assert!(given(&[wrote(1), lost(), wrote(2), reads(3)], &[1]).is_err(), "lost files");
        assert_eq!(given(&[wrote(1), reads(3), lost(), wrote(2)], &[1]), Ok(()), "the files at the time of the launch");
    }
}
