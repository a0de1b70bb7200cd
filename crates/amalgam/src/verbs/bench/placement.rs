//! Decisions of the scheduler beside a job manager, on a large cluster.

use crate::failure::Result;
use amalgam_daemon::bench::placement::measure;
use clap::Args;

const TASKS: u32 = 20_000;
const ROUNDS: usize = 9;

#[derive(Args)]
pub struct PlacementArgs {
    /// Nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
}

pub fn execute(args: &PlacementArgs) -> Result<()> {
    let nodes = args.nodes;
    let placing = measure(nodes, TASKS, ROUNDS);
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    println!("{nodes} nodes; medians of {ROUNDS} rounds of {TASKS} tasks");
    println!(
        "a task is placed in {:?}, and asked is less than 5 us; drawing a node and testing the fit alone takes {:?}",
        placing.decision, placing.draw
    );
    println!(
        "the master makes the list of its nodes in {:.2} ms; a job manager works by it after {:?}: together less than 5 ms \
         are asked",
        millis(placing.list),
        placing.applied
    );
    Ok(())
}
