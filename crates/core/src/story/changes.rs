//! The lines of changes.

use super::{Kind, Line, Names, about_attempt, about_job};
use crate::protocol::{JobOutcome, JobUpdate};
use crate::role::{Change, LostCause};
use crate::vocabulary::{Duration, EndReason, Ended, GrantId, Spans, TaskAction};
use crate::why::counted;

/// The line that a change adds to the story of its job; `None` if it adds none.
pub fn of_change(change: &Change, names: &dyn Names) -> Option<Line> {
    of_job_change(change, names).or_else(|| of_attempt_change(change, names))
}

/// Changes to the job or to chosen tasks of it.
fn of_job_change(change: &Change, names: &dyn Names) -> Option<Line> {
    match change {
        Change::JobAdmitted { job, .. } => {
            let tasks = counted(job.spec.task_count(), "task");
            let guaranteed = match job.only_guaranteed {
                true => ", all guaranteed: its user's last jobs ran far longer than stated",
                false => "",
            };
            let by = if job.spec.user.is_empty() { String::new() } else { format!(" by {}", job.spec.user) };
            about_job(Kind::Submitted, format!("submitted{by} with {tasks}{guaranteed}"))
        }
        Change::JobHeld { held: true, .. } => about_job(Kind::Held, "held"),
        Change::JobHeld { held: false, .. } => about_job(Kind::Released, "released"),
        Change::JobStarted { .. } => about_job(Kind::Admitted, "its stages without dependencies request resources"),
        Change::CancelAsked { by, .. } => about_job(Kind::CancelAsked, format!("cancelled by {by}")),
        Change::JobUpdated { update, by, .. } => about_job(Kind::Updated, format!("{} set by {by}", updated(update))),
        Change::JobReopened { .. } => about_job(Kind::Reopened, "reopened to run failed and cancelled tasks again"),
        Change::JobEnded { outcome, .. } => {
            let how = match outcome {
                JobOutcome::Succeeded => "succeeded".to_owned(),
                JobOutcome::Failed { exit_code } => format!("failed with exit code {exit_code}"),
                JobOutcome::Cancelled => "cancelled".to_owned(),
                JobOutcome::DependencyFailed { after } => format!("cancelled: {}", names.dependency(*after)),
            };
            about_job(Kind::Ended, format!("job {how}"))
        }
        Change::Cancelled { .. } => about_job(Kind::Cancelled, "cancelled: no more tasks start"),
        Change::TasksChosen { job, action, stage, tasks, .. } => {
            let (kind, done) = match action {
                TaskAction::Cancel => (Kind::TasksCancelled, "cancelled"),
                TaskAction::Hold => (Kind::TasksHeld, "held"),
                TaskAction::Release | TaskAction::RerunFailed => (Kind::TasksReleased, "released"),
            };
            about_job(kind, format!("tasks {} of stage {} are {done}", places(tasks), names.stage(*job, *stage)))
        }
        Change::TasksAsked { job, action: TaskAction::RerunFailed, tasks, .. } => {
            let one =
                |(stage, tasks): (&u32, &Spans)| format!("{} of stage {}", places(tasks), names.stage(*job, *stage));
            let all = tasks.0.iter().map(one).collect::<Vec<_>>().join(" and ");
            about_job(Kind::TasksReopened, format!("of its failed and cancelled tasks only these run again: {all}"))
        }
        _ => None,
    }
}

/// Changes to one attempt or one task.
fn of_attempt_change(change: &Change, names: &dyn Names) -> Option<Line> {
    match change {
        Change::Launched { attempt, task, node, grant, opportunistic, rule, passed_over, .. } => {
            let passed = match passed_over {
                0 => String::new(),
                &jobs => format!(", before {} that did not fit", counted(u64::from(jobs), "job")),
            };
            let how = guarantee(names, *grant, *opportunistic);
            let place = if grant.is_some() { "on" } else { "to" };
            let whose = names.partition(*node);
            let text = format!("{} {how} {place} {}{whose} by {rule}{passed}", names.task(*task), names.node(*node));
            about_attempt(Kind::Launched, *task, *attempt, *node, text)
        }
        Change::Finished { attempt, task, node, ended, last, .. } => about_attempt(
            Kind::Ended,
            *task,
            *attempt,
            *node,
            format!("{} {}", names.task(*task), of_end(ended, *last)),
        ),
        Change::Promoted { attempt, task, node, grant, .. } => {
            let why = match grant {
                Some(_) => format!("its resources on {} are booked", names.node(*node)),
                None => "it is within its job's allowance".to_owned(),
            };
            let text = format!("{} is guaranteed from now on: {why}", names.task(*task));
            about_attempt(Kind::Promoted, *task, *attempt, *node, text)
        }
        Change::Lost { attempt, task, node, cause, last, .. } => {
            let (kind, text) = of_loss(cause, *last, &names.task(*task), &names.node(*node));
            about_attempt(kind, *task, *attempt, *node, text)
        }
        Change::EndedLate { attempt, task, node, ended, .. } => {
            let text = format!("{}, which was given up before, {}", names.task(*task), ended.reason);
            about_attempt(Kind::EndedLate, *task, *attempt, *node, text)
        }
        Change::OutputLost { task, file, .. } => {
            let text =
                format!("{} runs again: no node has its output `{file}`, which other tasks read", names.task(*task));
            Some(Line { kind: Kind::OutputLost, text, task: Some(*task), attempt: None, node: None, allocation: None })
        }
        _ => None,
    }
}

/// Kind and text of the loss of an attempt of `task` on `node`.
fn of_loss(cause: &LostCause, last: bool, task: &str, node: &str) -> (Kind, String) {
    let why = match cause {
        LostCause::NodeLost => format!("{node} was unreachable for too long"),
        LostCause::Unknown => format!("{node} does not have it, or no longer"),
        LostCause::NotTaken => format!("{node} did not accept it"),
        LostCause::Refused(why) => return (Kind::Refused, format!("{task} is not launched on {node}: {why}")),
        LostCause::Copied => return (Kind::Copied, format!("{task} has run again to write its files")),
        LostCause::Superseded => {
            return (Kind::Superseded, format!("{task}: another attempt started or finished first"));
        }
    };
    let again = if last { "; it will not be tried again" } else { "; it will be tried again" };
    (Kind::Lost, format!("{task} lost: {why}{again}"))
}

/// `0-4, 7 and 12 more`.
fn places(tasks: &Spans) -> String {
    const SHOWN: usize = 8;
    let one = |(first, end): (u32, u32)| match end - first {
        1 => first.to_string(),
        _ => format!("{first}-{}", end - 1),
    };
    let shown = tasks.ranges().take(SHOWN).map(one).collect::<Vec<_>>().join(", ");
    let more: u32 = tasks.ranges().skip(SHOWN).map(|(first, end)| end - first).sum();
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// `priority = 5, timeout = 10m`
fn updated(update: &JobUpdate) -> String {
    let JobUpdate { priority, timeout, queue } = update;
    let timeout = timeout.map(|timeout| match timeout {
        Duration::ZERO => "the queue's timeout".to_owned(),
        timeout => format!("timeout = {timeout}"),
    });
    let parts = [
        priority.map(|priority| format!("priority = {priority}")),
        timeout,
        queue.as_ref().map(|queue| format!("queue = {queue}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn of_end(ended: &Ended, last: bool) -> String {
    let was_preempted = matches!(ended.reason, EndReason::Preempted | EndReason::Shed);
    let again = match (last, was_preempted) {
        (true, _) => "",
        (false, true) => "; it waits again",
        (false, false) => "; it will be tried again",
    };
    let message = ended.message.as_ref().map(|text| format!(" ({})", text.trim_end())).unwrap_or_default();
    // A shed attempt never ran.
    let ran = match ended.reason {
        EndReason::Shed => String::new(),
        _ => format!(" after {}", ended.usage.wall),
    };
    format!("{}{message}{ran}{again}", ended.reason)
}

/// How a task was launched.
fn guarantee(names: &dyn Names, grant: Option<GrantId>, opportunistic: bool) -> &'static str {
    match (names.reports_guarantees(), grant) {
        (true, Some(_)) => "granted as guaranteed work",
        (true, None) if opportunistic => "sent as opportunistic work",
        (true, None) => "sent as guaranteed work",
        (false, Some(_)) => "granted",
        (false, None) => "sent",
    }
}
