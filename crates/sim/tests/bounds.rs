//! The lower bounds for any scheduler: compared with results by hand, with all schedules of tiny workloads, and with
//! runs that meet them.

use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{
    Chance, Duration, ExecutionType, JobSpec, Program, ResourceSpec, Resources, StageSpec, TaskSet, Totals,
};
use amalgam_sim::{Costs, NetworkSettings, Reference, Settings, Simulation, capacity};
use amalgam_workload::trace::{self, RunTimes, TraceJob};
use std::sync::Arc;

/// The stages that it depends on, the number of tasks, and seconds, cores and MiB of each task.
type Stage<'a> = (&'a [u32], u32, u64, u32, u32);

fn job(arrival: u64, stages: &[Stage<'_>]) -> TraceJob {
    let stage = |(number, &(after, tasks, _, cores, mebibytes)): (usize, &Stage<'_>)| StageSpec {
        name: format!("s{number}"),
        after: after.to_vec(),
        tasks: TaskSet::Count(tasks),
        program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
        resources: ResourceSpec { basic: Resources::new(1_000 * cores, mebibytes), custom: Vec::new() },
        execution: ExecutionType::Guaranteed,
        ..StageSpec::default()
    };
    let stage_specs = stages.iter().enumerate().map(stage).collect();
    TraceJob {
        arrival: Duration::from_secs(arrival),
        spec: Arc::new(JobSpec { name: "j".to_owned(), stages: stage_specs, ..JobSpec::default() }),
        run_times: stages.iter().map(|stage| RunTimes::Same(Duration::from_secs(stage.2))).collect(),
    }
}

fn cluster(cores: u32, mebibytes: u32) -> Totals {
    let mut capacity = Totals::default();
    capacity.add(&Resources::new(1_000 * cores, mebibytes));
    capacity
}

/// Critical path, work over capacity and mean completion time in seconds, rounded to nanoseconds.
fn bounds(jobs: &[TraceJob], capacity: &Totals) -> [f64; 3] {
    let of = Reference::of(jobs, capacity);
    [of.critical_path_s, of.work_over_capacity_s, of.srpt_mean_jct_s].map(|seconds| (seconds * 1e9).round() / 1e9)
}

#[test]
fn the_bound_of_the_mean_lets_a_short_job_preempt_a_long_one() {
    // The second arrives at 3 s and ends at 5 s, the first continues and ends at 12 s: (12 + 2) / 2.
    let jobs = [job(0, &[(&[], 1, 10, 1, 0)]), job(3, &[(&[], 1, 2, 1, 0)])];
    assert_eq!(bounds(&jobs, &cluster(1, 0)), [10.0, 12.0, 7.0]);
    // Without preemption the mean is larger: the jobs take 10 s and 9 s.
    assert_eq!(Reference::of(&jobs, &cluster(1, 0)).greedy_mean_jct_s, 9.5);
    // A first job that is nearly done is not preempted: it ends at 10 s, the second at 13 s.
    let jobs = [job(0, &[(&[], 1, 10, 1, 0)]), job(8, &[(&[], 1, 3, 1, 0)])];
    assert_eq!(bounds(&jobs, &cluster(1, 0)), [11.0, 13.0, 7.5]);
}

#[test]
fn each_kind_of_resource_is_bounded_separately() {
    // On 4 cores and 8 MiB the first job needs 20 s of all cores and 10 s of all memory, the second 10 s and 40 s. By
    // the cores: 10 + 30. By memory: 10 + 50. By the dominant kind of each job it would be 20 + 60, which is not a
    // bound.
    let jobs = [job(0, &[(&[], 8, 10, 1, 1)]), job(0, &[(&[], 4, 10, 1, 8)])];
    assert_eq!(bounds(&jobs, &cluster(4, 8)), [10.0, 50.0, 30.0]);
    // With enough memory for both, only the cores limit the jobs.
    assert_eq!(bounds(&jobs, &cluster(4, 80)), [10.0, 30.0, 20.0]);
}

#[test]
fn a_dag_with_much_work_beside_its_critical_path_is_bounded_by_its_work() {
    // Each DAG has 4 tasks of 5 s, then 2 of 3 s. On 2 cores: a critical path of 8 s, and 13 s of work.
    let dag: [Stage<'_>; 2] = [(&[], 4, 5, 1, 0), (&[0], 2, 3, 1, 0)];
    assert_eq!(bounds(&[job(0, &dag)], &cluster(2, 0)), [8.0, 13.0, 13.0]);
    assert_eq!(bounds(&[job(0, &dag), job(0, &dag)], &cluster(2, 0)), [8.0, 26.0, 19.5]);
    // On 8 cores no task waits. The second job arrives 4 s later.
    assert_eq!(bounds(&[job(0, &dag), job(4, &dag)], &cluster(8, 0)), [12.0, 7.25, 8.0]);
}

#[test]
fn the_makespan_starts_at_the_first_arrival_and_work_cannot_start_before_it_arrives() {
    // The last 6 s of work arrive at 20 s, 10 s after the first job, so the makespan is at least 16 s.
    let jobs = [job(10, &[(&[], 1, 2, 1, 0)]), job(20, &[(&[], 6, 1, 1, 0)])];
    assert_eq!(bounds(&jobs, &cluster(1, 0)), [11.0, 16.0, 4.0]);
}

// ---- all schedules -------------------------------------------------------------------------------------------------

struct Task {
    job: usize,
    stage: u32,
    seconds: u64,
    shape: Resources,
}

/// Starts the tasks in this order, each at the first second from which it fits for all of its run time. Some order of
/// the tasks results in an optimal schedule, because starting a task earlier never delays the end of another one.
fn schedule(order: &[&Task], jobs: &[TraceJob], capacity: &Resources) -> Vec<u64> {
    let mut placed: Vec<(&Task, u64)> = Vec::new();
    for &task in order {
        let job = &jobs[task.job];
        let after = &job.spec.stages[task.stage as usize].after;
        let awaited = placed.iter().filter(|(other, _)| other.job == task.job && after.contains(&other.stage));
        let ready = awaited.map(|(other, start)| start + other.seconds).max().unwrap_or(0);
        let is_free = |second: u64| {
            let running = placed.iter().filter(|(other, start)| (*start..start + other.seconds).contains(&second));
            let free = running.fold(*capacity, |free, (other, _)| free.saturating_sub(&other.shape));
            task.shape.fits_in(&free)
        };
        let from = ready.max(job.arrival.as_micros() / 1_000_000);
        let start = (from..).find(|&start| (start..start + task.seconds).all(is_free)).unwrap();
        placed.push((task, start));
    }
    let mut ends = vec![0; jobs.len()];
    placed.iter().for_each(|(task, start)| ends[task.job] = ends[task.job].max(start + task.seconds));
    ends
}

/// Calls `found` with all orders in which each task is behind the tasks that it depends on.
fn each_order<'a>(tasks: &mut Vec<&'a Task>, from: usize, jobs: &[TraceJob], found: &mut dyn FnMut(&[&'a Task])) {
    if from == tasks.len() {
        return found(tasks);
    }
    for next in from..tasks.len() {
        let waits = |task: &Task| jobs[task.job].spec.stages[task.stage as usize].after.clone();
        let is_ready = tasks[from..]
            .iter()
            .all(|other| other.job != tasks[next].job || !waits(tasks[next]).contains(&other.stage));
        if is_ready {
            tasks.swap(from, next);
            each_order(tasks, from + 1, jobs, found);
            tasks.swap(from, next);
        }
    }
}

/// Up to three jobs with up to five tasks in total, in one or two stages each.
fn tiny_workload(chance: &mut Chance) -> Vec<TraceJob> {
    let mut tasks_left = 1 + chance.below(5_u32);
    let mut jobs = Vec::new();
    while tasks_left > 0 && jobs.len() < 3 {
        let mut stages: Vec<Stage<'_>> = Vec::new();
        for number in 0..1 + chance.below(2_u32) {
            let tasks = (1 + chance.below(3_u32)).min(tasks_left);
            tasks_left -= tasks;
            let after: &[u32] = if number == 1 && chance.below(4_u32) > 0 { &[0] } else { &[] };
            if tasks > 0 {
                stages.push((after, tasks, 1 + chance.below(3_u64), 1 + chance.below(2_u32), chance.below(3_u32)));
            }
        }
        jobs.push(job(chance.below(4_u64), &stages));
    }
    jobs.sort_by_key(|job| job.arrival);
    jobs
}

#[test]
fn no_schedule_of_a_tiny_workload_is_below_the_bounds_and_many_meet_them() {
    const WORKLOADS: u32 = 1_000;
    let mut chance = Chance::new(1, "tiny workloads");
    let (mut makespans_met, mut means_met, mut schedules) = (0, 0, 0);
    for _ in 0..WORKLOADS {
        let jobs = tiny_workload(&mut chance);
        let (cores, mebibytes) = (2 + chance.below(2_u32), 2 + chance.below(3_u32));
        let reference = Reference::of(&jobs, &cluster(cores, mebibytes));
        let stages = jobs.iter().enumerate().flat_map(|(number, job)| {
            job.spec
                .stages
                .iter()
                .enumerate()
                .map(move |(stage, spec)| (number, stage, spec, job.run_times[stage].of(0)))
        });
        let tasks: Vec<Task> = stages
            .flat_map(|(job, stage, spec, time)| {
                let (stage, seconds, shape) = (stage as u32, time.as_micros() / 1_000_000, spec.resources.basic);
                (0..spec.tasks.len()).map(move |_| Task { job, stage, seconds, shape })
            })
            .collect();
        let (mut best_makespan, mut best_mean) = (f64::INFINITY, f64::INFINITY);
        let first = jobs[0].arrival.as_secs_f64();
        each_order(&mut tasks.iter().collect(), 0, &jobs, &mut |order| {
            let ends = schedule(order, &jobs, &Resources::new(1_000 * cores, mebibytes));
            let times = ends.iter().zip(&jobs).map(|(end, job)| *end as f64 - job.arrival.as_secs_f64());
            best_mean = best_mean.min(times.sum::<f64>() / jobs.len() as f64);
            best_makespan = best_makespan.min(*ends.iter().max().unwrap() as f64 - first);
            schedules += 1;
        });
        let makespan = reference.critical_path_s.max(reference.work_over_capacity_s);
        let mean = reference.srpt_mean_jct_s;
        assert!(makespan <= best_makespan, "a makespan of {best_makespan} s is below {makespan} s: {jobs:?}");
        assert!(mean <= best_mean, "a mean of {best_mean} s is below {mean} s: {jobs:?}");
        assert!(best_makespan <= reference.greedy_makespan_s, "no order is as good as the greedy one: {jobs:?}");
        assert!(best_mean <= reference.greedy_mean_jct_s + 1e-9, "no order is as good as the greedy one: {jobs:?}");
        makespans_met += u32::from(best_makespan == makespan);
        means_met += u32::from(best_mean - mean < 1e-9);
    }
    println!("{schedules} schedules of {WORKLOADS} workloads; makespans met: {makespans_met}, means met: {means_met}");
    // Bounds of zero would pass the assertions above. Useful bounds are met by many schedules.
    assert!(makespans_met > WORKLOADS / 2 && means_met > WORKLOADS / 2, "{makespans_met}, {means_met}");
}

// ---- runs ----------------------------------------------------------------------------------------------------------

/// If only tasks take time and there is room for all of them, a run takes exactly as long as the bounds.
#[test]
fn a_run_that_meets_the_bounds_is_not_below_them() {
    for (seed, jobs) in [(1, "1"), (2, "7"), (3, "100"), (4, "1000")] {
        let options = [
            ("jobs", jobs),
            ("run-time", "exponential:7.7s"),
            ("arrival", "poisson:0.3s"),
            ("tasks", "3"),
            ("seed", &seed.to_string()),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let workload = trace::read("synthetic:gridmix", &options).unwrap();
        let nodes = trace::read_nodes("drawn:400", &[]).unwrap();
        let settings = Settings {
            preset: Preset::FIFO,
            network: NetworkSettings { delay: Duration::ZERO, ..NetworkSettings::default() },
            costs: Costs::NONE,
            ..Settings::default()
        };
        let results = Simulation::new(settings, &nodes, &workload).run().results;
        let reference = Reference::of(&workload.jobs, &capacity(&nodes));
        let (makespan, mean) = (results.makespan_s, results.jct_s.mean);
        assert_eq!(makespan, reference.critical_path_s, "{jobs} jobs");
        assert!(mean >= reference.srpt_mean_jct_s, "{jobs} jobs: {mean} below {}", reference.srpt_mean_jct_s);
        assert!(mean - reference.srpt_mean_jct_s < 1e-9, "{jobs} jobs: {mean}, not {}", reference.srpt_mean_jct_s);
    }
}
