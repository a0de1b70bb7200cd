//! Starts what waits: the next entry of the queue as long as there is room for it.

use super::{AtExecutor, NodeAgent, State};
use crate::protocol::{Address, TheExecutor, ToExecutor, ToJobManager};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AtNode, AttemptId, Duration, EntryId, Instant, LaunchOrder, QueuedEntry};

impl NodeAgent {
    pub(super) fn start_what_fits(&mut self, now: Instant, out: &mut Outbox) {
        match self.rules.yields_for {
            Some(_) => self.start_and_resume(now, out),
            None => self.start_next(now, out),
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
        let attempts = &self.attempts;
        let mut running = self.running.iter().map(|one| attempts[&one.attempt].as_running(now, one.attempt));
        self.queue.pick(now, &mut running, self.room.free(), room)
    }

    pub(super) fn start(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let entry = self.attempts.get_mut(&id).expect("a queued attempt is known");
        let is_opportunistic = entry.is_opportunistic();
        let State::Queued(launch) = std::mem::replace(&mut entry.state, State::Starting) else {
            unreachable!("only queued attempts are in the queue")
        };
        let resources = entry.template.shape.resources;
        entry.devices = self.room.on_start(&resources, entry.shared_gpu, is_opportunistic);
        entry.waited = now.since(entry.since);
        entry.since = now;
        let order = LaunchOrder {
            attempt: id,
            task: launch.task,
            node: self.node,
            node_name: self.settings.name.clone(),
            template: launch.template,
            index: launch.index,
            item: launch.item,
            devices: entry.devices.clone(),
            inputs: launch.inputs,
            hosts: entry.hosts.take(),
            grant: entry.grant,
            shared_gpu: entry.shared_gpu,
            expected: entry.expected,
        };
        out.send(TheExecutor(self.node), ToExecutor::Launch(Box::new(order)));
        let mut running = AtExecutor::new(id, now, entry.expected);
        self.watch.on_running(now, &mut running);
        self.running.push(running);
        if is_opportunistic {
            self.queue.on_opportunistic_start(now);
        }
    }

    pub(super) fn on_started(&mut self, now: Instant, from: Address, id: AttemptId, out: &mut Outbox) {
        if self.attempts.contains_key(&id) {
            self.started(now, id, Duration::ZERO, out);
        } else {
            out.record(Record::Stale { from, attempt: id });
        }
    }

    /// The process has run for `running_for`: its timeout counts from its start.
    pub(super) fn started(&mut self, now: Instant, id: AttemptId, running_for: Duration, out: &mut Outbox) {
        let entry = self.attempts.get_mut(&id).expect("the caller has checked that the attempt exists");
        let mut at_node = None;
        if let State::Starting = entry.state {
            entry.state = State::Running;
            at_node = Some(AtNode { waited: entry.waited, making: now.before(running_for).since(entry.since) });
            if let Some((prediction, came)) = entry.prediction.take() {
                let start = prediction.started(now.before(running_for).since(came));
                self.master.on_predicted_start(start);
                let (task, attempt, node) = (entry.task, id, self.node);
                out.record(Record::Prediction { task, attempt, node, prediction, start, run: entry.expected });
            }
            let timeout = entry.template.timeout;
            match &mut entry.yielding {
                Some(yielding) => {
                    yielding.timeout_left = timeout.map(|timeout| Duration(timeout.0.saturating_sub(running_for.0)));
                }
                None => self.due.extend(timeout.map(|timeout| (now.before(running_for) + timeout, id))),
            }
        }
        out.send(id.job, ToJobManager::Started { attempt: id, running_for, at_node });
    }
}
