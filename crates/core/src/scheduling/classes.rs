//! Which nodes meet which constraints: each constraint has a bit vector over all nodes. Each set of constraints is a
//! class and has the AND of their vectors, which is computed when the class is first requested (Megha,
//! section IV-B). Nodes with taints are only in the classes that tolerate them.
//!
//! A class may be narrowed to some nodes; then it belongs to one ask.

use crate::vocabulary::{Attributes, ClassTable, Constraint};
use fixedbitset::FixedBitSet;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub struct Classes {
    table: ClassTable,
    constraints: Vec<OneConstraint>,
    by_constraint: BTreeMap<Constraint, u32>,
    classes: Vec<Class>,
    /// By the sorted numbers of their constraints; without narrowed classes.
    by_constraints: BTreeMap<Vec<u32>, u32>,
    free: Vec<u32>,
    /// The nodes that have taints.
    tainted: FixedBitSet,
    nodes: usize,
}

struct OneConstraint {
    constraint: Constraint,
    /// The nodes that meet it.
    met: FixedBitSet,
}

#[derive(Default)]
struct Class {
    constraints: Arc<Vec<Constraint>>,
    /// The numbers of these, sorted.
    parts: Vec<u32>,
    /// The nodes that it is narrowed to, sorted.
    members: Option<Vec<usize>>,
}

impl Classes {
    /// With class 0, which has no constraints.
    pub fn new() -> Classes {
        let mut classes = Classes::default();
        classes.class(&Arc::default(), |_| unreachable!("there are no nodes"));
        classes
    }

    pub fn table(&self) -> &ClassTable {
        &self.table
    }

    pub fn constraints(&self, class: u32) -> &Arc<Vec<Constraint>> {
        &self.classes[class as usize].constraints
    }

    /// A node is new, or has other attributes.
    pub fn classify(&mut self, node: usize, attributes: &Attributes) {
        self.nodes = self.nodes.max(node + 1);
        for OneConstraint { constraint, met } in &mut self.constraints {
            met.grow(node + 1);
            met.set(node, constraint.is_met_by(attributes));
        }
        self.tainted.grow(node + 1);
        self.tainted.set(node, attributes.has_taints());
        for (number, class) in (0..).zip(&self.classes) {
            let is_member = class.members.as_ref().is_none_or(|members| members.binary_search(&node).is_ok());
            let is_met = |part: &u32| self.constraints[*part as usize].met.contains(node);
            let is_met = is_member && class.parts.iter().all(is_met);
            self.table.set(number, node, is_met && attributes.are_tolerated_by(&class.constraints));
        }
    }

    /// The class of asks with these constraints; created if it is new.
    pub fn class<'a>(
        &mut self,
        constraints: &Arc<Vec<Constraint>>,
        attributes: impl Fn(usize) -> &'a Attributes,
    ) -> u32 {
        let mut parts: Vec<u32> = constraints.iter().map(|one| self.number(one, &attributes)).collect();
        parts.sort_unstable();
        parts.dedup();
        if let Some(known) = self.by_constraints.get(&parts) {
            return *known;
        }
        let mut members = self.together(&parts);
        for node in self.tainted.ones().filter(|node| !attributes(*node).are_tolerated_by(constraints)) {
            members.set(node, false);
        }
        let class = self.table.add_class_of(members);
        self.by_constraints.insert(parts.clone(), class);
        self.classes.push(Class { constraints: Arc::clone(constraints), parts, members: None });
        class
    }

    fn number<'a>(&mut self, constraint: &Constraint, attributes: impl Fn(usize) -> &'a Attributes) -> u32 {
        if let Some(known) = self.by_constraint.get(constraint) {
            return *known;
        }
        let mut met = FixedBitSet::with_capacity(self.nodes);
        met.extend((0..self.nodes).filter(|node| constraint.is_met_by(attributes(*node))));
        let number = self.constraints.len() as u32;
        self.constraints.push(OneConstraint { constraint: constraint.clone(), met });
        self.by_constraint.insert(constraint.clone(), number);
        number
    }

    /// The nodes that meet all of these.
    fn together(&self, parts: &[u32]) -> FixedBitSet {
        let mut sets = parts.iter().map(|part| &self.constraints[*part as usize].met);
        let Some(first) = sets.next() else {
            let mut all = FixedBitSet::with_capacity(self.nodes);
            all.insert_range(..);
            return all;
        };
        sets.fold(first.clone(), |mut together, met| {
            together.intersect_with(met);
            together
        })
    }

    /// Creates a class for one ask: only these of the nodes that meet `class`. `nodes` is sorted.
    pub fn narrow(&mut self, class: u32, nodes: Vec<usize>) -> u32 {
        let Class { constraints, parts, .. } = &self.classes[class as usize];
        let (constraints, parts) = (Arc::clone(constraints), parts.clone());
        let narrow = self.free.pop().unwrap_or_else(|| {
            self.classes.push(Class::default());
            self.table.add_class_of(FixedBitSet::new())
        });
        for &node in nodes.iter().filter(|node| **node < self.nodes) {
            let met = self.table.meets(class, node);
            self.table.set(narrow, node, met);
        }
        self.classes[narrow as usize] = Class { constraints, parts, members: Some(nodes) };
        narrow
    }

    /// The narrow class is not used any more.
    pub fn release(&mut self, narrow: u32) {
        self.table.clear(narrow);
        self.classes[narrow as usize].members = Some(Vec::new());
        self.free.push(narrow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    fn drawn(chance: &mut Chance) -> Attributes {
        let pairs = (0..6).map(|name| (format!("a{name}"), chance.below(3_u64).to_string()));
        let pairs: Vec<(String, String)> = pairs.collect();
        // A few have taints.
        let taints =
            (0..2).filter(|_| chance.below(5_u64) == 0).map(|name| (format!("taint.t{name}"), "yes".to_owned()));
        let taints: Vec<(String, String)> = taints.collect();
        Attributes::new(pairs.into_iter().chain(taints))
    }

    fn constraints(chance: &mut Chance, most: u64) -> Arc<Vec<Constraint>> {
        let one = |chance: &mut Chance| {
            if chance.below(3_u64) == 0 {
                return Constraint::tolerating(&format!("t{}", chance.below(2_u64)));
            }
            let operator = ["=", "!=", ">="][chance.below(3_u64) as usize];
            Constraint::parse(&format!("a{}{operator}{}", chance.below(7_u64), chance.below(3_u64))).unwrap()
        };
        Arc::new((0..chance.below(most + 1)).map(|_| one(chance)).collect())
    }

    fn meets(set: &[Constraint], attributes: &Attributes) -> bool {
        let names = |name: &str| set.iter().any(|constraint| constraint.attribute == name);
        set.iter().all(|constraint| constraint.is_met_by(attributes))
            && attributes.iter().filter(|one| one.name.starts_with("taint.")).all(|taint| names(&taint.name))
    }

    #[test]
    fn a_class_contains_exactly_the_nodes_that_meet_all_of_its_constraints() {
        for seed in 0..60 {
            let chance = &mut Chance::new(seed, "classes");
            let (mut classes, mut nodes, mut known) = (Classes::new(), Vec::new(), Vec::new());
            for step in 0..400 {
                match chance.below(4_u64) {
                    0 => {
                        let set = constraints(chance, 8);
                        known.push((classes.class(&set, |node| &nodes[node]), set));
                    }
                    1 if !nodes.is_empty() => {
                        let node = chance.below(nodes.len() as u64) as usize;
                        nodes[node] = drawn(chance);
                        classes.classify(node, &nodes[node]);
                    }
                    _ => {
                        nodes.push(drawn(chance));
                        classes.classify(nodes.len() - 1, &nodes[nodes.len() - 1]);
                    }
                }
                let Some((class, set)) = known.get(step % known.len().max(1)) else { continue };
                let words = |word| classes.table().word(*class, word);
                let bits = (0..nodes.len() + 70).map(|node| words(node / 64) >> (node % 64) & 1 == 1);
                let expected = nodes.iter().map(|node| meets(set, node)).chain([false; 70]);
                assert!(bits.eq(expected), "seed {seed}, step {step}: {set:?}");
            }
        }
    }

    #[test]
    fn constraints_in_another_order_are_the_same_class() {
        let parsed = |texts: [&str; 3]| Arc::new(texts.map(|text| Constraint::parse(text).unwrap()).to_vec());
        let mut classes = Classes::new();
        let class = classes.class(&parsed(["a=1", "b=2", "c!=3"]), |_| unreachable!());
        assert_eq!(classes.class(&parsed(["c!=3", "a=1", "b=2"]), |_| unreachable!()), class);
        assert_eq!(classes.class(&parsed(["b=2", "a=1", "a=1"]), |_| unreachable!()), class + 1, "two of them");
        assert_eq!(classes.class(&Arc::default(), |_| unreachable!()), 0);
    }

    #[test]
    fn a_narrowed_class_is_limited_to_its_nodes_and_its_number_is_reused() {
        let mut classes = Classes::new();
        let arch = |value: &str| Attributes::new([("arch".to_owned(), value.to_owned())]);
        let nodes = [arch("x86"), arch("arm"), arch("arm")];
        (0..).zip(&nodes).for_each(|(node, attributes)| classes.classify(node, attributes));
        let arm = classes.class(&Arc::new(vec![Constraint::parse("arch=arm").unwrap()]), |node| &nodes[node]);
        let narrow = classes.narrow(arm, vec![0, 2, 7]);
        let met = |classes: &Classes| (0..9).filter(|node| classes.table().meets(narrow, *node)).collect::<Vec<_>>();
        assert_eq!(met(&classes), [2]);
        (3..8).for_each(|node| classes.classify(node, &arch("arm")));
        assert_eq!(met(&classes), [2, 7]);
        assert_eq!(classes.constraints(narrow), classes.constraints(arm));
        classes.release(narrow);
        assert_eq!(met(&classes), []);
        classes.classify(8, &arch("arm"));
        assert_eq!(met(&classes), []);
        assert_eq!(classes.narrow(0, vec![0]), narrow);
        assert_eq!(met(&classes), [0]);
    }
}
