//! What is free of a share from now on, and runs that are moved about in it.

use super::remaining::{Amounts, Remaining, Run};
use std::cmp::Reverse;

/// Into so many pieces at most all runs of a large job together are cut.
const MOST_PIECES: u32 = 1_024;

/// Segments of time, each from one point to the next, in a list that runs both ways. Points stay where they are.
pub(super) struct Timeline<const K: usize> {
    points: Vec<Point<K>>,
}

#[derive(Clone, Copy)]
struct Point<const K: usize> {
    at: u64,
    /// From here to the next point.
    free: Amounts<K>,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// Moves these runs, a schedule of this length, as late as the share and the stages' dependencies let them end by then.
///
/// From the one that ends last to the one that ends first, each goes to the latest place where it has room between
/// those that were moved and those that were not. Its own place is free, so it never starts earlier than it did. A run
/// that finds room for some of its tasks only is cut: where times are exact as often as it helps, else into few pieces.
pub(super) fn shift_right<const K: usize>(job: &Remaining<K>, runs: &[Run], length: u64) -> Vec<Run> {
    let mut by_end: Vec<u32> = (0..runs.len() as u32).collect();
    let key = |&run: &u32| {
        let run = &runs[run as usize];
        Reverse((run.at + job.lasting(run), run.at, run.stage))
    };
    by_end.sort_unstable_by_key(key);

    let (mut timeline, spans) = Timeline::of(job, runs, length);
    // By stage: the earliest point at which one of its tasks starts, and until when to look for room for others.
    let mut begins = vec![NONE; job.stages.len()];
    let mut searches: Vec<Option<Search>> = vec![None; job.stages.len()];
    let last = timeline.points.len() as u32 - 1;
    let cuts = (MOST_PIECES / runs.len().max(1) as u32).max(1);
    let mut shifted = Vec::with_capacity(runs.len() + runs.len() / 2);
    for index in by_end {
        let run = runs[index as usize];
        let (stage, lasting) = (&job.stages[run.stage as usize], job.lasting(&run));
        let search = searches[run.stage as usize].get_or_insert_with(|| {
            // All that depends on the stage starts after it ended, so it was moved before.
            let dependents = stage.dependents.iter().map(|&next| begins[next as usize]).filter(|&point| point != NONE);
            Search::until(dependents.min_by_key(|&point| timeline.at(point)).unwrap_or(last))
        });
        let (from, to) = spans[index as usize];
        timeline.change(from, to, &stage.demand.scaled(run.count), 1);
        let least = if job.tick == 0 { 1 } else { run.count.div_ceil(cuts) };
        let mut left = run.count;
        while left > 0 {
            let least = least.min(left);
            let needed = stage.demand.scaled(least);
            let place = timeline.latest(search.from(least, lasting), lasting, &needed);
            let place = place.expect("a run's own place is free");
            *search = Search { found: place.to, count: least, lasting, ..*search };
            let count = timeline.times(&place, &stage.demand).min(left);
            let start = timeline.take(&place, &stage.demand.scaled(count));
            shifted.push(Run { at: timeline.at(start), count, ..run });
            let begin = &mut begins[run.stage as usize];
            if *begin == NONE || timeline.at(start) < timeline.at(*begin) {
                *begin = start;
            }
            left -= count;
        }
    }
    shifted
}

/// How far the search for room for a stage's tasks has come. What is taken from a run's old place lies before all the
/// places that were found so far, so where there was no room there will be none for as many that take as long.
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

/// Where a run has room: from a moment in the segment of a point to another point.
pub(super) struct Place {
    start: u64,
    segment: u32,
    to: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Release(u32),
    Begin(u32),
    End(u32),
}

impl<const K: usize> Timeline<K> {
    /// What these runs and the running tasks leave free, and at which points each run begins and ends. The last point
    /// lies at the schedule's end.
    fn of(job: &Remaining<K>, runs: &[Run], length: u64) -> (Timeline<K>, Vec<(u32, u32)>) {
        let mut changes: Vec<(u64, Change)> = Vec::with_capacity(2 * runs.len() + job.releases.len());
        changes.extend(job.releases.iter().zip(0..).map(|((end, _), index)| (*end, Change::Release(index))));
        for (run, index) in runs.iter().zip(0..) {
            changes.push((run.at, Change::Begin(index)));
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
                Change::Begin(run) => {
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

    /// Nothing is held until then.
    pub(super) fn empty(share: Amounts<K>, end: u64) -> Timeline<K> {
        let first = Point { at: 0, free: share, previous: NONE, next: 1 };
        Timeline { points: vec![first, Point { at: end, previous: 0, next: NONE, ..first }] }
    }

    /// Takes room for up to `most` of what wants so much, as many as there is room for at the first moment, not before
    /// `from`, at which there is as much as `needed`. Returns when they start, and how many.
    pub(super) fn take_earliest(
        &mut self,
        from: u64,
        lasting: u64,
        needed: &Amounts<K>,
        demand: &Amounts<K>,
        most: u32,
    ) -> (u64, u32) {
        let mut segment = self.segment_at(from);
        let (mut start, mut here) = (from, segment);
        loop {
            let Point { free, next, .. } = self.points[here as usize];
            let until = self.at(next);
            if !free.has(needed) {
                (start, segment) = (until, next);
            } else if until >= start + lasting {
                break;
            }
            here = next;
        }
        let next = self.points[here as usize].next;
        let end = start + lasting;
        let to = if self.at(next) == end { next } else { self.split(here, end) };
        let place = Place { start, segment, to };
        let count = self.times(&place, demand).min(most);
        self.take(&place, &demand.scaled(count));
        (start, count)
    }

    /// The same at the last moment, not ending after `until`. Returns when they end, and how many.
    pub(super) fn take_latest(
        &mut self,
        until: u64,
        lasting: u64,
        needed: &Amounts<K>,
        demand: &Amounts<K>,
        most: u32,
    ) -> (u64, u32) {
        let segment = self.segment_at(until);
        let by = self.split(segment, until);
        let place = self.latest(by, lasting, needed).expect("there is room before everything else");
        let count = self.times(&place, demand).min(most);
        self.take(&place, &demand.scaled(count));
        (self.at(place.to), count)
    }

    fn segment_at(&self, at: u64) -> u32 {
        let mut here = 0;
        while self.at(self.points[here as usize].next) <= at {
            here = self.points[here as usize].next;
        }
        here
    }

    fn at(&self, point: u32) -> u64 {
        self.points[point as usize].at
    }

    /// A point at the end of the list, unless the last one lies there.
    fn append(&mut self, at: u64) -> u32 {
        let last = self.points.len() as u32 - 1;
        if self.at(last) == at {
            return last;
        }
        let free = self.points[last as usize].free;
        self.points.push(Point { at, free, previous: last, next: NONE });
        self.points[last as usize].next = last + 1;
        last + 1
    }

    fn change(&mut self, from: u32, to: u32, by: &Amounts<K>, sign: i64) {
        let mut here = from;
        while here != to {
            let point = &mut self.points[here as usize];
            point.free.add(by, sign);
            here = point.next;
        }
    }

    /// The latest place for so much, for so long, that ends at `by` or before.
    fn latest(&self, by: u32, lasting: u64, needed: &Amounts<K>) -> Option<Place> {
        let mut to = by;
        let mut segment = self.points[to as usize].previous;
        loop {
            let start = self.at(to).checked_sub(lasting)?;
            loop {
                let point = &self.points[segment as usize];
                let blocks = !point.free.has(needed);
                if blocks {
                    to = segment;
                } else if point.at <= start {
                    return Some(Place { start, segment, to });
                }
                segment = point.previous;
                if blocks {
                    break;
                }
            }
            if segment == NONE {
                return None;
            }
        }
    }

    /// How often the demand fits into a place.
    fn times(&self, place: &Place, demand: &Amounts<K>) -> u32 {
        let mut free = self.points[place.segment as usize].free;
        let mut here = place.segment;
        while here != place.to {
            let point = &self.points[here as usize];
            free = Amounts(std::array::from_fn(|kind| free.0[kind].min(point.free.0[kind])));
            here = point.next;
        }
        free.times(demand)
    }

    /// Takes so much out of a place; returns the point at which it starts.
    fn take(&mut self, place: &Place, amounts: &Amounts<K>) -> u32 {
        let start = self.split(place.segment, place.start);
        self.change(start, place.to, amounts, -1);
        start
    }

    /// A point at this time, within the segment.
    fn split(&mut self, segment: u32, at: u64) -> u32 {
        let Point { at: begin, free, next, .. } = self.points[segment as usize];
        if begin == at {
            return segment;
        }
        let new = self.points.len() as u32;
        self.points.push(Point { at, free, previous: segment, next });
        self.points[segment as usize].next = new;
        if next != NONE {
            self.points[next as usize].previous = new;
        }
        new
    }
}
