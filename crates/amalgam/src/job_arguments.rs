//! The common part of `run` and `submit`: a job from a file or a command.

use crate::client::{Client, idempotency_key};
use crate::failure::{Failure, Kind, Result};
use crate::selectors::ACTIVE;
use crate::selectors::{Selector, existing, resolve};
use crate::show;
use amalgam_cli::values::parse_option;
use amalgam_core::vocabulary::job::check_image;
use amalgam_core::vocabulary::launch_size;
use amalgam_core::vocabulary::{ByteString, Constraint, Duration, ExecutionType, Isolation, JobId, JobSpec};
use amalgam_daemon::api::{QueueSummary, Submitted};
use amalgam_workload::inherit::{Export, Submitter, Umask, value_of};
use amalgam_workload::quantities::{self, Malformed};
use amalgam_workload::{
    CommandOptions, Context, FileError, Format, JobOptions, bytes_of, closest, from_command, queue_position,
    read_job_of,
};
use amalgam_workload::{text, trace};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, io};

#[derive(Args, Debug)]
pub struct JobArgs {
    /// A job file: TOML, YAML or JSON; `-` reads it from standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["command", "from"])]
    file: Option<PathBuf>,
    /// A command instead of a file
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "file")]
    command: Vec<OsString>,

    /// Format of the job file, if the extension of its name does not show it
    #[arg(long, value_enum, requires = "file")]
    format: Option<FileFormat>,
    /// A name for the job
    #[arg(long, value_parser = quantities::parse_job_name)]
    name: Option<String>,
    /// The queue, such as root.analytics
    #[arg(long)]
    queue: Option<String>,
    /// Priority within the queue; jobs with a higher one are scheduled first
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// A variable for the tasks, with the value that it has here if none is given; repeatable
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = OsStringValueParser::new().try_map(parse_variable))]
    env: Vec<(ByteString, ByteString)>,
    /// Which other variables of yours tasks get: all, none, or names such as A,B=value [default: that of the job file, or none]
    #[arg(long, value_name = "WHICH", value_parser = OsStringValueParser::new().try_map(|text| Export::parse(text.as_bytes())))]
    export: Option<Export>,
    /// Umask of the tasks: octal digits such as 027, or submitter for yours [default: the node's]
    #[arg(long, value_name = "MASK", value_parser = Umask::parse)]
    umask: Option<Umask>,
    /// What tasks do not share with their node: none, private-tmp (/tmp, /var/tmp and /dev/shm of their own) or sandbox (also processes; the system is read-only)
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    isolation: Option<IsolationChoice>,
    /// The image of a container to run the command in, such as docker.io/library/debian:12; on nodes with podman or apptainer
    #[arg(long, value_name = "IMAGE", value_parser = parse_image)]
    container: Option<String>,
    /// Jobs that must have succeeded first: 7, 1-5, 3,7, last or all (of yours that have not ended); repeatable
    #[arg(long, value_name = "JOBS", value_parser = Selector::parse)]
    after: Vec<Selector>,
    /// Jobs that must have ended first, with or without success; named as for --after; repeatable
    #[arg(long, value_name = "JOBS", value_parser = Selector::parse)]
    after_any: Vec<Selector>,
    /// Maximum number of failed tasks; after one more the rest is cancelled
    #[arg(long, value_name = "N")]
    max_fails: Option<u32>,
    /// Accept the job but start nothing until it is released
    #[arg(long)]
    hold: bool,
    /// Accept the job even if no current node can run it
    #[arg(long)]
    wait_for_nodes: bool,

    #[command(flatten)]
    stage: StageArgs,
    #[command(flatten)]
    from: TraceArgs,
}

/// A job of a trace, whose tasks only sleep.
#[derive(Args, Debug)]
#[group(id = "trace", multiple = true, conflicts_with_all = ["file", "command", "stage"])]
#[command(next_help_heading = "For a job of a trace, as processes that sleep")]
struct TraceArgs {
    /// The job's trace, such as wfformat:montage.json; see `amalgam workload formats`
    #[arg(long, value_name = "FORMAT:PATH")]
    from: Option<String>,
    /// Multiply run times, such as 0.01
    #[arg(long, value_name = "FACTOR", requires = "from")]
    time_scale: Option<String>,
    /// An option of the trace, such as limit=1; repeatable
    #[arg(short = 'w', long, value_name = "KEY=VALUE", value_parser = parse_option, requires = "from")]
    workload_option: Vec<(String, String)>,
}

/// Only for a command; a job file says these itself.
#[derive(Args, Debug)]
#[group(id = "stage", multiple = true, conflicts_with = "file")]
#[command(next_help_heading = "For a command")]
struct StageArgs {
    /// Indexes of the tasks, such as 0-199 or 0-100:10; 0-199%10 runs at most 10 of them at once
    #[arg(long, value_name = "RANGES", value_parser = parse_ranges)]
    array: Option<Ranges>,
    /// A file; one task per line
    #[arg(long, value_name = "FILE", conflicts_with = "array")]
    each_line: Option<PathBuf>,
    /// Maximum number of tasks that run at once
    #[arg(long, value_name = "N", value_parser = quantities::parse_at_once)]
    at_once: Option<u32>,
    /// Resources of each task, such as cpu=2,memory=1GiB,gpu=0.5 [default: cpu=1]
    #[arg(short, long, value_name = "KIND=AMOUNT", value_delimiter = ',', value_parser = parse_need)]
    resources: Vec<Need>,
    /// A condition on nodes, such as kernel>=5.10; repeatable
    #[arg(long, value_parser = Constraint::parse)]
    constraint: Vec<Constraint>,
    /// A taint, such as gpu: tasks may also run on nodes with it; repeatable
    #[arg(long, value_name = "TAINT", value_parser = quantities::parse_taint)]
    tolerates: Vec<Constraint>,
    /// Maximum number of retries of a failed task
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// Wait before the first retry; doubled after each further failure, up to a minute; 0s for none [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = Duration::parse)]
    retry_delay: Option<Duration>,
    /// Maximum run time of a task, such as 90s or 00:01:30
    #[arg(long, value_name = "DURATION", value_parser = quantities::parse_timeout)]
    timeout: Option<Duration>,
    /// Start all tasks at the same time, once all have room; if one is retried, all that have not ended are
    #[arg(long)]
    gang: bool,
    /// Expected run time of a task
    #[arg(long, value_name = "DURATION", value_parser = Duration::parse)]
    expected: Option<Duration>,
    /// Whether guaranteed work may preempt the tasks; it has an effect under the presets mercury and mercury-plus only
    #[arg(long)]
    execution: Option<Execution>,
    /// Working directory: submitted, own or an absolute path
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Maximum size of each task's output, and of its errors, such as 1GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = quantities::parse_size)]
    output_cap: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FileFormat {
    Toml,
    Yaml,
    Json,
}

impl From<FileFormat> for Format {
    fn from(format: FileFormat) -> Format {
        match format {
            FileFormat::Toml => Format::Toml,
            FileFormat::Yaml => Format::Yaml,
            FileFormat::Json => Format::Json,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Execution {
    Guaranteed,
    Opportunistic,
    Auto,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IsolationChoice {
    None,
    PrivateTmp,
    Sandbox,
}

fn parse_image(image: &str) -> std::result::Result<String, String> {
    check_image(image).map(|()| image.to_owned())
}

impl From<IsolationChoice> for Isolation {
    fn from(choice: IsolationChoice) -> Isolation {
        match choice {
            IsolationChoice::None => Isolation::None,
            IsolationChoice::PrivateTmp => Isolation::PrivateTmp,
            IsolationChoice::Sandbox => Isolation::Sandbox,
        }
    }
}

/// A wrapper, since the parser takes a bare list as several occurrences of the flag.
#[derive(Clone, Debug)]
struct Ranges(quantities::LimitedArray);

#[derive(Clone, Debug)]
enum Need {
    Cpu(u32),
    Memory(u32),
    Gpus(u32),
    Custom(String, u32),
}

/// Reads `NAME=VALUE`, or `NAME` for a variable that is set in this process.
fn parse_variable(text: OsString) -> std::result::Result<(ByteString, ByteString), Malformed> {
    if text.as_bytes().contains(&b'=') {
        return quantities::parse_variable(&text);
    }
    let name = bytes_of(&text);
    let value = value_of(&name, &environment())?;
    quantities::parse_variable(OsStr::from_bytes(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
}

/// The environment of this process.
fn environment() -> Vec<(ByteString, ByteString)> {
    env::vars_os().map(|(name, value)| (bytes_of(name), bytes_of(value))).collect()
}

/// The umask of this process. It can only be read by setting another one.
fn umask() -> u16 {
    // SAFETY: the calls have no preconditions. No other thread runs yet that could create a file meanwhile.
    unsafe {
        let mask = libc::umask(0o077);
        libc::umask(mask);
        mask as u16
    }
}

fn parse_ranges(text: &str) -> std::result::Result<Ranges, Malformed> {
    quantities::parse_limited_array(text).map(Ranges)
}

fn parse_need(text: &str) -> std::result::Result<Need, Malformed> {
    match text.split_once('=') {
        Some(("cpu" | "cpus", amount)) => quantities::parse_cpu_millis(amount).map(Need::Cpu),
        Some(("memory" | "mem", amount)) => quantities::parse_memory_mib(amount).map(Need::Memory),
        Some(("gpus", count)) => parse_need(&format!("gpu={count}")),
        _ => quantities::parse_named_count(text).map(|(name, count)| match name.as_str() {
            "gpu" => Need::Gpus(count),
            _ => Need::Custom(name, count),
        }),
    }
}

/// A job and its dependencies on other jobs, which the server resolves.
pub struct Prepared {
    pub job: JobSpec,
    after: Vec<Selector>,
    after_any: Vec<Selector>,
    /// The job file, where that may name the queue.
    file: Option<(PathBuf, String, Format)>,
}

impl Prepared {
    pub fn submit(&mut self, client: &Client) -> Result<Submitted> {
        let after = existing(client, &resolve(client, &self.after, ACTIVE)?)?;
        self.job.after_jobs.extend(after.into_iter().map(JobId));
        let after_any = existing(client, &resolve(client, &self.after_any, ACTIVE)?)?;
        self.job.after_jobs_any.extend(after_any.into_iter().map(JobId));
        client.submit(&self.job, &idempotency_key()?).map_err(|failure| self.point_at_queue(client, failure))
    }

    /// Points at the place of a wrong queue in the file or on the command line. Only the server knows the queues.
    fn point_at_queue(&self, client: &Client, refused: Failure) -> Failure {
        let written = self.job.queue.as_str();
        if written.is_empty() || !matches!(refused.kind, Kind::Refused | Kind::NotFound) {
            return refused;
        }
        let Ok(queues) = client.get::<Vec<QueueSummary>>("/v1/queues") else { return refused };
        let holds_others = |queue: &str| queues.iter().any(|other| other.name.starts_with(&format!("{queue}.")));
        let full = queues.iter().map(|queue| queue.name.as_str()).filter(|queue| !holds_others(queue));
        let mut names = full.flat_map(|name| [Some(name), name.strip_prefix("root.")]).flatten();
        if names.clone().any(|name| name == written) {
            return refused;
        }
        let near = closest(written, &mut names).map(|near| format!("did you mean `{near}`?"));
        let (what, remedy) = (refused.what, near.unwrap_or(refused.remedy));
        let place = self.file.as_ref().and_then(|(file, text, format)| {
            let at = queue_position(text, *format)?;
            Some(FileError { file: file.clone(), at, problem: what.clone(), remedy: remedy.clone() })
        });
        place.map_or_else(|| Failure::usage(what, remedy), Failure::from)
    }
}

impl JobArgs {
    /// Whether the job file comes from standard input.
    pub fn reads_stdin(&self) -> bool {
        self.file.as_deref().is_some_and(is_stdin)
    }

    /// `verb` is used in messages.
    pub fn read(mut self, verb: &str) -> Result<Prepared> {
        let after = std::mem::take(&mut self.after);
        let after_any = std::mem::take(&mut self.after_any);
        let names_queue = self.queue.is_none();
        let file = match &self.file {
            Some(file) => Some(read_text(file, self.format).map_err(|failure| with_program(failure, file, verb))?),
            None => None,
        };
        let job = self.job(file.as_ref())?;
        if let Err((stage, wrong)) = launch_size::check(&job) {
            let problem = format!("stage `{}` cannot start: {wrong}", job.stages[stage].name);
            return Err(Failure::usage(problem, wrong.remedy()));
        }
        Ok(Prepared { job, after, after_any, file: file.filter(|_| names_queue) })
    }

    fn job(self, file: Option<&(PathBuf, String, Format)>) -> Result<JobSpec> {
        let context = context()?;
        let submitter = Submitter { export: self.export, ..submitter() };
        let umask = self.umask.map(|umask| umask.resolve(&submitter)).transpose()?;
        let mut options = CommandOptions {
            job: JobOptions {
                name: self.name,
                queue: self.queue,
                priority: self.priority,
                max_fails: self.max_fails,
                hold: self.hold,
                wait_for_nodes: self.wait_for_nodes,
                env: self.env,
                umask,
                isolation: self.isolation.map(Isolation::from),
                container: self.container,
            },
            ..self.stage.options()
        };
        let mut job = match (file, &self.from.from) {
            (Some((file, text, format)), _) => read_job_of(&submitter, text, *format, file, &context)?,
            (None, Some(trace)) => self.from.sleeping_job(trace, &context)?,
            (None, None) => {
                let exported = submitter.export.clone().unwrap_or_default().resolve(&submitter)?;
                let is_set = |name: &ByteString| options.job.env.iter().any(|(set, _)| set == name);
                let exported: Vec<_> = exported.into_iter().filter(|(name, _)| !is_set(name)).collect();
                options.job.env.extend(exported);
                let command = self.command.into_iter().map(bytes_of).collect();
                return Ok(from_command(command, &options, &context)?);
            }
        };
        options.job.apply_to(&mut job);
        Ok(job)
    }
}

/// The directory that relative paths of a job start from.
pub fn context() -> Result<Context> {
    let submit_dir = env::current_dir().map_err(|error| {
        Failure::new(format!("the working directory is gone: {error}"), "change to one that exists")
    })?;
    Ok(Context { submit_dir })
}

/// The values of this process that a job may take over.
pub fn submitter() -> Submitter {
    Submitter { environment: Some(environment()), umask: Some(umask()), ..Submitter::default() }
}

impl TraceArgs {
    fn sleeping_job(&self, trace: &str, context: &Context) -> Result<JobSpec> {
        let mut options = self.workload_option.clone();
        options.extend(self.time_scale.iter().map(|factor| ("time-scale".to_owned(), factor.clone())));
        let workload = trace::read(trace, &options)?;
        let [job] = &workload.jobs[..] else {
            let problem = format!("`{trace}` has {} jobs, and only one can be run", workload.jobs.len());
            return Err(Failure::usage(problem, "choose a file, or the first with `-w limit=1`"));
        };
        let mut spec = job.sleeping().map_err(|problem| Failure::usage(problem, ""))?;
        workload.notes.iter().for_each(|note| show::note(&format!("note: {note}")));
        spec.submit_dir = bytes_of(&context.submit_dir);
        Ok(spec)
    }
}

impl StageArgs {
    fn options(self) -> CommandOptions {
        let mut options = CommandOptions {
            array: self.array.map(|ranges| ranges.0),
            each_line: self.each_line.map(bytes_of),
            at_once: self.at_once,
            expected: self.expected,
            execution: self.execution.map(|execution| match execution {
                Execution::Guaranteed => ExecutionType::Guaranteed,
                Execution::Opportunistic => ExecutionType::Opportunistic,
                Execution::Auto => ExecutionType::Auto,
            }),
            constraints: [self.constraint, self.tolerates].concat(),
            retries: self.retries,
            retry_delay: self.retry_delay,
            timeout: self.timeout,
            gang: self.gang,
            workdir: self.workdir.map(bytes_of),
            output_cap: self.output_cap,
            ..CommandOptions::default()
        };
        for need in self.resources {
            match need {
                Need::Cpu(millis) => options.cpu_millis = Some(millis),
                Need::Memory(mib) => options.memory_mib = Some(mib),
                Need::Gpus(count) => options.gpus = Some(count),
                Need::Custom(name, count) => options.resources.push((name, count)),
            }
        }
        options
    }
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Reads the text of a job file, and returns its name in messages.
pub fn read_text(file: &Path, format: Option<FileFormat>) -> Result<(PathBuf, String, Format)> {
    if is_stdin(file) {
        let Some(format) = format else {
            let what = "the format of the job file on standard input is not known";
            return Err(Failure::usage(what, "use --format toml, --format yaml or --format json"));
        };
        let (name, mut bytes) = (PathBuf::from("stdin"), Vec::new());
        io::stdin().read_to_end(&mut bytes).map_err(|error| Failure::unreadable(&name, &error, "give it a file"))?;
        let text = text::decode(bytes)
            .map_err(|wrong| Failure::usage(format!("standard input: {}", wrong.problem), wrong.remedy))?;
        return Ok((name, text, format.into()));
    }
    let format = match format {
        Some(format) => format.into(),
        None => Format::of(file).map_err(|problem| {
            Failure::usage(problem, "use --format to name its format, or run a program: amalgam run -- PROGRAM")
        })?,
    };
    let text = text::read_text(file).map_err(|error| Failure::unreadable(file, &error, "check the path"))?;
    Ok((file.to_owned(), text, format))
}

/// If a program was given as a job file, adds the command that runs it.
fn with_program(failure: Failure, file: &Path, verb: &str) -> Failure {
    if is_stdin(file) || Format::of(file).is_ok() || !file.is_file() {
        return failure;
    }
    let here = if file.as_os_str().as_bytes().contains(&b'/') { "" } else { "./" };
    let remedy = format!("to run it as a program, write it after `--`: amalgam {verb} -- {here}{}", file.display());
    Failure { remedy, ..failure }
}
