//! Proposed placements of a global master: booked in its view, and launched at once. The numbers increase in the order
//! in which the launches are sent.

use crate::dispatch::Confirmation;
use crate::protocol::{ClaimError, Grant, Rule, ToJobManager, ToMaster};
use crate::role::Outbox;
use crate::scheduling::{Booking, Granting, Ledger};
use crate::vocabulary::{Epoch, Federation, Generation, GrantId, NodeId};

pub(super) struct Proposals {
    epoch: Epoch,
    next: u64,
    federation: Federation,
    made: Vec<Grant>,
    /// What is preempted for some of them, and on which node.
    instead_of: Vec<(GrantId, NodeId, Vec<Booking>)>,
    /// If [`Proposals::take_new`] is in use.
    new: Option<Vec<NewProposal>>,
}

pub(super) struct NewProposal {
    pub(super) booking: Booking,
    pub(super) rule: Rule,
    /// Bookings of this global master that are preempted for it.
    pub(super) victims: Vec<Booking>,
}

impl Proposals {
    /// With `are_reported`, proposals are kept for [`Proposals::take_new`].
    pub(super) fn new(epoch: Epoch, federation: Federation, are_reported: bool) -> Proposals {
        let new = are_reported.then(Vec::new);
        Proposals { epoch, next: 1, federation, made: Vec::new(), instead_of: Vec::new(), new }
    }

    pub(super) fn take_new(&mut self) -> Vec<NewProposal> {
        self.new.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn note(&mut self, booking: Booking, victims: &[Booking], proposal: &Granting) {
        let Granting { ask, node, rule, passed_over, prediction, .. } = *proposal;
        self.new.iter_mut().for_each(|new| new.push(NewProposal { booking, rule, victims: victims.to_vec() }));
        self.next += 1;
        // The master of the node's cluster seals the launches that it passes on.
        let generation = Generation::default();
        let id = booking.grant;
        self.made.push(Grant { id, ask, node, rule, passed_over, generation, prediction, shared_gpu: None });
    }
}

impl Confirmation for Proposals {
    fn confirm(&mut self, rooms: &mut Ledger, proposal: &Granting) -> Result<GrantId, ClaimError> {
        let Granting { ask, node, resources, rule, .. } = *proposal;
        let grant = GrantId { epoch: self.epoch, number: self.next, slot: rooms.next_slot() };
        let booking = Booking { grant, job: ask.job, node, resources };
        match rule {
            Rule::Share { .. } => rooms.claim_beyond(booking)?,
            _ => rooms.claim(booking)?,
        }
        self.note(booking, &[], proposal);
        Ok(grant)
    }

    fn confirm_instead(
        &mut self,
        rooms: &mut Ledger,
        proposal: &Granting,
        may_be_preempted: &dyn Fn(&Booking) -> bool,
    ) -> Result<(GrantId, Vec<Booking>), ClaimError> {
        let Granting { ask, node, resources, .. } = *proposal;
        let grant = GrantId { epoch: self.epoch, number: self.next, slot: rooms.next_slot() };
        let booking = Booking { grant, job: ask.job, node, resources };
        let victims = rooms.claim_instead(booking, may_be_preempted)?;
        // Also without any: it may get the room that earlier ones leave.
        self.instead_of.push((grant, node, victims.clone()));
        self.note(booking, &victims, proposal);
        Ok((grant, victims))
    }

    /// In the order of the numbers: a cluster's master refuses a number below one that it has seen. It learns what to preempt for a
    /// launch before that arrives: the launch is sent by a job manager that gets the grant later.
    fn announce(&mut self, out: &mut Outbox) {
        for (grant, node, victims) in self.instead_of.drain(..) {
            let instead_of = victims.iter().map(|victim| victim.grant).collect();
            out.send(self.federation.cluster_of(node), ToMaster::MakeRoom { grant, instead_of });
        }
        for grants in self.made.chunk_by(|a, b| a.ask.job == b.ask.job) {
            out.send(grants[0].ask.job, ToJobManager::Granted { grants: grants.to_vec() });
        }
        self.made.clear();
    }
}
