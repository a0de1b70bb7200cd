//! Predictions of the starts of tasks, in every preset, and what is learned from their accuracy.

use crate::world::*;
use amalgam_core::preset::Preset;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::*;
use std::collections::BTreeSet;

const CORE: Resources = Resources::new(1_000, 0);
const TWO: Resources = Resources::new(2_000, 0);
const SECOND: Duration = Duration::from_secs(1);

fn any(tasks: u32) -> StageSpec {
    StageSpec { execution: ExecutionType::Auto, expected: Some(SECOND), ..stage("only", tasks, "1s", 1_000) }
}

/// The prediction of each start, in the order of the starts.
fn reported(world: &World) -> Vec<(TaskId, Prediction, PredictedStart)> {
    let reported = world.records.iter().filter_map(|record| match record {
        Record::Prediction { task, prediction, start, .. } => Some((*task, *prediction, *start)),
        _ => None,
    });
    reported.collect()
}

#[test]
fn every_start_is_predicted_once_in_every_preset() {
    for preset in Preset::all().chain(baselines::ALL.iter().copied()) {
        let mut world = World::with_nodes(preset, 2, TWO);
        for _ in 0..3 {
            world.submit(job(vec![any(10)]));
            world.run_for(SECOND);
        }
        world.run_for(Duration::from_secs(60));
        let started = world.records.iter().filter(|record| matches!(record, Record::Started { .. })).count();
        let reported = reported(&world);
        // An attempt that is preempted while its process is being made has not started, although its job got a message
        // that it had.
        assert!((30..=started).contains(&reported.len()), "{}: {} of {started}", preset.name(), reported.len());
        assert_eq!(reported.iter().map(|(task, ..)| task).collect::<BTreeSet<_>>().len(), 30, "{}", preset.name());
        for (task, reported, start) in reported {
            let is_within = reported.least <= start.waited && start.waited <= reported.most;
            assert!(reported.least <= reported.most && start.is_right == is_within, "{task}: {reported:?}, {start:?}");
            assert_eq!((start.way, start.expected), (reported.way, reported.expected));
        }
    }
}

#[test]
fn a_prediction_counts_the_tasks_before_it() {
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    let first = world.submit(job(vec![any(400)]));
    world.run_for(Duration::from_secs(300));
    let second = world.submit(job(vec![any(5)]));
    world.run_for(Duration::from_secs(130));
    let reported = reported(&world);
    let of = |job: JobId| reported.iter().filter(move |(task, ..)| task.job == job);
    // One task per second ends, and a hundred are before the first of these.
    for (place, (_, reported, start)) in of(second).enumerate() {
        let (expected, waited) = (reported.expected.as_secs_f64(), start.waited.as_secs_f64());
        assert_eq!((reported.way, waited.round()), (Route::Asked, 100.0 + place as f64));
        assert!((expected / waited - 1.0).abs() < 0.1, "{expected} s, and it was {waited} s");
    }
    // When the first job arrived, no task had ended yet, and the expected second was the only basis.
    let expected: Vec<u64> = of(first).map(|(_, reported, _)| reported.expected.0 / 1_000_000).collect();
    assert!(expected.is_sorted() && expected[0] == 0 && expected[399] == 398, "{expected:?}");
}

#[test]
fn predicted_ranges_narrow_to_the_actual_waits() {
    for (preset, way) in [(Preset::FIFO, Route::Asked), (Preset::SPARROW, Route::Probed), (Preset::APOLLO, Route::Sent)]
    {
        let mut world = World::with_nodes(preset, 2, TWO);
        let spec = || StageSpec { execution: ExecutionType::Guaranteed, ..any(1) };
        for _ in 0..60 {
            world.submit(job(vec![spec()]));
            world.run_for(Duration::from_secs(3));
        }
        let reported = reported(&world);
        let width = |at: usize| reported[at].1.most.0 - reported[at].1.least.0;
        assert_eq!(reported[59].1.way, way, "{}", preset.name());
        assert!(width(0) > 30_000 && width(59) < 2_000, "{}: {} and {}", preset.name(), width(0), width(59));
        assert!(reported[40..].iter().all(|(_, _, start)| start.is_right), "all waits are alike");
    }
}

#[test]
fn a_task_that_is_asked_for_again_is_predicted_again() {
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    let spec = StageSpec { retries: 1, ..stage("fails", 1, "5s 1", 1_000) };
    let id = world.submit(job(vec![spec]));
    world.run_for(Duration::from_secs(2));
    let other = world.submit(job(vec![any(3)]));
    world.run_for(Duration::from_secs(30));
    let reported = reported(&world);
    let waited: Vec<u64> =
        reported.iter().filter(|(task, ..)| task.job == id).map(|(_, _, start)| start.waited.0 / 1_000_000).collect();
    // The second prediction is made after the failure, and its job is scheduled first once another task has ended.
    assert_eq!(waited, [0, 1]);
    assert_eq!(reported.iter().filter(|(task, ..)| task.job == other).count(), 3);
}

#[test]
fn asks_to_a_lost_master_are_made_again() {
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    let id = world.submit(job(vec![any(8)]));
    world.run_for(Duration::from_millis(3_500));
    world.kill_server();
    world.start_server();
    world.run_for(Duration::from_secs(30));
    let launched = world.disk.iter().filter(|change| matches!(change, Change::Launched { .. })).count();
    let reported = reported(&world);
    assert_eq!((launched, reported.len()), (8, 8));
    let ages: Vec<u64> = reported.iter().map(|(_, reported, _)| reported.age.0.div_ceil(1_000_000)).collect();
    assert_eq!(ages[..4], [0, 1, 2, 3]);
    assert!(ages[4] <= 1 && ages[7] <= 4, "{ages:?} since the second was asked");
    assert_eq!(world.outcome(id), Some(amalgam_core::protocol::JobOutcome::Succeeded));
}

#[test]
fn a_task_that_waits_longer_than_predicted_is_counted_once_before_it_starts() {
    let sent = (Preset::MERCURY, Route::SentOpportunistic, ExecutionType::Opportunistic);
    for (preset, way, execution) in [(Preset::FIFO, Route::Asked, ExecutionType::Guaranteed), sent] {
        let mut world = World::with_nodes(preset, 1, CORE);
        let spec = |tasks| StageSpec { execution, ..any(tasks) };
        for _ in 0..100 {
            world.submit(job(vec![spec(1)]));
            world.run_for(Duration::from_millis(1_100));
        }
        // The tasks behind this one are predicted with its expected run time of a second.
        world.submit(job(vec![StageSpec { execution, expected: Some(SECOND), ..stage("long", 1, "100s", 1_000) }]));
        let unlucky = world.submit(job(vec![spec(60)]));
        world.run_for(Duration::from_secs(95));
        let later = world.submit(job(vec![spec(1)]));
        world.run_for(Duration::from_secs(200));
        let reported = reported(&world);
        let of = |job: JobId| reported.iter().filter(move |(task, ..)| task.job == job);
        for (_, reported, start) in of(unlucky) {
            assert_eq!(
                (reported.way, reported.is_counted),
                (way, start.waited > reported.most),
                "{}: {reported:?} {start:?}",
                preset.name()
            );
        }
        assert!(of(unlucky).filter(|(_, reported, _)| reported.is_counted).count() >= 50, "{}", preset.name());
        let reach = |reported: &Prediction| reported.most.as_secs_f64() / reported.expected.as_secs_f64().max(0.01);
        let before = of(unlucky).map(|(_, reported, _)| reach(reported)).fold(0.0, f64::max);
        let after = of(later).map(|(_, reported, _)| reach(reported)).next().unwrap();
        assert!(after > 1.1 * before, "{}: {before} and {after} times the expected wait", preset.name());
    }
}
