//! `amalgam du`: what fills the directories of daemons on this machine.

use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, show};
use amalgam_daemon::du::{JobUse, Report, Use, report};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct DuArgs {
    /// State directories, and work directories of agents and job hosts [default: the state directory, with those in it]
    #[arg(value_name = "DIRS")]
    dirs: Vec<PathBuf>,
    /// Number of the biggest jobs that are shown
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn execute(DuArgs { mut dirs, limit, json }: DuArgs, connection: &Connection) -> Result<ExitCode> {
    if connection.names_server() {
        let what = "`du` looks at directories of daemons on this machine, and connects to no server";
        return Err(Failure::usage(what, "leave --server and --context out, and name the directories"));
    }
    if dirs.is_empty() {
        dirs.push(discovery::state_dir(connection)?);
    }
    let mut report = report(&dirs).map_err(|error| {
        let remedy =
            "name state directories of servers, or work directories of agents and job hosts, that your user can read";
        Failure::new(error.to_string(), remedy)
    })?;
    report.jobs.truncate(limit);
    for path in &report.unread {
        show::note(&format!("warning: {} cannot be read and is left out; run this as root", path.display()));
    }
    if json {
        show::json(&report)?;
    } else {
        print(report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(Report { bytes, uses, jobs, .. }: Report) -> Result<()> {
    let row = |Use { kind, path, bytes, files }: Use| {
        vec![show::bytes(bytes), files.to_string(), kind.name().to_owned(), path.display().to_string()]
    };
    let mut rows: Vec<_> = uses.into_iter().map(row).collect();
    rows.push(vec![show::bytes(bytes), String::new(), "in all".to_owned(), String::new()]);
    show::print(&show::table(&["SIZE", "FILES", "KIND", "WHERE"], &rows))?;
    if jobs.is_empty() {
        return Ok(());
    }
    let row = |JobUse { job, bytes, files }: JobUse| vec![show::bytes(bytes), files.to_string(), job.to_string()];
    let rows: Vec<_> = jobs.into_iter().map(row).collect();
    show::print(&format!("\n{}", show::table(&["SIZE", "FILES", "OUTPUT AND OWN DIRECTORIES OF JOB"], &rows)))
}
