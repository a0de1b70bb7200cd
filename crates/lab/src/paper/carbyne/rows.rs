//! The numbers of a figure: each with its name and one value for each seed.

use super::super::figure::ratio;
use super::experiment::{CaseRuns, Run};
use amalgam_sim::statistics::{mean, percentile, sorted};

pub type Pair = (String, Vec<f64>);

fn of_runs(name: impl Into<String>, of: &CaseRuns, number: impl Fn(&Run) -> f64) -> Pair {
    (name.into(), of.runs.iter().map(number).collect())
}

/// Compares runs of the same seed.
fn of_pairs(name: String, of: &CaseRuns, base: &CaseRuns, number: impl Fn(&Run, &Run) -> f64) -> Pair {
    (name, of.runs.iter().zip(&base.runs).map(|(run, base)| number(run, base)).collect())
}

/// Absolute values.
pub fn levels(of: &CaseRuns) -> Vec<Pair> {
    vec![
        of_runs("jain", of, |run| mean(&run.jain)),
        of_runs("jain_min", of, |run| run.jain.iter().copied().fold(1.0, f64::min)),
        of_runs("jain_max", of, |run| run.jain.iter().copied().fold(0.0, f64::max)),
        of_runs("mean_jct_s", of, Run::mean_jct),
        of_runs("p50_jct_s", of, |run| run.jct_percentile(50)),
        of_runs("p95_jct_s", of, |run| run.jct_percentile(95)),
        of_runs("makespan_s", of, |run| run.makespan_s),
        of_runs("cpu_utilization", of, |run| run.cpu),
    ]
}

/// Compared with the fairest scheduler, the one with the shortest jobs and the one with the shortest makespan.
pub fn against_the_best(of: &CaseRuns, cases: &[&CaseRuns]) -> Vec<Pair> {
    type Compared = fn(&Run, &Run) -> f64;
    let compared: [(&str, &str, Compared); 3] = [
        ("jain_minus", "DRF", |run, base| mean(&run.jain) - mean(&base.jain)),
        ("mean_jct_vs", "SJF", |run, base| ratio(run.mean_jct(), base.mean_jct())),
        ("makespan_vs", "Tetris", |run, base| ratio(run.makespan_s, base.makespan_s)),
    ];
    let row = |(metric, scheduler, number): (&str, &str, Compared)| {
        let base = cases.iter().find(|other| other.scheduler == scheduler && other.scheduler != of.scheduler)?;
        Some(of_pairs(format!("{metric}_{scheduler}"), of, base, number))
    };
    compared.into_iter().filter_map(row).collect()
}

/// Factors of improvement: completion times under the other scheduler divided by those under this one, for means and
/// percentiles, and percentiles of the factors of the jobs.
pub fn improvement(of: &CaseRuns, base: &CaseRuns) -> Vec<Pair> {
    let name = |what: &str| format!("over {}, {what}", base.scheduler);
    let mut found = vec![of_pairs(name("of means"), of, base, |run, base| ratio(base.mean_jct(), run.mean_jct()))];
    for percent in [50, 75, 95] {
        found.push(of_pairs(name(&format!("of p{percent}s")), of, base, |run, base| {
            ratio(base.jct_percentile(percent), run.jct_percentile(percent))
        }));
    }
    found.push(of_pairs(name("mean of jobs"), of, base, |run, base| mean(&factors(run, base))));
    for percent in [5, 25, 50, 75, 95] {
        found.push(of_pairs(name(&format!("p{percent} of jobs")), of, base, |run, base| {
            percentile(&factors(run, base), percent)
        }));
    }
    found.push(of_pairs(name("of makespans"), of, base, |run, base| ratio(base.makespan_s, run.makespan_s)));
    found.push(of_pairs(format!("jain minus {}", base.scheduler), of, base, |run, base| {
        mean(&run.jain) - mean(&base.jain)
    }));
    found
}

/// The parts of the jobs that gain and lose.
pub fn job_by_job(of: &CaseRuns, base: &CaseRuns) -> Vec<Pair> {
    /// A difference within about the delay of a message is neither a gain nor a loss.
    const SAME: f64 = 0.01;
    let name = &base.scheduler;
    let share = |what: String, is_it: fn(f64) -> bool| {
        of_pairs(what, of, base, move |run, base| {
            let factors = factors(run, base);
            factors.iter().filter(|factor| is_it(**factor)).count() as f64 / factors.len().max(1) as f64
        })
    };
    vec![
        share(format!("share of jobs faster than {name}"), |factor| factor > 1.0 + SAME),
        share(format!("share of jobs slower than {name}"), |factor| factor < 1.0 - SAME),
        share(format!("share of jobs below 0.8 against {name}"), |factor| factor < 0.8),
        of_pairs(format!("least of jobs over {name}"), of, base, |run, base| percentile(&factors(run, base), 0)),
        of_pairs(format!("most of jobs over {name}"), of, base, |run, base| percentile(&factors(run, base), 100)),
    ]
}

/// The course of the job with this number.
pub fn course(of: &CaseRuns, job: u32) -> Vec<Pair> {
    vec![
        of_runs("jct_s", of, |run| run.jct_s.get(job as usize).copied().flatten().unwrap_or_default()),
        of_runs("most_running", of, |run| run.running.iter().map(|(_, tasks)| *tasks).fold(0.0, f64::max)),
        of_runs("mean_running", of, mean_running),
        of_runs("running_in_first_third", of, |run| running_in(run, 0.0, 1.0 / 3.0)),
        of_runs("running_in_last_third", of, |run| running_in(run, 2.0 / 3.0, 1.0)),
    ]
}

fn mean_running(run: &Run) -> f64 {
    running_in(run, 0.0, 1.0)
}

/// The mean between two parts of the time from its first task to its last.
fn running_in(run: &Run, from: f64, to: f64) -> f64 {
    let (Some((start, _)), Some((end, _))) = (run.running.first(), run.running.last()) else { return 0.0 };
    let at = |part: f64| start + (end - start) * part;
    let (from, to) = (at(from), at(to));
    let spans = run.running.windows(2).map(|pair| {
        let length = pair[1].0.min(to) - pair[0].0.max(from);
        length.max(0.0) * pair[0].1
    });
    ratio(spans.sum(), to - from)
}

/// The end of each job of an example.
pub fn ends(of: &CaseRuns) -> Vec<Pair> {
    let mut found = vec![of_runs("mean_jct_s", of, Run::mean_jct)];
    let jobs = of.runs.first().map_or(0, |run| run.jct_s.len());
    found.extend(
        (0..jobs).map(|job| of_runs(format!("jct_s of J{}", job + 1), of, |run| run.jct_s[job].unwrap_or_default())),
    );
    found
}

/// A job that did not end is missing in every number.
pub fn unfinished(cases: &[CaseRuns]) -> Vec<String> {
    let missing = |of: &CaseRuns| {
        let count: usize = of.runs.iter().map(|run| run.jct_s.iter().filter(|jct| jct.is_none()).count()).sum();
        (count > 0).then(|| format!("{}: {count} jobs did not end", of.name))
    };
    cases.iter().filter_map(missing).collect()
}

/// Factors of the jobs that ended in both runs, sorted.
pub fn factors(run: &Run, base: &Run) -> Vec<f64> {
    let pairs = run.jct_s.iter().zip(&base.jct_s);
    sorted(pairs.filter_map(|(ours, base)| Some(ratio((*base)?, (*ours)?))))
}

impl Run {
    fn mean_jct(&self) -> f64 {
        mean(&self.jct_s.iter().copied().flatten().collect::<Vec<f64>>())
    }

    fn jct_percentile(&self, percent: u32) -> f64 {
        percentile(&sorted(self.jct_s.iter().copied().flatten()), percent)
    }
}
