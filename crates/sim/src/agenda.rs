//! What is going to happen, by (time, sequence).
//!
//! Most things are noted for a time that is not before anything noted earlier: messages with one delay, for instance.
//! Those go to a queue; only the rest pays for a heap. The order is that of one heap.

use amalgam_core::vocabulary::Instant;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

pub struct Agenda<T> {
    ascending: VecDeque<Entry>,
    rest: BinaryHeap<Reverse<Entry>>,
    /// Things by the place that an entry names.
    things: Vec<Option<T>>,
    vacant: Vec<u32>,
    next_sequence: u64,
}

/// Ordered by time, then by sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Instant,
    sequence: u64,
    place: u32,
}

impl<T> Default for Agenda<T> {
    fn default() -> Agenda<T> {
        Agenda {
            ascending: VecDeque::new(),
            rest: BinaryHeap::new(),
            things: Vec::new(),
            vacant: Vec::new(),
            next_sequence: 0,
        }
    }
}

impl<T> Agenda<T> {
    /// Notes a thing behind everything that was noted for the same time before.
    pub fn note(&mut self, at: Instant, thing: T) {
        let place = match self.vacant.pop() {
            Some(place) => {
                self.things[place as usize] = Some(thing);
                place
            }
            None => {
                self.things.push(Some(thing));
                (self.things.len() - 1) as u32
            }
        };
        let entry = Entry { at, sequence: self.next_sequence, place };
        self.next_sequence += 1;
        if self.ascending.back().is_none_or(|last| last.at <= at) {
            self.ascending.push_back(entry);
        } else {
            self.rest.push(Reverse(entry));
        }
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.next().map(|entry| entry.at)
    }

    pub fn pop(&mut self) -> Option<(Instant, T)> {
        let entry = self.next()?;
        if self.ascending.front() == Some(&entry) {
            self.ascending.pop_front();
        } else {
            self.rest.pop();
        }
        let thing = self.things[entry.place as usize].take().expect("an entry's thing is there until it is popped");
        self.vacant.push(entry.place);
        Some((entry.at, thing))
    }

    fn next(&self) -> Option<Entry> {
        let (queued, heaped) = (self.ascending.front(), self.rest.peek().map(|Reverse(entry)| entry));
        queued.into_iter().chain(heaped).min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_come_by_time_and_then_in_the_order_of_their_notes() {
        let mut agenda = Agenda::default();
        let times = [5_u64, 7, 5, 1, 9, 9, 1, 7, 3, 5];
        for (number, at) in times.into_iter().enumerate() {
            agenda.note(Instant(at), number);
        }
        let mut expected: Vec<(Instant, usize)> =
            times.into_iter().enumerate().map(|(number, at)| (Instant(at), number)).collect();
        expected.sort();
        let popped: Vec<(Instant, usize)> = std::iter::from_fn(|| agenda.pop()).collect();
        assert_eq!(popped, expected);
        assert_eq!(agenda.next_at(), None);
    }
}
