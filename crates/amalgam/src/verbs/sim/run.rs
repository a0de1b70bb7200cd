//! One simulated run.

use super::{parse_task, printing, tables};
use crate::cluster::configured;
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_cli::files::{cannot_write, create};
use amalgam_cli::process::peak_memory;
use amalgam_cli::values::{parse_option, parse_preset, parse_seeds};
use amalgam_core::dispatch::{Beside, Decide, DispatchSettings};
use amalgam_core::master::MasterSettings;
use amalgam_core::policy::completion::Rates;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Duration, JobId};
use amalgam_core::why::counted;
use amalgam_daemon::config::Config;
use amalgam_sim::{
    Costs, ExecutionSettings, FileSettings, InputSettings, NetworkSettings, Outcome, Reference, Results, Settings,
    Simulation, Subject, capacity, report,
};
use amalgam_workload::trace::{self, Node, Workload};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
#[command(args_override_self = true, allow_negative_numbers = true)]
pub struct RunArgs {
    /// A TOML file of flags, such as `nodes = 100`; those of the command line replace them
    scenario: Option<PathBuf>,
    /// Which policies schedule: one preset, several with commas between, or `all` [default: that of --config, or drf]
    #[arg(long, value_name = "PRESETS", value_parser = parse_presets)]
    preset: Option<Presets>,
    /// Part of the jobs, drawn by the seed, that use another preset on the same cluster, such as apollo-plus:0.5; results are
    /// also printed for each preset. Both must place tasks at nodes' queues. Queues may name their own in --config
    #[arg(long, value_name = "PRESET:PART", value_parser = parse_beside)]
    beside: Option<BesideArg>,
    /// FORMAT:PATH, such as hawk:YH1.tr.gz; see `amalgam workload formats`
    #[arg(long, value_name = "WORKLOAD", required_unless_present = "scenario")]
    workload: Option<String>,
    /// An option of the workload, such as limit=100; repeatable
    #[arg(short = 'w', long = "workload-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    workload_options: Vec<(String, String)>,
    /// A server's configuration: its queues, its preset unless --preset is given, and its policies, which apply to all of
    /// --preset
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seed of all random choices, also of the workload and the nodes unless they have their own
    #[arg(long, default_value_t = 1, overrides_with = "seeds")]
    seed: u64,
    /// Run with each of these seeds, the last one included, and print means; for --json a list of all runs
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, overrides_with = "seed", conflicts_with_all = ["report", "csv", "parquet"])]
    seeds: Option<RangeInclusive<u64>>,
    /// Number of runs at the same time; all cores by default. The results do not depend on it
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Maximum simulated time
    #[arg(long, value_name = "TIME", value_parser = Duration::parse)]
    until: Option<Duration>,
    /// Fail when a line of the workload is malformed or, at once, when a job can never run; and when a job failed or had
    /// not ended
    #[arg(long)]
    strict: bool,
    /// Print the results as JSON: one object, or a list of them for several presets
    #[arg(long)]
    json: bool,
    /// Write a page with tables and plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the story of a job, such as 3, the third to arrive, or of one of its tasks, such as 3.0.2 (job, stage, index),
    /// before the results
    #[arg(long, value_name = "JOB|TASK", value_parser = parse_subject, conflicts_with_all = ["seeds", "json"])]
    story: Option<Subject>,
    /// Write a table of the jobs and one of the windows of 60 s to this directory, as CSV
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// The same as Parquet
    #[arg(long, value_name = "DIR")]
    parquet: Option<PathBuf>,
    /// Run presets in which jobs yield, such as carbyne, again without altruism, and compare each job's end; at least one such
    /// preset is required
    #[arg(long)]
    against_selfish: bool,
    /// Compare the jobs of presets with allowances, such as apollo, with the time of each job alone within its allowance and
    /// without any waits
    #[arg(long)]
    against_oracle: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    world: WorldArgs,
}

/// The presets on the command line.
#[derive(Clone)]
struct Presets(Vec<Preset>);

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
struct BesideArg {
    preset: Preset,
    part: f64,
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
struct ClusterArgs {
    /// How many nodes, or FORMAT:PATH, such as openb:nodes.csv
    #[arg(long, value_name = "N|NODES", default_value = "100")]
    nodes: String,
    /// CPUs of each node
    #[arg(long, value_name = "CPUS", default_value = "1")]
    cpus: String,
    /// Memory of each node
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    memory: String,
    /// Number of racks, with the same number of nodes each
    #[arg(long, value_name = "N")]
    racks: Option<u32>,
    /// For presets of federations: number of clusters, with the same number of nodes each and a master of their own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=200))]
    clusters: Option<u8>,
    /// For presets of federations: number of global masters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=200))]
    globals: Option<u8>,
    /// An option of the nodes, such as shares=0.4,0.1; repeatable
    #[arg(long = "node-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    node_options: Vec<(String, String)>,
}

#[derive(Args)]
#[command(next_help_heading = "How it behaves")]
struct WorldArgs {
    /// Interval of the nodes' reports
    #[arg(long, value_name = "TIME", value_parser = period, default_value = "10s")]
    heartbeat: Duration,
    /// Grant a node's room only when the node reports, as the papers' systems do
    #[arg(long)]
    decide_on_heartbeats: bool,
    /// Maximum number of grants for each report
    #[arg(long, value_name = "N", requires = "decide_on_heartbeats")]
    grants_per_heartbeat: Option<NonZeroU32>,
    /// Number of processes of job managers that place all tasks themselves; 0: they are in the server
    #[arg(long, value_name = "N", default_value_t = 0)]
    manager_processes: u8,
    /// Delay of a message between two processes
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, default_value = "500us")]
    delay: Duration,
    /// Maximum random addition to each delay, uniformly distributed
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, default_value = "0s")]
    jitter: Duration,
    /// Probability that a packet is lost and sent again after 200 ms
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    loss: f64,
    /// Decisions, disks, launches and the handling of messages take no time; messages still have their delay
    #[arg(long, overrides_with = "cost")]
    free: bool,
    /// Time of an operation, such as message=12us,disk=1ms; `amalgam-lab bench costs` prints those of a machine
    #[arg(long, value_name = "NAME=TIME", overrides_with = "free", value_parser = parse_costs, default_value_t)]
    cost: Costs,
    /// Slowdown of tasks beside others that use all CPUs of their node; 0.5 means 1.5 times the run time
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = slowdown)]
    slowdown: f64,
    /// The probability that an attempt is a straggler
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    stragglers: f64,
    /// Factor of a straggler's run time
    #[arg(long, value_name = "TIMES", default_value_t = 5.0, value_parser = straggler_factor)]
    straggler_factor: f64,
    /// The probability that an attempt fails; -w retries=N lets it be tried again
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    failures: f64,
    /// Size of each file that tasks declare as an output
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_size, default_value = "1MiB")]
    file_size: u64,
    /// Bytes per second of a file from another node
    #[arg(long, value_name = "SIZE", value_parser = rate, default_value = "100MiB")]
    file_rate: u64,
    /// Maximum size of the files that a node keeps for tasks to read
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_size, default_value = "10GiB")]
    cache: u64,
    /// Store the inputs of tasks on nodes, each block on this number of nodes: tasks of first stages read blocks, later ones the
    /// outputs of earlier tasks. The workload or -w input=MB sets the sizes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    replicas: Option<u32>,
    /// Maximum size of a block
    #[arg(long, value_name = "SIZE", value_parser = rate, default_value = "256MiB", requires = "replicas")]
    block: u64,
    /// MB a second at which a task reads from its own node, from another one in its rack and from elsewhere
    #[arg(long, value_name = "MB,MB,MB", value_parser = parse_rates, default_value = "160,100,80", requires = "replicas")]
    read_rates: Rates,
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

fn number(text: &str) -> std::result::Result<f64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

impl ClusterArgs {
    /// The numbers of clusters and global masters.
    fn federation(&self) -> (u8, u8) {
        (self.clusters.unwrap_or(1), self.globals.unwrap_or(1))
    }
}

impl RunArgs {
    fn nodes(&self, seed: u64) -> Result<Vec<Node>> {
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

    fn workload(&self, seed: u64) -> Result<Workload> {
        let remedy = "name one with --workload, or as `workload = \"FORMAT:PATH\"` in the scenario";
        let workload = self.workload.as_deref().ok_or_else(|| Failure::usage("no workload", remedy))?;
        Ok(trace::read(workload, &seeded(&self.workload_options, seed))?)
    }

    /// One for each preset, with the same queues.
    fn configs(&self) -> Result<Vec<Config>> {
        let presets = self.preset.as_ref().map_or_else(
            || vec![None],
            |Presets(presets)| presets.iter().copied().map(Some).collect::<Vec<Option<Preset>>>(),
        );
        presets.into_iter().map(|preset| configured(self.config.as_deref(), preset)).collect()
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

    fn settings(&self, config: &Config, mut preset: Preset, seed: u64) -> Settings {
        let WorldArgs { heartbeat, decide_on_heartbeats, delay, jitter, loss, free, cost, .. } = self.world;
        let WorldArgs { grants_per_heartbeat, slowdown, stragglers, straggler_factor, failures, .. } = self.world;
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
                failures,
                ..ExecutionSettings::default()
            },
            files: FileSettings { bytes, bytes_per_second, cache_bytes, ..FileSettings::default() },
            inputs: replicas.map(|replicas| InputSettings { block_bytes, replicas, rates }),
            costs: if free { Costs::NONE } else { cost },
            until: self.until,
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

/// The inputs that all presets have in common.
struct World {
    seed: u64,
    nodes: Vec<Node>,
    workload: Workload,
}

impl World {
    fn of(args: &RunArgs, seed: u64) -> Result<World> {
        let world = World { seed, nodes: args.nodes(seed)?, workload: args.workload(seed)? };
        if world.nodes.is_empty() {
            return Err(Failure::usage("no nodes", "give at least one with --nodes"));
        }
        Ok(world)
    }
}

/// Whether jobs of the other preset can share a cluster with each of these presets.
fn check_shares(presets: &[Preset], other: Preset) -> Result<()> {
    let shares = |own: &Preset| own.beside(other.name()).map(drop);
    let Err((what, remedy)) = presets.iter().try_for_each(shares) else { return Ok(()) };
    let suitable = Preset::all().find(|own| own.name() != other.name() && shares(own).is_ok());
    match suitable.filter(|_| presets.len() > 1) {
        Some(own) => {
            let what = format!(
                "--beside needs one preset whose cluster {} can share, and these are {}",
                other.name(),
                presets.len()
            );
            Err(Failure::usage(what, format!("name one, such as `--preset {}`", own.name())))
        }
        None => Err(Failure::usage(what, remedy)),
    }
}

pub fn execute(args: &RunArgs) -> Result<()> {
    let seeds = args.seeds.clone().unwrap_or(args.seed..=args.seed);
    let worlds = seeds.clone().map(|seed| World::of(args, seed)).collect::<Result<Vec<World>>>();
    let worlds = worlds.map_err(|failure| match args.scenario() {
        Some(path) => Failure { what: format!("with {}: {}", path.display(), failure.what), ..failure },
        None => failure,
    })?;
    let first = &worlds[0];
    if args.world.replicas.is_some() {
        worlds.iter().try_for_each(|world| check_inputs(&world.workload))?;
    }
    if args.strict {
        worlds.iter().try_for_each(|world| check_workload(&world.workload))?;
    }
    if let Some(subject) = args.story {
        worlds.iter().try_for_each(|world| check_subject(subject, &world.workload))?;
    }
    let configs = args.configs()?;
    let presets: Vec<Preset> = configs.iter().map(|config| config.preset).collect();
    if let Some(BesideArg { preset: other, .. }) = &args.beside {
        check_shares(&presets, *other)?;
    }
    check_federation(&args.cluster, &presets, first.nodes.len())?;
    let federated = configs.iter().filter(|config| config.preset.is_federated());
    federated
        .map(|config| config.queues.check_federated(args.cluster.federation().1))
        .try_for_each(|checked| checked.map_err(|error| Failure::usage(error.problem, error.remedy)))?;
    if args.against_selfish {
        let yields = |preset: &Preset| selfish(*preset).is_some();
        let what = "in which they do, with altruism above 0";
        check_compares("--against-selfish", &presets, yields, "jobs never yield", what)?;
    }
    if args.against_oracle {
        let allows = |preset: &Preset| preset.entitled().is_some();
        check_compares("--against-oracle", &presets, allows, "jobs are allowed nothing", "in which they are")?;
    }
    // Before the simulation, so that an unwritable place costs no time.
    let report = args.report.as_deref().map(|path| Ok::<_, Failure>((path, create(path)?))).transpose()?;
    args.csv.iter().chain(&args.parquet).try_for_each(|directory| tables::make(directory))?;

    // After all checks, so that an error is the only output.
    tell_gaps(&first.workload);
    report_heartbeats(first, args.world.heartbeat);
    report_inputs(args, first);
    let runs = run_all(args, &worlds, &configs);
    if args.strict {
        runs.iter().try_for_each(check_fits)?;
    }
    check_any_fits(&runs, &first.workload)?;
    for run in runs.iter().filter(|_| args.story.is_some()) {
        let heading = if runs.len() > 1 { format!("{}:\n", run.results.preset) } else { String::new() };
        show::print(&(heading + &printing::story(run)))?;
    }
    let results: Vec<&Results> = runs.iter().map(|run| &run.results).collect();
    match (&results[..], args.json) {
        ([run], true) => show::json(run)?,
        (runs, true) => show::json(&runs)?,
        ([run], false) => show::print(&printing::table(run))?,
        (runs, false) => show::print(&printing::comparison(runs, &seeds))?,
    }
    // Files are written last: the disk may be full.
    for run in &runs {
        args.csv.iter().try_for_each(|directory| tables::write_csv(directory, run))?;
        args.parquet.iter().try_for_each(|directory| tables::write_parquet(directory, run))?;
    }
    if let Some((path, mut file)) = report {
        let command = format!("amalgam {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "));
        let title = format!("{} on {} nodes", first.workload.name, first.nodes.len());
        let notes = &first.workload.notes;
        let page = report::html(&title, &command, notes, &runs).map_err(|error| Failure::new(error, ""))?;
        let written = file.write_all(page.as_bytes()).and_then(|()| file.finish());
        written.map_err(|error| cannot_write(path, &error))?;
    }
    if args.strict { runs.iter().try_for_each(check_ends) } else { Ok(()) }
}

/// Clusters and global masters need a preset of federations, and no cluster may be empty.
fn check_federation(args: &ClusterArgs, presets: &[Preset], nodes: usize) -> Result<()> {
    let names = || Preset::FEDERATED.map(Preset::name).join(" or ");
    if (args.clusters.is_some() || args.globals.is_some()) && !presets.iter().any(|preset| preset.is_federated()) {
        let what = "--clusters and --globals are for presets of federations";
        return Err(Failure::usage(what, format!("choose one with --preset: {}", names())));
    }
    let clusters = usize::from(args.federation().0);
    if nodes.div_ceil(clusters) * (clusters - 1) >= nodes {
        let what = format!("{nodes} nodes in {clusters} clusters of equally many leave one without any");
        return Err(Failure::usage(what, "give fewer clusters, or more nodes"));
    }
    Ok(())
}

/// Runs every preset in every world, in the order of the presets and then of the seeds.
fn run_all(args: &RunArgs, worlds: &[World], configs: &[Config]) -> Vec<Outcome> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let last = (configs.len() * worlds.len()) as u64;
    let again = configs.iter().filter(|config| args.against_selfish && selfish(config.preset).is_some()).count();
    let progress =
        Progress::of((configs.len() + again) * worlds.iter().map(|world| world.workload.jobs.len()).sum::<usize>());
    let work = |number: u64| {
        let number = number as usize - 1;
        let World { seed, nodes, workload } = &worlds[number % worlds.len()];
        let config = &configs[number / worlds.len()];
        let preset = config.preset;
        let mut run = simulate(args.settings(config, preset, *seed), nodes, workload, &progress);
        if let Some(selfish) = selfish(preset).filter(|_| args.against_selfish) {
            let settings = Settings { story: None, ..args.settings(config, selfish, *seed) };
            run.compare_with_selfish(&simulate(settings, nodes, workload, &progress));
        }
        run.results.reference = reference(&run, workload, nodes);
        run
    };
    let mut runs = Vec::new();
    amalgam_sim::in_order(1..=last, args.threads.unwrap_or_else(cores), work, |run| runs.push(run));
    runs
}

/// The same preset without yielding jobs; `None` if its jobs never yield.
fn selfish(mut preset: Preset) -> Option<Preset> {
    preset.yielding_mut().filter(|yielding| yielding.altruism > 0)?.altruism = 0;
    Some(preset)
}

/// Checks that an option compares something: at least one preset has the property that the others lack (`never`).
fn check_compares(
    option: &str,
    presets: &[Preset],
    has: impl Fn(&Preset) -> bool,
    never: &str,
    what: &str,
) -> Result<()> {
    if presets.iter().any(&has) {
        return Ok(());
    }
    let names: Vec<&str> = presets.iter().map(|preset| preset.name()).collect();
    let problem = format!("{option} compares nothing here: {never} under {}", names.join(", "));
    let with: Vec<&str> = Preset::all().filter(&has).map(Preset::name).collect();
    Err(Failure::usage(problem, format!("name a preset {what} ({}), or leave it out", with.join(", "))))
}

/// Failures of a strict run.
fn check_fits(run: &Outcome) -> Result<()> {
    let Results { preset, refused_jobs, .. } = &run.results;
    let Some(first) = refused_jobs.first() else { return Ok(()) };
    let what = format!("{preset}: a job can never run on these nodes: {first}");
    Err(Failure::new(what, "give larger nodes, or leave out --strict to continue without such jobs"))
}

/// A run without any job is an error.
fn check_any_fits(runs: &[Outcome], workload: &Workload) -> Result<()> {
    let is_empty = |run: &Outcome| run.results.refused_jobs.len() >= workload.jobs.len();
    if !runs.iter().all(is_empty) {
        return Ok(());
    }
    match runs.first().and_then(|run| run.results.refused_jobs.first()) {
        Some(first) => {
            let jobs = counted(workload.jobs.len() as u64, "job");
            let what = format!(
                "{jobs} can never run on these nodes, and `{}` has no other; the first: {first}",
                workload.name
            );
            Err(Failure::new(what, "give larger nodes with --cpus and --memory, or nodes that have what the jobs need"))
        }
        None => {
            let what = format!("`{}` has no jobs, so there is nothing to simulate", workload.name);
            Err(Failure::usage(what, "name another --workload, or options of it that leave some jobs in"))
        }
    }
}

fn check_ends(run: &Outcome) -> Result<()> {
    let Results { preset, unfinished_jobs, failed_jobs, .. } = &run.results;
    if *unfinished_jobs > 0 {
        let what = format!("{preset}: {} had not ended", counted(*unfinished_jobs, "job"));
        return Err(Failure::new(what, "give more time with --until, or leave out --strict"));
    }
    if *failed_jobs > 0 {
        let what = format!("{preset}: {} failed", counted(*failed_jobs, "job"));
        return Err(Failure::new(what, "let tasks be tried again with -w retries=N, or leave out --strict"));
    }
    Ok(())
}

/// Whether the workload has inputs that can be stored on nodes.
fn check_inputs(workload: &Workload) -> Result<()> {
    let mut stages = workload.jobs.iter().flat_map(|job| &job.spec.stages);
    if stages.any(|stage| !stage.input_kib.is_empty()) {
        return Ok(());
    }
    let what = format!("`{}` has no sizes of inputs, so no inputs can be stored on nodes", workload.name);
    Err(Failure::usage(what, "use -w input=MB, for each second of a task's run time, or leave out --replicas"))
}

fn check_workload(workload: &Workload) -> Result<()> {
    let Some(first) = workload.malformed.first.first() else { return Ok(()) };
    let what =
        format!("{} of the workload are malformed; the first: {first}", counted(workload.malformed.count, "line"));
    Err(Failure::new(what, "correct the file, or leave out --strict to continue without such lines"))
}

/// Whether the subject of the story exists.
fn check_subject(subject: Subject, workload: &Workload) -> Result<()> {
    let JobId(id) = match subject {
        Subject::Job(job) => job,
        Subject::Task(task) => task.job,
    };
    let jobs = workload.jobs.len();
    let job = usize::try_from(id).ok().and_then(|id| workload.jobs.get(id.checked_sub(1)?));
    let Some(job) = job else {
        let remedy = format!("jobs count from 1 in the order of their arrival: 1 to {jobs}");
        return Err(Failure::usage(format!("no job {id}: the workload has {}", counted(jobs as u64, "job")), remedy));
    };
    let Subject::Task(task) = subject else { return Ok(()) };
    let stages = &job.spec.stages;
    let Some(stage) = stages.get(task.stage as usize) else {
        let what = format!("no stage {} of job {id}, which has {}", task.stage, counted(stages.len() as u64, "stage"));
        return Err(Failure::usage(what, "stages count from 0"));
    };
    let tasks = stage.tasks.len();
    if task.index >= tasks {
        let what = format!("no task {task}: its stage has {}", counted(u64::from(tasks), "task"));
        return Err(Failure::usage(what, "tasks count from 0"));
    }
    Ok(())
}

/// Prints what the trace lacks and how the gaps were filled.
fn tell_gaps(workload: &Workload) {
    workload.notes.iter().for_each(|note| show::note(&format!("note: {note}")));
    if workload.malformed.count > 0 {
        let lines = counted(workload.malformed.count, "malformed line");
        show::note(&format!("note: left out: {lines}; the first:"));
        workload.malformed.first.iter().for_each(|line| show::note(&format!("  {line}")));
    }
}

/// Explains why the run may take long, and what would help.
fn report_heartbeats(world: &World, heartbeat: Duration) {
    const MANY: u64 = 20_000_000;
    let span = world.workload.jobs.last().map_or(Duration::ZERO, |job| job.arrival);
    let beats = world.nodes.len() as u64 * (span.as_micros() / heartbeat.as_micros());
    if beats > MANY {
        let millions = beats / 1_000_000;
        show::note(&format!(
            "note: jobs arrive over {span}: the nodes report {millions} million times before the last does, which takes most \
             of the time; a longer --heartbeat makes that less"
        ));
    }
}

/// Prints options about inputs that have no effect, or another effect than expected.
fn report_inputs(args: &RunArgs, world: &World) {
    let nodes = world.nodes.len();
    match args.world.replicas {
        Some(replicas) if replicas as usize > nodes => show::note(&format!(
            "note: with {} each block has as many copies, not {replicas}",
            counted(nodes as u64, "node")
        )),
        None if args.workload_options.iter().any(|(key, _)| key == "input") => show::note(
            "note: -w input has no effect without --replicas N, which stores inputs on nodes: reading them takes no time",
        ),
        _ => {}
    }
}

/// Lower bounds of any scheduler, for the jobs that fit on a node. Only if all of them did all their work.
fn reference(run: &Outcome, workload: &Workload, nodes: &[Node]) -> Option<Reference> {
    let Results { unfinished_jobs, failed_jobs, succeeded_jobs, .. } = run.results;
    let fitting = workload.jobs.iter().zip(&run.jobs).filter(|(_, result)| result.outcome != "refused");
    (unfinished_jobs == 0 && failed_jobs == 0 && succeeded_jobs > 0)
        .then(|| Reference::of(fitting.map(|(job, _)| job), &capacity(nodes)))
}

/// A progress bar on a terminal: the jobs of all runs that have ended.
struct Progress(ProgressBar);

impl Progress {
    fn of(jobs: usize) -> Progress {
        let target = if show::is_watched() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(jobs as u64), target);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} jobs have ended, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress(bar)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn simulate(settings: Settings, nodes: &[Node], workload: &Workload, progress: &Progress) -> Outcome {
    let started = Instant::now();
    let mut ended = 0;
    let mut outcome = Simulation::new(settings, nodes, workload).run_watched(&mut |now| {
        progress.0.inc((now - ended) as u64);
        ended = now;
    });
    outcome.results.wall_seconds = started.elapsed().as_secs_f64();
    outcome.results.peak_memory_bytes = peak_memory();
    outcome
}
