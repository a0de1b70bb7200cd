//! The numbers of a case, over its seeds.

use super::board::Variant;
use amalgam_sim::statistics::mean;
use amalgam_sim::{JobResult, Outcome};
use amalgam_workload::trace::{TraceJob, Workload};
use serde::Serialize;

/// The preset under which jobs get their fair shares. Other presets are compared with it job by job.
pub const REFERENCE: &str = "drf";

/// A job with a lower speed, as a part of that under [`REFERENCE`], is slower.
const SLOWER: f64 = 0.95;

/// The slowdown of shorter jobs would say little.
const BOUND_S: f64 = 10.0;

/// What is kept of a run.
pub struct Run {
    /// By the number of the job in the workload; `None` if it did not succeed.
    jct_s: Vec<Option<f64>>,
    measured: Measured,
}

/// Numbers of a run, or means of several runs. Times are in seconds.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
struct Measured {
    mean_s: f64,
    p50_s: f64,
    p95_s: f64,
    p99_s: f64,
    makespan_s: f64,
    /// Attempts that were preempted.
    kills: f64,
    /// Share of the attempts' CPU time that no task needed in the end.
    lost_work: f64,
    /// From when a task was ready to its first start.
    allocation_p50_s: f64,
    allocation_p99_s: f64,
    /// Mean of the completion times divided by the shortest possible ones, of which those below [`BOUND_S`] count as that; at least 1
    /// for each job (Feitelson et al. 1997: bounded slowdown).
    bounded_slowdown: f64,
    /// The longest completion time less the shortest possible one.
    longest_wait_s: f64,
}

/// The results of a row in a variant under a preset.
#[derive(Serialize)]
pub struct Score {
    pub row: String,
    pub variant: Variant,
    pub preset: String,
    /// Means over the seeds.
    #[serde(flatten)]
    measured: Measured,
    /// The least and the largest mean completion time of the seeds.
    mean_low_s: f64,
    mean_high_s: f64,
    /// Divided by the smallest of the row; `None` if a job did not succeed.
    over_best: Option<OverBest>,
    /// Share of the jobs that are slower than under [`REFERENCE`], and the least speed.
    slower: f64,
    worst: f64,
    /// Jobs that did not succeed, in all runs. They are in no other number.
    pub unfinished: u64,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct OverBest {
    mean: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    makespan: f64,
}

impl Run {
    /// `workload`: the jobs that ran.
    pub fn of(outcome: &Outcome, workload: &Workload) -> Run {
        let results = &outcome.results;
        let of_job = |job: &JobResult| job.jct_s.filter(|_| job.outcome == "succeeded");
        let jct_s: Vec<Option<f64>> = outcome.jobs.iter().map(of_job).collect();
        let least_s = workload.jobs.iter().map(longest_chain_s);
        let ended: Vec<(f64, f64)> =
            jct_s.iter().zip(least_s).filter_map(|(jct, least)| Some(((*jct)?, least))).collect();
        let slowdowns = ended.iter().map(|(jct, least)| (jct / least.max(BOUND_S)).max(1.0)).collect::<Vec<_>>();
        Run {
            jct_s,
            measured: Measured {
                mean_s: results.jct_s.mean,
                p50_s: results.jct_s.p50,
                p95_s: results.jct_s.p95,
                p99_s: results.jct_s.p99,
                makespan_s: results.makespan_s,
                kills: results.counters.preempted as f64,
                lost_work: results.lost_work,
                allocation_p50_s: results.allocation_s.p50,
                allocation_p99_s: results.allocation_s.p99,
                bounded_slowdown: mean(&slowdowns),
                longest_wait_s: ended.iter().map(|(jct, least)| jct - least).fold(0.0, f64::max),
            },
        }
    }

    /// Number of jobs that did not succeed.
    fn unfinished(&self) -> usize {
        self.jct_s.iter().filter(|jct| jct.is_none()).count()
    }

    /// The speed of each job as a part of its speed in `reference`; of jobs that succeeded in both.
    fn speeds(&self, reference: &Run) -> impl Iterator<Item = f64> {
        let both = self.jct_s.iter().zip(&reference.jct_s);
        both.filter_map(|(ours, theirs)| Some((*theirs)? / (*ours)?.max(1e-6)))
    }
}

impl Measured {
    fn mean(runs: &[Run]) -> Measured {
        let of = |field: fn(&Measured) -> f64| mean(&runs.iter().map(|run| field(&run.measured)).collect::<Vec<_>>());
        Measured {
            mean_s: of(|run| run.mean_s),
            p50_s: of(|run| run.p50_s),
            p95_s: of(|run| run.p95_s),
            p99_s: of(|run| run.p99_s),
            makespan_s: of(|run| run.makespan_s),
            kills: of(|run| run.kills),
            lost_work: of(|run| run.lost_work),
            allocation_p50_s: of(|run| run.allocation_p50_s),
            allocation_p99_s: of(|run| run.allocation_p99_s),
            bounded_slowdown: of(|run| run.bounded_slowdown),
            longest_wait_s: of(|run| run.longest_wait_s),
        }
    }
}

/// How long the job takes with unlimited room, in seconds: the longest chain of stages that wait for each other.
fn longest_chain_s(job: &TraceJob) -> f64 {
    let mut ends_s: Vec<f64> = Vec::with_capacity(job.run_times.len());
    for (stage, times) in job.spec.stages.iter().zip(job.run_times.iter()) {
        let starts_s = stage.after.iter().map(|before| ends_s[*before as usize]).fold(0.0, f64::max);
        ends_s.push(starts_s + times.longest().as_secs_f64());
    }
    ends_s.into_iter().fold(0.0, f64::max)
}

/// The runs of a row in a variant under a preset, in the order of the seeds.
pub struct CaseRuns<'a> {
    pub row: &'a str,
    pub variant: Variant,
    pub preset: &'a str,
    pub runs: Vec<Run>,
}

pub fn of_all(cases: &[CaseRuns<'_>]) -> Vec<Score> {
    cases.chunk_by(|one, next| (one.row, one.variant) == (next.row, next.variant)).flat_map(of_row).collect()
}

/// The scores of the cases of one row in one variant.
fn of_row(cases: &[CaseRuns<'_>]) -> Vec<Score> {
    let reference = cases.iter().find(|case| case.preset == REFERENCE);
    let reference = &reference.expect("it is always run").runs;
    let means: Vec<Measured> = cases.iter().map(|case| Measured::mean(&case.runs)).collect();
    let unfinished = |runs: &[Run]| runs.iter().map(Run::unfinished).sum::<usize>();
    let whole = || cases.iter().zip(&means).filter(|(case, _)| unfinished(&case.runs) == 0).map(|(_, mean)| mean);
    let best = |field: fn(&Measured) -> f64| whole().map(field).fold(f64::INFINITY, f64::min).max(1e-6);
    let over_best = |measured: &Measured| {
        let part = |field: fn(&Measured) -> f64| field(measured) / best(field);
        OverBest {
            mean: part(|run| run.mean_s),
            p50: part(|run| run.p50_s),
            p95: part(|run| run.p95_s),
            p99: part(|run| run.p99_s),
            makespan: part(|run| run.makespan_s),
        }
    };
    let score = |(case, measured): (&CaseRuns<'_>, &Measured)| {
        let runs = &case.runs;
        let speeds: Vec<f64> = runs.iter().zip(reference).flat_map(|(run, its)| run.speeds(its)).collect();
        let slower = speeds.iter().filter(|speed| **speed < SLOWER).count();
        let of_seeds = || runs.iter().map(|run| run.measured.mean_s);
        Score {
            row: case.row.to_owned(),
            variant: case.variant,
            preset: case.preset.to_owned(),
            measured: *measured,
            mean_low_s: of_seeds().reduce(f64::min).unwrap_or(0.0),
            mean_high_s: of_seeds().reduce(f64::max).unwrap_or(0.0),
            over_best: (unfinished(runs) == 0).then(|| over_best(measured)),
            slower: slower as f64 / speeds.len().max(1) as f64,
            worst: speeds.iter().copied().reduce(f64::min).unwrap_or(1.0),
            unfinished: unfinished(runs) as u64,
        }
    };
    cases.iter().zip(&means).map(score).collect()
}

impl Score {
    /// The row, and the variant unless it is the plain one.
    pub fn title(&self) -> String {
        match self.variant {
            Variant::Plain => self.row.clone(),
            Variant::Unknown => format!("{}, unknown", self.row),
            Variant::Wrong => format!("{}, wrong", self.row),
            Variant::Slow => format!("{}, slow nodes", self.row),
        }
    }

    /// As text for people.
    pub fn cells(&self) -> Vec<String> {
        let (times, seconds) = (|value: f64| format!("{value:.2}"), |value: f64| format!("{value:.3}"));
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let mut cells = vec![self.title(), self.preset.clone()];
        let over_best = self.over_best.map(|over| [over.mean, over.p50, over.p95, over.p99, over.makespan].map(times));
        cells.extend(over_best.unwrap_or_else(|| std::array::from_fn(|_| "-".to_owned())));
        cells.extend([percent(self.slower), times(self.worst), format!("{:.0}", self.measured.kills)]);
        cells.push(percent(self.measured.lost_work));
        cells.extend([self.measured.allocation_p50_s, self.measured.allocation_p99_s].map(seconds));
        cells.extend([times(self.measured.bounded_slowdown), format!("{:.0}", self.measured.longest_wait_s)]);
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Duration, JobSpec, StageSpec};
    use amalgam_workload::trace::RunTimes;
    use std::sync::Arc;

    fn run(jct_s: [Option<f64>; 4]) -> Run {
        let ended: Vec<f64> = jct_s.iter().copied().flatten().collect();
        Run { jct_s: jct_s.to_vec(), measured: Measured { mean_s: mean(&ended), ..Measured::default() } }
    }

    #[test]
    fn a_preset_is_compared_with_the_best_of_its_row_and_each_job_with_its_end_under_fair_shares() {
        let drf = run([Some(10.0), Some(10.0), Some(10.0), Some(10.0)]);
        let other = run([Some(5.0), Some(10.4), Some(20.0), Some(12.6)]);
        let partial = run([Some(5.0), Some(1.0), Some(1.0), None]);
        let elsewhere = run([Some(1.0); 4]);
        let case = |row, preset, run| CaseRuns { row, variant: Variant::Plain, preset, runs: vec![run] };
        let scores = of_all(&[
            case("one", "drf", drf),
            case("one", "other", other),
            case("one", "partial", partial),
            case("two", "drf", elsewhere),
        ]);
        let [drf, other, partial, elsewhere] = &scores[..] else { panic!("four cases") };
        let mean = |score: &Score| score.over_best.map(|over| over.mean);
        assert_eq!((mean(drf), drf.slower, drf.worst), (Some(1.0), 0.0, 1.0));
        assert_eq!((mean(other), other.slower, other.worst), (Some(1.2), 0.5, 0.5));
        assert_eq!((mean(partial), partial.unfinished, partial.worst), (None, 1, 2.0), "it is not the best");
        assert_eq!(mean(elsewhere), Some(1.0), "rows are not compared");
    }

    #[test]
    fn the_shortest_possible_time_of_a_job_is_its_longest_chain_of_stages() {
        let stage = |after: &[u32]| StageSpec { after: after.to_vec(), ..StageSpec::default() };
        let stages = vec![stage(&[]), stage(&[0]), stage(&[0]), stage(&[1, 2])];
        let seconds = |times: &[u64]| RunTimes::Each(times.iter().copied().map(Duration::from_secs).collect());
        let run_times = [seconds(&[1, 2]), seconds(&[10]), seconds(&[3, 4, 3]), RunTimes::Same(Duration::from_secs(5))];
        let spec = Arc::new(JobSpec { stages, ..JobSpec::default() });
        let job = TraceJob { arrival: Duration::from_secs(100), spec, run_times: run_times.into() };
        assert_eq!(longest_chain_s(&job), 17.0, "2, 10 and 5");
    }
}
