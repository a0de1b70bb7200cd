//! Launches per second of the executor without a scheduler, and the time of a small durable write to this disk.

use super::millis;
use crate::cluster::failed;
use crate::measure::{disk_floor, launch_floor};
use crate::product;
use amalgam_cli::failure::Result;
use amalgam_daemon::executor::EnforcementChoice;
use amalgam_daemon::removal::{Pace, remove_tree};
use clap::Args;
use std::path::Path;

/// The pair with the median ratio is printed.
const ROUNDS: usize = 5;

#[derive(Args)]
pub struct FloorsArgs {
    /// Processes to launch in each round
    #[arg(long, value_name = "N", default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1..))]
    launches: u32,
    /// Processes at once
    #[arg(long, value_delimiter = ',', default_value = "2,8", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Vec<u32>,
}

pub fn execute(args: &FloorsArgs) -> Result<()> {
    let dir = crate::cluster::new_state_dir();
    std::fs::create_dir(&dir).map_err(failed("make a directory for the executor"))?;
    let measured = measure(args, &dir);
    let _ = remove_tree(&dir, &mut Pace::fast());
    measured
}

fn measure(args: &FloorsArgs, dir: &Path) -> Result<()> {
    let program = product::program()?;
    let executor = ["executor".into()];
    for &slots in &args.slots {
        for enforcement in [EnforcementChoice::None, EnforcementChoice::Polling, EnforcementChoice::Auto] {
            // Alternating, so that other load on the machine affects both.
            let mut rates = Vec::new();
            let mut mechanism = None;
            for _ in 0..ROUNDS {
                let bare = launch_floor::bare_loop(args.launches, slots).map_err(failed("run the bare loop"))?;
                let through =
                    launch_floor::through_executor(args.launches, slots, enforcement, dir, &program, &executor)
                        .map_err(failed("launch through an executor"))?;
                mechanism = through.mechanism;
                rates.push((bare.per_second(), through.per_second()));
            }
            rates.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
            let (bare, through) = rates[ROUNDS / 2];
            let mechanism = mechanism.map_or("none".to_owned(), |mechanism| format!("{mechanism:?}"));
            let ratio = through / bare;
            say!("{slots} slots, {mechanism}: bare {bare:.0}/s, executor {through:.0}/s, {ratio:.2} of bare");
        }
    }
    let disk = disk_floor::fdatasync_floor(dir, 500).map_err(failed("write to the disk"))?;
    say!("fdatasync of 256 bytes: p50 {:.2} ms, p95 {:.2} ms", millis(disk.p50), millis(disk.p95));
    Ok(())
}
