//! `google2011`: the table `job_events` of Google's cluster trace of 2011. A job arrives when it is first submitted and
//! runs from its last scheduling to its end. The table has neither tasks nor demands: the option `tasks` sets the
//! number of tasks of a job, and all of them run as long as the job.

use super::{TraceFormat, fields};
use crate::quantities::Malformed;
use crate::trace::RunTimes;
use crate::trace::chance::counts;
use crate::trace::error::WorkloadError;
use crate::trace::options::Key;
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::Duration;
use std::collections::BTreeMap;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "google2011", about: "job_events of Google's trace of 2011 (.csv)", keys: &KEYS, read };

const KEYS: [Key; 2] = [
    Key { name: "tasks", default: "1", meaning: "number of tasks of a job, a distribution" },
    Key { name: "ends", default: "finish", meaning: "jobs that are kept: finish, or any that ran and ended" },
];

/// The time of events before the trace. The trace itself starts at 600 s.
const BEFORE_THE_TRACE: &str = "0";

/// A job that has not ended yet.
#[derive(Default)]
struct Open {
    submitted: Option<Duration>,
    scheduled: Option<Duration>,
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    let tasks = reading.options.own("tasks", counts)?;
    let any_end = reading.options.own("ends", any_end)?;
    let mut chance = reading.chance("google2011");
    let mut open: BTreeMap<u64, Open> = BTreeMap::new();
    let mut left_out = 0u64;
    for file in reading.files(&[".csv"])? {
        reading.lines(&file, |reading, line| {
            let [time, _missing, job, event, user, _class, _name, _logical] = fields::columns(line)?;
            let id = fields::number(job, "the job")?;
            let at = microseconds(time)?;
            match event {
                "0" => {
                    let job = open.entry(id).or_default();
                    job.submitted.get_or_insert(at);
                }
                "1" => open.entry(id).or_default().scheduled = Some(at),
                "2" | "3" | "4" | "5" | "6" => {
                    let is_wanted = any_end || event == "4";
                    let times = open.remove(&id).and_then(|job| Some((job.submitted?, job.scheduled?)));
                    let Some((submitted, scheduled)) = times.filter(|_| is_wanted && time != BEFORE_THE_TRACE) else {
                        left_out += 1;
                        return Ok(());
                    };
                    let run_time = RunTimes::Same(fields::between(scheduled, at)?);
                    let stage = DraftStage::new("tasks", tasks.draw_count(&mut chance, 1), run_time);
                    reading.add(Draft {
                        name: format!("job-{id}"),
                        user: user.to_owned(),
                        arrival: Some(submitted),
                        stages: vec![stage],
                        ..Draft::default()
                    })?;
                }
                // Changes of constraints or priority.
                "7" | "8" => {}
                other => return Err(format!("the event `{other}` is not one of 0 to 8")),
            }
            Ok(())
        })?;
    }
    reading.note(format!(
        "tasks are not in the table: each job has {} of them (tasks=..)",
        reading.options.own_text("tasks")
    ));
    if left_out + open.len() as u64 > 0 {
        reading.note(format!(
            "{left_out} ends of jobs that did not finish or whose start is not in the files, and {} jobs without an \
             end, were left out",
            open.len()
        ));
    }
    Ok(())
}

fn any_end(text: &str) -> Result<bool, Malformed> {
    match text {
        "finish" => Ok(false),
        "any" => Ok(true),
        _ => Err(Malformed::new(format!("unknown value `{text}`"), "write `finish` or `any`")),
    }
}

fn microseconds(text: &str) -> Result<Duration, String> {
    Ok(Duration::from_micros(fields::number(text, "the time")?))
}
