//! One simulated run.

use crate::failure::{Failure, Result};
use crate::show;
use crate::verbs::workload::parse_option;
use amalgam_core::master::{Decide, MasterSettings};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;
use amalgam_sim::{
    Costs, ExecutionSettings, NetworkSettings, Outcome, Reference, Results, Settings, Simulation, capacity, report,
};
use amalgam_workload::trace::{self, Node, Summary, Workload};
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub struct RunArgs {
    /// Which policies schedule: one preset, several with commas between, or `all`
    #[arg(long, value_name = "PRESETS", value_parser = parse_presets, default_value = "drf")]
    preset: Presets,
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
    /// The seed of all chance, in the workload and the nodes as well unless they are given their own
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End after so much simulated time, whatever is left
    #[arg(long, value_name = "TIME", value_parser = Duration::parse)]
    until: Option<Duration>,
    /// Fail when a job can never fit, or has not ended
    #[arg(long)]
    strict: bool,
    /// Print the results as JSON: one object, or a list of them for several presets
    #[arg(long)]
    json: bool,
    /// Write a page with tables and plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write a table of the jobs and one of the windows of 60 s to this directory, as CSV
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
}

/// Refused jobs that the text names; the JSON has them all.
const SHOWN: usize = 10;

/// The presets of a command line.
#[derive(Clone)]
struct Presets(Vec<Preset>);

fn parse_presets(text: &str) -> std::result::Result<Presets, String> {
    if text == "all" {
        return Ok(Presets(Preset::all().collect()));
    }
    text.split(',').map(Preset::parse).collect::<std::result::Result<_, _>>().map(Presets)
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
    #[arg(long, value_name = "TIME", value_parser = period, default_value = "10s")]
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
    /// The probability that a packet is lost and sent again after 200 ms
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    loss: f64,
    /// Decisions, disks, launches and the making of messages take no time; the way of a message takes its delay
    #[arg(long)]
    free: bool,
    /// How much longer tasks run beside others that use all CPUs of their node; 0.5 is half as long again
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    slowdown: f64,
    /// The probability that an attempt is a straggler
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    stragglers: f64,
    /// How many times as long a straggler runs
    #[arg(long, value_name = "TIMES", default_value_t = 5.0)]
    straggler_factor: f64,
    /// The probability that an attempt fails
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.0, value_parser = probability)]
    failures: f64,
}

fn period(text: &str) -> std::result::Result<Duration, String> {
    match Duration::parse(text)? {
        Duration::ZERO => Err("it is to be above 0".to_owned()),
        period => Ok(period),
    }
}

fn probability(text: &str) -> std::result::Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..1.0).contains(&value) { Ok(value) } else { Err("it is to be at least 0 and less than 1".to_owned()) }
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
        Ok(trace::read_nodes(&source, &self.seeded(&options))?)
    }

    fn workload(&self) -> Result<Workload> {
        Ok(trace::read(&self.workload, &self.seeded(&self.workload_options))?)
    }

    /// The options, with the seed of the run where they name none.
    fn seeded(&self, options: &[(String, String)]) -> Vec<(String, String)> {
        let mut options = options.to_vec();
        if !options.iter().any(|(key, _)| key == "seed") {
            options.push(("seed".to_owned(), self.seed.to_string()));
        }
        options
    }

    fn settings(&self, mut preset: Preset) -> Settings {
        let WorldArgs { heartbeat, decide_on_heartbeats, delay, jitter, loss, free, .. } = self.world;
        let WorldArgs { slowdown, stragglers, straggler_factor, failures, .. } = self.world;
        let decide = if decide_on_heartbeats { Decide::OnHeartbeats } else { Decide::OnEvents };
        preset.seed = self.seed;
        Settings {
            preset,
            seed: self.seed,
            master: MasterSettings { heartbeat, decide, ..MasterSettings::default() },
            network: NetworkSettings { delay, jitter, loss, ..NetworkSettings::default() },
            execution: ExecutionSettings {
                slowdown,
                stragglers,
                straggler_factor,
                failures,
                ..ExecutionSettings::default()
            },
            costs: if free { Costs::NONE } else { Costs::default() },
            until: self.until,
            ..Settings::default()
        }
    }
}

pub fn execute(args: &RunArgs) -> Result<()> {
    let workload = args.workload()?;
    let nodes = args.nodes()?;
    if nodes.is_empty() {
        return Err(Failure::usage("there are no nodes", "give at least one with --nodes"));
    }
    tell_gaps(&workload);
    // Before the work, so that a place that cannot be written costs no time.
    let report = args.report.as_deref().map(|path| Ok::<_, Failure>((path, create(path)?))).transpose()?;
    let mut runs = Vec::new();
    for preset in &args.preset.0 {
        let mut run = simulate(args.settings(*preset), &nodes, &workload);
        run.results.reference = reference(&run, &workload, &nodes);
        if let Some(directory) = &args.csv {
            write_tables(directory, &run)?;
        }
        runs.push(run);
    }
    if let Some((path, mut file)) = report {
        let command = format!("amalgam {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "));
        let title = format!("{} on {} nodes", workload.name, nodes.len());
        let page = report::html(&title, &command, &workload.notes, &runs).map_err(|error| Failure::new(error, ""))?;
        file.write_all(page.as_bytes()).map_err(|error| cannot_write(path, &error))?;
    }
    match (&runs[..], args.json) {
        ([run], true) => show::json(&run.results)?,
        ([run], false) => show::print(&table(&run.results))?,
        (runs, true) => show::json(&runs.iter().map(|run| &run.results).collect::<Vec<_>>())?,
        (runs, false) => show::print(&comparison(runs))?,
    }
    if args.strict { runs.iter().try_for_each(check_ends) } else { Ok(()) }
}

fn check_ends(run: &Outcome) -> Result<()> {
    let Results { preset, refused_jobs, unfinished_jobs, .. } = &run.results;
    if let Some(first) = refused_jobs.first() {
        let what = format!("{preset}: {} jobs can never run on these nodes; the first is {first}", refused_jobs.len());
        return Err(Failure::new(what, "give larger nodes, or leave out --strict to go on without these jobs"));
    }
    if *unfinished_jobs > 0 {
        let what = format!("{preset}: {unfinished_jobs} jobs had not ended");
        return Err(Failure::new(what, "give more time with --until, or leave out --strict"));
    }
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()), "choose a place that can be written")
}

/// `jobs-PRESET.csv` and `windows-PRESET.csv`.
fn write_tables(directory: &Path, run: &Outcome) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
    let preset = &run.results.preset;
    write_table(&directory.join(format!("jobs-{preset}.csv")), &run.jobs)?;
    write_table(&directory.join(format!("windows-{preset}.csv")), &run.windows)
}

fn write_table<T: Serialize>(path: &Path, rows: &[T]) -> Result<()> {
    let mut table = csv::Writer::from_writer(create(path)?);
    let wrong = |error: csv::Error| cannot_write(path, &error.into());
    rows.iter().try_for_each(|row| table.serialize(row)).map_err(wrong)?;
    table.flush().map_err(|error| cannot_write(path, &error))
}

/// What the trace lacks and what was made of it is said, not hidden.
fn tell_gaps(workload: &Workload) {
    workload.notes.iter().for_each(|note| show::note(&format!("note: {note}")));
    if workload.malformed.count > 0 {
        show::note(&format!("note: {} malformed lines were left out; the first:", workload.malformed.count));
        workload.malformed.first.iter().for_each(|line| show::note(&format!("  {line}")));
    }
}

/// What nothing can beat holds for the jobs that the means are about: all that fit on a node, when all of them have ended.
fn reference(run: &Outcome, workload: &Workload, nodes: &[Node]) -> Option<Reference> {
    let fitting = workload.jobs.iter().zip(&run.jobs).filter(|(_, result)| result.outcome != "refused");
    (run.results.unfinished_jobs == 0 && run.results.ended_jobs > 0)
        .then(|| Reference::of(fitting.map(|(job, _)| job), &capacity(nodes)))
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

/// One line for each run. What no job or task stands behind is a dash.
fn comparison(runs: &[Outcome]) -> String {
    let headings = [
        "PRESET",
        "JCT MEAN",
        "P50",
        "P95",
        "WAIT MEAN",
        "P95",
        "MAKESPAN",
        "JAIN",
        "CPU",
        "MEMORY",
        "NOT ENDED",
        "WALL",
    ];
    let rows: Vec<Vec<String>> = runs.iter().map(|run| comparison_row(&run.results)).collect();
    let mut text = show::table(&headings, &rows);
    text += "\nseconds; Jain's index is the mean over windows of 60 s; jobs that had not ended or could never run are not in \
             the means\n";
    text + &runs.first().and_then(|run| run.results.reference.as_ref()).map(bounds).unwrap_or_default()
}

fn comparison_row(results: &Results) -> Vec<String> {
    let (jct, wait) = (&results.jct_s, &results.task_wait_s);
    let (ended, started) = (results.ended_jobs, results.started_tasks);
    let seconds = |behind: u64, value: f64| if behind == 0 { "-".to_owned() } else { format!("{value:.2}") };
    vec![
        results.preset.clone(),
        seconds(ended, jct.mean),
        seconds(ended, jct.p50),
        seconds(ended, jct.p95),
        seconds(started, wait.mean),
        seconds(started, wait.p95),
        seconds(ended, results.makespan_s),
        format!("{:.3}", results.jain.mean),
        show::percent(results.utilization.cpu),
        show::percent(results.utilization.memory),
        (results.unfinished_jobs + results.refused_jobs.len() as u64).to_string(),
        format!("{:.2}", results.wall_seconds),
    ]
}

fn bounds(reference: &Reference) -> String {
    let number = show::number;
    format!(
        "no scheduler beats a makespan of {} s and a mean completion of {} s;\n\
         a greedy one that knows everything, on one machine as large as all: {} s and {} s\n",
        number(reference.critical_path_s.max(reference.work_over_capacity_s)),
        number(reference.srpt_mean_jct_s),
        number(reference.greedy_makespan_s),
        number(reference.greedy_mean_jct_s)
    )
}

fn table(results: &Results) -> String {
    let number = show::number;
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
    let row = |name: &str, behind: u64, of: &Summary| {
        let cell = |value: f64| if behind == 0 { "-".to_owned() } else { number(value) };
        let cells = [of.mean, of.p50, of.p75, of.p95, of.p99].map(cell);
        [vec![name.to_owned()], cells.to_vec()].concat()
    };
    let rows = [
        row("job completion", results.ended_jobs, &results.jct_s),
        row("task wait", results.started_tasks, &results.task_wait_s),
    ];
    text += &show::table(&["SECONDS", "MEAN", "P50", "P75", "P95", "P99"], &rows);
    let parts = &results.allocation_s.parts;
    text += &format!(
        "\nof a task's wait: {} s in the queue, {} s processing, {} s communication, {} s at the node\n",
        number(parts.queue),
        number(parts.processing),
        number(parts.communication),
        number(parts.node)
    );
    if results.ended_jobs > 0 {
        let (makespan, rate) = (number(results.makespan_s), number(results.tasks_per_second));
        text += &format!("makespan {makespan} s, {rate} tasks a second\n");
    }
    text += &format!(
        "{:.1} % of the CPUs, {:.1} % of the memory in use\n",
        results.utilization.cpu * 100.0,
        results.utilization.memory * 100.0
    );
    text += &format!("fairness (Jain, 60 s windows): mean {:.3}, least {:.3}\n", results.jain.mean, results.jain.min);
    text += &results.reference.as_ref().map(bounds).unwrap_or_default();
    if !results.refused_jobs.is_empty() {
        text += &format!("{} jobs can never run on these nodes and were left out:\n", results.refused_jobs.len());
        results.refused_jobs.iter().take(SHOWN).for_each(|refused| text += &format!("  {refused}\n"));
    }
    if results.unfinished_jobs > 0 {
        text += &format!("{} jobs had not ended\n", results.unfinished_jobs);
    }
    text
}
