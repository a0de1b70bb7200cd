//! Apollo's variant of stable matching (Boutin et al. 2014, section 3.3; Gale and Shapley 1962). In each round every
//! task without a node proposes to its best node, and a node with several proposals takes the task that saves most
//! there, compared with its second-best node. The other tasks propose again in the next round; the number of rounds is
//! limited.
//!
//! According to the paper, "the remaining tasks and servers" continue, so a node keeps the task it took. The matching
//! is stable only with respect to rounds: a later proposal may save more than the one that was accepted.
//! [`Acceptance::Deferred`] is the rule of Gale and Shapley, by which a node gives up its task for one that saves more.

use super::{Costs, Pair, UNSUITABLE, sort_by_quality};
use amalgam_core::vocabulary::Duration;

/// Number of nodes in a block. Each block has the minimum of its costs, so that a task need not check all of its costs
/// again.
const BLOCK: usize = 16;

/// Finds pairs for successive batches. Allocates only for a batch that is larger than those before.
#[derive(Clone, Debug)]
pub struct Stable {
    rounds: u32,
    acceptance: Acceptance,
    /// By task and block: no open node of the block costs less.
    least: Vec<Duration>,
    /// By task: nodes before this one, in the order of costs, have refused it.
    from: Vec<(Duration, u32)>,
    /// By node: the task that it holds, and what that saves.
    held: Vec<Option<Held>>,
    /// By node: whether it took a task in an earlier round.
    is_full: Vec<bool>,
    /// Tasks that propose in this round, and those for the next round.
    proposing: Vec<u32>,
    losing: Vec<u32>,
    pairs: Vec<Pair>,
}

/// Whether a node may give up a task that it took in an earlier round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acceptance {
    Final,
    Deferred,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    task: u32,
    saving: Duration,
    round: u32,
}

/// The best node of a task, and its saving over the second-best.
#[derive(Clone, Copy, Debug)]
struct Proposal {
    node: u32,
    saving: Duration,
}

impl Stable {
    /// A matcher with at most this many rounds.
    pub fn new(rounds: u32, acceptance: Acceptance) -> Stable {
        Stable {
            rounds,
            acceptance,
            least: Vec::new(),
            from: Vec::new(),
            held: Vec::new(),
            is_full: Vec::new(),
            proposing: Vec::new(),
            losing: Vec::new(),
            pairs: Vec::new(),
        }
    }

    /// The pairs of a batch, the shortest waits first. Tasks without a pair are for another batch.
    pub fn find(&mut self, costs: &Costs, wait: impl Fn(Pair) -> Duration) -> &[Pair] {
        self.match_up(costs);
        self.pairs.clear();
        let held = self.held.iter().enumerate();
        self.pairs.extend(held.filter_map(|(node, held)| held.map(|held| Pair::new(held.task as usize, node))));
        sort_by_quality(&mut self.pairs, wait);
        &self.pairs
    }

    fn match_up(&mut self, costs: &Costs) {
        self.start(costs);
        for round in 0..self.rounds {
            if self.proposing.is_empty() {
                break;
            }
            self.propose(costs, round);
        }
    }

    fn start(&mut self, costs: &Costs) {
        self.held.clear();
        self.held.resize(costs.nodes(), None);
        self.is_full.clear();
        self.is_full.resize(costs.nodes(), false);
        self.losing.clear();
        self.proposing.clear();
        self.proposing.extend(0..costs.tasks() as u32);
        self.from.clear();
        self.from.resize(costs.tasks(), (Duration::ZERO, 0));
        self.least.clear();
        for task in 0..costs.tasks() {
            let least = |block: &[Duration]| block.iter().copied().fold(UNSUITABLE, Duration::min);
            self.least.extend(costs.row(task).chunks(BLOCK).map(least));
        }
    }

    /// Each task proposes once, in any order: the best proposal stays, and nodes are full for others only from the next
    /// round on.
    fn propose(&mut self, costs: &Costs, round: u32) {
        while let Some(task) = self.proposing.pop() {
            let Some(Proposal { node, saving }) = self.proposal(costs, task) else {
                continue;
            };
            let held = &mut self.held[node as usize];
            let is_better = |held: &Held| saving > held.saving || saving == held.saving && task < held.task;
            let loser = match *held {
                Some(held) if !is_better(&held) => task,
                taken => {
                    *held = Some(Held { task, saving, round });
                    let Some(loser) = taken else { continue };
                    loser.task
                }
            };
            self.from[loser as usize] = (costs.of(Pair { task: loser, node }), node + 1);
            self.losing.push(loser);
        }
        std::mem::swap(&mut self.proposing, &mut self.losing);
        self.is_full.iter_mut().zip(&self.held).for_each(|(is_full, held)| *is_full = held.is_some());
    }

    /// `None` if no node is left.
    fn proposal(&mut self, costs: &Costs, task: u32) -> Option<Proposal> {
        let row = costs.row(task as usize);
        let blocks = row.len().div_ceil(BLOCK);
        let least = &mut self.least[task as usize * blocks..][..blocks];
        match self.acceptance {
            Acceptance::Final => {
                let is_full = &self.is_full;
                best_of(row, least, |_, node| !is_full[node as usize])
            }
            Acceptance::Deferred => {
                let from = self.from[task as usize];
                best_of(row, least, |cost, node| (cost, node) >= from)
            }
        }
    }
}

/// Updates `least` where that matters: what is closed to a task stays closed.
fn best_of(row: &[Duration], least: &mut [Duration], is_open: impl Fn(Duration, u32) -> bool) -> Option<Proposal> {
    let (mut best, mut second) = ((UNSUITABLE, u32::MAX), UNSUITABLE);
    // The most promising block is checked first, so that most others need not be.
    let start = (0..least.len()).min_by_key(|&block| least[block])?;
    for block in std::iter::once(start).chain((0..least.len()).filter(|&block| block != start)) {
        if least[block] <= second && least[block] != UNSUITABLE {
            let from = block * BLOCK;
            let nodes = &row[from..row.len().min(from + BLOCK)];
            let (lowest, next) = two_least(nodes, from as u32, &is_open);
            least[block] = lowest.0;
            if lowest < best {
                (best, second) = (lowest, best.0.min(next));
            } else {
                second = second.min(lowest.0);
            }
        }
    }
    let (cost, node) = best;
    let saving = if second == UNSUITABLE { Duration::MAX } else { second - cost };
    (cost != UNSUITABLE).then_some(Proposal { node, saving })
}

/// The best open node of a block that starts with the node `from`, and the second-lowest cost.
fn two_least(block: &[Duration], from: u32, is_open: impl Fn(Duration, u32) -> bool) -> ((Duration, u32), Duration) {
    let (mut best, mut second) = ((UNSUITABLE, from), UNSUITABLE);
    for (node, &cost) in (from..).zip(block) {
        if cost < second && is_open(cost, node) {
            if cost < best.0 {
                (best, second) = ((cost, node), best.0);
            } else {
                second = cost;
            }
        }
    }
    (best, second)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, each_small, figure_5, is_maximal, pairs, random};
    use super::*;
    use amalgam_core::vocabulary::Chance;

    const UNLIMITED: u32 = u32::MAX;

    fn by_task(matcher: &mut Stable, costs: &Costs) -> Vec<Pair> {
        let mut pairs = matcher.find(costs, |_| Duration::ZERO).to_vec();
        pairs.sort_unstable();
        check(costs, &pairs);
        pairs
    }

    /// The remaining nodes of a task, best first.
    fn preferences(costs: &Costs, task: usize, is_left: impl Fn(usize) -> bool) -> Vec<(Duration, usize)> {
        let row = costs.row(task).iter().copied().enumerate();
        let mut nodes: Vec<(Duration, usize)> =
            row.filter(|&(node, cost)| cost != UNSUITABLE && is_left(node)).map(|(node, cost)| (cost, node)).collect();
        nodes.sort_unstable();
        nodes
    }

    fn saving(nodes: &[(Duration, usize)]) -> Duration {
        nodes.get(1).map_or(Duration::MAX, |second| second.0 - nodes[0].0)
    }

    /// The paper's algorithm, literally.
    fn plain(costs: &Costs, rounds: u32) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = Vec::new();
        for _ in 0..rounds {
            let without = (0..costs.tasks()).filter(|&task| !pairs.iter().any(|pair| pair.task as usize == task));
            let is_left = |node| !pairs.iter().any(|pair| pair.node as usize == node);
            let mut proposals: Vec<Vec<(Duration, usize)>> = vec![Vec::new(); costs.nodes()];
            for task in without {
                let nodes = preferences(costs, task, is_left);
                if let Some(&(_, node)) = nodes.first() {
                    proposals[node].push((saving(&nodes), task));
                }
            }
            let before = pairs.len();
            for (node, proposals) in proposals.into_iter().enumerate() {
                let most = proposals.into_iter().max_by_key(|&(saving, task)| (saving, std::cmp::Reverse(task)));
                pairs.extend(most.map(|(_, task)| Pair::new(task, node)));
            }
            if pairs.len() == before {
                break;
            }
        }
        pairs.sort_unstable();
        pairs
    }

    #[test]
    fn it_matches_the_papers_example_as_the_paper_says() {
        for acceptance in [Acceptance::Final, Acceptance::Deferred] {
            let mut matcher = Stable::new(3, acceptance);
            assert_eq!(by_task(&mut matcher, &figure_5()), pairs(&[(0, 0), (1, 2), (2, 1)]));
        }
    }

    #[test]
    fn the_matching_equals_the_papers_algorithm_for_any_number_of_rounds() {
        let mut matchers = [0, 1, 2, 3, UNLIMITED].map(|rounds| Stable::new(rounds, Acceptance::Final));
        each_small(|costs| {
            for matcher in &mut matchers {
                assert_eq!(
                    by_task(matcher, costs),
                    plain(costs, matcher.rounds),
                    "{} rounds: {costs:?}",
                    matcher.rounds
                );
            }
        });
        // Also with several blocks of nodes.
        for seed in 0..60 {
            let mut chance = Chance::new(seed, "matching");
            let (tasks, nodes) = (20 + chance.below(30_u32) as usize, 20 + chance.below(30_u32) as usize);
            let costs = random(&mut chance, tasks, nodes, [3, 40, u64::MAX][seed as usize % 3], seed as u32 % 4);
            for matcher in &mut matchers {
                assert_eq!(by_task(matcher, &costs), plain(&costs, matcher.rounds));
            }
        }
    }

    #[test]
    fn without_a_limit_no_task_is_left_that_suits_a_free_node() {
        let mut matchers = [Acceptance::Final, Acceptance::Deferred].map(|rule| Stable::new(UNLIMITED, rule));
        each_small(|costs| {
            for matcher in &mut matchers {
                let pairs = by_task(matcher, costs);
                assert!(is_maximal(costs, &pairs), "{:?}: {costs:?} {pairs:?}", matcher.acceptance);
            }
        });
    }

    /// A blocking pair: a task and a node that would both prefer each other to what they have.
    #[test]
    fn final_acceptance_has_no_blocking_pair_within_a_round() {
        let mut matcher = Stable::new(UNLIMITED, Acceptance::Final);
        each_small(|costs| {
            let pairs = by_task(&mut matcher, costs);
            let taken_in = |node: usize| matcher.held.get(node).copied().flatten().map_or(UNLIMITED, |held| held.round);
            for (task, own) in with_own(costs, &pairs) {
                for (cost, node) in preferences(costs, task, |_| true).into_iter().filter(|of| *of < own) {
                    let held = matcher.held[node].expect("a task proposes to a free node that it prefers");
                    let left_then = preferences(costs, task, |other| taken_in(other) >= held.round);
                    assert!(held.round <= taken_in(own.1), "a better node was open");
                    if left_then[0] == (cost, node) {
                        let other = (saving(&left_then), std::cmp::Reverse(task));
                        assert!((held.saving, std::cmp::Reverse(held.task as usize)) > other, "{costs:?} {pairs:?}");
                    }
                }
            }
        });
    }

    #[test]
    fn deferred_acceptance_has_no_blocking_pair() {
        let mut matcher = Stable::new(UNLIMITED, Acceptance::Deferred);
        let mut look = |costs: &Costs| {
            let pairs = by_task(&mut matcher, costs);
            let saves = |task: usize, node: usize| {
                let nodes = preferences(costs, task, |_| true);
                let place = nodes.iter().position(|of| of.1 == node).expect("it suits");
                (saving(&nodes[place..]), std::cmp::Reverse(task))
            };
            for (task, own) in with_own(costs, &pairs) {
                for (_, node) in preferences(costs, task, |_| true).into_iter().filter(|of| *of < own) {
                    let holder =
                        pairs.iter().find(|pair| pair.node as usize == node).expect("the task proposed to the node");
                    assert!(saves(holder.task as usize, node) > saves(task, node), "{costs:?} {pairs:?}");
                }
            }
        };
        each_small(&mut look);
        for seed in 0..20 {
            look(&random(&mut Chance::new(seed, "matching"), 30, 25, [3, 1_000][seed as usize % 2], 4));
        }
    }

    /// Every task, with its cost and node.
    fn with_own(costs: &Costs, pairs: &[Pair]) -> Vec<(usize, (Duration, usize))> {
        let own = |task: usize| {
            let pair = pairs.iter().find(|pair| pair.task as usize == task);
            pair.map_or((UNSUITABLE, usize::MAX), |&pair| (costs.of(pair), pair.node as usize))
        };
        (0..costs.tasks()).map(|task| (task, own(task))).collect()
    }

    #[test]
    fn the_order_of_tasks_and_nodes_matters_only_for_equal_costs() {
        for seed in 0..200 {
            let mut chance = Chance::new(seed, "matching");
            let costs = random(&mut chance, 12, 14, u64::MAX, 5);
            let tasks = shuffled(&mut chance, 12);
            let nodes = shuffled(&mut chance, 14);
            let mut moved = Costs::new(12, 14);
            for (to, &from) in tasks.iter().enumerate() {
                (0..14).for_each(|node| moved.set(to, node, costs.row(from)[nodes[node]]));
            }
            for acceptance in [Acceptance::Final, Acceptance::Deferred] {
                let mut matcher = Stable::new(3, acceptance);
                let back = |pair: &Pair| Pair::new(tasks[pair.task as usize], nodes[pair.node as usize]);
                let mut of_moved: Vec<Pair> = by_task(&mut matcher, &moved).iter().map(back).collect();
                of_moved.sort_unstable();
                assert_eq!(of_moved, by_task(&mut matcher, &costs));
            }
        }
    }

    fn shuffled(chance: &mut Chance, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, chance.below(last as u32 + 1) as usize);
        }
        order
    }

    #[test]
    fn equal_nodes_and_equal_tasks_are_matched_by_index() {
        let mut costs = Costs::new(3, 5);
        (0..3).for_each(|task| costs.row_mut(task).fill(Duration(7)));
        let mut matcher = Stable::new(UNLIMITED, Acceptance::Final);
        assert_eq!(by_task(&mut matcher, &costs), pairs(&[(0, 0), (1, 1), (2, 2)]));
    }

    #[test]
    fn pairs_are_sorted_by_wait() {
        let mut matcher = Stable::new(3, Acceptance::Final);
        let waits = [4, 2, 2].map(Duration);
        let found = matcher.find(&figure_5(), |pair| waits[pair.node as usize]);
        assert_eq!(found, pairs(&[(1, 2), (2, 1), (0, 0)]));
    }
}
