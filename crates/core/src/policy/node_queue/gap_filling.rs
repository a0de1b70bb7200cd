//! Guaranteed work in order of arrival, with later entries filling gaps; if no guaranteed entry waits, a random opportunistic
//! task (Boutin et al. 2014: Apollo, sections 3.2 and 3.5).
//!
//! A later entry starts before earlier ones only if, as far as run times are known, this delays none of their starts.
//! A running task that exceeds its expected run time, or has none, may end at any time. A waiting task without an expected run
//! time may run without end. So an entry fills a gap only if it is known to end in time, or if the earlier entries fit beside it.

use super::projection::{Use, Workload};
use crate::policy::QueuePolicy;
use crate::vocabulary::{Chance, Duration, Instant, QueueView, QueuedEntry, Resources, RunningEntry};

/// Assumed remaining run time of a task that may end at any time.
const ANY_MOMENT: Duration = Duration::from_micros(1);

pub struct GapFilling {
    chance: Chance,
    running: Vec<Use>,
    queued: Vec<Use>,
}

impl GapFilling {
    pub fn new(chance: Chance) -> GapFilling {
        GapFilling { chance, running: Vec::new(), queued: Vec::new() }
    }

    /// A random entry that fits, with probability in proportion to its weight. The order of arrival does not count, because
    /// later entries would get none of the leftover then.
    fn draw(&mut self, entries: &[QueuedEntry], room: &Resources) -> Option<usize> {
        let fitting = || entries.iter().enumerate().filter(|(_, entry)| entry.shape.resources.fits_in(room));
        let weight = |entry: &QueuedEntry| u64::from(entry.weight.max(1));
        let all: u64 = fitting().map(|(_, entry)| weight(entry)).sum();
        let mut drawn = if all > 0 { self.chance.below(all) } else { return None };
        let chosen = fitting().find(|(_, entry)| match drawn.checked_sub(weight(entry)) {
            Some(left) => {
                drawn = left;
                false
            }
            None => true,
        });
        chosen.map(|(at, _)| at)
    }

    /// The first guaranteed entry that starts now if each starts as early as possible.
    fn first_to_start(
        &mut self,
        now: Instant,
        entries: &[QueuedEntry],
        running: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
    ) -> Option<usize> {
        let mut guaranteed = entries.iter().enumerate().filter(|(_, entry)| !entry.is_opportunistic());
        let (first, entry) = guaranteed.next()?;
        let fits = |entry: &QueuedEntry| entry.shape.resources.fits_in(free);
        if fits(entry) {
            return Some(first);
        }
        // In most cases the node is full, and no search for gaps is needed.
        if !guaranteed.any(|(_, entry)| fits(entry)) {
            return None;
        }
        self.running.clear();
        self.running.extend(running.map(|one| Use { resources: one.resources, lasting: left_of(&one, now) }));
        self.queued.clear();
        let guaranteed = || entries.iter().enumerate().filter(|(_, entry)| !entry.is_opportunistic());
        self.queued.extend(guaranteed().map(|(_, entry)| Use {
            resources: entry.shape.resources,
            lasting: entry.expected.unwrap_or(Duration::MAX),
        }));
        let capacity = self.running.iter().fold(*free, |sum, one| sum.saturating_add(&one.resources));
        // For GPUs, `free` is the amount for one task, which may be less than all that is free. Waiting tasks fit into the node.
        let capacity = self.queued.iter().fold(capacity, |most, one| most.larger_of(&one.resources));
        let starts = Workload { capacity: &capacity, running: &self.running, queued: &self.queued }.starts();
        let mut starting = guaranteed().zip(starts).filter(|(_, start)| *start == Duration::ZERO);
        starting.find(|((_, entry), _)| fits(entry)).map(|((at, _), _)| at)
    }
}

fn left_of(one: &RunningEntry, now: Instant) -> Duration {
    let ends_at = one.expected.map_or(now, |expected| one.started_at + expected);
    ends_at.since(now).max(ANY_MOMENT)
}

impl QueuePolicy for GapFilling {
    fn pick(
        &mut self,
        now: Instant,
        queue: &QueueView<'_>,
        running: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
    ) -> Option<usize> {
        if queue.entries.iter().any(|entry| !entry.is_opportunistic()) {
            return self.first_to_start(now, queue.entries, running, free);
        }
        self.draw(queue.entries, &free.smaller_of(&queue.opportunistic_room))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{AttemptId, Chance, EntryId, ExecutionType, JobId, TaskShape};
    use std::sync::Arc;

    fn entry(number: u32, resources: Resources, expected: Option<Duration>) -> QueuedEntry {
        let shape = Arc::new(TaskShape { resources, execution: ExecutionType::Guaranteed });
        let id = EntryId::Attempt(AttemptId { job: JobId(1), number, ..AttemptId::default() });
        QueuedEntry { id, shape, booked: false, queued_at: Instant::ZERO, expected, weight: 1 }
    }

    fn running(resources: Resources, expected: Option<Duration>) -> RunningEntry {
        let (attempt, execution) = (AttemptId::default(), ExecutionType::Guaranteed);
        RunningEntry { attempt, resources, execution, started_at: Instant::ZERO, expected }
    }

    fn pick(entries: &[QueuedEntry], runs: &[RunningEntry], free: u32, now: u64) -> Option<usize> {
        let queue = QueueView { entries, opportunistic_room: Resources::MAX };
        let now = Instant::ZERO + Duration::from_secs(now);
        GapFilling::new(Chance::new(1, "draw")).pick(now, &queue, &mut runs.iter().cloned(), &Resources::new(free, 0))
    }

    fn cpu(thousandths: u32) -> Resources {
        Resources::new(thousandths, 0)
    }

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn a_gap_is_filled_by_what_is_known_to_leave_it_in_time() {
        let runs = [running(cpu(3_000), seconds(10))];
        let waits = |expected| [entry(0, cpu(4_000), seconds(5)), entry(1, cpu(1_000), expected)];
        assert_eq!(pick(&waits(seconds(10)), &runs, 1_000, 0), Some(1));
        assert_eq!(pick(&waits(seconds(10)), &runs, 1_000, 1), None, "a second too long");
        assert_eq!(pick(&waits(None), &runs, 1_000, 0), None, "nobody knows how long");
        assert_eq!(
            pick(&waits(seconds(1)), &[running(cpu(3_000), None)], 1_000, 0),
            None,
            "that may end at any moment"
        );
        assert_eq!(pick(&waits(seconds(1)), &runs, 1_000, 11), None, "so may what should have ended");
        let beside = [entry(0, cpu(3_500), seconds(5)), entry(1, cpu(500), None)];
        assert_eq!(pick(&beside, &runs, 1_000, 0), Some(1), "there is room for both");
    }

    #[test]
    fn opportunistic_work_starts_where_nothing_guaranteed_waits() {
        let opportunistic = |cpu_millis| {
            let shape = TaskShape { resources: cpu(cpu_millis), execution: ExecutionType::Opportunistic };
            QueuedEntry { shape: Arc::new(shape), ..entry(1, cpu(0), seconds(1)) }
        };
        assert_eq!(pick(&[opportunistic(500), entry(0, cpu(2_000), seconds(1))], &[], 1_000, 0), None);
        assert_eq!(pick(&[opportunistic(2_000), opportunistic(500)], &[], 1_000, 0), Some(1));
    }

    #[test]
    fn opportunistic_work_is_drawn_by_weight_whenever_it_came() {
        let one = |number, cpu_millis, weight| {
            let shape = TaskShape { resources: cpu(cpu_millis), execution: ExecutionType::Opportunistic };
            QueuedEntry { shape: Arc::new(shape), weight, ..entry(number, cpu(0), None) }
        };
        let entries = [one(0, 500, 1), one(1, 500, 3), one(2, 2_000, 9), one(3, 500, 0)];
        let queue = QueueView { entries: &entries, opportunistic_room: Resources::MAX };
        let mut policy = GapFilling::new(Chance::new(1, "draw"));
        let mut drawn = [0_u32; 4];
        for _ in 0..5_000 {
            let picked = policy.pick(Instant::ZERO, &queue, &mut std::iter::empty(), &cpu(1_000));
            drawn[picked.expect("three fit")] += 1;
        }
        let expected = [1_000_u32, 3_000, 0, 1_000];
        assert!(drawn.iter().zip(expected).all(|(drawn, expected)| drawn.abs_diff(expected) < 150), "{drawn:?}");
    }

    /// With exact run times, whatever arrives later.
    #[test]
    fn no_entry_starts_later_than_was_projected_when_it_came() {
        let mut gaps = 0;
        for seed in 0..300 {
            let mut chance = Chance::new(seed, "gap filling");
            let capacity = Resources::new(64, 64);
            let mut policy = GapFilling::new(Chance::new(seed, "draw"));
            let (mut queue, mut runs): (Vec<(QueuedEntry, Instant)>, Vec<RunningEntry>) = (Vec::new(), Vec::new());
            let (mut now, mut next_arrival, mut number) = (Instant::ZERO, Instant::ZERO, 0);
            while number < 40 || !queue.is_empty() {
                runs.retain(|run| run.started_at + run.expected.expect("it is known") > now);
                let held = |runs: &[RunningEntry]| {
                    runs.iter().fold(Resources::ZERO, |sum, run| sum.saturating_add(&run.resources))
                };
                if now == next_arrival && number < 40 {
                    let resources = Resources::new(1 + chance.below(64_u32), 1 + chance.below(64_u32));
                    let new = entry(number, resources, Some(Duration(1 + chance.below(50_u64))));
                    number += 1;
                    let left: Vec<Use> =
                        runs.iter().map(|run| Use { resources: run.resources, lasting: left_of(run, now) }).collect();
                    let uses = |entry: &QueuedEntry| Use {
                        resources: entry.shape.resources,
                        lasting: entry.expected.expect("it is known"),
                    };
                    let queued: Vec<Use> = queue.iter().map(|(entry, _)| entry).chain([&new]).map(uses).collect();
                    let starts = Workload { capacity: &capacity, running: &left, queued: &queued }.starts();
                    queue.push((new, now + starts[queued.len() - 1]));
                    next_arrival = now + Duration(1 + chance.below(20_u64));
                }
                loop {
                    let entries: Vec<QueuedEntry> = queue.iter().map(|(entry, _)| entry.clone()).collect();
                    let view = QueueView { entries: &entries, opportunistic_room: Resources::ZERO };
                    let free = capacity.saturating_sub(&held(&runs));
                    let Some(at) = policy.pick(now, &view, &mut runs.iter().cloned(), &free) else { break };
                    gaps += u32::from(at > 0);
                    let (entry, projected) = queue.remove(at);
                    assert!(now <= projected, "seed {seed}: {entry:?} starts at {now:?}, and was to at {projected:?}");
                    runs.push(RunningEntry { started_at: now, ..running(entry.shape.resources, entry.expected) });
                    assert!(held(&runs).fits_in(&capacity));
                }
                let ends = runs.iter().map(|run| run.started_at + run.expected.expect("it is known"));
                let arrival = (number < 40).then_some(next_arrival);
                now = ends.chain(arrival).filter(|at| *at > now).min().expect("something happens");
            }
        }
        assert!(gaps > 1_000, "only {gaps} gaps were filled");
    }
}
