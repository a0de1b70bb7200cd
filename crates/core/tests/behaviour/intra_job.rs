//! What every order within a job promises, checked against a plain model, and that a whole cluster follows it.

use crate::dags::ModelDag;
use crate::world::{World, job, stage};
use amalgam_core::policy::intra_job::{BreadthFirst, CriticalPath};
use amalgam_core::policy::{IntraJobPolicy, RunnableStage};
use amalgam_core::preset::{IntraJob, Preset};
use amalgam_core::vocabulary::{Chance, Duration, Instant, Resources, StageSpec};

/// Stages as if only these had ready tasks.
fn some_with_tasks(dag: &ModelDag, chance: &mut Chance) -> Vec<RunnableStage> {
    let stages = (0..dag.stages.len() as u32).filter(|_| chance.below(2_u32) == 0);
    stages
        .map(|stage| RunnableStage { stage, resources: Resources::new(1_000, 0), ready: 1 + stage, expected: None })
        .collect()
}

#[test]
fn critical_path_orders_stages_by_their_longest_path() {
    let mut chance = Chance::new(1, "orders within a job");
    let mut policy = CriticalPath::default();
    for _ in 0..1_000 {
        let dag = ModelDag::random(&mut chance);
        let runnable = some_with_tasks(&dag, &mut chance);
        let demand = policy.demand(Instant::ZERO, &dag.progress(&runnable), None);
        let mut order: Vec<u32> = runnable.iter().map(|stage| stage.stage).collect();
        order.sort_by_key(|&stage| (std::cmp::Reverse(dag.longest_path(stage)), stage));
        assert_eq!(demand.needed.iter().map(|needed| needed.stage).collect::<Vec<_>>(), order);
        assert!(demand.needed.iter().all(|needed| needed.count == 1 + needed.stage), "all ready tasks are asked for");
    }
}

#[test]
fn breadth_first_asks_for_all_ready_tasks_in_stage_order() {
    let mut chance = Chance::new(2, "orders within a job");
    for _ in 0..100 {
        let dag = ModelDag::random(&mut chance);
        let runnable = some_with_tasks(&dag, &mut chance);
        let demand = BreadthFirst.demand(Instant::ZERO, &dag.progress(&runnable), None);
        let needed: Vec<(u32, u32)> = demand.needed.iter().map(|needed| (needed.stage, needed.count)).collect();
        assert_eq!(needed, runnable.iter().map(|stage| (stage.stage, stage.ready)).collect::<Vec<_>>());
        assert!(demand.in_order && demand.deferrable.is_empty());
    }
}

/// A short stage, then a long one of the same kind, then a longer one of another kind.
#[test]
fn a_cluster_runs_the_longest_path_first_for_tasks_of_equal_and_different_size() {
    let order = |intra_job| {
        let mut preset = Preset::FIFO;
        preset.set_intra_job(intra_job);
        let mut world = World::with_nodes(preset, 1, Resources::new(2_000, 0));
        let timed = |name, length, cpu_millis| StageSpec {
            expected: Some(Duration::parse(length).expect("a duration")),
            ..stage(name, 2, length, cpu_millis)
        };
        let blocker = world.submit(job(vec![stage("blocker", 1, "1s", 2_000)]));
        world.submit(job(vec![timed("short", "1s", 2_000), timed("long", "3s", 2_000), timed("longer", "5s", 1_500)]));
        world.run_for(Duration::from_secs(60));
        let launched = world.nodes[0].executor.launched.iter().filter(|(task, _)| task.job != blocker);
        launched.map(|(task, _)| task.stage).collect::<Vec<_>>()
    };
    assert_eq!(order(IntraJob::BreadthFirst), [0, 0, 1, 1, 2, 2]);
    assert_eq!(order(IntraJob::CriticalPath), [2, 2, 1, 1, 0, 0]);
    assert_eq!(order(IntraJob::Tetris), [0, 0, 1, 1, 2, 2], "the larger tasks are better aligned with an empty node");
}
