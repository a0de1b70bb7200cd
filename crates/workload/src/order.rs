//! Topological order of stages. Stages that do not depend on each other keep the order of the file.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Sorts `0..after.len()` topologically: `after[n]` are the numbers that `n` depends on. Of several numbers that could
/// be next, the smallest one is.
///
/// # Errors
/// The numbers of a cycle, with the first one repeated at the end.
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

/// Follows dependencies from a stage that never became ready to others that never did, until one is visited again. The
/// result is in the order of execution: `a -> b` if b depends on a.
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
    fn independent_stages_keep_the_order_of_the_file() {
        assert_eq!(topological(&[vec![], vec![], vec![0]]), Ok(vec![0, 1, 2]));
        assert_eq!(topological(&[vec![2], vec![], vec![1]]), Ok(vec![1, 2, 0]));
    }

    #[test]
    fn a_cycle_is_reported_in_the_order_of_execution() {
        // 1 depends on 3, 2 on 1, 3 on 2; 4 depends on the cycle but is not in it.
        assert_eq!(topological(&[vec![], vec![0, 3], vec![1], vec![2], vec![3]]), Err(vec![1, 2, 3, 1]));
        assert_eq!(topological(&[vec![0]]), Err(vec![0, 0]));
    }
}
