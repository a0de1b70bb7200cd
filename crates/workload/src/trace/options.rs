//! The options of a workload, as `key=value` pairs.

use super::arrival::Arrival;
use super::chance::{Distribution, Unit};
use super::demand::Demand;
use super::error::WorkloadError;
use crate::quantities::Malformed;
use crate::suggest;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// An option: its key, its default and its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    pub name: &'static str,
    pub default: &'static str,
    pub meaning: &'static str,
}

/// The options of all formats.
pub const COMMON_KEYS: [Key; 20] = [
    Key {
        name: "part",
        default: "1/1",
        meaning: "K/N: keep each N-th job of the files from the K-th on, before limit",
    },
    Key { name: "limit", default: "", meaning: "keep the first N jobs of the file; queries of a benchmark may repeat" },
    Key { name: "draw", default: "", meaning: "draw N jobs with replacement from those that were read" },
    Key {
        name: "arrival",
        default: "trace",
        meaning: "trace, at-once, every:GAP, poisson:GAP, bursts:GAP:SIZE, diurnal:GAP:PEAK[:PERIOD]",
    },
    Key { name: "arrival-scale", default: "1", meaning: "multiply the gaps between arrivals" },
    Key { name: "time-scale", default: "1", meaning: "multiply all times: arrivals and run times" },
    Key { name: "whole-seconds", default: "false", meaning: "round run times to whole seconds, at least one" },
    Key {
        name: "demand",
        default: "unit",
        meaning: "demand of a task if the trace has none: unit (1 core), alibaba2018, or CPU[,MEMORY][,KIND=AMOUNT..]",
    },
    Key { name: "demand-scale", default: "1", meaning: "multiply the demands of tasks" },
    Key { name: "expected", default: "mean", meaning: "expected run times that jobs state: mean, exact or none" },
    Key { name: "expected-error", default: "1", meaning: "factor by which they are wrong, drawn for each stage" },
    Key {
        name: "demand-error",
        default: "1",
        meaning: "factor by which a stage's demand is wrong: below 1 tasks run longer, above 1 resources are wasted",
    },
    Key {
        name: "retries",
        default: "0",
        meaning: "maximum number of retries of a failed task; job files define their own",
    },
    Key {
        name: "input",
        default: "",
        meaning: "MB that tasks read for each second of their stage's mean run time, if the trace does not state it",
    },
    Key { name: "constraints", default: "", meaning: "folder of tables from which constraints of stages are drawn" },
    Key { name: "constrained", default: "0.5", meaning: "share of the stages that get constraints from those tables" },
    Key {
        name: "near",
        default: "0",
        meaning: "number of nodes that each stage is near, drawn from node-0 to node-(M-1) of near-of=M",
    },
    Key { name: "near-of", default: "1", meaning: "number of nodes from which near draws" },
    Key { name: "seed", default: "1", meaning: "seed of all random numbers" },
    Key { name: "name", default: "", meaning: "name of the workload" },
];

/// Checked options: the common ones, and those of one format.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    pub part: Part,
    pub limit: Option<usize>,
    pub draw: Option<usize>,
    pub arrival: Arrival,
    pub arrival_scale: f64,
    pub time_scale: f64,
    pub whole_seconds: bool,
    pub demand: Demand,
    pub demand_scale: f64,
    pub expected: Expected,
    /// Factor by which expected run times are wrong.
    pub expected_error: Distribution,
    /// Factor by which requested resources are wrong.
    pub demand_error: Distribution,
    pub retries: u32,
    /// MB that a task reads for each second of its stage's mean run time.
    pub input: Option<f64>,
    /// Folder of tables from which constraints are drawn.
    pub constraints: Option<PathBuf>,
    /// Share of the stages that get constraints from the tables.
    pub constrained: f64,
    /// Number of nodes that a stage is near, and number of nodes from which they are drawn.
    pub near: (u32, u32),
    pub seed: u64,
    pub name: Option<String>,
    values: Values,
}

/// The texts of all options, given ones and defaults.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Values {
    /// Name of the options in messages, such as `workload option`.
    kind: &'static str,
    texts: BTreeMap<&'static str, String>,
}

/// One of several parts of the jobs of a file, which have no job in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// From 0.
    first: usize,
    parts: usize,
}

impl Part {
    pub fn has(self, job: usize) -> bool {
        job % self.parts == self.first
    }
}

/// Which expected run time of its tasks a stage states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    Nothing,
    /// The trace's own mean or estimate, or the mean of the true run times if the trace has none.
    Mean,
    /// The mean of the true run times, even if the trace has an estimate.
    Exact,
}

impl Options {
    /// Checks `key=value` pairs against the common keys and those of a format; a later pair replaces an earlier one.
    ///
    /// # Errors
    /// The first unknown key, with the most similar known one, or the first malformed value.
    pub fn parse(pairs: &[(String, String)], own_keys: &[Key]) -> Result<Options, WorkloadError> {
        let values = Values::parse("workload option", pairs, &[&COMMON_KEYS, own_keys])?;
        Ok(Options {
            part: values.get("part", part)?,
            limit: values.optional("limit", count)?,
            draw: values.optional("draw", count)?,
            arrival: values.get("arrival", Arrival::parse)?,
            arrival_scale: values.get("arrival-scale", scale)?,
            time_scale: values.get("time-scale", scale)?,
            whole_seconds: values.get("whole-seconds", flag)?,
            demand: values.get("demand", Demand::parse)?,
            demand_scale: values.get("demand-scale", scale)?,
            expected: values.get("expected", expected)?,
            expected_error: values.get("expected-error", wrong_by)?,
            demand_error: values.get("demand-error", wrong_by)?,
            retries: values.get("retries", number)?,
            input: values.optional("input", scale)?,
            constraints: values.optional("constraints", |text| Ok(PathBuf::from(text)))?,
            constrained: values.get("constrained", share)?,
            near: near(&values)?,
            seed: values.get("seed", whole)?,
            name: values.optional("name", |text| Ok(text.to_owned()))?,
            values,
        })
    }

    /// The text of one of the format's own keys.
    pub(crate) fn own_text(&self, key: &str) -> &str {
        self.values.text(key)
    }

    /// The value of one of the format's own keys.
    ///
    /// # Errors
    /// The text is malformed.
    pub(crate) fn own<T>(&self, key: &str, parse: fn(&str) -> Result<T, Malformed>) -> Result<T, WorkloadError> {
        self.values.get(key, parse)
    }
}

impl Values {
    /// Checks that every key is known. A later pair replaces an earlier one.
    ///
    /// # Errors
    /// The first unknown key, with the most similar known one.
    pub fn parse(kind: &'static str, pairs: &[(String, String)], known: &[&[Key]]) -> Result<Values, WorkloadError> {
        let known = || known.iter().copied().flatten();
        let mut texts: BTreeMap<_, _> = known().map(|key| (key.name, key.default.to_owned())).collect();
        for (key, value) in pairs {
            let Some(slot) = texts.get_mut(key.as_str()) else {
                return Err(unknown_key(kind, key, known().map(|key| key.name)));
            };
            slot.clone_from(value);
        }
        Ok(Values { kind, texts })
    }

    /// # Panics
    /// If the key is not one of the known keys, which is a bug of the caller.
    fn text(&self, key: &str) -> &str {
        self.texts.get(key).unwrap_or_else(|| panic!("the key `{key}` is not listed"))
    }

    /// # Errors
    /// The text is malformed.
    pub fn get<T>(&self, key: &str, parse: impl Fn(&str) -> Result<T, Malformed>) -> Result<T, WorkloadError> {
        parse(self.text(key))
            .map_err(|wrong| WorkloadError::new(format!("{} `{key}`: {}", self.kind, wrong.problem), wrong.remedy))
    }

    /// `None` if the option is not given and has no default.
    ///
    /// # Errors
    /// The text is malformed.
    pub fn optional<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Malformed>,
    ) -> Result<Option<T>, WorkloadError> {
        if self.text(key).is_empty() { Ok(None) } else { self.get(key, parse).map(Some) }
    }
}

fn unknown_key<'a>(kind: &str, key: &str, known: impl Iterator<Item = &'a str> + Clone) -> WorkloadError {
    let remedy = match suggest::closest(key, known.clone()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known: {}", known.collect::<Vec<_>>().join(", ")),
    };
    WorkloadError::new(format!("unknown {kind} `{key}`"), remedy)
}

pub(crate) fn whole(text: &str) -> Result<u64, Malformed> {
    text.parse().map_err(|_| Malformed::new(format!("`{text}` is not a number"), "write a whole number, at least 0"))
}

pub(crate) fn count(text: &str) -> Result<usize, Malformed> {
    match text.parse() {
        Ok(0) | Err(_) => Err(Malformed::new(format!("`{text}` is not a count"), "write a whole number above 0")),
        Ok(count) => Ok(count),
    }
}

pub(crate) fn scale(text: &str) -> Result<f64, Malformed> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| Malformed::new(format!("`{text}` is not a factor"), "write a number above 0, such as 0.01"))
}

/// Reads a factor by which a value is wrong.
fn wrong_by(text: &str) -> Result<Distribution, Malformed> {
    Distribution::parse(text, Unit::Number)?.within(0.01, 100.0, "factor of an error")
}

fn share(text: &str) -> Result<f64, Malformed> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..=1.0).contains(number));
    number.ok_or_else(|| Malformed::new(format!("`{text}` is not a share"), "write a number from 0 to 1"))
}

pub(crate) fn flag(text: &str) -> Result<bool, Malformed> {
    text.parse().map_err(|_| Malformed::new(format!("`{text}` is not a boolean"), "write `true` or `false`"))
}

fn number(text: &str) -> Result<u32, Malformed> {
    text.parse().map_err(|_| Malformed::new(format!("`{text}` is not a number"), "write a whole number, such as 3"))
}

fn near(values: &Values) -> Result<(u32, u32), WorkloadError> {
    let (near, of) = (values.get("near", number)?, values.get("near-of", number)?);
    if near < of || near == 0 {
        return Ok((near, of));
    }
    let problem = format!("workload option `near`: cannot draw {near} of {of} nodes, the value of `near-of`");
    Err(WorkloadError::new(problem, "set `near-of` to the number of nodes, which must be more than `near`"))
}

fn part(text: &str) -> Result<Part, Malformed> {
    let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    match numbers {
        Some((part, parts)) if (1..=parts).contains(&part) => Ok(Part { first: part - 1, parts }),
        _ => Err(Malformed::new(format!("`{text}` is not a part"), "write K/N with K of 1 to N, such as 1/2")),
    }
}

fn expected(text: &str) -> Result<Expected, Malformed> {
    match text {
        "none" => Ok(Expected::Nothing),
        "mean" => Ok(Expected::Mean),
        "exact" => Ok(Expected::Exact),
        _ => Err(Malformed::new(format!("unknown value `{text}`"), "write `mean`, `exact` or `none`")),
    }
}
