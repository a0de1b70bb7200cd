//! The start-up time of one task, the time for each hop of a chain, and the total time of tasks that only sleep.

use super::{fdatasync_p50, millis, spread};
use crate::cluster::{Cluster, array, chain, failed, wall_micros};
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::as_text;
use amalgam_sim::statistics::{median, sorted};
use clap::Args;
use std::process::{Command, Stdio};
use std::time::Instant;

#[derive(Args)]
pub struct LatencyArgs {
    /// Single tasks
    #[arg(long, default_value_t = 100)]
    count: u32,
    /// Tasks of the chain
    #[arg(long, default_value_t = 50)]
    hops: u32,
    /// Tasks that sleep 0.1 s
    #[arg(long, default_value_t = 400)]
    sleeps: u32,
    #[arg(long, default_value = "auto")]
    enforcement: String,
}

pub fn execute(args: &LatencyArgs) -> Result<()> {
    say!("fdatasync of this disk: p50 {:.2} ms", fdatasync_p50()?);
    let cluster = Cluster::dev(&["--cpus", "8", "--enforcement", &args.enforcement])?;
    say!("submit to start, the command line's own start and the task's included:");
    say!("  ours   {}", spread(&submit_to_start(&cluster, args.count)?));
    say!("  bare   {}   (spawn to start)", spread(&bare_starts(args.count)?));

    let (ours, bare) = (chained(&cluster, args.hops)?, bare_chain(args.hops)?);
    say!("a chain of {} tasks, per hop: ours {ours:.2} ms, bare {bare:.2} ms", args.hops);

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        bare.push(bare_sleeps(args.sleeps, 8)?);
        ours.push(sleeps(&cluster, args.sleeps)?);
    }
    let (ours, bare) = (median(ours), median(bare));
    say!(
        "{} x sleep 0.1 at 8 slots: ours {ours:.3} s, bare {bare:.3} s, {:+.1} %",
        args.sleeps,
        (ours / bare - 1.0) * 100.0
    );
    Ok(())
}

/// Runs one task after another with the command line; each prints when it started.
pub fn submit_to_start(cluster: &Cluster, count: u32) -> Result<Vec<f64>> {
    let program = std::env::current_exe()?;
    let program = as_text(&program)?;
    let mut samples = Vec::new();
    for _ in 0..count {
        let before = wall_micros();
        let job = cluster.verb(&["submit", "-q", "--", program, "bench", "stamp"])?;
        let job = job.trim();
        cluster.verb(&["wait", job])?;
        samples.push(since(before, &cluster.verb(&["logs", job])?)?);
    }
    Ok(sorted(samples))
}

/// Milliseconds from `before` to the stamp that a task printed.
fn since(before: u64, stamp: &str) -> Result<f64> {
    let stamp: u64 = stamp.trim().parse().map_err(|_| Failure::new(format!("`{stamp}` is not a stamp"), ""))?;
    Ok(stamp.saturating_sub(before) as f64 / 1e3)
}

fn bare_starts(count: u32) -> Result<Vec<f64>> {
    let program = std::env::current_exe()?;
    let mut samples = Vec::new();
    for _ in 0..count {
        let before = wall_micros();
        let output = Command::new(&program).args(["bench", "stamp"]).output().map_err(failed("spawn"))?;
        samples.push(since(before, &String::from_utf8_lossy(&output.stdout))?);
    }
    Ok(sorted(samples))
}

fn chained(cluster: &Cluster, hops: u32) -> Result<f64> {
    let job = chain(hops, 1, &["/bin/true"]);
    let started = Instant::now();
    let id = cluster.submit(&job)?;
    cluster.wait(id)?;
    Ok(millis(started.elapsed()) / f64::from(hops))
}

fn bare_chain(hops: u32) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..hops {
        Command::new("/bin/true").stdin(Stdio::null()).status().map_err(failed("spawn"))?;
    }
    Ok(millis(started.elapsed()) / f64::from(hops))
}

fn sleeps(cluster: &Cluster, count: u32) -> Result<f64> {
    let job = array(count, &["sleep", "0.1"]);
    let started = Instant::now();
    let id = cluster.submit(&job)?;
    cluster.wait(id)?;
    Ok(started.elapsed().as_secs_f64())
}

fn bare_sleeps(count: u32, slots: u32) -> Result<f64> {
    let started = Instant::now();
    let mut running = 0;
    for _ in 0..count {
        if running == slots {
            wait_for_any()?;
            running -= 1;
        }
        // `wait_for_any` reaps the child that ends first.
        let _child = Command::new("sleep").arg("0.1").stdin(Stdio::null()).spawn().map_err(failed("spawn"))?;
        running += 1;
    }
    for _ in 0..running {
        wait_for_any()?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Waits for a child to end, but not for the cluster of this benchmark.
fn wait_for_any() -> Result<()> {
    let mut status = 0;
    // SAFETY: the pointer is to a live integer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
    if pid > 0 { Ok(()) } else { Err(failed("wait for a child")(std::io::Error::last_os_error())) }
}
