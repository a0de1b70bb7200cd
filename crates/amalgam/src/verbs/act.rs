//! `amalgam cancel`, `hold`, `release` and `rerun-failed`

use super::ACTIVE;
use crate::arguments::Connection;
use crate::failure::{Failure, Result};
use crate::selectors::{Selector, resolve};
use crate::{discovery, show};
use amalgam_daemon::api::Action;
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub struct ActArgs {
    /// Jobs: 7, 1-5, 3,7, last or all (of yours)
    #[arg(required = true, value_name = "JOBS", value_parser = Selector::parse)]
    jobs: Vec<Selector>,
    /// Print only the ids of jobs for which it was done
    #[arg(short, long)]
    quiet: bool,
    /// Print the interface's JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

#[derive(Args)]
pub struct CancelArgs {
    #[command(flatten)]
    act: ActArgs,
    /// End jobs whose managers are in a process of job managers that is away (`amalgam jobs`), without these. What still runs
    /// ends when its nodes have not heard of that process for some time
    #[arg(long)]
    force: bool,
}

pub fn cancel(args: CancelArgs, connection: &Connection) -> Result<ExitCode> {
    let action = if args.force { Action::Abandon } else { Action::Cancel };
    act(args.act, connection, action, ACTIVE, "cancelled")
}

pub fn hold(args: ActArgs, connection: &Connection) -> Result<ExitCode> {
    act(args, connection, Action::Hold, "pending", "held")
}

pub fn release(args: ActArgs, connection: &Connection) -> Result<ExitCode> {
    act(args, connection, Action::Release, "held", "released")
}

pub fn rerun_failed(args: ActArgs, connection: &Connection) -> Result<ExitCode> {
    act(args, connection, Action::RerunFailed, "failed,cancelled", "waits to run its failed and cancelled tasks again")
}

/// Does what can be done, then says what could not.
fn act(args: ActArgs, connection: &Connection, action: Action, all: &str, done: &str) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let jobs = resolve(&client, &args.jobs, all)?;
    let results = client.act(jobs, action)?;
    let mut failures = Vec::new();
    let mut text = String::new();
    for result in &results {
        match &result.error {
            None if args.quiet => text.push_str(&format!("{}\n", result.job)),
            None => match &result.waits_for {
                None => text.push_str(&format!("job {} {done}\n", result.job)),
                Some(who) => text.push_str(&format!("job {}: waits for {who}\n", result.job)),
            },
            Some(error) => failures.push(Failure::from(error.clone())),
        }
    }
    if args.json {
        show::json(&results)?
    } else {
        show::print(&text)?
    }
    show::failures(&failures);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
