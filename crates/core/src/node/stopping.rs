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
        match self.attempts.get(&id).map(|entry| &entry.state) {
            Some(State::Queued(_)) => {
                self.queue.remove(id);
                self.finish(now, id, Ended::without_run(reason), out);
            }
            Some(State::Starting | State::Running) => {
                self.attempts.stop(id, reason.clone(), now + grace);
                let signal = TaskSignal::Terminate;
                out.send(TheExecutor(self.node), ToExecutor::Signal { attempt: id, signal, reason });
            }
            Some(State::Stopping { .. } | State::Ended(_)) | None => {}
        }
    }

    /// Kills an attempt that has not ended within its grace, or stops it because of its timeout.
    pub(super) fn on_due(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        if let Some(reason) = self.attempts.kill(id) {
            let signal = TaskSignal::Kill;
            return out.send(TheExecutor(self.node), ToExecutor::Signal { attempt: id, signal, reason });
        }
        let Some(entry) = self.attempts.get(&id).filter(|entry| matches!(entry.state, State::Running)) else { return };
        let (task, node, reason) = (entry.task, self.node, EndReason::Timeout);
        out.record(Record::Stopping { task, attempt: id, node, reason: reason.clone() });
        self.on_stop(now, id, reason, self.settings.stop_grace, out);
    }

    /// Stops attempts without an owner, and drops their ends, which no owner acknowledges.
    pub(super) fn stop_orphans(&mut self, now: Instant, orphans: &[AttemptId], out: &mut Outbox) {
        for &id in orphans {
            let Some(entry) = self.attempts.get(&id) else { continue };
            if let State::Ended(_) = entry.state {
                self.attempts.remove_ended(id);
                out.send(TheExecutor(self.node), ToExecutor::Acknowledge { attempt: id });
                continue;
            }
            out.record(Record::Orphaned { task: entry.task, attempt: id, node: self.node });
            self.on_stop(now, id, EndReason::NodeLost, self.settings.stop_grace, out);
        }
    }
}
