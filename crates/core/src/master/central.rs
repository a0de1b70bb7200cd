//! Duty: schedule centrally. Something changed, so the scheduler is asked; on events at once, or on heartbeats only.

use super::{Decide, Master};
use crate::policy::NewAllowance;
use crate::protocol::{Address, Ask, ToJobManager};
use crate::role::{Outbox, Record};
use crate::vocabulary::{Duration, GrantId, Instant, JobId, JobWork, NodeId, Totals};
use std::num::NonZeroU32;

impl Master {
    pub(super) fn on_demand(&mut self, now: Instant, job: JobId, asks: &[Ask], work: &JobWork, out: &mut Outbox) {
        self.scheduler.set_margins(self.calibration.margins());
        self.scheduler.on_work(job, work);
        for ask in asks {
            self.scheduler.on_ask(now, ask, &mut self.ledger);
        }
        self.decide(now, &[], out);
    }

    /// Now and then, who waits here for longer than was foretold.
    pub(super) fn count_late(&mut self, now: Instant) {
        const EVERY: Duration = Duration::from_secs(1);
        if now.since(self.looked_for_late_at) >= EVERY {
            self.looked_for_late_at = now;
            self.scheduler.late(now, &mut |late| self.calibration.on_late(&late));
        }
    }

    pub(super) fn on_freed(&mut self, now: Instant, from: Address, grants: &[GrantId], out: &mut Outbox) {
        let mut nodes = Vec::with_capacity(1);
        for &grant in grants {
            let Some(booking) = self.ledger.free(grant) else {
                out.record(Record::StaleGrant { from, grant });
                continue;
            };
            self.scheduler.on_freed(now, booking.job, booking.resources);
            if !nodes.contains(&booking.node) {
                nodes.push(booking.node);
            }
        }
        self.decide(now, &nodes, out);
    }

    /// Tells job managers what their jobs are entitled to and may have now, where that has changed and they keep to it.
    pub(super) fn tell_shares(&mut self, out: &mut Outbox) {
        for (job, share) in self.scheduler.new_shares() {
            out.send(job, ToJobManager::Share { share: Box::new(share) });
        }
        for (job, told) in self.scheduler.new_allowances() {
            let NewAllowance { number, answers, allowance, .. } = told;
            out.send(job, ToJobManager::Allowance { number, answers, allowance: Box::new(allowance) });
        }
    }

    /// What a job is entitled to that begins now: it is told with its beginning, and the others that it changes theirs.
    pub(super) fn share_at_begin(&mut self, job: JobId, out: &mut Outbox) -> Option<Box<Totals>> {
        let mut own = None;
        for (other, share) in self.scheduler.new_shares() {
            if other == job {
                own = Some(Box::new(share));
            } else {
                out.send(other, ToJobManager::Share { share: Box::new(share) });
            }
        }
        own
    }

    /// Some asks have held out for room near their input for long enough.
    pub(super) fn on_delays(&mut self, now: Instant, out: &mut Outbox) {
        if self.scheduler.widen(now, &mut self.ledger) {
            self.decide(now, &[], out);
        }
    }

    /// Gives away the room on `nodes`, then tries what is new everywhere.
    pub(super) fn decide(&mut self, now: Instant, nodes: &[NodeId], out: &mut Outbox) {
        if self.settings.decide == Decide::OnEvents {
            self.fill(now, nodes, None, out);
            self.fill_cluster(now, out);
        }
    }

    /// In heartbeat mode, a node's report is the moment at which its room is given away.
    pub(super) fn decide_on_heartbeat(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if let Decide::OnHeartbeats { most } = self.settings.decide {
            self.fill(now, &[node], most.map(NonZeroU32::get), out);
        }
    }

    fn fill(&mut self, now: Instant, nodes: &[NodeId], most: Option<u32>, out: &mut Outbox) {
        let Master { scheduler, ledger, claims, .. } = self;
        for &node in nodes {
            scheduler.fill_node(now, node, most, ledger, &mut |ledger, proposal| claims.confirm(ledger, proposal));
        }
        claims.announce(out);
    }

    fn fill_cluster(&mut self, now: Instant, out: &mut Outbox) {
        let Master { scheduler, ledger, claims, .. } = self;
        let blocked = scheduler.fill_cluster(now, ledger, &mut |ledger, proposal| claims.confirm(ledger, proposal));
        claims.announce(out);
        for ask in blocked {
            if let Some(why) = self.scheduler.explain_blocked(ask, &self.ledger) {
                out.record(Record::Blocked { job: ask.job, why });
            }
        }
    }
}
