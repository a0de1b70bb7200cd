//! The numbers of a case, over its seeds.

use super::backfilling::{Ends, Promised};
use super::board::Variant;
use super::entry::{Asked, Entry};
use amalgam_sim::statistics::{mean, percentile};
use amalgam_sim::{Guarantees, JobResult, Outcome};
use amalgam_workload::trace::{TraceJob, Workload};

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
    /// By queue with a guarantee: the share of its windows with demand in which it was below that.
    below_of_queues: Vec<(String, f64)>,
}

/// Numbers of a run, or means of several runs. Times are in seconds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
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
    longest_delay_s: f64,
    /// Mean share of the CPUs in use until the last job ended.
    utilization: f64,
    /// Share of its windows with demand in which a queue was below its guarantee, of the queue where that is largest; `None` without
    /// such queues.
    below_guarantee: Option<f64>,
}

/// The results of a row in a variant under a preset.
pub struct Score {
    pub row: String,
    pub variant: Variant,
    pub preset: String,
    is_baseline: bool,
    /// Means over the seeds; `None` if no job succeeded in some run.
    measured: Option<Measured>,
    /// The least and the largest mean completion time of the seeds.
    mean_range_s: (f64, f64),
    /// Divided by the smallest of the row; `None` if a job did not succeed.
    over_best: Option<OverBest>,
    /// The mean completion time, divided by the smallest of the row in the variant `plain`.
    over_plain: Option<f64>,
    /// The mean bounded slowdown divided by that of EASY backfilling, and the longest delay by that of conservative backfilling; `None`
    /// unless all jobs are gangs.
    over_easy: Option<f64>,
    over_conservative: Option<f64>,
    /// Share of the jobs that are slower than under [`REFERENCE`], and the least speed.
    slower: f64,
    worst: f64,
    /// By queue with a guarantee: the share of its windows in which it was below that; means over the seeds.
    below_of_queues: Vec<(String, f64)>,
    /// Jobs that did not succeed, in all runs. They count as slower, and are in no completion time.
    pub unfinished: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
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
        let (bounded_slowdown, longest_delay_s) = slowdowns(&jct_s, workload);
        let queues = results.guarantees.iter().flat_map(|all| &all.queues);
        Run {
            jct_s,
            below_of_queues: queues.map(|queue| (queue.queue.clone(), queue.part_below())).collect(),
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
                bounded_slowdown,
                longest_delay_s,
                utilization: results.utilization.cpu,
                below_guarantee: results.guarantees.as_ref().map(Guarantees::part_below),
            },
        }
    }

    /// What a batch system would have measured, without any costs; `None` if the workload has other jobs than gangs.
    pub fn of_backfilling(workload: &Workload, processors: u32, promised: Promised) -> Option<Run> {
        let ends = Ends::of(workload, u64::from(processors), promised)?;
        let mut sorted = ends.jct_s.clone();
        sorted.sort_by(f64::total_cmp);
        let jct_s: Vec<Option<f64>> = ends.jct_s.iter().copied().map(Some).collect();
        let (bounded_slowdown, longest_delay_s) = slowdowns(&jct_s, workload);
        let measured = Measured {
            mean_s: mean(&sorted),
            p50_s: percentile(&sorted, 50.0),
            p95_s: percentile(&sorted, 95.0),
            p99_s: percentile(&sorted, 99.0),
            makespan_s: ends.makespan_s,
            kills: 0.0,
            lost_work: 0.0,
            allocation_p50_s: ends.wait_p50_s,
            allocation_p99_s: ends.wait_p99_s,
            bounded_slowdown,
            longest_delay_s,
            utilization: ends.utilization,
            below_guarantee: None,
        };
        Some(Run { jct_s, measured, below_of_queues: Vec::new() })
    }

    /// Number of jobs that did not succeed.
    fn unfinished(&self) -> usize {
        self.jct_s.iter().filter(|jct| jct.is_none()).count()
    }

    /// The speed of each job as a part of its speed in `reference`; of jobs that succeeded there, zero if they did not here.
    fn speeds(&self, reference: &Run) -> impl Iterator<Item = f64> {
        let both = self.jct_s.iter().zip(&reference.jct_s);
        both.filter_map(|(ours, theirs)| {
            let theirs = (*theirs)?;
            Some(ours.map_or(0.0, |ours| theirs / ours.max(1e-6)))
        })
    }
}

impl Measured {
    /// `None` if no job succeeded in one of them.
    fn mean(runs: &[Run]) -> Option<Measured> {
        if runs.iter().any(|run| run.jct_s.iter().all(Option::is_none)) {
            return None;
        }
        let of = |field: fn(&Measured) -> f64| mean(&runs.iter().map(|run| field(&run.measured)).collect::<Vec<_>>());
        let below: Option<Vec<f64>> = runs.iter().map(|run| run.measured.below_guarantee).collect();
        Some(Measured {
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
            longest_delay_s: of(|run| run.longest_delay_s),
            utilization: of(|run| run.utilization),
            below_guarantee: below.map(|below| mean(&below)),
        })
    }
}

/// The mean bounded slowdown and the longest delay of the jobs that ended.
fn slowdowns(jct_s: &[Option<f64>], workload: &Workload) -> (f64, f64) {
    let least_s = workload.jobs.iter().map(longest_chain_s);
    let ended: Vec<(f64, f64)> = jct_s.iter().zip(least_s).filter_map(|(jct, least)| Some(((*jct)?, least))).collect();
    let slowdowns = ended.iter().map(|(jct, least)| (jct / least.max(BOUND_S)).max(1.0)).collect::<Vec<_>>();
    (mean(&slowdowns), ended.iter().map(|(jct, least)| jct - least).fold(0.0, f64::max))
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
    /// Not a preset: it is compared with the best one, and is not it.
    pub is_baseline: bool,
    pub runs: Vec<Run>,
}

/// The cases are grouped by row and variant, and the variants of a row follow each other.
pub fn of_all(cases: &[CaseRuns<'_>]) -> Vec<Score> {
    let mut scores: Vec<Score> =
        cases.chunk_by(|one, next| (one.row, one.variant) == (next.row, next.variant)).flat_map(of_row).collect();
    for of_row in scores.chunk_by_mut(|one, next| one.row == next.row) {
        let is_plain = |score: &&Score| score.variant == Variant::Plain && score.unfinished == 0 && !score.is_baseline;
        let plain = of_row.iter().filter(is_plain);
        let best = plain.filter_map(|score| score.measured).map(|run| run.mean_s).reduce(f64::min);
        for score in of_row.iter_mut().filter(|score| score.unfinished == 0) {
            score.over_plain = best.zip(score.measured).map(|(best, run)| run.mean_s / best.max(1e-6));
        }
    }
    scores
}

/// The scores of the cases of one row in one variant.
fn of_row(cases: &[CaseRuns<'_>]) -> Vec<Score> {
    let reference = cases.iter().find(|case| case.preset == REFERENCE);
    let reference = &reference.expect("it is always run").runs;
    let means: Vec<Option<Measured>> = cases.iter().map(|case| Measured::mean(&case.runs)).collect();
    let unfinished = |runs: &[Run]| runs.iter().map(Run::unfinished).sum::<usize>();
    let whole = || {
        cases
            .iter()
            .zip(&means)
            .filter(|(case, _)| unfinished(&case.runs) == 0 && !case.is_baseline)
            .filter_map(|(_, mean)| *mean)
    };
    let best = |field: fn(&Measured) -> f64| whole().map(|run| field(&run)).fold(f64::INFINITY, f64::min).max(1e-6);
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
    let of_baseline = |promised: Promised, field: fn(&Measured) -> f64| {
        let found = cases.iter().zip(&means).find(|(case, _)| case.is_baseline && case.preset == promised.name());
        found.and_then(|(_, mean)| mean.as_ref().map(field))
    };
    let over_baseline = |promised, field: fn(&Measured) -> f64, measured: &Option<Measured>| {
        Some(measured.as_ref().map(field)? / of_baseline(promised, field)?.max(1e-6))
    };
    let score = |(case, measured): (&CaseRuns<'_>, &Option<Measured>)| {
        let runs = &case.runs;
        let speeds: Vec<f64> = runs.iter().zip(reference).flat_map(|(run, its)| run.speeds(its)).collect();
        let slower = speeds.iter().filter(|speed| **speed < SLOWER).count();
        let of_seeds = || runs.iter().map(|run| run.measured.mean_s);
        Score {
            row: case.row.to_owned(),
            variant: case.variant,
            preset: case.preset.to_owned(),
            is_baseline: case.is_baseline,
            measured: *measured,
            mean_range_s: (of_seeds().reduce(f64::min).unwrap_or(0.0), of_seeds().reduce(f64::max).unwrap_or(0.0)),
            over_best: measured.as_ref().filter(|_| unfinished(runs) == 0).map(over_best),
            over_plain: None,
            over_easy: over_baseline(Promised::First, |run| run.bounded_slowdown, measured),
            over_conservative: over_baseline(Promised::Each, |run| run.longest_delay_s, measured),
            slower: slower as f64 / speeds.len().max(1) as f64,
            worst: speeds.iter().copied().reduce(f64::min).unwrap_or(1.0),
            below_of_queues: below_of_queues(runs),
            unfinished: unfinished(runs) as u64,
        }
    };
    cases.iter().zip(&means).map(score).collect()
}

/// All runs have the same queues.
fn below_of_queues(runs: &[Run]) -> Vec<(String, f64)> {
    let of = |place: usize| mean(&runs.iter().map(|run| run.below_of_queues[place].1).collect::<Vec<_>>());
    let names = runs.first().into_iter().flat_map(|run| &run.below_of_queues).map(|(name, _)| name.clone());
    names.enumerate().map(|(place, name)| (name, of(place))).collect()
}

/// The preset of which something is asked.
pub const JUDGED: &str = "amalgam";

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
        let (whole, percent) = (|value: f64| format!("{value:.0}"), |share: f64| format!("{:.1} %", share * 100.0));
        let none = || "-".to_owned();
        let mut cells = vec![self.title(), self.preset.clone()];
        let over_best = self.over_best.map(|over| [over.mean, over.p50, over.p95, over.p99, over.makespan].map(times));
        cells.extend(over_best.unwrap_or_else(|| std::array::from_fn(|_| none())));
        cells.push(self.over_plain.map_or_else(none, times));
        cells.push(format!("{:.0}-{:.0}", self.mean_range_s.0, self.mean_range_s.1));
        cells.extend([percent(self.slower), times(self.worst)]);
        let measured = self.measured.map(|run| {
            let allocation = [run.allocation_p50_s, run.allocation_p99_s].map(seconds);
            let counts = [whole(run.kills), percent(run.lost_work), percent(run.utilization)];
            let below = run.below_guarantee.map_or_else(none, percent);
            [counts.as_slice(), &allocation, &[times(run.bounded_slowdown), whole(run.longest_delay_s), below]].concat()
        });
        cells.extend(measured.unwrap_or_else(|| vec![none(); 8]));
        cells
    }

    /// The numbers, with what is asked of them.
    pub fn entries(&self) -> Vec<Entry> {
        let is_judged = self.preset == JUDGED;
        let plain = self.variant == Variant::Plain;
        let entry = |metric: &str, value: Option<f64>, of_best: Option<f64>, asked: Option<Asked>| {
            let (workload, preset, metric) = (self.row.clone(), self.preset.clone(), metric.to_owned());
            Entry::new((workload, self.variant, preset), metric, (value, of_best), asked.filter(|_| is_judged))
        };
        let run = |field: fn(&Measured) -> f64| self.measured.as_ref().map(field);
        let best = |field: fn(&OverBest) -> f64| self.over_best.as_ref().map(field);
        let asked = |most: f64| Some(Asked::Most(most)).filter(|_| plain);
        let least = |least: f64| Some(Asked::Least(least)).filter(|_| plain);
        let mut entries = vec![
            entry("jct_mean_s", run(|run| run.mean_s), best(|over| over.mean), asked(1.05)),
            entry("jct_mean_low_s", Some(self.mean_range_s.0), None, None),
            entry("jct_mean_high_s", Some(self.mean_range_s.1), None, None),
            entry("jct_p50_s", run(|run| run.p50_s), best(|over| over.p50), None),
            entry("jct_p95_s", run(|run| run.p95_s), best(|over| over.p95), asked(1.10)),
            entry("jct_p99_s", run(|run| run.p99_s), best(|over| over.p99), asked(1.10)),
            entry("makespan_s", run(|run| run.makespan_s), best(|over| over.makespan), asked(1.03)),
            entry("slower_than_drf", Some(self.slower), None, asked(0.05)),
            entry("worst_speed", Some(self.worst), None, least(0.67)),
            entry("preempted", run(|run| run.kills), None, None),
            entry("lost_work", run(|run| run.lost_work), None, None),
            entry("utilization", run(|run| run.utilization), None, None),
            entry("allocation_p50_s", run(|run| run.allocation_p50_s), None, None),
            entry("allocation_p99_s", run(|run| run.allocation_p99_s), None, None),
            entry("bounded_slowdown", run(|run| run.bounded_slowdown), None, None),
            entry("longest_delay_s", run(|run| run.longest_delay_s), None, None),
            entry("unfinished", Some(self.unfinished as f64), None, None),
        ];
        if self.over_easy.is_some() {
            entries.push(entry("bounded_slowdown_of_easy", self.over_easy, None, asked(1.0)));
            entries.push(entry("longest_delay_of_conservative", self.over_conservative, None, asked(1.2)));
        }
        if let Some(below) = self.measured.and_then(|run| run.below_guarantee) {
            entries.push(entry("windows_below_guarantee", Some(below), None, asked(0.01)));
            let of_queues = self.below_of_queues.iter();
            entries.extend(
                of_queues.map(|(queue, below)| {
                    entry(&format!("windows_below_guarantee of {queue}"), Some(*below), None, None)
                }),
            );
        }
        if !plain {
            let is_stated = matches!(self.variant, Variant::Unknown | Variant::Wrong);
            entries.push(entry(
                "jct_mean_of_best_plain",
                self.over_plain,
                None,
                Some(Asked::Most(1.25)).filter(|_| is_stated),
            ));
        }
        entries
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
        Run {
            jct_s: jct_s.to_vec(),
            measured: Measured { mean_s: mean(&ended), ..Measured::default() },
            below_of_queues: Vec::new(),
        }
    }

    #[test]
    fn a_preset_is_compared_with_the_best_of_its_row_and_each_job_with_its_end_under_fair_shares() {
        let drf = run([Some(10.0), Some(10.0), Some(10.0), Some(10.0)]);
        let other = run([Some(5.0), Some(10.4), Some(20.0), Some(12.6)]);
        let partial = run([Some(5.0), Some(1.0), Some(1.0), None]);
        let elsewhere = run([Some(1.0); 4]);
        let case =
            |row, preset, run| CaseRuns { row, variant: Variant::Plain, preset, is_baseline: false, runs: vec![run] };
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
        let of_partial = (mean(partial), partial.unfinished, partial.slower, partial.worst);
        assert_eq!(of_partial, (None, 1, 0.25, 0.0), "it is not the best, and a job that did not end has no speed");
        assert_eq!(mean(elsewhere), Some(1.0), "rows are not compared");
    }

    #[test]
    fn a_preset_under_which_nothing_ends_has_no_times_and_all_its_jobs_are_slower() {
        let case =
            |preset, run| CaseRuns { row: "one", variant: Variant::Plain, preset, is_baseline: false, runs: vec![run] };
        let scores = of_all(&[case("drf", run([Some(10.0); 4])), case("amalgam", run([None; 4]))]);
        let none = &scores[1];
        assert!(none.measured.is_none() && none.over_best.is_none() && none.over_plain.is_none());
        assert_eq!((none.slower, none.worst, none.unfinished), (1.0, 0.0, 4));
        assert_eq!(none.cells()[2..8], ["-"; 6]);
        let mean = none.entries().into_iter().find(|entry| entry.metric == "jct_mean_s").expect("the first one");
        assert_eq!((mean.value, mean.met), (None, Some(false)));
        assert_eq!(mean.miss().as_deref(), Some("one, jct_mean_s: nothing, asked 1.05"));
    }

    #[test]
    fn variants_are_compared_with_the_best_plain_one_of_their_row() {
        let case = |variant, preset, jct_s| CaseRuns {
            row: "one",
            variant,
            preset,
            is_baseline: false,
            runs: vec![run([Some(jct_s); 4])],
        };
        let scores = of_all(&[
            case(Variant::Plain, "drf", 10.0),
            case(Variant::Plain, "amalgam", 8.0),
            case(Variant::Unknown, "drf", 10.0),
            case(Variant::Unknown, "amalgam", 12.0),
        ]);
        assert_eq!(scores.iter().map(|score| score.over_plain).collect::<Vec<_>>(), [1.25, 1.0, 1.25, 1.5].map(Some));
        let misses: Vec<String> = scores.iter().flat_map(Score::entries).filter_map(|entry| entry.miss()).collect();
        assert_eq!(misses, ["one, jct_mean_of_best_plain: 1.50, asked 1.25"]);
    }

    #[test]
    fn backfilling_is_compared_with_presets_and_is_never_the_best() {
        let case = |preset, is_baseline, slowdown, delay_s| {
            let measured = Measured {
                mean_s: slowdown,
                bounded_slowdown: slowdown,
                longest_delay_s: delay_s,
                ..Measured::default()
            };
            let runs = vec![Run { jct_s: vec![Some(1.0)], measured, below_of_queues: Vec::new() }];
            CaseRuns { row: "one", variant: Variant::Plain, preset, is_baseline, runs }
        };
        let scores = of_all(&[
            case("drf", false, 10.0, 10.0),
            case("amalgam", false, 3.0, 13.0),
            case("easy", true, 2.0, 20.0),
            case("conservative", true, 4.0, 10.0),
        ]);
        assert_eq!(scores[1].over_best.map(|over| over.mean), Some(1.0));
        let misses: Vec<String> = scores.iter().flat_map(Score::entries).filter_map(|entry| entry.miss()).collect();
        let asked =
            ["one, bounded_slowdown_of_easy: 1.50, asked 1", "one, longest_delay_of_conservative: 1.30, asked 1.2"];
        assert_eq!(misses, asked);
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
