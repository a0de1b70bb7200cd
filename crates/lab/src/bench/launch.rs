//! Tasks per second through submit, schedule, launch, exit and record, against a bare loop of spawns.

use super::cluster::{Cluster, array};
use super::failed;
use crate::measure::launch_floor::bare_loop;
use amalgam_cli::failure::Result;
use clap::Args;
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
}

pub fn execute(args: &LaunchArgs) -> Result<()> {
    say!("{} x /bin/true, tasks per second (the ratio is of the medians of {} turns each)", args.tasks, args.runs);
    say!("slots  enforcement    ours    bare   ratio");
    for &slots in &args.slots {
        for enforcement in &args.enforcement {
            let (mut ours, mut bare) = (Vec::new(), Vec::new());
            for _ in 0..args.runs {
                bare.push(bare_loop(args.tasks, slots).map_err(failed("run the bare loop"))?.per_second());
                ours.push(through_cluster(args.tasks, slots, enforcement)?);
            }
            let (ours, bare) = (median(ours), median(bare));
            say!("{slots:>5}  {enforcement:<11} {ours:>7.0} {bare:>7.0}   {:.2}", ours / bare);
        }
    }
    Ok(())
}

fn through_cluster(tasks: u32, slots: u32, enforcement: &str) -> Result<f64> {
    let cluster = Cluster::dev(&["--cpus", &slots.to_string(), "--enforcement", enforcement])?;
    let job = array(tasks, &["/bin/true"]);
    let started = Instant::now();
    let id = cluster.submit(&job)?;
    cluster.wait(id)?;
    Ok(f64::from(tasks) / started.elapsed().as_secs_f64())
}

fn median(samples: Vec<f64>) -> f64 {
    super::percentile(&super::sorted(samples), 50.0)
}
