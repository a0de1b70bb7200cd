//! Tasks and run times of traces that only state bytes.
//!
//! A stage has one task for each split of the bytes that it reads, at least one. The run time of a task is a fixed
//! overhead plus the time to read and write its share of the bytes at the rate of one task:
//! `overhead + (read + written) / tasks / rate`. All tasks of a stage have the same run time. The defaults are those of
//! a task that keeps a disk of that time half busy. They set the scale of a workload, not its shape.

use crate::quantities::parse_size;
use crate::trace::RunTimes;
use crate::trace::chance::{Distribution, Unit};
use crate::trace::error::WorkloadError;
use crate::trace::options::{Key, Options};
use crate::trace::reading::DraftStage;
use amalgam_core::vocabulary::Duration;

pub(super) const SPLIT: Key = Key { name: "split", default: "128MiB", meaning: "input of one map task" };
pub(super) const REDUCE_INPUT: Key = Key { name: "reduce-input", default: "1GiB", meaning: "input of one reduce task" };
pub(super) const RATE: Key =
    Key { name: "rate", default: "50MiB", meaning: "bytes that a task reads and writes per second" };
pub(super) const OVERHEAD: Key =
    Key { name: "overhead", default: "1s", meaning: "fixed part of the run time of every task" };
pub(super) const MOST_WRITTEN: Key = Key {
    name: "most-written",
    default: "1000TB",
    meaning: "maximum output of one task: a stage that writes more has more tasks",
};
pub(super) const MOST_TASKS: Key =
    Key { name: "most-tasks", default: "100000", meaning: "maximum number of tasks of one stage" };

/// The parameters for converting bytes to tasks.
pub(super) struct Rates {
    split: f64,
    reduce_input: f64,
    per_second: f64,
    overhead: Duration,
    most_written: f64,
    most_tasks: f64,
}

impl Rates {
    pub fn of(options: &Options) -> Result<Rates, WorkloadError> {
        let size = |key: Key| {
            let bytes = options.own(key.name, parse_size)?;
            if bytes > 0 {
                Ok(bytes as f64)
            } else {
                Err(WorkloadError::new(format!("workload option `{}` is 0", key.name), "write a size above 0"))
            }
        };
        let overhead = options.own(OVERHEAD.name, |text| Distribution::parse(text, Unit::Time))?;
        let Distribution::Fixed(overhead) = overhead else {
            return Err(WorkloadError::new(
                "workload option `overhead` cannot be a distribution",
                "write for instance `1s`",
            ));
        };
        Ok(Rates {
            split: size(SPLIT)?,
            reduce_input: size(REDUCE_INPUT)?,
            per_second: size(RATE)?,
            overhead: Duration::from_micros((overhead * 1e6) as u64),
            most_written: size(MOST_WRITTEN)?,
            most_tasks: options.own(MOST_TASKS.name, crate::trace::options::count)? as f64,
        })
    }

    pub fn map(&self, name: &str, read: f64, written: f64) -> DraftStage {
        self.stage(name, read / self.split, read, written)
    }

    pub fn reduce(&self, name: &str, read: f64, written: f64) -> DraftStage {
        self.stage(name, read / self.reduce_input, read, written)
    }

    fn stage(&self, name: &str, splits: f64, read: f64, written: f64) -> DraftStage {
        let tasks = splits.max(written / self.most_written).ceil().clamp(1.0, self.most_tasks);
        let moving = Duration::from_micros(((read + written) / tasks / self.per_second * 1e6).round() as u64);
        DraftStage::new(name, tasks as u32, RunTimes::Same(self.overhead + moving))
    }
}
