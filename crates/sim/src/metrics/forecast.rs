//! Accuracy of predictions: when attempts would start, and how long they would run.

use crate::statistics::percentile;
use amalgam_core::vocabulary::{AttemptId, Duration, PredictedStart, Prediction};
use amalgam_workload::trace::Summary;
use serde::Serialize;
use std::collections::BTreeMap;

/// Accuracy of predicted starts. A prediction is an interval that is meant to contain nine of ten starts.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Forecast {
    /// Attempts that started and had a prediction.
    pub predicted: u64,
    /// The share of them that started within their intervals.
    pub covered: f64,
    /// The shares that started too early and too late.
    pub early: f64,
    pub late: f64,
    pub median_width_s: f64,
    /// Their waits since the prediction.
    pub wait_s: Summary,
}

/// Accuracy of predicted run times.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct RunTimes {
    /// Attempts that succeeded, and those of them that had a prediction.
    pub attempts: u64,
    pub predicted: u64,
    /// The share of the latter whose prediction was off by at most a quarter of the run time.
    pub within_a_quarter: f64,
    /// Error of the predictions, relative to the run time.
    pub error: Summary,
}

/// Collects the data for [`Forecast`] and [`RunTimes`].
#[derive(Default)]
pub struct ForecastMeasure {
    waits: Vec<Duration>,
    widths: Vec<Duration>,
    covered: u64,
    early: u64,
    /// The predicted run times of running attempts.
    run_times: BTreeMap<AttemptId, Option<Duration>>,
    errors: Vec<f64>,
    attempts: u64,
}

impl ForecastMeasure {
    pub fn on_started(
        &mut self,
        attempt: AttemptId,
        prediction: &Prediction,
        start: &PredictedStart,
        run: Option<Duration>,
    ) {
        self.widths.push(Duration(prediction.most.0 - prediction.least.0));
        self.waits.push(start.waited);
        self.covered += u64::from(start.is_right);
        self.early += u64::from(start.waited < prediction.least);
        self.run_times.insert(attempt, run);
    }

    /// The attempt ended; `took` is its run time if it succeeded.
    pub fn on_ended(&mut self, attempt: AttemptId, took: Option<Duration>) {
        let predicted = self.run_times.remove(&attempt);
        if let (Some(predicted), Some(took)) = (predicted, took) {
            self.attempts += 1;
            self.errors.extend(predicted.map(|predicted| predicted.0.abs_diff(took.0) as f64 / took.0.max(1) as f64));
        }
    }

    pub fn finish(&mut self) -> (Forecast, RunTimes) {
        let predicted = self.waits.len() as u64;
        let part = |count: u64| if predicted == 0 { 0.0 } else { count as f64 / predicted as f64 };
        self.widths.sort_unstable();
        let median = percentile(&self.widths, 50);
        let late = predicted - self.covered - self.early;
        let forecast = Forecast {
            predicted,
            covered: part(self.covered),
            early: part(self.early),
            late: part(late),
            median_width_s: median.as_secs_f64(),
            wait_s: Summary::of(self.waits.iter().map(|wait| (wait.as_secs_f64(), 1))),
        };
        let good = self.errors.iter().filter(|error| **error <= 0.25).count();
        let run_times = RunTimes {
            attempts: self.attempts,
            predicted: self.errors.len() as u64,
            within_a_quarter: if self.errors.is_empty() { 0.0 } else { good as f64 / self.errors.len() as f64 },
            error: Summary::of(self.errors.iter().map(|error| (*error, 1))),
        };
        (forecast, run_times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, JobId, Margins, Route};

    fn attempt(number: u32) -> AttemptId {
        AttemptId { job: JobId(1), epoch: Epoch(1), number }
    }

    #[test]
    fn starts_are_compared_with_intervals_and_runs_with_predicted_times() {
        let mut measure = ForecastMeasure::default();
        let seconds = Duration::from_secs;
        let reported = Margins::default().predict(Route::Sent, seconds(8));
        for (number, waited) in [(0, 8), (1, 9), (2, 1), (3, 100)] {
            let output = (number != 3).then_some(seconds(10));
            measure.on_started(attempt(number), &reported, &reported.started(seconds(waited)), output);
        }
        for (number, took) in [(0, Some(8)), (1, Some(7)), (2, None), (3, Some(10)), (9, Some(1))] {
            measure.on_ended(attempt(number), took.map(seconds));
        }
        let (forecast, runs) = measure.finish();
        assert_eq!((forecast.predicted, forecast.covered), (4, 0.5));
        assert_eq!((forecast.early, forecast.late), (0.25, 0.25));
        assert_eq!(forecast.median_width_s, (reported.most.0 - reported.least.0) as f64 / 1e6);
        assert_eq!((runs.attempts, runs.predicted, runs.within_a_quarter), (3, 2, 0.5));
        assert_eq!(ForecastMeasure::default().finish(), (Forecast::default(), RunTimes::default()));
    }
}
