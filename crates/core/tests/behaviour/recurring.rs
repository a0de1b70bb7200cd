//! Recurring jobs are planned with the run times of their last runs.

use crate::world::{World, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::progress::EstimateSource::{EarlierRuns, FinishedTasks, JobFile};
use amalgam_core::protocol::{JobAction, JobOutcome};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{Duration, JobId, JobSpec, Resources, StageSpec};

fn cluster(preset: Preset) -> World {
    World::with_nodes(preset, 1, Resources::new(1_000, 0))
}

/// A stage of two tasks that run for `first`, and a stage after it.
fn nightly(first: &str) -> JobSpec {
    let mut last = stage("last", 1, "2s", 1_000);
    last.after = vec![0];
    JobSpec { name: "nightly".to_owned(), ..job(vec![stage("first", 2, first, 500), last]) }
}

fn run(world: &mut World, spec: JobSpec, seconds: u64) {
    let job = world.submit(spec);
    world.run_for(Duration::from_secs(seconds));
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded));
}

/// The expected run time of a task of each stage, in seconds, and its source.
fn expected(world: &World, job: JobId) -> Vec<Option<(u64, String)>> {
    let stages = &world.server.as_ref().expect("the server runs").jobs[&job].dag().stages;
    let of = |estimate: &amalgam_core::progress::Estimate| {
        Some((estimate.expected()?.0.div_ceil(1_000_000), format!("{:?}", estimate.source()?)))
    };
    stages.iter().map(|stage| of(&stage.estimate)).collect()
}

fn known(seconds: u64, source: amalgam_core::progress::EstimateSource) -> Option<(u64, String)> {
    Some((seconds, format!("{source:?}")))
}

#[test]
fn a_recurring_job_is_expected_to_take_its_last_run_times_also_after_a_restart() {
    let mut world = cluster(Preset::DRF);
    let first = world.submit(nightly("6s"));
    assert_eq!(expected(&world, first), [None, None]);
    world.run_for(Duration::from_secs(20));
    assert_eq!(expected(&world, first), [known(6, FinishedTasks), known(2, FinishedTasks)]);
    let again = world.submit(nightly("6s"));
    assert_eq!(expected(&world, again), [known(6, EarlierRuns), known(2, EarlierRuns)]);
    world.kill_server();
    world.start_server();
    world.settle();
    assert_eq!(expected(&world, again), [known(6, EarlierRuns), known(2, EarlierRuns)]);
    let after_restart = world.submit(nightly("6s"));
    assert_eq!(expected(&world, after_restart), [known(6, EarlierRuns), known(2, EarlierRuns)]);
}

#[test]
fn finished_tasks_override_the_job_file_which_overrides_earlier_runs() {
    let mut world = cluster(Preset::DRF);
    run(&mut world, nightly("6s"), 20);
    let mut stated = nightly("6s");
    stated.stages[0].expected = Some(Duration::from_secs(9));
    let job = world.submit(stated);
    assert_eq!(expected(&world, job), [known(9, JobFile), known(2, EarlierRuns)]);
    world.run_for(Duration::from_secs(7));
    assert_eq!(expected(&world, job), [known(6, FinishedTasks), known(2, EarlierRuns)]);
}

#[test]
fn a_failed_job_teaches_its_succeeded_stages_and_one_cancelled_at_once_nothing() {
    let mut world = cluster(Preset::DRF);
    let cancelled = world.submit(nightly("6s"));
    world.control(cancelled, JobAction::Cancel);
    world.settle();
    let mut failing = nightly("6s");
    failing.stages[1] = stage("last", 1, "2s 1", 1_000);
    failing.stages[1].after = vec![0];
    let job = world.submit(failing);
    assert_eq!(expected(&world, job), [None, None]);
    world.run_for(Duration::from_secs(20));
    assert!(matches!(world.outcome(job), Some(JobOutcome::Failed { .. })), "{:?}", world.outcome(job));
    let next = world.submit(nightly("6s"));
    assert_eq!(expected(&world, next), [known(6, EarlierRuns), None], "found by the job's name");
}

/// How much later than the first of its stages the second one starts, beside a job that takes all leftover resources.
fn put_off(world: &mut World, spec: JobSpec) -> Duration {
    world.submit(job(vec![stage("before", 1, "1s", 1_000)]));
    let id = world.submit(spec);
    let many = StageSpec { expected: Some(Duration::from_millis(300)), ..stage("many", 1_000, "300ms", 250) };
    world.submit(JobSpec { name: "many".to_owned(), priority: 1, ..job(vec![many]) });
    world.run_for(Duration::from_secs(20));
    let start = |stage| {
        let launched = world.disk.iter().find_map(|change| match change {
            Change::Launched { task, at, .. } if task.job == id && task.stage == stage => Some(*at),
            _ => None,
        });
        launched.expect("the stage ran")
    };
    start(1).since(start(0))
}

/// A long stage and a short one before a third.
fn long_and_short() -> JobSpec {
    let mut last = stage("last", 1, "1s", 250);
    last.after = vec![0, 1];
    job(vec![stage("long", 1, "10s", 250), stage("short", 1, "2s", 250), last])
}

#[test]
fn a_recurring_job_defers_tasks_according_to_its_last_runs() {
    let mut world = cluster(Preset::CARBYNE);
    run(&mut world, long_and_short(), 30);
    let late = put_off(&mut world, long_and_short());
    assert!(late > Duration::from_secs(7), "{late}");
}

#[test]
fn a_job_without_all_its_run_times_defers_nothing() {
    let mut spec = long_and_short();
    spec.stages[1].expected = Some(Duration::from_secs(2));
    spec.stages[2].expected = Some(Duration::from_secs(1));
    let late = put_off(&mut cluster(Preset::CARBYNE), spec.clone());
    assert!(late < Duration::from_secs(1), "{late}");
    spec.stages[0].expected = Some(Duration::from_secs(10));
    let late = put_off(&mut cluster(Preset::CARBYNE), spec);
    assert!(late > Duration::from_secs(7), "{late}");
}
