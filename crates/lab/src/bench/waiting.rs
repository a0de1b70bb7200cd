//! The cost of an event of one job for the master while many other jobs wait.

use crate::measure::waiting::{EVENTS, Waiting, measure};
use amalgam_cli::failure::Result;
use clap::Args;

#[derive(Args)]
pub struct WaitingArgs {
    /// Jobs that wait all the time
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [1_000, 10_000, 100_000], value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    jobs: Vec<u64>,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: u16,
    /// Events of each kind in a round
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    events: u32,
}

pub fn execute(args: &WaitingArgs) -> Result<()> {
    let measured = measure(&args.jobs, usize::from(args.rounds), args.events);
    for Waiting { jobs, each, floor } in &measured {
        say!("{jobs} jobs wait; removing one of as many from an ordered map and inserting it again takes {floor:?}");
        for (event, took) in EVENTS.iter().zip(each) {
            say!("  {event}: {took:?}");
        }
    }
    let smallest = measured.iter().min_by_key(|one| one.jobs);
    let largest = measured.iter().max_by_key(|one| one.jobs);
    let (Some(smallest), Some(largest)) = (smallest, largest) else { return Ok(()) };
    for (kind, event) in EVENTS.iter().enumerate() {
        let ratio = largest.each[kind].as_secs_f64() / smallest.each[kind].as_secs_f64();
        say!("{event}: {ratio:.2} of the time with {} for {}", largest.jobs, smallest.jobs);
    }
    let ratio = largest.floor.as_secs_f64() / smallest.floor.as_secs_f64();
    say!("the map alone: {ratio:.2}, as fewer of its parts are in the caches of the processor");
    Ok(())
}
