//! The product's matchings are equal to, or as good as, those over whole tables.

use super::tests::{each_small, random};
use super::{Acceptance, Costs, Pair, Stable, UNSUITABLE, optimal};
use amalgam_core::policy::matching::{Candidates, Growing, Pairing, Regret};
use amalgam_core::vocabulary::{Chance, Duration};

fn sparse(candidates: &mut Candidates, costs: &Costs, rounds: u32) -> Vec<Pair> {
    candidates.clear();
    for task in 0..costs.tasks() {
        candidates.push_task();
        for (node, &cost) in costs.row(task).iter().enumerate().filter(|(_, cost)| **cost != UNSUITABLE) {
            // Node numbers as in a large cluster.
            candidates.push(1_000 + 7 * node as u32, cost, Duration::ZERO);
        }
    }
    let found = candidates.find(rounds).iter();
    found.map(|one| Pair { task: one.task, node: (one.node - 1_000) / 7 }).collect()
}

#[test]
fn sparse_and_dense_matching_are_equal() {
    let mut candidates = Candidates::default();
    let mut look = |costs: &Costs| {
        for rounds in [0, 1, 3, u32::MAX] {
            let mut dense = Stable::new(rounds, Acceptance::Final).find(costs, |_| Duration::ZERO).to_vec();
            dense.sort_unstable();
            assert_eq!(sparse(&mut candidates, costs, rounds), dense, "{rounds} rounds: {costs:?}");
        }
    };
    each_small(&mut look);
    for seed in 0..30 {
        look(&random(&mut Chance::new(seed, "sparse"), 40, 30, [3, u64::MAX][seed as usize % 2], 2));
    }
}

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

fn one_after_the_other(matcher: &mut Regret, run_times: &[Vec<u64>]) -> Vec<Pair> {
    matcher.clear();
    for row in run_times {
        matcher.push_task();
        (0..row.len()).for_each(|node| assert!(matcher.push(node as u32)));
    }
    let found = matcher.find(|nodes| Queues { run_times, waits: vec![0; nodes.len()] });
    found.iter().map(|one| Pair { task: one.task, node: one.node }).collect()
}

#[test]
fn distinct_best_nodes_give_the_minimum_sum() {
    let mut matcher = Regret::default();
    for seed in 0..200 {
        let mut chance = Chance::new(seed, "regret and least sum");
        let nodes = 2 + chance.below(6_u32) as usize;
        // On other nodes each task takes longer than all others in total, so that none takes another's node.
        let slow = |chance: &mut Chance| 10_000 + chance.below(1_000_u64);
        let run_times: Vec<Vec<u64>> = (0..nodes)
            .map(|task| {
                let row =
                    (0..nodes).map(|node| if node == task { 1 + chance.below(1_000_u64) } else { slow(&mut chance) });
                row.collect()
            })
            .collect();
        let mut costs = Costs::new(nodes, nodes);
        for (task, row) in run_times.iter().enumerate() {
            row.iter().enumerate().for_each(|(node, took)| costs.set(task, node, Duration(*took)));
        }
        let pairs = one_after_the_other(&mut matcher, &run_times);
        assert_eq!(costs.total(&pairs), costs.total(&optimal(&costs)));
    }
}
