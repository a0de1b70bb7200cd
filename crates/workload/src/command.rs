//! Makes a job from a command line: `amalgam run --array 0-9 -- ./simulate`.

use crate::build::{Context, DEFAULT_OUTPUT_CAP, default_name, parse_workdir};
use crate::job_file::Each;
use crate::quantities::{LimitedArray, Malformed, check_needs};
use crate::{bytes_of, path_of, tasks};
use amalgam_core::vocabulary::{
    ByteString, Constraint, Duration, ExecutionType, Isolation, JobSpec, Program, Reads, ResourceSpec, Resources,
    StageSpec, TaskSet, resources,
};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The options of a command line beside the command. All are optional.
#[derive(Clone, Default, Debug)]
pub struct CommandOptions {
    pub job: JobOptions,
    pub array: Option<LimitedArray>,
    /// Maximum number of tasks that run at once.
    pub at_once: Option<u32>,
    /// A file; one task per line.
    pub each_line: Option<ByteString>,
    pub cpu_millis: Option<u32>,
    pub memory_mib: Option<u32>,
    pub gpus: Option<u32>,
    /// Custom resources by name.
    pub resources: Vec<(String, u32)>,
    pub expected: Option<Duration>,
    pub execution: Option<ExecutionType>,
    pub constraints: Vec<Constraint>,
    pub retries: Option<u32>,
    pub retry_delay: Option<Duration>,
    pub timeout: Option<Duration>,
    pub gang: bool,
    pub workdir: Option<ByteString>,
    /// Maximum number of bytes that are kept of each output stream.
    pub output_cap: Option<u64>,
}

/// Options that are also accepted with a job file. They replace its keys.
#[derive(Clone, Default, Debug)]
pub struct JobOptions {
    pub name: Option<String>,
    pub queue: Option<String>,
    pub priority: Option<i32>,
    pub max_fails: Option<u32>,
    pub hold: bool,
    pub wait_for_nodes: bool,
    pub env: Vec<(ByteString, ByteString)>,
    pub umask: Option<u16>,
    pub isolation: Option<Isolation>,
    /// The image of a container; it must be valid.
    pub container: Option<String>,
}

impl JobOptions {
    pub fn apply_to(&self, job: &mut JobSpec) {
        if let Some(name) = &self.name {
            job.name.clone_from(name);
        }
        if let Some(queue) = &self.queue {
            job.queue.clone_from(queue);
        }
        job.priority = self.priority.unwrap_or(job.priority);
        job.max_fails = self.max_fails.or(job.max_fails);
        job.held |= self.hold;
        job.wait_for_nodes |= self.wait_for_nodes;
        if self.umask.is_some() {
            job.stages.iter_mut().for_each(|stage| Arc::make_mut(&mut stage.program).umask = self.umask);
        }
        if self.isolation.is_some() {
            job.stages.iter_mut().for_each(|stage| Arc::make_mut(&mut stage.program).isolation = self.isolation);
        }
        if self.container.is_some() {
            job.stages
                .iter_mut()
                .for_each(|stage| Arc::make_mut(&mut stage.program).container.clone_from(&self.container));
        }
        if !self.env.is_empty() {
            for stage in &mut job.stages {
                let env = &mut Arc::make_mut(&mut stage.program).env;
                env.retain(|(name, _)| !self.env.iter().any(|(replaced, _)| replaced == name));
                env.extend(self.env.iter().cloned());
            }
        }
    }
}

/// Makes a job of one stage.
///
/// # Errors
/// The problem of the command or an option, and the remedy.
pub fn from_command(
    command: Vec<ByteString>,
    options: &CommandOptions,
    context: &Context,
) -> Result<JobSpec, Malformed> {
    let Some(program) = command.first().filter(|program| !program.as_bytes().is_empty()) else {
        return Err(Malformed::new("the command is missing", "write it after `--`"));
    };
    let name = path_of(program).file_name().map_or(&b""[..], OsStrExt::as_bytes);
    let name = default_name(name);
    let tasks = match (&options.array, &options.each_line) {
        (None, None) => TaskSet::Count(1),
        (Some((ranges, _)), None) => tasks::indexed(ranges.clone())?,
        (None, Some(file)) => tasks::each(Each::Lines(file.clone()), &context.submit_dir)?,
        (Some(_), Some(_)) => {
            return Err(Malformed::new("the tasks are defined twice", "keep one of --array and --each-line"));
        }
    };
    if options.gang {
        tasks::check_gang(tasks.len(), options.execution.unwrap_or_default())?;
    }
    let limits = [options.array.as_ref().and_then(|(_, limit)| *limit), options.at_once];
    let at_once = tasks::check_at_once(limits, options.gang.then_some(tasks.len()))?;
    let basic = Resources::new(options.cpu_millis.unwrap_or(1000), options.memory_mib.unwrap_or(0))
        .with(resources::GPU, options.gpus.unwrap_or(0));
    let resources = ResourceSpec { basic, custom: options.resources.clone() };
    check_needs(&resources)?;
    let workdir = options.workdir.as_ref().map(parse_workdir).transpose()?.unwrap_or_default();
    let output_cap = options.output_cap.unwrap_or(DEFAULT_OUTPUT_CAP);
    let stage = StageSpec {
        name: "main".to_owned(),
        after: Vec::new(),
        tasks,
        program: Arc::new(Program { command, workdir, output_cap, ..Program::default() }),
        resources,
        expected: options.expected,
        execution: options.execution.unwrap_or_default(),
        constraints: options.constraints.clone(),
        near: Vec::new(),
        retries: options.retries.unwrap_or(0),
        retry_delay: options.retry_delay,
        timeout: options.timeout,
        priority: None,
        gang: options.gang,
        at_once,
        outputs: Vec::new(),
        inputs: Vec::new(),
        input_kib: Vec::new(),
        reads: Reads::default(),
    };
    let submit_dir = bytes_of(&context.submit_dir);
    let mut job = JobSpec { name, submit_dir, stages: vec![stage], ..JobSpec::default() };
    options.job.apply_to(&mut job);
    Ok(job)
}
