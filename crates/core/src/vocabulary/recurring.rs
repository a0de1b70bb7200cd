//! What is alike in a job and an earlier one, and how long the earlier ones ran.
//!
//! A job recurs when its user submits the same work again under any name; or under the same name stages of the same names,
//! as a job that is given other arguments every day.

use super::{ByteString, Duration, Fingerprint, JobSpec, UserId, Workdir};
use serde::{Deserialize, Serialize};

/// A run counts for one part in so many, once there were as many.
const RECENT_RUNS: u32 = 4;

/// A run time is recalled while runs differ from their mean by no more than one part in so many.
const STEADY_WITHIN: u64 = 2;

/// What is alike in a job and the next of its kind; of one user, so that nobody can make another's plans go wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Recurring {
    user: UserId,
    fingerprint: u64,
}

/// The mean run time of a stage's tasks over the last runs of its job, and how far runs were from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PastRuns {
    runs: u32,
    mean: Duration,
    deviation: Duration,
}

impl Recurring {
    /// By its work; and by its name, unless that is only the name of its program.
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

/// Whoever submits a command without a name is not asked for one, and runs very different things by one interpreter.
fn has_own_name(spec: &JobSpec) -> bool {
    let is_its_name = |program: &ByteString| program.to_string().rsplit('/').next() == Some(&spec.name);
    !matches!(&spec.stages[..], [only] if only.program.command.first().is_some_and(is_its_name))
}

impl PastRuns {
    /// `mean`: of the tasks that succeeded in a run.
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

    /// Whether the mean says something of the next run.
    pub fn is_steady(&self) -> bool {
        self.deviation.0 <= self.mean.0 / STEADY_WITHIN
    }
}
