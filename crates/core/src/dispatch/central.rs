//! Runs the scheduler when something has changed: on events at once, or on heartbeats only.

use super::{Confirmation, Decide, Dispatcher};
use crate::policy::NewAllowance;
use crate::protocol::{Address, Ask, ToJobManager};
use crate::role::{Outbox, Record};
use crate::scheduling::Booking;
use crate::vocabulary::{Duration, GrantId, Instant, JobId, JobWork, NodeId, Totals};
use std::num::NonZeroU32;

impl Dispatcher {
    pub fn on_demand(
        &mut self,
        now: Instant,
        job: JobId,
        asks: &[Ask],
        work: &JobWork,
        claims: &mut dyn Confirmation,
        out: &mut Outbox,
    ) {
        self.scheduler.set_margins(self.calibration.margins());
        self.scheduler.on_work(job, work);
        for ask in asks {
            self.scheduler.on_ask(now, ask, &mut self.rooms);
        }
        self.decide(now, &[], claims, out);
    }

    /// Counts, at most once per second, the tasks that wait here for longer than predicted.
    pub fn count_late(&mut self, now: Instant) {
        const EVERY: Duration = Duration::from_secs(1);
        if now.since(self.looked_for_late_at) >= EVERY {
            self.looked_for_late_at = now;
            self.scheduler.late(now, &mut |late| self.calibration.on_late(&late));
        }
    }

    /// Frees these grants as far as they belong to the sender. Returns the nodes that have more room now.
    pub fn free(&mut self, now: Instant, from: Address, grants: &[GrantId], out: &mut Outbox) -> Vec<NodeId> {
        let mut nodes = Vec::with_capacity(1);
        let may_free = |booking: &Booking| match from {
            Address::Node(node) => booking.node == node,
            Address::JobManager(job) => booking.job == job,
            _ => true,
        };
        for &grant in grants {
            let own = self.rooms.booking(grant).filter(may_free);
            let Some(booking) = own.and_then(|booking| self.rooms.free(booking.grant)) else {
                out.record(Record::StaleGrant { from, grant });
                continue;
            };
            self.scheduler.on_freed(now, &booking);
            if !nodes.contains(&booking.node) {
                nodes.push(booking.node);
            }
        }
        nodes
    }

    /// Frees the grants, and assigns their room.
    pub(super) fn take_back(
        &mut self,
        now: Instant,
        from: Address,
        grants: &[GrantId],
        claims: &mut dyn Confirmation,
        out: &mut Outbox,
    ) {
        let nodes = self.free(now, from, grants, out);
        self.decide(now, &nodes, claims, out);
    }

    /// Attempts with these grants have ended. `unfinished`: none has succeeded.
    pub fn note_ended(&mut self, now: Instant, grants: &[GrantId], unfinished: bool) {
        for grant in grants {
            let Some(booking) = self.rooms.booking(*grant) else { continue };
            self.scheduler.on_ended(now, &booking, unfinished, &mut self.rooms);
        }
    }

    /// Sends job managers what their jobs are entitled to and may hold now, if that has changed and applies to them.
    pub fn report_shares(&mut self, out: &mut Outbox) {
        for (job, share) in self.scheduler.new_shares() {
            out.send(job, ToJobManager::Share { share: Box::new(share) });
        }
        for (job, NewAllowance { number, answers, allowance, .. }) in self.scheduler.new_allowances() {
            out.send(job, ToJobManager::Allowance { number, answers, allowance: Box::new(allowance) });
        }
    }

    /// The share of a job that starts now, which is sent with its start. Other jobs whose shares change are sent
    /// theirs.
    pub(super) fn share_at_start(&mut self, job: JobId, out: &mut Outbox) -> Option<Box<Totals>> {
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

    /// Places asks that have waited long enough for room near their input, or for work of others beyond what those are
    /// entitled to.
    pub fn on_delays(&mut self, now: Instant, claims: &mut dyn Confirmation, out: &mut Outbox) {
        let is_due = self.scheduler.next_slow_offer().is_some_and(|at| at <= now);
        if self.scheduler.widen(now, &mut self.rooms) || is_due {
            self.decide(now, &[], claims, out);
        }
        if self.scheduler.next_reclaim().is_some_and(|at| at <= now) {
            self.reclaim(now, claims, out);
        }
    }

    /// Assigns the room on `nodes`, then tries new asks on all nodes.
    pub fn decide(&mut self, now: Instant, nodes: &[NodeId], claims: &mut dyn Confirmation, out: &mut Outbox) {
        if self.settings.decide == Decide::OnEvents {
            self.fill(now, nodes, None, claims, out);
            self.fill_cluster(now, false, claims, out);
            self.reclaim(now, claims, out);
        }
    }

    /// Preempts work of jobs beyond what they are entitled to for tasks that wait, if it is time.
    fn reclaim(&mut self, now: Instant, claims: &mut dyn Confirmation, out: &mut Outbox) {
        let Dispatcher { scheduler, rooms, .. } = self;
        scheduler.reclaim(now, rooms, &mut |rooms, proposal, may_be_preempted| {
            claims.confirm_instead(rooms, proposal, may_be_preempted)
        });
        claims.announce(out);
    }

    /// In heartbeat mode, the room of a node is assigned when it reports.
    pub fn decide_on_heartbeat(&mut self, now: Instant, node: NodeId, claims: &mut dyn Confirmation, out: &mut Outbox) {
        if let Decide::OnHeartbeats { most } = self.settings.decide {
            self.fill(now, &[node], most.map(NonZeroU32::get), claims, out);
            // One node alone is not enough for a gang.
            self.fill_cluster(now, true, claims, out);
            self.reclaim(now, claims, out);
        }
    }

    fn fill(
        &mut self,
        now: Instant,
        nodes: &[NodeId],
        most: Option<u32>,
        claims: &mut dyn Confirmation,
        out: &mut Outbox,
    ) {
        let Dispatcher { scheduler, rooms, .. } = self;
        for &node in nodes {
            scheduler.fill_node(now, node, most, rooms, &mut |rooms, proposal| claims.confirm(rooms, proposal));
        }
        claims.announce(out);
    }

    fn fill_cluster(&mut self, now: Instant, only_gangs: bool, claims: &mut dyn Confirmation, out: &mut Outbox) {
        let Dispatcher { scheduler, rooms, .. } = self;
        let blocked =
            scheduler.fill_cluster(now, only_gangs, rooms, &mut |rooms, proposal| claims.confirm(rooms, proposal));
        claims.announce(out);
        for ask in blocked {
            if let Some(why) = self.scheduler.explain_blocked(ask, &self.rooms) {
                out.record(Record::Blocked { job: ask.job, why });
            }
        }
    }
}
