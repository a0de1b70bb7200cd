//! Mercury (Karanasos et al. 2015), section 7: its figures, compared with the paper's results.

mod experiment;
mod page;
mod scenario;

use super::figure::{Extent, Figure, Findings, Paper, PaperNumber, Row, ScenarioText, misses, number_of, ratio};
use amalgam_cli::failure::Result;
use amalgam_sim::statistics;
use experiment::{CaseRuns, Run};
use scenario::{FigureScenario, JobClass, Scenario};

const PAPER: Paper = Paper {
    scenario: include_str!("mercury.toml"),
    quick: "3 of 30 simulated minutes",
    smoke: "one seed, 40 simulated seconds, a sixteenth of the cluster",
};

pub const FIGURES: [Figure; 10] = [
    PAPER.figure("mercury-5", "Mercury, figure 5: 100, 150 and 200 jobs at once under only-Q against only-G", gains),
    PAPER.figure("mercury-6", "Mercury, figure 6: placement on one of the k best nodes", gains),
    PAPER.figure("mercury-7", "Mercury, figure 7: shedding and re-ordering with nodes that report too little", gains),
    PAPER.figure("mercury-table-1", "Mercury, table 1: preempted tasks by the limit of opportunistic work", levels),
    PAPER.figure(
        "mercury-8",
        "Mercury, figure 8: what a forecast allows opportunistic work and what it holds",
        tracking,
    ),
    PAPER.figure("mercury-9", "Mercury, figure 9: tasks of 2, 10 and 20 s", gains),
    PAPER.figure(
        "mercury-10",
        "Mercury, figure 10: four jobs of five with tasks of 2 s, the fifth with 50 s",
        by_class,
    ),
    PAPER.figure("mercury-11", "Mercury, figure 11: run times like Microsoft's", by_class),
    PAPER.figure(
        "mercury-plus",
        "Beyond Mercury: a master that decides on events, and nodes that keep, offer and take over",
        beyond,
    ),
    PAPER.figure(
        "mercury-amalgam",
        "Not of the paper: the jobs of Mercury's figures 5, 10 and 11 under the default preset",
        beyond,
    ),
];

/// A number of a run, and its name in rows.
type Metric = (&'static str, fn(&Run) -> f64);

/// Metrics that are divided by those of the case to compare with, with the same seed.
const GAINS: [Metric; 3] = [
    ("task_throughput_vs_only_g", |run| run.tasks_per_second),
    ("job_throughput_vs_only_g", |run| run.jobs_per_second),
    ("mean_latency_vs_only_g", |run| run.mean_latency(None)),
];

/// Absolute metrics.
const LEVELS: [Metric; 7] = [
    ("tasks_per_second", |run| run.tasks_per_second),
    ("jobs_per_second", |run| run.jobs_per_second),
    ("mean_latency_s", |run| run.mean_latency(None)),
    ("p95_latency_s", |run| run.latency_percentile(None, 95)),
    ("utilization", |run| run.utilization),
    ("shed_of_launched", |run| run.shed),
    ("preempted_of_launched", |run| run.preempted),
];

/// Metrics of table 1.
const POLICING: [Metric; 3] = [
    ("preempted_per_node", |run| run.preempted_per_node),
    ("opportunistic_utilization", |run| run.opportunistic),
    ("utilization", |run| run.utilization),
];

/// The paper's numbers: figure, case, metric, number.
const NUMBERS: [PaperNumber; 29] = [
    ("mercury-5", "only-Q, 150 jobs", "task_throughput_vs_only_g", 1.38),
    ("mercury-5", "only-Q, 150 jobs", "job_throughput_vs_only_g", 1.36),
    ("mercury-5", "only-Q, 150 jobs", "mean_latency_vs_only_g", 0.70),
    ("mercury-6", "k = 50", "task_throughput_vs_only_g", 1.445),
    ("mercury-6", "k = 50", "job_throughput_vs_only_g", 1.387),
    ("mercury-6", "k = 50", "mean_latency_vs_only_g", 0.845),
    ("mercury-7", "only-Q", "task_throughput_vs_only_g", 1.085),
    ("mercury-7", "only-Q/avg+2sigma/reorder", "task_throughput_vs_only_g", 1.398),
    ("mercury-7", "only-Q/avg+2sigma/reorder", "job_throughput_vs_only_g", 1.354),
    ("mercury-7", "only-Q/avg+2sigma/reorder", "mean_latency_vs_only_g", 0.711),
    ("mercury-7", "only-Q/avg+2sigma/reorder", "shed_of_launched", 0.14),
    ("mercury-table-1", "20 %", "preempted_per_node", 287.0),
    ("mercury-table-1", "30 %", "preempted_per_node", 428.0),
    ("mercury-table-1", "40 %", "preempted_per_node", 536.0),
    ("mercury-table-1", "100 %", "preempted_per_node", 780.0),
    ("mercury-table-1", "20 %", "opportunistic_utilization", 0.114),
    ("mercury-table-1", "30 %", "opportunistic_utilization", 0.167),
    ("mercury-table-1", "40 %", "opportunistic_utilization", 0.209),
    ("mercury-table-1", "100 %", "opportunistic_utilization", 0.284),
    ("mercury-9", "only-Q, 2 s", "task_throughput_vs_only_g", 1.40),
    ("mercury-9", "only-Q, 2 s", "job_throughput_vs_only_g", 1.40),
    ("mercury-9", "only-Q, 2 s", "mean_latency_vs_only_g", 1.0),
    ("mercury-9", "only-Q, 20 s", "task_throughput_vs_only_g", 1.14),
    ("mercury-9", "only-Q, 20 s", "mean_latency_vs_only_g", 1.60),
    ("mercury-10", "<10sec-70%-Q", "task_throughput_vs_only_g", 1.293),
    // 29.3 % over only-G and 12.9 % over only-Q.
    ("mercury-10", "only-Q", "task_throughput_vs_only_g", 1.145),
    ("mercury-11", "50%-Q", "task_throughput_vs_only_g", 1.35),
    ("mercury-11", "<10sec-70%-Q", "task_throughput_vs_only_g", 1.26),
    ("mercury-11", "<10sec-70%-Q", "mean_latency_vs_only_g, 11 s", 0.34),
];

fn paper(figure: &str, case: &str, metric: &str) -> Option<f64> {
    number_of(&NUMBERS, figure, case, metric)
}

// ---- findings ------------------------------------------------------------------------------------------------------

/// Throughput and latency of every case relative to only-G.
fn gains(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    findings(figure, scenario, extent, |of, base| {
        let mut rows = compared(figure, of, base, &GAINS);
        rows.extend(as_they_are(figure, of, &LEVELS));
        rows
    })
}

/// The same, and the latencies of each class of jobs.
fn by_class(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    let classes: Vec<String> =
        Scenario::parse(scenario)?.figure(figure)?.jobs.iter().map(|class| class.name.clone()).collect();
    findings(figure, scenario, extent, |of, base| {
        let mut rows = compared(figure, of, base, &GAINS);
        rows.extend(classes.iter().flat_map(|class| latencies(figure, of, base, class)));
        rows.extend(as_they_are(figure, of, &LEVELS));
        rows
    })
}

/// All of these, the slowest jobs and the preemptions.
fn beyond(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    const POLICED: [Metric; 3] = [
        ("preempted_per_node", |run| run.preempted_per_node),
        ("preempted_work", |run| run.preempted_work),
        ("opportunistic_utilization", |run| run.opportunistic),
    ];
    const SLOWEST: [Metric; 1] = [("p99_latency_vs_only_g", |run| run.latency_percentile(None, 99))];
    findings(figure, scenario, extent, |of, base| {
        let mut rows = compared(figure, of, base, &GAINS);
        rows.extend(compared(figure, of, base, &SLOWEST));
        rows.extend(as_they_are(figure, of, &LEVELS));
        rows.extend(as_they_are(figure, of, &POLICED));
        rows
    })
}

/// Preemptions and the CPUs of opportunistic work.
fn levels(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    findings(figure, scenario, extent, |of, _| as_they_are(figure, of, &POLICING))
}

/// How closely the held resources follow the limit at the watched node.
fn tracking(figure: &str, scenario: &ScenarioText, extent: &Extent) -> Result<Findings> {
    const TRACKING: [Metric; 4] = [
        ("allowed", |run| of_watched(run, |at| at.limit)),
        ("held", |run| of_watched(run, |at| at.held)),
        ("mean_distance", |run| of_watched(run, |at| (at.limit - at.held).abs())),
        ("share_of_time_above", |run| of_watched(run, |at| f64::from(u8::from(at.held > at.limit)))),
    ];
    findings(figure, scenario, extent, |of, _| as_they_are(figure, of, &TRACKING))
}

fn of_watched(run: &Run, value: fn(&amalgam_sim::Watched) -> f64) -> f64 {
    statistics::mean(&run.watched.iter().map(value).collect::<Vec<f64>>())
}

/// Runs the cases; `rows` makes the rows of one case, with the case that it is compared with.
fn findings(
    figure: &str,
    scenario: &ScenarioText,
    extent: &Extent,
    rows: impl Fn(&CaseRuns, Option<&CaseRuns>) -> Vec<Row>,
) -> Result<Findings> {
    let scenario = Scenario::parse(scenario)?;
    let set_up = scenario.figure(figure)?;
    let cases = experiment::run(&scenario, set_up, extent)?;
    let of_case = |of: &CaseRuns| {
        let base = cases.iter().find(|other| other.case.name == of.case.base() && other.case.name != of.case.name);
        rows(of, base)
    };
    let rows: Vec<Row> = cases.iter().flat_map(of_case).collect();
    let mut departures = misses(&rows);
    departures.extend(unfinished(&cases, &set_up.jobs));
    departures.extend(departures_of(figure, set_up));
    Ok(Findings { rows, departures, plots: page::plots(&cases) })
}

fn compared(figure: &str, of: &CaseRuns, base: Option<&CaseRuns>, metrics: &[Metric]) -> Vec<Row> {
    let Some(base) = base else { return Vec::new() };
    let row = |&(metric, number): &Metric| ratio_row(figure, of, base, metric, &number);
    metrics.iter().map(row).collect()
}

fn ratio_row(figure: &str, of: &CaseRuns, base: &CaseRuns, metric: &str, number: &dyn Fn(&Run) -> f64) -> Row {
    let ratios: Vec<f64> = of.runs.iter().zip(&base.runs).map(|(run, base)| ratio(number(run), number(base))).collect();
    Row::of(&of.case.name, metric, paper(figure, &of.case.name, metric), &ratios)
}

fn as_they_are(figure: &str, of: &CaseRuns, metrics: &[Metric]) -> Vec<Row> {
    let row = |(metric, number): &Metric| {
        let numbers: Vec<f64> = of.runs.iter().map(number).collect();
        Row::of(&of.case.name, metric, paper(figure, &of.case.name, metric), &numbers)
    };
    metrics.iter().map(row).collect()
}

/// No rows if in some run no job of the class ended.
fn latencies(figure: &str, of: &CaseRuns, base: Option<&CaseRuns>, class: &str) -> Vec<Row> {
    if !of.all_ended_some(class) {
        return Vec::new();
    }
    let mean = |run: &Run| run.mean_latency(Some(class));
    let metric = format!("mean_latency_vs_only_g, {class}");
    let base = base.filter(|base| base.all_ended_some(class));
    let mut rows: Vec<Row> = base.map(|base| ratio_row(figure, of, base, &metric, &mean)).into_iter().collect();
    for percent in [50, 95] {
        let numbers: Vec<f64> = of.runs.iter().map(|run| run.latency_percentile(Some(class), percent)).collect();
        rows.push(Row::of(&of.case.name, &format!("p{percent}_latency_s, {class}"), None, &numbers));
    }
    rows
}

/// Runs in which no such job ended have no latency.
fn unfinished(cases: &[CaseRuns], classes: &[JobClass]) -> Vec<String> {
    let missing = |of: &CaseRuns| {
        let classes = classes.iter().filter(|class| of.case.jobs.is_none() && !of.all_ended_some(&class.name));
        classes.map(|class| format!("{}: in some run no job `{}` ended", of.case.name, class.name)).collect::<Vec<_>>()
    };
    cases.iter().flat_map(missing).collect()
}

// ---- departures ----------------------------------------------------------------------------------------------------

/// Differences from the paper's experiment, of all figures and of this one.
fn departures_of(figure: &str, set_up: &FigureScenario) -> Vec<String> {
    let mut departures: Vec<String> = ALL_DEPART.map(str::to_owned).into();
    let own = DEPARTURES.iter().filter(|(of, _)| *of == figure).map(|(_, departure)| (*departure).to_owned());
    departures.extend(own);
    if set_up.understating_nodes > 0 {
        let FigureScenario { understating_nodes: nodes, understating_divisor: divisor, .. } = set_up;
        departures
            .push(format!("the stragglers are {nodes} nodes that report 1/{divisor} of their work: ours to choose"));
    }
    departures
}

const ALL_DEPART: [&str; 5] = [
    "calibrated twice. The first calibration had two free parameters. After its figures were known, a third one was added, the \
     number of guaranteed tasks that a report brings; it is calibrated on figure 5's pair as well, and all figures were run again",
    "a container's start and end is one free parameter, drawn from half to three halves of it; there is no locality and no \
     disk or network load, and a job manager takes no container",
    "the paper does not give only-G's own admission: the number of jobs at once follows from figure 5 by Little's law",
    "throughput and latency leave out the first minute; latency counts from a job's admission",
    "where the paper gives a mean run time, run times are drawn from an exponential distribution; otherwise all tasks have the same",
];

const DEPARTURES: [(&str, &str); 17] = [
    ("mercury-5", "the calibration uses this figure; the paper does not give its k, here it is 50"),
    ("mercury-5", SHORT_OF),
    ("mercury-6", SHORT_OF),
    ("mercury-6", SAME_LIST),
    ("mercury-7", SAME_LIST),
    (
        "mercury-7",
        "a node that reports too little still sheds by its own knowledge. A shed task is sent to the same best nodes again, \
         so a tight target moves many tasks without a gain",
    ),
    (
        "mercury-table-1",
        "the opportunistic load is not given in the paper, nor the run time of its guaranteed tasks. Here 50 jobs at once always request \
         more than is left, and a guaranteed task that starts on a full node preempts an opportunistic one. Guaranteed tasks \
         start every 5 s on each CPU that they hold",
    ),
    (
        "mercury-8",
        "the paper gives no numbers and no load: guaranteed tasks of 20 s on average make the load of a node change",
    ),
    ("mercury-9", SHORT_OF),
    (
        "mercury-9",
        "every node is as fast as any other, so that queues of long tasks are as long as they were expected to be",
    ),
    ("mercury-10", GUARANTEED_FIRST),
    ("mercury-10", "the paper's 1.145 for only-Q follows from its 29.3 % and 12.9 %"),
    ("mercury-11", GUARANTEED_FIRST),
    ("mercury-plus", BOUND),
    ("mercury-amalgam", BOUND),
    ("mercury-amalgam", OWN_DEFAULTS),
    (
        "mercury-11",
        "only one point of figure 1's distribution is known: ours has six lengths, 60 % of the jobs are under 10 s",
    ),
];

const SHORT_OF: &str = "the calibration was made with runs of 3 minutes, in which the gain is somewhat larger than in runs of 30, \
    in which only-G has time to reach its steady state";

const SAME_LIST: &str = "all job managers get the same ranking at the same times, from reports that are up to 3 s old, and \
    use the same k nodes until the next one: with more nodes to choose among the load is more even, and all nodes are alike, \
    so a wider choice has no cost";

const GUARANTEED_FIRST: &str = "only-G leaves few CPUs idle here (its utilization is a row), so in the long run no scheduler can gain \
    more than that; the paper's must have left more. Jobs wait for tasks of both kinds: guaranteed ones preempt many of the \
    opportunistic ones, whose jobs hold one of the 150 places meanwhile. And a node's rank adds up the remaining run times of all \
    running tasks, so nodes with long tasks look full although they have room";

const OWN_DEFAULTS: &str = "presets other than only-G have the defaults of simulations: their masters decide on events, and nodes report every 10 s what changes \
    without an event, so that mercury-plus knows less of queues than in its own figure. Only-G is the paper's, calibrated on figure 5";

const BOUND: &str = "not a figure of the paper. The resources that only-G leaves idle bound the growth of throughput: its utilization \
    is a row";
