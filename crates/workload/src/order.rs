//! The order of stages: each after those it depends on, and otherwise as written.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Sorts `0..after.len()` so that every number comes behind those that it is after; among those that could come next
/// the smallest does.
///
/// # Errors
/// The numbers along a cycle, the first repeated at the end.
pub fn topological(after: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut missing: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut followers = vec![Vec::new(); after.len()];
    for (stage, befores) in after.iter().enumerate() {
        for &before in befores {
            followers[before].push(stage);
        }
    }
    let mut ready: BinaryHeap<_> = (0..after.len()).filter(|stage| missing[*stage] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(after.len());
    while let Some(Reverse(stage)) = ready.pop() {
        order.push(stage);
        for &follower in &followers[stage] {
            missing[follower] -= 1;
            if missing[follower] == 0 {
                ready.push(Reverse(follower));
            }
        }
    }
    if order.len() == after.len() { Ok(order) } else { Err(cycle(after, &missing)) }
}

/// Walks from a stage that never became ready along dependencies that never did, until one comes round again. Reads
/// in the direction of the work: `a -> b` when b is after a.
fn cycle(after: &[Vec<usize>], missing: &[usize]) -> Vec<usize> {
    let mut seen_at = vec![None; after.len()];
    let mut path = Vec::new();
    let mut next = missing.iter().position(|missing| *missing > 0);
    while let Some(stage) = next {
        if let Some(start) = seen_at[stage] {
            let mut cycle: Vec<usize> = path.split_off(start);
            cycle.reverse();
            let first = cycle.iter().enumerate().min_by_key(|(_, stage)| **stage).map_or(0, |(at, _)| at);
            cycle.rotate_left(first);
            cycle.extend(cycle.first().copied());
            return cycle;
        }
        seen_at[stage] = Some(path.len());
        path.push(stage);
        next = after[stage].iter().copied().find(|before| missing[*before] > 0);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_order_is_kept_where_possible() {
        assert_eq!(topological(&[vec![], vec![], vec![0]]), Ok(vec![0, 1, 2]));
        assert_eq!(topological(&[vec![2], vec![], vec![1]]), Ok(vec![1, 2, 0]));
    }

    #[test]
    fn a_cycle_is_named_in_the_direction_of_the_work() {
        // 1 waits for 3, 2 for 1, 3 for 2; 4 only hangs behind.
        assert_eq!(topological(&[vec![], vec![0, 3], vec![1], vec![2], vec![3]]), Err(vec![1, 2, 3, 1]));
        assert_eq!(topological(&[vec![0]]), Err(vec![0, 0]));
    }
}
