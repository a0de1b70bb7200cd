//! Duty: confirm placements against the ledger.

use super::Master;
use super::tokens::Tokens;
use crate::dispatch;
use crate::protocol::{Grant, ToJobManager, ToNode};
use crate::role::Outbox;
use crate::scheduling::{Booking, ClaimError, Granting, Ledger, NodeState};
use crate::vocabulary::{AttemptId, Epoch, GrantId, JobId, NodeId, Resources, Sealing};

/// Numbers grants, and collects the grants of one event.
pub(super) struct Claims {
    epoch: Epoch,
    next: u64,
    pub(super) tokens: Tokens,
    confirmed: Vec<Grant>,
    /// What is preempted, and the jobs for which it is.
    preempted: Vec<(Booking, JobId)>,
}

impl Claims {
    pub(super) fn new(epoch: Epoch, sealing: Sealing) -> Claims {
        Claims { epoch, next: 1, tokens: Tokens::new(sealing), confirmed: Vec::new(), preempted: Vec::new() }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The lowest id that the next grant can have: later grants are not older than this one.
    pub(super) fn first_to_come(&self) -> GrantId {
        GrantId { epoch: self.epoch, number: self.next, slot: 0 }
    }

    fn book(
        &mut self,
        ledger: &mut Ledger,
        job: JobId,
        node: NodeId,
        resources: Resources,
    ) -> Result<GrantId, ClaimError> {
        let grant = GrantId { epoch: self.epoch, number: self.next, slot: ledger.next_slot() };
        ledger.claim(Booking { grant, job, node, resources })?;
        self.next += 1;
        Ok(grant)
    }
}

impl dispatch::Confirmation for Claims {
    fn confirm(&mut self, ledger: &mut Ledger, proposal: &Granting) -> Result<GrantId, ClaimError> {
        let Granting { ask, node, resources, rule, passed_over, prediction } = *proposal;
        let id = self.book(ledger, ask.job, node, resources)?;
        let generation = self.tokens.generation();
        let shared_gpu = ledger.shared_gpu(id);
        self.confirmed.push(Grant { id, ask, node, rule, passed_over, generation, prediction, shared_gpu });
        Ok(id)
    }

    fn confirm_instead(
        &mut self,
        ledger: &mut Ledger,
        proposal: &Granting,
        may_be_preempted: &dyn Fn(&Booking) -> bool,
    ) -> Result<(GrantId, Vec<Booking>), ClaimError> {
        let Granting { ask, node, resources, rule, passed_over, prediction } = *proposal;
        let id = GrantId { epoch: self.epoch, number: self.next, slot: ledger.next_slot() };
        let victims = ledger.claim_instead(Booking { grant: id, job: ask.job, node, resources }, may_be_preempted)?;
        self.next += 1;
        let (generation, shared_gpu) = (self.tokens.generation(), ledger.shared_gpu(id));
        self.confirmed.push(Grant { id, ask, node, rule, passed_over, generation, prediction, shared_gpu });
        self.preempted.extend(victims.iter().map(|victim| (*victim, ask.job)));
        Ok((id, victims))
    }

    /// Sends the confirmed grants, one message per job, and has nodes stop what is preempted for them.
    fn announce(&mut self, out: &mut Outbox) {
        self.preempted.sort_by_key(|(victim, by)| (victim.node, *by, victim.grant));
        for victims in self.preempted.chunk_by(|(a, for_a), (b, for_b)| (a.node, for_a) == (b.node, for_b)) {
            let (Booking { node, .. }, by) = victims[0];
            let grants = victims.iter().map(|(victim, _)| victim.grant).collect();
            out.send(node, ToNode::Preempt { grants, by });
        }
        self.preempted.clear();
        self.confirmed.sort_by_key(|grant| (grant.ask.job, grant.id.number));
        for grants in self.confirmed.chunk_by(|a, b| a.ask.job == b.ask.job) {
            out.send(grants[0].ask.job, ToJobManager::Granted { grants: grants.to_vec() });
        }
        self.confirmed.clear();
    }
}

impl Master {
    /// A request to book an attempt that runs already. Granted only if it displaces no other work, the node is not
    /// reserved, and no limit is exceeded.
    pub(super) fn on_promote(&mut self, attempt: AttemptId, node: NodeId, resources: &Resources, out: &mut Outbox) {
        let is_up = self.dispatch.rooms.state(node) == Some(NodeState::Up);
        let is_kept = self.dispatch.scheduler.reserved_nodes().binary_search(&node).is_ok();
        let has_room = is_up && !is_kept && resources.fits_in(&self.dispatch.rooms.offer(node));
        if has_room
            && self.dispatch.scheduler.may_hold(attempt.job, resources)
            && let Ok(grant) = self.claims.book(&mut self.dispatch.rooms, attempt.job, node, *resources)
        {
            self.dispatch.scheduler.on_adopted(&Booking { grant, job: attempt.job, node, resources: *resources });
            out.send(node, ToNode::Promote { attempt, grant: Some(grant) });
        }
    }
}
