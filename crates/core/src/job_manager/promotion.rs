//! Requests bookings for opportunistic attempts that have run for long, so that guaranteed work does not preempt them.

use super::JobManager;
use crate::protocol::{TheMaster, ToMaster};
use crate::role::{Change, Outbox};
use crate::vocabulary::{AttemptId, Duration, GrantId, Instant};
use std::collections::BTreeSet;

/// When attempts request a booking, and repeat the request.
pub(super) struct Promotions {
    /// Run time before the request, and between two requests.
    after: Duration,
    due: BTreeSet<(Instant, AttemptId)>,
}

impl Promotions {
    pub(super) fn after(after: Duration) -> Promotions {
        Promotions { after, due: BTreeSet::new() }
    }

    /// The process of an unbooked attempt started at this time.
    pub(super) fn on_started(&mut self, since: Instant, attempt: AttemptId) {
        self.due.insert((since + self.after, attempt));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn take_due(&mut self, now: Instant) -> Option<AttemptId> {
        let &(at, attempt) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.remove(&(at, attempt));
        Some(attempt)
    }

    /// The attempt requests a booking now; the request may be refused.
    fn on_requested(&mut self, now: Instant, attempt: AttemptId) {
        self.due.insert((now + self.after, attempt));
    }
}

impl JobManager {
    pub(super) fn ask_for_promotions(&mut self, now: Instant, out: &mut Outbox) {
        let Some(promotions) = self.own.promotions_mut() else { return };
        while let Some(attempt) = promotions.take_due(now) {
            let running = self
                .attempts
                .get(&attempt)
                .filter(|running| !running.holding().is_booked() && !self.lifecycle.is_stopping());
            let Some(running) = running else { continue };
            let resources = Box::new(self.job.resources[running.task.stage as usize]);
            out.send(TheMaster, ToMaster::Promote { attempt, node: running.node, resources });
            promotions.on_requested(now, attempt);
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
