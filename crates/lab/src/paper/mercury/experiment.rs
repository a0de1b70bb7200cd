//! Runs the cases of a figure, each with every seed, and keeps the results that the figures need.

use super::super::figure::{Amount, Extent, run_all};
use super::scenario::{Case, Centre, Drawn, FigureScenario, JobClass, Scenario, Setup};
use crate::baselines;
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::dispatch::{Decide, DispatchSettings};
use amalgam_core::master::{MasterSettings, OpportunisticLimit, Steering};
use amalgam_core::policy::Mix;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::{Opportunistic, Preset, QueueChoice};
use amalgam_core::vocabulary::{
    Attributes, Chance, Duration, JobSpec, Program, QueueSpec, ResourceSpec, Resources, StageSpec, TaskSet,
};
use amalgam_sim::statistics::{mean, percentile, sorted};
use amalgam_sim::{
    ExecutionSettings, ONCE_ANOTHER_ENDED, Outcome, Settings, Simulation, Understating, WINDOW, Watched,
};
use amalgam_workload::trace::{MalformedLines, Node, RunTimes, TraceJob, Workload};
use std::sync::Arc;

/// The simulated time, if it differs from the scenario's.
fn length_s(amount: Amount) -> Option<f64> {
    match amount {
        Amount::Whole => None,
        Amount::Quick => Some(180.0),
        Amount::Smoke => Some(40.0),
    }
}

/// Divides the number of nodes, of jobs, and k.
fn one_in(amount: Amount) -> u32 {
    if amount == Amount::Smoke { 16 } else { 1 }
}

/// The results of a run. The first window is the warm-up and is excluded from all of them.
pub struct Run {
    pub tasks_per_second: f64,
    pub jobs_per_second: f64,
    /// By window.
    pub task_throughput: Vec<f64>,
    pub job_throughput: Vec<f64>,
    /// In seconds, with the classes of the jobs.
    pub latencies: Vec<(String, f64)>,
    /// Extrapolated to the time of a whole run.
    pub preempted_per_node: f64,
    /// Part of the launched attempts that were shed, and that were preempted.
    pub shed: f64,
    pub preempted: f64,
    /// Part of the CPU time of all attempts that was lost to preemption.
    pub preempted_work: f64,
    /// The share of the CPUs that opportunistic tasks held.
    pub opportunistic: f64,
    pub utilization: f64,
    pub watched: Vec<Watched>,
}

/// The runs of a case, in the order of the seeds.
pub struct CaseRuns {
    pub case: Case,
    pub runs: Vec<Run>,
}

/// Runs every case with every seed. The results are in the order of the cases.
pub fn run(scenario: &Scenario, figure: &FigureScenario, extent: &Extent) -> Result<Vec<CaseRuns>> {
    let worlds =
        figure.case.iter().map(|case| World::of(scenario, figure, case, extent)).collect::<Result<Vec<_>>>()?;
    let runs = run_all(&worlds, extent, World::run);
    Ok(figure.case.iter().zip(runs).map(|(case, runs)| CaseRuns { case: case.clone(), runs }).collect())
}

/// A case with its defaults.
struct World {
    setup: Setup,
    start_up_s: f64,
    /// The duration of a run that is not cut.
    whole_s: f64,
    settings: Settings,
    nodes: Vec<Node>,
    groups: Vec<Group>,
}

/// Jobs of one queue, `at_once` at the same time.
struct Group {
    queue: String,
    classes: Vec<JobClass>,
    at_once: u32,
    /// More jobs than can end in the time.
    count: usize,
}

impl World {
    fn of(scenario: &Scenario, figure: &FigureScenario, case: &Case, extent: &Extent) -> Result<World> {
        let (mut setup, one_in) = (scenario.setup, one_in(extent.amount));
        setup.nodes = (setup.nodes / one_in).max(1);
        setup.length_s = length_s(extent.amount).unwrap_or(setup.length_s);
        let classes = case.jobs.as_ref().unwrap_or(&figure.jobs);
        let at_once = match case.at_once {
            None if case.opportunistic == Some(0.0) => scenario.free.jobs_of_only_g,
            at_once => at_once.unwrap_or(scenario.defaults.at_once),
        };
        let (own, shared): (Vec<_>, Vec<_>) = classes.iter().cloned().partition(|class| class.at_once.is_some());
        let mut groups: Vec<(String, Vec<JobClass>, u32)> = Vec::new();
        if !shared.is_empty() {
            groups.push(("root.default".to_owned(), shared, at_once));
        }
        for class in own {
            groups.push((format!("root.{}", class.name), vec![class.clone()], class.at_once.unwrap_or(at_once)));
        }
        let group = |(queue, classes, at_once): (String, Vec<JobClass>, u32)| {
            let at_once = (at_once / one_in).max(1);
            let count = at_once as usize + most_jobs(&setup, scenario.free.start_up_s, &classes);
            Group { queue, classes, at_once, count }
        };
        let groups: Vec<Group> = groups.into_iter().map(group).collect();
        let queues = QueueTree::new(groups.iter().map(queue_spec).collect());
        let queues = queues.map_err(|error| Failure::new(format!("the scenario file: {error}"), ""))?;
        let settings = settings(scenario, figure, case, one_in, queues);
        let settings = Settings { until: Some(seconds(setup.length_s)), ..settings };
        Ok(World {
            setup,
            start_up_s: scenario.free.start_up_s,
            whole_s: scenario.setup.length_s,
            settings,
            nodes: nodes(&setup),
            groups,
        })
    }

    fn run(&self, seed: u64) -> Run {
        let mut settings = Settings { seed, ..self.settings.clone() };
        settings.preset.seed = seed;
        let mut jobs: Vec<TraceJob> = self.groups.iter().flat_map(|group| self.jobs(group, seed)).collect();
        jobs.sort_by_key(|job| job.arrival);
        let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
        Run::of(&Simulation::new(settings, &self.nodes, &workload).run(), self.nodes.len(), self.whole_s)
    }

    fn jobs(&self, group: &Group, seed: u64) -> Vec<TraceJob> {
        /// The first jobs arrive over this time; otherwise they would stay in step.
        const RAMP: f64 = 10.0;
        let mut chance = Chance::new(seed, &group.queue);
        let ready = 2.0 * self.setup.heartbeat_s;
        let job = |number: usize| {
            let class = draw_class(&group.classes, &mut chance);
            let run_times = self.run_times(class, &mut chance);
            let arrival = match number < group.at_once as usize {
                true => seconds(ready + RAMP * number as f64 / f64::from(group.at_once)),
                false => ONCE_ANOTHER_ENDED,
            };
            TraceJob { arrival, spec: Arc::new(self.spec(class, &group.queue)), run_times: [run_times].into() }
        };
        (0..group.count).map(job).collect()
    }

    fn run_times(&self, class: &JobClass, chance: &mut Chance) -> RunTimes {
        match class.drawn {
            Drawn::Fixed => RunTimes::Same(seconds(class.run_time_s)),
            Drawn::Exponential => {
                let draw = |_| seconds(-class.run_time_s * (1.0 - chance.unit()).ln());
                RunTimes::Each((0..self.setup.tasks_in_job).map(draw).collect())
            }
        }
    }

    fn spec(&self, class: &JobClass, queue: &str) -> JobSpec {
        let Setup { tasks_in_job, task_cpus, task_memory_gib, .. } = self.setup;
        let stage = StageSpec {
            name: "tasks".to_owned(),
            tasks: TaskSet::Count(tasks_in_job),
            program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
            resources: resources(task_cpus, task_memory_gib),
            // The estimate of a job manager that learns from finished tasks.
            expected: Some(seconds(class.run_time_s + self.start_up_s)),
            execution: class.execution.of_core(),
            ..StageSpec::default()
        };
        JobSpec {
            name: class.name.clone(),
            queue: queue.to_owned(),
            user: "paper".to_owned(),
            submit_dir: "/".into(),
            stages: vec![stage],
            ..JobSpec::default()
        }
    }
}

fn settings(scenario: &Scenario, figure: &FigureScenario, case: &Case, one_in: u32, queues: QueueTree) -> Settings {
    let Scenario { free, setup, .. } = scenario;
    let heartbeat = seconds(setup.heartbeat_s);
    let start_up = seconds(free.start_up_s);
    if let Some(preset) = &case.preset {
        let preset = baselines::parse(preset).expect("the scenario was checked");
        let execution = ExecutionSettings { start_up, ..ExecutionSettings::default() };
        return Settings { preset, queues, execution, ..Settings::default() };
    }
    Settings {
        preset: preset(scenario, case, one_in),
        queues,
        master: MasterSettings {
            heartbeat,
            dispatch: DispatchSettings {
                decide: match case.centre {
                    Centre::Heartbeats => Decide::OnHeartbeats { most: Some(free.grants_per_heartbeat) },
                    Centre::Events => Decide::OnEvents,
                },
                ..DispatchSettings::default()
            },
            publish_every: Some(seconds(setup.job_manager_heartbeat_s)),
            ..MasterSettings::default()
        },
        execution: ExecutionSettings {
            start_up,
            grant_delay: match case.centre {
                Centre::Heartbeats => seconds(setup.job_manager_heartbeat_s),
                Centre::Events => Duration::ZERO,
            },
            ..ExecutionSettings::default()
        },
        join_over: heartbeat,
        understating: Understating {
            nodes: figure.understating_nodes.div_ceil(one_in as usize),
            divisor: figure.understating_divisor,
        },
        watched: figure.watched_node.map(|node| node / one_in as usize),
        ..Settings::default()
    }
}

fn preset(scenario: &Scenario, case: &Case, one_in: u32) -> Preset {
    let defaults = scenario.defaults;
    let shaping = case.shaping.unwrap_or(defaults.shaping);
    let deviations = shaping.then(|| thousandths(case.deviations.unwrap_or(defaults.deviations)));
    let limit = match case.limit {
        _ if case.forecast => OpportunisticLimit::Forecast,
        Some(part) => OpportunisticLimit::Part(millionths(part)),
        None => OpportunisticLimit::Everything,
    };
    let mix = Mix {
        // The estimate of a task includes its start-up.
        shorter_than: case.shorter_than_s.map(|limit| seconds(limit + scenario.free.start_up_s)),
        opportunistic: millionths(case.opportunistic.unwrap_or(defaults.opportunistic)),
    };
    let k = (case.k.unwrap_or(defaults.k) / one_in).max(1);
    let mut preset = if case.plus { Preset::MERCURY_PLUS } else { Preset::MERCURY };
    let own = preset.opportunistic_mut().expect("it has opportunistic tasks");
    *own = Opportunistic {
        mix,
        placement: QueueChoice::TopRanked { k },
        steering: Steering { deviations, limit, ..own.steering },
        reorder: shaping && case.reorder.unwrap_or(defaults.reorder),
        ..*own
    };
    preset
}

fn queue_spec(group: &Group) -> QueueSpec {
    let share = group.classes.first().and_then(|class| class.share);
    QueueSpec { maximum: millionths(share.unwrap_or(1.0)), ..QueueSpec::named(&group.queue) }
}

fn nodes(setup: &Setup) -> Vec<Node> {
    let node = |number: u32| Node {
        name: format!("node-{number}"),
        resources: resources(setup.cpus, setup.memory_gib),
        attributes: Attributes::new([("rack".to_owned(), (number / setup.nodes_in_rack).to_string())]),
    };
    (0..setup.nodes).map(node).collect()
}

fn resources(cpus: u32, memory_gib: u32) -> ResourceSpec {
    ResourceSpec { basic: Resources::new(cpus * 1_000, memory_gib * 1_024), custom: Vec::new() }
}

/// Slightly more jobs than could end if no CPU was ever idle: many short jobs may be drawn by chance.
fn most_jobs(setup: &Setup, start_up_s: f64, classes: &[JobClass]) -> usize {
    let weights: u64 = classes.iter().map(|class| class.weight).sum();
    let work: f64 = classes.iter().map(|class| class.weight as f64 * (class.run_time_s + start_up_s)).sum();
    let mean = work / weights.max(1) as f64;
    let at_once = f64::from(setup.nodes) * f64::from(setup.cpus) / f64::from(setup.task_cpus);
    (1.3 * at_once * setup.length_s / mean / f64::from(setup.tasks_in_job)).ceil() as usize
}

fn draw_class<'a>(classes: &'a [JobClass], chance: &mut Chance) -> &'a JobClass {
    let weights: u64 = classes.iter().map(|class| class.weight).sum();
    let mut drawn = chance.below(weights.max(1));
    let found = classes.iter().find(|class| {
        let is_it = drawn < class.weight;
        drawn = drawn.saturating_sub(class.weight);
        is_it
    });
    found.unwrap_or(&classes[0])
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_micros((seconds * 1e6).round() as u64)
}

fn thousandths(value: f64) -> u32 {
    (value * 1e3).round() as u32
}

fn millionths(value: f64) -> u32 {
    (value * 1e6).round() as u32
}

impl CaseRuns {
    /// Whether in each run a job of the class ended.
    pub fn all_ended_some(&self, class: &str) -> bool {
        self.runs.iter().all(|run| run.latencies.iter().any(|(name, _)| name == class))
    }
}

impl Run {
    fn of(outcome: &Outcome, nodes: usize, whole_s: f64) -> Run {
        let window = WINDOW.as_secs_f64();
        let end = outcome.results.simulated_seconds;
        // A run that is shorter than two windows has no warm-up.
        let from = if end >= 2.0 * window { window } else { 0.0 };
        let measured = outcome.windows.iter().filter(|window| window.begins_s >= from);
        let lengths = measured.clone().map(|one| (end - one.begins_s).min(window));
        let task_throughput: Vec<f64> =
            measured.zip(lengths).map(|(one, length)| one.succeeded_tasks as f64 / length).collect();
        let ended: Vec<_> = outcome.jobs.iter().filter(|job| job.ended_s.is_some_and(|at| at > from)).collect();
        let mut job_throughput = vec![0.0; ((end - from) / window).ceil().max(1.0) as usize];
        let last = job_throughput.len() - 1;
        for at in ended.iter().filter_map(|job| job.ended_s) {
            job_throughput[(((at - from) / window) as usize).min(last)] += 1.0 / window;
        }
        let counters = outcome.results.counters;
        Run {
            tasks_per_second: mean(&task_throughput),
            jobs_per_second: ended.len() as f64 / (end - from),
            task_throughput,
            job_throughput,
            latencies: ended.iter().filter_map(|job| Some((job.name.clone(), job.jct_s?))).collect(),
            preempted_per_node: counters.preempted as f64 / nodes as f64 * whole_s / end,
            shed: counters.shed as f64 / counters.launched.max(1) as f64,
            preempted: counters.preempted as f64 / counters.launched.max(1) as f64,
            preempted_work: outcome.results.preempted_work,
            opportunistic: outcome.results.utilization.opportunistic,
            utilization: outcome.results.utilization.cpu,
            watched: outcome.watched.clone(),
        }
    }

    /// Of all jobs, or of a class.
    pub fn mean_latency(&self, class: Option<&str>) -> f64 {
        let of_class = self.latencies.iter().filter(|(name, _)| class.is_none_or(|class| class == name));
        mean(&of_class.map(|(_, latency)| *latency).collect::<Vec<f64>>())
    }

    pub fn latency_percentile(&self, class: Option<&str>, percent: u32) -> f64 {
        let of_class = self.latencies.iter().filter(|(name, _)| class.is_none_or(|class| class == name));
        percentile(&sorted(of_class.map(|(_, latency)| *latency)), percent)
    }
}
