//! An order in which no job ends later than with fair shares, and the sum of completion times is the smallest that this
//! allows.
//!
//! The end of a job with fair shares is its deadline (Friedman and Henderson 2003, "Fairness and efficiency in web server
//! protocols": an order by these ends meets all of them). Of the orders that meet all deadlines, Smith's backward rule
//! gives the one with the smallest sum of completion times (Smith 1956, "Various optimizers for single-stage
//! production"): of the jobs that may end last, the one with the most work does.
//!
//! Departs: a job is taken for one machine's work, as if it could use the whole cluster. If a deadline cannot be met,
//! because an estimate was wrong or a job cannot use its share, the job with the latest deadline ends last.

use std::collections::BinaryHeap;

/// A job's work, as the time for which it would occupy the whole cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FairJob {
    /// What it has left.
    pub left: u64,
    /// What it would have left with fair shares.
    pub fair_left: u64,
}

/// The indices of the jobs in their order; of equal jobs, the one with the smaller index is first. `gone` is the work that
/// jobs which have ended would have left with fair shares. Takes O(n log n) steps.
pub fn order(jobs: &[FairJob], gone: &[u64]) -> Vec<usize> {
    let mut by_deadline: Vec<(u64, usize)> = deadlines(jobs, gone).into_iter().zip(0..).collect();
    by_deadline.sort_unstable();
    let mut ends = jobs.iter().fold(0_u64, |sum, job| sum.saturating_add(job.left));
    // Jobs that may end last.
    let mut eligible: BinaryHeap<(u64, usize)> = BinaryHeap::new();
    let mut order = Vec::with_capacity(jobs.len());
    while order.len() < jobs.len() {
        while let Some((_, job)) = by_deadline.pop_if(|(deadline, _)| *deadline >= ends) {
            eligible.push((jobs[job].left, job));
        }
        let last = eligible.pop().map(|(_, job)| job).or_else(|| by_deadline.pop().map(|(_, job)| job));
        let last = last.expect("a job that is not in the order yet is in one of the two");
        ends = ends.saturating_sub(jobs[last].left);
        order.push(last);
    }
    order.reverse();
    order
}

/// When each job would end with fair shares: all that is done until then, of all jobs.
fn deadlines(jobs: &[FairJob], gone: &[u64]) -> Vec<u64> {
    let mut all: Vec<u64> = jobs.iter().map(|job| job.fair_left).chain(gone.iter().copied()).collect();
    all.sort_unstable();
    let before: Vec<u64> = std::iter::once(0)
        .chain(all.iter().scan(0_u64, |sum, left| {
            *sum = sum.saturating_add(*left);
            Some(*sum)
        }))
        .collect();
    let deadline = |job: &FairJob| {
        let shorter = all.partition_point(|left| *left < job.fair_left);
        let longer = (all.len() - shorter) as u64;
        before[shorter].saturating_add(longer.saturating_mul(job.fair_left))
    };
    jobs.iter().map(deadline).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    fn job(left: u64, fair_left: u64) -> FairJob {
        FairJob { left, fair_left }
    }

    #[test]
    fn short_jobs_come_first_as_far_as_no_long_one_ends_later_than_with_fair_shares() {
        assert_eq!(order(&[job(900, 900), job(100, 100), job(400, 400)], &[]), [1, 2, 0]);
        // With fair shares the first job would be almost done.
        assert_eq!(order(&[job(900, 50), job(100, 100)], &[]), [0, 1]);
        // It ends after 1,000 with fair shares: one short job fits before it, the second one does not.
        let with_one_gone = [job(900, 200), job(90, 300), job(80, 300)];
        assert_eq!(deadlines(&with_one_gone, &[400]), [800, 1_100, 1_100]);
        assert_eq!(order(&with_one_gone, &[400]), [0, 2, 1]);
        assert_eq!(order(&[], &[5]), [] as [usize; 0]);
    }

    /// The sum of completion times; `None` if a deadline is missed.
    fn sum_of(order: &[usize], jobs: &[FairJob], deadlines: &[u64]) -> Option<u64> {
        let (mut now, mut sum) = (0, 0);
        for &job in order {
            now += jobs[job].left;
            sum += now;
            if now > deadlines[job] {
                return None;
            }
        }
        Some(sum)
    }

    fn orders(rest: Vec<usize>) -> Vec<Vec<usize>> {
        if rest.is_empty() {
            return vec![Vec::new()];
        }
        let with_first = |at: usize| {
            let mut rest = rest.clone();
            let first = rest.remove(at);
            orders(rest).into_iter().map(move |order| std::iter::once(first).chain(order).collect())
        };
        (0..rest.len()).flat_map(with_first).collect()
    }

    #[test]
    fn no_order_that_meets_all_deadlines_has_a_smaller_sum() {
        let mut chance = Chance::new(7, "jobs");
        let mut feasible = 0;
        for _ in 0..400 {
            let jobs: Vec<FairJob> = (0..2 + chance.below(5_u64))
                .map(|_| {
                    let fair_left = 1 + chance.below(100_u64);
                    job(1 + chance.below(fair_left + 20), fair_left)
                })
                .collect();
            let gone: Vec<u64> = (0..chance.below(3_u64)).map(|_| 1 + chance.below(60_u64)).collect();
            let deadlines = deadlines(&jobs, &gone);
            let best = orders((0..jobs.len()).collect()).iter().filter_map(|one| sum_of(one, &jobs, &deadlines)).min();
            if let Some(best) = best {
                feasible += 1;
                assert_eq!(sum_of(&order(&jobs, &gone), &jobs, &deadlines), Some(best), "{jobs:?} and {gone:?}");
            }
        }
        assert!(feasible > 100, "{feasible}");
    }

    /// Jobs come one after the other and are done in the order; the same jobs share equally besides.
    #[test]
    fn jobs_that_come_over_time_end_no_later_than_with_fair_shares() {
        let mut chance = Chance::new(9, "jobs");
        for round in 0..50 {
            let works: Vec<(u64, u64)> = (0..12).map(|_| (chance.below(600_u64), 1 + chance.below(200_u64))).collect();
            let (mut left, mut fair) = (works.clone(), works.clone());
            let (mut ends, mut fair_ends) = (vec![0; 12], vec![0; 12]);
            for now in 0..4_000 {
                let here = |work: &(u64, u64)| work.0 <= now && work.1 > 0;
                let present: Vec<usize> = (0..12).filter(|job| here(&left[*job])).collect();
                let jobs: Vec<FairJob> =
                    present.iter().map(|&at| job(left[at].1 * 1_000, fair_left(&fair[at], &works[at]))).collect();
                let gone: Vec<u64> = (0..12)
                    .filter(|at| works[*at].0 <= now && left[*at].1 == 0 && fair[*at].1 > 0)
                    .map(|at| fair_left(&fair[at], &works[at]))
                    .collect();
                if let Some(&first) = order(&jobs, &gone).first() {
                    left[present[first]].1 -= 1;
                    ends[present[first]] = now + 1;
                }
                share_equally(now, &works, &mut fair, &mut fair_ends);
            }
            // Work is done in steps, so a job may be late by a step for each job.
            let late = ends.iter().zip(&fair_ends).map(|(end, fair): (&u64, &u64)| end.saturating_sub(*fair)).max();
            assert!(late <= Some(12), "round {round}: {late:?}");
        }
    }

    /// In thousandths; the state of `share_equally` counts in the same unit once a job has come.
    fn fair_left(fair: &(u64, u64), work: &(u64, u64)) -> u64 {
        if fair.0 == u64::MAX { fair.1 } else { work.1 * 1_000 }
    }

    fn share_equally(now: u64, works: &[(u64, u64)], fair: &mut [(u64, u64)], ends: &mut [u64]) {
        for (state, work) in fair.iter_mut().zip(works).filter(|(state, work)| state.0 != u64::MAX && work.0 <= now) {
            *state = (u64::MAX, work.1 * 1_000);
        }
        let active = fair.iter().filter(|state| state.0 == u64::MAX && state.1 > 0).count() as u64;
        for (state, end) in fair.iter_mut().zip(ends).filter(|(state, _)| state.0 == u64::MAX && state.1 > 0) {
            state.1 = state.1.saturating_sub(1_000 / active.max(1));
            if state.1 == 0 {
                *end = now + 1;
            }
        }
    }
}
