//! The options of a workload, as `key=value` pairs.

use super::arrival::Arrival;
use super::demand::Demand;
use super::error::WorkloadError;
use crate::quantities::Malformed;
use crate::suggest;
use std::collections::BTreeMap;

/// An option: its key, what it is when it is not given, and what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    pub name: &'static str,
    pub default: &'static str,
    pub meaning: &'static str,
}

/// The options that every format takes.
pub const COMMON_KEYS: [Key; 10] = [
    Key { name: "limit", default: "", meaning: "keep only the first N jobs of the file" },
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
        meaning: "what a task needs where the trace has none: unit (1 core), alibaba2018, or CPU[,MEMORY] with distributions",
    },
    Key { name: "expected", default: "mean", meaning: "what the user tells of run times: mean, exact or none" },
    Key { name: "seed", default: "1", meaning: "the seed of all chance" },
    Key { name: "name", default: "", meaning: "a name for the workload" },
];

/// Checked options: the common ones, and those of one format.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    pub limit: Option<usize>,
    pub draw: Option<usize>,
    pub arrival: Arrival,
    pub arrival_scale: f64,
    pub time_scale: f64,
    pub whole_seconds: bool,
    pub demand: Demand,
    pub expected: Expected,
    pub seed: u64,
    pub name: Option<String>,
    /// The values of the format's own keys.
    own: BTreeMap<&'static str, String>,
}

/// What a user would have told about the run time of a stage's tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    Nothing,
    /// The trace's own mean or estimate, or else the mean of the true run times.
    Mean,
    /// The mean of the true run times, whatever the trace estimates.
    Exact,
}

impl Options {
    /// Checks `key=value` pairs against the common keys and those of a format; a later pair replaces an earlier one.
    ///
    /// # Errors
    /// The first key that is not known, with the nearest known one, or the first value that is not understood.
    pub fn parse(pairs: &[(String, String)], own_keys: &[Key]) -> Result<Options, WorkloadError> {
        let mut given: BTreeMap<&'static str, &str> = BTreeMap::new();
        for (key, value) in pairs {
            let known = COMMON_KEYS.iter().chain(own_keys).find(|known| known.name == key);
            let known = known.ok_or_else(|| unknown_key(key, own_keys))?;
            given.insert(known.name, value);
        }
        let text = |key: &str| given.get(key).copied();
        let own = own_keys.iter().map(|key| (key.name, text(key.name).unwrap_or(key.default).to_owned())).collect();
        Ok(Options {
            limit: optional(text("limit"), "limit", count)?,
            draw: optional(text("draw"), "draw", count)?,
            arrival: optional(text("arrival"), "arrival", Arrival::parse)?.unwrap_or(Arrival::Trace),
            arrival_scale: optional(text("arrival-scale"), "arrival-scale", scale)?.unwrap_or(1.0),
            time_scale: optional(text("time-scale"), "time-scale", scale)?.unwrap_or(1.0),
            whole_seconds: optional(text("whole-seconds"), "whole-seconds", flag)?.unwrap_or(false),
            demand: optional(text("demand"), "demand", Demand::parse)?.unwrap_or(Demand::Unit),
            expected: optional(text("expected"), "expected", expected)?.unwrap_or(Expected::Mean),
            seed: optional(text("seed"), "seed", whole)?.unwrap_or(1),
            name: text("name").map(str::to_owned),
            own,
        })
    }

    /// The text of one of the format's own keys.
    ///
    /// # Panics
    /// When the format does not list the key, which is our own bug.
    pub(crate) fn own_text(&self, key: &str) -> &str {
        self.own.get(key).unwrap_or_else(|| panic!("the format does not list the key `{key}`"))
    }

    /// The value of one of the format's own keys.
    ///
    /// # Errors
    /// When its text is not understood.
    pub(crate) fn own<T>(&self, key: &str, parse: fn(&str) -> Result<T, Malformed>) -> Result<T, WorkloadError> {
        parse(self.own_text(key)).map_err(|wrong| in_option(key, wrong))
    }
}

fn unknown_key(key: &str, own_keys: &[Key]) -> WorkloadError {
    let known = || COMMON_KEYS.iter().chain(own_keys).map(|known| known.name);
    let remedy = match suggest::closest(key, known()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known are {}", known().collect::<Vec<_>>().join(", ")),
    };
    WorkloadError::new(format!("unknown workload option `{key}`"), remedy)
}

fn optional<T>(
    text: Option<&str>,
    key: &str,
    parse: impl Fn(&str) -> Result<T, Malformed>,
) -> Result<Option<T>, WorkloadError> {
    text.map(|text| parse(text).map_err(|wrong| in_option(key, wrong))).transpose()
}

fn in_option(key: &str, wrong: Malformed) -> WorkloadError {
    WorkloadError::new(format!("workload option `{key}`: {}", wrong.problem), wrong.remedy)
}

pub(crate) fn whole(text: &str) -> Result<u64, Malformed> {
    text.parse().map_err(|_| Malformed::new(format!("`{text}` is not a number"), "write a whole number, not negative"))
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

pub(crate) fn flag(text: &str) -> Result<bool, Malformed> {
    text.parse().map_err(|_| Malformed::new(format!("`{text}` is neither"), "write `true` or `false`"))
}

fn expected(text: &str) -> Result<Expected, Malformed> {
    match text {
        "none" => Ok(Expected::Nothing),
        "mean" => Ok(Expected::Mean),
        "exact" => Ok(Expected::Exact),
        _ => Err(Malformed::new(format!("`{text}` is not known"), "write `mean`, `exact` or `none`")),
    }
}
