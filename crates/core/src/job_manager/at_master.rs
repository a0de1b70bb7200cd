//! The job at its master: what the master has reported to the job manager, and the reports to it.

use super::work::WorkLeft;
use crate::vocabulary::{Epoch, GrantId, Totals};

pub(super) struct AtMaster {
    /// Epoch of the master that counts the asks now.
    epoch: Epoch,
    /// The job's share of the cluster, once the master has reported it.
    share: Option<Box<Totals>>,
    pub(super) work: WorkLeft,
}

impl AtMaster {
    pub(super) fn new(work: WorkLeft) -> AtMaster {
        AtMaster { epoch: Epoch(0), share: None, work }
    }

    /// A master is connected that may be another one. It gets new reports.
    pub(super) fn on_connected(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.work.restart();
    }

    /// Whether the grant is from an earlier master, and the present one does not know it.
    pub(super) fn is_unknown(&self, grant: GrantId) -> bool {
        grant.epoch < self.epoch
    }

    pub(super) fn set_share(&mut self, share: Box<Totals>) {
        self.share = Some(share);
    }

    /// The job's share; `None` before the master has reported it.
    pub(super) fn share(&self) -> Option<&Totals> {
        self.share.as_deref()
    }

    /// The job's share; nothing before the master has reported it.
    pub(super) fn share_or_nothing(&self) -> Totals {
        self.share().copied().unwrap_or(Totals::ZERO)
    }
}
