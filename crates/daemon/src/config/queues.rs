//! `[[queue]]`: the queues and their limits.

use super::beside::beside;
use super::range::{GUARANTEED, Range, SHARE, WEIGHT};
use super::{Mistake, duration, mistake};
use amalgam_core::policy::inter_job::{QueueTree, QueueTreeError};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Duration, QueueSpec};
use amalgam_workload::{At, Position};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueEntry {
    name: At<String>,
    weight: Option<At<f64>>,
    guaranteed: Option<At<f64>>,
    maximum: Option<At<f64>>,
    user_limit: Option<At<f64>>,
    max_running_jobs: Option<u32>,
    #[serde(default, deserialize_with = "duration")]
    default_timeout: Option<At<Duration>>,
    preset: Option<At<String>>,
    global: Option<At<u8>>,
}

pub fn queues(entries: &[QueueEntry], preset: Preset) -> Result<QueueTree, Mistake> {
    let specs = entries.iter().map(|entry| entry.spec(preset)).collect::<Result<Vec<QueueSpec>, Mistake>>()?;
    QueueTree::new(specs).map_err(|error| of_queue(entries, error))
}

/// The mistake, at the entry of its queue.
pub fn of_queue(entries: &[QueueEntry], error: QueueTreeError) -> Mistake {
    // Of a duplicated queue, report the second entry; of an error of the implicit root, the first entry.
    let written = entries.iter().rfind(|entry| entry.full_name() == error.queue).or(entries.first());
    mistake(written.map_or_else(Position::default, |entry| entry.name.at), error.problem, error.remedy)
}

impl QueueEntry {
    fn full_name(&self) -> String {
        let name = &self.name.value;
        let is_full = name == "root" || name.starts_with("root.");
        if is_full { name.clone() } else { format!("root.{name}") }
    }

    fn spec(&self, preset: Preset) -> Result<QueueSpec, Mistake> {
        let name = &self.name.value;
        let scaled = |key: &str, found: Option<At<f64>>, range: Range| {
            let At { at, value } = found.unwrap_or(At { at: self.name.at, value: range.usual });
            let wrong = || mistake(at, format!("queue `{name}`: {key} is {value}"), range.remedy());
            range.scaled(value).ok_or_else(wrong)
        };
        Ok(QueueSpec {
            weight: scaled("weight", self.weight, WEIGHT)?,
            guaranteed: scaled("guaranteed", self.guaranteed, GUARANTEED)?,
            maximum: scaled("maximum", self.maximum, SHARE)?,
            user_limit: scaled("user_limit", self.user_limit, SHARE)?,
            max_running_jobs: self.max_running_jobs,
            default_timeout: self.default_timeout.map(|timeout| timeout.value),
            preset: self.preset.as_ref().map(|name| beside(preset, name)).transpose()?,
            global: self.global.map(|global| global.value),
            name: self.full_name(),
        })
    }
}
