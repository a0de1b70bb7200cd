//! How far off it was what was foretold of starts, and so how wide what is foretold has to be for nine of ten to be right.
//!
//! Of each class of predictions the last errors are kept, and an interval reaches from one of their quantiles to another. Which
//! ones is corrected after every start: by a little towards the middle after one that was foretold, and by nine times as much
//! outwards after one that was not. In the long run nine of ten are right whatever the errors come from, also where they change
//! or depend on each other (Gibbs and Candes 2021, "Adaptive conformal inference under distribution shift", section 2).
//!
//! Departs: predictions are judged when tasks start, and many others are made before that; where all errors that are kept were
//! too small, the interval grows beyond them.

use crate::vocabulary::foretold::{LENGTHS, WAYS, length_of, step_of};
use crate::vocabulary::{Crowd, Duration, ForetoldStart, Instant, Late, Margins, Way};
use std::collections::VecDeque;
use std::sync::Arc;

/// One in so many may be wrong.
const WRONG: i32 = 10;
/// By so many millionths the part that is left out grows after a start that was foretold.
const GAIN: i64 = 1_000;
/// And where only one in many errors is kept, by as much less; so it is counted more finely.
const FINE: i64 = 1 << 32;
/// Of a part, in millionths.
const MILLION: i32 = 1_000_000;
/// More than this is not left out, and so far the interval grows beyond all errors: by [`BEYOND`] steps for a million.
const MOST_LEFT_OUT: i32 = MILLION / 2;
const LEAST_LEFT_OUT: i32 = -MILLION;
const BEYOND: i32 = 96;
/// Errors that are kept of a class, of the last so long: where there are more, one in two of them, in four, and so on. Those of
/// tasks that come at once are much alike, and must not be all that is known.
const KEPT: usize = 1_024;
const KEPT_FOR: Duration = Duration::from_secs(600);
/// With fewer of its own, a class of waits goes by those of all lengths.
const ENOUGH: usize = 32;

#[derive(Default, Debug)]
pub struct Calibration {
    ways: [WayErrors; WAYS],
    /// As it was made last.
    margins: Arc<Margins>,
}

#[derive(Default, Debug)]
struct WayErrors {
    by_length: [Errors; LENGTHS],
    all: Errors,
}

#[derive(Default, Debug)]
struct Errors {
    /// In steps, the newest last.
    last: VecDeque<(Instant, i16)>,
    /// One in 2 to this power is kept of all that were seen.
    thinned: u32,
    seen: u64,
    /// How much more than one in [`WRONG`] is left out at both ends together, in millionths, in parts of [`FINE`].
    correction: i64,
    /// Since the margins were made from them, with those that are to come.
    new: usize,
}

impl Errors {
    /// What is left out grows by a little after what was foretold, and shrinks by far more after what was not.
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

    /// The interval of errors, as many steps below what is expected and above.
    fn margins(&self) -> (i16, i16) {
        let mut sorted: Vec<i16> = self.last.iter().map(|(_, error)| *error).collect();
        sorted.sort_unstable();
        let left_out = MILLION / WRONG + (self.correction / FINE) as i32;
        let outside = left_out.max(0) as usize * sorted.len() / (2 * MILLION as usize);
        let beyond = ((-left_out).max(0) * BEYOND / MILLION) as i16;
        (sorted[outside] - beyond, sorted[sorted.len() - 1 - outside] + beyond)
    }

    /// Whether they have changed enough for new margins; those of a few errors change with each.
    fn is_news(&self) -> bool {
        self.new * 32 >= self.last.len() && self.new > 0
    }
}

impl Calibration {
    /// A task started of which that was foretold.
    pub fn learn(&mut self, now: Instant, start: &ForetoldStart) {
        let error = step_of(start.waited) - step_of(start.expected);
        if !start.is_counted {
            self.correct(start.way, start.expected, start.is_right);
        }
        let way = &mut self.ways[start.way as usize];
        way.by_length[length_of(start.expected)].learn(now, error);
        way.all.learn(now, error);
    }

    /// A task has waited for longer than foretold; for how much longer is learned when it starts.
    pub fn on_late(&mut self, late: &Late) {
        self.correct(late.way, late.expected, false);
        let way = &mut self.ways[late.way as usize];
        way.by_length[length_of(late.expected)].new += 1;
        way.all.new += 1;
    }

    fn correct(&mut self, way: Way, expected: Duration, is_right: bool) {
        let way = &mut self.ways[way as usize];
        way.by_length[length_of(expected)].correct(is_right);
        way.all.correct(is_right);
    }

    /// How full the nodes are.
    pub fn set_crowd(&mut self, crowd: Crowd) {
        if self.margins.crowd != crowd {
            Arc::make_mut(&mut self.margins).crowd = crowd;
        }
    }

    /// What is to be foretold by from now on.
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
    use crate::vocabulary::{Chance, Foretold};
    use std::collections::VecDeque;

    /// Foretells tasks one after the other whose true waits are these, and hears of each when so many others were foretold.
    /// What part of the later half was right, and the mean width in steps.
    fn covered(total: usize, delay: usize, mut draw: impl FnMut(usize) -> (Duration, Duration)) -> (f64, f64) {
        let mut calibration = Calibration::default();
        let mut open: VecDeque<(Foretold, Duration)> = VecDeque::new();
        let (mut right, mut width) = (0, 0.0);
        for number in 0..total + delay {
            if number < total {
                let (expected, waits) = draw(number);
                open.push_back((calibration.margins().foretell(Way::Sent, expected), waits));
            }
            if number >= delay {
                let (told, waits) = open.pop_front().expect("one is open");
                let start = told.started(waits);
                calibration.learn(Instant(number as u64 * 50_000), &start);
                if number - delay >= total / 2 {
                    right += u32::from(start.is_right);
                    width += f64::from(step_of(told.most) - step_of(told.least));
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
    fn nine_of_ten_are_right_wherever_errors_come_from() {
        for seed in 0..5 {
            let mut chance = Chance::new(seed, "calibration");
            assert_ninety(covered(20_000, 0, |_| (wait(1_000), wait(chance.below(5_000_u64)))), "uniform");
            assert_ninety(
                covered(20_000, 300, |_| {
                    let expected = 1 << chance.below(20_u32);
                    (wait(expected), wait(expected * chance.below(900_u64) / 300))
                }),
                "in proportion, and heard of late",
            );
            // Twice as long from hour to hour, and then as before.
            assert_ninety(
                covered(40_000, 50, |number| {
                    (wait(1_000), wait((500 + chance.below(1_000_u64)) << (number / 500 % 8)))
                }),
                "what changes",
            );
            // Most are exactly as expected, so that no quantile leaves out one in ten.
            let alike = covered(40_000, 0, |_| (wait(0), wait(if chance.below(50_u32) == 0 { 60_000 } else { 0 })));
            assert!(alike.0 > 0.97 && alike.1 < 2.0, "nothing is left out of what is all alike: {alike:?}");
            assert_ninety(covered(40_000, 0, |number| (wait(100), wait(100 + number as u64 * 50))), "ever longer");
        }
    }

    #[test]
    fn waits_of_each_length_have_margins_of_their_own() {
        let mut chance = Chance::new(1, "lengths");
        let mut calibration = Calibration::default();
        for _ in 0..4_000 {
            for (expected, spread) in [(0, 1), (60_000, 60_000)] {
                let told = calibration.margins().foretell(Way::Asked, wait(expected));
                calibration.learn(Instant::ZERO, &told.started(wait(expected + chance.below(spread))));
            }
        }
        let margins = calibration.margins();
        let width = |expected| {
            let told = margins.foretell(Way::Asked, wait(expected));
            told.most.0 - told.least.0
        };
        assert!(width(0) < 5_000 && width(60_000) > 40_000_000, "{} and {}", width(0), width(60_000));
        let other = margins.foretell(Way::Probed, wait(60_000));
        assert_eq!(other, Margins::default().foretell(Way::Probed, wait(60_000)), "nobody probed");
        // Where nobody was sent with such a wait, all together tell.
        let unseen = margins.steps[Way::Asked as usize][length_of(wait(1_000_000))];
        assert_ne!(unseen, Margins::default().steps[0][0]);
    }

    #[test]
    fn many_at_once_do_not_make_forget_what_was_before() {
        let mut errors = Errors::default();
        let at = |second: u64| Instant(second * 1_000_000);
        for second in 0..900 {
            (0..200).for_each(|_| errors.learn(at(second), second as i16));
            assert!(errors.last.len() <= KEPT);
        }
        let (oldest, newest) = (errors.last.front().unwrap().1, errors.last.back().unwrap().1);
        assert!(newest == 899 && oldest <= 300, "{oldest} to {newest}");
        // Where few come, all of them count again.
        (1..20_000).for_each(|more| errors.learn(at(900 + more * 10), 0));
        assert_eq!((errors.thinned, errors.last.len()), (0, KEPT));
    }
}
