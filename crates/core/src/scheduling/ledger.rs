//! What the owner of the nodes knows: capacities, and what is booked on them for which jobs. Only the ledger accepts
//! claims. Through [`NodeViews`] it is also the view of a scheduler in the same role.
//!
//! Room is found through maxima over blocks of 64 nodes and over 64 such blocks, so a search skips the occupied part of
//! a cluster. The maxima are upper bounds for each kind of resource; only the node itself decides.

mod news;
mod nodes;
mod preemption;
mod search;
mod slots;
mod slow;

use super::classes::Classes;
use super::room_order::RoomOrder;
pub use crate::protocol::ClaimError;
use crate::vocabulary::gpus::{SharedGpus, part_of_gpu};
use crate::vocabulary::resources::GPU;
use crate::vocabulary::{
    Attributes, ClassTable, ClosedReason, Constraint, Duration, Epoch, GrantId, JobId, NodeId, NodeView, NodeViews,
    Partition, Resources, SharedGpu, Totals,
};
pub use news::{BookingChange, LedgerNews};
use slots::{Slot, Slots};
use slow::SlowNodes;
pub use slow::WithoutSlow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK: usize = 64;
/// Number of nodes that are remembered because their room grew.
const GROWN: usize = 64;
/// No neighbour in a list of bookings.
const NONE: u32 = u32::MAX;

#[derive(Default)]
pub struct Ledger {
    /// The number of the first node; vectors by node start with it.
    first: u32,
    nodes: Vec<LedgerNode>,
    /// Free resources of open nodes, kept apart from the other fields to make searches fast.
    room: Vec<Resources>,
    /// Their CPU once more: most searches skip a node because of its CPU, and read few cache lines for that.
    cpu: Vec<u32>,
    block_room: Vec<Resources>,
    super_room: Vec<Resources>,
    /// Blocks whose maxima may be too high.
    loose: Vec<u32>,
    is_loose: Vec<bool>,
    /// The nodes whose room grew last, in a ring, and how often the room of any node grew.
    grown: Vec<u32>,
    growths: u64,
    bookings: Slots,
    free_slots: Vec<u32>,
    /// The slots of bookings whose grants were numbered in an earlier incarnation or by another role: the slots in
    /// their ids do not apply here.
    adopted: BTreeMap<(Epoch, u64), u32>,
    classes: Classes,
    /// Why nodes are closed, if their owner gave a reason.
    closed_reason: BTreeMap<NodeId, ClosedReason>,
    /// Removed nodes; their numbers are not used again.
    removed: BTreeSet<NodeId>,
    /// The attributes of nodes that have not joined.
    no_attributes: Arc<Attributes>,
    capacity: Totals,
    /// Counts changes of which nodes there are and which of them are open.
    node_changes: u64,
    /// The number of nodes that were not seen in this incarnation and not given up.
    expected: u32,
    /// Kept for placements that compare the room of nodes.
    by_room: Option<RoomOrder>,
    slow: SlowNodes,
    /// Changes since the last call of `forget_news`, if a role passes them on.
    news: Option<Box<LedgerNews>>,
}

struct LedgerNode {
    state: NodeState,
    capacity: Resources,
    booked: Resources,
    /// What others hold there, as far as it is known; zero in the ledger of the nodes' owner.
    elsewhere: Resources,
    attributes: Arc<Attributes>,
    /// Set if tasks have parts of GPUs.
    shared_gpus: Option<Box<SharedGpus>>,
    first_booking: u32,
    bookings: u32,
    /// Those of them that are being preempted.
    being_preempted: u32,
    /// Whether it takes new work.
    open: bool,
    /// Kept free for one ask only.
    reserved: bool,
}

impl LedgerNode {
    fn takes_work(&self) -> bool {
        self.open && self.state == NodeState::Up
    }

    fn free(&self) -> Resources {
        let mut free = self.capacity.saturating_sub(&self.booked).saturating_sub(&self.elsewhere);
        // If others hold GPUs, the reported number of free ones applies: the owner of the node knows which devices
        // those are.
        if let Some(shared) = self.shared_gpus.as_ref().filter(|_| self.elsewhere.gpu_millis() == 0) {
            free.0[GPU] = free.0[GPU].min(shared.free(self.capacity.gpu_millis(), self.booked.gpu_millis()));
        }
        free
    }
}

/// The state of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NodeState {
    /// Known from an earlier incarnation, not seen in this one.
    Expected,
    Up,
    /// Silent; its attempts are assumed to run.
    Unreachable,
    /// Its attempts were given up.
    Lost,
}

/// Resources that are booked on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Booking {
    pub grant: GrantId,
    pub job: JobId,
    pub node: NodeId,
    pub resources: Resources,
}

impl Ledger {
    pub fn new() -> Ledger {
        Ledger::from_node(NodeId(0))
    }

    /// A ledger of nodes with numbers from this one on.
    pub fn from_node(first: NodeId) -> Ledger {
        Ledger { first: first.0, classes: Classes::new(), ..Ledger::default() }
    }

    /// Reserves memory for this number of nodes: a list that grows is copied.
    #[must_use]
    pub fn for_nodes(mut self, nodes: usize) -> Ledger {
        self.nodes.reserve(nodes);
        self.room.reserve(nodes);
        self.cpu.reserve(nodes);
        self
    }

    /// The dense index of a node, which views and policies use.
    ///
    /// # Panics
    /// For a node before the first one, which belongs to another cluster.
    #[inline]
    pub fn index(&self, node: NodeId) -> usize {
        assert!(node.0 >= self.first, "{node} belongs to another cluster");
        (node.0 - self.first) as usize
    }

    /// The node of a dense index.
    #[inline]
    pub fn node(&self, index: usize) -> NodeId {
        NodeId(self.first + index as u32)
    }

    /// All nodes by number, including nodes that have not joined.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (self.first..self.first + self.nodes.len() as u32).map(NodeId)
    }

    fn get(&self, node: NodeId) -> Option<&LedgerNode> {
        self.nodes.get(node.0.checked_sub(self.first)? as usize)
    }

    // ---- nodes -----------------------------------------------------------------------------------------------------

    fn classify(&mut self, index: usize) {
        self.classes.classify(index, &self.nodes[index].attributes);
    }

    fn show_room(&mut self, index: usize) {
        let entry = &self.nodes[index];
        let shown = entry.takes_work() && !entry.reserved;
        let room = if shown { entry.free() } else { Resources::ZERO };
        self.set_room(index, room);
        if let Some(news) = &mut self.news {
            news.changed.push(NodeId(self.first + index as u32));
        }
    }

    // ---- classes of constraints ------------------------------------------------------------------------------------

    /// The class of asks with these constraints; created if it is new.
    pub fn class(&mut self, constraints: &Arc<Vec<Constraint>>) -> u32 {
        let Ledger { classes, nodes, .. } = self;
        classes.class(constraints, |index| &nodes[index].attributes)
    }

    /// Creates a class for one ask: only these of the nodes that meet `class`. `nodes` is sorted.
    pub fn narrow_class(&mut self, class: u32, nodes: &[NodeId]) -> u32 {
        let members = nodes.iter().filter_map(|node| Some(node.0.checked_sub(self.first)? as usize)).collect();
        self.classes.narrow(class, members)
    }

    /// The narrow class is not used any more.
    pub fn release_class(&mut self, narrow: u32) {
        self.classes.release(narrow);
    }

    pub fn classes(&self) -> &ClassTable {
        self.classes.table()
    }

    pub fn class_constraints(&self, class: u32) -> &Arc<Vec<Constraint>> {
        self.classes.constraints(class)
    }

    // ---- claims ----------------------------------------------------------------------------------------------------

    /// The slot of the next booking, which is part of its grant's id.
    pub fn next_slot(&self) -> u32 {
        self.free_slots.last().copied().unwrap_or(self.bookings.len() as u32)
    }

    /// Books resources on a node that has room for them.
    ///
    /// # Errors
    /// If the node is unknown, is closed, or has no room. Nothing is changed then.
    pub fn claim(&mut self, booking: Booking) -> Result<(), ClaimError> {
        self.check_room(&booking)?;
        assert_eq!(booking.grant.slot, self.next_slot(), "a grant is booked in the slot of its id");
        self.book(booking);
        Ok(())
    }

    fn check_room(&self, booking: &Booking) -> Result<(), ClaimError> {
        let entry = self.get(booking.node).ok_or(ClaimError::UnknownNode)?;
        if !entry.takes_work() {
            return Err(ClaimError::Closed);
        }
        if !booking.resources.fits_in(&entry.free()) {
            return Err(ClaimError::NoRoom);
        }
        Ok(())
    }

    /// Books a proposal under a grant that another role numbered. The slot in the grant's id does not apply here.
    ///
    /// # Errors
    /// As for [`Ledger::claim`].
    pub fn claim_proposed(&mut self, booking: Booking) -> Result<(), ClaimError> {
        self.check_room(&booking)?;
        self.adopt(booking);
        Ok(())
    }

    /// Takes over the free resources that the owner of a node reports. They include the bookings that `is_counted`
    /// selects, and no other bookings of this ledger.
    pub fn believe(&mut self, node: NodeId, free: &Resources, is_counted: impl Fn(&GrantId) -> bool) {
        let now = self.elsewhere(node, free, is_counted);
        self.set_elsewhere(self.index(node), now);
    }

    /// The same, but the visible room of the node does not grow. Returns whether it would have grown.
    pub fn believe_no_more(&mut self, node: NodeId, free: &Resources, is_counted: impl Fn(&GrantId) -> bool) -> bool {
        let index = self.index(node);
        let (before, now) = (self.nodes[index].elsewhere, self.elsewhere(node, free, is_counted));
        self.set_elsewhere(index, now.larger_of(&before));
        !before.fits_in(&now)
    }

    fn set_elsewhere(&mut self, index: usize, now: Resources) {
        if std::mem::replace(&mut self.nodes[index].elsewhere, now) != now {
            self.show_room(index);
        }
    }

    /// What others hold on a node that reports `free`.
    fn elsewhere(&self, node: NodeId, free: &Resources, is_counted: impl Fn(&GrantId) -> bool) -> Resources {
        let mut own = Resources::ZERO;
        let counted = |slot: &Slot| slot.booking.filter(|booking| is_counted(&booking.grant));
        // Beyond the capacity nothing is free: what is being preempted counts through its successor.
        let is_leaving = |slot: &Slot| self.bookings.get(slot.preempted_for).is_some_and(|by| counted(by).is_some());
        for booking in self.slots_of(node).filter(|(_, slot)| !is_leaving(slot)).filter_map(|(_, slot)| counted(slot)) {
            own = own.saturating_add(&booking.resources);
        }
        self.node_capacity(node).saturating_sub(free).saturating_sub(&own)
    }

    /// Assumes that others get these resources of the node.
    pub fn believe_taken(&mut self, node: NodeId, taken: &Resources) {
        let index = self.index(node);
        self.set_elsewhere(index, self.nodes[index].elsewhere.saturating_add(taken));
    }

    /// Books an attempt that runs already, even if there is no room for it.
    pub fn adopt(&mut self, booking: Booking) {
        self.adopt_at(booking, None);
    }

    /// The same for an attempt that has a part of this GPU.
    pub fn adopt_at(&mut self, booking: Booking, shared_gpu: Option<SharedGpu>) {
        self.adopted.insert((booking.grant.epoch, booking.grant.number), self.next_slot());
        self.book_at(booking, shared_gpu);
    }

    /// The GPU of which a grant holds a part.
    pub fn shared_gpu(&self, grant: GrantId) -> Option<SharedGpu> {
        let (at, _) = self.find_booking(grant)?;
        self.bookings.get(at)?.shared_gpu
    }

    fn book(&mut self, booking: Booking) {
        self.book_at(booking, None);
    }

    fn book_at(&mut self, booking: Booking, shared_gpu: Option<SharedGpu>) {
        let slot = self.next_slot();
        let index = self.index(booking.node);
        let entry = &mut self.nodes[index];
        let next = entry.first_booking;
        let shared_gpu = part_of_gpu(&booking.resources).map(|part| {
            let shared = entry.shared_gpus.get_or_insert_default();
            let at = shared_gpu.unwrap_or_else(|| shared.choose(part));
            shared.assign(at, part);
            at
        });
        let content = Slot { booking: Some(booking), previous: NONE, next, preempted_for: NONE, shared_gpu };
        if self.free_slots.pop().is_some() {
            *self.bookings.at_mut(slot) = content;
        } else {
            self.bookings.push(content);
        }
        if next != NONE {
            self.bookings.at_mut(next).previous = slot;
        }
        entry.first_booking = slot;
        entry.bookings += 1;
        entry.booked = entry.booked.saturating_add(&booking.resources);
        self.show_room(index);
        self.note_booking(booking, BookingChange::Booked);
    }

    /// Frees the resources of a grant; `None` if it holds none (any more).
    pub fn free(&mut self, grant: GrantId) -> Option<Booking> {
        let (at, booking) = self.find_booking(grant)?;
        if !self.adopted.is_empty() {
            self.adopted.remove(&(grant.epoch, grant.number));
        }
        let slot = self.bookings.at_mut(at);
        slot.booking = None;
        let (previous, next) = (slot.previous, slot.next);
        let was_preempted = std::mem::replace(&mut slot.preempted_for, NONE) != NONE;
        let shared_gpu = slot.shared_gpu.take();
        self.free_slots.push(at);
        let index = self.index(booking.node);
        match previous {
            NONE => self.nodes[index].first_booking = next,
            _ => self.bookings.at_mut(previous).next = next,
        }
        if next != NONE {
            self.bookings.at_mut(next).previous = previous;
        }
        let entry = &mut self.nodes[index];
        entry.bookings -= 1;
        entry.being_preempted -= u32::from(was_preempted);
        entry.booked = entry.booked.saturating_sub(&booking.resources);
        if let (Some(at), Some(part), Some(shared)) =
            (shared_gpu, part_of_gpu(&booking.resources), &mut entry.shared_gpus)
        {
            shared.give_back(at, part);
            if shared.is_empty() {
                entry.shared_gpus = None;
            }
        }
        self.show_room(index);
        self.note_booking(booking, BookingChange::Freed { was_preempted });
        self.let_stay(index, |successor| successor == at);
        Some(booking)
    }

    /// The booking of a grant, also of one that was adopted.
    pub fn booking(&self, grant: GrantId) -> Option<Booking> {
        self.find_booking(grant).map(|(_, booking)| booking)
    }

    fn find_booking(&self, grant: GrantId) -> Option<(u32, Booking)> {
        let at = |slot: u32| Some((slot, self.bookings.get(slot)?.booking.filter(|held| held.grant == grant)?));
        at(grant.slot).or_else(|| at(*self.adopted.get(&(grant.epoch, grant.number))?))
    }

    /// All bookings on a node, the newest first.
    pub fn bookings_on(&self, node: NodeId) -> impl Iterator<Item = Booking> {
        self.slots_of(node).filter_map(|(_, slot)| slot.booking)
    }

    /// The bookings on a node that are not being preempted.
    pub fn staying_on(&self, node: NodeId) -> impl Iterator<Item = Booking> {
        self.slots_of(node).filter(|(_, slot)| slot.preempted_for == NONE).filter_map(|(_, slot)| slot.booking)
    }

    fn slots_of(&self, node: NodeId) -> impl Iterator<Item = (u32, &Slot)> {
        let mut next = self.get(node).map_or(NONE, |entry| entry.first_booking);
        std::iter::from_fn(move || {
            let (at, slot) = (next, self.bookings.get(next)?);
            next = slot.next;
            Some((at, slot))
        })
    }

    // ---- room ------------------------------------------------------------------------------------------------------

    /// How often the room of a node grew.
    pub fn growths(&self) -> u64 {
        self.growths
    }

    /// The nodes whose room grew after the first `since` growths; `None` if not all of them are remembered.
    pub fn grown_since(&self, since: u64) -> Option<impl Iterator<Item = usize>> {
        let remembered = self.growths - since <= GROWN as u64 && self.grown.len() == GROWN;
        remembered.then(|| (since..self.growths).map(|growth| self.grown[growth as usize % GROWN] as usize))
    }

    fn set_room(&mut self, index: usize, room: Resources) {
        let old = std::mem::replace(&mut self.room[index], room);
        self.cpu[index] = room.cpu_millis();
        if let Some(by_room) = &mut self.by_room {
            by_room.move_node(index, &old, &room);
        }
        if !room.fits_in(&old) {
            self.grown.resize(GROWN, 0);
            self.grown[self.growths as usize % GROWN] = index as u32;
            self.growths += 1;
        }
        let block = index / BLOCK;
        let grows = old.fits_in(&room);
        if grows {
            let more = self.block_room[block].larger_of(&room);
            self.block_room[block] = more;
            let above = &mut self.super_room[block / BLOCK];
            *above = above.larger_of(&more);
            return;
        }
        // The maximum of the block can only decrease if the node had a maximum; until it is computed again, it is an
        // upper bound.
        let was = self.block_room[block];
        let held_one = old.0.iter().zip(was.0).any(|(&mine, maximum)| mine == maximum && mine > 0);
        if held_one && !std::mem::replace(&mut self.is_loose[block], true) {
            self.loose.push(block as u32);
        }
        if !room.fits_in(&was) {
            self.block_room[block] = was.larger_of(&room);
            let above = &mut self.super_room[block / BLOCK];
            *above = above.larger_of(&room);
        }
    }

    /// Keeps the nodes ordered by their room from now on.
    pub fn order_by_room(&mut self) {
        if self.by_room.is_none() {
            let capacities = self.nodes.iter().map(|node| &node.capacity);
            self.by_room = Some(RoomOrder::new(capacities, &self.room));
        }
    }

    fn by_room(&self) -> &RoomOrder {
        self.by_room.as_ref().expect("`order_by_room` is called before rooms are compared")
    }

    /// Computes maxima that may be too high again; worth its cost before a search.
    pub fn tighten(&mut self) {
        while let Some(block) = self.loose.pop() {
            let block = block as usize;
            self.is_loose[block] = false;
            let now = maximum(&self.room[block * BLOCK..((block + 1) * BLOCK).min(self.room.len())]);
            if std::mem::replace(&mut self.block_room[block], now) != now {
                let above = block / BLOCK;
                let blocks = &self.block_room[above * BLOCK..((above + 1) * BLOCK).min(self.block_room.len())];
                self.super_room[above] = maximum(blocks);
            }
        }
    }

    /// Checks what must hold after every event, in tests and debug builds. If there are more than a few blocks, one of
    /// them is checked, and the next one when a node's room has grown: an error persists until its block is checked.
    ///
    /// # Panics
    /// If an invariant does not hold, which is a bug of this program.
    pub fn check_invariants(&self) {
        const FEW: usize = 4;
        let blocks = self.nodes.len().div_ceil(BLOCK);
        if blocks <= FEW {
            self.check_nodes(0, self.nodes.len());
        } else {
            let block = (self.growths % blocks as u64) as usize;
            self.check_nodes(block * BLOCK, ((block + 1) * BLOCK).min(self.nodes.len()));
        }
    }

    fn check_nodes(&self, from: usize, to: usize) {
        for (index, entry) in self.nodes.iter().enumerate().take(to).skip(from) {
            let mut booked = Totals::ZERO;
            let mut shared = SharedGpus::default();
            let (mut count, mut being_preempted) = (0, 0);
            for (_, slot) in self.slots_of(self.node(index)) {
                let booking = slot.booking.expect("a slot in a node's list is booked");
                assert_eq!(self.index(booking.node), index, "a booking in the list of another node");
                booked.add(&booking.resources);
                if let (Some(at), Some(part)) = (slot.shared_gpu, part_of_gpu(&booking.resources)) {
                    shared.assign(at, part);
                }
                count += 1;
                being_preempted += u32::from(slot.preempted_for != NONE);
            }
            assert_eq!((count, being_preempted), (entry.bookings, entry.being_preempted), "bookings of n{index}");
            assert_eq!(booked.0, entry.booked.0.map(u64::from), "booked on n{index}");
            assert_eq!(shared, entry.shared_gpus.as_deref().cloned().unwrap_or_default(), "shared GPUs of n{index}");
            assert!(self.room[index].fits_in(&entry.capacity), "n{index} shows more room than it has");
            assert_eq!(self.room[index].cpu_millis(), self.cpu[index], "`room` and `cpu` of n{index} differ");
            assert!(self.room[index].fits_in(&self.block_room[index / BLOCK]), "n{index} is hidden from searches");
            let above = &self.super_room[index / BLOCK / BLOCK];
            assert!(self.block_room[index / BLOCK].fits_in(above), "the block of n{index} is hidden from searches");
        }
    }
}

fn maximum(of: &[Resources]) -> Resources {
    of.iter().fold(Resources::ZERO, |largest, next| largest.larger_of(next))
}

impl NodeViews for Ledger {
    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn view(&self, index: usize) -> NodeView {
        let entry = &self.nodes[index];
        NodeView {
            node: self.node(index),
            capacity: entry.capacity,
            free: self.room[index],
            open: entry.state == NodeState::Up,
            queued: 0,
            expected_wait: Duration::ZERO,
            age: Duration::ZERO,
        }
    }

    fn has_room(&self, index: usize, class: u32, shape: &Resources) -> bool {
        shape.fits_in(&self.room[index])
            && self.nodes[index].state == NodeState::Up
            && self.classes.table().meets(class, index)
    }

    fn find_in_partition(&self, class: u32, shape: &Resources, partition: &Partition, start: usize) -> Option<usize> {
        self.find_in_part(class, shape, partition, start, |_| u64::MAX)
    }

    fn least_room(&self, class: u32, shape: &Resources) -> Option<usize> {
        self.find_room(class, shape, 0)?;
        self.by_room().least_that(shape, |index| self.has_room(index, class, shape))
    }

    fn most_room(&self, class: u32, shape: &Resources) -> Option<usize> {
        self.find_room(class, shape, 0)?;
        self.by_room().most_that(|index| self.has_room(index, class, shape))
    }

    fn find_room(&self, class: u32, shape: &Resources, start: usize) -> Option<usize> {
        self.find_around(class, shape, start, |_| u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Epoch;

    fn booking(ledger: &Ledger, node: u32, resources: Resources, number: u64) -> Booking {
        let grant = GrantId { epoch: Epoch(1), number, slot: ledger.next_slot() };
        Booking { grant, job: JobId(1), node: NodeId(node), resources }
    }

    fn ledger_of(nodes: u32) -> Ledger {
        let mut ledger = Ledger::new();
        for node in 0..nodes {
            ledger.join(NodeId(node), Resources::new(4_000, 1_024), Attributes::default());
            ledger.set_open(NodeId(node), true);
        }
        ledger
    }

    #[test]
    fn a_claim_is_accepted_once_and_only_where_there_is_room() {
        let mut ledger = ledger_of(2);
        let first = booking(&ledger, 0, Resources::new(3_000, 100), 1);
        assert_eq!(ledger.claim(first), Ok(()));
        let second = booking(&ledger, 0, Resources::new(2_000, 100), 2);
        assert_eq!(ledger.claim(second), Err(ClaimError::NoRoom));
        assert_eq!(ledger.claim(Booking { node: NodeId(7), ..second }), Err(ClaimError::UnknownNode));
        ledger.check_invariants();
        assert_eq!(ledger.free(first.grant), Some(first));
        assert_eq!(ledger.free(first.grant), None, "it is freed only once");
        let second = booking(&ledger, 0, Resources::new(2_000, 100), 2);
        assert_eq!(ledger.claim(second), Ok(()));
        ledger.check_invariants();
    }

    #[test]
    fn closed_and_unreachable_nodes_accept_no_claims() {
        let mut ledger = ledger_of(1);
        ledger.set_open(NodeId(0), false);
        assert_eq!(ledger.find_room(0, &Resources::new(1, 0), 0), None);
        ledger.set_open(NodeId(0), true);
        ledger.set_state(NodeId(0), NodeState::Unreachable);
        let claim = booking(&ledger, 0, Resources::new(1, 0), 1);
        assert_eq!(ledger.claim(claim), Err(ClaimError::Closed));
        assert_eq!(ledger.find_room(0, &Resources::new(1, 0), 0), None);
    }

    #[test]
    fn a_search_finds_the_only_node_with_room_from_anywhere() {
        let mut ledger = ledger_of(9_000);
        let full = Resources::new(4_000, 1_024);
        for node in (0..9_000).filter(|&node| node != 5_432) {
            let claim = booking(&ledger, node, full, u64::from(node));
            ledger.claim(claim).unwrap();
        }
        for start in [0, 1, 5_431, 5_432, 5_433, 8_999, 12_345] {
            assert_eq!(ledger.find_room(0, &Resources::new(1, 1), start), Some(5_432));
        }
        let constraint = Arc::new(vec![Constraint::parse("arch=arm64").unwrap()]);
        let class = ledger.class(&constraint);
        assert_eq!(ledger.find_room(class, &Resources::new(1, 1), 0), None);
        ledger.check_invariants();
    }
}
