//! Turns a job of a trace into processes that sleep for the run times of its tasks.

use super::{RunTimes, TraceJob};
use crate::build::DEFAULT_OUTPUT_CAP;
use amalgam_core::vocabulary::{ByteString, Duration, Items, JobSpec, Program, TaskSet, Workdir};
use std::sync::Arc;

impl TraceJob {
    /// The job with `sleep` as the command of every task. It takes a few bytes for each task, so use it for real runs
    /// only.
    ///
    /// # Errors
    /// The run times of a stage do not fit in one record.
    pub fn sleeping(&self) -> Result<JobSpec, String> {
        let mut spec = JobSpec::clone(&self.spec);
        for (stage, times) in spec.stages.iter_mut().zip(self.run_times.iter()) {
            let command = match times {
                RunTimes::Same(time) => sleep(*time),
                RunTimes::Each(times) if times.len() == 1 => sleep(times[0]),
                RunTimes::Each(times) => {
                    let mut items = Items::default();
                    for time in times {
                        items.push(seconds(*time))?;
                    }
                    stage.tasks = TaskSet::Each(items);
                    ["sh", "-c", "exec sleep \"$AMALGAM_ITEM\""].map(ByteString::from).into()
                }
            };
            let output_cap = DEFAULT_OUTPUT_CAP;
            stage.program =
                Arc::new(Program { command, workdir: Workdir::Submitted, output_cap, ..Program::default() });
        }
        Ok(spec)
    }
}

fn sleep(time: Duration) -> Vec<ByteString> {
    vec!["sleep".into(), seconds(time).into()]
}

fn seconds(time: Duration) -> String {
    let micros = time.as_micros();
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}
