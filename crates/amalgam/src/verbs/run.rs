//! `amalgam run`: submit, show, and end as the job ends.

use crate::arguments::Connection;
use crate::client::{Client, patiently, very_patiently};
use crate::cluster::Size;
use crate::embedded;
use crate::failure::{Failure, Kind, Result};
use crate::following::{self, Followed, Source};
use crate::job_arguments::JobArgs;
use crate::progress::Progress;
use crate::{discovery, show};
use amalgam_core::vocabulary::{JobSpec, Stream};
use amalgam_daemon::api::{Action, JobDetail, JobState, Submitted, Waited};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// As for a program that the closed pipe has ended.
const BROKEN_PIPE: u8 = 128 + 13;

/// How often progress is drawn anew. The end of the job does not wait for it.
const REFRESH: Duration = Duration::from_millis(250);

#[derive(Args)]
#[command(override_usage = "amalgam run [OPTIONS] FILE\n       amalgam run [OPTIONS] -- COMMAND...")]
#[command(after_help = "Examples:
  amalgam run examples/wordcount.toml
  amalgam run -- python3 train.py --epochs 3
  amalgam run --array 0-9 --timeout 5m -- ./simulate
Without a server, a cluster on this machine is started for the duration.
Ctrl-C cancels the job; a second one leaves at once. When a reader goes away, such as `| head`, the job's next output
cancels it, too.")]
pub struct RunArgs {
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten, next_help_heading = "Cluster, when no server runs")]
    size: Size,
}

pub fn execute(args: RunArgs, connection: &Connection) -> Result<ExitCode> {
    let mut prepared = args.job.read()?;
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
    // An interrupt from here on is meant for the job, however soon it comes.
    let signals = Signals::new([SIGINT, SIGTERM])?;
    let submitted = prepared.submit(&client)?;
    let job = &prepared.job;
    let cancelled = cancel_on_interrupt(signals, &client, submitted.job);
    let mut progress = Progress::new();
    let output = follow(&client, &submitted, job, &progress);
    let (waited, detail) = watch(&client, submitted.job, args.quiet, &mut progress)?;
    let failures: Vec<Failure> = output.into_iter().filter_map(|thread| thread.join().ok()?.err()).collect();
    progress.finish();
    if failures.iter().any(|failure| failure.kind == Kind::NobodyReads) {
        return Ok(ExitCode::from(BROKEN_PIPE));
    }
    // The job's code matters more than that its output could not be shown.
    failures.iter().for_each(|failure| show::note(&failure.to_string()));
    if !args.quiet {
        explain_end(&waited, job.task_count());
        let stages = detail.iter().flat_map(|detail| &detail.stages);
        stages.filter_map(show::dropped_output).for_each(|line| show::note(&line));
    }
    if cancelled.load(Ordering::Relaxed) && waited.state == JobState::Cancelled {
        return Ok(ExitCode::from(130));
    }
    Ok(ExitCode::from(waited.exit_code.unwrap_or(1)))
}

/// A cluster that lasts as long as the job has nobody else who could release it.
fn held_for_ever() -> Failure {
    let what = "the job is to be held, and no server runs where it could be released";
    Failure::usage(what, "run it without --hold (`hold` in a job file), or start a server with `amalgam dev`")
}

/// The first interrupt cancels the job, and its end then ends this program; the second leaves at once.
fn cancel_on_interrupt(mut signals: Signals, client: &Client, job: u64) -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let (flag, client) = (cancelled.clone(), client.clone());
    thread::spawn(move || {
        if signals.forever().next().is_none() {
            return;
        }
        flag.store(true, Ordering::Relaxed);
        show::note(&format!("cancelling job {job}; interrupt again to leave it"));
        let impatient = thread::spawn(move || {
            if signals.forever().next().is_some() {
                process::exit(130);
            }
        });
        if let Err(failure) = client.act(vec![job], Action::Cancel) {
            show::note(&failure.to_string());
        }
        let _ = impatient.join();
    });
    cancelled
}

/// Shows output on threads of its own, which end with the job. When nobody reads it any more, the job is cancelled.
fn follow(client: &Client, submitted: &Submitted, job: &JobSpec, progress: &Progress) -> Vec<JoinHandle<Result<()>>> {
    const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];
    let (id, sequence) = (submitted.job, submitted.sequence);
    let spawn = |work: Box<dyn FnOnce() -> Result<()> + Send>| {
        let client = client.clone();
        thread::spawn(move || {
            let result = work();
            if result.as_ref().is_err_and(|failure| failure.kind == Kind::NobodyReads) {
                // One that has ended meanwhile cannot be cancelled, and need not be.
                let _ = very_patiently(|| client.act(vec![id], Action::Cancel));
            }
            result
        })
    };
    if job.task_count() == 1 {
        let one = |stream| {
            let (client, mut sink) = (client.clone(), progress.sink());
            let source = Source { job: id, stage: 0, index: 0, prefix: None };
            spawn(Box::new(move || following::copy(&client, &source, stream, true, &mut *sink)))
        };
        return BOTH.map(one).into();
    }
    let stages = job.stages.iter().map(|stage| (stage.name.as_str(), u64::from(stage.tasks.len())));
    let (several, mut sink) = (Followed::new(client, id, stages), progress.sink());
    vec![spawn(Box::new(move || several.copy_as_tasks_end(sequence, &BOTH, &|_| true, &mut *sink)))]
}

/// How the job ended, and unless `quiet` its last state.
fn watch(client: &Client, job: u64, quiet: bool, progress: &mut Progress) -> Result<(Waited, Option<JobDetail>)> {
    // A job that ends at once should not cost a second question.
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

/// One line about a job that did not succeed. The command's own messages speak for a single task that exited.
fn explain_end(waited: &Waited, tasks: u64) {
    let speaks_for_itself = tasks == 1 && waited.state == JobState::Failed && waited.reason.is_none();
    if waited.state == JobState::Succeeded || speaks_for_itself {
        return;
    }
    let reason = waited.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    show::note(&format!("job {} {}{reason}", waited.job, waited.state));
}
