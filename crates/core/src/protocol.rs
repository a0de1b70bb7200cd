//! Who tells whom what: every message of the system.
//!
//! # What delivery promises
//! Messages are one-way. Between two peers they arrive **in order**; they **may be lost with the connection**, and
//! they **may be repeated after a reconnect**, before anything new. Nothing else is promised, and in particular nothing about the order of
//! messages from different peers. Hence:
//!
//! * after `Connected`, both sides send their full sets of live attempts ([`ToMaster::Register`], [`ToNode::Claim`]);
//! * a message that changes who owns what is repeated until it is answered: [`ToJobManager::Finished`] until
//!   [`ToNode::Acknowledge`], [`ToNode::Claim`] until [`ToJobManager::Live`];
//! * a node takes no launch before its latest registration was answered by a welcome, and none under a grant that is
//!   older than that welcome: whatever was granted earlier was already written off;
//! * a node takes no launch whose token does not speak for it, nor one whose token has expired; to a launch that is not
//!   authentic it gives no answer;
//! * probes live as long as the connection: when it breaks the node drops them with the room that it keeps for them, and
//!   on the next one the job manager sends others;
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

/// Everybody who can get a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Address {
    /// The master of the same cluster; to job managers, whoever admitted their jobs.
    Master,
    /// The master of a cluster, as those away from it call it.
    ClusterMaster(ClusterId),
    GlobalMaster(GlobalId),
    JobManager(JobId),
    Node(NodeId),
    /// A process of job managers, for what concerns all of them.
    JobHost(HostId),
    /// The executor that runs a node's processes.
    Executor(NodeId),
    Client(ClientId),
}

/// A message with its kind of receiver.
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

/// A receiver that knows which messages it takes, so that a wrong one does not compile.
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
    /// A client asks for something to happen to a job, on behalf of this user; answered by `Done`, `AsBefore` or `Refused`.
    Control { job: JobId, action: JobAction, by: String },
    /// The same for single tasks of it; answered alike.
    ControlTasks { job: JobId, action: TaskAction, tasks: Box<Chosen> },
    /// A client changes a job that has not ended, on behalf of this user; answered by `Done`, `AsBefore` or `Refused`.
    Update { job: JobId, update: Box<JobUpdate>, by: String },
    /// A client closes a node to new work, or opens it again; answered by `Done` or `Refused`.
    Drain { node: NodeId, drained: bool },
    /// A client wants a node forgotten that does not come back; answered by `Done` or `Refused`.
    RemoveNode { node: NodeId },

    /// A node agent introduces itself, first thing on every connection; answered by `Welcome`.
    Register(Box<Registration>),
    /// A node's state, on every heartbeat.
    Report(Box<NodeReport>),
    /// How long tasks would wait at the node, where that is not as it said last; each report says that it still holds.
    Waits(Arc<NodeWaits>),
    /// Room that opportunistic work may use and nothing at the node wants.
    Room { spare: Box<Resources> },
    /// The answer to a `Move`: what is left of the room, and what waits here still.
    Moved { to: NodeId, left: Box<Resources>, queued: u32, expected_wait: Duration },
    /// The node could not launch an attempt for a reason of its own; said before the attempt's resources are freed.
    CannotLaunch { why: String },
    /// An attempt failed through its node, or a node of so many; said by its job manager. Of a node that the master gave up it
    /// knows itself.
    NodeFailed { node: NodeId, suspects: u32 },
    /// The same task failed through each of these nodes, so long ago: it could be at fault itself.
    TaskFails { at: Vec<(NodeId, Duration)> },
    /// Granted resources are free again.
    Freed { grants: Vec<GrantId> },

    /// What a job wants, only what changed, and how much work it is.
    Demand { job: JobId, asks: Vec<Ask>, work: Box<JobWork> },
    /// Said by a job manager that places its tasks itself: where what its job wants has changed by much, when it is allowed less
    /// than before, and as its tasks free what it holds beyond that. Answered by `Share` and `Allowance` where it changes them.
    Wants { job: JobId, wants: Box<Wants> },
    /// A job manager of a federation launches an attempt under a grant that its global master proposes: the node's master claims
    /// the resources and sends the launch on, or answers `NotPassed`.
    Launch(Box<ProposedLaunch>),
    /// A global master is connected, and says what it has; answered by `Told` with everything.
    Introduce(Box<GlobalIntroduction>),
    /// A job manager has no use for a grant.
    Return { grants: Vec<GrantId> },
    /// A job manager asks that an opportunistic attempt which runs be booked, or its node offers it. Where no limit stands
    /// against it the node is told so, and says `Promoted`; else there is no answer, and it is asked again later.
    Promote { attempt: AttemptId, node: NodeId, resources: Box<Resources> },
    /// A job has come to its end. Where its file stated run times, how they compare with those of its tasks; and by stage the
    /// mean run time of its tasks, where all succeeded. The run is that of [`Wishes`]: the end of an earlier one is void.
    JobEnded {
        job: JobId,
        /// That of [`AdmittedJob`]: of another job that had its number nothing is believed.
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
    /// It ends here and now, whatever becomes of it where its manager is, which is away.
    Abandon,
}

/// What a user changes about a job; what is `None` stays.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct JobUpdate {
    pub priority: Option<i32>,
    /// Of all its stages; zero is the queue's own.
    pub timeout: Option<Duration>,
    /// By its full name once it is admitted.
    pub queue: Option<String>,
}

impl JobUpdate {
    /// The job as it is with this.
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
    /// Tells it from all others of the node, in earlier lives, too; the welcome repeats it. It means nothing else.
    pub number: u64,
    /// The number it was given before, if it remembers one.
    pub node: NodeId,
    pub name: String,
    pub capacity: ResourceSpec,
    pub attributes: Attributes,
    /// How limits are enforced, and what cannot be: one sentence each.
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
    /// The expected run times of what waits, one after the other.
    pub expected_wait: Duration,
    /// What remains of the expected run times of all that runs.
    pub running_work: Duration,
    /// For how long nothing opportunistic has started although something waits.
    pub stalled: Duration,
    /// Attempts that have ended well there since its agent began.
    pub succeeded: u32,
    /// What has started there since the last report and had been foretold; some of it where that is much.
    pub starts: Vec<ForetoldStart>,
    /// What waits there for longer than had been foretold, since the last report; some of it where that is much.
    pub late: Vec<Late>,
}

impl NodeReport {
    /// How long an opportunistic task might wait there, to compare nodes by (Mercury, section 4.2).
    pub fn rank(&self) -> Duration {
        self.expected_wait + self.running_work + self.stalled
    }
}

/// A counted request: `wanted` such tasks have been asked for since the job began. What is still open is `wanted`
/// less what was granted, so an update that crosses a grant on its way does no harm.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    pub id: AskId,
    pub resources: Resources,
    pub constraints: Arc<Vec<Constraint>>,
    pub execution: ExecutionType,
    pub wanted: u64,
    /// Of these, so many must start now or have started; the others could wait without putting off the job's end.
    pub needed: u64,
    /// Of the job's asks of equal priority the one of the smallest rank goes first; of equals, the one best aligned with a node's room.
    pub rank: u32,
    /// Of its tasks among those of all jobs of the queue.
    pub priority: i32,
    /// All of its tasks that are open are granted at once, or none.
    pub is_gang: bool,
    /// Where the input of its tasks lies, as known when it is first asked; empty where that does not matter.
    pub locality: Arc<Vec<Holder>>,
}

/// A node that has so much of some tasks' input; where sizes are not known, as much as the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Holder {
    pub node: NodeId,
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobOutcome {
    Succeeded,
    /// The exit code of the first task that failed for good.
    Failed {
        exit_code: u8,
    },
    Cancelled,
    /// This job, which it came after, did not succeed.
    DependencyFailed {
        after: JobId,
    },
}

// ---- to a global master --------------------------------------------------------------------------------------------

/// A global master sees its clusters' nodes through their masters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToGlobalMaster {
    /// What a cluster's master knows of its nodes.
    Told(Box<Told>),
    /// What a master is told by clients and by the managers of its jobs.
    OfJobs(Box<ToMaster>),
}

/// A launch under a proposed grant, which its attempt names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProposedLaunch {
    pub node: NodeId,
    /// Whose share it counts towards.
    pub queue: QueueId,
    /// Where there is no room, tasks of this queue are to give way.
    pub instead_of: Option<QueueId>,
    pub launch: Box<Launch>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GlobalIntroduction {
    /// Those of earlier lives are refused from now on.
    pub epoch: Epoch,
    /// Tells this from earlier ones; the answer repeats it.
    pub number: u64,
    /// Its jobs that have begun, and their queues.
    pub jobs: Vec<(JobId, QueueId)>,
}

/// What changed at a cluster, for one global master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Told {
    pub cluster: ClusterId,
    /// Of the cluster's master.
    pub life: Epoch,
    /// All that was told before this version has to be known; what follows leads to `version`.
    pub since: Since,
    pub version: u64,
    /// The last of the global master's proposals that the rooms here take into account.
    pub seen: u64,
    /// Grants of its proposals that are free again, and those that were refused.
    pub freed: Vec<GrantId>,
    pub refused: Vec<GrantId>,
    pub nodes: Vec<NodeNews>,
    /// What each queue's tasks hold in this cluster, of those that hold something, without what gives way.
    pub usage: Vec<(QueueId, Totals)>,
    /// Of each of its nodes it is known what runs there, or it was given up.
    pub is_settled: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Since {
    Version(u64),
    /// This is everything, the answer to this introduction: nodes that are not named are not there. With the grants of the global
    /// master that are held.
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

/// What changed of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeNews {
    /// It has registered, and what it has; its room follows.
    Joined { node: NodeId, name: String, capacity: Resources, attributes: Arc<Attributes> },
    /// What is free there; why it takes no work, if it takes none; and what the tasks of each queue hold that do not give way,
    /// where queues have shares.
    Room { node: NodeId, free: Resources, shut: Option<Shut>, held: Box<[(QueueId, Resources)]> },
    /// It cannot be reached; given up, if it is lost.
    Away { node: NodeId, lost: bool },
    /// There is no such node any more.
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
    /// A later proposal of the same global master was looked at before it.
    Overtaken,
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimError::UnknownNode => "the cluster has no such node",
            ClaimError::Closed => "the node takes no work",
            ClaimError::NoRoom => "it has no room",
            ClaimError::Overtaken => "a later launch came before it",
        })
    }
}

// ---- to a process of job managers ----------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToJobHost {
    /// These of its jobs the master knows, by when they were submitted, and no others. Said on each connection, before anything of
    /// these jobs; the number is that by which both sides know the connection.
    Known { connection: u64, kinds: Kinds, jobs: Vec<(JobId, Instant)> },
    /// Nodes offer these kinds of resources by now.
    Kinds { kinds: Kinds },
    /// The master forgets the job: what is kept of it can go.
    Forget { job: JobId },
    /// A job manager of this process has begun.
    Has { job: JobId, submitted_at: Instant },
}

// ---- to a job manager ----------------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToJobManager {
    /// The job may start. Whoever hosts job managers makes one for a job that it does not know. Said again whenever the master or
    /// the manager's process may have missed something of it: who has begun does what is missing.
    Begin {
        job: Arc<AdmittedJob>,
        share: Option<Box<Totals>>,
        wishes: Wishes,
        /// Nodes that were given up.
        lost: Arc<[NodeId]>,
    },
    /// What the job is entitled to has changed. Said only where jobs plan by it, or keep to it.
    Share {
        share: Box<Totals>,
    },
    /// So much may the guaranteed tasks hold together that it places itself; what holds more already runs on. Another amount
    /// has a larger number. It takes into account what the job said up to then ([`Wants::said`]).
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
    /// A user changed it; where its place among others is a new one, the master has forgotten what it asked for.
    Updated {
        job: Arc<AdmittedJob>,
        is_placed_anew: bool,
    },
    /// All nodes by number, for a job manager that places its tasks itself, and by what it is to foretell starts; replaces what it
    /// was told before.
    Nodes {
        list: Arc<NodeList>,
        margins: Arc<Margins>,
    },
    /// How long tasks would wait at a node that has some of this job's, and when those of them start that wait there and are
    /// guaranteed.
    Waits {
        waits: Arc<NodeWaits>,
        starts: Box<[(AttemptId, Duration)]>,
    },
    /// Resources for tasks of an ask; unused ones go back with `Return`.
    Granted {
        grants: Vec<Grant>,
    },

    /// A running attempt left its CPU to guaranteed work, or has it again. It may be lost: it helps to choose, no more.
    Yields {
        attempt: AttemptId,
        has_cpu: bool,
    },
    /// The process runs, since so long; said again after a claim.
    Started {
        attempt: AttemptId,
        running_for: Duration,
        /// Said the first time.
        at_node: Option<AtNode>,
    },
    /// How far attempts of the job have come that run at a node. Said now and then, and only where stragglers are looked for.
    Progress {
        samples: Box<[(AttemptId, Sample)]>,
    },
    /// An attempt still waits at its node for these files, which have been under way for so long. Said as seldom.
    Lacks {
        attempt: AttemptId,
        files: Box<[(Digest, Duration)]>,
    },
    /// The attempt is at its node with all that it needs, and waits for `BeginTask`. Said again after a claim.
    InPlace {
        attempt: AttemptId,
        /// What people call the node.
        node_name: String,
    },
    /// The attempt ended; repeated until acknowledged.
    Finished {
        attempt: AttemptId,
        ended: Arc<Ended>,
        /// It waited, and there its task would not; not repeated.
        instead: Option<NodeId>,
    },
    /// The attempt is booked from now on and gives way to nobody.
    Promoted {
        attempt: AttemptId,
        grant: GrantId,
    },
    /// The node did not take the launch, and holds nothing for it.
    NotTaken {
        attempt: AttemptId,
    },
    /// The master of a federation's cluster did not let the launch pass to the node.
    NotPassed {
        attempt: AttemptId,
        why: ClaimError,
    },
    /// It is the turn of a probe, and the node keeps room for it. Answered by `Launch` or `Cancel`.
    Ready {
        probe: ProbeId,
    },
    /// The answer to a claim: those of the claimed attempts that the node has, dead or alive.
    Live {
        node: NodeId,
        node_name: String,
        epoch: Epoch,
        number: u32,
        attempts: Vec<AttemptId>,
    },
    /// The master forgets the job: what its nodes keep of it can go.
    Forgotten,
    /// That of tokens which are made from now on; said by the manager's own process, where that is not the master's.
    Generation {
        generation: Generation,
    },
    /// Nodes are back that were given up, or to which something may have been lost: claim what is there.
    NodesReturned {
        nodes: Arc<[NodeId]>,
    },
    /// The master gave a node up: its attempts are lost.
    NodeLost {
        node: NodeId,
    },
}

impl ToJobManager {
    /// That of the manager, where the message is about something that it made.
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

    /// Of a job that begins for the first time, and of which nobody has wished anything since.
    pub fn begin(job: Arc<AdmittedJob>, share: Option<Box<Totals>>) -> ToJobManager {
        ToJobManager::Begin { job, share, wishes: Wishes::default(), lost: Arc::default() }
    }
}

/// What users want of a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Wishes {
    pub held: bool,
    pub cancelled: bool,
    /// How often it was opened again, to run what had failed.
    pub run: u32,
    /// And of single tasks of it.
    pub tasks: Arc<TaskWishes>,
}

/// Nodes as the master publishes them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NodeList {
    pub nodes: Vec<ListedNode>,
    /// The numbers of those that take work and where it would wait least, best first; as many as somebody may choose among.
    pub best: Vec<u32>,
    /// By the numbers of nodes, how likely each is to see a task through, in millionths; those after the last are sure.
    pub success: Vec<u32>,
    /// How often nodes are published while nothing but their load changes.
    pub every: Duration,
    /// That of tokens which are made from now on.
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
    /// How long tasks would wait there, if its nodes say so and this one did.
    pub waits: Option<ListedWaits>,
}

impl ListedNode {
    pub fn is_open(&self) -> bool {
        self.shut.is_none()
    }

    /// What nodes are compared by: how long a small task would wait there, where the node said so, else [`NodeReport::rank`].
    pub fn rank(&self) -> Duration {
        let Some(ListedWaits { waits, age, .. }) = &self.waits else { return self.report.rank() };
        let small = Resources(self.capacity.0.map(|amount| amount / SMALL_PART));
        // Who has nothing else to say has said so long ago, and idles by now.
        let age = Age { since_made: *age, ..Age::NEW };
        let wait = waits.matrix.wait(&self.capacity, &small, &age).unwrap_or(Duration::MAX);
        wait + Duration(waits.opportunistic.0.saturating_sub(age.since_made.0))
    }
}

/// A small task takes such a part of CPU and memory of its node.
const SMALL_PART: u32 = 16;

/// What a node said of its waits when it was published.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedWaits {
    pub waits: Arc<NodeWaits>,
    /// Since it said so.
    pub age: Duration,
    /// Since it was last heard, and had nothing else to say.
    pub silent_for: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub id: GrantId,
    pub ask: AskId,
    pub node: NodeId,
    /// The rule by which this ask was next.
    pub rule: Rule,
    /// How many jobs' asks stood before it and were passed over because they did not fit.
    pub passed_over: u32,
    /// That of tokens which are made from now on.
    pub generation: Generation,
    /// What was said of the task's start when it was asked for.
    pub foretold: Option<Foretold>,
    /// Of which GPU it is to have a part.
    pub shared_gpu: Option<SharedGpu>,
}

/// Why an ask was next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Rule {
    /// The higher priority, then the earlier submission.
    Submission,
    /// The queue furthest below its guarantee, then the smaller weighted dominant share.
    DominantShare,
    /// A node was kept free for it because it had waited long.
    Reservation,
    /// Its node was ready for a task first.
    Ready,
    /// The job's own scheduler chose the node.
    Sampling,
    /// It had room when the task waited elsewhere.
    Moved,
    /// The job's own scheduler expects it to be done there first.
    Completion,
    /// It is expected to be done there before the attempt of the task that is out already.
    Duplicate,
    /// The attempt of the task that is out already waits, and here one may start before it.
    Exploration,
    /// The other attempt of its task makes slow progress, and here it is expected to be done before that one.
    Straggler,
    /// Its task is done, and somebody waits for its files, which a slow node has.
    Copy,
    /// The queue that uses the smallest part of its guarantee, then the earlier submission.
    Guarantee,
    /// The queue that got something longest ago, then the earlier submission.
    Turn,
    /// Its queue has less than its share, and another one more: tasks of that one give way.
    Share { at_cost_of: QueueId },
    /// The job with the least work.
    ShortestJob,
    /// The job with the least work left.
    ShortestRemaining,
    /// The task that goes best with the node's room and has little work behind it, of the jobs with small shares.
    Packing,
    /// Nobody needed the room now.
    Leftover,
}

// ---- to a node agent -----------------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToNode {
    /// Answers a registration.
    Welcome(Box<Welcome>),
    /// A process of job managers introduces itself, first thing on every connection.
    Greeting(Box<Greeting>),
    /// The master hears this process again, to which it passes on: what that has not acknowledged may be lost.
    SayEndsAgain { host: HostId },
    /// The master gave the node up and hears it again: register once more.
    IntroduceYourself,
    /// How much opportunistic work the node is to take from now on, until it is told otherwise.
    Steer(Box<Steer>),
    /// Tokens of earlier generations are void. Said to a node when it reports.
    Expire { before: Generation },
    /// Another node has this room to spare: give up what waits, may run anywhere and fits there, and say so with each end.
    /// Answered by `Moved`.
    Move { to: NodeId, room: Box<Resources> },
    /// Run an attempt. Answered by `Started` and `Finished`, or by `NotTaken`; not at all where its token is not right.
    Launch(Box<Launch>),
    /// The same, and what runs or waits there under these grants gives way to it.
    LaunchInstead { launch: Box<Launch>, of: Box<[GrantId]> },
    /// All others of its gang are in place, on these nodes: the attempt may start. Said again after a claim, and where it says that
    /// it is in place.
    BeginTask { attempt: AttemptId, hosts: Arc<HostList> },
    /// The attempt is guaranteed from now on. Its resources are booked under this grant, which is answered by `Promoted`, or by
    /// `Freed` if it does not run any more; without one it is within what its job is entitled to, as its job manager says.
    Promote { attempt: AttemptId, grant: Option<GrantId> },
    /// The attempt may run for so long from its start, or without a limit.
    SetTimeout { attempt: AttemptId, timeout: Option<Duration> },
    /// Wait in the queue for a task: when it is its turn, say `Ready`. Forgotten when the connection breaks.
    Probe(Probe),
    /// There is no task for these any more.
    Cancel { probes: Vec<ProbeId> },
    /// Answered by `Live`; attempts of the job that are not claimed are killed.
    Claim(Claim),
    /// End an attempt: terminate, and kill after `grace`. Answered by `Finished` with this reason.
    Stop { attempt: AttemptId, reason: EndReason, grace: Duration },
    /// That node has the file as well: whoever waits for it gets it from whichever is first.
    Holder { digest: Digest, node: NodeId },
    /// The end of an attempt is durable: it can be forgotten.
    Acknowledge { attempt: AttemptId },
    /// The job has ended, or is not known: its attempts have no owner.
    Disown { job: JobId },
    /// The job is forgotten: what the node keeps of it, output included, can go.
    Forget { job: JobId },
    /// From the node's executor.
    Executor(ExecutorReport),
}

impl ToNode {
    /// The only one whose word it is, where it is about what somebody owns: from anybody else it means nothing.
    pub fn only_from(&self) -> Option<Address> {
        match self {
            ToNode::BeginTask { attempt, .. }
            | ToNode::Promote { attempt, grant: None }
            | ToNode::SetTimeout { attempt, .. }
            | ToNode::Stop { attempt, .. }
            | ToNode::Acknowledge { attempt } => Some(Address::JobManager(attempt.job)),
            ToNode::Claim(Claim { job, .. }) | ToNode::Forget { job } => Some(Address::JobManager(*job)),
            ToNode::Disown { .. } | ToNode::Promote { grant: Some(_), .. } => Some(Address::Master),
            _ => None,
        }
    }

    /// The launch that it brings.
    pub fn launch(&self) -> Option<&Launch> {
        match self {
            ToNode::Launch(launch) | ToNode::LaunchInstead { launch, .. } => Some(launch),
            _ => None,
        }
    }
}

/// The master knows the node as it was at this `registration`; grants older than `first_grant` are void.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub node: NodeId,
    pub registration: u64,
    pub epoch: Epoch,
    pub first_grant: GrantId,
    pub kinds: Kinds,
    pub heartbeat: Duration,
    /// What may be said to the master at any time is not said more often than this.
    pub pace: Duration,
    /// By which it knows the tokens that are made in this life of the master.
    pub key: Key,
    /// Those of earlier generations are void.
    pub oldest: Generation,
    /// The master passes on what job managers elsewhere say, and seals what they launch: no other process of theirs is to be
    /// waited for.
    pub passes_on: bool,
}

/// What a node needs to take the launches of a process of job managers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// Attempts of its earlier lives are refused.
    pub epoch: Epoch,
    /// By which the node knows the tokens that are made in this life.
    pub key: Key,
    /// Those of earlier generations are void.
    pub oldest: Generation,
    /// As far as the process knows: where the master is away, nobody else says.
    pub kinds: Kinds,
}

/// "These, and only these, of the job's attempts at your node are mine." The answer repeats `number`: an answer to an
/// earlier claim says nothing of launches since.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    pub job: JobId,
    pub epoch: Epoch,
    pub number: u32,
    pub attempts: Vec<AttemptId>,
    /// The job's attempts of smaller numbers have been launched: what has not come by now will not, and is void.
    pub next_attempt: u32,
    /// None of those has a token of a later one.
    pub generation: Generation,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Launch {
    pub attempt: AttemptId,
    pub task: TaskId,
    /// `None`: no ledger holds its resources.
    pub grant: Option<GrantId>,
    /// Of which GPU it has a part by the grant.
    pub shared_gpu: Option<SharedGpu>,
    /// The one that said `Ready`, whose room it takes.
    pub probe: Option<ProbeId>,
    pub template: Arc<TaskTemplate>,
    /// The user's index value of the task.
    pub index: u64,
    /// The user's text for the task, where it has one.
    pub item: Option<ByteString>,
    pub expected: Option<Duration>,
    /// It does not start before its job manager says `BeginTask`; the node says when it is in place.
    pub is_of_gang: bool,
    /// Of an opportunistic attempt: how likely its node is to choose it, beside others that wait.
    pub weight: u16,
    /// What it reads, and where that is.
    pub inputs: Arc<[InputFile]>,
    /// What was said of its start; it may have waited elsewhere before.
    pub foretold: Option<Foretold>,
    pub token: Token,
}

impl Launch {
    /// What its token speaks for.
    pub fn allocation(&self) -> Allocation<'_> {
        let Launch { attempt, task, grant, probe, ref template, .. } = *self;
        Allocation { attempt, task, grant, probe, shape: &template.shape }
    }
}

/// Limits of a node's opportunistic work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Steer {
    /// Of more expected work than this in its queue, the node sheds what is over.
    pub longest_wait: Option<Duration>,
    /// What may be held at once.
    pub room: Resources,
}

impl Default for Steer {
    /// No limits.
    fn default() -> Steer {
        Steer { longest_wait: None, room: Resources::MAX }
    }
}

/// A place in a node's queue for whichever task its job manager has when it is its turn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Probe {
    pub id: ProbeId,
    pub shape: Arc<TaskShape>,
}

// ---- to and from an executor ---------------------------------------------------------------------------------------

/// From a node agent to the executor that owns its processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToExecutor {
    /// Starts an attempt. Answered by `Started` and later `Finished`, or by `Finished` alone when it never became a
    /// process. A repeated order for an attempt that the executor still knows is answered with its present state.
    Launch(Box<LaunchOrder>),
    /// Sends a signal to every process of the attempt, whose end is then due to `reason`: the executor says so even
    /// to an agent that never heard of it. Ignored for one that has ended.
    Signal { attempt: AttemptId, signal: TaskSignal, reason: EndReason },
    /// The attempt is guaranteed now, and booked if it has a grant, which its agent will want to know after a restart.
    Promote { attempt: AttemptId, grant: Option<GrantId> },
    /// The attempt may run for so long, which its agent will want to know after a restart; it is the agent that ends it.
    SetTimeout { attempt: AttemptId, timeout: Option<Duration> },
    /// Others are to have the CPU of the attempt: it goes on with what they leave, and the time does not count as its own.
    Yield { attempt: AttemptId },
    /// It has its CPU again.
    Resume { attempt: AttemptId },
    /// The end of the attempt is safe elsewhere: forget it.
    Acknowledge { attempt: AttemptId },
    /// Answered by `Executing`, before which `Stored` says which files the node has.
    List { node: NodeId },
    /// Bring a file here from the node that has it. Answered by `Fetched`.
    Fetch { node: NodeId, file: StoredFile, from: NodeId },
    /// How far have these come? Answered by `Measured`, without those that do not run.
    Measure { node: NodeId, attempts: Vec<AttemptId> },
    /// These files are not needed here.
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
    /// All attempts of one node that the executor has and that have not ended. The ends that were not yet
    /// acknowledged come before it as `Finished`, so whatever is in neither does not exist.
    Executing {
        attempts: Vec<Executing>,
    },
    /// All files that the node has, those first that were used longest ago; not said where there are none.
    Stored {
        node: NodeId,
        files: Vec<StoredFile>,
    },
    Fetched {
        node: NodeId,
        /// What came of it with the node that was asked. Boxed, for most reports are small.
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
    /// Without the time for which it had to yield its CPU.
    pub running_for: Duration,
    /// For so long it has yielded its CPU, if it does.
    pub yields_for: Option<Duration>,
    pub pid: u32,
    /// Why an earlier life of the agent had it end, if it did.
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
    /// Nothing was to be done: it is so already.
    AsBefore,
    Refused(Refusal),
}

/// Why a client's request was not carried out, and what would help.
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
    /// It does not go with the present state.
    Conflict,
    /// A limit is reached; later it may go.
    Busy,
}

/// A job as the master admitted it: names are resolved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AdmittedJob {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub user: UserId,
    pub queue: QueueId,
    /// Per stage, of one task.
    pub resources: Vec<Resources>,
    /// Per stage, the nodes that have its input.
    pub near: Vec<Arc<Vec<Holder>>>,
    /// Per stage, the nodes that its blocks name, as far as they are known.
    pub places: Vec<Vec<Option<NodeId>>>,
    /// For stages that state no timeout.
    pub default_timeout: Option<Duration>,
    /// Per stage, how long a task ran when the job ran before; empty where nothing is known.
    pub recalled: Vec<Option<Duration>>,
    /// Its user's estimates are not believed: all its tasks are guaranteed.
    pub only_guaranteed: bool,
    /// The name of the preset that it goes by, where that is not the cluster's own.
    pub preset: Option<String>,
    /// Where its manager is.
    pub host: HostId,
    pub submitted_at: Instant,
}

impl Rule {
    /// Whether there is another attempt of the task already.
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
            Rule::Ready => "its node being ready first",
            Rule::Sampling => "the choice of the job's own scheduler",
            Rule::Completion => "being expected to be done there first",
            Rule::Duplicate => "being expected to be done there before its other attempt",
            Rule::Exploration => "its other attempt waiting elsewhere",
            Rule::Straggler => "being expected to be done there before its other attempt, which is slow",
            Rule::Copy => "its files being needed where they can be had sooner",
            Rule::Moved => "its node having room when the task waited at another",
            Rule::Guarantee => "priority, then order of submission in the queue furthest below its guarantee",
            Rule::Share { .. } => "its queue's share, of which others had a part",
            Rule::Turn => "its queue's turn, then priority and order of submission",
            Rule::ShortestJob => "priority, then least work",
            Rule::Packing => "priority, then smallest dominant share, then best packing",
            Rule::ShortestRemaining => "priority, then least work left",
            Rule::Leftover => "room that no job needed yet",
        })
    }
}
