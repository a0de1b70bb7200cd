//! Figure 12: jobs like those of the paper's prototype on real daemons in real time, and the same jobs in the simulator.

mod replay;

use super::super::figure::{Amount, Extent, Findings, PaperNumber, Row, ScenarioText, misses, number_of, ratio};
use super::experiment::{self, LeftOut, Prepared, Run, World};
use super::said_left_out;
use super::scenario::Scenario;
use crate::bench::fdatasync_p50;
use crate::measure::loopback_floor::rounds_a_second;
use amalgam_cli::failure::Result;
use amalgam_cli::show;
use amalgam_sim::Simulation;
use amalgam_sim::report::Figure;
use amalgam_sim::statistics::{median, percentile, sorted};
use std::time::Duration;

const FIGURE: &str = "megha-12";
const DELAY: &str = "execution delay, p50_s";

/// All numbers about the prototype in the paper's text.
const NUMBERS: [PaperNumber; 2] =
    [(FIGURE, "Alibaba 2018, daemons", DELAY, 2.15), (FIGURE, "Google 2011, daemons", DELAY, 3.32)];

/// Times in seconds.
struct Waits {
    /// Sorted.
    all: Vec<f64>,
    /// p50, p95, p99 and the maximum.
    percentiles: [f64; 4],
    /// The median of each part: queue, processing, communication, at the node.
    parts: [f64; 4],
    refused: u64,
    repartitions: u64,
    /// Part of the tasks.
    started: f64,
}

/// Results that only real daemons have.
struct Real {
    waits: Waits,
    /// The median additional run time of a task.
    delay: f64,
    /// The maximum delay of a submission.
    late: f64,
    /// The mean number of threads that could run and had no core.
    without_core: f64,
}

/// Results of one seed.
struct Compared {
    floor: Floor,
    daemons: Real,
    simulated: Waits,
    /// Simulated with the measured time of this machine's disk.
    with_this_disk: Waits,
    left_out: LeftOut,
}

struct Floor {
    /// A message and its answer over loopback.
    round: f64,
    fdatasync: f64,
}

pub fn find(_: &str, text: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(text)?;
    let replays = match extent.amount {
        Amount::Smoke => &scenario.prototype.replays[..1],
        _ => &scenario.prototype.replays[..],
    };
    let (mut rows, mut left_out, mut plots) = (Vec::new(), Vec::new(), Vec::new());
    for replay in replays {
        let (scenario, figure) = scenario.replayed(replay, experiment::part(extent.amount));
        let mut of_seeds = Vec::new();
        for case in &experiment::cases(&scenario, &figure) {
            let world = World::of(&scenario, &figure, case, extent)?;
            for seed in extent.seeds.clone() {
                show::note(&format!("note: replaying {} with seed {seed}", replay.name));
                of_seeds.push(compare(world.prepare(seed)?, extent.amount)?);
            }
        }
        rows.extend(rows_of(&replay.name, &of_seeds));
        let first = of_seeds.first();
        left_out.extend(first.and_then(|first| said_left_out(&replay.name, first.left_out)));
        plots.extend(first.map(|first| plot(&replay.name, first)));
    }
    let departures = [misses(&rows), left_out, ABOUT.map(str::to_owned).into()].concat();
    Ok(Findings { rows, departures, plots })
}

/// The daemons run first, so that no other work of the benchmark runs beside them.
fn compare(prepared: Prepared, amount: Amount) -> Result<Compared> {
    let floor = Floor::measure(amount)?;
    let daemons = replay::replay(&prepared)?;
    let simulated = simulate(&prepared, None);
    let with_this_disk = simulate(&prepared, Some(floor.fdatasync));
    Ok(Compared { floor, daemons, simulated, with_this_disk, left_out: prepared.left_out })
}

impl Floor {
    fn measure(amount: Amount) -> Result<Floor> {
        let time = Duration::from_millis(if amount == Amount::Smoke { 50 } else { 1_000 });
        Ok(Floor { round: 1.0 / rounds_a_second(time)?, fdatasync: fdatasync_p50()? / 1e3 })
    }
}

fn simulate(prepared: &Prepared, disk_s: Option<f64>) -> Waits {
    let Prepared { nodes, workload, settings, left_out } = prepared;
    let mut settings = settings.clone();
    if let Some(disk_s) = disk_s {
        settings.costs.disk = (disk_s * 1e9) as u64;
    }
    let outcome = Simulation::new(settings, nodes, workload).run();
    let run = Run::of(outcome, workload.task_count(), *left_out);
    let medians = &run.allocation.medians;
    Waits {
        percentiles: [run.wait_s.p50, run.wait_s.p95, run.wait_s.p99, run.wait_s.max],
        parts: [medians.queue, medians.processing, medians.communication, medians.node],
        refused: run.counters.refused,
        repartitions: run.counters.repartitioned,
        started: run.started,
        all: run.wait_curve,
    }
}

impl Waits {
    /// The waits from the parts of each task's wait.
    fn of(parts: &[[f64; 4]], tasks: u64) -> Waits {
        let all = sorted(parts.iter().map(|parts| parts.iter().sum::<f64>()));
        let median_of = |part: usize| median(parts.iter().map(|parts| parts[part]));
        Waits {
            percentiles: [50, 95, 99, 100].map(|percent| percentile(&all, percent)),
            parts: [0, 1, 2, 3].map(median_of),
            refused: 0,
            repartitions: 0,
            started: parts.len() as f64 / tasks.max(1) as f64,
            all,
        }
    }
}

type Number<T> = (&'static str, fn(&T) -> f64);

const WAITS: [Number<Waits>; 11] = [
    ("wait_p50_ms", |waits| waits.percentiles[0] * 1e3),
    ("wait_p95_ms", |waits| waits.percentiles[1] * 1e3),
    ("wait_p99_ms", |waits| waits.percentiles[2] * 1e3),
    ("wait_max_ms", |waits| waits.percentiles[3] * 1e3),
    ("queue, p50_ms", |waits| waits.parts[0] * 1e3),
    ("processing, p50_ms", |waits| waits.parts[1] * 1e3),
    ("communication, p50_ms", |waits| waits.parts[2] * 1e3),
    ("at the node, p50_ms", |waits| waits.parts[3] * 1e3),
    ("launches refused", |waits| waits.refused as f64),
    ("repartitions", |waits| waits.repartitions as f64),
    ("tasks that started", |waits| waits.started),
];

const OF_DAEMONS: [Number<Compared>; 9] = [
    (DELAY, |run| run.daemons.delay),
    ("wait_p50 over the simulator's", |run| over(run, &run.simulated, 0)),
    ("wait_p99 over the simulator's", |run| over(run, &run.simulated, 2)),
    ("wait_p50 over the simulator's with this disk", |run| over(run, &run.with_this_disk, 0)),
    ("wait_p99 over the simulator's with this disk", |run| over(run, &run.with_this_disk, 2)),
    ("submitted late, most_ms", |run| run.daemons.late * 1e3),
    ("threads that had no core, at a time", |run| run.daemons.without_core),
    ("floor: a message and its answer over loopback_ms", |run| run.floor.round * 1e3),
    ("floor: fdatasync_p50_ms", |run| run.floor.fdatasync * 1e3),
];

fn over(run: &Compared, simulated: &Waits, which: usize) -> f64 {
    ratio(run.daemons.waits.percentiles[which], simulated.percentiles[which])
}

/// Where the jobs ran, and the results from there.
type Kind = (&'static str, fn(&Compared) -> &Waits);

const KINDS: [Kind; 3] = [
    ("daemons", |run| &run.daemons.waits),
    ("simulator", |run| &run.simulated),
    ("simulator with this disk", |run| &run.with_this_disk),
];

fn rows_of(replay: &str, of_seeds: &[Compared]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |case: &str, metric: &str, numbers: Vec<f64>| {
        rows.push(Row::of(case, metric, number_of(&NUMBERS, FIGURE, case, metric), &numbers));
    };
    for (kind, waits) in KINDS {
        let case = format!("{replay}, {kind}");
        for (metric, number) in WAITS {
            row(&case, metric, of_seeds.iter().map(|run| number(waits(run))).collect());
        }
        for (metric, number) in OF_DAEMONS.iter().filter(|_| kind == "daemons") {
            row(&case, metric, of_seeds.iter().map(number).collect());
        }
    }
    rows
}

/// The waits with the first seed.
fn plot(replay: &str, run: &Compared) -> Figure {
    let kinds =
        [("daemons", &run.daemons.waits), ("simulator", &run.simulated), ("with this disk", &run.with_this_disk)];
    // At the quantiles that the simulator reports: 0, 0.005, .., 1.
    let quantile = |all: &[f64], number: usize| all.get(all.len().saturating_sub(1) * number / 200).copied();
    let curve = |all: &[f64]| (0..=200).filter_map(|number| quantile(all, number)).collect();
    let curves = kinds.map(|(kind, waits)| (kind.to_owned(), curve(&waits.all)));
    Figure::Distributions(format!("Waits of tasks, {replay}"), "seconds".to_owned(), curves.into())
}

const ABOUT: [&str; 8] = [
    "the paper's text has no allocation times of its prototype: figure 12 is a plot. Its two medians are of the time by which tasks ran \
     longer than specified, because other tasks on their machine disturbed them. Tasks of hollow nodes only pretend to run and disturb no other: \
     their medians are the delay of a timer",
    "every process of the federation is on this machine, over loopback: 3 masters, 3 global masters and an agent for each node. The paper's had a machine \
     of 2 CPUs each. Other work of this machine is not controlled; `threads that had no core` shows the lack of cores",
    "the paper's jobs of Google's trace of 2019 are not public here: jobs of Google's trace of 2011, a task each, are in their place, and ask for a quarter of a \
     node of the paper's simulation in the mean",
    "run times are a hundredth of the trace's, and jobs that would last longer than 20 s are left out; the jobs arrive within 40 s. The paper's ran as long as in its traces, \
     and it does not give the rate at which jobs arrived",
    "the requests of tasks are not divided by 400 and 50 as in the paper; instead, nodes are larger by these factors. `small nodes` are those of its simulation",
    "constraints are drawn for stages, all of whose tasks have the same ones; nodes meet them as those of the published configuration of 10,000 nodes do, of which they are drawn",
    "an allocation time of the daemons is the sum of its parts in the stories of the tasks, the simulator's the time to the start. The simulator is configured with 0.01 ms for a way over loopback, and \
     with no time for the start of a process; all else is as in the other figures, or with the time of an fdatasync that was measured before each replay",
    "a seed draws jobs, nodes and arrivals. Daemons on a machine are not repeatable: the same seed gives other times",
];
