//! Placement decisions of the core alone, on a nearly full cluster.

use crate::measure::decisions::{Scale, compare};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::preset::Preset;
use clap::Args;

#[derive(Args)]
pub struct DecisionsArgs {
    /// Only this preset
    #[arg(long, value_parser = amalgam_cli::values::parse_preset)]
    preset: Option<Preset>,
    /// Nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    nodes: u32,
    /// Jobs, each of which asks for as much again as it is granted
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    jobs: u32,
    /// Tasks that are pending all the time, in one cluster and in the other
    #[arg(long, value_names = ["FEW", "MANY"], num_args = 2, default_values_t = [1_000, 1_000_000])]
    pending: Vec<u64>,
}

pub fn execute(args: &DecisionsArgs) -> Result<()> {
    if args.pending.iter().any(|pending| *pending < u64::from(args.jobs)) {
        return Err(Failure::usage(
            "every job has at least one pending task",
            "give --jobs a smaller number or --pending larger ones",
        ));
    }
    let asked = |preset: &Preset| args.preset.is_none_or(|only| only == *preset);
    for preset in Preset::CENTRAL.iter().copied().filter(asked) {
        let full = Scale::full(preset);
        let warm_up = full.warm_up / full.nodes * args.nodes;
        let pending = [args.pending[0], args.pending[1]];
        let result = compare(&Scale { nodes: args.nodes, jobs: args.jobs, pending, warm_up, ..full });
        for cluster in &result.clusters {
            say!(
                "{}, {} pending: {:.0} decisions a second; an event p50 {:?}, p99 {:?}, p99.99 {:?}, max {:?} with interruptions ({:.1} % of CPU and \
                 {:.1} % of memory booked; {} decisions in {} events)",
                preset.name(),
                cluster.pending,
                cluster.per_second,
                cluster.p50,
                cluster.p99,
                cluster.p9999,
                cluster.longest,
                cluster.cpu_full * 100.0,
                cluster.memory_full * 100.0,
                cluster.decisions,
                cluster.events
            );
        }
        say!(
            "  the deeper queue takes {:.2} of the time; a booking, a fit test, two places in order and a message \
             without any decision take {:?}",
            result.slowdown,
            result.floor
        );
    }
    Ok(())
}
