//! Late binding: a probe waits in the queue as a launch does. When it is its turn the node keeps room for it and asks
//! its job manager for a task.

use super::NodeAgent;
use crate::protocol::{Probe, ToJobManager};
use crate::role::Outbox;
use crate::vocabulary::{EntryId, Instant, JobId, ProbeId, QueuedEntry, Resources};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Probes(BTreeMap<ProbeId, State>);

enum State {
    Queued,
    /// Its job manager was asked, and so much room is kept until the answer.
    Asked(Resources),
}

impl Probes {
    pub(super) fn queued(&self) -> usize {
        self.0.values().filter(|state| matches!(state, State::Queued)).count()
    }

    /// All of them, and whether room is kept for each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ProbeId, bool)> {
        self.0.iter().map(|(probe, state)| (*probe, matches!(state, State::Asked(_))))
    }

    pub(super) fn kept_room(&self) -> Resources {
        self.0.values().fold(Resources::ZERO, |sum, state| match state {
            State::Queued => sum,
            State::Asked(room) => sum.saturating_add(room),
        })
    }
}

impl NodeAgent {
    pub(super) fn on_probe(&mut self, now: Instant, probe: &Probe, out: &mut Outbox) {
        let Probe { id, execution, resources } = *probe;
        if id.epoch < self.newest_epoch || self.probes.0.contains_key(&id) {
            return;
        }
        self.probes.0.insert(id, State::Queued);
        self.queue.push(QueuedEntry { id: EntryId::Probe(id), resources, execution, queued_at: now, expected: None });
        self.start_what_fits(now, out);
    }

    /// It is the turn of the probe: whoever comes after it sees only what room is left.
    pub(super) fn ask_back(&mut self, probe: ProbeId, room: Resources, out: &mut Outbox) {
        self.free = self.free.saturating_sub(&room);
        self.probes.0.insert(probe, State::Asked(room));
        out.send(probe.job, ToJobManager::Ready { probe });
    }

    pub(super) fn on_cancel(&mut self, now: Instant, probes: &[ProbeId], out: &mut Outbox) {
        for &probe in probes {
            self.take_probe(probe);
        }
        self.start_what_fits(now, out);
    }

    /// Takes out a probe; true if room was kept for it, which is free now.
    pub(super) fn take_probe(&mut self, probe: ProbeId) -> bool {
        match self.probes.0.remove(&probe) {
            Some(State::Asked(_)) => {
                self.free = self.room_left();
                true
            }
            Some(State::Queued) => {
                self.queue.remove(EntryId::Probe(probe));
                false
            }
            None => false,
        }
    }

    /// On the next connection the job managers send others.
    pub(super) fn drop_probes(&mut self, now: Instant, out: &mut Outbox) {
        let all: Vec<ProbeId> = self.probes.0.keys().copied().collect();
        self.on_cancel(now, &all, out);
    }

    /// Nobody will have a task for them.
    pub(super) fn drop_probes_of(&mut self, now: Instant, job: JobId, out: &mut Outbox) {
        let of_job: Vec<ProbeId> = self.probes.0.keys().copied().filter(|probe| probe.job == job).collect();
        self.on_cancel(now, &of_job, out);
    }
}
