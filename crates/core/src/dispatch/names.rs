//! What people call nodes.

use crate::vocabulary::NodeId;
use std::sync::Arc;

#[derive(Default)]
pub struct NodeNames {
    /// By number.
    names: Vec<Option<Arc<str>>>,
    index: Index,
}

/// Which node has a name: a table in which a name's place is the first free one from that on which its hash says. To compare
/// names in a tree would be a third of the work of hearing of 50,000 nodes.
#[derive(Default)]
struct Index {
    /// A power of two of them, at least half of them free.
    places: Vec<Option<Place>>,
    used: usize,
}

#[derive(Clone, Copy)]
struct Place {
    hash: u32,
    node: NodeId,
}

impl NodeNames {
    pub fn insert(&mut self, node: NodeId, name: &str) {
        let index = node.0 as usize;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        if let Some(before) = self.names[index].take_if(|before| **before != *name) {
            self.forget(node, &before);
        }
        let hash = hash_of(name);
        match self.place_of(hash, name) {
            Some(place) => self.index.places[place] = Some(Place { hash, node }),
            None => self.index.insert(Place { hash, node }),
        }
        self.names[index].get_or_insert_with(|| name.into());
    }

    /// Unless another node is found by it, nobody is any more.
    fn forget(&mut self, node: NodeId, name: &str) {
        let hash = hash_of(name);
        if let Some(place) = self.index.find(hash, |other| other == node) {
            self.index.remove(place);
        }
    }

    fn place_of(&self, hash: u32, name: &str) -> Option<usize> {
        self.index.find(hash, |node| self.of(node) == Some(name))
    }

    pub fn find(&self, name: &str) -> Option<NodeId> {
        let place = self.place_of(hash_of(name), name)?;
        self.index.places[place].map(|place| place.node)
    }

    pub fn of(&self, node: NodeId) -> Option<&str> {
        self.names.get(node.0 as usize)?.as_deref()
    }

    pub fn by_number(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.names.iter().zip(0..).filter_map(|(name, number)| Some((NodeId(number), name.as_deref()?)))
    }

    /// In their order.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let mut all: Vec<&str> = self.names.iter().flatten().map(|name| &**name).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter()
    }
}

impl Index {
    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.places.len() - 1)
    }

    fn find(&self, hash: u32, is_it: impl Fn(NodeId) -> bool) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        while let Some(place) = self.places[at] {
            if place.hash == hash && is_it(place.node) {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    fn insert(&mut self, place: Place) {
        if (self.used + 1) * 2 > self.places.len() {
            let twice = vec![None; (self.places.len() * 2).max(16)];
            let before = std::mem::replace(&mut self.places, twice);
            before.into_iter().flatten().for_each(|place| self.put(place));
        }
        self.used += 1;
        self.put(place);
    }

    fn put(&mut self, place: Place) {
        let mut at = self.home(place.hash);
        while self.places[at].is_some() {
            at = self.next(at);
        }
        self.places[at] = Some(place);
    }

    /// Those behind it, up to the next free place, are put anew: some may not be found across the gap.
    fn remove(&mut self, at: usize) {
        self.places[at] = None;
        self.used -= 1;
        let mut behind = self.next(at);
        while let Some(place) = self.places[behind].take() {
            self.put(place);
            behind = self.next(behind);
        }
    }
}

/// FNV-1a.
fn hash_of(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;
    use std::collections::BTreeMap;

    #[test]
    fn nodes_are_found_by_the_names_that_they_have_now() {
        for seed in 0..40 {
            let chance = &mut Chance::new(seed, "names");
            let (mut names, mut expected) = (NodeNames::default(), BTreeMap::new());
            for _ in 0..600 {
                let node = NodeId(chance.below(120_u32));
                let name = format!("host-{}", chance.below(150_u32));
                // Nobody is given the name of another.
                if expected.values().any(|other| *other == name) {
                    continue;
                }
                names.insert(node, &name);
                expected.insert(node, name);
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
