//! `bdb`: the job logs of Shark from the Big Data Benchmark, one query in each file. The stages before a stage are named
//! as in `STAGE_ID=4 .. STAGE_DEP=(5,1)(8,2)`, each with the shuffle between them. A task that succeeded ran from its
//! `START_TIME` to its `FINISH_TIME`, in milliseconds. Stages without tasks were cached and are left out.

use super::stages::Stages;
use super::{TraceFormat, fields};
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::reading::{Draft, Reading};

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "bdb", about: "Shark's job logs of the Big Data Benchmark (*_job_log)", keys: &[], read };

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    for file in reading.files(&["_job_log"])? {
        if reading.is_full() {
            break;
        }
        let mut stages = Stages::default();
        let mut failed = 0u64;
        reading.lines(&file, |_, line| {
            if line.contains(" STAGE_DEP=") {
                let (stage, befores) = dependencies(line)?;
                stages.declare(stage, befores);
            } else if line.contains(" TASK_TYPE=") {
                match field(line, "STATUS=")? {
                    "SUCCESS" => task(line, &mut stages)?,
                    _ => failed += 1,
                }
            }
            Ok(())
        })?;
        if failed > 0 {
            reading.note(format!("{failed} attempts that failed were left out"));
        }
        let name = input::plain_name(&file).trim_end_matches("_job_log").to_owned();
        if let Err(problem) = reading.add(Draft { name, stages: stages.into_drafts(), ..Draft::default() }) {
            reading.malformed(&file, 1, problem);
        }
    }
    reading.note("each query ran alone: its log has no arrivals");
    Ok(())
}

/// The text after a key, up to the next space.
fn field<'a>(line: &'a str, key: &str) -> Result<&'a str, String> {
    let found = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key));
    found.ok_or_else(|| format!("`{key}` is missing"))
}

fn dependencies(line: &str) -> Result<(u64, Vec<u64>), String> {
    let stage = fields::number(field(line, "STAGE_ID=")?, "the stage")?;
    let pairs = field(line, "STAGE_DEP=")?.split(['(', ')']).filter(|pair| !pair.is_empty());
    let before = |pair: &str| fields::number(pair.split(',').next().unwrap_or_default(), "the stage before");
    Ok((stage, pairs.map(before).collect::<Result<_, _>>()?))
}

fn task(line: &str, stages: &mut Stages) -> Result<(), String> {
    let stage = fields::number(field(line, "STAGE_ID=")?, "the stage")?;
    let task = fields::number(field(line, "TID=")?, "the task")?;
    let start: u64 = fields::number(field(line, "START_TIME=")?, "the start")?;
    let finish = fields::number(field(line, "FINISH_TIME=")?, "the end")?;
    stages.succeeded(stage, task, start, finish, 0)
}
