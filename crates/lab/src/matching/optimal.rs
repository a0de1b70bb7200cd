//! The matching of minimum cost: the maximum number of pairs, and among these matchings the minimum sum (Kuhn 1955, Munkres
//! 1957), in time proportional to the smaller of tasks and nodes squared, times the larger.

use super::{Costs, Pair, UNSUITABLE};
use amalgam_core::vocabulary::Duration;
use pathfinding::kuhn_munkres::kuhn_munkres_min;
use pathfinding::matrix::Matrix;

/// The pairs, ordered by task.
pub fn optimal(costs: &Costs) -> Vec<Pair> {
    // Rows are the smaller side: each gets one column of the larger side.
    let is_turned = costs.tasks() > costs.nodes();
    let (rows, columns) = if is_turned { (costs.nodes(), costs.tasks()) } else { (costs.tasks(), costs.nodes()) };
    if rows == 0 {
        return Vec::new();
    }
    let pair = |row: usize, column: usize| if is_turned { Pair::new(column, row) } else { Pair::new(row, column) };
    let cells = || (0..rows).flat_map(|row| (0..columns).map(move |column| costs.of(pair(row, column))));
    let dearest = cells().filter(|cost| *cost != UNSUITABLE).max().map_or(0, |cost| i128::from(cost.0));
    // Dearer than all pairs in total, so that no suitable pair is given up for it.
    let alone = (dearest + 1) * (rows as i128 + 1);
    let weight = |cost: Duration| if cost == UNSUITABLE { alone } else { i128::from(cost.0) };
    let weights = Matrix::from_vec(rows, columns, cells().map(weight).collect()).expect("each row has all columns");
    let (_, column_of) = kuhn_munkres_min(&weights);
    let matched = column_of.into_iter().enumerate().map(|(row, column)| pair(row, column));
    let mut pairs: Vec<Pair> = matched.filter(|&pair| costs.of(pair) != UNSUITABLE).collect();
    pairs.sort_unstable();
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::greedy;
    use super::super::tests::{check, each_small, figure_5, is_maximal, random};
    use super::*;
    use amalgam_core::vocabulary::Chance;

    /// The maximum number of pairs from this task on, and their minimum cost.
    fn by_trying_all(costs: &Costs, task: usize, taken: &mut [bool]) -> (usize, u128) {
        if task == costs.tasks() {
            return (0, 0);
        }
        let mut best = by_trying_all(costs, task + 1, taken);
        for node in 0..costs.nodes() {
            let cost = costs.row(task)[node];
            if cost == UNSUITABLE || std::mem::replace(&mut taken[node], true) {
                continue;
            }
            let (pairs, sum) = by_trying_all(costs, task + 1, taken);
            taken[node] = false;
            let with = (pairs + 1, sum + u128::from(cost.0));
            if with.0 > best.0 || with.0 == best.0 && with.1 < best.1 {
                best = with;
            }
        }
        best
    }

    #[test]
    fn no_other_matching_has_more_pairs_or_a_lower_cost() {
        each_small(|costs| {
            let pairs = optimal(costs);
            check(costs, &pairs);
            assert!(is_maximal(costs, &pairs));
            let least = by_trying_all(costs, 0, &mut vec![false; costs.nodes()]);
            assert_eq!((pairs.len(), costs.total(&pairs)), least, "{costs:?}");
        });
    }

    #[test]
    fn larger_batches_cost_no_more_than_greedy_and_no_exchange_is_cheaper() {
        for (seed, (tasks, nodes)) in (0..).zip([(60, 60), (40, 90), (90, 40), (70, 71)]) {
            let costs = random(&mut Chance::new(seed, "matching"), tasks, nodes, 1_000_000, 3);
            let pairs = optimal(&costs);
            check(&costs, &pairs);
            let by_greedy = greedy(&costs);
            assert!(pairs.len() >= by_greedy.len());
            assert!(pairs.len() > by_greedy.len() || costs.total(&pairs) <= costs.total(&by_greedy));
            for one in &pairs {
                for other in &pairs {
                    let swapped = [(one.task, other.node), (other.task, one.node)];
                    let swapped = swapped.map(|(task, node)| costs.of(Pair { task, node }));
                    if !swapped.contains(&UNSUITABLE) {
                        assert!(costs.of(*one) + costs.of(*other) <= swapped[0] + swapped[1]);
                    }
                }
            }
        }
    }

    #[test]
    fn the_papers_example_is_matched_at_minimum_cost() {
        assert_eq!(figure_5().total(&optimal(&figure_5())), 6 + 6 + 10);
    }
}
