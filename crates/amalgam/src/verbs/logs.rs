//! `amalgam logs`

use crate::client::{Client, Query};
use crate::connection::Connection;
use crate::failure::Result;
use crate::following::{self, Followed, Plain, Sink, Source, ToStdout};
use crate::selectors::{Meant, Target};
use crate::{discovery, output_archive, show};
use amalgam_core::vocabulary::Stream;
use amalgam_daemon::api::{Event, JobDetail, TaskSummary};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam logs last             what the tasks of your newest job wrote
  amalgam logs -f 7.count.3     follow task 3 of stage count
  amalgam logs 7 --stderr       standard error instead
  amalgam logs 7 --archive 7.tar   both streams of all tasks, as 7/STAGE/PLACE/stdout and stderr")]
pub struct LogsArgs {
    /// JOB, JOB.STAGE, JOB.STAGE.PLACE, JOB.STAGE.FIRST-LAST, or an attempt such as 7-1-3
    #[arg(value_parser = Target::parse)]
    target: Target,
    /// Continue until the tasks have ended
    #[arg(short, long)]
    follow: bool,
    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Standard output and standard error, each to our own
    #[arg(long, conflicts_with = "stderr")]
    both: bool,
    /// Omit the task's name before each line if there are several tasks
    #[arg(long)]
    no_prefix: bool,
    /// Write both streams of the tasks of a job that has ended to a tar archive; a file of that name is replaced; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["follow", "stderr", "both", "no_prefix"])]
    archive: Option<PathBuf>,
}

pub fn execute(args: LogsArgs, connection: &Connection) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let id = args.target.job(&client)?;
    let job = client.job(id)?;
    let meant = args.target.find(&client, &job)?;
    if let Some(path) = &args.archive {
        return output_archive::write(&client, &job, &meant, path);
    }
    let stage = meant.stage;
    let streams: &[Stream] = match (args.both, args.stderr) {
        (true, _) => &[Stream::Stdout, Stream::Stderr],
        (_, true) => &[Stream::Stderr],
        _ => &[Stream::Stdout],
    };
    let several = || {
        Followed::new(
            &client,
            id,
            job.stages.iter().map(|stage| (stage.name.as_str(), stage.tasks.total)),
            !args.no_prefix,
        )
    };
    match single(&job, &meant) {
        Some(source) => follow_one(&client, &source, streams, args.follow)?,
        None if args.follow && !job.summary.state.has_ended() => {
            let name = stage.and_then(|stage| job.stages.get(stage as usize)).map(|stage| stage.name.clone());
            let has = |event: &Event| event.index.is_none_or(|index| meant.has(index));
            let wanted = |event: &Event| name.is_none() || event.stage == name && has(event);
            several().copy_as_tasks_end(0, streams, &wanted, &mut *sink(args.both))?;
        }
        None => {
            let mut query = Query::default();
            query.add("stage", stage.map(|stage| stage.to_string()).as_deref());
            let mut tasks: Vec<TaskSummary> = client.list(&format!("/v1/jobs/{id}/tasks"), &query)?;
            tasks.retain(|task| meant.has(task.index));
            let missing = several().copy_tasks(&tasks, streams, &mut *sink(args.both))?;
            show::failures(missing.values());
            if !missing.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sink(both: bool) -> Box<dyn Sink> {
    if both { Box::new(Plain) } else { Box::new(ToStdout) }
}

/// The selected task, if it is exactly one.
fn single(job: &JobDetail, meant: &Meant) -> Option<Source> {
    let id = job.summary.id;
    match (meant.stage, meant.index()) {
        (Some(stage), Some(index)) => Some(Source { job: id, stage, index, prefix: None }),
        (Some(stage), None) if job.stages.get(stage as usize)?.tasks.total == 1 => {
            Some(Source { job: id, stage, index: 0, prefix: None })
        }
        (None, _) if job.summary.tasks.total == 1 => Some(Source { job: id, stage: 0, index: 0, prefix: None }),
        _ => None,
    }
}

fn follow_one(client: &Client, source: &Source, streams: &[Stream], follow: bool) -> Result<()> {
    // Both streams in parallel, as they are written.
    thread::scope(|scope| {
        let copies: Vec<_> = streams
            .iter()
            .map(|stream| {
                scope.spawn(|| following::copy(client, source, *stream, follow, &mut *sink(streams.len() > 1)))
            })
            .collect();
        copies.into_iter().try_for_each(|copy| copy.join().unwrap_or(Ok(())))
    })
}
