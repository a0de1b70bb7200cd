//! From where tasks read their input.

use amalgam_core::vocabulary::{AttemptId, Duration};
use serde::Serialize;
use std::collections::BTreeMap;

/// From where the attempts that succeeded read their input.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Reading {
    pub all: ReadFrom,
    /// Attempts that read blocks of the file system, and attempts that read the output of earlier tasks.
    pub blocks: ReadFrom,
    pub earlier_tasks: ReadFrom,
}

/// A task counts for the distance of most of its input, the nearer one if two are equal. Shares are in 0..=1.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct ReadFrom {
    pub tasks: u64,
    pub tasks_on_node: f64,
    pub tasks_in_rack: f64,
    pub tasks_elsewhere: f64,
    pub bytes: u64,
    pub bytes_on_node: f64,
    pub bytes_in_rack: f64,
    pub bytes_elsewhere: f64,
    /// Mean of the additional run time compared with a task whose node stores its input.
    pub longer_s: f64,
}

#[derive(Default)]
pub struct ReadingMeasure {
    open: BTreeMap<AttemptId, Open>,
    /// Of blocks, and of the output of earlier tasks.
    sums: [Sum; 2],
}

struct Open {
    read: [u64; 3],
    longer: Duration,
    from_tasks: bool,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    tasks: [u64; 3],
    bytes: [u64; 3],
    longer: u64,
}

impl ReadingMeasure {
    pub fn on_started(&mut self, attempt: AttemptId, read: [u64; 3], longer: Duration, from_tasks: bool) {
        if read != [0; 3] {
            self.open.insert(attempt, Open { read, longer, from_tasks });
        }
    }

    pub fn on_ended(&mut self, attempt: AttemptId, is_success: bool) {
        let Some(Open { read, longer, from_tasks }) = self.open.remove(&attempt).filter(|_| is_success) else { return };
        let sum = &mut self.sums[usize::from(from_tasks)];
        let most = read.iter().max();
        let distance = read.iter().position(|bytes| Some(bytes) == most).expect("the maximum is one of the three");
        sum.tasks[distance] += 1;
        sum.bytes.iter_mut().zip(read).for_each(|(sum, bytes)| *sum += bytes);
        sum.longer += longer.as_micros();
    }

    /// `None` if no attempt read input with a known location.
    pub fn finish(&self) -> Option<Reading> {
        let [blocks, earlier] = self.sums;
        let add = |one: [u64; 3], other: [u64; 3]| std::array::from_fn(|distance| one[distance] + other[distance]);
        let all = Sum {
            tasks: add(blocks.tasks, earlier.tasks),
            bytes: add(blocks.bytes, earlier.bytes),
            longer: blocks.longer + earlier.longer,
        };
        let reading = Reading { all: all.read_from(), blocks: blocks.read_from(), earlier_tasks: earlier.read_from() };
        (reading.all.tasks > 0).then_some(reading)
    }
}

impl Sum {
    fn read_from(&self) -> ReadFrom {
        let (tasks, bytes) = (self.tasks.iter().sum::<u64>(), self.bytes.iter().sum::<u64>());
        let part = |of: u64, all: u64| if all == 0 { 0.0 } else { of as f64 / all as f64 };
        let [tasks_on_node, tasks_in_rack, tasks_elsewhere] = self.tasks.map(|of| part(of, tasks));
        let [bytes_on_node, bytes_in_rack, bytes_elsewhere] = self.bytes.map(|of| part(of, bytes));
        ReadFrom {
            tasks,
            tasks_on_node,
            tasks_in_rack,
            tasks_elsewhere,
            bytes,
            bytes_on_node,
            bytes_in_rack,
            bytes_elsewhere,
            longer_s: part(self.longer, tasks) / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, JobId};

    #[test]
    fn successful_attempts_count_for_the_distance_of_most_of_their_input_and_bytes_for_their_own() {
        let attempt = |number| AttemptId { job: JobId(1), epoch: Epoch(1), number };
        let mut measure = ReadingMeasure::default();
        assert_eq!(measure.finish(), None);
        let second = Duration::from_secs(1);
        let all = [([10, 0, 0], false), ([3, 6, 1], false), ([5, 0, 5], true), ([0, 0, 10], true), ([0, 0, 0], true)];
        for (number, (read, from_tasks)) in (0..).zip(all) {
            measure.on_started(attempt(number), read, second, from_tasks);
        }
        (0..5).for_each(|number| measure.on_ended(attempt(number), number != 3));
        measure.on_ended(attempt(0), true);
        let found = measure.finish().unwrap();
        let tasks = |of: ReadFrom| (of.tasks, [of.tasks_on_node, of.tasks_in_rack, of.tasks_elsewhere]);
        let bytes = |of: ReadFrom| (of.bytes, [of.bytes_on_node, of.bytes_in_rack, of.bytes_elsewhere]);
        assert_eq!(tasks(found.all), (3, [2.0 / 3.0, 1.0 / 3.0, 0.0]));
        assert_eq!(bytes(found.all), (30, [0.6, 0.2, 0.2]));
        assert_eq!((tasks(found.blocks), tasks(found.earlier_tasks)), ((2, [0.5, 0.5, 0.0]), (1, [1.0, 0.0, 0.0])));
        assert_eq!(found.all.longer_s, 1.0);
    }
}
