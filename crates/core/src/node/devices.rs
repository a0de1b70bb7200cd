//! Devices of a node, assigned by index: GPUs and custom kinds. Tasks that request a part of a GPU share one.

use crate::vocabulary::gpus::{best_for_part, free_gpus, part_of_gpu};
use crate::vocabulary::resources::{GPU, WIDTH};
use crate::vocabulary::{Devices, Kinds, Resources, SharedGpu, WHOLE_GPU};
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct DevicePool {
    /// Unused indexes of each kind, from `GPU` on.
    unused: Vec<BTreeSet<u32>>,
    /// Number of devices of each kind, from `GPU` on.
    counts: Vec<u32>,
    /// GPUs that tasks have parts of, by index.
    shared: BTreeMap<u32, Shared>,
    has_gpus: bool,
}

#[derive(Default)]
struct Shared {
    /// In thousandths.
    used: u32,
    /// The ledger's number for this GPU, if any of its tasks is booked.
    number: Option<SharedGpu>,
}

impl DevicePool {
    pub(super) fn new(capacity: &Resources) -> DevicePool {
        let counts: Vec<u32> = (GPU..WIDTH).map(|kind| devices(kind, capacity.0[kind])).collect();
        let unused = counts.iter().map(|count| (0..*count).collect()).collect();
        DevicePool { unused, counts, shared: BTreeMap::new(), has_gpus: capacity.gpu_millis() > 0 }
    }

    /// The largest amount of GPU that one task may have, in thousandths.
    pub(super) fn free_gpus(&self) -> u32 {
        free_gpus(self.unused[0].len() as u32, self.shared.values().map(|shared| shared.used))
    }

    /// Takes the lowest free indexes of every kind that the attempt requests, by name. A node with GPUs always lists
    /// that kind, without indexes if the attempt requests none. A part of a GPU is taken from the GPU that the ledger
    /// assigned, else from the most used one that has room.
    pub(super) fn allocate(&mut self, wanted: &Resources, number: Option<SharedGpu>, kinds: &Kinds) -> Devices {
        let mut taken = Devices::new();
        let is_reported = |kind: usize| wanted.0[kind] > 0 || (kind == GPU && self.has_gpus);
        for kind in (GPU..WIDTH).filter(|&kind| is_reported(kind)) {
            let indexes: Vec<u32> = match part_of_gpu(wanted).filter(|_| kind == GPU) {
                Some(part) => self.gpu_for(part, number).into_iter().collect(),
                None => {
                    let count = devices(kind, wanted.0[kind]) as usize;
                    self.unused[kind - GPU].iter().copied().take(count).collect()
                }
            };
            taken.push((kinds.name(kind).unwrap_or("unnamed").to_owned(), indexes));
        }
        self.hold(&taken, wanted, number, kinds);
        taken
    }

    fn gpu_for(&self, part: u32, number: Option<SharedGpu>) -> Option<u32> {
        let has_room = |shared: &Shared| shared.used + part <= WHOLE_GPU;
        let meant = |(_, shared): &(&u32, &Shared)| shared.number == number && number.is_some() && has_room(shared);
        let of_ledger = self.shared.iter().find(meant).map(|(index, _)| *index);
        let unused = self.unused[0].first().copied();
        let best = |is_meant: &dyn Fn(&Shared) -> bool| {
            let those = self.shared.iter().filter(|(_, shared)| is_meant(shared));
            best_for_part(part, those.map(|(index, shared)| (*index, shared.used)))
        };
        match number {
            // The ledger counts one more shared GPU, and expects one less for its next task with a whole GPU.
            Some(_) => of_ledger.or(unused).or_else(|| best(&|_| true)),
            // The ledger may have assigned the rest of a GPU that has a number.
            None => best(&|shared| shared.number.is_none()).or(unused).or_else(|| best(&|_| true)),
        }
    }

    /// Marks devices that an attempt holds as taken.
    pub(super) fn hold(
        &mut self,
        devices: &[(String, Vec<u32>)],
        wanted: &Resources,
        number: Option<SharedGpu>,
        kinds: &Kinds,
    ) {
        let part = part_of_gpu(wanted);
        self.each(devices, kinds, |pool, kind, index| {
            pool.unused[kind - GPU].remove(&index);
            if let Some(part) = part.filter(|_| kind == GPU) {
                let shared = pool.shared.entry(index).or_default();
                shared.used += part;
                shared.number = shared.number.or(number);
            }
        });
    }

    pub(super) fn give_back(&mut self, devices: &[(String, Vec<u32>)], wanted: &Resources, kinds: &Kinds) {
        let part = part_of_gpu(wanted);
        self.each(devices, kinds, |pool, kind, index| {
            if let Some(part) = part.filter(|_| kind == GPU)
                && let Some(shared) = pool.shared.get_mut(&index)
            {
                shared.used = shared.used.saturating_sub(part);
                if shared.used > 0 {
                    return;
                }
                pool.shared.remove(&index);
            }
            // An earlier run of the agent may have had more devices.
            if index < pool.counts[kind - GPU] {
                pool.unused[kind - GPU].insert(index);
            }
        });
    }

    fn each(
        &mut self,
        devices: &[(String, Vec<u32>)],
        kinds: &Kinds,
        mut act: impl FnMut(&mut DevicePool, usize, u32),
    ) {
        for (name, indexes) in devices {
            let Some(kind) = kinds.index(name).filter(|kind| (GPU..WIDTH).contains(kind)) else { continue };
            for &index in indexes {
                act(self, kind, index);
            }
        }
    }

    /// # Panics
    /// If more of a GPU is used than it has, which is a bug in this module.
    pub(super) fn check_invariants<'a>(
        &self,
        held: impl Iterator<Item = (&'a Devices, &'a Resources)>,
        capacity: &Resources,
        kinds: &Kinds,
    ) {
        let mut of_gpus: BTreeMap<u32, u32> = BTreeMap::new();
        for (devices, wanted) in held {
            let part = part_of_gpu(wanted).unwrap_or(WHOLE_GPU);
            let gpus = devices.iter().filter(|(name, _)| kinds.index(name) == Some(GPU));
            gpus.flat_map(|(_, indexes)| indexes).for_each(|index| *of_gpus.entry(*index).or_default() += part);
        }
        for (index, used) in of_gpus {
            // An agent that has fewer GPUs than in an earlier run may find more in use than it has.
            let is_known = index < devices(GPU, capacity.gpu_millis());
            assert!(used <= WHOLE_GPU || !is_known, "{used} thousandths of GPU {index} are in use");
            assert!(!self.unused[0].contains(&index), "GPU {index} is in use");
            if let Some(shared) = self.shared.get(&index).filter(|_| is_known) {
                assert_eq!(shared.used, used, "thousandths of GPU {index} that are in use");
            }
        }
    }
}

/// How many devices of a kind the amount stands for.
fn devices(kind: usize, amount: u32) -> u32 {
    if kind == GPU { amount / WHOLE_GPU } else { amount }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(thousandths: u32) -> Resources {
        Resources::ZERO.with(GPU, thousandths)
    }

    #[test]
    fn devices_are_assigned_by_index_and_returned() {
        let kinds = Kinds::new();
        let mut devices = DevicePool::new(&gpus(3_000));
        let two = devices.allocate(&gpus(2_000), None, &kinds);
        assert_eq!(two, [("gpu".to_owned(), vec![0, 1])]);
        assert_eq!(devices.allocate(&Resources::ZERO, None, &kinds), [("gpu".to_owned(), vec![])]);
        let one = devices.allocate(&gpus(1_000), None, &kinds);
        assert_eq!((one[0].1.as_slice(), devices.free_gpus()), (&[2][..], 0));
        devices.give_back(&two, &gpus(2_000), &kinds);
        devices.hold(&[("gpu".to_owned(), vec![1])], &gpus(1_000), None, &kinds);
        assert_eq!(devices.allocate(&gpus(1_000), None, &kinds)[0].1, [0]);
    }

    #[test]
    fn parts_of_a_gpu_share_one_and_leave_the_others_whole() {
        let kinds = Kinds::new();
        let mut devices = DevicePool::new(&gpus(3_000));
        let part = |devices: &mut DevicePool, part, number: Option<u16>| {
            devices.allocate(&gpus(part), number.map(SharedGpu), &kinds)[0].1[0]
        };
        assert_eq!([part(&mut devices, 400, None), part(&mut devices, 500, None)], [0, 0]);
        assert_eq!(devices.free_gpus(), 2_000);
        assert_eq!(part(&mut devices, 200, None), 1, "a GPU is not used beyond its whole");
        assert_eq!(part(&mut devices, 100, None), 0, "the most used GPU that has room");
        assert_eq!(part(&mut devices, 100, Some(0)), 2, "the ledger counts another GPU");
        assert_eq!(part(&mut devices, 900, Some(0)), 2);
        assert_eq!((devices.free_gpus(), part(&mut devices, 800, None)), (800, 1));
        assert_eq!(devices.free_gpus(), 0);
        devices.give_back(&[("gpu".to_owned(), vec![2])], &gpus(900), &kinds);
        assert_eq!(devices.free_gpus(), 900);
        devices.give_back(&[("gpu".to_owned(), vec![2])], &gpus(100), &kinds);
        assert_eq!((devices.free_gpus(), part(&mut devices, 100, Some(7))), (1_000, 2));
        devices.hold(&[("gpu".to_owned(), vec![5])], &gpus(1_000), None, &kinds);
        devices.give_back(&[("gpu".to_owned(), vec![5])], &gpus(1_000), &kinds);
        assert_eq!(devices.free_gpus(), 900, "index 5 does not exist here");
    }
}
