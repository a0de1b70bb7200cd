//! Devices of a node, handed out by index: GPUs and custom kinds.

use crate::vocabulary::resources::{GPU, WIDTH};
use crate::vocabulary::{Devices, Kinds, Resources};
use std::collections::BTreeSet;

pub(super) struct DevicePool {
    /// Free indexes per kind, from `GPU` on.
    free: Vec<BTreeSet<u32>>,
    has_gpus: bool,
}

impl DevicePool {
    pub(super) fn new(capacity: &Resources) -> DevicePool {
        let free = (GPU..WIDTH).map(|kind| (0..capacity.0[kind]).collect()).collect();
        DevicePool { free, has_gpus: capacity.gpus() > 0 }
    }

    /// The lowest free indexes of every kind that the attempt wants, by name; none of the GPUs that it has not asked for.
    pub(super) fn take(&mut self, wanted: &Resources, kinds: &Kinds) -> Devices {
        let mut taken = Devices::new();
        let is_told = |kind: usize| wanted.0[kind] > 0 || (kind == GPU && self.has_gpus);
        for kind in (GPU..WIDTH).filter(|&kind| is_told(kind)) {
            let free = &mut self.free[kind - GPU];
            let indexes: Vec<u32> = free.iter().copied().take(wanted.0[kind] as usize).collect();
            for index in &indexes {
                free.remove(index);
            }
            taken.push((kinds.name(kind).unwrap_or("unnamed").to_owned(), indexes));
        }
        taken
    }

    /// Marks devices as taken that an adopted attempt holds.
    pub(super) fn hold(&mut self, devices: &[(String, Vec<u32>)], kinds: &Kinds) {
        self.each(devices, kinds, |free, index| {
            free.remove(&index);
        });
    }

    pub(super) fn give_back(&mut self, devices: &[(String, Vec<u32>)], kinds: &Kinds) {
        self.each(devices, kinds, |free, index| {
            free.insert(index);
        });
    }

    fn each(&mut self, devices: &[(String, Vec<u32>)], kinds: &Kinds, mut act: impl FnMut(&mut BTreeSet<u32>, u32)) {
        for (name, indexes) in devices {
            let Some(free) = kinds.index(name).and_then(|kind| self.free.get_mut(kind.checked_sub(GPU)?)) else {
                continue;
            };
            for &index in indexes {
                act(free, index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_handed_out_by_index_and_come_back() {
        let kinds = Kinds::new();
        let mut devices = DevicePool::new(&Resources::ZERO.with(GPU, 3));
        let two = devices.take(&Resources::ZERO.with(GPU, 2), &kinds);
        assert_eq!(two, [("gpu".to_owned(), vec![0, 1])]);
        assert_eq!(devices.take(&Resources::ZERO, &kinds), [("gpu".to_owned(), vec![])]);
        let one = devices.take(&Resources::ZERO.with(GPU, 1), &kinds);
        assert_eq!(one[0].1, [2]);
        devices.give_back(&two, &kinds);
        devices.hold(&[("gpu".to_owned(), vec![1])], &kinds);
        assert_eq!(devices.take(&Resources::ZERO.with(GPU, 1), &kinds)[0].1, [0]);
    }
}
