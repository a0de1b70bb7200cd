//! When a task would be done on a node (Boutin et al. 2014: Apollo, section 3.3). It fetches its files, waits, reads its
//! input and works: E = I + W + R; and what may fail costs more: C = P E + K (1 - P) E. How long it waits and works is
//! handed in, and so is what the node has already.
//!
//! Departs: files are taken to be fetched before the wait, as the sum says, also where they would come during it.

use crate::vocabulary::{Distance, Duration};
use serde::{Deserialize, Serialize};

/// Of a probability, and of a factor.
pub const MILLION: u64 = 1_000_000;

/// A part of an input, or a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub bytes: u64,
    pub lies: Distance,
}

/// How fast bytes are read, in bytes a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rates {
    pub on_node: u64,
    pub in_rack: u64,
    pub elsewhere: u64,
}

/// How likely a node is to see a task through, and what it costs if it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Odds {
    /// P, in millionths.
    pub success: u64,
    /// K, in millionths: 2,000,000 is twice the time.
    pub penalty: u64,
}

/// What a task goes through on a node, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Estimate {
    /// I: until the files that it needs are there; zero where they are.
    pub fetch: Duration,
    /// W: until it may start.
    pub wait: Duration,
    /// R: reading its input, and working.
    pub run: Duration,
}

impl Estimate {
    /// E: when it is done if nothing fails.
    pub fn unless_it_fails(&self) -> Duration {
        self.fetch + self.wait + self.run
    }

    /// C: what it is to be counted as. [`Duration::MAX`] is never.
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
    /// How long it takes to get them, one after the other; what lies on the node is read from its disk.
    pub fn reading(&self, parts: &[Part]) -> Duration {
        parts.iter().fold(Duration::ZERO, |time, part| time + self.time(part))
    }

    /// How long it takes to get what is not on the node yet.
    pub fn fetching(&self, files: &[Part]) -> Duration {
        let missing = files.iter().filter(|file| file.lies != Distance::OnNode);
        missing.fold(Duration::ZERO, |time, file| time + self.time(file))
    }

    /// Rounded up; never, where there is no way.
    fn time(&self, part: &Part) -> Duration {
        let rate = match part.lies {
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

    fn part(megabytes: u64, lies: Distance) -> Part {
        Part { bytes: megabytes * MB, lies }
    }

    /// Figure 4: 100 MB lie on A and 5 GB on C; B is in the rack of A, D in that of C.
    #[test]
    fn the_papers_example_takes_the_node_beside_the_large_input() {
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
    fn files_on_the_node_cost_nothing_and_others_their_way() {
        let files = [part(160, Distance::OnNode), part(100, Distance::InRack), part(40, Distance::Elsewhere)];
        assert_eq!(RATES.fetching(&files), Duration::from_millis(1_500));
        assert_eq!(RATES.reading(&files), Duration::from_millis(2_500));
    }

    #[test]
    fn a_node_that_fails_once_in_ten_times_counts_for_longer() {
        let second = Duration::from_secs(1);
        let estimate = Estimate { fetch: second, wait: second, run: second };
        let odds = |success, penalty| Odds { success, penalty };
        assert_eq!(estimate.completion(&Odds::SURE), Duration::from_secs(3));
        assert_eq!(estimate.completion(&odds(900_000, 2 * MILLION)), Duration::from_millis(3_300));
        assert_eq!(estimate.completion(&odds(0, 4 * MILLION)), Duration::from_secs(12));
        assert_eq!(estimate.completion(&odds(2 * MILLION, 9 * MILLION)), Duration::from_secs(3), "sure is the most");
    }

    #[test]
    fn what_never_ends_stays_never_and_nothing_overflows() {
        let no_way = Rates { elsewhere: 0, ..RATES };
        assert_eq!(no_way.reading(&[part(1, Distance::Elsewhere), part(1, Distance::OnNode)]), Duration::MAX);
        assert_eq!(no_way.reading(&[part(0, Distance::Elsewhere)]), Duration::ZERO);
        let never = Estimate { run: Duration::MAX, wait: Duration::MAX, fetch: Duration::ZERO };
        for odds in [Odds::SURE, Odds { success: 1, penalty: u64::MAX }, Odds { success: 0, penalty: u64::MAX }] {
            assert_eq!(never.completion(&odds), Duration::MAX, "{odds:?}");
        }
    }

    #[test]
    fn longer_is_later_and_likelier_is_sooner() {
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
