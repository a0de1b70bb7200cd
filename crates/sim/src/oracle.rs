//! What each job would have taken by itself within the resources that it was allowed, had nothing ever waited for
//! anything else: no queues, no time to decide or to send, no failures, and all run times known. Apollo (section 5.2)
//! compares itself with it. Opportunistic work can beat it, for it goes beyond what is allowed.

use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{Duration, Resources, Totals};
use amalgam_workload::trace::{Summary, TraceJob};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Completion times of the jobs that succeeded and were allowed something, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Oracle {
    pub jobs: u64,
    /// How long they took.
    pub jct_s: Summary,
    /// How long they would have taken within what they were allowed at each moment of their lives, and within the most of
    /// all that afterwards.
    pub as_allowed_s: Summary,
    /// Within the most that they were ever allowed of each kind, from their arrival to their end.
    pub most_allowed_s: Summary,
    /// Without a limit.
    pub unlimited_s: Summary,
}

/// What a job was allowed to hold, from so long after its arrival on.
pub type Allowed = (Duration, Totals);

impl Oracle {
    /// Of jobs, each with the time that it took and all that it was allowed, in order.
    pub fn of<'a>(jobs: impl Iterator<Item = (&'a TraceJob, Duration, &'a [Allowed])>) -> Option<Oracle> {
        let mut times: Vec<[f64; 4]> = Vec::new();
        for (job, took, allowed) in jobs.filter(|(.., allowed)| !allowed.is_empty()) {
            let most = allowed.iter().fold(Totals::ZERO, |most, (_, totals)| most.larger_of(totals));
            let mut as_it_was = allowed.to_vec();
            as_it_was.push((took.max(as_it_was[as_it_was.len() - 1].0), most));
            let alone = |allowed: &[Allowed]| completion(job, allowed).as_secs_f64();
            times.push([took.as_secs_f64(), alone(&as_it_was), alone(&[(Duration::ZERO, most)]), alone(&[])]);
        }
        let summary = |which: usize| Summary::of(times.iter().map(|times| (times[which], 1)));
        (!times.is_empty()).then(|| Oracle {
            jobs: times.len() as u64,
            jct_s: summary(0),
            as_allowed_s: summary(1),
            most_allowed_s: summary(2),
            unlimited_s: summary(3),
        })
    }
}

/// A stage on its way.
struct Stage {
    shape: Resources,
    /// Of its tasks that have not started, the longest last.
    times: Vec<Duration>,
    unended: usize,
    /// Stages that it still waits for.
    missing: usize,
    /// Until the job's end, if all that follows had no limit.
    path: Duration,
}

/// How long the job takes by list scheduling: whenever something fits, the longest task of the stage with the longest path to
/// the end. Without any limit where none is given. However little is allowed, one task may always run.
fn completion(job: &TraceJob, allowed: &[Allowed]) -> Duration {
    let mut stages = stages_of(job);
    let mut order: Vec<usize> = (0..stages.len()).collect();
    order.sort_by_key(|&stage| (Reverse(stages[stage].path), stage));
    let mut ends: BinaryHeap<Reverse<(Duration, usize)>> = BinaryHeap::new();
    let (mut now, mut used, mut steps) = (Duration::ZERO, Totals::ZERO, allowed.iter().peekable());
    let mut most = if allowed.is_empty() { Totals([u64::MAX; WIDTH]) } else { Totals::ZERO };
    loop {
        while let Some((_, totals)) = steps.next_if(|(from, _)| *from <= now) {
            most = *totals;
        }
        for &number in &order {
            let stage = &mut stages[number];
            while stage.missing == 0 {
                let goes = most.saturating_sub(&used).holds(&stage.shape) > 0 || ends.is_empty();
                let Some(time) = stage.times.pop_if(|_| goes) else { break };
                used.add(&stage.shape);
                ends.push(Reverse((now + time, number)));
            }
        }
        let Some(Reverse((next_end, _))) = ends.peek() else { return now };
        let next_step = steps.peek().map_or(*next_end, |(from, _)| *from);
        now = next_step.min(*next_end);
        while let Some(Reverse((_, number))) = ends.peek().copied().filter(|Reverse((end, _))| *end <= now) {
            ends.pop();
            used.sub(&stages[number].shape);
            stages[number].unended -= 1;
            if stages[number].unended == 0 {
                for (after, stage) in job.spec.stages.iter().zip(&mut stages) {
                    stage.missing -= after.after.iter().filter(|&&before| before as usize == number).count();
                }
            }
        }
    }
}

fn stages_of(job: &TraceJob) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::with_capacity(job.spec.stages.len());
    for (spec, run_times) in job.spec.stages.iter().zip(job.run_times.iter()) {
        let mut times: Vec<Duration> = (0..spec.tasks.len()).map(|task| run_times.of(task)).collect();
        times.sort_unstable();
        let path = run_times.longest();
        stages.push(Stage {
            shape: spec.resources.basic,
            unended: times.len(),
            times,
            missing: spec.after.len(),
            path,
        });
    }
    // A stage stands behind those that it waits for.
    for (number, spec) in job.spec.stages.iter().enumerate().rev() {
        for &before in &spec.after {
            let own = job.run_times[before as usize].longest();
            stages[before as usize].path = stages[before as usize].path.max(own + stages[number].path);
        }
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::TaskSet;
    use amalgam_workload::trace::{self, RunTimes};
    use std::sync::Arc;

    /// Two stages of tasks of one core, the second after the first.
    fn job(first: &[u64], second: &[u64]) -> TraceJob {
        let tasks = first.len().max(second.len()).to_string();
        let options = [("jobs", "1"), ("tasks", &tasks), ("run-time", "1s"), ("arrival", "at-once")];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut job = trace::read("synthetic:gridmix", &options).unwrap().jobs.remove(0);
        let spec = Arc::make_mut(&mut job.spec);
        let stage = |times: &[u64], after: Vec<u32>| {
            let mut stage = spec.stages[0].clone();
            (stage.tasks, stage.after) = (TaskSet::Count(times.len() as u32), after);
            stage
        };
        spec.stages = vec![stage(first, vec![]), stage(second, vec![0])];
        let times = |seconds: &[u64]| RunTimes::Each(seconds.iter().map(|&seconds| at(seconds)).collect());
        job.run_times = [times(first), times(second)].into_iter().collect();
        job
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn cores(count: u64) -> Totals {
        let mut totals = Totals::ZERO;
        totals.add_times(&Resources::new(1_000, 1_024), count);
        totals
    }

    #[test]
    fn without_a_limit_it_is_the_longest_path() {
        assert_eq!(completion(&job(&[3, 1, 2], &[4, 5]), &[]), at(8));
    }

    #[test]
    fn within_what_is_allowed_the_longest_go_first() {
        // 5 beside 2, 2 and 1; then one after the other.
        assert_eq!(completion(&job(&[1, 2, 5, 2], &[3]), &[(Duration::ZERO, cores(2))]), at(8));
        // One may always run.
        assert_eq!(completion(&job(&[1, 2], &[3]), &[(Duration::ZERO, Totals::ZERO)]), at(6));
        assert_eq!(completion(&job(&[1, 2], &[3]), &[(at(99), cores(2))]), at(6));
    }

    #[test]
    fn what_is_allowed_later_is_used_from_then_on_and_what_runs_goes_on() {
        let tasks = [2; 6];
        // Two from 0, four from 1 s on, when two more start, and two at 2 s.
        let allowed = [(Duration::ZERO, cores(2)), (at(1), cores(4))];
        assert_eq!(completion(&job(&tasks, &[1]), &allowed), at(5));
        // Four at once, and one after the other from then on.
        let allowed = [(Duration::ZERO, cores(4)), (at(1), cores(1))];
        assert_eq!(completion(&job(&tasks, &[1]), &allowed), at(7));
    }

    #[test]
    fn the_more_it_knows_to_be_allowed_the_shorter_the_job() {
        let job = job(&[2; 6], &[1]);
        // It ended after 4 s, faster than it was allowed to: from then on the oracle has the most.
        let allowed = [(Duration::ZERO, cores(1)), (at(1), cores(3)), (at(2), cores(1))];
        let oracle = Oracle::of([(&job, at(4), &allowed[..])].into_iter()).unwrap();
        let means =
            [oracle.jct_s, oracle.as_allowed_s, oracle.most_allowed_s, oracle.unlimited_s].map(|times| times.mean);
        // One at 0, two at 1 s, none at 2 and 3 s, three at 4 s.
        assert_eq!(means, [4.0, 7.0, 5.0, 3.0]);
        assert_eq!(Oracle::of([(&job, at(4), &[][..])].into_iter()), None);
    }
}
