//! Who tells whom what.
use crate::vocabulary::*;
use serde::{Deserialize, Serialize};

/// From a node agent to the executor that owns its processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToExecutor {
    /// Starts an attempt. Answered by `Started` and later `Finished`, or by `Finished` alone when it never became a
    /// process. A repeated order for an attempt that the executor still knows is answered with its present state.
    Launch(Box<LaunchOrder>),
    /// Sends a signal to every process of the attempt. Ignored for one that has ended.
    Signal { attempt: AttemptId, signal: TaskSignal },
    /// The end of the attempt is safe elsewhere: forget it.
    Acknowledge { attempt: AttemptId },
    /// Answered by `Executing`.
    List { node: NodeId },
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
        ended: Ended,
    },
    /// All attempts of one node that the executor has and that have not ended; the ends that were not yet
    /// acknowledged follow as `Finished`.
    Executing {
        attempts: Vec<Executing>,
    },
}

/// An attempt that an executor is running, with enough to adopt it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Executing {
    pub order: LaunchOrder,
    pub running_for: Duration,
    pub pid: u32,
}
