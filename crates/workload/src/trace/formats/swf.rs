//! `swf`: the Standard Workload Format of the Parallel Workloads Archive. It has 18 columns, with times in seconds and
//! memory in kB for each processor. A job of n processors becomes n tasks of one core, or one task of n cores with
//! `processors=cores`. On the archive's machines the n processors started together; here the n tasks do with `processors=gang`. Jobs
//! that failed or were cancelled are kept, with the time for which they ran.

use super::{TraceFormat, fields};
use crate::quantities::Malformed;
use crate::trace::RunTimes;
use crate::trace::demand::resources;
use crate::trace::error::WorkloadError;
use crate::trace::options::Key;
use crate::trace::reading::{Draft, DraftStage, Reading};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "swf",
    about: "Standard Workload Format of the Parallel Workloads Archive (.swf)",
    keys: &KEYS,
    read,
};

const KEYS: [Key; 1] = [Key {
    name: "processors",
    default: "tasks",
    meaning: "tasks: n processors are n tasks of one core; gang: these start together; cores: they are one task's",
}];

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    let processors = reading.options.own("processors", processors)?;
    for file in reading.files(&[".swf"])? {
        reading.lines(&file, |reading, line| {
            if line.starts_with(';') || line.trim().is_empty() {
                return Ok(());
            }
            reading.add(job(line, processors)?)
        })?;
    }
    if processors == Processors::Tasks {
        reading.note("the processors of a job are tasks of one core each, which need not start together");
    }
    reading.note("dependencies on preceding jobs and think times are not followed");
    Ok(())
}

/// What the processors of a job become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Processors {
    Tasks,
    /// Tasks that start together.
    Gang,
    /// Cores of one task.
    Cores,
}

fn processors(text: &str) -> Result<Processors, Malformed> {
    match text {
        "tasks" => Ok(Processors::Tasks),
        "gang" => Ok(Processors::Gang),
        "cores" => Ok(Processors::Cores),
        _ => Err(Malformed::new(format!("unknown value `{text}`"), "write `tasks`, `gang` or `cores`")),
    }
}

fn job(line: &str, kind: Processors) -> Result<Draft, String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [number, submit, _wait, run_time, used, _cpu, used_memory, asked, asked_time, asked_memory, _status, user, ..] =
        words[..]
    else {
        return Err(format!("the line has {} columns, not 18", words.len()));
    };
    if words.len() != 18 {
        return Err(format!("the line has {} columns, not 18", words.len()));
    }
    // Missing values are -1.
    let known = |text: &str| text.parse().ok().filter(|number: &f64| *number >= 0.0);
    if known(run_time).is_none() {
        return Err("the run time is not known".to_owned());
    }
    let processors = if known(used).is_some_and(|count| count > 0.0) { used } else { asked };
    let processors = fields::tasks(processors).map_err(|_| "the number of processors is not known".to_owned())?;
    let memory_mib = known(used_memory).or(known(asked_memory)).unwrap_or(0.0) / 1024.0;
    let times = RunTimes::Same(fields::seconds(run_time, "the run time")?);
    let mut stage = if kind != Processors::Cores {
        let mut stage = DraftStage::new("processors", processors, times);
        stage.demand = Some(resources(1.0, memory_mib));
        stage.gang = kind == Processors::Gang;
        stage
    } else {
        let mut stage = DraftStage::new("processors", 1, times);
        stage.demand = Some(resources(f64::from(processors), memory_mib * f64::from(processors)));
        stage
    };
    if known(asked_time).is_some_and(|time| time > 0.0) {
        stage.estimate = Some(fields::seconds(asked_time, "the requested time")?);
    }
    let arrival = Some(fields::seconds(submit, "the submit time")?);
    Ok(Draft { name: format!("job-{number}"), user: user.to_owned(), arrival, stages: vec![stage], ..Draft::default() })
}
