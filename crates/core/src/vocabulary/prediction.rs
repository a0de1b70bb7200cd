//! Predictions of when a task starts: an interval around its expected wait, in which nine of ten tasks start.
//!
//! The distance between an actual and an expected wait is counted in steps of a sixteenth of a doubling, numbered by [`step_of`],
//! so that waits of milliseconds and of hours have the same scale. All arithmetic uses integers.

use super::{Duration, Instant, Resources, Totals};
use serde::{Deserialize, Serialize};

/// How a task gets to a node. The wait of each way is predicted from other data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Route {
    /// Requested from the master, where it waits with others.
    Asked,
    /// Probes for it wait at nodes.
    Probed,
    /// Sent to a node's queue.
    Sent,
    /// Sent to a node's queue as opportunistic.
    SentOpportunistic,
}

pub const ROUTES: usize = 4;

/// Number of classes of expected waits: each class is four times as long as the one before.
pub const LENGTHS: usize = 14;

/// Waits shorter than this are treated alike.
const LEAST: Duration = Duration::from_millis(10);

/// The prediction of a task's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prediction {
    pub way: Route,
    /// The expected wait, from when the prediction was made.
    pub expected: Duration,
    /// Nine of ten tasks wait at least this long,
    pub least: Duration,
    /// and at most this long.
    pub most: Duration,
    /// How long ago the prediction was made.
    pub age: Duration,
    /// It has waited longer than `most`, and this was counted while it waited.
    pub is_counted: bool,
}

/// A start that had been predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PredictedStart {
    pub way: Route,
    pub expected: Duration,
    pub waited: Duration,
    /// The wait was within the prediction.
    pub is_right: bool,
    /// A wrong prediction was counted before.
    pub is_counted: bool,
}

/// A wait that is longer than predicted already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Late {
    pub way: Route,
    pub expected: Duration,
}

/// How far nine of ten waits are from the expected wait, in steps: for each way, by class of the expected wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Margins {
    pub steps: [[(i16, i16); LENGTHS]; ROUTES],
    /// If tasks wait at nodes, how many wait at all nodes.
    pub crowd: Crowd,
}

/// How full the nodes are, and how fast tasks leave them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Crowd {
    /// Entries in their queues.
    pub queued: u64,
    pub free: Totals,
    /// Nanoseconds from the end of one task to the end of the next.
    pub each: u64,
}

/// Tasks that start as others end: the first after `ahead` ends, each next one after `step` more. There is room for `room` tasks
/// at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    pub ahead: u64,
    pub step: u64,
    pub room: u64,
    /// Nanoseconds from one end to the next.
    pub each: u64,
}

impl Line {
    /// How long the task at this place is expected to wait; the first is at 0.
    pub fn wait(&self, place: u64) -> Duration {
        let before = self.ahead.saturating_add(place.saturating_mul(self.step)).saturating_sub(self.room);
        Duration(u64::try_from(u128::from(before) * u128::from(self.each) / 1_000).unwrap_or(u64::MAX))
    }
}

impl Crowd {
    /// Tasks of this shape behind all that wait and `behind` more.
    pub fn line(&self, behind: u64, shape: &Resources) -> Line {
        let (ahead, room) = (self.queued.saturating_add(behind), self.free.holds(shape));
        Line { ahead, step: 1, room, each: self.each }
    }
}

impl Default for Margins {
    /// Before anything is known: a quarter of the expected wait to four times as long.
    fn default() -> Margins {
        Margins { steps: [[(-2 * DOUBLING, 2 * DOUBLING); LENGTHS]; ROUTES], crowd: Crowd::default() }
    }
}

impl Margins {
    pub fn predict(&self, way: Route, expected: Duration) -> Prediction {
        let (low, high) = self.steps[way as usize][length_of(expected)];
        let step = step_of(expected);
        let (least, most) = (time_of(step.saturating_add(low)), time_of(step.saturating_add(high).saturating_add(1)));
        Prediction { way, expected, least, most, age: Duration::ZERO, is_counted: false }
    }
}

impl Prediction {
    /// The task started after waiting at its node for `after`.
    pub fn started(&self, after: Duration) -> PredictedStart {
        let waited = self.age + after;
        let is_right = (self.least..=self.most).contains(&waited);
        let Prediction { way, expected, is_counted, .. } = *self;
        PredictedStart { way, expected, waited, is_right, is_counted }
    }

    /// Whether it has waited longer than predicted, after waiting at its node for `after`.
    pub fn late(&self, after: Duration) -> Option<Late> {
        (self.age + after > self.most).then_some(Late { way: self.way, expected: self.expected })
    }

    /// The same prediction, made at `at`.
    #[must_use]
    pub fn made(self, at: Instant, now: Instant) -> Prediction {
        Prediction { age: now.since(at), ..self }
    }
}

/// Steps in which a time doubles.
pub const DOUBLING: i16 = 16;

/// 2 to the power of each sixteenth, in parts of 2 to the power of 32.
const POWERS: [u64; DOUBLING as usize] = [
    4_294_967_296,
    4_485_121_744,
    4_683_695_048,
    4_891_059_943,
    5_107_605_667,
    5_333_738_689,
    5_569_883_475,
    5_816_483_285,
    6_074_001_000,
    6_342_919_999,
    6_623_745_059,
    6_917_003_306,
    7_223_245_206,
    7_543_045_592,
    7_877_004_752,
    8_225_749_546,
];

/// The number of the step that contains a wait.
pub fn step_of(wait: Duration) -> i16 {
    let micros = wait.0.saturating_add(LEAST.0);
    let doublings = micros.ilog2();
    let rest = ((u128::from(micros) << 32) >> doublings) as u64;
    let sixteenths = POWERS.partition_point(|power| *power <= rest) - 1;
    doublings as i16 * DOUBLING + sixteenths as i16
}

/// The shortest wait in a step, limited to waits that a [`Duration`] can hold.
pub fn time_of(step: i16) -> Duration {
    let (doublings, sixteenths) = (step.div_euclid(DOUBLING), step.rem_euclid(DOUBLING) as usize);
    let Ok(doublings) = u32::try_from(doublings) else { return Duration::ZERO };
    // Rounded up: shorter waits are in the step before.
    let micros = (u128::from(POWERS[sixteenths]) << doublings.min(63)).div_ceil(1 << 32);
    Duration(u64::try_from(micros).unwrap_or(u64::MAX).saturating_sub(LEAST.0))
}

/// The class of an expected wait.
pub fn length_of(expected: Duration) -> usize {
    let fours = (expected.0.saturating_add(LEAST.0) / LEAST.0).ilog2() / 2;
    (fours as usize).min(LENGTHS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    #[test]
    fn every_time_is_in_its_step_and_steps_do_not_overlap() {
        let mut chance = Chance::new(1, "steps");
        for _ in 0..20_000 {
            let wait = Duration((1u64 << chance.below(62_u32)) + chance.below(1_000_000_u64));
            let step = step_of(wait);
            assert!(time_of(step) <= wait && wait < time_of(step + 1), "{wait} in step {step}");
        }
        let steps = step_of(Duration::ZERO)..step_of(Duration(u64::MAX));
        let times: Vec<Duration> = steps.map(time_of).collect();
        assert!(times.is_sorted() && time_of(i16::MIN) == Duration::ZERO && time_of(i16::MAX) > Duration(1 << 62));
        assert_eq!(step_of(Duration::from_secs(20)) - step_of(Duration::from_secs(10)), DOUBLING);
    }

    #[test]
    fn a_prediction_is_right_within_its_interval_and_its_age_counts() {
        let reported = Margins::default().predict(Route::Sent, Duration::from_secs(80));
        assert!(reported.least < Duration::from_secs(20) && reported.most > Duration::from_secs(320));
        let old = reported.made(Instant(1_000_000), Instant(3_000_000));
        assert_eq!(old.age, Duration::from_secs(2));
        let is_right = |wait: u64| old.started(Duration(wait)).is_right;
        let (least, most) = (reported.least.0 - 2_000_000, reported.most.0 - 2_000_000);
        assert_eq!([least - 1, least, most, most + 1].map(is_right), [false, true, true, false]);
    }

    #[test]
    fn classes_of_lengths_grow_by_four() {
        let millis = |millis| length_of(Duration::from_millis(millis));
        assert_eq!([0, 29, 30, 149, 150].map(millis), [0, 0, 1, 1, 2]);
        assert_eq!(length_of(Duration::MAX), LENGTHS - 1);
    }
}
