//! What no scheduler can beat, computed from the workload and the capacity alone: every result is compared with it.
//!
//! Beside the bounds stands what an omniscient greedy scheduler on one pooled machine would reach. It is no bound: greedy
//! choices can be beaten.

use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{Duration, Instant, Resources, StageSpec, Totals};
use amalgam_workload::trace::{RunTimes, TraceJob};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound;

/// Lower bounds in seconds, and the greedy scheduler's figures.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Reference {
    /// Of the makespan: the latest arrival plus its job's critical path.
    pub critical_path_s: f64,
    /// Of the makespan: all work of the scarcest kind over the capacity of the whole cluster.
    pub work_over_capacity_s: f64,
    /// Of the mean job completion time: the mean critical path, or jobs as fluids on one pooled machine of one kind of
    /// resource, the shortest remaining work first; whatever is largest.
    pub srpt_mean_jct_s: f64,
    pub greedy_makespan_s: f64,
    pub greedy_mean_jct_s: f64,
}

impl Reference {
    /// Of jobs in the order of their arrivals, each of which fits into the capacity.
    pub fn of<'a>(jobs: impl IntoIterator<Item = &'a TraceJob>, capacity: &Totals) -> Reference {
        let jobs: Vec<Job<'_>> = jobs.into_iter().map(|job| Job::new(job, capacity)).collect();
        let (greedy_makespan, greedy_mean) = greedy(&jobs, capacity);
        Reference {
            critical_path_s: critical_path(&jobs),
            work_over_capacity_s: work_over_capacity(&jobs),
            srpt_mean_jct_s: mean_completion(&jobs),
            greedy_makespan_s: greedy_makespan,
            greedy_mean_jct_s: greedy_mean,
        }
    }
}

struct Job<'a> {
    trace: &'a TraceJob,
    arrival: f64,
    critical_path: f64,
    /// Seconds that the whole cluster would need for it, by its dominant kind.
    work: f64,
    /// The same for each kind.
    work_by_kind: [f64; WIDTH],
}

impl<'a> Job<'a> {
    fn new(trace: &'a TraceJob, capacity: &Totals) -> Job<'a> {
        let mut finish: Vec<f64> = Vec::with_capacity(trace.spec.stages.len());
        let mut work_by_kind = [0.0; WIDTH];
        for (stage, run_times) in trace.spec.stages.iter().zip(trace.run_times.iter()) {
            let ready = stage.after.iter().map(|&before| finish[before as usize]).fold(0.0, f64::max);
            finish.push(ready + run_times.longest().as_secs_f64());
            let seconds = run_times.total_seconds(stage.tasks.len());
            for (kind, work) in work_by_kind.iter_mut().enumerate() {
                if capacity.0[kind] > 0 {
                    *work += seconds * f64::from(stage.resources.basic.0[kind]) / capacity.0[kind] as f64;
                }
            }
        }
        Job {
            trace,
            arrival: trace.arrival.as_secs_f64(),
            critical_path: finish.into_iter().fold(0.0, f64::max),
            work: work_by_kind.into_iter().fold(0.0, f64::max),
            work_by_kind,
        }
    }
}

fn first_arrival(jobs: &[Job<'_>]) -> f64 {
    jobs.iter().map(|job| job.arrival).fold(f64::INFINITY, f64::min)
}

fn critical_path(jobs: &[Job<'_>]) -> f64 {
    let first = first_arrival(jobs);
    jobs.iter().map(|job| job.arrival - first + job.critical_path).fold(0.0, f64::max)
}

/// For each kind and each arrival: what arrives from then on cannot end before it has been worked off.
fn work_over_capacity(jobs: &[Job<'_>]) -> f64 {
    let first = first_arrival(jobs);
    let by_kind = (0..WIDTH).map(|kind| {
        let mut later = 0.0;
        // Jobs stand in the order of their arrivals.
        jobs.iter().rev().fold(0.0_f64, |latest, job| {
            later += job.work_by_kind[kind];
            latest.max(job.arrival - first + later)
        })
    });
    by_kind.fold(0.0, f64::max)
}

fn mean_completion(jobs: &[Job<'_>]) -> f64 {
    if jobs.is_empty() {
        return 0.0;
    }
    let critical_paths: f64 = jobs.iter().map(|job| job.critical_path).sum();
    let by_kind = (0..WIDTH).map(|kind| srpt(jobs, kind));
    by_kind.fold(critical_paths, f64::max) / jobs.len() as f64
}

/// The sum of the completion times when the whole cluster is one machine for this kind of resource and always works on
/// the job with the least work left, which no order beats (Schrage 1968). Kinds are looked at one by one: jobs that lean
/// on different kinds may run beside each other.
fn srpt(jobs: &[Job<'_>], kind: usize) -> f64 {
    // Whole nanoseconds, so that the order has no ties by rounding.
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    let arrival = |number: usize| jobs.get(number).map(|job: &Job<'_>| nanos(job.arrival));
    let mut waiting: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let (mut now, mut total, mut next) = (0_u64, 0_u64, 0);
    while next < jobs.len() || !waiting.is_empty() {
        let Some(Reverse((left, number))) = waiting.pop() else {
            now = now.max(arrival(next).unwrap_or(now));
            waiting.push(Reverse((nanos(jobs[next].work_by_kind[kind]), next)));
            next += 1;
            continue;
        };
        match arrival(next).filter(|arrival| *arrival < now + left) {
            Some(arrival) => {
                let worked = arrival.saturating_sub(now);
                now += worked;
                waiting.push(Reverse((left - worked, number)));
                waiting.push(Reverse((nanos(jobs[next].work_by_kind[kind]), next)));
                next += 1;
            }
            None => {
                now += left;
                total += now - nanos(jobs[number].arrival);
            }
        }
    }
    total as f64 / 1e9
}

// ---- the greedy scheduler ------------------------------------------------------------------------------------------

/// A job that has arrived.
struct Progress {
    /// Stages that each stage still waits for.
    missing: Vec<u32>,
    /// Tasks of each stage that have not started, and that have not ended.
    unstarted: Vec<u32>,
    unended: Vec<u32>,
    stages_left: usize,
    work_left: f64,
}

/// Starts, whenever something fits into the pooled free capacity, a task of the job with the least work left, knowing all
/// run times. Returns the makespan and the mean completion time in seconds.
fn greedy(jobs: &[Job<'_>], capacity: &Totals) -> (f64, f64) {
    let mut pool = Pool {
        free: *capacity,
        ends: BinaryHeap::new(),
        progress: Vec::new(),
        order: BTreeSet::new(),
        dependents: Vec::new(),
        smallest: smallest_shape(jobs),
    };
    let (mut next, mut total, mut last) = (0, 0.0, 0.0_f64);
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
                let end = now.0 as f64 / 1e6;
                total += end - jobs[number].arrival;
                last = last.max(end);
            }
        }
        pool.start_what_fits(now, jobs);
    }
    let first = first_arrival(jobs);
    if jobs.is_empty() { (0.0, 0.0) } else { ((last - first).max(0.0), total / jobs.len() as f64) }
}

struct Pool {
    free: Totals,
    ends: BinaryHeap<Reverse<TaskEnd>>,
    progress: Vec<Progress>,
    /// Jobs with unstarted tasks, by the work that is left, in millionths of a second of the whole cluster.
    order: BTreeSet<(u64, usize)>,
    dependents: Vec<Vec<Vec<u32>>>,
    /// Of each kind, the least that any task wants: where this does not fit, nothing does.
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
            work_left: job.work,
        });
        self.order.insert((micros(job.work), number));
    }

    /// One task that ends now; returns its job.
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
            // With less work left it stands before this.
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
                progress.work_left -= job.work * seconds / total.max(f64::MIN_POSITIVE);
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

    #[test]
    fn the_shortest_job_first_is_what_the_mean_cannot_beat() {
        // Three jobs of 4 tasks of 10 s at once on 4 cores: 10, 20 and 30 s; one after the other is best.
        let same = workload(&[("jobs", "3"), ("tasks", "4"), ("run-time", "10s"), ("arrival", "at-once")]);
        let reference = Reference::of(&same.jobs, &cores(4));
        assert_eq!((reference.work_over_capacity_s, reference.critical_path_s), (30.0, 10.0));
        assert_eq!((reference.srpt_mean_jct_s, reference.greedy_mean_jct_s), (20.0, 20.0));
        assert_eq!(reference.greedy_makespan_s, 30.0);
    }

    #[test]
    fn a_wide_cluster_leaves_the_critical_path() {
        let one = workload(&[("jobs", "2"), ("tasks", "3"), ("run-time", "7s"), ("arrival", "every:100s")]);
        let reference = Reference::of(&one.jobs, &cores(100));
        assert_eq!(reference.srpt_mean_jct_s, 7.0);
        assert_eq!((reference.greedy_mean_jct_s, reference.greedy_makespan_s), (7.0, 107.0));
    }
}
