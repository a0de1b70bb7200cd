//! The agents of the nodes of a process.

use crate::node::NodeAgent;
use crate::vocabulary::NodeId;

/// By the number of the node. A list: most processes host one, and a simulation has many such processes, where each step to
/// another place in memory counts.
#[derive(Default)]
pub struct Nodes(Vec<(NodeId, Box<NodeAgent>)>);

impl Nodes {
    pub fn get(&self, node: NodeId) -> Option<&NodeAgent> {
        self.place(node).ok().map(|at| &*self.0[at].1)
    }

    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut NodeAgent> {
        self.place(node).ok().map(|at| &mut *self.0[at].1)
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.place(node).is_ok()
    }

    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.0.iter().map(|(node, _)| *node)
    }

    /// An agent that was there for this node goes.
    pub(super) fn insert(&mut self, node: NodeId, agent: Box<NodeAgent>) {
        match self.place(node) {
            Ok(at) => self.0[at].1 = agent,
            Err(at) => self.0.insert(at, (node, agent)),
        }
    }

    /// Where it is, or would be.
    fn place(&self, node: NodeId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&node, |(node, _)| *node)
    }
}
