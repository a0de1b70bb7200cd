//! The public interface's JSON, shared by server and command line. Stable: fields are added, never changed.

use amalgam_core::job_manager::TaskState as EndedTask;
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::{ByteString, Instant};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{borrow::Cow, fmt};

/// A checked job in a request's body, as our own clients send it, in the encoding of messages between daemons. The parameter
/// `version` names the version of the fields.
pub const JOB_MSGPACK: &str = "application/vnd.amalgam.job+msgpack";
/// The same as JSON.
pub const JOB_JSON: &str = "application/vnd.amalgam.job+json";

/// Declares types that go over the wire in both directions.
macro_rules! wire {
    ($($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($(#[$field_attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$attribute])*
        #[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
        $visibility struct $name { $($(#[$field_attribute])* pub $field: $type,)* })*
    };
}

/// How a [`ByteString`] is described.
struct AnyText;

impl JsonSchema for AnyText {
    fn schema_name() -> Cow<'static, str> {
        "AnyText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A text; where it is not UTF-8 an object with its bytes, of which `\\xNN` is one and `\\\\` a backslash.",
            "oneOf": [
                { "type": "string" },
                { "type": "object", "properties": { "bytes": { "type": "string" } }, "required": ["bytes"] },
            ],
        })
    }
}

wire! {
    /// The answer to a submission.
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
        /// The preset that it goes by; absent where that is the cluster's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preset: Option<String>,
        /// Where its manager is; absent where that is the server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        manager: Option<ManagerPlace>,
        priority: i32,
        state: JobState,
        /// A user holds it: nothing more of it starts. One that runs may be held as well.
        #[serde(default)]
        held: bool,
        /// Why it is not running, or how it ended; one line.
        reason: Option<String>,
        /// Who cancelled it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cancelled_by: Option<String>,
        /// The job that it came after and whose end without success ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed_dependency: Option<u64>,
        submitted_at: Timestamp,
        started_at: Option<Timestamp>,
        ended_at: Option<Timestamp>,
        tasks: TaskCounts,
        /// What all of its attempts used together that have ended, whatever became of them; of memory the most that one had.
        #[serde(default)]
        wall_seconds: f64,
        #[serde(default)]
        cpu_seconds: f64,
        #[serde(default)]
        max_memory_bytes: u64,
        /// What it gave to other jobs and received from them; absent under presets in which jobs do not yield.
        #[serde(default)]
        exchange: Option<Exchange>,
    }

    /// A process of job managers.
    pub struct ManagerPlace {
        /// `amalgam jobs --number`.
        number: u32,
        /// Whether it is connected with the server.
        connected: bool,
    }

    /// What a job gave and received: resource-seconds by kind, in the units of the kinds, such as core seconds and MiB
    /// seconds.
    pub struct Exchange {
        /// What it was entitled to and left to others, for its tasks could wait.
        given: BTreeMap<String, f64>,
        /// What it held beyond what it was entitled to, for nobody needed the room.
        received: BTreeMap<String, f64>,
        /// When it would end, or would have ended, with its share to itself, as estimated; once it plans.
        alone_end: Option<Timestamp>,
    }

    /// How many tasks are in which state.
    pub struct TaskCounts {
        total: u64,
        /// For other stages or jobs.
        waiting: u64,
        /// For resources, or sent to a node and not started.
        queued: u64,
        /// Their processes run.
        running: u64,
        succeeded: u64,
        failed: u64,
        cancelled: u64,
    }

    /// Attempts that were launched, by what they are.
    pub struct AttemptCounts {
        /// Running, and guaranteed: in room that is booked for them, or within what their job may hold.
        guaranteed: u64,
        /// Running, in room that nobody has booked: guaranteed ones may preempt them.
        opportunistic: u64,
        /// Sent to a node and not started.
        at_nodes: u64,
        /// How often one was preempted so far, in the jobs that are still known.
        preempted: u64,
        /// How often one was shed from a node's queue, likewise.
        shed: u64,
    }

    pub struct JobDetail {
        #[serde(flatten)]
        summary: JobSummary,
        #[serde(default)]
        attempts: AttemptCounts,
        stages: Vec<StageDetail>,
        /// Everything that keeps it from running.
        reasons: Vec<String>,
        /// Jobs that must have succeeded first.
        after_jobs: Vec<u64>,
        /// Jobs that must have ended first, in whatever way.
        #[serde(default)]
        after_jobs_any: Vec<u64>,
        #[schemars(with = "AnyText")]
        submit_dir: ByteString,
        max_fails: Option<u32>,
        expected_end: Option<Timestamp>,
        /// What `wait` exits with; set when the job has ended.
        exit_code: Option<u8>,
    }

    pub struct StageDetail {
        name: String,
        after: Vec<String>,
        #[schemars(with = "Vec<AnyText>")]
        command: Vec<ByteString>,
        tasks: TaskCounts,
        /// Finished tasks per second, lately.
        rate: Option<f64>,
        /// Of the tasks that finished, or as it is expected of the first: `mean_of` says which.
        mean_seconds: Option<f64>,
        mean_of: Option<MeanOf>,
        p50_seconds: Option<f64>,
        expected_end: Option<Timestamp>,
        reasons: Vec<String>,
        /// What each task needs, by kind, in the units of the kinds: cores, MiB, MB/s, devices.
        resources: BTreeMap<String, f64>,
        constraints: Vec<String>,
        retries: u32,
        /// How long a task waits before it is tried again after its first failure.
        #[serde(default)]
        retry_delay_seconds: f64,
        /// Its tasks begin together.
        gang: bool,
        /// The most of them that run at once.
        #[serde(default)]
        at_once: Option<u32>,
        /// Of its tasks, the job's unless the stage has its own.
        priority: i32,
        timeout_seconds: Option<f64>,
        /// What all of its attempts used together that have ended, whatever became of them; of memory the most that one had.
        #[serde(default)]
        wall_seconds: f64,
        #[serde(default)]
        cpu_seconds: f64,
        #[serde(default)]
        max_memory_bytes: u64,
        /// Output that was not kept, of all its attempts together.
        dropped_bytes: u64,
        /// Why it could not be written, where it was not for the cap alone.
        #[serde(default)]
        output_unwritten: Option<String>,
    }

    pub struct TaskSummary {
        /// `JOB.STAGE.INDEX`, with the stage's number and the task's position in it.
        task: String,
        stage: String,
        /// The position in the stage, from 0.
        index: u32,
        /// The index value of an array, which may differ from the position.
        value: u64,
        #[schemars(with = "Option<AnyText>")]
        item: Option<ByteString>,
        state: TaskState,
        node: Option<String>,
        /// The latest attempt.
        attempt: Option<String>,
        attempts: u32,
        exit_code: Option<u8>,
        reason: Option<String>,
        started_at: Option<Timestamp>,
        ended_at: Option<Timestamp>,
        /// What all of its attempts used together that have ended, whatever became of them; of memory the most that one had.
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
        /// How it ended, where it did not succeed.
        reason: Option<String>,
        launched_at: Timestamp,
        /// When its process started, if it did.
        started_at: Option<Timestamp>,
        ended_at: Option<Timestamp>,
        /// What it used; not known of an attempt that never said how it ended.
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
        /// Of the start of a task, its first: what its allocation took.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allocation: Option<AllocationParts>,
    }

    /// The time from when a task could run to its start, in seconds, by what it was spent on.
    pub struct AllocationParts {
        /// Until the launch that led to its start was decided on.
        queue: f64,
        /// Work for it alone: what was decided was made durable, and its process was made.
        processing: f64,
        /// The launch on its way to the node, as half of its way and that of the news of the start, with whoever passed them on.
        communication: f64,
        /// At the node, for its turn and for files.
        node: f64,
    }

    pub struct NodeSummary {
        id: u32,
        name: String,
        /// Its cluster, in a federation. A global master tells what it believes of it, and when it last heard of the cluster.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<u32>,
        state: NodeState,
        /// By kind, in the units of the kinds: cores, MiB, MB/s, devices.
        capacity: BTreeMap<String, f64>,
        free: BTreeMap<String, f64>,
        /// Attempts for which room is booked, and others that are guaranteed and run.
        running: u32,
        /// Opportunistic attempts that run in room that nobody has booked.
        #[serde(default)]
        opportunistic: u32,
        /// Opportunistic attempts that were sent there and have not started.
        #[serde(default)]
        opportunistic_waiting: u32,
        /// What the running ones of them hold; `free` does not count it.
        #[serde(default)]
        opportunistic_used: BTreeMap<String, f64>,
        /// How long ago it was heard last; null where that is not known.
        last_heard_seconds: Option<f64>,
        /// When the server started, which has not heard it since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unheard_since: Option<Timestamp>,
        /// What is held against it, where attempts failed through the node lately and more often than they should.
        #[serde(default)]
        doubt: Option<NodeDoubt>,
    }

    /// Failures of a node alone; those of many nodes at once, and of tasks that fail everywhere, are held against none.
    pub struct NodeDoubt {
        /// How likely it is to see an attempt through, as estimated.
        success: f64,
        /// None where it is only that its rack had one outage after another.
        failures: u32,
        /// The first of them was so long ago.
        since_seconds: f64,
        /// Whether tasks are sent elsewhere for it.
        avoided: bool,
    }

    pub struct NodeDetail {
        #[serde(flatten)]
        summary: NodeSummary,
        attributes: BTreeMap<String, String>,
        /// The mechanism that holds tasks to what they asked for.
        enforcement: String,
        /// What that mechanism cannot hold them to.
        notes: Vec<String>,
        /// Why it gets no work for a while: a launch failed there.
        paused: Option<String>,
        /// How long it gets none still.
        pause_left_seconds: Option<f64>,
        attempts: Vec<RunningAttempt>,
    }

    pub struct RunningAttempt {
        attempt: String,
        task: String,
        #[serde(default)]
        guarantee: Guarantee,
        /// Whether its process has not started.
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
        /// What its jobs gave to others and received from them, in resource-seconds by kind, in the jobs that are still known.
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
        /// What guaranteed work holds.
        used: BTreeMap<String, f64>,
        /// What opportunistic work holds.
        #[serde(default)]
        opportunistic_used: BTreeMap<String, f64>,
        jobs: BTreeMap<String, u64>,
        tasks: TaskCounts,
        #[serde(default)]
        attempts: AttemptCounts,
        tasks_per_second: f64,
        queues: Vec<QueueSummary>,
        /// Processes of job managers beside the server.
        #[serde(default)]
        job_managers: Vec<ManagerPlace>,
        /// The number of the global master that tells this; what it tells of nodes it believes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        global: Option<u32>,
        /// The number of the cluster, where a master in a federation tells this.
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
        /// How long ago its master told something; absent before the first time.
        told_seconds: Option<f64>,
    }

    /// Something that happened.
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
        /// Its name.
        node: Option<String>,
        /// Its number, which no other node of that name has had.
        node_id: Option<u32>,
        /// Of a job or task that has ended: as lists and metrics name it.
        state: Option<String>,
        exit_code: Option<u8>,
        reason: Option<String>,
        /// Bytes kept of an ended attempt's output.
        stdout_bytes: Option<u64>,
        stderr_bytes: Option<u64>,
    }

    /// A declared output as its task left it.
    pub struct OutputFile {
        /// `JOB.STAGE.INDEX`, with the stage's number and the task's position in it.
        task: String,
        stage: String,
        /// The task's position in the stage, from 0.
        index: u32,
        attempt: String,
        /// As it is declared: a path in the task's working directory.
        name: String,
        bytes: u64,
        /// In hexadecimal digits.
        sha256: String,
        /// The names of those that have it, as far as is known. Another may be asked in vain.
        nodes: Vec<String>,
    }

    /// What became of a part of a task's standard input.
    pub struct InputTaken {
        state: InputState,
        /// Whose input it is. Where that is another attempt than was named, its input begins anew.
        attempt: Option<String>,
        /// The attempt has, or will find, what comes before this offset.
        taken: u64,
    }

    /// How a job stands after a wait.
    pub struct Waited {
        job: u64,
        state: JobState,
        /// Set when the job has ended: 0, or that of its first failed task.
        exit_code: Option<u8>,
        reason: Option<String>,
    }

    pub struct ActionRequest {
        jobs: Vec<u64>,
        action: Action,
        /// Only these tasks of each of the jobs; the whole jobs where there are none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tasks: Vec<ChosenTasks>,
    }

    /// Tasks of a stage that stand next to each other.
    pub struct ChosenTasks {
        /// The stage's number, from 0.
        stage: u32,
        /// Positions in the stage, from 0; the last one is among them.
        first: u32,
        last: u32,
    }

    /// In which states tasks were that an action was for.
    pub struct ChosenCounts {
        /// For their turn, for others or for resources.
        waiting: u32,
        held: u32,
        /// Launched; perhaps not started yet.
        running: u32,
        succeeded: u32,
        failed: u32,
        cancelled: u32,
    }

    /// What is changed about jobs that have not ended; what is left out stays.
    pub struct UpdateRequest {
        jobs: Vec<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<i32>,
        /// Of all their stages, for attempts that start from now on; 0 is the queue's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_seconds: Option<f64>,
        /// Not of a job whose tasks hold room.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue: Option<String>,
    }

    /// What an action did to one job.
    pub struct ActionResult {
        job: u64,
        /// Absent when it was done.
        error: Option<Error>,
        /// Where it was for single tasks: in which states they were just before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tasks: Option<ChosenCounts>,
        /// When it is not done at once: what it waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits_for: Option<String>,
        /// When nothing was to be done: how it is already.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unchanged: Option<String>,
    }

    pub struct DrainRequest {
        /// False takes the node back into use.
        drain: bool,
    }

    /// Every unsuccessful answer.
    pub struct Error {
        error: ErrorCode,
        /// What is wrong, and why.
        message: String,
        /// What would help.
        remedy: String,
        /// Who can answer instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        elsewhere: Option<Elsewhere>,
    }

    /// Other processes of a federation. Who reached this one at another address than `here`, through a tunnel for instance, may find
    /// anybody at the others.
    pub struct Elsewhere {
        /// Where the one that says this is known to listen: a base URL.
        here: String,
        /// Where those listen that have what was asked for.
        at: Vec<String>,
    }
}

/// A page of a list.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Listing<T> {
    pub items: Vec<T>,
    /// Pass it as `cursor` for the next page; absent on the last one.
    pub next: Option<String>,
    /// The other global masters of a federation, each of which has such jobs of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Elsewhere>,
}

/// Declares a set of words with their spelling.
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
    /// Whether a task takes input.
    pub enum InputState {
        /// No attempt of it runs yet: send the same again.
        #[default]
        Waiting = "waiting",
        Open = "open",
        /// It reads nothing more, or has ended.
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
        /// It was sent to its node and has not started.
        #[default]
        Queued = "queued",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        /// It gave way to other work, while it ran or while it waited at its node.
        Preempted = "preempted",
        /// Its node was lost, or had lost it, or did not take it.
        Lost = "lost",
        /// It was cancelled or taken back, or another attempt of its task was first.
        Cancelled = "cancelled",
    }

    pub enum NodeState {
        #[default]
        Up = "up",
        Unreachable = "unreachable",
        Draining = "draining",
        Drained = "drained",
        /// It could not launch a task and gets none for a while.
        Paused = "paused",
        /// As a global master believes: its cluster's master drains it, or gives it no task for a while.
        Closed = "closed",
        Lost = "lost",
    }

    /// Whether an attempt gives way to others.
    pub enum Guarantee {
        #[default]
        Guaranteed = "guaranteed",
        Opportunistic = "opportunistic",
    }

    /// What a stage's mean run time is known from.
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
        /// Runs the tasks again that failed for good or were cancelled.
        RerunFailed = "rerun-failed",
        /// Ends a job whose manager is in a process of job managers that is away, without it.
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
        /// The task will not be tried again.
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
        /// It is sound, and this kind of server cannot do it.
        Unsupported = "unsupported",
        /// Another process of the federation has what was asked for.
        Elsewhere = "elsewhere",
        Unavailable = "unavailable",
        #[default]
        Internal = "internal",
    }
}

impl JobSummary {
    /// `running, held`: its state, and what beside it stands.
    pub fn state_words(&self) -> String {
        match self.state {
            JobState::Held => self.state.to_string(),
            state if self.held => format!("{state}, held"),
            state => state.to_string(),
        }
    }
}

impl JobState {
    /// How a job stands that has ended so. One whose dependency failed counts as cancelled: it never ran, and its reason says why.
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
    /// How a task stands that has ended; `None` before.
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

    /// Another global master has it; where that is, if it is known.
    pub fn with_global(message: impl Into<String>, elsewhere: Option<Elsewhere>) -> Error {
        let remedy = "name that one with --server, or its directory with --state-dir";
        Error { elsewhere, ..Error::new(ErrorCode::Elsewhere, message, remedy) }
    }

    pub fn bad_request(message: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::new(ErrorCode::BadRequest, message, remedy)
    }

    pub fn no_such_job(job: u64) -> Error {
        Error::new(ErrorCode::NotFound, format!("there is no job {job}"), "`amalgam list --all` shows the jobs")
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

    /// A moment as people write it, in UTC: `2026-11-01`, which is its beginning, `2026-11-01T12:30`, with seconds and a `Z` or without.
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
    /// The daemons' instants count from the Unix epoch.
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

/// What a server leaves in its state directory for clients on the same machine: `server.json`.
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
