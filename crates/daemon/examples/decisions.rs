//! Prints how fast the master decides: `cargo run --release -p amalgam-daemon --example decisions [PRESET]`.

use amalgam_core::preset::Preset;
use amalgam_daemon::bench::decisions::{Scale, compare};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let only = std::env::args().nth(1).map(|name| Preset::parse(&name)).transpose()?;
    for preset in Preset::ALL.into_iter().filter(|preset| only.is_none_or(|only| only == *preset)) {
        let result = compare(&Scale::full(preset));
        for cluster in &result.clusters {
            println!(
                "{}, {} pending, {} running, {:.1} % of cpu and {:.1} % of memory full: {:.0} decisions/s; an event \
                 p50 {:?}, p99 {:?}, longest {:?} ({} decisions, {} events)",
                preset.name(),
                cluster.pending,
                cluster.running,
                cluster.cpu_full * 100.0,
                cluster.memory_full * 100.0,
                cluster.per_second,
                cluster.p50,
                cluster.p99,
                cluster.longest,
                cluster.decisions,
                cluster.events
            );
        }
        println!(
            "{}: with the deeper queue a decision takes {:.2} of the time; without deciding (one booking, one fit \
             test, two places in order, one message) it takes {:?}",
            preset.name(),
            result.slowdown,
            result.floor
        );
    }
    Ok(())
}
