//! Speed of a stage's tasks: progress of the running attempts, and the work of finished tasks.
//!
//! Tasks of a stage differ in size, so attempts are compared by speed and not by progress. Work is measured in bytes of input
//! if declared, else in CPU time if the tasks use enough of it, else all tasks of the stage are assumed to be equal.

use crate::vocabulary::{AttemptId, Duration, Sample, WHOLE};
use std::collections::BTreeMap;

/// Minimum CPU time for measuring work by it.
const LEAST_CPU: Duration = Duration(100_000);
/// Tasks that use less of one CPU than one part in this number are not measured by CPU time.
const IDLE_PART: u64 = 10;

/// Work and time of one attempt or the sum of several.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Work {
    time: u64,
    /// Completed parts of tasks, in millionths.
    parts: u128,
    /// Completed input, in millionths of a byte.
    input: u128,
    cpu: u64,
}

impl Work {
    fn of(time: Duration, part: u32, input_bytes: u64, cpu: Duration) -> Work {
        let (parts, input) = (u128::from(part), u128::from(input_bytes) * u128::from(part));
        Work { time: time.0, parts, input, cpu: cpu.0 }
    }

    fn add(&mut self, other: &Work) {
        self.time += other.time;
        self.parts += other.parts;
        self.input += other.input;
        self.cpu += other.cpu;
    }

    fn sub(&mut self, other: &Work) {
        self.time -= other.time;
        self.parts -= other.parts;
        self.input -= other.input;
        self.cpu -= other.cpu;
    }

    /// Time for this amount of work at this speed, where `of` is the measure of the amount.
    fn time_for(&self, amount: u128, of: u128) -> Option<Duration> {
        let time = amount.saturating_mul(u128::from(self.time)).checked_div(of)?;
        Some(Duration(u64::try_from(time).unwrap_or(u64::MAX)))
    }
}

/// The progress of a running attempt, as last reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AttemptProgress {
    stage: u32,
    input_bytes: u64,
    reported: Option<u32>,
    work: Work,
    /// Completed part of its work, in millionths.
    pub(super) part: u32,
    pub(super) running_for: Duration,
}

impl AttemptProgress {
    /// Remaining time at its speed so far. An attempt without any progress counts as half done.
    pub(super) fn left(&self) -> Duration {
        let (elapsed, part) = (u128::from(self.running_for.0), u128::from(self.part));
        let left = (elapsed * (u128::from(WHOLE) - part)).checked_div(part).unwrap_or(elapsed);
        Duration(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

/// Speed of the tasks of a stage.
#[derive(Clone, Copy, Default)]
struct StageSpeed {
    finished: u64,
    finished_input: u128,
    finished_cpu: u128,
    /// Of finished tasks and running attempts.
    work: Work,
}

pub(super) struct Speeds {
    stages: Vec<StageSpeed>,
    attempts: BTreeMap<AttemptId, AttemptProgress>,
}

impl Speeds {
    pub(super) fn new(stages: usize) -> Speeds {
        Speeds { stages: vec![StageSpeed::default(); stages], attempts: BTreeMap::new() }
    }

    /// The input of a running attempt, if it reported before.
    pub(super) fn input_of(&self, attempt: AttemptId) -> Option<u64> {
        self.attempts.get(&attempt).map(|progress| progress.input_bytes)
    }

    pub(super) fn on_sample(&mut self, attempt: AttemptId, stage: u32, input_bytes: u64, sample: &Sample) {
        let reported = self.attempts.get(&attempt).and_then(|progress| progress.reported);
        // Its progress file may be half written.
        let reported = sample.reported.map(|part| part.min(WHOLE)).or(reported);
        self.on_gone(attempt);
        let speed = &mut self.stages[stage as usize];
        let Some(part) = reported.or_else(|| speed.part_of(input_bytes, sample)) else { return };
        let running_for = sample.running_for;
        let work = Work::of(running_for, part, input_bytes, sample.cpu);
        speed.work.add(&work);
        self.attempts.insert(attempt, AttemptProgress { stage, input_bytes, reported, work, part, running_for });
    }

    pub(super) fn on_gone(&mut self, attempt: AttemptId) {
        if let Some(progress) = self.attempts.remove(&attempt) {
            self.stages[progress.stage as usize].work.sub(&progress.work);
        }
    }

    pub(super) fn on_finished(&mut self, stage: u32, input_bytes: u64, wall: Duration, cpu: Duration) {
        let speed = &mut self.stages[stage as usize];
        speed.finished += 1;
        speed.finished_input += u128::from(input_bytes);
        speed.finished_cpu += u128::from(cpu.0);
        speed.work.add(&Work::of(wall, WHOLE, input_bytes, cpu));
    }

    /// The progress of an attempt, and how long its whole task would take at the speed of the others of its stage; `None` if
    /// not known.
    pub(super) fn compare(&self, attempt: AttemptId) -> Option<(&AttemptProgress, Duration)> {
        let progress = self.attempts.get(&attempt)?;
        let mut others = self.stages[progress.stage as usize].work;
        others.sub(&progress.work);
        Some((progress, progress.at_speed_of(&others)?))
    }

    /// How long the whole task of an attempt would take by the CPU time that it needs, at the speed of the others of its stage; `None` if
    /// that is not known.
    pub(super) fn time_by_cpu(&self, attempt: AttemptId) -> Option<Duration> {
        let progress = self.attempts.get(&attempt)?;
        let mut others = self.stages[progress.stage as usize].work;
        others.sub(&progress.work);
        progress.at_cpu_of(&others)
    }
}

impl AttemptProgress {
    fn at_speed_of(&self, others: &Work) -> Option<Duration> {
        let whole = u128::from(WHOLE);
        if self.input_bytes > 0 && others.input > 0 {
            return others.time_for(u128::from(self.input_bytes) * whole, others.input);
        }
        let by_cpu = (self.work.cpu >= LEAST_CPU.0).then(|| self.at_cpu_of(others)).flatten();
        by_cpu.or_else(|| others.time_for(whole, others.parts))
    }

    fn at_cpu_of(&self, others: &Work) -> Option<Duration> {
        let is_known = others.cpu >= others.time / IDLE_PART && others.cpu > 0;
        let all = (u128::from(self.work.cpu) * u128::from(WHOLE)).checked_div(u128::from(self.part))?;
        is_known.then(|| others.time_for(all, u128::from(others.cpu))).flatten()
    }
}

impl StageSpeed {
    /// Completed part of an attempt that does not report its progress: the part of its input that it has read, or its CPU
    /// time relative to finished tasks, for their input. The larger one counts. An attempt beyond both counts as done.
    fn part_of(&self, input_bytes: u64, sample: &Sample) -> Option<u32> {
        let read = part(u128::from(sample.read_bytes), u128::from(input_bytes));
        let works_by_it = self.finished_cpu >= u128::from(LEAST_CPU.0) * u128::from(self.finished);
        let cpu = match (input_bytes, self.finished_input) {
            _ if !works_by_it => None,
            (1.., 1..) => {
                let of = self.finished_cpu * u128::from(input_bytes) / self.finished_input;
                part(u128::from(sample.cpu.0), of)
            }
            _ => part(u128::from(sample.cpu.0) * u128::from(self.finished), self.finished_cpu),
        };
        read.max(cpu)
    }
}

fn part(done: u128, of: u128) -> Option<u32> {
    let millionths = (done * u128::from(WHOLE)).checked_div(of)?;
    Some(u32::try_from(millionths).unwrap_or(WHOLE).min(WHOLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, JobId};

    const SECOND: u64 = 1_000_000;
    const GIB: u64 = 1 << 30;

    fn attempt(number: u32) -> AttemptId {
        AttemptId { job: JobId(1), epoch: Epoch(1), number }
    }

    /// A sample after this many seconds, with this many milliseconds of CPU time.
    fn sample(seconds: u64, reported: Option<u32>, cpu_millis: u64, read_bytes: u64) -> Sample {
        let (running_for, cpu) = (Duration(seconds * SECOND), Duration::from_millis(cpu_millis));
        Sample { running_for, reported: reported.map(|hundredths| hundredths * 10_000), cpu, read_bytes }
    }

    /// In seconds, the remaining time of the first attempt and the time of a new one, given a sample of it and of another
    /// attempt.
    fn compared(input: [u64; 2], samples: [Sample; 2]) -> Option<(u64, u64)> {
        let mut speeds = Speeds::new(1);
        for (number, (input, sample)) in input.iter().zip(&samples).enumerate() {
            speeds.on_sample(attempt(number as u32), 0, *input, sample);
        }
        seconds(&speeds)
    }

    fn seconds(speeds: &Speeds) -> Option<(u64, u64)> {
        let (progress, takes) = speeds.compare(attempt(0))?;
        Some((progress.left().0 / SECOND, takes.0 / SECOND))
    }

    #[test]
    fn slow_attempts_stay_slow_and_new_ones_are_as_fast_as_the_others() {
        let slow = sample(20, Some(10), 0, 0);
        assert_eq!(compared([0, 0], [slow, sample(20, Some(80), 0, 0)]), Some((180, 25)));
        assert_eq!(compared([0, 0], [slow, slow]), Some((180, 200)), "as slow as the other");
        let none = Speeds::new(1).compare(attempt(0)).is_none();
        assert!(none && compared([0, 0], [sample(20, None, 0, 0), slow]).is_none(), "no progress reported");
        let mut alone = Speeds::new(1);
        alone.on_sample(attempt(0), 0, 0, &slow);
        assert_eq!(seconds(&alone), None, "no other attempt to compare with");
    }

    #[test]
    fn a_slow_disk_makes_a_straggler_and_a_large_input_does_not() {
        let read = |bytes| sample(10, None, 0, bytes);
        assert_eq!(compared([10 * GIB, GIB], [read(GIB), read(GIB)]), Some((90, 100)), "ten times as much to read");
        assert_eq!(compared([GIB, GIB], [read(GIB / 10), read(GIB)]), Some((90, 10)));
        let reported = |hundredths| sample(10, Some(hundredths), 0, 0);
        assert_eq!(
            compared([10 * GIB, GIB], [reported(10), reported(99)]),
            Some((90, 101)),
            "by its reported progress"
        );
    }

    #[test]
    fn cpu_time_distinguishes_larger_tasks_from_slower_ones() {
        let others = sample(10, Some(100), 10_000, 0);
        assert_eq!(compared([0, 0], [sample(10, Some(10), 10_000, 0), others]), Some((90, 100)));
        assert_eq!(compared([0, 0], [sample(10, Some(10), 1_000, 0), others]), Some((90, 10)));
        // Also with many cores for days.
        let days = |hundredths| sample(100_000, Some(hundredths), 100_000 * 1_000 * 512, 0);
        assert_eq!(compared([0, 0], [days(50), days(100)]), Some((100_000, 200_000)));
        // Neither short CPU times are used, nor those of stages that mostly wait.
        assert_eq!(compared([0, 0], [sample(10, Some(10), 99, 0), others]), Some((90, 10)));
        assert_eq!(compared([0, 0], [sample(10, Some(10), 900, 0), sample(10, Some(100), 900, 0)]), Some((90, 10)));
        assert_eq!(
            compared([0, 0], [sample(10, Some(10), 1_000, 0), sample(10, Some(100), 1_000, 0)]),
            Some((90, 100))
        );
    }

    #[test]
    fn an_attempt_that_uses_as_much_cpu_as_others_has_more_to_do() {
        let by_cpu = |cpu_millis| {
            let mut speeds = Speeds::new(1);
            speeds.on_sample(attempt(0), 0, GIB, &sample(10, Some(10), cpu_millis, 0));
            speeds.on_sample(attempt(1), 0, GIB, &sample(10, Some(100), 10_000, 0));
            assert_eq!(seconds(&speeds), Some((90, 10)), "as much input");
            speeds.time_by_cpu(attempt(0)).map(|takes| takes.0 / SECOND)
        };
        assert_eq!([10_000, 1_000, 0].map(by_cpu), [100, 10, 0].map(Some));
        let mut waiting = Speeds::new(1);
        waiting.on_sample(attempt(0), 0, GIB, &sample(10, Some(10), 10, 0));
        waiting.on_sample(attempt(1), 0, GIB, &sample(10, Some(100), 10, 0));
        assert_eq!(waiting.time_by_cpu(attempt(0)), None, "tasks of the stage wait most of the time");
    }

    #[test]
    fn unreported_progress_is_estimated_from_the_cpu_time_of_finished_tasks() {
        let mut speeds = Speeds::new(1);
        let slow = sample(20, None, 1_000, 0);
        speeds.on_sample(attempt(0), 0, 0, &slow);
        assert_eq!(seconds(&speeds), None, "no task has finished");
        (0..4).for_each(|_| speeds.on_finished(0, 0, Duration(10 * SECOND), Duration(10 * SECOND)));
        speeds.on_sample(attempt(0), 0, 0, &slow);
        assert_eq!(seconds(&speeds), Some((180, 10)));
        speeds.on_sample(attempt(0), 0, 0, &sample(20, None, 20_000, 0));
        assert_eq!(seconds(&speeds), Some((0, 20)), "it has more to do, but it is not known how much");
        // Relative to its input.
        let mut speeds = Speeds::new(1);
        speeds.on_finished(0, GIB, Duration(10 * SECOND), Duration(10 * SECOND));
        speeds.on_sample(attempt(0), 0, 4 * GIB, &sample(10, None, 10_000, GIB / 2));
        assert_eq!(seconds(&speeds), Some((30, 40)));
    }

    #[test]
    fn tasks_that_use_no_cpu_are_not_measured_by_it() {
        let mut speeds = Speeds::new(1);
        speeds.on_finished(0, 0, Duration(10 * SECOND), Duration::from_millis(99));
        speeds.on_sample(attempt(0), 0, 0, &sample(20, None, 1, 0));
        assert_eq!(seconds(&speeds), None);
    }

    #[test]
    fn reported_progress_is_kept_and_no_progress_counts_as_half_done() {
        let mut speeds = Speeds::new(1);
        speeds.on_finished(0, 0, Duration(10 * SECOND), Duration::ZERO);
        speeds.on_sample(attempt(0), 0, 0, &sample(10, Some(0), 0, 0));
        assert_eq!(seconds(&speeds), Some((10, 10)));
        speeds.on_sample(attempt(0), 0, 0, &sample(20, Some(25), 0, 0));
        speeds.on_sample(attempt(0), 0, 0, &sample(40, None, 0, 0));
        assert_eq!(seconds(&speeds), Some((120, 10)));
        speeds.on_gone(attempt(0));
        assert!(speeds.compare(attempt(0)).is_none());
        assert_eq!(speeds.stages[0].work, Work::of(Duration(10 * SECOND), WHOLE, 0, Duration::ZERO));
    }
}
