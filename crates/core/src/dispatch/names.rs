//! The names of nodes.

use crate::vocabulary::NodeId;

#[derive(Default)]
pub struct NodeNames {
    /// By number.
    names: Vec<Option<String>>,
    index: Index,
}

/// Finds a node by its name: a hash table with linear probing. Comparisons of names in a tree would be a third of the
/// work of taking in 50,000 nodes.
#[derive(Default)]
struct Index {
    /// A power of two in number, at least half of them free.
    places: Vec<Place>,
    used: usize,
}

/// Small, since each access to distant memory takes longer than the rest of a search.
#[derive(Clone, Copy)]
struct Place {
    hash: u32,
    /// Not the number of a node if the place is free.
    node: NodeId,
}

impl Place {
    const FREE: Place = Place { hash: 0, node: NodeId(u32::MAX) };

    fn is_free(&self) -> bool {
        self.node == Place::FREE.node
    }
}

impl NodeNames {
    /// Names a node. If another node has the name, the number of this one is appended.
    pub fn insert(&mut self, node: NodeId, name: String) {
        if self.of(node) == Some(&name) {
            return;
        }
        let hash = hash_of(&name);
        if self.place_of(hash, &name).is_some() {
            return self.insert(node, format!("{name}@{node}"));
        }
        let index = node.0 as usize;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        if let Some(before) = self.names[index].replace(name)
            && let Some(place) = self.index.find(hash_of(&before), |other| other == node)
        {
            self.index.remove(place);
        }
        self.index.insert(Place { hash, node });
    }

    /// Removes a node; another one may get its name.
    pub fn remove(&mut self, node: NodeId) {
        if let Some(name) = self.names.get_mut(node.0 as usize).and_then(Option::take)
            && let Some(place) = self.index.find(hash_of(&name), |other| other == node)
        {
            self.index.remove(place);
        }
    }

    fn place_of(&self, hash: u32, name: &str) -> Option<usize> {
        self.index.find(hash, |node| self.of(node) == Some(name))
    }

    pub fn find(&self, name: &str) -> Option<NodeId> {
        let place = self.place_of(hash_of(name), name)?;
        Some(self.index.places[place].node)
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
        loop {
            let place = self.places[at];
            if place.is_free() {
                return None;
            }
            if place.hash == hash && is_it(place.node) {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    fn insert(&mut self, place: Place) {
        if (self.used + 1) * 2 > self.places.len() {
            let twice = vec![Place::FREE; (self.places.len() * 2).max(16)];
            let before = std::mem::replace(&mut self.places, twice);
            before.into_iter().filter(|place| !place.is_free()).for_each(|place| self.put(place));
        }
        self.used += 1;
        self.put(place);
    }

    fn put(&mut self, place: Place) {
        let mut at = self.home(place.hash);
        while !self.places[at].is_free() {
            at = self.next(at);
        }
        self.places[at] = place;
    }

    /// The entries after it, up to the next free place, are inserted again: some could not be found across the gap.
    fn remove(&mut self, at: usize) {
        self.places[at] = Place::FREE;
        self.used -= 1;
        let mut behind = self.next(at);
        while !self.places[behind].is_free() {
            let place = std::mem::replace(&mut self.places[behind], Place::FREE);
            self.put(place);
            behind = self.next(behind);
        }
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
