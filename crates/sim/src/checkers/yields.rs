//! Opportunistic work yields its CPU at once if guaranteed work lacks only CPU to start, and gets it back as soon as it
//! is free.

use super::{Breach, Checker, HAND_OVER};
use crate::faults::Happening;
use crate::node::STOP_GRACE;
use crate::simulation::Simulation;
use amalgam_core::node::NodeAgent;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{AttemptId, Duration, EntryId, ExecutionType, Instant, Resources};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Yields {
    /// The longest time for which attempts yield; `None` if they do not yield under the preset.
    longest: Option<Duration>,
    /// Running processes by node, in the order of their start.
    running: BTreeMap<usize, Vec<Process>>,
    /// Attempts that were promoted, as their job managers report.
    promoted: BTreeSet<AttemptId>,
    /// By node: the attempt that should have its CPU, and since when.
    kept_off: BTreeMap<usize, (AttemptId, Instant)>,
    looks: u64,
}

struct Process {
    attempt: AttemptId,
    resources: Resources,
    is_guaranteed: bool,
    yields_since: Option<Instant>,
}

/// The attempt that should get CPU next, its state, and the time within which it has to get it. A yielding attempt may
/// have been asked to end and not need its CPU, so the time includes the stop.
type Due = (AttemptId, &'static str, Duration);

const UNLESS_IT_ENDS: Duration = Duration(STOP_GRACE.0 + HAND_OVER.0);

impl Yields {
    pub fn new(longest: Option<Duration>) -> Yields {
        Yields { longest, ..Yields::default() }
    }

    fn take_in(&mut self, now: Instant, happening: &Happening) {
        match happening {
            Happening::TaskStarted { node, attempt, resources, execution, .. } => {
                let is_guaranteed = *execution != ExecutionType::Opportunistic || self.promoted.contains(attempt);
                let (attempt, resources) = (*attempt, *resources);
                let process = Process { attempt, resources, is_guaranteed, yields_since: None };
                self.running.entry(*node).or_default().push(process);
            }
            Happening::Ended { node, attempt, .. } => {
                self.running.entry(*node).or_default().retain(|process| process.attempt != *attempt);
            }
            Happening::Yielded { attempt, .. } => {
                self.change(*attempt, |process| process.yields_since = Some(now));
            }
            Happening::Resumed { attempt, .. } => self.change(*attempt, |process| process.yields_since = None),
            _ => {}
        }
        if let Some(Change::Promoted { attempt, .. }) = happening.change() {
            self.promoted.insert(*attempt);
            self.change(*attempt, |process| process.is_guaranteed = true);
        }
    }

    fn change(&mut self, attempt: AttemptId, how: impl Fn(&mut Process)) {
        let all = self.running.values_mut().flatten();
        all.filter(|process| process.attempt == attempt).for_each(how);
    }

    /// The attempt of the node that has to get CPU next, if there is enough for it: an attempt that was promoted while
    /// it yielded, then the first guaranteed attempt that waits, then yielding attempts in the order of their start.
    fn due(
        &self,
        node: usize,
        capacity: &Resources,
        waiting: Option<(AttemptId, Resources)>,
        is_ending: impl Fn(AttemptId) -> bool,
    ) -> Option<Due> {
        let running = self.running.get(&node).map_or(&[][..], Vec::as_slice);
        let held = |process: &Process| match process.yields_since {
            Some(_) => process.resources.with(CPU, 0),
            None => process.resources,
        };
        let left = |all: &dyn Fn(&Process) -> Resources| {
            running.iter().fold(*capacity, |left, process| left.saturating_sub(&all(process)))
        };
        let free = left(&held);
        // A guaranteed attempt that waits for its CPU is counted as holding it, and an attempt that was asked to end
        // needs its own CPU to end.
        let if_all_yielded = left(&|process| match process.is_guaranteed || is_ending(process.attempt) {
            true => process.resources,
            false => process.resources.with(CPU, 0),
        });
        let of_guaranteed = left(&|process| if process.is_guaranteed { held(process) } else { Resources::ZERO });
        let mut yielding = running.iter().filter(|process| process.yields_since.is_some());
        let cpu = |process: &Process| process.resources.cpu_millis();
        if let Some(promoted) = yielding.clone().find(|process| process.is_guaranteed) {
            let is_due = cpu(promoted) <= of_guaranteed.cpu_millis();
            return is_due.then_some((promoted.attempt, "is guaranteed and yields", UNLESS_IT_ENDS));
        }
        if let Some((attempt, wanted)) = waiting
            && wanted.fits_in(&if_all_yielded)
        {
            return Some((attempt, "is guaranteed and waits", HAND_OVER));
        }
        let first = yielding.next()?;
        (cpu(first) <= free.cpu_millis()).then_some((first.attempt, "yields", UNLESS_IT_ENDS))
    }

    fn check_due(&mut self, now: Instant, node: usize, due: Option<Due>) -> Result<(), Breach> {
        let Some((attempt, what, grace)) = due else {
            self.kept_off.remove(&node);
            return Ok(());
        };
        let kept_off = self.kept_off.entry(node).or_insert((attempt, now));
        if kept_off.0 != attempt {
            *kept_off = (attempt, now);
        }
        if now.since(kept_off.1) <= grace {
            return Ok(());
        }
        let what = format!("{attempt} {what} on n{node}, although enough CPU for it is not used by guaranteed work");
        Err(Breach::of_job(attempt.job, what))
    }

    fn check_overdue(&self, now: Instant, node: usize, longest: Duration) -> Result<(), Breach> {
        let overdue = self.running.get(&node).into_iter().flatten().find(|process| {
            let yields_for = process.yields_since.map_or(Duration::ZERO, |since| now.since(since));
            yields_for > longest + UNLESS_IT_ENDS
        });
        let Some(Process { attempt, .. }) = overdue else { return Ok(()) };
        Err(Breach::of_job(attempt.job, format!("{attempt} has yielded on n{node} for more than {longest}")))
    }
}

/// The first guaranteed attempt that waits for room at the node.
fn first_waiting(agent: &NodeAgent) -> Option<(AttemptId, Resources)> {
    let mut waiting = agent.queued().iter().filter(|entry| entry.is_guaranteed() && !agent.awaits_files(entry.id));
    let entry = waiting.next()?;
    match entry.id {
        EntryId::Attempt(attempt) => Some((attempt, entry.shape.resources)),
        EntryId::Probe(_) => None,
    }
}

impl Checker for Yields {
    fn rule(&self) -> &'static str {
        "opportunistic work yields its CPU to guaranteed work, for a limited time, and gets it back when it is free"
    }

    /// Checks of nodes at which an attempt yields or guaranteed work waits.
    fn subjects(&self) -> u64 {
        self.looks
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        let Some(longest) = self.longest else { return Ok(()) };
        happened.iter().for_each(|happening| self.take_in(world.now(), happening));
        for node in world.nodes() {
            // An agent that is down, busy or not connected to its master does not have to act at once.
            let agent = world.agent(node).filter(|agent| agent.is_welcomed() && world.is_idle(node));
            let Some(agent) = agent.filter(|_| !world.hangs(node)) else {
                self.kept_off.remove(&node);
                continue;
            };
            let waiting = first_waiting(agent);
            let yields = |process: &Process| process.yields_since.is_some();
            if waiting.is_none() && !self.running.get(&node).is_some_and(|running| running.iter().any(yields)) {
                self.kept_off.remove(&node);
                continue;
            }
            self.looks += 1;
            let due = self.due(node, &world.capacity(node), waiting, |attempt| agent.is_ending(attempt));
            // The promotion may not have reached the node yet.
            let due = due.filter(|(attempt, ..)| !self.promoted.contains(attempt) || world.is_healed());
            self.check_due(world.now(), node, due)?;
            if world.is_healed() {
                self.check_overdue(world.now(), node, longest)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::attempt;

    const CAPACITY: Resources = Resources::new(2_000, 4);

    fn running(process: &[(u32, u32, bool, bool)]) -> Yields {
        let process = process.iter().map(|&(number, cpu_millis, is_guaranteed, yields)| Process {
            attempt: attempt(number),
            resources: Resources::new(cpu_millis, 1),
            is_guaranteed,
            yields_since: yields.then_some(Instant(0)),
        });
        let mut checker = Yields::new(Some(Duration::from_secs(300)));
        checker.running.insert(0, process.collect());
        checker
    }

    fn due(checker: &Yields, waiting: Option<(u32, Resources)>) -> Option<AttemptId> {
        let waiting = waiting.map(|(number, resources)| (attempt(number), resources));
        checker.due(0, &CAPACITY, waiting, |ending| ending == attempt(8)).map(|(attempt, ..)| attempt)
    }

    #[test]
    fn guaranteed_work_gets_cpu_that_opportunistic_work_holds_and_no_other() {
        let core = Some((9, Resources::new(1_000, 1)));
        assert_eq!(due(&running(&[(1, 2_000, false, false)]), core), Some(attempt(9)));
        assert_eq!(due(&running(&[(1, 2_000, true, false)]), core), None, "the CPU is held by guaranteed work");
        assert_eq!(due(&running(&[(8, 2_000, false, false)]), core), None, "the attempt with the CPU is ending");
        let memory = Some((9, Resources::new(1_000, 4)));
        assert_eq!(due(&running(&[(1, 2_000, false, false)]), memory), None, "it lacks memory, too");
        let promoted = running(&[(1, 2_000, false, false), (2, 2_000, true, true)]);
        assert_eq!(due(&promoted, core), Some(attempt(2)), "the promoted attempt is first");
        let full = running(&[(1, 2_000, true, false), (2, 2_000, true, true)]);
        assert_eq!(due(&full, core), None);
    }

    #[test]
    fn the_first_yielding_attempt_gets_the_free_cpu() {
        assert_eq!(due(&running(&[(1, 1_500, false, true), (2, 500, false, true)]), None), Some(attempt(1)));
        let busy = running(&[(3, 1_000, true, false), (1, 1_500, false, true), (2, 500, false, true)]);
        assert_eq!(due(&busy, None), None, "there is too little CPU for the first one");
    }

    #[test]
    fn an_attempt_that_does_not_get_its_cpu_in_time_is_noticed() {
        let at = |millis: u64| Instant(millis * 1_000);
        let mut checker = Yields::default();
        let due = |number| Some((attempt(number), "waits", HAND_OVER));
        assert_eq!(checker.check_due(at(0), 0, due(1)), Ok(()));
        assert_eq!(checker.check_due(at(900), 0, due(2)), Ok(()), "another attempt is next");
        assert_eq!(checker.check_due(at(1_900), 0, due(2)), Ok(()));
        assert!(checker.check_due(at(1_901), 0, due(2)).is_err());
    }

    #[test]
    fn an_attempt_that_yields_for_too_long_is_noticed() {
        let checker = running(&[(1, 1_000, false, true)]);
        let longest = Duration::from_secs(300);
        assert_eq!(checker.check_overdue(Instant(311_000_000), 0, longest), Ok(()));
        assert!(checker.check_overdue(Instant(311_000_001), 0, longest).is_err());
        let guaranteed = running(&[(2, 1_000, true, true)]);
        assert!(guaranteed.check_overdue(Instant(311_000_001), 0, longest).is_err(), "also if it was promoted");
    }
}
