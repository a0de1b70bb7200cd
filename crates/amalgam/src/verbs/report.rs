//! `amalgam report`

use super::list::cell;
use crate::client::Query;
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, show};
use amalgam_daemon::api::{Report, ReportRow};
use clap::{Args, ValueEnum};
use std::process::ExitCode;

#[derive(Args)]
#[command(
    after_help = "Amounts count on the days (UTC) on which they were held, in hours of one CPU and of one GiB of memory. ASKED is what attempts held, USED the CPU time that they \
took, and for memory the most that each had at once. WAIT is the mean time from when a task could run to its first start. PREEMPTED and LOST are the CPU hours of attempts \
that were preempted, or lost with their node. Days are kept for `usage_days` of the configuration, also when their jobs are forgotten. Without the scope `operate`, only your own are shown.

Examples:
  amalgam report                                       by user, for the last 30 days
  amalgam report --by queue,day --from 2026-11-01 --to 2026-11-30 --csv > november.csv"
)]
pub struct ReportArgs {
    /// A row for each of these, or for each combination: user, queue, day
    #[arg(long, value_delimiter = ',', default_value = "user", value_enum)]
    by: Vec<By>,
    /// The first day, as 2026-11-01 [default: 29 days before the last]
    #[arg(long, value_name = "DATE")]
    from: Option<String>,
    /// The last day [default: today, in UTC]
    #[arg(long, value_name = "DATE")]
    to: Option<String>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print the interface's JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    User,
    Queue,
    Day,
}

impl By {
    fn word(self) -> &'static str {
        match self {
            By::User => "user",
            By::Queue => "queue",
            By::Day => "day",
        }
    }

    fn value(self, row: &ReportRow) -> String {
        let value = match self {
            By::User => &row.user,
            By::Queue => &row.queue,
            By::Day => &row.day,
        };
        value.clone().unwrap_or_default()
    }
}

pub fn execute(args: &ReportArgs, connection: &Connection) -> Result<ExitCode> {
    // In a fixed order, each once.
    let by: Vec<By> = [By::Day, By::User, By::Queue].into_iter().filter(|by| args.by.contains(by)).collect();
    let words: Vec<&str> = by.iter().map(|by| by.word()).collect();
    let mut query = Query::default();
    query.add("by", Some(&words.join(",")));
    query.add("from", args.from.as_deref());
    query.add("to", args.to.as_deref());
    let report: Report = discovery::connect(connection)?.get(&format!("/v1/report{query}"))?;
    match (args.json, args.csv) {
        (true, _) => show::json(&report)?,
        (_, true) => show::print_raw(&csv(&by, &report.rows)?)?,
        _ if report.rows.is_empty() => {
            show::print(&format!("nothing was counted from {} to {}\n", report.from, report.to))?
        }
        _ => show::print(&table(&by, &report.rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(by: &[By], rows: &[ReportRow]) -> String {
    let hours = |hours: f64| format!("{hours:.2}");
    let row = |row: &ReportRow| {
        let names = by.iter().map(|by| by.value(row));
        let values = [
            row.jobs.to_string(),
            row.tasks.to_string(),
            row.attempts.to_string(),
            hours(row.cpu_hours_asked),
            hours(row.cpu_hours_used),
            hours(row.memory_gib_hours_asked),
            hours(row.memory_gib_hours_used),
            row.mean_wait_seconds.map_or_else(|| "-".to_owned(), show::seconds),
            hours(row.cpu_hours_preempted),
            hours(row.cpu_hours_lost),
        ];
        names.chain(values).collect()
    };
    let names = by.iter().map(|by| by.word().to_uppercase());
    let values =
        ["JOBS", "TASKS", "ATTEMPTS", "CPU H ASKED", "USED", "GIB H ASKED", "USED", "WAIT", "PREEMPTED", "LOST"];
    let headings: Vec<String> = names.chain(values.map(str::to_owned)).collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    show::table(&headings, &rows.iter().map(row).collect::<Vec<Vec<String>>>())
}

/// The column names are those of the interface's JSON.
fn csv(by: &[By], rows: &[ReportRow]) -> Result<Vec<u8>> {
    let values = [
        "jobs",
        "tasks",
        "attempts",
        "cpu_hours_asked",
        "cpu_hours_used",
        "memory_gib_hours_asked",
        "memory_gib_hours_used",
        "starts",
        "wait_seconds",
        "preempted",
        "cpu_hours_preempted",
        "lost",
        "cpu_hours_lost",
    ];
    let wrong = |error: String| Failure::new(format!("cannot write the table: {error}"), "");
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(by.iter().map(|by| by.word()).chain(values)).map_err(|error| wrong(error.to_string()))?;
    for row in rows {
        let names = by.iter().map(|by| cell(&by.value(row)));
        let values = [
            row.jobs.to_string(),
            row.tasks.to_string(),
            row.attempts.to_string(),
            row.cpu_hours_asked.to_string(),
            row.cpu_hours_used.to_string(),
            row.memory_gib_hours_asked.to_string(),
            row.memory_gib_hours_used.to_string(),
            row.starts.to_string(),
            row.wait_seconds.to_string(),
            row.preempted.to_string(),
            row.cpu_hours_preempted.to_string(),
            row.lost.to_string(),
            row.cpu_hours_lost.to_string(),
        ];
        table.write_record(names.chain(values)).map_err(|error| wrong(error.to_string()))?;
    }
    table.into_inner().map_err(|error| wrong(error.to_string()))
}
