//! `wfformat`: workflow instances of WfCommons, versions 1.3 to 1.5. Each task becomes a stage of one task, because
//! each has its own dependencies.
//!
//! | what | 1.3 | 1.4 | 1.5 |
//! |---|---|---|---|
//! | tasks, in `workflow` | `tasks` | `tasks` | `specification.tasks`, measured in `execution.tasks` |
//! | run time | `runtime`, seconds | `runtimeInSeconds` | `runtimeInSeconds` |
//! | memory | `memory`, kB | `memoryInBytes` | `memoryInBytes` |
//! | cores | `cores` | `cores` | `coreCount` |
//! | referred to by | name or id | name or id | id |

use super::TraceFormat;
use crate::trace::RunTimes;
use crate::trace::demand::resources;
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::{Duration, ResourceSpec};
use serde::Deserialize;
use std::collections::BTreeMap;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "wfformat", about: "workflow instances of WfCommons, 1.3 to 1.5 (.json)", keys: &[], read };

const VERSIONS: [&str; 3] = ["1.3", "1.4", "1.5"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Instance {
    name: String,
    schema_version: String,
    workflow: Workflow,
}

#[derive(Deserialize)]
struct Workflow {
    /// Up to 1.4.
    #[serde(default)]
    tasks: Vec<Task>,
    specification: Option<Tasks>,
    execution: Option<Tasks>,
}

#[derive(Deserialize)]
struct Tasks {
    tasks: Vec<Task>,
}

/// A task's specification, its measurements, or both.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Task {
    name: String,
    id: String,
    parents: Vec<String>,
    children: Vec<String>,
    #[serde(alias = "runtime")]
    runtime_in_seconds: Option<f64>,
    #[serde(alias = "cores")]
    core_count: Option<f64>,
    /// In kB.
    memory: Option<f64>,
    memory_in_bytes: Option<f64>,
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    for file in reading.files(&[".json"])? {
        if reading.is_full() {
            break;
        }
        let content = input::text(&file)?;
        let (line, draft) = match serde_json::from_str::<Instance>(&content) {
            Ok(instance) => (1, job(instance)),
            Err(error) => (error.line() as u64, Err(error.to_string())),
        };
        if let Err(problem) = draft.and_then(|draft| reading.add(draft)) {
            reading.malformed(&file, line, problem);
        }
    }
    reading.note("each task of a workflow is a stage of its own; data transfers are not modelled");
    Ok(())
}

fn job(instance: Instance) -> Result<Draft, String> {
    if !VERSIONS.contains(&instance.schema_version.as_str()) {
        return Err(format!("version {} is not one of {}", instance.schema_version, VERSIONS.join(", ")));
    }
    let (tasks, measured) = match (instance.workflow.specification, instance.workflow.execution) {
        (Some(specification), Some(execution)) => (specification.tasks, Some(execution.tasks)),
        (Some(_), None) => return Err("the workflow was not executed, so it has no run times".to_owned()),
        (None, _) => (instance.workflow.tasks, None),
    };
    let befores = befores(&tasks)?;
    let measured = measured.map(|measured| {
        let by_id = measured.into_iter().map(|task| (task.id.clone(), task));
        by_id.collect::<BTreeMap<String, Task>>()
    });
    let stage = |(task, after): (&Task, Vec<usize>)| {
        let measured = match &measured {
            None => task,
            Some(by_id) => {
                by_id.get(&task.id).ok_or_else(|| format!("the task `{}` was not executed", task.label()))?
            }
        };
        let run_time = measured.run_time().ok_or_else(|| format!("the task `{}` has no run time", task.label()))?;
        let mut stage = DraftStage::new(task.label(), 1, RunTimes::Same(run_time)).after(after);
        stage.demand = measured.demand();
        Ok(stage)
    };
    let stages = tasks.iter().zip(befores).map(stage).collect::<Result<_, String>>()?;
    Ok(Draft { name: instance.name, stages, ..Draft::default() })
}

impl Task {
    fn label(&self) -> &str {
        if self.id.is_empty() { &self.name } else { &self.id }
    }

    fn run_time(&self) -> Option<Duration> {
        let seconds = self.runtime_in_seconds.filter(|seconds| (0.0..1e9).contains(seconds))?;
        Some(Duration::from_micros((seconds * 1e6).round() as u64))
    }

    /// Cores and memory, or `None` if neither was measured. Defaults: one core, no memory.
    fn demand(&self) -> Option<ResourceSpec> {
        let bytes = self.memory_in_bytes.or(self.memory.map(|kilobytes| kilobytes * 1e3));
        if self.core_count.is_none() && bytes.is_none() {
            return None;
        }
        Some(resources(self.core_count.unwrap_or(1.0), bytes.unwrap_or(0.0) / f64::from(1 << 20)))
    }
}

/// The tasks before each task. A dependency may be stated by either of its tasks.
fn befores(tasks: &[Task]) -> Result<Vec<Vec<usize>>, String> {
    let mut index_of = BTreeMap::new();
    for (index, task) in tasks.iter().enumerate() {
        index_of.entry(task.name.as_str()).or_insert(index);
    }
    // Ids are unique, so an id has priority over an equal name.
    for (index, task) in tasks.iter().enumerate().filter(|(_, task)| !task.id.is_empty()) {
        index_of.insert(&task.id, index);
    }
    let find = |task: &Task, other: &str| match index_of.get(other) {
        Some(index) => Ok(*index),
        None => Err(format!("the task `{}` refers to `{other}`, which does not exist", task.label())),
    };
    let mut befores = vec![Vec::new(); tasks.len()];
    for (index, task) in tasks.iter().enumerate() {
        for parent in &task.parents {
            befores[index].push(find(task, parent)?);
        }
        for child in &task.children {
            befores[find(task, child)?].push(index);
        }
    }
    Ok(befores)
}
