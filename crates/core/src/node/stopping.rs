//! Stops attempts: on request, at their timeout, or because no process owns them any more.

use super::{NodeAgent, State};
use crate::protocol::{TaskSignal, TheExecutor, ToExecutor};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, Duration, EndReason, Ended, Instant};

impl NodeAgent {
    pub(super) fn on_stop(
        &mut self,
        now: Instant,
        id: AttemptId,
        reason: EndReason,
        grace: Duration,
        out: &mut Outbox,
    ) {
        let Some(entry) = self.attempts.get_mut(&id) else { return };
        match &entry.state {
            State::Queued(_) => {
                self.queue.remove(id);
                self.finish(now, id, Ended::without_run(reason), out);
            }
            State::Starting | State::Running => {
                entry.state = State::Stopping { reason: reason.clone(), killed: false };
                self.due.retain(|(_, other)| *other != id);
                self.due.insert((now + grace, id));
                let signal = TaskSignal::Terminate;
                out.send(TheExecutor(self.node), ToExecutor::Signal { attempt: id, signal, reason });
            }
            State::Stopping { .. } | State::Ended(_) => {}
        }
    }

    pub(super) fn on_due(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let Some(entry) = self.attempts.get_mut(&id) else { return };
        match &mut entry.state {
            State::Stopping { killed, reason } if !*killed => {
                *killed = true;
                let (signal, reason) = (TaskSignal::Kill, reason.clone());
                out.send(TheExecutor(self.node), ToExecutor::Signal { attempt: id, signal, reason });
            }
            State::Running => {
                let (task, node, reason) = (entry.task, self.node, EndReason::Timeout);
                out.record(Record::Stopping { task, attempt: id, node, reason: reason.clone() });
                self.on_stop(now, id, reason, self.settings.stop_grace, out);
            }
            _ => {}
        }
    }

    /// Stops attempts without an owner, and drops their ends, which no owner acknowledges.
    pub(super) fn stop_orphans(&mut self, now: Instant, orphans: &[AttemptId], out: &mut Outbox) {
        for &id in orphans {
            let Some(entry) = self.attempts.get(&id) else { continue };
            if let State::Ended(_) = entry.state {
                self.attempts.remove(&id);
                out.send(TheExecutor(self.node), ToExecutor::Acknowledge { attempt: id });
                continue;
            }
            out.record(Record::Orphaned { task: entry.task, attempt: id, node: self.node });
            self.on_stop(now, id, EndReason::NodeLost, self.settings.stop_grace, out);
        }
    }
}
