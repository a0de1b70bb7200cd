//! Predictions for the starts of tasks that wait without a node. Asks are counted, and so are their predictions: they
//! are kept for each group of tasks that were requested at once, and the interval of a task is made when it gets its
//! node, from what was known when it was requested. So a million waiting tasks cost as much as one.

use crate::vocabulary::{Duration, Instant, Late, Line, Margins, Prediction, Resources, Route, Totals};
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of departures that are remembered, and the least number that is used to determine their pace.
const DEPARTURES: usize = 4_096;
const LEAST: usize = 256;
/// Tasks of an ask that are requested within this time count as requested at once, and so do all further ones once
/// there are `MOST_GROUPS` groups.
const AT_ONCE: Duration = Duration::from_millis(100);
const MOST_GROUPS: usize = 64;

/// The tasks of one ask that have no node, by the time of their request.
#[derive(Clone, Default, Debug)]
pub struct Waiting {
    together: VecDeque<Together>,
    /// The number of tasks without a node, in all groups.
    open: u64,
}

/// Tasks that were requested at once.
#[derive(Clone, Debug)]
struct Together {
    count: u64,
    /// The number of them that have a node.
    placed: u64,
    /// The number of them that have a node or were counted as late.
    counted: u64,
    at: Instant,
    outlook: Outlook,
}

/// What is known about the waits of tasks when they are requested.
#[derive(Clone, Debug)]
pub struct Outlook {
    pub way: Route,
    pub line: Line,
    pub margins: Arc<Margins>,
}

impl Waiting {
    /// Sets the number of open tasks. Returns how many of them are new.
    pub fn on_open(&mut self, now: Instant, open: u64, outlook: impl FnOnce() -> Outlook) -> u64 {
        let known = self.open;
        self.open = open;
        let is_full = self.together.len() == MOST_GROUPS;
        match self.together.back_mut() {
            _ if open <= known => {}
            Some(last) if is_full || now.since(last.at) < AT_ONCE => last.count += open - known,
            _ => self.together.push_back(Together {
                count: open - known,
                placed: 0,
                counted: 0,
                at: now,
                outlook: outlook(),
            }),
        }
        let mut over = known.saturating_sub(open);
        while let Some(last) = self.together.back_mut().filter(|_| over > 0) {
            let gone = over.min(last.count - last.placed);
            (last.count, over) = (last.count - gone, over - gone);
            last.counted = last.counted.min(last.count);
            if last.count == last.placed {
                self.together.pop_back();
            }
        }
        open.saturating_sub(known)
    }

    /// The prediction for the start of the next task.
    pub fn next(&self, now: Instant) -> Option<Prediction> {
        let first = self.together.front()?;
        let is_counted = first.placed < first.counted;
        Some(Prediction { is_counted, ..first.outlook.predict(first.placed).made(first.at, now) })
    }

    /// Reports tasks that have waited for longer than predicted and were not reported before; the first `most` of each
    /// group.
    pub fn late(&mut self, now: Instant, most: u64, report: &mut dyn FnMut(Late)) {
        for group in &mut self.together {
            let Together { count, placed, at, ref outlook, .. } = *group;
            group.counted = group.counted.max(placed);
            for place in (group.counted..count).take(most as usize) {
                let Some(late) = outlook.predict(place).late(now.since(at)) else { break };
                group.counted = place + 1;
                report(late);
            }
        }
    }

    /// The next task has a node.
    pub fn on_placed(&mut self) {
        if let Some(first) = self.together.front_mut() {
            first.placed += 1;
            self.open -= 1;
            if first.placed == first.count {
                self.together.pop_front();
            }
        }
    }
}

impl Outlook {
    fn predict(&self, place: u64) -> Prediction {
        self.margins.predict(self.way, self.line.wait(place))
    }
}

/// How fast tasks end, and how much room they leave.
#[derive(Default)]
pub struct Pace {
    departures: VecDeque<Instant>,
    held: Totals,
    capacity: Totals,
}

impl Pace {
    pub fn on_capacity(&mut self, capacity: &Totals) {
        self.capacity = *capacity;
    }

    pub fn on_held(&mut self, resources: &Resources) {
        self.held.add(resources);
    }

    pub fn on_freed(&mut self, now: Instant, resources: &Resources) {
        self.held.sub(resources);
        if self.departures.len() == DEPARTURES {
            self.departures.pop_front();
        }
        self.departures.push_back(now);
    }

    /// Nanoseconds from one departure to the next, over as many of the last ones as are awaited; one second if none is
    /// known.
    pub fn each(&self, now: Instant, awaited: u64) -> u64 {
        let count = usize::try_from(awaited).unwrap_or(DEPARTURES).max(LEAST).min(self.departures.len());
        let Some(first) = self.departures.len().checked_sub(count).and_then(|at| self.departures.get(at)) else {
            return 1_000_000_000;
        };
        now.since(*first).0.saturating_mul(1_000) / count as u64
    }

    /// How many tasks of this shape find room at once, as if the cluster were one node.
    pub fn room(&self, shape: &Resources) -> u64 {
        self.capacity.saturating_sub(&self.held).holds(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(way: Route, line: Line) -> Outlook {
        Outlook { way, line, margins: Arc::default() }
    }

    fn place(waiting: &mut Waiting, at: u64) -> Option<Prediction> {
        let reported = waiting.next(second(at));
        waiting.on_placed();
        reported
    }

    const IDLE: Line = Line { ahead: 0, step: 0, room: 0, each: 1 };

    fn second(at: u64) -> Instant {
        Instant(at * 1_000_000)
    }

    #[test]
    fn predictions_use_what_was_known_when_each_task_was_requested() {
        let mut waiting = Waiting::default();
        let in_line = Line { ahead: 10, step: 2, room: 11, each: 500_000_000 };
        waiting.on_open(second(0), 4, || outlook(Route::Asked, in_line));
        waiting.on_open(second(5), 5, || outlook(Route::Probed, IDLE));
        waiting.on_open(second(6), 5, || panic!("nothing is new"));
        let mut next = |at| {
            let reported = place(&mut waiting, at).unwrap();
            (reported.way, reported.expected.0 / 1_000, reported.age.0 / 1_000_000)
        };
        assert_eq!(next(7), (Route::Asked, 0, 7));
        assert_eq!(next(8), (Route::Asked, 500, 8));
        assert_eq!([next(8), next(9)].map(|reported| reported.1), [1_500, 2_500]);
        assert_eq!(next(9), (Route::Probed, 0, 4));
        assert_eq!(place(&mut waiting, 9), None);
    }

    #[test]
    fn tasks_that_are_no_longer_requested_are_removed_from_the_end() {
        let mut waiting = Waiting::default();
        waiting.on_open(second(0), 3, || outlook(Route::Asked, IDLE));
        waiting.on_open(second(1), 5, || outlook(Route::Probed, IDLE));
        assert_eq!(place(&mut waiting, 1).unwrap().way, Route::Asked);
        waiting.on_open(second(2), 1, || panic!("less is open"));
        assert_eq!(place(&mut waiting, 2).unwrap().way, Route::Asked);
        assert_eq!(place(&mut waiting, 2), None);
    }

    #[test]
    fn tasks_that_are_retried_one_by_one_form_few_groups() {
        let mut waiting = Waiting::default();
        for more in 0..1_000 {
            waiting.on_open(second(more), more + 1, || outlook(Route::Asked, IDLE));
        }
        assert_eq!((waiting.together.len(), waiting.open), (MOST_GROUPS, 1_000));
        waiting.on_open(second(1_000), 500, || panic!("less is open"));
        let placed = (0..).take_while(|_| place(&mut waiting, 1_001).is_some()).count();
        assert_eq!((placed, waiting.open), (500, 0));
        let mut waiting = Waiting::default();
        for open in 1..=5 {
            waiting.on_open(Instant(open * 10_000), open, || outlook(Route::Asked, IDLE));
        }
        assert_eq!(waiting.together.len(), 1, "they were requested at once");
    }

    #[test]
    fn the_pace_follows_recent_departures_and_the_room_is_what_is_not_held() {
        let (core, mut pace) = (Resources::new(1_000, 0), Pace::default());
        assert_eq!(pace.each(second(9), 0), 1_000_000_000);
        let mut capacity = Totals::ZERO;
        capacity.add_times(&core, 8);
        pace.on_capacity(&capacity);
        (0..8).for_each(|_| pace.on_held(&core));
        assert_eq!(pace.room(&core), 0);
        (1..=5).for_each(|at| pace.on_freed(second(10 + at), &core));
        assert_eq!((pace.room(&core), pace.each(second(16), 0)), (5, 1_000_000_000));
        (0..300).for_each(|_| pace.on_held(&core));
        (0..300).for_each(|_| pace.on_freed(second(20), &core));
        assert_eq!(pace.each(second(20), 256), 0);
        // Of the 305, the first five took five seconds.
        assert_eq!(pace.each(second(20), 1_000_000), 9_000_000_000 / 305);
    }
}
