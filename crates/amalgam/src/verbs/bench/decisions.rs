//! Placement decisions of the core alone, on a large and nearly full cluster.

use crate::failure::Result;
use amalgam_core::preset::Preset;
use amalgam_daemon::bench::decisions::{Scale, compare};
use clap::Args;

#[derive(Args)]
pub struct DecisionsArgs {
    /// Only this preset
    #[arg(long, value_parser = crate::cluster::parse_preset)]
    preset: Option<Preset>,
}

pub fn execute(args: &DecisionsArgs) -> Result<()> {
    let asked = |preset: &Preset| args.preset.is_none_or(|only| only == *preset);
    for preset in Preset::CENTRAL.into_iter().filter(asked) {
        let result = compare(&Scale::full(preset));
        for cluster in &result.clusters {
            println!(
                "{}, {} pending: {:.0} decisions a second; an event p50 {:?}, p99 {:?} ({:.1} % of CPU and {:.1} % of \
                 memory booked)",
                preset.name(),
                cluster.pending,
                cluster.per_second,
                cluster.p50,
                cluster.p99,
                cluster.cpu_full * 100.0,
                cluster.memory_full * 100.0
            );
        }
        println!(
            "  the deeper queue takes {:.2} of the time; a booking, a fit test, two places in order and a message \
             without any decision take {:?}",
            result.slowdown, result.floor
        );
    }
    Ok(())
}
