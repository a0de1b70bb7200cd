//! Room that guaranteed work frees is kept for guaranteed work for a short time. A master that decides on events books
//! it at once, and opportunistic work that started there meanwhile would be preempted.

use crate::vocabulary::{Duration, Instant, Resources, Totals};
use std::collections::VecDeque;

/// Boxed, since most presets keep nothing.
#[derive(Default)]
pub(super) struct KeptRoom(Option<Box<Kept>>);

struct Kept {
    length: Duration,
    /// Freed room and until when it is kept, in the order of that time.
    parts: VecDeque<(Instant, Resources)>,
    sum: Totals,
}

impl KeptRoom {
    /// Nothing is kept if `length` is zero.
    pub(super) fn for_length(length: Duration) -> KeptRoom {
        let kept = || Box::new(Kept { length, parts: VecDeque::new(), sum: Totals::ZERO });
        KeptRoom((length > Duration::ZERO).then(kept))
    }

    /// Guaranteed work has freed this room.
    pub(super) fn keep(&mut self, now: Instant, room: &Resources) {
        if let Some(kept) = &mut self.0 {
            kept.parts.push_back((now + kept.length, *room));
            kept.sum.add(room);
        }
    }

    /// Guaranteed work takes room, first the room that has been kept for longest, up to the amount that is kept.
    pub(super) fn use_up(&mut self, wanted: &Resources) {
        let Some(kept) = &mut self.0 else { return };
        let mut wanted = *wanted;
        for (_, part) in &mut kept.parts {
            let taken = part.smaller_of(&wanted);
            *part = part.saturating_sub(&taken);
            wanted = wanted.saturating_sub(&taken);
            kept.sum.sub(&taken);
        }
        kept.parts.retain(|(_, part)| !part.is_zero());
    }

    /// Drops room whose time has passed. Returns true if there was any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let Some(kept) = &mut self.0 else { return false };
        let mut some = false;
        while let Some((_, part)) = kept.parts.pop_front_if(|(until, _)| *until <= now) {
            kept.sum.sub(&part);
            some = true;
        }
        some
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.0.as_ref()?.parts.front().map(|(until, _)| *until)
    }

    /// The part of `free` that is not kept.
    pub(super) fn left_of(&self, free: &Resources) -> Resources {
        self.0.as_ref().map_or(*free, |kept| kept.sum.left_of(free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(cpus: u32) -> Resources {
        Resources::new(1_000 * cpus, 100 * cpus)
    }

    #[test]
    fn room_is_kept_until_guaranteed_work_takes_it_or_the_time_has_passed() {
        let mut kept = KeptRoom::for_length(Duration::from_secs(1));
        kept.keep(Instant::ZERO, &cpus(2));
        kept.keep(Instant::ZERO + Duration::from_millis(500), &cpus(3));
        assert_eq!(kept.left_of(&cpus(8)), cpus(3));
        assert_eq!(kept.left_of(&cpus(4)), cpus(0));
        kept.use_up(&cpus(4));
        assert_eq!((kept.left_of(&cpus(8)), kept.0.as_ref().map_or(0, |kept| kept.parts.len())), (cpus(7), 1));
        let end = Instant::ZERO + Duration::from_millis(1_500);
        assert_eq!(kept.next_expiry(), Some(end));
        assert!(!kept.expire(Instant::ZERO + Duration::from_millis(1_499)));
        assert!(kept.expire(end));
        assert_eq!((kept.left_of(&cpus(8)), kept.next_expiry()), (cpus(8), None));
    }

    #[test]
    fn nothing_is_kept_for_a_length_of_zero() {
        let mut kept = KeptRoom::default();
        kept.keep(Instant::ZERO, &cpus(2));
        assert_eq!((kept.left_of(&cpus(8)), kept.next_expiry()), (cpus(8), None));
    }
}
