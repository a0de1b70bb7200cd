//! Run times of a stage's tasks as a function of their input size: a line through samples of finished tasks, whose slope is
//! the median of the slopes between any two of them (Sen 1968, "Estimates of the regression coefficient based on Kendall's
//! tau"), so that a few slow tasks do not bend it. The line is used only while Kendall's tau (1938) shows a strong dependence
//! that is not due to chance.
//!
//! The number of samples is bounded: every task at first, and of later ones every second, every fourth, and so on, so that
//! the samples cover the whole time. The line is computed again when a sample is added, which becomes rare; a query costs one
//! multiplication.

use crate::vocabulary::Duration;
use serde::{Deserialize, Serialize};

/// Maximum number of samples, and minimum number for a line.
const MOST: usize = 64;
const LEAST: usize = 8;
/// Minimum of Kendall's tau in percent: of the pairs that differ in size, how many more take longer with size than less long.
const LEAST_TAU: i64 = 50;
/// Minimum number of standard deviations above chance.
const DEVIATIONS: i64 = 3;
/// KiB in the unit of slopes, which is one microsecond per GiB.
const SCALE: i128 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct BySize {
    /// Sizes in KiB, and run times.
    kept: Vec<(u32, Duration)>,
    /// One in 2 to this power is kept.
    thinned: u32,
    seen: u64,
    line: Option<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Line {
    /// Microseconds for [`SCALE`] KiB.
    slope: i64,
    /// Microseconds at a size of zero.
    base: i64,
    /// Range of the sampled run times.
    shortest: Duration,
    longest: Duration,
}

impl BySize {
    pub fn learn(&mut self, kib: u32, took: Duration) {
        let is_kept = self.seen.is_multiple_of(1 << self.thinned);
        self.seen += 1;
        if !is_kept {
            return;
        }
        self.kept.push((kib, took));
        if self.kept.len() == MOST {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.thinned += 1;
        }
        self.line = draw(&self.kept);
    }

    /// `None` if the run time does not depend on the size.
    pub fn expected(&self, kib: u32) -> Option<Duration> {
        let Line { slope, base, shortest, longest } = self.line?;
        let micros = i128::from(base) + i128::from(slope) * i128::from(kib) / SCALE;
        // Limits the extrapolation far beyond the sampled sizes.
        let (least, most) = (i128::from(shortest.0 / 2), i128::from(longest.0) * 2);
        Some(Duration(micros.clamp(least.max(1), most.max(1)).try_into().unwrap_or(u64::MAX)))
    }
}

fn draw(samples: &[(u32, Duration)]) -> Option<Line> {
    if samples.len() < LEAST {
        return None;
    }
    let pairs =
        samples.iter().enumerate().flat_map(|(place, one)| samples[..place].iter().map(move |other| (one, other)));
    let mut slopes = Vec::with_capacity(MOST * MOST / 2);
    let mut surplus = 0i64;
    for (&(size, took), &(other_size, other_took)) in pairs.filter(|(one, other)| one.0 != other.0) {
        let (more, longer) = (i128::from(size) - i128::from(other_size), i128::from(took.0) - i128::from(other_took.0));
        slopes.push(i64::try_from(longer * SCALE / more).ok()?);
        surplus += (longer * more).signum() as i64;
    }
    let count = samples.len() as i64;
    // Variance of the surplus of `count` tasks if size and run time are independent, times 18.
    let variance = count * (count - 1) * (2 * count + 5);
    let is_by_chance = surplus * surplus * 18 <= DEVIATIONS * DEVIATIONS * variance;
    if surplus <= 0 || is_by_chance || surplus * 100 < LEAST_TAU * slopes.len() as i64 {
        return None;
    }
    let slope = median(&mut slopes)?;
    let above = |&(size, took): &(u32, Duration)| {
        i64::try_from(i128::from(took.0) - i128::from(slope) * i128::from(size) / SCALE).ok()
    };
    let base = median(&mut samples.iter().map(above).collect::<Option<Vec<i64>>>()?)?;
    let took = || samples.iter().map(|(_, took)| *took);
    Some(Line { slope, base, shortest: took().min()?, longest: took().max()? })
}

/// Of an even number of values, the lower one of the middle two.
fn median(values: &mut [i64]) -> Option<i64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    const MIB: u32 = 1 << 10;

    fn learned(samples: impl IntoIterator<Item = (u32, u64)>) -> BySize {
        let mut by_size = BySize::default();
        samples.into_iter().for_each(|(mib, millis)| by_size.learn(mib * MIB, Duration::from_millis(millis)));
        by_size
    }

    fn millis(by_size: &BySize, mib: u32) -> Option<u64> {
        by_size.expected(mib * MIB).map(|time| (time.0 + 500) / 1_000)
    }

    /// Two seconds, and ten milliseconds for each MiB.
    fn on_the_line(mib: u32) -> (u32, u64) {
        (mib, 2_000 + 10 * u64::from(mib))
    }

    #[test]
    fn larger_inputs_are_expected_to_take_longer_once_enough_tasks_have_finished() {
        assert_eq!(millis(&learned((1..8).map(|size| on_the_line(size * 10))), 20), None);
        let by_size = learned((1..9).map(|size| on_the_line(size * 10)));
        assert_eq!([20, 35, 100].map(|mib| millis(&by_size, mib)), [Some(2_200), Some(2_350), Some(3_000)]);
    }

    #[test]
    fn a_fifth_of_slow_tasks_does_not_bend_the_line() {
        let slow = |mib: u32| if mib.is_multiple_of(5) { (mib, 60_000) } else { on_the_line(mib) };
        let by_size = learned((1..60).map(|number| slow(number * 37 % 101)));
        let found = millis(&by_size, 50).unwrap();
        assert!((2_400..2_800).contains(&found), "{found}");
    }

    #[test]
    fn independent_and_equal_sizes_give_no_line() {
        let mut chance = Chance::new(1, "sizes");
        for _ in 0..200 {
            let samples: Vec<(u32, u64)> =
                (0..63).map(|_| (1 + chance.below(1_000_u32), 1 + chance.below(100_000_u64))).collect();
            assert_eq!(learned(samples).line, None);
        }
        assert_eq!(learned((0..40).map(|number| (7, number + 1))).line, None, "all of one size");
        assert_eq!(
            learned((1..40).map(|mib| (mib, 50_000 - 1_000 * u64::from(mib)))).line,
            None,
            "larger inputs take less time"
        );
        // The larger task takes longer in only two of three pairs.
        let weak = (0..60).map(|number: u32| (1 + number, u64::from(number) * 10 + u64::from(number * 41 % 59) * 18));
        assert_eq!(learned(weak).line, None);
        // With few samples, as much could be by chance.
        let few = [3, 1, 2, 5, 4, 8, 6, 7].into_iter().zip(1..).map(|(seconds, mib)| (mib, 1_000 * seconds));
        assert_eq!(learned(few).line, None);
    }

    #[test]
    fn extrapolation_is_limited_to_a_factor_of_two() {
        let by_size = learned((1..9).map(|size| on_the_line(size * 100)));
        assert_eq!(millis(&by_size, 1_000_000), Some(20_000));
        let steep = learned((10..20).map(|mib| (mib, 1_000 * u64::from(mib) - 9_000)));
        assert_eq!(millis(&steep, 1), Some(500));
    }

    #[test]
    fn samples_of_many_tasks_cover_the_whole_time() {
        let by_size = learned((0..100_000).map(|number| on_the_line(1 + number % 997)));
        assert!(by_size.kept.len() < MOST && by_size.kept.len() >= MOST / 2);
        let found = millis(&by_size, 500).unwrap();
        assert!((6_990..=7_010).contains(&found), "{found}");
        // A change is followed once as many tasks finished after it as before.
        let mut changed = learned((0..1_000).map(|number| on_the_line(1 + number % 97)));
        for number in 0..5_000u32 {
            changed.learn((1 + number % 97) * MIB, Duration::from_millis(100 * u64::from(1 + number % 97)));
        }
        assert!((4_000..6_000).contains(&millis(&changed, 50).unwrap()));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let mut by_size = BySize::default();
        for number in 0..100u32 {
            by_size.learn(u32::MAX - number, Duration(u64::MAX - u64::from(number)));
            by_size.learn(1 + number, Duration(1));
            assert!(by_size.expected(u32::MAX).is_none_or(|time| time > Duration::ZERO));
        }
    }
}
