//! `amalgam cancel`, `hold`, `release` and `rerun-failed`

use super::ACTIVE;
use crate::arguments::Connection;
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::selectors::{Named, Reach, Selector, resolve_within};
use crate::{discovery, show};
use amalgam_daemon::api::{Action, ActionResult, ErrorCode};
use clap::Args;
use std::collections::BTreeMap;
use std::process::ExitCode;

#[derive(Args)]
pub struct ActArgs {
    /// Jobs: 7, 1-5, 3,7, last or all (of yours); a range and all mean those that can be acted on
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

/// One of the verbs.
struct Act {
    action: Action,
    /// What `all` and ranges mean.
    reach: Reach,
    done: &'static str,
}

pub fn cancel(args: CancelArgs, connection: &Connection) -> Result<ExitCode> {
    let action = if args.force { Action::Abandon } else { Action::Cancel };
    act(args.act, connection, Act { action, reach: in_states(ACTIVE), done: "cancelled" })
}

pub fn hold(args: ActArgs, connection: &Connection) -> Result<ExitCode> {
    act(args, connection, Act { action: Action::Hold, reach: in_states("pending,running"), done: "held" })
}

pub fn release(args: ActArgs, connection: &Connection) -> Result<ExitCode> {
    act(args, connection, Act { action: Action::Release, reach: in_states("held"), done: "released" })
}

pub fn rerun_failed(args: ActArgs, connection: &Connection) -> Result<ExitCode> {
    let done = "waits to run its failed and cancelled tasks again";
    act(args, connection, Act { action: Action::RerunFailed, reach: in_states("failed,cancelled"), done })
}

fn in_states(states: &'static str) -> Reach {
    Reach { states, admits: |_| true }
}

/// Does what can be done, then says what could not.
fn act(args: ActArgs, connection: &Connection, act: Act) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let (jobs, mut failures) = resolve_within(&client, &args.jobs, act.reach)?;
    let results = results(&client, &jobs, &act)?;
    let mut text = String::new();
    for result in &results {
        match &result.error {
            None if args.quiet => text.push_str(&format!("{}\n", result.job)),
            None => match &result.waits_for {
                None => text.push_str(&format!("job {} {}\n", result.job, act.done)),
                Some(who) => text.push_str(&format!("job {}: waits for {}\n", result.job, show::visible(who))),
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
    let names_ranges = args.jobs.iter().any(|selector| matches!(selector, Selector::Ids(_)));
    if jobs.is_empty() && failures.is_empty() && names_ranges && !args.quiet {
        show::note("nothing was to be done: none of these jobs is in a state for it, see `amalgam list --all`");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What became of each job, but for those of a range or `all` that left its reach meanwhile.
fn results(client: &Client, jobs: &[Named], act: &Act) -> Result<Vec<ActionResult>> {
    let mut order: Vec<u64> = jobs.iter().map(|job| job.id).collect();
    if matches!(act.action, Action::Cancel | Action::Abandon) {
        // A job comes after older ones: from the newest on all are cancelled, and none ends because another did.
        order.sort_unstable_by(|one, other| other.cmp(one));
    }
    if order.is_empty() {
        return Ok(Vec::new());
    }
    let answers = client.act(order, act.action)?;
    let mut answers: BTreeMap<u64, ActionResult> = answers.into_iter().map(|result| (result.job, result)).collect();
    let mut results = Vec::with_capacity(jobs.len());
    for job in jobs {
        let Some(result) = answers.remove(&job.id) else { continue };
        if job.by_itself || !left_reach(client, &result, act.reach)? {
            results.push(result);
        }
    }
    Ok(results)
}

fn left_reach(client: &Client, result: &ActionResult, reach: Reach) -> Result<bool> {
    match result.error.as_ref().map(|error| error.error) {
        Some(ErrorCode::NotFound) => Ok(true),
        Some(ErrorCode::Conflict) => {
            let job = client.job(result.job)?.summary;
            Ok(!(reach.states.split(',').any(|state| state == job.state.word()) && (reach.admits)(&job)))
        }
        _ => Ok(false),
    }
}
