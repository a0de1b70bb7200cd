//! `amalgam submit`

use crate::connection::Connection;
use crate::failure::Result;
use crate::job_arguments::JobArgs;
use crate::{discovery, show};
use amalgam_core::why::counted;
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
#[command(override_usage = "amalgam submit [OPTIONS] FILE\n       amalgam submit [OPTIONS] -- COMMAND...")]
#[command(after_help = "Examples:
  amalgam submit job.toml
  amalgam submit --array 0-99 -r cpu=2,memory=1GiB --retries 2 -- ./step
  amalgam wait $(amalgam submit -q -- make)")]
pub struct SubmitArgs {
    /// Print only the job's id
    #[arg(short, long)]
    quiet: bool,
    /// Print the answer as JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    #[command(flatten)]
    job: JobArgs,
}

pub fn execute(args: SubmitArgs, connection: &Connection) -> Result<ExitCode> {
    let mut prepared = args.job.read("submit")?;
    let client = discovery::connect(connection)?;
    let submitted = prepared.submit(&client)?;
    let job = &prepared.job;
    match (args.json, args.quiet) {
        (true, _) => show::json(&submitted)?,
        (_, true) => show::print(&format!("{}\n", submitted.job))?,
        _ => {
            let tasks = counted(job.task_count(), "task");
            show::print(&format!("job {} submitted: {}, {tasks}\n", submitted.job, show::visible(&job.name)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
