//! `amalgam workload`: describes traces and generated workloads.

use crate::failure::{Failure, Result};
use crate::{output, show};
use amalgam_cli::values::parse_option;
use amalgam_daemon::durable::Draft;
use amalgam_workload::trace::{
    self, COMMON_KEYS, FORMATS, Key, Load, NODE_FORMATS, NODE_KEYS, Node, Summary, Workload, WorkloadShape,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam workload info hawk:YH1_sub.tr.gz --nodes 4000
  amalgam workload info tpch:tpch/10g -w draw=200 -w arrival=poisson:25s --json
  amalgam workload sample wfformat:instances -n 3 > three.jsonl
  amalgam workload formats")]
pub struct WorkloadArgs {
    #[command(subcommand)]
    verb: WorkloadVerb,
}

#[derive(Subcommand)]
enum WorkloadVerb {
    /// Show jobs, shapes, run times, and the load on a cluster
    Info {
        #[command(flatten)]
        source: Source,
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        cluster: Cluster,
    },
    /// Write the jobs as JSON lines, which the format `job` reads back
    Convert {
        #[command(flatten)]
        source: Source,
        /// A file ending in .jsonl [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Write some of the jobs, drawn by the seed
    Sample {
        #[command(flatten)]
        source: Source,
        /// Number of jobs
        #[arg(short = 'n', long, value_name = "N")]
        count: usize,
        /// The seed of the draw
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// A file ending in .jsonl [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List the formats and their options
    Formats,
}

/// A workload and its options.
#[derive(Args, Debug)]
struct Source {
    /// FORMAT:PATH, such as hawk:YH1.tr.gz; the path may be a file, a directory or a pattern
    workload: String,
    /// An option of the workload, such as limit=100; repeatable; see `amalgam workload formats`
    #[arg(short = 'w', long = "workload-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    options: Vec<(String, String)>,
}

#[derive(Args)]
#[command(next_help_heading = "A cluster to compare with")]
struct Cluster {
    /// How many nodes, or FORMAT:PATH, such as openb:nodes.csv
    #[arg(long, value_name = "N|NODES")]
    nodes: Option<String>,
    /// CPUs of each node
    #[arg(long, value_name = "CPUS", default_value = "1", requires = "nodes")]
    cpus: String,
    /// Memory of each node
    #[arg(long, value_name = "SIZE", default_value = "4GiB", requires = "nodes")]
    memory: String,
    /// An option of the nodes, such as count=100; repeatable
    #[arg(long = "node-option", value_name = "KEY=VALUE", value_parser = parse_option, requires = "nodes")]
    node_options: Vec<(String, String)>,
}

impl Cluster {
    fn read(&self) -> Result<Option<Vec<Node>>> {
        let Some(nodes) = &self.nodes else { return Ok(None) };
        let mut options = vec![("cpus".to_owned(), self.cpus.clone()), ("memory".to_owned(), self.memory.clone())];
        options.extend(self.node_options.iter().cloned());
        Ok(Some(trace::read_nodes(nodes, &options)?))
    }
}

/// The output of `info --json`.
#[derive(Serialize)]
struct Info<'a> {
    name: &'a str,
    #[serde(flatten)]
    shape: WorkloadShape,
    load: Option<Load>,
    notes: &'a [String],
    malformed: u64,
    /// The first malformed lines.
    malformed_lines: Vec<String>,
}

pub fn execute(args: WorkloadArgs) -> Result<ExitCode> {
    match args.verb {
        WorkloadVerb::Info { source, cluster, json } => info(&source, &cluster, json)?,
        WorkloadVerb::Convert { source, output } => write(&source.read()?, output)?,
        WorkloadVerb::Sample { source, count, seed, output } => {
            let mut workload = source.read()?;
            workload.sample(count, seed);
            write(&workload, output)?;
        }
        WorkloadVerb::Formats => show::print(&formats())?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Source {
    fn read(&self) -> Result<Workload> {
        Ok(trace::read(&self.workload, &self.options)?)
    }
}

fn info(source: &Source, cluster: &Cluster, json: bool) -> Result<()> {
    let nodes = cluster.read()?;
    let workload = source.read()?;
    let load = nodes.map(|nodes| workload.load(&nodes));
    let malformed_lines = workload.malformed.first.iter().map(ToString::to_string).collect();
    let info = Info {
        name: &workload.name,
        shape: workload.shape(),
        load,
        notes: &workload.notes,
        malformed: workload.malformed.count,
        malformed_lines,
    };
    if json { show::json(&info) } else { show::print(&text(&info)) }
}

fn text(info: &Info) -> String {
    let shape = &info.shape;
    let mut text = format!(
        "{}: {} jobs, {} tasks, {} core hours, the last job after {}\n\n",
        info.name,
        shape.jobs,
        shape.tasks,
        show::number(shape.core_seconds / 3600.0),
        show::seconds(shape.span_s)
    );
    let rows = [
        ("stages of a job", numbers(&shape.stages)),
        ("tasks of a job", numbers(&shape.tasks_per_job)),
        ("critical path, stages", numbers(&shape.critical_path_stages)),
        ("critical path, time", times(&shape.critical_path_s)),
        ("disjoint paths", numbers(&shape.disjoint_paths)),
        ("barriers", numbers(&shape.barriers)),
        ("gap between jobs", times(&shape.arrival_gap_s)),
        ("run time of a task", times(&shape.run_time_s)),
        ("cores of a task", numbers(&shape.cores)),
        ("MiB of a task", numbers(&shape.memory_mib)),
    ];
    let rows: Vec<Vec<String>> = rows.map(|(name, cells)| [vec![name.to_owned()], cells.into()].concat()).into();
    text += &show::table(&["", "MEAN", "P50", "P75", "P95", "P99", "MAX"], &rows);
    if let Some(load) = &info.load {
        text += &format!("\n{}\n", load_text(load));
    }
    for note in info.notes {
        text += &format!("\nnote: {note}");
    }
    if info.malformed > 0 {
        text += &format!("\n{} left out, first of all", malformed(info.malformed));
    }
    for line in &info.malformed_lines {
        text += &format!("\n  {line}");
    }
    text.trim_end().to_owned() + "\n"
}

fn malformed(count: u64) -> String {
    match count {
        1 => "1 malformed line or record was".to_owned(),
        count => format!("{count} malformed lines or records were"),
    }
}

fn load_text(load: &Load) -> String {
    let share = match (load.cpu, load.memory) {
        (Some(cpu), Some(memory)) => {
            format!("load on the cluster: {} of its CPU, {} of its memory", show::percent(cpu), show::percent(memory))
        }
        _ => "all jobs arrive at once".to_owned(),
    };
    let too_large = match load.tasks_too_large {
        0 => String::new(),
        count => format!("; {count} tasks fit on no node"),
    };
    format!("{share}; no schedule ends before {}{too_large}", show::seconds(load.shortest_makespan_s))
}

fn numbers(summary: &Summary) -> [String; 6] {
    cells(summary).map(show::number)
}

fn times(summary: &Summary) -> [String; 6] {
    cells(summary).map(show::seconds)
}

fn cells(summary: &Summary) -> [f64; 6] {
    [summary.mean, summary.p50, summary.p75, summary.p95, summary.p99, summary.max]
}

fn write(workload: &Workload, output: Option<PathBuf>) -> Result<()> {
    match output {
        None => {
            let cannot = |error: io::Error| Failure::unwritten("standard output", &error);
            workload.write_lines(&mut BufWriter::with_capacity(64 << 10, output::stdout())).map_err(cannot)?;
        }
        Some(path) => {
            let cannot = |error: io::Error| Failure::unwritten(&path.display().to_string(), &error);
            let mut lines = BufWriter::new(Draft::shared(&path).map_err(cannot)?);
            workload.write_lines(&mut lines).map_err(cannot)?;
            let file = lines.into_inner().map_err(|error| cannot(error.into_error()))?;
            file.finish().map_err(cannot)?;
        }
    }
    for note in &workload.notes {
        show::note(&format!("note: {note}"));
    }
    if workload.malformed.count > 0 {
        show::note(&format!("{} left out", malformed(workload.malformed.count)));
    }
    Ok(())
}

fn formats() -> String {
    let mut text = String::new();
    for format in FORMATS {
        text += &format!("{:<14} {}\n", format.name, format.about);
        text += &keys(format.keys);
    }
    text += &format!("\noptions of all formats\n{}\nnodes, for --nodes\n", keys(&COMMON_KEYS));
    for (name, about) in NODE_FORMATS {
        text += &format!("{name:<14} {about}\n");
    }
    text + "\noptions of nodes, for --node-option\n" + &keys(&NODE_KEYS)
}

fn keys(keys: &[Key]) -> String {
    let default = |key: &Key| if key.default.is_empty() { String::new() } else { format!(" [{}]", key.default) };
    keys.iter().map(|key| format!("    {:<16} {}{}\n", key.name, key.meaning, default(key))).collect()
}
