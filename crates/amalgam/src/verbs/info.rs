//! `amalgam info`

use crate::client::{Client, Query};
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::selectors::ACTIVE;
use crate::selectors::{Meant, Named, Selector, Target, each, resolve};
use crate::task_targets::ActTarget;
use crate::{discovery, show};
use amalgam_cli::values::one_of;
use amalgam_core::vocabulary::ByteString;
use amalgam_core::why::counted;
use amalgam_daemon::api::{
    AttemptSummary, JobDetail, JobSummary, MeanOf, ShareUse, StageDetail, TaskState, TaskSummary, Timestamp,
};
use clap::Args;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam info last
  amalgam info 7 --tasks --state failed
  amalgam info 7 --tasks --attempts")]
pub struct InfoArgs {
    /// Jobs: 7, 1-5, 3,7, last or all. Or tasks, which are listed: 7.count, 7.count.3, 7.count.0-49, or an attempt's, 7-1-3
    #[arg(required = true, value_name = "JOBS", value_parser = ActTarget::parse)]
    jobs: Vec<ActTarget>,
    /// List the tasks too
    #[arg(short, long)]
    tasks: bool,
    /// With --tasks: list all attempts of the tasks instead, with the resources that each used
    #[arg(long, conflicts_with = "state")]
    attempts: bool,
    /// With --tasks: only tasks in these states
    #[arg(long, value_delimiter = ',', value_parser = one_of(TaskState::ALL, TaskState::word))]
    state: Vec<String>,
    /// With --tasks: maximum number of tasks of each job [default: all]
    #[arg(short = 'n', long)]
    limit: Option<NonZeroUsize>,
    /// Print the interface's JSON: the jobs, or with --tasks their tasks, or their attempts
    #[arg(long)]
    json: bool,
}

pub fn execute(args: InfoArgs, connection: &Connection) -> Result<ExitCode> {
    let names_jobs = args.jobs.iter().any(|target| matches!(target, ActTarget::Jobs(_)));
    if names_jobs && !args.tasks && (args.attempts || !args.state.is_empty() || args.limit.is_some()) {
        let what = "--attempts, --state and --limit require tasks";
        return Err(Failure::usage(what, "add --tasks, or name tasks, such as `7.main`"));
    }
    if args.json && !args.tasks && args.jobs.iter().any(|target| matches!(target, ActTarget::Tasks(_))) && names_jobs {
        let what = "jobs and tasks have different JSON";
        return Err(Failure::usage(what, "name either jobs or tasks, or add --tasks"));
    }
    let client = discovery::connect(connection)?;
    let selectors: Vec<Selector> = args.jobs.iter().filter_map(ActTarget::jobs).collect();
    let jobs = resolve(&client, &selectors, ACTIVE)?;
    let tasks: Vec<(u64, Meant)> =
        args.jobs.iter().filter_map(ActTarget::tasks).map(|target| meant(&client, target)).collect::<Result<_>>()?;
    if args.json {
        print_json(&client, &jobs, &tasks, &args)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut gap = "";
    each(&jobs, |id| {
        let mut text = format!("{gap}{}", describe(&client.job(id)?));
        gap = "\n";
        if args.tasks {
            text.push('\n');
            text.push_str(&listed(&client, id, &Meant::default(), &args)?);
        }
        show::print(&text)
    })?;
    for (id, meant) in &tasks {
        show::print(&format!("{gap}{}", listed(&client, *id, meant, &args)?))?;
        gap = "\n";
    }
    Ok(ExitCode::SUCCESS)
}

fn meant(client: &Client, target: &Target) -> Result<(u64, Meant)> {
    let id = target.job(client)?;
    Ok((id, target.find(client, &client.job(id)?)?))
}

fn listed(client: &Client, job: u64, meant: &Meant, args: &InfoArgs) -> Result<String> {
    Ok(match args.attempts {
        true => attempt_table(&attempts(client, job, meant, args)?),
        false => task_table(&tasks(client, job, meant, args)?),
    })
}

fn print_json(client: &Client, jobs: &[Named], of: &[(u64, Meant)], args: &InfoArgs) -> Result<()> {
    let all = Meant::default();
    if args.attempts {
        let mut shown: Vec<Vec<AttemptSummary>> = each(jobs, |id| attempts(client, id, &all, args))?;
        of.iter().try_for_each(|(id, meant)| attempts(client, *id, meant, args).map(|found| shown.push(found)))?;
        return show::json(&shown.concat());
    }
    if args.tasks || !of.is_empty() {
        let mut shown: Vec<Vec<TaskSummary>> = each(jobs, |id| tasks(client, id, &all, args))?;
        of.iter().try_for_each(|(id, meant)| tasks(client, *id, meant, args).map(|found| shown.push(found)))?;
        return show::json(&shown.concat());
    }
    let details: Vec<JobDetail> = each(jobs, |id| client.job(id))?;
    show::json(&details)
}

fn tasks(client: &Client, job: u64, meant: &Meant, args: &InfoArgs) -> Result<Vec<TaskSummary>> {
    let mut query = Query::default();
    query.add_list("state", &args.state);
    query.add("stage", meant.stage.map(|stage| stage.to_string()).as_deref());
    query.add("index", meant.index().map(|index| index.to_string()).as_deref());
    if !meant.places.is_empty() {
        let mut tasks: Vec<TaskSummary> = client.list(&format!("/v1/jobs/{job}/tasks"), &query)?;
        tasks.retain(|task| meant.has(task.index));
        tasks.truncate(args.limit.map_or(usize::MAX, NonZeroUsize::get));
        return Ok(tasks);
    }
    let (tasks, has_more) = client.list_first(&format!("/v1/jobs/{job}/tasks"), &query, args.limit)?;
    if has_more {
        let shown = counted(tasks.len() as u64, "task");
        show::note(&format!("note: only the first {shown} of job {job} are shown; without --limit all are"));
    }
    Ok(tasks)
}

fn attempts(client: &Client, job: u64, meant: &Meant, args: &InfoArgs) -> Result<Vec<AttemptSummary>> {
    if let Some(stage) = meant.stage {
        let mut attempts: Vec<AttemptSummary> = client.list(&format!("/v1/jobs/{job}/attempts"), &Query::default())?;
        let task = |attempt: &AttemptSummary| attempt.task == format!("{job}.{stage}.{}", attempt.index);
        attempts.retain(|attempt| task(attempt) && meant.has(attempt.index));
        attempts.truncate(args.limit.map_or(usize::MAX, NonZeroUsize::get));
        return Ok(attempts);
    }
    let (attempts, has_more) = client.list_first(&format!("/v1/jobs/{job}/attempts"), &Query::default(), args.limit)?;
    if has_more {
        let shown = counted(attempts.len() as u64, "attempt");
        show::note(&format!("note: only the first {shown} of job {job} are shown; without --limit all are"));
    }
    Ok(attempts)
}

fn describe(job: &JobDetail) -> String {
    let summary = &job.summary;
    let mut text = format!("job {}  {}  {}\n", summary.id, show::visible(&summary.name), summary.state_words());
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:<14}{}", show::visible(&value));
        }
    };
    line("user", summary.user.clone());
    line("queue", summary.queue.clone());
    if let Some(preset) = &summary.preset {
        line("preset", preset.clone());
    }
    if let Some(manager) = &summary.manager {
        let away = if manager.connected { "" } else { ", not connected" };
        line("manager", format!("job host {}{away}", manager.number));
    }
    line("priority", summary.priority.to_string());
    line("directory", job.submit_dir.to_string());
    line("submitted", show::time(summary.submitted_at));
    line("started", summary.started_at.map(show::time).unwrap_or_default());
    line("ended", summary.ended_at.map(show::time).unwrap_or_default());
    line("expected end", job.expected_end.map(show::time).unwrap_or_default());
    line("tasks", show::counts(&summary.tasks));
    line("attempts", show::attempts(&job.attempts));
    line("used", show::used(summary));
    line("share", job.share.as_ref().map(share).unwrap_or_default());
    if let Some(exchange) = &summary.exchange {
        line("gave", show::resource_seconds(&exchange.given));
        line("received", show::resource_seconds(&exchange.received));
        line("alone", alone(summary));
    }
    let all = |jobs: &[u64]| jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    line("after jobs", all(&job.after_jobs));
    line("after ends of", all(&job.after_jobs_any));
    line("max fails", job.max_fails.map(|count| count.to_string()).unwrap_or_default());
    line("exit code", job.exit_code.map(|code| code.to_string()).unwrap_or_default());
    // The reason of a waiting job is also the first of `reasons`.
    let of_end = summary.reason.iter().filter(|reason| !job.reasons.contains(reason));
    for (place, reason) in of_end.chain(&job.reasons).enumerate() {
        line(if place == 0 { "reason" } else { "" }, reason.clone());
    }
    text.push('\n');
    text.push_str(&stage_table(&job.stages));
    for stage in &job.stages {
        if let Some(line) = show::dropped_output(stage) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// What the job holds within its share and beyond.
fn share(share: &ShareUse) -> String {
    let within = show::amounts(&share.within);
    match share.beyond.values().any(|amount| *amount > 0.0) {
        false => format!("holds {within}, within its share even if all queues have work"),
        true => {
            let beyond = show::amounts(&share.beyond);
            format!(
                "holds {within} within its share if all queues have work, and {beyond} beyond, until others need it"
            )
        }
    }
}

/// The estimated end of the job alone with its share.
fn alone(job: &JobSummary) -> String {
    let Some(end) = job.exchange.as_ref().and_then(|exchange| exchange.alone_end) else { return String::new() };
    match show::against_alone(job) {
        Some(how) => format!("estimated end alone with its share: {}; it ended {how}", show::time(end)),
        None if job.state.has_ended() => String::new(),
        None => format!("estimated end alone with its share: {}", show::time(end)),
    }
}

fn stage_table(stages: &[StageDetail]) -> String {
    let row = |stage: &StageDetail| {
        let mut needs = show::amounts(&stage.resources);
        for constraint in &stage.constraints {
            let _ = write!(needs, ", {constraint}");
        }
        if let Some(limit) = stage.at_once {
            let _ = write!(needs, ", {limit} at once");
        }
        if stage.gang {
            needs.push_str(", all together");
        }
        if let Some(image) = &stage.container {
            let _ = write!(needs, ", in {image}");
        }
        if !matches!(stage.isolation.as_str(), "" | "none") {
            let _ = write!(needs, ", {}", stage.isolation);
        }
        vec![
            stage.name.clone(),
            stage.after.join(","),
            (stage.tasks.waiting + stage.tasks.queued).to_string(),
            stage.tasks.running.to_string(),
            stage.tasks.succeeded.to_string(),
            stage.tasks.failed.to_string(),
            stage.tasks.cancelled.to_string(),
            stage.rate.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", show::number(rate))),
            mean(stage),
            needs,
            stage.command.iter().map(ByteString::to_string).collect::<Vec<_>>().join(" "),
        ]
    };
    let headings =
        ["STAGE", "AFTER", "WAITING", "RUNNING", "DONE", "FAILED", "CANCELLED", "RATE", "MEAN", "NEEDS", "COMMAND"];
    show::table(&headings, &stages.iter().map(row).collect::<Vec<_>>())
}

fn mean(stage: &StageDetail) -> String {
    let of = match stage.mean_of {
        Some(MeanOf::JobFile) => " stated",
        Some(MeanOf::EarlierRuns) => " before",
        Some(MeanOf::FinishedTasks) | None => "",
    };
    format!("{}{of}", show::optional_seconds(stage.mean_seconds))
}

fn task_table(tasks: &[TaskSummary]) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let row = |task: &TaskSummary| {
        vec![
            task.task.clone(),
            task.stage.clone(),
            task.state.to_string(),
            text(&task.node),
            text(&task.attempt),
            task.attempts.to_string(),
            task.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
            show::optional_seconds(task.wall_seconds),
            show::optional_seconds(task.cpu_seconds),
            task.max_memory_bytes.map_or_else(|| "-".to_owned(), show::bytes),
            task.item.as_ref().map_or_else(|| task.value.to_string(), ByteString::to_string),
            task.reason.clone().unwrap_or_default(),
        ]
    };
    let headings =
        ["TASK", "STAGE", "STATE", "NODE", "ATTEMPT", "TRIES", "EXIT", "WALL", "CPU", "MEMORY", "ITEM", "REASON"];
    show::table(&headings, &tasks.iter().map(row).collect::<Vec<_>>())
}

fn attempt_table(attempts: &[AttemptSummary]) -> String {
    let time = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), show::time);
    let row = |attempt: &AttemptSummary| {
        vec![
            attempt.task.clone(),
            attempt.stage.clone(),
            attempt.attempt.clone(),
            attempt.state.to_string(),
            attempt.node.clone(),
            attempt.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
            time(attempt.started_at),
            time(attempt.ended_at),
            show::optional_seconds(attempt.wall_seconds),
            show::optional_seconds(attempt.cpu_seconds),
            attempt.max_memory_bytes.map_or_else(|| "-".to_owned(), show::bytes),
            attempt.reason.clone().unwrap_or_default(),
        ]
    };
    let headings =
        ["TASK", "STAGE", "ATTEMPT", "STATE", "NODE", "EXIT", "STARTED", "ENDED", "WALL", "CPU", "MEMORY", "REASON"];
    show::table(&headings, &attempts.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_held_beyond_the_share_is_named_if_there_is_some() {
        let cpu = |count: f64| BTreeMap::from([("cpu".to_owned(), count), ("memory".to_owned(), 0.0)]);
        let of = |within, beyond| share(&ShareUse { within: cpu(within), beyond: cpu(beyond) });
        assert_eq!(of(2.0, 0.0), "holds 2 cpu, within its share even if all queues have work");
        let lent = "holds 2 cpu within its share if all queues have work, and 1 cpu beyond, until others need it";
        assert_eq!(of(2.0, 1.0), lent);
        assert!(of(0.0, 1.0).starts_with("holds nothing within"), "{}", of(0.0, 1.0));
    }
}
