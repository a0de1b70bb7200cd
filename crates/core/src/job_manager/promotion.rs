//! Requests bookings for opportunistic attempts that have run for long, so that guaranteed work does not preempt them.

use super::JobManager;
use crate::protocol::{TheMaster, ToMaster};
use crate::role::{Change, Outbox};
use crate::vocabulary::{AttemptId, Duration, GrantId, Instant};
use std::collections::BTreeSet;

/// When attempts request a booking, and repeat the request.
#[derive(Default)]
pub(super) struct Promotions {
    /// Run time before the request; `None` if no attempt makes one.
    after: Option<Duration>,
    due: BTreeSet<(Instant, AttemptId)>,
}

impl Promotions {
    pub(super) fn after(after: Option<Duration>) -> Promotions {
        Promotions { after, due: BTreeSet::new() }
    }

    /// The process of an unbooked attempt started at this time.
    pub(super) fn on_started(&mut self, since: Instant, attempt: AttemptId) {
        if let Some(after) = self.after {
            self.due.insert((since + after, attempt));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }
}

impl JobManager {
    pub(super) fn ask_for_promotions(&mut self, now: Instant, out: &mut Outbox) {
        let Some(again) = self.own.promotions.after else { return };
        while let Some(&(at, attempt)) = self.own.promotions.due.first().filter(|(at, _)| *at <= now) {
            self.own.promotions.due.remove(&(at, attempt));
            let running = self
                .attempts
                .get(&attempt)
                .filter(|running| !running.holding().is_booked() && !self.lifecycle.is_stopping());
            let Some(running) = running else { continue };
            let resources = Box::new(self.job.resources[running.task.stage as usize]);
            out.send(TheMaster, ToMaster::Promote { attempt, node: running.node, resources });
            self.own.promotions.due.insert((now + again, attempt));
        }
    }

    pub(super) fn on_promoted(&mut self, now: Instant, attempt: AttemptId, grant: GrantId, out: &mut Outbox) {
        let Some(running) = self.attempts.get(&attempt).filter(|running| !running.holding().is_booked()) else {
            return;
        };
        let (task, node) = (running.task, running.node);
        self.book(attempt);
        out.persist(Change::Promoted { attempt, task, node, grant: Some(grant), at: now });
        // A quota may have become wider.
        self.place(now, out);
    }

    /// A ledger has booked the attempt from now on.
    pub(super) fn book(&mut self, attempt: AttemptId) {
        self.attempts.book(attempt);
    }
}
