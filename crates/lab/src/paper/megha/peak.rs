//! The part of a cluster that jobs would use if no task ever waited.

use amalgam_core::vocabulary::Resources;
use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_workload::trace::TraceJob;

/// The time at which each task would run.
pub struct Plan {
    tasks: Vec<Planned>,
}

/// Times in microseconds.
struct Planned {
    /// The arrival of its job.
    arrival: f64,
    /// Start after the arrival.
    starts: u64,
    ends: u64,
    /// For each kind of resource, the part of a node in millionths.
    part: [i64; WIDTH],
}

impl Plan {
    /// A plan for nodes of this size.
    pub fn of(jobs: &[TraceJob], node: &Resources) -> Plan {
        let mut tasks = Vec::new();
        jobs.iter().for_each(|job| push_job(&mut tasks, job, node));
        Plan { tasks }
    }

    /// The peak number of nodes in use, for the kind of resource that is used most, if all gaps between arrivals are scaled.
    pub fn peak(&self, scale: f64) -> f64 {
        let mut moments: Vec<(u64, bool, usize)> = Vec::with_capacity(self.tasks.len() * 2);
        for (index, task) in self.tasks.iter().enumerate() {
            let arrival = (task.arrival * scale).round() as u64;
            moments.push((arrival + task.starts, true, index));
            moments.push((arrival + task.ends, false, index));
        }
        // Ends come before starts at the same time, since they free resources.
        moments.sort_unstable();
        let mut used = [0_i64; WIDTH];
        let mut most = 0;
        for (_, starts, index) in moments {
            for (used, part) in used.iter_mut().zip(self.tasks[index].part) {
                *used += if starts { part } else { -part };
                most = most.max(*used);
            }
        }
        most as f64 / 1e6
    }

    /// The least scale of gaps with at most this number of nodes in use at any time, to within a thousandth; `None` if jobs are
    /// too wide.
    pub fn least_gap(&self, most: f64) -> Option<f64> {
        const DOUBLINGS: u32 = 60;
        const HALVINGS: u32 = 10;
        let is_enough = |scale: &f64| self.peak(*scale) <= most;
        let mut enough = (0..DOUBLINGS).map(|power| 1e-6 * 2.0_f64.powi(power as i32)).find(is_enough)?;
        let mut too_little = enough / 2.0;
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(too_little, enough);
            match is_enough(&middle) {
                true => enough = middle,
                false => too_little = middle,
            }
        }
        Some(enough)
    }
}

fn push_job(tasks: &mut Vec<Planned>, job: &TraceJob, node: &Resources) {
    let mut ends: Vec<u64> = Vec::with_capacity(job.spec.stages.len());
    for (stage, times) in job.spec.stages.iter().zip(job.run_times.iter()) {
        let starts = stage.after.iter().map(|before| ends[*before as usize]).max().unwrap_or(0);
        let mut part = [0; WIDTH];
        for (kind, part) in part.iter_mut().enumerate().filter(|(kind, _)| node.0[*kind] > 0) {
            *part = i64::from(stage.resources.basic.0[kind]) * 1_000_000 / i64::from(node.0[kind]);
        }
        ends.push(starts + times.longest().as_micros());
        let arrival = job.arrival.as_micros() as f64;
        tasks.extend((0..stage.tasks.len()).map(|task| Planned {
            arrival,
            starts,
            ends: starts + times.of(task).as_micros(),
            part,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Duration, JobSpec, ResourceSpec, StageSpec, TaskSet};
    use amalgam_workload::trace::RunTimes;
    use std::sync::Arc;

    const NODE: Resources = Resources::new(4_000, 1_000);

    /// Half a node's CPUs and a tenth of its memory for `tasks` tasks, then a node's whole memory for one task; a second each.
    fn job(arrival_s: u64, tasks: u32) -> TraceJob {
        let stage = |tasks, after: &[u32], basic| StageSpec {
            tasks: TaskSet::Count(tasks),
            after: after.to_vec(),
            resources: ResourceSpec { basic, custom: Vec::new() },
            ..StageSpec::default()
        };
        let stages = vec![stage(tasks, &[], Resources::new(2_000, 100)), stage(1, &[0], Resources::new(1_000, 1_000))];
        let second = RunTimes::Same(Duration::from_secs(1));
        TraceJob {
            arrival: Duration::from_secs(arrival_s),
            spec: Arc::new(JobSpec { stages, ..JobSpec::default() }),
            run_times: [second.clone(), second].into(),
        }
    }

    #[test]
    fn the_peak_counts_the_scarcest_resource_and_stages_run_in_sequence() {
        assert_eq!(Plan::of(&[job(0, 6)], &NODE).peak(1.0), 3.0);
        assert_eq!(Plan::of(&[job(0, 1)], &NODE).peak(1.0), 1.0, "the memory of the second stage");
        assert_eq!(Plan::of(&[job(0, 6), job(1, 6)], &NODE).peak(1.0), 3.25, "the second beside the first of another");
        assert_eq!(Plan::of(&[job(0, 6), job(2, 6)], &NODE).peak(1.0), 3.0, "what ends makes room");
        assert_eq!(Plan::of(&[job(0, 6), job(2, 6)], &NODE).peak(0.0), 6.0);
    }

    #[test]
    fn gaps_are_as_short_as_the_limit_allows() {
        let plan = Plan::of(&[job(0, 6), job(1, 6)], &NODE);
        for (most, gap) in [(6.0, 0.0), (3.25, 1.0), (3.0, 2.0)] {
            let least = plan.least_gap(most).unwrap();
            assert!((least - gap).abs() <= 0.001 * gap + 1e-5, "{most}: {least}");
            assert!(plan.peak(least) <= most);
        }
        assert_eq!(plan.least_gap(2.9), None, "one job is too wide");
    }
}
