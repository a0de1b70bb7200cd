//! Sets of task numbers stored as ranges: a million consecutive numbers cost as much as one.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A set of numbers, as ranges that neither overlap nor touch.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, u32)>", into = "Vec<(u32, u32)>")]
pub struct Spans {
    /// The first of each range, and the number after its last.
    ranges: BTreeMap<u32, u32>,
    len: u32,
}

impl From<Vec<(u32, u32)>> for Spans {
    /// Checks ranges from another process instead of trusting them.
    fn from(ranges: Vec<(u32, u32)>) -> Spans {
        let mut spans = Spans::default();
        for (start, end) in ranges {
            spans.add(start, end);
        }
        spans
    }
}

impl From<Spans> for Vec<(u32, u32)> {
    fn from(spans: Spans) -> Vec<(u32, u32)> {
        spans.ranges().collect()
    }
}

impl Spans {
    /// All numbers below `end`.
    pub fn below(end: u32) -> Spans {
        Spans::from(vec![(0, end)])
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first of each range, and the number after its last.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.ranges().flat_map(|(start, end)| start..end)
    }

    pub fn first(&self) -> Option<u32> {
        self.ranges.first_key_value().map(|(start, _)| *start)
    }

    pub fn last(&self) -> Option<u32> {
        self.ranges.last_key_value().map(|(_, end)| end - 1)
    }

    pub fn contains(&self, number: u32) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// How many numbers of the set are below `number`.
    pub fn rank(&self, number: u32) -> u32 {
        self.ranges.range(..number).map(|(start, end)| (*end).min(number) - start).sum()
    }

    /// Adds `start..end`. Returns how many of these numbers are new.
    pub fn add(&mut self, start: u32, end: u32) -> u32 {
        if start >= end {
            return 0;
        }
        let before = self.len;
        let (mut first, mut last) = (start, end);
        let touching = self.ranges.range(..=end).rev().take_while(|(_, other_end)| **other_end >= start);
        let touching: Vec<(u32, u32)> = touching.map(|(start, end)| (*start, *end)).collect();
        for (other_start, other_end) in touching {
            self.ranges.remove(&other_start);
            self.len -= other_end - other_start;
            (first, last) = (first.min(other_start), last.max(other_end));
        }
        self.ranges.insert(first, last);
        self.len += last - first;
        self.len - before
    }

    pub fn insert(&mut self, number: u32) -> bool {
        number < u32::MAX && self.add(number, number + 1) == 1
    }

    /// Removes `start..end`. Returns the numbers that were in the set.
    pub fn take(&mut self, start: u32, end: u32) -> Spans {
        let mut taken = Spans::default();
        if start >= end {
            return taken;
        }
        let overlapping = self.ranges.range(..end).rev().take_while(|(_, other_end)| **other_end > start);
        let overlapping: Vec<(u32, u32)> = overlapping.map(|(start, end)| (*start, *end)).collect();
        for (other_start, other_end) in overlapping {
            self.ranges.remove(&other_start);
            self.len -= other_end - other_start;
            self.add(other_start, start.max(other_start));
            self.add(end.min(other_end), other_end);
            taken.add(start.max(other_start), end.min(other_end));
        }
        taken
    }

    pub fn remove(&mut self, number: u32) -> bool {
        number < u32::MAX && !self.take(number, number + 1).is_empty()
    }

    /// Adds all of the others.
    pub fn add_all(&mut self, others: &Spans) {
        for (start, end) in others.ranges() {
            self.add(start, end);
        }
    }

    /// Removes the others. Returns those that were in the set.
    pub fn take_all(&mut self, others: &Spans) -> Spans {
        let mut taken = Spans::default();
        others.ranges().for_each(|(start, end)| taken.add_all(&self.take(start, end)));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;
    use std::collections::BTreeSet;

    #[test]
    fn spans_behave_like_a_set_of_numbers() {
        let mut chance = Chance::new(7, "spans");
        let mut below = |limit: u32| chance.below(u64::from(limit)) as u32;
        let (mut spans, mut model) = (Spans::default(), BTreeSet::new());
        for _ in 0..2_000 {
            let (start, length) = (below(60), below(12));
            let range = start..start + length;
            if below(2) == 0 {
                let new = range.clone().filter(|number| model.insert(*number)).count() as u32;
                assert_eq!(spans.add(range.start, range.end), new);
            } else {
                let gone: Vec<u32> = range.clone().filter(|number| model.remove(number)).collect();
                assert_eq!(spans.take(range.start, range.end).iter().collect::<Vec<_>>(), gone);
            }
            assert_eq!(spans.iter().collect::<BTreeSet<_>>(), model);
            assert_eq!((spans.len() as usize, spans.first()), (model.len(), model.first().copied()));
            let (at, ranges) = (below(80), spans.ranges().collect::<Vec<_>>());
            assert_eq!(spans.contains(at), model.contains(&at));
            assert_eq!(spans.rank(at) as usize, model.range(..at).count());
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?} touch");
        }
    }

    #[test]
    fn any_received_ranges_become_a_valid_set() {
        let spans = Spans::from(vec![(5, 2), (1, 4), (3, 9), (u32::MAX, u32::MAX)]);
        assert_eq!(Vec::from(spans), [(1, 9)]);
    }
}
