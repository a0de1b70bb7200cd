//! Requests that change jobs and nodes, and their results.

use super::Error;
use std::collections::BTreeMap;

wire! {
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

    /// Changes of the labels of a node.
    pub struct LabelRequest {
        #[serde(default)]
        set: BTreeMap<String, String>,
        #[serde(default)]
        remove: Vec<String>,
    }

    /// Changes of a queue, which outlive restarts of the server and precede its configuration.
    pub struct QueueRequest {
        /// Values by the keys of `[[queue]]`, written as there; `none` removes `max_running_jobs` or `default_timeout`.
        #[serde(default)]
        set: BTreeMap<String, String>,
        /// Everything that was set before is forgotten, and what is configured applies.
        #[serde(default)]
        reset: bool,
    }

    /// What changed in the configuration since the server read it.
    pub struct Reloaded {
        changes: Vec<ConfigChange>,
    }

    pub struct ConfigChange {
        /// Such as `kept_jobs`, or `queue.research.weight`.
        key: String,
        /// Absent where the file does not have the key.
        before: Option<String>,
        after: Option<String>,
        /// The change takes effect only when the server is started again.
        needs_restart: bool,
    }

    pub struct DrainRequest {
        /// False returns the node to use.
        drain: bool,
    }
}

words! {
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
}
