//! Nodes in the order of their room, for placements that choose the node with the least or the most.

use crate::vocabulary::{Resources, RoomScale};
use std::collections::BTreeSet;

pub(super) struct RoomOrder {
    scale: RoomScale,
    /// Nodes with some room: how much, and which.
    order: BTreeSet<(u64, u32)>,
}

impl RoomOrder {
    pub(super) fn new<'a>(capacities: impl Iterator<Item = &'a Resources>, rooms: &[Resources]) -> RoomOrder {
        let mut scale = RoomScale::default();
        capacities.for_each(|capacity| {
            scale.grow(capacity);
        });
        let mut order = RoomOrder { scale, order: BTreeSet::new() };
        order.rebuild(rooms);
        order
    }

    fn rebuild(&mut self, rooms: &[Resources]) {
        let some = rooms.iter().enumerate().filter(|(_, room)| !room.is_zero());
        self.order = some.map(|(index, room)| (self.scale.measure(room), index as u32)).collect();
    }

    /// A node of this capacity has joined; if it is larger than all before, all rooms are measured again.
    pub(super) fn on_capacity(&mut self, capacity: &Resources, rooms: &[Resources]) {
        if self.scale.grow(capacity) {
            self.rebuild(rooms);
        }
    }

    pub(super) fn move_node(&mut self, index: usize, old: &Resources, new: &Resources) {
        if !old.is_zero() {
            self.order.remove(&(self.scale.measure(old), index as u32));
        }
        if !new.is_zero() {
            self.order.insert((self.scale.measure(new), index as u32));
        }
    }

    /// Nodes with a smaller measure than the shape have no room for it.
    pub(super) fn least_that(&self, shape: &Resources, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let mut enough = self.order.range((self.scale.measure(shape), 0)..);
        enough.find_map(|&(_, index)| fits(index as usize).then_some(index as usize))
    }

    pub(super) fn most_that(&self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        self.order.iter().rev().find_map(|&(_, index)| fits(index as usize).then_some(index as usize))
    }
}

#[cfg(test)]
mod tests {
    use crate::scheduling::{Booking, Ledger};
    use crate::vocabulary::{Attributes, Chance, Epoch, GrantId, JobId, NodeId, NodeViews, Resources};

    /// Compares with a scan of all nodes, while nodes of new sizes join and rooms grow and shrink.
    #[test]
    fn the_least_and_the_most_room_match_a_scan_of_all_nodes() {
        let mut chance = Chance::new(1, "test");
        let mut ledger = Ledger::new();
        ledger.order_by_room();
        let mut grants = Vec::new();
        for number in 0..2_000 {
            let node = NodeId(chance.below(50));
            if !ledger.is_open(node) {
                let capacity = Resources::new(1 + chance.below(60_000), 1 + chance.below(600_000));
                ledger.join(node, capacity, Attributes::default());
                ledger.set_open(node, true);
            } else if chance.below(3_u32) > 0 {
                let grant = GrantId { epoch: Epoch(1), number, slot: ledger.next_slot() };
                let resources = Resources::new(chance.below(5_000), chance.below(50_000));
                if ledger.claim(Booking { grant, job: JobId(1), node, resources }).is_ok() {
                    grants.push(grant);
                }
            } else if !grants.is_empty() {
                let at = chance.below(grants.len() as u32) as usize;
                ledger.free(grants.swap_remove(at));
            }
            let shape = Resources::new(chance.below(30_000), chance.below(300_000));
            let scale = ledger.room_scale();
            let rooms = (0..ledger.len()).filter(|&index| ledger.has_room(index, 0, &shape));
            let measured: Vec<u64> = rooms.map(|index| scale.measure(&ledger.view(index).free)).collect();
            let of = |found: Option<usize>| found.map(|index| scale.measure(&ledger.view(index).free));
            assert_eq!(of(ledger.least_room(0, &shape)), measured.iter().copied().min());
            assert_eq!(of(ledger.most_room(0, &shape)), measured.iter().copied().max());
        }
    }
}
