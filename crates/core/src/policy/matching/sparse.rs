//! The same matching as [`super::Stable`] with final acceptance, for tasks that have a few candidates among many nodes:
//! the cost of a batch depends on its candidates, not on the number of nodes.

use crate::vocabulary::Duration;

/// The candidates of a batch of tasks, and the matching. It can be reused for other batches.
#[derive(Clone, Default, Debug)]
pub struct Candidates {
    /// By task: the index of its first candidate.
    starts: Vec<u32>,
    all: Vec<Candidate>,
    /// The candidate nodes, in ascending order.
    nodes: Vec<u32>,
    /// By place in `nodes`: the task that it holds, and what that saves.
    held: Vec<Option<(u32, Duration)>>,
    is_full: Vec<bool>,
    proposing: Vec<u32>,
    losing: Vec<u32>,
    matches: Vec<Match>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The node, and later its place among those of the batch.
    node: u32,
    cost: Duration,
    wait: Duration,
}

/// A task of the batch and its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Match {
    pub task: u32,
    pub node: u32,
    pub cost: Duration,
    pub wait: Duration,
}

impl Candidates {
    pub fn clear(&mut self) {
        self.starts.clear();
        self.all.clear();
    }

    /// Starts the next task.
    pub fn push_task(&mut self) {
        self.starts.push(self.all.len() as u32);
    }

    /// Adds a node for the task started last, with the task's cost and wait there. If a node is added twice, the first
    /// values count.
    pub fn push(&mut self, node: u32, cost: Duration, wait: Duration) {
        let first = *self.starts.last().expect("a task was started") as usize;
        if !self.all[first..].iter().any(|other| other.node == node) {
            self.all.push(Candidate { node, cost, wait });
        }
    }

    pub fn tasks(&self) -> usize {
        self.starts.len()
    }

    /// Matches tasks with nodes in at most this many rounds of proposals. The shortest waits come first.
    pub fn find(&mut self, rounds: u32) -> &[Match] {
        self.number_nodes();
        self.held.clear();
        self.held.resize(self.nodes.len(), None);
        self.is_full.clear();
        self.is_full.resize(self.nodes.len(), false);
        self.losing.clear();
        self.proposing.clear();
        self.proposing.extend(0..self.starts.len() as u32);
        for _ in 0..rounds {
            if self.proposing.is_empty() {
                break;
            }
            self.propose();
        }
        self.matches.clear();
        for (place, held) in self.held.iter().enumerate() {
            let Some((task, _)) = *held else { continue };
            let own = row(&self.starts, &self.all, task).iter().find(|candidate| candidate.node as usize == place);
            let Candidate { cost, wait, .. } = *own.expect("the task proposed to this node");
            self.matches.push(Match { task, node: self.nodes[place], cost, wait });
        }
        self.matches.sort_unstable_by_key(|one| (one.wait, one.task));
        &self.matches
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

    fn propose(&mut self) {
        while let Some(task) = self.proposing.pop() {
            let Some((place, saving)) = best_of(row(&self.starts, &self.all, task), &self.is_full) else { continue };
            let held = &mut self.held[place as usize];
            let loser = match *held {
                Some((other, saves)) if saves > saving || saves == saving && other < task => task,
                taken => {
                    *held = Some((task, saving));
                    let Some((loser, _)) = taken else { continue };
                    loser
                }
            };
            self.losing.push(loser);
        }
        std::mem::swap(&mut self.proposing, &mut self.losing);
        self.is_full.iter_mut().zip(&self.held).for_each(|(is_full, held)| *is_full = held.is_some());
    }
}

fn row<'a>(starts: &[u32], all: &'a [Candidate], task: u32) -> &'a [Candidate] {
    let task = task as usize;
    let end = starts.get(task + 1).map_or(all.len(), |&next| next as usize);
    &all[starts[task] as usize..end]
}

/// The best open node, and its saving over the second-best; among equals, the smaller node.
fn best_of(row: &[Candidate], is_full: &[bool]) -> Option<(u32, Duration)> {
    let (mut best, mut second) = (None::<(Duration, u32)>, Duration::MAX);
    for candidate in row.iter().filter(|candidate| !is_full[candidate.node as usize]) {
        let this = (candidate.cost, candidate.node);
        match best {
            Some(known) if known <= this => second = second.min(this.0),
            _ => {
                second = best.map_or(second, |known| known.0);
                best = Some(this);
            }
        }
    }
    let (cost, place) = best?;
    let saving = if second == Duration::MAX { Duration::MAX } else { Duration(second.0 - cost.0) };
    Some((place, saving))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_sorted_by_wait_and_a_node_added_twice_counts_once() {
        let mut candidates = Candidates::default();
        for (node, wait) in [(5, 9), (3, 1)] {
            candidates.push_task();
            candidates.push(node, Duration(20), Duration(wait));
            candidates.push(node, Duration(1), Duration(0));
        }
        let found: Vec<(u32, u32, u64)> =
            candidates.find(3).iter().map(|one| (one.task, one.node, one.cost.0)).collect();
        assert_eq!(found, [(1, 3, 20), (0, 5, 20)]);
    }
}
