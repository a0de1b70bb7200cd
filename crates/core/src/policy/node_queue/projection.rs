//! Projects a node's queue from expected run times (Boutin et al. 2014: Apollo, section 3.2): when each entry
//! starts, and how long a task of any size would wait behind them.
//!
//! Each entry in turn gets the earliest room for its expected run time. So a later entry may fill a gap, and no entry delays
//! the start of an earlier one.

use crate::policy::timeline::{Amounts, NONE, Timeline};
use crate::vocabulary::resources::{CPU, MEMORY, WIDTH};
use crate::vocabulary::{Duration, Resources, WaitMatrix};

/// Maximum number of entries that are placed one by one. Further entries count as work that is done at full utilization.
pub const MOST_PLACED: usize = 1_000;

/// Longer run times are reduced to this, in microseconds: 12 days.
const LONGEST: u64 = 1 << 40;
const END: u64 = 1 << 60;

/// Resources that are used for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    pub resources: Resources,
    pub lasting: Duration,
}

/// The running tasks and the queue of a node.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    pub capacity: &'a Resources,
    /// With the remaining run time of each. Together they may use more than the capacity.
    pub running: &'a [Use],
    pub queued: &'a [Use],
}

impl Workload<'_> {
    /// When each queued entry starts; `Duration::MAX` for one that is larger than the node and for those behind [`MOST_PLACED`].
    pub fn starts(&self) -> Vec<Duration> {
        match self.kinds().len() {
            0..=2 => Projection::<2>::of(self).starts,
            3..=4 => Projection::<4>::of(self).starts,
            5..=8 => Projection::<8>::of(self).starts,
            _ => Projection::<WIDTH>::of(self).starts,
        }
    }

    /// How long a task of any size and about this run time would wait if it arrived now.
    pub fn waits(&self, lasting: Duration) -> WaitMatrix {
        self.waits_and_starts(lasting).0
    }

    /// [`Workload::waits`] and [`Workload::starts`] in one pass.
    pub fn waits_and_starts(&self, lasting: Duration) -> (WaitMatrix, Vec<Duration>) {
        match self.kinds().len() {
            0..=2 => Projection::<2>::of(self).both(self, lasting),
            3..=4 => Projection::<4>::of(self).both(self, lasting),
            5..=8 => Projection::<8>::of(self).both(self, lasting),
            _ => Projection::<WIDTH>::of(self).both(self, lasting),
        }
    }

    /// The kinds of resources to consider: CPU, memory, and all that running or queued entries use.
    fn kinds(&self) -> Vec<usize> {
        let mut wanted = [false; WIDTH];
        (wanted[CPU], wanted[MEMORY]) = (true, true);
        for one in self.running.iter().chain(self.queued) {
            for (is_wanted, &amount) in wanted.iter_mut().zip(&one.resources.0) {
                *is_wanted |= amount > 0;
            }
        }
        (0..WIDTH).filter(|&kind| wanted[kind]).collect()
    }
}

struct Projection<const K: usize> {
    /// In ascending order, so CPU and memory are first.
    kinds: Vec<usize>,
    room: Timeline<K>,
    starts: Vec<Duration>,
    /// How long the entries that were not placed take at full utilization.
    behind: Duration,
}

impl<const K: usize> Projection<K> {
    fn of(workload: &Workload<'_>) -> Projection<K> {
        let kinds = workload.kinds();
        let amounts = |resources: &Resources| -> Amounts<K> {
            Amounts(std::array::from_fn(|place| kinds.get(place).map_or(0, |&kind| i64::from(resources.0[kind]))))
        };
        let capacity = amounts(workload.capacity);
        let mut room =
            with_running(capacity, workload.running.iter().map(|one| (amounts(&one.resources), one.lasting)));

        let (placed, rest) = workload.queued.split_at(workload.queued.len().min(MOST_PLACED));
        let mut least = Amounts([i64::MAX; K]);
        for one in placed {
            let wanted = amounts(&one.resources);
            least = least.least(&wanted);
        }
        let mut starts = Vec::with_capacity(workload.queued.len());
        // Before this segment, no entry has room.
        let mut first = 0;
        // The previous entry and its segment: an equal entry has no room before that.
        let mut before: Option<(&Use, u32)> = None;
        for one in placed {
            let wanted = amounts(&one.resources);
            if !capacity.has(&wanted) {
                starts.push(Duration::MAX);
                continue;
            }
            while !room.points[first as usize].free.has(&least) {
                first = room.points[first as usize].next;
            }
            let from = match before {
                Some((same, segment)) if *same == *one && room.at(segment) > room.at(first) => segment,
                _ => first,
            };
            let slot = room.earliest(from, room.at(from), limited(one.lasting), &wanted);
            starts.push(Duration(slot.start));
            let start = room.book(&slot, &wanted);
            before = Some((one, start));
        }
        starts.resize(workload.queued.len(), Duration::MAX);
        Projection { kinds, room, starts, behind: at_full_use(workload.capacity, rest) }
    }

    fn waits(&self, workload: &Workload<'_>, lasting: Duration) -> WaitMatrix {
        let free = self.free_for(limited(lasting));
        // Larger tasks wait longer, so a row of the matrix takes one pass.
        let (mut before, mut at) = (0, 0);
        let by_cpu_and_memory = |cpu: u32, memory: u32| {
            if memory < std::mem::replace(&mut before, memory) {
                at = 0;
            }
            let has = |(_, free): &(u64, Amounts<K>)| {
                free.0[0].max(0) >= i64::from(cpu) && free.0[1].max(0) >= i64::from(memory)
            };
            while !has(&free[at]) {
                at += 1;
            }
            Duration(free[at].0) + self.behind
        };
        let by_other = |kind: usize, amount: u32| {
            let place = self.kinds.iter().position(|of| *of == kind).expect("one of those listed");
            let found = free.iter().find(|(_, free)| free.0[place] >= i64::from(amount));
            Duration(found.expect("all of it is free in the end").0) + self.behind
        };
        WaitMatrix::new(workload.capacity, by_cpu_and_memory, self.kinds[2..].iter().copied(), by_other)
    }

    fn both(self, workload: &Workload<'_>, lasting: Duration) -> (WaitMatrix, Vec<Duration>) {
        (self.waits(workload, lasting), self.starts)
    }

    /// For each time at which the free resources change: what is free for the given duration from then on.
    fn free_for(&self, lasting: u64) -> Vec<(u64, Amounts<K>)> {
        let mut free: Vec<(u64, Amounts<K>)> = Vec::with_capacity(self.room.points.len());
        let mut here = 0;
        while here != NONE {
            let point = &self.room.points[here as usize];
            free.push((point.at, point.free));
            here = point.next;
        }
        // The window [at, last] has two parts: before `middle`, of which only the minimum is kept, and from `middle` on, of which
        // the running minimum up to each time is kept.
        let mut least = free.clone();
        let (mut middle, mut last) = (free.len() - 1, free.len() - 1);
        let mut left = free[last].1;
        let mut up_to = free.clone();
        for at in (0..free.len()).rev() {
            left = left.least(&free[at].1);
            while free[last].0 >= free[at].0 + lasting {
                last -= 1;
            }
            if last < middle {
                middle = at;
                left = free[at].1;
                up_to[at] = free[at];
                for next in at + 1..=last {
                    up_to[next].1 = up_to[next - 1].1.least(&free[next].1);
                }
            }
            least[at].1 = left.least(&up_to[last].1);
        }
        least
    }
}

fn limited(lasting: Duration) -> u64 {
    lasting.0.clamp(1, LONGEST)
}

/// The room beside the running tasks, as they end.
fn with_running<const K: usize>(
    capacity: Amounts<K>,
    running: impl Iterator<Item = (Amounts<K>, Duration)>,
) -> Timeline<K> {
    let mut ends: Vec<(u64, Amounts<K>)> = running.map(|(held, left)| (limited(left), held)).collect();
    ends.sort_unstable_by_key(|(end, _)| *end);
    let mut room = Timeline::empty(capacity, END);
    for (end, held) in ends.iter().rev() {
        let next = room.points[0].next;
        let point = if room.at(next) == *end { next } else { room.split(0, *end) };
        room.change(0, point, held, -1);
    }
    room
}

/// How long the work takes at full utilization of the node.
pub fn at_full_use(capacity: &Resources, work: &[Use]) -> Duration {
    let placeable = || work.iter().filter(|one| one.resources.fits_in(capacity));
    let kinds = (0..WIDTH).filter(|&kind| capacity.0[kind] > 0);
    let times = kinds.map(|kind| {
        let work =
            placeable().map(|one| u128::from(one.resources.0[kind]) * u128::from(limited(one.lasting))).sum::<u128>();
        u64::try_from(work / u128::from(capacity.0[kind])).unwrap_or(u64::MAX)
    });
    Duration(times.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Age, Chance};

    const FOREVER: Duration = Duration(LONGEST);

    fn use_of(cpu: u32, memory: u32, seconds: u64) -> Use {
        Use { resources: Resources::new(cpu, memory), lasting: Duration::from_secs(seconds) }
    }

    fn seconds(starts: &[Duration]) -> Vec<u64> {
        starts.iter().map(|start| start.0 / 1_000_000).collect()
    }

    #[test]
    fn a_later_entry_fills_a_gap_and_delays_no_other_entry() {
        let capacity = Resources::new(4, 4);
        let running = [use_of(3, 1, 10)];
        let queued = [use_of(4, 1, 5), use_of(1, 1, 10), use_of(1, 1, 1), use_of(1, 1, 10), use_of(5, 1, 1)];
        let workload = Workload { capacity: &capacity, running: &running, queued: &queued };
        let starts = workload.starts();
        assert_eq!(seconds(&starts[..4]), [10, 0, 15, 15], "the second fills the gap, and then there is none");
        assert_eq!(starts[4], Duration::MAX, "larger than the node");
        let wait = |cpu, lasting| {
            let wait = workload.waits(lasting).wait(&capacity, &Resources::new(cpu, 1), &Age::NEW);
            wait.map(|wait| wait.0 / 1_000_000)
        };
        assert_eq!((wait(1, FOREVER), wait(3, FOREVER), wait(4, FOREVER)), (Some(15), Some(16), Some(25)));
        assert_eq!(wait(5, FOREVER), None);
    }

    /// The test oracle: a projection second by second.
    struct Slow {
        free: Vec<[i64; 3]>,
    }

    impl Slow {
        const SECONDS: usize = 400;

        fn of(workload: &Workload<'_>) -> (Slow, Vec<Option<usize>>) {
            let amounts = |resources: &Resources| [0, 1, 6].map(|kind| i64::from(resources.0[kind]));
            let mut slow = Slow { free: vec![amounts(workload.capacity); Slow::SECONDS] };
            for one in workload.running {
                slow.book(0, (one.lasting.0 / 1_000_000) as usize, &amounts(&one.resources));
            }
            let starts = workload.queued.iter().map(|one| {
                let (wanted, lasting) = (amounts(&one.resources), (one.lasting.0 / 1_000_000) as usize);
                let start = slow.earliest(&wanted, lasting)?;
                slow.book(start, lasting, &wanted);
                Some(start)
            });
            let starts = starts.collect();
            (slow, starts)
        }

        fn book(&mut self, from: usize, lasting: usize, wanted: &[i64; 3]) {
            for free in &mut self.free[from..(from + lasting).min(Slow::SECONDS)] {
                (0..3).for_each(|kind| free[kind] -= wanted[kind]);
            }
        }

        fn earliest(&self, wanted: &[i64; 3], lasting: usize) -> Option<usize> {
            let fits = |free: &[i64; 3]| (0..3).all(|kind| wanted[kind] <= free[kind].max(0));
            (0..Slow::SECONDS - lasting).find(|&start| self.free[start..start + lasting].iter().all(fits))
        }
    }

    #[test]
    fn it_is_what_comes_second_by_second_if_each_entry_starts_as_early_as_it_can() {
        for seed in 0..400 {
            let mut chance = Chance::new(seed, "projection");
            let capacity =
                Resources::new(1 + chance.below(64_u32), 1 + chance.below(64_u32)).with(6, chance.below(5_u32));
            let mut draw = |count: u32, most: u32| {
                let one = |_| {
                    let resources = Resources::new(chance.below(most), chance.below(most));
                    let gpus = if chance.below(4_u32) == 0 { chance.below(3_u32) } else { 0 };
                    Use { resources: resources.with(6, gpus), lasting: Duration::from_secs(1 + chance.below(20_u64)) }
                };
                (0..count).map(one).collect::<Vec<Use>>()
            };
            // Together they may use more than the capacity.
            let (running, queued) = (draw(seed as u32 % 7, 30), draw(seed as u32 % 13, 70));
            let workload = Workload { capacity: &capacity, running: &running, queued: &queued };
            let (slow, expected) = Slow::of(&workload);
            let starts =
                workload.starts().into_iter().map(|start| (start < FOREVER).then_some(start.0 as usize / 1_000_000));
            assert_eq!(starts.collect::<Vec<_>>(), expected, "seed {seed}");

            let lasting = 1 + chance.below(40_u32) as usize;
            let matrix = workload.waits(Duration::from_secs(lasting as u64));
            for _ in 0..50 {
                let wanted = Resources::new(chance.below(70_u32), chance.below(70_u32));
                let wait = matrix.wait(&capacity, &wanted, &Age::NEW);
                // The matrix reports the wait of the next larger size in its grid, which is never shorter than the real one.
                let size = |kind: usize| {
                    let of = u64::from(capacity.0[kind]);
                    let parts = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64];
                    let part = parts.into_iter().find(|part| part * of >= u64::from(wanted.0[kind]) * 64)?;
                    Some((part * of).div_ceil(64) as i64)
                };
                let reported = size(0).zip(size(1)).map(|(cpu, memory)| slow.earliest(&[cpu, memory, 0], lasting));
                let reported = reported.map(|start| start.expect("it fits in the end"));
                assert_eq!(wait.map(|wait| wait.0 as usize / 1_000_000), reported, "seed {seed}, {wanted:?}");
            }
        }
    }

    #[test]
    fn what_is_behind_those_that_are_placed_counts_as_work() {
        let capacity = Resources::new(10, 10);
        let queued = vec![use_of(10, 5, 1); MOST_PLACED + 100];
        let workload = Workload { capacity: &capacity, running: &[], queued: &queued };
        let starts = workload.starts();
        assert_eq!(starts[MOST_PLACED - 1], Duration::from_secs(MOST_PLACED as u64 - 1));
        assert_eq!(starts[MOST_PLACED], Duration::MAX);
        let wait = workload.waits(FOREVER).wait(&capacity, &Resources::new(1, 1), &Age::NEW);
        let wait = wait.expect("it fits").0 / 1_000_000;
        assert!((1_100..1_101).contains(&wait), "{wait}");
    }
}
