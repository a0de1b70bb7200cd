//! Read-only views of nodes and of a node's queue, for policies.

use super::resources::WIDTH;
use super::{AttemptId, Duration, EntryId, ExecutionType, Instant, Load, NodeId, Partition, Resources, TaskShape};
use fixedbitset::FixedBitSet;
use std::sync::Arc;

/// What a scheduler believes of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeView {
    pub node: NodeId,
    pub capacity: Resources,
    /// Zero if it takes no new work.
    pub free: Resources,
    /// Whether it is reachable; true for drained and paused nodes, too.
    pub open: bool,
    /// Entries that wait in its queue.
    pub queued: u32,
    /// How long a new entry would wait in its queue.
    pub expected_wait: Duration,
    /// How old this belief is.
    pub age: Duration,
}

/// How far stored bytes are from a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    OnNode,
    InRack,
    Elsewhere,
}

/// Nodes as a placement policy sees them: by dense index, with a search that does not visit every node.
pub trait NodeViews {
    /// The nodes with the shortest waits in the last ranking, best first; empty without a ranking.
    fn best(&self) -> &[u32] {
        &[]
    }

    /// The value by which that ranking compared the node.
    fn rank(&self, index: usize) -> Duration {
        self.view(index).expected_wait
    }

    /// The nodes with the input of asks of this class; empty if that does not matter.
    fn local(&self, _class: u32) -> &[NodeId] {
        &[]
    }

    /// Whether the node is in a rack with the input of asks of this class.
    fn is_rack_local(&self, _index: usize, _class: u32) -> bool {
        false
    }

    /// How long a task of this shape and execution type would wait there; [`Duration::MAX`] if it never starts.
    fn wait(&self, index: usize, _shape: &Resources, _execution: ExecutionType) -> Duration {
        self.view(index).expected_wait
    }

    /// The same, if `more` is sent there first.
    fn wait_behind(&self, index: usize, shape: &Resources, execution: ExecutionType, _more: &Load) -> Duration {
        self.wait(index, shape, execution)
    }

    /// Whether an opportunistic task would find room there at once, if `more` is sent there first.
    fn has_spare(&self, _index: usize, _shape: &Resources, _more: &Load) -> bool {
        true
    }

    /// Whether work that the ranking does not include has taken the room that was there.
    fn is_filled(&self, _index: usize) -> bool {
        false
    }

    /// The approximate time between two updates of the nodes.
    fn interval(&self) -> Duration {
        Duration::ZERO
    }

    /// The probability that a task succeeds on the node, in millionths.
    fn success(&self, _index: usize) -> u32 {
        1_000_000
    }

    /// Calls `show` with how many bytes of the input of a task of this class are at which distance from the node.
    fn input(&self, _index: usize, _class: u32, _show: &mut dyn FnMut(u64, Distance)) {}

    /// Nodes that reported directly, not through the master, how long tasks would wait there; the most recent one is last.
    fn heard(&self) -> &[NodeId] {
        &[]
    }

    /// Nodes in racks with the input of asks of this class.
    fn near(&self, _class: u32) -> &[NodeId] {
        &[]
    }

    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn view(&self, index: usize) -> NodeView;
    /// Whether the node is open, has room for `shape` and meets constraint class `class`.
    fn has_room(&self, index: usize, class: u32, shape: &Resources) -> bool;

    /// The first node at or cyclically after `start` that has room.
    fn find_room(&self, class: u32, shape: &Resources, start: usize) -> Option<usize> {
        let len = self.len();
        (0..len).map(|offset| (start + offset) % len).find(|&index| self.has_room(index, class, shape))
    }

    /// The first node of a partition that has room, at `start` or after it, or else before it.
    fn find_in_partition(&self, class: u32, shape: &Resources, partition: &Partition, start: usize) -> Option<usize> {
        let all = || (partition.from..partition.to.min(self.len())).filter(|index| partition.has(*index));
        let has_room = |index: &usize| self.has_room(*index, class, shape);
        let after = all().filter(|index| *index >= start).find(has_room);
        after.or_else(|| all().take_while(|index| *index < start).find(has_room))
    }

    /// The node with the least room among those that have enough, by [`RoomScale`].
    fn least_room(&self, class: u32, shape: &Resources) -> Option<usize> {
        let scale = self.room_scale();
        let fitting = (0..self.len()).filter(|&index| self.has_room(index, class, shape));
        fitting.min_by_key(|&index| (scale.measure(&self.view(index).free), index))
    }

    /// The node with the most room among those that have enough, by [`RoomScale`].
    fn most_room(&self, class: u32, shape: &Resources) -> Option<usize> {
        let scale = self.room_scale();
        let fitting = (0..self.len()).filter(|&index| self.has_room(index, class, shape));
        fitting.max_by_key(|&index| (scale.measure(&self.view(index).free), index))
    }

    /// A scale on which these nodes can be compared.
    fn room_scale(&self) -> RoomScale {
        let mut scale = RoomScale::default();
        for index in 0..self.len() {
            scale.grow(&self.view(index).capacity);
        }
        scale
    }
}

/// Reduces the room on a node to one number: the sum over kinds of its part of the largest node, whose capacity is rounded up to
/// a power of two, so that the scale seldom changes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RoomScale {
    /// Per kind, the binary logarithm of the amount that counts as one.
    bits: [u32; WIDTH],
}

impl RoomScale {
    /// Includes the capacity of a node. Returns whether the scale has changed.
    pub fn grow(&mut self, capacity: &Resources) -> bool {
        let mut grown = false;
        for (bits, &amount) in self.bits.iter_mut().zip(&capacity.0) {
            let needed = u64::from(amount).next_power_of_two().ilog2();
            grown |= needed > *bits;
            *bits = needed.max(*bits);
        }
        grown
    }

    /// In units of 2^-32 of the largest node, exact: a task reduces the number of every room by the same amount.
    pub fn measure(&self, room: &Resources) -> u64 {
        room.0.iter().zip(self.bits).map(|(&amount, bits)| (u64::from(amount) << 32) >> bits).sum()
    }
}

/// Which nodes meet which set of constraints: one bit per node for every class of asks with the same constraints.
/// Class 0 has none and is met by every node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ClassTable {
    nodes: Vec<FixedBitSet>,
}

impl ClassTable {
    #[inline]
    pub fn meets(&self, class: u32, node: usize) -> bool {
        self.nodes[class as usize].contains(node)
    }

    /// The bits of 64 nodes, those numbered `64 * word` and up.
    #[inline]
    pub fn word(&self, class: u32, word: usize) -> u64 {
        const _: () = assert!(usize::BITS == 64, "a word has the bits of 64 nodes");
        self.nodes[class as usize].as_slice().get(word).map_or(0, |bits| *bits as u64)
    }

    pub fn classes(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Adds a class that is met by these nodes. Returns its number.
    pub fn add_class_of(&mut self, nodes: FixedBitSet) -> u32 {
        self.nodes.push(nodes);
        self.classes() - 1
    }

    /// No node meets the class from now on.
    pub fn clear(&mut self, class: u32) {
        self.nodes[class as usize].clear();
    }

    pub fn set(&mut self, class: u32, node: usize, met: bool) {
        let nodes = &mut self.nodes[class as usize];
        nodes.grow(node + 1);
        nodes.set(node, met);
    }
}

/// One entry that waits at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuedEntry {
    pub id: EntryId,
    pub shape: Arc<TaskShape>,
    /// A ledger holds its resources: it only waits until an attempt ends.
    pub booked: bool,
    pub queued_at: Instant,
    pub expected: Option<Duration>,
    /// Of an opportunistic entry: its weight in the random choice among those that wait.
    pub weight: u16,
}

impl QueuedEntry {
    /// Whether it is known to make the queue longer.
    pub fn has_length(&self) -> bool {
        self.expected.is_some_and(|expected| expected > Duration::ZERO)
    }

    pub fn is_opportunistic(&self) -> bool {
        self.shape.execution == ExecutionType::Opportunistic
    }

    /// Whether opportunistic work is preempted for it: it is booked, or within its job's entitlement.
    pub fn is_guaranteed(&self) -> bool {
        let is_attempt = matches!(self.id, EntryId::Attempt(_));
        self.booked || is_attempt && self.shape.execution == ExecutionType::Guaranteed
    }

    /// The attempt, if it is guaranteed.
    pub fn guaranteed_attempt(&self) -> Option<AttemptId> {
        match self.id {
            EntryId::Attempt(attempt) if self.is_guaranteed() => Some(attempt),
            _ => None,
        }
    }
}

/// One attempt that runs at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningEntry {
    pub attempt: AttemptId,
    pub resources: Resources,
    pub execution: ExecutionType,
    pub started_at: Instant,
    pub expected: Option<Duration>,
}

/// A node's waiting entries in order of arrival.
#[derive(Clone, Copy, Debug)]
pub struct QueueView<'a> {
    pub entries: &'a [QueuedEntry],
    /// What opportunistic work may hold in addition to what it holds.
    pub opportunistic_room: Resources,
}
