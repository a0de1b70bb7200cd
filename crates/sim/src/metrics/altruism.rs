//! What jobs gave to others and received in a run, and the effect on their completion times.

use super::results::{JobResult, Outcome};
use amalgam_workload::trace::Summary;
use serde::Serialize;
use std::collections::BTreeMap;
use std::iter;

/// Of a run in which jobs donate resources.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Altruism {
    /// By name.
    pub queues: Vec<QueueExchange>,
    /// Comparison with the completion times with only the jobs' own shares, as the jobs estimated them.
    pub against_alone: Against,
    /// Comparison with the same run without altruism, if there was such a run.
    pub against_selfish: Option<Against>,
}

/// Totals of what the jobs of a queue gave and received.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct QueueExchange {
    pub queue: String,
    pub jobs: u64,
    pub given_cpu_s: f64,
    pub given_memory_gib_s: f64,
    pub received_cpu_s: f64,
    pub received_memory_gib_s: f64,
}

/// Compares the completion times of jobs with other completion times of the same jobs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Against {
    pub jobs: u64,
    /// The jobs with a speedup above 1.01, and those with one below 0.99.
    pub earlier: u64,
    pub later: u64,
    /// The other completion times.
    pub jct_s: Summary,
    /// By job: the other completion time divided by its completion time.
    pub speedup: Summary,
}

impl Against {
    /// From pairs of completion time and other completion time.
    fn of(times: impl Iterator<Item = (f64, f64)>) -> Against {
        let times: Vec<(f64, f64)> = times.filter(|(own, _)| *own > 0.0).collect();
        let speedups = || times.iter().map(|(own, other)| other / own);
        Against {
            jobs: times.len() as u64,
            earlier: speedups().filter(|speedup| *speedup > 1.01).count() as u64,
            later: speedups().filter(|speedup| *speedup < 0.99).count() as u64,
            jct_s: Summary::of(times.iter().map(|(_, other)| (*other, 1))),
            speedup: Summary::of(speedups().map(|speedup| (speedup, 1))),
        }
    }
}

impl Altruism {
    /// `None` if no job reported an exchange.
    pub(super) fn of(jobs: &[JobResult]) -> Option<Altruism> {
        let mut queues: BTreeMap<&str, QueueExchange> = BTreeMap::new();
        for job in jobs.iter().filter(|job| job.given_cpu_s.is_some()) {
            let sum = queues.entry(&job.queue).or_default();
            sum.jobs += 1;
            sum.given_cpu_s += job.given_cpu_s.unwrap_or_default();
            sum.given_memory_gib_s += job.given_memory_gib_s.unwrap_or_default();
            sum.received_cpu_s += job.received_cpu_s.unwrap_or_default();
            sum.received_memory_gib_s += job.received_memory_gib_s.unwrap_or_default();
        }
        if queues.is_empty() {
            return None;
        }
        let named = queues.into_iter().map(|(queue, sum)| QueueExchange { queue: queue.to_owned(), ..sum });
        let queues = named.collect();
        Some(Altruism { queues, against_alone: against(jobs, |job| job.alone_jct_s), against_selfish: None })
    }
}

/// Compares the jobs that succeeded with their `other` completion times.
fn against(jobs: &[JobResult], other: impl Fn(&JobResult) -> Option<f64>) -> Against {
    let succeeded = jobs.iter().filter(|job| job.outcome == "succeeded");
    Against::of(succeeded.filter_map(|job| Some((job.jct_s?, other(job)?))))
}

impl Outcome {
    /// Compares the run with the same run without altruism, even if no job succeeded in both.
    pub fn compare_with_selfish(&mut self, selfish: &Outcome) {
        for (job, other) in self.jobs.iter_mut().zip(&selfish.jobs) {
            job.selfish_jct_s = other.jct_s.filter(|_| other.outcome == "succeeded");
        }
        let compared = Some(against(&self.jobs, |job| job.selfish_jct_s));
        let none = || Altruism { queues: Vec::new(), against_alone: Against::of(iter::empty()), against_selfish: None };
        self.results.altruism.get_or_insert_with(none).against_selfish = compared;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_below_one_percent_are_not_counted() {
        let Against { jobs, earlier, later, .. } =
            Against::of([(1.0, 1.02), (1.0, 1.005), (1.0, 0.995), (1.0, 0.5), (2.0, 3.0), (0.0, 1.0)].into_iter());
        assert_eq!((jobs, earlier, later), (5, 2, 1));
    }
}
