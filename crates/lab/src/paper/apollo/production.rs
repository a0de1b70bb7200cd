//! Runs a steady stream of a trace's jobs on a cluster, like the paper's cluster in production, and keeps the results that the
//! figures need.

use super::super::figure::{Amount, Extent, PaperNumber, Row, nodes, number_of, ratio, run_all, seconds, source};
use super::locality;
use super::scenario::{Production, ProductionFigure};
use crate::baselines;
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::dispatch::Beside;
use amalgam_core::policy::completion::Rates;
use amalgam_core::preset::{Choice, Preset};
use amalgam_core::vocabulary::{Resources, Totals, Workdir};
use amalgam_sim::statistics::{mean, percentile, sorted};
use amalgam_sim::{
    AcrossNodes, Busy, Chain, Forecast, OfPreset, Oracle, Outcome, Queueing, Reading, Reference, RunTimes, Settings,
    Simulation,
};
use amalgam_workload::trace::{self, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Metrics for which the paper has numbers.
pub const WITHIN: &str = "waits estimated within 1 s";
pub const RUN_TIMES: &str = "run times estimated within 25 %";
pub const DUPLICATES: &str = "duplicates, part of attempts";
pub const FIRST: &str = "duplicates that were first";
pub const ORACLE: &str = "mean_jct over the oracle, with the most that was allowed";
pub const CAUGHT: &str = "stragglers caught";
pub const WAIT: &str = "guaranteed_wait_p95_s";
pub const FASTER: &str = "recurring jobs that are faster";
pub const GREATEST: &str = "their greatest speed-up";
pub const FEWER: &str = "duplicates over apollo-baseline";
pub const SPREAD: &str = "deviation of waits across nodes, s";

pub const SAME_ORACLE: &str = "mean_jct over the oracle of apollo";
pub const LATER_BOUND: &str = "mean_jct over the oracle of apollo or over greedy omniscient, whichever is later";
pub const COVERED: &str = "starts within the predicted time";

/// Prefix of the figures of apollo-plus, the preset that goes one step beyond the paper's.
const PLUS: &str = "apollo-plus";
/// The figure of the default preset.
const OF_DEFAULT: &str = "apollo-amalgam";
const PAPERS: &str = "apollo";

/// Parts of the names of cases.
const SIDE_BY_SIDE: &str = ", half of the jobs beside";
const UNIFORM: &str = ", without estimates";

/// A cluster under a load with a scheduler.
pub struct Case {
    pub preset: String,
    pub load: f64,
    /// Probability that an attempt is slow.
    stragglers: f64,
    /// Whether slow attempts are corrected.
    corrects_slow: bool,
    /// Another preset, and the part of the jobs that use it at the same time.
    beside: Option<(String, f64)>,
    /// The assumed run time of every task.
    assumed_run_time_s: Option<f64>,
}

impl Case {
    fn preset(&self) -> Result<Preset> {
        let remedy = "see `amalgam sim run --help`";
        let mut preset = baselines::parse(&self.preset).map_err(|problem| Failure::usage(problem, remedy))?;
        if let Some(corrections) = preset.entitled_mut().and_then(|settings| settings.corrections.as_mut()) {
            corrections.progress_every = corrections.progress_every.filter(|_| self.corrects_slow);
        }
        if let Some(settings) = preset.entitled_mut() {
            settings.assumed_run_time = self.assumed_run_time_s.map(seconds);
        }
        Ok(preset)
    }

    fn is_plain(&self) -> bool {
        self.beside.is_none() && self.assumed_run_time_s.is_none()
    }

    /// Apollo-baseline tries node after node and makes no estimates.
    fn estimates_waits(&self) -> bool {
        let preset = baselines::parse(&self.preset).ok();
        let settings = preset.as_ref().and_then(Preset::entitled);
        settings.is_some_and(|settings| !matches!(settings.choice, Choice::RelaxedLocality { .. }))
    }

    pub fn name(&self) -> String {
        let slow = match (self.stragglers > 0.0, self.corrects_slow) {
            (false, _) => "",
            (true, true) => ", slow ones corrected",
            (true, false) => ", slow ones left",
        };
        let beside = if self.beside.is_some() { SIDE_BY_SIDE } else { "" };
        let uniform = if self.assumed_run_time_s.is_some() { UNIFORM } else { "" };
        format!("{}, load {}{slow}{beside}{uniform}", self.preset, self.load)
    }
}

/// The results of a run.
pub struct Run {
    mean_jct_s: f64,
    /// The mean with an omniscient greedy scheduler on one pooled machine.
    greedy_jct_s: f64,
    oracle: Option<Oracle>,
    task_wait_p95_s: f64,
    /// The mean while jobs arrived, without the first quarter of that time.
    cpu: f64,
    decisions_per_s: f64,
    launched: f64,
    preempted: f64,
    busy: Busy,
    run_times: RunTimes,
    pub reading: Option<Reading>,
    forecast: Forecast,
    chain: Chain,
    queueing: Option<Queueing>,
    side_by_side: Vec<OfPreset>,
    /// Of the waits of guaranteed attempts at nodes while jobs arrived: the deviation, and the 20th, 80th and 95th percentile of
    /// nodes; means over windows.
    across_nodes: [f64; 4],
    /// Mean completion time by recurring job.
    recurring: BTreeMap<String, f64>,
}

pub fn run(
    production: &Production,
    figure: &ProductionFigure,
    rates: Rates,
    extent: &Extent,
) -> Result<Vec<(Case, Vec<Run>)>> {
    let slow: &[(f64, bool)] = match figure.stragglers {
        Some(part) => &[(part, false), (part, true)],
        None => &[(0.0, true)],
    };
    let mut cases = Vec::new();
    for &load in &figure.loads {
        for preset in figure.baselines.iter().chain(&figure.schedulers) {
            for &(stragglers, corrects_slow) in slow {
                let plain = Case {
                    preset: preset.clone(),
                    load,
                    stragglers,
                    corrects_slow,
                    beside: None,
                    assumed_run_time_s: None,
                };
                cases.push(plain);
            }
        }
    }
    for (&load, preset) in
        figure.loads.iter().flat_map(|load| figure.schedulers.iter().map(move |preset| (load, preset)))
    {
        let other = || Case {
            preset: preset.clone(),
            load,
            stragglers: 0.0,
            corrects_slow: true,
            beside: None,
            assumed_run_time_s: None,
        };
        let beside = figure.beside.and_then(|part| Some((figure.baselines.first()?.clone(), part)));
        cases.extend(beside.map(|beside| Case { beside: Some(beside), ..other() }));
        let assumed_run_time_s = figure.assumed_run_time_s;
        cases.extend(assumed_run_time_s.map(|_| Case { assumed_run_time_s, ..other() }));
    }
    let runs = run_all(&cases, extent, |case, seed| one(production, figure, (case, rates), seed, extent));
    cases.into_iter().zip(runs).map(|(case, runs)| Ok((case, runs.into_iter().collect::<Result<_>>()?))).collect()
}

fn one(
    production: &Production,
    figure: &ProductionFigure,
    (case, rates): (&Case, Rates),
    seed: u64,
    extent: &Extent,
) -> Result<Run> {
    let part = match extent.amount {
        Amount::Whole => 1,
        Amount::Quick => figure.quick_part.unwrap_or(10),
        Amount::Smoke => 100,
    };
    let count = (figure.nodes.unwrap_or(production.nodes) / part).max(2);
    let jobs = (figure.jobs.unwrap_or(production.jobs) / part).max(4);
    let node = Resources::new(production.cpus * 1_000, production.memory_gib * 1_024);
    let inputs = figure.inputs.then_some(production.inputs);
    let input = inputs.map(|inputs| ("input", inputs.mb_for_each_second.to_string()));
    let busy = case.load * f64::from(count * production.cpus);
    let workload = workload(production, figure, busy, jobs, seed, input, extent)?;
    let mut nodes = nodes(node, count);
    let mut settings = Settings { preset: case.preset()?, seed, oracle: true, ..Settings::default() };
    if let Some(inputs) = inputs {
        locality::put_in_racks(&mut nodes, (inputs.nodes_in_rack / part).max(2));
        settings.inputs = Some(locality::layout(&inputs, rates));
    }
    settings.preset.seed = seed;
    settings.manager_processes = figure.manager_processes.map_or(0, |count| (u32::from(count) / part).max(1) as u8);
    settings.master.heartbeat = seconds(production.heartbeat_s);
    settings.master.dispatch.beside =
        case.beside.as_ref().map(|(preset, part)| Beside { preset: preset.clone(), part: (part * 1e6) as u32, seed });
    settings.execution.stragglers = case.stragglers;
    settings.execution.straggler_factor = production.straggler_factor;
    let mut capacity = Totals::ZERO;
    capacity.add_times(&node, nodes.len() as u64);
    let greedy_jct_s = Reference::of(&workload.jobs, &capacity).greedy_mean_jct_s;
    let last = workload.jobs.last().map_or(0.0, |job| job.arrival.as_secs_f64());
    Ok(Run::of(&Simulation::new(settings, &nodes, &workload).run(), greedy_jct_s, last))
}

/// Jobs that arrive at random, at the rate that keeps this number of cores busy.
fn workload(
    production: &Production,
    figure: &ProductionFigure,
    busy: f64,
    jobs: u32,
    seed: u64,
    input: Option<(&str, String)>,
    extent: &Extent,
) -> Result<Workload> {
    let (read, options) = match (&figure.read, extent.amount) {
        (_, Amount::Smoke) => (&production.stand_in, &production.options),
        (Some(read), _) => (read, &figure.options),
        (None, _) => (&production.read, &production.options),
    };
    let source = source("apollo", read, extent)?;
    let read = |more: &[(&str, String)]| {
        let mut options: Vec<(String, String)> = options.clone().into_iter().collect();
        options.extend([("seed".to_owned(), seed.to_string()), ("draw".to_owned(), jobs.to_string())]);
        options.extend(more.iter().chain(&input).map(|(key, value)| ((*key).to_owned(), value.clone())));
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
        let is_full = |starts: f64| starts >= last_arrival_s / 4.0 && starts + length <= last_arrival_s;
        let cpu: Vec<f64> =
            outcome.windows.iter().filter(|window| is_full(window.begins_s)).map(|window| window.cpu).collect();
        Run {
            mean_jct_s: results.jct_s.mean,
            greedy_jct_s,
            oracle: results.oracle,
            task_wait_p95_s: results.task_wait_s.p95,
            cpu: if cpu.is_empty() { results.utilization.cpu } else { mean(&cpu) },
            decisions_per_s: ratio(results.counters.launched as f64, results.makespan_s),
            launched: results.counters.launched as f64,
            preempted: results.counters.preempted as f64,
            busy: results.busy,
            run_times: results.run_times,
            reading: results.reading,
            forecast: results.forecast,
            chain: results.chain,
            queueing: results.queueing.clone(),
            side_by_side: results.side_by_side.clone(),
            across_nodes: across_nodes(results.queueing.as_ref(), last_arrival_s),
            recurring: recurring(outcome),
        }
    }
}

/// Means over the windows that start while jobs arrive.
fn across_nodes(queueing: Option<&Queueing>, last_arrival_s: f64) -> [f64; 4] {
    let windows = queueing.map_or(&[][..], |queueing| &queueing.across_nodes);
    let windows: Vec<&AcrossNodes> = windows.iter().filter(|window| window.begins_s < last_arrival_s).collect();
    let mean_of = |of: fn(&AcrossNodes) -> f64| mean(&windows.iter().map(|window| of(window)).collect::<Vec<_>>());
    [mean_of(|all| all.deviation_s), mean_of(|all| all.p20_s), mean_of(|all| all.p80_s), mean_of(|all| all.p95_s)]
}

/// Jobs with the same name are runs of one recurring job.
fn recurring(outcome: &Outcome) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for job in outcome.jobs.iter().filter(|job| job.outcome == "succeeded") {
        all.entry(job.name.clone()).or_default().extend(job.jct_s);
    }
    all.into_iter().map(|(name, took)| (name, mean(&took))).collect()
}

/// The speed-up of each recurring job over the other run, the slowest first.
fn speed_ups(run: &Run, other: &Run) -> Vec<f64> {
    let pairs = run.recurring.iter().filter_map(|(name, took)| Some(ratio(*other.recurring.get(name)?, *took)));
    sorted(pairs)
}

/// Results for the jobs of one preset, if two shared the cluster.
fn of_preset<'a>(run: &'a Run, preset: &str) -> Option<&'a OfPreset> {
    run.side_by_side.iter().find(|of| of.preset == preset)
}

/// Compares with one common oracle: the maximum allowance of each job under the paper's preset on the same arrivals.
fn over_papers_oracle(case: &str, runs: &[Run], papers: &[Run]) -> Row {
    let of = |(run, paper): (&Run, &Run)| Some(ratio(run.mean_jct_s, paper.oracle?.most_allowed_s.mean));
    Row::of(case, SAME_ORACLE, None, &runs.iter().zip(papers).filter_map(of).collect::<Vec<f64>>())
}

/// Compares with that oracle, or with the greedy scheduler where that is slower; `None` without an oracle.
fn over_later_bound(case: &str, runs: &[Run], papers: &[Run]) -> Option<Row> {
    let of = |(run, paper): (&Run, &Run)| {
        Some(ratio(run.mean_jct_s, paper.oracle?.most_allowed_s.mean.max(run.greedy_jct_s)))
    };
    let all: Option<Vec<f64>> = runs.iter().zip(papers).map(of).collect();
    Some(Row::of(case, LATER_BOUND, None, &all?))
}

/// Accuracy of predicted starts, and the parts of the time of the stages' last tasks that jobs waited for.
fn where_time_went(case: &str, runs: &[Run]) -> Vec<Row> {
    let row = |metric: &str, of: &dyn Fn(&Run) -> f64| {
        Row::of(case, metric, None, &runs.iter().map(of).collect::<Vec<f64>>())
    };
    vec![
        row(COVERED, &|run| run.forecast.covered),
        row("their median width_s", &|run| run.forecast.median_width_s),
        row("a job's chain: not launched_s", &|run| run.chain.unlaunched_s),
        row("guaranteed, waits at its node_s", &|run| run.chain.guaranteed_wait_s),
        row("promoted, waits at its node_s", &|run| run.chain.promoted_wait_s),
        row("opportunistic, waits at its node_s", &|run| run.chain.opportunistic_wait_s),
        row("without its CPU_s", &|run| run.chain.yielded_s),
        row("runs_s", &|run| run.chain.running_s),
        row("stages on it", &|run| run.chain.stages),
    ]
}

/// The rows of all cases.
pub fn rows(figure: &str, set_up: &ProductionFigure, cases: &[(Case, Vec<Run>)], paper: &[PaperNumber]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, runs) in cases {
        let of_case = OfCase { figure, case, name: case.name(), runs, paper };
        rows.extend(of_case.in_general());
        rows.extend(locality::rows(figure, &of_case.name, runs, paper));
        rows.extend(of_case.over_baselines(set_up, cases));
        rows.extend(of_case.by_preset());
        rows.extend(of_case.over_oracle());
        let papers = || cases.iter().find(|(other, _)| other.preset == PAPERS && other.load == case.load);
        if figure.starts_with(PLUS) {
            rows.extend(where_time_went(&of_case.name, runs));
            rows.extend(papers().map(|(_, papers)| over_papers_oracle(&of_case.name, runs, papers)));
        }
        if figure == OF_DEFAULT {
            rows.extend(papers().map(|(_, papers)| over_papers_oracle(&of_case.name, runs, papers)));
            rows.extend(papers().and_then(|(_, papers)| over_later_bound(&of_case.name, runs, papers)));
        }
        if runs.iter().all(|run| run.queueing.is_some()) {
            rows.extend(of_case.of_queueing());
        }
    }
    rows
}

/// The runs of a case, and the paper's numbers.
struct OfCase<'a> {
    figure: &'a str,
    case: &'a Case,
    name: String,
    runs: &'a [Run],
    paper: &'a [PaperNumber],
}

impl OfCase<'_> {
    fn row(&self, metric: &str, of_seeds: &[f64]) -> Row {
        Row::of(&self.name, metric, number_of(self.paper, self.figure, &self.name, metric), of_seeds)
    }

    fn in_general(&self) -> Vec<Row> {
        let row = |metric: &str, of: &dyn Fn(&Run) -> f64| {
            let of_seeds: Vec<f64> = self.runs.iter().map(of).collect();
            self.row(metric, &of_seeds)
        };
        vec![
            row("cpu", &|run| run.cpu),
            row("decisions_per_s", &|run| run.decisions_per_s),
            row("mean_jct_s", &|run| run.mean_jct_s),
            row("mean_jct over greedy omniscient", &|run| ratio(run.mean_jct_s, run.greedy_jct_s)),
            row("task_wait_p95_s", &|run| run.task_wait_p95_s),
            row(RUN_TIMES, &|run| run.run_times.within_a_quarter),
            row("run times estimated at all", &|run| {
                ratio(run.run_times.predicted as f64, run.run_times.attempts as f64)
            }),
            row("preempted, part of attempts", &|run| ratio(run.preempted, run.launched)),
        ]
    }

    /// Compares with each baseline under the same load.
    fn over_baselines(&self, set_up: &ProductionFigure, cases: &[(Case, Vec<Run>)]) -> Vec<Row> {
        let OfCase { case, runs, .. } = *self;
        let mut rows = Vec::new();
        for base in
            set_up.baselines.iter().filter(|base| **base != case.preset && set_up.schedulers.contains(&case.preset))
        {
            let is_base = |other: &&(Case, Vec<Run>)| {
                other.0.is_plain()
                    && (&other.0.preset, other.0.load, other.0.corrects_slow) == (base, case.load, case.corrects_slow)
            };
            let Some((_, others)) = cases.iter().find(is_base) else { continue };
            let pairs = runs.iter().zip(others).map(|(run, other)| ratio(run.mean_jct_s, other.mean_jct_s));
            rows.push(self.row(&format!("mean_jct over {base}"), &pairs.collect::<Vec<_>>()));
            if self.figure == "apollo-8" && case.is_plain() {
                rows.extend(self.of_recurring_jobs(others));
            }
        }
        rows
    }

    /// Compares recurring jobs, and numbers of duplicates, with the runs of a baseline.
    fn of_recurring_jobs(&self, others: &[Run]) -> Vec<Row> {
        let row = |metric: &str, of: &dyn Fn(&Run, &Run) -> f64| {
            let of_seeds: Vec<f64> = self.runs.iter().zip(others).map(|(run, other)| of(run, other)).collect();
            self.row(metric, &of_seeds)
        };
        let mut rows = vec![row(FASTER, &|run, other| {
            let all = speed_ups(run, other);
            ratio(all.iter().filter(|times| **times > 1.0).count() as f64, all.len() as f64)
        })];
        rows.extend([5, 25, 50, 75, 95].map(|percent| {
            row(&format!("their speed-up, p{percent}"), &|run, other| percentile(&speed_ups(run, other), percent))
        }));
        rows.push(row(GREATEST, &|run, other| percentile(&speed_ups(run, other), 100)));
        let duplicates = |run: &Run| run.queueing.as_ref().map_or(0.0, |queueing| queueing.duplicates.all() as f64);
        rows.push(row(FEWER, &|run, other| {
            ratio(ratio(duplicates(run), run.launched), ratio(duplicates(other), other.launched))
        }));
        rows
    }

    /// The results by preset, if two shared the cluster.
    fn by_preset(&self) -> Vec<Row> {
        let Some((other, _)) = &self.case.beside else { return Vec::new() };
        let mut rows = Vec::new();
        for preset in [other, &self.case.preset] {
            let mut row = |metric: &str, of: &dyn Fn(&OfPreset) -> f64| {
                let of_seeds: Vec<f64> = self.runs.iter().filter_map(|run| Some(of(of_preset(run, preset)?))).collect();
                rows.push(Row::of(&self.name, &format!("{metric} of {preset}"), None, &of_seeds));
            };
            row("mean_jct_s", &|of| of.jct_s.mean);
            row("task_wait_p95_s", &|of| of.task_wait_s.p95);
            row("duplicates, part of attempts,", &|of| ratio(of.duplicated as f64, of.launched as f64));
        }
        rows
    }

    fn over_oracle(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut row = |metric: &str, of: &dyn Fn(&Oracle) -> f64| {
            let of_seeds = self.runs.iter().filter_map(|run| run.oracle);
            let of_seeds: Vec<f64> = of_seeds.map(|oracle| ratio(oracle.jct_s.mean, of(&oracle))).collect();
            if !of_seeds.is_empty() {
                rows.push(self.row(metric, &of_seeds));
            }
        };
        row(ORACLE, &|oracle| oracle.most_allowed_s.mean);
        row("mean_jct over the oracle, with what was allowed at each moment", &|oracle| oracle.as_allowed_s.mean);
        row("mean_jct over the oracle, without a limit", &|oracle| oracle.unlimited_s.mean);
        rows
    }

    /// Waits at nodes, duplicates and stragglers, of runs with queues at nodes.
    fn of_queueing(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut row = |metric: &str, of: &dyn Fn(&Queueing, &Run) -> f64| {
            let of_seeds: Vec<f64> = self.runs.iter().filter_map(|run| Some(of(run.queueing.as_ref()?, run))).collect();
            rows.push(self.row(metric, &of_seeds));
        };
        if self.figure == "apollo-7" {
            row("the server was busy", &|_, run| run.busy.server);
            row("the busiest process of job managers", &|_, run| run.busy.managers);
            row("the busiest agent", &|_, run| run.busy.nodes);
        }
        row(WAIT, &|queueing, _| queueing.guaranteed_wait_s.p95);
        if self.figure == "apollo-8" || self.figure == "apollo-11" {
            row("guaranteed_wait_mean_s", &|queueing, _| queueing.guaranteed_wait_s.mean);
            row("guaranteed_wait_p99_s", &|queueing, _| queueing.guaranteed_wait_s.p99);
            row(SPREAD, &|_, run| run.across_nodes[0]);
            row("mean wait of the 20th percentile of nodes, s", &|_, run| run.across_nodes[1]);
            row("of the 80th", &|_, run| run.across_nodes[2]);
            row("of the 95th", &|_, run| run.across_nodes[3]);
        }
        row("promoted_wait_p95_s", &|queueing, _| queueing.promoted_wait_s.p95);
        row("opportunistic_wait_p95_s", &|queueing, _| queueing.opportunistic_wait_s.p95);
        if self.case.estimates_waits() {
            row(WITHIN, &|queueing, _| queueing.within_a_second);
        }
        row("by trying another node", &|queueing, run| ratio(queueing.duplicates.explored as f64, run.launched));
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
        if self.case.stragglers > 0.0 && self.case.corrects_slow {
            row(CAUGHT, &|queueing, _| ratio(queueing.stragglers.caught as f64, queueing.stragglers.slow as f64));
            row("of those that lose a second beyond another try", &|queueing, _| {
                let stragglers = &queueing.stragglers;
                ratio(stragglers.caught_by_much as f64, stragglers.slow_by_much as f64)
            });
            row("their duplicates that were first", &|queueing, _| {
                ratio(queueing.stragglers.first as f64, queueing.stragglers.duplicates as f64)
            });
        }
        rows
    }
}
