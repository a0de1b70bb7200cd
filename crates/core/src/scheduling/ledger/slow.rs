//! Slow nodes: on which tasks take longer until they have succeeded than on others, by as much as the scheduler has learned.

use super::{BLOCK, Ledger};
use crate::policy::node_speeds::{SLOW, USUAL};
use crate::vocabulary::{NodeId, NodeView, NodeViews, Partition, Resources};
use fixedbitset::FixedBitSet;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct SlowNodes {
    /// By index, how many times as long tasks take there, in thousandths.
    times: BTreeMap<usize, u32>,
    bits: FixedBitSet,
}

impl SlowNodes {
    fn word(&self, block: usize) -> u64 {
        const _: () = assert!(usize::BITS as usize == BLOCK, "a word has the bits of a block");
        self.bits.as_slice().get(block).map_or(0, |bits| *bits as u64)
    }
}

impl Ledger {
    /// Sets how many times as long tasks take on the node as on others, in thousandths; below [`SLOW`] it is not slow.
    pub fn set_slowness(&mut self, node: NodeId, times: u32) {
        let index = self.index(node);
        self.slow.bits.grow(index + 1);
        self.slow.bits.set(index, times >= SLOW);
        if times >= SLOW {
            self.slow.times.insert(index, times);
        } else {
            self.slow.times.remove(&index);
        }
    }

    /// How many times as long tasks take on the node, in thousandths; [`USUAL`] if it is not slow.
    pub fn slowness(&self, node: NodeId) -> u32 {
        if self.slow.times.is_empty() {
            return USUAL;
        }
        self.slow.times.get(&self.index(node)).copied().unwrap_or(USUAL)
    }

    pub fn is_slow(&self, node: NodeId) -> bool {
        self.slowness(node) >= SLOW
    }

    pub fn has_slow_nodes(&self) -> bool {
        !self.slow.times.is_empty()
    }

    /// The slow nodes, and how many times as long tasks take there, in thousandths.
    pub fn slow_nodes(&self) -> impl Iterator<Item = (NodeId, u32)> {
        self.slow.times.iter().map(|(index, times)| (self.node(*index), *times))
    }

    /// Whether a node of the class that is not slow and takes work could hold the shape. Examines all nodes if there is none.
    pub fn has_others_than_slow(&self, class: u32, shape: &Resources) -> bool {
        let is_one = |index: usize| self.nodes[index].takes_work() && shape.fits_in(&self.nodes[index].capacity);
        let is_fast = |index: &usize| !self.slow.bits.contains(*index);
        (0..self.nodes.len()).filter(is_fast).any(|index| is_one(index) && self.classes.table().meets(class, index))
    }
}

/// The ledger without the slow nodes.
pub struct WithoutSlow<'a>(pub &'a Ledger);

impl NodeViews for WithoutSlow<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn view(&self, index: usize) -> NodeView {
        self.0.view(index)
    }

    fn has_room(&self, index: usize, class: u32, shape: &Resources) -> bool {
        self.0.has_room(index, class, shape) && !self.0.slow.bits.contains(index)
    }

    fn find_in_partition(&self, class: u32, shape: &Resources, partition: &Partition, start: usize) -> Option<usize> {
        self.0.find_in_part(class, shape, partition, start, |block| !self.0.slow.word(block))
    }

    fn least_room(&self, class: u32, shape: &Resources) -> Option<usize> {
        self.0.by_room().least_that(shape, |index| self.has_room(index, class, shape))
    }

    fn most_room(&self, class: u32, shape: &Resources) -> Option<usize> {
        self.0.by_room().most_that(|index| self.has_room(index, class, shape))
    }

    fn find_room(&self, class: u32, shape: &Resources, start: usize) -> Option<usize> {
        self.0.find_around(class, shape, start, |block| !self.0.slow.word(block))
    }
}
