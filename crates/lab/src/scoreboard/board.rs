//! The rows of the scoreboard, from `scoreboard.toml`, and their variants.

use super::experiments::Experiment;
use crate::extent::{Amount, Extent, source};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::vocabulary::{QueueSpec, Resources};
use amalgam_sim::SlowNodes;
use amalgam_workload::trace::{self, Workload};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

const TEXT: &str = include_str!("scoreboard.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// The presets that are compared by default.
    pub presets: Vec<String>,
    #[serde(rename = "row")]
    pub rows: Vec<BoardRow>,
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
}

/// A cluster, and jobs from one or several sources.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardRow {
    pub name: String,
    pub nodes: u32,
    pub cpus: u32,
    jobs: Vec<JobsOfRow>,
}

/// Jobs of one source.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct JobsOfRow {
    /// The queue below the root that they are in, and the part of the cluster that it is guaranteed.
    queue: Option<String>,
    #[serde(default)]
    guaranteed: f64,
    /// The part of the cluster's CPUs that the jobs' work fills while they arrive.
    load: Option<f64>,
    #[serde(default)]
    at_once: bool,
    /// Of the workload, in both halves.
    #[serde(default)]
    options: BTreeMap<String, String>,
    development: HalfOfRow,
    validation: HalfOfRow,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HalfOfRow {
    /// A format and a path in the folder of traces.
    read: String,
    #[serde(default)]
    options: BTreeMap<String, String>,
}

/// Which jobs are run. Schedulers are tuned on those of the first half only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    Development,
    Validation,
}

/// What schedulers know, and what the cluster is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Jobs state the true mean run times of their stages.
    Plain,
    /// Jobs state no run times.
    Unknown,
    /// The stated run times of each stage are wrong by up to half.
    Wrong,
    /// One node of ten takes twice as long.
    Slow,
}

impl Variant {
    fn options(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Variant::Plain | Variant::Slow => &[],
            Variant::Unknown => &[("expected", "none")],
            Variant::Wrong => &[("expected-error", "uniform:0.5-1.5")],
        }
    }

    pub fn slow_nodes(self) -> Option<SlowNodes> {
        (self == Variant::Slow).then_some(SlowNodes { every: 10, factor: 2.0 })
    }
}

impl Board {
    /// # Panics
    /// If the file that is part of the program is wrong, which a test rules out.
    pub fn load() -> Board {
        toml::from_str(TEXT).expect("scoreboard.toml is right")
    }

    /// The rows and experiments with these names; all without any.
    ///
    /// # Errors
    /// An unknown name, with those that are known.
    pub fn select(&self, names: &[String]) -> Result<(Vec<&BoardRow>, Vec<&Experiment>)> {
        let known = || self.rows.iter().map(|row| &row.name).chain(self.experiments.iter().map(|one| &one.name));
        if let Some(unknown) = names.iter().find(|name| known().all(|one| one != *name)) {
            let known = known().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let problem = format!("the scoreboard has no row `{unknown}`");
            return Err(Failure::usage(problem, format!("name one of {known}")));
        }
        let is_wanted = |name: &String| names.is_empty() || names.contains(name);
        let rows = self.rows.iter().filter(|row| is_wanted(&row.name)).collect();
        Ok((rows, self.experiments.iter().filter(|one| is_wanted(&one.name)).collect()))
    }
}

impl BoardRow {
    /// A tenth in tests.
    pub fn node_count(&self, amount: Amount) -> u32 {
        if amount == Amount::Smoke { self.nodes.div_ceil(10) } else { self.nodes }
    }

    /// Memory never decides: tasks of most of the traces have no demand for it.
    pub fn node(&self) -> Resources {
        const MIB_FOR_EACH_CPU: u32 = 64 * 1_024;
        Resources::new(self.cpus * 1_000, self.cpus * MIB_FOR_EACH_CPU)
    }

    /// The queues of its jobs.
    ///
    /// # Panics
    /// If the file that is part of the program is wrong, which a test rules out.
    pub fn queues(&self) -> QueueTree {
        let named = self.jobs.iter().filter_map(|jobs| Some((jobs.queue.as_ref()?, jobs.guaranteed)));
        let spec = |(name, guaranteed): (&String, f64)| {
            let guaranteed = (guaranteed * 1e6).round() as u32;
            QueueSpec { guaranteed, ..QueueSpec::named(&format!("root.{name}")) }
        };
        QueueTree::new(named.map(spec).collect()).expect("scoreboard.toml is right")
    }

    /// The jobs for a seed: an eighth of them in a quick run, and a few drawn ones instead of those of the traces in tests.
    ///
    /// # Errors
    /// The folder or a file is missing, or a file is damaged.
    pub fn jobs(&self, half: Half, variant: Variant, seed: u64, extent: &Extent) -> Result<Workload> {
        let cpus = self.node_count(extent.amount) * self.cpus;
        // Sources with the same seed would have the same arrivals on different scales.
        let seeds = (0..).map(|source: u64| seed + source * 1_000_000);
        let mut parts = self.jobs.iter().zip(seeds).map(|(jobs, seed)| jobs.read(half, variant, seed, cpus, extent));
        let mut workload = parts.next().expect("each row has jobs, as a test checks")?;
        for more in parts {
            let Workload { jobs, notes, .. } = more?;
            workload.jobs.extend(jobs);
            workload.notes.extend(notes);
        }
        workload.jobs.sort_by_key(|job| job.arrival);
        Ok(workload)
    }
}

impl JobsOfRow {
    /// Those of this source. `cpus`: of the cluster.
    fn read(&self, half: Half, variant: Variant, seed: u64, cpus: u32, extent: &Extent) -> Result<Workload> {
        let of_half = if half == Half::Development { &self.development } else { &self.validation };
        let (source, mut options) = if extent.amount == Amount::Smoke {
            let few = [("jobs", "12"), ("tasks", "uniform:1-6"), ("run-time", "exponential:20s")];
            let few = few.map(|(key, value)| (key.to_owned(), value.to_owned()));
            ("synthetic:gridmix".to_owned(), few.to_vec())
        } else {
            let options = self.options.iter().chain(&of_half.options);
            let options = options.map(|(key, value)| (key.clone(), fewer(key, value, extent.amount)));
            (source("scoreboard", &of_half.read, extent)?, options.collect())
        };
        let mut set = |key: &str, value: &str| options.push((key.to_owned(), value.to_owned()));
        set("seed", &seed.to_string());
        variant.options().iter().for_each(|(key, value)| set(key, value));
        if self.at_once {
            set("arrival", "at-once");
        }
        let read = |options: &[(String, String)]| {
            trace::read(&source, options).map_err(|error| Failure::usage(error.problem, error.remedy))
        };
        let mut workload = match self.load {
            None => read(&options)?,
            Some(load) => {
                // The format scales all arrivals, these too.
                let scales = options.iter().filter(|(key, _)| ["time-scale", "arrival-scale"].contains(&&**key));
                let scale: f64 = scales.filter_map(|(_, scale)| scale.parse::<f64>().ok()).product();
                let gap_s = cpu_seconds(&read(&options)?) / (f64::from(cpus) * load) / scale;
                options.push(("arrival".to_owned(), format!("poisson:{:.0}us", (gap_s * 1e6).max(1.0))));
                read(&options)?
            }
        };
        for job in &mut workload.jobs {
            self.queue.iter().for_each(|queue| Arc::make_mut(&mut job.spec).queue.clone_from(queue));
        }
        Ok(workload)
    }
}

fn fewer(key: &str, value: &str, amount: Amount) -> String {
    let jobs = value.parse::<u32>().ok().filter(|_| amount == Amount::Quick && ["limit", "draw"].contains(&key));
    jobs.map_or_else(|| value.to_owned(), |jobs| jobs.div_ceil(8).to_string())
}

/// CPU seconds of a mean job.
fn cpu_seconds(workload: &Workload) -> f64 {
    let of_job = |job: &trace::TraceJob| {
        let stages = job.spec.stages.iter().zip(job.run_times.iter());
        let seconds = stages.map(|(stage, times)| {
            times.total_seconds(stage.tasks.len()) * f64::from(stage.resources.basic.cpu_millis()) / 1e3
        });
        seconds.sum::<f64>()
    };
    workload.jobs.iter().map(of_job).sum::<f64>() / workload.jobs.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_halves_of_a_row_read_other_files_or_other_parts_of_a_file() {
        let board = Board::load();
        for (row, jobs) in board.rows.iter().flat_map(|row| row.jobs.iter().map(move |jobs| (row, jobs))) {
            let parts = |half: &HalfOfRow| (half.read.clone(), half.options.get("part").cloned());
            let (development, validation) = (parts(&jobs.development), parts(&jobs.validation));
            let is_apart = match (&development, &validation) {
                ((one, Some(first)), (other, Some(second))) if one == other => first == "1/2" && second == "2/2",
                ((one, _), (other, _)) => one != other,
            };
            assert!(is_apart, "{}: {development:?} and {validation:?}", row.name);
            assert!(jobs.development.read.contains(':') && jobs.validation.read.contains(':'), "{}", row.name);
            assert!(!(jobs.at_once && jobs.load.is_some()), "{}", row.name);
        }
        assert!(board.presets.contains(&"drf".to_owned()), "jobs are compared with it");
    }

    #[test]
    fn jobs_with_a_load_arrive_at_that_rate_also_if_their_times_are_scaled() {
        for (time, arrival) in [("1", "1"), ("0.1", "1"), ("10", "0.5")] {
            let options = [("jobs", "2000"), ("time-scale", time), ("arrival-scale", arrival)];
            let half = || HalfOfRow { read: "synthetic:gridmix".to_owned(), options: BTreeMap::new() };
            let jobs = JobsOfRow {
                queue: None,
                guaranteed: 0.0,
                load: Some(0.5),
                at_once: false,
                options: options.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
                development: half(),
                validation: half(),
            };
            let extent = Extent { seeds: 1..=1, threads: 1, amount: Amount::Whole, traces: None };
            let found = jobs.read(Half::Development, Variant::Plain, 1, 100, &extent).expect("it is synthetic");
            let last = found.jobs.iter().map(|job| job.arrival.as_secs_f64()).fold(0.0, f64::max);
            let load = cpu_seconds(&found) * found.jobs.len() as f64 / (last * 100.0);
            assert!((0.45..0.55).contains(&load), "{time}, {arrival}: {load}");
        }
    }

    #[test]
    fn every_row_has_jobs_with_known_options_and_queues_that_exist() {
        for row in &Board::load().rows {
            assert!(!row.jobs.is_empty(), "{}", row.name);
            let queues = row.queues();
            for jobs in &row.jobs {
                assert!(queues.leaf(jobs.queue.as_deref().unwrap_or_default()).is_ok(), "{}", row.name);
                assert!(jobs.queue.is_some() || row.jobs.len() == 1, "{}: jobs without a queue", row.name);
                for half in [&jobs.development, &jobs.validation] {
                    let options =
                        jobs.options.iter().chain(&half.options).map(|(key, value)| (key.clone(), value.clone()));
                    // The file is not there, so that only the options can be wrong.
                    let source = half.read.replacen(':', ":/nowhere/", 1);
                    let refused = trace::read(&source, &options.collect::<Vec<_>>()).expect_err("no such file");
                    assert!(refused.problem.contains("/nowhere/"), "{}: {}", row.name, refused.problem);
                }
            }
        }
    }
}
