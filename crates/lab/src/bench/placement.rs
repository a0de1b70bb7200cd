//! Decisions of the scheduler at a job manager, on a large cluster.

use crate::measure::completion;
use crate::measure::placement::measure;
use amalgam_cli::failure::Result;
use amalgam_core::preset::Preset;
use clap::Args;

const TASKS: u32 = 20_000;
const ROUNDS: usize = 9;
/// The size of the cluster in Apollo's paper.
const COMPLETION_NODES: u32 = 20_000;

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
    say!("{nodes} nodes; medians of {ROUNDS} rounds of {TASKS} tasks");
    say!(
        "a task is placed in {:?}, and asked is less than 5 us; drawing a node and testing the fit alone takes {:?}",
        placing.decision,
        placing.draw
    );
    say!(
        "the master makes the list of its nodes in {:.2} ms; a job manager works by it after {:?}: required is less than \
         5 ms for both",
        millis(placing.list),
        placing.applied
    );
    let estimating = completion::measure(&Preset::APOLLO, COMPLETION_NODES, TASKS, ROUNDS);
    say!(
        "{COMPLETION_NODES} nodes that report expected waits: placing a task where it would end first takes {:?}, {:.0} a \
         second, required are 100,000; looking up two waits alone takes {:?}",
        estimating.placed,
        1.0 / estimating.placed.as_secs_f64(),
        estimating.lookups
    );
    let further = completion::measure(&Preset::APOLLO_PLUS, COMPLETION_NODES, TASKS, ROUNDS);
    say!("under apollo-plus, where a node may take several of a batch, in {:?}", further.placed);
    say!("their waits take {:.1} MB, required is less than 64", estimating.bytes as f64 / 1e6);
    Ok(())
}
