//! Amounts of work: resources times time.

use super::resources::WIDTH;
use super::{Duration, Resources, Totals};
use serde::{Deserialize, Serialize};

/// Per kind of resource, its amount times the time for which it is held: the kind's unit times milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Work(pub [u64; WIDTH]);

/// The work of a job as far as it is known now: in total, and what remains. All of a task's work remains until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct JobWork {
    pub total: Work,
    pub remaining: Work,
}

/// What a job that places its own tasks requests of the cluster, and its allowance.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct AllowanceRequest {
    /// What its tasks need that run or could run.
    pub all: Totals,
    /// The smallest task that could start or, if none could, the smallest that runs: with less than that nothing starts.
    pub one: Resources,
    /// The allowance of its guaranteed tasks in total, as last received, in the message with this `number`; zero if the present
    /// master sent none.
    pub allowance: Totals,
    pub number: u32,
    /// What its guaranteed tasks hold.
    pub holds: Totals,
    /// The number of this message of its job manager.
    pub report: u32,
}

impl AllowanceRequest {
    /// The most that its guaranteed tasks will hold until the next allowance.
    pub fn may_hold(&self) -> Totals {
        self.allowance.larger_of(&self.holds)
    }
}

/// Upper limit of one addend, so that a sum of a million of them does not overflow.
const MOST: u64 = u64::MAX >> 20;

impl Default for Work {
    fn default() -> Work {
        Work::ZERO
    }
}

impl Work {
    pub const ZERO: Work = Work([0; WIDTH]);

    /// The work of `tasks` tasks that each hold these resources for `each`, rounded up to milliseconds.
    pub fn of(resources: &Resources, each: Duration, tasks: u32) -> Work {
        let millis = each.0.div_ceil(1_000).saturating_mul(u64::from(tasks));
        let of = |amount: u32| u64::from(amount).saturating_mul(millis).min(MOST);
        // A task needs nothing of most kinds.
        Work(resources.0.map(|amount| if amount == 0 { 0 } else { of(amount) }))
    }

    pub fn add(&mut self, more: &Work) {
        for kind in 0..WIDTH {
            self.0[kind] += more.0[kind];
        }
    }

    /// # Panics
    /// If more is subtracted than was added, which is our own bug.
    pub fn sub(&mut self, done: &Work) {
        let mut is_too_much = false;
        for kind in 0..WIDTH {
            let (left, overflowed) = self.0[kind].overflowing_sub(done.0[kind]);
            self.0[kind] = left;
            is_too_much |= overflowed;
        }
        assert!(!is_too_much, "subtracted more work than was added");
    }

    /// For how many nanoseconds it would occupy the whole cluster, in the kind of which it needs the largest part: a
    /// lower bound of its run time there. `u64::MAX` where the cluster lacks a kind.
    pub fn on_whole(&self, capacity: &Totals) -> u64 {
        const NANOS_IN_MILLI: u64 = 1_000_000;
        let mut longest = 0;
        for kind in 0..WIDTH {
            let (work, of) = (self.0[kind], capacity.0[kind]);
            if work > 0 {
                // Long division only where it is needed.
                let time = match work.checked_mul(NANOS_IN_MILLI) {
                    Some(scaled) => scaled.checked_div(of),
                    None => (u128::from(work) * u128::from(NANOS_IN_MILLI))
                        .checked_div(u128::from(of))
                        .map(|time| u64::try_from(time).unwrap_or(u64::MAX)),
                };
                longest = longest.max(time.unwrap_or(u64::MAX));
            }
        }
        longest
    }

    /// Whether some kind differs by more than one part in `parts` of `other`.
    pub fn differs(&self, other: &Work, parts: u64) -> bool {
        self.0.iter().zip(&other.0).any(|(&own, &other)| own.abs_diff(other) > other / parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcest_kind_determines_how_long_the_cluster_is_busy() {
        let capacity = Totals(Resources::new(4_000, 1_024).0.map(u64::from));
        let work = Work::of(&Resources::new(1_000, 512), Duration::from_secs(2), 3);
        assert_eq!(work.on_whole(&capacity), 3_000_000_000, "half of the memory, six times for two seconds");
        assert_eq!(work.on_whole(&Totals::ZERO), u64::MAX);
        assert_eq!(Work::ZERO.on_whole(&Totals::ZERO), 0);
    }

    #[test]
    fn no_number_of_stages_overflows() {
        let largest = Work::of(&Resources([u32::MAX; WIDTH]), Duration::MAX, u32::MAX);
        let mut sum = Work::ZERO;
        (0..crate::vocabulary::job::MAX_STAGES).for_each(|_| sum.add(&largest));
        (0..crate::vocabulary::job::MAX_STAGES).for_each(|_| sum.sub(&largest));
        assert_eq!(sum, Work::ZERO);
    }
}
