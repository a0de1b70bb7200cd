//! Which users' estimates are trusted. Placement and shedding depend on estimated run times, so a user who repeatedly
//! understates them gains an advantage. Mercury (Karanasos et al. 2015, section 4.3) states that such users can be
//! detected and given guaranteed work, but not how. Here, a few jobs with wrong estimates in a row cost the trust,
//! and as many with right ones restore it.

use crate::vocabulary::Estimated;

/// An estimate is wrong if the tasks ran for more than this many times as long.
const FACTOR: u64 = 2;
/// Jobs with wrong estimates, minus those with right ones, that cost the trust.
const STRIKES: u32 = 3;

/// Trust in one user.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trust {
    strikes: u32,
    lost: bool,
}

impl Trust {
    /// A job of the user ended. Returns whether that changed the trust.
    pub fn learn(&mut self, job: Estimated) -> bool {
        let is_wrong = job.measured.0 > job.stated.0.saturating_mul(FACTOR);
        self.strikes = if is_wrong { STRIKES.min(self.strikes + 1) } else { self.strikes.saturating_sub(1) };
        let lost = if self.lost { self.strikes > 0 } else { self.strikes == STRIKES };
        std::mem::replace(&mut self.lost, lost) != lost
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Duration;

    fn job(measured: u64) -> Estimated {
        Estimated { stated: Duration::from_secs(10), measured: Duration::from_secs(measured) }
    }

    #[test]
    fn trust_is_lost_by_repeated_understating_and_restored_as_slowly() {
        let mut trust = Trust::default();
        let mut lost = Vec::new();
        for measured in [21, 30, 20, 50, 50, 9, 21, 5, 5, 5, 90] {
            trust.learn(job(measured));
            lost.push(trust.is_lost());
        }
        let expected = [false, false, false, false, true, true, true, true, true, false, false];
        assert_eq!(lost, expected);
    }

    #[test]
    fn overstated_estimates_cost_no_trust() {
        let mut trust = Trust::default();
        assert!((0..9).all(|_| !trust.learn(job(1))) && !trust.is_lost());
    }

    #[test]
    fn a_change_of_trust_is_reported_once() {
        let mut trust = Trust::default();
        let reported: Vec<bool> =
            [30, 30, 30, 30, 1, 1, 1].into_iter().map(|measured| trust.learn(job(measured))).collect();
        assert_eq!(reported, [false, false, true, false, false, false, true]);
    }
}
