//! How long a task of any size would wait at a node, as the node predicts it.

use super::resources::{CPU, MEMORY, WIDTH};
use super::{Duration, Resources};
use serde::{Deserialize, Serialize};

/// Sizes for which waits are reported, as parts of a node's capacity: finer for small tasks.
const SIZES: usize = 16;
const PARTS: [u32; SIZES] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64];
const WHOLE: u32 = 64;

/// The wait-time matrix of a node (Boutin et al. 2014: Apollo, section 3.2) at the time when it was made: waits by CPU and memory
/// and, for each other kind that tasks hold or wait for there, by that kind alone. A little over 512 bytes if something waits at
/// the node, almost nothing otherwise.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct WaitMatrix {
    /// By size in CPU, then in memory; empty if no task would wait.
    cells: Box<[Wait]>,
    /// The kind, and the waits by size in it.
    others: Box<[(u8, [Wait; SIZES])]>,
}

/// How old a matrix is when a wait is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Age {
    /// The part of each wait that has passed.
    pub since_made: Duration,
    /// Time since the node last confirmed it. A node whose matrix still holds confirms it more often than every `trusted_for`.
    pub since_confirmed: Duration,
    pub trusted_for: Duration,
}

impl Age {
    /// The age of a matrix that was made just now.
    pub const NEW: Age =
        Age { since_made: Duration::ZERO, since_confirmed: Duration::ZERO, trusted_for: Duration::MAX };
}

/// A node's report of how long tasks would wait there.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NodeWaits {
    /// For guaranteed tasks, for which opportunistic ones are preempted.
    pub matrix: WaitMatrix,
    /// How long the remaining opportunistic work there takes if it fills the node.
    pub opportunistic: Duration,
    /// Room in which opportunistic work would start at once, behind all that waits there.
    pub room: Resources,
}

/// Milliseconds in two bytes: twelve bits and a power of two. Accurate to one part in 2,048; at most 37 hours.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
struct Wait(u16);

impl Wait {
    const MANTISSA: u32 = 12;
    const LONGEST: Wait = Wait(u16::MAX);

    /// Rounded up.
    fn of(duration: Duration) -> Wait {
        let millis = duration.0.div_ceil(1_000);
        let bits = (u64::BITS - millis.leading_zeros()).saturating_sub(Wait::MANTISSA);
        let rounded = millis.div_ceil(1 << bits);
        // Rounding up may take one bit more.
        let (mantissa, bits) = if rounded >> Wait::MANTISSA == 0 { (rounded, bits) } else { (rounded >> 1, bits + 1) };
        if bits > 15 { Wait::LONGEST } else { Wait(((bits as u16) << Wait::MANTISSA) | mantissa as u16) }
    }

    fn duration(self) -> Duration {
        let (bits, mantissa) = (self.0 >> Wait::MANTISSA, u64::from(self.0) & ((1 << Wait::MANTISSA) - 1));
        Duration((mantissa << bits) * 1_000)
    }
}

/// The smallest size that is at least `wanted`. `None` if `wanted` is more than the capacity.
fn size_for(wanted: u32, capacity: u32) -> Option<usize> {
    let parts = u64::from(wanted) * u64::from(WHOLE);
    let is_enough = |part: &u32| u64::from(*part) * u64::from(capacity) >= parts;
    PARTS.iter().position(is_enough)
}

impl WaitMatrix {
    /// From the waits for amounts of CPU and memory, which grow with each of the two, and for amounts of one other kind.
    pub fn new(
        capacity: &Resources,
        mut by_cpu_and_memory: impl FnMut(u32, u32) -> Duration,
        others: impl Iterator<Item = usize>,
        mut by_other: impl FnMut(usize, u32) -> Duration,
    ) -> WaitMatrix {
        let amount = |kind: usize, size: usize| {
            (u64::from(capacity.0[kind]) * u64::from(PARTS[size])).div_ceil(u64::from(WHOLE)) as u32
        };
        let cells = (0..SIZES * SIZES).map(|cell| {
            let (cpu, memory) = (amount(CPU, cell / SIZES), amount(MEMORY, cell % SIZES));
            Wait::of(by_cpu_and_memory(cpu, memory))
        });
        let cells: Box<[Wait]> = cells.collect();
        let is_nothing = |waits: &[Wait]| waits.iter().all(|wait| *wait == Wait::default());
        let others =
            others.map(|kind| (kind as u8, std::array::from_fn(|size| Wait::of(by_other(kind, amount(kind, size))))));
        WaitMatrix {
            cells: if is_nothing(&cells) { Box::default() } else { cells },
            others: others.filter(|(_, waits)| !is_nothing(waits)).collect(),
        }
    }

    /// How long a task waits that requests `wanted`. An old report is trusted less: the task counts as one size larger for each
    /// `trusted_for` since the last confirmation (section 3.4), and as the largest size if `trusted_for` is zero. `None` for
    /// tasks that are larger than the node.
    pub fn wait(&self, capacity: &Resources, wanted: &Resources, age: &Age) -> Option<Duration> {
        let sizes = age.since_confirmed.0.checked_div(age.trusted_for.0);
        let larger = sizes.map_or(SIZES, |sizes| sizes.min(SIZES as u64) as usize);
        let size = |kind: usize| {
            let size = size_for(wanted.0[kind], capacity.0[kind])?;
            Some((size + larger).min(SIZES - 1))
        };
        let (cpu, memory) = (size(CPU)?, size(MEMORY)?);
        let mut wait = self.cells.get(cpu * SIZES + memory).copied().unwrap_or_default().duration();
        for kind in (0..WIDTH).filter(|&kind| kind != CPU && kind != MEMORY && wanted.0[kind] > 0) {
            let at = size(kind)?;
            wait = wait.max(self.of_kind(kind as u8).get(at).copied().unwrap_or_default().duration());
        }
        Some(Duration(wait.0.saturating_sub(age.since_made.0)))
    }

    /// Whether it is so close to `before`, made `earlier`, that it need not be reported: no wait differs by more than `tolerance`
    /// and a sixteenth.
    pub fn is_as_expected(&self, before: &WaitMatrix, earlier: Duration, tolerance: Duration) -> bool {
        let close = |now: Wait, then: Wait| {
            let (now, then) = (now.duration().0, then.duration().0.saturating_sub(earlier.0));
            now.abs_diff(then) <= tolerance.0 + now.max(then) / 16
        };
        let all_close = |now: &[Wait], then: &[Wait]| {
            let at = |waits: &[Wait], at: usize| waits.get(at).copied().unwrap_or_default();
            (0..now.len().max(then.len())).all(|cell| close(at(now, cell), at(then, cell)))
        };
        let mut kinds = self.others.iter().chain(&before.others).map(|(kind, _)| *kind);
        all_close(&self.cells, &before.cells) && kinds.all(|kind| all_close(self.of_kind(kind), before.of_kind(kind)))
    }

    fn of_kind(&self, kind: u8) -> &[Wait] {
        self.others.iter().find(|(other, _)| *other == kind).map_or(&[], |(_, waits)| waits)
    }

    /// Memory used, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<WaitMatrix>() + size_of_val(&*self.cells) + size_of_val(&*self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Chance;

    #[test]
    fn waits_are_stored_within_one_part_in_two_thousand_and_never_shorter() {
        let mut chance = Chance::new(1, "waits");
        let longest = Wait::LONGEST.duration();
        for bits in 0..37 {
            for _ in 0..200 {
                let wait = Duration(chance.below(1_u64 << bits).min(longest.0));
                let kept = Wait::of(wait).duration();
                assert!(kept >= wait && kept.0 - wait.0 <= 1_000 + wait.0 / 2_048, "{wait} is kept as {kept}");
            }
        }
        assert_eq!(Wait::of(Duration::MAX), Wait::LONGEST);
        assert_eq!(Wait::of(Duration::ZERO).duration(), Duration::ZERO);
    }

    fn seconds(matrix: &WaitMatrix, capacity: &Resources, wanted: Resources, age: u64) -> Option<u64> {
        let (age, trusted_for) = (Duration::from_secs(age), Duration::from_secs(10));
        let age = Age { since_made: age, since_confirmed: age, trusted_for };
        matrix.wait(capacity, &wanted, &age).map(|wait| wait.0 / 1_000_000)
    }

    #[test]
    fn larger_tasks_wait_longer_and_an_old_matrix_is_trusted_less() {
        let capacity = Resources::new(64_000, 640).with(6, 4);
        // A second for each thousandth of a core above 4,000 and for each MiB above 100; 50 s for a second GPU.
        let by_size = |cpu: u32, memory: u32| {
            Duration::from_secs(u64::from(cpu.saturating_sub(4_000) + memory.saturating_sub(100)))
        };
        let by_gpu = |_, gpus: u32| Duration::from_secs(if gpus > 1 { 50 } else { 0 });
        let matrix = WaitMatrix::new(&capacity, by_size, [6].into_iter(), by_gpu);
        let wait = |wanted, age| seconds(&matrix, &capacity, wanted, age);
        assert_eq!(wait(Resources::new(4_000, 100), 0), Some(0));
        assert_eq!(wait(Resources::new(4_001, 100), 0), Some(1_000), "as one of five cores");
        assert_eq!(wait(Resources::new(6_000, 120), 0), Some(2_020));
        assert_eq!(wait(Resources::new(6_000, 120), 5), Some(2_015));
        assert_eq!(wait(Resources::new(6_000, 120), 10), Some(4_050), "as one of the next size: eight cores, 160 MiB");
        assert_eq!(wait(Resources::new(4_000, 100).with(6, 2), 0), Some(50));
        assert_eq!(wait(Resources::new(0, 0).with(6, 1), 3), Some(0));
        let confirmed = Age { since_made: Duration::from_secs(10), ..Age::NEW };
        let known = matrix.wait(&capacity, &Resources::new(6_000, 120), &confirmed);
        assert_eq!(known.map(|wait| wait.0 / 1_000_000), Some(2_010), "a confirmed matrix is trusted");
        assert_eq!(wait(Resources::new(64_001, 0), 0), None);
        assert_eq!(wait(Resources::new(0, 0).with(7, 1), 0), None);
    }

    #[test]
    fn a_matrix_that_is_as_expected_is_not_reported() {
        let capacity = Resources::new(64_000, 640);
        let matrix = |seconds: u64| {
            let wait = |_, _| Duration::from_secs(seconds);
            WaitMatrix::new(&capacity, wait, std::iter::empty(), |_, _| Duration::ZERO)
        };
        let (second, tolerance) = (Duration::from_secs(1), Duration::from_millis(100));
        let is_as_expected = |now, before| matrix(now).is_as_expected(&matrix(before), second, tolerance);
        assert!(is_as_expected(9, 10) && is_as_expected(100, 106) && is_as_expected(0, 0) && is_as_expected(0, 1));
        assert!(!is_as_expected(10, 10) && !is_as_expected(3, 10) && !is_as_expected(0, 2) && !is_as_expected(1, 0));
        assert_eq!(matrix(0), WaitMatrix::default());
        assert!(matrix(1).bytes() < 600, "{}", matrix(1).bytes());
    }
}
