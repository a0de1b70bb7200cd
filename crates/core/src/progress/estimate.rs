//! Expected run time of a stage's tasks, learned from those that finished: their mean, or a value for the input size of the
//! task if run times depend on it.

use super::by_size::BySize;
use crate::vocabulary::{Duration, Estimated};
use serde::{Deserialize, Serialize};

/// Two buckets for every doubling, from 1 us to 2^31.5 us (50 minutes), and the last for longer times.
const BUCKETS: usize = 64;

/// Known run times of a stage's tasks, in a few hundred bytes for any number of tasks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// Used instead of all other sources.
    assumed: Option<Duration>,
    /// From the job file.
    stated: Option<Duration>,
    /// The mean of the job's last runs.
    recalled: Option<Duration>,
    finished: u32,
    sum: Duration,
    longest: Duration,
    histogram: Vec<u32>,
    /// If the input sizes are known.
    by_size: Option<Box<BySize>>,
}

/// Source of an expected run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EstimateSource {
    FinishedTasks,
    JobFile,
    EarlierRuns,
}

impl Estimate {
    pub fn new(stated: Option<Duration>, recalled: Option<Duration>) -> Estimate {
        Estimate {
            assumed: None,
            stated,
            recalled,
            finished: 0,
            sum: Duration::ZERO,
            longest: Duration::ZERO,
            histogram: Vec::new(),
            by_size: None,
        }
    }

    /// Expects this run time from now on.
    pub fn assume(&mut self, run_time: Duration) {
        self.assumed = Some(run_time);
    }

    /// Adds a finished task. `input_kib` is zero if not known.
    pub fn learn(&mut self, input_kib: u32, wall: Duration) {
        if self.histogram.is_empty() {
            self.histogram = vec![0; BUCKETS];
        }
        self.histogram[bucket(wall)] += 1;
        self.finished += 1;
        self.sum += wall;
        self.longest = self.longest.max(wall);
        if input_kib > 0 {
            self.by_size.get_or_insert_default().learn(input_kib, wall);
        }
    }

    /// The expected run time of a task with this input size, or of any task if size makes no known difference.
    pub fn expected_for(&self, input_kib: u32) -> Option<Duration> {
        let by_size = self.by_size.as_ref().filter(|_| input_kib > 0 && self.assumed.is_none());
        by_size.and_then(|by_size| by_size.expected(input_kib)).or_else(|| self.expected())
    }

    /// The expected run time: the assumed one, else the mean of finished tasks, else the stated one, else that of the job's
    /// last runs.
    pub fn expected(&self) -> Option<Duration> {
        self.assumed.or(self.mean()).or(self.stated).or(self.recalled)
    }

    /// Mean of the finished tasks.
    pub fn mean(&self) -> Option<Duration> {
        self.sum.0.checked_div(u64::from(self.finished)).map(Duration)
    }

    /// The source of [`Estimate::expected`].
    pub fn source(&self) -> Option<EstimateSource> {
        let sources = [
            (self.mean(), EstimateSource::FinishedTasks),
            (self.stated, EstimateSource::JobFile),
            (self.recalled, EstimateSource::EarlierRuns),
        ];
        sources.into_iter().find_map(|(known, source)| known.map(|_| source))
    }

    /// The time below which `percent` of the finished tasks stayed, to within a factor of the square root of 2.
    pub fn percentile(&self, percent: u32) -> Option<Duration> {
        let rank = (u64::from(self.finished) * u64::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.histogram.iter().position(|&count| {
            seen += u64::from(count);
            seen >= rank
        })?;
        Some(upper_edge(bucket).min(self.longest))
    }

    /// Stated and measured run times of the finished tasks in total; `None` if none was stated or none has finished.
    pub fn judged(&self) -> Option<Estimated> {
        let each = self.stated.filter(|_| self.finished > 0)?;
        Some(Estimated { stated: Duration(each.0.saturating_mul(u64::from(self.finished))), measured: self.sum })
    }

    /// Longest of the finished tasks; zero if there is none.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    pub fn finished(&self) -> u32 {
        self.finished
    }
}

fn bucket(wall: Duration) -> usize {
    let micros = wall.0.max(1);
    let doublings = micros.ilog2() as usize;
    let upper_half = micros > root_two_times(1 << doublings);
    (doublings * 2 + usize::from(upper_half)).min(BUCKETS - 1)
}

fn upper_edge(bucket: usize) -> Duration {
    let base = 1u64 << (bucket / 2);
    Duration(if bucket.is_multiple_of(2) { root_two_times(base) } else { base * 2 })
}

fn root_two_times(value: u64) -> u64 {
    (u128::from(value) * 1_414_214 / 1_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_tasks_replace_stated_times_and_these_replace_recalled_ones() {
        let mut estimate = Estimate::new(None, Some(Duration::from_secs(5)));
        assert_eq!((estimate.expected(), estimate.judged()), (Some(Duration::from_secs(5)), None));
        estimate = Estimate::new(Some(Duration::from_secs(9)), Some(Duration::from_secs(5)));
        assert_eq!((estimate.expected(), estimate.percentile(50)), (Some(Duration::from_secs(9)), None));
        for seconds in [1, 2, 3] {
            estimate.learn(0, Duration::from_secs(seconds));
        }
        assert_eq!(estimate.expected(), Some(Duration::from_secs(2)));
        let median = estimate.percentile(50).unwrap().as_secs_f64();
        assert!((2.0..2.0 * 1.4143).contains(&median), "{median}");
        assert_eq!(estimate.percentile(100), Some(Duration::from_secs(3)));
        estimate.assume(Duration::from_secs(20));
        estimate.learn(0, Duration::from_secs(1));
        assert_eq!(estimate.expected(), Some(Duration::from_secs(20)));
    }
}
