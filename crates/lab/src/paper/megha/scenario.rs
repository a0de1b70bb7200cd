//! The scenario file of Megha's figures.

use super::super::figure::{ScenarioText, figure_of, within};
use amalgam_cli::failure::Result;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::QueueSpec;
use amalgam_sim::Costs;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub setup: Setup,
    workload: BTreeMap<String, WorkloadEntry>,
    figure: BTreeMap<String, FigureScenario>,
    pub prototype: Prototype,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub nodes: u32,
    pub cpus: u32,
    pub memory_gib: u32,
    pub heartbeat_s: f64,
    pub delay_ms: f64,
    globals: u8,
    clusters: u8,
    /// A file in the directory of traces, and a directory there.
    pub node_constraints: String,
    pub task_constraints: String,
    /// The part of the stages that get constraints.
    pub constrained: f64,
    /// The maximum part of the cluster that one job may need at once.
    pub widest: f64,
    /// The maximum duration of a job without any waits.
    pub longest_s: Option<f64>,
    /// Replaces every workload in smoke runs.
    stand_in: WorkloadEntry,
}

/// The source of jobs.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct WorkloadEntry {
    /// A format and a path in the directory of traces.
    pub read: String,
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The number of tasks to read.
    pub tasks: u64,
    #[serde(default)]
    pub constrained: bool,
}

/// The cases are all combinations of the listed values. By default, values are those of the setup.
#[derive(Clone, Default, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct FigureScenario {
    pub workloads: Vec<String>,
    pub schedulers: Vec<String>,
    #[serde(default)]
    loads: Vec<f64>,
    /// Mean gap between jobs that arrive at random; 0: all arrive at once.
    #[serde(default)]
    gaps_s: Vec<f64>,
    /// Time from the first job to the last one; jobs arrive at random.
    #[serde(default)]
    within_s: Vec<f64>,
    /// The number of nodes that loads refer to, if it differs from the case's.
    pub load_nodes: Option<u32>,
    #[serde(default)]
    pub nodes: Vec<u32>,
    #[serde(default)]
    pub masters: Vec<Masters>,
    #[serde(default)]
    pub heartbeats_s: Vec<f64>,
    #[serde(default)]
    pub costs: Vec<CostCase>,
    #[serde(default)]
    pub users: Vec<User>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Masters {
    pub globals: u8,
    pub clusters: u8,
}

/// The arrivals of jobs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// At random, so that this part of the nodes would be busy at the peak if no task waited.
    Load(f64),
    /// At random, with this mean gap.
    Gap(f64),
    /// At random, with this number of seconds between the first and the last.
    Within(f64),
    AtOnce,
}

/// Costs that differ from those of a usual machine.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct CostCase {
    pub name: String,
    #[serde(default)]
    set: String,
}

/// A run on real daemons, and the settings of its simulation.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Prototype {
    nodes: u32,
    clusters: u8,
    globals: u8,
    scheduler: String,
    /// Factor of the run times in the trace.
    time_scale: f64,
    longest_s: f64,
    within_s: f64,
    /// The simulator's delay between two processes.
    delay_ms: f64,
    /// In the form of `sim run --cost`.
    costs: String,
    #[serde(rename = "replay")]
    pub replays: Vec<Replay>,
}

/// Jobs, and the size of the nodes on which they run.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    pub name: String,
    pub workload: String,
    cpus: u32,
    memory_gib: u32,
}

/// A user, whose jobs have a queue of their own.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct User {
    pub name: String,
    share: f64,
    /// The number of its global master, from 1.
    global: u8,
}

/// Upper limit of counts and of seconds.
const MANY: f64 = 1e6;

impl Scenario {
    pub fn parse(text: &ScenarioText) -> Result<Scenario> {
        text.parse("megha", Scenario::check)
    }

    pub fn figure(&self, name: &str) -> Result<&FigureScenario> {
        figure_of(&self.figure, name)
    }

    pub fn workload(&self, name: &str) -> &WorkloadEntry {
        &self.workload[name]
    }

    /// The scenario and the figure with the only case of a replay. All times are divided by `part`.
    pub fn replayed(&self, replay: &Replay, part: u32) -> (Scenario, FigureScenario) {
        let Prototype { nodes, clusters, globals, ref scheduler, time_scale, longest_s, within_s, delay_ms, .. } =
            self.prototype;
        let (mut scenario, part) = (self.clone(), f64::from(part));
        let Setup { heartbeat_s, .. } = self.setup;
        let Replay { cpus, memory_gib, .. } = *replay;
        let (heartbeat_s, longest_s) = (heartbeat_s / part, Some(longest_s / part));
        let setup = &mut scenario.setup;
        *setup =
            Setup { nodes, cpus, memory_gib, heartbeat_s, delay_ms, globals, clusters, longest_s, ..setup.clone() };
        for entry in scenario.workload.values_mut().chain([&mut setup.stand_in]) {
            entry.options.insert("time-scale".to_owned(), (time_scale / part).to_string());
        }
        let figure = FigureScenario {
            workloads: vec![replay.workload.clone()],
            schedulers: vec![scheduler.clone()],
            within_s: vec![within_s / part],
            costs: vec![CostCase { name: String::new(), set: self.prototype.costs.clone() }],
            ..FigureScenario::default()
        };
        (scenario, figure)
    }

    fn check(&self) -> std::result::Result<(), String> {
        self.setup.check()?;
        self.prototype.check().map_err(|what| format!("prototype: {what}"))?;
        let replayed = self.prototype.replays.iter().map(|replay| &replay.workload);
        if let Some(unknown) = replayed.into_iter().find(|name| !self.workload.contains_key(*name)) {
            return Err(format!("prototype: unknown workload `{unknown}`"));
        }
        for (name, entry) in &self.workload {
            within(&format!("workload.{name}: tasks"), entry.tasks as f64, 1.0..=1e8)?;
        }
        for (name, figure) in &self.figure {
            figure.check().map_err(|what| format!("figure.{name}: {what}"))?;
            if let Some(unknown) = figure.workloads.iter().find(|workload| !self.workload.contains_key(*workload)) {
                return Err(format!("figure.{name}: unknown workload `{unknown}`"));
            }
            let globals = figure.masters.iter().map(|masters| masters.globals).min().unwrap_or(self.setup.globals);
            for user in &figure.users {
                within(&format!("figure.{name}: global of {}", user.name), user.global, 1.0..=f64::from(globals))?;
            }
        }
        Ok(())
    }
}

impl Setup {
    pub fn masters(&self) -> Masters {
        Masters { globals: self.globals, clusters: self.clusters }
    }

    pub fn stand_in(&self) -> &WorkloadEntry {
        &self.stand_in
    }

    fn check(&self) -> std::result::Result<(), String> {
        within("setup.nodes", self.nodes, 1.0..=MANY)?;
        within("setup.cpus", self.cpus, 1.0..=1_000.0)?;
        within("setup.memory_gib", self.memory_gib, 1.0..=100_000.0)?;
        within("setup.heartbeat_s", self.heartbeat_s, 0.01..=MANY)?;
        within("setup.delay_ms", self.delay_ms, 0.0..=MANY)?;
        within("setup.constrained", self.constrained, 0.0..=1.0)?;
        within("setup.widest", self.widest, 0.001..=1.0)?;
        within("setup.stand_in.tasks", self.stand_in.tasks as f64, 1.0..=1e8)?;
        self.masters().check().map_err(|what| format!("setup: {what}"))
    }
}

impl Prototype {
    fn check(&self) -> std::result::Result<(), String> {
        within("nodes", self.nodes, 1.0..=10_000.0)?;
        Masters { globals: self.globals, clusters: self.clusters }.check()?;
        within("time_scale", self.time_scale, 1e-6..=1e3)?;
        within("longest_s", self.longest_s, 0.001..=MANY)?;
        within("within_s", self.within_s, 0.0..=MANY)?;
        within("delay_ms", self.delay_ms, 0.0..=MANY)?;
        Preset::parse(&self.scheduler)?;
        Costs::default().set(&self.costs)?;
        for Replay { name, cpus, memory_gib, .. } in &self.replays {
            within(&format!("cpus of {name}"), *cpus, 1.0..=1_000.0)?;
            within(&format!("memory_gib of {name}"), *memory_gib, 1.0..=100_000.0)?;
        }
        Ok(())
    }
}

impl Masters {
    fn check(&self) -> std::result::Result<(), String> {
        within("globals", self.globals, 1.0..=200.0)?;
        within("clusters", self.clusters, 1.0..=200.0)
    }
}

impl FigureScenario {
    pub fn arrivals(&self) -> Vec<Arrivals> {
        let loads = self.loads.iter().map(|&load| Arrivals::Load(load));
        let gap = |&gap: &f64| if gap > 0.0 { Arrivals::Gap(gap) } else { Arrivals::AtOnce };
        let within = self.within_s.iter().map(|&within| Arrivals::Within(within));
        loads.chain(self.gaps_s.iter().map(gap)).chain(within).collect()
    }

    /// A queue for each user.
    pub fn queues(&self) -> std::result::Result<QueueTree, String> {
        let spec = |user: &User| QueueSpec {
            guaranteed: (user.share * 1e6).round() as u32,
            weight: (user.share * 1e3).round() as u32,
            global: user.global.checked_sub(1),
            ..QueueSpec::named(&format!("root.{}", user.name))
        };
        QueueTree::new(self.users.iter().map(spec).collect()).map_err(|error| error.to_string())
    }

    fn check(&self) -> std::result::Result<(), String> {
        self.loads.iter().try_for_each(|&load| within("loads", load, 0.01..=100.0))?;
        self.gaps_s.iter().try_for_each(|&gap| within("gaps_s", gap, 0.0..=MANY))?;
        within("load_nodes", self.load_nodes.unwrap_or(1), 1.0..=MANY)?;
        self.within_s.iter().try_for_each(|&time| within("within_s", time, 0.0..=MANY))?;
        self.nodes.iter().try_for_each(|&nodes| within("nodes", nodes, 1.0..=MANY))?;
        self.masters.iter().try_for_each(Masters::check)?;
        self.heartbeats_s.iter().try_for_each(|&period| within("heartbeats_s", period, 0.01..=MANY))?;
        self.schedulers.iter().try_for_each(|name| Preset::parse(name).map(drop))?;
        self.costs.iter().try_for_each(|case| case.costs().map(drop))?;
        for user in &self.users {
            within(&format!("share of {}", user.name), user.share, 0.001..=1.0)?;
        }
        self.queues().map(drop)
    }
}

impl CostCase {
    /// # Errors
    /// A sentence with the allowed values.
    pub fn costs(&self) -> std::result::Result<Costs, String> {
        let mut costs = Costs::default();
        match &*self.set {
            "" => Ok(costs),
            set => costs.set(set).map(|()| costs),
        }
    }
}
