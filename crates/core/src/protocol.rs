//! Every message of the system, by receiver.
//!
//! # Delivery guarantees
//! Messages are one-way. Between two peers they arrive **in order**. They **may be lost with the connection**, and they **may be
//! repeated after a reconnect**, before anything new. There are no other guarantees; in particular, messages from different peers
//! arrive in any order. Hence:
//!
//! * after `Connected`, both sides send their full sets of live attempts ([`ToMaster::Register`], [`ToNode::Claim`]);
//! * a message that changes the owner of something is repeated until it is answered: [`ToJobManager::Finished`] until
//!   [`ToNode::Acknowledge`], [`ToNode::Claim`] until [`ToJobManager::Live`];
//! * a node refuses launches until its latest registration is answered by a welcome, and launches under a grant that is older
//!   than that welcome: earlier grants were already written off;
//! * a node refuses launches whose token is not valid for them or has expired; it does not answer a launch that is not authentic;
//! * probes exist as long as the connection: when it breaks, the node drops them and the room that it keeps for them, and the job
//!   manager sends others on the next connection;
//! * late messages are recognised by attempt id or grant id, recorded and dropped.

mod since;

pub use since::VERSION;

use crate::vocabulary::{
    Age, Allocation, AskId, AtNode, AttemptId, Attributes, ByteString, Chosen, ClientId, ClusterId, Constraint, Digest,
    Duration, EndReason, Ended, Epoch, Estimated, ExecutionType, Fetched, Foretold, ForetoldStart, Generation,
    GlobalId, GrantId, HostId, HostList, InputFile, Instant, JobId, JobSpec, JobWork, Key, Kinds, Late, LaunchOrder,
    Margins, NodeId, NodeWaits, ProbeId, QueueId, ResourceSpec, Resources, Sample, SharedGpu, Shut, StoredFile,
    TaskAction, TaskId, TaskShape, TaskTemplate, TaskWishes, Token, Totals, UserId, Wants,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The receivers of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Address {
    /// The master of the same cluster; for job managers, the master or global master that admitted their jobs.
    Master,
    /// The master of a cluster, as processes outside the cluster address it.
    ClusterMaster(ClusterId),
    GlobalMaster(GlobalId),
    JobManager(JobId),
    Node(NodeId),
    /// A job host, for messages that concern all of its job managers.
    JobHost(HostId),
    /// The executor that runs a node's processes.
    Executor(NodeId),
    Client(ClientId),
}

/// A message and its kind of receiver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    ToMaster(ToMaster),
    ToGlobalMaster(ToGlobalMaster),
    ToJobHost(ToJobHost),
    ToJobManager(ToJobManager),
    ToNode(ToNode),
    ToExecutor(ToExecutor),
    ToClient(ToClient),
}

/// A receiver and its type of messages, so that a message to the wrong receiver does not compile.
pub trait Peer {
    type Message;
    fn envelope(self, body: Self::Message) -> (Address, Message);
}

/// The cluster's master, as a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TheMaster;

/// A node's executor, as a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TheExecutor(pub NodeId);

macro_rules! peers {
    ($($peer:ty => $message:ident, $self:ident => $address:expr;)*) => {$(
        impl Peer for $peer {
            type Message = $message;
            fn envelope($self, body: $message) -> (Address, Message) {
                ($address, Message::$message(body))
            }
        }
    )*};
}

peers! {
    TheMaster => ToMaster, self => Address::Master;
    ClusterId => ToMaster, self => Address::ClusterMaster(self);
    GlobalId => ToGlobalMaster, self => Address::GlobalMaster(self);
    HostId => ToJobHost, self => Address::JobHost(self);
    JobId => ToJobManager, self => Address::JobManager(self);
    NodeId => ToNode, self => Address::Node(self);
    TheExecutor => ToExecutor, self => Address::Executor(self.0);
    ClientId => ToClient, self => Address::Client(self);
}

// ---- to the master -------------------------------------------------------------------------------------------------

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
    Freed { grants: Vec<GrantId> },

    /// The changed asks of a job, and the amount of its work.
    Demand { job: JobId, asks: Vec<Ask>, work: Box<JobWork> },
    /// Sent by a job manager that places its own tasks: when its demand has changed by much, when its allowance has shrunk, and
    /// as its tasks free what it holds beyond the allowance. Answered by `Share` and `Allowance` if they change.
    Wants { job: JobId, wants: Box<Wants> },
    /// A job manager of a federation launches an attempt under a grant that its global master proposes. The node's master claims
    /// the resources and forwards the launch, or answers `NotPassed`.
    Launch(Box<ProposedLaunch>),
    /// A global master has connected, with its state; answered by `Told` with everything.
    Introduce(Box<GlobalIntroduction>),
    /// A job manager returns grants that it does not need.
    Return { grants: Vec<GrantId> },
    /// A job manager requests that a running opportunistic attempt be booked, or its node offers it. If no limit forbids it, the
    /// master sends `Promote` to the node, which answers `Promoted`; otherwise there is no answer, and the request is repeated
    /// later.
    Promote { attempt: AttemptId, node: NodeId, resources: Box<Resources> },
    /// A job has ended. `estimated` compares the run times stated in its file with the measured ones, if it stated any; `means`
    /// has the mean run time of the tasks of each stage, if all succeeded. The run is that of [`Wishes`]: the end of an earlier
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
    pub starts: Vec<ForetoldStart>,
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

// ---- to a global master --------------------------------------------------------------------------------------------

/// A global master gets the state of its clusters' nodes from their masters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToGlobalMaster {
    /// The state of a cluster's nodes, from its master.
    Told(Box<Told>),
    /// What clients and the managers of its jobs send to a master.
    OfJobs(Box<ToMaster>),
}

/// A launch under a proposed grant, which the launch contains.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProposedLaunch {
    pub node: NodeId,
    /// The queue whose share it counts towards.
    pub queue: QueueId,
    /// If there is no room, tasks of this queue are preempted.
    pub instead_of: Option<QueueId>,
    pub launch: Box<Launch>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GlobalIntroduction {
    /// Epochs of earlier incarnations are refused from now on.
    pub epoch: Epoch,
    /// Distinguishes this introduction from earlier ones; the answer repeats it.
    pub number: u64,
    /// Its jobs that have started, and their queues.
    pub jobs: Vec<(JobId, QueueId)>,
}

/// The changes at a cluster, for one global master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Told {
    pub cluster: ClusterId,
    /// The epoch of the cluster's master.
    pub life: Epoch,
    /// The receiver has to know everything up to here; the changes lead from there to `version`.
    pub since: Since,
    pub version: u64,
    /// The last of the global master's proposals that the rooms here include.
    pub seen: u64,
    /// Grants of its proposals that are free again.
    pub freed: Vec<GrantId>,
    /// Proposed grants that were refused.
    pub refused: Vec<GrantId>,
    pub nodes: Vec<NodeNews>,
    /// What the tasks of each queue hold in this cluster, without preemptible work; only queues that hold something.
    pub usage: Vec<(QueueId, Totals)>,
    /// Whether it is known for each node what runs there, or the node was given up.
    pub is_settled: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Since {
    Version(u64),
    /// This is the full state, in answer to this introduction: nodes that are not named do not exist. `held` has the global
    /// master's grants that are held.
    Nothing {
        introduction: u64,
        kinds: Kinds,
        held: Vec<HeldGrant>,
    },
}

/// A grant whose resources are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldGrant {
    pub grant: GrantId,
    pub job: JobId,
    pub node: NodeId,
    pub resources: Resources,
}

/// A change of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeNews {
    /// It has registered with these properties; its room follows.
    Joined { node: NodeId, name: String, capacity: Resources, attributes: Arc<Attributes> },
    /// Its free room; why it takes no work, if it takes none; and, if queues have shares, what the tasks of each queue hold that
    /// cannot be preempted.
    Room { node: NodeId, free: Resources, shut: Option<Shut>, held: Box<[(QueueId, Resources)]> },
    /// It cannot be reached; if `lost`, it was given up.
    Away { node: NodeId, lost: bool },
    /// The node was removed.
    Removed { node: NodeId },
}

impl NodeNews {
    pub fn node(&self) -> NodeId {
        match self {
            NodeNews::Joined { node, .. }
            | NodeNews::Room { node, .. }
            | NodeNews::Away { node, .. }
            | NodeNews::Removed { node } => *node,
        }
    }
}

/// Why a claim was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClaimError {
    UnknownNode,
    Closed,
    NoRoom,
    /// A later proposal of the same global master was processed before it.
    Overtaken,
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimError::UnknownNode => "the cluster has no such node",
            ClaimError::Closed => "the node takes no work",
            ClaimError::NoRoom => "the node has no room",
            ClaimError::Overtaken => "a later launch arrived first",
        })
    }
}

// ---- to a process of job managers ----------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToJobHost {
    /// The jobs of this host that the master knows, with their times of submission. It knows no others. Sent on each connection
    /// before any message about these jobs; both sides know the connection by this number.
    Known { connection: u64, kinds: Kinds, jobs: Vec<(JobId, Instant)> },
    /// The kinds of resources that nodes offer now.
    Kinds { kinds: Kinds },
    /// The master forgets the job: its state can be deleted.
    Forget { job: JobId },
    /// A job manager of this process has started.
    Has { job: JobId, submitted_at: Instant },
}

// ---- to a job manager ----------------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToJobManager {
    /// The job may start. A process that hosts job managers creates one for a job that it does not know. Sent again whenever the
    /// master or the manager's process may have missed something of the job: a manager that has started does what is missing.
    Begin {
        job: Arc<AdmittedJob>,
        share: Option<Box<Totals>>,
        wishes: Wishes,
        /// Nodes that the master has given up.
        lost: Arc<[NodeId]>,
    },
    /// The job's entitlement has changed. Sent only if jobs plan by it or are limited by it.
    Share {
        share: Box<Totals>,
    },
    /// What the guaranteed tasks may hold in total that the job places itself; tasks that hold more already continue. A changed
    /// amount has a larger number. It takes into account the job's messages up to [`Wants::said`].
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
    /// The attempt is at its node with all that it needs, and waits for `BeginTask`. Sent again after a claim.
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
            ToJobManager::Begin { .. }
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
    pub fn begin(job: Arc<AdmittedJob>, share: Option<Box<Totals>>) -> ToJobManager {
        ToJobManager::Begin { job, share, wishes: Wishes::default(), lost: Arc::default() }
    }
}

/// The actions that users have requested for a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Wishes {
    pub held: bool,
    pub cancelled: bool,
    /// How often it was reopened to run what had failed.
    pub run: u32,
    /// The actions for single tasks.
    pub tasks: Arc<TaskWishes>,
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
    pub shut: Option<Shut>,
    pub capacity: Resources,
    pub attributes: Arc<Attributes>,
    pub report: NodeReport,
    /// How long tasks would wait there, if nodes report it and this one has.
    pub waits: Option<ListedWaits>,
}

impl ListedNode {
    pub fn is_open(&self) -> bool {
        self.shut.is_none()
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
    pub foretold: Option<Foretold>,
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
}

// ---- to a node agent -----------------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToNode {
    /// Answers a registration.
    Welcome(Box<Welcome>),
    /// A job host introduces itself, as the first message on every connection.
    Greeting(Box<Greeting>),
    /// The master is connected again to this process, to which it forwards: ends that the process has not acknowledged may be
    /// lost.
    SayEndsAgain { host: HostId },
    /// The node, which the master had given up, has sent something again: it has to register once more.
    IntroduceYourself,
    /// How much opportunistic work the node may take from now on, until the next such message.
    Steer(Box<Steer>),
    /// Tokens of earlier generations have expired. Sent in answer to a node's report.
    Expire { before: Generation },
    /// Another node has this room: give up the entries that wait, may run anywhere and fit there, and name that node in the
    /// report of each end. Answered by `Moved`.
    Move { to: NodeId, room: Box<Resources> },
    /// Run an attempt. Answered by `Started` and `Finished`, or by `NotTaken`; not answered if its token is not valid.
    Launch(Box<Launch>),
    /// The same; what runs or waits there under these grants is preempted for it.
    LaunchInstead { launch: Box<Launch>, of: Box<[GrantId]> },
    /// All tasks of its gang are in place, on these nodes: the attempt may start. Sent again after a claim, and when the attempt
    /// reports that it is in place.
    BeginTask { attempt: AttemptId, hosts: Arc<HostList> },
    /// The attempt is guaranteed from now on. With a grant, its resources are booked, which is answered by `Promoted`, or by
    /// `Freed` if it does not run any more. Without one, it is within its job's entitlement according to its job manager.
    Promote { attempt: AttemptId, grant: Option<GrantId> },
    /// The attempt may run for this time from its start, or without a limit.
    SetTimeout { attempt: AttemptId, timeout: Option<Duration> },
    /// Wait in the queue for a task: when the probe is next, send `Ready`. Forgotten when the connection breaks.
    Probe(Probe),
    /// The job has no task for these probes any more.
    Cancel { probes: Vec<ProbeId> },
    /// Answered by `Live`; attempts of the job that are not claimed are killed.
    Claim(Claim),
    /// Stop an attempt: terminate it, and kill it after `grace`. Answered by `Finished` with this reason.
    Stop { attempt: AttemptId, reason: EndReason, grace: Duration },
    /// That node has the file as well: the file is fetched from the node that delivers it first.
    Holder { digest: Digest, node: NodeId },
    /// The end of an attempt is durable: the node can forget it.
    Acknowledge { attempt: AttemptId },
    /// The job has ended, or is not known: its attempts have no owner.
    Disown { job: JobId },
    /// The job is forgotten: the node can delete what it keeps of it, output included.
    Forget { job: JobId },
    /// A report of the node's executor.
    Executor(ExecutorReport),
}

impl ToNode {
    /// The only sender from which this message is accepted, if it is about something that this sender owns.
    pub fn only_from(&self) -> Option<Address> {
        match self {
            ToNode::BeginTask { attempt, .. }
            | ToNode::Promote { attempt, grant: None }
            | ToNode::SetTimeout { attempt, .. }
            | ToNode::Stop { attempt, .. }
            | ToNode::Acknowledge { attempt } => Some(Address::JobManager(attempt.job)),
            ToNode::Claim(Claim { job, .. }) | ToNode::Forget { job } => Some(Address::JobManager(*job)),
            ToNode::Disown { .. } | ToNode::Promote { grant: Some(_), .. } => Some(Address::Master),
            ToNode::Welcome(_)
            | ToNode::Greeting(_)
            | ToNode::SayEndsAgain { .. }
            | ToNode::IntroduceYourself
            | ToNode::Steer(_)
            | ToNode::Expire { .. }
            | ToNode::Move { .. }
            | ToNode::Launch(_)
            | ToNode::LaunchInstead { .. }
            | ToNode::Probe(_)
            | ToNode::Cancel { .. }
            | ToNode::Holder { .. }
            | ToNode::Executor(_) => None,
        }
    }

    /// The launch in the message.
    pub fn launch(&self) -> Option<&Launch> {
        match self {
            ToNode::Launch(launch) | ToNode::LaunchInstead { launch, .. } => Some(launch),
            _ => None,
        }
    }
}

/// The master knows the state of the node from this `registration`; grants older than `first_grant` are invalid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub node: NodeId,
    pub registration: u64,
    pub epoch: Epoch,
    pub first_grant: GrantId,
    pub kinds: Kinds,
    pub heartbeat: Duration,
    /// The shortest interval between messages to the master that may be sent at any time.
    pub pace: Duration,
    /// The key with which the node verifies tokens of this incarnation of the master.
    pub key: Key,
    /// Tokens of earlier generations have expired.
    pub oldest: Generation,
    /// The master forwards the messages of job managers elsewhere, and seals their launches: the node need not wait for other
    /// processes of theirs.
    pub passes_on: bool,
}

/// What a node needs to accept the launches of a job host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// Attempts of its earlier incarnations are refused.
    pub epoch: Epoch,
    /// The key with which the node verifies tokens of this incarnation.
    pub key: Key,
    /// Tokens of earlier generations have expired.
    pub oldest: Generation,
    /// The kinds that the job host knows: if the master is not connected, the node has no other source.
    pub kinds: Kinds,
}

/// Claims exactly these of the job's attempts at the node. The answer repeats `number`: an answer to an earlier claim says
/// nothing about launches since.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    pub job: JobId,
    pub epoch: Epoch,
    pub number: u32,
    pub attempts: Vec<AttemptId>,
    /// The job's attempts of smaller numbers have been launched: launches that have not arrived by now are lost, and refused if
    /// they do arrive.
    pub next_attempt: u32,
    /// No token of these attempts is of a later generation.
    pub generation: Generation,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Launch {
    pub attempt: AttemptId,
    pub task: TaskId,
    /// `None`: no ledger holds its resources.
    pub grant: Option<GrantId>,
    /// The GPU of which the grant gives it a part.
    pub shared_gpu: Option<SharedGpu>,
    /// The probe that sent `Ready`, whose room it takes.
    pub probe: Option<ProbeId>,
    pub template: Arc<TaskTemplate>,
    /// The user's index value of the task.
    pub index: u64,
    /// The user's text for the task, where it has one.
    pub item: Option<ByteString>,
    pub expected: Option<Duration>,
    /// It does not start before its job manager sends `BeginTask`; the node reports when it is in place.
    pub is_of_gang: bool,
    /// Of an opportunistic attempt: its weight in the node's random choice among those that wait.
    pub weight: u16,
    /// Its input files, and the nodes that have them.
    pub inputs: Arc<[InputFile]>,
    /// The prediction of its start; it may have waited elsewhere before.
    pub foretold: Option<Foretold>,
    pub token: Token,
}

impl Launch {
    /// The allocation for which its token has to be valid.
    pub fn allocation(&self) -> Allocation<'_> {
        let Launch { attempt, task, grant, probe, ref template, .. } = *self;
        Allocation { attempt, task, grant, probe, shape: &template.shape }
    }
}

/// Limits of a node's opportunistic work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Steer {
    /// The node sheds the work in its queue that is beyond this expected time.
    pub longest_wait: Option<Duration>,
    /// What opportunistic work may hold at once.
    pub room: Resources,
}

impl Default for Steer {
    /// No limits.
    fn default() -> Steer {
        Steer { longest_wait: None, room: Resources::MAX }
    }
}

/// An entry in a node's queue for a task that its job manager chooses when the entry is next.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Probe {
    pub id: ProbeId,
    pub shape: Arc<TaskShape>,
}

// ---- to and from an executor ---------------------------------------------------------------------------------------

/// From a node agent to the executor that owns its processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToExecutor {
    /// Starts an attempt. Answered by `Started` and later `Finished`, or by `Finished` alone if its process could not be started.
    /// A repeated order for an attempt that the executor still knows is answered with its present state.
    Launch(Box<LaunchOrder>),
    /// Sends a signal to every process of the attempt, which then ends for `reason`: the executor reports this reason even to an
    /// agent that does not know of the signal. Ignored for an attempt that has ended.
    Signal { attempt: AttemptId, signal: TaskSignal, reason: EndReason },
    /// The attempt is guaranteed now, and booked if it has a grant. Its agent needs this after a restart.
    Promote { attempt: AttemptId, grant: Option<GrantId> },
    /// The attempt may run for this time. Its agent, which enforces it, needs this after a restart.
    SetTimeout { attempt: AttemptId, timeout: Option<Duration> },
    /// The attempt yields its CPU: it continues with what others leave, and the time does not count as its own.
    Yield { attempt: AttemptId },
    /// It has its CPU again.
    Resume { attempt: AttemptId },
    /// The end of the attempt is durable elsewhere: forget it.
    Acknowledge { attempt: AttemptId },
    /// Answered by `Executing`, and by `Stored` with the node's files before it.
    List { node: NodeId },
    /// Fetch a file from the node that has it. Answered by `Fetched`.
    Fetch { node: NodeId, file: StoredFile, from: NodeId },
    /// Requests the progress of these attempts. Answered by `Measured`, without those that do not run.
    Measure { node: NodeId, attempts: Vec<AttemptId> },
    /// These files are not needed at this node.
    Drop { node: NodeId, files: Vec<Digest> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TaskSignal {
    Terminate,
    Kill,
}

/// From the executor to a node agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExecutorReport {
    Started {
        attempt: AttemptId,
        pid: u32,
    },
    /// Repeated after every reconnect until acknowledged.
    Finished {
        attempt: AttemptId,
        ended: Arc<Ended>,
    },
    /// All attempts of one node that the executor has and that have not ended. Ends that were not acknowledged are sent before it
    /// as `Finished`, so an attempt that is in neither does not exist.
    Executing {
        attempts: Vec<Executing>,
    },
    /// All files that the node has, the least recently used first; not sent if there are none.
    Stored {
        node: NodeId,
        files: Vec<StoredFile>,
    },
    Fetched {
        node: NodeId,
        /// The result of the fetch from the node that was asked. Boxed, because most reports are small.
        end: Box<(Digest, NodeId, Fetched)>,
    },
    Measured {
        node: NodeId,
        samples: Box<[(AttemptId, Sample)]>,
    },
}

/// An attempt that an executor is running, with enough to adopt it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Executing {
    pub order: LaunchOrder,
    /// Without the time in which it yielded its CPU.
    pub running_for: Duration,
    /// How long it has yielded its CPU now, if it does.
    pub yields_for: Option<Duration>,
    pub pid: u32,
    /// The reason for which an earlier incarnation of the agent stopped it, if it did.
    pub asked_to_end: Option<EndReason>,
}

// ---- to a client ---------------------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToClient {
    /// The job is on disk.
    Submitted {
        job: JobId,
    },
    Done,
    /// There was nothing to do: the requested state is the present one.
    AsBefore,
    Refused(Refusal),
}

/// Why a client's request was not carried out, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub message: String,
    pub remedy: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RefusalKind {
    Invalid,
    NotFound,
    /// The present state does not allow it.
    Conflict,
    /// A limit is reached; a later request may succeed.
    Busy,
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
            Rule::ShortestRemaining => "priority, then least remaining work",
            Rule::Leftover => "leftover room that no job needs now",
        })
    }
}
