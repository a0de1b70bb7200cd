//! Nobody's turn: job managers place all tasks themselves and are only told what their jobs are entitled to.

use super::QueueTree;
use super::shares::Shares;
use crate::policy::{AskSlot, Choice, DemandChange, InterJobPolicy, JobSlot, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, Resources, Totals};
use crate::why::Why;

pub struct Entitlement(Shares);

impl Entitlement {
    pub fn new(tree: QueueTree) -> Entitlement {
        Entitlement(Shares::new(tree))
    }
}

impl InterJobPolicy for Entitlement {
    fn on_change(&mut self, change: &DemandChange) {
        self.0.on_change(change);
    }

    fn share(&self, job: JobSlot) -> Totals {
        self.0.of(job)
    }

    fn new_shares(&mut self) -> Vec<JobSlot> {
        self.0.review()
    }

    fn next(&mut self, _: &Offer<'_>) -> Option<Choice> {
        None
    }

    fn outcome(&mut self, _: AskSlot, _: Outcome) {}

    fn first_blocked(&self) -> Option<AskSlot> {
        None
    }

    fn limit_on(&self, _: AskSlot) -> Option<Why> {
        None
    }

    fn limit_for(&self, _: JobSlot, _: &Resources) -> Option<Why> {
        None
    }

    fn ahead_of(&self, _: AskSlot) -> Option<(u32, JobId)> {
        None
    }

    fn rule(&self) -> Rule {
        Rule::DominantShare
    }

    fn queue_usage(&self, _: QueueId) -> QueueUsage {
        QueueUsage::default()
    }
}
