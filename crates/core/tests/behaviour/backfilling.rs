//! Nodes that are reserved for a gang are used until it can start, as far as that is known from run times.

use crate::world::{World, job, stage};
use amalgam_core::preset::{Booker, Placement, Preset};
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::{Duration, JobId, JobSpec, Resources, StageSpec};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The preset `amalgam`, in which nothing is preempted.
fn world(nodes: u32, cpus: u32) -> World {
    let mut preset = Preset::AMALGAM;
    let by = Booker::Master { placement: Placement::NextFit, reserve_after: seconds(5), backfill: true, reclaim: None };
    preset.booked_mut().expect("the master books").by = by;
    of(preset, nodes, cpus)
}

fn of(preset: Preset, nodes: u32, cpus: u32) -> World {
    World::with_nodes(preset, nodes, Resources::new(cpus * 1_000, 0))
}

/// Tasks of one CPU that run for `run` and are expected to.
fn tasks(count: u32, run: u64) -> StageSpec {
    StageSpec { expected: Some(seconds(run)), ..stage("s", count, &format!("{run}s"), 1_000) }
}

fn gang(count: u32, run: u64) -> JobSpec {
    job(vec![StageSpec { gang: true, ..tasks(count, run) }])
}

fn running(world: &World, job: JobId) -> usize {
    world.running_tasks().iter().filter(|task| task.job == job).count()
}

/// Four nodes of one CPU: three are busy until 100 s, and a gang needs all of them.
fn with_a_promise() -> (World, JobId) {
    promising(world(4, 1))
}

fn promising(mut world: World) -> (World, JobId) {
    world.submit(job(vec![tasks(3, 100)]));
    world.settle();
    let waits = world.submit(gang(4, 10));
    world.run_for(seconds(40));
    (world, waits)
}

fn run_until(world: &mut World, at: u64) {
    world.run_for(seconds(at) - seconds(world.now.0 / 1_000_000));
}

fn has_started_in_time(world: &mut World, gang: JobId) {
    run_until(world, 98);
    assert_eq!(running(world, gang), 0);
    run_until(world, 103);
    assert_eq!(running(world, gang), 4, "{}", world.log.join("\n"));
}

#[test]
fn a_task_that_ends_in_time_runs_on_a_node_that_is_reserved_for_a_gang() {
    let (mut world, waits) = with_a_promise();
    let late = world.submit(job(vec![tasks(1, 80)]));
    world.run_for(seconds(2));
    assert_eq!(running(&world, late), 0, "it would end at 120 s");
    assert!(world.why(late).join("; ").contains("reserved for job"), "{:?}", world.why(late));
    assert!(world.why(waits)[0].contains("reserved for it until all of it can start"), "{:?}", world.why(waits));
    let short = world.submit(job(vec![tasks(2, 20)]));
    world.run_for(seconds(2));
    assert_eq!(running(&world, short), 1, "the second one ends in time, too, after the first");
    assert!(world.log.iter().any(|line| line.contains("backfilling")), "{}", world.log.join("\n"));
    let gang = world.submit(gang(1, 5));
    world.run_for(seconds(1));
    assert_eq!(running(&world, gang), 0, "one node");
    has_started_in_time(&mut world, waits);
    world.run_for(seconds(120));
    for job in [late, short, gang, waits] {
        assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded));
    }
}

#[test]
fn a_time_limit_tells_when_a_task_ends_at_the_latest() {
    let (mut world, waits) = with_a_promise();
    let limited = |limit: u64| StageSpec { timeout: Some(seconds(limit)), ..stage("s", 1, "5s", 1_000) };
    let long = world.submit(job(vec![limited(80)]));
    let unknown = world.submit(job(vec![stage("s", 1, "5s", 1_000)]));
    let short = world.submit(job(vec![limited(30)]));
    world.run_for(seconds(2));
    assert_eq!([long, unknown, short].map(|job| running(&world, job)), [0, 0, 1]);
    world.run_for(seconds(10));
    has_started_in_time(&mut world, waits);
}

#[test]
fn a_gang_that_ends_in_time_runs_on_nodes_that_are_reserved_for_another() {
    let mut world = world(5, 1);
    for run in [100, 100, 200] {
        world.submit(job(vec![tasks(1, run)]));
    }
    world.settle();
    // The nodes that are free at 100 s are enough: the fifth is not reserved.
    let waits = world.submit(gang(4, 10));
    world.run_for(seconds(10));
    let small = world.submit(gang(2, 50));
    world.run_for(seconds(2));
    assert_eq!(running(&world, small), 2);
    run_until(&mut world, 98);
    assert_eq!((world.outcome(small), running(&world, waits)), (Some(JobOutcome::Succeeded), 0));
    run_until(&mut world, 103);
    assert_eq!(running(&world, waits), 4, "{}", world.log.join("\n"));
}

#[test]
fn room_that_a_gang_does_not_need_on_its_nodes_is_used_for_any_time() {
    let mut world = world(2, 4);
    // One CPU of each node is free.
    world.submit(job(vec![tasks(6, 100)]));
    world.settle();
    let waits = world.submit(gang(5, 10));
    world.run_for(seconds(10));
    let long = world.submit(job(vec![tasks(4, 500)]));
    world.run_for(seconds(5));
    assert_eq!(running(&world, long), 1, "the gang needs all of one node and one CPU of the other");
    run_until(&mut world, 103);
    assert_eq!(running(&world, waits), 5, "{}", world.log.join("\n"));
}

#[test]
fn the_gang_that_has_waited_longest_starts_though_shorter_ones_arrive_all_the_time() {
    let mut world = world(4, 1);
    world.submit(gang(3, 20));
    world.settle();
    let large = world.submit(gang(4, 1_000));
    let mut small = Vec::new();
    for _ in 0..60 {
        small.push(world.submit(gang(3, 10)));
        world.run_for(seconds(5));
    }
    assert!(running(&world, large) == 4, "{}", world.log.join("\n"));
    let done = small.iter().filter(|job| world.outcome(**job).is_some()).count();
    assert!(done < 10, "{done} of the others went first");
}

#[test]
fn a_task_that_runs_for_longer_than_expected_delays_a_gang_until_it_ends() {
    let (mut world, waits) = with_a_promise();
    let overdue = world.submit(job(vec![StageSpec { expected: Some(seconds(10)), ..tasks(2, 70) }]));
    world.run_for(seconds(2));
    assert_eq!(running(&world, overdue), 1);
    run_until(&mut world, 108);
    assert_eq!((running(&world, overdue), running(&world, waits)), (1, 0));
    run_until(&mut world, 112);
    assert_eq!((running(&world, overdue), running(&world, waits)), (0, 4), "{}", world.log.join("\n"));
}

#[test]
fn if_a_promise_is_not_kept_other_nodes_are_reserved() {
    let mut world = world(5, 1);
    let hangs = world.submit(job(vec![StageSpec { expected: Some(seconds(100)), ..tasks(1, 5_000) }]));
    for run in [100, 100, 200] {
        world.submit(job(vec![tasks(1, run)]));
    }
    world.settle();
    let waits = world.submit(gang(4, 10));
    run_until(&mut world, 198);
    assert_eq!((running(&world, hangs), running(&world, waits)), (1, 0));
    run_until(&mut world, 203);
    assert_eq!((running(&world, hangs), running(&world, waits)), (1, 4), "{}", world.log.join("\n"));
}

#[test]
fn a_gang_of_a_higher_priority_gets_the_nodes_though_another_one_has_waited_longer() {
    let mut world = world(4, 1);
    world.submit(job(vec![tasks(3, 100)]));
    world.settle();
    let old = world.submit(gang(4, 10));
    world.run_for(seconds(2));
    let urgent = world.submit(JobSpec { priority: 5, ..gang(4, 1_000) });
    run_until(&mut world, 103);
    assert_eq!([old, urgent].map(|job| running(&world, job)), [0, 4]);
}

/// Other presets keep the nodes with the most room, and nothing runs there.
#[test]
fn reserved_nodes_are_idle_under_other_presets() {
    let mut preset = Preset::DRF;
    let by =
        Booker::Master { placement: Placement::NextFit, reserve_after: seconds(5), backfill: false, reclaim: None };
    preset.booked_mut().expect("the master books").by = by;
    let mut world = of(preset, 4, 1);
    world.submit(job(vec![tasks(3, 100)]));
    world.settle();
    world.submit(gang(4, 10));
    world.run_for(seconds(40));
    let short = world.submit(job(vec![tasks(1, 5)]));
    world.run_for(seconds(30));
    assert_eq!(running(&world, short), 0);
    assert!(world.outcome(short).is_none());
}

#[test]
fn run_times_that_become_known_make_a_promise_and_let_tasks_run_before_it() {
    let mut world = world(4, 1);
    world.submit(job(vec![tasks(2, 100)]));
    let learns = world.submit(job(vec![stage("s", 4, "8s", 1_000)]));
    world.settle();
    let waits = world.submit(gang(4, 10));
    run_until(&mut world, 7);
    assert_eq!((running(&world, learns), running(&world, waits)), (2, 0), "nobody knows when these end");
    run_until(&mut world, 25);
    assert_eq!(world.outcome(learns), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    has_started_in_time(&mut world, waits);
}

#[test]
fn jobs_with_less_than_they_are_entitled_to_do_not_get_reserved_nodes_either() {
    for nodes in [(4, 1), (1, 4)] {
        let (mut world, waits) = promising(of(Preset::AMALGAM, nodes.0, nodes.1));
        let late = world.submit(job(vec![tasks(1, 80)]));
        let short = world.submit(job(vec![tasks(1, 20)]));
        world.run_for(seconds(3));
        assert_eq!([late, short].map(|job| running(&world, job)), [0, 1], "{}", world.log.join("\n"));
        has_started_in_time(&mut world, waits);
    }
}
