//! `amalgam cancel`, `hold`, `release` and `rerun-failed`

use crate::client::Client;
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::selectors::ACTIVE;
use crate::selectors::{Named, Reach, Selector, Target, resolve_within};
use crate::task_targets::{ActTarget, chosen};
use crate::{discovery, show};
use amalgam_core::why::counted;
use amalgam_daemon::api::{Action, ActionResult, ChosenCounts, ErrorCode};
use clap::Args;
use std::collections::BTreeMap;
use std::process::ExitCode;

#[derive(Args)]
pub struct ActArgs {
    /// Jobs: 7, 1-5, 3,7, last or all (of yours); a range and all mean those that can be acted on. Or single tasks: 7.count,
    /// 7.count.3, 7.count.0-49, by their places in the stage
    #[arg(required = true, value_name = "JOBS", value_parser = ActTarget::parse)]
    targets: Vec<ActTarget>,
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
    /// End jobs whose managers are in a process of job managers (`amalgam jobs`) that is not connected. Running tasks stop once
    /// their nodes have lost that process for some time
    #[arg(long)]
    force: bool,
}

/// The parameters of one verb.
struct Act {
    action: Action,
    /// The jobs that `all` and ranges select.
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
    // Running jobs can be held too: they start no more tasks.
    let reach = Reach { states: "held,running", admits: |job| job.held };
    act(args, connection, Act { action: Action::Release, reach, done: "released" })
}

pub fn rerun_failed(args: ActArgs, connection: &Connection) -> Result<ExitCode> {
    let done = "waits to run its failed and cancelled tasks again";
    act(args, connection, Act { action: Action::RerunFailed, reach: in_states("failed,cancelled"), done })
}

fn in_states(states: &'static str) -> Reach {
    Reach { states, admits: |_| true }
}

/// Acts on all jobs that allow it, then prints the failures.
fn act(args: ActArgs, connection: &Connection, act: Act) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let selectors: Vec<Selector> = args.targets.iter().filter_map(ActTarget::jobs).collect();
    let (jobs, mut failures) = resolve_within(&client, &selectors, act.reach)?;
    let mut results = results(&client, &jobs, &act)?;
    let mut text = String::new();
    for result in &results {
        match &result.error {
            None if args.quiet => text.push_str(&format!("{}\n", result.job)),
            None => match (&result.unchanged, &result.waits_for) {
                (Some(how), _) => text.push_str(&format!("job {}: {how}\n", result.job)),
                (None, None) => text.push_str(&format!("job {} {}\n", result.job, act.done)),
                (None, Some(who)) => text.push_str(&format!("job {}: waits for {}\n", result.job, show::visible(who))),
            },
            Some(error) => failures.push(Failure::from(error.clone())),
        }
    }
    for target in &args.targets {
        let ActTarget::Tasks(tasks) = target else { continue };
        match act_on_tasks(&client, tasks, &act) {
            Ok(result) => {
                match &result.tasks {
                    _ if args.quiet => text.push_str(&format!("{}\n", result.job)),
                    Some(counts) => text.push_str(&report_tasks(&tasks.typed, counts, &act)),
                    None => {}
                }
                if let Some(who) = &result.waits_for {
                    text.push_str(&format!("job {}: waits for {}\n", result.job, show::visible(who)));
                }
                results.push(result);
            }
            Err(failure) => failures.push(failure),
        }
    }
    if args.json {
        show::json(&results)?
    } else {
        show::print(&text)?
    }
    show::failures(&failures);
    let names_ranges = selectors.iter().any(|selector| matches!(selector, Selector::Ids(_)));
    if jobs.is_empty() && failures.is_empty() && names_ranges && !args.quiet {
        show::note("nothing to do: no job is in a suitable state, see `amalgam list --all`");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn act_on_tasks(client: &Client, target: &Target, act: &Act) -> Result<ActionResult> {
    let (job, tasks) = chosen(target, client)?;
    let results = client.act_on_tasks(vec![job], act.action, tasks)?;
    match results.into_iter().next() {
        Some(ActionResult { error: Some(error), .. }) => Err(error.into()),
        Some(result) => Ok(result),
        None => Err(Failure::new("the server sent no result", "look at the job with `amalgam info`")),
    }
}

/// The number of changed tasks, and of the others by state.
fn report_tasks(typed: &str, counts: &ChosenCounts, act: &Act) -> String {
    let ChosenCounts { waiting, held, running, succeeded, failed, cancelled } = *counts;
    let ended = [(succeeded, "succeeded"), (failed, "failed"), (cancelled, "been cancelled")];
    let (done, verb, others) = match act.action {
        Action::Cancel | Action::Abandon => (waiting + held + running, "cancelled", vec![]),
        Action::Hold => (waiting, "held", vec![(running, "run on"), (held, "were held already")]),
        Action::Release => (held, "released", vec![(waiting, "were not held"), (running, "run")]),
        Action::RerunFailed => (failed + cancelled, "to run again", vec![]),
    };
    let is_rerun = act.action == Action::RerunFailed;
    let ended = ended.into_iter().filter(|(_, how)| !is_rerun || *how == "succeeded");
    let had = ended.map(|(number, how)| (number, format!("had {how}")));
    let others = others.into_iter().map(|(number, how)| (number, how.to_owned())).chain(had);
    let others: String = others.filter(|(number, _)| *number > 0).map(|(n, how)| format!(", {n} {how}")).collect();
    format!("{}: {} {verb}{others}\n", show::visible(typed), counted(u64::from(done), "task"))
}

/// The result of each job, except jobs of a range or `all` that left its reach meanwhile.
fn results(client: &Client, jobs: &[Named], act: &Act) -> Result<Vec<ActionResult>> {
    let mut order: Vec<u64> = jobs.iter().map(|job| job.id).collect();
    if matches!(act.action, Action::Cancel | Action::Abandon) {
        // Jobs depend on older ones. Cancelling the newest first prevents that one ends because of another.
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
