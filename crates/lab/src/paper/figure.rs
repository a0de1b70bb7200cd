//! A figure of a paper, and the results of running it.

pub use crate::extent::{Amount, Extent, ExtentArgs, SEEDS, in_traces, nodes, run_all, source};

use amalgam_cli::failure::{Failure, Result};
use amalgam_core::vocabulary::Duration;
use amalgam_sim::report;
use amalgam_sim::statistics::mean;
use amalgam_workload::closest;
use amalgam_workload::text::read_text;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// A figure or a table of a paper that can be run.
pub struct Figure {
    pub name: &'static str,
    pub title: &'static str,
    pub paper: &'static Paper,
    pub find: Find,
}

/// The common properties of a paper's figures.
pub struct Paper {
    /// The frozen scenario.
    pub scenario: &'static str,
    /// The part that a quick run, or a test, leaves of the work.
    pub quick: &'static str,
    pub smoke: &'static str,
}

impl Paper {
    pub const fn figure(&'static self, name: &'static str, title: &'static str, find: Find) -> Figure {
        Figure { name, title, paper: self, find }
    }
}

/// Runs the figure of this name.
pub type Find = fn(&str, &ScenarioText, &Extent) -> Result<Findings>;

/// A scenario file, and its name in errors.
pub struct ScenarioText {
    pub text: String,
    pub name: String,
}

/// The results of a figure.
pub struct Findings {
    pub rows: Vec<Row>,
    /// Differences from the paper and their reasons, in sentences.
    pub departures: Vec<String>,
    pub plots: Vec<report::Figure>,
}

/// One number, and the paper's.
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
    /// Combines the numbers of all seeds.
    pub fn of(case: &str, metric: &str, paper: Option<f64>, of_seeds: &[f64]) -> Row {
        Row {
            case: case.to_owned(),
            metric: metric.to_owned(),
            paper,
            ours: mean(of_seeds),
            low: of_seeds.iter().copied().reduce(f64::min).unwrap_or(0.0),
            high: of_seeds.iter().copied().reduce(f64::max).unwrap_or(0.0),
        }
    }
}

/// The paper's numbers that ours miss by more than a tenth. For numbers relative to an optimum, a bound or an oracle, the part
/// above 1 is compared: 1.15 is three times as far off as 1.05.
pub fn misses(rows: &[Row]) -> Vec<String> {
    const NEAR: f64 = 0.1;
    let least = |metric: &str| {
        let is_over_the_best = ["over_optimal", "over_bound"].contains(&metric) || metric.contains("over the oracle");
        if is_over_the_best { 1.0 } else { 0.0 }
    };
    missed(rows, |row, paper| (row.ours - paper).abs() > NEAR * (paper - least(&row.metric)).abs())
}

/// The paper's numbers for which `is_off` is true.
pub fn missed(rows: &[Row], is_off: impl Fn(&Row, f64) -> bool) -> Vec<String> {
    let missed = |row: &Row| {
        let paper = row.paper.filter(|paper| is_off(row, *paper))?;
        Some(format!("missed: {}, {}: {:.3}, the paper has {paper}", row.case, row.metric, row.ours))
    };
    rows.iter().filter_map(missed).collect()
}

/// Rounded to microseconds.
pub fn seconds(seconds: f64) -> Duration {
    Duration::from_micros((seconds * 1e6).round() as u64)
}

/// A number in a paper: figure, case, metric, number.
pub type PaperNumber = (&'static str, &'static str, &'static str, f64);

pub fn number_of(numbers: &[PaperNumber], figure: &str, case: &str, metric: &str) -> Option<f64> {
    numbers.iter().find(|(of, its, name, _)| (*of, *its, *name) == (figure, case, metric)).map(|(.., number)| *number)
}

/// Zero if `base` is zero.
pub fn ratio(ours: f64, base: f64) -> f64 {
    if base > 0.0 { ours / base } else { 0.0 }
}

/// # Errors
/// Names the key, its value and the allowed range.
pub fn within(key: &str, value: impl Into<f64>, allowed: RangeInclusive<f64>) -> std::result::Result<(), String> {
    let value = value.into();
    let message = || format!("{key} is {value}, and may be {} to {}", allowed.start(), allowed.end());
    if allowed.contains(&value) { Ok(()) } else { Err(message()) }
}

impl ScenarioText {
    pub fn frozen(figure: &Figure) -> ScenarioText {
        ScenarioText { text: figure.paper.scenario.to_owned(), name: "the frozen scenario".to_owned() }
    }

    pub fn read(path: &Path) -> Result<ScenarioText> {
        let text = read_text(path);
        let text = text.map_err(|error| Failure::unreadable(path, &error, "name a scenario file"))?;
        Ok(ScenarioText { text, name: path.display().to_string() })
    }

    /// Parses the scenario, and checks it with `check`.
    pub fn parse<T: DeserializeOwned>(
        &self,
        paper: &str,
        check: impl FnOnce(&T) -> std::result::Result<(), String>,
    ) -> Result<T> {
        let wrong = |what: String| {
            let remedy = format!("start with the frozen one: `amalgam-lab paper scenario {paper}-5`");
            Failure::usage(format!("{}: {what}", self.name), remedy)
        };
        let scenario = toml::from_str(&self.text).map_err(|error| wrong(error.to_string()))?;
        check(&scenario).map_err(wrong)?;
        Ok(scenario)
    }
}

/// The scenario's table for the figure.
pub fn figure_of<'a, F>(figures: &'a BTreeMap<String, F>, name: &str) -> Result<&'a F> {
    let missing = || Failure::usage(format!("the scenario file has no figure `{name}`"), "add a table for it");
    figures.get(name).ok_or_else(missing)
}

/// All figures.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    super::mercury::FIGURES
        .iter()
        .chain(&super::carbyne::FIGURES)
        .chain(&super::apollo::FIGURES)
        .chain(&super::megha::FIGURES)
}

/// # Errors
/// A sentence, and a remedy with the known figures and the nearest one.
pub fn find(name: &str) -> std::result::Result<&'static Figure, (String, String)> {
    all().find(|figure| figure.name == name).ok_or_else(|| {
        let known: Vec<&str> = all().map(|figure| figure.name).collect();
        let remedy = match closest(name, known.iter().copied()) {
            Some(close) => format!("did you mean `{close}`? Known figures: {}", known.join(", ")),
            None => format!("known figures: {}", known.join(", ")),
        };
        (format!("unknown figure `{name}`"), remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_to_an_optimum_are_compared_by_their_excess() {
        let missed =
            |metric: &str, paper: f64, ours: f64| misses(&[Row::of("case", metric, Some(paper), &[ours])]).len();
        assert_eq!([1.41, 1.52, 1.62, 1.64].map(|ours| missed("over_bound", 1.57, ours)), [1, 0, 0, 1]);
        assert_eq!([1.155, 1.046].map(|ours| missed("mean_jct over the oracle, of its own", 1.05, ours)), [1, 0]);
        assert_eq!([1.40, 1.42].map(|ours| missed("over DRF, of means", 1.57, ours)), [1, 0], "that is no best");
    }
}
