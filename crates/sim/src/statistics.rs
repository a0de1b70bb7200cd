//! Statistics over samples: what the simulator, the lab and the command line compute of measured values.
//!
//! Results that weight a value by a count are [`amalgam_workload::trace::Summary`].

/// The arithmetic mean; zero if there are no samples.
pub fn mean(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / samples.len() as f64 }
}

/// A percentile by nearest rank: of n sorted samples, the one whose rank from 0 is nearest to `percent` % of n - 1. Of
/// two that are equally near it is the larger one, so percentile 0 is the smallest sample, 100 the largest one, and no
/// value is interpolated. Zero if there are no samples.
pub fn percentile<T: Copy + Default>(sorted: &[T], percent: impl Into<f64>) -> T {
    let last = sorted.len().saturating_sub(1) as f64;
    // A product of whole numbers is exact, so the rank of a whole percent is too.
    let rank = ((last * percent.into() + 50.0) / 100.0) as usize;
    sorted.get(rank).copied().unwrap_or_default()
}

/// The percentile 50.
pub fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    percentile(&sorted(samples), 50)
}

pub fn sorted(samples: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut samples: Vec<f64> = samples.into_iter().collect();
    samples.sort_by(f64::total_cmp);
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_sample_of_the_nearest_rank() {
        let samples = [1, 2, 3, 4];
        assert_eq!(
            [0, 16, 17, 49, 50, 83, 84, 100].map(|percent| percentile(&samples, percent)),
            [1, 1, 2, 2, 3, 3, 4, 4]
        );
        assert_eq!([0, 50, 100].map(|percent| percentile(&[7], percent)), [7, 7, 7]);
        let many: Vec<u32> = (0..=10_000).collect();
        assert_eq!((percentile(&many, 99), percentile(&many, 99.99), percentile(&many, 100)), (9_900, 9_999, 10_000));
    }

    #[test]
    fn whole_percents_are_exact() {
        for count in 1..=300_usize {
            let samples: Vec<usize> = (0..count).collect();
            for percent in 0..=100_u32 {
                let rank = ((count - 1) * percent as usize + 50) / 100;
                assert_eq!(percentile(&samples, percent), rank, "percentile {percent} of {count}");
            }
        }
    }

    #[test]
    fn a_median_needs_no_order_and_is_a_sample() {
        assert_eq!((median([3.0, 1.0, 2.0]), median([4.0, 1.0, 3.0, 2.0])), (2.0, 3.0));
        assert_eq!(sorted([2.0, -1.0, 0.5]), [-1.0, 0.5, 2.0]);
    }

    #[test]
    fn no_samples_have_zero_as_their_mean_and_percentiles() {
        assert_eq!((mean(&[]), median([]), percentile(&[] as &[u32], 95)), (0.0, 0.0, 0));
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
    }
}
