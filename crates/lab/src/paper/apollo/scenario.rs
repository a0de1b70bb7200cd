//! The scenario file of Apollo's figures.

use super::super::figure::{ScenarioText, figure_of, within};
use crate::baselines;
use amalgam_cli::failure::Result;
use amalgam_core::policy::completion::Rates;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    rates: RatesEntry,
    pub figure: Figures,
    pub production: Production,
}

/// A cluster under a steady load.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Production {
    pub nodes: u32,
    pub cpus: u32,
    pub memory_gib: u32,
    pub jobs: u32,
    pub heartbeat_s: f64,
    /// A format and a path in the folder of traces.
    pub read: String,
    pub options: BTreeMap<String, String>,
    pub stand_in: String,
    pub straggler_factor: f64,
    pub inputs: Inputs,
    figure: BTreeMap<String, ProductionFigure>,
}

/// Locations of inputs, for figures that use them.
#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Inputs {
    pub nodes_in_rack: u32,
    pub replicas: u32,
    /// Input for each second of the mean run time of a task's stage.
    pub mb_for_each_second: f64,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ProductionFigure {
    /// Replaces the value of `production`.
    pub nodes: Option<u32>,
    pub jobs: Option<u32>,
    /// A quick run has one in this many nodes and jobs, so that it ends within a minute; 10 by default.
    pub quick_part: Option<u32>,
    /// Number of processes that host the job managers; by default the server hosts them.
    pub manager_processes: Option<u8>,
    /// Replaces the trace of `production` and its options.
    pub read: Option<String>,
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Parts of the cluster's CPUs that would be busy if no task waited.
    pub loads: Vec<f64>,
    /// The schedulers to compare with.
    #[serde(default)]
    pub baselines: Vec<String>,
    pub schedulers: Vec<String>,
    /// Also runs with the baselines on the same cluster: the part of the jobs that use the first of them.
    pub beside: Option<f64>,
    /// Also runs with this assumed run time of every task.
    pub assumed_run_time_s: Option<f64>,
    /// Probability that an attempt is slow.
    pub stragglers: Option<f64>,
    /// Whether inputs have locations.
    #[serde(default)]
    pub inputs: bool,
}

#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct RatesEntry {
    on_node_mb_s: u32,
    in_rack_mb_s: u32,
    elsewhere_mb_s: u32,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Figures {
    pub apollo_4: Placing,
    pub apollo_5: Matching,
    pub apollo_12: Quality,
}

/// One task with several inputs.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Placing {
    pub inputs: Vec<Input>,
    pub servers: Vec<Server>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Input {
    pub mb: u32,
    /// The name of a server.
    pub on: String,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub name: String,
    pub rack: u32,
    #[serde(default)]
    pub wait_s: f64,
}

/// Tasks with an input each.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Matching {
    pub rounds: u32,
    pub input_mb: u32,
    pub servers: Vec<Server>,
    pub tasks: Vec<Task>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub name: String,
    /// The name of a server.
    pub on: String,
}

/// Jobs drawn at random.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    pub servers: u32,
    pub mean_wait_s: f64,
    pub mean_run_time_s: f64,
    pub speed_ups: Vec<f64>,
    pub rounds: u32,
    pub batches: Vec<Batch>,
}

#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    pub tasks: u32,
    /// Number of jobs for each seed.
    pub draws: u32,
}

impl Scenario {
    pub fn parse(text: &ScenarioText) -> Result<Scenario> {
        text.parse("apollo", Scenario::check)
    }

    pub fn rates(&self) -> Rates {
        let bytes = |mb: u32| u64::from(mb) * 1_000_000;
        let RatesEntry { on_node_mb_s, in_rack_mb_s, elsewhere_mb_s } = self.rates;
        Rates { on_node: bytes(on_node_mb_s), in_rack: bytes(in_rack_mb_s), elsewhere: bytes(elsewhere_mb_s) }
    }

    pub fn production(&self, figure: &str) -> Result<&ProductionFigure> {
        figure_of(&self.production.figure, figure)
    }

    fn check(&self) -> std::result::Result<(), String> {
        self.production.check()?;
        let RatesEntry { on_node_mb_s, in_rack_mb_s, elsewhere_mb_s } = self.rates;
        for (key, rate) in
            [("on_node_mb_s", on_node_mb_s), ("in_rack_mb_s", in_rack_mb_s), ("elsewhere_mb_s", elsewhere_mb_s)]
        {
            within(&format!("rates.{key}"), rate, 1.0..=MANY)?;
        }
        let Figures { apollo_4, apollo_5, apollo_12 } = &self.figure;
        check_servers(&apollo_4.servers, apollo_4.inputs.iter().map(|input| &input.on))
            .map_err(|what| format!("figure.apollo-4: {what}"))?;
        check_servers(&apollo_5.servers, apollo_5.tasks.iter().map(|task| &task.on))
            .map_err(|what| format!("figure.apollo-5: {what}"))?;
        apollo_12.check().map_err(|what| format!("figure.apollo-12: {what}"))
    }
}

/// Upper limit of counts and of seconds.
const MANY: f64 = 1e6;

fn check_servers<'a>(
    servers: &[Server],
    mut named: impl Iterator<Item = &'a String>,
) -> std::result::Result<(), String> {
    for server in servers {
        within("wait_s", server.wait_s, 0.0..=MANY)?;
    }
    match named.find(|name| servers.iter().all(|server| server.name != **name)) {
        Some(missing) => Err(format!("unknown server `{missing}`")),
        None => Ok(()),
    }
}

impl Production {
    fn check(&self) -> std::result::Result<(), String> {
        let Production { nodes, cpus, memory_gib, jobs, heartbeat_s, straggler_factor, .. } = *self;
        within("production.nodes", nodes, 1.0..=MANY)?;
        within("production.cpus", cpus, 1.0..=1_000.0)?;
        within("production.memory_gib", memory_gib, 1.0..=100_000.0)?;
        within("production.jobs", jobs, 1.0..=MANY)?;
        within("production.heartbeat_s", heartbeat_s, 0.01..=MANY)?;
        within("production.straggler_factor", straggler_factor, 1.0..=1_000.0)?;
        let Inputs { nodes_in_rack, replicas, mb_for_each_second } = self.inputs;
        within("production.inputs.nodes_in_rack", nodes_in_rack, 1.0..=MANY)?;
        within("production.inputs.replicas", replicas, 1.0..=100.0)?;
        within("production.inputs.mb_for_each_second", mb_for_each_second, 0.001..=10_000.0)?;
        for (name, figure) in &self.figure {
            figure.check().map_err(|what| format!("production.figure.{name}: {what}"))?;
        }
        Ok(())
    }
}

impl ProductionFigure {
    fn check(&self) -> std::result::Result<(), String> {
        within("nodes", self.nodes.unwrap_or(1), 1.0..=MANY)?;
        within("jobs", self.jobs.unwrap_or(1), 1.0..=MANY)?;
        within("beside", self.beside.unwrap_or(0.0), 0.0..=1.0)?;
        within("assumed_run_time_s", self.assumed_run_time_s.unwrap_or(1.0), 0.001..=MANY)?;
        within("stragglers", self.stragglers.unwrap_or(0.0), 0.0..=1.0)?;
        self.loads.iter().try_for_each(|&load| within("loads", load, 0.01..=10.0))?;
        self.baselines.iter().chain(&self.schedulers).try_for_each(|name| baselines::parse(name).map(drop))
    }
}

impl Quality {
    fn check(&self) -> std::result::Result<(), String> {
        within("servers", self.servers, 1.0..=10_000.0)?;
        within("mean_wait_s", self.mean_wait_s, 0.0..=MANY)?;
        within("mean_run_time_s", self.mean_run_time_s, 0.001..=MANY)?;
        within("rounds", self.rounds, 1.0..=MANY)?;
        for &speed_up in &self.speed_ups {
            within("speed_ups", speed_up, 1.0..=1_000.0)?;
        }
        for batch in &self.batches {
            within("tasks", batch.tasks, 1.0..=10_000.0)?;
            within("draws", batch.draws, 1.0..=MANY)?;
        }
        Ok(())
    }
}
