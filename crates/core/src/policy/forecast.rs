//! Predicts how much of a node guaranteed work will use: resource policing (Karanasos et al. 2015: Mercury, sections
//! 4.3 and 7.2.3). The paper states that the prediction is based on history, but not how. Here it is the smoothed mean
//! plus a multiple of the smoothed mean deviation, as in TCP's round-trip estimate (Jacobson 1988, appendix A).

use crate::vocabulary::Resources;
use crate::vocabulary::resources::WIDTH;

/// The weight of a sample is one part in this many, in the mean and in the deviation.
const MEAN_PARTS: i64 = 8;
const DEVIATION_PARTS: i64 = 4;
/// Deviations added to the mean.
const DEVIATIONS: i64 = 2;
/// Fixed-point scale of amounts, so that the mean of a constant converges to it.
const SCALE: i64 = 1 << 16;

#[derive(Clone, Default, Debug)]
pub struct Forecast {
    /// Scaled by [`SCALE`]; `None` before the first sample.
    mean: Option<[i64; WIDTH]>,
    deviation: [i64; WIDTH],
}

impl Forecast {
    /// Adds a sample: the resources that guaranteed work holds now.
    pub fn learn(&mut self, held: &Resources) {
        let sample = held.0.map(|amount| i64::from(amount) * SCALE);
        let Some(mean) = &mut self.mean else {
            self.mean = Some(sample);
            return;
        };
        for kind in 0..WIDTH {
            let error = sample[kind] - mean[kind];
            mean[kind] += error / MEAN_PARTS;
            self.deviation[kind] += (error.abs() - self.deviation[kind]) / DEVIATION_PARTS;
        }
    }

    /// The resources that guaranteed work will probably not exceed.
    pub fn demand(&self) -> Resources {
        let mut demand = Resources::ZERO;
        let known = self.mean.iter().flatten().zip(&self.deviation);
        for (demand, (mean, deviation)) in demand.0.iter_mut().zip(known) {
            let expected = (mean + DEVIATIONS * deviation + SCALE / 2) / SCALE;
            *demand = expected.clamp(0, i64::from(u32::MAX)) as u32;
        }
        demand
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;
    use crate::vocabulary::resources::GPU;

    fn after(samples: impl Iterator<Item = u32>) -> u32 {
        let mut forecast = Forecast::default();
        samples.for_each(|cpu| forecast.learn(&Resources::new(cpu, 0)));
        forecast.demand().cpu_millis()
    }

    #[test]
    fn constant_demand_is_predicted_exactly_and_zero_without_history() {
        assert_eq!(after(std::iter::empty()), 0);
        assert_eq!(after((0..50).map(|_| 700)), 700);
    }

    #[test]
    fn varying_demand_rarely_exceeds_the_prediction() {
        let mut chance = Chance::new(1, "demand");
        let mut forecast = Forecast::default();
        let mut above = 0;
        for _ in 0..2_000 {
            let held = 5_000 + chance.below(4_000_u32);
            above += u32::from(held > forecast.demand().cpu_millis());
            forecast.learn(&Resources::new(held, 0));
        }
        assert!(above < 200, "{above} of 2,000");
    }

    #[test]
    fn predictions_follow_a_change_of_demand() {
        let changed = after((0..50).map(|_| 1_000).chain((0..50).map(|_| 9_000)));
        assert!((8_900..=9_200).contains(&changed), "{changed}");
        let ended = after((0..50).map(|_| 9_000).chain((0..120).map(|_| 0)));
        assert_eq!(ended, 0);
    }

    #[test]
    fn a_device_that_became_free_is_predicted_to_stay_free() {
        let mut forecast = Forecast::default();
        let held = (0..50).map(|_| 1).chain((0..50).map(|_| 0));
        held.for_each(|gpus| forecast.learn(&Resources::ZERO.with(GPU, gpus)));
        assert_eq!(forecast.demand(), Resources::ZERO);
    }
}
