//! Resources of an idle cluster, and its start-up time.

use super::arrays::resident_bytes;
use super::millis;
use crate::cluster::Cluster;
use amalgam_cli::failure::{Failure, Result};
use clap::Args;
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct IdleArgs {
    /// Seconds to watch it
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

pub fn execute(args: &IdleArgs) -> Result<()> {
    let cluster = Cluster::dev(&[])?;
    say!("ready after {:.0} ms", millis(cluster.ready_after));
    let (before, started) = (cpu_seconds(cluster.pid())?, Instant::now());
    std::thread::sleep(Duration::from_secs(args.seconds));
    let busy = (cpu_seconds(cluster.pid())? - before) / started.elapsed().as_secs_f64();
    say!("idle: {:.2} % of a core, {:.1} MB resident", busy * 100.0, resident_bytes(cluster.pid())? as f64 / 1e6);
    Ok(())
}

/// User and system time of a process, as precise as the kernel's account for its threads.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut nanos = 0u64;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanos += first.ok_or_else(|| Failure::new("the kernel does not account for threads", ""))?;
    }
    Ok(nanos as f64 / 1e9)
}
