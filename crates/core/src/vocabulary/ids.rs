//! Ids. Each has its own type, is ordered, and is never reused.

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

/// A client's pending request, numbered by the driver; it is used to route the answer and for nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// A job host, numbered by the configuration from 1; the server, which may have job managers as well, is number 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct HostId(pub u8);

impl HostId {
    pub const SERVER: HostId = HostId(0);
}

/// An issuer of ids, and how often it has started. Durable: it grows with every start, and a node that has seen a newer
/// one of an issuer refuses an older one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The upper bits are the number of the issuer.
    const LIFE_BITS: u32 = 24;

    /// The `life`-th start of a job host; `None` after too many starts.
    pub fn of_host(host: HostId, life: u32) -> Option<Epoch> {
        (life >> Epoch::LIFE_BITS == 0).then_some(Epoch(u32::from(host.0) << Epoch::LIFE_BITS | life))
    }

    pub fn host(self) -> HostId {
        HostId((self.0 >> Epoch::LIFE_BITS) as u8)
    }

    fn life(self) -> u32 {
        self.0 & ((1 << Epoch::LIFE_BITS) - 1)
    }

    /// Reads what `Display` writes.
    fn parse(text: &str) -> Option<Epoch> {
        let (life, host) = text.split_once('h').unwrap_or((text, "0"));
        Epoch::of_host(HostId(host.parse().ok()?), life.parse().ok()?)
    }
}

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

/// An entry in a node's queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum EntryId {
    Attempt(AttemptId),
    /// When it is next, the node asks its job manager for a task.
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

/// Resources that the owner of a node granted, until they are freed. `epoch` is that of the granting master, `number` counts its
/// grants, and `slot` is their place in its ledger.
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

/// The number of the start, and the host unless that is the server.
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host() {
            HostId::SERVER => write!(f, "{}", self.life()),
            HostId(host) => write!(f, "{}h{host}", self.life()),
        }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.job, self.stage, self.index)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.job, self.epoch, self.number)
    }
}

impl fmt::Display for ProbeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}-{}-{}", self.job, self.epoch, self.number)
    }
}

impl fmt::Display for AskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}?{}", self.job, self.number)
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}-{}", self.epoch, self.number)
    }
}

impl AttemptId {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<AttemptId> {
        let mut parts = text.split('-');
        let attempt = AttemptId {
            job: JobId(parts.next()?.parse().ok()?),
            epoch: Epoch::parse(parts.next()?)?,
            number: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_ids_contain_the_issuing_host_and_its_start() {
        let of = |host, life, number| {
            let epoch = Epoch::of_host(HostId(host), life).unwrap();
            AttemptId { job: JobId(7), epoch, number }
        };
        for (attempt, text) in
            [(of(0, 3, 4), "7-3-4"), (of(2, 3, 4), "7-3h2-4"), (of(255, 0xff_ffff, 0), "7-16777215h255-0")]
        {
            assert_eq!((attempt.to_string().as_str(), AttemptId::parse(text)), (text, Some(attempt)));
        }
        assert_eq!(of(2, 3, 4).epoch.host(), HostId(2));
        assert!(of(2, 3, 4).epoch < of(2, 4, 0).epoch);
        assert_eq!(Epoch::of_host(HostId(1), 1 << 24), None);
        for wrong in ["7-3-4-5", "7-3", "7-16777216-4", "7-3h256-4", "7-h1-4"] {
            assert_eq!(AttemptId::parse(wrong), None, "{wrong}");
        }
    }
}
