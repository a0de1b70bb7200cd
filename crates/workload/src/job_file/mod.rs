//! The types of a job file. They read it and they generate its published schema, so the two cannot part.

mod values;

pub(crate) use values::{
    Array, Command, ConstraintText, Each, Environment, ExportText, JobIds, OutputCap, ResourceTable, Time, Timeout,
    UmaskText, Word,
};

use crate::document::At;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;

/// A job: stages of tasks. A job with one stage may give the stage's keys at the top. In a job with a `stage` list
/// the top-level `env`, `workdir`, `resources`, `expected`, `execution`, `constraints`, `near`, `retries`,
/// `retry_delay`, `timeout` and `output_cap` are defaults for every stage.
#[derive(Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Amalgam job file", rename = "Job")]
pub(crate) struct JobFile {
    /// A name for people; the file's name without it.
    pub name: Option<At<String>>,
    /// The full name of a queue, such as `root.analytics`.
    pub queue: Option<At<String>>,
    /// Higher goes first within the queue.
    pub priority: Option<i32>,
    /// Once more tasks than this have failed for good, the rest is cancelled.
    #[serde(alias = "max-fails")]
    pub max_fails: Option<u32>,
    /// Ids of jobs that must have succeeded first.
    pub after: Option<JobIds>,
    /// Ids of jobs that must have ended first, be it without success.
    #[serde(alias = "after-any")]
    pub after_any: Option<JobIds>,
    /// Accept the job but start nothing until it is released.
    pub hold: Option<bool>,
    /// Accept the job although no known node could ever run it.
    #[serde(alias = "wait-for-nodes")]
    pub wait_for_nodes: Option<bool>,
    /// Which variables of the submitter tasks find: `none` (the default), `all`, or names with or without a value, such as
    /// `A,B=value`. `env` comes before them.
    pub export: Option<At<ExportText>>,
    /// The mask of the modes of files that tasks make, such as `027`, or `submitter`; the node's own without it.
    pub umask: Option<At<UmaskText>>,
    /// The stages, in any order that has no cycles.
    #[serde(alias = "stages")]
    pub stage: Option<At<Vec<At<StageFile>>>>,

    /// What a task runs: a list of the program and its arguments, or one text for `sh -c`.
    pub command: Option<At<Command>>,
    /// How many tasks.
    pub tasks: Option<At<u32>>,
    /// Indexes of the tasks, such as `0-199,300-400:10`; `0-199%10` runs at most 10 of them at once.
    pub array: Option<At<Array>>,
    /// The most tasks of the stage that run at once.
    #[serde(alias = "at-once")]
    pub at_once: Option<At<u32>>,
    /// One task for each file, line, JSON value or item.
    pub each: Option<At<Each>>,
    /// What each task needs.
    pub resources: Option<At<ResourceTable>>,
    /// How long a task is expected to run, such as `90s`.
    pub expected: Option<Time>,
    /// Whether guaranteed work may preempt the tasks.
    pub execution: Option<Execution>,
    /// Conditions on a node's attributes, such as `arch=x86_64` or `kernel>=5.10`.
    pub constraints: Option<Vec<ConstraintText>>,
    /// Names of the nodes that have the input: tasks wait a while for room there, then run anywhere.
    pub near: Option<Vec<At<String>>>,
    /// How often a failed task is tried again.
    pub retries: Option<u32>,
    /// How long a failed task waits before it is tried again, such as `5s`: twice as long after each further failure, up to a
    /// minute; one second unless given, and `0s` for at once.
    #[serde(alias = "retry-delay")]
    pub retry_delay: Option<Time>,
    /// A task that runs longer is ended, such as `5m`.
    pub timeout: Option<Timeout>,
    /// The tasks begin together, as in a stage.
    pub gang: Option<At<bool>>,
    /// Variables for the tasks.
    pub env: Option<At<Environment>>,
    /// `submitted` (where the job was submitted from, the default), `own` (an empty directory per task) or a path.
    pub workdir: Option<At<Word>>,
    /// How much is kept of a task's standard output, and of its standard error; 64MiB unless given.
    #[serde(alias = "output-cap")]
    pub output_cap: Option<OutputCap>,
    /// Files that a task leaves in its working directory, as in a stage.
    pub outputs: Option<At<Vec<At<String>>>>,
}

/// Tasks that run the same command.
#[derive(Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Stage")]
pub(crate) struct StageFile {
    /// The name by which other stages depend on this one.
    pub name: Option<At<String>>,
    /// Names of stages that must have succeeded first.
    pub after: Option<Vec<At<String>>>,
    /// What a task runs: a list of the program and its arguments, or one text for `sh -c`.
    pub command: Option<At<Command>>,
    /// How many tasks; one unless `array` or `each` is given.
    pub tasks: Option<At<u32>>,
    /// Indexes of the tasks, such as `0-199,300-400:10`; `0-199%10` runs at most 10 of them at once.
    pub array: Option<At<Array>>,
    /// The most tasks of the stage that run at once.
    #[serde(alias = "at-once")]
    pub at_once: Option<At<u32>>,
    /// One task for each file, line, JSON value or item.
    pub each: Option<At<Each>>,
    /// What each task needs; one CPU unless `cpu` is given.
    pub resources: Option<At<ResourceTable>>,
    /// How long a task is expected to run, such as `90s`.
    pub expected: Option<Time>,
    /// Whether guaranteed work may preempt the tasks.
    pub execution: Option<Execution>,
    /// Conditions on a node's attributes, such as `arch=x86_64` or `kernel>=5.10`.
    pub constraints: Option<Vec<ConstraintText>>,
    /// Names of the nodes that have the input: tasks wait a while for room there, then run anywhere.
    pub near: Option<Vec<At<String>>>,
    /// How often a failed task is tried again.
    pub retries: Option<u32>,
    /// How long a failed task waits before it is tried again, such as `5s`: twice as long after each further failure, up to a
    /// minute; one second unless given, and `0s` for at once.
    #[serde(alias = "retry-delay")]
    pub retry_delay: Option<Time>,
    /// A task that runs longer is ended, such as `5m`.
    pub timeout: Option<Timeout>,
    /// Instead of the job's: of all tasks in the queue those of a higher priority go first.
    pub priority: Option<i32>,
    /// No task begins before there is room for all of the stage, and if one has to be tried again, all that have not ended are.
    pub gang: Option<At<bool>>,
    /// Variables for the tasks.
    pub env: Option<At<Environment>>,
    /// `submitted` (where the job was submitted from, the default), `own` (an empty directory per task) or a path.
    pub workdir: Option<At<Word>>,
    /// How much is kept of a task's standard output, and of its standard error; 64MiB unless given.
    #[serde(alias = "output-cap")]
    pub output_cap: Option<OutputCap>,
    /// Files that a task leaves in its working directory for other stages, such as `counts.txt` or `part-{index}.txt`.
    /// Tasks with outputs or inputs run in a directory of their own.
    pub outputs: Option<Vec<At<String>>>,
    /// Outputs of stages that this one comes after, which a task finds under `inputs/STAGE/INDEX/NAME`: `map/*` are all of
    /// `map`, `map/part-{index}.txt` those with the task's own index.
    pub inputs: Option<Vec<At<String>>>,
}

#[derive(Deserialize, JsonSchema, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum Execution {
    Guaranteed,
    Opportunistic,
    Auto,
}

/// The same schema, as a part of a larger description.
pub fn job_file_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    generator.subschema_for::<JobFile>()
}

/// The schema of a job file, as published in `docs/job.schema.json`.
pub fn json_schema() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<JobFile>();
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
