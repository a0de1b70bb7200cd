//! Matching with several tasks on one node, whose cost grows with each task it is given: each task in turn takes the
//! node where it would finish first, and later tasks see what it took.
//!
//! The first task is the one that would finish last if it missed its node: by the sum of what it loses at its
//! second-best node ("sufferage" of Maheswaran et al. 1999, "Dynamic matching and scheduling of a class of independent
//! tasks onto heterogeneous computing systems", section 3) and its run time (the longest first: Graham 1969), since a
//! stage ends with its last task.
//!
//! Departs: losses change with every match. They are updated when a task is next, and for all tasks each time that a
//! fraction of the tasks has been matched. The number of times that tasks are put back because others now precede them
//! is limited to a few per task. So each task's nodes are checked a few dozen times, and not once for every other task.

use super::Match;
use crate::vocabulary::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Per task of a batch, this many tasks may be put back.
const PUT_BACK: usize = 4;
/// All losses are updated each time that one part in this many of the remaining tasks has been matched.
const LOOKED_AT_AFTER: usize = 16;

/// A candidate node of a task: `place` is the node's number among those of the batch, `pair` the number of this
/// candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pairing {
    pub task: u32,
    pub node: u32,
    pub place: u32,
    pub pair: u32,
}

/// Costs of nodes, which grow with the tasks they are given.
pub trait Growing {
    /// The cost of the task on the node, and how much of that is waiting.
    fn offer(&self, of: Pairing) -> (Duration, Duration);

    /// Gives the task to the node.
    fn assign(&mut self, of: Pairing);
}

/// The candidate nodes of a batch of tasks, and the matching. It can be reused for other batches.
#[derive(Clone, Default, Debug)]
pub struct Regret {
    /// By task: the index of its first candidate.
    starts: Vec<u32>,
    all: Vec<Candidate>,
    /// The nodes of the batch in ascending order, and how many tasks each has been given.
    nodes: Vec<u32>,
    taken: Vec<u32>,
    /// Tasks that had no node at the last update of all losses, and whether each task has one now.
    left: Vec<u32>,
    is_given: Vec<bool>,
    /// Tasks by loss, the largest first; among equals, the smaller task.
    waiting: BinaryHeap<(Duration, Reverse<u32>)>,
    matches: Vec<Match>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The node, and later its place among those of the batch.
    node: u32,
    /// The cost when the node had been given `at` tasks.
    cost: Duration,
    wait: Duration,
    at: u32,
}

/// No cost was requested yet.
const NEVER: u32 = u32::MAX;

/// The best node of a task, and what the task loses without it.
struct Best {
    of: Pairing,
    cost: Duration,
    wait: Duration,
    loss: Duration,
}

impl Regret {
    pub fn clear(&mut self) {
        self.starts.clear();
        self.all.clear();
    }

    /// Starts the next task.
    pub fn push_task(&mut self) {
        self.starts.push(self.all.len() as u32);
    }

    /// Adds a node for the task started last. Returns false if it was added before; otherwise the pair gets the next
    /// number.
    pub fn push(&mut self, node: u32) -> bool {
        let first = *self.starts.last().expect("a task was started") as usize;
        let is_new = !self.all[first..].iter().any(|other| other.node == node);
        if is_new {
            self.all.push(Candidate { node, cost: Duration::ZERO, wait: Duration::ZERO, at: NEVER });
        }
        is_new
    }

    pub fn tasks(&self) -> usize {
        self.starts.len()
    }

    /// Gives every task that has a candidate to a node. The shortest waits come first. `make` gets the nodes of the
    /// batch first.
    pub fn find<B: Growing>(&mut self, make: impl FnOnce(&[u32]) -> B) -> &[Match] {
        self.number_nodes();
        let mut batch = make(&self.nodes);
        self.taken.clear();
        self.taken.resize(self.nodes.len(), 0);
        self.left.clear();
        self.left.extend(0..self.starts.len() as u32);
        self.is_given.clear();
        self.is_given.resize(self.starts.len(), false);
        self.matches.clear();
        let mut put_back = self.starts.len() * PUT_BACK;
        let mut until_look = 0;
        loop {
            if until_look == 0 {
                self.look_at_all(&batch);
                until_look = self.left.len().div_ceil(LOOKED_AT_AFTER);
            }
            let Some((_, Reverse(task))) = self.waiting.pop() else { break };
            let Some(best) = self.best_of(task, &batch) else { continue };
            let turn = (best.loss, Reverse(task));
            if put_back > 0 && self.waiting.peek().is_some_and(|next| *next > turn) {
                put_back -= 1;
                self.waiting.push(turn);
                continue;
            }
            until_look -= 1;
            self.is_given[task as usize] = true;
            batch.assign(best.of);
            self.taken[best.of.place as usize] += 1;
            let Best { of, cost, wait, .. } = best;
            self.matches.push(Match { task, node: of.node, cost, wait });
        }
        self.matches.sort_unstable_by_key(|one| (one.wait, one.task));
        &self.matches
    }

    /// Updates the losses of all remaining tasks.
    fn look_at_all(&mut self, batch: &impl Growing) {
        let is_given = &self.is_given;
        self.left.retain(|task| !is_given[*task as usize]);
        self.waiting.clear();
        for at in 0..self.left.len() {
            let task = self.left[at];
            if let Some(best) = self.best_of(task, batch) {
                self.waiting.push((best.loss, Reverse(task)));
            }
        }
    }

    fn number_nodes(&mut self) {
        self.nodes.clear();
        self.nodes.extend(self.all.iter().map(|candidate| candidate.node));
        self.nodes.sort_unstable();
        self.nodes.dedup();
        for candidate in &mut self.all {
            let place = self.nodes.binary_search(&candidate.node).expect("each of them is listed");
            candidate.node = place as u32;
        }
    }

    /// The best node at present costs; among equals, the smaller node.
    fn best_of(&mut self, task: u32, batch: &impl Growing) -> Option<Best> {
        let first = self.starts[task as usize];
        let end = self.starts.get(task as usize + 1).map_or(self.all.len(), |&next| next as usize);
        let mut best = None::<(Duration, Pairing, Duration)>;
        // Its cost, and the wait in it.
        let mut second = (Duration::MAX, Duration::ZERO);
        for (candidate, pair) in self.all[first as usize..end].iter_mut().zip(first..) {
            let place = candidate.node;
            let of = Pairing { task, node: self.nodes[place as usize], place, pair };
            let taken = self.taken.get(place as usize).copied().unwrap_or(0);
            if candidate.at != taken {
                (candidate.cost, candidate.wait) = batch.offer(of);
                candidate.at = taken;
            }
            if candidate.cost == Duration::MAX {
                continue;
            }
            match &best {
                Some(known) if (known.0, known.1.place) <= (candidate.cost, place) => {
                    second = second.min((candidate.cost, candidate.wait));
                }
                known => {
                    second = known.as_ref().map_or(second, |known| (known.0, known.2));
                    best = Some((candidate.cost, of, candidate.wait));
                }
            }
        }
        // The delay at the second-best node, plus the run time.
        best.map(|(cost, of, wait)| {
            let runs = (cost - wait).max(second.0 - second.1);
            Best { of, cost, wait, loss: (second.0 - cost) + runs }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    /// Queues in which tasks run one after the other, with these run times on each node.
    struct Queues<'a> {
        run_times: &'a [Vec<u64>],
        waits: Vec<u64>,
    }

    impl Growing for Queues<'_> {
        fn offer(&self, of: Pairing) -> (Duration, Duration) {
            let wait = self.waits[of.place as usize];
            (Duration(wait) + Duration(self.run_times[of.task as usize][of.node as usize]), Duration(wait))
        }

        fn assign(&mut self, of: Pairing) {
            self.waits[of.place as usize] += self.run_times[of.task as usize][of.node as usize];
        }
    }

    /// Each task's node and completion time.
    fn matched(matcher: &mut Regret, run_times: &[Vec<u64>], waits: &[u64]) -> Vec<(u32, u32, u64)> {
        matcher.clear();
        for row in run_times {
            matcher.push_task();
            (0..row.len()).for_each(|node| assert!(matcher.push(node as u32)));
        }
        let found =
            matcher.find(|nodes| Queues { run_times, waits: nodes.iter().map(|&node| waits[node as usize]).collect() });
        let mut found: Vec<(u32, u32, u64)> = found.iter().map(|one| (one.task, one.node, one.cost.0)).collect();
        found.sort_unstable();
        found
    }

    fn random(chance: &mut Chance, tasks: usize, nodes: usize) -> (Vec<Vec<u64>>, Vec<u64>) {
        let different = [3, 20, 1_000_000][chance.below(3_u32) as usize];
        let run_times = (0..tasks).map(|_| (0..nodes).map(|_| 1 + chance.below(different)).collect()).collect();
        (run_times, (0..nodes).map(|_| chance.below(different)).collect())
    }

    /// The earliest end of all tasks, by exhaustive search.
    fn least_end(run_times: &[Vec<u64>], waits: &mut [u64], end: u64) -> u64 {
        let Some((row, rest)) = run_times.split_first() else { return end };
        let mut least = u64::MAX;
        for (node, took) in row.iter().enumerate() {
            waits[node] += took;
            least = least.min(least_end(rest, waits, end.max(waits[node])));
            waits[node] -= took;
        }
        least
    }

    #[test]
    fn all_tasks_get_a_node_and_run_there_one_after_the_other() {
        let mut matcher = Regret::default();
        for seed in 0..500 {
            let mut chance = Chance::new(seed, "regret");
            let (tasks, nodes) = (chance.below(9_u32) as usize, 1 + chance.below(5_u32) as usize);
            let (run_times, waits) = random(&mut chance, tasks, nodes);
            let found = matched(&mut matcher, &run_times, &waits);
            assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), (0..tasks as u32).collect::<Vec<_>>());
            for node in 0..nodes as u32 {
                let its: Vec<&(u32, u32, u64)> = found.iter().filter(|one| one.1 == node).collect();
                let works: u64 = its.iter().map(|one| run_times[one.0 as usize][node as usize]).sum();
                let last = its.iter().map(|one| one.2).max().unwrap_or(waits[node as usize]);
                assert_eq!(last, waits[node as usize] + works, "{found:?} of {run_times:?} after {waits:?}");
            }
        }
    }

    #[test]
    fn schedules_are_nearly_optimal_and_less_than_twice_as_long() {
        let mut matcher = Regret::default();
        let (mut sum, mut worst, mut count) = (0.0, 1.0_f64, 0);
        for seed in 0..400 {
            let mut chance = Chance::new(seed, "regret and optimum");
            let (tasks, nodes) = (1 + chance.below(6_u32) as usize, 1 + chance.below(4_u32) as usize);
            let (run_times, mut waits) = random(&mut chance, tasks, nodes);
            let found = matched(&mut matcher, &run_times, &waits);
            let end = found.iter().map(|one| one.2).max().unwrap_or(0);
            let ratio = end as f64 / least_end(&run_times, &mut waits, 0) as f64;
            (sum, worst, count) = (sum + ratio, worst.max(ratio), count + 1);
        }
        let mean = sum / f64::from(count);
        assert!(mean < 1.08 && worst < 2.0, "{mean} in the mean, {worst} at worst");
    }

    #[test]
    fn the_task_that_would_finish_last_without_its_node_is_first() {
        let mut matcher = Regret::default();
        // Both are faster on the first node; the second one would lose more without it.
        let run_times = [vec![5, 7], vec![5, 30]];
        assert_eq!(matched(&mut matcher, &run_times, &[0, 0]), [(0, 1, 7), (1, 0, 5)]);
        // Nodes with room for several: four equal tasks on two nodes.
        assert_eq!(matched(&mut matcher, &vec![vec![4, 4]; 4], &[0, 0]), [(0, 0, 4), (1, 1, 4), (2, 0, 8), (3, 1, 8)]);
    }

    #[test]
    fn a_task_that_suits_no_node_is_not_matched() {
        let mut matcher = Regret::default();
        let mut found = |took: u64| matched(&mut matcher, &[vec![took], vec![3]], &[0]).len();
        assert_eq!((found(3), found(u64::MAX)), (2, 1));
    }
}
