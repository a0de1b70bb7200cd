//! The owners of attempts: job managers claim theirs, and the master disowns attempts of jobs that have ended or are unknown.

use super::{NodeAgent, State};
use crate::protocol::{Claim, ToJobManager};
use crate::role::Outbox;
use crate::vocabulary::{AttemptId, ExecutionType, Instant, JobId};

impl NodeAgent {
    /// A job manager lists its own attempts.
    pub(super) fn on_claim(&mut self, now: Instant, claim: Claim, out: &mut Outbox) {
        if !self.executor.is_known() {
            return self.executor.keep_claim(claim);
        }
        if self.is_outdated(claim.epoch) {
            return;
        }
        self.tokens.on_claim(&claim);
        let Claim { job, epoch, number, attempts: claimed, .. } = claim;
        self.tokens.received_from(epoch);
        let here: Vec<AttemptId> = self.attempts.of_job(job).collect();
        let attempts = claimed.iter().copied().filter(|id| self.attempts.contains(id)).collect();
        let node_name = self.settings.name.clone();
        out.send(job, ToJobManager::Live { node: self.node, node_name, epoch, number, attempts });
        for (attempt, entry) in self.attempts.running().filter(|(attempt, _)| claimed.contains(attempt)) {
            if !matches!(entry.state, State::Starting) {
                let running_for = entry.running_for(now);
                out.send(job, ToJobManager::Started { attempt, running_for, at_node: None });
            }
            // This was sent when it was promoted, and may have been lost.
            if let Some(grant) = entry.grant.filter(|_| entry.template.shape.execution == ExecutionType::Opportunistic)
            {
                out.send(job, ToJobManager::Promoted { attempt, grant });
            }
        }
        for id in claimed.iter().filter(|id| self.attempts.contains(id)) {
            self.report_in_place(*id, out);
        }
        // An end is reported until its owner acknowledges it, even if the owner no longer claims the attempt. The owner
        // then records that the end came late.
        let has_ended = |id: &AttemptId| matches!(self.attempts[id].state, State::Ended(_));
        let foreign: Vec<AttemptId> = here.into_iter().filter(|id| !claimed.contains(id) && !has_ended(id)).collect();
        self.stop_orphans(now, &foreign, out);
    }

    pub(super) fn on_disown(&mut self, now: Instant, job: JobId, out: &mut Outbox) {
        self.drop_probes_of(now, job, out);
        let here: Vec<AttemptId> = self.attempts.of_job(job).collect();
        self.stop_orphans(now, &here, out);
    }
}
