//! A pool of cgroups. Limits are written when a group is created, and later attempts of the same shape reuse it. In the
//! steady state, a launch writes no limits.

use super::devices::KnownDevices;
use super::hierarchy::{Hierarchy, Leaf, Shape};
use amalgam_core::vocabulary::Devices;
use std::collections::HashMap;
use std::io;

/// Maximum number of idle groups that are kept.
const MOST_IDLE: usize = 256;

#[derive(Debug)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    /// The devices that tasks may use only if they were assigned; none if the hierarchy cannot restrict this.
    pub devices: KnownDevices,
    idle: HashMap<Shape, Vec<Leaf>>,
    idle_count: usize,
    next: u64,
}

impl Cgroups {
    pub fn new(hierarchy: Hierarchy, devices: KnownDevices) -> Cgroups {
        Cgroups { hierarchy, devices, idle: HashMap::new(), idle_count: 0, next: 0 }
    }

    /// A group for an attempt with these devices.
    pub fn take(&mut self, shape: Shape, assigned: &Devices) -> io::Result<Leaf> {
        let mut leaf = match self.idle.get_mut(&shape).and_then(Vec::pop) {
            Some(leaf) => {
                self.idle_count -= 1;
                leaf
            }
            None => {
                self.next += 1;
                self.hierarchy.make_leaf(self.next, shape)?
            }
        };
        // A reused group still denies what its last attempt did not have.
        match leaf.deny_devices(self.devices.withheld(assigned)) {
            Ok(()) => Ok(leaf),
            Err(error) => {
                leaf.remove();
                Err(error)
            }
        }
    }

    /// Takes a group back, which must have no members. A group with memory still charged to it, such as files on a
    /// tmpfs, is removed: the next attempt would have less memory than its limit. So is one with groups below it.
    pub fn give_back(&mut self, leaf: Leaf) {
        let limit = u64::from(leaf.shape.memory_mib) << 20;
        let stained = limit > 0 && leaf.memory_bytes() > limit / 4;
        if stained || leaf.has_groups() || self.idle_count >= MOST_IDLE {
            return leaf.remove();
        }
        self.idle_count += 1;
        self.idle.entry(leaf.shape).or_default().push(leaf);
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.idle.drain().flat_map(|(_, leaves)| leaves).for_each(Leaf::remove);
        self.hierarchy.remove();
    }
}
