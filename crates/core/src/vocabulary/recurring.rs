//! Recognises recurring jobs and keeps the run times of their earlier runs.
//!
//! A job recurs when its user submits the same work again under any name, or stages of the same names under the same job name,
//! such as a daily job with other arguments.

use super::{ByteString, Duration, Fingerprint, JobSpec, UserId, Workdir};
use serde::{Deserialize, Serialize};

/// The weight of a run in the mean is one part in this many, once there were that many runs.
const RECENT_RUNS: u32 = 4;

/// The mean is used while runs differ from it by at most one part in this many.
const STEADY_WITHIN: u64 = 2;

/// Identifies a recurring job. It includes the user, so that a user cannot spoil the plans of another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Recurring {
    user: UserId,
    fingerprint: u64,
}

/// The mean run time of a stage's tasks over the last runs of its job, and the mean deviation from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PastRuns {
    runs: u32,
    mean: Duration,
    deviation: Duration,
}

impl Recurring {
    /// Its identities: by its work, and by its name unless that is only the name of its program.
    pub fn of(user: UserId, spec: &JobSpec) -> Vec<Recurring> {
        let mut by_work = Fingerprint::default().text("work");
        let mut by_name = Fingerprint::default().text("name").text(&spec.name);
        for stage in &spec.stages {
            by_work = by_work.number(stage.program.command.len() as u64);
            by_work = stage.program.command.iter().fold(by_work, |print, word| print.sized(word.as_bytes()));
            by_work = by_work.number(stage.program.env.len() as u64);
            by_work = stage
                .program
                .env
                .iter()
                .fold(by_work, |print, (name, value)| print.sized(name.as_bytes()).sized(value.as_bytes()));
            by_work = match &stage.program.workdir {
                Workdir::Submitted => by_work.sized(spec.submit_dir.as_bytes()),
                Workdir::Own => by_work.number(0),
                Workdir::Path(path) => by_work.sized(path.as_bytes()),
            };
            by_work = stage.resources.basic.0.iter().fold(by_work, |print, amount| print.number(u64::from(*amount)));
            by_work = by_work.number(stage.resources.custom.len() as u64);
            by_work = stage
                .resources
                .custom
                .iter()
                .fold(by_work, |print, (kind, amount)| print.text(kind).number(u64::from(*amount)));
            by_name = by_name.text(&stage.name);
            for print in [&mut by_work, &mut by_name] {
                *print = print.number(stage.after.len() as u64);
                *print = stage.after.iter().fold(*print, |print, before| print.number(u64::from(*before)));
            }
        }
        let prints = if has_own_name(spec) { vec![by_work, by_name] } else { vec![by_work] };
        prints.into_iter().map(|print| Recurring { user, fingerprint: print.value() }).collect()
    }
}

/// A command that is submitted without a name is named after its program, and one interpreter runs very different jobs.
fn has_own_name(spec: &JobSpec) -> bool {
    let is_its_name = |program: &ByteString| program.to_string().rsplit('/').next() == Some(&spec.name);
    !matches!(&spec.stages[..], [only] if only.program.command.first().is_some_and(is_its_name))
}

impl PastRuns {
    /// `mean`: mean run time of the tasks that succeeded in a run.
    pub fn first(mean: Duration) -> PastRuns {
        PastRuns { runs: 1, mean, deviation: Duration::ZERO }
    }

    pub fn and(self, ran: Duration) -> PastRuns {
        let runs = self.runs.saturating_add(1);
        let weight = u64::from(runs.min(RECENT_RUNS));
        let towards = |old: Duration, new: Duration| Duration(old.0 - old.0 / weight + new.0 / weight);
        let deviation = Duration(ran.0.abs_diff(self.mean.0));
        PastRuns { runs, mean: towards(self.mean, ran), deviation: towards(self.deviation, deviation) }
    }

    pub fn mean(&self) -> Duration {
        self.mean
    }

    /// Whether the mean predicts the next run.
    pub fn is_steady(&self) -> bool {
        self.deviation.0 <= self.mean.0 / STEADY_WITHIN
    }
}
