//! When failed tasks are tried again.

use crate::world::{World, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{Duration, Instant, JobId, Resources, StageSpec};
use amalgam_core::why::Why;

const CORE: Resources = Resources::new(1_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A stage of tasks that fail. `run` has their run time and exit status.
fn failing(tasks: u32, run: &str, retries: u32, retry_delay: Option<u64>) -> StageSpec {
    StageSpec { retries, retry_delay: retry_delay.map(seconds), ..stage("fails", tasks, run, 1_000) }
}

/// For each end of a task, the time until its next attempt was launched.
fn retry_delays(world: &World, of: JobId) -> Vec<Duration> {
    let mut ended: Option<Instant> = None;
    let mut retry_delays = Vec::new();
    for change in &world.disk {
        match change {
            Change::Finished { task, at, .. } if task.job == of => ended = Some(*at),
            Change::Launched { task, at, .. } if task.job == of => {
                retry_delays.extend(ended.take().map(|ended| at.since(ended)));
            }
            _ => {}
        }
    }
    retry_delays
}

#[test]
fn each_failure_doubles_the_delay_before_the_next_try() {
    for preset in [Preset::FIFO, Preset::DRF, Preset::MERCURY, Preset::SPARROW, Preset::APOLLO, Preset::CARBYNE] {
        let mut world = World::with_nodes(preset, 1, CORE);
        let id = world.submit(job(vec![failing(1, "1s 1", 4, None)]));
        world.run_for(seconds(60));
        assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 1 }));
        let whole: Vec<u64> = retry_delays(&world, id).iter().map(|rest| rest.as_millis() / 1_000).collect();
        assert_eq!(whole, [1, 2, 4, 8], "{}", world.log.join("\n"));
    }
}

#[test]
fn a_task_with_endless_retries_is_eventually_tried_once_a_minute() {
    let mut world = World::with_nodes(Preset::DRF, 1, CORE);
    let id = world.submit(job(vec![failing(1, "0s 1", u32::MAX, None)]));
    world.run_for(seconds(600));
    let retry_delays = retry_delays(&world, id);
    assert!((13..=16).contains(&retry_delays.len()), "{retry_delays:?}");
    assert!(retry_delays.iter().all(|rest| *rest < seconds(62)), "{retry_delays:?}");
}

#[test]
fn a_stage_sets_the_delay_of_its_tasks_and_zero_is_at_once() {
    let mut world = World::with_nodes(Preset::DRF, 1, CORE);
    let at_once = world.submit(job(vec![failing(1, "1s 1", 3, Some(0))]));
    world.run_for(seconds(10));
    assert!(retry_delays(&world, at_once).iter().all(|rest| *rest < seconds(1)));
    let slow = world.submit(job(vec![failing(1, "1s 1", 2, Some(90))]));
    world.run_for(seconds(300));
    let whole: Vec<u64> = retry_delays(&world, slow).iter().map(|rest| rest.as_millis() / 1_000).collect();
    assert_eq!(whole, [90, 90]);
}

#[test]
fn a_task_that_waits_for_its_next_try_holds_no_room_and_has_a_reason() {
    let mut world = World::with_nodes(Preset::DRF, 1, CORE);
    let id = world.submit(job(vec![failing(3, "1s 1", 1, Some(20))]));
    let other = world.submit(job(vec![stage("other", 1, "2s", 1_000)]));
    world.run_for(seconds(8));
    assert_eq!(world.outcome(other), Some(JobOutcome::Succeeded));
    let why = world.server.as_ref().unwrap().jobs[&id].why_some_delayed(world.now);
    let Some(Why::TriedAgain { task, left, failures: 1, others: 2 }) = why else { panic!("{why:?}") };
    assert!(task == "fails/0" && left > seconds(10) && left < seconds(15), "{task} {left}");
    let delays = world.records.iter().filter_map(|record| match record {
        Record::Retried { delay, .. } => Some(*delay),
        _ => None,
    });
    assert_eq!(delays.collect::<Vec<_>>(), [seconds(20); 3]);
    world.run_for(seconds(30));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 1 }));
    assert_eq!(world.server.as_ref().unwrap().jobs[&id].why_some_delayed(world.now), None);
}

#[test]
fn a_restarted_server_tries_a_task_again_at_the_same_time() {
    let mut world = World::with_nodes(Preset::DRF, 1, CORE);
    let id = world.submit(job(vec![failing(1, "1s 1", 1, Some(20))]));
    world.run_for(seconds(5));
    world.kill_server();
    world.run_for(seconds(5));
    world.start_server();
    world.settle();
    world.run_for(seconds(8));
    assert_eq!(retry_delays(&world, id), [], "the task still waits");
    world.run_for(seconds(10));
    let retry_delays = retry_delays(&world, id);
    assert!(
        retry_delays.len() == 1 && retry_delays[0] >= seconds(20) && retry_delays[0] < seconds(21),
        "{retry_delays:?}"
    );
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 1 }));
}

#[test]
fn a_gang_waits_as_a_whole_for_the_next_try_of_one_of_its_tasks() {
    let mut world = World::with_nodes(Preset::DRF, 3, CORE);
    let id = world.submit(job(vec![StageSpec { gang: true, ..failing(3, "2s 1", 1, Some(20)) }]));
    world.run_for(seconds(15));
    assert_eq!(world.running_tasks(), [], "no task of the gang starts alone");
    let other = world.submit(job(vec![stage("other", 3, "1s", 1_000)]));
    world.run_for(seconds(2));
    assert_eq!(world.outcome(other), Some(JobOutcome::Succeeded), "the gang holds no room meanwhile");
    world.run_for(seconds(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 1 }));
}

#[test]
fn a_task_cancelled_while_it_waits_for_its_next_try_ends_at_once() {
    let mut world = World::with_nodes(Preset::DRF, 1, CORE);
    let id = world.submit(job(vec![failing(1, "1s 1", 1, Some(20))]));
    world.run_for(seconds(5));
    world.control(id, JobAction::Cancel);
    world.settle();
    assert_eq!(world.outcome(id), Some(JobOutcome::Cancelled));
}

#[test]
fn the_usage_of_all_attempts_counts_also_after_a_restart() {
    let mut world = World::with_nodes(Preset::DRF, 1, CORE);
    let id = world.submit(job(vec![failing(2, "2s 1", 2, Some(0)), stage("well", 1, "3s", 1_000)]));
    world.run_for(seconds(30));
    let check = |world: &World| {
        let dag = world.server.as_ref().unwrap().jobs[&id].dag();
        let walls = [dag.spent_by(0, 0), dag.spent_by(0, 1), dag.stage(0).spent, dag.stage(1).spent, dag.spent()];
        assert_eq!(walls.map(|spent| spent.wall), [6, 6, 12, 3, 15].map(seconds));
        assert!(dag.spent().cpu > Duration::ZERO);
    };
    check(&world);
    world.kill_server();
    world.start_server();
    world.settle();
    check(&world);
}

#[test]
fn the_usage_of_a_lost_attempt_counts_once_its_node_reports_it() {
    let mut world = World::with_nodes(Preset::DRF, 2, CORE);
    let id = world.submit(job(vec![stage("only", 1, "30s", 1_000)]));
    world.run_for(seconds(5));
    let first = (0..2).find(|&node| !world.nodes[node].executor.running.is_empty()).expect("the task runs");
    world.unlink(first);
    world.run_for(seconds(60));
    let spent = |world: &World| world.server.as_ref().unwrap().jobs[&id].dag().spent_by(0, 0).wall;
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "the second try succeeds");
    world.link(first);
    world.settle();
    world.run_for(seconds(15));
    let late: Vec<Duration> = world
        .disk
        .iter()
        .filter_map(|change| match change {
            Change::EndedLate { ended, .. } => Some(ended.usage.wall),
            _ => None,
        })
        .collect();
    assert!(late.len() == 1 && late[0] > seconds(5), "{late:?}");
    let all = seconds(30) + late[0];
    assert_eq!(spent(&world), all);
    world.kill_server();
    world.start_server();
    world.settle();
    assert_eq!(spent(&world), all);
}
