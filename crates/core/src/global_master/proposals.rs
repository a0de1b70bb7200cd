//! Proposed placements of a global master: booked in its view, and launched at once. The numbers increase in the order
//! in which the launches are sent.

use crate::dispatch::Confirmation;
use crate::protocol::{ClaimError, Grant, Rule, ToJobManager};
use crate::role::Outbox;
use crate::scheduling::{Booking, Granting, Ledger};
use crate::vocabulary::{Epoch, Generation, GrantId};

pub(super) struct Proposals {
    epoch: Epoch,
    next: u64,
    made: Vec<Grant>,
    /// New proposals and their rules, if [`Proposals::take_new`] is in use.
    new: Option<Vec<(Booking, Rule)>>,
}

impl Proposals {
    /// With `are_reported`, proposals are kept for [`Proposals::take_new`].
    pub(super) fn new(epoch: Epoch, are_reported: bool) -> Proposals {
        Proposals { epoch, next: 1, made: Vec::new(), new: are_reported.then(Vec::new) }
    }

    pub(super) fn take_new(&mut self) -> Vec<(Booking, Rule)> {
        self.new.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Confirmation for Proposals {
    fn confirm(&mut self, rooms: &mut Ledger, proposal: &Granting) -> Result<GrantId, ClaimError> {
        let Granting { ask, node, resources, rule, passed_over, prediction } = *proposal;
        let grant = GrantId { epoch: self.epoch, number: self.next, slot: rooms.next_slot() };
        let booking = Booking { grant, job: ask.job, node, resources };
        match rule {
            Rule::Share { .. } => rooms.claim_beyond(booking)?,
            _ => rooms.claim(booking)?,
        }
        self.new.iter_mut().for_each(|new| new.push((booking, rule)));
        self.next += 1;
        // The master of the node's cluster seals the launches that it passes on.
        let generation = Generation::default();
        self.made.push(Grant { id: grant, ask, node, rule, passed_over, generation, prediction, shared_gpu: None });
        Ok(grant)
    }

    /// In the order of the numbers: a cluster's master refuses a number below one that it has seen.
    fn announce(&mut self, out: &mut Outbox) {
        for grants in self.made.chunk_by(|a, b| a.ask.job == b.ask.job) {
            out.send(grants[0].ask.job, ToJobManager::Granted { grants: grants.to_vec() });
        }
        self.made.clear();
    }
}
