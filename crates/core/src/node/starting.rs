//! Starts what waits: the next entry of the queue as long as there is room for it.

use super::NodeAgent;
use crate::protocol::{Address, TheExecutor, ToExecutor, ToJobManager};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, Duration, EntryId, Instant, QueuedEntry};

impl NodeAgent {
    pub(super) fn start_what_fits(&mut self, now: Instant, out: &mut Outbox) {
        if self.attempts.may_yield() {
            self.start_and_resume(now, out);
        } else {
            self.start_next(now, out);
        }
        if let Some(last) = self.queue.last_guaranteed() {
            // The resources that attempts being stopped will free were enough for the waiting entries, and may no longer
            // be; or an obstacle is gone.
            self.make_room(now, last, out);
        }
    }

    /// Starts entries as long as the queue's policy finds one that fits.
    pub(super) fn start_next(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(entry) = self.pick(now) {
            match entry.id {
                EntryId::Attempt(attempt) => self.start(now, attempt, out),
                EntryId::Probe(probe) => self.ask_back(probe, entry.shape.resources, out),
            }
        }
    }

    pub(super) fn pick(&mut self, now: Instant) -> Option<QueuedEntry> {
        if !self.executor.is_known() || self.queue.is_empty() {
            return None;
        }
        let room = self.room.free_for_opportunistic();
        let mut running = self.attempts.running().map(|(id, entry)| entry.as_running(now, id));
        self.queue.pick(now, &mut running, self.room.free(), room)
    }

    pub(super) fn start(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let entry = &self.attempts[&id];
        let is_opportunistic = entry.is_opportunistic();
        let devices = self.room.on_start(entry);
        let order = self.attempts.start(now, id, devices, (self.node, self.settings.name.as_str()));
        out.send(TheExecutor(self.node), ToExecutor::Launch(Box::new(order)));
        if is_opportunistic {
            self.queue.on_opportunistic_start(now);
        }
    }

    pub(super) fn on_started(&mut self, now: Instant, from: Address, id: AttemptId, out: &mut Outbox) {
        if self.attempts.contains(&id) {
            self.started(now, id, Duration::ZERO, out);
        } else {
            out.record(Record::Stale { from, attempt: id });
        }
    }

    /// The process has run for `running_for`: its timeout counts from its start.
    pub(super) fn started(&mut self, now: Instant, id: AttemptId, running_for: Duration, out: &mut Outbox) {
        let process = self.attempts.on_started(now, id, running_for);
        let at_node = process.as_ref().map(|process| process.at_node);
        if let Some((prediction, start)) = process.and_then(|process| process.prediction) {
            self.master.on_predicted_start(start);
            let entry = &self.attempts[&id];
            let (task, attempt, node, run) = (entry.task, id, self.node, entry.expected);
            out.record(Record::Prediction { task, attempt, node, prediction, start, run });
        }
        out.send(id.job, ToJobManager::Started { attempt: id, running_for, at_node });
    }
}
