//! Prints how fast the master decides: `cargo run --release -p amalgam-daemon --example decisions [DEPARTURES]`.

use amalgam_core::preset::Preset;
use amalgam_daemon::bench::decisions::{Decisions, Scale, measure};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let departures: Option<u32> = std::env::args().nth(1).map(|count| count.parse()).transpose()?;
    for preset in Preset::ALL {
        let results = [1_000, 1_000_000].map(|pending| {
            let full = Scale::full(preset, pending);
            let scale = departures.map_or(full, |count| Scale { departures: count, warm_up: count / 2, ..full });
            let result = measure(&scale);
            print(preset, &result);
            result
        });
        println!("{}: 1,000,000 pending take {:.2} of the time of 1,000", preset.name(), ratio(&results));
    }
    Ok(())
}

fn ratio([few, many]: &[Decisions; 2]) -> f64 {
    few.per_second() / many.per_second()
}

fn print(preset: Preset, result: &Decisions) {
    println!(
        "{}, {} pending, {} running, {:.1} % of cpu and {:.1} % of memory full: {:.0} decisions/s ({:?} each, floor \
         {:?}); an event p50 {:?}, p99 {:?}, longest {:?}; {} decisions, {} events",
        preset.name(),
        result.pending,
        result.running,
        result.cpu_full * 100.0,
        result.memory_full * 100.0,
        result.per_second(),
        result.each(),
        result.floor,
        result.p50,
        result.p99,
        result.longest,
        result.decisions,
        result.events
    );
}
