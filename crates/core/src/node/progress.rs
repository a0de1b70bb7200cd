//! A node reports at intervals how far its running attempts have come, to the job managers that look for stragglers
//! (Boutin et al. 2014, section 3.4).

use super::attempt::AtExecutor;
use super::{NodeAgent, State};
use crate::protocol::{TheExecutor, ToExecutor, ToJobManager};
use crate::role::Outbox;
use crate::vocabulary::{AttemptId, Duration, Instant, JobId, Sample};
use std::collections::BTreeMap;

/// A long attempt is measured at most this many times during its expected run time.
const LOOKS: u64 = 16;
/// A short attempt is measured once it has run for longer than expected by this fraction (one part in `LATE`).
const LATE: u64 = 4;
/// An attempt whose next measurement is at most one part in `SOON` of its interval away is measured with the others:
/// one request costs less than two.
const SOON: u64 = 8;

/// When the progress of attempts is measured.
#[derive(Default)]
pub(super) struct Watch {
    /// `None`: never.
    every: Option<Duration>,
    /// When the executor is asked next.
    due: Option<Instant>,
}

impl Watch {
    pub(super) fn every(every: Option<Duration>) -> Watch {
        Watch { every, due: None }
    }

    /// An attempt starts to run.
    pub(super) fn on_running(&mut self, now: Instant, running: &mut AtExecutor) {
        let Some(every) = self.every else { return };
        running.measured_at = now + interval(every, running.expected);
        self.due = Some(self.due.map_or(running.measured_at, |due| due.min(running.measured_at)));
    }

    /// An attempt starts to wait for files.
    pub(super) fn on_lacking(&mut self, now: Instant) {
        let Some(every) = self.every else { return };
        self.due = Some(self.due.map_or(now + every, |due| due.min(now + every)));
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|at| at <= now)
    }

    /// The attempts whose interval has passed, with the minimum time between two measurements. `None` if none is ever
    /// measured.
    pub(super) fn measure(&mut self, now: Instant, running: &mut [AtExecutor]) -> Option<(Duration, Vec<AttemptId>)> {
        self.due = None;
        let every = self.every?;
        let mut attempts = Vec::new();
        for one in running.iter_mut() {
            let interval = interval(every, one.expected);
            if one.measured_at <= now + Duration(interval.0 / SOON) {
                one.measured_at = now + interval;
                attempts.push(one.attempt);
            }
        }
        self.due = running.iter().map(|one| one.measured_at).min();
        Some((every, attempts))
    }
}

/// The time between two measurements: long where little changes. An attempt that should end before the first
/// measurement is measured once it is late, so that attempts that end in time, which are most, cost nothing.
fn interval(every: Duration, expected: Option<Duration>) -> Duration {
    let Some(Duration(expected)) = expected else { return every };
    let late = Duration(expected.saturating_add(expected / LATE));
    if late < every { late.max(Duration(every.0 / LOOKS)) } else { every.max(Duration(expected / LOOKS)) }
}

impl NodeAgent {
    /// Makes the agent report the progress of attempts, with at least this time between two reports.
    #[must_use]
    pub fn reporting_progress(mut self, every: Option<Duration>) -> NodeAgent {
        self.attempts.measure_every(every);
        self
    }

    /// Asks the executor for the progress of the attempts whose interval has passed.
    pub(super) fn measure(&mut self, now: Instant, out: &mut Outbox) {
        let Some((every, attempts)) = self.attempts.measure(now) else { return };
        if self.files.is_any_lacking() {
            self.attempts.on_lacking_files(now);
            for (attempt, files) in self.files.lacking(now, every) {
                out.send(attempt.job, ToJobManager::Lacks { attempt, files });
            }
        }
        if !attempts.is_empty() {
            out.send(TheExecutor(self.node), ToExecutor::Measure { node: self.node, attempts });
        }
    }

    /// The executor's answer.
    pub(super) fn on_measured(&self, samples: Box<[(AttemptId, Sample)]>, out: &mut Outbox) {
        let mut by_job: BTreeMap<JobId, Vec<(AttemptId, Sample)>> = BTreeMap::new();
        for (attempt, sample) in samples {
            if self.attempts.get(&attempt).is_some_and(|entry| matches!(entry.state, State::Running)) {
                by_job.entry(attempt.job).or_default().push((attempt, sample));
            }
        }
        for (job, samples) in by_job {
            out.send(job, ToJobManager::Progress { samples: samples.into_boxed_slice() });
        }
    }
}
