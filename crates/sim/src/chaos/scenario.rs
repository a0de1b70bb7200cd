//! A cluster, its queues, its users' jobs and its misfortunes, all drawn from a seed.

use super::misfortune;
use crate::execution::ExecutionSettings;
use crate::faults::Planned;
use crate::settings::{Costs, NetworkSettings, Settings};
use amalgam_core::master::{Decide, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::resources::{GPU, WIDTH};
use amalgam_core::vocabulary::{
    Attributes, Constraint, Duration, ExecutionType, JobId, JobSpec, Program, QueueId, QueueSpec, ResourceSpec,
    Resources, StageSpec, TaskSet,
};
use amalgam_workload::trace::{MalformedLines, Node, RunTimes, TraceJob, Workload};
use std::sync::Arc;

/// Jobs arrive and things go wrong within this time; then all is healed.
pub const UNSAFE_FOR: Duration = Duration::from_secs(120);

pub struct Scenario {
    pub settings: Settings,
    pub nodes: Vec<Node>,
    pub workload: Workload,
    pub plan: Vec<Planned>,
}

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        let nodes = nodes(&mut Chance::new(seed, "chaos nodes"));
        let shapes = shapes(&nodes, &mut Chance::new(seed, "chaos shapes"));
        let queues = queues(&nodes, &shapes, &mut Chance::new(seed, "chaos queues"));
        let workload = workload(&shapes, &queues, &mut Chance::new(seed, "chaos jobs"));
        let plan = misfortune::plan(nodes.len(), workload.jobs.len(), &mut Chance::new(seed, "chaos faults"));
        let settings = settings(seed, queues, &mut Chance::new(seed, "chaos settings"));
        Scenario { settings, nodes, workload, plan }
    }
}

// ---- the cluster ---------------------------------------------------------------------------------------------------

fn settings(seed: u64, queues: QueueTree, chance: &mut Chance) -> Settings {
    // Work that nobody books has rules of its own, which no checker knows yet.
    let presets = Preset::CENTRAL;
    Settings {
        preset: presets[chance.below(presets.len() as u64) as usize],
        seed,
        master: master(chance),
        queues,
        network: NetworkSettings {
            delay: Duration::from_micros(one_of(chance, &[100, 500, 5_000, 20_000])),
            jitter: Duration::from_micros(one_of(chance, &[0, 1_000, 50_000, 2_000_000])),
            loss: one_of(chance, &[0.0, 0.01, 0.1]),
            retransmission: Duration::from_micros(one_of(chance, &[200_000, 3_000_000])),
            repeats: one_of(chance, &[0, 1, 8]),
        },
        execution: ExecutionSettings {
            slowdown: one_of(chance, &[0.0, 1.0]),
            stragglers: one_of(chance, &[0.0, 0.1]),
            failures: one_of(chance, &[0.0, 0.1, 0.3]),
            ..ExecutionSettings::default()
        },
        costs: Costs { disk: one_of(chance, &[0, 150_000, 20_000_000]), ..Costs::default() },
        orphan_lease: Duration::from_secs(one_of(chance, &[20, 600])),
        until: None,
        story: None,
    }
}

fn master(chance: &mut Chance) -> MasterSettings {
    MasterSettings {
        heartbeat: Duration::from_secs(one_of(chance, &[1, 3])),
        node_grace: Duration::from_secs(one_of(chance, &[5, 20, 60])),
        decide: one_of(chance, &[Decide::OnEvents, Decide::OnEvents, Decide::OnHeartbeats]),
        kept_jobs: one_of(chance, &[10_000, 10_000, 2]),
        ..MasterSettings::default()
    }
}

fn nodes(chance: &mut Chance) -> Vec<Node> {
    let node = |number: u64, chance: &mut Chance| {
        let cpus = 1_000 * (1 + chance.below(4_u32));
        let resources = Resources::new(cpus, 1_024 << chance.below(3_u64)).with(GPU, chance.below(3_u32));
        let zone = one_of(chance, &["a", "b"]);
        Node {
            name: format!("host{number}"),
            resources: ResourceSpec { basic: resources, custom: Vec::new() },
            attributes: Attributes::new([("zone".to_owned(), zone.to_owned())]),
        }
    };
    (0..1 + chance.below(6_u64)).map(|number| node(number, chance)).collect()
}

/// What tasks ask for: each fits on some node.
struct Shape {
    resources: Resources,
    constraints: Vec<Constraint>,
}

fn shapes(nodes: &[Node], chance: &mut Chance) -> Vec<Shape> {
    let shape = |chance: &mut Chance| {
        let host = &nodes[chance.below(nodes.len() as u64) as usize];
        let resources = Resources::new(250 * (1 + chance.below(6_u32)), 128 * chance.below(8_u32))
            .with(GPU, chance.below(8_u32) / 7);
        let zone = host.attributes.get("zone").unwrap_or_default();
        let constraint = Constraint::parse(&format!("zone={zone}")).expect("a zone is one word");
        Shape {
            resources: smaller_of(&resources, &host.resources.basic),
            constraints: if chance.below(4_u64) == 0 { vec![constraint] } else { Vec::new() },
        }
    };
    (0..1 + chance.below(4_u64)).map(|_| shape(chance)).collect()
}

fn smaller_of(a: &Resources, b: &Resources) -> Resources {
    let mut smaller = *a;
    smaller.0.iter_mut().zip(b.0).for_each(|(amount, other)| *amount = other.min(*amount));
    smaller
}

// ---- queues --------------------------------------------------------------------------------------------------------

fn queues(nodes: &[Node], shapes: &[Shape], chance: &mut Chance) -> QueueTree {
    let least = least_share(nodes, shapes);
    let specs = (0..chance.below(4_u64)).map(|number| queue(&format!("root.q{number}"), least, chance));
    QueueTree::new(specs.collect()).expect("drawn queues keep to the rules")
}

fn queue(name: &str, least: u32, chance: &mut Chance) -> QueueSpec {
    let share = |chance: &mut Chance| one_of(chance, &[300_000, 600_000, 1_000_000]).max(least);
    let default_timeout = [None, Some(Duration::from_secs(20))];
    let spec = QueueSpec {
        weight: one_of(chance, &[500, 1_000, 3_000]),
        maximum: share(chance),
        user_limit: share(chance),
        max_running_jobs: one_of(chance, &[None, Some(1), Some(3)]),
        default_timeout: one_of(chance, &default_timeout),
        ..QueueSpec::named(name)
    };
    QueueSpec { guaranteed: one_of(chance, &[0, 200_000]).min(spec.maximum), ..spec }
}

/// The share of the cluster that every task fits in, in millionths: a smaller queue could never run one.
fn least_share(nodes: &[Node], shapes: &[Shape]) -> u32 {
    let total = |kind: usize| nodes.iter().map(|node| u64::from(node.resources.basic.0[kind])).sum::<u64>().max(1);
    let share = |shape: &Shape, kind: usize| (u64::from(shape.resources.0[kind]) * 1_000_000).div_ceil(total(kind));
    let shares = shapes.iter().flat_map(|shape| (0..WIDTH).map(move |kind| share(shape, kind)));
    shares.max().unwrap_or(0) as u32
}

// ---- jobs ----------------------------------------------------------------------------------------------------------

fn workload(shapes: &[Shape], queues: &QueueTree, chance: &mut Chance) -> Workload {
    let all = (0..queues.len() as u32).map(QueueId);
    let leaves = all.filter(|queue| queues.children(*queue).is_empty());
    let leaves: Vec<&str> = leaves.map(|queue| queues.spec(queue).name.as_str()).collect();
    let mut arrivals: Vec<Duration> = (0..1 + chance.below(12_u64))
        .map(|_| Duration::from_micros(chance.below(UNSAFE_FOR.as_micros() * 3 / 4)))
        .collect();
    arrivals.sort_unstable();
    let jobs = arrivals.into_iter().enumerate().map(|(number, arrival)| job(number, arrival, shapes, &leaves, chance));
    Workload { name: "chaos".to_owned(), jobs: jobs.collect(), notes: Vec::new(), malformed: MalformedLines::default() }
}

fn job(number: usize, arrival: Duration, shapes: &[Shape], leaves: &[&str], chance: &mut Chance) -> TraceJob {
    let stages: Vec<StageSpec> = (0..1 + chance.below(4_u32)).map(|index| stage(index, shapes, chance)).collect();
    let run_times: Vec<RunTimes> = stages.iter().map(|stage| run_times(stage.tasks.len(), chance)).collect();
    let is_after = number > 0 && chance.below(8_u64) == 0;
    let spec = JobSpec {
        name: format!("job{number}"),
        queue: one_of(chance, leaves).to_owned(),
        user: one_of(chance, &["ada", "bob"]).to_owned(),
        priority: chance.below(3_u64) as i32 - 1,
        submit_dir: "/".to_owned(),
        stages,
        after_jobs: if is_after { vec![JobId(1 + chance.below(number as u64))] } else { Vec::new() },
        max_fails: one_of(chance, &[None, None, Some(0), Some(2)]),
        held: chance.below(10_u64) == 0,
        wait_for_nodes: chance.below(2_u64) == 0,
    };
    TraceJob { arrival, spec: Arc::new(spec), run_times: run_times.into() }
}

fn stage(index: u32, shapes: &[Shape], chance: &mut Chance) -> StageSpec {
    let shape = &shapes[chance.below(shapes.len() as u64) as usize];
    StageSpec {
        name: format!("s{index}"),
        after: (0..index).filter(|_| chance.below(2_u64) == 0).collect(),
        tasks: TaskSet::Count(1 + chance.below(10_u32)),
        program: Arc::new(Program { command: vec!["true".to_owned()], ..Program::default() }),
        resources: ResourceSpec { basic: shape.resources, custom: Vec::new() },
        expected: one_of(chance, &[None, Some(Duration::from_secs(3))]),
        execution: one_of(chance, &[ExecutionType::Auto, ExecutionType::Guaranteed, ExecutionType::Opportunistic]),
        constraints: shape.constraints.clone(),
        retries: chance.below(3_u32),
        timeout: one_of(chance, &[None, None, None, Some(Duration::from_secs(4))]),
    }
}

/// Most tasks are short, some outlive a node's grace.
fn run_times(tasks: u32, chance: &mut Chance) -> RunTimes {
    let most = one_of(chance, &[10_000, 2_000_000, 8_000_000, 40_000_000]);
    RunTimes::Each((0..tasks).map(|_| Duration::from_micros(chance.below(most))).collect())
}

// ---- draws ---------------------------------------------------------------------------------------------------------

pub fn one_of<T: Copy>(chance: &mut Chance, choices: &[T]) -> T {
    choices[chance.below(choices.len() as u64) as usize]
}
