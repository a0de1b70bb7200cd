//! Megha (Narayanan et al.), section VI: its figures, compared with the paper's results.

mod experiment;
mod peak;
mod prototype;
mod rows;
mod scenario;

use super::figure::{Extent, Figure, Findings, Paper, Row, ScenarioText};
use amalgam_cli::failure::Result;
use experiment::{CaseRuns, LeftOut};
use rows::{P50_OVER_SPARROW, P99, REFUSED};
use scenario::Scenario;

const PAPER: Paper = Paper {
    scenario: include_str!("megha.toml"),
    quick: "nine tenths of the nodes and of the tasks",
    smoke: "one seed, a hundredth of nodes and tasks, which are generated instead of read from traces and have no constraints",
};

const PROTOTYPE: Paper = Paper {
    quick: "nine tenths of the nodes, of the tasks and of all times, as of heartbeats",
    smoke: "one seed, one replay, a hundredth of nodes, tasks and times; jobs are generated instead of read from traces and have no constraints",
    ..PAPER
};

pub const FIGURES: [Figure; 10] = [
    PAPER.figure("megha-3", "Megha, figures 3 to 5: how long tasks wait, against Sparrow", find),
    PAPER.figure("megha-6", "Megha, figure 6: against one global master and one cluster", find),
    PAPER.figure("megha-7", "Megha, figure 7: what a wait is spent on", find),
    PAPER.figure("megha-8", "Megha, figure 8: waits by the number of nodes", find),
    PAPER.figure("megha-9", "Megha, figure 9: waits by the numbers of global masters and clusters", find),
    PAPER.figure("megha-10", "Megha, figures 10 and 11: four users' shares on fewer and more nodes", find),
    PROTOTYPE.figure(
        "megha-12",
        "Megha, figure 12: the prototype's jobs on real daemons, and in the simulator",
        prototype::find,
    ),
    PAPER.figure("megha-heartbeat", "The paper's future work: waits by how often nodes report", find),
    PAPER.figure("megha-plus", "Not of the paper: megha-plus against megha and Sparrow", find),
    PAPER.figure("megha-amalgam", "Not of the paper: the default preset on Megha's jobs, in a federation", find),
];

fn find(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    let set_up = scenario.figure(figure)?;
    let cases = experiment::run(&scenario, set_up, extent)?;
    let rows = rows::of(figure, set_up, &cases);
    let about = ABOUT.iter().filter(|(figures, _)| figures.is_empty() || figures.contains(&figure));
    let about = about.map(|(_, sentence)| (*sentence).to_owned()).collect();
    let departures = [rows::off_the_papers(figure, &rows), off(figure, &rows), left_out(&cases), about].concat();
    Ok(Findings { departures, rows, plots: rows::plots(set_up, &cases) })
}

/// Requirements on megha-plus, the step beyond the paper.
fn off(figure: &str, rows: &[Row]) -> Vec<String> {
    let most = |metric: &str| match metric {
        P50_OVER_SPARROW => Some(1.0),
        P99 => Some(0.1),
        REFUSED => Some(0.01),
        _ => None,
    };
    let asked = |row: &&Row| figure == "megha-plus" && row.case.ends_with("megha-plus");
    let sentence = |row: &Row| {
        let most = most(&row.metric).filter(|most| row.ours > *most)?;
        Some(format!("missed: {}, {}: {:.4}, required: at most {most}", row.case, row.metric, row.ours))
    };
    rows.iter().filter(asked).filter_map(sentence).collect()
}

/// Jobs that were left out, with the first seed.
fn left_out(cases: &[CaseRuns]) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for CaseRuns { case, runs, .. } in cases {
        let sentence = runs.first().and_then(|run| said_left_out(&case.workload, run.left_out));
        sentences.extend(sentence.filter(|sentence| !sentences.contains(sentence)));
    }
    sentences
}

fn said_left_out(workload: &str, left_out: LeftOut) -> Option<String> {
    let LeftOut { unsuited, wide, long } = left_out;
    let too_long = if long > 0 { format!(", and {long} that last too long") } else { String::new() };
    (left_out != LeftOut::default()).then(|| {
        format!(
            "of the jobs drawn from {workload}, with the first seed, {unsuited} were left out that no node suits, and {wide} that are too wide for the \
             cluster{too_long}"
        )
    })
}

/// Departures and the figures that they concern; an empty list means all figures.
const ABOUT: [(&[&str], &str); 9] = [
    (
        &[],
        "the paper's workloads of Cloudera and of Google's trace of 2019 are not public here; jobs of Yahoo and Google, as Hawk and Pigeon cut them, of \
         Google's trace of 2011 and of Alibaba's are in their place, drawn with replacement, and arrive at random",
    ),
    (
        &[],
        "a wait is the time from when a task could run to its first start: the paper's allocation time. It includes 1.5 ms for the start of its \
         process, unless the case states another time",
    ),
    (
        &[],
        "the work of masters, global masters, job managers and agents takes the time of a usual machine (32 us for a message, 3.3 us for a decision, 120 us \
         for a disk), for any number of nodes and any length of a message; messages that arrive meanwhile wait. The paper's simulator is a \
         Python prototype with HTTP on one machine, whose costs are not known",
    ),
    (
        &["megha-3", "megha-heartbeat", "megha-plus", "megha-amalgam", "megha-10"],
        "the load is the part of the nodes that would be in use at the busiest moment if no task waited; the paper only plots what its jobs use over time",
    ),
    (
        &["megha-3", "megha-plus", "megha-amalgam"],
        "under sparrow the number of processes with schedulers is the number of global masters, and a task's wait at its node counts as time in the queue, since a \
         task is bound to a node only when that is ready",
    ),
    (
        &["megha-7"],
        "the paper's parts are medians, and so are these, each one separately. Starting a process counts as processing; the paper's simulated workers start none",
    ),
    (
        &["megha-6", "megha-8", "megha-9"],
        "constraints are drawn for stages, all of whose tasks have the same ones; nodes meet them as those of the published configuration of 10,000 nodes do, of \
         which they are drawn. The paper does not give the rate at which jobs arrive",
    ),
    (
        &["megha-8"],
        "with more nodes a global master has a larger view; the simulator charges no more time for it, so the results show only the effect of more partitions and fewer \
         conflicts",
    ),
    (
        &["megha-10"],
        "the paper does not give the demand of each user: each job belongs to any user with the same probability, and has one task",
    ),
];
