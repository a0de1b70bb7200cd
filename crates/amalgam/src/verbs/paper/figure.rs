//! What a figure of a paper is here, and what running it finds.

use super::experiment::{CaseRuns, Extent};
use super::scenario::Scenario;
use crate::failure::Result;
use amalgam_workload::closest;
use serde::Serialize;

/// A figure or a table of a paper that can be run.
pub struct Figure {
    pub name: &'static str,
    pub title: &'static str,
    /// What it is run with, frozen.
    pub scenario: &'static str,
    pub find: Find,
}

/// Runs the figure of this name.
pub type Find = fn(&str, &Scenario, &Extent) -> Result<Findings>;

/// What came out.
pub struct Findings {
    pub rows: Vec<Row>,
    /// Where it differs from the paper, and why, in sentences.
    pub departures: Vec<String>,
    pub cases: Vec<CaseRuns>,
}

/// One number, beside the paper's.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Row {
    pub case: String,
    pub metric: String,
    pub paper: Option<f64>,
    /// The mean over the seeds.
    pub ours: f64,
    pub low: f64,
    pub high: f64,
}

impl Row {
    /// From a number of each seed.
    pub fn of(case: &str, metric: &str, paper: Option<f64>, of_seeds: &[f64]) -> Row {
        Row {
            case: case.to_owned(),
            metric: metric.to_owned(),
            paper,
            ours: super::experiment::mean(of_seeds),
            low: of_seeds.iter().copied().reduce(f64::min).unwrap_or(0.0),
            high: of_seeds.iter().copied().reduce(f64::max).unwrap_or(0.0),
        }
    }
}

/// All that can be run.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    super::mercury::FIGURES.iter()
}

/// # Errors
/// A sentence with what is known, and what may have been meant.
pub fn find(name: &str) -> std::result::Result<&'static Figure, (String, String)> {
    all().find(|figure| figure.name == name).ok_or_else(|| {
        let known: Vec<&str> = all().map(|figure| figure.name).collect();
        let remedy = match closest(name, known.iter().copied()) {
            Some(close) => format!("did you mean `{close}`? There are: {}", known.join(", ")),
            None => format!("there are: {}", known.join(", ")),
        };
        (format!("there is no figure `{name}`"), remedy)
    })
}
