//! Resource vectors of a small fixed width, and the one fit test.

use super::gpus::WHOLE_GPU;
use super::names::Named;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The width of a resource vector.
pub const WIDTH: usize = 16;
/// The first kind that a configuration names.
pub const FIRST_CUSTOM: usize = 7;
/// Names of the kinds below [`FIRST_CUSTOM`], in their order.
pub const BUILT_IN: [&str; FIRST_CUSTOM] =
    ["cpu", "memory", "disk-read", "disk-write", "network-in", "network-out", "gpu"];

pub const CPU: usize = 0;
pub const MEMORY: usize = 1;
pub const GPU: usize = 6;

/// An amount of every kind of resource. Units: CPU in thousandths of a core, memory in MiB, disk and network in
/// MB/s, GPUs in thousandths (`gpus.rs`), custom kinds in whole devices. One cache line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]

pub struct Resources(pub [u32; WIDTH]);

/// Sums of many vectors, in the same units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Totals(pub [u64; WIDTH]);

impl Resources {
    pub const ZERO: Resources = Resources([0; WIDTH]);
    pub const MAX: Resources = Resources([u32::MAX; WIDTH]);

    pub const fn new(cpu_millis: u32, memory_mib: u32) -> Resources {
        let mut amounts = [0; WIDTH];
        amounts[CPU] = cpu_millis;
        amounts[MEMORY] = memory_mib;
        Resources(amounts)
    }

    pub const fn with(mut self, kind: usize, amount: u32) -> Resources {
        self.0[kind] = amount;
        self
    }

    pub const fn cpu_millis(&self) -> u32 {
        self.0[CPU]
    }
    pub const fn memory_mib(&self) -> u32 {
        self.0[MEMORY]
    }
    pub const fn gpu_millis(&self) -> u32 {
        self.0[GPU]
    }

    /// The only fit test: schedulers and ledgers both use it.
    #[inline]
    pub fn fits_in(&self, room: &Resources) -> bool {
        // No early exit: the compiler turns this into two vector comparisons.
        let mut fits = true;
        for kind in 0..WIDTH {
            fits &= self.0[kind] <= room.0[kind];
        }
        fits
    }

    #[inline]
    pub fn saturating_sub(&self, other: &Resources) -> Resources {
        let mut left = *self;
        for kind in 0..WIDTH {
            left.0[kind] = left.0[kind].saturating_sub(other.0[kind]);
        }
        left
    }

    #[inline]
    pub fn saturating_add(&self, other: &Resources) -> Resources {
        let mut sum = *self;
        for kind in 0..WIDTH {
            sum.0[kind] = sum.0[kind].saturating_add(other.0[kind]);
        }
        sum
    }

    /// The smaller of the two in every kind.
    #[inline]
    pub fn smaller_of(&self, other: &Resources) -> Resources {
        let mut smallest = *self;
        for kind in 0..WIDTH {
            smallest.0[kind] = smallest.0[kind].min(other.0[kind]);
        }
        smallest
    }

    /// The larger of the two in every kind.
    #[inline]
    pub fn larger_of(&self, other: &Resources) -> Resources {
        let mut largest = *self;
        for kind in 0..WIDTH {
            largest.0[kind] = largest.0[kind].max(other.0[kind]);
        }
        largest
    }

    pub fn is_zero(&self) -> bool {
        self.0 == [0; WIDTH]
    }

    /// The amounts that `room` lacks, kind by kind; zero where it fits.
    pub fn shortage(&self, room: &Resources) -> Resources {
        self.saturating_sub(room)
    }

    /// How many times this vector fits into `room`; `u32::MAX` for a zero vector.
    pub fn times_in(&self, room: &Resources) -> u32 {
        let times = |kind: usize| match (self.0[kind], room.0[kind]) {
            // Parts of different GPUs do not make one.
            (part, free) if kind == GPU && part < WHOLE_GPU => {
                free / WHOLE_GPU * (WHOLE_GPU / part) + free % WHOLE_GPU / part
            }
            (of_one, free) => free / of_one,
        };
        (0..WIDTH).filter(|&kind| self.0[kind] > 0).map(times).min().unwrap_or(u32::MAX)
    }
}

impl Totals {
    pub const ZERO: Totals = Totals([0; WIDTH]);

    #[inline]
    pub fn add(&mut self, amount: &Resources) {
        for kind in 0..WIDTH {
            self.0[kind] += u64::from(amount.0[kind]);
        }
    }

    /// Adds `amount` `times` times.
    pub fn add_times(&mut self, amount: &Resources, times: u64) {
        for kind in 0..WIDTH {
            self.0[kind] += u64::from(amount.0[kind]) * times;
        }
    }

    /// # Panics
    /// If more is subtracted than was added, which is our own bug.
    #[inline]
    pub fn sub(&mut self, amount: &Resources) {
        let mut is_too_much = false;
        for kind in 0..WIDTH {
            let (left, overflowed) = self.0[kind].overflowing_sub(u64::from(amount.0[kind]));
            self.0[kind] = left;
            is_too_much |= overflowed;
        }
        assert!(!is_too_much, "freed more than was taken from a total");
    }

    #[inline]
    pub fn fits_in(&self, room: &Totals) -> bool {
        (0..WIDTH).all(|kind| self.0[kind] <= room.0[kind])
    }

    /// Combines this and the other, kind by kind.
    #[inline]
    pub fn zip(&self, other: &Totals, of: impl Fn(u64, u64) -> u64) -> Totals {
        Totals(std::array::from_fn(|kind| of(self.0[kind], other.0[kind])))
    }

    pub fn larger_of(&self, other: &Totals) -> Totals {
        self.zip(other, u64::max)
    }

    pub fn smaller_of(&self, other: &Totals) -> Totals {
        self.zip(other, u64::min)
    }

    pub fn saturating_sub(&self, other: &Totals) -> Totals {
        self.zip(other, u64::saturating_sub)
    }

    /// This many hundredths of it, rounded up.
    pub fn hundredths(&self, hundredths: u32) -> Totals {
        let part = |amount: u64| (u128::from(amount) * u128::from(hundredths)).div_ceil(100);
        Totals(self.0.map(|amount| u64::try_from(part(amount)).unwrap_or(u64::MAX)))
    }

    /// How many times `amount` fits into this; `u64::MAX` for a zero vector.
    pub fn holds(&self, amount: &Resources) -> u64 {
        let kinds = self.0.iter().zip(&amount.0).filter(|(_, of_one)| **of_one > 0);
        kinds.map(|(all, &of_one)| all / u64::from(of_one)).min().unwrap_or(u64::MAX)
    }

    /// Subtracts `amount` `times` times, down to zero.
    pub fn sub_times(&mut self, amount: &Resources, times: u64) {
        for (left, &of_one) in self.0.iter_mut().zip(&amount.0) {
            *left = left.saturating_sub(u64::from(of_one).saturating_mul(times));
        }
    }

    /// `capacity` less this, at least zero.
    #[inline]
    pub fn left_of(&self, capacity: &Resources) -> Resources {
        let mut left = *capacity;
        for kind in 0..WIDTH {
            left.0[kind] = u64::from(left.0[kind]).saturating_sub(self.0[kind]) as u32;
        }
        left
    }

    /// The largest fraction of `capacity` that this total takes in any kind, in millionths (DRF's dominant share).
    /// A kind that the cluster does not have counts as fully used when anything of it is used.
    #[inline]
    pub fn dominant_share(&self, capacity: &Totals) -> u64 {
        let mut largest = 0;
        for kind in 0..WIDTH {
            if self.0[kind] > 0 {
                let (used, of) = (self.0[kind], capacity.0[kind]);
                // Long division only where it is needed.
                let share = match used.checked_mul(1_000_000) {
                    Some(scaled) => scaled.checked_div(of),
                    None => (u128::from(used) * 1_000_000)
                        .checked_div(u128::from(of))
                        .map(|share| u64::try_from(share).unwrap_or(u64::MAX)),
                };
                largest = largest.max(share.unwrap_or(1_000_000));
            }
        }
        largest
    }
}

/// The names of all kinds of resources, resolved once per cluster: built-in ones, then the configured ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kinds {
    custom: Vec<String>,
}

impl Default for Kinds {
    fn default() -> Self {
        Kinds::new()
    }
}

impl Kinds {
    pub const fn new() -> Kinds {
        Kinds { custom: Vec::new() }
    }

    pub fn custom(&self) -> &[String] {
        &self.custom
    }

    pub fn index(&self, name: &str) -> Option<usize> {
        let built_in = BUILT_IN.iter().position(|known| *known == name);
        built_in.or_else(|| self.custom.iter().position(|known| known == name).map(|at| at + FIRST_CUSTOM))
    }

    /// The name of a kind; `None` past the last one.
    pub fn name(&self, kind: usize) -> Option<&str> {
        match BUILT_IN.get(kind) {
            Some(name) => Some(name),
            None => self.custom.get(kind - FIRST_CUSTOM).map(String::as_str),
        }
    }

    /// Adds a kind, or finds it.
    ///
    /// # Errors
    /// If all places of the vector are taken, or the name has other characters than lower-case letters, digits and dashes.
    pub fn add(&mut self, name: &str) -> Result<usize, String> {
        if let Some(kind) = self.index(name) {
            return Ok(kind);
        }
        Named::Resource.check(name).map_err(|wrong| wrong.to_string())?;
        if self.custom.len() == WIDTH - FIRST_CUSTOM {
            return Err(format!(
                "`{name}` is one resource kind too many: a cluster has at most {}",
                WIDTH - FIRST_CUSTOM
            ));
        }
        self.custom.push(name.to_owned());
        Ok(self.custom.len() - 1 + FIRST_CUSTOM)
    }

    /// Turns named amounts into a vector.
    ///
    /// # Errors
    /// The first name that is not known.
    pub fn resolve(&self, spec: &ResourceSpec) -> Result<Resources, String> {
        let mut resources = spec.basic;
        for (name, amount) in &spec.custom {
            let kind = self.index(name).ok_or_else(|| name.clone())?;
            resources.0[kind] = *amount;
        }
        Ok(resources)
    }

    /// `2 cpu, 512 MiB memory, 1 gpu`: every kind that is not zero.
    pub fn describe(&self, resources: &Resources) -> String {
        let mut parts = Vec::new();
        for (kind, &amount) in resources.0.iter().enumerate() {
            if amount == 0 {
                continue;
            }
            let name = self.name(kind).unwrap_or("unnamed");
            parts.push(match kind {
                CPU | GPU => format!("{} {name}", Thousandths(amount)),
                MEMORY => format!("{amount} MiB memory"),
                2..GPU => format!("{amount} MB/s {name}"),
                _ => format!("{amount} {name}"),
            });
        }
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    }
}

/// Whether a kind is counted in thousandths of its unit.
pub const fn is_in_thousandths(kind: usize) -> bool {
    matches!(kind, CPU | GPU)
}

/// Thousandths of a core or a GPU, shown as a decimal number: `0.5`, `2`.
pub struct Thousandths(pub u32);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, thousandths) = (self.0 / 1000, self.0 % 1000);
        match thousandths {
            0 => write!(f, "{whole}"),
            _ => write!(f, "{whole}.{}", format!("{thousandths:03}").trim_end_matches('0')),
        }
    }
}

/// Amounts as a job file or a node names them, before the cluster's kinds are known.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ResourceSpec {
    /// The built-in kinds.
    pub basic: Resources,
    /// The others, by name; whole devices.
    pub custom: Vec<(String, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_needs_every_kind() {
        let room = Resources::new(2_000, 1_024).with(GPU, 1);
        assert!(Resources::new(2_000, 1_024).fits_in(&room));
        assert!(!Resources::new(2_001, 0).fits_in(&room));
        assert!(!Resources::ZERO.with(WIDTH - 1, 1).fits_in(&room));
    }

    #[test]
    fn parts_of_different_gpus_do_not_make_one() {
        let gpus = |amount: u32| Resources::ZERO.with(GPU, amount);
        for (wanted, free, times) in
            [(400, 2_000, 4), (400, 900, 2), (1_000, 3_000, 3), (2_000, 3_000, 1), (500, 400, 0)]
        {
            assert_eq!(gpus(wanted).times_in(&gpus(free)), times, "{wanted} in {free}");
        }
    }

    #[test]
    fn kinds_are_named_once_and_limited() {
        let mut kinds = Kinds::default();
        let fpga = kinds.add("fpga").unwrap();
        assert_eq!((kinds.add("fpga"), kinds.index("fpga"), kinds.name(fpga)), (Ok(fpga), Some(fpga), Some("fpga")));
        assert_eq!(kinds.add("gpu"), Ok(GPU));
        assert!(kinds.add("Two Words").is_err());
        for number in 1..WIDTH - FIRST_CUSTOM {
            kinds.add(&format!("kind-{number}")).unwrap();
        }
        assert!(kinds.add("one-more").is_err());
        assert_eq!(kinds.describe(&Resources::ZERO.with(GPU, 250)), "0.25 gpu");
        assert_eq!(kinds.describe(&Resources::new(1_500, 64).with(fpga, 2)), "1.5 cpu, 64 MiB memory, 2 fpga");
    }

    #[test]
    fn dominant_share_is_the_largest_fraction() {
        let capacity = Totals([100; WIDTH]);
        let mut used = Totals::ZERO;
        used.add(&Resources::new(10, 25));
        assert_eq!(used.dominant_share(&capacity), 250_000);
    }
}
