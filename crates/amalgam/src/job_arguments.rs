//! What `run` and `submit` have in common: a job from a file or from a command.

use crate::client::Client;
use crate::failure::{Failure, Kind, Result};
use crate::selectors::{Selector, existing, resolve};
use crate::show;
use crate::verbs::ACTIVE;
use crate::verbs::workload::parse_option;
use amalgam_core::vocabulary::{ByteString, Constraint, Duration, ExecutionType, JobId, JobSpec};
use amalgam_daemon::api::{QueueSummary, Submitted};
use amalgam_workload::quantities::{self, Malformed};
use amalgam_workload::trace;
use amalgam_workload::{
    CommandOptions, Context, FileError, Format, JobOptions, bytes_of, closest, from_command, queue_position, read_job,
};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[derive(Args, Debug)]
pub struct JobArgs {
    /// A job file: TOML, YAML or JSON
    #[arg(value_name = "FILE", required_unless_present_any = ["command", "from"])]
    file: Option<PathBuf>,
    /// A command instead of a file
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "file")]
    command: Vec<OsString>,

    /// A name for the job
    #[arg(long, value_parser = quantities::parse_job_name)]
    name: Option<String>,
    /// The queue, such as root.analytics
    #[arg(long)]
    queue: Option<String>,
    /// Higher goes first within the queue
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// A variable for the tasks; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = OsStringValueParser::new().try_map(|text| quantities::parse_variable(&text)))]
    env: Vec<(ByteString, ByteString)>,
    /// Jobs that must have succeeded first: 7, 1-5, 3,7, last or all (of yours that have not ended); repeatable
    #[arg(long, value_name = "JOBS", value_parser = Selector::parse)]
    after: Vec<Selector>,
    /// Cancel the rest once more tasks than this have failed
    #[arg(long, value_name = "N")]
    max_fails: Option<u32>,
    /// Accept the job but start nothing until it is released
    #[arg(long)]
    hold: bool,
    /// Accept the job although no node could run it now
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
    /// The most tasks that run at once
    #[arg(long, value_name = "N", value_parser = quantities::parse_at_once)]
    at_once: Option<u32>,
    /// What each task needs, such as cpu=2,memory=1GiB,gpu=1 [default: cpu=1]
    #[arg(short, long, value_name = "KIND=AMOUNT", value_delimiter = ',', value_parser = parse_need)]
    resources: Vec<Need>,
    /// A condition on nodes, such as kernel>=5.10; repeatable
    #[arg(long, value_parser = Constraint::parse)]
    constraint: Vec<Constraint>,
    /// How often a failed task is tried again
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// How long it waits before, and twice as long after each further failure, up to a minute; 0s for at once [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = Duration::parse)]
    retry_delay: Option<Duration>,
    /// End tasks that run longer, such as 90s or 00:01:30
    #[arg(long, value_name = "DURATION", value_parser = quantities::parse_timeout)]
    timeout: Option<Duration>,
    /// No task begins before there is room for all of them, and if one has to be tried again, all that have not ended are
    #[arg(long)]
    gang: bool,
    /// How long a task is expected to run
    #[arg(long, value_name = "DURATION", value_parser = Duration::parse)]
    expected: Option<Duration>,
    /// Whether guaranteed work may preempt the tasks; it means something under the presets mercury and mercury-plus only
    #[arg(long)]
    execution: Option<Execution>,
    /// submitted, own or an absolute path
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// How much of each task's output is kept, and of its errors, such as 1GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = quantities::parse_size)]
    output_cap: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Execution {
    Guaranteed,
    Opportunistic,
    Auto,
}

/// Wrapped, since the command line's parser takes a bare list for several occurrences.
#[derive(Clone, Debug)]
struct Ranges(quantities::LimitedArray);

#[derive(Clone, Debug)]
enum Need {
    Cpu(u32),
    Memory(u32),
    Gpus(u32),
    Custom(String, u32),
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

/// A job, and others that must have succeeded first: which ones only the server can say.
pub struct Prepared {
    pub job: JobSpec,
    after: Vec<Selector>,
    /// Where it names its queue, if it does.
    file: Option<PathBuf>,
}

impl Prepared {
    pub fn submit(&mut self, client: &Client) -> Result<Submitted> {
        let after = existing(client, &resolve(client, &self.after, ACTIVE)?)?;
        self.job.after_jobs.extend(after.into_iter().map(JobId));
        client.submit(&self.job, &idempotency_key()?).map_err(|failure| self.point_at_queue(client, failure))
    }

    /// A queue that takes no jobs is a mistake in the file or on the command line, which only the server can notice.
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
        let place = self.file.as_deref().and_then(|file| {
            let at = queue_position(&fs::read_to_string(file).ok()?, Format::of(file).ok()?)?;
            Some(FileError { file: file.to_owned(), at, problem: what.clone(), remedy: remedy.clone() })
        });
        place.map_or_else(|| Failure::usage(what, remedy), Failure::from)
    }
}

impl JobArgs {
    pub fn read(mut self) -> Result<Prepared> {
        let after = std::mem::take(&mut self.after);
        let file = self.file.clone().filter(|_| self.queue.is_none());
        Ok(Prepared { job: self.job()?, after, file })
    }

    fn job(self) -> Result<JobSpec> {
        let submit_dir = env::current_dir().map_err(|error| {
            Failure::new(format!("the working directory is gone: {error}"), "change to one that exists")
        })?;
        let context = Context { submit_dir };
        let options = CommandOptions {
            job: JobOptions {
                name: self.name,
                queue: self.queue,
                priority: self.priority,
                max_fails: self.max_fails,
                hold: self.hold,
                wait_for_nodes: self.wait_for_nodes,
                env: self.env,
            },
            ..self.stage.options()
        };
        let mut job = match (&self.file, &self.from.from) {
            (Some(file), _) => read_file(file, &context)?,
            (None, Some(trace)) => self.from.sleeping_job(trace, &context)?,
            (None, None) => {
                let command = self.command.into_iter().map(bytes_of).collect();
                return Ok(from_command(command, &options, &context)?);
            }
        };
        options.job.apply_to(&mut job);
        Ok(job)
    }
}

impl TraceArgs {
    fn sleeping_job(&self, trace: &str, context: &Context) -> Result<JobSpec> {
        let mut options = self.workload_option.clone();
        options.extend(self.time_scale.iter().map(|factor| ("time-scale".to_owned(), factor.clone())));
        let workload = trace::read(trace, &options)?;
        let [job] = &workload.jobs[..] else {
            let problem = format!("`{trace}` holds {} jobs, and this runs one", workload.jobs.len());
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
            constraints: self.constraint,
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

/// Reads a job file, which `config check` does too.
pub fn read_file(file: &Path, context: &Context) -> Result<JobSpec> {
    let format = Format::of(file)
        .map_err(|problem| Failure::usage(problem, "to run a program, write it behind `--`: amalgam run -- PROGRAM"))?;
    let text = fs::read_to_string(file).map_err(|error| Failure::unreadable(file, &error, "check the path"))?;
    Ok(read_job(&text, format, file, context)?)
}

/// Makes a submission repeatable: no two have the same key.
pub fn idempotency_key() -> Result<String> {
    let nonce = amalgam_daemon::auth::new_nonce()?;
    Ok(nonce[..16].iter().map(|byte| format!("{byte:02x}")).collect())
}
