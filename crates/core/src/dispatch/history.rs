//! Run times of tasks of recurring jobs, for stages without a run time in the job file (Carbyne 4.2).
//!
//! Run times of the same work have priority over those of the same name. Run times that vary too much are not recalled.

use crate::role::Change;
use crate::vocabulary::{Duration, JobSpec, PastRuns, Recurring, UserId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of stages that are remembered, of all recurring jobs together. Jobs that have not recurred for
/// longest are forgotten first.
const KEPT_STAGES: usize = 100_000;

#[derive(Default)]
pub(super) struct History {
    jobs: BTreeMap<Recurring, Remembered>,
    /// The job that has not recurred for longest comes first.
    by_age: BTreeSet<(u64, Recurring)>,
    last: u64,
    stages: usize,
}

struct Remembered {
    stages: Arc<[Option<PastRuns>]>,
    last: u64,
}

impl History {
    /// The expected run time of a task, by stage; empty if nothing is known.
    pub fn recall(&self, user: UserId, spec: &JobSpec) -> Vec<Option<Duration>> {
        let known: Vec<&Remembered> =
            Recurring::of(user, spec).iter().filter_map(|recurring| self.jobs.get(recurring)).collect();
        if known.is_empty() {
            return Vec::new();
        }
        let of_stage = |number: usize| {
            let past = known.iter().find_map(|job| *job.stages.get(number)?);
            past.filter(PastRuns::is_steady).map(|past| past.mean())
        };
        (0..spec.stages.len()).map(of_stage).collect()
    }

    /// Learns the mean run time of each stage of which tasks succeeded. Returns the changes to persist.
    pub fn learn(&mut self, user: UserId, spec: &JobSpec, means: &[Option<Duration>]) -> Vec<Change> {
        if means.iter().all(Option::is_none) {
            return Vec::new();
        }
        let learn = |recurring| {
            let before = self.jobs.get(&recurring).map(|job| Arc::clone(&job.stages));
            let stage = |(number, mean): (usize, &Option<Duration>)| {
                let past = before.as_ref().and_then(|stages| *stages.get(number)?);
                mean.map(|mean| past.map_or(PastRuns::first(mean), |past| past.and(mean))).or(past)
            };
            Change::RunTimesLearned { recurring, stages: means.iter().enumerate().map(stage).collect() }
        };
        let learned: Vec<Change> = Recurring::of(user, spec).into_iter().map(learn).collect();
        learned.iter().for_each(|change| self.recover(change));
        learned
    }

    pub fn recover(&mut self, change: &Change) {
        let Change::RunTimesLearned { recurring, stages } = change else { return };
        self.forget(*recurring);
        self.last += 1;
        self.stages += stages.len();
        self.by_age.insert((self.last, *recurring));
        self.jobs.insert(*recurring, Remembered { stages: Arc::clone(stages), last: self.last });
        while self.stages > KEPT_STAGES {
            let Some(&(_, oldest)) = self.by_age.first() else { break };
            self.forget(oldest);
        }
    }

    /// The job that has not recurred for longest comes first.
    pub fn durable(&self) -> impl Iterator<Item = Change> {
        self.by_age.iter().map(|(_, recurring)| Change::RunTimesLearned {
            recurring: *recurring,
            stages: Arc::clone(&self.jobs[recurring].stages),
        })
    }

    fn forget(&mut self, recurring: Recurring) {
        if let Some(gone) = self.jobs.remove(&recurring) {
            self.by_age.remove(&(gone.last, recurring));
            self.stages -= gone.stages.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{ByteString, Program, StageSpec};

    const ME: UserId = UserId(1);

    fn spec(name: &str, commands: &[&str]) -> JobSpec {
        let stage = |(number, command): (usize, &&str)| StageSpec {
            name: format!("stage-{number}"),
            program: Arc::new(Program { command: vec![(*command).into()], ..Program::default() }),
            ..StageSpec::default()
        };
        JobSpec {
            name: name.to_owned(),
            stages: commands.iter().enumerate().map(stage).collect(),
            ..JobSpec::default()
        }
    }

    fn run(history: &mut History, spec: &JobSpec, seconds: &[Option<u64>]) -> Vec<Change> {
        let means: Vec<Option<Duration>> = seconds.iter().map(|mean| mean.map(Duration::from_secs)).collect();
        history.learn(ME, spec, &means)
    }

    fn recalled(history: &History, spec: &JobSpec) -> Vec<Option<u64>> {
        history.recall(ME, spec).into_iter().map(|mean| mean.map(|mean| mean.0 / 1_000_000)).collect()
    }

    #[test]
    fn same_work_is_recalled_under_any_name_and_otherwise_the_same_name() {
        let mut history = History::default();
        assert_eq!(recalled(&history, &spec("nightly", &["a", "b"])), []);
        run(&mut history, &spec("nightly", &["a", "b"]), &[Some(4), None]);
        assert_eq!(recalled(&history, &spec("weekly", &["a", "b"])), [Some(4), None]);
        run(&mut history, &spec("nightly", &["a 2", "b"]), &[Some(6), Some(9)]);
        assert_eq!(recalled(&history, &spec("nightly", &["a 3", "b"])), [Some(5), Some(9)], "by name, from both");
        assert_eq!(recalled(&history, &spec("nightly", &["a", "b"])), [Some(4), Some(9)], "by work where it is known");
        assert_eq!(recalled(&history, &spec("nightly", &["a"])), [], "it has other stages");
        assert_eq!(history.recall(UserId(2), &spec("nightly", &["a", "b"])), [], "it is another user's");
    }

    #[test]
    fn another_directory_command_or_resource_is_other_work() {
        let mut history = History::default();
        let shell = |script: &str, directory: &str| {
            let mut job = spec("sh", &["sh"]);
            let command = ["/bin/sh", "-c", script].map(ByteString::from).into();
            job.stages[0].program = Arc::new(Program { command, ..Program::default() });
            job.submit_dir = directory.into();
            job
        };
        run(&mut history, &shell("./run", "/a"), &[Some(3)]);
        assert_eq!(recalled(&history, &shell("./run", "/a")), [Some(3)]);
        assert_eq!(recalled(&history, &shell("./run", "/b")), []);
        assert_eq!(recalled(&history, &shell("./walk", "/a")), []);
        let with_gpu = |mut job: JobSpec| {
            job.stages[0].resources.custom.push(("fpga".to_owned(), 1));
            job
        };
        assert_eq!(recalled(&history, &with_gpu(shell("./run", "/a"))), []);
    }

    #[test]
    fn recent_runs_count_most_and_varying_run_times_are_not_recalled() {
        let (mut history, job) = (History::default(), spec("job", &["a"]));
        (0..20).for_each(|_| drop(run(&mut history, &job, &[Some(8)])));
        run(&mut history, &job, &[Some(16)]);
        assert_eq!(recalled(&history, &job), [Some(10)]);
        (0..20).for_each(|_| drop(run(&mut history, &job, &[Some(16)])));
        assert_eq!(recalled(&history, &job), [Some(15)]);
        for seconds in [1, 100, 1, 100] {
            run(&mut history, &job, &[Some(seconds)]);
        }
        assert_eq!(recalled(&history, &job), [None]);
    }

    #[test]
    fn durable_changes_restore_everything_and_the_oldest_jobs_are_forgotten_first() {
        let mut history = History::default();
        let jobs: Vec<JobSpec> = (0..9).map(|number| spec(&format!("job-{number}"), &["a", "b"])).collect();
        let named = |number: usize| {
            let mut job = jobs[number].clone();
            let words = vec![format!("run {number}").into()];
            job.stages[0].program = Arc::new(Program { command: words, ..Program::default() });
            job
        };
        (0..9).for_each(|number| drop(run(&mut history, &named(number), &[Some(number as u64 + 1), Some(1)])));
        run(&mut history, &named(0), &[Some(1), Some(1)]);
        let mut restored = History::default();
        history.durable().for_each(|change| restored.recover(&change));
        assert_eq!(restored.durable().collect::<Vec<_>>(), history.durable().collect::<Vec<_>>());
        assert_eq!(recalled(&restored, &named(4)), [Some(5), Some(1)]);
        let large = spec("large", &vec!["x"; KEPT_STAGES / 2 - 1]);
        run(&mut restored, &large, &vec![Some(1); large.stages.len()]);
        assert_eq!(recalled(&restored, &named(4)), [], "only two more stages fit");
        assert_eq!(recalled(&restored, &named(0)), [Some(1), Some(1)], "it recurred last");
        assert_eq!(recalled(&restored, &large).len(), KEPT_STAGES / 2 - 1);
    }
}
