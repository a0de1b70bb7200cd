//! The scenario file of Carbyne's figures.

use super::super::figure::{ScenarioText, figure_of, within};
use amalgam_cli::failure::Result;
use amalgam_core::preset::Preset;
use amalgam_daemon::config::Config;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub free: Free,
    pub setup: Setup,
    workload: BTreeMap<String, WorkloadEntry>,
    /// By name, the text of a server's configuration.
    scheduler: BTreeMap<String, String>,
    figure: BTreeMap<String, FigureScenario>,
}

/// The parameter that the paper leaves open.
#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Free {
    /// The work of a workload in its most needed kind of resource, divided by the cluster's capacity while jobs arrive.
    pub load: f64,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub nodes: u32,
    pub cpus: u32,
    pub memory_gib: u32,
    pub disk_mb_s: u32,
    pub network_mb_s: u32,
    pub jobs: u32,
    /// Mean gap between jobs that arrive at random.
    pub gap_s: f64,
    pub heartbeat_s: f64,
    /// The demands of tasks, which the traces do not contain.
    pub demand: String,
    /// Replaces every workload in smoke runs.
    pub stand_in: WorkloadEntry,
}

/// The source of jobs.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct WorkloadEntry {
    /// A format and, if it reads files, a path in the directory of traces.
    pub read: String,
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Replaces the value of `setup`.
    pub nodes: Option<u32>,
    pub jobs: Option<u32>,
    #[serde(default)]
    pub arrival: Arrival,
    /// The value that is scaled until the load is right.
    #[serde(default)]
    pub scaled: Scaled,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    #[default]
    Poisson,
    /// All jobs are submitted at the start: the offline case.
    AtOnce,
    Trace,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Scaled {
    #[default]
    RunTimes,
    Arrivals,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct FigureScenario {
    #[serde(default)]
    pub workloads: Vec<String>,
    /// The schedulers to compare with.
    #[serde(default)]
    pub baselines: Vec<String>,
    pub schedulers: Vec<String>,
    #[serde(default)]
    pub setting: Vec<Setting>,
    /// The number of the watched job.
    pub watched_job: Option<u32>,
    /// Replaces workloads.
    #[serde(default)]
    pub job: Vec<ExampleJob>,
}

/// A setting under which each workload runs with each scheduler. By default, values are those of the setup.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    #[serde(default)]
    pub name: String,
    pub arrival: Option<Arrival>,
    /// Divides the number of nodes for the same work.
    #[serde(default = "one")]
    pub contention: f64,
    #[serde(default = "one")]
    pub demand_scale: f64,
    /// Multiplies the gaps between jobs.
    #[serde(default = "one")]
    pub gap_scale: f64,
    /// Error factors of the expected run times and the demands.
    #[serde(default)]
    pub expected_error: Option<String>,
    #[serde(default)]
    pub demand_error: Option<String>,
}

/// A job of an example, on one node with a hundred cores.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ExampleJob {
    pub name: String,
    pub stage: Vec<ExampleStage>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ExampleStage {
    pub tasks: u32,
    pub cores: u32,
    pub run_time_s: f64,
    #[serde(default)]
    pub after: Vec<u32>,
}

fn one() -> f64 {
    1.0
}

impl Default for Setting {
    fn default() -> Setting {
        Setting {
            name: String::new(),
            arrival: None,
            contention: 1.0,
            demand_scale: 1.0,
            gap_scale: 1.0,
            expected_error: None,
            demand_error: None,
        }
    }
}

impl Scenario {
    pub fn parse(text: &ScenarioText) -> Result<Scenario> {
        text.parse("carbyne", Scenario::check)
    }

    pub fn figure(&self, name: &str) -> Result<&FigureScenario> {
        figure_of(&self.figure, name)
    }

    /// # Panics
    /// If `check` did not run before.
    pub fn workload(&self, name: &str) -> &WorkloadEntry {
        &self.workload[name]
    }

    pub fn preset(&self, scheduler: &str) -> std::result::Result<Preset, String> {
        let missing = || format!("unknown scheduler `{scheduler}`");
        let text = self.scheduler.get(scheduler).ok_or_else(missing)?;
        let config = Config::parse(text, Path::new(scheduler)).map_err(|error| format!("scheduler.{error}"))?;
        Ok(config.preset)
    }

    /// Whether the scenario can be simulated.
    fn check(&self) -> std::result::Result<(), String> {
        let Setup { nodes, cpus, memory_gib, disk_mb_s, network_mb_s, jobs, gap_s, heartbeat_s, .. } = self.setup;
        within("free.load", self.free.load, 0.001..=100.0)?;
        within("setup.nodes", nodes, 1.0..=MANY)?;
        within("setup.cpus", cpus, 1.0..=MANY)?;
        within("setup.memory_gib", memory_gib, 1.0..=MANY)?;
        within("setup.disk_mb_s", disk_mb_s, 0.0..=MANY)?;
        within("setup.network_mb_s", network_mb_s, 0.0..=MANY)?;
        within("setup.jobs", jobs, 1.0..=MANY)?;
        within("setup.gap_s", gap_s, 0.001..=MANY)?;
        within("setup.heartbeat_s", heartbeat_s, 0.01..=MANY)?;
        for (name, entry) in &self.workload {
            within(&format!("workload.{name}.nodes"), entry.nodes.unwrap_or(1), 1.0..=MANY)?;
            within(&format!("workload.{name}.jobs"), entry.jobs.unwrap_or(1), 1.0..=MANY)?;
        }
        for scheduler in self.scheduler.keys() {
            self.preset(scheduler)?;
        }
        for (name, figure) in &self.figure {
            self.check_figure(figure).map_err(|what| format!("figure.{name}: {what}"))?;
        }
        Ok(())
    }

    fn check_figure(&self, figure: &FigureScenario) -> std::result::Result<(), String> {
        for scheduler in figure.schedulers.iter().chain(&figure.baselines) {
            self.preset(scheduler)?;
        }
        if let Some(missing) = figure.workloads.iter().find(|name| !self.workload.contains_key(*name)) {
            return Err(format!("unknown workload `{missing}`"));
        }
        for setting in &figure.setting {
            within("contention", setting.contention, 0.01..=1_000.0)?;
            within("demand_scale", setting.demand_scale, 0.01..=100.0)?;
            within("gap_scale", setting.gap_scale, 0.001..=1_000.0)?;
        }
        for stage in figure.job.iter().flat_map(|job| &job.stage) {
            within("tasks", stage.tasks, 1.0..=MANY)?;
            within("cores", stage.cores, 1.0..=100.0)?;
            within("run_time_s", stage.run_time_s, 0.001..=MANY)?;
        }
        Ok(())
    }
}

/// Upper limit of counts and of seconds.
const MANY: f64 = 1e6;

impl FigureScenario {
    /// The schedulers to compare with come first.
    pub fn all_schedulers(&self) -> Vec<String> {
        self.baselines.iter().chain(&self.schedulers).cloned().collect()
    }

    pub fn settings(&self) -> Vec<Setting> {
        if self.setting.is_empty() { vec![Setting::default()] } else { self.setting.clone() }
    }
}
