//! What every order within a job promises, against a plain model, and that a whole cluster keeps to it.

#[allow(dead_code)]
mod world;

use amalgam_core::policy::intra_job::{BreadthFirst, CriticalPath};
use amalgam_core::policy::{DagProgress, IntraJobPolicy, RunnableStage, StageGraph};
use amalgam_core::preset::{IntraJob, Preset};
use amalgam_core::vocabulary::{Duration, Instant, Resources, StageSpec, Totals};
use world::{World, job, stage};

struct Graph {
    after: Vec<Vec<u32>>,
    dependents: Vec<Vec<u32>>,
    expected: Vec<Duration>,
}

impl StageGraph for Graph {
    fn len(&self) -> usize {
        self.after.len()
    }

    fn dependents(&self, stage: u32) -> &[u32] {
        &self.dependents[stage as usize]
    }

    fn expected(&self, stage: u32) -> Option<Duration> {
        Some(self.expected[stage as usize])
    }
}

impl Graph {
    fn random(below: &mut dyn FnMut(u32) -> u32) -> Graph {
        let stages = 1 + below(12);
        let mut graph =
            Graph { after: Vec::new(), dependents: vec![Vec::new(); stages as usize], expected: Vec::new() };
        for stage in 0..stages {
            let after: Vec<u32> = (0..stage).filter(|_| below(3) == 0).collect();
            after.iter().for_each(|&before| graph.dependents[before as usize].push(stage));
            graph.after.push(after);
            graph.expected.push(Duration::from_secs(u64::from(below(5))));
        }
        graph
    }

    /// By a walk along every single path.
    fn longest_path(&self, from: u32) -> Duration {
        let rest = self.dependents[from as usize].iter().map(|&next| self.longest_path(next)).max();
        self.expected[from as usize] + rest.unwrap_or(Duration::ZERO)
    }
}

#[test]
fn under_critical_path_the_stage_with_the_longest_path_goes_first() {
    let mut state = 1u64;
    let mut below = |limit: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(limit)) as u32
    };
    let mut policy = CriticalPath::default();
    for _ in 0..1_000 {
        let graph = Graph::random(&mut below);
        let with_tasks = (0..graph.len() as u32).filter(|_| below(2) == 0);
        let runnable: Vec<RunnableStage> = with_tasks
            .map(|stage| RunnableStage { stage, resources: Resources::new(1_000, 0), ready: 1 + stage, expected: None })
            .collect();
        let progress = DagProgress { runnable: &runnable, graph: &graph };
        let demand = policy.demand(Instant::ZERO, &progress, &Totals::ZERO);
        let mut order: Vec<u32> = runnable.iter().map(|stage| stage.stage).collect();
        order.sort_by_key(|&stage| (std::cmp::Reverse(graph.longest_path(stage)), stage));
        assert_eq!(demand.needed.iter().map(|needed| needed.stage).collect::<Vec<_>>(), order);
        assert!(demand.needed.iter().all(|needed| needed.count == 1 + needed.stage), "everything is asked for");
    }
}

#[test]
fn breadth_first_asks_for_everything_that_can_run_in_the_order_of_the_stages() {
    let mut state = 2u64;
    let mut below = |limit: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(limit)) as u32
    };
    for _ in 0..100 {
        let graph = Graph::random(&mut below);
        let with_tasks = (0..graph.len() as u32).filter(|_| below(2) == 0);
        let runnable: Vec<RunnableStage> = with_tasks
            .map(|stage| RunnableStage { stage, resources: Resources::new(1_000, 0), ready: 1 + stage, expected: None })
            .collect();
        let demand =
            BreadthFirst.demand(Instant::ZERO, &DagProgress { runnable: &runnable, graph: &graph }, &Totals::ZERO);
        let needed: Vec<(u32, u32)> = demand.needed.iter().map(|needed| (needed.stage, needed.count)).collect();
        assert_eq!(needed, runnable.iter().map(|stage| (stage.stage, stage.ready)).collect::<Vec<_>>());
        assert!(demand.in_order && demand.deferrable.is_empty());
    }
}

/// A short stage, then a long one of the same kind, then a longer one of another kind.
#[test]
fn a_cluster_runs_the_longest_path_first_within_a_kind_of_task_and_across_kinds() {
    let order = |intra_job| {
        let mut preset = Preset::FIFO;
        preset.intra_job = intra_job;
        let mut world = World::with_nodes(preset, 1, Resources::new(2_000, 0));
        let timed = |name, length, cpu_millis| StageSpec {
            expected: Some(Duration::parse(length).expect("a length")),
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
