//! Late binding: a probe waits in the queue like a launch. When the probe is next to start, the node keeps room for it
//! and asks its job manager for a task.

use super::NodeAgent;
use crate::protocol::{Probe, ToJobManager};
use crate::role::Outbox;
use crate::vocabulary::{HostId, Instant, JobId, ProbeId, Resources, Totals};
use std::collections::BTreeSet;

/// Each probe is either queued, or its job manager was asked for a task.
#[derive(Default)]
pub(super) struct Probes {
    queued: BTreeSet<ProbeId>,
    /// Probes whose job managers were asked, with the room that is kept until they answer.
    asked: Vec<(ProbeId, Resources)>,
}

impl Probes {
    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    /// All of them, and whether room is kept for each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ProbeId, bool)> {
        let queued = self.queued.iter().map(|probe| (*probe, false));
        queued.chain(self.asked.iter().map(|(probe, _)| (*probe, true)))
    }

    pub(super) fn kept_room(&self) -> Totals {
        let mut kept = Totals::ZERO;
        self.asked.iter().for_each(|(_, room)| kept.add(room));
        kept
    }

    pub(super) fn holds(&self, probe: ProbeId) -> bool {
        self.queued.contains(&probe) || self.asked.iter().any(|(asked, _)| *asked == probe)
    }

    pub(super) fn queue(&mut self, probe: ProbeId) {
        self.queued.insert(probe);
    }

    /// The probe's job manager is asked for a task.
    pub(super) fn ask(&mut self, probe: ProbeId, room: Resources) {
        self.queued.remove(&probe);
        self.asked.push((probe, room));
    }

    /// Removes a probe whose job manager was asked. Returns the room that was kept for it.
    pub(super) fn take_asked(&mut self, probe: ProbeId) -> Option<Resources> {
        let at = self.asked.iter().position(|(asked, _)| *asked == probe)?;
        Some(self.asked.remove(at).1)
    }

    /// Removes a probe that is queued. Returns false if it is not.
    pub(super) fn remove_queued(&mut self, probe: ProbeId) -> bool {
        self.queued.remove(&probe)
    }
}

impl NodeAgent {
    pub(super) fn on_probe(&mut self, now: Instant, probe: Probe, out: &mut Outbox) {
        if self.is_outdated(probe.id.epoch) || self.queue.has_probe(probe.id) {
            return;
        }
        self.queue.push_probe(now, probe);
        self.start_what_fits(now, out);
    }

    /// The probe is next to start. Entries after it see only the room that is left beside it.
    pub(super) fn ask_back(&mut self, probe: ProbeId, room: Resources, out: &mut Outbox) {
        self.room.hold(&room);
        self.queue.on_asked(probe, room);
        out.send(probe.job, ToJobManager::Ready { probe });
    }

    pub(super) fn on_cancel(&mut self, now: Instant, probes: &[ProbeId], out: &mut Outbox) {
        for &probe in probes {
            self.take_probe(probe);
        }
        self.start_what_fits(now, out);
    }

    /// Removes a probe. Returns true if room was kept for it; that room is free now.
    pub(super) fn take_probe(&mut self, probe: ProbeId) -> bool {
        let Some(room) = self.queue.take_probe(probe) else { return false };
        self.room.release(&room);
        true
    }

    /// Drops the probes of the host's job managers. They send new ones on the next connection.
    pub(super) fn drop_probes(&mut self, now: Instant, host: HostId, out: &mut Outbox) {
        let all = self.queue.probes().map(|(probe, _)| probe);
        let all: Vec<ProbeId> = all.filter(|probe| probe.epoch.host() == host).collect();
        self.on_cancel(now, &all, out);
    }

    /// Drops the probes of a job that will not have a task for them.
    pub(super) fn drop_probes_of(&mut self, now: Instant, job: JobId, out: &mut Outbox) {
        let all = self.queue.probes().map(|(probe, _)| probe);
        let of_job: Vec<ProbeId> = all.filter(|probe| probe.job == job).collect();
        self.on_cancel(now, &of_job, out);
    }
}
