//! Backfilling as batch systems do it, computed without a cluster: jobs hold processors of one pool from start to end, nothing costs
//! time, and the order is that of submission.

use amalgam_sim::statistics::percentile;
use amalgam_workload::trace::{TraceJob, Workload};
use std::collections::BTreeMap;

/// Which waiting jobs are promised a start that no job submitted later may delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promised {
    /// The first one (Lifka 1995, EASY; Mualem and Feitelson 2001, section 2.2).
    First,
    /// Each (Mualem and Feitelson 2001, section 2.1). Promises are made anew at each event, in the order of submission.
    Each,
}

impl Promised {
    pub const ALL: [Promised; 2] = [Promised::First, Promised::Each];

    pub fn name(self) -> &'static str {
        match self {
            Promised::First => "easy",
            Promised::Each => "conservative",
        }
    }
}

/// Times are in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rigid {
    arrival: u64,
    processors: u64,
    run_time: u64,
    /// What the scheduler believes; [`FOREVER`] if it knows nothing.
    expected: u64,
}

/// Later than all ends, and far from an overflow.
const FOREVER: u64 = u64::MAX / 4;

/// The start of each job, in microseconds after the start of the trace; `None` if the workload has other jobs than single gangs, or one
/// that needs more processors than there are.
fn starts(workload: &Workload, processors: u64, promised: Promised) -> Option<Vec<u64>> {
    let jobs = workload.jobs.iter().map(|job| Rigid::of(job).filter(|job| job.processors <= processors));
    Some(run(&jobs.collect::<Option<Vec<_>>>()?, processors, promised))
}

impl Rigid {
    fn of(job: &TraceJob) -> Option<Rigid> {
        let ([stage], [times]) = (&job.spec.stages[..], &job.run_times[..]) else { return None };
        let whole = |milli: u64| milli.div_ceil(1_000);
        let cpus = whole(u64::from(stage.resources.basic.cpu_millis()) * stage.tasks.len() as u64);
        (stage.gang || stage.tasks.len() == 1).then(|| Rigid {
            arrival: job.arrival.as_micros(),
            processors: cpus,
            run_time: times.longest().as_micros(),
            expected: stage.expected.map_or(FOREVER, |expected| expected.as_micros()),
        })
    }
}

/// A job that runs, or is planned.
#[derive(Clone, Copy)]
struct Taken {
    end: u64,
    processors: u64,
}

fn run(jobs: &[Rigid], processors: u64, promised: Promised) -> Vec<u64> {
    let mut starts = vec![0; jobs.len()];
    // By true end and number: what the scheduler believes.
    let mut running: BTreeMap<(u64, usize), Taken> = BTreeMap::new();
    let mut waiting: Vec<usize> = Vec::new();
    let mut arrivals = (0..jobs.len()).collect::<Vec<_>>();
    arrivals.sort_by_key(|&number| (jobs[number].arrival, number));
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let next_arrival = arrivals.peek().map(|&number| jobs[number].arrival);
        let next_end = running.first_key_value().map(|((end, _), _)| *end);
        let Some(now) = [next_arrival, next_end].into_iter().flatten().min() else { return starts };
        while running.first_key_value().is_some_and(|((end, _), _)| *end <= now) {
            running.pop_first();
        }
        while let Some(number) = arrivals.next_if(|&number| jobs[number].arrival <= now) {
            waiting.push(number);
        }
        // A job that has run for longer than expected may end at any time.
        let taken = running.values().map(|taken| Taken { end: taken.end.max(now + 1), ..*taken }).collect();
        let mut plan = Plan::new(now, processors, taken);
        let mut promises = 0;
        waiting.retain(|&number| {
            let job = &jobs[number];
            let may_promise = promised == Promised::Each || promises == 0;
            let start = plan.earliest(job);
            if start == now {
                starts[number] = now;
                let believed = plan.take(now, job);
                running.insert((now + job.run_time, number), believed);
            } else if may_promise {
                plan.take(start, job);
                promises += 1;
            }
            start != now
        });
    }
}

/// The free processors over time, as the scheduler believes: from each time until the next.
struct Plan {
    free: BTreeMap<u64, u64>,
}

impl Plan {
    fn new(now: u64, processors: u64, taken: Vec<Taken>) -> Plan {
        let mut free = processors - taken.iter().map(|taken| taken.processors).sum::<u64>();
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        taken.iter().for_each(|taken| *ends.entry(taken.end).or_default() += taken.processors);
        let after = ends.into_iter().map(|(end, more)| {
            free += more;
            (end, free)
        });
        let first = processors - taken.iter().map(|taken| taken.processors).sum::<u64>();
        Plan { free: std::iter::once((now, first)).chain(after).collect() }
    }

    /// When the job finds its processors free for as long as it is expected to run.
    fn earliest(&self, job: &Rigid) -> u64 {
        let mut since = None;
        for (&at, &free) in &self.free {
            if since.is_some_and(|since: u64| at >= since + job.expected) {
                break;
            }
            since = if free >= job.processors { since.or(Some(at)) } else { None };
        }
        since.expect("in the end all processors are free")
    }

    /// Returns what is taken.
    fn take(&mut self, start: u64, job: &Rigid) -> Taken {
        let end = start + job.expected.max(1);
        for edge in [start, end] {
            let (_, &free) = self.free.range(..=edge).next_back().expect("the plan starts now");
            self.free.insert(edge, free);
        }
        self.free.range_mut(start..end).for_each(|(_, free)| *free -= job.processors);
        Taken { end, processors: job.processors }
    }
}

/// What a scheduler with this plan would have measured.
pub struct Ends {
    pub jct_s: Vec<f64>,
    pub wait_p50_s: f64,
    pub wait_p99_s: f64,
    /// Of all processors, until the last job ended.
    pub utilization: f64,
    pub makespan_s: f64,
}

impl Ends {
    /// `None` as for [`starts`].
    pub fn of(workload: &Workload, processors: u64, promised: Promised) -> Option<Ends> {
        let starts = starts(workload, processors, promised)?;
        let jobs: Vec<Rigid> = workload.jobs.iter().map(Rigid::of).collect::<Option<_>>()?;
        let seconds = |micros: u64| micros as f64 / 1e6;
        let mut waits: Vec<f64> =
            jobs.iter().zip(&starts).map(|(job, start)| seconds(start.saturating_sub(job.arrival))).collect();
        let jct_s = jobs.iter().zip(&waits).map(|(job, wait)| wait + seconds(job.run_time)).collect();
        let end = jobs.iter().zip(&starts).map(|(job, start)| start + job.run_time).max().unwrap_or(0);
        let first = jobs.iter().map(|job| job.arrival).min().unwrap_or(0);
        let work: f64 = jobs.iter().map(|job| job.processors as f64 * seconds(job.run_time)).sum();
        let makespan_s = seconds(end - first);
        waits.sort_by(f64::total_cmp);
        Some(Ends {
            jct_s,
            wait_p50_s: percentile(&waits, 50.0),
            wait_p99_s: percentile(&waits, 99.0),
            utilization: work / (processors as f64 * makespan_s.max(1e-6)),
            makespan_s,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rigid(arrival: u64, processors: u64, run_time: u64) -> Rigid {
        Rigid { arrival, processors, run_time, expected: run_time }
    }

    /// Ten processors: a job on six until 100, one that needs all, and small ones that may go before it.
    #[test]
    fn the_first_job_is_promised_a_start_and_with_conservative_backfilling_each_is() {
        let jobs = [
            rigid(0, 6, 100),
            rigid(1, 10, 50),
            // Ends before the second one may start.
            rigid(2, 4, 90),
            // Does not.
            rigid(3, 4, 200),
            rigid(4, 2, 10),
        ];
        for promised in Promised::ALL {
            assert_eq!(run(&jobs, 10, promised), [0, 100, 2, 150, 150], "{promised:?}");
        }
    }

    /// The third job waits for the second one; the last one delays it, which only conservative backfilling forbids.
    #[test]
    fn easy_backfilling_may_delay_all_jobs_but_the_first() {
        let jobs = [rigid(0, 8, 100), rigid(1, 8, 100), rigid(2, 10, 100), rigid(3, 2, 500)];
        assert_eq!(run(&jobs, 10, Promised::First), [0, 100, 503, 3]);
        assert_eq!(run(&jobs, 10, Promised::Each), [0, 100, 200, 300]);
    }

    #[test]
    fn a_job_that_ends_early_lets_others_start_early() {
        let jobs = [Rigid { expected: 1_000, ..rigid(0, 10, 100) }, rigid(1, 10, 10), rigid(2, 5, 10)];
        for promised in Promised::ALL {
            assert_eq!(run(&jobs, 10, promised), [0, 100, 110], "{promised:?}");
        }
    }

    #[test]
    fn a_job_without_an_expected_run_time_is_not_started_before_others() {
        let unknown = |arrival, processors| Rigid { expected: FOREVER, ..rigid(arrival, processors, 10) };
        let jobs = [unknown(0, 6), unknown(1, 10), unknown(2, 4)];
        for promised in Promised::ALL {
            assert_eq!(run(&jobs, 10, promised), [0, 10, 20], "{promised:?}");
        }
    }
}
