//! What is not as in the paper's experiments.

use super::scenario::FigureScenario;

/// Of all figures, of the workloads, and of this figure.
pub fn of(figure: &str, set_up: &FigureScenario) -> Vec<String> {
    if !set_up.job.is_empty() {
        return own(figure).collect();
    }
    let mut departures: Vec<String> = ALL.map(str::to_owned).into();
    let named = |(name, _): &&(&str, &str)| set_up.workloads.iter().any(|workload| workload.starts_with(name));
    departures.extend(WORKLOADS.iter().filter(named).map(|(_, departure)| (*departure).to_owned()));
    departures.extend(own(figure));
    departures
}

fn own(figure: &str) -> impl Iterator<Item = String> {
    FIGURES.iter().filter(move |(of, _)| *of == figure).map(|(_, departure)| (*departure).to_owned())
}

const ALL: [&str; 6] = [
    "simulated, with the roles and policies of the daemons: messages and decisions take time, tasks do not fail, and there is no \
     locality. The paper's runs are medians of three, ours means of the seeds, which draw jobs, arrivals and demands",
    "one parameter is free, the load: calibrated on TPC-DS with arrivals so that the mean gain over DRF is the paper's 1.36 of table \
     3, and the same everywhere. A workload's run times are multiplied by one factor to reach it",
    "no public trace says what tasks need of six kinds of resources: each stage's are drawn from one model, the same for all, \
     which is ours (`setup.demand`); the figure carbyne-demand shows what it matters",
    "SJF goes by a job's work and not by its critical path, which makes its jobs end sooner on average",
    "whether the paper's percentiles are ratios of percentiles or percentiles of the jobs' ratios is not said: both are given, \
     and both beside its number",
    "DRF and Tetris leave no room idle: whoever has a task that fits gets it",
];

const WORKLOADS: [(&str, &str); 5] = [
    (
        "TPC-DS",
        "TPC-DS are Hive's plans of 65 of its queries with estimated bytes at 30 TB, scaled to 300 GB; no estimate counts for more \
         than a tenth of the database, reduce tasks read 256 MiB as in Hive",
    ),
    ("TPC-H", "TPC-H ran on Spark (Decima's measurements), on 2 to 100 GB"),
    (
        "Big Data Benchmark",
        "in place of BigBench: the three queries of the Big Data Benchmark whose logs are public, on Shark",
    ),
    (
        "Alibaba",
        "in place of Microsoft's: DAGs of Alibaba's trace of 2018, whose instances of a stage all take equally long; drawn at \
         random, in numbers that a simulation ends with, and arriving at random at the rate that makes the load",
    ),
    (
        "Facebook",
        "Facebook's jobs are the samples that SWIM published, with bytes only: run times follow from 5 MiB/s a task, and the \
         times between arrivals are shortened by one factor to reach the load",
    ),
];

const FIGURES: [(&str, &str); 1] = [(
    "carbyne-2",
    "the numbers of the example are only partly in the text: these are the ones that give its 2.1, 2.05 and 1.55",
)];
