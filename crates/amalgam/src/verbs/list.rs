//! `amalgam list` and `amalgam history`

use crate::client::{Jobs, Query};
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::selectors::ACTIVE;
use crate::{discovery, show};
use amalgam_cli::values::one_of;
use amalgam_core::vocabulary::Duration;
use amalgam_core::why::counted;
use amalgam_daemon::api::{JobState, JobSummary, Timestamp};
use clap::Args;
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam list                    jobs that have not ended
  amalgam list --all --user me    all of yours
  amalgam list -q --state failed  only their ids, of those that failed
TIME is since a job's start, or since its submission while nothing of it has started.")]
pub struct ListArgs {
    /// Also jobs that have ended
    #[arg(short, long)]
    all: bool,
    /// Only jobs in these states, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = one_of(JobState::ALL, JobState::word))]
    state: Vec<String>,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam history --since 7d
  amalgam history --since 2026-11-01 --until 2026-12-01 --csv > november.csv")]
pub struct HistoryArgs {
    /// Only jobs in these states, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = one_of(JobState::ENDED, JobState::word))]
    state: Vec<String>,
    /// Only jobs that ended then or later: 2026-11-01, 2026-11-01T12:30 (UTC), or 7d for seven days ago
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<Timestamp>,
    /// Only jobs that ended before this time; a date means its start
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    until: Option<Timestamp>,
    /// Print comma-separated values, with what each job used: CPU and wall-clock seconds of all its attempts, and the most memory
    /// of one. A text that starts with = + - @, which a spreadsheet would take for a formula, gets an apostrophe before it
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    csv: bool,
    #[command(flatten)]
    filter: Filter,
}

/// A moment in UTC, or a time before now.
fn parse_moment(text: &str) -> std::result::Result<Timestamp, String> {
    // `2026` and `12:30` would parse as durations, but mean something else here.
    let has_unit = text.chars().any(|character| character.is_ascii_alphabetic()) && !text.contains(':');
    let age = if has_unit { Duration::parse(text).ok() } else { None };
    let ago = || Some(Timestamp(Timestamp::now().0.saturating_sub(age?.as_micros())));
    let wrong =
        || "write a date or a time in UTC, such as 2026-11-01 or 2026-11-01T12:30, or how long ago, such as 12h";
    Timestamp::parse(text).or_else(ago).ok_or_else(|| wrong().to_owned())
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
    /// Maximum number of jobs; the newest are listed [default: all]
    #[arg(short = 'n', long)]
    limit: Option<NonZeroUsize>,
    /// Print only ids
    #[arg(short, long)]
    quiet: bool,
    /// Print the interface's JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub fn execute(args: ListArgs, connection: &Connection) -> Result<ExitCode> {
    let is_active = args.state.is_empty() && !args.all;
    let states = if is_active { vec![ACTIVE.to_owned()] } else { args.state };
    let none = match (is_active, args.filter.is_any() || !(is_active || states.is_empty())) {
        (true, false) => "nothing pending or running (`amalgam list --all` shows the jobs that have ended, too)\n",
        (true, true) => "no such jobs are pending or running (`amalgam list --all` looks among all)\n",
        (false, true) => "no such jobs (`amalgam list --all` shows every job)\n",
        (false, false) => "no jobs\n",
    };
    let mut query = args.filter.query();
    query.add_list("state", &states);
    let form = args.filter.form();
    list("/v1/jobs", &query, args.filter.limit, form, none, connection)
}

pub fn execute_history(args: HistoryArgs, connection: &Connection) -> Result<ExitCode> {
    let is_any = args.filter.is_any() || !args.state.is_empty() || args.since.is_some() || args.until.is_some();
    let none = if is_any { "no such jobs have ended\n" } else { "no job has ended\n" };
    let mut query = args.filter.query();
    query.add_list("state", &args.state);
    query.add("since", args.since.map(|since| since.to_string()).as_deref());
    query.add("until", args.until.map(|until| until.to_string()).as_deref());
    let form = if args.csv { Form::Csv } else { args.filter.form() };
    list("/v1/history", &query, args.filter.limit, form, none, connection)
}

impl Filter {
    fn is_any(&self) -> bool {
        self.user.is_some() || self.queue.is_some() || self.name.is_some()
    }

    fn form(&self) -> Form {
        match (self.json, self.quiet) {
            (true, _) => Form::Json,
            (_, true) => Form::Ids,
            _ => Form::Table,
        }
    }

    fn query(&self) -> Query {
        let mut query = Query::default();
        query.add("user", self.user.as_deref());
        query.add("queue", self.queue.as_deref());
        query.add("name", self.name.as_deref());
        query
    }
}

/// The output format of a list.
#[derive(Clone, Copy)]
enum Form {
    Table,
    Ids,
    Json,
    Csv,
}

/// Prints `none` if the list is empty.
fn list(
    path: &str,
    query: &Query,
    limit: Option<NonZeroUsize>,
    form: Form,
    none: &str,
    connection: &Connection,
) -> Result<ExitCode> {
    let Jobs { mut jobs, has_more, silent } = discovery::connect(connection)?.jobs(path, query, limit)?;
    show::failures(&silent);
    if has_more {
        let shown = counted(jobs.len() as u64, "job");
        show::note(&format!("note: only the newest {shown} are shown; without --limit all are"));
    }
    // The newest last, next to the prompt.
    jobs.reverse();
    match form {
        Form::Json => show::json(&jobs)?,
        Form::Csv => show::print_raw(&csv(&jobs)?)?,
        Form::Ids => show::print(&jobs.iter().map(|job| format!("{}\n", job.id)).collect::<String>())?,
        Form::Table if jobs.is_empty() && silent.is_empty() => show::print(none)?,
        Form::Table if jobs.is_empty() => {}
        Form::Table => show::print(&table(&jobs))?,
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A user's text in CSV. An apostrophe comes before a first character that would make a spreadsheet run the cell as a formula.
pub fn cell(text: &str) -> String {
    let apostrophe = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    format!("{apostrophe}{text}")
}

/// The column names are those of the interface's JSON and of its task counts.
fn csv(jobs: &[JobSummary]) -> Result<Vec<u8>> {
    let headings = [
        "id",
        "name",
        "user",
        "queue",
        "priority",
        "state",
        "submitted_at",
        "started_at",
        "ended_at",
        "tasks",
        "succeeded",
        "failed",
        "cancelled",
        "wall_seconds",
        "cpu_seconds",
        "max_memory_bytes",
        "reason",
    ];
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let row = |job: &JobSummary| {
        [
            job.id.to_string(),
            cell(&job.name),
            cell(&job.user),
            cell(&job.queue),
            job.priority.to_string(),
            job.state.to_string(),
            job.submitted_at.to_string(),
            time(job.started_at),
            time(job.ended_at),
            job.tasks.total.to_string(),
            job.tasks.succeeded.to_string(),
            job.tasks.failed.to_string(),
            job.tasks.cancelled.to_string(),
            job.wall_seconds.to_string(),
            job.cpu_seconds.to_string(),
            job.max_memory_bytes.to_string(),
            cell(job.reason.as_deref().unwrap_or("")),
        ]
    };
    let mut table = csv::Writer::from_writer(Vec::new());
    let wrong = |error: String| Failure::new(format!("cannot write the table: {error}"), "");
    table.write_record(headings).map_err(|error| wrong(error.to_string()))?;
    jobs.iter().try_for_each(|job| table.write_record(row(job))).map_err(|error| wrong(error.to_string()))?;
    table.into_inner().map_err(|error| wrong(error.to_string()))
}

pub fn table(jobs: &[JobSummary]) -> String {
    let row = |job: &JobSummary| {
        vec![
            job.id.to_string(),
            job.name.clone(),
            job.user.clone(),
            job.queue.clone(),
            job.priority.to_string(),
            job.state_words(),
            show::counts(&job.tasks),
            show::between(job.started_at.unwrap_or(job.submitted_at), job.ended_at),
            job.reason.clone().unwrap_or_default(),
        ]
    };
    let headings = ["ID", "NAME", "USER", "QUEUE", "PRIO", "STATE", "DONE", "TIME", "REASON"];
    show::table(&headings, &jobs.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_of_a_table_is_a_formula() {
        let job = |name: &str| JobSummary {
            name: name.to_owned(),
            priority: -3,
            reason: Some("@a\r\n\u{1b},\"b\"".to_owned()),
            ..JobSummary::default()
        };
        let table = csv(&["=1+1", "-x", "+x", "@x", "\tx", "plain=1"].map(job)).unwrap();
        let mut reader = csv::Reader::from_reader(&table[..]);
        let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
        let names: Vec<&str> = rows.iter().map(|row| &row[1]).collect();
        assert_eq!(names, ["'=1+1", "'-x", "'+x", "'@x", "'\tx", "plain=1"]);
        assert_eq!((&rows[0][4], &rows[0][16]), ("-3", "'@a\r\n\u{1b},\"b\""));
    }
}
