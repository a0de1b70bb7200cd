//! `job`: Amalgam's own job files, and workloads that were converted to JSON lines (`.jsonl`). A job file states
//! expected run times, not true ones. The expected run time of a stage, or else the option `run-time`, is used as the
//! true one.

use super::TraceFormat;
use crate::trace::RunTimes;
use crate::trace::chance::{Distribution, Unit};
use crate::trace::error::WorkloadError;
use crate::trace::options::Key;
use crate::trace::reading::Reading;
use crate::trace::{input, lines};
use crate::{Context, Format, read_job};
use amalgam_core::vocabulary::JobSpec;
use std::path::Path;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "job", about: "Amalgam's own job files (.toml, .yaml, .json, .jsonl)", keys: &KEYS, read };

const KEYS: [Key; 1] = [Key {
    name: "run-time",
    default: "10s",
    meaning: "run times of stages without `expected` in a job file, a distribution",
}];

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    let run_time = reading.options.own("run-time", |text| Distribution::parse(text, Unit::Time))?;
    let mut chance = reading.chance("job");
    for file in reading.files(&[".toml", ".yaml", ".yml", ".json", ".jsonl"])? {
        if reading.is_full() {
            break;
        }
        if input::plain_name(&file).ends_with(".jsonl") {
            reading.lines(&file, |reading, line| reading.add(lines::draft(line)?))?;
            continue;
        }
        let mut spec = job_file(&file)?;
        let mut run_times = Vec::with_capacity(spec.stages.len());
        for stage in &mut spec.stages {
            let times = match stage.expected {
                Some(expected) => RunTimes::Same(expected),
                None => RunTimes::Each((0..stage.tasks.len()).map(|_| run_time.draw_time(&mut chance)).collect()),
            };
            let wrong = |problem: String| WorkloadError::new(format!("{}: {problem}", file.display()), "shorten it");
            let times = reading.timed(times).map_err(wrong)?;
            stage.expected = reading.expected(stage.expected, &times).map_err(wrong)?;
            run_times.push(times);
        }
        reading
            .note("tasks of a job file run for the `expected` time of their stage, or else for the option `run-time`");
        reading.push(None, spec, run_times);
    }
    Ok(())
}

fn job_file(file: &Path) -> Result<JobSpec, WorkloadError> {
    let format =
        Format::of(Path::new(&input::plain_name(file))).map_err(|problem| WorkloadError::in_file(file, problem))?;
    let text = input::text(file)?;
    let absolute = std::path::absolute(file).map_err(|error| WorkloadError::in_file(file, error))?;
    let directory = absolute.parent().unwrap_or(&absolute);
    read_job(&text, format, file, &Context { submit_dir: directory.to_owned() }).map_err(|wrong| {
        WorkloadError::new(
            format!("{}:{}:{}: {}", wrong.file.display(), wrong.at.line, wrong.at.column, wrong.problem),
            wrong.remedy,
        )
    })
}
