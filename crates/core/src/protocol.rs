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

mod client;
mod executor;
mod global_master;
mod job_host;
mod job_manager;
mod master;
mod node;
mod since;

pub use client::{Refusal, RefusalKind, ToClient};
pub use executor::{Executing, ExecutorReport, TaskSignal, ToExecutor};
pub use global_master::{
    ClaimError, ClusterUpdate, GlobalIntroduction, HeldGrant, NodeNews, ProposedLaunch, Since, ToGlobalMaster,
};
pub use job_host::ToJobHost;
pub use job_manager::{AdmittedJob, Grant, ListedNode, ListedWaits, NodeList, RequestedActions, Rule, ToJobManager};
pub use master::{Ask, Holder, JobAction, JobOutcome, JobUpdate, LiveAttempt, NodeReport, Registration, ToMaster};
pub use node::{Claim, Greeting, Launch, Probe, Steer, ToNode, Welcome};
pub use since::VERSION;

use crate::vocabulary::{ClientId, ClusterId, GlobalId, HostId, JobId, NodeId};
use serde::{Deserialize, Serialize};

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
