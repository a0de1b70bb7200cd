//! Batch sampling with late binding (Ousterhout et al. 2013: Sparrow, section 3): d nodes are probed for each
//! task of a batch, all different as long as there are enough, and the tasks go to those that are ready first. Per-job
//! and per-task constraints (section 4.1) are the classes of the asks.
//!
//! Departs: lost probes are replaced, and a task that is retried shares the outstanding probes.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Chance, Instant, NodeViews};
use std::collections::BTreeSet;

/// Draws for each requested node before all nodes are examined.
const DRAWS: usize = 4;

pub struct BatchSampling {
    chance: Chance,
    /// d, the probes for each task.
    ratio: u32,
}

impl BatchSampling {
    pub fn new(chance: Chance, ratio: u32) -> BatchSampling {
        BatchSampling { chance, ratio }
    }

    /// `wanted` nodes that suit the ask, drawn uniformly; a node repeats only after all suitable nodes were drawn. Empty if no
    /// node suits.
    fn sample(&mut self, ask: &OpenAsk, wanted: usize, view: &dyn NodeViews) -> Vec<usize> {
        let mut sampled = self.draw(ask, wanted, view);
        if sampled.len() < wanted {
            let drawn: BTreeSet<usize> = sampled.iter().copied().collect();
            let suits = |node: &usize| view.has_room(*node, ask.class, &ask.shape);
            let mut rest: Vec<usize> = (0..view.len()).filter(|node| !drawn.contains(node) && suits(node)).collect();
            self.shuffle(&mut rest);
            sampled.append(&mut rest);
            sampled = sampled.iter().copied().cycle().take(wanted).collect();
        }
        sampled
    }

    /// At most `wanted` different suitable nodes, as far as a few draws find them.
    fn draw(&mut self, ask: &OpenAsk, wanted: usize, view: &dyn NodeViews) -> Vec<usize> {
        let nodes = u32::try_from(view.len()).expect("a node's number has 32 bits");
        let mut sampled = Vec::with_capacity(wanted);
        let mut drawn = BTreeSet::new();
        // If more than half of the nodes are requested, most draws would fail.
        let draws = if wanted * 2 > view.len() { 0 } else { wanted * DRAWS };
        for _ in 0..draws {
            let node = self.chance.below(nodes) as usize;
            if view.has_room(node, ask.class, &ask.shape) && drawn.insert(node) {
                sampled.push(node);
                if sampled.len() == wanted {
                    break;
                }
            }
        }
        sampled
    }

    /// Fisher-Yates shuffle.
    fn shuffle(&mut self, nodes: &mut [usize]) {
        for last in (1..nodes.len()).rev() {
            nodes.swap(last, self.chance.below(last as u32 + 1) as usize);
        }
    }
}

impl PlacementPolicy for BatchSampling {
    fn place(&mut self, _: Instant, asks: &[OpenAsk], _: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks {
            let wanted = (ask.count * u64::from(self.ratio)).saturating_sub(ask.probes);
            if wanted == 0 {
                continue;
            }
            let sampled = self.sample(ask, usize::try_from(wanted).unwrap_or(usize::MAX), view);
            if sampled.is_empty() && ask.probes == 0 {
                out.push(Decision::Wait { ask: ask.slot });
            }
            out.extend(sampled.into_iter().map(|node| Decision::Probe { ask: ask.slot, node }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::placement::tests::Nodes;

    fn probes(seed: u64, ask: &OpenAsk, nodes: &Nodes) -> Vec<usize> {
        let mut policy = BatchSampling::new(Chance::new(seed, "placement"), 2);
        let mut decisions = Vec::new();
        policy.place(Instant::ZERO, &[*ask], Budget { starts: 1 }, nodes, &mut decisions);
        let probe = |decision: &Decision| match *decision {
            Decision::Probe { node, .. } => Some(node),
            _ => None,
        };
        decisions.iter().filter_map(probe).collect()
    }

    #[test]
    fn two_nodes_are_probed_for_each_task_all_suit_and_no_node_twice_before_all_were() {
        for seed in 0..200 {
            let nodes = Nodes::random(seed, 60);
            for count in [1, 3, 10, 40] {
                let ask = OpenAsk { count, ..Nodes::ask(800, 800) };
                let suitable: BTreeSet<usize> = nodes.fitting(&ask).collect();
                let sampled = probes(seed, &ask, &nodes);
                let different: BTreeSet<usize> = sampled.iter().copied().collect();
                let wanted = 2 * count as usize;
                assert_eq!(sampled.len(), if suitable.is_empty() { 0 } else { wanted });
                assert!(different.is_subset(&suitable));
                assert_eq!(different.len(), wanted.min(suitable.len()));
            }
        }
    }

    #[test]
    fn only_tasks_without_probes_are_probed_for() {
        let nodes = Nodes::random(1, 60);
        let ask = OpenAsk { count: 10, probes: 17, ..Nodes::ask(100, 100) };
        assert_eq!(probes(1, &ask, &nodes).len(), 3);
        assert_eq!(probes(1, &OpenAsk { probes: 25, ..ask }, &nodes).len(), 0);
    }

    #[test]
    fn every_node_that_suits_is_probed_about_equally_often() {
        let nodes = Nodes::random(3, 40);
        let ask = OpenAsk { count: 4, ..Nodes::ask(500, 500) };
        let suitable: Vec<usize> = nodes.fitting(&ask).collect();
        let mut counts = [0usize; 40];
        for seed in 0..4_000 {
            probes(seed, &ask, &nodes).into_iter().for_each(|node| counts[node] += 1);
        }
        let expected = 4_000 * 8 / suitable.len();
        for node in suitable {
            assert!(counts[node].abs_diff(expected) < expected / 8, "{} of {expected}", counts[node]);
        }
    }
}
