//! Changes and records as lines of text: for the story of a job, for traces of the simulator and for transcripts of tests.

mod by_ids;
mod changes;
mod kind;
mod records;

pub use by_ids::{change_by_ids, record_by_ids};
pub use changes::of_change;
pub use kind::Kind;
pub use records::of_record;

use crate::vocabulary::{AllocationTime, AttemptId, JobId, Kinds, NodeId, TaskId};

/// A line of a story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    pub kind: Kind,
    pub text: String,
    pub task: Option<TaskId>,
    pub attempt: Option<AttemptId>,
    pub node: Option<NodeId>,
    /// How an attempt's time before its start is divided.
    pub allocation: Option<AllocationTime>,
}

/// How lines name things.
pub trait Names {
    fn task(&self, task: TaskId) -> String;
    fn node(&self, node: NodeId) -> String;
    fn stage(&self, job: JobId, stage: u32) -> String;
    /// The kinds of resources besides the built-in ones.
    fn kinds(&self) -> &Kinds;
    /// The partition of a node, as an insertion; empty if there are none or it is the reader's own.
    fn partition(&self, node: NodeId) -> String;
    /// How the dependency of a job ended.
    fn dependency(&self, after: JobId) -> String;
    /// Whether launches are shown as guaranteed or opportunistic.
    fn reports_guarantees(&self) -> bool;
}

fn about_job(kind: Kind, text: impl Into<String>) -> Option<Line> {
    Some(Line { kind, text: text.into(), task: None, attempt: None, node: None, allocation: None })
}

fn about_attempt(kind: Kind, task: TaskId, attempt: AttemptId, node: NodeId, text: String) -> Option<Line> {
    Some(Line { kind, text, task: Some(task), attempt: Some(attempt), node: Some(node), allocation: None })
}
