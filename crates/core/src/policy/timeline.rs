//! Free resources over time, from now on, without an end.

/// An amount of each relevant kind: a demand, or free resources, which are negative while running tasks hold more than
/// the share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Amounts<const K: usize>(pub [i64; K]);

/// Segments of time, each from one point to the next, in a doubly linked list. Points keep their index.
pub(crate) struct Timeline<const K: usize> {
    pub points: Vec<Point<K>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Point<const K: usize> {
    pub at: u64,
    /// Free resources from here to the next point.
    pub free: Amounts<K>,
    pub previous: u32,
    pub next: u32,
}

pub(crate) const NONE: u32 = u32::MAX;

/// A place with room for a run: from `start`, within a segment, to the point `to`.
pub(crate) struct RunSlot {
    pub start: u64,
    segment: u32,
    pub to: u32,
}

impl<const K: usize> Amounts<K> {
    #[inline]
    pub fn add(&mut self, other: &Amounts<K>, times: i64) {
        for kind in 0..K {
            self.0[kind] += other.0[kind] * times;
        }
    }

    /// Whether the demand fits into these free resources. Kinds that it does not need may be negative.
    #[inline]
    pub fn has(&self, demand: &Amounts<K>) -> bool {
        let mut fits = true;
        for kind in 0..K {
            fits &= demand.0[kind] <= self.0[kind].max(0);
        }
        fits
    }

    /// How many times the demand fits into these free resources.
    #[inline]
    pub fn times(&self, demand: &Amounts<K>) -> u32 {
        if !self.has(demand) {
            return 0;
        }
        let wanted = (0..K).filter(|&kind| demand.0[kind] > 0);
        let times = wanted.map(|kind| self.0[kind] / demand.0[kind]).min();
        times.map_or(u32::MAX, |times| u32::try_from(times).unwrap_or(u32::MAX))
    }

    /// The smaller amount of each kind.
    pub fn least(&self, other: &Amounts<K>) -> Amounts<K> {
        Amounts(std::array::from_fn(|kind| self.0[kind].min(other.0[kind])))
    }

    pub fn scaled(&self, times: u32) -> Amounts<K> {
        Amounts(self.0.map(|amount| amount * i64::from(times)))
    }
}

impl<const K: usize> Timeline<K> {
    /// A timeline with the whole share free until `end`.
    pub(crate) fn empty(share: Amounts<K>, end: u64) -> Timeline<K> {
        let first = Point { at: 0, free: share, previous: NONE, next: 1 };
        Timeline { points: vec![first, Point { at: end, previous: 0, next: NONE, ..first }] }
    }

    /// Takes room for up to `most` tasks of this demand at the earliest time from `from` at which `needed` is free: as
    /// many tasks as fit there. Returns their start and number.
    pub(crate) fn take_earliest(
        &mut self,
        from: u64,
        lasting: u64,
        needed: &Amounts<K>,
        demand: &Amounts<K>,
        most: u32,
    ) -> (u64, u32) {
        let segment = self.segment_at(from);
        let slot = self.earliest(segment, from, lasting, needed);
        let count = self.times(&slot, demand).min(most);
        let start = slot.start;
        self.book(&slot, &demand.scaled(count));
        (start, count)
    }

    /// The earliest place with room for `needed` for the time `lasting` that does not start before `from`, a time in
    /// this segment.
    ///
    /// # Panics
    /// If there is none before the end of the last segment. Callers prevent that.
    pub(crate) fn earliest(&mut self, segment: u32, from: u64, lasting: u64, needed: &Amounts<K>) -> RunSlot {
        let (mut start, mut segment, mut here) = (from, segment, segment);
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
        RunSlot { start, segment, to }
    }

    /// The same at the latest time, ending at `until` or before. Returns their end and number.
    pub(crate) fn take_latest(
        &mut self,
        until: u64,
        lasting: u64,
        needed: &Amounts<K>,
        demand: &Amounts<K>,
        most: u32,
    ) -> (u64, u32) {
        let segment = self.segment_at(until);
        let by = self.split(segment, until);
        let slot = self.latest(by, lasting, needed).expect("there is room before everything else");
        let count = self.times(&slot, demand).min(most);
        self.book(&slot, &demand.scaled(count));
        (self.at(slot.to), count)
    }

    pub(crate) fn segment_at(&self, at: u64) -> u32 {
        let mut here = 0;
        while self.at(self.points[here as usize].next) <= at {
            here = self.points[here as usize].next;
        }
        here
    }

    pub(crate) fn at(&self, point: u32) -> u64 {
        self.points[point as usize].at
    }

    /// The last point of the list, which is appended unless it exists.
    pub(crate) fn append(&mut self, at: u64) -> u32 {
        let last = self.points.len() as u32 - 1;
        if self.at(last) == at {
            return last;
        }
        let free = self.points[last as usize].free;
        self.points.push(Point { at, free, previous: last, next: NONE });
        self.points[last as usize].next = last + 1;
        last + 1
    }

    pub(crate) fn change(&mut self, from: u32, to: u32, by: &Amounts<K>, sign: i64) {
        let mut here = from;
        while here != to {
            let point = &mut self.points[here as usize];
            point.free.add(by, sign);
            here = point.next;
        }
    }

    /// The latest place with room for `needed` for the time `lasting` that ends at `by` or before.
    pub(crate) fn latest(&self, by: u32, lasting: u64, needed: &Amounts<K>) -> Option<RunSlot> {
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
                    return Some(RunSlot { start, segment, to });
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

    /// How many times the demand fits into a place.
    pub(crate) fn times(&self, slot: &RunSlot, demand: &Amounts<K>) -> u32 {
        let mut free = self.points[slot.segment as usize].free;
        let mut here = slot.segment;
        while here != slot.to {
            let point = &self.points[here as usize];
            free = free.least(&point.free);
            here = point.next;
        }
        free.times(demand)
    }

    /// Takes these amounts in a place; returns the point at which it starts.
    pub(crate) fn book(&mut self, slot: &RunSlot, amounts: &Amounts<K>) -> u32 {
        let start = self.split(slot.segment, slot.start);
        self.change(start, slot.to, amounts, -1);
        start
    }

    /// The point at this time within the segment, inserted if missing.
    pub(crate) fn split(&mut self, segment: u32, at: u64) -> u32 {
        let Point { at: start, free, next, .. } = self.points[segment as usize];
        if start == at {
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
