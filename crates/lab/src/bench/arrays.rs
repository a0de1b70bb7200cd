//! Very large jobs: how fast they are accepted, and how much they delay a small job.

use super::latency::submit_to_start;
use super::{fdatasync_p50, spread};
use crate::cluster::{Cluster, array};
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::as_text;
use amalgam_core::vocabulary::{Items, StageSpec, TaskSet};
use clap::Args;
use std::time::Instant;

#[derive(Args)]
pub struct ArraysArgs {
    #[arg(long, default_value_t = 1_000_000)]
    tasks: u32,
    /// Single tasks before and during the array
    #[arg(long, default_value_t = 50)]
    count: u32,
}

pub fn execute(args: &ArraysArgs) -> Result<()> {
    say!("fdatasync of this disk: p50 {:.2} ms", fdatasync_p50()?);
    let config = std::env::temp_dir().join(format!("amalgam-bench-{}.toml", std::process::id()));
    std::fs::write(&config, "[[queue]]\nname = 'capped'\nmaximum = 0.875\n[[queue]]\nname = 'default'\n")?;
    let measured = as_text(&config).and_then(|config| measure(args, config));
    let _ = std::fs::remove_file(&config);
    measured
}

fn measure(args: &ArraysArgs, config: &str) -> Result<()> {
    let cluster = Cluster::dev(&["--cpus", "8", "--config", config])?;
    let before = resident_bytes(cluster.pid())?;
    let mut job = array(args.tasks, &["sleep", "600"]);
    job.held = true;
    let started = Instant::now();
    let held = cluster.submit(&job)?;
    say!("an array of {} tasks: accepted after {:.3} s", args.tasks, started.elapsed().as_secs_f64());
    let after = resident_bytes(cluster.pid())?;
    say!("  {:.2} bytes a task resident", (after.saturating_sub(before)) as f64 / f64::from(args.tasks));

    let mut lines = Items::default();
    let mut bytes = 0;
    for number in 0..args.tasks {
        let line = format!("a distinct line, number {number}");
        bytes += line.len();
        lines.push(line).map_err(|error| Failure::new(error, ""))?;
    }
    let mut job = array(1, &["sleep", "600"]);
    let stage: &mut StageSpec = &mut job.stages[0];
    stage.tasks = TaskSet::Each(lines);
    job.held = true;
    let before = resident_bytes(cluster.pid())?;
    let started = Instant::now();
    let each = cluster.submit(&job)?;
    say!("one task for each of {} distinct lines: accepted after {:.3} s", args.tasks, started.elapsed().as_secs_f64());
    let after = resident_bytes(cluster.pid())?;
    let beside = (after.saturating_sub(before)).saturating_sub(bytes as u64);
    say!("  {:.2} bytes a task resident beside the lines", beside as f64 / f64::from(args.tasks));
    cluster.client.act(vec![held, each], amalgam_daemon::api::Action::Cancel)?;

    let idle = submit_to_start(&cluster, args.count)?;
    say!("submit to start of a single task, nothing else pending: {}", spread(&idle));
    let mut job = array(args.tasks, &["sleep", "600"]);
    job.queue = "capped".to_owned();
    let pending = cluster.submit(&job)?;
    let busy = submit_to_start(&cluster, args.count)?;
    say!("  with {} tasks pending in a queue capped one slot below capacity: {}", args.tasks, spread(&busy));
    cluster.client.act(vec![pending], amalgam_daemon::api::Action::Cancel)?;
    Ok(())
}

/// Resident memory of a process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| Failure::new(format!("process {pid} shows no memory"), ""))
}
