//! Carbyne (Grandl et al. 2016), section 5: its figures, compared with the paper's results.

mod departures;
mod experiment;
mod overhead;
mod plots;
mod rows;
mod scenario;

use super::figure::{self, Amount, Extent, Figure, Findings, Paper, PaperNumber, Row, ScenarioText, misses, run_all};
use amalgam_cli::failure::Result;
use experiment::CaseRuns;
use rows::Pair;
use scenario::{FigureScenario, Scenario};

const PAPER: Paper = Paper {
    scenario: include_str!("carbyne.toml"),
    quick: "a fifth of the jobs",
    smoke: "one seed, a sixteenth of the cluster and of the jobs, which are generated instead of read from traces",
};

pub const FIGURES: [Figure; 16] = [
    PAPER.figure(
        "carbyne-2",
        "Carbyne, figure 2: two jobs, one of which leaves resources that it does not need yet",
        example,
    ),
    PAPER.figure(
        "carbyne-4",
        "Carbyne, figure 4: fairness, completion time and makespan, all jobs at once",
        best_of_each,
    ),
    PAPER.figure(
        "carbyne-5",
        "Carbyne, figure 5: fairness, completion time and makespan, jobs that arrive",
        best_of_each,
    ),
    PAPER.figure("carbyne-6", "Carbyne, figure 6 and table 3: completion times against DRF and Tetris", improvements),
    PAPER.figure("carbyne-7", "Carbyne, figure 7: the parts of the jobs that are faster and slower", job_by_job),
    PAPER.figure("carbyne-8", "Carbyne, figure 8: the tasks of one job, with and without altruism", one_job),
    PAPER.figure("carbyne-table-4", "Carbyne, table 4: the workloads of large clusters", improvements),
    PAPER.figure("carbyne-9", "Carbyne, figure 9: the same jobs on fewer machines", improvements),
    PAPER.figure("carbyne-10", "Carbyne, figure 10: run times and demands with errors", improvements),
    PAPER.figure("carbyne-11", "Carbyne, figure 11: jobs that yield with a probability", improvements),
    PAPER.figure("carbyne-12", "Carbyne, figure 12: plans by DAGPS", improvements),
    PAPER.figure("carbyne-tetris-fair", "Carbyne, section 5.5: against Tetris with its knob at fairness", improvements),
    PAPER.figure("carbyne-overhead", "Carbyne, section 5.2.4: the time of a decision", overhead),
    PAPER.figure(
        "carbyne-demand",
        "The effect of the model of demands on figure 6: half and twice the demands",
        improvements,
    ),
    PAPER.figure("carbyne-width", "The effect of the number of tasks of a job on figures 4 and 5", best_of_each),
    PAPER.figure(
        "carbyne-plus",
        "One step further: leftover resources are given by a joint score, with different degrees of fairness",
        best_of_each,
    ),
];

/// The paper's numbers.
const NUMBERS: [PaperNumber; 46] = [
    ("carbyne-2", "DRF, strict", "mean_jct_s", 2.05),
    ("carbyne-2", "Carbyne", "mean_jct_s", 1.55),
    ("carbyne-4", "DRF", "jain", 0.86),
    ("carbyne-4", "Carbyne", "jain_minus_DRF", -0.05),
    ("carbyne-4", "Tetris", "jain_minus_DRF", -0.12),
    ("carbyne-4", "SJF", "jain_minus_DRF", -0.22),
    ("carbyne-4", "Carbyne", "mean_jct_vs_SJF", 1.06),
    ("carbyne-4", "Tetris", "mean_jct_vs_SJF", 1.46),
    ("carbyne-4", "DRF", "mean_jct_vs_SJF", 1.59),
    ("carbyne-4", "Carbyne", "makespan_vs_Tetris", 1.03),
    ("carbyne-4", "DRF", "makespan_vs_Tetris", 1.26),
    ("carbyne-4", "SJF", "makespan_vs_Tetris", 1.43),
    ("carbyne-5", "Carbyne", "jain_minus_DRF", -0.06),
    ("carbyne-5", "Carbyne", "mean_jct_vs_SJF", 1.2),
    ("carbyne-5", "Carbyne", "makespan_vs_Tetris", 1.07),
    ("carbyne-6", "TPC-DS, Carbyne", "over DRF, of means", 1.36),
    ("carbyne-6", "TPC-DS, Carbyne", "over DRF, of p95s", 1.88),
    ("carbyne-6", "TPC-DS, Carbyne", "over DRF, p95 of jobs", 1.88),
    ("carbyne-6", "TPC-H, Carbyne", "over DRF, of p75s", 1.62),
    ("carbyne-6", "TPC-H, Carbyne", "over DRF, p75 of jobs", 1.62),
    ("carbyne-6", "TPC-H, Carbyne", "over DRF, of p95s", 1.96),
    ("carbyne-6", "TPC-H, Carbyne", "over DRF, p95 of jobs", 1.96),
    ("carbyne-7", "Carbyne", "share of jobs faster than DRF", 0.84),
    ("carbyne-7", "Carbyne", "share of jobs below 0.8 against DRF", 0.04),
    ("carbyne-7", "Carbyne", "least of jobs over DRF", 0.62),
    ("carbyne-table-4", "TPC-DS, Carbyne", "over DRF, of means", 1.59),
    ("carbyne-table-4", "TPC-DS, Carbyne", "over DRF, p95 of jobs", 7.67),
    ("carbyne-table-4", "Facebook 2010, Carbyne", "over DRF, of means", 2.85),
    ("carbyne-table-4", "Facebook 2010, Carbyne", "over DRF, p95 of jobs", 8.88),
    ("carbyne-table-4", "Alibaba 2018, Carbyne", "over DRF, of means", 2.23),
    ("carbyne-table-4", "Alibaba 2018, Carbyne", "over DRF, p95 of jobs", 7.86),
    ("carbyne-9", "1x, Carbyne", "over DRF, of means", 1.57),
    ("carbyne-9", "2x, Carbyne", "over DRF, of means", 1.91),
    ("carbyne-11", "P = 0", "over DRF, of means", 1.0),
    ("carbyne-11", "P = 0.5", "over DRF, of means", 1.24),
    ("carbyne-11", "P = 1", "over DRF, of means", 1.56),
    ("carbyne-12", "Carbyne", "over DRF, p75 of jobs", 2.36),
    ("carbyne-12", "Carbyne with DAGPS", "over DRF, p75 of jobs", 3.41),
    ("carbyne-tetris-fair", "Tetris-fair", "jain", 0.84),
    ("carbyne-tetris-fair", "Carbyne", "jain", 0.89),
    ("carbyne-tetris-fair", "Carbyne", "over Tetris-fair, of means", 1.22),
    ("carbyne-tetris-fair", "Carbyne", "over Tetris-fair, p95 of jobs", 2.9),
    ("carbyne-tetris-fair", "Carbyne", "over Tetris-fair, of makespans", 1.06),
    ("carbyne-overhead", "master, 10000 pending, Tetris", "decision_us", 18_000.0),
    ("carbyne-overhead", "master, 10000 pending, Carbyne", "decision_us minus Tetris", 2_000.0),
    ("carbyne-overhead", "master, 50000 pending, Carbyne", "decision_us minus Tetris", 4_000.0),
];

fn paper(figure: &str, case: &str, metric: &str) -> Option<f64> {
    figure::number_of(&NUMBERS, figure, case, metric)
}

// ---- findings ------------------------------------------------------------------------------------------------------

/// Compares every scheduler with the one that is best in each metric.
fn best_of_each(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    findings(figure, scenario, extent, |of, _, cases| {
        let mut found = rows::levels(of);
        found.extend(rows::against_the_best(of, cases));
        found
    })
}

/// How much earlier jobs end than under each of the schedulers to compare with.
fn improvements(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    findings(figure, scenario, extent, |of, baselines, _| {
        let mut found: Vec<_> = baselines.iter().flat_map(|base| rows::improvement(of, base)).collect();
        found.extend(rows::levels(of));
        found
    })
}

/// The same, and the parts of the jobs that gain and lose.
fn job_by_job(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    findings(figure, scenario, extent, |of, baselines, _| {
        let mut found: Vec<_> = baselines.iter().flat_map(|base| rows::job_by_job(of, base)).collect();
        found.extend(baselines.iter().flat_map(|base| rows::improvement(of, base)));
        found
    })
}

/// The running tasks of one job over time.
fn one_job(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let job = Scenario::parse(scenario)?.figure(figure)?.watched_job.unwrap_or_default();
    findings(figure, scenario, extent, |of, _, _| rows::course(of, job))
}

/// The jobs of the paper's example.
fn example(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    let set_up = scenario.figure(figure)?;
    let schedulers = set_up.all_schedulers();
    let runs = run_all(&schedulers, extent, |scheduler, seed| {
        let preset = scenario.preset(scheduler).expect("checked");
        experiment::run_example(set_up, preset, seed, scenario.setup.heartbeat_s)
    });
    let case = |(scheduler, runs): (String, _)| CaseRuns {
        workload: String::new(),
        setting: String::new(),
        name: scheduler.clone(),
        scheduler,
        runs,
    };
    let cases: Vec<CaseRuns> = schedulers.into_iter().zip(runs).map(case).collect();
    Ok(compared(figure, set_up, extent, &cases, |of, _, _| rows::ends(of)))
}

/// The time of decisions.
fn overhead(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    let set_up = scenario.figure(figure)?;
    let rows_of = |(case, rows): (String, Vec<Pair>)| {
        let row = |(metric, of_seeds): Pair| Row::of(&case, &metric, paper(figure, &case, &metric), &of_seeds);
        rows.into_iter().map(row).collect::<Vec<_>>()
    };
    let measured = overhead::measure(&scenario, set_up, extent)?;
    let rows = measured.into_iter().flat_map(rows_of).collect();
    Ok(Findings { rows, departures: departures::of(figure, set_up), plots: Vec::new() })
}

/// Runs the cases. `rows` makes the rows of one case from it, the cases of the same workload and setting to compare with, and
/// all cases.
fn findings(
    figure: &str,
    scenario: &ScenarioText,
    extent: &Extent,
    rows: impl Fn(&CaseRuns, &[&CaseRuns], &[&CaseRuns]) -> Vec<Pair>,
) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    let set_up = scenario.figure(figure)?;
    let cases = experiment::run(&scenario, set_up, extent)?;
    Ok(compared(figure, set_up, extent, &cases, rows))
}

fn compared(
    figure: &str,
    set_up: &FigureScenario,
    extent: &Extent,
    cases: &[CaseRuns],
    rows: impl Fn(&CaseRuns, &[&CaseRuns], &[&CaseRuns]) -> Vec<Pair>,
) -> Findings {
    let of_case = |of: &CaseRuns| {
        let alike = |other: &&CaseRuns| (&other.workload, &other.setting) == (&of.workload, &of.setting);
        let alike: Vec<&CaseRuns> = cases.iter().filter(alike).collect();
        let is_base =
            |other: &&CaseRuns| set_up.baselines.contains(&other.scheduler) && other.scheduler != of.scheduler;
        // Schedulers that are only compared with have no rows.
        let is_compared = set_up.schedulers.contains(&of.scheduler);
        let baselines: Vec<&CaseRuns> = alike.iter().copied().filter(is_base).filter(|_| is_compared).collect();
        let row = |(metric, of_seeds): Pair| Row::of(&of.name, &metric, paper(figure, &of.name, &metric), &of_seeds);
        rows(of, &baselines, &alike).into_iter().map(row).collect::<Vec<_>>()
    };
    let rows: Vec<Row> = cases.iter().flat_map(of_case).collect();
    let mut departures = misses(&rows);
    departures.extend(rows::unfinished(cases));
    if extent.amount != Amount::Smoke {
        departures.extend(departures::of(figure, set_up));
    }
    Findings { rows, departures, plots: plots::of(cases, set_up) }
}
