//! The types of a job file. They read the file and generate its published schema, so that both always agree.

mod values;

pub(crate) use values::{
    Array, Command, ConstraintText, Each, Environment, ExportText, JobIds, OutputCap, ResourceTable, TaintText, Time,
    Timeout, UmaskText, Word,
};

use crate::document::At;
use amalgam_core::vocabulary::Isolation;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;

/// Declares the types of a job and of a stage. Both have the keys of `both`, after their own ones. Neither of them can
/// contain the other's keys as a field, because `serde(flatten)` loses positions and unknown keys.
macro_rules! job_and_stage {
    (
        both { $($(#[$of_key:meta])* pub $key:ident: $value:ty,)* }
        $(#[$of_job:meta])* job { $($job_keys:tt)* }
        $(#[$of_stage:meta])* stage { $($stage_keys:tt)* }
    ) => {
        #[derive(Deserialize, JsonSchema, Debug)]
        #[serde(deny_unknown_fields)]
        $(#[$of_job])*
        pub(crate) struct JobFile {
            $($job_keys)*
            $($(#[$of_key])* pub $key: $value,)*
        }

        #[derive(Deserialize, JsonSchema, Default, Debug)]
        #[serde(deny_unknown_fields)]
        $(#[$of_stage])*
        pub(crate) struct StageFile {
            $($stage_keys)*
            $($(#[$of_key])* pub $key: $value,)*
        }

        impl JobFile {
            /// Takes the keys of `both` for the only stage of the job.
            pub(crate) fn take_stage(&mut self) -> StageFile {
                StageFile { $($key: self.$key.take(),)* ..StageFile::default() }
            }
        }
    };
}

job_and_stage! {
    both {
        /// Command of each task: a list of the program and its arguments, or one text for `sh -c`.
        pub command: Option<At<Command>>,
        /// Indexes of the tasks, such as `0-199,300-400:10`; `0-199%10` runs at most 10 of them at once.
        pub array: Option<At<Array>>,
        /// Maximum number of tasks of the stage that run at once.
        #[serde(alias = "at-once")]
        pub at_once: Option<At<u32>>,
        /// One task for each file, line, JSON value or item.
        pub each: Option<At<Each>>,
        /// Expected run time of a task, such as `90s`.
        pub expected: Option<Time>,
        /// Whether guaranteed work may preempt the tasks.
        pub execution: Option<Execution>,
        /// Conditions on a node's attributes, such as `arch=x86_64` or `kernel>=5.10`.
        pub constraints: Option<Vec<ConstraintText>>,
        /// Taints, such as `gpu`: the tasks may also run on nodes with these.
        pub tolerates: Option<Vec<TaintText>>,
        /// Names of the nodes that store the input. Tasks wait briefly for room there, then run anywhere.
        pub near: Option<Vec<At<String>>>,
        /// Maximum number of retries of a failed task.
        pub retries: Option<u32>,
        /// Wait before the first retry of a failed task, such as `5s`. It is doubled after each further failure, up to one
        /// minute. Default: `1s`. `0s` retries at once.
        #[serde(alias = "retry-delay")]
        pub retry_delay: Option<Time>,
        /// Maximum run time of a task, such as `5m`. A task that runs longer is stopped.
        pub timeout: Option<Timeout>,
        /// Variables for the tasks.
        pub env: Option<At<Environment>>,
        /// Working directory: `submitted` (the directory of the submission, the default), `own` (an empty directory for
        /// each task) or an absolute path.
        pub workdir: Option<At<Word>>,
        /// Maximum size that is kept of a task's standard output, and of its standard error. Default: 64MiB.
        #[serde(alias = "output-cap")]
        pub output_cap: Option<OutputCap>,
        /// What a task does not share with its node: `none` (the default), `private-tmp` (it has `/tmp`, `/var/tmp` and
        /// `/dev/shm` of its own), or `sandbox` (it also sees no other processes and only reads the system).
        pub isolation: Option<IsolationText>,
        /// The image of a container that the command runs in, such as `docker.io/library/debian:12`. The tasks run on nodes
        /// with podman or apptainer.
        pub container: Option<At<String>>,
    }

    /// A job: stages of tasks. A job with one stage may have the stage's keys at the top level. In a job with a `stage`
    /// list the top-level `env`, `workdir`, `resources`, `expected`, `execution`, `constraints`, `tolerates`, `near`,
    /// `retries`, `retry_delay`, `timeout`, `output_cap`, `isolation` and `container` are defaults for every stage.
    #[schemars(title = "Amalgam job file", rename = "Job")]
    job {
        /// A name for people. Default: the file's name.
        pub name: Option<At<String>>,
        /// The full name of a queue, such as `root.analytics`.
        pub queue: Option<At<String>>,
        /// Priority within the queue. Jobs with a higher one are scheduled first.
        pub priority: Option<i32>,
        /// Maximum number of failed tasks. If more tasks fail finally, the rest of the job is cancelled.
        #[serde(alias = "max-fails")]
        pub max_fails: Option<u32>,
        /// Ids of jobs that must have succeeded first.
        pub after: Option<JobIds>,
        /// Ids of jobs that must have ended first, with or without success.
        #[serde(alias = "after-any")]
        pub after_any: Option<JobIds>,
        /// Accept the job, but start no task until it is released.
        pub hold: Option<bool>,
        /// Accept the job even if no current node can run it.
        #[serde(alias = "wait-for-nodes")]
        pub wait_for_nodes: Option<bool>,
        /// Variables of the submitter that tasks get: `none` (the default), `all`, or names with or without a value, such
        /// as `A,B=value`. Variables in `env` replace them.
        pub export: Option<At<ExportText>>,
        /// Umask of the tasks, such as `027`, or `submitter` for the submitter's. Default: the umask of the node.
        pub umask: Option<At<UmaskText>>,
        /// The stages, in any order. Their dependencies must not form a cycle.
        #[serde(alias = "stages")]
        pub stage: Option<At<Vec<At<StageFile>>>>,
        /// Number of tasks.
        pub tasks: Option<At<u32>>,
        /// Resources of each task.
        pub resources: Option<At<ResourceTable>>,
        /// Start all tasks at the same time, as in a stage.
        pub gang: Option<At<bool>>,
        /// Output files in the working directory of a task, as in a stage.
        pub outputs: Option<At<Vec<At<String>>>>,
    }

    /// Tasks that run the same command.
    #[schemars(rename = "Stage")]
    stage {
        /// The name by which other stages depend on this one.
        pub name: Option<At<String>>,
        /// Names of stages that must have succeeded first.
        pub after: Option<Vec<At<String>>>,
        /// Number of tasks. Default: 1, unless `array` or `each` is given.
        pub tasks: Option<At<u32>>,
        /// Resources of each task. Default of `cpu`: 1.
        pub resources: Option<At<ResourceTable>>,
        /// Priority of the stage's tasks within the queue. Tasks with a higher one are scheduled first. Default: the
        /// priority of the job.
        pub priority: Option<i32>,
        /// Start all tasks of the stage at the same time, once all have room. If one is retried, all that have not ended
        /// are.
        pub gang: Option<At<bool>>,
        /// Output files in the working directory of a task, for other stages, such as `counts.txt` or `part-{index}.txt`.
        /// Tasks with outputs or inputs run in a directory of their own.
        pub outputs: Option<Vec<At<String>>>,
        /// Input files: outputs of stages in `after`. A task finds them as `inputs/STAGE/INDEX/NAME`. `map/*` selects all
        /// outputs of `map`, `map/part-{index}.txt` those with the task's own index.
        pub inputs: Option<Vec<At<String>>>,
    }
}

#[derive(Deserialize, JsonSchema, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum Execution {
    Guaranteed,
    Opportunistic,
    Auto,
}

#[derive(Deserialize, JsonSchema, Clone, Copy, Debug)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub(crate) enum IsolationText {
    None,
    PrivateTmp,
    Sandbox,
}

impl IsolationText {
    pub(crate) fn value(self) -> Isolation {
        match self {
            IsolationText::None => Isolation::None,
            IsolationText::PrivateTmp => Isolation::PrivateTmp,
            IsolationText::Sandbox => Isolation::Sandbox,
        }
    }
}

/// The schema of a job file, as a part of the schema that `generator` builds.
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
