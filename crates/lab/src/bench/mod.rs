//! `amalgam-lab bench`: measures this machine and Amalgam on it. Every figure is printed with its lower bound from the same
//! run.

/// Prints a line, or returns the error from the function.
macro_rules! say {
    () => { amalgam_cli::show::print("\n")? };
    ($($text:tt)*) => { amalgam_cli::show::print(&(format!($($text)*) + "\n"))? };
}

/// The same without a newline.
macro_rules! say_on {
    ($($text:tt)*) => { amalgam_cli::show::print(&format!($($text)*))? };
}

mod agreement;
mod arrays;
mod costs;
mod decisions;
mod federation;
mod files;
mod floors;
mod idle;
mod journals;
mod latency;
mod launch;
mod matching;
mod memory;
mod placement;
mod plans;
mod sim;
mod waiting;
mod waits;

use crate::cluster;
use amalgam_cli::failure::Result;
use amalgam_sim::statistics::percentile;
use clap::{Args, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Tasks of /bin/true per second, against a bare loop of spawns
    Launch(launch::LaunchArgs),
    /// From submission to the start of the process; a chain of tasks; tasks that sleep
    Latency(latency::LatencyArgs),
    /// A million tasks: time to accept them, and their effect on other jobs
    Arrays(arrays::ArraysArgs),
    /// Bytes per task of a job manager
    Memory(memory::MemoryArgs),
    /// Placement decisions of the core per second
    Decisions(Box<decisions::DecisionsArgs>),
    /// Time of the scheduler at a job manager for a decision, and for a new list of nodes
    Placement(placement::PlacementArgs),
    /// Time to match a batch of tasks to nodes
    Matching(matching::MatchingArgs),
    /// Time of a job manager for an event, with and without plans
    Plans(plans::PlansArgs),
    /// Time of a node to compute the expected wait of a task of any size
    Waits(waits::WaitsArgs),
    /// Time of the master for a submission or an end while many other jobs wait
    Waiting(waiting::WaitingArgs),
    /// Costs of events, messages, launches and exits here: the constants of the simulator
    Costs(costs::CostsArgs),
    /// Waits in the simulator compared with those of daemons
    Agreement(agreement::AgreementArgs),
    /// Events of the simulator per second, against a bare agenda; --quick only tries it
    Sim(sim::SimArgs),
    /// Allocations per second of a federation of daemons with thousands of hollow nodes, and their costs
    Federation(federation::FederationArgs),
    /// A file from one node to another, against a bare TLS stream of the same size
    Files(files::FilesArgs),
    /// Launches per second of the executor without a scheduler, and the time of a durable write
    Floors(floors::FloorsArgs),
    /// Resources of an idle cluster
    Idle(idle::IdleArgs),
    /// Print the time, as a task that reports when it started
    #[command(hide = true)]
    Stamp,
}

pub fn execute(args: BenchArgs) -> Result<ExitCode> {
    match args.bench {
        Bench::Launch(args) => launch::execute(&args)?,
        Bench::Latency(args) => latency::execute(&args)?,
        Bench::Arrays(args) => arrays::execute(&args)?,
        Bench::Memory(args) => memory::execute(&args)?,
        Bench::Decisions(args) => decisions::execute(&args)?,
        Bench::Placement(args) => placement::execute(&args)?,
        Bench::Matching(args) => matching::execute(&args)?,
        Bench::Plans(args) => plans::execute(&args)?,
        Bench::Waits(args) => waits::execute(&args)?,
        Bench::Waiting(args) => waiting::execute(&args)?,
        Bench::Costs(args) => costs::execute(&args)?,
        Bench::Agreement(args) => agreement::execute(&args)?,
        Bench::Sim(args) => sim::execute(&args)?,
        Bench::Federation(args) => federation::execute(&args)?,
        Bench::Files(args) => files::execute(&args)?,
        Bench::Floors(args) => floors::execute(&args)?,
        Bench::Idle(args) => idle::execute(&args)?,
        Bench::Stamp => say!("{}", cluster::wall_micros()),
    }
    Ok(ExitCode::SUCCESS)
}

/// `p50 4.10  p95 5.32` of samples in milliseconds.
fn spread(sorted: &[f64]) -> String {
    format!(
        "p50 {:.2}  p95 {:.2}  max {:.2} ms",
        percentile(sorted, 50),
        percentile(sorted, 95),
        percentile(sorted, 100)
    )
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The time of a small durable write to this disk, in milliseconds.
pub fn fdatasync_p50() -> Result<f64> {
    let dir = std::env::temp_dir();
    let floor = crate::measure::disk_floor::fdatasync_floor(&dir, 200)?;
    Ok(millis(floor.p50))
}
