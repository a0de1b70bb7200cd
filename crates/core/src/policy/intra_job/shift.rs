//! Moves the runs of a schedule as late as possible.

use super::remaining::{Remaining, Run};
use crate::policy::timeline::{NONE, Point, Timeline};
use std::cmp::Reverse;

/// All runs of a large job together are cut into at most this many pieces.
const MOST_PIECES: u32 = 1_024;

/// Moves these runs, a schedule of this length, as late as the share and the stages' dependencies allow with the same
/// end.
///
/// From the run that ends last to the one that ends first, each moves to the latest place with room among moved and
/// unmoved runs. Its own place is free, so it never starts earlier than before. A run of which only some tasks fit is
/// cut: as often as it helps if times are exact, else into a few pieces.
pub(super) fn shift_right<const K: usize>(job: &Remaining<K>, runs: &[Run], length: u64) -> Vec<Run> {
    let mut by_end: Vec<u32> = (0..runs.len() as u32).collect();
    let key = |&run: &u32| {
        let run = &runs[run as usize];
        Reverse((run.at + job.lasting(run), run.at, run.stage))
    };
    by_end.sort_unstable_by_key(key);

    let (mut timeline, spans) = Timeline::of(job, runs, length);
    // By stage: the earliest start of its moved tasks, and where to continue the search for room.
    let mut starts = vec![NONE; job.stages.len()];
    let mut searches: Vec<Option<Search>> = vec![None; job.stages.len()];
    let last = timeline.points.len() as u32 - 1;
    let cuts = (MOST_PIECES / runs.len().max(1) as u32).max(1);
    let mut shifted = Vec::with_capacity(runs.len() + runs.len() / 2);
    for index in by_end {
        let run = runs[index as usize];
        let (stage, lasting) = (&job.stages[run.stage as usize], job.lasting(&run));
        let search = searches[run.stage as usize].get_or_insert_with(|| {
            // All dependents of the stage start after it ended, so they have been moved already.
            let dependents = stage.dependents.iter().map(|&next| starts[next as usize]).filter(|&point| point != NONE);
            Search::until(dependents.min_by_key(|&point| timeline.at(point)).unwrap_or(last))
        });
        let (from, to) = spans[index as usize];
        timeline.change(from, to, &stage.demand.scaled(run.count), 1);
        let least = if job.tick == 0 { 1 } else { run.count.div_ceil(cuts) };
        let mut left = run.count;
        while left > 0 {
            let least = least.min(left);
            let needed = stage.demand.scaled(least);
            let slot = timeline.latest(search.from(least, lasting), lasting, &needed);
            let slot = slot.expect("a run's own place is free");
            *search = Search { found: slot.to, count: least, lasting, ..*search };
            let count = timeline.times(&slot, &stage.demand).min(left);
            let start = timeline.book(&slot, &stage.demand.scaled(count));
            shifted.push(Run { at: timeline.at(start), count, ..run });
            let earliest = &mut starts[run.stage as usize];
            if *earliest == NONE || timeline.at(start) < timeline.at(*earliest) {
                *earliest = start;
            }
            left -= count;
        }
    }
    shifted
}

/// The progress of the search for room for a stage's tasks. Room freed at a run's old place is earlier than all places
/// found so far, so where there was no room, there will be none for as many tasks of the same duration.
#[derive(Clone, Copy)]
struct Search {
    deadline: u32,
    found: u32,
    count: u32,
    lasting: u64,
}

impl Search {
    fn until(deadline: u32) -> Search {
        Search { deadline, found: deadline, count: 0, lasting: 0 }
    }

    fn from(&self, count: u32, lasting: u64) -> u32 {
        if count >= self.count && lasting >= self.lasting { self.found } else { self.deadline }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Release(u32),
    Start(u32),
    End(u32),
}

impl<const K: usize> Timeline<K> {
    /// The room that these runs and the running tasks leave free, and the points at which each run starts and ends. The
    /// last point is the end of the schedule.
    fn of(job: &Remaining<K>, runs: &[Run], length: u64) -> (Timeline<K>, Vec<(u32, u32)>) {
        let mut changes: Vec<(u64, Change)> = Vec::with_capacity(2 * runs.len() + job.releases.len());
        changes.extend(job.releases.iter().zip(0..).map(|((end, _), index)| (*end, Change::Release(index))));
        for (run, index) in runs.iter().zip(0..) {
            changes.push((run.at, Change::Start(index)));
            changes.push((run.at + job.lasting(run), Change::End(index)));
        }
        changes.sort_unstable();

        let first = Point { at: 0, free: job.free(), previous: NONE, next: NONE };
        let mut points = Vec::with_capacity(3 * runs.len() + job.releases.len() + 2);
        points.push(first);
        let mut timeline = Timeline { points };
        let mut spans = vec![(NONE, NONE); runs.len()];
        for (at, change) in changes {
            let point = timeline.append(at);
            let free = &mut timeline.points[point as usize].free;
            let held = |run: u32| (&job.stages[runs[run as usize].stage as usize].demand, runs[run as usize].count);
            match change {
                Change::Release(index) => free.add(&job.releases[index as usize].1, 1),
                Change::Start(run) => {
                    free.add(held(run).0, -i64::from(held(run).1));
                    spans[run as usize].0 = point;
                }
                Change::End(run) => {
                    free.add(held(run).0, i64::from(held(run).1));
                    spans[run as usize].1 = point;
                }
            }
        }
        timeline.append(length);
        (timeline, spans)
    }
}
