//! The nodes of a ledger: which there are, which take work, and what is kept free on them.

use super::{BLOCK, GROWN, Ledger, LedgerNode, NONE, NodeState};
use crate::vocabulary::{Attributes, ClosedReason, NodeId, Resources, Totals};
use std::sync::Arc;

impl Ledger {
    /// Adds a node under this number, unless it is known.
    pub fn expect_node(&mut self, node: NodeId) {
        let (known, all) = (self.nodes.len(), self.index(node) + 1);
        if all <= known {
            return;
        }
        let attributes = &self.no_attributes;
        self.nodes.resize_with(all, || LedgerNode {
            state: NodeState::Expected,
            capacity: Resources::ZERO,
            booked: Resources::ZERO,
            elsewhere: Resources::ZERO,
            attributes: Arc::clone(attributes),
            shared_gpus: None,
            first_booking: NONE,
            bookings: 0,
            being_preempted: 0,
            open: false,
            reserved: false,
        });
        self.room.resize(all, Resources::ZERO);
        self.cpu.resize(all, 0);
        self.block_room.resize(all.div_ceil(BLOCK), Resources::ZERO);
        self.super_room.resize(self.block_room.len().div_ceil(BLOCK), Resources::ZERO);
        self.is_loose.resize(self.block_room.len(), false);
        (known..all).for_each(|index| self.classify(index));
        self.expected += (all - known) as u32;
    }

    /// Whether it is unknown what some node runs.
    pub fn expects_nodes(&self) -> bool {
        self.expected > 0
    }

    /// A node has joined with this capacity and these attributes. It stays closed until [`Ledger::set_open`].
    pub fn join(&mut self, node: NodeId, capacity: Resources, attributes: impl Into<Arc<Attributes>>) {
        self.expect_node(node);
        let attributes = attributes.into();
        let index = self.index(node);
        let entry = &mut self.nodes[index];
        if entry.capacity != capacity {
            let before = std::mem::replace(&mut entry.capacity, capacity);
            if !before.is_zero() {
                self.capacity.sub(&before);
            }
            self.capacity.add(&capacity);
        }
        if let Some(by_room) = &mut self.by_room {
            by_room.on_capacity(&capacity, &self.room);
        }
        // The attributes of a new node are not compared: they are elsewhere in memory, in no cache.
        let is_other = entry.state == NodeState::Expected || entry.attributes != attributes;
        entry.attributes = attributes;
        self.expected -= u32::from(std::mem::replace(&mut entry.state, NodeState::Up) == NodeState::Expected);
        self.node_changes += 1;
        if is_other {
            self.classify(index);
        }
        // The node may not have received the preemptions that it was to carry out.
        self.let_stay(index, |_| true);
        if let Some(news) = &mut self.news {
            news.joined.push(node);
        }
        // With other attributes it may meet other constraints: what was known of its room no longer applies.
        self.growths += GROWN as u64 + 1;
    }

    /// The node has these attributes from now on.
    pub fn set_attributes(&mut self, node: NodeId, attributes: Arc<Attributes>) {
        let index = self.index(node);
        self.nodes[index].attributes = attributes;
        self.node_changes += 1;
        self.classify(index);
        if let Some(news) = self.news.as_mut().filter(|_| self.nodes[index].state == NodeState::Up) {
            news.joined.push(node);
            news.changed.push(node);
        }
        self.growths += GROWN as u64 + 1;
    }

    /// Opens a node to claims, or closes it.
    pub fn set_open(&mut self, node: NodeId, open: bool) {
        let index = self.index(node);
        self.node_changes += u64::from(self.nodes[index].open != open);
        self.nodes[index].open = open;
        self.closed_reason.remove(&node);
        self.show_room(index);
    }

    /// Closes a node for this reason.
    pub fn close(&mut self, node: NodeId, why: ClosedReason) {
        self.set_open(node, false);
        self.closed_reason.insert(node, why);
    }

    /// Why a node takes no work, if it takes none.
    pub fn closed_reason(&self, node: NodeId) -> Option<ClosedReason> {
        match self.state(node)? {
            NodeState::Expected => Some(ClosedReason::Expected),
            NodeState::Unreachable => Some(ClosedReason::Unreachable),
            NodeState::Lost => Some(ClosedReason::Lost),
            NodeState::Up if self.is_open(node) => None,
            NodeState::Up => Some(self.closed_reason.get(&node).cloned().unwrap_or(ClosedReason::Closed)),
        }
    }

    /// Removes a node, which holds nothing.
    pub fn remove(&mut self, node: NodeId) {
        self.expect_node(node);
        if self.state(node).is_some_and(|state| state != NodeState::Lost) {
            self.set_state(node, NodeState::Lost);
        }
        self.removed.insert(node);
        self.closed_reason.remove(&node);
        let index = self.index(node);
        self.show_room(index);
    }

    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains(&node)
    }

    pub fn set_state(&mut self, node: NodeId, state: NodeState) {
        let index = self.index(node);
        let entry = &mut self.nodes[index];
        if state == NodeState::Lost {
            let capacity = std::mem::take(&mut entry.capacity);
            self.capacity.sub(&capacity);
        }
        let before = std::mem::replace(&mut self.nodes[index].state, state);
        self.expected -= u32::from(before == NodeState::Expected && state != NodeState::Expected);
        self.node_changes += 1;
        self.show_room(index);
    }

    pub fn state(&self, node: NodeId) -> Option<NodeState> {
        let entry = self.get(node)?;
        let is_removed = entry.state == NodeState::Lost && self.removed.contains(&node);
        (!is_removed).then_some(entry.state)
    }

    /// The capacity of all nodes that are not lost.
    pub fn capacity(&self) -> &Totals {
        &self.capacity
    }

    pub fn node_capacity(&self, node: NodeId) -> Resources {
        self.nodes[self.index(node)].capacity
    }

    pub fn node_free(&self, node: NodeId) -> Resources {
        self.nodes[self.index(node)].free()
    }

    pub fn node_bookings(&self, node: NodeId) -> u32 {
        self.nodes[self.index(node)].bookings
    }

    pub fn node_changes(&self) -> u64 {
        self.node_changes
    }

    pub fn attributes(&self, node: NodeId) -> &Arc<Attributes> {
        &self.nodes[self.index(node)].attributes
    }

    /// Shows the room of a reserved node to searches again.
    pub fn unreserve(&mut self, node: NodeId) {
        let index = self.index(node);
        self.nodes[index].reserved = false;
        self.show_room(index);
    }

    /// Whether the node takes no work now: unreachable, lost, drained or paused.
    pub fn offer_is_closed(&self, node: NodeId) -> bool {
        !self.get(node).is_some_and(LedgerNode::takes_work)
    }

    pub fn is_reserved(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|entry| entry.reserved)
    }

    /// Hides a node's room from searches, so that enough of it becomes free for one ask, here or with another global master.
    pub fn reserve(&mut self, node: NodeId) {
        let index = self.index(node);
        self.nodes[index].reserved = true;
        self.show_room(index);
    }

    pub fn is_open(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|entry| entry.open)
    }

    /// The room of the node that can be assigned; zero if the node is closed.
    #[inline]
    pub fn offer(&self, node: NodeId) -> Resources {
        let entry = &self.nodes[self.index(node)];
        if entry.takes_work() { entry.free() } else { Resources::ZERO }
    }
}
