//! What a paper's figures are run with, as its scenario file says it.

use crate::failure::{Failure, Result};
use amalgam_core::vocabulary::ExecutionType;
use serde::Deserialize;
use std::collections::BTreeMap;

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

/// Jobs that are alike.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct JobClass {
    pub name: String,
    /// Of all jobs, in proportion to the others.
    #[serde(default = "one")]
    pub weight: u64,
    pub run_time_s: f64,
    pub drawn: Drawn,
    #[serde(default)]
    pub execution: Execution,
    /// The most of the cluster that they take: they are in a queue of their own then.
    pub share: Option<f64>,
    /// How many are there at once, beside the others.
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

/// One bar of a figure; what it does not say is the default.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    /// The case that it is compared with; only-G where it is not said.
    pub against: Option<String>,
    /// p_q and t_d of hybrid-GQ.
    pub opportunistic: Option<f64>,
    pub shorter_than_s: Option<f64>,
    pub at_once: Option<u32>,
    pub k: Option<u32>,
    pub shaping: Option<bool>,
    pub deviations: Option<f64>,
    pub reorder: Option<bool>,
    /// The part of a node that opportunistic work may hold, or a forecast says it.
    pub limit: Option<f64>,
    #[serde(default)]
    pub forecast: bool,
    /// Instead of the figure's.
    pub jobs: Option<Vec<JobClass>>,
}

fn one() -> u64 {
    1
}

impl Scenario {
    pub fn parse(text: &str) -> Result<Scenario> {
        toml::from_str(text).map_err(|error| Failure::new(format!("the scenario file: {error}"), ""))
    }

    pub fn figure(&self, name: &str) -> Result<&FigureScenario> {
        self.figure.get(name).ok_or_else(|| Failure::new(format!("the scenario file has no figure `{name}`"), ""))
    }
}

impl Case {
    /// What it is compared with.
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
