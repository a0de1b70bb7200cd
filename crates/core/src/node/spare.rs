//! Spare room. A node reports it to the master, so that tasks that wait elsewhere come here. It also offers the room to
//! opportunistic attempts that have run for long, so that they are no longer preempted.

use super::conflicts::shed_because;
use super::{Attempt, NodeAgent};
use crate::protocol::{TheMaster, ToMaster};
use crate::role::Outbox;
use crate::vocabulary::{AttemptId, Duration, Instant, NodeId, Resources, Totals};

/// The rules for spare room, and what was reported and offered last.
pub(super) struct Spare {
    /// Minimum time between two reports that are not sent with a node report. `None`: spare room is not reported.
    report_every: Option<Duration>,
    /// How long an attempt has run before it is offered for promotion. `None`: none is offered.
    offer_after: Option<Duration>,
    reported_at: Option<Instant>,
    /// When to check next whether there is spare room to report.
    due: Option<Instant>,
    /// The attempt that was offered last. The next offer is for the attempt after it.
    offered: Option<(Instant, AttemptId)>,
}

impl Spare {
    pub(super) fn new(report_every: Option<Duration>, offer_after: Option<Duration>) -> Spare {
        Spare { report_every, offer_after, reported_at: None, due: None, offered: None }
    }

    /// An attempt has ended. If its room is for opportunistic work and nothing here needs it, it is reported soon.
    pub(super) fn on_room_grew(&mut self, now: Instant) {
        if let Some(interval) = self.report_every {
            self.due = Some(self.reported_at.map_or(now, |at| now.max(at + interval)));
        }
    }

    /// Whether spare room is reported, or attempts are offered, with each report.
    pub(super) fn says_something(&self) -> bool {
        self.report_every.is_some() || self.offer_after.is_some()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|at| at <= now)
    }

    /// The check that was due is made. Returns whether spare room is reported at all; the next check follows when the room grows.
    fn start_check(&mut self) -> bool {
        self.due = None;
        self.report_every.is_some()
    }

    fn on_reported(&mut self, now: Instant) {
        self.reported_at = Some(now);
    }

    /// The next attempt in turn among these, which are in the order in which they are offered.
    fn next_offer(&mut self, those: &[(Instant, AttemptId)]) -> Option<AttemptId> {
        let next = those.iter().find(|one| self.offered.is_none_or(|last| **one > last)).or(those.first()).copied();
        self.offered = next;
        next.map(|(_, attempt)| attempt)
    }
}

impl NodeAgent {
    pub(super) fn report_spare(&mut self, now: Instant, out: &mut Outbox) {
        let is_wanted = self.queue.has_opportunistic() || self.attempts.is_any_yielding();
        if !self.spare.start_check() || !self.is_welcomed() || is_wanted {
            return;
        }
        let spare = self.room.spare();
        if !spare.is_zero() {
            self.spare.on_reported(now);
            out.send(TheMaster, ToMaster::Room { spare: Box::new(spare) });
        }
    }

    /// Hands over waiting attempts that may run anywhere and fit into another node's room, starting with the one that
    /// would start last here.
    pub(super) fn on_move(&mut self, now: Instant, to: NodeId, mut room: Resources, out: &mut Outbox) {
        loop {
            let attempts = &self.attempts;
            let may_go = |id: AttemptId| attempts.get(&id).is_some_and(|one| one.template.anywhere);
            let Some((attempt, resources)) = self.queue.hand_over(&room, may_go) else { break };
            room = room.saturating_sub(&resources);
            self.finish_for(now, attempt, shed_because("another node had room".to_owned()), Some(to), out);
        }
        let (left, queued, expected_wait) = (Box::new(room), self.queue.len() as u32, self.queue.expected_work());
        out.send(TheMaster, ToMaster::Moved { to, left, queued, expected_wait });
    }

    /// Offers room that no grant holds to an opportunistic attempt that has run for so long that stopping it would be a
    /// waste. The attempt that has run for longest is offered first, then the others in turn if an offer is not
    /// accepted. The master accepts if no other job needs the room and no limit forbids it.
    pub(super) fn offer_promotion(&mut self, now: Instant, out: &mut Outbox) {
        let Some(offer_after) = self.spare.offer_after else { return };
        let mut booked = Totals::ZERO;
        let of_grants = self.live().filter(|live| live.grant.is_some());
        of_grants.for_each(|live| booked.add(&live.resources));
        let room = booked.left_of(self.room.capacity());
        let is_offered = |entry: &Attempt| {
            entry.is_preemptible()
                && now.since(entry.since) >= offer_after
                && entry.template.shape.resources.fits_in(&room)
        };
        let those = self.attempts.running().filter(|(_, entry)| is_offered(entry));
        let mut those: Vec<(Instant, AttemptId)> = those.map(|(id, entry)| (entry.since, id)).collect();
        those.sort_unstable();
        if let Some(attempt) = self.spare.next_offer(&those) {
            let resources = Box::new(self.attempts[&attempt].template.shape.resources);
            out.send(TheMaster, ToMaster::Promote { attempt, node: self.node, resources });
        }
    }
}
