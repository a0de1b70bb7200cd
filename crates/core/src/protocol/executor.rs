//! What an executor receives and reports.

use crate::vocabulary::{
    AttemptId, Digest, Duration, EndReason, Ended, Fetched, GrantId, LaunchOrder, NodeId, Sample, StoredFile,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
