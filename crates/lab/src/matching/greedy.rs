//! The baseline of matchings: each task in turn takes the best remaining node.

use super::{Costs, Pair, UNSUITABLE};

/// The pairs, ordered by task.
pub fn greedy(costs: &Costs) -> Vec<Pair> {
    let mut taken = vec![false; costs.nodes()];
    let mut pairs = Vec::with_capacity(costs.tasks().min(costs.nodes()));
    for task in 0..costs.tasks() {
        let mut best = (UNSUITABLE, 0);
        for (node, &cost) in costs.row(task).iter().enumerate() {
            // The cheaper comparison comes first: most nodes fail it.
            if cost < best.0 && !taken[node] {
                best = (cost, node);
            }
        }
        if best.0 != UNSUITABLE {
            taken[best.1] = true;
            pairs.push(Pair::new(task, best.1));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, each_small, figure_5, is_maximal, pairs};
    use super::*;

    #[test]
    fn each_task_takes_the_first_of_the_best_remaining_nodes() {
        each_small(|costs| {
            let pairs = greedy(costs);
            check(costs, &pairs);
            assert!(is_maximal(costs, &pairs));
            for (index, pair) in pairs.iter().enumerate() {
                let left = |node: &usize| !pairs[..index].iter().any(|before| before.node as usize == *node);
                let row = costs.row(pair.task as usize);
                let best = (0..costs.nodes()).filter(left).min_by_key(|&node| (row[node], node));
                assert_eq!(best, Some(pair.node as usize));
            }
        });
    }

    #[test]
    fn it_matches_the_papers_example_as_the_paper_says() {
        assert_eq!(greedy(&figure_5()), pairs(&[(0, 0), (1, 1), (2, 2)]));
    }
}
