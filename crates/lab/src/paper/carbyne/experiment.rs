//! Runs each workload of a figure under each setting with each scheduler and each seed, and keeps the results that the figures
//! need.

use super::super::figure::{Amount, Extent, nodes, run_all, seconds, source};
use super::scenario::{
    Arrival, ExampleJob, ExampleStage, FigureScenario, Scaled, Scenario, Setting, Setup, WorkloadEntry,
};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{Duration, JobSpec, Program, ResourceSpec, Resources, StageSpec, TaskSet};
use amalgam_sim::{Outcome, Settings, Simulation};
use amalgam_workload::trace::{self, MalformedLines, Node, RunTimes, TraceJob, Workload};
use std::sync::Arc;

/// The results of a run.
pub struct Run {
    /// Completion times by the number of the job in the workload; `None` if it did not end.
    pub jct_s: Vec<Option<f64>>,
    pub makespan_s: f64,
    /// Jain's index of the windows with at least two jobs.
    pub jain: Vec<f64>,
    pub cpu: f64,
    /// The number of running tasks of the watched job over the seconds since its arrival.
    pub running: Vec<(f64, f64)>,
}

/// The runs of a workload under a setting with a scheduler, in the order of the seeds.
pub struct CaseRuns {
    pub workload: String,
    pub setting: String,
    pub scheduler: String,
    /// The name in rows.
    pub name: String,
    pub runs: Vec<Run>,
}

/// All inputs of a run except its seed.
struct World<'a> {
    setup: &'a Setup,
    load: f64,
    amount: Amount,
    workload: &'a WorkloadEntry,
    /// The workload's format and full path.
    source: String,
    setting: &'a Setting,
    preset: Preset,
    watched_job: Option<u32>,
}

pub fn run(scenario: &Scenario, figure: &FigureScenario, extent: &Extent) -> Result<Vec<CaseRuns>> {
    let settings = figure.settings();
    let schedulers = figure.all_schedulers();
    let mut worlds = Vec::new();
    let mut cases = Vec::new();
    for name in &figure.workloads {
        let entry = entry(scenario, name, extent);
        let source = source("carbyne", &entry.read, extent)?;
        for setting in &settings {
            for scheduler in &schedulers {
                let preset = scenario.preset(scheduler).expect("checked");
                let parts = [(figure.workloads.len() > 1, name), (true, &setting.name), (true, scheduler)];
                let parts = parts.into_iter().filter(|(is_reported, part)| *is_reported && !part.is_empty());
                cases.push(CaseRuns {
                    workload: name.clone(),
                    setting: setting.name.clone(),
                    scheduler: scheduler.clone(),
                    name: parts.map(|(_, part)| part.as_str()).collect::<Vec<_>>().join(", "),
                    runs: Vec::new(),
                });
                worlds.push(World {
                    setup: &scenario.setup,
                    load: scenario.free.load,
                    amount: extent.amount,
                    workload: entry,
                    source: source.clone(),
                    setting,
                    preset,
                    watched_job: figure.watched_job,
                });
            }
        }
    }
    for (case, runs) in cases.iter_mut().zip(run_all(&worlds, extent, World::run)) {
        case.runs = runs.into_iter().collect::<Result<_>>()?;
    }
    Ok(cases)
}

/// The jobs of a workload without any particular setting.
pub fn workload(scenario: &Scenario, name: &str, seed: u64, extent: &Extent) -> Result<Workload> {
    let entry = entry(scenario, name, extent);
    let world = World {
        setup: &scenario.setup,
        load: scenario.free.load,
        amount: extent.amount,
        workload: entry,
        source: source("carbyne", &entry.read, extent)?,
        setting: &Setting::default(),
        preset: Preset::default(),
        watched_job: None,
    };
    world.jobs(seed)
}

fn entry<'a>(scenario: &'a Scenario, name: &str, extent: &Extent) -> &'a WorkloadEntry {
    if extent.amount == Amount::Smoke { &scenario.setup.stand_in } else { scenario.workload(name) }
}

impl World<'_> {
    fn run(&self, seed: u64) -> Result<Run> {
        let workload = self.jobs(seed)?;
        let count = (f64::from(self.whole_nodes()) / self.setting.contention).round() as u32;
        let nodes = nodes(node_resources(self.setup), count.max(1));
        Ok(Run::of(&simulate(&nodes, &workload, self.preset, seed, self.setup.heartbeat_s, self.watched_job)))
    }

    /// Smoke runs have a sixteenth of the cluster and few jobs.
    fn whole_nodes(&self) -> u32 {
        let nodes = self.workload.nodes.unwrap_or(self.setup.nodes);
        if self.amount == Amount::Smoke { (nodes / 16).max(1) } else { nodes }
    }

    fn job_count(&self) -> u32 {
        let jobs = self.workload.jobs.unwrap_or(self.setup.jobs);
        match self.amount {
            Amount::Whole => jobs,
            Amount::Quick => (jobs / 5).max(1),
            Amount::Smoke => (jobs / 16).max(1),
        }
    }

    /// The workload with the scenario's load, and with the errors of estimates and demands of the setting.
    fn jobs(&self, seed: u64) -> Result<Workload> {
        let Setting { demand_scale, gap_scale, .. } = *self.setting;
        let arrival = self.setting.arrival.unwrap_or(self.workload.arrival);
        let plain = self.read(seed, &[])?;
        let span = match self.workload.arrival {
            Arrival::Trace => plain.jobs.last().map_or(0.0, |job| job.arrival.as_secs_f64()),
            _ => self.setup.gap_s * f64::from(self.job_count()),
        };
        // With this factor of the run times the work matches the load.
        let factor = self.load * span / self.work(&plain).max(1e-9);
        let (times, arrivals) = match self.workload.scaled {
            Scaled::RunTimes => (factor, gap_scale / factor),
            Scaled::Arrivals => (1.0, gap_scale / factor),
        };
        let errors = [("expected-error", &self.setting.expected_error), ("demand-error", &self.setting.demand_error)];
        let mut options = vec![
            ("time-scale", times.to_string()),
            ("arrival-scale", arrivals.to_string()),
            ("demand-scale", demand_scale.to_string()),
        ];
        options.extend(errors.into_iter().filter_map(|(key, error)| Some((key, error.clone()?))));
        if arrival == Arrival::AtOnce {
            options.push(("arrival", "at-once".to_owned()));
        }
        self.read(seed, &options)
    }

    fn read(&self, seed: u64, more: &[(&str, String)]) -> Result<Workload> {
        let mut options: Vec<(String, String)> = self.workload.options.clone().into_iter().collect();
        let mut set = |key: &str, value: String| options.push((key.to_owned(), value));
        set("seed", seed.to_string());
        set("demand", self.setup.demand.clone());
        match self.workload.arrival {
            Arrival::Trace => set("limit", self.job_count().to_string()),
            _ => {
                set("draw", self.job_count().to_string());
                set("arrival", format!("poisson:{}us", (self.setup.gap_s * 1e6).round()));
            }
        }
        more.iter().for_each(|(key, value)| set(key, value.clone()));
        trace::read(&self.source, &options).map_err(|error| Failure::usage(error.problem, error.remedy))
    }

    /// The seconds for which the workload would keep the whole cluster busy, for its most needed kind of resource.
    fn work(&self, workload: &Workload) -> f64 {
        let node = node_resources(self.setup);
        let mut needs = [0.0; WIDTH];
        for job in &workload.jobs {
            for (stage, times) in job.spec.stages.iter().zip(job.run_times.iter()) {
                let seconds = times.total_seconds(stage.tasks.len());
                for (need, amount) in needs.iter_mut().zip(stage.resources.basic.0) {
                    *need += seconds * f64::from(amount);
                }
            }
        }
        let nodes = f64::from(self.whole_nodes());
        let parts = needs.iter().zip(node.0).filter(|(_, has)| *has > 0);
        parts.map(|(need, has)| need / (nodes * f64::from(has))).fold(0.0, f64::max)
    }
}

/// One run of the jobs of an example on one node. They start together, when an earlier job has left the node.
pub fn run_example(figure: &FigureScenario, preset: Preset, seed: u64, heartbeat_s: f64) -> Run {
    let before = ExampleStage { tasks: 1, cores: 100, run_time_s: 1.0, after: Vec::new() };
    let before = ExampleJob { name: "before".to_owned(), stage: vec![before] };
    let job = |(number, job): (usize, &ExampleJob)| TraceJob {
        arrival: if number == 0 { Duration::ZERO } else { seconds(0.5) },
        spec: Arc::new(example_spec(job)),
        run_times: job.stage.iter().map(|stage| RunTimes::Same(seconds(stage.run_time_s))).collect(),
    };
    let jobs = std::iter::once(&before).chain(&figure.job).enumerate().map(job).collect();
    let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
    let outcome = simulate(&nodes(Resources::new(100_000, 0), 1), &workload, preset, seed, heartbeat_s, None);
    let start = outcome.jobs[0].ended_s.unwrap_or_default();
    let jct_s = outcome.jobs[1..].iter().map(|job| Some(job.ended_s? - start)).collect();
    Run { jct_s, ..Run::of(&outcome) }
}

fn example_spec(job: &ExampleJob) -> JobSpec {
    let program = Arc::new(Program { command: vec!["true".into()], ..Program::default() });
    let stages = job.stage.iter().enumerate().map(|(number, stage)| StageSpec {
        name: format!("S{number}"),
        after: stage.after.clone(),
        tasks: TaskSet::Count(stage.tasks),
        program: program.clone(),
        resources: ResourceSpec { basic: Resources::new(stage.cores * 1_000, 0), custom: Vec::new() },
        expected: Some(seconds(stage.run_time_s)),
        ..StageSpec::default()
    });
    JobSpec { name: job.name.clone(), stages: stages.collect(), submit_dir: "/".into(), ..JobSpec::default() }
}

fn simulate(
    nodes: &[Node],
    workload: &Workload,
    preset: Preset,
    seed: u64,
    heartbeat_s: f64,
    watched_job: Option<u32>,
) -> Outcome {
    let mut settings = Settings { preset, seed, watched_job, ..Settings::default() };
    settings.preset.seed = seed;
    settings.master.heartbeat = seconds(heartbeat_s);
    settings.join_over = seconds(heartbeat_s.min(1.0));
    Simulation::new(settings, nodes, workload).run()
}

impl Run {
    fn of(outcome: &Outcome) -> Run {
        Run {
            jct_s: outcome.jobs.iter().map(|job| job.jct_s).collect(),
            makespan_s: outcome.results.makespan_s,
            jain: outcome.windows.iter().filter_map(|window| window.jain).collect(),
            cpu: outcome.results.utilization.cpu,
            running: outcome.running.iter().map(|(at, tasks)| (*at, f64::from(*tasks))).collect(),
        }
    }
}

pub fn node_resources(setup: &Setup) -> Resources {
    let Setup { cpus, memory_gib, disk_mb_s, network_mb_s, .. } = *setup;
    let [disk_read, disk_write, network_in, network_out] = [2, 3, 4, 5];
    Resources::new(cpus * 1_000, memory_gib * 1_024)
        .with(disk_read, disk_mb_s)
        .with(disk_write, disk_mb_s)
        .with(network_in, network_mb_s)
        .with(network_out, network_mb_s)
}
