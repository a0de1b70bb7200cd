//! The remaining work of a job as input of packing: only the relevant kinds of resources, groups of equal tasks, and
//! integers that cannot overflow.

use super::plan::StageWork;
use crate::policy::timeline::Amounts;
use crate::vocabulary::Totals;
use crate::vocabulary::resources::WIDTH;

/// Upper limit of an amount of one kind: a quarter of a million such amounts can be added.
const MOST: i64 = 1 << 44;
/// Latest end of a schedule, in microseconds. Longer durations are cut so that even running all tasks one after the
/// other ends by then.
const LATEST: u64 = 1 << 60;
/// Schedules are exact up to this many unstarted tasks.
pub const EXACT_TASKS: u64 = 256;
/// Number of ticks in a lower bound of the length of a larger job.
pub const TICKS: u64 = 64;
/// If running tasks have more distinct ends than this, the ends are rounded up to about this many.
const EXACT_ENDS: usize = 256;

/// Tasks of a stage that start together. Each is followed by others of the stage until `in_a_row` have run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub stage: u32,
    pub at: u64,
    pub count: u32,
    pub in_a_row: u32,
}

pub(super) struct Remaining<const K: usize> {
    pub share: Amounts<K>,
    pub stages: Vec<Stage<K>>,
    /// The resources that running tasks free, and when; ascending.
    pub releases: Vec<(u64, Amounts<K>)>,
    pub unstarted: u64,
    /// Time for which freed room may stay unused; zero if times are exact.
    pub tick: u64,
}

pub(super) struct Stage<const K: usize> {
    pub demand: Amounts<K>,
    pub duration: u64,
    pub unstarted: u32,
    /// The earliest end of the last running task.
    pub running_until: u64,
    /// The stage ends at the earliest this long after its first start.
    pub longest: u64,
    /// Number of stages that must end first.
    pub inputs: u32,
    pub dependents: Vec<u32>,
    /// The longest path from the start of the stage to the end of the job, with one task of each stage.
    pub path: u64,
}

/// Number of relevant kinds: those that some stage needs, and one more if a task must run alone.
pub(super) fn kinds_of(stages: &[StageWork], share: &Totals) -> usize {
    let wanted = wanted_kinds(stages).count();
    wanted + usize::from(stages.iter().any(|stage| is_too_large(stage, share)))
}

fn wanted_kinds(stages: &[StageWork]) -> impl Iterator<Item = usize> {
    let mut wanted = [false; WIDTH];
    for stage in stages {
        for (is_wanted, &amount) in wanted.iter_mut().zip(&stage.resources.0) {
            *is_wanted |= amount > 0;
        }
    }
    (0..WIDTH).filter(move |&kind| wanted[kind])
}

fn is_too_large(stage: &StageWork, share: &Totals) -> bool {
    stage.resources.0.iter().zip(&share.0).any(|(&wanted, &of)| u64::from(wanted) > of)
}

impl<const K: usize> Remaining<K> {
    pub fn of(stages: &[StageWork], share: &Totals) -> Remaining<K> {
        let mut kinds = [None; K];
        for (place, kind) in kinds.iter_mut().zip(wanted_kinds(stages)) {
            *place = Some(kind);
        }
        // An artificial kind of which every task takes one, and a task that must run alone takes all.
        let presence = (kinds_of(stages, share) > wanted_kinds(stages).count()).then(|| wanted_kinds(stages).count());
        let limits = Amounts(std::array::from_fn(|place| match kinds[place] {
            Some(kind) => i64::try_from(share.0[kind]).unwrap_or(MOST).min(MOST),
            None => MOST,
        }));
        let tasks = stages.iter().map(|stage| u64::from(stage.unstarted) + 1).fold(0, u64::saturating_add);
        let longest = (LATEST / tasks.max(1)).max(1);

        let mut job = Remaining {
            share: limits,
            stages: Vec::with_capacity(stages.len()),
            releases: Vec::new(),
            unstarted: stages.iter().map(|stage| u64::from(stage.unstarted)).sum(),
            tick: 0,
        };
        for (index, stage) in stages.iter().enumerate() {
            let mut each = Amounts(kinds.map(|kind| kind.map_or(0, |kind| i64::from(stage.resources.0[kind]))));
            if let Some(presence) = presence {
                each.0[presence] = i64::from(!stage.resources.is_zero());
            }
            let mut running_until = stage.not_before.0.min(longest);
            for &(left, count) in stage.running.iter().filter(|(_, count)| *count > 0) {
                let end = left.0.min(longest);
                running_until = running_until.max(end);
                job.releases
                    .push((end, Amounts(each.0.map(|amount| amount.saturating_mul(i64::from(count)).min(MOST)))));
            }
            if let Some(presence) = presence.filter(|_| is_too_large(stage, share)) {
                each = Amounts(std::array::from_fn(|kind| each.0[kind].min(limits.0[kind])));
                each.0[presence] = MOST;
            }
            for &before in &stage.after {
                assert!((before as usize) < index, "a stage comes before one that it depends on");
                job.stages[before as usize].dependents.push(index as u32);
            }
            job.stages.push(Stage {
                demand: each,
                duration: stage.duration.0.clamp(1, longest),
                unstarted: stage.unstarted,
                running_until,
                longest: stage.longest.0.min(longest),
                inputs: stage.after.len() as u32,
                dependents: Vec::new(),
                path: 0,
            });
        }
        job.round_releases();
        job.measure_paths();
        if job.unstarted > EXACT_TASKS {
            job.tick = job.at_least() / TICKS;
        }
        job
    }

    /// Sorts releases by time, and reduces their number by rounding ends up if there are too many.
    fn round_releases(&mut self) {
        self.releases.sort_unstable_by_key(|(end, _)| *end);
        if self.releases.len() <= EXACT_ENDS {
            return;
        }
        let last = self.releases.last().map_or(0, |(end, _)| *end);
        let step = last.div_ceil(EXACT_ENDS as u64).max(1);
        let mut rounded: Vec<(u64, Amounts<K>)> = Vec::with_capacity(EXACT_ENDS + 1);
        for (end, freed) in &self.releases {
            // The last end is kept.
            let end = end.div_ceil(step).saturating_mul(step).min(last);
            match rounded.last_mut().filter(|(before, _)| *before == end) {
                Some((_, together)) => together.add(freed, 1),
                None => rounded.push((end, *freed)),
            }
        }
        self.releases = rounded;
    }

    fn measure_paths(&mut self) {
        for index in (0..self.stages.len()).rev() {
            let stage = &self.stages[index];
            let own = if stage.unstarted > 0 { stage.duration } else { stage.running_until };
            let rest = stage.dependents.iter().map(|&next| self.stages[next as usize].path).max();
            self.stages[index].path = own + rest.unwrap_or(0);
        }
    }

    /// The part of the share that is free now.
    pub fn free(&self) -> Amounts<K> {
        let mut free = self.share;
        self.releases.iter().for_each(|(_, held)| free.add(held, -1));
        free
    }

    /// The duration of a run.
    pub fn lasting(&self, run: &Run) -> u64 {
        self.stages[run.stage as usize].duration * u64::from(run.in_a_row)
    }

    /// When the last of these runs and of the running tasks ends.
    pub fn end_of(&self, runs: &[Run]) -> u64 {
        let mut has_started = vec![false; self.stages.len()];
        let mut end = self.stages.iter().map(|stage| stage.running_until).max().unwrap_or(0);
        // The first run of a stage precedes its others.
        for run in runs {
            let is_first = !std::mem::replace(&mut has_started[run.stage as usize], true);
            let longest = if is_first { self.stages[run.stage as usize].longest } else { 0 };
            end = end.max(run.at + self.lasting(run).max(longest));
        }
        end
    }

    /// A lower bound of the job's length: the longest path, with each stage as if it had the share alone, and the total
    /// work divided by the share.
    pub fn at_least(&self) -> u64 {
        let mut earliest = vec![0; self.stages.len()];
        let mut work = [0u128; K];
        let mut longest = 0;
        for (index, stage) in self.stages.iter().enumerate() {
            let mut end = stage.running_until;
            if stage.unstarted > 0 {
                let at_once = self.share.times(&stage.demand).max(1);
                end = end.max(earliest[index] + stage.duration * u64::from(stage.unstarted.div_ceil(at_once)));
                let time = u128::from(stage.duration) * u128::from(stage.unstarted);
                for (sum, &amount) in work.iter_mut().zip(&stage.demand.0) {
                    *sum += time * amount as u128;
                }
            }
            longest = longest.max(end);
            for &next in &stage.dependents {
                earliest[next as usize] = earliest[next as usize].max(end);
            }
        }
        let over = work.iter().zip(&self.share.0).filter_map(|(work, &of)| work.checked_div(of as u128));
        longest.max(over.max().and_then(|time| u64::try_from(time).ok()).unwrap_or(0))
    }
}
