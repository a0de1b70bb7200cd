//! `spark-events`: Spark's event logs, one JSON object in each line. Each Spark job is a job; its stages are those that
//! ran in it. A task runs from its launch to its finish, and reads the bytes that its metrics state. The time of an
//! application between its jobs is part of the jobs' arrivals.

use super::stages::Stages;
use super::{TraceFormat, fields};
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::reading::{Draft, Reading};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "spark-events", about: "Spark's event logs (JSON lines)", keys: &[], read };

/// The events that are read. Of all other events only the name is checked.
#[derive(Deserialize)]
#[serde(tag = "Event")]
enum Event {
    #[serde(rename = "SparkListenerJobStart")]
    JobStart {
        #[serde(rename = "Job ID")]
        job: u64,
        #[serde(rename = "Submission Time")]
        submitted: u64,
        #[serde(rename = "Stage Infos")]
        stages: Vec<StageInfo>,
    },
    #[serde(rename = "SparkListenerTaskEnd")]
    TaskEnd {
        #[serde(rename = "Stage ID")]
        stage: u64,
        #[serde(rename = "Task End Reason")]
        reason: Reason,
        #[serde(rename = "Task Info")]
        task: TaskInfo,
        #[serde(rename = "Task Metrics", default)]
        metrics: Option<Metrics>,
    },
}

#[derive(Deserialize)]
struct StageInfo {
    #[serde(rename = "Stage ID")]
    stage: u64,
    #[serde(rename = "Parent IDs", default)]
    befores: Vec<u64>,
}

#[derive(Deserialize)]
struct Reason {
    #[serde(rename = "Reason")]
    reason: String,
}

#[derive(Deserialize)]
struct TaskInfo {
    #[serde(rename = "Index")]
    index: u64,
    #[serde(rename = "Launch Time")]
    launched: u64,
    #[serde(rename = "Finish Time")]
    finished: u64,
}

/// The bytes that a task read from files and from the output of stages before it. Logs of old versions have only some
/// of them.
#[derive(Default, Deserialize)]
struct Metrics {
    #[serde(rename = "Input Metrics", default)]
    files: Option<ReadFiles>,
    #[serde(rename = "Shuffle Read Metrics", default)]
    shuffle: Option<ReadShuffle>,
}

#[derive(Default, Deserialize)]
struct ReadFiles {
    #[serde(rename = "Bytes Read", default)]
    bytes: u64,
}

#[derive(Default, Deserialize)]
struct ReadShuffle {
    #[serde(rename = "Remote Bytes Read", default)]
    remote: u64,
    #[serde(rename = "Local Bytes Read", default)]
    local: u64,
}

impl Metrics {
    fn bytes(&self) -> u64 {
        let files = self.files.as_ref().map_or(0, |read| read.bytes);
        let shuffle = self.shuffle.as_ref().map_or(0, |read| read.remote.saturating_add(read.local));
        files.saturating_add(shuffle)
    }
}

/// The other events of Spark's `JsonProtocol`, without the prefix `SparkListener`. All further events are named after
/// their class.
const OTHER_EVENTS: [&str; 34] = [
    "ApplicationEnd",
    "ApplicationStart",
    "BlockManagerAdded",
    "BlockManagerRemoved",
    "BlockUpdated",
    "EnvironmentUpdate",
    "ExecutorAdded",
    "ExecutorBlacklisted",
    "ExecutorBlacklistedForStage",
    "ExecutorExcluded",
    "ExecutorExcludedForStage",
    "ExecutorMetricsUpdate",
    "ExecutorRemoved",
    "ExecutorUnblacklisted",
    "ExecutorUnexcluded",
    "JobEnd",
    "LogStart",
    "MiscellaneousProcessAdded",
    "NodeBlacklisted",
    "NodeBlacklistedForStage",
    "NodeExcluded",
    "NodeExcludedForStage",
    "NodeUnblacklisted",
    "NodeUnexcluded",
    "ResourceProfileAdded",
    "SpeculativeTaskSubmitted",
    "StageCompleted",
    "StageExecutorMetrics",
    "StageSubmitted",
    "TaskGettingResult",
    "TaskStart",
    "UnpersistRDD",
    "UnschedulableTaskSetAdded",
    "UnschedulableTaskSetRemoved",
];

/// The name of a line's event, which is the first key of the object.
fn event_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('{')?.trim_start().strip_prefix("\"Event\"")?.trim_start();
    let (name, _) = rest.strip_prefix(':')?.trim_start().strip_prefix('"')?.split_once('"')?;
    Some(name)
}

/// Whether a name may be the full name of a class, such as
/// `org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd`.
fn is_class(name: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "_$".contains(c));
    name.contains('.') && name.split('.').all(is_word)
}

/// The jobs of an application, from the lines of its log that were read so far.
#[derive(Default)]
struct Application {
    /// The submission in milliseconds since the epoch, and the stages.
    jobs: BTreeMap<u64, (u64, Stages)>,
    /// The job that runs each stage: the first job that names it. Later jobs use its output.
    job_of: BTreeMap<u64, u64>,
    failed: u64,
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    for file in reading.files(&["eventlog", ".jsonl"])? {
        if reading.is_full() {
            break;
        }
        let mut application = Application::default();
        reading.lines(&file, |_, line| application.line(line))?;
        application.finish(reading, &file);
    }
    reading.note("the time that an application's driver spends between its jobs is only part of their arrivals");
    Ok(())
}

impl Application {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.is_empty() {
            return Ok(());
        }
        let name = event_name(line).ok_or("the line is not an event")?;
        if !matches!(name, "SparkListenerJobStart" | "SparkListenerTaskEnd") {
            let is_known = name.strip_prefix("SparkListener").is_some_and(|name| OTHER_EVENTS.contains(&name));
            return if is_known || is_class(name) { Ok(()) } else { Err(format!("`{name}` is not an event of Spark")) };
        }
        match serde_json::from_str(line).map_err(|error| error.to_string())? {
            Event::JobStart { job, submitted, stages } => {
                let mut own = Stages::default();
                for info in stages {
                    if *self.job_of.entry(info.stage).or_insert(job) == job {
                        own.declare(info.stage, info.befores);
                    }
                }
                self.jobs.insert(job, (submitted, own));
            }
            Event::TaskEnd { stage, reason, task, metrics } if reason.reason == "Success" => {
                let job = self.job_of.get(&stage).and_then(|job| self.jobs.get_mut(job));
                let (_, stages) = job.ok_or_else(|| format!("no job has started stage {stage}"))?;
                let read = metrics.unwrap_or_default().bytes();
                stages.succeeded(stage, task.index, task.launched, task.finished, read)?;
            }
            Event::TaskEnd { .. } => self.failed += 1,
        }
        Ok(())
    }

    fn finish(self, reading: &mut Reading, file: &Path) {
        if self.failed > 0 {
            reading.note(format!("{} attempts that did not succeed were left out", self.failed));
        }
        let application = input::plain_name(file);
        let mut without_tasks = 0u64;
        for (number, (submitted, stages)) in self.jobs {
            if reading.is_full() {
                break;
            }
            let stages = stages.into_drafts();
            if stages.is_empty() {
                without_tasks += 1;
                continue;
            }
            let name = format!("{application}-{number}");
            let arrival = Some(fields::from_millis(submitted));
            if let Err(problem) = reading.add(Draft { name, arrival, stages, ..Draft::default() }) {
                reading.malformed(file, 1, problem);
            }
        }
        if without_tasks > 0 {
            reading.note(format!("{without_tasks} jobs without a successful task were left out"));
        }
    }
}
