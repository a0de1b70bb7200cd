//! What a global master receives, and what masters report to it.

use super::{Launch, ToMaster};
use crate::vocabulary::{
    Attributes, ClosedReason, ClusterId, Duration, Epoch, GrantId, JobId, Kinds, NodeId, QueueId, Resources, Totals,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A global master gets the state of its clusters' nodes from their masters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToGlobalMaster {
    /// The state of a cluster's nodes, from its master.
    ClusterUpdate(Box<ClusterUpdate>),
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
pub struct ClusterUpdate {
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
    /// Grants named in `MakeRoom` that are not preempted, since there was room.
    #[serde(default)]
    pub spared: Vec<GrantId>,
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
    /// cannot be preempted. If another global master has reserved it, its room is not for the receiver: how long the task or gang has
    /// waited for which it is reserved.
    Room {
        node: NodeId,
        free: Resources,
        closed_reason: Option<ClosedReason>,
        held: Box<[(QueueId, Resources)]>,
        #[serde(default)]
        kept_for: Option<Duration>,
    },
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
