//! What is free of something from now on, in a time that has no end.

/// Of each kind that matters, how much: a demand, or what is free, which is below zero while running tasks hold more
/// than the share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Amounts<const K: usize>(pub [i64; K]);

/// Segments of time, each from one point to the next, in a list that runs both ways. Points stay where they are.
pub(crate) struct Timeline<const K: usize> {
    pub points: Vec<Point<K>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Point<const K: usize> {
    pub at: u64,
    /// From here to the next point.
    pub free: Amounts<K>,
    pub previous: u32,
    pub next: u32,
}

pub(crate) const NONE: u32 = u32::MAX;

/// Where a run has room: from a moment in the segment of a point to another point.
pub(crate) struct Place {
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

    /// As free room: whether the demand fits. What is not wanted may be overdrawn.
    #[inline]
    pub fn has(&self, demand: &Amounts<K>) -> bool {
        let mut fits = true;
        for kind in 0..K {
            fits &= demand.0[kind] <= self.0[kind].max(0);
        }
        fits
    }

    /// As free room: how often the demand fits.
    #[inline]
    pub fn times(&self, demand: &Amounts<K>) -> u32 {
        if !self.has(demand) {
            return 0;
        }
        let wanted = (0..K).filter(|&kind| demand.0[kind] > 0);
        let times = wanted.map(|kind| self.0[kind] / demand.0[kind]).min();
        times.map_or(u32::MAX, |times| u32::try_from(times).unwrap_or(u32::MAX))
    }

    /// Of each kind the smaller amount.
    pub fn least(&self, other: &Amounts<K>) -> Amounts<K> {
        Amounts(std::array::from_fn(|kind| self.0[kind].min(other.0[kind])))
    }

    pub fn scaled(&self, times: u32) -> Amounts<K> {
        Amounts(self.0.map(|amount| amount * i64::from(times)))
    }
}

impl<const K: usize> Timeline<K> {
    /// Nothing is held until then.
    pub(crate) fn empty(share: Amounts<K>, end: u64) -> Timeline<K> {
        let first = Point { at: 0, free: share, previous: NONE, next: 1 };
        Timeline { points: vec![first, Point { at: end, previous: 0, next: NONE, ..first }] }
    }

    /// Takes room for up to `most` of what wants so much, as many as there is room for at the first moment, not before
    /// `from`, at which there is as much as `needed`. Returns when they start, and how many.
    pub(crate) fn take_earliest(
        &mut self,
        from: u64,
        lasting: u64,
        needed: &Amounts<K>,
        demand: &Amounts<K>,
        most: u32,
    ) -> (u64, u32) {
        let segment = self.segment_at(from);
        let place = self.earliest(segment, from, lasting, needed);
        let count = self.times(&place, demand).min(most);
        let start = place.start;
        self.take(&place, &demand.scaled(count));
        (start, count)
    }

    /// The earliest place for so much, for so long, that does not begin before `from`, a moment in this segment.
    ///
    /// # Panics
    /// When there is none before the end of the last segment, which callers see to.
    pub(crate) fn earliest(&mut self, segment: u32, from: u64, lasting: u64, needed: &Amounts<K>) -> Place {
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
        Place { start, segment, to }
    }

    /// The same at the last moment, not ending after `until`. Returns when they end, and how many.
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
        let place = self.latest(by, lasting, needed).expect("there is room before everything else");
        let count = self.times(&place, demand).min(most);
        self.take(&place, &demand.scaled(count));
        (self.at(place.to), count)
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

    /// A point at the end of the list, unless the last one lies there.
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

    /// The latest place for so much, for so long, that ends at `by` or before.
    pub(crate) fn latest(&self, by: u32, lasting: u64, needed: &Amounts<K>) -> Option<Place> {
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
    pub(crate) fn times(&self, place: &Place, demand: &Amounts<K>) -> u32 {
        let mut free = self.points[place.segment as usize].free;
        let mut here = place.segment;
        while here != place.to {
            let point = &self.points[here as usize];
            free = free.least(&point.free);
            here = point.next;
        }
        free.times(demand)
    }

    /// Takes so much out of a place; returns the point at which it starts.
    pub(crate) fn take(&mut self, place: &Place, amounts: &Amounts<K>) -> u32 {
        let start = self.split(place.segment, place.start);
        self.change(start, place.to, amounts, -1);
        start
    }

    /// A point at this time, within the segment.
    pub(crate) fn split(&mut self, segment: u32, at: u64) -> u32 {
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
