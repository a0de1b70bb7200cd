//! Dominant resource fairness in closed form (Parkes, Procaccia and Shah 2012; Carbyne 3.3): the shares at which
//! progressive filling would stop.
//!
//! The shares of all jobs rise at the same speed, in proportion to their weights, like water: at level x a job has the
//! dominant share w x, and a proportional amount of every other kind. While no demand is met, the level at which a
//! resource is full is x = 1 / max_r sum_k w_k d_kr, with d_k the job's demand scaled to a dominant share of 1. Then:
//!
//! * jobs whose demand is met below that level stop there, and what they leave raises the others;
//! * if there are none, the jobs that use the full resource stop at that level, and the others continue to rise.

use crate::vocabulary::Totals;
use crate::vocabulary::resources::WIDTH;
use std::cmp::Reverse;

/// The demand of a job: the total resources of its runnable and running tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// In any unit, the same for all demands; at least 1.
    pub weight: u64,
    pub wanted: Totals,
    /// The largest dominant share that it may have, in millionths of the cluster.
    pub most: u64,
}

/// The job's share of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FairShare {
    /// The dominant share, in millionths of the cluster, rounded up.
    pub share: u64,
    /// The kind of resource that limits it; `None` if it gets all that it requests or may have.
    pub short_of: Option<usize>,
}

/// One, as a share; fractions of it are rounded down.
const ONE: u128 = 1_000_000_000_000;
const MILLIONTH: u128 = ONE / 1_000_000;

/// The fair share of each demand. A demand for a kind that the cluster does not have gets nothing. Takes O(n log n)
/// steps for n demands.
pub fn fair_shares(demands: &[Demand], capacity: &Totals) -> Vec<FairShare> {
    let mut shares = vec![FairShare::default(); demands.len()];
    let jobs: Vec<Rising> =
        demands.iter().enumerate().filter_map(|(at, demand)| Rising::new(at, demand, capacity)).collect();
    let mut water = Water::below(&jobs);
    let mut rising: Vec<&Rising> = jobs.iter().collect();
    // The job that is met first is last.
    rising.sort_unstable_by_key(|job| Reverse((job.met_at, job.at)));
    while !rising.is_empty() {
        let (level, full) = water.level_at_which_one_is_full();
        let mut stay = |job: &Rising, short_of| {
            let part = job.wanted.min(job.weight * level);
            let share = u64::try_from(part.div_ceil(MILLIONTH)).expect("at most the whole cluster");
            shares[job.at] = FairShare { share, short_of };
            water.stop(job, part);
        };
        let before = rising.len();
        while let Some(met) = rising.pop_if(|job| job.met_at <= level) {
            stay(met, None);
        }
        if rising.len() == before {
            let (held, free) = rising.into_iter().partition(|job| job.direction[full] > 0);
            Vec::into_iter(held).for_each(|job| stay(job, Some(full)));
            rising = free;
        }
    }
    shares
}

/// A job that does not have its share yet.
struct Rising {
    at: usize,
    weight: u128,
    /// The dominant share that it demands.
    wanted: u128,
    /// The level at which its demand is met.
    met_at: u128,
    /// Its use of each kind at a dominant share of one.
    direction: [u128; WIDTH],
}

/// The total use of the jobs that rise.
struct Water {
    /// By kind: what the jobs that have stopped leave.
    left: [u128; WIDTH],
    /// By kind: how much faster its use rises than the level.
    speed: [u128; WIDTH],
}

impl Rising {
    fn new(at: usize, demand: &Demand, capacity: &Totals) -> Option<Rising> {
        let mut parts = [0; WIDTH];
        for (part, (&amount, &of)) in parts.iter_mut().zip(demand.wanted.0.iter().zip(&capacity.0)) {
            if amount > 0 {
                *part = (u128::from(amount) * ONE).checked_div(u128::from(of))?;
            }
        }
        let largest = parts.into_iter().max().filter(|largest| *largest > 0)?;
        // The last digits of huge demands are dropped.
        let shift = (u128::BITS - largest.leading_zeros()).saturating_sub(80);
        let direction = parts.map(|part| ((part >> shift) * ONE).div_ceil(largest >> shift));
        let weight = u128::from(demand.weight.max(1));
        let wanted = largest.min(u128::from(demand.most) * MILLIONTH).min(ONE);
        Some(Rising { at, weight, wanted, met_at: wanted.div_ceil(weight), direction })
    }
}

impl Water {
    fn below(rising: &[Rising]) -> Water {
        let speed = std::array::from_fn(|kind| rising.iter().map(|job| job.weight * job.direction[kind]).sum());
        Water { left: [ONE; WIDTH], speed }
    }

    /// The level at which the first resource is full if all jobs continue to rise, and that resource.
    fn level_at_which_one_is_full(&self) -> (u128, usize) {
        let kinds = self.left.iter().zip(&self.speed).zip(0..);
        let levels = kinds.filter_map(|((left, speed), kind)| Some(((left * ONE).checked_div(*speed)?, kind)));
        levels.min().expect("every rising job uses some kind")
    }

    /// The job stops at this share.
    fn stop(&mut self, job: &Rising, share: u128) {
        for ((left, speed), direction) in self.left.iter_mut().zip(&mut self.speed).zip(job.direction) {
            if direction > 0 {
                *left = left.saturating_sub((share * direction).div_ceil(ONE));
                *speed -= job.weight * direction;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Chance, Resources};

    fn shares_of(demands: &[Demand], capacity: &Totals) -> Vec<u64> {
        fair_shares(demands, capacity).iter().map(|fair| fair.share).collect()
    }

    fn demand(weight: u64, cpu: u64, memory: u64) -> Demand {
        let mut wanted = Totals::ZERO;
        (wanted.0[0], wanted.0[1]) = (cpu, memory);
        Demand { weight, wanted, most: 1_000_000 }
    }

    fn capacity(cpu: u32, memory: u32) -> Totals {
        Totals(Resources::new(cpu, memory).0.map(u64::from))
    }

    /// The example of Ghodsi et al. 2011, section 4.1: 9 CPUs and 18 GB, tasks of <1, 4> and <3, 1>, as many as fit.
    #[test]
    fn the_example_of_the_drf_paper() {
        let shares = shares_of(&[demand(1, 900, 3_600), demand(1, 2_700, 900)], &capacity(9, 18));
        assert_eq!(shares, [666_667, 666_667], "12 of 18 GB, and 6 of 9 CPUs");
    }

    #[test]
    fn resources_left_by_a_small_demand_raise_the_others() {
        let all = capacity(100, 0);
        assert_eq!(
            shares_of(&[demand(1, 10, 0), demand(1, 500, 0), demand(2, 500, 0)], &all),
            [100_000, 300_000, 600_000]
        );
        assert_eq!(shares_of(&[demand(1, 10, 0), demand(1, 20, 0)], &all), [100_000, 200_000], "all demands are met");
        assert_eq!(shares_of(&[demand(1, 10, 5), demand(1, 0, 0)], &all), [0, 0], "the cluster has no memory");
        assert_eq!(shares_of(&[], &all), [] as [u64; 0]);
    }

    #[test]
    fn a_limited_job_stops_at_its_limit_and_others_get_the_rest() {
        let limited = Demand { most: 100_000, ..demand(3, 500, 0) };
        let fair = fair_shares(&[limited, demand(1, 500, 0), demand(2, 500, 0)], &capacity(100, 0));
        assert_eq!(fair.iter().map(|fair| fair.share).collect::<Vec<_>>(), [100_000, 300_000, 600_000]);
        assert_eq!(fair[0].short_of, None);
    }

    /// The oracle: all jobs take a little in turn, in proportion to their weights, until none can get or requests more.
    fn by_progressive_filling(demands: &[Demand], capacity: &Totals) -> Vec<f64> {
        const STEP: f64 = 1e-5;
        let part = |demand: &Demand, kind: usize| match demand.wanted.0[kind] {
            0 => 0.0,
            wanted => wanted as f64 / capacity.0[kind] as f64,
        };
        let mut free = [1.0; WIDTH];
        let mut shares = vec![0.0; demands.len()];
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for (demand, share) in demands.iter().zip(&mut shares) {
                let largest = (0..WIDTH).map(|kind| part(demand, kind)).fold(0.0, f64::max);
                let step = STEP * demand.weight as f64;
                let direction = |kind: usize| part(demand, kind) / largest;
                let fits = (0..WIDTH).all(|kind| largest == 0.0 || direction(kind) * step <= free[kind]);
                if largest > 0.0 && largest.is_finite() && *share + step <= largest.min(1.0) && fits {
                    (0..WIDTH).for_each(|kind| free[kind] -= direction(kind) * step);
                    *share += step;
                    moved = true;
                }
            }
        }
        shares
    }

    #[test]
    fn the_closed_form_equals_progressive_filling() {
        let mut chance = Chance::new(3, "demands");
        let mut below = |limit: u64| chance.below(limit);
        for round in 0..60 {
            let all = Totals(std::array::from_fn(|kind| if kind < 4 { 1_000 + below(100_000) } else { 0 }));
            let demands: Vec<Demand> = (0..1 + below(8))
                .map(|_| {
                    let wanted = std::array::from_fn(|kind| match below(3) {
                        0 => 0,
                        _ => all.0[kind] * below(100) / 100,
                    });
                    Demand { weight: 1 + below(4), wanted: Totals(wanted), most: 1_000_000 }
                })
                .collect();
            let exact = shares_of(&demands, &all);
            for ((share, filled), demand) in exact.iter().zip(by_progressive_filling(&demands, &all)).zip(&demands) {
                let off = (*share as f64 / 1e6 - filled).abs();
                assert!(
                    off < 1e-3,
                    "round {round}: {share} millionths, filled to {filled}, of {demand:?} in {demands:?}"
                );
            }
        }
    }

    /// The definition of fairness, without any filling: a job whose demand is not met is limited by a resource that is
    /// full and of which no job has more relative to its weight.
    #[test]
    fn an_unmet_job_uses_a_full_resource_of_which_none_has_more_for_its_weight() {
        let mut chance = Chance::new(1, "demands");
        for _ in 0..200 {
            let all = Totals(std::array::from_fn(|kind| if kind < 5 { 1_000_000 } else { 0 }));
            let largest = 1 + chance.below(60_000_u64);
            let demands: Vec<Demand> = (0..1 + chance.below(300_u64))
                .map(|_| {
                    let wanted = std::array::from_fn(|kind| match chance.below(2_u64) {
                        1 if kind < 5 => chance.below(largest),
                        _ => 0,
                    });
                    Demand { weight: 1 + chance.below(5_u64), wanted: Totals(wanted), most: 1_000_000 }
                })
                .collect();
            let fair = fair_shares(&demands, &all);
            let shares = shares_of(&demands, &all);
            let wanted = |demand: &Demand| demand.wanted.0.iter().copied().max().unwrap_or_default();
            let used = |kind: usize| {
                let of = |(demand, share): (&Demand, &u64)| {
                    demand.wanted.0[kind] as f64 / wanted(demand).max(1) as f64 * *share as f64
                };
                demands.iter().zip(&shares).map(of).sum::<f64>()
            };
            let used: [f64; 5] = std::array::from_fn(used);
            // Each share is rounded up.
            let rounding = demands.len() as f64;
            assert!(used.iter().all(|used| *used <= 1e6 + rounding), "{used:?}");
            let level = |(demand, share): (&Demand, &u64)| *share as f64 / demand.weight as f64;
            for ((demand, share), fair) in demands.iter().zip(&shares).zip(fair) {
                let holds_it = |kind: usize| {
                    let users = demands.iter().zip(&shares).filter(|(other, _)| other.wanted.0[kind] > 0);
                    let highest = users.map(level).fold(0.0, f64::max);
                    demand.wanted.0[kind] > 0 && used[kind] >= 1e6 - rounding && level((demand, share)) + 1.0 >= highest
                };
                let as_said = match fair.short_of {
                    Some(kind) => holds_it(kind),
                    None => *share == wanted(demand),
                };
                assert!(as_said, "{fair:?} of {demand:?}, used {used:?}");
            }
        }
    }
}
