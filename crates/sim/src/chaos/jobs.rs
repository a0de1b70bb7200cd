//! The jobs of a seed: everything that a user can say of one.

use super::cluster::Shape;
use super::draws::{is_one_in, one_of};
use super::scenario::UNSAFE_FOR;
use amalgam_core::vocabulary::job::{IndexRange, Items};
use amalgam_core::vocabulary::{
    Chance, Duration, ExecutionType, InputSpec, JobId, JobSpec, Program, Reads, StageSpec, TaskSet, Workdir,
};
use amalgam_workload::trace::{MalformedLines, RunTimes, TraceJob, Workload};
use std::sync::Arc;

pub fn workload(shapes: &[Shape], leaves: &[&str], chance: &mut Chance) -> Workload {
    // Where all come within seconds, they stand in each other's way, and limits bind.
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
    let spec = JobSpec {
        name: format!("job{number}"),
        queue: one_of(chance, leaves).to_owned(),
        user: one_of(chance, &["ada", "ada", "bob"]).to_owned(),
        priority: chance.below(3_u64) as i32 - 1,
        submit_dir: "/".to_owned(),
        stages,
        after_jobs: if is_after { vec![JobId(1 + chance.below(number as u64))] } else { Vec::new() },
        max_fails: one_of(chance, &[None, None, Some(0), Some(2)]),
        held: is_one_in(10, chance),
        wait_for_nodes: is_one_in(2, chance),
    };
    TraceJob { arrival, spec: Arc::new(spec), run_times: run_times.into() }
}

fn stage(index: u32, shapes: &[Shape], chance: &mut Chance) -> StageSpec {
    let shape = &shapes[chance.below(shapes.len() as u64) as usize];
    StageSpec {
        name: format!("s{index}"),
        after: (0..index).filter(|_| is_one_in(2, chance)).collect(),
        tasks: tasks(chance),
        program: Arc::new(Program { command: vec!["true".to_owned()], workdir: Workdir::Own, ..Program::default() }),
        resources: shape.resources.clone(),
        expected: one_of(chance, &[None, Some(Duration::from_secs(3))]),
        execution: one_of(chance, &[ExecutionType::Auto, ExecutionType::Guaranteed, ExecutionType::Opportunistic]),
        constraints: shape.constraints.clone(),
        near: Vec::new(),
        retries: chance.below(3_u32),
        timeout: one_of(chance, &[None, None, None, Some(Duration::from_secs(4))]),
        outputs: Vec::new(),
        inputs: Vec::new(),
        input_kib: Vec::new(),
        reads: Reads::default(),
    }
}

/// In some jobs stages leave files, and those after them read these: all of a stage, or those of one task.
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

/// A few tasks or an array, said in each way there is.
fn tasks(chance: &mut Chance) -> TaskSet {
    let most = one_of(chance, &[3, 6, 10, 25]);
    let count = 1 + chance.below(most);
    match chance.below(4_u64) {
        0 => TaskSet::Indexes(vec![IndexRange { first: 7, last: 7 + 3 * (u64::from(count) - 1), step: 3 }]),
        1 => {
            let mut items = Items::default();
            (0..count).for_each(|item| items.push(&format!("item{item}")).expect("it is short"));
            TaskSet::Each(items)
        }
        _ => TaskSet::Count(count),
    }
}

/// Most tasks are short, some outlive a node's grace.
fn run_times(tasks: u32, chance: &mut Chance) -> RunTimes {
    let most = one_of(chance, &[10_000, 2_000_000, 8_000_000, 40_000_000]);
    RunTimes::Each((0..tasks).map(|_| Duration::from_micros(chance.below(most))).collect())
}
