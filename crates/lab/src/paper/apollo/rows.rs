//! The numbers of figure 12.

use super::super::figure::{Row, ratio};
use super::bounds::{exact_completion_s, least_completion_s, least_mean_s};
use super::quality::{Job, Matcher};
use super::scenario::{Batch, Quality};
use amalgam_core::vocabulary::{Chance, Duration};
use amalgam_sim::report::{Figure, Spread};
use amalgam_sim::statistics::mean;

/// Up to this number of tasks, all schedules are searched for the one that completes first.
const SEARCHED: u32 = 10;
/// Up to this number of tasks, the schedule with the least mean is computed.
const LEAST_MEAN: u32 = 100;

/// Results of the jobs of one seed, in seconds.
pub struct Run {
    /// The completion of the last task: by matcher, then by job.
    completion: Vec<Vec<f64>>,
    /// The mean completion of tasks.
    of_tasks: Vec<Vec<f64>>,
    /// The lower bound of all schedules.
    limit: Vec<f64>,
    /// The completion with the matcher that is best for the job.
    best: Vec<f64>,
    least_of_tasks: Vec<f64>,
}

pub fn run(set_up: &Quality, batch: Batch, speed_up: f64, seed: u64) -> Run {
    // The same jobs with each speed-up.
    let mut chance = Chance::new(seed, &format!("apollo-12, {} tasks", batch.tasks));
    let count = Matcher::ALL.len();
    let mut run = Run {
        completion: vec![Vec::new(); count],
        of_tasks: vec![Vec::new(); count],
        limit: Vec::new(),
        best: Vec::new(),
        least_of_tasks: Vec::new(),
    };
    for _ in 0..batch.draws {
        let job = Job::draw(set_up, batch.tasks, speed_up, &mut chance);
        for (index, matcher) in Matcher::ALL.into_iter().enumerate() {
            let done: Vec<f64> = matcher.complete(&job, set_up.rounds).into_iter().map(Duration::as_secs_f64).collect();
            run.completion[index].push(done.iter().copied().fold(0.0, f64::max));
            run.of_tasks[index].push(mean(&done));
        }
        let known = run.completion.iter().filter_map(|of| of.last()).copied().fold(f64::INFINITY, f64::min);
        run.best.push(known);
        run.limit.push(match batch.tasks {
            ..=SEARCHED => exact_completion_s(&job, known),
            _ => least_completion_s(&job),
        });
        if batch.tasks <= LEAST_MEAN {
            run.least_of_tasks.push(least_mean_s(&job));
        }
    }
    run
}

/// The prefix of the names of a case's rows.
fn case(batch: Batch, speed_up: f64) -> String {
    format!("{} tasks, {speed_up}x", batch.tasks)
}

pub fn of(batch: Batch, speed_up: f64, seeds: &[Run]) -> Vec<Row> {
    let case = case(batch, speed_up);
    let (limit, over) = match batch.tasks {
        ..=SEARCHED => ("optimal", "over_optimal"),
        _ => ("bound", "over_bound"),
    };
    let row = |who: &str, metric: &str, paper: Option<f64>, number: &dyn Fn(&Run) -> f64| {
        let of_seeds: Vec<f64> = seeds.iter().map(number).collect();
        Row::of(&format!("{case}, {who}"), metric, paper, &of_seeds)
    };
    let mut rows = vec![row(limit, "completion_s", None, &|run| mean(&run.limit))];
    let has_least = batch.tasks <= LEAST_MEAN;
    if has_least {
        rows.push(row("least mean", "mean_of_tasks_s", None, &|run| mean(&run.least_of_tasks)));
    }
    for (index, matcher) in Matcher::ALL.into_iter().enumerate() {
        let name = matcher.name();
        rows.push(row(name, "completion_s", None, &|run| mean(&run.completion[index])));
        rows.push(row(name, over, paper(matcher), &|run| ratio(mean(&run.completion[index]), mean(&run.limit))));
        rows.push(row(name, "over_best_of_these", None, &|run| ratio(mean(&run.completion[index]), mean(&run.best))));
        rows.push(row(name, "mean_of_tasks_s", None, &|run| mean(&run.of_tasks[index])));
        if has_least {
            rows.push(row(name, "mean_over_least", None, &|run| {
                ratio(mean(&run.of_tasks[index]), mean(&run.least_of_tasks))
            }));
        }
    }
    rows
}

/// "Within 5 % of the optimal matching": an upper limit.
pub const WITHIN: f64 = 1.05;

/// This limit, and "57 % slower".
fn paper(matcher: Matcher) -> Option<f64> {
    match matcher {
        Matcher::Stable => Some(WITHIN),
        Matcher::Greedy | Matcher::GreedyBatches => Some(1.57),
        _ => None,
    }
}

/// Distributions of the jobs' completions.
pub fn plot(batch: Batch, speed_up: f64, seeds: &[Run]) -> Figure {
    let spread = |name: &str, of: &dyn Fn(&Run) -> &Vec<f64>| Spread::of(name, seeds.iter().flat_map(of).copied());
    let limit = if batch.tasks <= SEARCHED { "optimal" } else { "bound" };
    let mut spreads = vec![spread(limit, &|run| &run.limit)];
    let of_matcher = |(index, matcher): (usize, Matcher)| spread(matcher.name(), &|run| &run.completion[index]);
    spreads.extend(Matcher::ALL.into_iter().enumerate().map(of_matcher));
    Figure::Boxes(format!("When jobs are done: {}", case(batch, speed_up)), "seconds".to_owned(), spreads)
}
