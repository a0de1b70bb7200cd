//! What Apollo's figures are run with, as their scenario file says it.

use super::super::figure::{ScenarioText, within};
use crate::failure::Result;
use amalgam_core::policy::completion::Rates;
use serde::Deserialize;

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    rates: RatesEntry,
    pub figure: Figures,
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
    /// With each seed.
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

    fn check(&self) -> std::result::Result<(), String> {
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

/// Of anything that is counted, and in seconds.
const MANY: f64 = 1e6;

fn check_servers<'a>(
    servers: &[Server],
    mut named: impl Iterator<Item = &'a String>,
) -> std::result::Result<(), String> {
    for server in servers {
        within("wait_s", server.wait_s, 0.0..=MANY)?;
    }
    match named.find(|name| servers.iter().all(|server| server.name != **name)) {
        Some(missing) => Err(format!("there is no server `{missing}`")),
        None => Ok(()),
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
