//! Where the time of jobs went: a job is as long as the chain of stages of which each ended last of those that the next one
//! waited for, and a stage as long as what its last task went through.

use amalgam_core::vocabulary::{AttemptId, Duration, Instant};
use serde::Serialize;
use std::collections::BTreeMap;

/// Of the chains of the jobs that succeeded: what the last task of each stage on it went through, in seconds a job.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Chain {
    pub jobs: u64,
    /// Stages on it.
    pub stages: f64,
    /// Until the attempt was launched that succeeded, with all that came before it and with the ways of messages.
    pub unlaunched_s: f64,
    /// At its node, as one that was launched as guaranteed, became so there, or was opportunistic until it started.
    pub guaranteed_wait_s: f64,
    pub promoted_wait_s: f64,
    pub opportunistic_wait_s: f64,
    /// Without its CPU, after it had started.
    pub yielded_s: f64,
    pub running_s: f64,
}

/// What an attempt has gone through so far.
#[derive(Clone, Copy, Default)]
pub struct Course {
    pub waited: Duration,
    pub is_opportunistic: bool,
    pub is_promoted: bool,
    pub yielded: Duration,
}

/// The task of a stage that ended last: when, and what it went through since it could run.
#[derive(Clone, Copy)]
pub struct LastOfStage {
    ended: Instant,
    course: Course,
    ran: Duration,
    since_ready: Duration,
}

/// As it is collected.
#[derive(Default)]
pub struct ChainMeasure {
    /// Of attempts that have started and not ended.
    courses: BTreeMap<AttemptId, Course>,
    jobs: u64,
    stages: u64,
    sums: [u64; 6],
}

impl ChainMeasure {
    pub fn on_started(&mut self, attempt: AttemptId, course: Course) {
        self.courses.insert(attempt, course);
    }

    pub fn on_yielded(&mut self, attempt: AttemptId, yielded: Duration) {
        if let Some(course) = self.courses.get_mut(&attempt) {
            course.yielded += yielded;
        }
    }

    /// It is lost.
    pub fn forget(&mut self, attempt: AttemptId) {
        self.courses.remove(&attempt);
    }

    /// The attempt ended. Where that was well, what its task went through that could run since then.
    pub fn on_ended(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        ready: Instant,
        ran: Option<Duration>,
    ) -> Option<LastOfStage> {
        let course = self.courses.remove(&attempt).unwrap_or_default();
        Some(LastOfStage { ended: now, course, ran: ran?, since_ready: now.since(ready) })
    }

    /// The job succeeded. By stage, its last task and the stages that it waited for.
    pub fn on_job(&mut self, stages: &[(Option<LastOfStage>, Vec<u32>)]) {
        let ended = |stage: u32| stages[stage as usize].0.map(|last| (last.ended, stage));
        let mut next = (0..stages.len() as u32).filter_map(ended).max();
        self.jobs += u64::from(next.is_some());
        while let Some((_, stage)) = next {
            let (last, after) = &stages[stage as usize];
            let LastOfStage { course, ran, since_ready, .. } = last.expect("it ended");
            let known = course.waited + course.yielded + ran;
            let kind = match course {
                Course { is_opportunistic: true, .. } => 3,
                Course { is_promoted: true, .. } => 2,
                _ => 1,
            };
            self.stages += 1;
            self.sums[0] += since_ready.0.saturating_sub(known.0);
            self.sums[kind] += course.waited.0;
            self.sums[4] += course.yielded.0;
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
    fn the_chain_goes_back_by_whatever_ended_last_and_says_what_its_tasks_went_through() {
        let mut measure = ChainMeasure::default();
        let seconds = Duration::from_secs;
        let mut stage = |number: u32, ready: u64, ended: u64, waited: u64, yielded: u64, ran: u64| {
            let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number };
            let course = Course { waited: seconds(waited), is_opportunistic: number == 1, ..Course::default() };
            measure.on_started(attempt, course);
            measure.on_yielded(attempt, seconds(yielded));
            measure.on_ended(at(ended), attempt, at(ready), Some(seconds(ran)))
        };
        // The second of the first two holds up the third.
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
