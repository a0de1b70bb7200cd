//! `hawk`: one flat job in each line, `submit_s tasks mean_s d1 .. dn`, with all times in seconds. The traces of Hawk,
//! Eagle and Pigeon have this format. The mean is the expected run time that the schedulers of those papers get.

use super::{TraceFormat, fields};
use crate::trace::RunTimes;
use crate::trace::error::WorkloadError;
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::Duration;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "hawk", about: "flat jobs of Hawk, Eagle and Pigeon (.tr)", keys: &[], read };

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    for file in reading.files(&[".tr"])? {
        let mut number = 0u32;
        reading.lines(&file, |reading, line| {
            if line.trim().is_empty() {
                return Ok(());
            }
            number += 1;
            reading.add(job(line, number)?)
        })?;
    }
    Ok(())
}

fn job(line: &str, number: u32) -> Result<Draft, String> {
    let mut words = line.split_ascii_whitespace();
    let mut word = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
    let arrival = fields::seconds(word("the submit time")?, "the submit time")?;
    let tasks = fields::tasks(word("the number of tasks")?)?;
    let mean = fields::seconds(word("the mean run time")?, "the mean run time")?;
    let times: Vec<Duration> = words.map(|word| fields::seconds(word, "the run time")).collect::<Result<_, _>>()?;
    if times.len() != tasks as usize {
        return Err(format!("the line states {tasks} tasks but has {} run times", times.len()));
    }
    let mut stage = DraftStage::new("tasks", tasks, RunTimes::Each(times));
    stage.estimate = Some(mean);
    Ok(Draft { name: format!("job-{number}"), arrival: Some(arrival), stages: vec![stage], ..Draft::default() })
}
