//! Requests for single tasks: to hold, release or cancel them, or to run them again.

use crate::world::{World, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::progress::{ChosenCounts, TaskState};
use amalgam_core::protocol::{JobAction, JobOutcome, ToClient, ToMaster};
use amalgam_core::role::{Change, Role};
use amalgam_core::vocabulary::{Chosen, Duration, JobId, Resources, Spans, StageSpec, TaskAction};
use std::collections::BTreeMap;

const NODE: Resources = Resources::new(2_000, 0);

fn chosen(stage: u32, first: u32, last: u32) -> Chosen {
    Chosen(BTreeMap::from([(stage, Spans::from(vec![(first, last + 1)]))]))
}

fn act(world: &mut World, job: JobId, action: TaskAction, tasks: Chosen) -> ToClient {
    let answer = world.ask_master(ToMaster::ControlTasks { job, action, tasks: Box::new(tasks) });
    world.settle();
    answer
}

fn counts(world: &World, id: JobId, stage: u32) -> ChosenCounts {
    let stage = world.server.as_ref().unwrap().jobs[&id].dag().stage(stage);
    stage.count_chosen(&Spans::below(stage.total))
}

fn launched(world: &World, id: JobId) -> Vec<(u32, u32)> {
    let launched = world.disk.iter().filter_map(|change| match change {
        Change::Launched { task, .. } if task.job == id => Some((task.stage, task.index)),
        _ => None,
    });
    launched.collect()
}

fn restart(world: &mut World) {
    world.kill_server();
    world.start_server();
    world.settle();
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn held_tasks_do_not_start_and_running_ones_continue_also_after_a_restart() {
    for preset in [Preset::DRF, Preset::SPARROW, Preset::APOLLO, Preset::MERCURY] {
        let mut world = World::with_nodes(preset, 1, NODE);
        let id = world.submit(job(vec![stage("only", 8, "2s", 1_000)]));
        world.run_for(seconds(1));
        assert_eq!(act(&mut world, id, TaskAction::Hold, chosen(0, 1, 5)), ToClient::Done);
        world.run_for(seconds(3));
        restart(&mut world);
        world.run_for(seconds(20));
        let counts_then = counts(&world, id, 0);
        let started = launched(&world, id);
        assert!(counts_then.held >= 3 && counts_then.running == 0, "{preset:?}: {counts_then:?} {started:?}");
        assert_eq!(counts_then.held + counts_then.succeeded, 8, "{preset:?}");
        assert!(world.outcome(id).is_none() && [6, 7].iter().all(|index| started.contains(&(0, *index))));
        act(&mut world, id, TaskAction::Release, chosen(0, 0, 7));
        world.run_for(seconds(20));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{preset:?}");
    }
}

#[test]
fn cancelled_tasks_stop_or_never_start_and_dependent_stages_do_not_run() {
    for restarts in [false, true] {
        let mut world = World::with_nodes(Preset::DRF, 1, NODE);
        let after = StageSpec { after: vec![0], ..stage("after", 1, "1s", 1_000) };
        let id = world.submit(job(vec![stage("only", 8, "2s", 1_000), after]));
        world.run_for(seconds(1));
        assert_eq!(act(&mut world, id, TaskAction::Cancel, chosen(0, 1, 5)), ToClient::Done);
        if restarts {
            restart(&mut world);
        }
        world.run_for(seconds(30));
        let expected = ChosenCounts { succeeded: 3, cancelled: 5, ..ChosenCounts::default() };
        assert_eq!(counts(&world, id, 0), expected, "{}", world.log.join("\n"));
        assert_eq!(launched(&world, id), [(0, 0), (0, 1), (0, 6), (0, 7)], "task 1 ran already and was stopped");
        assert_eq!(counts(&world, id, 1).cancelled, 1);
        assert_eq!(world.outcome(id), Some(JobOutcome::Cancelled));
        // Only some of these run again; then the whole job runs again, with the stage that depends on them.
        act(&mut world, id, TaskAction::RerunFailed, chosen(0, 1, 3));
        world.run_for(seconds(30));
        let expected = ChosenCounts { succeeded: 6, cancelled: 2, ..ChosenCounts::default() };
        assert_eq!((counts(&world, id, 0), world.outcome(id)), (expected, Some(JobOutcome::Cancelled)));
        if restarts {
            restart(&mut world);
        }
        world.control(id, JobAction::RerunFailed);
        world.run_for(seconds(30));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        assert_eq!(counts(&world, id, 1).succeeded, 1);
    }
}

#[test]
fn only_the_selected_failed_tasks_run_again() {
    let mut world = World::with_nodes(Preset::DRF, 1, NODE);
    let id = world.submit(job(vec![stage("only", 6, "1s 1", 1_000)]));
    world.run_for(seconds(10));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 1 }));
    let before = launched(&world, id).len();
    act(&mut world, id, TaskAction::RerunFailed, chosen(0, 2, 3));
    world.run_for(seconds(10));
    assert_eq!(launched(&world, id)[before..], [(0, 2), (0, 3)]);
    assert_eq!((world.outcome(id), counts(&world, id, 0).failed), (Some(JobOutcome::Failed { exit_code: 1 }), 6));
}

#[test]
fn only_the_selected_tasks_of_a_cancelled_job_run_again() {
    for begins in [false, true] {
        let mut world = World::with_nodes(Preset::DRF, 1, NODE);
        let mut spec = job(vec![stage("a", 6, "1s", 1_000), stage("b", 2, "1s", 1_000)]);
        spec.held = !begins;
        let id = world.submit(spec);
        world.settle();
        world.control(id, JobAction::Cancel);
        world.run_for(seconds(5));
        act(&mut world, id, TaskAction::RerunFailed, chosen(0, 4, 5));
        world.run_for(seconds(10));
        assert_eq!(world.outcome(id), Some(JobOutcome::Cancelled));
        let state = |index| world.server.as_ref().unwrap().jobs[&id].dag().stage(0).status(index).unwrap().state;
        assert_eq!([3, 4, 5].map(state), [TaskState::Cancelled, TaskState::Succeeded, TaskState::Succeeded]);
        assert_eq!(counts(&world, id, 1).cancelled, 2);
    }
}

#[test]
fn requests_for_tasks_are_kept_until_their_job_starts() {
    let mut world = World::with_nodes(Preset::DRF, 1, NODE);
    let mut spec = job(vec![stage("only", 6, "1s", 1_000)]);
    spec.held = true;
    let id = world.submit(spec);
    act(&mut world, id, TaskAction::Cancel, chosen(0, 0, 1));
    act(&mut world, id, TaskAction::Hold, chosen(0, 4, 5));
    restart(&mut world);
    world.control(id, JobAction::Release);
    world.run_for(seconds(10));
    let expected = ChosenCounts { succeeded: 2, cancelled: 2, held: 2, ..ChosenCounts::default() };
    assert_eq!(counts(&world, id, 0), expected);
    assert_eq!(launched(&world, id), [(0, 2), (0, 3)]);
    // A manager that recovers from the log has the same state as one that recovers from a snapshot.
    let manager = &world.server.as_ref().unwrap().jobs[&id];
    assert_eq!(world.recovered(id, &world.disk).durable(), manager.durable());
    assert_eq!(world.recovered(id, &manager.durable()).durable(), manager.durable());
}

#[test]
fn a_held_or_cancelled_task_of_a_gang_holds_or_stops_the_others() {
    let mut world = World::with_nodes(Preset::DRF, 2, NODE);
    let gang = StageSpec { gang: true, ..stage("gang", 3, "2s", 1_000) };
    let mut spec = job(vec![gang.clone()]);
    spec.held = true;
    let held = world.submit(spec.clone());
    act(&mut world, held, TaskAction::Hold, chosen(0, 1, 1));
    world.control(held, JobAction::Release);
    world.run_for(seconds(5));
    assert_eq!(launched(&world, held), []);
    act(&mut world, held, TaskAction::Release, chosen(0, 1, 1));
    world.run_for(seconds(10));
    assert_eq!(world.outcome(held), Some(JobOutcome::Succeeded));
    let cancelled = world.submit(job(vec![gang]));
    world.run_for(seconds(1));
    act(&mut world, cancelled, TaskAction::Cancel, chosen(0, 1, 1));
    world.run_for(seconds(20));
    assert_eq!(world.outcome(cancelled), Some(JobOutcome::Cancelled));
    assert_eq!(world.running_tasks(), []);
}

#[test]
fn a_range_of_millions_of_tasks_costs_no_more_than_a_short_one() {
    let mut world = World::with_nodes(Preset::DRF, 1, NODE);
    let tasks = 20_000_000;
    let id = world.submit(job(vec![stage("only", tasks, "1s", 1_000)]));
    world.run_for(seconds(1));
    act(&mut world, id, TaskAction::Hold, chosen(0, 100, tasks - 2));
    act(&mut world, id, TaskAction::Cancel, chosen(0, 5, tasks - 2));
    world.run_for(seconds(10));
    let expected = ChosenCounts { succeeded: 6, cancelled: tasks - 6, ..ChosenCounts::default() };
    assert_eq!((counts(&world, id, 0), world.outcome(id)), (expected, Some(JobOutcome::Cancelled)));
    let bytes = world.server.as_ref().unwrap().jobs[&id].dag().stage(0).bytes();
    assert!(bytes < 8_000_000, "{bytes} bytes");
}

#[test]
fn requests_for_missing_tasks_and_ended_jobs_are_refused() {
    let mut world = World::with_nodes(Preset::DRF, 1, NODE);
    let id = world.submit(job(vec![stage("only", 2, "1s", 1_000)]));
    world.settle();
    for tasks in [chosen(0, 0, 2), chosen(1, 0, 0)] {
        assert!(matches!(act(&mut world, id, TaskAction::Cancel, tasks), ToClient::Refused(_)));
    }
    assert!(matches!(act(&mut world, id, TaskAction::RerunFailed, chosen(0, 0, 1)), ToClient::Refused(_)));
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    for action in [TaskAction::Cancel, TaskAction::Hold, TaskAction::Release, TaskAction::RerunFailed] {
        assert!(matches!(act(&mut world, id, action, chosen(0, 0, 1)), ToClient::Refused(_)), "{action:?}");
    }
}
