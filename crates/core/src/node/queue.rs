//! What waits at the node: attempts and probes, the policy that chooses the next of them, and the limits of the queue.

use super::probes::Probes;
use crate::policy::QueuePolicy;
use crate::protocol::Probe;
use crate::scheduling::{Lack, NodeQueue};
use crate::vocabulary::{
    AttemptId, Duration, EntryId, Instant, ProbeId, QueuedEntry, Resources, RunningEntry, TaskShape, Totals,
};
use std::sync::Arc;

pub(super) struct Queue {
    waiting: NodeQueue,
    policy: Box<dyn QueuePolicy>,
    probes: Probes,
    /// An opportunistic launch that makes the queue longer than this is shed at once.
    limit: Option<u32>,
    /// The work in the queue that is beyond this expected time is shed. The master sets it.
    longest_wait: Option<Duration>,
    /// Since when opportunistic work has waited and none has started.
    stalled_since: Option<Instant>,
}

impl Queue {
    pub(super) fn new(policy: Box<dyn QueuePolicy>, limit: Option<u32>) -> Queue {
        Queue {
            waiting: NodeQueue::default(),
            policy,
            probes: Probes::default(),
            limit,
            longest_wait: None,
            stalled_since: None,
        }
    }

    /// All entries, in the order of arrival.
    pub(super) fn entries(&self) -> &[QueuedEntry] {
        self.waiting.entries()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The sum of the expected run times of entries without a booking.
    pub(super) fn expected_work(&self) -> Duration {
        self.waiting.expected_work()
    }

    // ---- attempts --------------------------------------------------------------------------------------------------

    /// An attempt waits. One whose probe was next to start is before all others.
    pub(super) fn push(&mut self, entry: QueuedEntry, was_next: bool) {
        if was_next {
            self.waiting.push_front(entry);
        } else {
            self.waiting.push(entry);
        }
    }

    /// An opportunistic attempt that was pushed could not start at once.
    pub(super) fn on_opportunistic_waits(&mut self, now: Instant) {
        let others = self.entries().iter().filter(|entry| entry.is_opportunistic()).count();
        if others <= 1 {
            self.stalled_since = Some(now);
        }
    }

    /// An opportunistic attempt has left the queue and starts.
    pub(super) fn on_opportunistic_start(&mut self, now: Instant) {
        self.stalled_since = (!self.is_empty()).then_some(now);
    }

    /// For how long no opportunistic attempt has started although one waits.
    pub(super) fn stalled_for(&self, now: Instant) -> Duration {
        let since = self.stalled_since.filter(|_| self.has_opportunistic());
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// The attempt waits no longer.
    pub(super) fn remove(&mut self, attempt: AttemptId) {
        self.waiting.remove(EntryId::Attempt(attempt));
    }

    /// The opportunistic attempt became guaranteed. If it waits, it waits behind earlier guaranteed entries.
    pub(super) fn on_entitled(&mut self, attempt: AttemptId, shape: Arc<TaskShape>) {
        let awaits_files = self.lacks(attempt, Lack::Files);
        if let Some(waiting) = self.waiting.remove(EntryId::Attempt(attempt)) {
            self.waiting.push(QueuedEntry { shape, ..waiting });
            if awaits_files {
                self.hold(attempt, Lack::Files);
            }
        }
    }

    /// Later entries start before the attempt until it lacks nothing.
    pub(super) fn hold(&mut self, attempt: AttemptId, lack: Lack) {
        self.waiting.hold(EntryId::Attempt(attempt), lack);
    }

    pub(super) fn release(&mut self, attempt: AttemptId, lack: Lack) {
        self.waiting.release(EntryId::Attempt(attempt), lack);
    }

    pub(super) fn lacks(&self, attempt: AttemptId, lack: Lack) -> bool {
        self.waiting.lacks(EntryId::Attempt(attempt), lack)
    }

    pub(super) fn is_held(&self, entry: EntryId) -> bool {
        self.waiting.is_held(entry)
    }

    pub(super) fn has_opportunistic(&self) -> bool {
        self.entries().iter().any(QueuedEntry::is_opportunistic)
    }

    /// The guaranteed attempt that arrived last.
    pub(super) fn last_guaranteed(&self) -> Option<AttemptId> {
        if !self.waiting.has_guaranteed() {
            return None;
        }
        self.entries().iter().rev().find_map(QueuedEntry::guaranteed_attempt)
    }

    /// Guaranteed entries that lack nothing but room.
    pub(super) fn guaranteed_without_room(&self) -> impl Iterator<Item = &QueuedEntry> {
        self.entries().iter().filter(|entry| entry.is_guaranteed() && !self.waiting.is_held(entry.id))
    }

    /// Whether a guaranteed entry lacks nothing but room.
    pub(super) fn lacks_guaranteed_room(&self) -> bool {
        self.waiting.has_guaranteed() && self.guaranteed_without_room().next().is_some()
    }

    // ---- leaving the queue -----------------------------------------------------------------------------------------

    /// Takes out the entry that starts next, if one fits.
    pub(super) fn pick(
        &mut self,
        now: Instant,
        running: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
        opportunistic_room: Resources,
    ) -> Option<QueuedEntry> {
        self.waiting.pick(now, self.policy.as_mut(), running, free, opportunistic_room)
    }

    /// The limit of the queue's length, if the queue exceeds it.
    pub(super) fn exceeded_limit(&self) -> Option<u32> {
        self.limit.filter(|limit| self.len() > *limit as usize)
    }

    /// The master has set a limit for the expected time of the work that waits here.
    pub(super) fn limit_wait(&mut self, longest: Option<Duration>) {
        self.longest_wait = longest;
    }

    /// Takes out one opportunistic attempt of the work that is beyond the limit, with the reason.
    pub(super) fn shed(&mut self) -> Option<(AttemptId, String)> {
        let longest = self.longest_wait?;
        loop {
            let wait = self.expected_work();
            if wait <= longest {
                return None;
            }
            let entry = self.waiting.drop_last(self.policy.as_ref(), &QueuedEntry::has_length)?;
            match entry.id {
                EntryId::Attempt(attempt) => {
                    return Some((attempt, format!("{wait} of work waited there, the limit is {longest}")));
                }
                EntryId::Probe(probe) => {
                    self.probes.remove_queued(probe);
                }
            }
        }
    }

    /// Takes out the opportunistic attempt that would start last, of those that fit into `room` and `may_go`.
    pub(super) fn hand_over(
        &mut self,
        room: &Resources,
        may_go: impl Fn(AttemptId) -> bool,
    ) -> Option<(AttemptId, Resources)> {
        let is_one = |entry: &QueuedEntry| match entry.id {
            EntryId::Attempt(id) => entry.shape.resources.fits_in(room) && may_go(id),
            EntryId::Probe(_) => false,
        };
        let entry = self.waiting.drop_last(self.policy.as_ref(), &is_one)?;
        let EntryId::Attempt(attempt) = entry.id else { unreachable!("probes are not handed over") };
        Some((attempt, entry.shape.resources))
    }

    // ---- probes ----------------------------------------------------------------------------------------------------

    pub(super) fn has_probe(&self, probe: ProbeId) -> bool {
        self.probes.holds(probe)
    }

    /// All probes, and whether room is kept for each.
    pub(super) fn probes(&self) -> impl Iterator<Item = (ProbeId, bool)> {
        self.probes.iter()
    }

    pub(super) fn push_probe(&mut self, now: Instant, probe: Probe) {
        let Probe { id, shape } = probe;
        self.probes.queue(id);
        let id = EntryId::Probe(id);
        self.waiting.push(QueuedEntry { id, shape, booked: false, queued_at: now, expected: None, weight: 1 });
    }

    /// The probe has left the queue, and its job manager is asked for a task. The room is kept until it answers.
    pub(super) fn on_asked(&mut self, probe: ProbeId, room: Resources) {
        self.probes.ask(probe, room);
    }

    /// Removes a probe. Returns the room that was kept for it, if its job manager was asked.
    pub(super) fn take_probe(&mut self, probe: ProbeId) -> Option<Resources> {
        let room = self.probes.take_asked(probe);
        if room.is_none() && self.probes.remove_queued(probe) {
            self.waiting.remove(EntryId::Probe(probe));
        }
        room
    }

    /// The room that is kept for all probes.
    pub(super) fn kept_room(&self) -> Totals {
        self.probes.kept_room()
    }

    /// # Panics
    /// If other attempts or probes wait than the queue has entries for.
    pub(super) fn check_invariants(&self, attempts: usize) {
        assert_eq!(self.len(), attempts + self.probes.queued(), "queue entries, queued attempts and probes");
    }
}
