//! Where the inputs are stored that tasks read in place. Nothing is fetched beforehand, so a task takes longer the farther it
//! runs from its input. [`StageSpec::input_kib`] has the sizes.

use super::{NodeId, StageSpec};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Reads {
    /// Not known.
    #[default]
    Unstated,
    /// In blocks of a file system, each on several nodes.
    Blocks(Blocks),
    /// On the nodes where the tasks ran that it depends on, the same amount from each task.
    Before,
}

impl StageSpec {
    /// Whether it is known where the inputs of its tasks are stored.
    pub fn has_inputs(&self) -> bool {
        !self.inputs.is_empty() || self.reads.are_stated()
    }
}

impl Reads {
    pub fn are_stated(&self) -> bool {
        *self != Reads::Unstated
    }
}

/// The blocks that each task of a stage reads. The name of each node is stored once.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Blocks {
    nodes: Vec<String>,
    blocks: Vec<Block>,
    /// By task, where its blocks end.
    ends: Vec<u32>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Block {
    pub kib: u32,
    /// Numbers of the nodes that have the whole block.
    pub at: Vec<u32>,
}

/// A part of an input, all of which each of these nodes has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub bytes: u64,
    pub at: Vec<NodeId>,
}

impl Blocks {
    /// An empty list of blocks on nodes of these names.
    pub fn on(nodes: Vec<String>) -> Blocks {
        Blocks { nodes, ..Blocks::default() }
    }

    /// Adds the blocks of the next task.
    ///
    /// # Errors
    /// If there are more than 4,294,967,295 blocks.
    pub fn push(&mut self, blocks: impl IntoIterator<Item = Block>) -> Result<(), String> {
        let before = self.blocks.len();
        self.blocks.extend(blocks);
        let Ok(end) = u32::try_from(self.blocks.len()) else {
            self.blocks.truncate(before);
            return Err("a stage reads at most 4,294,967,295 blocks".to_owned());
        };
        self.ends.push(end);
        Ok(())
    }

    /// The blocks of a task; none if they are not known.
    pub fn of(&self, task: u32) -> &[Block] {
        let task = task as usize;
        let start = task.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(task).copied().unwrap_or(start);
        // Ranges from another process are checked here rather than trusted.
        self.blocks.get(start as usize..end as usize).unwrap_or_default()
    }

    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// # Errors
    /// If they do not match `tasks` tasks, or refer to a node without a name.
    pub fn check(&self, tasks: u32) -> Result<(), String> {
        if self.ends.len() > tasks as usize {
            return Err(format!("it has {tasks} tasks, but lists the blocks of {}", self.ends.len()));
        }
        let is_whole = self.ends.last().copied().unwrap_or(0) as usize == self.blocks.len();
        if !self.ends.is_sorted() || !is_whole {
            return Err("the ranges of its blocks that each task reads are invalid".to_owned());
        }
        let known = self.nodes.len();
        match self.blocks.iter().flat_map(|block| &block.at).find(|node| **node as usize >= known) {
            Some(node) => Err(format!("it reads a block on node number {node}, but names {known} nodes")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kib: u32, at: &[u32]) -> Block {
        Block { kib, at: at.to_vec() }
    }

    fn two_tasks() -> Blocks {
        let mut blocks = Blocks::on(vec!["a".to_owned(), "b".to_owned()]);
        blocks.push([block(1, &[0]), block(2, &[0, 1])]).unwrap();
        blocks.push([]).unwrap();
        blocks.push([block(3, &[1])]).unwrap();
        blocks
    }

    #[test]
    fn each_task_has_its_own_blocks() {
        let blocks = two_tasks();
        let sizes = |task| blocks.of(task).iter().map(|block| block.kib).collect::<Vec<u32>>();
        assert_eq!([0, 1, 2, 3].map(sizes), [vec![1, 2], vec![], vec![3], vec![]]);
        assert_eq!(blocks.check(3), Ok(()));
    }

    #[test]
    fn inconsistent_blocks_are_refused_and_do_not_panic() {
        assert!(two_tasks().check(2).unwrap_err().contains("2 tasks, but lists the blocks of 3"));
        let mut unnamed = two_tasks();
        unnamed.nodes.pop();
        assert!(unnamed.check(3).unwrap_err().contains("node number 1, but names 1"));
        for ends in [vec![2, 1, 3], vec![9, 9, 9], vec![]] {
            let wrong = Blocks { ends, ..two_tasks() };
            assert!(wrong.check(3).unwrap_err().contains("are invalid"), "{wrong:?}");
            assert!((0..4).all(|task| wrong.of(task).len() <= 3));
        }
    }
}
