//! The names of nodes.

use crate::vocabulary::NodeId;
use hashbrown::HashTable;

#[derive(Default)]
pub struct NodeNames {
    /// By number.
    names: Vec<Option<String>>,
    /// By name. Comparisons of names in a tree would be a third of the work of taking in 50,000 nodes. It is never iterated,
    /// so its order decides nothing.
    index: HashTable<IndexEntry>,
}

/// Small, since each access to distant memory takes longer than the rest of a search.
struct IndexEntry {
    hash: u32,
    node: NodeId,
}

impl NodeNames {
    /// Names a node. If another node has the name, the number of this one is appended.
    pub fn insert(&mut self, node: NodeId, name: String) {
        if self.of(node) == Some(&name) {
            return;
        }
        if self.find(&name).is_some() {
            return self.insert(node, format!("{name}@{node}"));
        }
        self.remove(node);
        let index = node.0 as usize;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        let hash = hash_of(&name);
        self.names[index] = Some(name);
        self.index.insert_unique(spread(hash), IndexEntry { hash, node }, |entry| spread(entry.hash));
    }

    /// Removes a node; another one may get its name.
    pub fn remove(&mut self, node: NodeId) {
        let Some(name) = self.names.get_mut(node.0 as usize).and_then(Option::take) else { return };
        if let Ok(entry) = self.index.find_entry(spread(hash_of(&name)), |entry| entry.node == node) {
            entry.remove();
        }
    }

    pub fn find(&self, name: &str) -> Option<NodeId> {
        let hash = hash_of(name);
        let entry = self.index.find(spread(hash), |entry| entry.hash == hash && self.of(entry.node) == Some(name))?;
        Some(entry.node)
    }

    pub fn of(&self, node: NodeId) -> Option<&str> {
        self.names.get(node.0 as usize)?.as_deref()
    }

    pub fn by_number(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.names.iter().zip(0..).filter_map(|(name, number)| Some((NodeId(number), name.as_deref()?)))
    }

    /// Sorted, each name once.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let mut all: Vec<&str> = self.names.iter().flatten().map(|name| &**name).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter()
    }
}

/// FNV-1: names that differ in the last letter only have close hashes, and nodes mostly join in the order of their
/// names.
fn hash_of(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| hash.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(byte));
    (hash ^ hash >> 32) as u32
}

/// The table looks for a place by the low bits, and compares the seven highest ones first: those of neighbouring names are
/// equal before the multiplication (Fibonacci hashing, Knuth 1973).
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;
    use std::collections::BTreeMap;

    #[test]
    fn nodes_are_found_by_their_present_names() {
        for seed in 0..40 {
            let chance = &mut Chance::new(seed, "names");
            let (mut names, mut expected) = (NodeNames::default(), BTreeMap::new());
            for _ in 0..600 {
                let node = NodeId(chance.below(120_u32));
                let name = format!("host-{}", chance.below(150_u32));
                if chance.below(5_u32) == 0 {
                    names.remove(node);
                    expected.remove(&node);
                    continue;
                }
                names.insert(node, name.clone());
                let is_anothers = expected.iter().any(|(other, its)| *other != node && *its == name);
                expected.insert(node, if is_anothers { format!("{name}@{node}") } else { name });
            }
            for (node, name) in &expected {
                assert_eq!((names.find(name), names.of(*node)), (Some(*node), Some(&**name)), "seed {seed}");
            }
            let mut sorted: Vec<&str> = expected.values().map(|name| &**name).collect();
            sorted.sort_unstable();
            assert!(names.all().eq(sorted.iter().copied()), "seed {seed}");
            let others = (0..150).map(|number| format!("host-{number}"));
            let gone = others.filter(|name| !sorted.contains(&&**name));
            assert!(gone.into_iter().all(|name| names.find(&name).is_none()), "seed {seed}");
        }
    }
}
