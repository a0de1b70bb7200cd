//! Calibrates predictions of starts: learns from past errors how wide the interval must be for nine of ten predictions
//! to be right.
//!
//! The last errors of each class of predictions are kept. An interval spans two of their quantiles, which are corrected
//! after every start: inwards by a small step after a right prediction, outwards by nine times that step after a wrong
//! one. In the long run, nine of ten are right whatever the distribution of errors, even if it changes or errors depend
//! on each other (Gibbs and Candes 2021, "Adaptive conformal inference under distribution shift", section 2).
//!
//! Departs: predictions are judged when tasks start, and many others are made before that. If all kept errors were too
//! small, the interval grows beyond them.

use crate::vocabulary::prediction::{LENGTHS, ROUTES, length_of, step_of};
use crate::vocabulary::{Crowd, Duration, Instant, Late, Margins, PredictedStart, Route};
use std::collections::VecDeque;
use std::sync::Arc;

/// One in this many predictions may be wrong.
const WRONG: i32 = 10;
/// The fraction of errors left out grows by this much after a right prediction, in millionths.
const GAIN: i64 = 1_000;
/// If only one in N errors is kept, the step is N times smaller; so it is counted in these fractions.
const FINE: i64 = 1 << 32;
/// The unit of fractions.
const MILLION: i32 = 1_000_000;
/// Bounds of the fraction left out. Where it is negative, the interval extends beyond all errors: by [`BEYOND`] steps
/// for minus one.
const MOST_LEFT_OUT: i32 = MILLION / 2;
const LEAST_LEFT_OUT: i32 = -MILLION;
const BEYOND: i32 = 96;
/// Maximum number of kept errors of a class, which have to span this time: of more, one in two is kept, then one in
/// four, and so on. Errors of tasks that arrive together are alike, and must not displace all others.
const KEPT: usize = 1_024;
const KEPT_FOR: Duration = Duration::from_secs(600);
/// With fewer errors than this, a class uses the errors of all lengths.
const ENOUGH: usize = 32;

#[derive(Default, Debug)]
pub struct Calibration {
    ways: [WayErrors; ROUTES],
    /// The latest margins.
    margins: Arc<Margins>,
}

#[derive(Default, Debug)]
struct WayErrors {
    by_length: [Errors; LENGTHS],
    all: Errors,
}

#[derive(Default, Debug)]
struct Errors {
    /// Errors in steps, the newest last.
    last: VecDeque<(Instant, i16)>,
    /// One in 2 to this power of all errors is kept.
    thinned: u32,
    seen: u64,
    /// How much more than one in [`WRONG`] is left out at both ends in total: in millionths, times [`FINE`].
    correction: i64,
    /// Errors since the last margins, including late tasks whose errors are not known yet.
    new: usize,
}

impl Errors {
    /// The fraction left out grows a little after a right prediction, and shrinks much more after a wrong one.
    fn correct(&mut self, is_right: bool) {
        let gain = (GAIN * FINE) >> self.thinned;
        self.correction += if is_right { gain } else { -i64::from(WRONG - 1) * gain };
        let usual = MILLION / WRONG;
        let [least, most] = [LEAST_LEFT_OUT, MOST_LEFT_OUT].map(|bound| i64::from(bound - usual) * FINE);
        self.correction = self.correction.clamp(least, most);
    }

    fn learn(&mut self, now: Instant, error: i16) {
        self.seen += 1;
        if !self.seen.is_multiple_of(1 << self.thinned) {
            return;
        }
        if self.last.len() == KEPT {
            self.make_room(now);
        }
        self.last.push_back((now, error));
        self.new += 1;
    }

    fn make_room(&mut self, now: Instant) {
        let span = now.since(self.last[0].0);
        if span < KEPT_FOR {
            let mut place = 0;
            self.last.retain(|_| {
                place += 1;
                place % 2 == 0
            });
            self.thinned += 1;
        } else {
            self.last.pop_front();
            self.thinned -= u32::from(self.thinned > 0 && span > KEPT_FOR + KEPT_FOR + KEPT_FOR);
        }
    }

    fn is_enough(&self) -> bool {
        self.last.len() >= ENOUGH
    }

    /// The interval around the expected wait: steps below and above.
    fn margins(&self) -> (i16, i16) {
        let mut sorted: Vec<i16> = self.last.iter().map(|(_, error)| *error).collect();
        sorted.sort_unstable();
        let left_out = MILLION / WRONG + (self.correction / FINE) as i32;
        let outside = left_out.max(0) as usize * sorted.len() / (2 * MILLION as usize);
        let beyond = ((-left_out).max(0) * BEYOND / MILLION) as i16;
        (sorted[outside] - beyond, sorted[sorted.len() - 1 - outside] + beyond)
    }

    /// Whether there are enough new errors for new margins; while there are few errors, each one is enough.
    fn is_news(&self) -> bool {
        self.new * 32 >= self.last.len() && self.new > 0
    }
}

impl Calibration {
    /// A task with a prediction started.
    pub fn learn(&mut self, now: Instant, start: &PredictedStart) {
        let error = step_of(start.waited) - step_of(start.expected);
        if !start.is_counted {
            self.correct(start.way, start.expected, start.is_right);
        }
        let way = &mut self.ways[start.way as usize];
        way.by_length[length_of(start.expected)].learn(now, error);
        way.all.learn(now, error);
    }

    /// A task has waited longer than predicted; its error is learned when it starts.
    pub fn on_late(&mut self, late: &Late) {
        self.correct(late.way, late.expected, false);
        let way = &mut self.ways[late.way as usize];
        way.by_length[length_of(late.expected)].new += 1;
        way.all.new += 1;
    }

    fn correct(&mut self, way: Route, expected: Duration, is_right: bool) {
        let way = &mut self.ways[way as usize];
        way.by_length[length_of(expected)].correct(is_right);
        way.all.correct(is_right);
    }

    /// Sets how full the nodes are.
    pub fn set_crowd(&mut self, crowd: Crowd) {
        if self.margins.crowd != crowd {
            Arc::make_mut(&mut self.margins).crowd = crowd;
        }
    }

    /// The margins for predictions from now on.
    pub fn margins(&mut self) -> Arc<Margins> {
        let Calibration { ways, margins } = self;
        for (number, way) in ways.iter_mut().enumerate() {
            if way.all.new == 0 {
                continue;
            }
            let made = Arc::make_mut(margins);
            let is_wanted = way.all.is_enough() && !way.by_length.iter().all(Errors::is_enough);
            let of_all = is_wanted.then(|| way.all.margins());
            for (errors, made) in way.by_length.iter_mut().zip(&mut made.steps[number]) {
                if !errors.is_enough() {
                    *made = of_all.unwrap_or(*made);
                } else if errors.is_news() {
                    *made = errors.margins();
                    errors.new = 0;
                }
            }
            way.all.new = 0;
        }
        Arc::clone(margins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Chance, Prediction};
    use std::collections::VecDeque;

    /// Predicts tasks one by one and learns each actual wait after `delay` more predictions. Returns the fraction of
    /// right predictions in the later half, and their mean width in steps.
    fn covered(total: usize, delay: usize, mut draw: impl FnMut(usize) -> (Duration, Duration)) -> (f64, f64) {
        let mut calibration = Calibration::default();
        let mut open: VecDeque<(Prediction, Duration)> = VecDeque::new();
        let (mut right, mut width) = (0, 0.0);
        for number in 0..total + delay {
            if number < total {
                let (expected, waits) = draw(number);
                open.push_back((calibration.margins().predict(Route::Sent, expected), waits));
            }
            if number >= delay {
                let (reported, waits) = open.pop_front().expect("one is open");
                let start = reported.started(waits);
                calibration.learn(Instant(number as u64 * 50_000), &start);
                if number - delay >= total / 2 {
                    right += u32::from(start.is_right);
                    width += f64::from(step_of(reported.most) - step_of(reported.least));
                }
            }
        }
        let half = (total - total / 2) as f64;
        (f64::from(right) / half, width / half)
    }

    fn wait(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn assert_ninety((part, _): (f64, f64), what: &str) {
        assert!((0.88..=0.92).contains(&part), "{what}: {part}");
    }

    #[test]
    fn nine_of_ten_predictions_are_right_for_any_errors() {
        for seed in 0..5 {
            let mut chance = Chance::new(seed, "calibration");
            assert_ninety(covered(20_000, 0, |_| (wait(1_000), wait(chance.below(5_000_u64)))), "uniform");
            assert_ninety(
                covered(20_000, 300, |_| {
                    let expected = 1 << chance.below(20_u32);
                    (wait(expected), wait(expected * chance.below(900_u64) / 300))
                }),
                "proportional errors, learned late",
            );
            // Doubles every 500 tasks, seven times, then starts again.
            assert_ninety(
                covered(40_000, 50, |number| {
                    (wait(1_000), wait((500 + chance.below(1_000_u64)) << (number / 500 % 8)))
                }),
                "changing errors",
            );
            // Most are exactly as expected, so that no quantile leaves out one in ten.
            let alike = covered(40_000, 0, |_| (wait(0), wait(if chance.below(50_u32) == 0 { 60_000 } else { 0 })));
            assert!(alike.0 > 0.97 && alike.1 < 2.0, "equal errors have a narrow interval: {alike:?}");
            assert_ninety(covered(40_000, 0, |number| (wait(100), wait(100 + number as u64 * 50))), "growing waits");
        }
    }

    #[test]
    fn each_class_of_wait_lengths_has_separate_margins() {
        let mut chance = Chance::new(1, "lengths");
        let mut calibration = Calibration::default();
        for _ in 0..4_000 {
            for (expected, spread) in [(0, 1), (60_000, 60_000)] {
                let reported = calibration.margins().predict(Route::Asked, wait(expected));
                calibration.learn(Instant::ZERO, &reported.started(wait(expected + chance.below(spread))));
            }
        }
        let margins = calibration.margins();
        let width = |expected| {
            let reported = margins.predict(Route::Asked, wait(expected));
            reported.most.0 - reported.least.0
        };
        assert!(width(0) < 5_000 && width(60_000) > 40_000_000, "{} and {}", width(0), width(60_000));
        let other = margins.predict(Route::Probed, wait(60_000));
        assert_eq!(other, Margins::default().predict(Route::Probed, wait(60_000)), "no task was probed for");
        // A class without errors of its own uses those of all lengths.
        let unseen = margins.steps[Route::Asked as usize][length_of(wait(1_000_000))];
        assert_ne!(unseen, Margins::default().steps[0][0]);
    }

    #[test]
    fn many_simultaneous_errors_do_not_displace_all_older_ones() {
        let mut errors = Errors::default();
        let at = |second: u64| Instant(second * 1_000_000);
        for second in 0..900 {
            (0..200).for_each(|_| errors.learn(at(second), second as i16));
            assert!(errors.last.len() <= KEPT);
        }
        let (oldest, newest) = (errors.last.front().unwrap().1, errors.last.back().unwrap().1);
        assert!(newest == 899 && oldest <= 300, "{oldest} to {newest}");
        // With few tasks, every error is kept again.
        (1..20_000).for_each(|more| errors.learn(at(900 + more * 10), 0));
        assert_eq!((errors.thinned, errors.last.len()), (0, KEPT));
    }
}
