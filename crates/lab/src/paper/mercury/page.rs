//! Plots of a figure's page: boxes as in the paper, and distributions of latencies.

use super::experiment::{CaseRuns, Run};
use amalgam_sim::report::{Figure, Spread};
use std::collections::BTreeSet;

pub fn plots(cases: &[CaseRuns]) -> Vec<Figure> {
    let boxes = |heading: &str, values: &str, of_run: fn(&Run) -> Vec<f64>| {
        let spreads = cases.iter().map(|of| spread(of, of_run)).collect();
        Figure::Boxes(heading.to_owned(), values.to_owned(), spreads)
    };
    let mut plots = vec![
        boxes("Task throughput, of minutes", "tasks per second", |run| run.task_throughput.clone()),
        boxes("Job throughput, of minutes", "jobs per second", |run| run.job_throughput.clone()),
        boxes("Job latency", "seconds", |run| run.latencies.iter().map(|(_, latency)| *latency).collect()),
    ];
    plots.extend(classes(cases).into_iter().map(|class| {
        let latencies = |of: &CaseRuns| {
            let all = of.runs.iter().flat_map(|run| &run.latencies);
            all.filter(|(name, _)| *name == class).map(|(_, latency)| *latency).collect()
        };
        let samples = cases.iter().map(|of| (of.case.name.clone(), latencies(of))).collect();
        Figure::Distributions(format!("Latency of the jobs {class}"), "seconds".to_owned(), samples)
    }));
    plots.extend(cases.iter().filter_map(over_time));
    plots
}

fn classes(cases: &[CaseRuns]) -> BTreeSet<String> {
    let runs = cases.iter().flat_map(|of| &of.runs);
    runs.flat_map(|run| &run.latencies).map(|(class, _)| class.clone()).collect()
}

fn spread(of: &CaseRuns, of_run: fn(&Run) -> Vec<f64>) -> Spread {
    Spread::of(&of.case.name, of.runs.iter().flat_map(of_run))
}

/// The watched node, with the first seed.
fn over_time(of: &CaseRuns) -> Option<Figure> {
    let watched = &of.runs.first()?.watched;
    let line = |name: &str, value: fn(&amalgam_sim::Watched) -> f64| {
        (name.to_owned(), watched.iter().map(|at| (at.at_s, value(at))).collect())
    };
    let lines = vec![line("allowed", |at| at.limit), line("held", |at| at.held)];
    let heading = format!("What opportunistic work may hold at a node and holds, {}", of.case.name);
    (!watched.is_empty()).then(|| Figure::OverTime(heading, "share of the node".to_owned(), lines))
}
