//! The JSON of the public interface, shared by server and command line. Stable: fields are added, never changed or
//! removed.

use amalgam_core::progress::TaskState as EndedTask;
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::{ByteString, Instant};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{borrow::Cow, fmt};

/// Media type of a checked job in a request's body, as our own clients send it: the encoding of messages between
/// daemons. The parameter `version` is the version of the fields.
pub const JOB_MSGPACK: &str = "application/vnd.amalgam.job+msgpack";
/// Media type of a checked job as JSON.
pub const JOB_JSON: &str = "application/vnd.amalgam.job+json";

/// Declares types that are sent in both directions.
macro_rules! wire {
    ($($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($(#[$field_attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$attribute])*
        #[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
        $visibility struct $name { $($(#[$field_attribute])* pub $field: $type,)* })*
    };
}

/// The JSON schema of a [`ByteString`].
struct AnyText;

impl JsonSchema for AnyText {
    fn schema_name() -> Cow<'static, str> {
        "AnyText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A string. Text that is not UTF-8 is an object with its bytes, in which `\\xNN` is a byte and `\\\\` a backslash.",
            "oneOf": [
                { "type": "string" },
                { "type": "object", "properties": { "bytes": { "type": "string" } }, "required": ["bytes"] },
            ],
        })
    }
}

wire! {
    /// The response to a submission.
    pub struct Submitted {
        job: u64,
        /// Events of the job have this sequence number or a higher one.
        sequence: u64,
    }

    pub struct JobSummary {
        id: u64,
        name: String,
        user: String,
        queue: String,
        /// The preset that the job uses; absent if it is the cluster's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preset: Option<String>,
        /// The job host that runs its manager; absent if the server does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        manager: Option<ManagerPlace>,
        priority: i32,
        state: JobState,
        /// A user holds it: no more tasks start. Its running tasks continue.
        #[serde(default)]
        held: bool,
        /// Why it is not running, or how it ended, in one line.
        reason: Option<String>,
        /// The user who cancelled it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cancelled_by: Option<String>,
        /// The dependency that ended without success and so ended this job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed_dependency: Option<u64>,
        submitted_at: Timestamp,
        started_at: Option<Timestamp>,
        ended_at: Option<Timestamp>,
        tasks: TaskCounts,
        /// Totals of all its ended attempts, with any outcome; of memory, the maximum of one attempt.
        #[serde(default)]
        wall_seconds: f64,
        #[serde(default)]
        cpu_seconds: f64,
        #[serde(default)]
        max_memory_bytes: u64,
        /// Resources donated to and received from other jobs; absent under presets in which jobs do not yield.
        #[serde(default)]
        exchange: Option<Exchange>,
    }

    /// A job host.
    pub struct ManagerPlace {
        /// `amalgam jobs --number`.
        number: u32,
        /// Whether it is connected to the server.
        connected: bool,
    }

    /// Resources that a job donated and received: resource-seconds by kind, in the units of the kinds, such as core
    /// seconds and MiB seconds.
    pub struct Exchange {
        /// Resources within its share that it left to other jobs, because its tasks could wait.
        given: BTreeMap<String, f64>,
        /// Resources beyond its share that it held, because no other job needed them.
        received: BTreeMap<String, f64>,
        /// Estimated end with only its own share, once the job is planned.
        alone_end: Option<Timestamp>,
    }

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

    pub struct JobDetail {
        #[serde(flatten)]
        summary: JobSummary,
        #[serde(default)]
        attempts: AttemptCounts,
        stages: Vec<StageDetail>,
        /// All reasons why it is not running.
        reasons: Vec<String>,
        /// Jobs that must succeed first.
        after_jobs: Vec<u64>,
        /// Jobs that must end first, with any outcome.
        #[serde(default)]
        after_jobs_any: Vec<u64>,
        #[schemars(with = "AnyText")]
        submit_dir: ByteString,
        max_fails: Option<u32>,
        expected_end: Option<Timestamp>,
        /// Exit code of `wait`; set once the job has ended.
        exit_code: Option<u8>,
    }

    pub struct StageDetail {
        name: String,
        after: Vec<String>,
        #[schemars(with = "Vec<AnyText>")]
        command: Vec<ByteString>,
        tasks: TaskCounts,
        /// Succeeded and failed tasks per second since the stage's first launch.
        rate: Option<f64>,
        /// Measured or expected mean run time of a task; `mean_of` is its source.
        mean_seconds: Option<f64>,
        mean_of: Option<MeanOf>,
        p50_seconds: Option<f64>,
        expected_end: Option<Timestamp>,
        reasons: Vec<String>,
        /// Resources of each task by kind, in the units of the kinds: cores, MiB, MB/s, devices.
        resources: BTreeMap<String, f64>,
        constraints: Vec<String>,
        retries: u32,
        /// Delay before a task is retried after its first failure.
        #[serde(default)]
        retry_delay_seconds: f64,
        /// Whether its tasks start together.
        gang: bool,
        /// Maximum number of its tasks that run at once.
        #[serde(default)]
        at_once: Option<u32>,
        /// Priority of its tasks: the job's, unless the stage has its own.
        priority: i32,
        timeout_seconds: Option<f64>,
        /// Totals of all its ended attempts, with any outcome; of memory, the maximum of one attempt.
        #[serde(default)]
        wall_seconds: f64,
        #[serde(default)]
        cpu_seconds: f64,
        #[serde(default)]
        max_memory_bytes: u64,
        /// Bytes of output that were not kept, of all its attempts in total.
        dropped_bytes: u64,
        /// Why output could not be written, if the limit was not the only reason.
        #[serde(default)]
        output_unwritten: Option<String>,
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

    /// One record about a job or a task.
    pub struct StoryLine {
        sequence: u64,
        at: Timestamp,
        kind: String,
        text: String,
        task: Option<String>,
        attempt: Option<String>,
        node: Option<String>,
        /// The allocation time of a task's first start, in parts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allocation: Option<AllocationParts>,
    }

    /// The time from when a task could run to its start, in seconds, by part.
    pub struct AllocationParts {
        /// Until the decision to launch it.
        queue: f64,
        /// Work for this task: making the decision durable and creating its process.
        processing: f64,
        /// Sending the launch to the node: half of the time that the launch and the report of the start were under way,
        /// including processes that forward them.
        communication: f64,
        /// At the node: in its queue and for input files.
        node: f64,
    }

    pub struct NodeSummary {
        id: u32,
        name: String,
        /// Its cluster, in a federation. A global master reports its view of the node, and when it last received a
        /// report from the cluster.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<u32>,
        state: NodeState,
        /// Resources by kind, in the units of the kinds: cores, MiB, MB/s, devices.
        capacity: BTreeMap<String, f64>,
        free: BTreeMap<String, f64>,
        /// Attempts with booked resources, and other guaranteed attempts that run.
        running: u32,
        /// Opportunistic attempts that run. Their resources are not booked.
        #[serde(default)]
        opportunistic: u32,
        /// Opportunistic attempts that were sent to the node and have not started.
        #[serde(default)]
        opportunistic_waiting: u32,
        /// Resources that running opportunistic attempts hold; `free` does not count them as used.
        #[serde(default)]
        opportunistic_used: BTreeMap<String, f64>,
        /// Seconds since its last message; null if unknown.
        last_heard_seconds: Option<f64>,
        /// Start of the server, if it has not received a message from the node since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unheard_since: Option<Timestamp>,
        /// Recent failures of attempts that the node caused, if there were more than expected.
        #[serde(default)]
        doubt: Option<NodeDoubt>,
    }

    /// Failures of this node. Failures of many nodes at once, and of tasks that fail everywhere, are not counted.
    pub struct NodeDoubt {
        /// Estimated probability that an attempt is not interrupted by the node.
        success: f64,
        /// Number of failures; 0 if the only reason is repeated outages of its rack.
        failures: u32,
        /// Seconds since the first of them.
        since_seconds: f64,
        /// Whether tasks are placed on other nodes because of it.
        avoided: bool,
    }

    pub struct NodeDetail {
        #[serde(flatten)]
        summary: NodeSummary,
        attributes: BTreeMap<String, String>,
        /// The mechanism that enforces the resources of tasks.
        enforcement: String,
        /// What that mechanism does and does not enforce.
        notes: Vec<String>,
        /// Why it gets no tasks for some time: a launch failed there.
        paused: Option<String>,
        /// Remaining time until it gets tasks again.
        pause_left_seconds: Option<f64>,
        attempts: Vec<RunningAttempt>,
    }

    pub struct RunningAttempt {
        attempt: String,
        task: String,
        #[serde(default)]
        guarantee: Guarantee,
        /// Whether its process has not started yet.
        #[serde(default)]
        waiting: bool,
        running_seconds: f64,
    }

    pub struct QueueSummary {
        name: String,
        parent: Option<String>,
        weight: f64,
        /// Shares are fractions of the cluster.
        guaranteed: f64,
        maximum: f64,
        user_limit: f64,
        used: BTreeMap<String, f64>,
        dominant_share: f64,
        running_jobs: u64,
        pending_jobs: u64,
        running_tasks: u64,
        pending_tasks: u64,
        #[serde(default)]
        attempts: AttemptCounts,
        /// Resources that its jobs donated and received, in resource-seconds by kind, in the jobs that are not
        /// forgotten.
        #[serde(default)]
        given: BTreeMap<String, f64>,
        #[serde(default)]
        received: BTreeMap<String, f64>,
    }

    pub struct ClusterSummary {
        version: String,
        preset: String,
        uptime_seconds: f64,
        nodes_up: u32,
        nodes_total: u32,
        capacity: BTreeMap<String, f64>,
        /// Resources that guaranteed work holds.
        used: BTreeMap<String, f64>,
        /// Resources that opportunistic work holds.
        #[serde(default)]
        opportunistic_used: BTreeMap<String, f64>,
        jobs: BTreeMap<String, u64>,
        tasks: TaskCounts,
        #[serde(default)]
        attempts: AttemptCounts,
        tasks_per_second: f64,
        queues: Vec<QueueSummary>,
        /// Job hosts of this cluster.
        #[serde(default)]
        job_managers: Vec<ManagerPlace>,
        /// Number of the global master that answers. Its data about nodes may be out of date.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        global: Option<u32>,
        /// Number of the cluster, if the master of a cluster in a federation answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<u32>,
        /// The clusters of a global master.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clusters: Vec<ClusterView>,
    }

    /// A cluster as a global master sees it.
    pub struct ClusterView {
        number: u32,
        /// Whether its master is connected.
        connected: bool,
        nodes_up: u32,
        nodes_total: u32,
        /// Seconds since the last report of its master; absent before the first.
        told_seconds: Option<f64>,
    }

    /// One event of the event stream.
    pub struct Event {
        sequence: u64,
        at: Timestamp,
        kind: EventKind,
        /// The owner of the job.
        user: Option<String>,
        job: Option<u64>,
        /// `JOB.STAGE.INDEX`.
        task: Option<String>,
        stage: Option<String>,
        index: Option<u32>,
        attempt: Option<String>,
        /// Name of the node.
        node: Option<String>,
        /// Number of the node, which is never used for another node name.
        node_id: Option<u32>,
        /// State of an ended job or task, as in lists and metrics.
        state: Option<String>,
        exit_code: Option<u8>,
        reason: Option<String>,
        /// Bytes kept of an ended attempt's output.
        stdout_bytes: Option<u64>,
        stderr_bytes: Option<u64>,
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

    /// State of a job after a wait.
    pub struct Waited {
        job: u64,
        state: JobState,
        /// Set once the job has ended: 0, or the exit code of its first failed task.
        exit_code: Option<u8>,
        reason: Option<String>,
    }

    pub struct ActionRequest {
        jobs: Vec<u64>,
        action: Action,
        /// Only these tasks of each job; empty for whole jobs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tasks: Vec<ChosenTasks>,
    }

    /// A range of tasks of a stage.
    pub struct ChosenTasks {
        /// The stage's number, from 0.
        stage: u32,
        /// Positions in the stage, from 0; both ends are included.
        first: u32,
        last: u32,
    }

    /// Number of tasks in each state before an action on them.
    pub struct ChosenCounts {
        /// Waiting for other tasks, resources or their turn.
        waiting: u32,
        held: u32,
        /// Launched, started or not.
        running: u32,
        succeeded: u32,
        failed: u32,
        cancelled: u32,
    }

    /// Changes to jobs that have not ended. Absent fields are unchanged.
    pub struct UpdateRequest {
        jobs: Vec<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<i32>,
        /// Timeout of all their stages, for attempts that start from now on; 0 is the queue's default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_seconds: Option<f64>,
        /// New queue. Refused if tasks of the job hold resources.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue: Option<String>,
    }

    /// The result of an action for one job.
    pub struct ActionResult {
        job: u64,
        /// Absent on success.
        error: Option<Error>,
        /// For actions on single tasks: the states of these tasks just before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tasks: Option<ChosenCounts>,
        /// What a delayed action waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits_for: Option<String>,
        /// If the action had nothing to change: the state that the job already has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unchanged: Option<String>,
    }

    pub struct DrainRequest {
        /// False returns the node to use.
        drain: bool,
    }

    /// The body of every response that is an error.
    pub struct Error {
        error: ErrorCode,
        /// What is wrong, and why.
        message: String,
        /// What to do about it.
        remedy: String,
        /// Other processes that can answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        elsewhere: Option<Elsewhere>,
    }

    /// Other processes of a federation. A client that reached this process at another address than `here`, such as
    /// through a tunnel, may not reach the others at their addresses.
    pub struct Elsewhere {
        /// Base URL at which this process listens.
        here: String,
        /// Base URLs of the processes that have the requested object.
        at: Vec<String>,
    }
}

/// A page of a list.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Listing<T> {
    pub items: Vec<T>,
    /// Value of `cursor` for the next page; absent on the last page.
    pub next: Option<String>,
    /// The other global masters of a federation. Each may have more such jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Elsewhere>,
}

/// Declares an enumeration with the spelling of each value.
macro_rules! words {
    ($($(#[$attribute:meta])* $visibility:vis enum $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal,)* })*) => {
        $($(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, JsonSchema)]
        $visibility enum $name { $($(#[$variant_attribute])* #[serde(rename = $word)] $variant,)* }
        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)*];
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        })*
    };
}

words! {
    /// Whether a task accepts standard input.
    pub enum InputState {
        /// No attempt runs yet: send the same part again.
        #[default]
        Waiting = "waiting",
        Open = "open",
        /// The task reads no more input, or has ended.
        Closed = "closed",
    }

    pub enum JobState {
        Held = "held",
        #[default]
        Pending = "pending",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
    }

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

    pub enum NodeState {
        #[default]
        Up = "up",
        Unreachable = "unreachable",
        Draining = "draining",
        Drained = "drained",
        /// It could not launch a task and gets none for some time.
        Paused = "paused",
        /// In the view of a global master: the cluster's master drains the node or gives it no tasks for some time.
        Closed = "closed",
        Lost = "lost",
    }

    /// Whether an attempt may be preempted by others.
    pub enum Guarantee {
        #[default]
        Guaranteed = "guaranteed",
        Opportunistic = "opportunistic",
    }

    /// The source of a stage's mean run time.
    pub enum MeanOf {
        #[default]
        FinishedTasks = "finished-tasks",
        JobFile = "job-file",
        EarlierRuns = "earlier-runs",
    }

    pub enum Action {
        #[default]
        Cancel = "cancel",
        Hold = "hold",
        Release = "release",
        /// Runs tasks again that failed finally or were cancelled.
        RerunFailed = "rerun-failed",
        /// Ends a job whose job host is not connected, without its manager.
        Abandon = "abandon",
    }

    pub enum EventKind {
        JobSubmitted = "job-submitted",
        JobHeld = "job-held",
        JobReleased = "job-released",
        JobStarted = "job-started",
        JobEnded = "job-ended",
        StageStarted = "stage-started",
        StageEnded = "stage-ended",
        AttemptStarted = "attempt-started",
        AttemptEnded = "attempt-ended",
        /// The task is not retried.
        TaskEnded = "task-ended",
        NodeUp = "node-up",
        NodeUnreachable = "node-unreachable",
        NodeDrained = "node-drained",
        NodePaused = "node-paused",
        NodeLost = "node-lost",
        /// Events before this one are no longer kept.
        #[default]
        Gap = "gap",
    }

    pub enum ErrorCode {
        BadRequest = "bad-request",
        Unauthorized = "unauthorized",
        Forbidden = "forbidden",
        NotFound = "not-found",
        MethodNotAllowed = "method-not-allowed",
        Conflict = "conflict",
        TooLarge = "too-large",
        /// The request is valid, but this kind of server does not support it.
        Unsupported = "unsupported",
        /// Another process of the federation has the requested object.
        Elsewhere = "elsewhere",
        Unavailable = "unavailable",
        #[default]
        Internal = "internal",
    }
}

impl JobSummary {
    /// Its state, with `held` added: `running, held`.
    pub fn state_words(&self) -> String {
        match self.state {
            JobState::Held => self.state.to_string(),
            state if self.held => format!("{state}, held"),
            state => state.to_string(),
        }
    }
}

impl JobState {
    /// The state of a job that ended with this outcome. A job whose dependency failed is cancelled: it never ran, and
    /// its reason names the dependency.
    pub fn of_outcome(outcome: JobOutcome) -> JobState {
        match outcome {
            JobOutcome::Succeeded => JobState::Succeeded,
            JobOutcome::Failed { .. } => JobState::Failed,
            JobOutcome::Cancelled | JobOutcome::DependencyFailed { .. } => JobState::Cancelled,
        }
    }

    pub const ENDED: &[JobState] = &[JobState::Succeeded, JobState::Failed, JobState::Cancelled];

    pub const fn has_ended(self) -> bool {
        matches!(self, JobState::Succeeded | JobState::Failed | JobState::Cancelled)
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

impl Error {
    pub fn new(error: ErrorCode, message: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error { error, message: message.into(), remedy: remedy.into(), elsewhere: None }
    }

    /// The error for an object that another global master has; `elsewhere` is its address, if known.
    pub fn with_global(message: impl Into<String>, elsewhere: Option<Elsewhere>) -> Error {
        let remedy = "use --server with its address, or --state-dir with its directory";
        Error { elsewhere, ..Error::new(ErrorCode::Elsewhere, message, remedy) }
    }

    pub fn bad_request(message: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::new(ErrorCode::BadRequest, message, remedy)
    }

    pub fn no_such_job(job: u64) -> Error {
        Error::new(ErrorCode::NotFound, format!("job {job} not found"), "`amalgam list --all` shows the jobs")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Microseconds since the Unix epoch; RFC 3339 in UTC on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn now() -> Timestamp {
        SystemTime::now().into()
    }

    /// Parses a date or time in UTC: `2026-11-01` (0:00), `2026-11-01T12:30`, with or without seconds and `Z`.
    pub fn parse(text: &str) -> Option<Timestamp> {
        let text = text.trim().trim_end_matches('Z').replace(' ', "T");
        let whole = match text.split_once('T').map(|(_, time)| time.matches(':').count()) {
            None => format!("{text}T00:00:00Z"),
            Some(1) => format!("{text}:00Z"),
            Some(_) => format!("{text}Z"),
        };
        humantime::parse_rfc3339(&whole).ok().map(Timestamp::from)
    }

    fn system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0)
    }
}

impl From<Instant> for Timestamp {
    /// Instants of daemons count from the Unix epoch.
    fn from(instant: Instant) -> Timestamp {
        Timestamp(instant.0)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        Timestamp(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64))
    }
}

/// The last second that RFC 3339 can name, in microseconds.
const LAST: u64 = 253_402_300_799_000_000;

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Timestamp(self.0.min(LAST)).system_time();
        humantime::format_rfc3339_micros(shown).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Timestamp::from).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// The file `server.json` in a server's state directory, for clients on the same machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerFile {
    /// `127.0.0.1:7433`.
    pub address: String,
    pub pid: u32,
    pub token_file: ByteString,
}

impl ServerFile {
    pub const NAME: &'static str = "server.json";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339_in_utc() {
        let text = serde_json::to_string(&Timestamp(1_800_000_000_123_456)).unwrap();
        assert_eq!(text, "\"2027-01-15T08:00:00.123456Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), Timestamp(1_800_000_000_123_456));
        assert_eq!(Timestamp(u64::MAX).to_string(), "9999-12-31T23:59:59.000000Z");
        let written = ["2027-01-15T08:00:00.123456Z", "2027-01-15", "2027-01-15T08:00", "2027-01-15 08:00:01"];
        let read = written.map(|text| Timestamp::parse(text).unwrap().to_string());
        assert_eq!(read[0], written[0]);
        assert_eq!(
            read[1..],
            ["2027-01-15T00:00:00.000000Z", "2027-01-15T08:00:00.000000Z", "2027-01-15T08:00:01.000000Z"]
        );
        assert!(
            ["", "2027", "2027-13-01", "tomorrow", "2027-01-15T25:00"]
                .iter()
                .all(|text| Timestamp::parse(text).is_none())
        );
    }
}
