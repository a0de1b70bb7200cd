//! The interface between the HTTP handlers and the cluster.

use crate::api::{
    Action, AttemptSummary, ChosenCounts, ChosenTasks, ClusterSummary, ConfigChange, Error, Event, InputTaken,
    JobDetail, JobState, JobSummary, Listing, NodeDetail, NodeSummary, OutputFile, QueueSummary, Report, StoryLine,
    Submitted, TaskState, TaskSummary, Timestamp, Waited,
};
use crate::dates::By;
use crate::files::{Piece, PieceAsk};
use crate::input::InputPart;
use amalgam_core::protocol::JobUpdate;
use amalgam_core::vocabulary::{AttemptId, Digest, JobId, JobSpec, NodeId, QueueSettings, Stream, TaskId};
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::time::Duration;

/// The operations of a cluster that the HTTP handlers need. The handlers have checked that the caller may do them.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Accepts a checked job and returns once the job is durable. A key that was used before returns the same answer as
    /// the first time, whatever the job's current state.
    async fn submit(&self, job: JobSpec, idempotency_key: Option<String>) -> Result<Submitted, Error>;

    /// The job's user.
    async fn owner(&self, job: JobId) -> Result<String, Error>;

    /// Jobs that the server still keeps, the newest first.
    async fn jobs(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error>;
    async fn job(&self, job: JobId) -> Result<JobDetail, Error>;
    /// The tasks of a job, in the order of their ids.
    async fn tasks(&self, job: JobId, filter: TaskFilter, page: Page) -> Result<Listing<TaskSummary>, Error>;
    /// All records about the job, in order. With a filter: those about the selected tasks and about the job as a whole.
    async fn story(&self, job: JobId, of: StoryFilter, page: Page) -> Result<Listing<StoryLine>, Error>;
    /// All attempts of a job or of one of its tasks, in the order of their launches.
    async fn attempts(&self, job: JobId, task: Option<TaskId>, page: Page) -> Result<Listing<AttemptSummary>, Error>;
    /// Jobs that have ended, from the durable store, the most recently ended first.
    async fn history(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error>;

    /// Applies an action that the user `by` requests.
    async fn act(&self, job: JobId, action: Action, by: &str) -> Result<Acted, Error>;
    /// Applies an action to single tasks. Also returns how many of them were in each state before.
    async fn act_on_tasks(
        &self,
        job: JobId,
        action: Action,
        tasks: &[ChosenTasks],
    ) -> Result<(Option<String>, ChosenCounts), Error>;
    /// Applies a change that the user `by` requests.
    async fn update(&self, job: JobId, update: JobUpdate, by: &str) -> Result<Acted, Error>;
    /// Returns when the job has ended or `patience` has passed, whichever is earlier.
    async fn wait(&self, job: JobId, patience: Duration) -> Result<Waited, Error>;
    /// A piece of an attempt's output. If there is none at the offset yet, waits until there is, until the task has
    /// ended, or until `patience` has passed.
    async fn output(&self, request: OutputRequest) -> Result<OutputChunk, Error>;

    /// The number of the job's stage with this name.
    async fn stage(&self, job: JobId, name: &str) -> Result<Option<u32>, Error>;
    /// The node that has this name now.
    async fn node_named(&self, name: &str) -> Result<Option<NodeId>, Error>;

    /// The outputs of tasks that have succeeded, ordered by task and name.
    async fn outputs(&self, job: JobId, filter: OutputFilter, page: Page) -> Result<Listing<OutputFile>, Error>;
    async fn output_file(&self, task: TaskId, name: &str) -> Result<FoundFile, Error>;
    /// A part of a file on a node, or the reason why it is not available.
    async fn piece(&self, ask: PieceAsk) -> Piece;

    /// Sends a part of a task's standard input. Returns when the task has taken at least a part of the bytes, when a
    /// newer attempt runs, or after a timeout.
    async fn input(&self, request: InputRequest) -> Result<InputTaken, Error>;

    async fn nodes(&self) -> Result<Vec<NodeSummary>, Error>;
    async fn node(&self, node: NodeId) -> Result<NodeDetail, Error>;
    /// Starts or ends the draining of a node. A draining node gets no new attempts; its running attempts continue.
    async fn drain(&self, node: NodeId, drain: bool) -> Result<(), Error>;
    /// Removes a node that will not connect again.
    async fn remove_node(&self, node: NodeId) -> Result<(), Error>;
    /// Sets labels of a node, and removes those without a value.
    async fn label_node(&self, node: NodeId, labels: Vec<(String, Option<String>)>) -> Result<(), Error>;
    /// Sets limits of a queue; `None` resets it to what is configured.
    async fn set_queue(&self, queue: &str, settings: Option<QueueSettings>) -> Result<(), Error>;
    /// Reads the configuration again.
    async fn reload(&self) -> Result<Vec<ConfigChange>, Error>;
    async fn queues(&self) -> Result<Vec<QueueSummary>, Error>;
    /// Totals of usage on the days from the first to the last, with `user` only this user's.
    async fn report(&self, days: (u64, u64), by: By, user: Option<String>) -> Result<Report, Error>;
    async fn cluster(&self) -> Result<ClusterSummary, Error>;

    /// Events from this sequence number on, as they happen; with `job`, only those of the job. Starts with a `gap`
    /// event if some of them are no longer kept. The caller removes the events of other users.
    async fn events(&self, from: u64, job: Option<JobId>) -> Result<BoxStream<'static, Event>, Error>;

    /// All metrics in Prometheus' text format.
    async fn metrics(&self) -> Result<String, Error>;
    /// Checks that the server can accept submissions now.
    async fn ready(&self) -> Result<(), Error>;
}

/// Result of an action.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Acted {
    /// What the action waits for, if it is not done yet.
    pub waits_for: Option<String>,
    /// The current state, if the action had nothing to change.
    pub unchanged: Option<String>,
}

/// Selects jobs. An absent or empty field selects all.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JobFilter {
    pub states: Vec<JobState>,
    pub user: Option<String>,
    pub queue: Option<String>,
    pub name: Option<String>,
    /// Only jobs that ended at or after this time.
    pub ended_since: Option<Timestamp>,
    /// Only jobs that ended before this time.
    pub ended_until: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TaskFilter {
    pub states: Vec<TaskState>,
    pub stage: Option<u32>,
    /// A task's place in the stage.
    pub index: Option<u32>,
}

/// Selects tasks for a story. An absent field selects all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StoryFilter {
    pub stage: Option<u32>,
    /// A task's place in the stage.
    pub index: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputRequest {
    pub task: TaskId,
    /// The attempt that reads the part. Absent until the first answer has named it.
    pub attempt: Option<AttemptId>,
    pub part: InputPart,
}

/// Selects tasks whose outputs are listed. An absent field selects all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OutputFilter {
    pub stage: Option<u32>,
    /// A task's place in the stage.
    pub index: Option<u32>,
}

/// An output and the nodes that may have a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundFile {
    pub digest: Digest,
    pub bytes: u64,
    pub nodes: Vec<NodeId>,
}

/// A part of a list. The cursor is the `next` of the page before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    pub cursor: Option<String>,
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputRequest {
    pub task: TaskId,
    /// If absent, the latest attempt.
    pub attempt: Option<AttemptId>,
    pub stream: Stream,
    pub offset: u64,
    /// Maximum number of bytes to return.
    pub limit: u32,
    pub patience: Duration,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OutputChunk {
    pub bytes: Vec<u8>,
    /// This attempt's output ends with these bytes: the task has ended, or has a newer attempt.
    pub ended: bool,
    /// The attempt that wrote the output; none before the task's first attempt.
    pub attempt: Option<AttemptId>,
    /// The task's latest attempt, if it is not `attempt`.
    pub newer: Option<AttemptId>,
}

impl JobFilter {
    /// Whether the filter selects a job in this state. A held job also matches [`JobState::Held`].
    pub fn has_state(&self, state: JobState, is_held: bool) -> bool {
        self.states.is_empty() || self.states.contains(&state) || is_held && self.states.contains(&JobState::Held)
    }

    pub fn admits(&self, job: &JobSummary) -> bool {
        let matches = |wanted: &Option<String>, found: &String| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let ended = |admits: &dyn Fn(Timestamp) -> bool| job.ended_at.is_some_and(admits);
        self.ended_since.is_none_or(|since| ended(&|end| end >= since))
            && self.ended_until.is_none_or(|until| ended(&|end| end < until))
            && self.has_state(job.state, job.held)
            && matches(&self.user, &job.user)
            && matches(&self.queue, &job.queue)
            && matches(&self.name, &job.name)
    }
}

impl StoryFilter {
    pub fn admits(&self, task: TaskId) -> bool {
        self.stage.is_none_or(|stage| stage == task.stage) && self.index.is_none_or(|index| index == task.index)
    }
}

impl TaskFilter {
    pub fn admits(&self, task: TaskId, state: TaskState) -> bool {
        (self.states.is_empty() || self.states.contains(&state))
            && self.stage.is_none_or(|stage| stage == task.stage)
            && self.index.is_none_or(|index| index == task.index)
    }
}
