//! What a node agent receives: launches, probes and claims.

use super::{Address, ExecutorReport};
use crate::vocabulary::{
    Allocation, AttemptId, ByteString, Digest, Duration, EndReason, Epoch, Generation, GrantId, HostId, HostList,
    InputFile, JobId, Key, Kinds, NodeId, Prediction, ProbeId, Resources, SharedGpu, TaskId, TaskShape, TaskTemplate,
    Token,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToNode {
    /// Answers a registration.
    Welcome(Box<Welcome>),
    /// A job host introduces itself, as the first message on every connection.
    Greeting(Box<Greeting>),
    /// The master is connected again to this process, to which it forwards: ends that the process has not acknowledged may be
    /// lost.
    ResendEnds { host: HostId },
    /// The node, which the master had given up, has sent something again: it has to register once more.
    RegisterAgain,
    /// How much opportunistic work the node may take from now on, until the next such message.
    Steer(Box<Steer>),
    /// Tokens of earlier generations have expired. Sent in answer to a node's report.
    Expire { before: Generation },
    /// Another node has this room: give up the entries that wait, may run anywhere and fit there, and name that node in the
    /// report of each end. Answered by `Moved`.
    Move { to: NodeId, room: Box<Resources> },
    /// Run an attempt. Answered by `Started` and `Finished`, or by `NotTaken`; not answered if its token is not authentic.
    Launch(Box<Launch>),
    /// The same; what runs or waits there under these grants is preempted for it.
    LaunchInstead { launch: Box<Launch>, of: Box<[GrantId]> },
    /// All tasks of its gang are in place, on these nodes: the attempt may start. Sent again after a claim, and when the attempt
    /// reports that it is in place.
    StartTask { attempt: AttemptId, hosts: Arc<HostList> },
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
    /// What runs or waits there under these grants is preempted for a task of this job, which was granted their room.
    Preempt { grants: Box<[GrantId]>, by: JobId },
}

impl ToNode {
    /// The only sender from which this message is accepted, if it is about something that this sender owns.
    pub fn only_from(&self) -> Option<Address> {
        match self {
            ToNode::StartTask { attempt, .. }
            | ToNode::Promote { attempt, grant: None }
            | ToNode::SetTimeout { attempt, .. }
            | ToNode::Stop { attempt, .. }
            | ToNode::Acknowledge { attempt } => Some(Address::JobManager(attempt.job)),
            ToNode::Claim(Claim { job, .. }) | ToNode::Forget { job } => Some(Address::JobManager(*job)),
            ToNode::Disown { .. }
            | ToNode::Promote { grant: Some(_), .. }
            | ToNode::Welcome(_)
            | ToNode::RegisterAgain
            | ToNode::Steer(_)
            | ToNode::Preempt { .. }
            | ToNode::Move { .. } => Some(Address::Master),
            ToNode::Greeting(_)
            | ToNode::ResendEnds { .. }
            | ToNode::Expire { .. }
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
    /// It does not start before its job manager sends `StartTask`; the node reports when it is in place.
    pub is_of_gang: bool,
    /// Of an opportunistic attempt: its weight in the node's random choice among those that wait.
    pub weight: u16,
    /// Its input files, and the nodes that have them.
    pub inputs: Arc<[InputFile]>,
    /// The prediction of its start; it may have waited elsewhere before.
    pub prediction: Option<Prediction>,
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
