//! Estimated completion time of a task on a node (Boutin et al. 2014: Apollo, section 3.3). The task fetches its files,
//! waits, reads its input and works: E = I + W + R. The risk of failure adds to it: C = P E + K (1 - P) E. The caller
//! provides the times for waiting and working, and the files that the node already has.
//!
//! Departs: files count as fetched before the wait, as in the formula, even if they would be fetched during it.

use crate::vocabulary::{Distance, Duration};
use serde::{Deserialize, Serialize};

/// The unit of probabilities and factors.
pub const MILLION: u64 = 1_000_000;

/// A file, or a part of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputPiece {
    pub bytes: u64,
    pub distance: Distance,
}

/// Read rates, in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rates {
    pub on_node: u64,
    pub in_rack: u64,
    pub elsewhere: u64,
}

/// The probability that a task succeeds on a node, and the cost if it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Odds {
    /// P, in millionths.
    pub success: u64,
    /// K, in millionths: 2,000,000 is twice the time.
    pub penalty: u64,
}

/// The phases of a task on a node, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Estimate {
    /// I: until the node has the task's files; zero if it has them.
    pub fetch: Duration,
    /// W: until the task may start.
    pub wait: Duration,
    /// R: reading its input, and working.
    pub run: Duration,
}

impl Estimate {
    /// E: the completion time if nothing fails.
    pub fn unless_it_fails(&self) -> Duration {
        self.fetch + self.wait + self.run
    }

    /// C: the completion time including the risk of failure. [`Duration::MAX`] means never.
    pub fn completion(&self, odds: &Odds) -> Duration {
        let success = u128::from(odds.success.min(MILLION));
        let one = u128::from(MILLION);
        let factor = success * one + u128::from(odds.penalty) * (one - success);
        saturated(u128::from(self.unless_it_fails().0).saturating_mul(factor) / (one * one))
    }
}

impl Odds {
    /// Nothing fails.
    pub const SURE: Odds = Odds { success: MILLION, penalty: MILLION };
}

impl Rates {
    /// Time to read all parts, one after the other; parts on the node are read from its disk.
    pub fn reading(&self, parts: &[InputPiece]) -> Duration {
        parts.iter().fold(Duration::ZERO, |time, part| time + self.time(part))
    }

    /// Rounded up; [`Duration::MAX`] if the rate is zero.
    fn time(&self, part: &InputPiece) -> Duration {
        let rate = match part.distance {
            Distance::OnNode => self.on_node,
            Distance::InRack => self.in_rack,
            Distance::Elsewhere => self.elsewhere,
        };
        match (part.bytes, rate) {
            (0, _) => Duration::ZERO,
            (_, 0) => Duration::MAX,
            (bytes, rate) => saturated((u128::from(bytes) * u128::from(MILLION)).div_ceil(u128::from(rate))),
        }
    }
}

fn saturated(micros: u128) -> Duration {
    Duration(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    const MB: u64 = 1_000_000;
    const RATES: Rates = Rates { on_node: 160 * MB, in_rack: 100 * MB, elsewhere: 80 * MB };

    fn part(megabytes: u64, distance: Distance) -> InputPiece {
        InputPiece { bytes: megabytes * MB, distance }
    }

    /// Figure 4: 100 MB are stored on A and 5 GB on C; B is in the rack of A, D in that of C.
    #[test]
    fn the_papers_example_takes_the_node_in_the_rack_of_the_large_input() {
        use Distance::{Elsewhere, InRack, OnNode};
        let servers = [(OnNode, Elsewhere, 0), (InRack, Elsewhere, 0), (Elsewhere, OnNode, 40), (Elsewhere, InRack, 5)];
        let completion = servers.map(|(small, large, wait)| {
            let run = RATES.reading(&[part(100, small), part(5_000, large)]);
            Estimate { wait: Duration::from_secs(wait), run, ..Estimate::default() }.completion(&Odds::SURE)
        });
        assert_eq!(completion.map(Duration::as_millis), [63_125, 63_500, 72_500, 56_250]);
        assert_eq!(completion.iter().min(), Some(&completion[3]));
    }

    #[test]
    fn parts_are_read_one_after_the_other() {
        let parts = [part(160, Distance::OnNode), part(100, Distance::InRack), part(40, Distance::Elsewhere)];
        assert_eq!(RATES.reading(&parts), Duration::from_millis(2_500));
    }

    #[test]
    fn failures_of_a_node_raise_its_estimate() {
        let second = Duration::from_secs(1);
        let estimate = Estimate { fetch: second, wait: second, run: second };
        let odds = |success, penalty| Odds { success, penalty };
        assert_eq!(estimate.completion(&Odds::SURE), Duration::from_secs(3));
        assert_eq!(estimate.completion(&odds(900_000, 2 * MILLION)), Duration::from_millis(3_300));
        assert_eq!(estimate.completion(&odds(0, 4 * MILLION)), Duration::from_secs(12));
        assert_eq!(
            estimate.completion(&odds(2 * MILLION, 9 * MILLION)),
            Duration::from_secs(3),
            "success is at most 1"
        );
    }

    #[test]
    fn infinite_times_stay_infinite_and_nothing_overflows() {
        let no_way = Rates { elsewhere: 0, ..RATES };
        assert_eq!(no_way.reading(&[part(1, Distance::Elsewhere), part(1, Distance::OnNode)]), Duration::MAX);
        assert_eq!(no_way.reading(&[part(0, Distance::Elsewhere)]), Duration::ZERO);
        let never = Estimate { run: Duration::MAX, wait: Duration::MAX, fetch: Duration::ZERO };
        for odds in [Odds::SURE, Odds { success: 1, penalty: u64::MAX }, Odds { success: 0, penalty: u64::MAX }] {
            assert_eq!(never.completion(&odds), Duration::MAX, "{odds:?}");
        }
    }

    #[test]
    fn estimates_grow_with_waits_and_shrink_with_success() {
        let mut chance = Chance::new(1, "completion");
        for _ in 0..2_000 {
            let mut draw = || Duration(1 << chance.below(64_u32));
            let estimate = Estimate { fetch: draw(), wait: draw(), run: draw() };
            let longer = Estimate { wait: estimate.wait + draw(), ..estimate };
            let odds = Odds { success: chance.below(MILLION), penalty: MILLION + (1 << chance.below(63_u32)) };
            let likelier = Odds { success: odds.success + 1, ..odds };
            assert!(longer.completion(&odds) >= estimate.completion(&odds));
            assert!(estimate.completion(&likelier) <= estimate.completion(&odds));
        }
    }
}
