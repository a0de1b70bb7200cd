//! Wall time of decisions: of the master, by the number of pending tasks, and of a job manager, for the jobs of a workload.

use super::super::figure::{Amount, Extent};
use super::experiment;
use super::rows::Pair;
use super::scenario::{FigureScenario, Scenario};
use crate::measure::decisions::{Scale, compare};
use amalgam_cli::failure::Result;
use amalgam_core::policy::intra_job::{Order, StageWork, plan};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Duration, Totals};
use amalgam_sim::statistics::{mean, percentile, sorted};
use amalgam_workload::trace::TraceJob;
use std::hint::black_box;
use std::time::Instant;

/// Numbers of pending tasks at the master.
const PENDING: [u64; 2] = [10_000, 50_000];

/// The cases with their numbers.
pub fn measure(scenario: &Scenario, figure: &FigureScenario, extent: &Extent) -> Result<Vec<(String, Vec<Pair>)>> {
    let mut found = Vec::new();
    // One run after the other: parallel runs would disturb each other.
    let seeds: Vec<u64> = extent.seeds.clone().collect();
    let mut of_presets = Vec::new();
    let schedulers = figure.all_schedulers();
    for scheduler in &schedulers {
        let preset = scenario.preset(scheduler).expect("checked");
        let per_decision: Vec<[f64; 2]> = seeds.iter().map(|seed| decisions_us(preset, *seed, extent.amount)).collect();
        of_presets.push((scheduler, per_decision));
    }
    for (number, pending) in PENDING.iter().enumerate() {
        let of = |per_decision: &[[f64; 2]]| per_decision.iter().map(|each| each[number]).collect::<Vec<f64>>();
        for (scheduler, per_decision) in &of_presets {
            let mut rows = vec![("decision_us".to_owned(), of(per_decision))];
            let bases = of_presets.iter().filter(|(base, _)| figure.baselines.contains(base) && base != scheduler);
            for (base, of_base) in bases {
                let more = of(per_decision).iter().zip(of(of_base)).map(|(ours, base)| ours - base).collect();
                rows.push((format!("decision_us minus {base}"), more));
            }
            found.push((format!("master, {pending} pending, {scheduler}"), rows));
        }
    }
    for name in &figure.workloads {
        let mut times: [Vec<f64>; 3] = Default::default();
        for seed in &seeds {
            let jobs = experiment::workload(scenario, name, *seed, extent)?;
            let each = sorted(jobs.jobs.iter().map(|job| plan_us(job, scenario)));
            let numbers = [mean(&each), percentile(&each, 95), percentile(&each, 100)];
            times.iter_mut().zip(numbers).for_each(|(times, number)| times.push(number));
        }
        let rows = ["plan_mean_us", "plan_p95_us", "plan_max_us"].into_iter().map(str::to_owned).zip(times);
        found.push((format!("job manager, {name}"), rows.collect()));
    }
    Ok(found)
}

/// The time of the master for a placed task, including all messages; the median over rounds.
fn decisions_us(preset: Preset, seed: u64, amount: Amount) -> [f64; 2] {
    let (warm_up, rounds, departures) = if amount == Amount::Smoke { (10, 1, 10) } else { (20_000, 5, 4_000) };
    let jobs = 250;
    let scale = Scale { preset, nodes: 100, jobs, pending: PENDING, warm_up, rounds, departures, seed };
    compare(&scale).clusters.map(|decisions| 1e6 / decisions.per_second)
}

/// The time to plan a whole job, with a tenth of the cluster.
fn plan_us(job: &TraceJob, scenario: &Scenario) -> f64 {
    let stage =
        |(stage, times): (&amalgam_core::vocabulary::StageSpec, &amalgam_workload::trace::RunTimes)| StageWork {
            resources: stage.resources.basic,
            duration: times.mean().max(Duration::from_micros(1)),
            unstarted: stage.tasks.len(),
            running: Vec::new(),
            after: stage.after.clone(),
            ..StageWork::default()
        };
    let work: Vec<StageWork> = job.spec.stages.iter().zip(job.run_times.iter()).map(stage).collect();
    let node = experiment::node_resources(&scenario.setup);
    let share = Totals(node.0.map(|amount| u64::from(amount) * u64::from(scenario.setup.nodes) / 10));
    let started = Instant::now();
    black_box(plan(&work, &share, &Order::Packing));
    started.elapsed().as_secs_f64() * 1e6
}
