//! The happenings of a simulation as lines of text, and a digest of them.

use crate::faults::{Fault, Happening};
use crate::places::Place;
pub use crate::subject::Subject;
use amalgam_core::hosting::Fact;
use amalgam_core::protocol::Message;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{Instant, JobId, Kinds, ResourceTime, TaskId};
use std::fmt::Write;

/// Maximum number of characters that are shown of a message.
const MESSAGE: usize = 120;

/// Collects the happenings that concern a subject.
pub struct Story {
    subject: Subject,
    lines: Vec<String>,
}

impl Story {
    pub fn of(subject: Subject) -> Story {
        Story { subject, lines: Vec::new() }
    }

    pub fn tell(&mut self, now: Instant, place: Place, fact: &Fact) {
        if fact.job() == Some(self.job()) {
            self.take(now, &Happening::Reported(place, fact.clone()));
        }
    }

    pub fn take(&mut self, now: Instant, happening: &Happening) {
        let concerns = match self.subject {
            Subject::Job(job) => job_of(happening) == Some(job),
            Subject::Task(task) => {
                job_of(happening) == Some(task.job) && happening.task().is_none_or(|other| other == task)
            }
        };
        if concerns {
            self.lines.push(line(now, happening));
        }
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }

    fn job(&self) -> JobId {
        match self.subject {
            Subject::Job(job) => job,
            Subject::Task(task) => task.job,
        }
    }
}

pub fn line(at: Instant, happening: &Happening) -> String {
    format!("{:11.6} {}", at.0 as f64 / 1e6, describe(happening))
}

fn describe(happening: &Happening) -> String {
    match happening {
        Happening::Fault(fault) => format!("!! {}", describe_fault(fault)),
        Happening::Started(place) => format!("!! {} starts", name(*place)),
        Happening::Undone(changes) => {
            let lost: Vec<String> = changes.iter().map(describe_change).collect();
            format!("!! lost, because not durable: [{}]", lost.join("; "))
        }
        Happening::Reported(place, Fact::Change(change)) => format!("{}: {}", name(*place), describe_change(change)),
        Happening::Reported(place, Fact::Record(record)) => format!("{}: {}", name(*place), describe_record(record)),
        Happening::Answered { job, id } => format!("client of job{job}: got job id {id}"),
        Happening::Repeated { to, message } => format!("{} receives again: {}", name(*to), shortened(message)),
        Happening::Intruded { node, attempt, task, .. } => {
            format!("!! an intruder sends a launch of {attempt} (task {task}) to n{node}")
        }
        Happening::Began { node, attempt, task, .. } => format!("process of {attempt} (task {task}) starts on n{node}"),
        Happening::Yielded { node, attempt, task } => {
            format!("process of {attempt} (task {task}) on n{node} yields its CPU")
        }
        Happening::Resumed { node, attempt, task } => {
            format!("process of {attempt} (task {task}) on n{node} has its CPU again")
        }
        Happening::Ended { node, attempt, task, reason } => {
            format!("process of {attempt} (task {task}) on n{node}: {reason}")
        }
    }
}

/// The start of a message's debug output, which contains its kind.
fn shortened(message: &Message) -> String {
    let text = format!("{message:?}");
    text.chars().take(MESSAGE).collect()
}

fn name(place: Place) -> String {
    match place {
        Place::Server => "server".to_owned(),
        Place::Managers(number) => format!("managers {number}"),
        Place::Cluster(number) => format!("cluster {number}"),
        Place::Global(number) => format!("global {number}"),
        Place::Node(node) => format!("n{node}"),
    }
}

fn describe_fault(fault: &Fault) -> String {
    match fault {
        Fault::Crash { place, down, noticed } => {
            format!("{} crashes; it restarts after {down}, and others notice after {noticed}", name(*place))
        }
        Fault::ExecutorDies { node } => format!("the executor of n{node} dies with its tasks"),
        Fault::DiskFails { place, reached, down, .. } => format!(
            "{} cannot write its log and exits; {reached} thousandths are on disk; it restarts after {down}",
            name(*place)
        ),

        Fault::DiskSlow { place, lasts } => format!("the disk of {} is slow for {lasts}", name(*place)),
        Fault::CannotLaunch { node, lasts } => format!("n{node} cannot start processes for {lasts}"),
        Fault::Break { link, lasts, noticed_outside, noticed_inside } => format!(
            "connection {link} breaks for {lasts}; its outer end notices after {noticed_outside}, the inner one after {noticed_inside}"
        ),
        Fault::Pause { place, length } => format!("{} hangs for {length}", name(*place)),
        Fault::Act { job, action } => format!("a user requests for job{job}: {action:?}"),
        Fault::SubmitAgain { job } => format!("a client submits job{job} again"),
        Fault::Drain { node, drained: true } => format!("a user drains n{node}"),
        Fault::Drain { node, drained: false } => format!("a user ends the drain of n{node}"),
        Fault::Intrude { how, .. } => format!("an intruder acts: {how:?}"),
        Fault::Heal => "all faults end".to_owned(),
    }
}

fn describe_change(change: &Change) -> String {
    match change {
        Change::JobAdmitted { job, .. } => format!("job {} admitted: {}", job.id, job.spec.name),
        Change::Launched { attempt, task, node, grant, .. } => {
            let grant = grant.map_or_else(|| "without a grant".to_owned(), |grant| format!("with {grant}"));
            format!("task {task} launched on {node} as {attempt} {grant}")
        }
        Change::Finished { attempt, task, ended, last, .. } => {
            let more = if *last { "" } else { ", to be retried" };
            format!("task {task} ended as {attempt}: {}{more}", ended.reason)
        }
        Change::Promoted { attempt, task, node, grant, .. } => {
            let grant = grant.map_or_else(|| "without a grant".to_owned(), |grant| format!("with {grant}"));
            format!("task {task} guaranteed on {node} as {attempt} {grant}")
        }
        Change::Lost { attempt, task, cause, last, .. } => {
            let more = if *last { "" } else { ", to be retried" };
            format!("task {task} lost as {attempt}: {cause:?}{more}")
        }
        Change::OutputLost { task, file, .. } => {
            format!("no node has `{file}` any more, which task {task} wrote and others read: it runs again")
        }
        Change::JobStarted { job } => format!("job {job} starts"),
        Change::Exchanged { job, exchange, .. } => {
            let seconds = |time: &ResourceTime| time.seconds(CPU) / 1e3;
            let (given, received) = (seconds(&exchange.given), seconds(&exchange.received));
            format!("job {job} gave {given} CPU seconds so far and received {received}")
        }
        Change::JobEnded { job, outcome, .. } => format!("job {job} ended: {outcome:?}"),
        other => format!("{other:?}"),
    }
}

fn describe_record(record: &Record) -> String {
    match record {
        Record::Blocked { job, why } => {
            format!("job {job} waits: {}", why.describe(&Kinds::new(), |node| node.to_string()))
        }
        Record::Submitted { job, tasks } => format!("job {job} has {tasks} tasks"),
        Record::Deferred { job, stage, tasks, left } => {
            format!("{tasks} tasks of stage {stage} of job {job} could wait {left} without delaying its end")
        }
        Record::Allowed { job, most } => {
            format!("job {job} may hold {} CPU guaranteed", most.0[CPU] as f64 / 1e3)
        }
        Record::StageReady { job, stage, .. } => format!("stage {stage} of job {job} is ready"),
        Record::AwaitsGang { task, attempt, node } => format!("task {task} waits for its gang on {node} as {attempt}"),
        Record::GangStarts { job, stage, tasks } => {
            format!("{tasks} tasks of stage {stage} of job {job} start together")
        }
        Record::Queued { task, attempt, node } => format!("task {task} queued on {node} as {attempt}"),
        Record::Started { task, attempt, node, .. } => format!("task {task} started on {node} as {attempt}"),
        Record::WaitedInVain { task, attempt, node, waited, expected } => {
            format!(
                "{attempt} (task {task}) on {node} was given up after waiting {waited}; the expected wait was {expected}"
            )
        }
        Record::Prediction { attempt, prediction, start, .. } => {
            format!("{attempt} waited {}; predicted were {} to {}", start.waited, prediction.least, prediction.most)
        }
        Record::Adopted { task, attempt, node } => format!("task {task} found again on {node} as {attempt}"),
        Record::Orphaned { task, attempt, node } => format!("{attempt} (task {task}) has no owner on {node}"),
        Record::Straggles { task, attempt, node, part, left, elsewhere, takes } => format!(
            "{attempt} (task {task}) on {node} is slow: {:.1} % done, {left} left; on {elsewhere} all of it takes {takes}",
            f64::from(*part) / 1e4
        ),
        Record::SlowInput { task, node, waited, writer, from, elsewhere, .. } => format!(
            "task {task} has waited on {node} for {waited} for a file from {from}: task {writer} runs again on {elsewhere}"
        ),
        Record::Overtaken { task, attempt, node, by } => {
            format!("{by} ended task {task} before {attempt} on {node}, which is slow")
        }
        Record::Preempting { task, attempt, node, by } => {
            format!("{attempt} (task {task}) on {node} is preempted by {by}")
        }
        Record::Yielding { task, attempt, node, by } => {
            format!("{attempt} (task {task}) on {node} yields its CPU to {by}")
        }
        Record::Resumed { task, attempt, node, after } => {
            format!("{attempt} (task {task}) on {node} gets its CPU back after {after}")
        }
        Record::TokenRefused { task, attempt, node, why } => {
            format!("{node} refuses a launch of {attempt} (task {task}): {why}")
        }
        Record::Stale { from, attempt } => format!("late message about {attempt} from {from:?} dropped"),
        Record::StaleMessage { from } => format!("late message from {from:?} dropped"),
        Record::LaunchRefused { task, attempt, node, why } => {
            format!("task {task}: launch as {attempt} on {node} refused, {why}")
        }
        Record::Repartitioned { task, attempt, node } => {
            format!("task {task}: {attempt} gets room on {node}, which is internal to another global master")
        }
        Record::StaleGrant { from, grant } => format!("late message about {grant} from {from:?} dropped"),
        other => format!("{other:?}"),
    }
}

// ---- selection -----------------------------------------------------------------------------------------------------

/// Whether the happening belongs in the story of a task: it is about the task, or about the whole cluster.
pub fn concerns_task(happening: &Happening, task: TaskId) -> bool {
    is_of_cluster(happening) || happening.task() == Some(task)
}

pub(crate) fn is_of_cluster(happening: &Happening) -> bool {
    matches!(happening, Happening::Fault(_) | Happening::Started(_) | Happening::Undone(_))
}

pub(crate) fn job_of(happening: &Happening) -> Option<JobId> {
    match happening {
        Happening::Reported(_, fact) => fact.job(),
        Happening::Answered { id, .. } => Some(*id),
        _ => happening.task().map(|task| task.job),
    }
}

/// FNV-1a hash of all happenings with their times.
pub fn digest(happened: &[(Instant, Happening)]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut text = String::new();
    for (at, happening) in happened {
        text.clear();
        write!(text, "{at:?} {happening:?}").expect("writing to a string does not fail");
        hash = text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }
    format!("{hash:016x}")
}
