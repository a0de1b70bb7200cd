//! Tasks per second with submission, scheduling, launch, exit and recording, compared with a bare loop that spawns processes.

use crate::cluster::failed;
use crate::cluster::{Cluster, array};
use crate::measure::launch_floor::bare_loop;
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::parse_option;
use amalgam_sim::statistics::median;
use clap::Args;
use std::process::Command;
use std::time::Instant;

#[derive(Args)]
pub struct LaunchArgs {
    #[arg(long, default_value_t = 10_000)]
    tasks: u32,
    /// Tasks at once
    #[arg(long, value_delimiter = ',', default_value = "2,8")]
    slots: Vec<u32>,
    #[arg(long, value_delimiter = ',', default_value = "none,cgroup")]
    enforcement: Vec<String>,
    /// Runs of each; the bare loop takes turns with them
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Another program to take turns with, as a shell command in which {tasks} and {slots} are replaced. If its last line is a number,
    /// that is its tasks per second; otherwise its whole run is timed
    #[arg(long = "peer", value_name = "NAME=COMMAND", value_parser = parse_option)]
    peers: Vec<(String, String)>,
}

pub fn execute(args: &LaunchArgs) -> Result<()> {
    say!("{} x /bin/true, tasks per second (the ratio is of the medians of {} turns each)", args.tasks, args.runs);
    say!("slots  enforcement    ours    bare   ratio");
    for &slots in &args.slots {
        let mut peers: Vec<Vec<f64>> = vec![Vec::new(); args.peers.len()];
        let mut all_bare = Vec::new();
        for (round, enforcement) in args.enforcement.iter().enumerate() {
            let (mut ours, mut bare) = (Vec::new(), Vec::new());
            for _ in 0..args.runs {
                bare.push(bare_loop(args.tasks, slots).map_err(failed("run the bare loop"))?.per_second());
                ours.push(through_cluster(args.tasks, slots, enforcement)?);
                // Peers have no enforcement: they alternate with the first mechanism.
                for ((_, command), rates) in args.peers.iter().zip(&mut peers).filter(|_| round == 0) {
                    rates.push(of_peer(command, args.tasks, slots)?);
                }
            }
            all_bare.extend(bare.iter().copied());
            let (ours, bare) = (median(ours), median(bare));
            say!("{slots:>5}  {enforcement:<11} {ours:>7.0} {bare:>7.0}   {:.2}", ours / bare);
        }
        let bare = median(all_bare);
        for ((name, _), rates) in args.peers.iter().zip(peers) {
            let theirs = median(rates);
            say!("{slots:>5}  {name:<11} {theirs:>7.0} {bare:>7.0}   {:.2}", theirs / bare);
        }
    }
    Ok(())
}

/// Tasks per second of another program.
fn of_peer(command: &str, tasks: u32, slots: u32) -> Result<f64> {
    let command = command.replace("{tasks}", &tasks.to_string()).replace("{slots}", &slots.to_string());
    let started = Instant::now();
    let output = Command::new("sh").args(["-c", &command]).output().map_err(failed("start a peer"))?;
    let took = started.elapsed().as_secs_f64();
    if !output.status.success() {
        let what = format!("`{command}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        return Err(Failure::new(what, "run the command alone, and correct it"));
    }
    let reported = String::from_utf8_lossy(&output.stdout);
    let rate = reported.lines().last().and_then(|line| line.trim().parse().ok());
    Ok(rate.filter(|rate: &f64| rate.is_finite()).unwrap_or(f64::from(tasks) / took))
}

fn through_cluster(tasks: u32, slots: u32, enforcement: &str) -> Result<f64> {
    let cluster = Cluster::dev(&["--cpus", &slots.to_string(), "--enforcement", enforcement])?;
    let job = array(tasks, &["/bin/true"]);
    let started = Instant::now();
    let id = cluster.submit(&job)?;
    cluster.wait(id)?;
    Ok(f64::from(tasks) / started.elapsed().as_secs_f64())
}
