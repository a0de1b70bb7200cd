//! The arguments of a simulated run, and its settings.

use super::super::parse_task;
use crate::cluster::{configured, in_federation};
use crate::failure::{Failure, Result};
use amalgam_cli::values::{parse_option, parse_preset, parse_seeds};
use amalgam_core::dispatch::{Beside, Decide, DispatchSettings};
use amalgam_core::master::MasterSettings;
use amalgam_core::policy::completion::Rates;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Duration, JobId};
use amalgam_daemon::config::Config;
use amalgam_sim::{
    Costs, ExecutionSettings, FileSettings, InputSettings, NetworkSettings, Settings, SlowNodes, Subject,
};
use amalgam_workload::trace::{self, Node, Workload};
use clap::Args;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

#[derive(Args)]
#[command(args_override_self = true, allow_negative_numbers = true)]
pub struct RunArgs {
    /// A TOML file of flags, such as `nodes = 100`; those of the command line replace them
    pub(super) scenario: Option<PathBuf>,
    /// Which policies schedule: one preset, several with commas between, or `all` [default: that of --config, or amalgam]
    #[arg(long, value_name = "PRESETS", value_parser = parse_presets)]
    pub(super) preset: Option<Presets>,
    /// Part of the jobs, drawn by the seed, that use another preset on the same cluster, such as apollo-plus:0.5; results are
    /// also printed for each preset. Both must place tasks at nodes' queues. Queues may name their own in --config
    #[arg(long, value_name = "PRESET:PART", value_parser = parse_beside)]
    pub(super) beside: Option<BesideArg>,
    /// FORMAT:PATH, such as hawk:YH1.tr.gz; see `amalgam workload formats`
    #[arg(long, value_name = "WORKLOAD", required_unless_present = "scenario")]
    pub(super) workload: Option<String>,
    /// An option of the workload, such as limit=100; repeatable
    #[arg(short = 'w', long = "workload-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    pub(super) workload_options: Vec<(String, String)>,
    /// A server's configuration: its queues, its preset unless --preset or the scenario names one, and its policies, which
    /// apply to all presets of this run
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Seed of all random choices, also of the workload and the nodes unless they have their own
    #[arg(long, default_value_t = 1, overrides_with = "seeds")]
    pub(super) seed: u64,
    /// Run with each of these seeds, the last one included, and print means; for --json a list of all runs
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, overrides_with = "seed", conflicts_with_all = ["report", "csv", "parquet"])]
    pub(super) seeds: Option<RangeInclusive<u64>>,
    /// Number of runs at the same time; all cores by default. The results do not depend on it
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) threads: Option<usize>,
    /// Maximum simulated time
    #[arg(long, value_name = "TIME", value_parser = Duration::parse)]
    pub(super) until: Option<Duration>,
    /// Fail when a line of the workload is malformed or, at once, when a job can never run; and when a job failed or had
    /// not ended
    #[arg(long)]
    pub(super) strict: bool,
    /// Print the results as JSON: one object, or a list of them for several presets
    #[arg(long)]
    pub(super) json: bool,
    /// Write a page with tables and plots
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Print the story of a job, such as 3, the third to arrive, or of one of its tasks, such as 3.0.2 (job, stage, index),
    /// before the results
    #[arg(long, value_name = "JOB|TASK", value_parser = parse_subject, conflicts_with_all = ["seeds", "json"])]
    pub(super) story: Option<Subject>,
    /// Write a table of the jobs and one of the windows of 60 s to this directory, as CSV
    #[arg(long, value_name = "DIR")]
    pub(super) csv: Option<PathBuf>,
    /// The same as Parquet
    #[arg(long, value_name = "DIR")]
    pub(super) parquet: Option<PathBuf>,
    /// Run presets in which jobs yield, such as carbyne, again without altruism, and compare each job's end; at least one such
    /// preset is required
    #[arg(long)]
    pub(super) against_selfish: bool,
    /// Compare the jobs of presets with allowances, such as apollo, with the time of each job alone within its allowance and
    /// without any waits
    #[arg(long)]
    pub(super) against_oracle: bool,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    #[command(flatten)]
    pub(super) world: WorldArgs,
}

/// The presets on the command line.
#[derive(Clone)]
pub(super) struct Presets(Vec<Preset>);

fn parse_presets(text: &str) -> std::result::Result<Presets, String> {
    if text == "all" {
        return Ok(Presets(Preset::all().collect()));
    }
    let presets = text.split(',').map(parse_preset).collect::<std::result::Result<Vec<Preset>, _>>()?;
    match presets.iter().enumerate().find(|(at, preset)| presets[..*at].contains(preset)) {
        Some((_, twice)) => Err(format!("{} is there twice", twice.name())),
        None => Ok(Presets(presets)),
    }
}

/// A preset, and the part of the jobs that use it.
#[derive(Clone)]
pub(super) struct BesideArg {
    pub(super) preset: Preset,
    pub(super) part: f64,
}

fn parse_beside(text: &str) -> std::result::Result<BesideArg, String> {
    let (name, part) = text.split_once(':').ok_or("write a preset and a part of the jobs, such as apollo-plus:0.5")?;
    let preset = parse_preset(name)?;
    let part = part.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    let part = part.ok_or_else(|| format!("the part of the jobs is a number from 0 to 1, such as {name}:0.5"))?;
    Ok(BesideArg { preset, part })
}

#[derive(Args)]
#[command(next_help_heading = "The cluster")]
pub(super) struct ClusterArgs {
    /// How many nodes, or FORMAT:PATH, such as openb:nodes.csv
    #[arg(long, value_name = "N|NODES", default_value = "100")]
    pub(super) nodes: String,
    /// CPUs of each node
    #[arg(long, value_name = "CPUS", default_value = "1")]
    pub(super) cpus: String,
    /// Memory of each node
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub(super) memory: String,
    /// Number of racks, with the same number of nodes each
    #[arg(long, value_name = "N")]
    pub(super) racks: Option<u32>,
    /// For presets of federations: number of clusters, with the same number of nodes each and a master of their own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=200))]
    pub(super) clusters: Option<u8>,
    /// For presets of federations: number of global masters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=200))]
    pub(super) globals: Option<u8>,
    /// An option of the nodes, such as shares=0.4,0.1; repeatable
    #[arg(long = "node-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    pub(super) node_options: Vec<(String, String)>,
}

#[derive(Args)]
#[command(next_help_heading = "How it behaves")]
pub(super) struct WorldArgs {
    /// Interval of the nodes' reports
    #[arg(long, value_name = "TIME", value_parser = period, default_value = "10s")]
    pub(super) heartbeat: Duration,
    /// Grant a node's room only when the node reports, as the papers' systems do
    #[arg(long)]
    pub(super) decide_on_heartbeats: bool,
    /// Maximum number of grants for each report
    #[arg(long, value_name = "N", requires = "decide_on_heartbeats")]
    pub(super) grants_per_heartbeat: Option<NonZeroU32>,
    /// Number of processes of job managers that place all tasks themselves; 0: they are in the server
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) manager_processes: u8,
    /// Delay of a message between two processes
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, default_value = "500us")]
    pub(super) delay: Duration,
    /// Maximum random addition to each delay, uniformly distributed
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, default_value = "0s")]
    pub(super) jitter: Duration,
    /// Probability that a packet is lost and sent again after 200 ms
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    pub(super) loss: f64,
    /// Simulate every report of a node; without it, those that say nothing new only cost agent and master their time, where no decision
    /// depends on them
    #[arg(long)]
    pub(super) all_reports: bool,
    /// Decisions, disks, launches and the handling of messages take no time; messages still have their delay
    #[arg(long, overrides_with = "cost")]
    pub(super) free: bool,
    /// Time of an operation, such as message=12us,disk=1ms; `amalgam-lab bench costs` prints those of a machine
    #[arg(long, value_name = "NAME=TIME", overrides_with = "free", value_parser = parse_costs, default_value_t)]
    pub(super) cost: Costs,
    /// Slowdown of tasks beside others that use all CPUs of their node; 0.5 means 1.5 times the run time
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = slowdown)]
    pub(super) slowdown: f64,
    /// The probability that an attempt is a straggler
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    pub(super) stragglers: f64,
    /// Factor of a straggler's run time
    #[arg(long, value_name = "TIMES", default_value_t = 5.0, value_parser = straggler_factor)]
    pub(super) straggler_factor: f64,
    /// Slow nodes: the last of each EVERY nodes takes TIMES as long for each task, such as 10:2
    #[arg(long, value_name = "EVERY:TIMES", value_parser = slow_nodes)]
    pub(super) slow_nodes: Option<SlowNodes>,
    /// The probability that an attempt fails; -w retries=N lets it be tried again
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    pub(super) failures: f64,
    /// Size of each file that tasks declare as an output
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_size, default_value = "1MiB")]
    pub(super) file_size: u64,
    /// Bytes per second of a file from another node
    #[arg(long, value_name = "SIZE", value_parser = rate, default_value = "100MiB")]
    pub(super) file_rate: u64,
    /// Maximum size of the files that a node keeps for tasks to read
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_size, default_value = "10GiB")]
    pub(super) cache: u64,
    /// Store the inputs of tasks on nodes, each block on this number of nodes: tasks of first stages read blocks, later ones the
    /// outputs of earlier tasks. The workload or -w input=MB sets the sizes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) replicas: Option<u32>,
    /// Maximum size of a block
    #[arg(long, value_name = "SIZE", value_parser = rate, default_value = "256MiB", requires = "replicas")]
    pub(super) block: u64,
    /// MB a second at which a task reads from its own node, from another one in its rack and from elsewhere
    #[arg(long, value_name = "MB,MB,MB", value_parser = parse_rates, default_value = "160,100,80", requires = "replicas")]
    pub(super) read_rates: Rates,
}

fn parse_rates(text: &str) -> std::result::Result<Rates, String> {
    let rate = |text: &str| text.trim().parse().ok().filter(|mb: &u32| (1..=1_000_000).contains(mb));
    let rates: Option<Vec<u32>> = text.split(',').map(rate).collect();
    match rates.as_deref() {
        Some(&[on_node, in_rack, elsewhere]) if on_node >= in_rack && in_rack >= elsewhere => {
            let bytes = |mb: u32| u64::from(mb) * 1_000_000;
            Ok(Rates { on_node: bytes(on_node), in_rack: bytes(in_rack), elsewhere: bytes(elsewhere) })
        }
        _ => {
            Err("write three whole numbers of MB a second, none above the one before it, such as 160,100,80".to_owned())
        }
    }
}

fn rate(text: &str) -> std::result::Result<u64, String> {
    match amalgam_workload::quantities::parse_size(text) {
        Ok(0) => Err("a rate of 0 transfers no file; write for instance `100MiB`".to_owned()),
        Ok(rate) => Ok(rate),
        Err(wrong) => Err(wrong.to_string()),
    }
}

fn parse_subject(text: &str) -> std::result::Result<Subject, String> {
    match text.parse() {
        Ok(job) => Ok(Subject::Job(JobId(job))),
        Err(_) => parse_task(text).map(Subject::Task),
    }
}

fn parse_costs(text: &str) -> std::result::Result<Costs, String> {
    let mut costs = Costs::default();
    costs.set(text).map(|()| costs)
}

fn period(text: &str) -> std::result::Result<Duration, String> {
    let period = Duration::parse(text)?;
    if period < Duration::from_millis(1) { Err("it must be at least 1ms".to_owned()) } else { Ok(period) }
}

fn threads(text: &str) -> std::result::Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=1_024).contains(count))
        .ok_or_else(|| "write a number from 1 to 1024".to_owned())
}

fn probability(text: &str) -> std::result::Result<f64, String> {
    let value = number(text)?;
    if (0.0..1.0).contains(&value) { Ok(value) } else { Err("it must be at least 0 and less than 1".to_owned()) }
}

fn slowdown(text: &str) -> std::result::Result<f64, String> {
    let value = number(text)?;
    if (0.0..=1_000.0).contains(&value) { Ok(value) } else { Err("it must be at least 0 and at most 1000".to_owned()) }
}

fn straggler_factor(text: &str) -> std::result::Result<f64, String> {
    let value = number(text)?;
    if (1.0..=1_000.0).contains(&value) { Ok(value) } else { Err("it must be at least 1 and at most 1000".to_owned()) }
}

fn slow_nodes(text: &str) -> std::result::Result<SlowNodes, String> {
    let (every, factor) = text.split_once(':').ok_or("write EVERY:TIMES, such as 10:2")?;
    let every = every.parse().ok().filter(|every| *every > 0);
    let every = every.ok_or("write the number of nodes of which one is slow, at least 1, such as 10:2")?;
    Ok(SlowNodes { every, factor: straggler_factor(factor)? })
}

fn number(text: &str) -> std::result::Result<f64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

impl ClusterArgs {
    /// The numbers of clusters and global masters.
    pub(super) fn federation(&self) -> (u8, u8) {
        (self.clusters.unwrap_or(1), self.globals.unwrap_or(1))
    }
}

impl RunArgs {
    pub(super) fn nodes(&self, seed: u64) -> Result<Vec<Node>> {
        let ClusterArgs { nodes, cpus, memory, racks, node_options, .. } = &self.cluster;
        let source = match nodes.parse::<u32>() {
            Ok(count) => format!("drawn:{count}"),
            Err(_) => nodes.clone(),
        };
        let mut options = vec![("cpus".to_owned(), cpus.clone()), ("memory".to_owned(), memory.clone())];
        options.extend(racks.map(|racks| ("racks".to_owned(), racks.to_string())));
        options.extend(node_options.iter().cloned());
        Ok(trace::read_nodes(&source, &seeded(&options, seed))?)
    }

    pub(super) fn workload(&self, seed: u64) -> Result<Workload> {
        let remedy = "name one with --workload, or as `workload = \"FORMAT:PATH\"` in the scenario";
        let workload = self.workload.as_deref().ok_or_else(|| Failure::usage("no workload", remedy))?;
        Ok(trace::read(workload, &seeded(&self.workload_options, seed))?)
    }

    /// One for each preset, with the same queues.
    pub(super) fn configs(&self) -> Result<Vec<Config>> {
        let presets = self.preset.as_ref().map_or_else(
            || vec![None],
            |Presets(presets)| presets.iter().copied().map(Some).collect::<Vec<Option<Preset>>>(),
        );
        let is_federated = self.cluster.clusters.is_some() || self.cluster.globals.is_some();
        let configured = |preset| {
            let mut config = configured(self.config.as_deref(), preset)?;
            // Presets of single clusters are run beside those of federations.
            if is_federated {
                config.preset = in_federation(config.preset)?.unwrap_or(config.preset);
            }
            Ok(config)
        };
        presets.into_iter().map(configured).collect()
    }

    pub fn scenario(&self) -> Option<&Path> {
        self.scenario.as_deref()
    }

    fn beside(&self, config: &Config, seed: u64) -> Option<Beside> {
        let given = self.beside.as_ref().map(|BesideArg { preset, part }| Beside {
            preset: preset.name().to_owned(),
            part: (part * 1e6).round() as u32,
            seed,
        });
        given.or_else(|| config.master.dispatch.beside.clone().map(|beside| Beside { seed, ..beside }))
    }

    pub(super) fn settings(&self, config: &Config, mut preset: Preset, seed: u64) -> Settings {
        let WorldArgs { heartbeat, decide_on_heartbeats, delay, jitter, loss, free, cost, .. } = self.world;
        let WorldArgs { grants_per_heartbeat, slowdown, stragglers, straggler_factor, slow_nodes, failures, .. } =
            self.world;
        let WorldArgs { file_size: bytes, file_rate: bytes_per_second, cache: cache_bytes, .. } = self.world;
        let WorldArgs { replicas, block: block_bytes, read_rates: rates, .. } = self.world;
        let manager_processes = self.world.manager_processes;
        let most = grants_per_heartbeat;
        let decide = if decide_on_heartbeats { Decide::OnHeartbeats { most } } else { Decide::OnEvents };
        preset.seed = seed;
        Settings {
            oracle: self.against_oracle,
            preset,
            seed,
            manager_processes,
            federation: preset.is_federated().then(|| self.cluster.federation()),
            queues: config.queues.clone(),
            master: MasterSettings {
                heartbeat,
                dispatch: DispatchSettings { decide, beside: self.beside(config, seed), ..DispatchSettings::default() },
                ..MasterSettings::default()
            },
            network: NetworkSettings { delay, jitter, loss, ..NetworkSettings::default() },
            execution: ExecutionSettings {
                slowdown,
                stragglers,
                straggler_factor,
                slow_nodes,
                failures,
                ..ExecutionSettings::default()
            },
            files: FileSettings { bytes, bytes_per_second, cache_bytes, ..FileSettings::default() },
            inputs: replicas.map(|replicas| InputSettings { block_bytes, replicas, rates }),
            costs: if free { Costs::NONE } else { cost },
            until: self.until,
            rests: !self.world.all_reports,
            strict: self.strict,
            story: self.story,
            ..Settings::default()
        }
    }
}

/// The options, with the run's seed unless they set one.
fn seeded(options: &[(String, String)], seed: u64) -> Vec<(String, String)> {
    let mut options = options.to_vec();
    if !options.iter().any(|(key, _)| key == "seed") {
        options.push(("seed".to_owned(), seed.to_string()));
    }
    options
}
