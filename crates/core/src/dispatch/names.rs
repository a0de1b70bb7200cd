//! What people call nodes.

use crate::vocabulary::NodeId;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct NodeNames {
    by_name: BTreeMap<String, NodeId>,
    names: BTreeMap<NodeId, String>,
}

impl NodeNames {
    pub fn insert(&mut self, node: NodeId, name: &str) {
        if let Some(before) = self.names.insert(node, name.to_owned()).filter(|before| before != name) {
            self.by_name.remove(&before);
        }
        self.by_name.insert(name.to_owned(), node);
    }

    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    pub fn of(&self, node: NodeId) -> Option<&str> {
        self.names.get(&node).map(String::as_str)
    }

    pub fn by_number(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.names.iter().map(|(node, name)| (*node, name.as_str()))
    }

    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}
