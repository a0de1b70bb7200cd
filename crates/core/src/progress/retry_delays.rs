//! Failed tasks rest before the next try, twice as long after each failure, so that a task that fails at once does not fail a
//! thousand times a second. A restart does not change the end of a rest, which follows from the recorded ends of attempts.

use super::Dag;
use crate::vocabulary::{Duration, EndReason, Instant, StageSpec};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Failing nodes are paused separately, and a task that no node can run fails after some tries, which need not take long.
const MOST_AFTER_LOSS: Duration = Duration::from_secs(4);

/// The resting tasks of a job, by the end of the rest and by stage and place.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct RetryDelays {
    due: BTreeSet<(Instant, u32, u32)>,
    until: BTreeMap<(u32, u32), Instant>,
    /// Maximum rest.
    longest: Duration,
}

impl RetryDelays {
    pub(crate) fn new(longest_first: Duration) -> RetryDelays {
        RetryDelays { longest: StageSpec::MOST_RETRY_DELAY.max(longest_first), ..RetryDelays::default() }
    }

    pub(crate) fn add(&mut self, stage: u32, index: u32, until: Instant) {
        self.remove(stage, index);
        self.until.insert((stage, index), until);
        self.due.insert((until, stage, index));
    }

    /// False if the task did not rest.
    pub(crate) fn remove(&mut self, stage: u32, index: u32) -> bool {
        let until = self.until.remove(&(stage, index));
        until.is_some_and(|until| self.due.remove(&(until, stage, index)))
    }

    fn next(&self) -> Option<Instant> {
        self.due.first().map(|(until, ..)| *until)
    }

    /// The next task whose rest has ended. A rest longer than the maximum has ended as well: the clock was set back.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(u32, u32)> {
        let &(until, stage, index) = self.due.first()?;
        let is_due = until <= now || until.since(now) > self.longest;
        (is_due && self.remove(stage, index)).then_some((stage, index))
    }

    pub(crate) fn set_clock(&mut self, by_clock: impl Fn(Instant) -> Instant) {
        let until = std::mem::take(&mut self.until);
        self.due.clear();
        until.into_iter().for_each(|((stage, index), until)| self.add(stage, index, by_clock(until)));
    }
}

/// The rest after an attempt that ended for this reason, given the failures of the task and its losses through nodes. The
/// first loss is not the task's fault: it is tried elsewhere at once.
pub(crate) fn retry_delay_after(reason: &EndReason, first: Duration, failures: u16, losses: u8) -> Duration {
    match reason {
        reason if reason.is_success() || *reason == EndReason::Cancelled => Duration::ZERO,
        reason if reason.is_loss() && losses > 1 => {
            StageSpec::FIRST_RETRY_DELAY.doubled(u32::from(losses) - 2).min(MOST_AFTER_LOSS)
        }
        reason if reason.is_infrastructure() => Duration::ZERO,
        _ => first.doubled(u32::from(failures).saturating_sub(1)),
    }
}

impl Duration {
    /// The duration doubled `times` times, but not above the maximum of delays unless it is longer itself.
    fn doubled(self, times: u32) -> Duration {
        let doubled = self.0.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX));
        Duration(doubled).min(StageSpec::MOST_RETRY_DELAY.max(self))
    }
}

impl Dag {
    /// When the next rest ends.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.retry_delays.next()
    }

    /// When the rest of a task ends.
    pub fn delayed_until(&self, stage: u32, index: u32) -> Option<Instant> {
        self.retry_delays.until.get(&(stage, index)).copied()
    }

    /// The resting tasks of a stage.
    pub(crate) fn resting_in(&self, stage: u32) -> impl Iterator<Item = u32> {
        self.retry_delays.until.range((stage, 0)..=(stage, u32::MAX)).map(|((_, index), _)| *index)
    }

    /// Resting tasks, by the end of the rest.
    pub fn resting(&self) -> impl ExactSizeIterator<Item = (Instant, u32, u32)> {
        self.retry_delays.due.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(first: u64, failures: u16) -> Duration {
        retry_delay_after(&EndReason::Exit(1), Duration::from_secs(first), failures, 0)
    }

    #[test]
    fn rests_double_up_to_a_minute() {
        let retry_delays: Vec<u64> = (1..=9).map(|failures| after(1, failures).as_millis() / 1_000).collect();
        assert_eq!(retry_delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(after(0, 9), Duration::ZERO, "no delay requested");
        assert_eq!([after(300, 1), after(300, u16::MAX)], [Duration::from_secs(300); 2], "the first delay is longer");
        assert_eq!(after(5, 4), Duration::from_secs(40));
    }

    #[test]
    fn preempted_tasks_are_tried_again_at_once_and_repeatedly_lost_ones_are_not() {
        let rest = |reason: EndReason, losses| retry_delay_after(&reason, Duration::from_secs(1), 0, losses);
        for reason in [EndReason::Preempted, EndReason::Shed, EndReason::Withdrawn(String::new())] {
            assert_eq!(rest(reason, 9), Duration::ZERO);
        }
        let fault = || EndReason::NodeFault(String::new());
        let retry_delays: Vec<u64> = (1..=6).map(|losses| rest(fault(), losses).as_millis() / 1_000).collect();
        assert_eq!(retry_delays, [0, 1, 2, 4, 4, 4]);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_prolong_rests() {
        let mut retry_delays = RetryDelays::new(Duration::ZERO);
        let [early, late] = [1_000, 5_000].map(|seconds| Instant(Duration::from_secs(seconds).0));
        retry_delays.add(0, 7, late);
        retry_delays.add(0, 8, late + Duration::from_secs(1));
        assert_eq!(retry_delays.take_due(early), Some((0, 7)));
        assert_eq!(retry_delays.take_due(late), None);
        assert_eq!(retry_delays.take_due(late + Duration::from_secs(1)), Some((0, 8)));
        assert_eq!(retry_delays, RetryDelays::new(Duration::ZERO));
    }
}
