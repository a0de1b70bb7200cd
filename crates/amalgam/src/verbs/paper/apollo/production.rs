//! Runs a steady stream of a trace's jobs on a cluster, as the paper's cluster has it in production, and keeps of a run what
//! figures are about.

use super::super::figure::{Amount, Extent, PaperNumber, Row, mean, nodes, number_of, ratio, run_all, seconds, source};
use super::scenario::{Production, ProductionFigure};
use crate::failure::{Failure, Result};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Resources, Totals, Workdir};
use amalgam_sim::{Outcome, Queueing, Reference, RunTimes, Settings, Simulation};
use amalgam_workload::trace::{self, Workload};
use std::sync::Arc;

/// Metrics of which the paper has numbers.
pub const WITHIN: &str = "waits estimated within 1 s";
pub const RUN_TIMES: &str = "run times estimated within 25 %";
pub const DUPLICATES: &str = "duplicates, part of attempts";
pub const FIRST: &str = "duplicates that were first";
pub const CAUGHT: &str = "stragglers caught";
pub const WAIT: &str = "guaranteed_wait_p95_s";

/// A cluster under a load with a scheduler.
pub struct Case {
    pub preset: String,
    pub load: f64,
    /// The probability that an attempt is slow.
    stragglers: f64,
    /// Whether anything is done about those that are.
    corrects_slow: bool,
}

impl Case {
    fn preset(&self) -> Result<Preset> {
        let remedy = "see `amalgam sim run --help`";
        let mut preset = Preset::parse(&self.preset).map_err(|problem| Failure::usage(problem, remedy))?;
        if let Some(corrections) = preset.queueing.as_mut().and_then(|queueing| queueing.corrections.as_mut()) {
            corrections.progress_every = corrections.progress_every.filter(|_| self.corrects_slow);
        }
        Ok(preset)
    }

    pub fn name(&self) -> String {
        let slow = match (self.stragglers > 0.0, self.corrects_slow) {
            (false, _) => "",
            (true, true) => ", slow ones corrected",
            (true, false) => ", slow ones left",
        };
        format!("{}, load {}{slow}", self.preset, self.load)
    }
}

/// What is kept of a run.
pub struct Run {
    mean_jct_s: f64,
    /// Of an omniscient greedy scheduler on one pooled machine.
    greedy_jct_s: f64,
    task_wait_p95_s: f64,
    /// While jobs arrived, but for the first quarter of that time.
    cpu: f64,
    decisions_per_s: f64,
    launched: f64,
    preempted: f64,
    run_times: RunTimes,
    queueing: Option<Queueing>,
}

pub fn run(production: &Production, figure: &ProductionFigure, extent: &Extent) -> Result<Vec<(Case, Vec<Run>)>> {
    let slow: &[(f64, bool)] = match figure.stragglers {
        Some(part) => &[(part, false), (part, true)],
        None => &[(0.0, true)],
    };
    let mut cases = Vec::new();
    for &load in &figure.loads {
        for preset in figure.baselines.iter().chain(&figure.schedulers) {
            for &(stragglers, corrects_slow) in slow {
                cases.push(Case { preset: preset.clone(), load, stragglers, corrects_slow });
            }
        }
    }
    let runs = run_all(&cases, extent, |case, seed| one(production, figure, case, seed, extent));
    cases.into_iter().zip(runs).map(|(case, runs)| Ok((case, runs.into_iter().collect::<Result<_>>()?))).collect()
}

fn one(production: &Production, figure: &ProductionFigure, case: &Case, seed: u64, extent: &Extent) -> Result<Run> {
    let part = match extent.amount {
        Amount::Whole => 1,
        Amount::Quick => 10,
        Amount::Smoke => 40,
    };
    let count = (figure.nodes.unwrap_or(production.nodes) / part).max(2);
    let jobs = (figure.jobs.unwrap_or(production.jobs) / part).max(4);
    let node = Resources::new(production.cpus * 1_000, production.memory_gib * 1_024);
    let workload = workload(production, case.load * f64::from(count * production.cpus), jobs, seed, extent)?;
    let nodes = nodes(node, count);
    let mut settings = Settings { preset: case.preset()?, seed, ..Settings::default() };
    settings.preset.seed = seed;
    settings.master.heartbeat = seconds(production.heartbeat_s);
    settings.execution.stragglers = case.stragglers;
    settings.execution.straggler_factor = production.straggler_factor;
    let mut capacity = Totals::ZERO;
    capacity.add_times(&node, nodes.len() as u64);
    let greedy_jct_s = Reference::of(&workload.jobs, &capacity).greedy_mean_jct_s;
    let last = workload.jobs.last().map_or(0.0, |job| job.arrival.as_secs_f64());
    Ok(Run::of(&Simulation::new(settings, &nodes, &workload).run(), greedy_jct_s, last))
}

/// Jobs that come at random, at the rate at which they keep so many cores busy.
fn workload(production: &Production, busy: f64, jobs: u32, seed: u64, extent: &Extent) -> Result<Workload> {
    let read = if extent.amount == Amount::Smoke { &production.stand_in } else { &production.read };
    let source = source("apollo", read, extent)?;
    let read = |more: &[(&str, String)]| {
        let mut options: Vec<(String, String)> = production.options.clone().into_iter().collect();
        options.extend([("seed".to_owned(), seed.to_string()), ("draw".to_owned(), jobs.to_string())]);
        options.extend(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        trace::read(&source, &options).map_err(|error| Failure::usage(error.problem, error.remedy))
    };
    let gap = |micros: f64| [("arrival", format!("poisson:{}us", micros.round().max(1.0)))];
    let plain = read(&gap(1e6))?;
    let stages = plain.jobs.iter().flat_map(|job| job.spec.stages.iter().zip(job.run_times.iter()));
    let core_seconds = stages
        .map(|(stage, times)| times.total_seconds(stage.tasks.len()) * f64::from(stage.resources.basic.0[0]) / 1e3);
    let mut workload = read(&gap(core_seconds.sum::<f64>() / f64::from(jobs) / busy * 1e6))?;
    for job in &mut workload.jobs {
        for stage in &mut Arc::make_mut(&mut job.spec).stages {
            Arc::make_mut(&mut stage.program).workdir = Workdir::Own;
        }
    }
    Ok(workload)
}

impl Run {
    fn of(outcome: &Outcome, greedy_jct_s: f64, last_arrival_s: f64) -> Run {
        let results = &outcome.results;
        let length = outcome.windows.get(1).map_or(f64::INFINITY, |window| window.begins_s);
        let is_full = |begins: f64| begins >= last_arrival_s / 4.0 && begins + length <= last_arrival_s;
        let cpu: Vec<f64> =
            outcome.windows.iter().filter(|window| is_full(window.begins_s)).map(|window| window.cpu).collect();
        Run {
            mean_jct_s: results.jct_s.mean,
            greedy_jct_s,
            task_wait_p95_s: results.task_wait_s.p95,
            cpu: if cpu.is_empty() { results.utilization.cpu } else { mean(&cpu) },
            decisions_per_s: ratio(results.counters.launched as f64, results.makespan_s),
            launched: results.counters.launched as f64,
            preempted: results.counters.preempted as f64,
            run_times: results.run_times,
            queueing: results.queueing.clone(),
        }
    }
}

/// The rows of all cases.
pub fn rows(figure: &str, set_up: &ProductionFigure, cases: &[(Case, Vec<Run>)], paper: &[PaperNumber]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, runs) in cases {
        let name = case.name();
        let mut row = |metric: &str, of: &dyn Fn(&Run) -> f64| {
            let of_seeds: Vec<f64> = runs.iter().map(of).collect();
            rows.push(Row::of(&name, metric, number_of(paper, figure, &name, metric), &of_seeds));
        };
        row("cpu", &|run| run.cpu);
        row("decisions_per_s", &|run| run.decisions_per_s);
        row("mean_jct_s", &|run| run.mean_jct_s);
        row("mean_jct over greedy omniscient", &|run| ratio(run.mean_jct_s, run.greedy_jct_s));
        row("task_wait_p95_s", &|run| run.task_wait_p95_s);
        row(RUN_TIMES, &|run| run.run_times.within_a_quarter);
        row("run times estimated at all", &|run| ratio(run.run_times.predicted as f64, run.run_times.attempts as f64));
        row("preempted, part of attempts", &|run| ratio(run.preempted, run.launched));
        for base in
            set_up.baselines.iter().filter(|base| **base != case.preset && set_up.schedulers.contains(&case.preset))
        {
            let is_base = |other: &&(Case, Vec<Run>)| {
                (&other.0.preset, other.0.load, other.0.corrects_slow) == (base, case.load, case.corrects_slow)
            };
            let Some((_, others)) = cases.iter().find(is_base) else { continue };
            let pairs = runs.iter().zip(others).map(|(run, other)| ratio(run.mean_jct_s, other.mean_jct_s));
            let (metric, of_seeds) = (format!("mean_jct over {base}"), pairs.collect::<Vec<_>>());
            rows.push(Row::of(&name, &metric, number_of(paper, figure, &name, &metric), &of_seeds));
        }
        if runs.iter().any(|run| run.queueing.is_none()) {
            continue;
        }
        let mut row = |metric: &str, of: &dyn Fn(&Queueing, &Run) -> f64| {
            let of_seeds: Vec<f64> = runs.iter().filter_map(|run| Some(of(run.queueing.as_ref()?, run))).collect();
            rows.push(Row::of(&name, metric, number_of(paper, figure, &name, metric), &of_seeds));
        };
        row(WAIT, &|queueing, _| queueing.guaranteed_wait_s.p95);
        row("promoted_wait_p95_s", &|queueing, _| queueing.promoted_wait_s.p95);
        row("opportunistic_wait_p95_s", &|queueing, _| queueing.opportunistic_wait_s.p95);
        row(WITHIN, &|queueing, _| queueing.within_a_second);
        row(DUPLICATES, &|queueing, run| ratio(queueing.duplicates.all() as f64, run.launched));
        row("by a wait that grew", &|queueing, run| ratio(queueing.duplicates.underestimated as f64, run.launched));
        row("by a wait above the stage's", &|queueing, run| ratio(queueing.duplicates.above_mean as f64, run.launched));
        row("by having waited for longer", &|queueing, run| {
            ratio(queueing.duplicates.waited_long as f64, run.launched)
        });
        row(FIRST, &|queueing, _| ratio(queueing.duplicates.first as f64, queueing.duplicates.all() as f64));
        row("became guaranteed elsewhere, part of attempts", &|queueing, run| {
            ratio(queueing.duplicates.upgraded as f64, run.launched)
        });
        if case.stragglers > 0.0 && case.corrects_slow {
            row(CAUGHT, &|queueing, _| ratio(queueing.stragglers.caught as f64, queueing.stragglers.slow as f64));
            row("their duplicates that were first", &|queueing, _| {
                ratio(queueing.stragglers.first as f64, queueing.stragglers.duplicates as f64)
            });
        }
    }
    rows
}
