//! Attempts that were written off and end after that: what they used is counted.

use super::JobManager;
use crate::progress::LostCause;
use crate::role::{Change, Outbox};
use crate::vocabulary::{AttemptId, Ended, Instant, NodeId, TaskId};
use std::sync::Arc;

impl JobManager {
    /// The attempt is given up, and its node may report the usage later.
    pub(super) fn note_given_up(&mut self, attempt: AttemptId, task: TaskId, cause: LostCause) {
        match cause {
            LostCause::NotTaken | LostCause::Refused(_) => return,
            LostCause::NodeLost | LostCause::Unknown | LostCause::Superseded | LostCause::Copied => {}
        }
        self.attempts.give_up(attempt, task);
    }

    /// The node of a given-up attempt reports the usage.
    pub(super) fn end_late(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        node: NodeId,
        ended: &Arc<Ended>,
        out: &mut Outbox,
    ) {
        if let Some(task) = self.attempts.take_given_up(attempt) {
            self.dag.spend(task, &ended.usage, true);
            let ended = Arc::clone(ended);
            out.persist(Change::EndedLate { attempt, task, node, ended, at: now });
        }
    }
}
