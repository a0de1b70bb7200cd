//! The processes of a simulation, who is in which, and which are connected.

use crate::network::Direction;
use amalgam_core::protocol::Address;
use amalgam_core::vocabulary::{JobId, NodeId};

/// Which process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The master, and the job managers where they have no processes of their own.
    Server,
    /// Job managers.
    Managers(usize),
    Node(usize),
}

/// How many processes there are beside the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    pub nodes: usize,
    /// Each job's manager is in one of these; in the server if there are none.
    pub managers: usize,
}

impl Places {
    /// Where a job's manager is.
    pub fn of_manager(&self, job: JobId) -> Place {
        match self.managers {
            0 => Place::Server,
            managers => Place::Managers(job.0 as usize % managers),
        }
    }

    /// Where the role of an address is; a client's answers are taken at the server.
    pub fn of(&self, address: Address) -> Place {
        match address {
            Address::JobManager(job) => self.of_manager(job),
            Address::Node(NodeId(node)) | Address::Executor(NodeId(node)) => Place::Node(node as usize),
            Address::Master | Address::GlobalMaster(_) | Address::Client(_) => Place::Server,
        }
    }

    /// Every node has one with the server and one with each process of job managers, and so has the server with these.
    pub fn links(&self) -> usize {
        self.nodes * (1 + self.managers) + self.managers
    }

    /// The connection from one process to another; `None` where there is none. Those of the nodes with the server have the
    /// numbers of the nodes.
    pub fn link(&self, from: Place, to: Place) -> Option<(usize, Direction)> {
        let outward = |inner: Place, outer: Place| match (inner, outer) {
            (Place::Server, Place::Node(node)) => Some(node),
            (Place::Managers(number), Place::Node(node)) => Some(self.nodes * (1 + number) + node),
            (Place::Server, Place::Managers(number)) => Some(self.nodes * (1 + self.managers) + number),
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
    fn every_pair_that_has_something_to_say_has_a_connection_of_its_own() {
        let places = Places { nodes: 3, managers: 2 };
        let managers = [Place::Managers(0), Place::Managers(1)];
        let nodes = [0, 1, 2].map(Place::Node);
        let with_nodes = std::iter::once(Place::Server).chain(managers);
        let mut pairs: Vec<(Place, Place)> = with_nodes.flat_map(|inner| nodes.map(|node| (inner, node))).collect();
        pairs.extend(managers.map(|manager| (Place::Server, manager)));
        let mut links = BTreeSet::new();
        for (inner, outer) in pairs {
            let (link, direction) = places.link(inner, outer).expect("connected");
            assert_eq!(direction, Direction::Outward);
            assert_eq!(places.link(outer, inner), Some((link, Direction::Inward)));
            assert!(links.insert(link), "{inner:?} {outer:?}");
        }
        assert_eq!(links, (0..places.links()).collect());
        assert_eq!(places.link(Place::Node(0), Place::Node(1)), None);
    }

    #[test]
    fn a_jobs_manager_is_in_the_server_where_nobody_else_takes_it() {
        let alone = Places { nodes: 3, managers: 0 };
        assert_eq!(alone.of(Address::JobManager(JobId(7))), Place::Server);
        let shared = Places { nodes: 3, managers: 4 };
        assert_eq!(shared.of(Address::JobManager(JobId(7))), Place::Managers(3));
    }
}
