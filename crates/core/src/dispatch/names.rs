//! What people call nodes.

use crate::vocabulary::NodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub struct NodeNames {
    by_name: BTreeMap<Arc<str>, NodeId>,
    /// By number.
    names: Vec<Option<Arc<str>>>,
}

impl NodeNames {
    pub fn insert(&mut self, node: NodeId, name: &str) {
        let index = node.0 as usize;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        let shared: Arc<str> = name.into();
        if let Some(before) = self.names[index].replace(Arc::clone(&shared)).filter(|before| **before != *name) {
            self.by_name.remove(&before);
        }
        self.by_name.insert(shared, node);
    }

    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    pub fn of(&self, node: NodeId) -> Option<&str> {
        self.names.get(node.0 as usize)?.as_deref()
    }

    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }
}
