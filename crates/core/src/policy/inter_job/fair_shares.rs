//! Dominant resource fairness in closed form (Parkes, Procaccia and Shah 2012; Carbyne 3.3): the shares at which
//! progressive filling would stop, found in as many steps as jobs or resources run full.
//!
//! Water rises at the same speed for all, in proportion to their weights: at level x a job has the dominant share w x,
//! and of every other kind as much as goes with it. While no demand is met, the level at which a resource is full is
//! x = 1 / max_r sum_k w_k d_kr, with d_k the job's demand scaled to a dominant share of 1. Then:
//!
//! * whoever has all it wants below that level is met, and what it leaves lifts the others;
//! * where there is nobody like that, whoever uses the full resource stays at that level, and the others rise on.

use crate::vocabulary::Totals;
use crate::vocabulary::resources::WIDTH;

/// What a job wants of the cluster: all that its runnable and running tasks would hold together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// In any unit, the same for all; at least 1.
    pub weight: u64,
    pub wants: Totals,
}

/// One, as a share; parts of it are rounded down.
const ONE: u128 = 1_000_000_000_000;
const MILLIONTH: u128 = ONE / 1_000_000;

/// The fair dominant share of each demand, in millionths of the cluster, rounded up. Who wants a kind that the cluster
/// does not have gets nothing.
pub fn fair_shares(demands: &[Demand], capacity: &Totals) -> Vec<u64> {
    let mut shares = vec![0; demands.len()];
    let mut rising: Vec<Rising> =
        demands.iter().enumerate().filter_map(|(at, demand)| Rising::new(at, demand, capacity)).collect();
    let mut left = [ONE; WIDTH];
    while !rising.is_empty() {
        let (level, full) = level_at_which_one_is_full(&rising, &left);
        let is_met = |job: &Rising| job.wants <= job.share_at(level);
        let some_are_met = rising.iter().any(is_met);
        rising.retain(|job| {
            let stays = if some_are_met { is_met(job) } else { job.direction[full] > 0 };
            if stays {
                let share = job.wants.min(job.share_at(level));
                shares[job.at] = u64::try_from(share.div_ceil(MILLIONTH)).expect("at most the whole cluster");
                job.take(share, &mut left);
            }
            !stays
        });
    }
    shares
}

/// A job that does not have its share yet.
struct Rising {
    at: usize,
    weight: u128,
    /// The dominant share that it wants.
    wants: u128,
    /// What it uses of each kind when its dominant share is one.
    direction: [u128; WIDTH],
}

impl Rising {
    fn new(at: usize, demand: &Demand, capacity: &Totals) -> Option<Rising> {
        let mut parts = [0; WIDTH];
        for (part, (&wanted, &of)) in parts.iter_mut().zip(demand.wants.0.iter().zip(&capacity.0)) {
            if wanted > 0 {
                *part = (u128::from(wanted) * ONE).checked_div(u128::from(of))?;
            }
        }
        let largest = parts.into_iter().max().filter(|largest| *largest > 0)?;
        // Of huge demands the last digits do not count.
        let shift = (u128::BITS - largest.leading_zeros()).saturating_sub(80);
        let direction = parts.map(|part| ((part >> shift) * ONE).div_ceil(largest >> shift));
        Some(Rising { at, weight: u128::from(demand.weight.max(1)), wants: largest.min(ONE), direction })
    }

    fn share_at(&self, level: u128) -> u128 {
        (self.weight * level).min(ONE)
    }

    fn take(&self, share: u128, left: &mut [u128; WIDTH]) {
        for (left, direction) in left.iter_mut().zip(self.direction) {
            *left = left.saturating_sub((share * direction).div_ceil(ONE));
        }
    }
}

/// The level at which the first of the resources is full if all go on rising, and which one that is.
fn level_at_which_one_is_full(rising: &[Rising], left: &[u128; WIDTH]) -> (u128, usize) {
    let levels = (0..WIDTH).filter_map(|kind| {
        let speed: u128 = rising.iter().map(|job| job.weight * job.direction[kind]).sum();
        Some(((left[kind] * ONE).checked_div(speed)?, kind))
    });
    levels.min().expect("everybody rises in some kind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Resources;

    fn demand(weight: u64, cpu: u64, memory: u64) -> Demand {
        let mut wants = Totals::ZERO;
        (wants.0[0], wants.0[1]) = (cpu, memory);
        Demand { weight, wants }
    }

    fn capacity(cpu: u32, memory: u32) -> Totals {
        Totals(Resources::new(cpu, memory).0.map(u64::from))
    }

    /// The example of Ghodsi et al. 2011, section 4.1: 9 CPUs and 18 GB, tasks of <1, 4> and <3, 1>, as many as go.
    #[test]
    fn the_example_of_the_drf_paper() {
        let shares = fair_shares(&[demand(1, 900, 3_600), demand(1, 2_700, 900)], &capacity(9, 18));
        assert_eq!(shares, [666_667, 666_667], "12 of 18 GB, and 6 of 9 CPUs");
    }

    #[test]
    fn what_a_small_demand_leaves_lifts_the_others() {
        let all = capacity(100, 0);
        assert_eq!(
            fair_shares(&[demand(1, 10, 0), demand(1, 500, 0), demand(2, 500, 0)], &all),
            [100_000, 300_000, 600_000]
        );
        assert_eq!(
            fair_shares(&[demand(1, 10, 0), demand(1, 20, 0)], &all),
            [100_000, 200_000],
            "nobody lacks anything"
        );
        assert_eq!(fair_shares(&[demand(1, 10, 5), demand(1, 0, 0)], &all), [0, 0], "there is no memory");
        assert_eq!(fair_shares(&[], &all), [] as [u64; 0]);
    }

    /// The oracle: everybody takes a little in turn, in proportion to the weights, until nobody can or wants to.
    fn by_progressive_filling(demands: &[Demand], capacity: &Totals) -> Vec<f64> {
        const STEP: f64 = 1e-5;
        let part = |demand: &Demand, kind: usize| match demand.wants.0[kind] {
            0 => 0.0,
            wanted => wanted as f64 / capacity.0[kind] as f64,
        };
        let mut free = [1.0; WIDTH];
        let mut shares = vec![0.0; demands.len()];
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for (demand, share) in demands.iter().zip(&mut shares) {
                let wants = (0..WIDTH).map(|kind| part(demand, kind)).fold(0.0, f64::max);
                let step = STEP * demand.weight as f64;
                let direction = |kind: usize| part(demand, kind) / wants;
                let fits = (0..WIDTH).all(|kind| wants == 0.0 || direction(kind) * step <= free[kind]);
                if wants > 0.0 && wants.is_finite() && *share + step <= wants.min(1.0) && fits {
                    (0..WIDTH).for_each(|kind| free[kind] -= direction(kind) * step);
                    *share += step;
                    moved = true;
                }
            }
        }
        shares
    }

    #[test]
    fn the_closed_form_is_where_progressive_filling_stops() {
        let mut state = 3u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for round in 0..60 {
            let all = Totals(std::array::from_fn(|kind| if kind < 4 { 1_000 + below(100_000) } else { 0 }));
            let demands: Vec<Demand> = (0..1 + below(8))
                .map(|_| {
                    let wants = std::array::from_fn(|kind| match below(3) {
                        0 => 0,
                        _ => all.0[kind] * below(100) / 100,
                    });
                    Demand { weight: 1 + below(4), wants: Totals(wants) }
                })
                .collect();
            let exact = fair_shares(&demands, &all);
            for ((share, filled), demand) in exact.iter().zip(by_progressive_filling(&demands, &all)).zip(&demands) {
                let off = (*share as f64 / 1e6 - filled).abs();
                assert!(
                    off < 1e-3,
                    "round {round}: {share} millionths, filled to {filled}, of {demand:?} in {demands:?}"
                );
            }
        }
    }
}
