//! Changes of the timeout of an attempt.

use super::{NodeAgent, State};
use crate::protocol::{Address, TheExecutor, ToExecutor};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, Duration, TaskTemplate};
use std::sync::Arc;

impl NodeAgent {
    /// The timeout counts from the start of the attempt. If it has already passed, the attempt is stopped now.
    pub(super) fn on_set_timeout(&mut self, from: Address, id: AttemptId, timeout: Option<Duration>, out: &mut Outbox) {
        let Some(entry) = self.attempts.get_mut(&id) else {
            return out.record(Record::Stale { from, attempt: id });
        };
        if entry.template.timeout == timeout {
            return;
        }
        entry.template = Arc::new(TaskTemplate { timeout, ..(*entry.template).clone() });
        let since = entry.since;
        match &mut entry.state {
            State::Queued(launch) => launch.template = Arc::clone(&entry.template),
            State::Starting => {}
            State::Running => match &mut entry.yielding {
                Some(yielding) => {
                    let ran = yielding.since.since(since);
                    yielding.timeout_left = timeout.map(|timeout| Duration(timeout.0.saturating_sub(ran.0)));
                }
                None => {
                    self.due.retain(|(_, other)| *other != id);
                    self.due.extend(timeout.map(|timeout| (since + timeout, id)));
                }
            },
            // It is being stopped or has ended.
            State::Stopping { .. } | State::Ended(_) => return,
        }
        if self.attempts[&id].is_at_executor() {
            out.send(TheExecutor(self.node), ToExecutor::SetTimeout { attempt: id, timeout });
        }
    }

    /// The earlier message to the executor may have been lost.
    pub(super) fn resend_timeout(&self, id: AttemptId, known: Option<Duration>, out: &mut Outbox) {
        let timeout = self.attempts[&id].template.timeout;
        if timeout != known {
            out.send(TheExecutor(self.node), ToExecutor::SetTimeout { attempt: id, timeout });
        }
    }
}
