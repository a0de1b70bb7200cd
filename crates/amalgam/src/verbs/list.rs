//! `amalgam list` and `amalgam history`

use super::ACTIVE;
use crate::arguments::{Connection, one_of};
use crate::client::Query;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_daemon::api::{JobState, JobSummary};
use clap::Args;
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam list                    jobs that have not ended
  amalgam list --all --user me    all of yours
  amalgam list -q --state failed  only their ids
TIME is since a job's start, or since its submission while nothing of it has started.")]
pub struct ListArgs {
    /// Also jobs that have ended
    #[arg(short, long)]
    all: bool,
    /// Only jobs in these states, separated by commas
    #[arg(long, conflicts_with = "all", value_delimiter = ',', value_parser = one_of(JobState::ALL, JobState::word))]
    state: Vec<String>,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Args)]
pub struct HistoryArgs {
    /// Only jobs in these states, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = one_of(JobState::ENDED, JobState::word))]
    state: Vec<String>,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Args)]
struct Filter {
    /// Only jobs of this user; `me` for your own
    #[arg(long)]
    user: Option<String>,
    /// Only jobs in this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs of this name
    #[arg(long)]
    name: Option<String>,
    /// At most so many, the newest
    #[arg(short = 'n', long, default_value = "1000")]
    limit: NonZeroUsize,
    /// Print only ids
    #[arg(short, long)]
    quiet: bool,
    /// Print the interface's JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub fn execute(args: ListArgs, connection: &Connection) -> Result<ExitCode> {
    let states = if args.state.is_empty() && !args.all { vec![ACTIVE.to_owned()] } else { args.state };
    list("/v1/jobs", &states, args.filter, connection)
}

pub fn execute_history(args: HistoryArgs, connection: &Connection) -> Result<ExitCode> {
    list("/v1/history", &args.state, args.filter, connection)
}

fn list(path: &str, states: &[String], filter: Filter, connection: &Connection) -> Result<ExitCode> {
    let mut query = Query::default();
    query.add_list("state", states);
    query.add("user", filter.user.as_deref());
    query.add("queue", filter.queue.as_deref());
    query.add("name", filter.name.as_deref());
    let (mut jobs, silent) = discovery::connect(connection)?.jobs(path, &query, filter.limit.get())?;
    show::failures(&silent);
    // The newest last, next to the prompt.
    jobs.reverse();
    let is_all = states.is_empty();
    let none = if is_all { "no jobs\n" } else { "no such jobs (`amalgam list --all` shows every job)\n" };
    match (filter.json, filter.quiet) {
        (true, _) => show::json(&jobs)?,
        (_, true) => show::print(&jobs.iter().map(|job| format!("{}\n", job.id)).collect::<String>())?,
        _ if jobs.is_empty() => show::print(none)?,
        _ => show::print(&table(&jobs))?,
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn table(jobs: &[JobSummary]) -> String {
    let row = |job: &JobSummary| {
        vec![
            job.id.to_string(),
            job.name.clone(),
            job.user.clone(),
            job.queue.clone(),
            job.priority.to_string(),
            job.state.to_string(),
            show::counts(&job.tasks),
            show::between(job.started_at.unwrap_or(job.submitted_at), job.ended_at),
            job.reason.clone().unwrap_or_default(),
        ]
    };
    let headings = ["ID", "NAME", "USER", "QUEUE", "PRIO", "STATE", "DONE", "TIME", "REASON"];
    show::table(&headings, &jobs.iter().map(row).collect::<Vec<_>>())
}
