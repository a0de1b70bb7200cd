//! How much of an experiment is run: with which seeds, how many at a time, and where the public traces are.

use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::{as_text, parse_seeds};
use amalgam_core::vocabulary::{Attributes, ResourceSpec, Resources};
use amalgam_workload::trace::Node;
use clap::Args;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Those of a whole experiment.
pub const SEEDS: RangeInclusive<u64> = 1..=5;

#[derive(Args)]
pub struct ExtentArgs {
    /// Run a smaller version that ends within a minute or two, and print what was cut
    #[arg(long)]
    quick: bool,
    /// Run with each of these seeds, the last one included [default: 1..5]
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Option<RangeInclusive<u64>>,
    /// Number of runs at the same time; all cores by default. The results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The folder of public traces
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// For tests: a small cluster and few jobs
    #[arg(long, hide = true, conflicts_with = "quick")]
    smoke: bool,
}

impl ExtentArgs {
    pub fn extent(&self) -> Extent {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let (amount, seeds) = match (self.smoke, self.quick) {
            (true, _) => (Amount::Smoke, 1..=1),
            (_, true) => (Amount::Quick, 1..=2),
            _ => (Amount::Whole, SEEDS),
        };
        Extent {
            seeds: self.seeds.clone().unwrap_or(seeds),
            threads: self.threads.unwrap_or_else(cores),
            amount,
            traces: self.traces.clone(),
        }
    }
}

/// The amount of work, and the location of the traces.
#[derive(Clone)]
pub struct Extent {
    pub seeds: RangeInclusive<u64>,
    pub threads: usize,
    pub amount: Amount,
    pub traces: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Whole,
    Quick,
    /// A small cluster for a short time.
    Smoke,
}

/// The location of a workload: `read` is a format and, if it reads files, a path in the directory of traces. The page
/// of `results` describes that directory.
pub fn source(results: &str, read: &str, extent: &Extent) -> Result<String> {
    let Some((format, path)) = read.split_once(':').filter(|(format, _)| *format != "synthetic") else {
        return Ok(read.to_owned());
    };
    Ok(format!("{format}:{}", as_text(&in_traces(results, path, extent)?)?))
}

/// A path in the directory of traces, if it exists.
pub fn in_traces(results: &str, path: &str, extent: &Extent) -> Result<PathBuf> {
    let remedy = format!("name their directory: --traces DIR; docs/results/{results}/README.md lists its files");
    let missing = || Failure::usage(format!("this is run with public traces, such as {path}"), &*remedy);
    let file = extent.traces.as_ref().ok_or_else(missing)?.join(path);
    if file.exists() { Ok(file) } else { Err(Failure::usage(format!("file not found: {}", file.display()), &*remedy)) }
}

/// `count` nodes of one size.
pub fn nodes(resources: Resources, count: u32) -> Vec<Node> {
    let node = |number: u32| Node {
        name: format!("node-{number}"),
        resources: ResourceSpec { basic: resources, custom: Vec::new() },
        attributes: Attributes::default(),
    };
    (0..count).map(node).collect()
}

/// Runs every case with every seed. The results are in the order of the cases, then of the seeds.
pub fn run_all<C: Sync, R: Send>(cases: &[C], extent: &Extent, run: impl Fn(&C, u64) -> R + Sync) -> Vec<Vec<R>> {
    let seeds: Vec<u64> = extent.seeds.clone().collect();
    let count = cases.len() * seeds.len();
    let mut runs = Vec::with_capacity(count);
    let work = |number: u64| {
        let number = number as usize;
        run(&cases[number / seeds.len()], seeds[number % seeds.len()])
    };
    if let Some(last) = count.checked_sub(1) {
        amalgam_sim::in_order(0..=last as u64, extent.threads, work, |run| runs.push(run));
    }
    let mut runs = runs.into_iter();
    cases.iter().map(|_| runs.by_ref().take(seeds.len()).collect()).collect()
}
