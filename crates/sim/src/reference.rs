//! Lower bounds for any scheduler, computed from the workload and the capacity alone. Results are compared with them.
//!
//! Also the times of a greedy scheduler with full knowledge on one pooled machine. These are no bounds: another order
//! may be better.

use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{Duration, Instant, Resources, StageSpec, Totals};
use amalgam_workload::trace::{RunTimes, TraceJob};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound;

/// Lower bounds and the times of the greedy scheduler, in seconds. The bounds are computed in integers and rounded
/// down, so that a run that meets a bound is not below it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Reference {
    /// Bound of the makespan: from the first arrival to the last end if no task ever waited, which is the largest sum
    /// of a job's arrival and its critical path.
    pub critical_path_s: f64,
    /// Bound of the makespan: the work of the scarcest kind over the capacity of the whole cluster, with regard to
    /// arrivals.
    pub work_over_capacity_s: f64,
    /// Bound of the mean job completion time: the largest of the mean critical path and, for each kind of resource, the
    /// mean completion time on one pooled machine that divides jobs arbitrarily and runs the shortest remaining work
    /// first.
    pub srpt_mean_jct_s: f64,
    pub greedy_makespan_s: f64,
    pub greedy_mean_jct_s: f64,
}

impl Reference {
    /// From jobs in the order of their arrivals. Each job has to fit into the capacity.
    pub fn of<'a>(jobs: impl IntoIterator<Item = &'a TraceJob>, capacity: &Totals) -> Reference {
        let jobs: Vec<Job<'_>> = jobs.into_iter().map(|job| Job::new(job, capacity)).collect();
        let (greedy_makespan, greedy_mean) = greedy(&jobs, capacity);
        Reference {
            critical_path_s: critical_path(&jobs) as f64 / 1e6,
            work_over_capacity_s: work_over_capacity(&jobs, capacity) as f64 / 1e6,
            srpt_mean_jct_s: least_mean(completion(&jobs, capacity), jobs.len()),
            greedy_makespan_s: greedy_makespan,
            greedy_mean_jct_s: greedy_mean,
        }
    }
}

/// Times are in microseconds.
struct Job<'a> {
    trace: &'a TraceJob,
    arrival: u64,
    critical_path: u64,
    /// By kind: the sum of amount times run time.
    work: [u128; WIDTH],
    /// Seconds that the whole cluster would need for the job, by its dominant kind. Only the order of the greedy
    /// scheduler depends on it.
    dominant_s: f64,
}

impl<'a> Job<'a> {
    fn new(trace: &'a TraceJob, capacity: &Totals) -> Job<'a> {
        let mut finish: Vec<u64> = Vec::with_capacity(trace.spec.stages.len());
        let mut work = [0; WIDTH];
        for (stage, run_times) in trace.spec.stages.iter().zip(trace.run_times.iter()) {
            let ready = stage.after.iter().map(|&before| finish[before as usize]).max().unwrap_or(0);
            finish.push(ready + run_times.longest().as_micros());
            let micros = run_times.total_micros(stage.tasks.len());
            for (work, amount) in work.iter_mut().zip(stage.resources.basic.0) {
                *work += micros * u128::from(amount);
            }
        }
        let seconds = work.iter().zip(capacity.0).filter(|(_, capacity)| *capacity > 0);
        let dominant_s = seconds.map(|(work, capacity)| *work as f64 / capacity as f64 / 1e6).fold(0.0, f64::max);
        let critical_path = finish.into_iter().max().unwrap_or(0);
        Job { trace, arrival: trace.arrival.as_micros(), critical_path, work, dominant_s }
    }
}

fn first_arrival(jobs: &[Job<'_>]) -> u64 {
    jobs.iter().map(|job| job.arrival).min().unwrap_or(0)
}

fn critical_path(jobs: &[Job<'_>]) -> u64 {
    let first = first_arrival(jobs);
    jobs.iter().map(|job| job.arrival - first + job.critical_path).max().unwrap_or(0)
}

/// For each kind and each arrival: the work that arrives from then on cannot be done before that arrival plus the work
/// over the capacity.
fn work_over_capacity(jobs: &[Job<'_>], capacity: &Totals) -> u128 {
    let first = first_arrival(jobs);
    let by_kind = kinds(capacity).map(|(kind, capacity)| {
        let mut later = 0;
        // Jobs are in the order of their arrivals.
        let ends = jobs.iter().rev().map(|job| {
            later += job.work[kind];
            u128::from(job.arrival - first) * capacity + later
        });
        ends.max().unwrap_or(0) / capacity
    });
    by_kind.max().unwrap_or(0)
}

/// The kinds that the cluster has, each with its total amount.
fn kinds(capacity: &Totals) -> impl Iterator<Item = (usize, u128)> {
    capacity
        .0
        .into_iter()
        .enumerate()
        .filter(|(_, amount)| *amount > 0)
        .map(|(kind, amount)| (kind, u128::from(amount)))
}

/// Lower bound of the sum of all completion times, in microseconds.
fn completion(jobs: &[Job<'_>], capacity: &Totals) -> u128 {
    let critical_paths = jobs.iter().map(|job| u128::from(job.critical_path)).sum();
    kinds(capacity).map(|(kind, capacity)| srpt(jobs, kind, capacity)).fold(critical_paths, u128::max)
}

/// The mean in seconds of `count` times with this sum in microseconds, reduced so that it is not above the mean of the
/// same times added up in floating-point seconds: each time and each addition may be off by half an epsilon.
fn least_mean(sum: u128, count: usize) -> f64 {
    let mean = sum as f64 / 1e6 / count.max(1) as f64;
    mean * (1.0 - (count + 4) as f64 * f64::EPSILON)
}

/// The sum of the completion times if the whole cluster is one machine for this kind of resource and always works on
/// the job with the least work left, which is the optimal order (Schrage 1968). Each kind is computed separately,
/// because jobs that need different kinds can run at the same time.
fn srpt(jobs: &[Job<'_>], kind: usize, capacity: u128) -> u128 {
    // The clock counts units of work: `capacity` units in each microsecond. So nothing is rounded before the end.
    let arrival = |number: usize| jobs.get(number).map(|job: &Job<'_>| u128::from(job.arrival) * capacity);
    let mut waiting: BinaryHeap<Reverse<(u128, usize)>> = BinaryHeap::new();
    let (mut now, mut total, mut next) = (0, 0, 0);
    while next < jobs.len() || !waiting.is_empty() {
        let Some(Reverse((left, number))) = waiting.pop() else {
            now = arrival(next).map_or(now, |arrival| arrival.max(now));
            waiting.push(Reverse((jobs[next].work[kind], next)));
            next += 1;
            continue;
        };
        match arrival(next).filter(|arrival| *arrival < now + left) {
            Some(arrival) => {
                let worked = arrival.saturating_sub(now);
                now += worked;
                waiting.push(Reverse((left - worked, number)));
                waiting.push(Reverse((jobs[next].work[kind], next)));
                next += 1;
            }
            None => {
                now += left;
                total += now - u128::from(jobs[number].arrival) * capacity;
            }
        }
    }
    total / capacity
}

// ---- the greedy scheduler ------------------------------------------------------------------------------------------

/// A job that has arrived.
struct Progress {
    /// By stage: number of dependencies that have not ended.
    missing: Vec<u32>,
    /// By stage: number of tasks that have not started, and that have not ended.
    unstarted: Vec<u32>,
    unended: Vec<u32>,
    stages_left: usize,
    work_left: f64,
}

/// Whenever a task fits into the pooled free capacity, starts a task of the job with the least work left. Knows all run
/// times. Returns the makespan and the mean completion time in seconds.
fn greedy(jobs: &[Job<'_>], capacity: &Totals) -> (f64, f64) {
    let mut pool = Pool {
        free: *capacity,
        ends: BinaryHeap::new(),
        progress: Vec::new(),
        order: BTreeSet::new(),
        dependents: Vec::new(),
        smallest: smallest_shape(jobs),
    };
    let (mut next, mut total, mut last) = (0, 0, 0);
    while next < jobs.len() || !pool.ends.is_empty() {
        let arrival = jobs.get(next).map(|job| Instant::ZERO + job.trace.arrival);
        let end = pool.ends.peek().map(|Reverse(end)| end.at);
        let now = match (arrival, end) {
            (Some(arrival), Some(end)) => arrival.min(end),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => break,
        };
        while jobs.get(next).is_some_and(|job| Instant::ZERO + job.trace.arrival <= now) {
            pool.arrive(next, &jobs[next]);
            next += 1;
        }
        while let Some(number) = pool.end_one(now, jobs) {
            if pool.progress[number].stages_left == 0 {
                total += u128::from(now.0 - jobs[number].arrival);
                last = now.0;
            }
        }
        pool.start_what_fits(now, jobs);
    }
    let makespan = last.saturating_sub(first_arrival(jobs));
    (makespan as f64 / 1e6, total as f64 / 1e6 / jobs.len().max(1) as f64)
}

struct Pool {
    free: Totals,
    ends: BinaryHeap<Reverse<TaskEnd>>,
    progress: Vec<Progress>,
    /// Jobs with unstarted tasks, ordered by the work left, in microseconds of the whole cluster.
    order: BTreeSet<(u64, usize)>,
    dependents: Vec<Vec<Vec<u32>>>,
    /// The smallest amount of each kind that any task requests. If it does not fit, no task fits.
    smallest: Resources,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TaskEnd {
    at: Instant,
    job: usize,
    stage: u32,
}

impl Pool {
    fn arrive(&mut self, number: usize, job: &Job<'_>) {
        let stages = &job.trace.spec.stages;
        let tasks: Vec<u32> = stages.iter().map(|stage| stage.tasks.len()).collect();
        let mut dependents = vec![Vec::new(); stages.len()];
        for (index, stage) in stages.iter().enumerate() {
            stage.after.iter().for_each(|&before| dependents[before as usize].push(index as u32));
        }
        self.dependents.push(dependents);
        self.progress.push(Progress {
            missing: stages.iter().map(|stage| stage.after.len() as u32).collect(),
            unstarted: tasks.clone(),
            unended: tasks,
            stages_left: stages.len(),
            work_left: job.dominant_s,
        });
        self.order.insert((micros(job.dominant_s), number));
    }

    /// Ends one task whose end has come, if there is one, and returns its job.
    fn end_one(&mut self, now: Instant, jobs: &[Job<'_>]) -> Option<usize> {
        let end = self.ends.peek().map(|Reverse(end)| *end).filter(|end| end.at <= now)?;
        self.ends.pop();
        let shape = &jobs[end.job].trace.spec.stages[end.stage as usize].resources.basic;
        self.free.add(shape);
        let progress = &mut self.progress[end.job];
        progress.unended[end.stage as usize] -= 1;
        if progress.unended[end.stage as usize] == 0 {
            progress.stages_left -= 1;
            for &dependent in &self.dependents[end.job][end.stage as usize] {
                progress.missing[dependent as usize] -= 1;
            }
        }
        Some(end.job)
    }

    fn start_what_fits(&mut self, now: Instant, jobs: &[Job<'_>]) {
        let mut from = Bound::Unbounded;
        while fits(&self.smallest, &self.free)
            && let Some(&(left, number)) = self.order.range((from, Bound::Unbounded)).next()
        {
            // If the job is inserted again, it has less work left, so it is before this position and not visited again.
            from = Bound::Excluded((left, number));
            let job = &jobs[number];
            let (mut has_started, mut seconds) = (false, 0.0);
            for (index, stage) in job.trace.spec.stages.iter().enumerate() {
                let shape = &stage.resources.basic;
                let progress = &mut self.progress[number];
                while progress.missing[index] == 0 && progress.unstarted[index] > 0 && fits(shape, &self.free) {
                    let task = stage.tasks.len() - progress.unstarted[index];
                    progress.unstarted[index] -= 1;
                    self.free.sub(shape);
                    let run_time: Duration = job.trace.run_times[index].of(task);
                    self.ends.push(Reverse(TaskEnd { at: now + run_time, job: number, stage: index as u32 }));
                    has_started = true;
                    seconds += run_time.as_secs_f64();
                }
            }
            if has_started {
                let total: f64 = job.trace.run_times.iter().zip(&job.trace.spec.stages).map(seconds_of).sum();
                self.order.remove(&(left, number));
                let progress = &mut self.progress[number];
                progress.work_left -= job.dominant_s * seconds / total.max(f64::MIN_POSITIVE);
                if progress.unstarted.iter().any(|tasks| *tasks > 0) {
                    self.order.insert((micros(progress.work_left), number));
                }
            }
        }
    }
}

fn seconds_of((times, stage): (&RunTimes, &StageSpec)) -> f64 {
    times.total_seconds(stage.tasks.len())
}

fn micros(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
}

fn smallest_shape(jobs: &[Job<'_>]) -> Resources {
    let shapes = jobs.iter().flat_map(|job| &job.trace.spec.stages).map(|stage| stage.resources.basic);
    let least =
        |one: Resources, other: Resources| Resources(std::array::from_fn(|kind| one.0[kind].min(other.0[kind])));
    shapes.reduce(least).unwrap_or_default()
}

fn fits(shape: &Resources, free: &Totals) -> bool {
    shape.0.iter().zip(free.0).all(|(&wanted, free)| u64::from(wanted) <= free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::Chance;
    use amalgam_workload::trace::{self, Workload};

    fn workload(options: &[(&str, &str)]) -> Workload {
        let options: Vec<(String, String)> =
            options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        trace::read("synthetic:gridmix", &options).unwrap()
    }

    fn cores(count: u64) -> Totals {
        let mut capacity = Totals::default();
        capacity.add(&Resources::new(1_000 * count as u32, 0));
        capacity
    }

    /// Rounded to nanoseconds.
    fn rounded(seconds: f64) -> f64 {
        (seconds * 1e9).round() / 1e9
    }

    #[test]
    fn the_bound_of_the_mean_is_that_of_the_shortest_job_first() {
        // Three jobs of 4 tasks of 10 s arrive at once on 4 cores. One after the other is best: they end after 10, 20
        // and 30 s.
        let same = workload(&[("jobs", "3"), ("tasks", "4"), ("run-time", "10s"), ("arrival", "at-once")]);
        let reference = Reference::of(&same.jobs, &cores(4));
        assert_eq!((reference.work_over_capacity_s, reference.critical_path_s), (30.0, 10.0));
        assert_eq!((rounded(reference.srpt_mean_jct_s), reference.greedy_mean_jct_s), (20.0, 20.0));
        assert_eq!(reference.greedy_makespan_s, 30.0);
    }

    #[test]
    fn on_a_large_cluster_the_critical_path_is_the_bound() {
        let one = workload(&[("jobs", "2"), ("tasks", "3"), ("run-time", "7s"), ("arrival", "every:100s")]);
        let reference = Reference::of(&one.jobs, &cores(100));
        assert_eq!(rounded(reference.srpt_mean_jct_s), 7.0);
        assert_eq!((reference.greedy_mean_jct_s, reference.greedy_makespan_s), (7.0, 107.0));
    }

    #[test]
    fn times_that_meet_the_bound_of_the_mean_are_not_below_it_in_any_order_of_addition() {
        let mut chance = Chance::new(1, "times");
        for count in [1, 3, 10, 1_000] {
            for _ in 0..200 {
                let times: Vec<u64> = (0..count).map(|_| chance.below(10_000_000_000_u64)).collect();
                let least = least_mean(times.iter().map(|time| u128::from(*time)).sum(), times.len());
                let mean = |times: &mut dyn Iterator<Item = &u64>| {
                    times.map(|time| *time as f64 / 1e6).sum::<f64>() / f64::from(count)
                };
                for mean in [mean(&mut times.iter()), mean(&mut times.iter().rev())] {
                    assert!(least <= mean && mean - least < 1e-9 * mean, "the bound is {least}, the mean is {mean}");
                }
            }
        }
    }
}
