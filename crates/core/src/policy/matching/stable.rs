//! Apollo's variation of stable matching (Boutin et al. 2014, section 3.3; Gale and Shapley 1962). In each round every task
//! without a node proposes to its best one, and a node with several proposals takes the task that saves most there,
//! against its next best node. The others propose anew in the next round; rounds are limited.
//!
//! "The remaining tasks and servers" go on, the paper says: what a node took it keeps. So it is stable only in that an
//! earlier round comes first: a later proposal may save more than the one that was taken. [`Acceptance::Deferred`] is
//! Gale's and Shapley's rule, by which a node gives up its task for one that saves more.

use super::{Costs, Pair, UNSUITABLE, sort_by_quality};
use crate::vocabulary::Duration;

/// So many of a task's best nodes are found in one look at its costs: hardly a task needs more, and most need two.
const SHORTLIST: usize = 8;

/// Finds pairs, batch after batch, without allocating for a batch that is no larger than one before.
#[derive(Clone, Debug)]
pub struct Stable {
    rounds: u32,
    acceptance: Acceptance,
    /// By task.
    shortlists: Vec<Shortlist>,
    /// By node: the task that it holds, and what that saves.
    held: Vec<Option<Held>>,
    /// Tasks that propose in this round, and those that will in the next one.
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

/// The best nodes of a task, best first, of those that it has not proposed to yet.
#[derive(Clone, Copy, Debug)]
struct Shortlist {
    nodes: [(Duration, u32); SHORTLIST],
    len: u8,
    /// The next to propose to.
    at: u8,
}

/// The best node of a task, and what it saves against the next best one.
#[derive(Clone, Copy, Debug)]
struct Proposal {
    node: u32,
    saving: Duration,
}

impl Stable {
    /// With so many rounds at most.
    pub fn new(rounds: u32, acceptance: Acceptance) -> Stable {
        Stable {
            rounds,
            acceptance,
            shortlists: Vec::new(),
            held: Vec::new(),
            proposing: Vec::new(),
            losing: Vec::new(),
            pairs: Vec::new(),
        }
    }

    /// The pairs of a batch, those that wait least first. Tasks without a pair come again in another batch.
    pub fn find(&mut self, costs: &Costs, wait: impl Fn(Pair) -> Duration) -> &[Pair] {
        self.begin(costs);
        for round in 0..self.rounds {
            if self.proposing.is_empty() {
                break;
            }
            self.propose(costs, round);
        }
        self.pairs.clear();
        let held = self.held.iter().enumerate();
        self.pairs.extend(held.filter_map(|(node, held)| held.map(|held| Pair::new(held.task as usize, node))));
        sort_by_quality(&mut self.pairs, wait);
        &self.pairs
    }

    fn begin(&mut self, costs: &Costs) {
        self.held.clear();
        self.held.resize(costs.nodes(), None);
        self.losing.clear();
        self.proposing.clear();
        self.proposing.extend(0..costs.tasks() as u32);
        self.shortlists.clear();
        self.shortlists.extend((0..costs.tasks()).map(|task| Shortlist::of(costs.row(task), |_, _| true)));
    }

    /// Each proposes once. In which order is all the same: the best proposal stays, and nodes are only full for others from
    /// the next round on.
    fn propose(&mut self, costs: &Costs, round: u32) {
        while let Some(task) = self.proposing.pop() {
            let Some(Proposal { node, saving }) = self.proposal(costs, task, round) else {
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
            self.shortlists[loser as usize].at += 1;
            self.losing.push(loser);
        }
        std::mem::swap(&mut self.proposing, &mut self.losing);
    }

    /// `None` where no node is left.
    fn proposal(&mut self, costs: &Costs, task: u32, round: u32) -> Option<Proposal> {
        let is_open = |node: u32| match self.acceptance {
            Acceptance::Deferred => true,
            Acceptance::Final => self.held[node as usize].is_none_or(|held| held.round == round),
        };
        let shortlist = &mut self.shortlists[task as usize];
        let mut next = shortlist.next_two(is_open);
        if next[1].is_none() && !shortlist.is_all() {
            // Nothing better is open, and without a node it proposed to nothing worse.
            let from = next[0];
            *shortlist = Shortlist::of(costs.row(task as usize), |cost, node| {
                from.is_none_or(|from| (cost, node) >= from) && is_open(node)
            });
            next = shortlist.next_two(is_open);
        }
        let (cost, node) = next[0]?;
        let saving = next[1].map_or(Duration::MAX, |(second, _)| second - cost);
        Some(Proposal { node, saving })
    }
}

impl Shortlist {
    /// Of the nodes that suit and are eligible.
    fn of(row: &[Duration], is_eligible: impl Fn(Duration, u32) -> bool) -> Shortlist {
        let mut list = Shortlist { nodes: [(UNSUITABLE, 0); SHORTLIST], len: 0, at: 0 };
        // Only what costs less comes in, so of equal ones the first stays.
        let mut bound = UNSUITABLE;
        for (node, &cost) in (0..).zip(row) {
            if cost < bound && is_eligible(cost, node) {
                list.insert(cost, node);
                bound = list.nodes[SHORTLIST - 1].0;
            }
        }
        list
    }

    /// After all that cost as much; the last falls out.
    fn insert(&mut self, cost: Duration, node: u32) {
        let mut place = usize::from(self.len).min(SHORTLIST - 1);
        while place > 0 && self.nodes[place - 1].0 > cost {
            self.nodes[place] = self.nodes[place - 1];
            place -= 1;
        }
        self.nodes[place] = (cost, node);
        self.len = (self.len + 1).min(SHORTLIST as u8);
    }

    /// It may be longer than the list only where that is full.
    fn is_all(&self) -> bool {
        usize::from(self.len) < SHORTLIST
    }

    /// The next open nodes, beginning with the one to propose to.
    fn next_two(&mut self, is_open: impl Fn(u32) -> bool) -> [Option<(Duration, u32)>; 2] {
        let left = &self.nodes[usize::from(self.at)..usize::from(self.len)];
        let mut open = left.iter().enumerate().filter(|(_, (_, node))| is_open(*node));
        let first = open.next();
        let second = open.next().map(|(_, &second)| second);
        // Those before it are not opened again.
        self.at += first.map_or(0, |(passed, _)| passed) as u8;
        [first.map(|(_, &first)| first), second]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, each_small, figure_5, is_maximal, pairs, random};
    use super::*;
    use crate::vocabulary::Chance;

    const UNLIMITED: u32 = u32::MAX;

    fn by_task(matcher: &mut Stable, costs: &Costs) -> Vec<Pair> {
        let mut pairs = matcher.find(costs, |_| Duration::ZERO).to_vec();
        pairs.sort_unstable();
        check(costs, &pairs);
        pairs
    }

    /// The nodes of a task that are left, best first.
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

    /// As the paper tells it, word by word.
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
    fn it_does_what_the_paper_tells_with_any_number_of_rounds() {
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
        // Where shortlists run out.
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
    fn without_a_limit_nobody_is_left_who_could_have_a_node() {
        let mut matchers = [Acceptance::Final, Acceptance::Deferred].map(|rule| Stable::new(UNLIMITED, rule));
        each_small(|costs| {
            for matcher in &mut matchers {
                let pairs = by_task(matcher, costs);
                assert!(is_maximal(costs, &pairs), "{:?}: {costs:?} {pairs:?}", matcher.acceptance);
            }
        });
    }

    /// A pair blocks that would rather have each other than what they have.
    #[test]
    fn no_pair_blocks_where_an_earlier_round_comes_first_and_then_what_saves_more() {
        let mut matcher = Stable::new(UNLIMITED, Acceptance::Final);
        each_small(|costs| {
            let pairs = by_task(&mut matcher, costs);
            let taken_in = |node: usize| matcher.held.get(node).copied().flatten().map_or(UNLIMITED, |held| held.round);
            for (task, own) in with_own(costs, &pairs) {
                for (cost, node) in preferences(costs, task, |_| true).into_iter().filter(|of| *of < own) {
                    let held = matcher.held[node].expect("whoever would rather be on a free node proposes to it");
                    let left_then = preferences(costs, task, |other| taken_in(other) >= held.round);
                    assert!(held.round <= taken_in(own.1), "a node that is better was open");
                    if left_then[0] == (cost, node) {
                        let other = (saving(&left_then), std::cmp::Reverse(task));
                        assert!((held.saving, std::cmp::Reverse(held.task as usize)) > other, "{costs:?} {pairs:?}");
                    }
                }
            }
        });
    }

    #[test]
    fn no_pair_blocks_where_a_node_gives_up_its_task_for_one_that_saves_more() {
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
                    let holder = pairs.iter().find(|pair| pair.node as usize == node).expect("it proposed to the node");
                    assert!(saves(holder.task as usize, node) > saves(task, node), "{costs:?} {pairs:?}");
                }
            }
        };
        each_small(&mut look);
        for seed in 0..20 {
            look(&random(&mut Chance::new(seed, "matching"), 30, 25, [3, 1_000][seed as usize % 2], 4));
        }
    }

    /// Every task, and what it has.
    fn with_own(costs: &Costs, pairs: &[Pair]) -> Vec<(usize, (Duration, usize))> {
        let own = |task: usize| {
            let pair = pairs.iter().find(|pair| pair.task as usize == task);
            pair.map_or((UNSUITABLE, usize::MAX), |&pair| (costs.of(pair), pair.node as usize))
        };
        (0..costs.tasks()).map(|task| (task, own(task))).collect()
    }

    #[test]
    fn the_order_of_tasks_and_nodes_matters_only_where_costs_are_equal() {
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
    fn equal_nodes_go_by_their_index_and_equal_tasks_too() {
        let mut costs = Costs::new(3, 5);
        (0..3).for_each(|task| costs.row_mut(task).fill(Duration(7)));
        let mut matcher = Stable::new(UNLIMITED, Acceptance::Final);
        assert_eq!(by_task(&mut matcher, &costs), pairs(&[(0, 0), (1, 1), (2, 2)]));
    }

    #[test]
    fn pairs_that_wait_less_come_first() {
        let mut matcher = Stable::new(3, Acceptance::Final);
        let waits = [4, 2, 2].map(Duration);
        let found = matcher.find(&figure_5(), |pair| waits[pair.node as usize]);
        assert_eq!(found, pairs(&[(1, 2), (2, 1), (0, 0)]));
    }
}
