//! Ids. Each is a type of its own, ordered, and never reused.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A job, numbered by the master that admitted it, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// A node, numbered by the master at its first registration; a returning node keeps its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A queue: an index into the configured queue tree; 0 is the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct QueueId(pub u32);

/// A user, numbered by the master at the first submission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct UserId(pub u32);

/// A client's pending request, numbered by the driver; it routes an answer and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// How often an issuer of ids has started. Durable: it grows with every start, and a node that has seen a newer
/// one refuses an older one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Epoch(pub u32);

/// One task: the `index`-th of stage number `stage` of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct TaskId {
    pub job: JobId,
    pub stage: u32,
    pub index: u32,
}

/// One try of a task. `epoch` is that of the job manager that issued it and `number` counts its attempts in that
/// epoch, so an id is never issued twice, not even across a crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct AttemptId {
    pub job: JobId,
    pub epoch: Epoch,
    pub number: u32,
}

/// A probe of a job's scheduler, numbered like its attempts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct ProbeId {
    pub job: JobId,
    pub epoch: Epoch,
    pub number: u32,
}

/// What waits in a node's queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum EntryId {
    Attempt(AttemptId),
    /// When it is its turn, its job manager is asked for a task.
    Probe(ProbeId),
}

impl EntryId {
    pub fn job(self) -> JobId {
        match self {
            EntryId::Attempt(attempt) => attempt.job,
            EntryId::Probe(probe) => probe.job,
        }
    }
}

/// A counted request of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct AskId {
    pub job: JobId,
    pub number: u32,
}

/// Resources that the owner of a node gave, until they are freed. `epoch` is that of the granting master, `number`
/// counts its grants, and `slot` says where its ledger keeps them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct GrantId {
    pub epoch: Epoch,
    pub number: u64,
    pub slot: u32,
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.job, self.stage, self.index)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.job, self.epoch.0, self.number)
    }
}

impl fmt::Display for ProbeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}-{}-{}", self.job, self.epoch.0, self.number)
    }
}

impl fmt::Display for AskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}?{}", self.job, self.number)
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}-{}", self.epoch.0, self.number)
    }
}

impl AttemptId {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<AttemptId> {
        let mut parts = text.split('-');
        let attempt = AttemptId {
            job: JobId(parts.next()?.parse().ok()?),
            epoch: Epoch(parts.next()?.parse().ok()?),
            number: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(attempt)
    }
}
