//! `amalgam run`: submits a job, shows its output, and exits with its code.

use crate::client::{Client, patiently, very_patiently};
use crate::cluster::Size;
use crate::connection::Connection;
use crate::embedded;
use crate::failure::{Failure, Kind, Result};
use crate::following::{self, Followed, Sink, Source, ToStderr};
use crate::input::{self, Stdin};
use crate::interrupts::{Interrupts, may_still_run};
use crate::job_arguments::{JobArgs, Prepared};
use crate::progress::Progress;
use crate::{discovery, show};
use amalgam_core::vocabulary::{JobSpec, Stream};
use amalgam_core::why::counted;
use amalgam_daemon::api::{Action, JobDetail, JobState, Submitted, Waited};
use clap::Args;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The exit code of a program that SIGPIPE killed.
const BROKEN_PIPE: u8 = 128 + 13;

/// Interval of progress updates. The job's end is shown at once.
const REFRESH: Duration = Duration::from_millis(250);

#[derive(Args)]
#[command(override_usage = "amalgam run [OPTIONS] FILE\n       amalgam run [OPTIONS] -- COMMAND...")]
#[command(after_help = "Examples:
  amalgam run examples/wordcount.toml
  amalgam run -- python3 train.py --epochs 3
  amalgam run --array 0-9 --timeout 5m -- ./simulate
Without a server, a cluster on this machine is started for the duration.
The job's id, its progress and how it ended go to standard error, its output to the streams that it was written to.
Ctrl-C cancels the job; a second one exits at once. When a reader closes its pipe, such as `| head`, or output cannot be written, the
job's next output cancels it, too.")]
pub struct RunArgs {
    /// Show no progress, nor the job's id
    #[arg(short, long)]
    quiet: bool,
    /// Omit the task's name before each line of a job with several tasks
    #[arg(long)]
    no_prefix: bool,
    /// Print the job as `info --json` does at the end, with its id and exit code; output of tasks goes to standard error
    #[arg(long)]
    json: bool,
    /// Whether the task of a job with a single task reads our standard input [default: inherit, unless that is closed, /dev/null,
    /// or a terminal that has us in the background]
    #[arg(long, value_name = "HOW")]
    stdin: Option<Stdin>,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten, next_help_heading = "Cluster, when no server runs")]
    size: Size,
}

pub fn execute(args: RunArgs, connection: &Connection) -> Result<ExitCode> {
    if args.stdin == Some(Stdin::Inherit) && args.job.reads_stdin() {
        let what = "standard input is the job file, `-`, and so cannot be the task's input as well";
        return Err(Failure::usage(what, "name the job file, or leave out --stdin inherit"));
    }
    let mut prepared = args.job.read("run")?;
    let mut passes_input = input::prepare(&mut prepared.job, args.stdin)?;
    // Kept to the end: dropping it stops the cluster.
    let mut own_cluster = None;
    let client = match discovery::find(connection)? {
        Some(client) => {
            if args.size.is_given() {
                show::note(
                    "a server is running: --nodes, --cpus and --memory are for a cluster of its own, and are ignored",
                );
            }
            client
        }
        None if prepared.job.held => return Err(held_for_ever()),
        None => {
            let cluster = own_cluster.insert(embedded::start(&args.size)?);
            Client::new(format!("http://{}", cluster.address), cluster.token.clone())
        }
    };
    // From here on a signal cancels the job, even before the submission is answered.
    let interrupts = Interrupts::heed()?;
    let submitted = submit(&mut prepared, &client, &mut passes_input, args.stdin)?;
    if passes_input {
        input::pass_on(&client, submitted.job);
    }
    let (job, id) = (&prepared.job, submitted.job);
    interrupts.watch(&client, id, own_cluster.is_some());
    if !args.quiet {
        let tasks = counted(job.task_count(), "task");
        show::note(&format!("job {id} submitted: {}, {tasks}", show::visible(&job.name)));
    }
    let mut progress = Progress::new();
    let output = Output { prefixed: !args.no_prefix, to_stderr: args.json };
    let threads = output.follow(&client, &submitted, job, &progress);
    let watched = watch(&client, id, args.quiet, &mut progress);
    let (waited, detail) = watched.map_err(|failure| match own_cluster {
        None => Failure { remedy: format!("{}\n  {}", failure.remedy, may_still_run(id)), ..failure },
        Some(_) => failure,
    })?;
    let failures: Vec<Failure> = threads.into_iter().filter_map(|thread| thread.join().ok()?.err()).collect();
    progress.finish();
    if failures.iter().any(|failure| failure.kind == Kind::ClosedByReader) {
        return Ok(ExitCode::from(BROKEN_PIPE));
    }
    failures.iter().for_each(|failure| show::note(&failure.to_string()));
    if !args.quiet {
        explain_end(&waited, job.task_count());
        let stages = detail.iter().flat_map(|detail| &detail.stages);
        stages.filter_map(show::dropped_output).for_each(|line| show::note(&line));
    }
    if args.json {
        show::json(&patiently(|| client.job(id))?)?;
    }
    let is_unwritten = failures.iter().any(|failure| failure.kind == Kind::Unwritten);
    Ok(ExitCode::from(exit_code(&waited, interrupts.code(), is_unwritten)))
}

/// Submits the job, without input if the server does not support it and the input was not requested.
fn submit(
    prepared: &mut Prepared,
    client: &Client,
    passes_input: &mut bool,
    wanted: Option<Stdin>,
) -> Result<Submitted> {
    match prepared.submit(client) {
        // Input was not requested explicitly, and seems to be empty.
        Err(failure)
            if failure.kind == Kind::Unsupported && *passes_input && wanted.is_none() && !input::holds_something() =>
        {
            show::note(&format!("{}: the task finds its input empty", failure.what));
            input::leave_out(&mut prepared.job);
            *passes_input = false;
            prepared.submit(client)
        }
        submitted => submitted,
    }
}

/// A job that ended without an interrupt passes its exit code on, even if its output could not be shown. If its output could not
/// be written, the code is never 0, also if the job was cancelled for that reason.
fn exit_code(waited: &Waited, interrupted: Option<u8>, is_unwritten: bool) -> u8 {
    let code = waited.exit_code.unwrap_or(1);
    match (waited.state, interrupted) {
        (JobState::Cancelled, Some(code)) => code,
        (JobState::Cancelled | JobState::Succeeded, _) if is_unwritten => 1,
        _ => code,
    }
}

/// A held job in a cluster of its own could never be released.
fn held_for_ever() -> Failure {
    let what = "the job is to be held, and no server runs where it could be released";
    Failure::usage(what, "run it without --hold (`hold` in a job file), or start a server with `amalgam dev`")
}

/// How the output of tasks is shown.
struct Output {
    prefixed: bool,
    to_stderr: bool,
}

impl Output {
    /// Shows output on threads that end with the job. If output cannot be written, the job is cancelled.
    fn follow(
        &self,
        client: &Client,
        submitted: &Submitted,
        job: &JobSpec,
        progress: &Progress,
    ) -> Vec<JoinHandle<Result<()>>> {
        const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];
        let (id, sequence) = (submitted.job, submitted.sequence);
        let spawn = |work: Box<dyn FnOnce() -> Result<()> + Send>| {
            let client = client.clone();
            thread::spawn(move || {
                let result = work();
                let in_vain = |failure: &Failure| matches!(failure.kind, Kind::ClosedByReader | Kind::Unwritten);
                if result.as_ref().is_err_and(in_vain) {
                    // A job that has ended meanwhile cannot be cancelled, and does not need to be.
                    let _ = very_patiently(|| client.act(vec![id], Action::Cancel));
                }
                result
            })
        };
        if job.task_count() == 1 {
            let one = |stream| {
                let (client, mut sink) = (client.clone(), self.sink(progress));
                let source = Source { job: id, stage: 0, index: 0, prefix: None };
                spawn(Box::new(move || following::copy(&client, &source, stream, true, &mut *sink)))
            };
            return BOTH.map(one).into();
        }
        let stages = job.stages.iter().map(|stage| (stage.name.as_str(), u64::from(stage.tasks.len())));
        let (several, mut sink) = (Followed::new(client, id, stages, self.prefixed), self.sink(progress));
        vec![spawn(Box::new(move || several.copy_as_tasks_end(sequence, &BOTH, &|_| true, &mut *sink)))]
    }

    fn sink(&self, progress: &Progress) -> Box<dyn Sink + Send> {
        let sink = progress.sink();
        if self.to_stderr { Box::new(ToStderr(sink)) } else { sink }
    }
}

/// The job's end, and its last state unless `quiet`.
fn watch(client: &Client, job: u64, quiet: bool, progress: &mut Progress) -> Result<(Waited, Option<JobDetail>)> {
    // A job that ends at once needs no second request.
    let mut patience = REFRESH;
    loop {
        let waited = patiently(|| client.wait(job, patience))?;
        let detail = if quiet { None } else { Some(patiently(|| client.job(job))?) };
        detail.iter().for_each(|detail| progress.update(detail));
        if waited.state.has_ended() {
            return Ok((waited, detail));
        }
        if quiet {
            patience = Duration::from_secs(30);
        }
    }
}

/// Prints one line about a job that did not succeed. A single task that exited has printed its own messages.
fn explain_end(waited: &Waited, tasks: u64) {
    let speaks_for_itself = tasks == 1 && waited.state == JobState::Failed && waited.reason.is_none();
    if waited.state == JobState::Succeeded || speaks_for_itself {
        return;
    }
    show::note(&format!("job {} {}", waited.job, show::ending(waited)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_exit_code_has_priority_over_lost_output() {
        let code = |state, code, interrupted, is_unwritten| {
            exit_code(&Waited { state, exit_code: code, ..Waited::default() }, interrupted, is_unwritten)
        };
        assert_eq!(code(JobState::Succeeded, Some(0), None, false), 0);
        assert_eq!(code(JobState::Succeeded, Some(0), None, true), 1);
        assert_eq!(code(JobState::Failed, Some(7), None, true), 7);
        assert_eq!(code(JobState::Cancelled, Some(130), None, true), 1);
        assert_eq!(code(JobState::Cancelled, Some(130), None, false), 130);
        assert_eq!(code(JobState::Cancelled, Some(130), Some(143), false), 143);
        assert_eq!(code(JobState::Succeeded, Some(0), Some(143), false), 0);
    }
}
