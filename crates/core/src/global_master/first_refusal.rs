//! Room that opens in another global master's partition is seen here after a delay, which avoids conflicts: the owner
//! of the partition is notified at the same time and can use the room first. Without the delay, all global masters with
//! waiting tasks would take the room at once, and all but one would be refused. See ADR 51.

use super::GlobalMaster;
use crate::role::Outbox;
use crate::scheduling::Booking;
use crate::vocabulary::{Duration, GrantId, Instant, NodeId, Resources};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct FirstRefusal {
    /// How long others can use the room first; `None`: everything is seen at once.
    length: Option<Duration>,
    rooms: BTreeMap<NodeId, Opening>,
    due: BTreeSet<(Instant, NodeId)>,
}

/// The last report of a node in another's partition that is not fully in the view yet.
struct Opening {
    due: Instant,
    free: Resources,
    /// The last proposal that the report includes.
    seen: u64,
}

impl FirstRefusal {
    pub(super) fn of_length(length: Option<Duration>) -> FirstRefusal {
        FirstRefusal { length, ..FirstRefusal::default() }
    }

    /// Delays the room of the node; the delay starts when the first of it opened.
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

    /// Updates the view of a node with its reported free resources, which include proposals up to `seen`. Room that
    /// opens in another's partition is delayed. Returns whether all of it is seen.
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

    /// Room of own attempts that ended in other partitions is left to their owners first.
    pub(super) fn leave_room(&mut self, freed: &[Booking]) {
        for booking in freed {
            self.dispatch.rooms.believe_taken(booking.node, &booking.resources);
        }
    }

    /// The bookings of these grants whose room is left to others first.
    pub(super) fn to_be_left(&self, freed: &[GrantId]) -> Vec<Booking> {
        match self.first_refusal.length {
            None => Vec::new(),
            Some(_) => {
                let booked = freed.iter().filter_map(|grant| self.dispatch.rooms.booking(*grant));
                booked.filter(|booking| self.is_others(booking.node)).collect()
            }
        }
    }

    /// Adds delayed room to the view that others have not used in time.
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
