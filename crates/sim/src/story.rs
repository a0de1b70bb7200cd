//! The happenings of a simulation as lines of text, and a digest of them.

use crate::faults::{Fault, Happening};
use crate::places::ProcessId;
pub use crate::subject::Subject;
use amalgam_core::hosting::Fact;
use amalgam_core::protocol::Message;
use amalgam_core::role::Change;
use amalgam_core::story::{change_by_ids, record_by_ids};
use amalgam_core::vocabulary::{Instant, JobId, TaskId};
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

    pub fn add_fact(&mut self, now: Instant, place: ProcessId, fact: &Fact) {
        if fact.job() == Some(self.job()) {
            self.add(now, &Happening::Reported(place, fact.clone()));
        }
    }

    pub fn add(&mut self, now: Instant, happening: &Happening) {
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
        Happening::Reported(place, Fact::Record(record)) => format!("{}: {}", name(*place), record_by_ids(record)),
        Happening::Answered { job, id } => format!("client of job{job}: got job id {id}"),
        Happening::Repeated { to, message } => format!("{} receives again: {}", name(*to), shortened(message)),
        Happening::Intruded { node, attempt, task, .. } => {
            format!("!! an intruder sends a launch of {attempt} (task {task}) to n{node}")
        }
        Happening::TaskStarted { node, attempt, task, .. } => {
            format!("process of {attempt} (task {task}) starts on n{node}")
        }
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

fn name(place: ProcessId) -> String {
    match place {
        ProcessId::Server => "server".to_owned(),
        ProcessId::Managers(number) => format!("managers {number}"),
        ProcessId::Cluster(number) => format!("cluster {number}"),
        ProcessId::Global(number) => format!("global {number}"),
        ProcessId::Node(node) => format!("n{node}"),
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
    change_by_ids(change).unwrap_or_else(|| format!("{change:?}"))
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
