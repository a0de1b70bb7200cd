//! Apollo (Boutin et al. 2014), sections 3.3 and 5.5: its figures, and what the paper says that they show.

mod bounds;
mod examples;
mod quality;
mod rows;
mod scenario;

use super::figure::{Amount, Extent, Figure, Findings, Paper, Row, ScenarioText, misses, run_all};
use crate::failure::Result;
use scenario::{Batch, Scenario};

const PAPER: Paper = Paper {
    scenario: include_str!("apollo.toml"),
    quick: "a tenth of the jobs of figure 12",
    smoke: "one seed, two jobs of each kind of figure 12 and none of more than 100 tasks",
};

pub const FIGURES: [Figure; 3] = [
    PAPER.figure(
        "apollo-4",
        "Apollo, figure 4: the server that is not nearest and not free, but done first",
        estimates,
    ),
    PAPER.figure("apollo-5", "Apollo, figure 5: three tasks, two of which want the same server", pairs),
    PAPER.figure("apollo-12", "Apollo, figure 12: stable, greedy and optimal matching", matchings),
];

fn estimates(_: &str, scenario: &ScenarioText, _: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    Ok(told(examples::estimates(&scenario.figure.apollo_4, &scenario.rates()), &[]))
}

fn pairs(_: &str, scenario: &ScenarioText, _: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    Ok(told(examples::pairs(&scenario.figure.apollo_5, &scenario.rates()), &FIGURE_5))
}

fn matchings(_: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    let set_up = &scenario.figure.apollo_12;
    let amount = |batch: &Batch| match extent.amount {
        Amount::Whole => Some(*batch),
        Amount::Quick => Some(Batch { draws: batch.draws.div_ceil(10), ..*batch }),
        Amount::Smoke => (batch.tasks <= 100).then_some(Batch { draws: 2, ..*batch }),
    };
    let batches = set_up.batches.iter().filter_map(amount);
    let cases: Vec<(Batch, f64)> =
        batches.flat_map(|batch| set_up.speed_ups.iter().map(move |&speed_up| (batch, speed_up))).collect();
    let runs = run_all(&cases, extent, |&(batch, speed_up), seed| rows::run(set_up, batch, speed_up, seed));
    let of_case = |(&(batch, speed_up), seeds): (_, &Vec<_>)| rows::of(batch, speed_up, seeds);
    let rows = cases.iter().zip(&runs).flat_map(of_case).collect();
    let plot = |(&(batch, speed_up), seeds): (_, &Vec<_>)| rows::plot(batch, speed_up, seeds);
    Ok(Findings { plots: cases.iter().zip(&runs).map(plot).collect(), ..told(rows, &FIGURE_12) })
}

fn told(rows: Vec<Row>, departures: &[&str]) -> Findings {
    let mut all = misses(&rows);
    all.extend(departures.iter().map(|&departure| departure.to_owned()));
    Findings { rows, departures: all, plots: Vec::new() }
}

const FIGURE_5: [&str; 1] = [
    "the paper's figure has no times: each task reads 1 GB from its server's disk or over the rack, and no server lets wait. Servers \
     are counted from 1",
];

const FIGURE_12: [&str; 6] = [
    "measured is when the last task of a job is done, \"the amount of time it takes for a workload of N tasks to complete\"; the mean \
     over its tasks is given too, against the least that any schedule has",
    "the speed-up on the preferred server is not said: 1.2, 1.5, 2 and 3. The paper's 5 % and 57 %, which name no number of tasks, stand \
     beside all of them",
    "all tasks that are left are a batch, of which each server gets one at most; waits are updated after it. How many rounds the \
     stable matching has in a batch is not said: three, and beside it as many as it takes",
    "whether greedy tasks see what the tasks before them took is not said: under greedy they do, and in batches a server takes one \
     task, as in figure 5",
    "of 10 tasks the optimum is found exactly, over all schedules. No exhaustive search is possible of 100 or 1,000: a bound \
     stands in its place, the least time by which each task could be done somewhere, alone, and by which the servers have room \
     for all of them, cut into pieces, each at its preferred server as far as that has room",
    "the tasks of a job all begin to wait at once and stay where they were sent: nothing is corrected",
];
