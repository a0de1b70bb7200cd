//! The completion time that each job would have alone within its allowance: without queues, delays of decisions and
//! messages, or failures, and with known run times. Apollo (section 5.2) compares itself with this oracle. A job with
//! opportunistic work can be faster, because that work exceeds the allowance.

use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{Duration, Resources, Totals};
use amalgam_workload::trace::{Summary, TraceJob};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Completion times of the jobs that succeeded and had an allowance, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Oracle {
    pub jobs: u64,
    /// The actual completion times.
    pub jct_s: Summary,
    /// Within the allowance of each time up to the actual end of the job, and within the largest allowance of each kind
    /// after that.
    pub as_allowed_s: Summary,
    /// Within the largest allowance of each kind, all the time.
    pub most_allowed_s: Summary,
    /// Without a limit.
    pub unlimited_s: Summary,
}

/// What a job may hold, from this time after its arrival on.
pub type Allowed = (Duration, Totals);

impl Oracle {
    /// From jobs, each with its completion time and its allowances in the order of time. `None` if no job had an
    /// allowance.
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

/// The progress of a stage.
struct Stage {
    shape: Resources,
    /// Run times of the tasks that have not started, the longest last.
    times: Vec<Duration>,
    unended: usize,
    /// Number of dependencies that have not ended.
    missing: usize,
    /// Time from the start of the stage to the job's end without a limit.
    path: Duration,
}

/// Completion time of the job under list scheduling: whenever a task fits, starts the longest task of the ready stage
/// with the longest path to the end. No limit if `allowed` is empty. One task may always run, even if it exceeds the
/// allowance.
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
    // Stages are listed after their dependencies.
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
    fn without_a_limit_the_completion_time_is_the_longest_path() {
        assert_eq!(completion(&job(&[3, 1, 2], &[4, 5]), &[]), at(8));
    }

    #[test]
    fn within_the_allowance_the_longest_tasks_start_first() {
        // The task of 5 s runs beside those of 2, 2 and 1 s; then comes the one of 3 s.
        assert_eq!(completion(&job(&[1, 2, 5, 2], &[3]), &[(Duration::ZERO, cores(2))]), at(8));
        // One task may always run.
        assert_eq!(completion(&job(&[1, 2], &[3]), &[(Duration::ZERO, Totals::ZERO)]), at(6));
        assert_eq!(completion(&job(&[1, 2], &[3]), &[(at(99), cores(2))]), at(6));
    }

    #[test]
    fn a_changed_allowance_applies_to_tasks_that_start_later() {
        let tasks = [2; 6];
        // Two tasks start at 0 s, two more at 1 s when four may run, and two at 2 s.
        let allowed = [(Duration::ZERO, cores(2)), (at(1), cores(4))];
        assert_eq!(completion(&job(&tasks, &[1]), &allowed), at(5));
        // Four tasks start at once, the others one after the other.
        let allowed = [(Duration::ZERO, cores(4)), (at(1), cores(1))];
        assert_eq!(completion(&job(&tasks, &[1]), &allowed), at(7));
    }

    #[test]
    fn a_larger_allowance_makes_the_job_shorter() {
        let job = job(&[2; 6], &[1]);
        // The job ended after 4 s, faster than within its allowance: from then on the oracle uses the largest
        // allowance.
        let allowed = [(Duration::ZERO, cores(1)), (at(1), cores(3)), (at(2), cores(1))];
        let oracle = Oracle::of([(&job, at(4), &allowed[..])].into_iter()).unwrap();
        let means =
            [oracle.jct_s, oracle.as_allowed_s, oracle.most_allowed_s, oracle.unlimited_s].map(|times| times.mean);
        // Within the actual allowances, one task starts at 0 s, two at 1 s, none at 2 and 3 s, three at 4 s.
        assert_eq!(means, [4.0, 7.0, 5.0, 3.0]);
        assert_eq!(Oracle::of([(&job, at(4), &[][..])].into_iter()), None);
    }
}
