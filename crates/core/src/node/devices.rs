//! Devices of a node, handed out by index: GPUs and custom kinds.

use crate::vocabulary::resources::{GPU, WIDTH};
use crate::vocabulary::{Kinds, Resources, Variables};
use std::collections::BTreeSet;

pub(super) struct Devices {
    /// Free indexes per kind, from `GPU` on.
    free: Vec<BTreeSet<u32>>,
    has_gpus: bool,
}

impl Devices {
    pub(super) fn new(capacity: &Resources) -> Devices {
        let free = (GPU..WIDTH).map(|kind| (0..capacity.0[kind]).collect()).collect();
        Devices { free, has_gpus: capacity.gpus() > 0 }
    }

    /// The lowest free indexes of every kind that the attempt wants, by name.
    pub(super) fn take(&mut self, wanted: &Resources, kinds: &Kinds) -> Vec<(String, Vec<u32>)> {
        let mut taken = Vec::new();
        for kind in (GPU..WIDTH).filter(|&kind| wanted.0[kind] > 0) {
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

    /// Adds `AMALGAM_RESOURCE_<NAME>` for every kind, and `CUDA_VISIBLE_DEVICES`: empty where a node has GPUs and the task
    /// asked for none.
    pub(super) fn name(&self, devices: &[(String, Vec<u32>)], variables: &mut Variables) {
        let list = |indexes: &[u32]| indexes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut gpus = self.has_gpus.then(String::new);
        for (name, indexes) in devices {
            if name == "gpu" {
                gpus = Some(list(indexes));
            }
            let shouted = name.to_ascii_uppercase().replace('-', "_");
            variables.push(&format!("AMALGAM_RESOURCE_{shouted}"), list(indexes));
        }
        if let Some(gpus) = gpus {
            variables.push("CUDA_VISIBLE_DEVICES", &gpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_handed_out_by_index_and_come_back() {
        let kinds = Kinds::new();
        let mut devices = Devices::new(&Resources::ZERO.with(GPU, 3));
        let two = devices.take(&Resources::ZERO.with(GPU, 2), &kinds);
        assert_eq!(two, [("gpu".to_owned(), vec![0, 1])]);
        let named = |held: &[(String, Vec<u32>)]| {
            let mut variables = Variables::default();
            devices.name(held, &mut variables);
            variables
        };
        assert_eq!(named(&two).iter().nth(1), Some(("CUDA_VISIBLE_DEVICES", "0,1")));
        assert_eq!(named(&[]).iter().collect::<Vec<_>>(), [("CUDA_VISIBLE_DEVICES", "")]);
        let one = devices.take(&Resources::ZERO.with(GPU, 1), &kinds);
        assert_eq!(one[0].1, [2]);
        devices.give_back(&two, &kinds);
        devices.hold(&[("gpu".to_owned(), vec![1])], &kinds);
        assert_eq!(devices.take(&Resources::ZERO.with(GPU, 1), &kinds)[0].1, [0]);
    }
}
