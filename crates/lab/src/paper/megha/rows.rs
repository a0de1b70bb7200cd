//! The numbers of a figure, the paper's numbers, and the plots.

use super::super::figure::{PaperNumber, Row, missed, number_of, ratio};
use super::experiment::{Case, CaseRuns, Run};
use super::scenario::{FigureScenario, Masters};
use amalgam_sim::report::Figure;
use amalgam_sim::statistics::mean;

pub const P50: &str = "wait_p50_s";
pub const P99: &str = "wait_p99_s";
pub const MAX: &str = "wait_max_s";
pub const REFUSED: &str = "launches refused, part of all";
pub const P50_OVER_SPARROW: &str = "wait_p50 over sparrow's";
const SPARROWS_P99: &str = "sparrow's wait_p99 over it";
const COMMUNICATION: &str = "communication, part of the medians";
const QUEUE: &str = "queue, part of the medians";
const PROCESSING: &str = "processing, part of the medians";
const SINGLES_P50: &str = "wait_p50 over that of 10 over 10";

const SPARROW: &str = "sparrow";
/// The case that a single global master over a single cluster is compared with.
const FEDERATED: Masters = Masters { globals: 10, clusters: 10 };
const SINGLE: Masters = Masters { globals: 1, clusters: 1 };

/// The paper's numbers: upper limits of Megha's waits, and lower limits of Sparrow's p99 ("2 orders of magnitude").
const NUMBERS: [PaperNumber; 9] = [
    ("megha-3", "NYH, load 0.9, megha", MAX, 1.5),
    ("megha-3", "NYH, load 0.9, megha", SPARROWS_P99, 100.0),
    ("megha-3", "YH1, load 0.9, megha", MAX, 1.5),
    ("megha-3", "YH1, load 0.9, megha", SPARROWS_P99, 100.0),
    ("megha-3", "GOOG, load 0.9, megha", MAX, 1.5),
    ("megha-3", "GOOG, load 0.9, megha", SPARROWS_P99, 100.0),
    ("megha-7", "nothing is started", COMMUNICATION, 0.9),
    ("megha-7", "nothing is started", QUEUE, 0.07),
    ("megha-7", "nothing is started", PROCESSING, 0.03),
];

pub fn off_the_papers(figure: &str, rows: &[Row]) -> Vec<String> {
    let is_off = |row: &Row, paper: f64| match &*row.metric {
        SPARROWS_P99 | COMMUNICATION => row.ours < paper,
        _ => row.ours > paper,
    };
    let is_no_slower = |row: &&Row| figure == "megha-6" && row.metric == SINGLES_P50 && row.ours <= 1.0;
    let no_slower =
        |row: &Row| format!("missed: {}: its median wait is {:.3} of that of 10 over 10", row.case, row.ours);
    [missed(rows, is_off), rows.iter().filter(is_no_slower).map(no_slower).collect()].concat()
}

pub fn of(figure: &str, set_up: &FigureScenario, cases: &[CaseRuns]) -> Vec<Row> {
    let mut rows = Vec::new();
    for of in cases {
        let mut row = |metric: &str, numbers: Vec<f64>| {
            rows.push(Row::of(&of.name, metric, number_of(&NUMBERS, figure, &of.name, metric), &numbers));
        };
        for (metric, number) in WAITS {
            row(metric, of.runs.iter().map(number).collect());
        }
        for (metric, numbers) in compared(of, cases) {
            row(metric, numbers);
        }
        for (metric, number) in PARTS.into_iter().chain(COUNTS) {
            row(metric, of.runs.iter().map(number).collect());
        }
        for user in &set_up.users {
            let jct = |run: &Run| {
                let queue = format!("root.{}", user.name);
                mean(&run.of_users.iter().filter(|(name, _)| *name == queue).map(|(_, jct)| *jct).collect::<Vec<_>>())
            };
            row(&format!("jct_mean_s of {}", user.name), of.runs.iter().map(jct).collect());
        }
    }
    rows
}

type Number = (&'static str, fn(&Run) -> f64);

const WAITS: [Number; 8] = [
    ("wait_mean_s", |run| run.wait_s.mean),
    (P50, |run| run.wait_s.p50),
    ("wait_p95_s", |run| run.wait_s.p95),
    (P99, |run| run.wait_s.p99),
    (MAX, |run| run.wait_s.max),
    ("jct_mean_s", |run| run.jct_s.mean),
    ("jct_p50_s", |run| run.jct_s.p50),
    ("jct_p99_s", |run| run.jct_s.p99),
];

const PARTS: [Number; 5] = [
    ("of the mean wait, processing and communication_s", |run| {
        run.allocation.parts.processing + run.allocation.parts.communication
    }),
    (COMMUNICATION, |run| part_of_medians(run, run.allocation.medians.communication)),
    (QUEUE, |run| part_of_medians(run, run.allocation.medians.queue)),
    (PROCESSING, |run| part_of_medians(run, run.allocation.medians.processing)),
    ("at the node, part of the medians", |run| part_of_medians(run, run.allocation.medians.node)),
];

const COUNTS: [Number; 8] = [
    (REFUSED, |run| run.part_of_launches(run.counters.refused)),
    ("repartitions, part of launches", |run| run.part_of_launches(run.counters.repartitioned)),
    ("repartitions", |run| run.counters.repartitioned as f64),
    ("preempted", |run| run.counters.preempted as f64),
    ("cpu, most of a minute", |run| run.cpu.iter().map(|(_, cpu)| *cpu).fold(0.0, f64::max)),
    ("busiest master", |run| run.busy.server),
    ("busiest global master or scheduler", |run| run.busy.managers),
    ("tasks that started", |run| run.started),
];

fn part_of_medians(run: &Run, part: f64) -> f64 {
    let all = &run.allocation.medians;
    ratio(part, all.queue + all.processing + all.communication + all.node)
}

/// Compares with the same case under Sparrow, and a single global master with ten over ten.
fn compared(of: &CaseRuns, cases: &[CaseRuns]) -> Vec<(&'static str, Vec<f64>)> {
    let pairs = |base: Case, number: fn(&Run, &Run) -> f64| {
        let base = cases.iter().find(|other| other.case == base).filter(|_| base != of.case)?;
        Some(of.runs.iter().zip(&base.runs).map(|(run, base)| number(run, base)).collect::<Vec<f64>>())
    };
    let sparrow = || Case { scheduler: SPARROW.to_owned(), ..of.case.clone() };
    let mut rows = Vec::new();
    let mut row = |metric, numbers: Option<Vec<f64>>| rows.extend(numbers.map(|numbers| (metric, numbers)));
    row(P50_OVER_SPARROW, pairs(sparrow(), |run, sparrow| ratio(run.wait_s.p50, sparrow.wait_s.p50)));
    row(SPARROWS_P99, pairs(sparrow(), |run, sparrow| ratio(sparrow.wait_s.p99, run.wait_s.p99)));
    row("jct_mean over sparrow's", pairs(sparrow(), |run, sparrow| ratio(run.jct_s.mean, sparrow.jct_s.mean)));
    if of.case.masters == SINGLE {
        let federated = || Case { masters: FEDERATED, ..of.case.clone() };
        row(SINGLES_P50, pairs(federated(), |run, base| ratio(run.wait_s.p50, base.wait_s.p50)));
        row("wait_p99 over that of 10 over 10", pairs(federated(), |run, base| ratio(run.wait_s.p99, base.wait_s.p99)));
    }
    rows
}

/// Distributions of waits, and CPUs in use over time; with the first seed.
pub fn plots(set_up: &FigureScenario, cases: &[CaseRuns]) -> Vec<Figure> {
    let mut plots = Vec::new();
    for workload in &set_up.workloads {
        let of_workload: Vec<(&CaseRuns, &Run)> = cases
            .iter()
            .filter(|of| of.case.workload == *workload)
            .filter_map(|of| Some((of, of.runs.first()?)))
            .collect();
        let waits = of_workload.iter().map(|(of, run)| (of.name.clone(), run.wait_curve.clone())).collect();
        plots.push(Figure::Distributions(format!("Waits of tasks, {workload}"), "seconds".to_owned(), waits));
        let cpu = of_workload.iter().map(|(of, run)| (of.name.clone(), run.cpu.clone())).collect();
        plots.push(Figure::OverTime(format!("CPUs in use, {workload}"), "share".to_owned(), cpu));
    }
    plots
}
