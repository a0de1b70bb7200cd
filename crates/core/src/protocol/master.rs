//! What a master receives, and reports about nodes.

use super::{AdmittedJob, GlobalIntroduction, ProposedLaunch};
use crate::vocabulary::{
    AllowanceRequest, AskId, AttemptId, Attributes, Chosen, Constraint, Duration, Estimated, ExecutionType, GrantId,
    Instant, JobId, JobSpec, JobWork, Late, NodeId, NodeWaits, PredictedStart, QueueSettings, QueueSpec, ResourceSpec,
    Resources, SharedGpu, TaskAction,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToMaster {
    /// A client submits a job; answered by `Submitted` or `Refused`. The same key again returns the same job.
    Submit { spec: Arc<JobSpec>, key: Option<String> },
    /// A client requests an action on a job, on behalf of this user; answered by `Done`, `AsBefore` or `Refused`.
    Control { job: JobId, action: JobAction, by: String },
    /// The same for single tasks of the job.
    ControlTasks { job: JobId, action: TaskAction, tasks: Box<Chosen> },
    /// A client changes a job that has not ended, on behalf of this user; answered by `Done`, `AsBefore` or `Refused`.
    Update { job: JobId, update: Box<JobUpdate>, by: String },
    /// A client closes a node to new work, or opens it again; answered by `Done` or `Refused`.
    Drain { node: NodeId, drained: bool },
    /// A client removes a node that does not come back; answered by `Done` or `Refused`.
    RemoveNode { node: NodeId },

    /// A node agent registers, as the first message on every connection; answered by `Welcome`.
    Register(Box<Registration>),
    /// A node's state, on every heartbeat.
    Report(Box<NodeReport>),
    /// How long tasks would wait at the node, if that differs from its last report; each `Report` confirms the last one.
    Waits(Arc<NodeWaits>),
    /// Room that opportunistic work may use and that no work at the node needs.
    Room { spare: Box<Resources> },
    /// The answer to a `Move`: the room that is left, and the entries that still wait here.
    Moved { to: NodeId, left: Box<Resources>, queued: u32, expected_wait: Duration },
    /// The node could not launch an attempt because of a fault of the node; sent before the attempt's resources are freed.
    CannotLaunch { why: String },
    /// An attempt failed because of its node, or of one of `suspects` nodes; sent by its job manager. Not sent for nodes that the
    /// master gave up.
    NodeFailed { node: NodeId, suspects: u32 },
    /// The same task failed at each of these nodes, this long ago: the task could be the cause.
    TaskFails { at: Vec<(NodeId, Duration)> },
    /// Granted resources are free again.
    Freed {
        grants: Vec<GrantId>,
        /// No attempt has succeeded with them; agents of wire version 32 do not report that.
        #[serde(default)]
        unfinished: bool,
    },

    /// The changed asks of a job, and the amount of its work.
    Demand { job: JobId, asks: Vec<Ask>, work: Box<JobWork> },
    /// Sent by a job manager that places its own tasks: when its demand has changed by much, when its allowance has shrunk, and
    /// as its tasks free what it holds beyond the allowance. Answered by `Share` and `Allowance` if they change.
    AllowanceRequest { job: JobId, request: Box<AllowanceRequest> },
    /// A job manager of a federation launches an attempt under a grant that its global master proposes. The node's master claims
    /// the resources and forwards the launch, or answers `NotPassed`.
    Launch(Box<ProposedLaunch>),
    /// A global master has connected, with its state; answered by `ClusterUpdate` with everything.
    Introduce(Box<GlobalIntroduction>),
    /// A job manager returns grants that it does not need.
    Return { grants: Vec<GrantId> },
    /// A job manager requests that a running opportunistic attempt be booked, or its node offers it. If no limit forbids it, the
    /// master sends `Promote` to the node, which answers `Promoted`; otherwise there is no answer, and the request is repeated
    /// later.
    Promote { attempt: AttemptId, node: NodeId, resources: Box<Resources> },
    /// A job has ended. `estimated` compares the run times stated in its file with the measured ones, if it stated any; `means`
    /// has the mean run time of the tasks of each stage, if all succeeded. The run is that of [`RequestedActions`](super::RequestedActions): the end of an earlier
    /// run is ignored.
    JobEnded {
        job: JobId,
        /// That of [`AdmittedJob`]: the end of another job with the same number is ignored.
        submitted_at: Instant,
        run: u32,
        outcome: JobOutcome,
        estimated: Option<Estimated>,
        means: Box<[Option<Duration>]>,
    },

    /// A client sets labels of a node, or with `None` removes them; answered by `Done`, `AsBefore` or `Refused`.
    Label { node: NodeId, labels: Vec<(String, Option<String>)> },
    /// A client sets limits of a queue beside those that it set before, or with `None` resets the queue to what is configured;
    /// answered by `Done`, `AsBefore` or `Refused`.
    SetQueue { queue: String, settings: Option<QueueSettings> },
    /// The configuration was read again; answered by `Done` or `Refused`.
    Reconfigure {
        queues: Vec<QueueSpec>,
        kept_jobs: u64,
        kept_for: Option<Duration>,
        #[serde(default)]
        kept_tasks: Option<u64>,
    },
    /// From a global master, before the launch with this grant: if there is no room for that, these grants of its own are preempted.
    MakeRoom { grant: GrantId, instead_of: Vec<GrantId> },
    /// From a global master: the nodes of this cluster that it has reserved for a task or gang, which has waited for this time. Other
    /// global masters are notified. They launch there only tasks of queues below their shares, for which others are preempted.
    Keep { nodes: Vec<NodeId>, waited: Duration },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobAction {
    Cancel,
    Hold,
    Release,
    RerunFailed,
    /// The job ends now, regardless of its manager, which is not connected.
    Abandon,
}

/// A user's changes of a job; `None` changes nothing.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct JobUpdate {
    pub priority: Option<i32>,
    /// For all of its stages; zero for the queue's default.
    pub timeout: Option<Duration>,
    /// The full name once it is admitted.
    pub queue: Option<String>,
}

impl JobUpdate {
    /// The job with these changes.
    pub fn applied(&self, job: &AdmittedJob) -> AdmittedJob {
        let mut job = job.clone();
        let spec = Arc::make_mut(&mut job.spec);
        if let Some(priority) = self.priority {
            spec.priority = priority;
        }
        if let Some(timeout) = self.timeout {
            let timeout = Some(timeout).filter(|timeout| *timeout != Duration::ZERO);
            spec.stages.iter_mut().for_each(|stage| stage.timeout = timeout);
        }
        if let Some(queue) = &self.queue {
            spec.queue.clone_from(queue);
        }
        job
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// Distinguishes it from all others of the node, including those of earlier incarnations; the welcome repeats it. It has no
    /// other meaning.
    pub number: u64,
    /// The number that it was given before, if it remembers one.
    pub node: NodeId,
    pub name: String,
    pub capacity: ResourceSpec,
    pub attributes: Attributes,
    /// How limits are enforced, and which cannot be: one sentence each.
    pub enforcement: Vec<String>,
    /// All attempts that hold resources there.
    pub live: Vec<LiveAttempt>,
    /// The version of the agent's program; absent from agents that do not report it.
    pub program: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LiveAttempt {
    pub attempt: AttemptId,
    /// `None`: no ledger holds its resources.
    pub grant: Option<GrantId>,
    pub resources: Resources,
    pub shared_gpu: Option<SharedGpu>,
}

/// A node's load, as its agent knows it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    pub free: Resources,
    pub running: u32,
    pub queued: u32,
    /// The sum of the expected run times of all that waits.
    pub expected_wait: Duration,
    /// The sum of the remaining expected run times of all that runs.
    pub running_work: Duration,
    /// For how long nothing opportunistic has started although something waits.
    pub stalled: Duration,
    /// Attempts that have succeeded there since its agent started.
    pub succeeded: u32,
    /// Predicted starts there since the last report; only some of them if there are many.
    pub starts: Vec<PredictedStart>,
    /// Entries that wait there longer than predicted, since the last report; only some of them if there are many.
    pub late: Vec<Late>,
}

impl NodeReport {
    /// How long an opportunistic task might wait there, to compare nodes (Mercury, section 4.2).
    pub fn rank(&self) -> Duration {
        self.expected_wait + self.running_work + self.stalled
    }
}

/// A counted request: `wanted` such tasks have been requested since the job started. `wanted` less what was granted is still
/// open, so an update that crosses a grant on its way does no harm.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    pub id: AskId,
    pub resources: Resources,
    pub constraints: Arc<Vec<Constraint>>,
    pub execution: ExecutionType,
    pub wanted: u64,
    /// How many of these must start now or have started; the others could wait without delaying the job's end.
    pub needed: u64,
    /// Among the job's asks of equal priority, the one with the smallest rank is scheduled first; among equals, the one best
    /// aligned with a node's room.
    pub rank: u32,
    /// The priority of its tasks among those of all jobs of the queue.
    pub priority: i32,
    /// Either all of its open tasks are granted at once, or none.
    pub is_gang: bool,
    /// Where the input of its tasks is stored, as known when it is first requested; empty if that does not matter.
    pub locality: Arc<Vec<Holder>>,
    /// How long one of its tasks probably runs, if that is known.
    #[serde(default)]
    pub expected: Option<Duration>,
    /// After how long its tasks are stopped, if all of them are.
    #[serde(default)]
    pub limit: Option<Duration>,
    /// How many of the wanted tasks are duplicates of slow ones. They are granted last, and only room that is free.
    #[serde(default)]
    pub duplicates: u64,
}

/// A node that stores input of some tasks, and its amount; if sizes are not known, the same amount as the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Holder {
    pub node: NodeId,
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobOutcome {
    Succeeded,
    /// The exit code of the first task that failed permanently.
    Failed {
        exit_code: u8,
    },
    Cancelled,
    /// This job, which it depended on, did not succeed.
    DependencyFailed {
        after: JobId,
    },
}
