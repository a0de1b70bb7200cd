//! Runs jobs on real daemons, at their arrival times.

use super::super::experiment::Prepared;
use super::{Real, Waits};
use crate::hollow_federation::{Counts, Daemons, Nodes, Plan};
use amalgam_cli::client::{Client, Query};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::vocabulary::{Duration as SimDuration, JobSpec};
use amalgam_daemon::api::{JobState, StoryLine, TaskSummary};
use amalgam_sim::statistics::median;
use amalgam_workload::trace::TraceJob;
use std::thread;
use std::time::{Duration, Instant};

/// Results of one job.
#[derive(Default)]
struct Report {
    /// For each task that started: queue, processing, communication, at the node.
    parts: Vec<[f64; 4]>,
    /// For each task, the run time in excess of the expected one.
    delays: Vec<f64>,
}

pub fn replay(prepared: &Prepared) -> Result<Real> {
    let Prepared { nodes, workload, settings, .. } = prepared;
    let (clusters, globals) = settings.federation.unwrap_or((1, 1));
    let daemons = Daemons::start(&Plan {
        preset: settings.preset.name(),
        clusters: clusters.into(),
        globals: globals.into(),
        heartbeat: Some(Duration::from_micros(settings.master.heartbeat.as_micros())),
        nodes: Nodes::Each(nodes),
    })?;
    let jobs: Vec<(&TraceJob, JobSpec)> =
        workload.jobs.iter().map(|job| Ok((job, runnable(job)?))).collect::<Result<_>>()?;
    let first = workload.jobs.first().map_or(SimDuration::ZERO, |job| job.arrival);
    let (waited, started) = (daemons.spent()?.waited, Instant::now());
    // As in the simulator, jobs are distributed over the global masters in turn.
    let of_globals = daemons.clients.iter().enumerate();
    let submitted = thread::scope(|threads| {
        let feeders: Vec<_> = of_globals
            .map(|(global, client)| {
                let own = jobs.iter().skip(global).step_by(daemons.clients.len());
                threads.spawn(move || submit_in_time(client, own, first, started))
            })
            .collect();
        feeders.into_iter().map(joined).collect::<Result<Vec<_>>>()
    })?;
    let late = submitted.iter().map(|(_, late)| *late).max().unwrap_or_default();
    for (client, (jobs, _)) in daemons.clients.iter().zip(&submitted) {
        jobs.iter().try_for_each(|(number, _)| await_end(client, *number))?;
    }
    let without_core = (daemons.spent()?.waited - waited) / started.elapsed().as_secs_f64();
    let (refused, repartitions) = counted(&daemons)?;
    let mut all = Report::default();
    for (client, (jobs, _)) in daemons.clients.iter().zip(&submitted) {
        for (number, job) in jobs {
            all.add(client, *number, job)?;
        }
    }
    let waits = Waits { refused, repartitions, ..Waits::of(&all.parts, workload.task_count()) };
    let delay = median(all.delays);
    Ok(Real { waits, delay, late: late.as_secs_f64(), without_core })
}

fn runnable(job: &TraceJob) -> Result<JobSpec> {
    let spec = job.sleeping().map_err(|what| Failure::new(what, "choose jobs with fewer tasks"))?;
    Ok(JobSpec { submit_dir: "/".into(), ..spec })
}

type Submitted<'a> = (Vec<(u64, &'a TraceJob)>, Duration);

/// The jobs with their ids, and the maximum delay of a submission. The first job is submitted at once.
fn submit_in_time<'a>(
    client: &Client,
    jobs: impl Iterator<Item = &'a (&'a TraceJob, JobSpec)>,
    first: SimDuration,
    started: Instant,
) -> Result<Submitted<'a>> {
    let (mut submitted, mut late) = (Vec::new(), Duration::ZERO);
    for (job, spec) in jobs {
        let due = Duration::from_micros(job.arrival.as_micros() - first.as_micros());
        thread::sleep(due.saturating_sub(started.elapsed()));
        late = late.max(started.elapsed().saturating_sub(due));
        let answer = client.submit(spec, &amalgam_cli::client::idempotency_key()?)?;
        submitted.push((answer.job, *job));
    }
    Ok((submitted, late))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn await_end(client: &Client, job: u64) -> Result<()> {
    loop {
        let waited = client.wait(job, Duration::from_secs(30))?;
        if waited.state == JobState::Succeeded {
            return Ok(());
        }
        if waited.state.has_ended() {
            return Err(Failure::new(format!("job {job} {}: {:?}", waited.state, waited.reason), ""));
        }
    }
}

/// Launches that were refused, as the global masters count them, and repartitions, as the masters do.
fn counted(daemons: &Daemons) -> Result<(u64, u64)> {
    let sum = |clients: &[Client], name: &str| {
        clients.iter().try_fold(0.0, |sum, client| Ok::<f64, Failure>(sum + Counts::of(client)?.get(name)))
    };
    let refused = sum(&daemons.clients, "amalgam_launches_refused_total")?;
    Ok((refused as u64, sum(&daemons.of_masters, "amalgam_repartitions_total")? as u64))
}

impl Report {
    fn add(&mut self, client: &Client, number: u64, job: &TraceJob) -> Result<()> {
        let story: Vec<StoryLine> = client.list(&format!("/v1/jobs/{number}/story"), &Query::default())?;
        let allocations = story.into_iter().filter_map(|line| line.allocation);
        self.parts.extend(allocations.map(|parts| [parts.queue, parts.processing, parts.communication, parts.node]));
        let tasks: Vec<TaskSummary> = client.list(&format!("/v1/jobs/{number}/tasks"), &Query::default())?;
        self.delays.extend(tasks.iter().filter_map(|task| delay(task, job)));
        Ok(())
    }
}

fn delay(task: &TaskSummary, job: &TraceJob) -> Option<f64> {
    let stage: usize = task.task.split('.').nth(1)?.parse().ok()?;
    let was_to = job.run_times.get(stage)?.of(task.index).as_secs_f64();
    Some(task.wall_seconds? - was_to)
}
