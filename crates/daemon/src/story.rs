//! Converts facts to lines of a story.

use crate::api::{AllocationParts, StoryLine, Timestamp};
use crate::endings;
use crate::http::StoryFilter;
use crate::views::task_name;
use amalgam_core::dispatch::{JobEnd, JobState};
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::protocol::{AdmittedJob, JobOutcome, JobUpdate};
use amalgam_core::role::{Change, LostCause, Record, Trigger};
use amalgam_core::vocabulary::{
    AllocationTime, AttemptId, Duration, EndReason, Ended, Federation, GlobalId, GrantId, JobId, Kinds, NodeId, Spans,
    TaskAction, TaskId,
};
use amalgam_core::why::{Why, counted};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The names that the lines use.
pub struct Names {
    job: Arc<AdmittedJob>,
    nodes: BTreeMap<NodeId, String>,
    /// The federation and this global master, if this process is one.
    federation: Option<(Federation, GlobalId)>,
    kinds: Kinds,
    /// The dependency that ended the job, and its outcome.
    dependency: Option<(JobId, String)>,
    /// Whether tasks are guaranteed or opportunistic under the preset.
    reports_guarantees: bool,
}

impl Names {
    pub fn of(roles: &Roles, job: JobId) -> Option<Names> {
        let dispatch = roles.dispatch()?;
        let nodes = dispatch.names.by_number().map(|(node, name)| (node, name.to_owned())).collect();
        let preset = roles.preset();
        let (admitted, state) = dispatch.job(job)?;
        let dependency = match state {
            JobState::Ended(JobEnd { outcome: JobOutcome::DependencyFailed { after }, .. }) => Some(*after),
            _ => None,
        };
        let reports_guarantees = preset.has_kinds() || preset.entitled().is_some();
        Some(Names {
            job: Arc::clone(admitted),
            dependency: dependency.map(|after| (after, endings::of_dependency(Some(dispatch), after))),
            nodes,
            federation: roles.global.as_ref().map(|global| (global.federation(), global.own())),
            kinds: dispatch.kinds.clone(),
            reports_guarantees,
        })
    }

    pub(crate) fn plain(&self, node: NodeId) -> String {
        self.nodes.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }

    fn node(&self, node: NodeId) -> String {
        let name = self.plain(node);
        match self.federation {
            Some((federation, _)) => format!("{name} of {}", federation.cluster_of(node)),
            None => name,
        }
    }

    /// The partition of a node, if it is not this global master's.
    fn partition(&self, node: NodeId) -> String {
        let Some((federation, own)) = self.federation else { return String::new() };
        match federation.internal_to(node) {
            whose if whose == own => String::new(),
            whose => format!(", which is in the partition of {whose},"),
        }
    }

    fn task(&self, task: TaskId) -> String {
        match self.job.spec.stages.get(task.stage as usize) {
            Some(stage) => task_name(stage, task.index),
            None => task.to_string(),
        }
    }

    /// How a task was launched.
    fn guarantee(&self, grant: Option<GrantId>, opportunistic: bool) -> &'static str {
        match (self.reports_guarantees, grant) {
            (true, Some(_)) => "granted as guaranteed work",
            (true, None) if opportunistic => "sent as opportunistic work",
            (true, None) => "sent as guaranteed work",
            (false, Some(_)) => "granted",
            (false, None) => "sent",
        }
    }

    pub(crate) fn stage(&self, stage: u32) -> &str {
        self.job.spec.stages.get(stage as usize).map_or("?", |stage| &stage.name)
    }
}

/// The content of a line: kind, text and subject.
struct Described {
    kind: &'static str,
    text: String,
    task: Option<TaskId>,
    attempt: Option<AttemptId>,
    node: Option<NodeId>,
    allocation: Option<AllocationTime>,
}

/// The line that a fact adds to the story of a job or of some of its tasks; `None` if it adds none.
pub fn story_line(sequence: u64, at: u64, fact: &Fact, of: StoryFilter, names: &Names) -> Option<StoryLine> {
    let told = match fact {
        Fact::Change(change) => of_change(change, names)?,
        Fact::Record(record) => of_record(record, names)?,
    };
    if told.task.is_some_and(|task| !of.admits(task)) {
        return None;
    }
    Some(StoryLine {
        sequence,
        at: Timestamp(at),
        kind: told.kind.to_owned(),
        text: told.text,
        task: told.task.map(|task| task.to_string()),
        attempt: told.attempt.map(|attempt| attempt.to_string()),
        node: told.node.map(|node| names.plain(node)),
        allocation: told.allocation.as_ref().map(allocation_parts),
    })
}

fn of_job(kind: &'static str, text: impl Into<String>) -> Option<Described> {
    Some(Described { kind, text: text.into(), task: None, attempt: None, node: None, allocation: None })
}

fn of_attempt(kind: &'static str, task: TaskId, attempt: AttemptId, node: NodeId, text: String) -> Option<Described> {
    Some(Described { kind, text, task: Some(task), attempt: Some(attempt), node: Some(node), allocation: None })
}

fn of_change(change: &Change, names: &Names) -> Option<Described> {
    of_job_change(change, names).or_else(|| of_attempt_change(change, names))
}

/// Changes to the job or to chosen tasks of it.
fn of_job_change(change: &Change, names: &Names) -> Option<Described> {
    match change {
        Change::JobAdmitted { job, .. } => {
            let tasks = counted(job.spec.task_count(), "task");
            let guaranteed = match job.only_guaranteed {
                true => ", all guaranteed: its user's last jobs ran far longer than stated",
                false => "",
            };
            of_job("submitted", format!("submitted by {} with {tasks}{guaranteed}", job.spec.user))
        }
        Change::JobHeld { held: true, .. } => of_job("held", "held"),
        Change::JobHeld { held: false, .. } => of_job("released", "released"),
        Change::JobStarted { .. } => of_job("admitted", "its stages without dependencies request resources"),
        Change::CancelAsked { by, .. } => of_job("cancel-asked", format!("cancelled by {by}")),
        Change::JobUpdated { update, by, .. } => of_job("updated", format!("{} set by {by}", updated(update))),
        Change::JobReopened { .. } => of_job("reopened", "reopened to run failed and cancelled tasks again"),
        Change::JobEnded { outcome, .. } => {
            let how = match outcome {
                JobOutcome::Succeeded => "succeeded".to_owned(),
                JobOutcome::Failed { exit_code } => format!("failed with exit code {exit_code}"),
                JobOutcome::Cancelled => "cancelled".to_owned(),
                JobOutcome::DependencyFailed { after } => match &names.dependency {
                    Some((job, text)) if job == after => format!("cancelled: {text}"),
                    _ => format!("cancelled: {}", endings::of_dependency(None, *after)),
                },
            };
            of_job("ended", format!("job {how}"))
        }
        Change::Cancelled { .. } => of_job("cancelled", "cancelled: no more tasks start"),
        Change::TasksChosen { action, stage, tasks, .. } => {
            let (kind, done) = match action {
                TaskAction::Cancel => ("tasks-cancelled", "cancelled"),
                TaskAction::Hold => ("tasks-held", "held"),
                TaskAction::Release | TaskAction::RerunFailed => ("tasks-released", "released"),
            };
            of_job(kind, format!("tasks {} of stage {} are {done}", places(tasks), names.stage(*stage)))
        }
        Change::TasksAsked { action: TaskAction::RerunFailed, tasks, .. } => {
            let one = |(stage, tasks): (&u32, &Spans)| format!("{} of stage {}", places(tasks), names.stage(*stage));
            let all = tasks.0.iter().map(one).collect::<Vec<_>>().join(" and ");
            of_job("tasks-reopened", format!("of its failed and cancelled tasks only these run again: {all}"))
        }
        _ => None,
    }
}

/// Changes to one attempt or one task.
fn of_attempt_change(change: &Change, names: &Names) -> Option<Described> {
    match change {
        Change::Launched { attempt, task, node, grant, opportunistic, rule, passed_over, .. } => {
            let passed = match passed_over {
                0 => String::new(),
                &jobs => format!(", before {} that did not fit", counted(u64::from(jobs), "job")),
            };
            let how = names.guarantee(*grant, *opportunistic);
            let place = if grant.is_some() { "on" } else { "to" };
            let whose = names.partition(*node);
            let text = format!("{} {how} {place} {}{whose} by {rule}{passed}", names.task(*task), names.node(*node));
            of_attempt("launched", *task, *attempt, *node, text)
        }
        Change::Finished { attempt, task, node, ended, last, .. } => {
            of_attempt("ended", *task, *attempt, *node, format!("{} {}", names.task(*task), of_end(ended, *last)))
        }
        Change::Promoted { attempt, task, node, grant, .. } => {
            let why = match grant {
                Some(_) => format!("its resources on {} are booked", names.node(*node)),
                None => "it is within its job's allowance".to_owned(),
            };
            let text = format!("{} is guaranteed from now on: {why}", names.task(*task));
            of_attempt("promoted", *task, *attempt, *node, text)
        }
        Change::Lost { attempt, task, node, cause, last, .. } => {
            let (kind, text) = of_loss(cause, *last, &names.task(*task), &names.node(*node));
            of_attempt(kind, *task, *attempt, *node, text)
        }
        Change::EndedLate { attempt, task, node, ended, .. } => {
            let text = format!("{}, which was given up before, {}", names.task(*task), ended.reason);
            of_attempt("ended-late", *task, *attempt, *node, text)
        }
        Change::OutputLost { task, file, .. } => {
            let text =
                format!("{} runs again: no node has its output `{file}`, which other tasks read", names.task(*task));
            Some(Described {
                kind: "output-lost",
                text,
                task: Some(*task),
                attempt: None,
                node: None,
                allocation: None,
            })
        }
        _ => None,
    }
}

/// Kind and text of the loss of an attempt of `task` on `node`.
fn of_loss(cause: &LostCause, last: bool, task: &str, node: &str) -> (&'static str, String) {
    let why = match cause {
        LostCause::NodeLost => format!("{node} was unreachable for too long"),
        LostCause::Unknown => format!("{node} does not have it, or no longer"),
        LostCause::NotTaken => format!("{node} did not accept it"),
        LostCause::Refused(why) => return ("refused", format!("{task} is not launched on {node}: {why}")),
        LostCause::Copied => return ("copied", format!("{task} has run again to write its files")),
        LostCause::Superseded => {
            return ("superseded", format!("{task}: another attempt started or finished first"));
        }
    };
    let again = if last { "; it will not be tried again" } else { "; it will be tried again" };
    ("lost", format!("{task} lost: {why}{again}"))
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

fn in_parts(time: &AllocationTime) -> String {
    let AllocationTime { queue, processing, communication, node } = time;
    format!(
        "; of {} since it could run: {queue} in the queue, {processing} processing, {communication} communication, {node} at \
         the node",
        time.total()
    )
}

fn allocation_parts(time: &AllocationTime) -> AllocationParts {
    let AllocationTime { queue, processing, communication, node } = time;
    AllocationParts {
        queue: queue.as_secs_f64(),
        processing: processing.as_secs_f64(),
        communication: communication.as_secs_f64(),
        node: node.as_secs_f64(),
    }
}

fn of_record(record: &Record, names: &Names) -> Option<Described> {
    of_job_record(record, names)
        .or_else(|| of_start_record(record, names))
        .or_else(|| of_run_record(record, names))
        .or_else(|| of_duplicate_record(record, names))
}

/// Records about the job, its stages and tasks, without a node.
fn of_job_record(record: &Record, names: &Names) -> Option<Described> {
    match record {
        Record::Blocked { why, .. } => of_job("blocked", why.describe(&names.kinds, |node| names.node(node))),
        Record::StageReady { stage, .. } => {
            of_job("stage-ready", format!("stage {} is ready: its dependencies are met", names.stage(*stage)))
        }
        Record::Deferred { stage, tasks, left, .. } => {
            let why = Why::CanWait { stage: names.stage(*stage).to_owned(), tasks: *tasks, left: *left };
            of_job("can-wait", why.describe(&names.kinds, |node| names.node(node)))
        }
        Record::GangStarts { stage, tasks, .. } => {
            let text = format!(
                "{} of stage {}, all that have not succeeded, are in place and start",
                counted(u64::from(*tasks), "task"),
                names.stage(*stage)
            );
            of_job("gang-started", text)
        }
        Record::EstimatesJudged { believed: false, .. } => of_job(
            "estimates",
            "ran far longer than stated, as its user's last jobs did: that user's next jobs are guaranteed",
        ),
        Record::EstimatesJudged { believed: true, .. } => {
            of_job("estimates", "ran about as long as stated: its user's next jobs may be opportunistic again")
        }
        Record::Retried { task, failures, retries, delay, costs_none } => {
            let cost = match costs_none {
                true => "which costs none of its retries".to_owned(),
                false => format!("{failures} of {retries} retries used"),
            };
            let when = if delay.as_micros() == 0 { String::new() } else { format!(" in {delay}") };
            let text = format!("{} is tried again{when} ({cost})", names.task(*task));
            Some(Described { kind: "retried", text, task: Some(*task), attempt: None, node: None, allocation: None })
        }
        Record::Stale { attempt, .. } => Some(Described {
            kind: "stale",
            text: format!(
                "a message about attempt {attempt} arrived after its end, for example after a duplicate or from a reconnected node; it is ignored"
            ),
            task: None,
            attempt: Some(*attempt),
            node: None,
            allocation: None,
        }),
        _ => None,
    }
}

/// Records about an attempt from its launch to its start.
fn of_start_record(record: &Record, names: &Names) -> Option<Described> {
    match record {
        Record::Queued { task, attempt, node } => {
            let text = format!("{} waits at {} for room", names.task(*task), names.node(*node));
            of_attempt("queued", *task, *attempt, *node, text)
        }
        Record::AwaitsGang { task, attempt, node } => {
            let text =
                format!("{} is on {} and waits for the others of its gang", names.task(*task), names.node(*node));
            of_attempt("awaits-gang", *task, *attempt, *node, text)
        }
        Record::AwaitsFiles { task, attempt, node, files, bytes } => {
            let files = counted(u64::from(*files), "file");
            let text = format!("{} lacks {files} of {bytes} bytes that {} reads", names.node(*node), names.task(*task));
            of_attempt("awaits-files", *task, *attempt, *node, text)
        }
        Record::FilesArrived { task, attempt, node } => {
            let text = format!("all input files of {} are on {}", names.task(*task), names.node(*node));
            of_attempt("files-arrived", *task, *attempt, *node, text)
        }
        Record::Started { task, attempt, node, waited, allocation, .. } => {
            let parts = allocation.map(|time| in_parts(&time)).unwrap_or_default();
            let text =
                format!("{} started on {}, {waited} after its launch{parts}", names.task(*task), names.node(*node));
            Some(Described { allocation: *allocation, ..of_attempt("started", *task, *attempt, *node, text)? })
        }
        Record::WaitedInVain { task, attempt, node, waited, expected } => {
            let text = format!("it waited {waited} on {} and did not start; expected: {expected}", names.node(*node));
            of_attempt("given-up", *task, *attempt, *node, text)
        }
        Record::Prediction { task, attempt, node, prediction, start, .. } => {
            let (least, most) = (prediction.least, prediction.most);
            let text = format!("it waited {}; predicted: {least} to {most}", start.waited);
            of_attempt("predicted", *task, *attempt, *node, text)
        }
        Record::LaunchRefused { task, attempt, node, why } => {
            let text = format!("a launch of {} on {} is refused: {why}", names.task(*task), names.node(*node));
            of_attempt("refused", *task, *attempt, *node, text)
        }
        Record::TokenRefused { task, attempt, node, why } => {
            let text = format!("{} refused a launch of {}: {why}", names.node(*node), names.task(*task));
            of_attempt("token-refused", *task, *attempt, *node, text)
        }
        _ => None,
    }
}

/// Records about the run of an attempt.
fn of_run_record(record: &Record, names: &Names) -> Option<Described> {
    match record {
        Record::Adopted { task, attempt, node } => {
            let text = format!("{} found running on {} and taken over", names.task(*task), names.node(*node));
            of_attempt("adopted", *task, *attempt, *node, text)
        }
        Record::Stopping { task, attempt, node, reason } => {
            let text = format!("{} on {} is stopped: {reason}", names.task(*task), names.node(*node));
            of_attempt("stopping", *task, *attempt, *node, text)
        }
        Record::Preempting { task, attempt, node, by } => {
            let (task_name, node_name) = (names.task(*task), names.node(*node));
            let text =
                format!("{task_name} on {node_name} is preempted for the guaranteed attempt {by} of job {}", by.job);
            of_attempt("preempting", *task, *attempt, *node, text)
        }
        Record::Yielding { task, attempt, node, by } => {
            let (task_name, node_name) = (names.task(*task), names.node(*node));
            let text = format!(
                "{task_name} on {node_name} yields its CPU to the guaranteed attempt {by} of job {}, and continues with \
                 what is left",
                by.job
            );
            of_attempt("yielding", *task, *attempt, *node, text)
        }
        Record::Resumed { task, attempt, node, after } => {
            let text = format!("{} on {} has its CPU again, after {after}", names.task(*task), names.node(*node));
            of_attempt("resumed", *task, *attempt, *node, text)
        }
        Record::Orphaned { task, attempt, node } => {
            let text =
                format!("an attempt of {} on {} has no owner and is stopped", names.task(*task), names.node(*node));
            of_attempt("orphaned", *task, *attempt, *node, text)
        }
        _ => None,
    }
}

/// Records about attempts that run beside a slow or waiting one.
fn of_duplicate_record(record: &Record, names: &Names) -> Option<Described> {
    match record {
        Record::Duplicated { task, attempt, node, trigger } => {
            let why = match trigger {
                Trigger::Explored => "it waits, and may start sooner there",
                _ => "it would start sooner there",
            };
            let text = format!("{} is launched on {}, too: {why}", names.task(*task), names.node(*node));
            of_attempt("duplicated", *task, *attempt, *node, text)
        }
        Record::Straggles { task, attempt, node, part, left, elsewhere, takes } => {
            let text = format!(
                "{} is slow on {}: {:.0} % done, and {left} left; it is also launched on {}, where it is expected to \
                 take {takes} in total",
                names.task(*task),
                names.node(*node),
                f64::from(*part) / 1e4,
                names.node(*elsewhere)
            );
            of_attempt("straggles", *task, *attempt, *node, text)
        }
        Record::SlowInput { task, attempt, node, waited, writer, from, elsewhere } => {
            let text = format!(
                "{} has waited at {} for {waited} for a file that {} has: {}, which wrote it, runs again on {}",
                names.task(*task),
                names.node(*node),
                names.node(*from),
                names.task(*writer),
                names.node(*elsewhere)
            );
            of_attempt("slow-input", *task, *attempt, *node, text)
        }
        Record::Overtaken { task, attempt, node, by } => {
            let text = format!(
                "attempt {by} of {} finished before the slow one on {}, which is stopped",
                names.task(*task),
                names.node(*node)
            );
            of_attempt("overtaken", *task, *attempt, *node, text)
        }
        _ => None,
    }
}
