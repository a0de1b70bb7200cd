//! Whoever is next at a node starts as soon as there is room: no room is lost, whatever was kept, cancelled or killed.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::node::NodeAgent;
use amalgam_core::preset::{Booked, Preset, Scheduling};
use amalgam_core::vocabulary::resources::{CPU, GPU};
use amalgam_core::vocabulary::{AttemptId, Duration, EntryId, Instant, QueuedEntry, Resources};
use std::collections::BTreeMap;

/// From the end of a process to the start of the next, at a node that does nothing else.
const HAND_OVER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Room {
    /// Where guaranteed work goes first: whether jobs then go by their submission.
    by_kind: Option<bool>,
    /// What runs, by node.
    running: BTreeMap<usize, BTreeMap<AttemptId, Resources>>,
    /// What those were given that yield their CPU.
    yielding: BTreeMap<(usize, AttemptId), Resources>,
    /// Who is next at a node although there is room, and since when.
    held_up: BTreeMap<usize, (EntryId, Instant)>,
    /// Entries that were seen to be next, one after the other.
    seen: u64,
    last_seen: BTreeMap<usize, EntryId>,
}

impl Room {
    pub fn new(preset: Preset) -> Room {
        let by_kind = match preset.scheduling {
            Scheduling::Booked(Booked { opportunistic, .. }) => opportunistic.map(|settings| settings.reorder),
            // Of what is opportunistic chance decides: the first starts, too, as long as there is room.
            Scheduling::Entitled(_) => Some(false),
            Scheduling::Probed(_) => None,
        };
        Room { by_kind, ..Room::default() }
    }

    /// Who waits for files lets others pass.
    fn next<'a>(&self, agent: &'a NodeAgent) -> Option<&'a QueuedEntry> {
        let mut queue = agent.queued().iter().filter(|entry| !agent.awaits_files(entry.id));
        let Some(reorder) = self.by_kind else { return queue.next() };
        queue.min_by_key(|entry| (entry.is_opportunistic(), reorder.then(|| entry.id.job())))
    }

    fn check_next(
        &mut self,
        now: Instant,
        node: usize,
        capacity: &Resources,
        room: &Resources,
        next: &QueuedEntry,
    ) -> Result<(), Breach> {
        if self.last_seen.insert(node, next.id) != Some(next.id) {
            self.seen += 1;
        }
        let running = self.running.entry(node).or_default();
        let used = running.values().fold(Resources::ZERO, |used, more| used.saturating_add(more));
        if !next.shape.resources.fits_in(&room.smaller_of(&capacity.saturating_sub(&used))) {
            self.held_up.remove(&node);
            return Ok(());
        }
        let held_up = self.held_up.entry(node).or_insert((next.id, now));
        if held_up.0 != next.id {
            *held_up = (next.id, now);
        }
        if now.since(held_up.1) <= HAND_OVER {
            return Ok(());
        }
        Err(Breach::of_job(
            next.id.job(),
            format!("{:?} is next on n{node}, which has room for it, and does not start", next.id),
        ))
    }
}

impl Checker for Room {
    fn rule(&self) -> &'static str {
        "whoever is next at a node starts when there is room"
    }

    /// Entries that were seen to be next.
    fn subjects(&self) -> u64 {
        self.seen
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            match happening {
                Happening::Began { node, attempt, resources, .. } => {
                    self.running.entry(*node).or_default().insert(*attempt, *resources);
                }
                Happening::Ended { node, attempt, .. } => {
                    self.running.entry(*node).or_default().remove(attempt);
                    self.yielding.remove(&(*node, *attempt));
                }
                Happening::Yielded { node, attempt, .. } => {
                    let running = self.running.entry(*node).or_default();
                    if let Some(resources) = running.get_mut(attempt) {
                        self.yielding.insert((*node, *attempt), *resources);
                        *resources = resources.with(CPU, 0);
                    }
                }
                Happening::Resumed { node, attempt, .. } => {
                    let whole = self.yielding.remove(&(*node, *attempt));
                    let running = self.running.entry(*node).or_default();
                    running.extend(whole.map(|resources| (*attempt, resources)));
                }
                _ => {}
            }
        }
        for node in world.nodes() {
            // Before it is welcomed, an agent does not know which of its room is of custom kinds; and what is kept for a
            // probe is free again when its job manager has answered.
            let agent = world.agent(node).filter(|agent| agent.is_welcomed());
            let agent = agent.filter(|agent| agent.probes().all(|(_, keeps_room)| !keeps_room));
            match agent.and_then(|agent| Some((agent, self.next(agent)?))) {
                // What yields has its CPU back before new opportunistic work starts, or what became guaranteed before any.
                Some(_) if self.yielding.keys().any(|(of, _)| *of == node) => {
                    self.held_up.remove(&node);
                }
                Some((agent, next)) if world.is_idle(node) => {
                    // It may be told to keep more back than runs, and that is not checked here.
                    let mut room = if next.is_opportunistic() { agent.opportunistic_room() } else { Resources::MAX };
                    // What is left of several GPUs does not make one; which of them have what is the agent's to know.
                    room.0[GPU] = room.0[GPU].min(agent.free().gpu_millis());
                    self.check_next(world.now(), node, &world.capacity(node), &room, next)?;
                }
                _ => {
                    self.held_up.remove(&node);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::attempt;
    use amalgam_core::vocabulary::{ExecutionType, TaskShape};
    use std::sync::Arc;

    #[test]
    fn an_attempt_that_does_not_start_although_there_is_room_is_noticed() {
        let mut checker = Room::default();
        let entry = QueuedEntry {
            id: EntryId::Attempt(attempt(2)),
            shape: Arc::new(TaskShape { resources: Resources::new(1_000, 0), execution: ExecutionType::Opportunistic }),
            booked: false,
            queued_at: Instant(0),
            expected: None,
            weight: 1,
        };
        let capacity = Resources::new(1_500, 0);
        let at = |seconds: u64| Instant(seconds * 1_000_000);
        checker.running.entry(0).or_default().insert(attempt(1), Resources::new(1_000, 0));
        assert_eq!(checker.check_next(at(0), 0, &capacity, &Resources::MAX, &entry), Ok(()));
        assert_eq!(checker.check_next(at(9), 0, &capacity, &Resources::MAX, &entry), Ok(()), "another runs");
        checker.running.clear();
        assert_eq!(checker.check_next(at(10), 0, &capacity, &Resources::MAX, &entry), Ok(()));
        assert!(checker.check_next(at(12), 0, &capacity, &Resources::MAX, &entry).is_err());
    }
}
