//! The next entry of a node's queue starts as soon as there is room: no room is lost after reservations, cancellations
//! or kills.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::node::NodeAgent;
use amalgam_core::preset::{Booked, Preset, Scheduling};
use amalgam_core::vocabulary::resources::{CPU, GPU};
use amalgam_core::vocabulary::{AttemptId, Duration, EntryId, Instant, QueuedEntry, Resources};
use std::collections::BTreeMap;

/// Longest time from the end of a process to the start of the next, at a node that does nothing else.
const HAND_OVER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Room {
    /// `None` if the queue is in order of arrival. Otherwise guaranteed work is first, and the value tells whether jobs
    /// are then in the order of their submission.
    by_kind: Option<bool>,
    /// Running attempts by node, with what they hold.
    running: BTreeMap<usize, BTreeMap<AttemptId, Resources>>,
    /// The full resources of the attempts that yield their CPU.
    yielding: BTreeMap<(usize, AttemptId), Resources>,
    /// By node: the next entry if it has room but has not started, and since when.
    held_up: BTreeMap<usize, (EntryId, Instant)>,
    /// Number of times that another entry became the next.
    seen: u64,
    last_seen: BTreeMap<usize, EntryId>,
}

impl Room {
    pub fn new(preset: Preset) -> Room {
        let by_kind = match preset.scheduling {
            Scheduling::Booked(Booked { opportunistic, .. }) => opportunistic.map(|settings| settings.reorder),
            // The node chooses opportunistic entries at random. As long as there is room, the first one starts, too.
            Scheduling::Entitled(_) => Some(false),
            Scheduling::Probed(_) => None,
        };
        Room { by_kind, ..Room::default() }
    }

    /// The next entry of the queue. Entries that wait for files are skipped.
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
            format!("{:?} is next on n{node}, which has room for it, but does not start", next.id),
        ))
    }
}

impl Checker for Room {
    fn rule(&self) -> &'static str {
        "the next entry of a node's queue starts when there is room"
    }

    /// Entries that became the next.
    fn subjects(&self) -> u64 {
        self.seen
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            match happening {
                Happening::TaskStarted { node, attempt, resources, .. } => {
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
            // Before the welcome, an agent does not know its custom kinds of resources. Room that is kept for a probe
            // is free again when its job manager has answered.
            let agent = world.agent(node).filter(|agent| agent.is_welcomed());
            let agent = agent.filter(|agent| agent.probes().all(|(_, keeps_room)| !keeps_room));
            match agent.and_then(|agent| Some((agent, self.next(agent)?))) {
                // Attempts that yield get their CPU back before new opportunistic work starts, or, if promoted, before
                // any other.
                Some(_) if self.yielding.keys().any(|(of, _)| *of == node) => {
                    self.held_up.remove(&node);
                }
                Some((agent, next)) if world.is_idle(node) => {
                    // The node may be ordered to keep more room free. That is not checked here.
                    let mut room = if next.is_opportunistic() { agent.opportunistic_room() } else { Resources::MAX };
                    // Free parts of several GPUs do not add up. Only the agent knows what each GPU has free.
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
