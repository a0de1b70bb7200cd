//! Federations: several clusters under several global masters, and the numbers of each.

use super::{Epoch, HostId, JobId, NodeId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A cluster of a federation, numbered by the configuration from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct ClusterId(pub u8);

/// A global master, numbered by the configuration from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct GlobalId(pub u8);

/// The size of a federation. It does not change once the federation has started, because the numbers of nodes, jobs and
/// partitions depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Federation {
    pub clusters: u8,
    pub globals: u8,
    /// The most nodes of one cluster.
    pub span: u32,
}

/// The place of a process in a federation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Seat {
    /// It has the master of a cluster.
    Cluster(Federation, ClusterId),
    /// It has a global master and the managers of its jobs.
    Global(Federation, GlobalId),
}

/// The nodes of a cluster that one global master searches first, by dense index: every `of`-th one from `number` on, of those in
/// `from..to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    pub from: usize,
    pub to: usize,
    pub of: usize,
    pub number: usize,
}

/// The job numbers of one issuer: `first`, and every `step`-th from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobNumbers {
    pub first: u64,
    pub step: u64,
}

impl Default for JobNumbers {
    fn default() -> JobNumbers {
        JobNumbers { first: 1, step: 1 }
    }
}

impl JobNumbers {
    /// The first of them that is at least `least`.
    pub fn from(self, least: u64) -> JobId {
        let more = least.saturating_sub(self.first).div_ceil(self.step);
        JobId(self.first + more * self.step)
    }
}

impl Federation {
    /// The most clusters, and the most global masters.
    pub const MOST: u8 = 200;

    /// # Errors
    /// The allowed sizes.
    pub fn new(clusters: u32, globals: u32, span: u32) -> Result<Federation, String> {
        const MOST: u32 = Federation::MOST as u32;
        // A global master keeps a third of a kilobyte of each node.
        const MOST_NODES: u64 = 4_000_000;
        if clusters == 0 || clusters > MOST || globals == 0 || globals > MOST {
            return Err(format!(
                "a federation has 1 to {MOST} clusters and 1 to {MOST} global masters, not {clusters} and {globals}"
            ));
        }
        if span == 0 || u64::from(span) * u64::from(clusters) > MOST_NODES {
            return Err(format!(
                "a federation has 1 to {MOST_NODES} nodes, not {clusters} clusters of {span} nodes each"
            ));
        }
        Ok(Federation { clusters: clusters as u8, globals: globals as u8, span })
    }

    pub fn clusters(self) -> impl Iterator<Item = ClusterId> {
        (0..self.clusters).map(ClusterId)
    }

    pub fn globals(self) -> impl Iterator<Item = GlobalId> {
        (0..self.globals).map(GlobalId)
    }

    pub fn has(self, node: NodeId) -> bool {
        node.0 / self.span < u32::from(self.clusters)
    }

    /// The most nodes that all clusters have in total.
    pub fn most_nodes(self) -> usize {
        self.span as usize * usize::from(self.clusters)
    }

    /// The cluster of a node.
    pub fn cluster_of(self, node: NodeId) -> ClusterId {
        ClusterId((node.0 / self.span) as u8)
    }

    /// The numbers of a cluster's nodes.
    pub fn nodes_of(self, cluster: ClusterId) -> std::ops::Range<u32> {
        let first = u32::from(cluster.0) * self.span;
        first..first + self.span
    }

    /// The global master whose partition of its cluster contains the node.
    pub fn internal_to(self, node: NodeId) -> GlobalId {
        GlobalId((node.0 % self.span % u32::from(self.globals)) as u8)
    }

    /// The partition of a cluster that is internal to a global master.
    pub fn partition(self, cluster: ClusterId, global: GlobalId) -> Partition {
        let nodes = self.nodes_of(cluster);
        let (of, number) = (usize::from(self.globals), usize::from(global.0));
        Partition { from: nodes.start as usize, to: nodes.end as usize, of, number }
    }

    pub fn job_numbers(self, global: GlobalId) -> JobNumbers {
        JobNumbers { first: u64::from(global.0) + 1, step: u64::from(self.globals) }
    }

    /// The global master that numbered a job.
    pub fn admitted_by(self, job: JobId) -> GlobalId {
        GlobalId((job.0.saturating_sub(1) % u64::from(self.globals)) as u8)
    }

    /// The global master whose attempts and grants have this epoch; `None` for those of cluster masters.
    pub fn issuer(self, epoch: Epoch) -> Option<GlobalId> {
        let host = epoch.host();
        (host != HostId::SERVER && host.0 <= self.globals).then(|| GlobalId(host.0 - 1))
    }
}

impl GlobalId {
    /// Its number in the epochs of its attempts and grants.
    pub fn host(self) -> HostId {
        HostId(self.0 + 1)
    }
}

impl Partition {
    /// Of the 64 nodes numbered `64 * word` and up, one bit for each that is in the partition.
    #[inline]
    pub fn word(&self, word: usize) -> u64 {
        let base = word * 64;
        if base + 64 <= self.from || base >= self.to {
            return 0;
        }
        // The first node of the partition at or after the start of the word.
        let start = base.max(self.from);
        let past = (start - self.from) % self.of;
        let first = start + (self.number + self.of - past) % self.of - base;
        if first >= 64 {
            return 0;
        }
        let mut bits = every(self.of) << first;
        if base + 64 > self.to {
            bits &= (1 << (self.to - base)) - 1;
        }
        bits
    }

    pub fn has(&self, index: usize) -> bool {
        (self.from..self.to).contains(&index) && (index - self.from) % self.of == self.number
    }
}

/// Bit 0 and every `of`-th after it.
#[inline]
fn every(of: usize) -> u64 {
    let mut bits = 1_u64;
    let mut width = of;
    while width < 64 {
        bits |= bits << width;
        width *= 2;
    }
    bits
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {}", self.0)
    }
}

impl fmt::Display for GlobalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "global master {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_in_one_partition_and_words_agree() {
        for (clusters, globals, span) in [(1, 1, 5), (3, 2, 64), (2, 3, 100), (4, 7, 130), (2, 70, 200), (1, 64, 300)] {
            let federation = Federation::new(clusters, globals, span).unwrap();
            for node in (0..clusters * span).map(NodeId) {
                let index = node.0 as usize;
                let (cluster, internal) = (federation.cluster_of(node), federation.internal_to(node));
                for (other, global) in federation.clusters().flat_map(|c| federation.globals().map(move |g| (c, g))) {
                    let partition = federation.partition(other, global);
                    let is_in = (other, global) == (cluster, internal);
                    assert_eq!(partition.has(index), is_in, "{federation:?} {node} {other} {global}");
                    let bit = partition.word(index / 64) >> (index % 64) & 1 == 1;
                    assert_eq!(bit, is_in, "{federation:?} {node} {other} {global}");
                }
            }
        }
    }

    #[test]
    fn job_numbers_are_unique_and_identify_their_global_master() {
        let federation = Federation::new(2, 3, 10).unwrap();
        let mut all: Vec<JobId> = Vec::new();
        for global in federation.globals() {
            let numbers = federation.job_numbers(global);
            let mut least = 0;
            for _ in 0..5 {
                let job = numbers.from(least);
                assert_eq!(federation.admitted_by(job), global);
                least = job.0 + 1;
                all.push(job);
            }
        }
        all.sort_unstable();
        assert_eq!(all, (1..=15).map(JobId).collect::<Vec<_>>());
        assert_eq!(JobNumbers::default().from(1), JobId(1));
    }

    #[test]
    fn epochs_identify_the_issuing_global_master() {
        let federation = Federation::new(2, 3, 10).unwrap();
        for global in federation.globals() {
            let epoch = Epoch::of_host(global.host(), 7).unwrap();
            assert_eq!(federation.issuer(epoch), Some(global));
        }
        assert_eq!(federation.issuer(Epoch(7)), None);
        assert_eq!(federation.issuer(Epoch::of_host(HostId(4), 1).unwrap()), None);
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        for (clusters, globals, span) in [(0, 1, 1), (1, 0, 1), (201, 1, 1), (1, 201, 1), (2, 1, 0), (2, 1, u32::MAX)] {
            assert!(Federation::new(clusters, globals, span).is_err());
        }
    }
}
