//! The jobs of a seed, with random values of almost everything that a user can specify.

use super::cluster::Shape;
use super::draws::{is_one_in, one_of};
use super::scenario::UNSAFE_FOR;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::vocabulary::job::{IndexRange, Items};
use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{
    Chance, Duration, ExecutionType, InputSpec, JobId, JobSpec, Program, Reads, StageSpec, TaskSet, Workdir,
};
use amalgam_workload::trace::{MalformedLines, Node, RunTimes, TraceJob, Workload};
use std::sync::Arc;

pub fn workload(shapes: &[Shape], leaves: &[&str], chance: &mut Chance) -> Workload {
    // If all jobs arrive within seconds, they compete for resources, and limits have an effect.
    let arrive_within = one_of(chance, &[Duration::from_secs(5), Duration::from_secs(30), UNSAFE_FOR]);
    let mut arrivals: Vec<Duration> = (0..1 + chance.below(12_u64))
        .map(|_| Duration::from_micros(chance.below(arrive_within.as_micros() * 3 / 4)))
        .collect();
    arrivals.sort_unstable();
    let jobs = arrivals.into_iter().enumerate().map(|(number, arrival)| job(number, arrival, shapes, leaves, chance));
    Workload { name: "chaos".to_owned(), jobs: jobs.collect(), notes: Vec::new(), malformed: MalformedLines::default() }
}

fn job(number: usize, arrival: Duration, shapes: &[Shape], leaves: &[&str], chance: &mut Chance) -> TraceJob {
    let stages: Vec<StageSpec> = (0..1 + chance.below(4_u32)).map(|index| stage(index, shapes, chance)).collect();
    let run_times: Vec<RunTimes> = stages.iter().map(|stage| run_times(stage.tasks.len(), chance)).collect();
    let is_after = number > 0 && is_one_in(8, chance);
    let queue = one_of(chance, leaves).to_owned();
    let user = one_of(chance, &["ada", "ada", "bob"]).to_owned();
    let priority = chance.below(3_u64) as i32 - 1;
    let after = is_after.then(|| JobId(1 + chance.below(number as u64)));
    // Some jobs only wait for the other job's end. Not drawn, so that other seeds stay the same.
    let any = number.is_multiple_of(3);
    let spec = JobSpec {
        name: format!("job{number}"),
        queue,
        user,
        priority,
        submit_dir: "/".into(),
        stages,
        after_jobs: after.filter(|_| !any).into_iter().collect(),
        after_jobs_any: after.filter(|_| any).into_iter().collect(),
        max_fails: one_of(chance, &[None, None, Some(0), Some(2)]),
        held: is_one_in(10, chance),
        wait_for_nodes: is_one_in(2, chance),
        account: None,
    };
    TraceJob { arrival, spec: Arc::new(spec), run_times: run_times.into() }
}

fn stage(index: u32, shapes: &[Shape], chance: &mut Chance) -> StageSpec {
    let shape = &shapes[chance.below(shapes.len() as u64) as usize];
    StageSpec {
        name: format!("s{index}"),
        after: (0..index).filter(|_| is_one_in(2, chance)).collect(),
        tasks: tasks(chance),
        program: Arc::new(Program { command: vec!["true".into()], workdir: Workdir::Own, ..Program::default() }),
        resources: shape.resources.clone(),
        expected: one_of(chance, &[None, Some(Duration::from_secs(3))]),
        execution: one_of(chance, &[ExecutionType::Auto, ExecutionType::Guaranteed, ExecutionType::Opportunistic]),
        constraints: shape.constraints.clone(),
        near: Vec::new(),
        retries: chance.below(3_u32),
        retry_delay: index.is_multiple_of(2).then_some(Duration::ZERO),
        timeout: one_of(chance, &[None, None, None, Some(Duration::from_secs(4))]),
        priority: None,
        gang: false,
        at_once: (index % 3 == 2).then_some(1 + index % 2),
        outputs: Vec::new(),
        inputs: Vec::new(),
        input_kib: Vec::new(),
        reads: Reads::default(),
    }
}

/// In some jobs, stages write files that dependent stages read: all files of a stage, or those of one task.
pub fn hand_on_files(workload: &mut Workload, chance: &mut Chance) {
    for job in &mut workload.jobs {
        if !is_one_in(3, chance) {
            continue;
        }
        let spec = Arc::make_mut(&mut job.spec);
        for stage in &mut spec.stages {
            stage.outputs = vec!["all".to_owned(), "own-{index}".to_owned()];
            for &before in &stage.after {
                let files = one_of(chance, &["*", "all", "own-{index}"]).to_owned();
                stage.inputs.push(InputSpec { stage: before, files });
            }
        }
    }
}

/// In some jobs, stages are gangs, with at most as many tasks as the nodes and the queue have room for.
pub fn form_gangs(workload: &mut Workload, nodes: &[Node], queues: &QueueTree, chance: &mut Chance) {
    for job in &mut workload.jobs {
        if !is_one_in(3, chance) {
            continue;
        }
        let (spec, run_times) = (Arc::make_mut(&mut job.spec), Arc::make_mut(&mut job.run_times));
        let share = share_of(&spec.queue, queues);
        for (stage, run_times) in spec.stages.iter_mut().zip(run_times) {
            let rooms = rooms_for(stage, nodes, share).min(u64::from(stage.tasks.len()));
            if rooms == 0 || is_one_in(2, chance) {
                continue;
            }
            (stage.gang, stage.at_once) = (true, None);
            if stage.execution == ExecutionType::Opportunistic {
                stage.execution = ExecutionType::Auto;
            }
            if rooms < u64::from(stage.tasks.len()) {
                stage.tasks = TaskSet::Count(rooms as u32);
                if let RunTimes::Each(each) = run_times {
                    each.truncate(rooms as usize);
                }
            }
        }
    }
}

/// The share of the cluster that a user of the queue may hold, in millionths: the smallest of the user limit and the
/// maximums of the queue and its parents.
fn share_of(name: &str, queues: &QueueTree) -> u32 {
    let Some(leaf) = queues.find(name) else { return 1_000_000 };
    let above = std::iter::successors(Some(leaf), |queue| queues.parent(*queue));
    above.map(|queue| queues.spec(queue).maximum).min().unwrap_or(1_000_000).min(queues.spec(leaf).user_limit)
}

/// How many tasks of the stage can run at once on these nodes within this share of them.
fn rooms_for(stage: &StageSpec, nodes: &[Node], share: u32) -> u64 {
    let amount_of = |node: &Node, kind: &str| {
        node.resources.custom.iter().find(|(name, _)| name == kind).map_or(0, |(_, amount)| *amount)
    };
    let on = |node: &Node| {
        let custom = stage.resources.custom.iter().filter(|(_, wanted)| *wanted > 0);
        let of_custom = custom.map(|(kind, wanted)| amount_of(node, kind) / wanted).min().unwrap_or(u32::MAX);
        u64::from(stage.resources.basic.times_in(&node.resources.basic).min(of_custom))
    };
    let suits = |node: &&Node| stage.constraints.iter().all(|constraint| constraint.is_met_by(&node.attributes));
    let on_nodes: u64 = nodes.iter().filter(suits).map(on).sum();
    let part = |wanted: u32, total: u64| (total * u64::from(share) / 1_000_000).checked_div(u64::from(wanted));
    let basic = (0..WIDTH).filter_map(|kind| {
        let total = nodes.iter().map(|node| u64::from(node.resources.basic.0[kind])).sum();
        part(stage.resources.basic.0[kind], total)
    });
    let custom =
        stage.resources.custom.iter().filter_map(|(kind, wanted)| {
            part(*wanted, nodes.iter().map(|node| u64::from(amount_of(node, kind))).sum())
        });
    basic.chain(custom).min().unwrap_or(0).min(on_nodes)
}

/// Some stages have a priority of their own.
pub fn give_priorities(workload: &mut Workload, chance: &mut Chance) {
    for job in &mut workload.jobs {
        if is_one_in(3, chance) {
            let stages = &mut Arc::make_mut(&mut job.spec).stages;
            stages.iter_mut().for_each(|stage| stage.priority = one_of(chance, &[None, Some(-2), Some(3)]));
        }
    }
}

/// A few tasks or an array, in each form that a job file allows.
fn tasks(chance: &mut Chance) -> TaskSet {
    let most = one_of(chance, &[3, 6, 10, 25]);
    let count = 1 + chance.below(most);
    match chance.below(4_u64) {
        0 => TaskSet::Indexes(vec![IndexRange { first: 7, last: 7 + 3 * (u64::from(count) - 1), step: 3 }]),
        1 => {
            let mut items = Items::default();
            (0..count).for_each(|item| items.push(format!("item{item}")).expect("the item is short"));
            TaskSet::Each(items)
        }
        _ => TaskSet::Count(count),
    }
}

/// Most tasks are short; some run longer than a node's grace.
fn run_times(tasks: u32, chance: &mut Chance) -> RunTimes {
    let most = one_of(chance, &[10_000, 2_000_000, 8_000_000, 40_000_000]);
    RunTimes::Each((0..tasks).map(|_| Duration::from_micros(chance.below(most))).collect())
}
