//! Nodes, queues and clusters.

use super::{AttemptCounts, ManagerPlace, TaskCounts, Timestamp};
use std::collections::BTreeMap;

wire! {
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
        /// How many times as long tasks take there until they succeed as on other nodes, if the node is known to be slow:
        /// tasks are placed there if they do not end sooner elsewhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slowness: Option<f64>,
        /// Version of its agent's program, from the last time that it joined. Absent if the node has not joined since
        /// the start of the server, if its agent is older than wire version 33, and in the view of a global master.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        /// The taints of the node, with their values, without those that its master has and a global master has not heard of yet.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        taints: BTreeMap<String, String>,
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
        /// Those that operators set.
        #[serde(default)]
        labels: BTreeMap<String, String>,
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
        /// The most jobs of it that run at once.
        #[serde(default)]
        max_running_jobs: Option<u64>,
        /// Timeout of tasks that have none.
        #[serde(default)]
        default_timeout_seconds: Option<f64>,
        /// The keys that were set while the server ran, in place of what is configured.
        #[serde(default)]
        set: Vec<String>,
        /// Whether it is not configured any more: it takes no further jobs, and is gone after a restart.
        #[serde(default)]
        closed: bool,
    }

    /// What was asked for, used and lost on some days.
    pub struct Report {
        /// The first and the last day, in UTC.
        from: String,
        to: String,
        rows: Vec<ReportRow>,
    }

    /// Totals of a user, a queue, a day, or a combination of them.
    pub struct ReportRow {
        #[serde(skip_serializing_if = "Option::is_none")]
        day: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        queue: Option<String>,
        /// Jobs that ended, tasks that ended and are not tried again, and attempts that ended or were lost.
        jobs: u64,
        tasks: u64,
        attempts: u64,
        /// Hours of one CPU that attempts held, and that they used.
        cpu_hours_asked: f64,
        cpu_hours_used: f64,
        /// The same for memory. An attempt uses the most that it had at once, for all of its time.
        memory_gib_hours_asked: f64,
        memory_gib_hours_used: f64,
        /// First starts of tasks, and the sum and the mean of the times from when a task could run to its start.
        starts: u64,
        wait_seconds: f64,
        mean_wait_seconds: Option<f64>,
        /// Attempts that were preempted or shed, and what they held.
        preempted: u64,
        cpu_hours_preempted: f64,
        /// Attempts that were lost, with their node or their launch, and what they held.
        lost: u64,
        cpu_hours_lost: f64,
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
}

words! {
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
}
