//! Jobs and their stages.

use super::{AnyText, AttemptCounts, TaskCounts, Timestamp};
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::ByteString;
use std::collections::BTreeMap;

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
        /// Version of its program, if it is connected and reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
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
        /// What its tasks hold within its share and beyond. Absent if it holds nothing, where nothing beyond shares is preempted, of
        /// jobs with gangs, and with more than 1,000 active jobs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        share: Option<ShareUse>,
    }

    /// Resources that a job holds, by kind, in the units of the kinds: cores, MiB, devices.
    pub struct ShareUse {
        /// Its share beside the present jobs if all queues have work: not preempted for them.
        within: BTreeMap<String, f64>,
        /// Preempted if other jobs need it and are entitled to it.
        beyond: BTreeMap<String, f64>,
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
        /// What its tasks do not share with their nodes: `none`, `private-tmp` or `sandbox`.
        #[serde(default)]
        isolation: String,
        /// The image that its command runs in.
        #[serde(default)]
        container: Option<String>,
    }

    /// State of a job after a wait.
    pub struct Waited {
        job: u64,
        state: JobState,
        /// Set once the job has ended: 0, or the exit code of its first failed task.
        exit_code: Option<u8>,
        reason: Option<String>,
    }
}

words! {
    pub enum JobState {
        Held = "held",
        #[default]
        Pending = "pending",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
    }

    /// The source of a stage's mean run time.
    pub enum MeanOf {
        #[default]
        FinishedTasks = "finished-tasks",
        JobFile = "job-file",
        EarlierRuns = "earlier-runs",
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
