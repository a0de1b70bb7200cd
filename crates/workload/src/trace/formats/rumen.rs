//! `rumen`: Hadoop's job traces as Rumen writes them: a sequence of JSON objects, with times in milliseconds. A task
//! runs as long as its successful attempt. The time of a reduce includes its wait for the shuffle. Tasks without a
//! successful attempt run for the median of their stage. Setup and cleanup are left out.

use super::{TraceFormat, fields};
use crate::trace::RunTimes;
use crate::trace::demand::resources;
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::Duration;
use serde::Deserialize;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "rumen", about: "Hadoop's job traces of Rumen (.json)", keys: &[], read };

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    #[serde(rename = "jobID")]
    job_id: String,
    user: Option<String>,
    submit_time: Option<i64>,
    /// Memory of a map and of a reduce, in MiB.
    #[serde(rename = "jobMapMB")]
    map_mb: Option<i64>,
    #[serde(rename = "jobReduceMB")]
    reduce_mb: Option<i64>,
    #[serde(default)]
    map_tasks: Vec<Task>,
    #[serde(default)]
    reduce_tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Task {
    #[serde(default)]
    attempts: Vec<Attempt>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    result: Option<String>,
    start_time: i64,
    finish_time: i64,
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    for file in reading.files(&[".json"])? {
        let jobs = serde_json::Deserializer::from_reader(input::open_text(&file)?).into_iter::<Job>();
        for (number, job) in (1..).zip(jobs) {
            if reading.is_full() {
                break;
            }
            let added = match job {
                Ok(job) => draft(job).and_then(|draft| reading.add(draft)),
                Err(error) if error.is_io() => return Err(input::unreadable(&file, &error.into())),
                Err(error) => {
                    // The start of the next object cannot be found after damaged JSON.
                    reading.malformed(&file, error.line() as u64, error.to_string());
                    break;
                }
            };
            if let Err(problem) = added {
                reading.malformed(&file, number, problem);
            }
        }
    }
    reading
        .note("reduces wait for the last map, and their run times include the shuffle; setup and cleanup are left out");
    Ok(())
}

fn draft(job: Job) -> Result<Draft, String> {
    let mut stages = Vec::new();
    stages.extend(stage("map", &job.map_tasks, job.map_mb)?);
    let after: Vec<usize> = (0..stages.len()).collect();
    stages.extend(stage("reduce", &job.reduce_tasks, job.reduce_mb)?.map(|stage| stage.after(after)));
    if stages.is_empty() {
        return Err(format!("the job {} has no tasks", job.job_id));
    }
    let submitted = job.submit_time.map(|millis| u64::try_from(millis).map(fields::from_millis));
    Ok(Draft {
        name: job.job_id,
        user: job.user.unwrap_or_default(),
        arrival: submitted.transpose().map_err(|_| "the submit time is negative".to_owned())?,
        stages,
        ..Draft::default()
    })
}

/// The stage of these tasks, or `None` if there are none.
fn stage(name: &str, tasks: &[Task], memory_mb: Option<i64>) -> Result<Option<DraftStage>, String> {
    let run_times: Vec<Option<Duration>> = tasks.iter().map(Task::run_time).collect::<Result<_, _>>()?;
    if run_times.is_empty() {
        return Ok(None);
    }
    let mut known: Vec<Duration> = run_times.iter().flatten().copied().collect();
    known.sort_unstable();
    let median = *known.get(known.len() / 2).ok_or_else(|| format!("no {name} of the job succeeded"))?;
    let run_times = run_times.into_iter().map(|time| time.unwrap_or(median)).collect();
    let mut stage = DraftStage::new(name, tasks.len() as u32, RunTimes::Each(run_times));
    stage.demand = memory_mb.filter(|mib| *mib > 0).map(|mib| resources(1.0, mib as f64));
    Ok(Some(stage))
}

impl Task {
    fn run_time(&self) -> Result<Option<Duration>, String> {
        let succeeded = |attempt: &&Attempt| attempt.result.as_deref() == Some("SUCCESS");
        let Some(attempt) = self.attempts.iter().find(succeeded) else { return Ok(None) };
        let millis = attempt.finish_time.checked_sub(attempt.start_time).and_then(|millis| u64::try_from(millis).ok());
        let millis = millis.ok_or("an attempt ended before it started")?;
        Ok(Some(fields::from_millis(millis)))
    }
}
