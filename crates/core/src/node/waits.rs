//! A node reports how long tasks would wait there. It reports to the master and to the job managers that have tasks
//! there, as soon as the waits differ from its last report, but not too often (Boutin et al. 2014, section 3.2, where
//! each heartbeat reports them).

use super::{Attempt, NodeAgent, State};
use crate::policy::node_queue::projection::{Use, Workload, at_full_use};
use crate::policy::run_time;
use crate::protocol::{TheMaster, ToJobManager, ToMaster};
use crate::role::Outbox;
use crate::vocabulary::{AttemptId, Duration, EntryId, Instant, JobId, NodeWaits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// When a node reports its waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReportWaits {
    /// Minimum time between two reports.
    pub every: Duration,
    /// No report is sent if every wait is as the last report predicts, within this and one sixteenth.
    pub tolerance: Duration,
    /// Minimum part of an attempt's expected run time, in hundredths, that is assumed to be left: an attempt that has
    /// run for longer than expected seldom ends soon. At zero it may end at any time.
    pub least_left: u32,
    /// A report is also sent whenever the room for opportunistic work differs from the last report.
    pub reports_room: bool,
}

/// Changes within this time are reported together. Otherwise a job manager that gets a report after the first of many
/// launches would assume that the others are already counted.
const TOGETHER: Duration = Duration::from_millis(10);

/// What is left of an attempt that has run for as long as expected: it may end at any time.
const ANY_MOMENT: Duration = Duration::from_micros(1);

#[derive(Default)]
pub(super) struct Waits {
    rules: Option<ReportWaits>,
    reported: Option<Box<(Instant, Arc<NodeWaits>)>>,
    /// The attempts whose starts the last report contained.
    reported_of: BTreeSet<AttemptId>,
    /// When to check next whether there is something to report.
    due: Option<Instant>,
    /// Minimum time between two reports to the master, apart from those with a node report.
    pace: Duration,
    master_reported_at: Option<Instant>,
    /// Job managers have a report that the master has not received.
    owes_master: bool,
}

impl Waits {
    /// An entry started to wait, or an attempt started to run or ended.
    pub(super) fn on_change(&mut self, now: Instant) {
        if let Some(ReportWaits { every, .. }) = self.rules {
            let soon = now + TOGETHER;
            let at = self.reported.as_ref().map_or(soon, |reported| soon.max(reported.0 + every));
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Whether waits are reported at all.
    pub(super) fn reports(&self) -> bool {
        self.rules.is_some()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|at| at <= now)
    }

    /// Whether there may be something to report, or a report to the master is held back.
    pub(super) fn is_open(&self) -> bool {
        self.due.is_some() || self.owes_master
    }

    /// The master knows nothing of the node and gets a new report.
    pub(super) fn forget(&mut self, now: Instant, pace: Duration) {
        (self.reported, self.master_reported_at, self.pace) = (None, None, pace);
        self.on_change(now);
    }
}

impl NodeAgent {
    /// Makes the agent report how long tasks would wait.
    #[must_use]
    pub fn reporting_waits(mut self, rules: Option<ReportWaits>) -> NodeAgent {
        self.waits.rules = rules;
        self
    }

    /// Together with a node report (`with_report`), the master also gets waits that `pace` has held back.
    pub(super) fn report_waits(&mut self, now: Instant, with_report: bool, out: &mut Outbox) {
        self.waits.due = None;
        let Some(rules) = self.waits.rules else { return };
        let (waits, waiting) = self.project(now);
        let knows_all = waiting.iter().all(|(attempt, _)| self.waits.reported_of.contains(attempt));
        let is_old = self
            .waits
            .reported
            .as_deref()
            .is_some_and(|(at, reported)| knows_all && is_as_expected(&waits, reported, now.since(*at), &rules));
        if is_old && !(with_report && self.waits.owes_master) {
            return;
        }
        let waits = Arc::new(waits);
        let is_too_soon = self.waits.master_reported_at.is_some_and(|at| now.since(at) < self.waits.pace);
        self.waits.owes_master = is_too_soon && !with_report;
        if self.is_welcomed() && !self.waits.owes_master {
            self.waits.master_reported_at = Some(now);
            out.send(TheMaster, ToMaster::Waits(Arc::clone(&waits)));
        }
        if is_old {
            return;
        }
        self.waits.reported_of = waiting.iter().map(|(attempt, _)| *attempt).collect();
        let mut starts: BTreeMap<JobId, Vec<(AttemptId, Duration)>> = BTreeMap::new();
        for (attempt, start) in waiting {
            starts.entry(attempt.job).or_default().push((attempt, start));
        }
        for job in self.jobs() {
            let starts = starts.remove(&job).unwrap_or_default().into_boxed_slice();
            out.send(job, ToJobManager::Waits { waits: Arc::clone(&waits), starts });
        }
        self.waits.reported = Some(Box::new((now, waits)));
    }

    /// Jobs with attempts here that have not ended.
    fn jobs(&self) -> BTreeSet<JobId> {
        let live = self.attempts.iter().filter(|(_, entry)| !matches!(entry.state, State::Ended(_)));
        live.map(|(id, _)| id.job).collect()
    }

    /// The waits if everything takes as long as expected, and when each guaranteed attempt that waits would start.
    /// Guaranteed work is assumed to get the room of opportunistic work at once.
    fn project(&self, now: Instant) -> (NodeWaits, Vec<(AttemptId, Duration)>) {
        let (mut running, mut queued, mut opportunistic) = (Vec::new(), Vec::new(), Vec::new());
        let least_left = self.waits.rules.map_or(0, |rules| rules.least_left);
        let mut waiting = Vec::new();
        for (_, entry) in self.attempts.running() {
            let one = Use { resources: entry.template.shape.resources, lasting: left_of(entry, now, least_left) };
            if entry.is_opportunistic() { &mut opportunistic } else { &mut running }.push(one);
        }
        for entry in self.queue.entries() {
            let one = Use { resources: entry.shape.resources, lasting: run_time(entry.expected) };
            if entry.is_opportunistic() {
                opportunistic.push(one);
            } else {
                queued.push(one);
                waiting.push(entry.id);
            }
        }
        let workload = Workload { capacity: self.room.capacity(), running: &running, queued: &queued };
        let (matrix, starts) = workload.waits_and_starts(self.mean_run_time());
        let attempts = waiting.into_iter().zip(starts).filter_map(|(entry, start)| match entry {
            EntryId::Attempt(attempt) => Some((attempt, start)),
            EntryId::Probe(_) => None,
        });
        let queued = self.queue.entries().iter();
        // Room that is kept for a short time is free by the time that a task arrives.
        let free = self.room.opportunistic_part_of(self.room.free());
        let room = queued.fold(free, |room, entry| room.saturating_sub(&entry.shape.resources));
        let opportunistic = at_full_use(self.room.capacity(), &opportunistic);
        (NodeWaits { matrix, opportunistic, room }, attempts.collect())
    }

    /// Mean expected run time of the attempts that run and the entries that wait.
    fn mean_run_time(&self) -> Duration {
        let running = self.attempts.running().map(|(_, entry)| entry.expected);
        let queued = self.queue.entries().iter().map(|entry| entry.expected);
        let (sum, count) =
            running.chain(queued).fold((0_u128, 0), |(sum, count), one| (sum + u128::from(run_time(one).0), count + 1));
        Duration(u64::try_from(sum.checked_div(count).unwrap_or(0)).unwrap_or(u64::MAX))
    }
}

fn left_of(entry: &Attempt, now: Instant, least: u32) -> Duration {
    left(run_time(entry.expected), entry.running_for(now), least)
}

/// What is left of `expected` after `ran`, but at least `least` hundredths of `expected`.
fn left(expected: Duration, ran: Duration, least: u32) -> Duration {
    Duration(expected.0.saturating_sub(ran.0).max(expected.0 / 100 * u64::from(least))).max(ANY_MOMENT)
}

fn is_as_expected(now: &NodeWaits, reported: &NodeWaits, earlier: Duration, rules: &ReportWaits) -> bool {
    let tolerance = rules.tolerance;
    let then = reported.opportunistic.0.saturating_sub(earlier.0);
    let longer = now.opportunistic.0.max(then);
    now.opportunistic.0.abs_diff(then) <= tolerance.0 + longer / 16
        && now.matrix.is_as_expected(&reported.matrix, earlier, tolerance)
        && (!rules.reports_room || now.room == reported.room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_exceeds_its_expected_run_time_has_the_least_time_left() {
        let seconds = Duration::from_secs;
        assert_eq!(
            [3, 9, 10, 50].map(|ran| left(seconds(10), seconds(ran), 0)),
            [seconds(7), seconds(1), ANY_MOMENT, ANY_MOMENT]
        );
        assert_eq!(
            [3, 9, 10, 50].map(|ran| left(seconds(10), seconds(ran), 50)),
            [seconds(7), seconds(5), seconds(5), seconds(5)]
        );
    }
}
