//! Allocations per second of a federation of real daemons with hollow nodes: only the processes of tasks are missing.

use super::fdatasync_p50;
use crate::cluster::array;
use crate::hollow_federation::{Counts, Daemons, Nodes, Plan, Spent};
use crate::measure::loopback_floor::rounds_a_second;
use amalgam_cli::client::{Client, Query};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::vocabulary::JobSpec;
use amalgam_daemon::api::{Action, AllocationParts, JobState, StoryLine};
use amalgam_sim::statistics::{percentile, sorted};
use clap::Args;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Time between the first submission and the measured period.
const WARM_UP: Duration = Duration::from_secs(3);
/// Time between two jobs of a global master's backlog.
const BETWEEN_JOBS: Duration = Duration::from_millis(200);
/// Tasks of a job when jobs arrive at a rate.
const PACED_JOB: u32 = 100;
/// Jobs of each global master whose allocation times are evaluated.
const LOOKED_AT: usize = 20;

#[derive(Args)]
pub struct FederationArgs {
    /// Nodes of all clusters together; each size is measured with daemons of its own
    #[arg(long, value_delimiter = ',', default_value = "300,1000,3000,10000",
        value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Vec<u32>,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    clusters: u32,
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    globals: u32,
    /// CPUs of all nodes together, at least; a task takes one
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// Seconds that a task pretends to run
    #[arg(long, default_value_t = 0.5)]
    sleep: f64,
    /// Tasks of each job of the backlog
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    job_tasks: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// A preset of federations
    #[arg(long, default_value = "megha")]
    preset: String,
}

pub fn execute(args: &FederationArgs) -> Result<()> {
    say!("fdatasync of this disk: p50 {:.2} ms", fdatasync_p50()?);
    say!("loopback, one connection: {:.0} messages and answers a second", rounds_a_second(Duration::from_secs(2))?);
    say!(
        "{} clusters, {} global masters, preset {}, tasks of {} s",
        args.clusters,
        args.globals,
        args.preset,
        args.sleep
    );
    args.nodes.iter().try_for_each(|&nodes| measure(args, nodes))
}

fn measure(args: &FederationArgs, nodes: u32) -> Result<()> {
    let cpus = args.cpus.div_ceil(nodes);
    let plan = Plan {
        preset: &args.preset,
        clusters: args.clusters,
        globals: args.globals,
        heartbeat: None,
        nodes: Nodes::Alike { count: nodes, cpus },
    };
    let started = Instant::now();
    let daemons = Daemons::start(&plan)?;
    say!("{nodes} nodes of {cpus} CPUs: known to all after {:.1} s", started.elapsed().as_secs_f64());
    let rate = with_a_backlog(args, &daemons)?;
    at_half_the_rate(args, &daemons, rate)
}

/// Submits more tasks than can run. Returns the allocations per second.
fn with_a_backlog(args: &FederationArgs, daemons: &Daemons) -> Result<f64> {
    let job = array(args.job_tasks, &["sleep", &args.sleep.to_string()]);
    let is_over = AtomicBool::new(false);
    let (samples, jobs) = std::thread::scope(|threads| {
        let feeders: Vec<_> =
            daemons.clients.iter().map(|client| threads.spawn(|| feed(client, &job, &is_over))).collect();
        let samples = before_and_after(daemons, args.seconds);
        is_over.store(true, Ordering::Relaxed);
        let jobs: Vec<Result<Vec<u64>>> = feeders.into_iter().map(joined).collect();
        (samples, jobs)
    });
    let (before, after) = samples?;
    let rate = after.report("with a backlog", &before)?;
    if rate == 0.0 {
        return Err(Failure::new("nothing started", "look at the machine's load"));
    }
    if after.open == 0.0 {
        return Err(Failure::new("there was no backlog", "raise --job-tasks"));
    }
    for (client, jobs) in daemons.clients.iter().zip(jobs) {
        client.act(jobs?, Action::Cancel)?;
    }
    while Sample::of(daemons)?.running > 0.0 {
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(rate)
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn before_and_after(daemons: &Daemons, seconds: u64) -> Result<(Sample, Sample)> {
    std::thread::sleep(WARM_UP);
    let before = Sample::of(daemons)?;
    std::thread::sleep(Duration::from_secs(seconds));
    Ok((before, Sample::of(daemons)?))
}

/// Submits such jobs until `is_over`, and returns their ids.
fn feed(client: &Client, job: &JobSpec, is_over: &AtomicBool) -> Result<Vec<u64>> {
    let mut jobs = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        jobs.push(submit(client, job)?);
        std::thread::sleep(BETWEEN_JOBS);
    }
    Ok(jobs)
}

/// Submits jobs evenly, at half of the possible tasks per second, and prints their allocation times.
fn at_half_the_rate(args: &FederationArgs, daemons: &Daemons, rate: f64) -> Result<()> {
    let job = array(PACED_JOB, &["sleep", &args.sleep.to_string()]);
    let pause = Duration::from_secs_f64(f64::from(PACED_JOB) / (rate / 2.0));
    let count = (args.seconds as f64 / pause.as_secs_f64()) as u32;
    let mut jobs = vec![Vec::new(); daemons.clients.len()];
    let (before, started) = (Sample::of(daemons)?, Instant::now());
    for number in 0..count {
        let global = number as usize % daemons.clients.len();
        jobs[global].push(submit(&daemons.clients[global], &job)?);
        std::thread::sleep((pause * (number + 1)).saturating_sub(started.elapsed()));
    }
    Sample::of(daemons)?.report("at half that rate", &before)?;
    let mut times = Vec::new();
    for (client, jobs) in daemons.clients.iter().zip(jobs) {
        for &job in jobs.iter().step_by(jobs.len().div_ceil(LOOKED_AT).max(1)) {
            let waited = client.wait(job, Duration::from_secs(60))?;
            if waited.state != JobState::Succeeded {
                return Err(Failure::new(format!("job {job} {}: {:?}", waited.state, waited.reason), ""));
            }
            times.extend(allocation_times(client, job)?);
        }
    }
    report_times(&times)
}

fn submit(client: &Client, job: &JobSpec) -> Result<u64> {
    Ok(client.submit(job, &amalgam_cli::client::idempotency_key()?)?.job)
}

/// The allocation times of each task of a job.
fn allocation_times(client: &Client, job: u64) -> Result<Vec<AllocationParts>> {
    let lines: Vec<StoryLine> = client.list(&format!("/v1/jobs/{job}/story"), &Query::default())?;
    Ok(lines.into_iter().filter_map(|line| line.allocation).collect())
}

fn report_times(times: &[AllocationParts]) -> Result<()> {
    let line = |name: &str, part: fn(&AllocationParts) -> f64| -> Result<()> {
        let millis = sorted(times.iter().map(|parts| part(parts) * 1e3));
        say!("    {name:<14} p50 {:8.2}  p99 {:8.2} ms", percentile(&millis, 50), percentile(&millis, 99));
        Ok(())
    };
    say!("  allocation times of {} tasks:", times.len());
    line("all", |parts| parts.queue + parts.processing + parts.communication + parts.node)?;
    line("queue", |parts| parts.queue)?;
    line("processing", |parts| parts.processing)?;
    line("communication", |parts| parts.communication)?;
    line("node", |parts| parts.node)
}

/// Counters of the daemons at one time.
struct Sample {
    at: Instant,
    /// Tasks whose start, and whose end, the global masters have learned, in total.
    started: f64,
    ended: f64,
    /// Requested and not placed.
    open: f64,
    running: f64,
    /// Attempts that ended before they started or whose end is unknown: nearly all were refused by a master.
    lost: f64,
    commits: f64,
    /// Seconds that the event loops of all global masters waited for commits.
    committing: f64,
    spent: Spent,
}

impl Sample {
    fn of(daemons: &Daemons) -> Result<Sample> {
        let counts = daemons.clients.iter().map(Counts::of).collect::<Result<Vec<Counts>>>()?;
        let sum = |name: &str| counts.iter().map(|counts| counts.get(name)).sum();
        Ok(Sample {
            at: Instant::now(),
            started: sum("amalgam_allocation_seconds_count{part=\"queue\"}"),
            ended: sum("amalgam_attempts_ended_total{reason=\"succeeded\"}"),
            open: sum("amalgam_open_tasks"),
            running: sum("amalgam_running_attempts"),
            lost: sum("amalgam_attempts_lost_total"),
            commits: sum("amalgam_commit_seconds_count"),
            committing: sum("amalgam_commit_seconds_sum"),
            spent: daemons.spent()?,
        })
    }

    /// Prints the work since `before`, and returns the allocations per second.
    fn report(&self, what: &str, before: &Sample) -> Result<f64> {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let per_second = |count: fn(&Sample) -> f64| (count(self) - count(before)) / seconds;
        let rate = per_second(|sample| sample.started);
        say!(
            "  {what}: {rate:.0} tasks started and {:.0} ended a second, {:.0} launches refused or lost",
            per_second(|sample| sample.ended),
            per_second(|sample| sample.lost)
        );
        say!(
            "    global masters together: {:.0} commits a second, {:.2} of them waiting for the disk at a time",
            per_second(|sample| sample.commits),
            per_second(|sample| sample.committing)
        );
        for (who, threads) in &self.spent.by_thread {
            let before = |thread: &String| before.spent.by_thread.get(who).and_then(|threads| threads.get(thread));
            let used = |(thread, spent): (&String, &f64)| (spent - before(thread).unwrap_or(&0.0)) / seconds;
            let cores: f64 = threads.iter().map(used).sum();
            let by_thread: Vec<String> = threads
                .iter()
                .filter(|thread| used(*thread) >= 0.005)
                .map(|thread| format!("{} {:.2}", thread.0, used(thread)))
                .collect();
            let micros = cores / rate * 1e6;
            say!("    {who:<8} {cores:.2} cores ({}), {micros:.0} us an allocation", by_thread.join(", "));
        }
        let waited = (self.spent.waited - before.spent.waited) / seconds;
        say!("    threads that could run and had no core, at a time: {waited:.2}");
        Ok(rate)
    }
}
