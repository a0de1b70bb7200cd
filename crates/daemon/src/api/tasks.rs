//! Tasks, their attempts and files, and counts of them.

use super::{AnyText, Timestamp};
use amalgam_core::progress::TaskState as EndedTask;
use amalgam_core::vocabulary::ByteString;

wire! {
    /// Number of tasks in each state.
    pub struct TaskCounts {
        total: u64,
        /// Waiting for other stages or jobs.
        waiting: u64,
        /// Waiting for resources, or sent to a node and not started.
        queued: u64,
        /// Started, not ended.
        running: u64,
        succeeded: u64,
        failed: u64,
        cancelled: u64,
    }

    /// Launched attempts by type and state.
    pub struct AttemptCounts {
        /// Running and guaranteed: their resources are booked, or within the allowance of their job.
        guaranteed: u64,
        /// Running on resources that are not booked: guaranteed attempts may preempt them.
        opportunistic: u64,
        /// Sent to a node and not started.
        at_nodes: u64,
        /// Preemptions so far, in the jobs that are not forgotten.
        preempted: u64,
        /// Attempts that were shed from a node's queue so far, in the same jobs.
        shed: u64,
    }

    pub struct TaskSummary {
        /// `JOB.STAGE.INDEX`, with the stage's number and the task's position in it.
        task: String,
        stage: String,
        /// The position in the stage, from 0.
        index: u32,
        /// The task's value in the array, which may differ from the position.
        value: u64,
        #[schemars(with = "Option<AnyText>")]
        item: Option<ByteString>,
        state: TaskState,
        node: Option<String>,
        /// Its latest attempt.
        attempt: Option<String>,
        attempts: u32,
        exit_code: Option<u8>,
        reason: Option<String>,
        started_at: Option<Timestamp>,
        ended_at: Option<Timestamp>,
        /// Totals of all its ended attempts, with any outcome; of memory, the maximum of one attempt.
        wall_seconds: Option<f64>,
        cpu_seconds: Option<f64>,
        max_memory_bytes: Option<u64>,
    }

    /// One try of a task.
    pub struct AttemptSummary {
        attempt: String,
        /// `JOB.STAGE.INDEX`, with the stage's number and the task's position in it.
        task: String,
        stage: String,
        /// The position in the stage, from 0.
        index: u32,
        node: String,
        state: AttemptState,
        exit_code: Option<u8>,
        /// How it ended, if it did not succeed.
        reason: Option<String>,
        launched_at: Timestamp,
        /// When its process started; absent if it did not.
        started_at: Option<Timestamp>,
        ended_at: Option<Timestamp>,
        /// Resources that it used; absent if its end was never reported.
        wall_seconds: Option<f64>,
        cpu_seconds: Option<f64>,
        max_memory_bytes: Option<u64>,
    }

    /// A declared output file that a task wrote.
    pub struct OutputFile {
        /// `JOB.STAGE.INDEX`, with the stage's number and the task's position in it.
        task: String,
        stage: String,
        /// The task's position in the stage, from 0.
        index: u32,
        attempt: String,
        /// Declared path, relative to the task's working directory.
        name: String,
        bytes: u64,
        /// In hexadecimal digits.
        sha256: String,
        /// Names of the nodes known to have it. A node may have removed it.
        nodes: Vec<String>,
    }

    /// The response to a part of a task's standard input.
    pub struct InputTaken {
        state: InputState,
        /// The attempt that reads the input. If it is not the requested one, its input starts at 0.
        attempt: Option<String>,
        /// Bytes before this offset are passed on to the attempt.
        taken: u64,
    }
}

words! {
    pub enum TaskState {
        #[default]
        Waiting = "waiting",
        Queued = "queued",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
    }

    pub enum AttemptState {
        /// Sent to its node, not started.
        #[default]
        Queued = "queued",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        /// Preempted by other work, while it ran or while it waited at its node.
        Preempted = "preempted",
        /// Its node was lost, lost the attempt, or did not accept it.
        Lost = "lost",
        /// It was cancelled or withdrawn, or another attempt of its task started or finished first.
        Cancelled = "cancelled",
    }

    /// Whether a task accepts standard input.
    pub enum InputState {
        /// No attempt runs yet: send the same part again.
        #[default]
        Waiting = "waiting",
        Open = "open",
        /// The task reads no more input, or has ended.
        Closed = "closed",
    }
}

impl TaskState {
    /// The state of an ended task; `None` for one that has not ended.
    pub fn of_end(state: EndedTask) -> Option<TaskState> {
        match state {
            EndedTask::Waiting | EndedTask::Running => None,
            EndedTask::Succeeded => Some(TaskState::Succeeded),
            EndedTask::Failed => Some(TaskState::Failed),
            EndedTask::Cancelled => Some(TaskState::Cancelled),
        }
    }

    pub const fn has_ended(self) -> bool {
        matches!(self, TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled)
    }
}

impl TaskCounts {
    pub const fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.cancelled
    }

    pub const fn add(&mut self, other: &TaskCounts) {
        self.total += other.total;
        self.waiting += other.waiting;
        self.queued += other.queued;
        self.running += other.running;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
    }
}

impl AttemptCounts {
    pub const fn add(&mut self, other: &AttemptCounts) {
        self.guaranteed += other.guaranteed;
        self.opportunistic += other.opportunistic;
        self.at_nodes += other.at_nodes;
        self.preempted += other.preempted;
        self.shed += other.shed;
    }
}
