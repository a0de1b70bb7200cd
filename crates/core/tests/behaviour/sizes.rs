//! Tasks of a stage that read different amounts: their order, and how long each is expected to run.

use crate::world::*;
use amalgam_core::job_manager::JobManager;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::*;
use amalgam_core::role::{Change, Role};
use amalgam_core::vocabulary::*;

const CORE: Resources = Resources::new(1_000, 0);
const PRESETS: [Preset; 3] = [Preset::FIFO, Preset::SPARROW, Preset::APOLLO];

/// One task for each entry: how many KiB it reads, and for how many seconds it runs.
fn reading(tasks: &[(u32, u64)]) -> StageSpec {
    let mut items = Items::default();
    tasks.iter().for_each(|(_, seconds)| items.push(format!("{seconds}s")).expect("short"));
    let input_kib = tasks.iter().map(|(kib, _)| *kib).collect();
    StageSpec { tasks: TaskSet::Each(items), input_kib, ..stage("only", 1, "{item}", 1_000) }
}

/// The tasks of the stage in the order of their first launches.
fn order(world: &World, job: JobId, stage: u32) -> Vec<u32> {
    let mut order = Vec::new();
    for change in &world.disk {
        if let Change::Launched { task, .. } = change
            && (task.job, task.stage) == (job, stage)
            && !order.contains(&task.index)
        {
            order.push(task.index);
        }
    }
    order
}

/// The expected run time that the task's launch contained.
fn expected(world: &World, job: JobId, index: u32) -> Option<Duration> {
    let of_task = |launch: &&(NodeId, Launch)| (launch.1.task.job, launch.1.task.index) == (job, index);
    world.intercepted_launches.iter().find(of_task).expect("the task was launched").1.expected
}

#[test]
fn tasks_start_in_the_order_of_size_then_index() {
    for preset in PRESETS {
        let mut world = World::with_nodes(preset, 1, CORE);
        let id = world.submit(job(vec![reading(&[(5, 1), (70, 1), (5, 1), (0, 1), (900, 1), (70, 1)])]));
        world.run_for(Duration::from_secs(30));
        assert_eq!(order(&world, id, 0), [4, 1, 5, 0, 2, 3]);
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        let alike = world.submit(job(vec![stage("only", 5, "1s", 1_000)]));
        world.run_for(Duration::from_secs(30));
        assert_eq!(order(&world, alike, 0), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn the_order_survives_a_server_restart() {
    let sizes: Vec<(u32, u64)> = (0..40).map(|index| (1 + index * 17 % 41, 1)).collect();
    let mut wanted: Vec<u32> = (0..40).collect();
    wanted.sort_by_key(|index| (std::cmp::Reverse(sizes[*index as usize].0), *index));
    for restarts in 0..3u64 {
        let mut world = World::with_nodes(Preset::FIFO, 2, CORE);
        let id = world.submit(job(vec![reading(&sizes)]));
        for _ in 0..restarts {
            world.run_for(Duration::from_millis(4_500));
            world.kill_server();
            world.start_server();
        }
        world.run_for(Duration::from_secs(60));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        assert_eq!(order(&world, id, 0), wanted, "{restarts} restarts");
    }
}

#[test]
fn a_retried_task_is_ordered_by_its_size() {
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    let fails = StageSpec { retries: 1, input_kib: vec![5, 70, 20], ..stage("only", 3, "1s 1", 1_000) };
    let id = world.submit(job(vec![fails]));
    world.run_for(Duration::from_secs(10));
    let launched: Vec<u32> = world
        .disk
        .iter()
        .filter_map(|change| match change {
            Change::Launched { task, .. } if task.job == id => Some(task.index),
            _ => None,
        })
        .collect();
    assert_eq!(launched, [1, 1, 2, 2, 0, 0]);
}

#[test]
fn a_task_that_reads_more_is_expected_to_run_longer() {
    let tasks: Vec<(u32, u64)> = (1..=30).map(|size| (size * 1_024, 2 + u64::from(size))).collect();
    for preset in PRESETS {
        let mut world = World::with_nodes(preset, 1, CORE);
        let id = world.submit(job(vec![reading(&tasks)]));
        world.run_for(Duration::from_secs(900));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        for index in [0, 5, 15] {
            let found = expected(&world, id, index).unwrap().as_secs_f64();
            let took = tasks[index as usize].1 as f64;
            assert!((found / took - 1.0).abs() < 0.01, "task {index}: {found} s, and it took {took} s");
        }
        // A manager that recovers from the log expects the same as one that recovers from a snapshot.
        let manager = &world.server.as_ref().unwrap().jobs[&id];
        let of = |manager: &JobManager| manager.dag().stage(0).estimate.clone();
        assert_eq!(of(&world.recovered(id, &world.disk)), of(manager));
        assert_eq!(world.recovered(id, &manager.durable()).durable(), manager.durable());
    }
}

#[test]
fn a_large_array_is_one_record_until_its_tasks_run() {
    let tasks = 200_000;
    let mut spec = stage("only", tasks, "1s", 1_000);
    spec.input_kib = (0..tasks).collect();
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    let id = world.submit(job(vec![spec]));
    world.run_for(Duration::from_millis(1_500));
    // First the largest of those that are compared at once, and then of one more.
    assert_eq!(order(&world, id, 0), [4_095, 4_096]);
    let stage = world.server.as_ref().unwrap().jobs[&id].dag().stage(0);
    assert!(stage.record(4_096).is_some() && stage.record(4_097).is_none());
}
