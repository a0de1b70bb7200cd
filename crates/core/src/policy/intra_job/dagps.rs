//! Packing of a whole DAG around its troublesome stages (Grandl et al. 2016, DAGPS/Graphene): stages that are long or
//! hard to pack are placed first in an empty space of time and resources, the others before, after and beside them. The
//! order in which stages start there is their priority.
//!
//! Departs: whole stages instead of tasks are troublesome; and the tasks of a stage are placed in at most a few pieces.
//! Running tasks are considered only when the orders are compared. Orders are compared by the schedules that result
//! from them, also with breadth first, the critical path and packing.

use super::packing;
use super::plan::{Order, StageWork, pack};
use super::remaining::{Remaining, kinds_of};
use crate::policy::timeline::Timeline;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{Duration, Totals};
use std::cmp::Reverse;

/// Number of thresholds tried for each of the two scores, so at most 16 pairs: fewer with more than 100 stages, and
/// none with more than 400.
const THRESHOLDS: usize = 4;
const STAGES_TIMES_THRESHOLDS: usize = 400;
/// A stage is placed in at most this many rows of tasks, one after the other, and each row in at most this many pieces.
const MOST_ROWS: u32 = 4;
const MOST_PIECES: u32 = 2;
/// One, in scores.
const MILLION: u64 = 1_000_000;

/// Stages that are placed or packed in one [`Search::go_on`]; at least all of a job once.
const STAGES_AT_ONCE: usize = 100;

/// The search for the order with the shortest schedule by [`pack`](super::pack): a list of stages by priority, or
/// packing if no list is as good. The schedule is never longer than by breadth first, the critical path or packing.
///
/// It runs in pieces because it takes long: at most 16 times 6 placements of every stage, each in a time that grows
/// with the number of stages, and 20 schedules. A piece is one of these: 0.4 ms for 100 stages, tens of ms for 1,000.
pub struct Search {
    stages: Vec<StageWork>,
    share: Totals,
    /// The distinct partitions of the stages.
    partings: Vec<Vec<Subset>>,
    /// Number of steps done: first the candidates without placement, then the plans of each partition.
    done: usize,
    /// The shortest placement of the current partition.
    placed: Option<(u64, Vec<u32>)>,
    /// The shortest schedule so far, and its order.
    best: (Duration, Order),
}

impl Search {
    /// Takes as long as one schedule. The order is the critical path until a better one is found.
    pub fn new(stages: Vec<StageWork>, share: &Totals) -> Search {
        let partings = match kinds_of(&stages, share) {
            0..=2 => partings::<2>(&stages, share),
            3..=4 => partings::<4>(&stages, share),
            5..=8 => partings::<8>(&stages, share),
            _ => partings::<{ WIDTH + 1 }>(&stages, share),
        };
        let best = (pack(&stages, share, &Order::CriticalPath).length, Order::CriticalPath);
        Search { stages, share: *share, partings, done: 0, placed: None, best }
    }

    pub fn share(&self) -> &Totals {
        &self.share
    }

    /// The best order so far.
    pub fn order(&self) -> &Order {
        &self.best.1
    }

    /// Runs a piece of the search. Returns false, without doing anything, when nothing is left to try.
    pub fn go_on(&mut self) -> bool {
        let steps = (STAGES_AT_ONCE / self.stages.len().max(1)).max(1);
        let all = STEPS_WITHOUT_PLACING + self.partings.len() * STEPS_OF_A_PARTING;
        let until = all.min(self.done + steps);
        for step in self.done..until {
            match kinds_of(&self.stages, &self.share) {
                0..=2 => self.run_step::<2>(step),
                3..=4 => self.run_step::<4>(step),
                5..=8 => self.run_step::<8>(step),
                _ => self.run_step::<{ WIDTH + 1 }>(step),
            }
        }
        std::mem::replace(&mut self.done, until) < until
    }

    fn run_step<const K: usize>(&mut self, step: usize) {
        let Some(step) = step.checked_sub(STEPS_WITHOUT_PLACING) else {
            return match step {
                0 => self.try_order(Order::BreadthFirst),
                1 => self.try_order(Order::Packing),
                _ => self.try_order(Order::Listed(by_first_start(&Remaining::<K>::of(&self.stages, &self.share)))),
            };
        };
        let parts = &self.partings[step / STEPS_OF_A_PARTING];
        let Some(plan) = PLANS.get(step % STEPS_OF_A_PARTING) else {
            let shortest = self.placed.take().map(|(_, order)| Order::Listed(order));
            return shortest.into_iter().for_each(|order| self.try_order(order));
        };
        let new = placed(&Remaining::<K>::of(&self.stages, &self.share), parts, plan);
        if self.placed.as_ref().is_none_or(|(length, _)| new.0 < *length) {
            self.placed = Some(new);
        }
    }

    /// Among equally short schedules the first is kept.
    fn try_order(&mut self, order: Order) {
        let length = pack(&self.stages, &self.share, &order).length;
        if length < self.best.0 {
            self.best = (length, order);
        }
    }
}

/// Breadth first, packing, and the order in which packing starts the stages.
const STEPS_WITHOUT_PLACING: usize = 3;
/// Each plan is placed, and the shortest of the placements is packed.
const STEPS_OF_A_PARTING: usize = PLANS.len() + 1;

/// The distinct partitions, for all pairs of thresholds.
fn partings<const K: usize>(stages: &[StageWork], share: &Totals) -> Vec<Vec<Subset>> {
    let job = Remaining::<K>::of(stages, share);
    let scores = scores(&job);
    let most = (STAGES_TIMES_THRESHOLDS / job.stages.len().max(1)).min(THRESHOLDS);
    let mut partings: Vec<Vec<Subset>> = Vec::new();
    for longest in thresholds(scores.iter().map(|score| score.long), most) {
        for hardest in thresholds(scores.iter().map(|score| score.hard), most) {
            let troublesome = scores.iter().map(|score| score.long >= longest || score.hard >= hardest).collect();
            let parts = parts(&job, troublesome);
            if !partings.contains(&parts) {
                partings.push(parts);
            }
        }
    }
    partings
}

/// The stages in the order in which packing starts them.
fn by_first_start<const K: usize>(job: &Remaining<K>) -> Vec<u32> {
    let mut first = vec![u64::MAX; job.stages.len()];
    for run in packing::pack(job, &Order::Packing) {
        let stage = &mut first[run.stage as usize];
        *stage = run.at.min(*stage);
    }
    sorted_by(&first)
}

fn sorted_by(starts: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..starts.len() as u32).collect();
    order.sort_by_key(|&stage| (starts[stage as usize], stage));
    order
}

/// How troublesome a stage is, in millionths.
struct Score {
    /// Run time relative to the longest task.
    long: u64,
    /// How much longer the stage takes alone than its work divided by the share: the part of the share that it cannot
    /// use.
    hard: u64,
}

fn scores<const K: usize>(job: &Remaining<K>) -> Vec<Score> {
    let longest = job.stages.iter().filter(|stage| stage.unstarted > 0).map(|stage| stage.duration).max().unwrap_or(1);
    let part = |part: u64, of: u64| (u128::from(part) * u128::from(MILLION) / u128::from(of.max(1))) as u64;
    let scored = job.stages.iter().map(|stage| {
        if stage.unstarted == 0 {
            return Score { long: 0, hard: 0 };
        }
        let at_once = job.share.times(&stage.demand).max(1);
        let rows = u64::from(stage.unstarted.div_ceil(at_once));
        // How many full shares its tasks take in total, in the kind of which they take most.
        let used = (0..K).filter(|&kind| job.share.0[kind] > 0).map(|kind| {
            let wanted = u128::from(stage.demand.0[kind].unsigned_abs()) * u128::from(stage.unstarted);
            (wanted * u128::from(MILLION) / u128::from(job.share.0[kind].unsigned_abs())) as u64
        });
        let used = used.max().unwrap_or(0) / rows;
        Score { long: part(stage.duration, longest), hard: MILLION - used.min(MILLION) }
    });
    scored.collect()
}

/// A few of the values, evenly spaced by rank, from the largest down.
fn thresholds(values: impl Iterator<Item = u64>, most: usize) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable_by_key(|&value| Reverse(value));
    values.dedup();
    let steps = values.len().min(most);
    (0..steps).map(|step| values[step * values.len() / steps]).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subset {
    Troublesome,
    Before,
    After,
    Beside,
}

/// Stages on a path between two troublesome stages are troublesome too.
fn parts<const K: usize>(job: &Remaining<K>, mut troublesome: Vec<bool>) -> Vec<Subset> {
    let count = job.stages.len();
    let (mut after, mut before) = (troublesome.clone(), troublesome.clone());
    for stage in 0..count {
        if after[stage] {
            job.stages[stage].dependents.iter().for_each(|&next| after[next as usize] = true);
        }
    }
    for stage in (0..count).rev() {
        before[stage] |= job.stages[stage].dependents.iter().any(|&next| before[next as usize]);
    }
    (0..count).for_each(|stage| troublesome[stage] |= after[stage] && before[stage]);
    let part = |stage: usize| match (troublesome[stage], before[stage], after[stage]) {
        (true, ..) => Subset::Troublesome,
        (_, true, _) => Subset::Before,
        (_, _, true) => Subset::After,
        _ => Subset::Beside,
    };
    (0..count).map(part).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Towards {
    Later,
    Earlier,
}
use Towards::{Earlier, Later};

/// The orders of placing the parts in which each part has either its dependencies or its dependents placed before it,
/// but never both. `Beside` goes in either direction if neither its dependencies nor its dependents are placed.
const PLANS: [[(Subset, Towards); 4]; 6] = [
    [(Subset::Troublesome, Later), (Subset::Beside, Later), (Subset::Before, Earlier), (Subset::After, Later)],
    [(Subset::Troublesome, Later), (Subset::Beside, Earlier), (Subset::Before, Earlier), (Subset::After, Later)],
    [(Subset::Troublesome, Later), (Subset::Beside, Later), (Subset::After, Later), (Subset::Before, Earlier)],
    [(Subset::Troublesome, Later), (Subset::Beside, Earlier), (Subset::After, Later), (Subset::Before, Earlier)],
    [(Subset::Troublesome, Later), (Subset::Before, Earlier), (Subset::Beside, Later), (Subset::After, Later)],
    [(Subset::Troublesome, Later), (Subset::After, Later), (Subset::Beside, Earlier), (Subset::Before, Earlier)],
];

/// The length of the placement with these steps, and the stages in the order of their starts.
fn placed<const K: usize>(job: &Remaining<K>, parts: &[Subset], steps: &[(Subset, Towards); 4]) -> (u64, Vec<u32>) {
    let mut space = Space::new(job);
    for &(part, towards) in steps {
        let mut members: Vec<u32> = (0..).zip(parts).filter(|(_, own)| **own == part).map(|(stage, _)| stage).collect();
        if towards == Earlier {
            members.reverse();
        }
        members.iter().for_each(|&stage| space.place(stage, towards));
    }
    let starts: Vec<u64> = space.spans.iter().map(|span| span.map_or(u64::MAX, |span| span.0)).collect();
    (space.end - space.start, sorted_by(&starts))
}

/// The middle of the time axis: stages are placed on both sides.
const MIDDLE: u64 = 1 << 62;

struct Space<'a, const K: usize> {
    job: &'a Remaining<K>,
    inputs: Vec<Vec<u32>>,
    room: Timeline<K>,
    /// By stage, once placed: the start of its first task and the end of its last.
    spans: Vec<Option<(u64, u64)>>,
    /// The range that all spans cover.
    start: u64,
    end: u64,
}

impl<'a, const K: usize> Space<'a, K> {
    fn new(job: &'a Remaining<K>) -> Space<'a, K> {
        let mut inputs = vec![Vec::new(); job.stages.len()];
        for (index, stage) in (0..).zip(&job.stages) {
            stage.dependents.iter().for_each(|&next| inputs[next as usize].push(index));
        }
        let spans = vec![None; job.stages.len()];
        Space { job, inputs, room: Timeline::empty(job.share, 2 * MIDDLE), spans, start: MIDDLE, end: MIDDLE }
    }

    /// Places a stage as early as its dependencies allow, or as late as its dependents do; beside all others if none of
    /// these are placed.
    fn place(&mut self, index: u32, towards: Towards) {
        let stage = &self.job.stages[index as usize];
        if stage.unstarted == 0 {
            return;
        }
        let placed = |others: &[u32]| -> Vec<(u64, u64)> {
            others.iter().filter_map(|&other| self.spans[other as usize]).collect()
        };
        let limit = match towards {
            Later => placed(&self.inputs[index as usize]).iter().map(|span| span.1).max(),
            Earlier => placed(&stage.dependents).iter().map(|span| span.0).min(),
        };
        let mut limit = limit.unwrap_or(if towards == Later { self.start } else { self.end });
        let at_once = self.job.share.times(&stage.demand).clamp(1, stage.unstarted);
        let rows = stage.unstarted.div_ceil(at_once);
        let in_a_row = rows.div_ceil(MOST_ROWS);
        let lasting = stage.duration * u64::from(in_a_row);
        let mut left = stage.unstarted.div_ceil(in_a_row);
        let least = at_once.div_ceil(MOST_PIECES);
        let mut span = (u64::MAX, 0);
        while left > 0 {
            let needed = stage.demand.scaled(least.min(left));
            let count;
            (limit, count) = match towards {
                Later => self.room.take_earliest(limit, lasting, &needed, &stage.demand, left),
                Earlier => self.room.take_latest(limit, lasting, &needed, &stage.demand, left),
            };
            let start = if towards == Later { limit } else { limit - lasting };
            span = (span.0.min(start), span.1.max(start + lasting));
            left -= count;
        }
        self.spans[index as usize] = Some(span);
        (self.start, self.end) = (self.start.min(span.0), self.end.max(span.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Chance, Duration, Resources};

    fn stage(cpu: u32, memory: u32, seconds: u64, unstarted: u32, after: &[u32]) -> StageWork {
        let (resources, duration) = (Resources::new(cpu, memory), Duration::from_secs(seconds));
        StageWork { resources, duration, unstarted, after: after.to_vec(), ..StageWork::default() }
    }

    fn share(cpu: u32, memory: u32) -> Totals {
        Totals(Resources::new(cpu, memory).0.map(u64::from))
    }

    fn length(stages: &[StageWork], share: &Totals, order: &Order) -> Duration {
        pack(stages, share, order).length
    }

    #[test]
    fn stages_between_troublesome_ones_are_placed_with_them() {
        use Subset::{After, Before, Beside, Troublesome};
        let after: [&[u32]; 7] = [&[], &[0], &[1], &[2], &[3], &[0], &[2, 5]];
        let stages = after.map(|after| stage(1, 1, 1, 1, after));
        let job = Remaining::<2>::of(&stages, &share(1, 1));
        let troublesome = vec![false, true, false, true, false, false, false];
        let expected = [Before, Troublesome, Troublesome, Troublesome, After, Beside, After];
        assert!(parts(&job, troublesome) == expected);
    }

    #[test]
    fn the_found_order_is_never_longer_than_breadth_first_critical_path_or_packing() {
        let mut chance = Chance::new(1, "dagps");
        let (mut ours, mut theirs, mut listed) = (0, [0; 3], 0);
        for _ in 0..200 {
            let count = 2 + chance.below(12_u32);
            let mut stages = Vec::new();
            for index in 0..count {
                let after: Vec<u32> = (0..index).filter(|_| chance.below(5_u32) == 0).collect();
                let (cpu, memory) = (chance.below(60_u32), chance.below(60_u32));
                stages.push(stage(cpu, memory, 1 + chance.below(20_u64), 1 + chance.below(8_u32), &after));
            }
            let share = share(100, 100);
            let mut search = Search::new(stages.clone(), &share);
            while search.go_on() {}
            if let Order::Listed(order) = search.order() {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.iter().copied().eq(0..count), "every stage once: {order:?}");
                listed += 1;
            }
            let own = length(&stages, &share, search.order());
            let others = [Order::BreadthFirst, Order::CriticalPath, Order::Packing];
            let others = others.map(|other| length(&stages, &share, &other));
            assert!(others.iter().all(|other| own <= *other));
            ours += own.0;
            (0..3).for_each(|at| theirs[at] += others[at].0);
        }
        assert!(theirs.iter().all(|theirs| ours < *theirs), "{ours} against {theirs:?}");
        assert!(listed >= 40, "a list is the shortest in only {listed} of 200");
    }
}
