//! When a job's tasks must start so that it ends as soon as its share allows. (Carbyne, Pseudocode 1, lines 17-21.)
//!
//! The remaining DAG is packed into the share, treated as one pooled vector of resources, which gives the length T_k;
//! then every task is moved as late as possible without delaying the end of the job.
//!
//! Departs: the paper packs the reversed DAG again (lines 18-20). Here the forward schedule is shifted to the right
//! instead: each group, from the one that ends last, is moved as late as the share and its dependents allow. In 15,000
//! small random DAGs, the reversed packing was longer than the forward one, or conflicted with running tasks, in 2 to
//! 35 % of the cases; in the others, the resources needed at once differed by at most a tenth, in either direction. The
//! shift never fails, and needs no second packing. (The better of the two would need up to 17 % less at once.)

use super::remaining::{Remaining, Run, kinds_of};
use super::{packing, shift};
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{Duration, Resources, Totals};

/// The remaining work of a stage. All its tasks are alike.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StageWork {
    pub resources: Resources,
    /// Of one task, above zero.
    pub duration: Duration,
    pub unstarted: u32,
    /// Running tasks: their remaining time, and their number.
    pub running: Vec<(Duration, u32)>,
    /// Stages, before this one in the list, that must end before a task of this one starts.
    pub after: Vec<u32>,
    /// Run time of its longest task: the stage does not end earlier than this after its first start. Zero if the
    /// longest task started before, or is not known. The delays in [`plan`] ignore it.
    pub longest: Duration,
    /// The stage does not end before this, from now.
    pub not_before: Duration,
}

/// Which stage gets room first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// The stage with the smallest index.
    BreadthFirst,
    /// The stage with the longest path to the end of the job.
    CriticalPath,
    /// The stage that is best aligned with the free room (Tetris).
    Packing,
    /// The first stage in this list; stages that are not in it come last.
    Listed(Vec<u32>),
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Schedule {
    /// Until all tasks have ended.
    pub length: Duration,
    /// By stage: when its unstarted tasks start, from now, and how many; ascending.
    pub starts: Vec<Vec<(Duration, u32)>>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// Until all tasks have ended: the length of the forward schedule.
    pub length: Duration,
    /// By stage, ascending: the latest times at which more of its tasks start, and how many.
    pub latest: Vec<Vec<(Duration, u32)>>,
}

/// Starts tasks as soon as they fit into the rest of the share, running tasks included, in this order.
///
/// Running tasks may hold more than the share: then nothing starts until there is room. A task that needs more than the
/// whole share runs alone.
///
/// Exact for jobs of up to [`EXACT_TASKS`](super::remaining::EXACT_TASKS) unstarted tasks. For larger ones time is
/// coarse. A tick is one part in 64 of a lower bound of the length. Freed room of less than a 16th of the share may
/// stay unused for one tick, and several tasks shorter than a tick are run in a row, as one task of at most two ticks.
/// So three ticks, 4.7 %, may be lost at the end of a stage that shares the room with others, and nothing in a stage
/// that has it alone with no tasks running. In random DAGs of 100 stages and 100,000 tasks, schedules were 7 % longer
/// in the mean, and 16 % at worst. Tasks in a row are listed as the first of them and, together, the rest at the start
/// of the last.
pub fn pack(stages: &[StageWork], share: &Totals, order: &Order) -> Schedule {
    match kinds_of(stages, share) {
        0..=2 => pack_in::<2>(stages, share, order),
        3..=4 => pack_in::<4>(stages, share, order),
        5..=8 => pack_in::<8>(stages, share, order),
        _ => pack_in::<{ WIDTH + 1 }>(stages, share, order),
    }
}

/// When tasks must start so that the job ends with its forward schedule. Starting each task at its latest time is a
/// schedule that respects the stages' dependencies and the share, including running tasks.
///
/// As exact as [`pack`]. The time it takes depends on the number of stages, not on that of tasks.
pub fn plan(stages: &[StageWork], share: &Totals, order: &Order) -> Plan {
    match kinds_of(stages, share) {
        0..=2 => plan_in::<2>(stages, share, order),
        3..=4 => plan_in::<4>(stages, share, order),
        5..=8 => plan_in::<8>(stages, share, order),
        _ => plan_in::<{ WIDTH + 1 }>(stages, share, order),
    }
}

fn pack_in<const K: usize>(stages: &[StageWork], share: &Totals, order: &Order) -> Schedule {
    let job = Remaining::<K>::of(stages, share);
    let runs = packing::pack(&job, order);
    Schedule { length: Duration(job.end_of(&runs)), starts: by_stage(&job, &runs) }
}

fn plan_in<const K: usize>(stages: &[StageWork], share: &Totals, order: &Order) -> Plan {
    let job = Remaining::<K>::of(stages, share);
    let runs = packing::pack(&job, order);
    let length = job.end_of(&runs);
    let latest = shift::shift_right(&job, &runs, length);
    Plan { length: Duration(length), latest: by_stage(&job, &latest) }
}

fn by_stage<const K: usize>(job: &Remaining<K>, runs: &[Run]) -> Vec<Vec<(Duration, u32)>> {
    let mut starts = vec![Vec::new(); job.stages.len()];
    for run in runs {
        let of_stage: &mut Vec<(Duration, u32)> = &mut starts[run.stage as usize];
        of_stage.push((Duration(run.at), run.count));
        if run.in_a_row > 1 {
            let last = run.at + job.stages[run.stage as usize].duration * u64::from(run.in_a_row - 1);
            of_stage.push((Duration(last), run.count * (run.in_a_row - 1)));
        }
    }
    for of_stage in &mut starts {
        of_stage.sort_unstable();
        of_stage.dedup_by(|next, kept| {
            let together = next.0 == kept.0;
            kept.1 += if together { next.1 } else { 0 };
            together
        });
    }
    starts
}

#[cfg(test)]
mod tests;
