//! The nodes of the tasks of a gang.

use super::NodeId;
use super::job::MAX_GANG;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The names of the nodes that the tasks of a gang run on, in the order of the tasks. Each name is stored once, because the
/// launch of each task carries the list.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HostList {
    /// In the order of their first tasks.
    names: Vec<String>,
    /// A place in `names`, and the number of consecutive tasks that are there.
    runs: Vec<(u32, u32)>,
}

impl HostList {
    /// For tasks at these nodes, in their order; `None` if the name of a node is not known.
    pub fn new(nodes: impl Iterator<Item = NodeId>, names: &BTreeMap<NodeId, String>) -> Option<HostList> {
        let mut list = HostList::default();
        let mut places: BTreeMap<NodeId, u32> = BTreeMap::new();
        for node in nodes {
            let next = list.names.len() as u32;
            let place = *places.entry(node).or_insert(next);
            if place == next {
                list.names.push(names.get(&node)?.clone());
            }
            match list.runs.last_mut() {
                Some((last, tasks)) if *last == place => *tasks += 1,
                _ => list.runs.push((place, 1)),
            }
        }
        Some(list)
    }

    /// Each name once, in the order of the first task there.
    pub fn names(&self) -> Vec<&str> {
        // Two clusters of a federation may have nodes of the same name.
        let mut seen = BTreeSet::new();
        self.names.iter().map(String::as_str).filter(|name| seen.insert(*name)).collect()
    }

    /// A line with the name of its node for each task, in the order of the tasks.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        // A list that was received may refer to a place that it does not have.
        let known =
            self.runs.iter().filter_map(|(place, tasks)| Some((self.names.get(*place as usize)?.as_str(), *tasks)));
        for (name, tasks) in known {
            text.extend((0..tasks.min(MAX_GANG)).flat_map(|_| [name, "\n"]));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_each_node_once_and_has_a_line_for_each_task() {
        let names = BTreeMap::from([(NodeId(1), "b".to_owned()), (NodeId(2), "a".to_owned())]);
        let of = |nodes: &[u32]| HostList::new(nodes.iter().map(|&node| NodeId(node)), &names);
        let list = of(&[1, 1, 2, 1]).unwrap();
        assert_eq!(list.names(), ["b", "a"]);
        assert_eq!(list.lines(), "b\nb\na\nb\n");
        assert_eq!(list.runs, [(0, 2), (1, 1), (0, 1)]);
        assert_eq!(of(&[1, 3]), None, "a node without a known name");
        let damaged = HostList { names: Vec::new(), runs: vec![(7, 1)] };
        assert_eq!(damaged.lines(), "");
    }
}
