//! One simulated run.

use crate::failure::{Failure, Result};
use crate::show;
use crate::verbs::workload::parse_option;
use amalgam_core::master::{Decide, MasterSettings};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;
use amalgam_sim::{Costs, NetworkSettings, Outcome, Reference, Results, Settings, Simulation, capacity};
use amalgam_workload::trace::{self, Node, Workload};
use clap::Args;
use std::time::Instant;

#[derive(Args)]
pub struct RunArgs {
    /// Which policies schedule
    #[arg(long, value_parser = Preset::parse, default_value = "drf")]
    preset: Preset,
    /// FORMAT:PATH, such as hawk:YH1.tr.gz; see `amalgam workload formats`
    #[arg(long, value_name = "WORKLOAD")]
    workload: String,
    /// An option of the workload, such as limit=100; repeatable
    #[arg(short = 'w', long = "workload-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    workload_options: Vec<(String, String)>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    world: WorldArgs,
    /// The seed of all chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End after so much simulated time, whatever is left
    #[arg(long, value_name = "TIME", value_parser = Duration::parse)]
    until: Option<Duration>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
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
    /// An option of the nodes, such as shares=0.4,0.1; repeatable
    #[arg(long = "node-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    node_options: Vec<(String, String)>,
}

#[derive(Args)]
#[command(next_help_heading = "How it behaves")]
struct WorldArgs {
    /// How often nodes report
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, default_value = "10s")]
    heartbeat: Duration,
    /// Give a node's room away only when it reports, as the papers' systems do
    #[arg(long)]
    decide_on_heartbeats: bool,
    /// From one process to another
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, default_value = "500us")]
    delay: Duration,
    /// Added to each delay, uniformly up to this
    #[arg(long, value_name = "TIME", value_parser = Duration::parse, default_value = "0s")]
    jitter: Duration,
    /// Decisions, messages, disk and launches take no time
    #[arg(long)]
    free: bool,
}

impl RunArgs {
    fn nodes(&self) -> Result<Vec<Node>> {
        let ClusterArgs { nodes, cpus, memory, node_options } = &self.cluster;
        let source = match nodes.parse::<u32>() {
            Ok(count) => format!("drawn:{count}"),
            Err(_) => nodes.clone(),
        };
        let mut options = vec![("cpus".to_owned(), cpus.clone()), ("memory".to_owned(), memory.clone())];
        options.extend(node_options.iter().cloned());
        Ok(trace::read_nodes(&source, &options)?)
    }

    fn settings(&self) -> Settings {
        let WorldArgs { heartbeat, decide_on_heartbeats, delay, jitter, free } = self.world;
        let decide = if decide_on_heartbeats { Decide::OnHeartbeats } else { Decide::OnEvents };
        let mut preset = self.preset;
        preset.seed = self.seed;
        Settings {
            preset,
            seed: self.seed,
            master: MasterSettings { heartbeat, decide, ..MasterSettings::default() },
            network: NetworkSettings { delay, jitter },
            costs: if free { Costs::NONE } else { Costs::default() },
            until: self.until,
            ..Settings::default()
        }
    }
}

pub fn execute(args: &RunArgs) -> Result<()> {
    let workload = trace::read(&args.workload, &args.workload_options)?;
    let nodes = args.nodes()?;
    if nodes.is_empty() {
        return Err(Failure::usage("there are no nodes", "give at least one with --nodes"));
    }
    tell_gaps(&workload);
    let mut results = simulate(args.settings(), &nodes, &workload).results;
    results.reference = Some(Reference::of(&workload, &capacity(&nodes)));
    if args.json { show::json(&results) } else { show::print(&table(&results)) }
}

/// What the trace lacks and what was made of it is said, not hidden.
fn tell_gaps(workload: &Workload) {
    workload.notes.iter().for_each(|note| show::note(&format!("note: {note}")));
    if workload.malformed.count > 0 {
        show::note(&format!("note: {} malformed lines were left out; the first:", workload.malformed.count));
        workload.malformed.first.iter().for_each(|line| show::note(&format!("  {line}")));
    }
}

fn simulate(settings: Settings, nodes: &[Node], workload: &Workload) -> Outcome {
    let started = Instant::now();
    let mut outcome = Simulation::new(settings, nodes, workload).run();
    outcome.results.wall_seconds = started.elapsed().as_secs_f64();
    outcome.results.peak_memory_bytes = peak_memory();
    outcome
}

/// The most that this process ever held, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}

fn table(results: &Results) -> String {
    let number = show::number;
    let jct = &results.jct_s;
    let wait = &results.task_wait_s;
    let mut text = format!(
        "{} on {} nodes: {} jobs, {} tasks in {} s simulated, {} s of work here, {} events\n\n",
        results.preset,
        results.nodes,
        results.jobs,
        results.tasks,
        number(results.simulated_seconds),
        number(results.wall_seconds),
        results.events,
    );
    text += &format!("{:<22} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "seconds", "mean", "p50", "p75", "p95", "p99");
    for (name, spread) in [("job completion", jct), ("task wait", wait)] {
        let cells = [spread.mean, spread.p50, spread.p75, spread.p95, spread.p99].map(number);
        text += &format!(
            "{name:<22} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
            cells[0], cells[1], cells[2], cells[3], cells[4]
        );
    }
    let parts = &results.allocation_s.parts;
    text += &format!(
        "\nof a task's wait: {} s in the queue, {} s processing, {} s communication, {} s at the node\n",
        number(parts.queue),
        number(parts.processing),
        number(parts.communication),
        number(parts.node)
    );
    text += &format!(
        "makespan {} s, {} tasks a second, {:.1} % of the CPUs, {:.1} % of the memory in use\n",
        number(results.makespan_s),
        number(results.tasks_per_second),
        results.utilization.cpu * 100.0,
        results.utilization.memory * 100.0
    );
    text += &format!("fairness (Jain, 60 s windows): mean {:.3}, least {:.3}\n", results.jain.mean, results.jain.min);
    if let Some(reference) = &results.reference {
        text += &format!(
            "no scheduler beats a makespan of {} s and a mean completion of {} s; a greedy one that knows everything, on \
             one machine as large as all: {} s and {} s\n",
            number(reference.critical_path_s.max(reference.work_over_capacity_s)),
            number(reference.srpt_mean_jct_s),
            number(reference.greedy_makespan_s),
            number(reference.greedy_mean_jct_s)
        );
    }
    for refused in &results.refused_jobs {
        text += &format!("refused: {refused}\n");
    }
    if results.unfinished_jobs > 0 {
        text += &format!("{} jobs had not ended\n", results.unfinished_jobs);
    }
    text
}
