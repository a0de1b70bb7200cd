//! The parts of the completion times of jobs. A job takes as long as its chain of stages: the stage that ended last,
//! then, of the stages that it depends on, the one that ended last, and so on. A stage takes as long as its last task.

use amalgam_core::vocabulary::{AttemptId, Duration, Instant};
use serde::Serialize;
use std::collections::BTreeMap;

/// Means over the jobs that succeeded, in seconds per job: sums over the last tasks of the stages on the job's chain.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Chain {
    pub jobs: u64,
    /// Stages on the chain.
    pub stages: f64,
    /// Time before the launch of the attempt that succeeded, including earlier attempts, and delays of messages.
    pub unlaunched_s: f64,
    /// Waits at the node, of attempts that were launched as guaranteed, were promoted while they waited, or were
    /// opportunistic until they started.
    pub guaranteed_wait_s: f64,
    pub promoted_wait_s: f64,
    pub opportunistic_wait_s: f64,
    /// Time without CPU after the start.
    pub yielded_s: f64,
    pub running_s: f64,
}

/// The waits of an attempt so far.
#[derive(Clone, Copy, Default)]
pub struct AttemptWaits {
    pub waited: Duration,
    pub is_opportunistic: bool,
    pub is_promoted: bool,
    pub yielded: Duration,
}

/// The task of a stage that ended last: when it ended, and the parts of its time since it was ready.
#[derive(Clone, Copy)]
pub struct LastOfStage {
    ended: Instant,
    waits: AttemptWaits,
    ran: Duration,
    since_ready: Duration,
}

/// Collects the data for [`Chain`].
#[derive(Default)]
pub struct ChainMeasure {
    /// Of attempts that have started and not ended.
    attempts: BTreeMap<AttemptId, AttemptWaits>,
    jobs: u64,
    stages: u64,
    sums: [u64; 6],
}

impl ChainMeasure {
    pub fn on_started(&mut self, attempt: AttemptId, waits: AttemptWaits) {
        self.attempts.insert(attempt, waits);
    }

    pub fn on_yielded(&mut self, attempt: AttemptId, yielded: Duration) {
        if let Some(waits) = self.attempts.get_mut(&attempt) {
            waits.yielded += yielded;
        }
    }

    /// The attempt is lost.
    pub fn forget(&mut self, attempt: AttemptId) {
        self.attempts.remove(&attempt);
    }

    /// The attempt ended. If it succeeded, returns the parts of the time of its task, which was ready at `ready`.
    pub fn on_ended(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        ready: Instant,
        ran: Option<Duration>,
    ) -> Option<LastOfStage> {
        let waits = self.attempts.remove(&attempt).unwrap_or_default();
        Some(LastOfStage { ended: now, waits, ran: ran?, since_ready: now.since(ready) })
    }

    /// The job succeeded. `stages` has the last task of each stage and the stages that it depends on.
    pub fn on_job(&mut self, stages: &[(Option<LastOfStage>, Vec<u32>)]) {
        let ended = |stage: u32| stages[stage as usize].0.map(|last| (last.ended, stage));
        let mut next = (0..stages.len() as u32).filter_map(ended).max();
        self.jobs += u64::from(next.is_some());
        while let Some((_, stage)) = next {
            let (last, after) = &stages[stage as usize];
            let LastOfStage { waits, ran, since_ready, .. } = last.expect("the stage ended");
            let known = waits.waited + waits.yielded + ran;
            let kind = match waits {
                AttemptWaits { is_opportunistic: true, .. } => 3,
                AttemptWaits { is_promoted: true, .. } => 2,
                _ => 1,
            };
            self.stages += 1;
            self.sums[0] += since_ready.0.saturating_sub(known.0);
            self.sums[kind] += waits.waited.0;
            self.sums[4] += waits.yielded.0;
            self.sums[5] += ran.0;
            next = after.iter().filter_map(|&before| ended(before)).max();
        }
    }

    pub fn finish(&self) -> Chain {
        let jobs = self.jobs.max(1) as f64;
        let [unlaunched_s, guaranteed_wait_s, promoted_wait_s, opportunistic_wait_s, yielded_s, running_s] =
            self.sums.map(|sum| sum as f64 / 1e6 / jobs);
        Chain {
            jobs: self.jobs,
            stages: self.stages as f64 / jobs,
            unlaunched_s,
            guaranteed_wait_s,
            promoted_wait_s,
            opportunistic_wait_s,
            yielded_s,
            running_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, JobId};

    fn at(second: u64) -> Instant {
        Instant(second * 1_000_000)
    }

    #[test]
    fn the_chain_follows_the_dependency_that_ended_last_and_sums_the_parts_of_its_tasks() {
        let mut measure = ChainMeasure::default();
        let seconds = Duration::from_secs;
        let mut stage = |number: u32, ready: u64, ended: u64, waited: u64, yielded: u64, ran: u64| {
            let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number };
            let waits =
                AttemptWaits { waited: seconds(waited), is_opportunistic: number == 1, ..AttemptWaits::default() };
            measure.on_started(attempt, waits);
            measure.on_yielded(attempt, seconds(yielded));
            measure.on_ended(at(ended), attempt, at(ready), Some(seconds(ran)))
        };
        // The third stage waits for the second, which ends after the first.
        let stages = [
            (stage(0, 0, 5, 0, 0, 5), vec![]),
            (stage(1, 0, 20, 4, 5, 8), vec![]),
            (stage(2, 20, 27, 1, 0, 5), vec![0, 1]),
        ];
        measure.on_job(&stages);
        let found = measure.finish();
        let expected = Chain {
            jobs: 1,
            stages: 2.0,
            unlaunched_s: 4.0,
            guaranteed_wait_s: 1.0,
            promoted_wait_s: 0.0,
            opportunistic_wait_s: 4.0,
            yielded_s: 5.0,
            running_s: 13.0,
        };
        assert_eq!(found, expected);
    }
}
