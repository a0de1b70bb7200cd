//! Apollo (Boutin et al. 2014), sections 3.3 and 5.5: its figures, compared with the paper's results.

mod bounds;
mod examples;
mod locality;
mod production;
mod quality;
mod rows;
mod scenario;

use super::figure::{Amount, Extent, Figure, Findings, Paper, PaperNumber, Row, ScenarioText, missed, misses, run_all};
use amalgam_cli::failure::Result;
use locality::{IO, TASKS};
use production::{
    CAUGHT, COVERED, DUPLICATES, FASTER, FEWER, FIRST, GREATEST, ORACLE, RUN_TIMES, SAME_ORACLE, WAIT, WITHIN,
};
use scenario::{Batch, Scenario};

const PAPER: Paper = Paper {
    scenario: include_str!("apollo.toml"),
    quick: "nine tenths or more of the jobs, and of the nodes where the figure has a cluster",
    smoke: "one seed, two jobs of each kind of figure 12 and none of more than 100 tasks; a hundredth of nodes and jobs in production, \
            which are generated instead of read from traces",
};

pub const FIGURES: [Figure; 15] = [
    PAPER.figure(
        "apollo-4",
        "Apollo, figure 4: the server that is neither nearest nor free, but completes the task first",
        estimates,
    ),
    PAPER.figure("apollo-5", "Apollo, figure 5: three tasks, two of which prefer the same server", pairs),
    PAPER.figure(
        "apollo-7",
        "Apollo, figures 6 and 7: scale, utilization and queueing of regular tasks",
        in_production,
    ),
    PAPER.figure(
        "apollo-8",
        "Apollo, figure 8: recurring jobs, and waits across nodes, against the baseline without load reports",
        in_production,
    ),
    PAPER.figure("apollo-9", "Apollo, figure 9: completion times against other schedulers", in_production),
    PAPER.figure("apollo-10", "Apollo, figure 10: accuracy of the estimates of waits and run times", in_production),
    PAPER.figure("apollo-11", "Apollo, figure 11: waits across nodes with and without estimates", in_production),
    PAPER.figure(
        "apollo-table-1",
        "Apollo, table 1: the distance of tasks to their input, and its effect",
        in_production,
    ),
    PAPER.figure("apollo-table-2", "Apollo, table 2: duplicates, and how many of them were first", in_production),
    PAPER.figure("apollo-stragglers", "Apollo, section 5.4: slow attempts that are caught", in_production),
    PAPER.figure("apollo-plus", "Not of the paper: apollo-plus against apollo, its oracle and others", in_production),
    PAPER.figure("apollo-plus-dags", "The same on Alibaba's DAGs, on which nothing was tuned", in_production),
    PAPER.figure("apollo-plus-spark", "The same on a log of Spark's, on which nothing was tuned either", in_production),
    PAPER.figure("apollo-amalgam", "Not of the paper: the default preset against the oracle of apollo", in_production),
    PAPER.figure("apollo-12", "Apollo, figure 12: stable, greedy and optimal matching", matchings),
];

fn estimates(_: &str, scenario: &ScenarioText, _: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    Ok(findings(examples::estimates(&scenario.figure.apollo_4, &scenario.rates()), &[]))
}

fn pairs(_: &str, scenario: &ScenarioText, _: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    Ok(findings(examples::pairs(&scenario.figure.apollo_5, &scenario.rates()), &FIGURE_5))
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
    let rows: Vec<Row> = cases.iter().zip(&runs).flat_map(of_case).collect();
    let plot = |(&(batch, speed_up), seeds): (_, &Vec<_>)| rows::plot(batch, speed_up, seeds);
    let plots = cases.iter().zip(&runs).map(plot).collect();
    Ok(Findings { departures: [off_in_12(&rows), sentences(&FIGURE_12)].concat(), rows, plots })
}

/// Stable has to be within its 5 %, and the others about as far off as in the paper.
fn off_in_12(rows: &[Row]) -> Vec<String> {
    let (at_most, about): (Vec<Row>, Vec<Row>) = rows.iter().cloned().partition(|row| row.paper == Some(rows::WITHIN));
    [missed(&at_most, |row, paper| row.ours > paper), misses(&about)].concat()
}

/// The paper's numbers: lower limits, but upper limits for waits and duplicates. Table 2 has 81.3, 81.3 and 83 %: 82 of all.
const NUMBERS: [PaperNumber; 35] = [
    ("apollo-8", "apollo, load 0.8", FASTER, 0.8),
    ("apollo-8", "apollo, load 0.8", GREATEST, 3.0),
    ("apollo-8", "apollo, load 0.8", FEWER, 0.02),
    ("apollo-9", "apollo, load 0.6", OVER_BASELINE, 0.78),
    ("apollo-9", "apollo, load 0.8", OVER_BASELINE, 0.78),
    ("apollo-9", "apollo, load 0.9", OVER_BASELINE, 0.78),
    ("apollo-7", "apollo, load 0.9", "cpu", 0.9),
    ("apollo-7", "apollo, load 0.9", "decisions_per_s", 20_000.0),
    ("apollo-7", "apollo, load 0.9", WAIT, 1.0),
    ("apollo-9", "apollo, load 0.6", ORACLE, 1.045),
    ("apollo-9", "apollo, load 0.8", ORACLE, 1.045),
    ("apollo-9", "apollo, load 0.9", ORACLE, 1.045),
    ("apollo-10", "apollo, load 0.6", WITHIN, 0.95),
    ("apollo-10", "apollo, load 0.8", WITHIN, 0.95),
    ("apollo-10", "apollo, load 0.9", WITHIN, 0.95),
    ("apollo-10", "apollo, load 0.6", RUN_TIMES, 0.75),
    ("apollo-10", "apollo, load 0.8", RUN_TIMES, 0.75),
    ("apollo-10", "apollo, load 0.9", RUN_TIMES, 0.75),
    ("apollo-table-1", "apollo, load 0.8", TASKS[0], 0.28),
    ("apollo-table-1", "apollo, load 0.8", TASKS[1], 0.56),
    ("apollo-table-1", "apollo, load 0.8", TASKS[2], 0.16),
    ("apollo-table-1", "apollo, load 0.8", IO[0], 0.46),
    ("apollo-table-1", "apollo, load 0.8", IO[1], 0.47),
    ("apollo-table-1", "apollo, load 0.8", IO[2], 0.07),
    ("apollo-table-1", "apollo, load 0.8", OVER_BASELINE, 0.78),
    ("apollo-table-1", "apollo, load 0.8", WITHIN, 0.95),
    ("apollo-table-1", "apollo, load 0.8", ORACLE, 1.045),
    ("apollo-table-2", "apollo, load 0.6", DUPLICATES, 0.005),
    ("apollo-table-2", "apollo, load 0.6", FIRST, 0.82),
    ("apollo-table-2", "apollo, load 0.8", DUPLICATES, 0.005),
    ("apollo-table-2", "apollo, load 0.8", FIRST, 0.82),
    ("apollo-table-2", "apollo, load 0.9", DUPLICATES, 0.005),
    ("apollo-table-2", "apollo, load 0.9", FIRST, 0.82),
    ("apollo-stragglers", "apollo, load 0.6, slow ones corrected", CAUGHT, 0.7),
    ("apollo-stragglers", "apollo, load 0.8, slow ones corrected", CAUGHT, 0.7),
];

fn in_production(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    let set_up = scenario.production(figure)?;
    let cases = production::run(&scenario.production, set_up, scenario.rates(), extent)?;
    let rows = production::rows(figure, set_up, &cases, &NUMBERS);
    let is_worse = |row: &Row, paper: f64| match &*row.metric {
        WAIT | DUPLICATES | ORACLE | FEWER | OVER_BASELINE => row.ours > paper,
        _ => row.ours < paper,
    };
    let (shares, others): (Vec<Row>, Vec<Row>) =
        rows.iter().cloned().partition(|row| TASKS.contains(&&*row.metric) || IO.contains(&&*row.metric));
    let inputs = if set_up.inputs { sentences(&WITH_INPUTS) } else { sentences(&WITHOUT_INPUTS) };
    let about = IN_PRODUCTION.iter().filter(|(figures, _)| figures.is_empty() || figures.contains(&figure));
    let about = about.map(|(_, sentence)| (*sentence).to_owned()).collect();
    let departures = [misses(&shares), missed(&others, is_worse), off(&rows, figure), about, inputs].concat();
    Ok(Findings { departures, rows, plots: Vec::new() })
}

/// Requirements on apollo-plus, the step beyond the paper.
fn off(rows: &[Row], figure: &str) -> Vec<String> {
    let asked = |row: &&Row| figure.starts_with("apollo-plus") && row.case.starts_with("apollo-plus");
    let sentence = |row: &Row| {
        let Row { case, metric, ours, .. } = row;
        match &**metric {
            SAME_ORACLE | ORACLE if *ours > 1.02 => {
                Some(format!("missed: {case}, {metric}: {ours:.3}, required: 1.02"))
            }
            COVERED if !(0.88..=0.92).contains(ours) => {
                Some(format!("missed: {case}, {metric}: {ours:.3}, required: 0.88 to 0.92"))
            }
            _ => None,
        }
    };
    rows.iter().filter(asked).filter_map(sentence).collect()
}

/// The name of this metric in production.rs.
const OVER_BASELINE: &str = "mean_jct over apollo-baseline";

/// Departures and the figures that they concern; an empty list means all figures.
const IN_PRODUCTION: [(&[&str], &str); 10] = [
    (
        &[],
        "the paper's figures are of Microsoft's clusters of more than 20,000 machines with mixed jobs over days; here jobs of a public \
     trace, TPC-H's where the figure names no other, arrive at random, at the rate that keeps the named part of the CPUs busy. One job may use an eighth of a \
     cluster of 400 nodes",
    ),
    (
        &[],
        "cpu is the mean over windows of 60 s in the last three quarters of the time in which jobs arrive. It includes the use by attempts that \
     were preempted later",
    ),
    (
        &[],
        "a guaranteed attempt was launched as such; one that was opportunistic and was promoted while it waited has a row of its own, and \
     its wait counts from its launch",
    ),
    (
        &[],
        "a wait also counts as estimated wrongly if a duplicate was first after the attempt had waited for a second more than expected, which the \
     paper does not state; for a promoted attempt the estimate is the one at its promotion",
    ),
    (
        &[],
        "the oracle runs each job alone, without waits and failures, the longest task of the stage with the longest path to the end first. \
     The paper's oracle has the tokens that the job held for its whole run. Here a job's allowance changes with its demand and with the \
     other jobs, and the oracle has the largest allowance of the run. Resources of opportunistic tasks are not counted, as in the paper",
    ),
    (
        &["apollo-10"],
        "the paper estimates the CPU time of tasks by statistics of earlier runs of recurring jobs, and then by their finished tasks. Here it is \
     the run time, of each attempt when it is launched: as the trace's stage states it, which is the mean of its own tasks, and then by \
     those that have finished. The trace does not contain the amounts that tasks read, so all tasks of a stage are assumed to be alike",
    ),
    (
        BASELINE,
        "the paper's baseline is the preset apollo-baseline as far as section 4 describes it: it has no load reports, tries node after node with \
     duplicates, one at a time, once a task has waited for a second, and relaxes locality after 3 and 6 s. Shares, queues at nodes, straggler detection and estimates of run times are the same under both",
    ),
    (
        &["apollo-8"],
        "a recurring job is all runs of one query of one size; its speed-up is the mean of its runs under the baseline over that under apollo, on the \
     same arrivals, where the paper compares two time frames. Where each preset runs half of the jobs, the halves are different jobs",
    ),
    (
        &["apollo-8", "apollo-11"],
        "waits at a node are those of attempts that were launched as guaranteed and started there, in windows of ten minutes, as in figure 8(c); the \
     paper's figure 11 has no numbers in its text",
    ),
    (
        &["apollo-11"],
        "without estimates every task is assumed to run for 20 s, about the mean of all; the paper does not give its default",
    ),
];

/// Figures with a row for the baseline.
const BASELINE: &[&str] =
    &["apollo-8", "apollo-9", "apollo-table-1", "apollo-plus", "apollo-plus-dags", "apollo-plus-spark"];

/// The departure of figures without locations of inputs.
const WITHOUT_INPUTS: [&str; 1] = ["the location of these jobs' input is not known, so locality has no effect"];

const WITH_INPUTS: [&str; 6] = [
    "the jobs are all TPC-H jobs that ended, where the paper has a day of a production cluster. A task counts once, by the attempt that \
     succeeded, at the place of most of its input",
    "the trace does not contain the amount that a task reads. Here it is 80 MB for each second of its stage's mean run time, which is about what \
     the first stages read if a query reads its database once; the same is assumed for later stages, about which nothing is known. Each job has \
     inputs of its own, which no other job reads, so no server is hot; in the paper some are",
    "places of inputs: the input of a task of a first stage is one partition with three copies, placed as by HDFS, on racks of 40 nodes (in a cut \
     run on as many smaller ones); the paper gives neither. The input of a later task is stored in equal parts on the nodes of all tasks of the \
     stages before it, as in Spark's shuffle, whereas a stage of Scope may read partition by partition",
    "the trace's run times are assumed to be those of tasks with local input. A task that reads over the rack or across racks takes longer by the \
     difference, at 160, 100 and 80 MB a second, so the load is higher than named. Disks and links are not shared",
    "apollo-baseline sends a task to one of the three nodes with its partition at once, and relaxes that as described above; mercury's master does \
     not know inputs, and its job managers give room on a node to a task with input there, among the next 64",
    "the paper's 22 % are of one job on two days (figure 9)",
];

fn findings(rows: Vec<Row>, departures: &[&str]) -> Findings {
    Findings { departures: [misses(&rows), sentences(departures)].concat(), rows, plots: Vec::new() }
}

fn sentences(departures: &[&str]) -> Vec<String> {
    departures.iter().map(|&departure| departure.to_owned()).collect()
}

const FIGURE_5: [&str; 1] = [
    "the paper's figure has no times: each task reads 1 GB from its server's disk or over the rack, and no server has a queue. Servers \
     are counted from 1",
];

const FIGURE_12: [&str; 6] = [
    "the measured time is that until the last task of a job ends, \"the amount of time it takes for a workload of N tasks to complete\"; the mean \
     over its tasks is given too, against the least of any schedule",
    "the paper does not give the speed-up on the preferred server: here it is 1.2, 1.5, 2 and 3. The paper's 5 % and 57 %, for which it gives no \
     number of tasks, are compared with all of them",
    "all remaining tasks are a batch, of which each server gets one at most; waits are updated after it. The paper does not give the number of \
     rounds of the stable matching in a batch: here it has three, and in a second case as many as it needs",
    "the paper does not state whether a greedy choice knows the earlier choices: under greedy it does, and in batches a server takes one \
     task, as in figure 5",
    "for 10 tasks the optimum is found exactly, over all schedules. For 100 or 1,000 no exhaustive search is possible. A lower bound \
     replaces it: the least time by which each task could end on some server, alone, and by which the servers have room \
     for all of them, cut into pieces, each at its preferred server as far as that has room",
    "all tasks of a job start to wait at the same time and stay where they were sent: there are no corrections",
];
