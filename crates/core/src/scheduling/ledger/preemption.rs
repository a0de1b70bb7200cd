//! Bookings that are preempted for another one on their node (Megha, section IV-C). The other one is booked already.
//! Until the preempted ones are freed, the node is booked beyond its capacity by at most what they hold, and shows no
//! room.

use super::{Booking, BookingChange, ClaimError, Ledger, NONE};
use crate::vocabulary::gpus::{SharedGpus, part_of_gpu};
use crate::vocabulary::resources::GPU;
use crate::vocabulary::{GrantId, NodeId, Resources, SharedGpu, Totals};

/// How room is made for a booking.
struct Making {
    /// The bookings to preempt, with their slots.
    victims: Vec<(u32, Booking)>,
    /// The GPU of which the new booking then has a part.
    shared_gpu: Option<SharedGpu>,
}

/// The bookings that stay on a node.
#[derive(Clone, Default)]
struct Held {
    sum: Totals,
    shared: SharedGpus,
}

impl Held {
    fn add(&mut self, booking: &Booking, gpu: Option<SharedGpu>) {
        self.sum.add(&booking.resources);
        if let (Some(at), Some(part)) = (gpu, part_of_gpu(&booking.resources)) {
            self.shared.assign(at, part);
        }
    }

    fn sub(&mut self, booking: &Booking, gpu: Option<SharedGpu>) {
        self.sum.sub(&booking.resources);
        if let (Some(at), Some(part)) = (gpu, part_of_gpu(&booking.resources)) {
            self.shared.give_back(at, part);
        }
    }

    fn has_room_for(&self, capacity: &Resources, wanted: &Resources) -> bool {
        let mut left = self.sum.left_of(capacity);
        let held = u32::try_from(self.sum.0[GPU]).unwrap_or(u32::MAX);
        left.0[GPU] = left.0[GPU].min(self.shared.free(capacity.gpu_millis(), held));
        wanted.fits_in(&left)
    }
}

impl Ledger {
    /// Books a proposal in place of other bookings if there is no room. Of the bookings that `may_be_preempted` selects,
    /// the newest are preempted, and no more than needed; what they hold counts for the new one. Returns them.
    ///
    /// # Errors
    /// As for [`Ledger::claim`]; also if the selected bookings hold too little in total.
    pub fn claim_instead(
        &mut self,
        booking: Booking,
        may_be_preempted: impl Fn(&Booking) -> bool,
    ) -> Result<Vec<Booking>, ClaimError> {
        match self.claim_proposed(booking) {
            Err(ClaimError::NoRoom) => {}
            done => return done.map(|()| Vec::new()),
        }
        let Making { victims, shared_gpu } = self.victims_for(&booking, may_be_preempted).ok_or(ClaimError::NoRoom)?;
        let by = self.next_slot();
        self.adopt_at(booking, shared_gpu);
        let index = self.index(booking.node);
        self.nodes[index].being_preempted += victims.len() as u32;
        for (slot, victim) in &victims {
            self.bookings.at_mut(*slot).preempted_for = by;
            self.note_booking(*victim, BookingChange::Preempted);
        }
        Ok(victims.into_iter().map(|(_, victim)| victim).collect())
    }

    /// The bookings that [`Ledger::claim_instead`] would preempt; `None` if that would fail.
    pub fn preempted_for(
        &self,
        booking: &Booking,
        may_be_preempted: impl Fn(&Booking) -> bool,
    ) -> Option<Vec<Booking>> {
        let making = self.victims_for(booking, may_be_preempted)?;
        Some(making.victims.into_iter().map(|(_, victim)| victim).collect())
    }

    /// Whether the booking is there and is being preempted.
    pub fn is_being_preempted(&self, grant: GrantId) -> bool {
        let slot = self.find_booking(grant).and_then(|(at, _)| self.bookings.get(at));
        slot.is_some_and(|slot| slot.preempted_for != NONE)
    }

    fn victims_for(&self, booking: &Booking, may_be_preempted: impl Fn(&Booking) -> bool) -> Option<Making> {
        let node = &self.nodes[self.index(booking.node)];
        let capacity = &node.capacity;
        let mut held = Held::default();
        held.sum.add(&node.elsewhere);
        let mut candidates = Vec::new();
        for (slot, other) in self.slots_of(booking.node) {
            let Some(other_booking) = other.booking else { continue };
            if other.preempted_for == NONE {
                held.add(&other_booking, other.shared_gpu);
                candidates.extend(may_be_preempted(&other_booking).then_some((slot, other_booking, other.shared_gpu)));
            }
        }
        let mut victims = Vec::new();
        for (slot, victim, gpu) in candidates {
            if held.has_room_for(capacity, &booking.resources) {
                break;
            }
            held.sub(&victim, gpu);
            victims.push((slot, victim, gpu));
        }
        if !held.has_room_for(capacity, &booking.resources) {
            return None;
        }
        // Some of the chosen bookings may not be needed any more: the oldest ones stay first.
        for at in (0..victims.len()).rev() {
            let (_, victim, gpu) = victims[at];
            let mut with = held.clone();
            with.add(&victim, gpu);
            if with.has_room_for(capacity, &booking.resources) {
                held = with;
                victims.remove(at);
            }
        }
        let shared_gpu = part_of_gpu(&booking.resources).map(|part| held.shared.choose(part));
        let victims = victims.into_iter().map(|(slot, victim, _)| (slot, victim)).collect();
        Some(Making { victims, shared_gpu })
    }

    /// The booking is not being preempted after all.
    pub fn spare(&mut self, grant: GrantId) {
        let Some((at, booking)) = self.find_booking(grant) else { return };
        if std::mem::replace(&mut self.bookings.at_mut(at).preempted_for, NONE) != NONE {
            let index = self.index(booking.node);
            self.nodes[index].being_preempted -= 1;
            self.note_booking(booking, BookingChange::Stays);
        }
    }

    /// The same for all bookings on a node.
    pub fn spare_all(&mut self, node: NodeId) {
        self.let_stay(self.index(node), |_| true);
    }

    /// Of the bookings that are being preempted on a node, those stay for which `is_meant` selects the successor's
    /// slot.
    pub(super) fn let_stay(&mut self, index: usize, is_meant: impl Fn(u32) -> bool) {
        if self.nodes[index].being_preempted == 0 {
            return;
        }
        let being_preempted = self.slots_of(self.node(index)).filter(|(_, slot)| slot.preempted_for != NONE);
        let meant: Vec<(u32, Option<Booking>)> = being_preempted
            .filter(|(_, slot)| is_meant(slot.preempted_for))
            .map(|(at, slot)| (at, slot.booking))
            .collect();
        self.nodes[index].being_preempted -= meant.len() as u32;
        for (at, booking) in meant {
            self.bookings.at_mut(at).preempted_for = NONE;
            booking.into_iter().for_each(|booking| self.note_booking(booking, BookingChange::Stays));
        }
    }

    /// Books resources for which other bookings are to be preempted, before the owner of the node decides about that.
    ///
    /// # Errors
    /// If the node is unknown or closed.
    pub fn claim_beyond(&mut self, booking: Booking) -> Result<(), ClaimError> {
        match self.check_room(&booking) {
            Ok(()) | Err(ClaimError::NoRoom) => {}
            Err(why) => return Err(why),
        }
        assert_eq!(booking.grant.slot, self.next_slot(), "a grant is booked in the slot of its id");
        self.book(booking);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BookingChange, NodeState};
    use super::*;
    use crate::vocabulary::{Attributes, Epoch, JobId};

    const NODE: NodeId = NodeId(0);

    fn cores(cores: u32) -> Resources {
        Resources::new(cores * 1_000, 0)
    }

    /// A node of `capacity` cores with these bookings, the newest last; they are numbered from 1.
    fn node_with(capacity: u32, held: &[u32]) -> Ledger {
        let mut ledger = Ledger::new();
        ledger.join(NODE, cores(capacity), Attributes::default());
        ledger.set_open(NODE, true);
        for (number, held) in (1..).zip(held) {
            ledger.claim_proposed(booking(number, *held)).unwrap();
        }
        ledger.keep_news();
        ledger
    }

    fn booking(number: u64, held: u32) -> Booking {
        let grant = GrantId { epoch: Epoch(7), number, slot: 99 };
        Booking { grant, job: JobId(number), node: NODE, resources: cores(held) }
    }

    fn numbers(bookings: &[Booking]) -> Vec<u64> {
        bookings.iter().map(|booking| booking.grant.number).collect()
    }

    #[test]
    fn the_newest_bookings_are_preempted_and_no_more_than_needed() {
        let instead = |capacity, held: &[u32], wanted, may: &dyn Fn(&Booking) -> bool| {
            let mut ledger = node_with(capacity, held);
            let victims = ledger.claim_instead(booking(100, wanted), may);
            ledger.check_invariants();
            victims.map(|victims| numbers(&victims))
        };
        let anybody = |_: &Booking| true;
        assert_eq!(instead(8, &[2, 2, 2], 2, &anybody), Ok(vec![]), "there is room");
        assert_eq!(instead(8, &[2, 2, 2, 2], 2, &anybody), Ok(vec![4]));
        assert_eq!(instead(8, &[2, 2, 2, 2], 3, &anybody), Ok(vec![4, 3]));
        assert_eq!(instead(8, &[1, 6, 1], 5, &anybody), Ok(vec![2]), "the newest is too small to matter");
        assert_eq!(instead(8, &[2, 2, 2, 2], 2, &|one| one.grant.number < 3), Ok(vec![2]));
        assert_eq!(instead(8, &[2, 2, 2, 2], 6, &|one| one.grant.number < 3), Err(ClaimError::NoRoom));
        assert_eq!(instead(8, &[], 9, &anybody), Err(ClaimError::NoRoom));
    }

    #[test]
    fn a_part_of_a_gpu_replaces_another_part_of_the_same_gpu() {
        let mut ledger = Ledger::new();
        ledger.join(NODE, Resources::new(8_000, 0).with(GPU, 2_000), Attributes::default());
        ledger.set_open(NODE, true);
        let part = |number: u64, gpus: u32| Booking {
            resources: Resources::new(1_000, 0).with(GPU, gpus),
            ..booking(number, 1)
        };
        for (number, gpus) in [(1, 500), (2, 500), (3, 1_000)] {
            ledger.claim_proposed(part(number, gpus)).unwrap();
        }
        let victims = ledger.claim_instead(part(4, 500), |one| one.grant.number < 3).unwrap();
        assert_eq!(numbers(&victims), [2], "one half is enough");
        assert_eq!(ledger.shared_gpu(part(4, 500).grant), ledger.shared_gpu(part(1, 500).grant));
        ledger.free(part(2, 500).grant).unwrap();
        ledger.free(part(3, 1_000).grant).unwrap();
        ledger.check_invariants();
        assert_eq!(ledger.node_free(NODE).gpu_millis(), 1_000);
        assert_eq!(ledger.claim_instead(part(5, 2_000), |one| one.grant.number == 1), Err(ClaimError::NoRoom));
    }

    #[test]
    fn a_booking_is_preempted_once_and_its_room_goes_to_its_successor_only() {
        let mut ledger = node_with(4, &[2, 2]);
        assert_eq!(numbers(&ledger.claim_instead(booking(3, 2), |one| one.grant.number < 3).unwrap()), [2]);
        assert_eq!(numbers(&ledger.claim_instead(booking(4, 1), |one| one.grant.number < 3).unwrap()), [1]);
        assert_eq!(ledger.claim_instead(booking(5, 2), |one| one.grant.number < 3), Err(ClaimError::NoRoom));
        assert_eq!(ledger.staying_on(NODE).map(|one| one.grant.number).collect::<Vec<_>>(), [4, 3]);
        for (freed, free) in [(2, 0), (1, 1)] {
            ledger.free(booking(freed, 2).grant).unwrap();
            assert_eq!(ledger.node_free(NODE), cores(free), "after {freed} is freed");
            ledger.check_invariants();
        }
    }

    #[test]
    fn what_others_hold_is_not_there_for_a_successor() {
        let mut ledger = node_with(4, &[2]);
        ledger.believe(NODE, &cores(0), |_| true);
        assert_eq!(ledger.claim_instead(booking(2, 3), |_| true), Err(ClaimError::NoRoom));
        assert_eq!(numbers(&ledger.claim_instead(booking(2, 2), |_| true).unwrap()), [1]);
    }

    #[test]
    fn a_booking_that_is_spared_stays_and_may_be_preempted_again() {
        for all in [false, true] {
            let mut ledger = node_with(4, &[2, 2]);
            ledger.claim_instead(booking(3, 2), |_| true).unwrap();
            ledger.forget_news();
            if all {
                ledger.spare_all(NODE)
            } else {
                ledger.spare(booking(2, 2).grant)
            }
            let stays: Vec<BookingChange> = ledger.news().unwrap().bookings.iter().map(|(_, change)| *change).collect();
            assert_eq!((stays.as_slice(), ledger.staying_on(NODE).count()), (&[BookingChange::Stays][..], 3));
            ledger.spare(booking(1, 2).grant);
            ledger.check_invariants();
            ledger.free(booking(3, 2).grant).unwrap();
            assert_eq!(numbers(&ledger.claim_instead(booking(4, 2), |_| true).unwrap()), [2]);
        }
    }

    #[test]
    fn a_preemption_ends_when_the_successor_is_freed_or_the_node_joins_again() {
        for joins in [false, true] {
            let mut ledger = node_with(4, &[2, 2]);
            ledger.claim_instead(booking(3, 4), |_| true).unwrap();
            assert_eq!(ledger.staying_on(NODE).count(), 1);
            if joins {
                ledger.join(NODE, cores(4), Attributes::default());
            } else {
                ledger.free(booking(3, 4).grant).unwrap();
            }
            ledger.check_invariants();
            let stay: Vec<(u64, BookingChange)> =
                ledger.news().unwrap().bookings.iter().map(|(one, change)| (one.grant.number, *change)).collect();
            assert_eq!(stay.iter().filter(|(_, change)| *change == BookingChange::Stays).count(), 2, "{stay:?}");
            assert_eq!(ledger.state(NODE), Some(NodeState::Up));
        }
    }
}
