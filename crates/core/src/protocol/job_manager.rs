//! What a job manager receives: grants, reports about its attempts, and lists of nodes.

use super::{ClaimError, Holder, JobAction, NodeReport};
use crate::vocabulary::{
    Age, AskId, AtNode, AttemptId, Attributes, Chosen, ClosedReason, Digest, Duration, Ended, Epoch, Generation,
    GrantId, HostId, Instant, JobId, JobSpec, Margins, NodeId, NodeWaits, Prediction, ProbeId, QueueId,
    RequestedTaskActions, Resources, Sample, SharedGpu, TaskAction, Totals, UserId,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToJobManager {
    /// The job may start. A process that hosts job managers creates one for a job that it does not know. Sent again whenever the
    /// master or the manager's process may have missed something of the job: a manager that has started does what is missing.
    Start {
        job: Arc<AdmittedJob>,
        share: Option<Box<Totals>>,
        requested_actions: RequestedActions,
        /// Nodes that the master has given up.
        lost: Arc<[NodeId]>,
    },
    /// The job's entitlement has changed. Sent only if jobs plan by it or are limited by it.
    Share {
        share: Box<Totals>,
    },
    /// What the guaranteed tasks may hold in total that the job places itself; tasks that hold more already continue. A changed
    /// amount has a larger number. It takes into account the job's messages up to [`AllowanceRequest::said`](crate::vocabulary::AllowanceRequest::said).
    Allowance {
        number: u32,
        answers: u32,
        allowance: Box<Totals>,
    },
    Act(JobAction),
    ActOnTasks {
        action: TaskAction,
        tasks: Box<Chosen>,
    },
    /// A user changed it. If its place among other jobs is a new one, the master has forgotten its asks.
    Updated {
        job: Arc<AdmittedJob>,
        is_placed_anew: bool,
    },
    /// All nodes by number, and margins for predictions, for a job manager that places its own tasks; replaces the previous list.
    Nodes {
        list: Arc<NodeList>,
        margins: Arc<Margins>,
    },
    /// How long tasks would wait at a node that has some of this job's, and when the job's guaranteed tasks start that wait
    /// there.
    Waits {
        waits: Arc<NodeWaits>,
        starts: Box<[(AttemptId, Duration)]>,
    },
    /// Resources for tasks of an ask; unused ones are returned with `Return`.
    Granted {
        grants: Vec<Grant>,
    },

    /// A running attempt yielded its CPU to guaranteed work, or has it again. May be lost: it only improves decisions.
    Yields {
        attempt: AttemptId,
        has_cpu: bool,
    },
    /// The process has run for `running_for`; sent again after a claim.
    Started {
        attempt: AttemptId,
        running_for: Duration,
        /// Present in the first message.
        at_node: Option<AtNode>,
    },
    /// The progress of the job's attempts that run at a node. Sent at intervals, and only if stragglers are detected.
    Progress {
        samples: Box<[(AttemptId, Sample)]>,
    },
    /// An attempt still waits at its node for these files, whose transfer has taken this long. Sent at the same intervals.
    Lacks {
        attempt: AttemptId,
        files: Box<[(Digest, Duration)]>,
    },
    /// The attempt is at its node with all that it needs, and waits for `StartTask`. Sent again after a claim.
    InPlace {
        attempt: AttemptId,
        node_name: String,
    },
    /// The attempt ended; repeated until acknowledged.
    Finished {
        attempt: AttemptId,
        ended: Arc<Ended>,
        /// It waited, and this node has room for its task; not repeated.
        instead: Option<NodeId>,
    },
    /// The attempt is booked from now on and is not preempted.
    Promoted {
        attempt: AttemptId,
        grant: GrantId,
    },
    /// The node refused the launch, and holds nothing for it.
    NotTaken {
        attempt: AttemptId,
    },
    /// The master of a federation's cluster refused to forward the launch to the node.
    NotPassed {
        attempt: AttemptId,
        why: ClaimError,
    },
    /// A probe is next, and the node keeps room for it. Answered by `Launch` or `Cancel`.
    Ready {
        probe: ProbeId,
    },
    /// The answer to a claim: the claimed attempts that the node has, running or ended.
    Live {
        node: NodeId,
        node_name: String,
        epoch: Epoch,
        number: u32,
        attempts: Vec<AttemptId>,
    },
    /// The master forgets the job: its nodes can delete what they keep of it.
    Forgotten,
    /// The generation of tokens that are made from now on; sent by the manager's process if it is not the master's.
    Generation {
        generation: Generation,
    },
    /// Nodes are connected again that were given up, or to which messages may have been lost: claim the attempts there.
    NodesReturned {
        nodes: Arc<[NodeId]>,
    },
    /// The master gave a node up: its attempts are lost.
    NodeLost {
        node: NodeId,
    },
}

impl ToJobManager {
    /// The epoch of the manager's incarnation, if the message is about something that it made.
    pub fn issuer(&self) -> Option<Epoch> {
        match self {
            ToJobManager::Yields { attempt, .. }
            | ToJobManager::Started { attempt, .. }
            | ToJobManager::Lacks { attempt, .. }
            | ToJobManager::InPlace { attempt, .. }
            | ToJobManager::Finished { attempt, .. }
            | ToJobManager::Promoted { attempt, .. }
            | ToJobManager::NotTaken { attempt }
            | ToJobManager::NotPassed { attempt, .. } => Some(attempt.epoch),
            ToJobManager::Ready { probe } => Some(probe.epoch),
            ToJobManager::Live { epoch, .. } => Some(*epoch),
            ToJobManager::Waits { starts, .. } => starts.first().map(|(attempt, _)| attempt.epoch),
            ToJobManager::Progress { samples } => samples.first().map(|(attempt, _)| attempt.epoch),
            ToJobManager::Start { .. }
            | ToJobManager::Share { .. }
            | ToJobManager::Allowance { .. }
            | ToJobManager::Act(_)
            | ToJobManager::ActOnTasks { .. }
            | ToJobManager::Updated { .. }
            | ToJobManager::Nodes { .. }
            | ToJobManager::Granted { .. }
            | ToJobManager::Forgotten
            | ToJobManager::Generation { .. }
            | ToJobManager::NodesReturned { .. }
            | ToJobManager::NodeLost { .. } => None,
        }
    }

    /// For a job that starts for the first time and for which there are no requests.
    pub fn start(job: Arc<AdmittedJob>, share: Option<Box<Totals>>) -> ToJobManager {
        ToJobManager::Start { job, share, requested_actions: RequestedActions::default(), lost: Arc::default() }
    }
}

/// The actions that users have requested for a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RequestedActions {
    pub held: bool,
    pub cancelled: bool,
    /// How often it was reopened to run what had failed.
    pub run: u32,
    /// The actions for single tasks.
    pub tasks: Arc<RequestedTaskActions>,
}

/// Nodes as the master publishes them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NodeList {
    pub nodes: Vec<ListedNode>,
    /// The numbers of the nodes that take work and have the shortest waits, best first; as many as a policy may choose among.
    pub best: Vec<u32>,
    /// By node number, the probability that a task succeeds there, in millionths; certain for nodes after the last.
    pub success: Vec<u32>,
    /// The interval at which nodes are published if only their load changes.
    pub every: Duration,
    /// The generation of tokens that are made from now on.
    pub generation: Generation,
}

/// A node as the master publishes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedNode {
    /// Why it takes no new work, if it takes none.
    pub closed_reason: Option<ClosedReason>,
    pub capacity: Resources,
    pub attributes: Arc<Attributes>,
    pub report: NodeReport,
    /// How long tasks would wait there, if nodes report it and this one has.
    pub waits: Option<ListedWaits>,
}

impl ListedNode {
    pub fn is_open(&self) -> bool {
        self.closed_reason.is_none()
    }

    /// The value by which nodes are compared: how long a small task would wait there if the node reported it, else
    /// [`NodeReport::rank`].
    pub fn rank(&self) -> Duration {
        let Some(ListedWaits { waits, age, .. }) = &self.waits else { return self.report.rank() };
        let small = Resources(self.capacity.0.map(|amount| amount / SMALL_PART));
        // A node that has not corrected its report is idle once the reported waits have passed.
        let age = Age { since_made: *age, ..Age::NEW };
        let wait = waits.matrix.wait(&self.capacity, &small, &age).unwrap_or(Duration::MAX);
        wait + Duration(waits.opportunistic.0.saturating_sub(age.since_made.0))
    }
}

/// A small task takes this part of the CPU and memory of its node.
const SMALL_PART: u32 = 16;

/// A node's report of its waits when it was published.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedWaits {
    pub waits: Arc<NodeWaits>,
    /// The age of the report.
    pub age: Duration,
    /// Time since the node's last message, which had no newer waits.
    pub silent_for: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub id: GrantId,
    pub ask: AskId,
    pub node: NodeId,
    /// The rule by which this ask was next.
    pub rule: Rule,
    /// How many jobs' asks were before it in the order and were passed over because they did not fit.
    pub passed_over: u32,
    /// The generation of tokens that are made from now on.
    pub generation: Generation,
    /// The prediction of the task's start when it was requested.
    pub prediction: Option<Prediction>,
    /// The GPU of which it gets a part.
    pub shared_gpu: Option<SharedGpu>,
}

/// Why an ask was next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Rule {
    /// The higher priority, then the earlier submission.
    Submission,
    /// The queue furthest below its guarantee, then the smaller weighted dominant share.
    DominantShare,
    /// A node was kept free for it because it had waited for long.
    Reservation,
    /// Its node was the first that was ready for a task.
    Ready,
    /// The job's own scheduler chose the node.
    Sampling,
    /// It had room while the task waited elsewhere.
    Moved,
    /// The job's own scheduler expects the task to end there first.
    Completion,
    /// The task is expected to end there before its present attempt does.
    Duplicate,
    /// The present attempt of the task waits, and a second one may start here before it.
    Exploration,
    /// The other attempt of its task makes slow progress, and this one is expected to end before it.
    Straggler,
    /// Its task has ended, and another task waits for its files, which a slow node has.
    Copy,
    /// The queue that uses the smallest part of its guarantee, then the earlier submission.
    Guarantee,
    /// The queue that got resources longest ago, then the earlier submission.
    Turn,
    /// Its queue has less than its share and another one has more: tasks of that queue are preempted.
    Share { at_cost_of: QueueId },
    /// The job with the least work.
    ShortestJob,
    /// The job with the least work left.
    ShortestRemaining,
    /// The task that fits the node's room best and has little work behind it, of the jobs with small shares.
    Packing,
    /// No job needed the room now.
    Leftover,
    /// The job that would be done first with fair shares.
    FairSojourn,
    /// Its job has less than it is entitled to, and tasks of jobs that have more are preempted.
    Reclaimed,
    /// Its node is reserved for a task or gang that has waited longer, which needs the room later than this is to end, or not at all.
    Backfilled,
}

/// A job as the master admitted it: names are resolved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AdmittedJob {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub user: UserId,
    pub queue: QueueId,
    /// Per stage, the resources of one task.
    pub resources: Vec<Resources>,
    /// Per stage, the nodes that have its input.
    pub near: Vec<Arc<Vec<Holder>>>,
    /// Per stage, the nodes that its blocks name; `None` for nodes that are not known.
    pub places: Vec<Vec<Option<NodeId>>>,
    /// For stages without a timeout.
    pub default_timeout: Option<Duration>,
    /// Per stage, the run time of a task in earlier runs of the job; empty if nothing is known.
    pub recalled: Vec<Option<Duration>>,
    /// Its user's estimates are not trusted: all its tasks are guaranteed.
    pub only_guaranteed: bool,
    /// The name of its preset, if that is not the cluster's.
    pub preset: Option<String>,
    /// The process that has its manager.
    pub host: HostId,
    pub submitted_at: Instant,
}

impl Rule {
    /// Whether the attempt is a second one of its task.
    pub fn is_second(self) -> bool {
        matches!(self, Rule::Duplicate | Rule::Exploration | Rule::Straggler | Rule::Copy)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Submission => "priority, then order of submission",
            Rule::DominantShare => "priority, then smallest dominant share",
            Rule::Reservation => "a reservation after a long wait",
            Rule::Ready => "late binding: its node was ready first",
            Rule::Sampling => "the choice of the job's own scheduler",
            Rule::Completion => "earliest expected completion",
            Rule::Duplicate => "an earlier expected completion than its other attempt",
            Rule::Exploration => "a second try while its other attempt waits elsewhere",
            Rule::Straggler => "an earlier expected completion than its slow other attempt",
            Rule::Copy => "a new copy of its files, which a slow node has",
            Rule::Moved => "room on this node while the task waited on another",
            Rule::Guarantee => "priority, then order of submission in the queue furthest below its guarantee",
            Rule::Share { .. } => "its queue's share, of which another queue used a part",
            Rule::Turn => "round robin over the queues, then priority and order of submission",
            Rule::ShortestJob => "priority, then least work",
            Rule::Packing => "priority, then smallest dominant share, then best packing",
            Rule::Backfilled => {
                "backfilling: the task or gang for which the node is reserved does not need the room meanwhile"
            }
            Rule::Reclaimed => "less than the job is entitled to, while others have more",
            Rule::FairSojourn => "priority, then the earlier end with fair shares",
            Rule::ShortestRemaining => "priority, then least remaining work",
            Rule::Leftover => "leftover room that no job needs now",
        })
    }
}
