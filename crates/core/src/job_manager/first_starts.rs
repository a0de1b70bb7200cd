//! When stages became ready, and which tasks have started: the allocation time is reported once for each task.

use crate::vocabulary::{Duration, Instant, TaskId};

pub(super) struct FirstStarts {
    /// By stage, when it became ready, if that was after the last restart.
    ready: Vec<Option<Instant>>,
    /// By stage, one bit for each task that has started; empty before the first.
    started: Vec<Vec<u64>>,
}

impl FirstStarts {
    pub(super) fn new(stages: usize) -> FirstStarts {
        FirstStarts { ready: vec![None; stages], started: vec![Vec::new(); stages] }
    }

    pub(super) fn on_ready(&mut self, now: Instant, stage: u32) {
        self.ready[stage as usize].get_or_insert(now);
    }

    /// Time from ready to launch for a task of a stage with `tasks` tasks; `None` if not known, and for a later start.
    pub(super) fn on_started(&mut self, launched_at: Instant, task: TaskId, tasks: u32) -> Option<Duration> {
        let started = &mut self.started[task.stage as usize];
        started.resize(tasks.div_ceil(64) as usize, 0);
        let (word, bit) = (&mut started[task.index as usize / 64], 1 << (task.index % 64));
        let is_first = *word & bit == 0;
        *word |= bit;
        self.ready[task.stage as usize].filter(|_| is_first).map(|ready| launched_at.since(ready))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::JobId;

    #[test]
    fn only_first_starts_of_stages_known_to_be_ready_count() {
        let mut starts = FirstStarts::new(2);
        let task = |stage, index| TaskId { job: JobId(1), stage, index };
        starts.on_ready(Instant(5), 0);
        starts.on_ready(Instant(6), 0);
        assert_eq!(starts.on_started(Instant(9), task(0, 70), 71), Some(Duration(4)));
        assert_eq!(starts.on_started(Instant(10), task(0, 70), 71), None);
        assert_eq!(starts.on_started(Instant(10), task(0, 6), 71), Some(Duration(5)));
        assert_eq!(starts.on_started(Instant(10), task(1, 0), 1), None);
    }
}
