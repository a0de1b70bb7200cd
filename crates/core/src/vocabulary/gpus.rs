//! GPUs, which are counted in thousandths: a task has whole ones, or a part of one that it shares with others.
//!
//! The free GPUs of a node are one amount in its vector, so that the only fit test works for GPUs too: all whole GPUs that are
//! free, or else the largest free part of one GPU. A part fits into either, whole GPUs only into whole GPUs.

use super::resources::{GPU, Resources};
use serde::{Deserialize, Serialize};

/// The thousandths of a whole GPU.
pub const WHOLE_GPU: u32 = 1_000;

/// The number of the shared GPU of its node of which an attempt has a part, as the ledger counts them; the node chooses the
/// device. GPUs that are shared at the same time have different numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SharedGpu(pub u16);

/// The part of one GPU that tasks request which share it, in thousandths; `None` if they request whole ones or none.
pub fn part_of_gpu(wanted: &Resources) -> Option<u32> {
    let gpus = wanted.0[GPU];
    (!gpus.is_multiple_of(WHOLE_GPU)).then_some(gpus)
}

/// Whether tasks can request this amount: whole GPUs, or less than one.
pub fn is_gpu_amount(thousandths: u32) -> bool {
    thousandths < WHOLE_GPU || thousandths.is_multiple_of(WHOLE_GPU)
}

/// The free GPUs of a node that has `unused` whole GPUs, and shared ones of which these parts are used; in thousandths.
pub fn free_gpus(unused: u32, shared: impl Iterator<Item = u32>) -> u32 {
    match unused {
        0 => shared.map(|used| WHOLE_GPU.saturating_sub(used)).max().unwrap_or(0),
        _ => unused.saturating_mul(WHOLE_GPU),
    }
}

/// The place of the GPU that is used most and has room for the part.
pub fn best_for_part(part: u32, shared: impl Iterator<Item = (u32, u32)>) -> Option<u32> {
    let with_room = shared.filter(|(_, used)| *used + part <= WHOLE_GPU);
    // The first of several.
    with_room.max_by_key(|(place, used)| (*used, std::cmp::Reverse(*place))).map(|(place, _)| place)
}

/// The shared GPUs of one node, as its ledger counts them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SharedGpus {
    /// The used part of each, by its number; 0 if the number is free.
    used: Vec<u32>,
}

impl SharedGpus {
    fn parts(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..).zip(self.used.iter().copied()).filter(|(_, used)| *used > 0)
    }

    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// The GPU on which the next part fits best.
    pub fn choose(&self, part: u32) -> SharedGpu {
        let unused = || self.used.iter().position(|used| *used == 0).unwrap_or(self.used.len()) as u32;
        SharedGpu(best_for_part(part, self.parts()).unwrap_or_else(unused) as u16)
    }

    pub fn assign(&mut self, at: SharedGpu, part: u32) {
        let at = usize::from(at.0);
        if self.used.len() <= at {
            self.used.resize(at + 1, 0);
        }
        self.used[at] += part;
    }

    pub fn give_back(&mut self, at: SharedGpu, part: u32) {
        if let Some(used) = self.used.get_mut(usize::from(at.0)) {
            *used = used.saturating_sub(part);
        }
        while self.used.last() == Some(&0) {
            self.used.pop();
        }
    }

    /// What is free of `capacity` if tasks hold `held` in total, parts included; in thousandths.
    pub fn free(&self, capacity: u32, held: u32) -> u32 {
        let in_parts: u32 = self.used.iter().sum();
        let whole = held.saturating_sub(in_parts).div_ceil(WHOLE_GPU);
        let shared = self.parts().count() as u32;
        free_gpus((capacity / WHOLE_GPU).saturating_sub(whole + shared), self.parts().map(|(_, used)| used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_a_gpu_and_free_is_what_one_task_may_have() {
        let mut shared = SharedGpus::default();
        assert_eq!(shared.free(2_000, 0), 2_000);
        let (mut held, mut at) = (0, Vec::new());
        for (part, expected, free) in [(500, 0, 1_000), (250, 0, 1_000), (500, 1, 500), (250, 0, 500), (500, 1, 0)] {
            assert!(part <= shared.free(2_000, held));
            let chosen = shared.choose(part);
            assert_eq!(chosen, SharedGpu(expected), "{part}");
            shared.assign(chosen, part);
            held += part;
            at.push((chosen, part));
            assert_eq!(shared.free(2_000, held), free, "with {part}");
        }
        for (chosen, part) in at {
            shared.give_back(chosen, part);
            held -= part;
        }
        assert!(shared.is_empty());
        assert_eq!(shared.free(2_000, held), 2_000);
        // Two of four are whole, another is shared.
        shared.assign(SharedGpu(0), 400);
        assert_eq!(shared.free(4_000, 2_400), 1_000);
        assert_eq!(shared.free(3_000, 2_400), 600);
    }
}
