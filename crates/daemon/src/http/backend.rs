//! What stands behind the interface.

use crate::api::{
    Action, AttemptSummary, ChosenCounts, ChosenTasks, ClusterSummary, Error, Event, InputTaken, JobDetail, JobState,
    JobSummary, Listing, NodeDetail, NodeSummary, OutputFile, QueueSummary, StoryLine, Submitted, TaskState,
    TaskSummary, Timestamp, Waited,
};
use crate::files::{Piece, PieceAsk};
use crate::input::InputPart;
use amalgam_core::protocol::JobUpdate;
use amalgam_core::vocabulary::{AttemptId, Digest, JobId, JobSpec, NodeId, Stream, TaskId};
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::time::Duration;

/// A cluster as the interface needs it. Callers are already known to be allowed to do what they ask for.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Accepts a checked job; returns only when it is durable. A key that was used before returns what it returned
    /// then, whatever the job is now.
    async fn submit(&self, job: JobSpec, idempotency_key: Option<String>) -> Result<Submitted, Error>;

    /// The user a job belongs to.
    async fn owner(&self, job: JobId) -> Result<String, Error>;

    /// Jobs that are not forgotten, the newest first.
    async fn jobs(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error>;
    async fn job(&self, job: JobId) -> Result<JobDetail, Error>;
    /// In the order of their ids.
    async fn tasks(&self, job: JobId, filter: TaskFilter, page: Page) -> Result<Listing<TaskSummary>, Error>;
    /// Every record about a job, or about some of its tasks and the job as a whole, in order.
    async fn story(&self, job: JobId, of: StoryFilter, page: Page) -> Result<Listing<StoryLine>, Error>;
    /// Every attempt of a job, or of one of its tasks, in the order of their launches.
    async fn attempts(&self, job: JobId, task: Option<TaskId>, page: Page) -> Result<Listing<AttemptSummary>, Error>;
    /// Jobs that have ended, from the durable store, the last one first.
    async fn history(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error>;

    /// What this user wants of a job.
    async fn act(&self, job: JobId, action: Action, by: &str) -> Result<Acted, Error>;
    /// The same for single tasks. Returns in which states they were before, too.
    async fn act_on_tasks(
        &self,
        job: JobId,
        action: Action,
        tasks: &[ChosenTasks],
    ) -> Result<(Option<String>, ChosenCounts), Error>;
    /// What this user changes about a job.
    async fn update(&self, job: JobId, update: JobUpdate, by: &str) -> Result<Acted, Error>;
    /// Returns when the job has ended or `patience` is over, whichever comes first.
    async fn wait(&self, job: JobId, patience: Duration) -> Result<Waited, Error>;
    /// A piece of an attempt's output. When there is none at the offset yet, returns as soon as there is, when the
    /// task has ended, or when `patience` is over.
    async fn output(&self, request: OutputRequest) -> Result<OutputChunk, Error>;

    /// The number of the job's stage of this name.
    async fn stage(&self, job: JobId, name: &str) -> Result<Option<u32>, Error>;
    /// The node that has this name now.
    async fn node_named(&self, name: &str) -> Result<Option<NodeId>, Error>;

    /// What tasks that have ended well left, in the order of tasks and names.
    async fn outputs(&self, job: JobId, filter: OutputFilter, page: Page) -> Result<Listing<OutputFile>, Error>;
    async fn output_file(&self, task: TaskId, name: &str) -> Result<FoundFile, Error>;
    /// A part of a file at a node, or why it cannot be had.
    async fn piece(&self, ask: PieceAsk) -> Piece;

    /// A part of a task's standard input. Returns as soon as some of it was taken, or there is another attempt, or after a while.
    async fn input(&self, request: InputRequest) -> Result<InputTaken, Error>;

    async fn nodes(&self) -> Result<Vec<NodeSummary>, Error>;
    async fn node(&self, node: NodeId) -> Result<NodeDetail, Error>;
    /// Takes a node out of use once its attempts have ended, or back into use.
    async fn drain(&self, node: NodeId, drain: bool) -> Result<(), Error>;
    /// Forgets a node that does not come back.
    async fn remove_node(&self, node: NodeId) -> Result<(), Error>;
    async fn queues(&self) -> Result<Vec<QueueSummary>, Error>;
    async fn cluster(&self) -> Result<ClusterSummary, Error>;

    /// Events with this sequence number and higher, those of one job if one is given, as they happen. Begins with a
    /// `gap` when some of them are no longer kept. The caller drops those that belong to others.
    async fn events(&self, from: u64, job: Option<JobId>) -> Result<BoxStream<'static, Event>, Error>;

    /// In Prometheus' text format.
    async fn metrics(&self) -> Result<String, Error>;
    /// Whether submissions can be accepted now.
    async fn ready(&self) -> Result<(), Error>;
}

/// What became of an action.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Acted {
    /// What it waits for, where it is not done at once.
    pub waits_for: Option<String>,
    /// How it is already, where nothing was to be done.
    pub unchanged: Option<String>,
}

/// Which jobs; what is absent does not restrict.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JobFilter {
    pub states: Vec<JobState>,
    pub user: Option<String>,
    pub queue: Option<String>,
    pub name: Option<String>,
    /// Those that ended at this moment or later, and before this one.
    pub ended_since: Option<Timestamp>,
    pub ended_until: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TaskFilter {
    pub states: Vec<TaskState>,
    pub stage: Option<u32>,
    /// One position in the stage.
    pub index: Option<u32>,
}

/// Whose story; what is absent does not restrict.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StoryFilter {
    pub stage: Option<u32>,
    /// One position in the stage.
    pub index: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputRequest {
    pub task: TaskId,
    /// Whose input the part is; none before the first answer.
    pub attempt: Option<AttemptId>,
    pub part: InputPart,
}

/// Outputs of which tasks; what is absent does not restrict.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OutputFilter {
    pub stage: Option<u32>,
    /// One position in the stage.
    pub index: Option<u32>,
}

/// An output, and who may have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundFile {
    pub digest: Digest,
    pub bytes: u64,
    pub nodes: Vec<NodeId>,
}

/// A part of a list. The cursor is what the backend returned as `next`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    pub cursor: Option<String>,
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputRequest {
    pub task: TaskId,
    /// The latest attempt unless given.
    pub attempt: Option<AttemptId>,
    pub stream: Stream,
    pub offset: u64,
    /// The most bytes to return.
    pub limit: u32,
    pub patience: Duration,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OutputChunk {
    pub bytes: Vec<u8>,
    /// Nothing follows these bytes: the task has ended, or has a newer attempt.
    pub ended: bool,
    /// Whose output this is; none before the task's first attempt.
    pub attempt: Option<AttemptId>,
    /// The task's latest attempt, if that is another.
    pub newer: Option<AttemptId>,
}

impl JobFilter {
    /// What is held counts as held whatever else it is.
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
