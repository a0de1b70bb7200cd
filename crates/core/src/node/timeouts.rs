//! Changes of the timeout of an attempt.

use super::NodeAgent;
use crate::protocol::{Address, TheExecutor, ToExecutor};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, Duration};

impl NodeAgent {
    /// The timeout counts from the start of the attempt. If it has already passed, the attempt is stopped now.
    pub(super) fn on_set_timeout(&mut self, from: Address, id: AttemptId, timeout: Option<Duration>, out: &mut Outbox) {
        let Some(entry) = self.attempts.get(&id) else {
            return out.record(Record::Stale { from, attempt: id });
        };
        if entry.template.timeout != timeout && self.attempts.set_timeout(id, timeout) {
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
