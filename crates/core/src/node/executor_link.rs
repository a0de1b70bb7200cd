//! The connection to the executor. Nothing starts, and claims wait, until the executor has listed its attempts.

use crate::protocol::Claim;

#[derive(Default)]
pub(super) struct ExecutorLink {
    state: LinkState,
    /// Claims that arrived before the executor's list of attempts, at most one of each job.
    early_claims: Vec<Claim>,
}

#[derive(PartialEq, Eq, Default)]
enum LinkState {
    #[default]
    Down,
    /// Asked for its list of attempts.
    Asked,
    Known,
}

impl ExecutorLink {
    /// The executor is asked for its list of attempts.
    pub(super) fn on_asked(&mut self) {
        self.state = LinkState::Asked;
    }

    pub(super) fn on_disconnected(&mut self) {
        self.state = LinkState::Down;
    }

    pub(super) fn awaits_list(&self) -> bool {
        self.state == LinkState::Asked
    }

    /// The executor has listed its attempts.
    pub(super) fn on_listed(&mut self) {
        self.state = LinkState::Known;
    }

    /// Whether the agent knows what runs at the executor.
    pub(super) fn is_known(&self) -> bool {
        self.state == LinkState::Known
    }

    /// Keeps a claim until the list of attempts is here. A later claim of a job replaces an earlier one.
    pub(super) fn keep_claim(&mut self, claim: Claim) {
        self.early_claims.retain(|other| other.job != claim.job);
        self.early_claims.push(claim);
    }

    /// The claims that were kept, in the order of their arrival.
    pub(super) fn take_claims(&mut self) -> Vec<Claim> {
        std::mem::take(&mut self.early_claims)
    }
}
