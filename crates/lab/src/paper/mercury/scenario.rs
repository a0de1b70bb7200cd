//! The scenario file of Mercury's figures.

use super::super::figure::{ScenarioText, figure_of, within};
use crate::baselines;
use amalgam_cli::failure::Result;
use amalgam_core::vocabulary::ExecutionType;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub free: Free,
    pub setup: Setup,
    pub defaults: Defaults,
    figure: BTreeMap<String, FigureScenario>,
}

/// The parameters that the paper leaves open.
#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Free {
    pub start_up_s: f64,
    pub jobs_of_only_g: u32,
    pub grants_per_heartbeat: NonZeroU32,
}

#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub nodes: u32,
    pub nodes_in_rack: u32,
    pub cpus: u32,
    pub memory_gib: u32,
    pub task_cpus: u32,
    pub task_memory_gib: u32,
    pub tasks_in_job: u32,
    pub heartbeat_s: f64,
    pub job_manager_heartbeat_s: f64,
    pub length_s: f64,
}

#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    pub opportunistic: f64,
    pub at_once: u32,
    pub k: u32,
    pub shaping: bool,
    pub deviations: f64,
    pub reorder: bool,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct FigureScenario {
    #[serde(default)]
    pub jobs: Vec<JobClass>,
    #[serde(default)]
    pub understating_nodes: usize,
    #[serde(default = "one")]
    pub understating_divisor: u64,
    pub watched_node: Option<usize>,
    pub case: Vec<Case>,
}

/// Jobs with the same properties.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct JobClass {
    pub name: String,
    /// Relative weight among all jobs.
    #[serde(default = "one")]
    pub weight: u64,
    pub run_time_s: f64,
    pub drawn: Drawn,
    #[serde(default)]
    pub execution: Execution,
    /// Maximum share of the cluster. If set, the jobs have a queue of their own.
    pub share: Option<f64>,
    /// Number of these jobs at the same time, in addition to the others.
    pub at_once: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Drawn {
    Fixed,
    Exponential,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    Guaranteed,
    Opportunistic,
    #[default]
    Auto,
}

/// When the master decides and job managers get its list of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Centre {
    #[default]
    Heartbeats,
    /// After each change.
    Events,
}

/// One bar of a figure; missing values are the defaults.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    /// The case to compare with; only-G by default.
    pub against: Option<String>,
    /// p_q and t_d of hybrid-GQ.
    pub opportunistic: Option<f64>,
    pub shorter_than_s: Option<f64>,
    pub at_once: Option<u32>,
    pub k: Option<u32>,
    pub shaping: Option<bool>,
    pub deviations: Option<f64>,
    pub reorder: Option<bool>,
    /// The part of a node that opportunistic work may hold; by default a forecast sets it.
    pub limit: Option<f64>,
    #[serde(default)]
    pub forecast: bool,
    #[serde(default)]
    pub centre: Centre,
    /// Whether nodes and master use the additions of `mercury-plus`.
    #[serde(default)]
    pub plus: bool,
    /// Runs under this preset with all of its defaults and those of masters instead. Of this file, only the cluster, the jobs,
    /// their number at once, the length and the start-up of containers apply.
    pub preset: Option<String>,
    /// Replaces the figure's jobs.
    pub jobs: Option<Vec<JobClass>>,
}

fn one() -> u64 {
    1
}

impl Scenario {
    pub fn parse(text: &ScenarioText) -> Result<Scenario> {
        text.parse("mercury", Scenario::check)
    }

    pub fn figure(&self, name: &str) -> Result<&FigureScenario> {
        figure_of(&self.figure, name)
    }

    /// Whether the scenario can be simulated.
    fn check(&self) -> std::result::Result<(), String> {
        let Scenario { free, setup, defaults, figure } = self;
        within("free.start_up_s", free.start_up_s, 0.0..=LONG)?;
        within("free.jobs_of_only_g", free.jobs_of_only_g, 1.0..=MANY)?;
        within("setup.nodes", setup.nodes, 1.0..=MANY)?;
        within("setup.nodes_in_rack", setup.nodes_in_rack, 1.0..=MANY)?;
        within("setup.cpus", setup.cpus, 1.0..=MANY)?;
        within("setup.memory_gib", setup.memory_gib, 1.0..=MANY)?;
        within("setup.task_cpus", setup.task_cpus, 1.0..=f64::from(setup.cpus))?;
        within("setup.task_memory_gib", setup.task_memory_gib, 0.0..=f64::from(setup.memory_gib))?;
        within("setup.tasks_in_job", setup.tasks_in_job, 1.0..=MANY)?;
        within("setup.heartbeat_s", setup.heartbeat_s, 0.001..=LONG)?;
        within("setup.job_manager_heartbeat_s", setup.job_manager_heartbeat_s, 0.001..=LONG)?;
        within("setup.length_s", setup.length_s, 1.0..=LONG)?;
        within("defaults.opportunistic", defaults.opportunistic, 0.0..=1.0)?;
        within("defaults.at_once", defaults.at_once, 1.0..=MANY)?;
        within("defaults.deviations", defaults.deviations, 0.0..=MANY)?;
        for (name, figure) in figure {
            figure.check(name)?;
        }
        Ok(())
    }
}

impl FigureScenario {
    fn check(&self, name: &str) -> std::result::Result<(), String> {
        self.jobs.iter().try_for_each(|class| class.check(name))?;
        for case in &self.case {
            let of = |key: &str| format!("figure.{name}, case `{}`: {key}", case.name);
            let jobs = case.jobs.as_ref().unwrap_or(&self.jobs);
            if jobs.is_empty() {
                return Err(of("it has no jobs"));
            }
            jobs.iter().try_for_each(|class| class.check(name))?;
            within(&of("opportunistic"), case.opportunistic.unwrap_or(0.0), 0.0..=1.0)?;
            within(&of("shorter_than_s"), case.shorter_than_s.unwrap_or(0.0), 0.0..=LONG)?;
            within(&of("at_once"), case.at_once.unwrap_or(1), 1.0..=MANY)?;
            within(&of("deviations"), case.deviations.unwrap_or(0.0), 0.0..=MANY)?;
            if let Some(preset) = &case.preset {
                baselines::parse(preset).map_err(|problem| format!("{}: {problem}", of("preset")))?;
            }
            within(&of("limit"), case.limit.unwrap_or(1.0), 0.0..=1.0)?;
        }
        Ok(())
    }
}

impl JobClass {
    fn check(&self, figure: &str) -> std::result::Result<(), String> {
        let of = |key: &str| format!("figure.{figure}, jobs `{}`: {key}", self.name);
        within(&of("weight"), u32::try_from(self.weight).unwrap_or(u32::MAX), 1.0..=MANY)?;
        within(&of("run_time_s"), self.run_time_s, 0.001..=LONG)?;
        within(&of("share"), self.share.unwrap_or(1.0), 0.001..=1.0)?;
        within(&of("at_once"), self.at_once.unwrap_or(1), 1.0..=MANY)
    }
}

/// Upper limit of counts and of seconds.
const MANY: f64 = 1e5;
const LONG: f64 = 1e6;

impl Case {
    /// The case to compare with.
    pub fn base(&self) -> &str {
        self.against.as_deref().unwrap_or("only-G")
    }
}

impl Execution {
    pub fn of_core(self) -> ExecutionType {
        match self {
            Execution::Guaranteed => ExecutionType::Guaranteed,
            Execution::Opportunistic => ExecutionType::Opportunistic,
            Execution::Auto => ExecutionType::Auto,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROZEN: &str = include_str!("../mercury.toml");

    #[test]
    fn invalid_values_are_refused_with_their_key_and_the_allowed_range() {
        let parse = |text: String| Scenario::parse(&ScenarioText { text, name: "mine".to_owned() });
        assert!(parse(FROZEN.to_owned()).is_ok());
        for (of, is, expected) in [
            ("nodes = 256", "nodes = 0", "mine: setup.nodes is 0, and may be 1 to"),
            ("task_cpus = 1", "task_cpus = 0", "setup.task_cpus is 0, and may be 1 to 32"),
            ("start_up_s = 4.0", "start_up_s = -1.0", "free.start_up_s is -1"),
            ("heartbeat_s = 3.0", "heartbeat_s = nan", "setup.heartbeat_s is NaN"),
            ("run_time_s = 1.2", "run_time_s = 0.0", "run_time_s is 0, and may be 0.001"),
            ("nodes = 256", "knots = 256", "mine: TOML parse error at line"),
        ] {
            assert!(FROZEN.contains(of), "{of}");
            let refused = parse(FROZEN.replacen(of, is, 1)).expect_err(is).to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
