//! Changes of a running job by its user.

use super::launches::timeout;
use super::{JobManager, RunningAttempt};
use crate::protocol::{AdmittedJob, ToNode};
use crate::role::{Change, Outbox};
use crate::vocabulary::{AttemptId, HostId, Instant};
use std::sync::Arc;

impl JobManager {
    /// New launches use the updated job. A new timeout also applies to open attempts.
    pub(super) fn on_updated(&mut self, now: Instant, job: Arc<AdmittedJob>, is_placed_anew: bool, out: &mut Outbox) {
        if self.job.host != HostId::SERVER {
            out.persist(Change::Managed { job: Arc::clone(&job) });
        }
        let before = std::mem::replace(&mut self.job, job);
        self.launches.on_updated(&before, &self.job);
        for (attempt, running) in self.attempts.iter() {
            self.resend_timeout(*attempt, running, out);
        }
        if is_placed_anew {
            self.requests.update_job(&self.job);
            self.restart_requests();
        }
        self.update_demand(now, out);
    }

    /// Sends the timeout to the node of an attempt that may have been launched with another one.
    pub(super) fn resend_timeout(&self, attempt: AttemptId, running: &RunningAttempt, out: &mut Outbox) {
        if self.launches.has_new_timeout() {
            let timeout = timeout(&self.job, running.task.stage as usize);
            out.send(running.node, ToNode::SetTimeout { attempt, timeout });
        }
    }
}
