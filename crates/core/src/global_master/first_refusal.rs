//! Room that opens in another's partition is seen here a moment later, where global masters avoid conflicts: the one whose partition
//! it is hears of it at the same time, and has it first. Without that all who have something waiting take it at once, and
//! all but one are refused. ADR 51.

use super::GlobalMaster;
use crate::role::Outbox;
use crate::scheduling::Booking;
use crate::vocabulary::{Duration, GrantId, Instant, NodeId, Resources};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct FirstRefusal {
    /// For so long others have it; without it, everything is seen at once.
    length: Option<Duration>,
    rooms: BTreeMap<NodeId, Opening>,
    due: BTreeSet<(Instant, NodeId)>,
}

/// What its cluster said last of a node of another's partition of which not all is seen yet.
struct Opening {
    due: Instant,
    free: Resources,
    /// Proposals that this takes into account.
    seen: u64,
}

impl FirstRefusal {
    pub(super) fn of_length(length: Option<Duration>) -> FirstRefusal {
        FirstRefusal { length, ..FirstRefusal::default() }
    }

    /// Counts from when the first of it opened.
    fn put_off(&mut self, node: NodeId, now: Instant, length: Duration, free: Resources, seen: u64) {
        let due = self.rooms.get(&node).map_or(now + length, |opening| opening.due);
        self.rooms.insert(node, Opening { due, free, seen });
        self.due.insert((due, node));
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        if let Some(opening) = self.rooms.remove(&node) {
            self.due.remove(&(opening.due, node));
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }
}

impl GlobalMaster {
    fn is_others(&self, node: NodeId) -> bool {
        self.federation.internal_to(node) != self.own
    }

    /// Takes in what its cluster says is free on a node, with proposals up to `seen`; but of what opens in another's partition nothing
    /// yet. Whether all of it is seen.
    pub(super) fn take_room(&mut self, now: Instant, node: NodeId, free: Resources, seen: u64, is_whole: bool) -> bool {
        let epoch = self.proposals.epoch();
        let is_counted = |grant: &GrantId| grant.epoch != epoch || grant.number <= seen;
        if let Some(length) = self.first_refusal.length
            && !is_whole
            && self.is_others(node)
            && self.dispatch.rooms.believe_no_more(node, &free, is_counted)
        {
            self.first_refusal.put_off(node, now, length, free, seen);
            return false;
        }
        self.first_refusal.forget(node);
        self.dispatch.rooms.believe(node, &free, is_counted);
        true
    }

    /// What ended of its own on others' nodes leaves room to these first.
    pub(super) fn leave_room(&mut self, freed: &[Booking]) {
        for booking in freed {
            self.dispatch.rooms.believe_taken(booking.node, &booking.resources);
        }
    }

    /// The bookings of these grants, as far as their room is to be left.
    pub(super) fn to_be_left(&self, freed: &[GrantId]) -> Vec<Booking> {
        match self.first_refusal.length {
            None => Vec::new(),
            Some(_) => {
                let booked = freed.iter().filter_map(|grant| self.dispatch.rooms.booking(*grant));
                booked.filter(|booking| self.is_others(booking.node)).collect()
            }
        }
    }

    /// Whoever had the first refusal did not want it.
    pub(super) fn see_openings(&mut self, now: Instant, out: &mut Outbox) {
        let epoch = self.proposals.epoch();
        let mut opened = Vec::new();
        while let Some(&(_, node)) = self.first_refusal.due.first().filter(|(due, _)| *due <= now) {
            let opening = self.first_refusal.rooms.get(&node).map(|opening| (opening.free, opening.seen));
            self.first_refusal.forget(node);
            if let Some((free, seen)) = opening {
                self.dispatch.rooms.believe(node, &free, |grant| grant.epoch != epoch || grant.number <= seen);
                opened.push(node);
            }
        }
        if !opened.is_empty() && self.dispatch.scheduler.open_tasks() > 0 {
            self.dispatch.decide(now, &opened, &mut self.proposals, out);
        }
    }
}
