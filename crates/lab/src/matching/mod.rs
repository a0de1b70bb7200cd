//! Matchings of a batch of tasks with nodes over a table of all costs, to compare the product's matchings with
//! (`amalgam_core::policy::matching`): the paper's stable matching as it is written, a greedy one and the best one. Ties go to the
//! smaller index.

mod greedy;
mod optimal;
#[cfg(test)]
mod product;
mod stable;

pub use greedy::greedy;
pub use optimal::optimal;
pub use stable::{Acceptance, Stable};

use amalgam_core::vocabulary::Duration;

/// The cost of a node that does not suit a task: it would never finish there.
pub const UNSUITABLE: Duration = Duration::MAX;

/// The cost of each task of a batch on each node. The table can be reused for other batches.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Costs {
    nodes: usize,
    /// The rows of all tasks, one after the other.
    costs: Vec<Duration>,
}

/// A task and its node, by their indices in [`Costs`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pair {
    pub task: u32,
    pub node: u32,
}

impl Costs {
    /// A table in which no node suits any task.
    pub fn new(tasks: usize, nodes: usize) -> Costs {
        let mut costs = Costs::default();
        costs.clear(tasks, nodes);
        costs
    }

    /// Resets the table for another batch.
    pub fn clear(&mut self, tasks: usize, nodes: usize) {
        self.nodes = nodes;
        self.costs.clear();
        self.costs.resize(tasks * nodes, UNSUITABLE);
    }

    pub fn set(&mut self, task: usize, node: usize, cost: Duration) {
        self.row_mut(task)[node] = cost;
    }

    pub fn tasks(&self) -> usize {
        self.costs.len().checked_div(self.nodes).unwrap_or(0)
    }

    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The costs of a task, by node.
    pub fn row(&self, task: usize) -> &[Duration] {
        &self.costs[task * self.nodes..][..self.nodes]
    }

    pub fn row_mut(&mut self, task: usize) -> &mut [Duration] {
        &mut self.costs[task * self.nodes..][..self.nodes]
    }

    pub fn of(&self, pair: Pair) -> Duration {
        self.row(pair.task as usize)[pair.node as usize]
    }

    /// Total cost of these pairs.
    pub fn total(&self, pairs: &[Pair]) -> u128 {
        pairs.iter().map(|&pair| u128::from(self.of(pair).0)).sum()
    }
}

impl Pair {
    fn new(task: usize, node: usize) -> Pair {
        // Batches and their candidates are far smaller.
        Pair { task: task as u32, node: node as u32 }
    }
}

/// Sorts pairs into the order of dispatch, as far as capacity allows: the best match is the one with the shortest wait.
pub fn sort_by_quality(pairs: &mut [Pair], wait: impl Fn(Pair) -> Duration) {
    pairs.sort_unstable_by_key(|&pair| (wait(pair), pair));
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::Chance;

    /// A random table. With few different costs many are equal; one pair in `unsuitable_in` does not suit.
    pub(super) fn random(chance: &mut Chance, tasks: usize, nodes: usize, different: u64, unsuitable_in: u32) -> Costs {
        let mut costs = Costs::new(tasks, nodes);
        for task in 0..tasks {
            for cost in costs.row_mut(task) {
                if unsuitable_in == 0 || chance.below(unsuitable_in) > 0 {
                    *cost = Duration(chance.below(different));
                }
            }
        }
        costs
    }

    /// Passes small tables of all kinds to `look`.
    pub(super) fn each_small(mut look: impl FnMut(&Costs)) {
        for seed in 0..1_500 {
            let mut chance = Chance::new(seed, "matching");
            let (tasks, nodes) = (chance.below(7_u32) as usize, 1 + chance.below(7_u32) as usize);
            let different = [2, 5, 1_000, u64::MAX][chance.below(4_u32) as usize];
            let unsuitable_in = [0, 2, 6][chance.below(3_u32) as usize];
            look(&random(&mut chance, tasks, nodes, different, unsuitable_in));
        }
    }

    /// # Panics
    /// If a task or a node has two pairs, a pair does not suit, or the pairs are not ordered by task.
    pub(super) fn check(costs: &Costs, pairs: &[Pair]) {
        assert!(pairs.is_sorted_by(|one, next| one.task < next.task), "{pairs:?}");
        let mut taken = vec![false; costs.nodes()];
        for &pair in pairs {
            assert!(!std::mem::replace(&mut taken[pair.node as usize], true), "two tasks on a node: {pairs:?}");
            assert_ne!(costs.of(pair), UNSUITABLE, "{pairs:?}");
        }
    }

    /// Whether no free node suits a task without a node.
    pub(super) fn is_maximal(costs: &Costs, pairs: &[Pair]) -> bool {
        let without = (0..costs.tasks()).filter(|&task| !pairs.iter().any(|pair| pair.task as usize == task));
        let free: Vec<usize> =
            (0..costs.nodes()).filter(|&node| !pairs.iter().any(|pair| pair.node as usize == node)).collect();
        without.into_iter().all(|task| free.iter().all(|&node| costs.row(task)[node] == UNSUITABLE))
    }

    pub(super) fn pairs(of: &[(u32, u32)]) -> Vec<Pair> {
        of.iter().map(|&(task, node)| Pair { task, node }).collect()
    }

    /// Figure 5: the inputs of tasks 0 and 1 are stored on A, that of task 2 on B.
    pub(super) fn figure_5() -> Costs {
        let mut costs = Costs::new(3, 3);
        for (task, local) in [(0, 0), (1, 0), (2, 1)] {
            costs.row_mut(task).fill(Duration(10));
            costs.set(task, local, Duration(6));
        }
        costs
    }

    #[test]
    fn pairs_are_sorted_by_wait_and_then_by_task() {
        let mut of = pairs(&[(0, 2), (1, 1), (2, 0), (3, 3)]);
        let waits = [5, 1, 1, 0].map(Duration);
        sort_by_quality(&mut of, |pair| waits[pair.node as usize]);
        assert_eq!(of, pairs(&[(3, 3), (0, 2), (1, 1), (2, 0)]));
    }

    #[test]
    fn a_cleared_table_keeps_no_costs() {
        let mut costs = figure_5();
        costs.clear(2, 4);
        assert_eq!(costs, Costs::new(2, 4));
        assert_eq!((costs.tasks(), costs.nodes()), (2, 4));
        assert_eq!(Costs::default().tasks(), 0);
    }
}
