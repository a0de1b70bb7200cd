//! Traces and generators, read as jobs with their true run times.
//!
//! The reader of a format (`formats`) describes each job as a `Draft`. `Reading` applies the options that all formats
//! share, checks the result against the limits of the vocabulary and collects it. Values that a trace lacks are filled
//! in from options, and the workload's notes say so. Malformed lines and records are counted, with their positions.

mod arrival;
mod chance;
mod constraints;
mod demand;
mod error;
mod formats;
mod input;
mod lines;
mod nodes;
mod options;
mod reading;
mod shape;
mod sleeping;

pub use error::{MalformedLine, MalformedLines, WorkloadError};
pub use formats::{FORMATS, TraceFormat};
pub use nodes::{NODE_FORMATS, NODE_KEYS, Node, read_nodes};
pub use options::{COMMON_KEYS, Key};
pub use shape::{JobShape, Load, Summary, WorkloadShape};

use amalgam_core::vocabulary::{Chance, Duration, JobSpec};
use options::Options;
use reading::Reading;
use std::sync::Arc;

/// The jobs of a trace or a generator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    pub name: String,
    /// In the order of their arrivals. The first arrives at zero, unless an arrival process was requested.
    pub jobs: Vec<TraceJob>,
    /// Gaps, substitutions and assumptions, as messages for users.
    pub notes: Vec<String>,
    pub malformed: MalformedLines,
}

/// A job with its arrival and the true run times of its tasks, which schedulers do not know in advance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceJob {
    /// Since the workload's start.
    pub arrival: Duration,
    /// Its program does nothing. A simulator uses the run times instead, and [`TraceJob::sleeping`] makes processes of
    /// them.
    pub spec: Arc<JobSpec>,
    /// One for each stage.
    pub run_times: Arc<[RunTimes]>,
}

/// The true run times of a stage's tasks, unknown to the schedulers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunTimes {
    Same(Duration),
    /// One for each task, in the order of their indexes.
    Each(Vec<Duration>),
}

/// Reads a workload such as `hawk:traces/YH1.tr.gz` or `synthetic:gridmix`: the name of a format, and a file, a
/// directory or a pattern. Equal arguments give equal workloads.
///
/// # Errors
/// The format or an option is unknown, a file cannot be read, or it has no valid job.
pub fn read(workload: &str, options: &[(String, String)]) -> Result<Workload, WorkloadError> {
    let (format, path) = formats::find(workload)?;
    let options = Options::parse(options, format.keys)?;
    let mut reading = Reading::new(path, &options)?;
    (format.read)(&mut reading)?;
    reading.finish(workload)
}

impl Workload {
    /// Keeps `count` jobs, drawn without replacement, or all jobs if there are fewer.
    pub fn sample(&mut self, count: usize, seed: u64) {
        let mut chance = Chance::new(seed, "sample");
        let mut chosen: Vec<usize> = (0..self.jobs.len()).collect();
        for place in 0..count.min(chosen.len()) {
            let other = place + chance.below((chosen.len() - place) as u64) as usize;
            chosen.swap(place, other);
        }
        chosen.truncate(count);
        chosen.sort_unstable();
        self.notes.push(format!("{} of {} jobs, drawn with seed {seed}", chosen.len(), self.jobs.len()));
        self.jobs = chosen.into_iter().map(|index| self.jobs[index].clone()).collect();
    }

    pub fn task_count(&self) -> u64 {
        self.jobs.iter().map(|job| job.spec.task_count()).sum()
    }
}

impl RunTimes {
    /// The run time of the task at an index.
    ///
    /// # Panics
    /// If the stage has no such task.
    pub fn of(&self, task: u32) -> Duration {
        match self {
            RunTimes::Same(time) => *time,
            RunTimes::Each(times) => times[task as usize],
        }
    }

    /// The mean over a stage's tasks, or zero if it has none.
    pub fn mean(&self) -> Duration {
        match self {
            RunTimes::Same(time) => *time,
            RunTimes::Each(times) if times.is_empty() => Duration::ZERO,
            RunTimes::Each(times) => Duration::from_micros((sum(times) / times.len() as u128) as u64),
        }
    }

    pub fn longest(&self) -> Duration {
        match self {
            RunTimes::Same(time) => *time,
            RunTimes::Each(times) => times.iter().copied().max().unwrap_or_default(),
        }
    }

    /// The sum over `tasks` tasks, in seconds.
    pub fn total_seconds(&self, tasks: u32) -> f64 {
        self.total_micros(tasks) as f64 / 1e6
    }

    /// The sum over `tasks` tasks, in microseconds.
    pub fn total_micros(&self, tasks: u32) -> u128 {
        match self {
            RunTimes::Same(time) => u128::from(time.as_micros()) * u128::from(tasks),
            RunTimes::Each(times) => sum(times),
        }
    }
}

fn sum(times: &[Duration]) -> u128 {
    times.iter().map(|time| u128::from(time.as_micros())).sum()
}
