//! Events, and the lines of stories.

use super::Timestamp;
use amalgam_core::story;
use schemars::{Schema, SchemaGenerator, json_schema};

wire! {
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
        /// Version of the agent's program, of a node that joined.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
    }

    /// One record about a job or a task.
    pub struct StoryLine {
        sequence: u64,
        at: Timestamp,
        /// What happened. Values are added; clients show the text of one that they do not know.
        #[schemars(schema_with = "story_kinds")]
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
}

words! {
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
}

fn story_kinds(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = story::Kind::ALL.iter().map(|kind| kind.name()).collect();
    json_schema!({ "type": "string", "enum": names })
}
