//! Waits of attempts that job managers sent to nodes' queues, the accuracy of the expected waits, and results of
//! duplicates.

use crate::statistics::{mean, percentile, sorted};
use amalgam_core::role::Trigger;
use amalgam_core::vocabulary::{AttemptId, Duration, Instant, NodeId};
use amalgam_workload::trace::Summary;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// An expected wait is accurate if it is off by at most this.
const GOOD: Duration = Duration::from_secs(1);

/// Of a run in which job managers send attempts to nodes' queues.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Queueing {
    /// From launch to start, of guaranteed attempts that were not booked in a ledger.
    pub guaranteed_wait_s: Summary,
    pub guaranteed: u64,
    /// The same for opportunistic attempts that were promoted while they waited.
    pub promoted_wait_s: Summary,
    pub promoted: u64,
    pub opportunistic_wait_s: Summary,
    pub opportunistic: u64,
    /// Absolute errors of the expected waits, of guaranteed and promoted attempts.
    pub error_s: Summary,
    /// The share of guaranteed and promoted attempts whose expected wait was off by at most one second. Attempts that
    /// were given up for another one when they had waited more than a second longer than expected count as inaccurate.
    pub within_a_second: f64,
    pub duplicates: Duplicates,
    pub stragglers: Stragglers,
    /// Variation of the waits across nodes, in windows of ten minutes.
    pub across_nodes: Vec<AcrossNodes>,
    /// How often running opportunistic attempts yielded their CPU to guaranteed ones, and for how long each time.
    pub yields: u64,
    pub yielded_s: Summary,
}

/// Statistics over nodes of the mean wait at each node, of attempts that were launched as guaranteed and started in the
/// window.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct AcrossNodes {
    pub begins_s: f64,
    pub nodes: u64,
    pub mean_s: f64,
    /// The standard deviation.
    pub deviation_s: f64,
    pub p20_s: f64,
    pub p50_s: f64,
    pub p80_s: f64,
    pub p95_s: f64,
}

impl AcrossNodes {
    /// From the sum and the number of the waits at each node.
    fn of(begins_s: f64, nodes: &BTreeMap<NodeId, (Duration, u32)>) -> AcrossNodes {
        let means = sorted(nodes.values().map(|(sum, count)| sum.as_secs_f64() / f64::from(*count)));
        let mean = mean(&means);
        let variance = means.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / means.len() as f64;
        let at = |percent: u32| percentile(&means, percent);
        let (nodes, deviation_s) = (means.len() as u64, variance.sqrt());
        AcrossNodes {
            begins_s,
            nodes,
            mean_s: mean,
            deviation_s,
            p20_s: at(20),
            p50_s: at(50),
            p80_s: at(80),
            p95_s: at(95),
        }
    }
}

/// Second attempts that were launched while the first one waited.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Duplicates {
    /// By trigger.
    pub underestimated: u64,
    pub above_mean: u64,
    pub waited_long: u64,
    /// Because it was not known at which node the task would wait less.
    pub explored: u64,
    /// Second attempts that started first.
    pub first: u64,
    /// Waiting opportunistic attempts whose task was sent to another node as guaranteed when that became possible. They
    /// are not counted in the other fields, because the earlier decision was not wrong.
    pub upgraded: u64,
}

impl Duplicates {
    pub fn all(&self) -> u64 {
        self.underestimated + self.above_mean + self.waited_long + self.explored
    }
}

/// Running attempts that were slow, and duplicates of running attempts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Stragglers {
    /// Attempts that were made to take several times as long as they should, and those of them that were detected and
    /// got a duplicate.
    pub slow: u64,
    pub caught: u64,
    /// The same for attempts that take over 1 s longer than twice the time that they should.
    pub slow_by_much: u64,
    pub caught_by_much: u64,
    /// Duplicates of running attempts, whether these were slow or had more work, and the duplicates that ended first.
    pub duplicates: u64,
    pub first: u64,
    /// Tasks that had ended and ran again because the transfer of one of their files was slow.
    pub slow_inputs: u64,
}

/// An attempt is slow by much if it takes this much longer than twice the time that it should.
const BY_MUCH: Duration = Duration::from_secs(1);
/// The length of the windows in which nodes are compared.
const NODES_COMPARED: Duration = Duration::from_secs(600);

/// Collects the data for [`Queueing`].
#[derive(Default)]
pub struct QueueMeasure {
    guaranteed: Vec<Duration>,
    promoted: Vec<Duration>,
    opportunistic: Vec<Duration>,
    errors: Vec<Duration>,
    /// Guaranteed attempts that were given up while they waited, more than a second after their expected start.
    overdue: u64,
    /// By window and node, the waits of guaranteed attempts that started.
    at_nodes: BTreeMap<u64, BTreeMap<NodeId, (Duration, u32)>>,
    duplicates: Duplicates,
    /// Duplicates that have neither been first nor been superseded.
    open: BTreeSet<AttemptId>,
    /// Waiting opportunistic attempts whose task got a guaranteed attempt.
    upgraded: BTreeSet<AttemptId>,
    stragglers: Stragglers,
    slow: BTreeSet<AttemptId>,
    slow_by_much: BTreeSet<AttemptId>,
    /// Attempts that got a duplicate while they ran, and these duplicates.
    racing: BTreeSet<AttemptId>,
    /// The attempts that yield, since when, and the lengths of yields that have ended.
    yielding: BTreeMap<AttemptId, Instant>,
    yielded: Vec<Duration>,
}

impl QueueMeasure {
    pub fn on_started(&mut self, waited: Duration, expected: Duration, is_opportunistic: bool, is_promoted: bool) {
        if is_opportunistic {
            self.opportunistic.push(waited);
        } else {
            let waits = if is_promoted { &mut self.promoted } else { &mut self.guaranteed };
            waits.push(waited);
            self.errors.push(Duration(waited.0.abs_diff(expected.0)));
        }
    }

    /// The attempt was given up for another one after it had waited for `waited`. The error of the expected wait is
    /// unknown, but it is inaccurate if the attempt has waited too long already.
    pub fn on_waited_in_vain(&mut self, waited: Duration, expected: Duration) {
        self.overdue += u64::from(waited > expected + GOOD);
    }

    /// An attempt started that was launched as guaranteed.
    pub fn on_started_at(&mut self, now: Instant, node: NodeId, waited: Duration) {
        let window = self.at_nodes.entry(now.0 / NODES_COMPARED.0).or_default();
        let (sum, count) = window.entry(node).or_default();
        *sum += waited;
        *count += 1;
    }

    pub fn on_duplicate_launched(&mut self, attempt: AttemptId, is_race: bool) {
        if is_race {
            self.racing.insert(attempt);
        } else {
            self.open.insert(attempt);
        }
    }

    /// The attempt takes `takes` and should take `should`.
    pub fn on_straggler(&mut self, attempt: AttemptId, takes: Duration, should: Duration) {
        self.stragglers.slow += u64::from(self.slow.insert(attempt));
        if takes > should + should + BY_MUCH {
            self.stragglers.slow_by_much += u64::from(self.slow_by_much.insert(attempt));
        }
    }

    /// A running attempt was detected as slow and gets a duplicate.
    pub fn on_caught(&mut self, attempt: AttemptId) {
        self.stragglers.duplicates += 1;
        self.stragglers.caught += u64::from(self.slow.contains(&attempt));
        self.stragglers.caught_by_much += u64::from(self.slow_by_much.contains(&attempt));
        self.racing.insert(attempt);
    }

    pub fn on_yielded(&mut self, now: Instant, attempt: AttemptId) {
        self.yielding.insert(attempt, now);
    }

    /// The attempt has its CPU again, or has ended. Returns for how long it had yielded, if it had.
    pub fn on_resumed(&mut self, now: Instant, attempt: AttemptId) -> Option<Duration> {
        let yielded = now.since(self.yielding.remove(&attempt)?);
        self.yielded.push(yielded);
        Some(yielded)
    }

    pub fn on_slow_input(&mut self) {
        self.stragglers.slow_inputs += 1;
    }

    pub fn on_overtaken(&mut self) {
        self.stragglers.first += 1;
    }

    pub fn on_triggered(&mut self, attempt: AttemptId, trigger: Trigger) {
        *match trigger {
            Trigger::Underestimated => &mut self.duplicates.underestimated,
            Trigger::AboveMean => &mut self.duplicates.above_mean,
            Trigger::WaitedLong => &mut self.duplicates.waited_long,
            Trigger::Explored => &mut self.duplicates.explored,
            Trigger::Upgraded => {
                self.upgraded.insert(attempt);
                &mut self.duplicates.upgraded
            }
        } += 1;
    }

    /// One of two attempts of a task was superseded by the other.
    pub fn on_superseded(&mut self, attempt: AttemptId) {
        if !self.racing.contains(&attempt) {
            let is_first = !self.open.remove(&attempt) && !self.upgraded.remove(&attempt);
            self.duplicates.first += u64::from(is_first);
        }
    }

    fn across_nodes(&self) -> Vec<AcrossNodes> {
        let begins_s = |window: u64| (window * NODES_COMPARED.0) as f64 / 1e6;
        self.at_nodes.iter().map(|(window, nodes)| AcrossNodes::of(begins_s(*window), nodes)).collect()
    }

    /// `None` if no attempt was sent to a queue.
    pub fn finish(&self) -> Option<Queueing> {
        let (guaranteed, opportunistic) = (self.guaranteed.len() as u64, self.opportunistic.len() as u64);
        let summary = |waits: &[Duration]| Summary::of(waits.iter().map(|wait| (wait.as_secs_f64(), 1)));
        let promoted = self.promoted.len() as u64;
        let good = self.errors.iter().filter(|error| **error <= GOOD).count();
        (guaranteed + promoted + opportunistic > 0).then(|| Queueing {
            guaranteed_wait_s: summary(&self.guaranteed),
            guaranteed,
            promoted_wait_s: summary(&self.promoted),
            promoted,
            opportunistic_wait_s: summary(&self.opportunistic),
            opportunistic,
            error_s: summary(&self.errors),
            within_a_second: match guaranteed + promoted + self.overdue {
                0 => 1.0,
                all => good as f64 / all as f64,
            },
            duplicates: self.duplicates,
            stragglers: self.stragglers,
            across_nodes: self.across_nodes(),
            yields: (self.yielded.len() + self.yielding.len()) as u64,
            yielded_s: summary(&self.yielded),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_given_up_after_its_expected_start_counts_as_inaccurate() {
        let (mut measure, seconds) = (QueueMeasure::default(), Duration::from_secs);
        (0..3).for_each(|_| measure.on_started(seconds(2), seconds(1), false, false));
        measure.on_waited_in_vain(seconds(2), seconds(1));
        assert_eq!(measure.finish().map(|queueing| queueing.within_a_second), Some(1.0));
        measure.on_waited_in_vain(seconds(3), seconds(1));
        assert_eq!(measure.finish().map(|queueing| (queueing.within_a_second, queueing.guaranteed)), Some((0.75, 3)));
    }

    #[test]
    fn nodes_are_compared_by_their_mean_waits_in_each_window() {
        let mut measure = QueueMeasure::default();
        let mut start = |at: u64, node: u32, waited: u64| {
            measure.on_started_at(Instant(at * 1_000_000), NodeId(node), Duration::from_secs(waited));
        };
        start(0, 0, 1);
        start(599, 0, 3);
        start(10, 1, 6);
        start(600, 2, 5);
        let found = measure.across_nodes();
        let of = |found: &AcrossNodes| (found.begins_s, found.nodes, found.mean_s, found.deviation_s);
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), [(0.0, 2, 4.0, 2.0), (600.0, 1, 5.0, 0.0)]);
        assert_eq!((found[0].p20_s, found[0].p80_s, found[0].p95_s), (2.0, 6.0, 6.0));
    }
}
