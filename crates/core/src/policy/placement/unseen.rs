//! Estimates the load that other schedulers have sent to a node and that is not reported yet. A node that is expected to
//! have room may have none when the task arrives; the more room it has beyond the task, the more likely the task still starts
//! at once. So estimates add a margin to the load of each node. The margin is learned from results: it is right when all but
//! a small part of the tasks that were expected to start at once do so. This uses a quantile of the wait instead of its mean.
//!
//! The quantile is tracked in steps: up after a task that had to wait, down after each task that did not. The step down is
//! smaller, so that both balance at the intended part (Robbins and Monro 1951, "A stochastic approximation method"; for
//! quantiles Gibbs and Candes 2021, section 2).

use crate::vocabulary::{Duration, Load, Resources};

/// Units of the margin for the size of one task.
const PARTS: u32 = 64;
/// Initial margin; [`MOST`] is its maximum.
const FIRST: u32 = PARTS;
const MOST: u32 = 8 * PARTS;
/// Waits up to this count as starting at once.
const AT_ONCE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(super) struct Unseen {
    /// Target: the percentage of the tasks expected to start at once that do so.
    at_once: u32,
    /// The margin, in units of 1 / [`PARTS`] of the size of the task that is placed.
    parts: u32,
}

impl Unseen {
    pub(super) fn new(at_once: u32) -> Unseen {
        Unseen { at_once: at_once.min(99), parts: FIRST }
    }

    /// A task started after it `waited`; its `expected` wait was predicted.
    pub(super) fn learn(&mut self, expected: Duration, waited: Duration) {
        if expected > AT_ONCE {
            return;
        }
        let is_late = waited > expected + AT_ONCE;
        let late = self.at_once / (100 - self.at_once);
        self.parts = if is_late { (self.parts + late).min(MOST) } else { self.parts.saturating_sub(1) };
    }

    /// Adds the margin for a task of this shape to the load.
    pub(super) fn add_to(&self, load: &mut Load, shape: &Resources) {
        for (sum, &amount) in load.resources.0.iter_mut().zip(&shape.0) {
            *sum = sum.saturating_add(u64::from(amount) * u64::from(self.parts) / u64::from(PARTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    const CORE: Resources = Resources::new(1_000, 512);

    fn cores(unseen: &Unseen) -> f64 {
        let mut load = Load::default();
        unseen.add_to(&mut load, &CORE);
        load.resources.0[0] as f64 / 1_000.0
    }

    /// The chosen node has exactly the margin beyond the task, and other schedulers send up to four tasks.
    #[test]
    fn it_comes_to_be_as_much_as_nine_of_ten_need() {
        let mut chance = Chance::new(1, "unseen");
        let mut unseen = Unseen::new(90);
        let (mut late, mut sum) = (0, 0.0);
        for _ in 0..40_000 {
            let waits = chance.unit() * 4.0 > cores(&unseen);
            let waited = if waits { Duration::from_secs(2) } else { Duration::ZERO };
            unseen.learn(Duration::ZERO, waited);
            (late, sum) = (late + u32::from(waits), sum + cores(&unseen));
        }
        assert!((3_800..4_200).contains(&late), "{late} of 40,000 waited");
        assert!((3.3..3.8).contains(&(sum / 40_000.0)), "{}", sum / 40_000.0);
    }

    #[test]
    fn a_decision_to_wait_is_not_evidence_and_the_estimate_has_bounds() {
        let mut unseen = Unseen::new(90);
        unseen.learn(Duration::from_secs(5), Duration::from_secs(50));
        assert_eq!(cores(&unseen), 1.0);
        (0..1_000).for_each(|_| unseen.learn(Duration::ZERO, Duration::from_secs(1)));
        assert_eq!(cores(&unseen), 8.0);
        (0..1_000).for_each(|_| unseen.learn(Duration::ZERO, Duration::ZERO));
        assert_eq!(cores(&unseen), 0.0);
        assert_eq!(Unseen::new(100).at_once, 99, "nobody can be sure");
    }
}
