//! An index of open asks that finds those that fit into some room without checking each of them.
//!
//! For every requested kind of resource there are levels, eight to a doubling, and for each level one bit per ask: the
//! ask needs no more of the kind than this level. The asks that fit are the intersection of a few rows of bits, at the
//! cost of one step for 64 asks; only asks on the room's own level are compared in full.

use crate::policy::AskSlot;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{ClassTable, Resources};

/// Level 0 is zero; then there are eight for each of 32 doublings.
const LEVELS: usize = 1 + 32 * 8;

type Bits = Vec<u64>;

#[derive(Default)]
pub struct FitIndex {
    shapes: Vec<Resources>,
    classes: Vec<u32>,
    /// For each requested kind: a row of bits for every level.
    at_most: [Option<Box<[Bits]>>; WIDTH],
    of_class: Vec<Bits>,
    open: Bits,
    parked: Bits,
    gangs: Bits,
    found: Bits,
    words: usize,
}

impl FitIndex {
    pub fn add(&mut self, ask: AskSlot, shape: Resources, class: u32) {
        let at = ask as usize;
        if self.shapes.len() <= at {
            self.shapes.resize(at + 1, Resources::ZERO);
            self.classes.resize(at + 1, 0);
        }
        if self.of_class.len() <= class as usize {
            self.of_class.resize_with(class as usize + 1, Bits::new);
        }
        self.make_room(at / 64 + 1);
        self.shapes[at] = shape;
        self.classes[at] = class;
        set(&mut self.of_class[class as usize], ask, true);
        for kind in 0..WIDTH {
            if shape.0[kind] > 0 && self.at_most[kind].is_none() {
                // No ask needed this kind so far: all existing asks are at level zero.
                self.at_most[kind] = Some(vec![vec![u64::MAX; self.words]; LEVELS].into_boxed_slice());
            }
            if let Some(rows) = &mut self.at_most[kind] {
                let own = level(shape.0[kind]);
                rows.iter_mut().enumerate().for_each(|(level, row)| set(row, ask, own <= level));
            }
        }
    }

    /// Extends the rows to at least this length.
    fn make_room(&mut self, words: usize) {
        if words <= self.words {
            return;
        }
        self.words = words.next_power_of_two();
        let words = self.words;
        for row in self.at_most.iter_mut().flatten().flat_map(|rows| rows.iter_mut()) {
            row.resize(words, u64::MAX);
        }
        for row in self.of_class.iter_mut().chain([&mut self.open, &mut self.parked, &mut self.gangs, &mut self.found])
        {
            row.resize(words, 0);
        }
    }

    pub fn remove(&mut self, ask: AskSlot) {
        self.set_open(ask, false);
        self.set_parked(ask, false);
        self.set_gang(ask, false);
        let class = self.classes[ask as usize];
        set(&mut self.of_class[class as usize], ask, false);
    }

    pub fn set_class(&mut self, ask: AskSlot, class: u32) {
        let old = std::mem::replace(&mut self.classes[ask as usize], class);
        if self.of_class.len() <= class as usize {
            self.of_class.resize_with(class as usize + 1, || vec![0; self.words]);
        }
        set(&mut self.of_class[old as usize], ask, false);
        set(&mut self.of_class[class as usize], ask, true);
    }

    pub fn set_open(&mut self, ask: AskSlot, open: bool) {
        set(&mut self.open, ask, open);
    }

    pub fn set_parked(&mut self, ask: AskSlot, parked: bool) {
        set(&mut self.parked, ask, parked);
    }

    /// The ask's tasks do not get room one by one.
    pub fn set_gang(&mut self, ask: AskSlot, is_gang: bool) {
        set(&mut self.gangs, ask, is_gang);
    }

    /// Finds the open asks, other than gangs, that fit into `room` and whose class the node meets. Returns whether
    /// there are any.
    pub fn find_on(&mut self, room: &Resources, node: usize, classes: &ClassTable) -> bool {
        let Self { found, open, gangs, .. } = self;
        for ((found, open), gangs) in found.iter_mut().zip(open).zip(gangs) {
            *found = *open & !*gangs;
        }
        self.keep_fitting(room) && self.keep_meeting(node, classes)
    }

    /// Finds the open asks that are not parked, or only the gangs among them. Returns whether there are any.
    pub fn find_fresh(&mut self, only_gangs: bool) -> bool {
        let Self { found, open, parked, gangs, .. } = self;
        let others = if only_gangs { 0 } else { u64::MAX };
        for (((found, open), parked), gangs) in found.iter_mut().zip(open).zip(parked).zip(gangs) {
            *found = *open & !*parked & (*gangs | others);
        }
        any(&self.found)
    }

    /// Keeps the found asks that fit into `room`. Returns whether any are left.
    pub fn keep_fitting(&mut self, room: &Resources) -> bool {
        // For each kind: the row of the room's level, and the one below, whose asks certainly fit.
        let mut rows: [(&[u64], &[u64]); WIDTH] = [(&[], &[]); WIDTH];
        let mut kinds = 0;
        for (of_kind, &amount) in self.at_most.iter().zip(&room.0) {
            if let Some(of_kind) = of_kind {
                let own = level(amount);
                rows[kinds] = (&of_kind[own], &of_kind[own.saturating_sub(1)]);
                kinds += 1;
            }
        }
        for word in 0..self.words {
            let mut fits = self.found[word];
            if fits == 0 {
                continue;
            }
            let mut surely = fits;
            for (own, below) in &rows[..kinds] {
                fits &= own[word];
                surely &= below[word];
            }
            let mut unsure = fits & !surely;
            while unsure != 0 {
                let bit = unsure.trailing_zeros() as usize;
                unsure &= unsure - 1;
                if !self.shapes[word * 64 + bit].fits_in(room) {
                    fits &= !(1 << bit);
                }
            }
            self.found[word] = fits;
        }
        any(&self.found)
    }

    fn keep_meeting(&mut self, node: usize, classes: &ClassTable) -> bool {
        let found: usize = self.found.iter().map(|word| word.count_ones() as usize).sum();
        if found < self.of_class.len() * self.words {
            for word in 0..self.words {
                let mut left = self.found[word];
                while left != 0 {
                    let bit = left.trailing_zeros() as usize;
                    left &= left - 1;
                    if !classes.meets(self.classes[word * 64 + bit], node) {
                        self.found[word] &= !(1 << bit);
                    }
                }
            }
            return any(&self.found);
        }
        for class in 0..self.of_class.len() {
            if !classes.meets(class as u32, node) {
                for (found, unmet) in self.found.iter_mut().zip(&self.of_class[class]) {
                    *found &= !unmet;
                }
            }
        }
        any(&self.found)
    }

    #[inline]
    pub fn is_found(&self, ask: AskSlot) -> bool {
        self.found[ask as usize / 64] >> (ask % 64) & 1 == 1
    }

    /// Found asks, in the order of their slots.
    pub fn found(&self) -> impl Iterator<Item = AskSlot> {
        self.found.iter().enumerate().flat_map(|(word, &bits)| ones(word, bits))
    }

    /// Found asks that are parked.
    pub fn found_and_parked(&self) -> impl Iterator<Item = AskSlot> {
        let both = self.found.iter().zip(&self.parked).map(|(found, parked)| found & parked);
        both.enumerate().flat_map(|(word, bits)| ones(word, bits))
    }
}

/// The asks whose bits are set in a word.
fn ones(word: usize, mut bits: u64) -> impl Iterator<Item = AskSlot> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some((word * 64) as AskSlot + bit)
    })
}

/// Monotonic; exact for 0 only.
#[inline]
fn level(amount: u32) -> usize {
    if amount == 0 {
        return 0;
    }
    let doublings = amount.ilog2();
    let eighths = ((u64::from(amount) << 3) >> doublings) & 7;
    1 + doublings as usize * 8 + eighths as usize
}

#[inline]
fn set(bits: &mut Bits, at: u32, value: bool) {
    let (word, bit) = (at as usize / 64, 1 << (at % 64));
    if bits.len() <= word {
        bits.resize(word + 1, 0);
    }
    if value {
        bits[word] |= bit;
    } else {
        bits[word] &= !bit;
    }
}

#[inline]
fn any(bits: &[u64]) -> bool {
    bits.iter().fold(0, |all, word| all | word) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::resources::GPU;

    #[test]
    fn levels_grow_with_the_amount() {
        let amounts = [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 1_000, 1_023, 1_024, 1_100, 1_152, u32::MAX];
        for pair in amounts.windows(2) {
            assert!(level(pair[0]) <= level(pair[1]), "{pair:?}");
        }
        assert_eq!(level(u32::MAX), LEVELS - 1);
    }

    /// Compared with a check of every ask, for many shapes, rooms and changes.
    #[test]
    fn the_index_finds_the_same_asks_as_a_full_scan() {
        let mut state = 1u64;
        let mut below = |limit: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % u64::from(limit)) as u32
        };
        let mut classes = ClassTable::default();
        for class in 0..5 {
            classes.add_class_of(Default::default());
            for node in 0..10 {
                classes.set(class, node, class == 0 || below(2) == 0);
            }
        }
        let mut index = FitIndex::default();
        let mut asks: Vec<(Resources, u32, bool)> = Vec::new();
        for round in 0..2_000 {
            let shape =
                Resources::new(1 + below(40), below(30) * 64).with(GPU, if below(9) == 0 { below(3) } else { 0 });
            let at = if asks.len() < 300 || below(3) > 0 { asks.len() as u32 } else { below(asks.len() as u32) };
            let (class, open) = (below(5), below(4) > 0);
            if (at as usize) < asks.len() {
                index.remove(at);
                asks[at as usize] = (shape, class, open);
            } else {
                asks.push((shape, class, open));
            }
            index.add(at, shape, class);
            index.set_open(at, open);
            let room = Resources::new(below(50), below(2_000)).with(GPU, below(3));
            let node = below(10) as usize;
            let some = index.find_on(&room, node, &classes);
            let plain = |&(shape, class, open): &(Resources, u32, bool)| {
                open && shape.fits_in(&room) && classes.meets(class, node)
            };
            for (ask, entry) in asks.iter().enumerate() {
                assert_eq!(index.is_found(ask as u32), plain(entry), "round {round}, ask {ask}: {entry:?}, {room:?}");
            }
            assert_eq!(some, asks.iter().any(plain));
        }
    }
}
