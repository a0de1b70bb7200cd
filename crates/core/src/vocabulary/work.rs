//! How much there is to do: resources times time.

use super::resources::WIDTH;
use super::{Duration, Resources, Totals};
use serde::{Deserialize, Serialize};

/// Of every kind of resource, how much of it is held for how long: in the kind's unit times milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Work(pub [u64; WIDTH]);

/// What a job has to do, as far as is known now: everything, and what is not done of it. A task that runs is not done
/// at all until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct JobWork {
    pub total: Work,
    pub remaining: Work,
}

/// What a job that places its tasks itself wants to hold of the cluster, and may.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Wants {
    /// All that runs of it or could.
    pub all: Totals,
    /// The smallest of the tasks that could start, or of those that run where none could: with less than that nothing starts.
    pub one: Resources,
    /// What its guaranteed tasks may hold together, as it was told last, in the message of this number; zero where the present
    /// master told it nothing.
    pub allowance: Totals,
    pub number: u32,
    /// What they hold.
    pub holds: Totals,
    /// Tells it from all that its job manager said before.
    pub said: u32,
}

impl Wants {
    /// The most that its guaranteed tasks will hold unless it is told otherwise.
    pub fn may_hold(&self) -> Totals {
        self.allowance.larger_of(&self.holds)
    }
}

/// The most that counts of one addend, so that no sum of a million of them overflows.
const MOST: u64 = u64::MAX >> 20;

impl Default for Work {
    fn default() -> Work {
        Work::ZERO
    }
}

impl Work {
    pub const ZERO: Work = Work([0; WIDTH]);

    /// That of `tasks` tasks, which each hold these resources for `each`, rounded up to milliseconds.
    pub fn of(resources: &Resources, each: Duration, tasks: u32) -> Work {
        let millis = each.0.div_ceil(1_000).saturating_mul(u64::from(tasks));
        let of = |amount: u32| u64::from(amount).saturating_mul(millis).min(MOST);
        // Of most kinds a task needs nothing.
        Work(resources.0.map(|amount| if amount == 0 { 0 } else { of(amount) }))
    }

    pub fn add(&mut self, more: &Work) {
        for kind in 0..WIDTH {
            self.0[kind] += more.0[kind];
        }
    }

    /// # Panics
    /// When more is taken out than was added, which is our own bug.
    pub fn sub(&mut self, done: &Work) {
        let mut is_too_much = false;
        for kind in 0..WIDTH {
            let (left, overflowed) = self.0[kind].overflowing_sub(done.0[kind]);
            self.0[kind] = left;
            is_too_much |= overflowed;
        }
        assert!(!is_too_much, "more work was done than there was");
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
    fn the_kind_that_is_scarcest_says_how_long_the_cluster_is_busy() {
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
