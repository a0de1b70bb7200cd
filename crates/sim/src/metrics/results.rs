//! The results of a simulation, as they are printed and written.

use super::{
    Altruism, Chain, Forecast, GuaranteeMeasure, Guarantees, Metrics, OfPreset, Queueing, Reading, RunTimes, WINDOW,
};
use crate::oracle::Oracle;
use crate::reference::Reference;
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::resources::{CPU, MEMORY};
use amalgam_core::vocabulary::{Duration, Exchange, Instant, JobId, ResourceTime};
use amalgam_workload::trace::{Summary, TraceJob};
use parquet_derive::ParquetRecordWriter;
use serde::Serialize;
use std::collections::BTreeMap;

/// The result of one run. Names that end in `_s` are in seconds; shares are in 0..=1.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Results {
    pub preset: String,
    pub seed: u64,
    pub nodes: u64,
    pub jobs: u64,
    pub tasks: u64,
    /// Number of events of the roles.
    pub events: u64,
    /// Those that were simulated. The others were reports of nodes that said nothing new, which only cost time.
    pub mattered: u64,
    /// Time that the simulation took on its machine; does not depend on the seed alone.
    pub wall_seconds: f64,
    pub simulated_seconds: f64,
    /// From the first arrival to the last end.
    pub makespan_s: f64,
    /// Of the jobs that succeeded.
    pub jct_s: Summary,
    pub succeeded_jobs: u64,
    /// Jobs that ended otherwise: failed, cancelled, or with a failed dependency.
    pub failed_jobs: u64,
    /// From the time when a task was ready to its first start.
    pub task_wait_s: Summary,
    /// Tasks that started: those that `task_wait_s` summarises.
    pub started_tasks: u64,
    pub allocation_s: Allocation,
    /// Accuracy of the predicted starts and run times.
    pub forecast: Forecast,
    pub run_times: RunTimes,
    /// From where tasks read, if the locations of their inputs are known.
    pub reading: Option<Reading>,
    pub tasks_per_second: f64,
    pub utilization: Utilization,
    /// The share of the attempts' CPU time that no task needed in the end: of attempts that were preempted, failed or
    /// lost, and of duplicates.
    pub lost_work: f64,
    /// The share of it that was lost to preemption.
    pub preempted_work: f64,
    pub jain: Jain,
    /// What queues got of their guarantees, if they have any.
    pub guarantees: Option<Guarantees>,
    pub counters: Counters,
    /// How busy the processes were.
    pub busy: Busy,
    /// What jobs gave and received, if they donate resources.
    pub altruism: Option<Altruism>,
    /// Waits in the nodes' queues, if job managers send attempts to these.
    pub queueing: Option<Queueing>,
    /// The parts of the jobs' completion times.
    pub chain: Chain,
    /// Results by preset, the cluster's own first. Empty if the cluster has only one preset.
    pub side_by_side: Vec<OfPreset>,
    /// Of the process that ran the simulation; does not depend on the seed alone.
    pub peak_memory_bytes: u64,
    /// Lower bounds, and the times of a greedy scheduler with full knowledge, if requested.
    pub reference: Option<Reference>,
    /// Times without any waiting, if requested and if jobs have allowances.
    pub oracle: Option<Oracle>,
    /// Jobs that were refused, and why.
    pub refused_jobs: Vec<String>,
    /// Jobs that had not ended when the simulation did.
    pub unfinished_jobs: u64,
}

/// The share of the time that processes worked or waited for their disks.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Busy {
    pub server: f64,
    /// The busiest process of job managers or global master; zero if there is none.
    pub managers: f64,
    /// The busiest agent.
    pub nodes: f64,
}

/// The time from when a task was ready to its first start, and its parts.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Allocation {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    /// Mean of each part. They add up to the mean.
    pub parts: AllocationParts,
    /// Median of each part.
    pub medians: AllocationParts,
}

#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct AllocationParts {
    /// Until the decision where the task runs.
    pub queue: f64,
    /// Think time, message cost, disk and launch.
    pub processing: f64,
    /// Messages in transit.
    pub communication: f64,
    /// Waiting at the node.
    pub node: f64,
}

#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Utilization {
    pub cpu: f64,
    pub memory: f64,
    /// Share of the CPUs that opportunistic attempts held.
    pub opportunistic: f64,
}

/// Jain's index in windows of 60 s, of the mean dominant share of each job while it was active in the window. Only
/// windows in which at least two jobs were active and a task ran; `None` without such a window.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Jain {
    pub mean: Option<f64>,
    pub min: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counters {
    pub launched: u64,
    pub failed: u64,
    pub retried: u64,
    pub lost: u64,
    pub preempted: u64,
    pub shed: u64,
    pub promoted: u64,
    pub duplicated: u64,
    pub repartitioned: u64,
    /// Launches that their nodes refused.
    pub refused: u64,
    pub stale: u64,
    pub nodes_lost: u64,
}

/// The cluster over one window.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, ParquetRecordWriter)]
pub struct Window {
    pub begins_s: f64,
    pub cpu: f64,
    pub memory: f64,
    /// Tasks that ran at the end of the window.
    pub running: u64,
    pub active_jobs: u64,
    /// Tasks whose success was reported in the window.
    pub succeeded_tasks: u64,
    pub jain: Option<f64>,
}

/// The results of a run, with the data for tables and plots.
pub struct Outcome {
    pub results: Results,
    pub jobs: Vec<JobResult>,
    pub windows: Vec<Window>,
    /// Waits of tasks in seconds at the quantiles 0, 0.005, .., 1.
    pub wait_curve: Vec<f64>,
    pub heat: Heat,
    /// Of the first job with the most stages.
    pub gantt: Option<Gantt>,
    /// Of the requested subject.
    pub story: Vec<String>,
    /// Of the watched node.
    pub watched: Vec<Watched>,
    /// Number of running tasks of the watched job after each change, with the time in seconds.
    pub running: Vec<(f64, u32)>,
}

/// A node's limit for opportunistic work when it received the limit, and what opportunistic work held then; shares of
/// its CPUs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Watched {
    pub at_s: f64,
    pub limit: f64,
    pub held: f64,
}

/// The share of the nodes' CPUs in use, by groups of nodes and windows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Heat {
    pub nodes_in_row: usize,
    pub rows: Vec<Vec<f32>>,
}

/// When the stages of a job ran.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Gantt {
    pub job: String,
    pub stages: Vec<GanttStage>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GanttStage {
    pub name: String,
    pub tasks: u32,
    pub begins_s: f64,
    pub ends_s: f64,
}

/// One job of the workload.
#[derive(Clone, PartialEq, Debug, Serialize, ParquetRecordWriter)]
pub struct JobResult {
    /// Its number in the workload, from 0.
    pub job: u32,
    pub name: String,
    pub tasks: u64,
    pub arrival_s: f64,
    pub begun_s: f64,
    pub ended_s: Option<f64>,
    pub jct_s: Option<f64>,
    pub outcome: &'static str,
    pub queue: String,
    /// The job's preset, if some jobs use another preset than the cluster's own.
    pub preset: Option<String>,
    /// What the job gave to others and received from them, if jobs donate resources.
    pub given_cpu_s: Option<f64>,
    pub given_memory_gib_s: Option<f64>,
    pub received_cpu_s: Option<f64>,
    pub received_memory_gib_s: Option<f64>,
    /// Completion time with only its own share, as the job estimated it.
    pub alone_jct_s: Option<f64>,
    /// Completion time in the same run without altruism, if there was such a run.
    pub selfish_jct_s: Option<f64>,
}

impl Metrics {
    fn oracle(&self, jobs: &[TraceJob]) -> Option<Oracle> {
        let measured = self.jobs.iter().zip(jobs).filter_map(|(measure, job)| {
            let (at, _) = measure.ended.filter(|(_, outcome)| *outcome == JobOutcome::Succeeded)?;
            Some((job, at.since(measure.arrival), measure.allowed.as_slice()))
        });
        Oracle::of(measured)
    }

    /// One row for each job of the workload.
    fn job_results(&self, jobs: &[TraceJob]) -> Vec<JobResult> {
        let ids: BTreeMap<u32, JobId> =
            (0..).map(JobId).zip(&self.of_id).filter_map(|(id, job)| Some(((*job)?, id))).collect();
        let groups = self.groups.as_ref();
        let rows = self.jobs.iter().zip(jobs).enumerate().map(|(number, (measure, job))| {
            let ended = measure.ended.map(|(at, _)| at);
            let exchange = measure.exchange.as_deref();
            let cpu = |time: fn(&Exchange) -> &ResourceTime| exchange.map(|all| time(all).seconds(CPU) / 1e3);
            let memory = |time: fn(&Exchange) -> &ResourceTime| exchange.map(|all| time(all).seconds(MEMORY) / 1024.0);
            let alone = exchange.and_then(|exchange| exchange.alone);
            JobResult {
                job: number as u32,
                name: job.spec.name.clone(),
                tasks: job.spec.task_count(),
                arrival_s: seconds(measure.arrival),
                begun_s: seconds(measure.started),
                ended_s: ended.map(seconds),
                jct_s: ended.map(|at| at.since(measure.arrival).as_secs_f64()),
                outcome: match (&measure.ended, &measure.refused) {
                    (_, Some(_)) => "refused",
                    (None, None) => "unfinished",
                    (Some((_, JobOutcome::Succeeded)), _) => "succeeded",
                    (Some((_, JobOutcome::Failed { .. })), _) => "failed",
                    (Some((_, JobOutcome::Cancelled)), _) => "cancelled",
                    (Some((_, JobOutcome::DependencyFailed { .. })), _) => "dependency-failed",
                },
                queue: queue_name(&job.spec.queue),
                preset: groups.and_then(|groups| Some(groups.preset(*ids.get(&(number as u32))?).to_owned())),
                given_cpu_s: cpu(|exchange| &exchange.given),
                given_memory_gib_s: memory(|exchange| &exchange.given),
                received_cpu_s: cpu(|exchange| &exchange.received),
                received_memory_gib_s: memory(|exchange| &exchange.received),
                alone_jct_s: alone.map(|at| at.since(measure.arrival).as_secs_f64()),
                selfish_jct_s: None,
            }
        });
        rows.collect()
    }

    /// Ends the measurements at `now`. Fields that the caller fills in are left at zero.
    pub fn finish(mut self, now: Instant, jobs: &[TraceJob]) -> Outcome {
        self.on_window(now);
        self.waits.sort_unstable();
        let wait_curve = curve(&self.waits);
        let windows = self.usage.take_windows();
        let rows = self.job_results(jobs);
        let results = self.results(now, jobs, &windows);
        let heat = self.usage.take_heat();
        Outcome {
            results: Results { altruism: Altruism::of(&rows), ..results },
            jobs: rows,
            windows,
            wait_curve,
            heat,
            gantt: self.gantt(jobs),
            story: Vec::new(),
            watched: Vec::new(),
            running: self.watched_job.map(|watched| watched.points).unwrap_or_default(),
        }
    }

    /// The results without those about altruism.
    fn results(&mut self, now: Instant, jobs: &[TraceJob], windows: &[Window]) -> Results {
        let first = self.jobs.iter().map(|job| job.arrival).min().unwrap_or_default();
        let makespan = self.last_end.since(first).as_secs_f64();
        let ended = || self.jobs.iter().filter_map(|job| Some((job.arrival, job.ended?)));
        let succeeded = ended().filter(|(_, (_, outcome))| *outcome == JobOutcome::Succeeded);
        let jct: Vec<Duration> = succeeded.map(|(arrival, (at, _))| at.since(arrival)).collect();
        let failed = ended().count() - jct.len();
        let waits = summary(&self.waits);
        let side_by_side = self.side_by_side();
        let refused = self.jobs.iter().zip(jobs).filter_map(|(measure, job)| {
            let why = measure.refused.as_ref()?;
            Some(format!("{}: {why}", job.spec.name))
        });
        let (forecast, run_times) = self.forecast.finish();
        let held = self.usage.cpu_time();
        let share = |work: u128| if held == 0 { 0.0 } else { work as f64 / held as f64 };
        Results {
            preset: String::new(),
            seed: 0,
            nodes: 0,
            jobs: jobs.len() as u64,
            tasks: jobs.iter().map(|job| job.spec.task_count()).sum(),
            events: 0,
            mattered: 0,
            busy: Busy::default(),
            wall_seconds: 0.0,
            simulated_seconds: seconds(now),
            makespan_s: makespan,
            jct_s: summary(&jct),
            succeeded_jobs: jct.len() as u64,
            failed_jobs: failed as u64,
            task_wait_s: waits,
            started_tasks: self.waits.len() as u64,
            allocation_s: self.allocation(&waits),
            forecast,
            run_times,
            reading: self.reading.finish(),
            tasks_per_second: if makespan > 0.0 { self.tasks_succeeded as f64 / makespan } else { 0.0 },
            utilization: Utilization {
                cpu: self.usage.utilization(CPU, now),
                memory: self.usage.utilization(MEMORY, now),
                opportunistic: self.usage.opportunistic(now),
            },
            lost_work: share(held.saturating_sub(self.useful)),
            preempted_work: share(self.preempted),
            jain: Jain::of(windows),
            guarantees: self.guarantees.take().map(GuaranteeMeasure::finish),
            counters: self.counters,
            altruism: None,
            queueing: self.queueing.finish(),
            chain: self.chain.finish(),
            side_by_side,
            peak_memory_bytes: 0,
            reference: None,
            oracle: self.oracle(jobs),
            refused_jobs: refused.collect(),
            unfinished_jobs: self.jobs_left() as u64,
        }
    }

    fn side_by_side(&mut self) -> Vec<OfPreset> {
        let Some(groups) = self.groups.take() else { return Vec::new() };
        let ids = (0..).map(JobId).zip(&self.of_id).filter_map(|(id, job)| Some((id, &self.jobs[(*job)? as usize])));
        groups.finish(ids.map(|(id, job)| {
            let ended = job.ended.filter(|(_, outcome)| *outcome == JobOutcome::Succeeded);
            (id, ended.map(|(at, _)| at.since(job.arrival)))
        }))
    }

    fn gantt(&self, jobs: &[TraceJob]) -> Option<Gantt> {
        let ended = self.jobs.iter().zip(jobs).filter(|(measure, _)| measure.ended.is_some());
        // The first of those with the most stages.
        let (measure, job) = ended.rev().max_by_key(|(measure, _)| measure.spans.len())?;
        let stages = job.spec.stages.iter().zip(&measure.spans).map(|(stage, (starts, ends))| GanttStage {
            name: stage.name.clone(),
            tasks: stage.tasks.len(),
            begins_s: seconds(*starts),
            ends_s: seconds(*ends),
        });
        Some(Gantt {
            job: job.spec.name.clone(),
            stages: stages.filter(|stage| stage.begins_s <= stage.ends_s).collect(),
        })
    }

    fn allocation(&self, waits: &Summary) -> Allocation {
        let samples = &self.allocation;
        let [queue, processing, communication, node] =
            [&samples.queue, &samples.processing, &samples.communication, &samples.node].map(|part| summary(part));
        let parts = |of: fn(&Summary) -> f64| AllocationParts {
            queue: of(&queue),
            processing: of(&processing),
            communication: of(&communication),
            node: of(&node),
        };
        Allocation {
            mean: waits.mean,
            p50: waits.p50,
            p95: waits.p95,
            p99: waits.p99,
            parts: parts(|part| part.mean),
            medians: parts(|part| part.p50),
        }
    }
}

/// The full name of a queue, as a server shows it.
fn queue_name(written: &str) -> String {
    match written {
        "" => "root.default".to_owned(),
        name if name == "root" || name.starts_with("root.") => name.to_owned(),
        name => format!("root.{name}"),
    }
}

/// The values of sorted samples at 201 evenly spaced quantiles; empty for none.
fn curve(sorted: &[Duration]) -> Vec<f64> {
    let Some(last) = sorted.len().checked_sub(1) else { return Vec::new() };
    (0..=200).map(|step| sorted[last * step / 200].as_secs_f64()).collect()
}

impl Jain {
    fn of(windows: &[Window]) -> Jain {
        let full = windows.iter().filter_map(|window| window.jain);
        let (count, sum, min) =
            full.fold((0, 0.0, 1.0_f64), |(n, sum, min), index| (n + 1, sum + index, min.min(index)));
        if count == 0 { Jain::default() } else { Jain { mean: Some(sum / f64::from(count)), min: Some(min) } }
    }
}

pub(super) fn summary(samples: &[Duration]) -> Summary {
    Summary::of(samples.iter().map(|sample| (sample.as_secs_f64(), 1)))
}

fn seconds(at: Instant) -> f64 {
    at.0 as f64 / 1e6
}

const _: () = assert!(WINDOW.as_micros() == 60_000_000, "the docs above name the length of a window");
