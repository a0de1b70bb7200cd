//! `amalgam wait`

use crate::client::{Client, patiently};
use crate::connection::Connection;
use crate::failure::{Failure, Kind, Result};
use crate::selectors::ACTIVE;
use crate::selectors::{Selector, each, resolve};
use crate::{discovery, show};
use amalgam_core::vocabulary::Duration;
use amalgam_daemon::api::Waited;
use clap::Args;
use std::process::ExitCode;
use std::time::{Duration as StdDuration, Instant};

/// Time limit of one request; the server answers when the job ends.
const POLL: StdDuration = StdDuration::from_secs(30);

#[derive(Args)]
#[command(after_help = "Exits with 0 if all jobs succeeded, else with the code of the first that did not.
Examples:
  amalgam wait last
  amalgam wait 1-5 --timeout 10m")]
pub struct WaitArgs {
    /// Jobs: 7, 1-5, 3,7, last or all
    #[arg(required = true, value_name = "JOBS", value_parser = Selector::parse)]
    jobs: Vec<Selector>,
    /// Give up after this long, with code 124
    #[arg(long, value_name = "DURATION", value_parser = Duration::parse)]
    timeout: Option<Duration>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print the interface's JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub fn execute(args: WaitArgs, connection: &Connection) -> Result<ExitCode> {
    let deadline =
        args.timeout.and_then(|timeout| Instant::now().checked_add(StdDuration::from_micros(timeout.as_micros())));
    let client = discovery::connect(connection)?.until(deadline);
    let jobs = resolve(&client, &args.jobs, ACTIVE).map_err(|failure| late(&client, failure))?;
    let all = each(&jobs, |job| {
        let waited = wait_for(&client, job, deadline)?;
        if !args.quiet && !args.json {
            show::print(&format!("job {job} {}\n", show::ending(&waited)))?;
        }
        Ok(waited)
    })?;
    if args.json {
        show::json(&all)?;
    }
    let first_failure = all.iter().filter_map(|waited| waited.exit_code).find(|code| *code != 0);
    Ok(ExitCode::from(first_failure.unwrap_or(0)))
}

fn wait_for(client: &Client, job: u64, deadline: Option<Instant>) -> Result<Waited> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let patience = left.map_or(POLL, |left| left.min(POLL));
        let waited = patiently(|| client.wait(job, patience).map_err(|failure| late(client, failure)))?;
        if waited.state.has_ended() {
            return Ok(waited);
        }
        if left.is_some_and(|left| left.is_zero()) {
            let what = format!("job {job} is still {}", waited.state);
            return Err(Failure { code: 124, ..Failure::new(what, "wait longer, or see `amalgam info`") });
        }
    }
}

/// After the deadline, any failure counts as a timeout and is not retried.
fn late(client: &Client, failure: Failure) -> Failure {
    match failure.kind.may_pass() && client.is_out_of_time() {
        true => Failure { code: 124, kind: Kind::Refused, ..failure },
        false => failure,
    }
}
