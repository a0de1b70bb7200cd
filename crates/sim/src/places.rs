//! The processes of a simulation, their roles, and their connections.

use crate::network::Direction;
use amalgam_core::protocol::Address;
use amalgam_core::vocabulary::{ClusterId, Federation, GlobalId, HostId, NodeId};

/// A process of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessId {
    /// The master, and the job managers if they have no processes of their own.
    Server,
    /// A process of job managers.
    Managers(usize),
    /// The master of a cluster in a federation. A federation has no server.
    Cluster(usize),
    /// A global master and the managers of its jobs.
    Global(usize),
    Node(usize),
}

/// The host id of a process of job managers.
pub fn host(number: usize) -> HostId {
    HostId(number as u8 + 1)
}

/// Numbers of processes beside the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    pub nodes: usize,
    /// Processes of job managers. If there are none, the job managers are in the server.
    pub managers: usize,
    pub federation: Option<Federation>,
}

impl Places {
    /// The process with the role of this address, if job managers are in the server. The server also represents
    /// clients.
    pub fn of(&self, address: Address) -> ProcessId {
        match address {
            Address::Node(NodeId(node)) | Address::Executor(NodeId(node)) => ProcessId::Node(node as usize),
            Address::JobHost(HostId(host)) => ProcessId::Managers(usize::from(host) - 1),
            Address::GlobalMaster(GlobalId(global)) => ProcessId::Global(usize::from(global)),
            Address::ClusterMaster(ClusterId(cluster)) => ProcessId::Cluster(usize::from(cluster)),
            Address::Master | Address::JobManager(_) | Address::Client(_) => ProcessId::Server,
        }
    }

    pub fn clusters(&self) -> usize {
        self.federation.map_or(0, |federation| usize::from(federation.clusters))
    }

    pub fn globals(&self) -> usize {
        self.federation.map_or(0, |federation| usize::from(federation.globals))
    }

    /// The cluster of a node, in a federation.
    pub fn cluster_of(&self, node: usize) -> Option<usize> {
        self.federation.map(|federation| usize::from(federation.cluster_of(NodeId(node as u32)).0))
    }

    /// The process of the master that owns the node.
    pub fn master_of(&self, node: usize) -> ProcessId {
        self.cluster_of(node).map_or(ProcessId::Server, ProcessId::Cluster)
    }

    /// Number of links. Without a federation, the server and every process of job managers have a link to each node,
    /// and the server has one to every process of job managers. In a federation, the master of a cluster has a link to
    /// each of its nodes and to every global master.
    pub fn links(&self) -> usize {
        self.nodes * (1 + self.managers) + self.managers + self.clusters() * self.globals()
    }

    pub fn all(&self) -> impl Iterator<Item = ProcessId> {
        let server = self.federation.is_none().then_some(ProcessId::Server);
        let federated = (0..self.clusters()).map(ProcessId::Cluster).chain((0..self.globals()).map(ProcessId::Global));
        let managers = (0..self.managers).map(ProcessId::Managers);
        server.into_iter().chain(managers).chain(federated).chain((0..self.nodes).map(ProcessId::Node))
    }

    /// The processes at the ends of a connection, the inner one first.
    pub fn ends(&self, link: usize) -> (ProcessId, ProcessId) {
        let (inner, outer) = (link / self.nodes, link % self.nodes);
        if let (Some(between), true) = (link.checked_sub(self.nodes), self.federation.is_some()) {
            return (ProcessId::Cluster(between / self.globals()), ProcessId::Global(between % self.globals()));
        }
        match inner {
            0 => (self.master_of(outer), ProcessId::Node(outer)),
            number if number <= self.managers => (ProcessId::Managers(number - 1), ProcessId::Node(outer)),
            _ => (ProcessId::Server, ProcessId::Managers(link - self.nodes * (1 + self.managers))),
        }
    }

    /// The connections that a process has.
    pub fn links_of(&self, place: ProcessId) -> Vec<usize> {
        let others = self.all().filter_map(|other| self.link(place, other));
        others.map(|(link, _)| link).collect()
    }

    /// The link from one process to another and the direction; `None` if they are not linked. The link of a node with
    /// its master has the number of the node.
    pub fn link(&self, from: ProcessId, to: ProcessId) -> Option<(usize, Direction)> {
        let outward = |inner: ProcessId, outer: ProcessId| match (inner, outer) {
            (ProcessId::Server, ProcessId::Node(node)) if self.federation.is_none() => Some(node),
            (ProcessId::Cluster(cluster), ProcessId::Node(node)) => {
                Some(node).filter(|_| self.cluster_of(node) == Some(cluster))
            }
            (ProcessId::Cluster(cluster), ProcessId::Global(global)) => {
                Some(self.nodes + cluster * self.globals() + global)
            }
            (ProcessId::Managers(number), ProcessId::Node(node)) => Some(self.nodes * (1 + number) + node),
            (ProcessId::Server, ProcessId::Managers(number)) => Some(self.nodes * (1 + self.managers) + number),
            _ => None,
        };
        let out = outward(from, to).map(|link| (link, Direction::Outward));
        out.or_else(|| outward(to, from).map(|link| (link, Direction::Inward)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_that_communicates_has_its_own_link() {
        let places = Places { nodes: 3, managers: 2, federation: None };
        let managers = [ProcessId::Managers(0), ProcessId::Managers(1)];
        let nodes = [0, 1, 2].map(ProcessId::Node);
        let with_nodes = std::iter::once(ProcessId::Server).chain(managers);
        let mut pairs: Vec<(ProcessId, ProcessId)> =
            with_nodes.flat_map(|inner| nodes.map(|node| (inner, node))).collect();
        pairs.extend(managers.map(|manager| (ProcessId::Server, manager)));
        let mut links = BTreeSet::new();
        for (inner, outer) in pairs {
            let (link, direction) = places.link(inner, outer).expect("connected");
            assert_eq!(direction, Direction::Outward);
            assert_eq!(places.link(outer, inner), Some((link, Direction::Inward)));
            assert!(links.insert(link), "{inner:?} {outer:?}");
            assert_eq!(places.ends(link), (inner, outer));
            for end in [inner, outer] {
                assert!(places.links_of(end).contains(&link), "{end:?}");
            }
        }
        assert_eq!(links, (0..places.links()).collect());
        assert_eq!(places.links_of(ProcessId::Node(1)), [1, 4, 7]);
        assert_eq!(places.links_of(ProcessId::Server), [9, 10, 0, 1, 2]);
        assert_eq!(places.link(ProcessId::Node(0), ProcessId::Node(1)), None);
    }

    #[test]
    fn in_a_federation_nodes_have_links_to_their_master_and_masters_to_all_global_masters() {
        let federation = Federation::new(2, 3, 4).unwrap();
        let places = Places { nodes: 7, managers: 0, federation: Some(federation) };
        let nodes = (0..7).map(|node| (ProcessId::Cluster(node / 4), ProcessId::Node(node)));
        let globals = (0..2)
            .flat_map(|cluster| (0..3).map(move |global| (ProcessId::Cluster(cluster), ProcessId::Global(global))));
        let mut links = BTreeSet::new();
        for (inner, outer) in nodes.chain(globals) {
            let (link, direction) = places.link(inner, outer).expect("connected");
            assert_eq!(direction, Direction::Outward);
            assert_eq!(places.link(outer, inner), Some((link, Direction::Inward)));
            assert_eq!(places.ends(link), (inner, outer));
            assert!(links.insert(link), "{inner:?} {outer:?}");
        }
        assert_eq!(links, (0..places.links()).collect());
        assert_eq!(places.link(ProcessId::Cluster(0), ProcessId::Node(5)), None);
        assert!(!places.all().any(|place| place == ProcessId::Server));
    }
}
