//! Future entries, ordered by (time, sequence).
//!
//! A radix heap (Ahuja et al. 1990). It relies on the fact that no entry is added for the past, so entries far in the
//! future need not be sorted yet. As its time approaches, an entry moves a few times, each time to the end of a list at
//! a lower level. Entries with the same time keep their order.

use amalgam_core::vocabulary::Instant;
use slab::Slab;
use std::collections::VecDeque;

/// Bits of a time that one level distinguishes.
const DIGIT: u32 = 4;
const LEVELS: usize = (u64::BITS / DIGIT) as usize;
const DIGITS: usize = 1 << DIGIT;

pub struct Agenda<T> {
    /// Time of the entry that was taken last.
    now: Instant,
    /// Entries for `now`, in the order in which they were added: their keys in `things`.
    due: VecDeque<u32>,
    /// Later entries, by the level of the highest digit in which their time differs from `now`, and by their digit
    /// there.
    later: Vec<Vec<Entry>>,
    /// Bit sets of the lists that are not empty: the levels, and the digits of each level.
    levels: u16,
    digits: [u16; LEVELS],
    things: Slab<T>,
}

#[derive(Clone, Copy)]
struct Entry {
    at: Instant,
    /// Its key in `things`.
    thing: u32,
}

impl<T> Default for Agenda<T> {
    fn default() -> Agenda<T> {
        Agenda {
            now: Instant::ZERO,
            due: VecDeque::new(),
            later: (0..LEVELS * DIGITS).map(|_| Vec::new()).collect(),
            levels: 0,
            digits: [0; LEVELS],
            things: Slab::new(),
        }
    }
}

impl<T> Agenda<T> {
    /// Adds an entry behind all entries with the same time.
    ///
    /// # Panics
    /// If `at` is earlier than the time of the entry that was taken last.
    pub fn note(&mut self, at: Instant, thing: T) {
        assert!(at >= self.now, "an entry is not in the past");
        let thing = self.things.insert(thing) as u32;
        self.enter(Entry { at, thing });
    }

    pub fn next_at(&self) -> Option<Instant> {
        if self.due.is_empty() { self.first_list().and_then(|list| self.earliest(list)) } else { Some(self.now) }
    }

    pub fn pop(&mut self) -> Option<(Instant, T)> {
        if self.due.is_empty() {
            self.advance();
        }
        let thing = self.due.pop_front()?;
        Some((self.now, self.things.remove(thing as usize)))
    }

    fn enter(&mut self, entry: Entry) {
        let differing = entry.at.0 ^ self.now.0;
        if differing == 0 {
            return self.due.push_back(entry.thing);
        }
        let level = (differing.ilog2() / DIGIT) as usize;
        let digit = (entry.at.0 >> (level as u32 * DIGIT)) as usize % DIGITS;
        self.later[level * DIGITS + digit].push(entry);
        self.levels |= 1 << level;
        self.digits[level] |= 1 << digit;
    }

    /// The list with the earliest entries: of the lowest level that is not empty, the list with the smallest digit.
    fn first_list(&self) -> Option<usize> {
        let level = self.levels.trailing_zeros() as usize;
        (level < LEVELS).then(|| level * DIGITS + self.digits[level].trailing_zeros() as usize)
    }

    fn earliest(&self, list: usize) -> Option<Instant> {
        self.later[list].iter().map(|entry| entry.at).min()
    }

    /// Moves `now` to the earliest entry. All other lists are unchanged, because their times differ from the new `now`
    /// in the same digit.
    fn advance(&mut self) {
        let Some(list) = self.first_list() else { return };
        let Some(earliest) = self.earliest(list) else { return };
        self.now = earliest;
        let (level, digit) = (list / DIGITS, list % DIGITS);
        self.digits[level] &= !(1 << digit);
        if self.digits[level] == 0 {
            self.levels &= !(1 << level);
        }
        // All entries move to lower levels, so the empty list can be put back and its memory reused.
        let mut entries = std::mem::take(&mut self.later[list]);
        entries.drain(..).for_each(|entry| self.enter(entry));
        self.later[list] = entries;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::Chance;

    #[test]
    fn entries_are_taken_by_time_and_then_in_the_order_of_their_addition() {
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

    /// Compares with a sorted set, with delays of every length, many of them equal.
    #[test]
    fn entries_added_between_others_are_taken_in_order() {
        for seed in 0..50 {
            let mut chance = Chance::new(seed, "agenda");
            let (mut agenda, mut expected) = (Agenda::default(), std::collections::BTreeSet::new());
            let mut now = Instant::ZERO;
            for number in 0..3_000_u64 {
                let scale = [1, 4, 500, 10_000_000, 1 << 40, u64::MAX][chance.below(6_u64) as usize];
                let at = Instant(now.0.saturating_add(chance.below(scale) / 3 * 3));
                agenda.note(at, number);
                expected.insert((at, number));
                while chance.below(5_u64) < 2 {
                    assert_eq!(agenda.next_at(), expected.first().map(|(at, _)| *at));
                    assert_eq!(agenda.pop(), expected.pop_first());
                    now = agenda.now;
                }
            }
            let left: Vec<(Instant, u64)> = std::iter::from_fn(|| agenda.pop()).collect();
            assert_eq!(left, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
