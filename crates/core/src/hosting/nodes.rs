//! The node agents of a process.

use crate::node::NodeAgent;
use crate::vocabulary::{HostId, JobId, NodeId};

/// By node number. Most processes host one node, and a simulation has many such processes, where each access to another place in
/// memory counts. The first node is therefore stored apart from the list of the others, whose numbers are larger.
#[derive(Default)]
pub struct Nodes {
    first: Option<(NodeId, Box<NodeAgent>)>,
    others: Vec<(NodeId, Box<NodeAgent>)>,
}

impl Nodes {
    pub fn get(&self, node: NodeId) -> Option<&NodeAgent> {
        match &self.first {
            Some((first, agent)) if *first == node => Some(agent),
            _ => self.place(node).ok().map(|at| &*self.others[at].1),
        }
    }

    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut NodeAgent> {
        match &mut self.first {
            Some((first, agent)) if *first == node => Some(agent),
            _ => self.others.binary_search_by_key(&node, |(node, _)| *node).ok().map(|at| &mut *self.others[at].1),
        }
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.get(node).is_some()
    }

    /// The process that has the manager of a job with attempts on one of these nodes.
    pub(super) fn host_of(&self, job: JobId) -> Option<HostId> {
        self.first.iter().chain(&self.others).find_map(|(_, agent)| agent.host_of(job))
    }

    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.first.iter().chain(&self.others).map(|(node, _)| *node)
    }

    /// Replaces an existing agent of the node.
    pub(super) fn insert(&mut self, node: NodeId, agent: Box<NodeAgent>) {
        match &self.first {
            None => self.first = Some((node, agent)),
            Some((first, _)) if *first == node => self.first = Some((node, agent)),
            Some((first, _)) if *first > node => {
                let others = self.first.replace((node, agent)).into_iter();
                self.others.splice(..0, others);
            }
            Some(_) => match self.place(node) {
                Ok(at) => self.others[at].1 = agent,
                Err(at) => self.others.insert(at, (node, agent)),
            },
        }
    }

    /// The place among the others where it is, or would be.
    fn place(&self, node: NodeId) -> Result<usize, usize> {
        self.others.binary_search_by_key(&node, |(node, _)| *node)
    }
}
