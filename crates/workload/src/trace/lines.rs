//! A workload as JSON lines, one job in each line, which the format `job` reads. `docs/workloads.md` describes it.

use super::reading::{Draft, DraftStage};
use super::{RunTimes, TraceJob, Workload};
use amalgam_core::vocabulary::resources::{BUILT_IN, FIRST_CUSTOM};
use amalgam_core::vocabulary::{Constraint, Duration, ResourceSpec, Resources};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobLine {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    queue: String,
    #[serde(default)]
    priority: i32,
    arrival_us: Option<u64>,
    stages: Vec<StageLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageLine {
    name: String,
    /// Indexes of stages of the same job.
    #[serde(default)]
    after: Vec<usize>,
    tasks: u32,
    run_times_us: TimesLine,
    #[serde(default)]
    expected_us: Option<u64>,
    /// In thousandths of a core, MiB, MB/s and devices. If it is missing, the option `demand` is used.
    #[serde(default)]
    resources: Option<BTreeMap<String, u32>>,
    #[serde(default)]
    constraints: Vec<String>,
    /// Whether the tasks start together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    gang: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum TimesLine {
    Same(u64),
    Each(Vec<u64>),
}

impl Workload {
    /// Writes the jobs as JSON lines.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn write_lines(&self, out: &mut impl Write) -> io::Result<()> {
        for job in &self.jobs {
            serde_json::to_writer(&mut *out, &JobLine::of(job))?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}

impl JobLine {
    fn of(job: &TraceJob) -> JobLine {
        let stage = |(stage, times): (&amalgam_core::vocabulary::StageSpec, &RunTimes)| StageLine {
            name: stage.name.clone(),
            after: stage.after.iter().map(|before| *before as usize).collect(),
            tasks: stage.tasks.len(),
            run_times_us: match times {
                RunTimes::Same(time) => TimesLine::Same(time.as_micros()),
                RunTimes::Each(times) => TimesLine::Each(times.iter().map(|time| time.as_micros()).collect()),
            },
            expected_us: stage.expected.map(Duration::as_micros),
            resources: Some(named(&stage.resources)),
            constraints: stage.constraints.iter().map(ToString::to_string).collect(),
            gang: stage.gang,
        };
        JobLine {
            name: job.spec.name.clone(),
            user: job.spec.user.clone(),
            queue: job.spec.queue.clone(),
            priority: job.spec.priority,
            arrival_us: Some(job.arrival.as_micros()),
            stages: job.spec.stages.iter().zip(job.run_times.iter()).map(stage).collect(),
        }
    }
}

/// Reads one line.
///
/// # Errors
/// The problem of the line.
pub(super) fn draft(line: &str) -> Result<Draft, String> {
    let job: JobLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let count = job.stages.len();
    let stages = job.stages.into_iter().map(|stage| stage.draft(count)).collect::<Result<_, _>>()?;
    Ok(Draft {
        name: job.name,
        user: job.user,
        queue: job.queue,
        priority: job.priority,
        arrival: job.arrival_us.map(Duration::from_micros),
        stages,
    })
}

impl StageLine {
    fn draft(self, stages: usize) -> Result<DraftStage, String> {
        if let Some(strange) = self.after.iter().find(|before| **before >= stages) {
            return Err(format!("the stage `{}` is after stage {strange}, but the job has {stages} stages", self.name));
        }
        let run_times = match self.run_times_us {
            TimesLine::Same(time) => RunTimes::Same(Duration::from_micros(time)),
            TimesLine::Each(times) if times.len() == self.tasks as usize => {
                RunTimes::Each(times.into_iter().map(Duration::from_micros).collect())
            }
            TimesLine::Each(times) => {
                return Err(format!(
                    "the stage `{}` has {} tasks but {} run times",
                    self.name,
                    self.tasks,
                    times.len()
                ));
            }
        };
        let constraint = |text: &String| Constraint::parse(text).map_err(|wrong| wrong.to_string());
        Ok(DraftStage {
            constraints: self.constraints.iter().map(constraint).collect::<Result<_, _>>()?,
            estimate: self.expected_us.map(Duration::from_micros),
            demand: self.resources.map(spec),
            gang: self.gang,
            ..DraftStage::new(self.name, self.tasks, run_times).after(self.after)
        })
    }
}

fn named(resources: &ResourceSpec) -> BTreeMap<String, u32> {
    let basic = BUILT_IN.iter().zip(resources.basic.0).map(|(name, amount)| ((*name).to_owned(), amount));
    basic.filter(|(_, amount)| *amount > 0).chain(resources.custom.iter().cloned()).collect()
}

fn spec(named: BTreeMap<String, u32>) -> ResourceSpec {
    let mut spec = ResourceSpec { basic: Resources::ZERO, custom: Vec::new() };
    for (name, amount) in named {
        match BUILT_IN[..FIRST_CUSTOM].iter().position(|known| *known == name) {
            Some(kind) => spec.basic.0[kind] = amount,
            None => spec.custom.push((name, amount)),
        }
    }
    spec
}
