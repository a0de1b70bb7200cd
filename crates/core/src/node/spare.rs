//! Room that is over: a node tells the master of it, so that what waits elsewhere comes here, and offers it to what has run for
//! long, so that this gives way to nobody.

use super::conflicts::shed_because;
use super::{Attempt, NodeAgent};
use crate::protocol::{TheMaster, ToMaster};
use crate::role::Outbox;
use crate::vocabulary::{AttemptId, EntryId, Instant, NodeId, QueuedEntry, Resources, Totals};

#[derive(Default)]
pub(super) struct Spare {
    told_at: Option<Instant>,
    /// When it is looked at next whether there is something to tell.
    pub(super) due: Option<Instant>,
    /// The attempt that was offered room last, after which others have their turn.
    offered: Option<(Instant, AttemptId)>,
}

impl NodeAgent {
    /// Something has left: if the room is for opportunistic work and nothing here wants it, it is told of soon.
    pub(super) fn on_room_grew(&mut self, now: Instant) {
        if let Some(interval) = self.rules.tell_spare {
            self.spare.due = Some(self.spare.told_at.map_or(now, |at| now.max(at + interval)));
        }
    }

    pub(super) fn tell_spare(&mut self, now: Instant, out: &mut Outbox) {
        self.spare.due = None;
        let is_wanted = self.has_opportunistic_waiting() || self.yields.attempts > 0;
        if self.rules.tell_spare.is_none() || !self.is_welcomed() || is_wanted {
            return;
        }
        let spare = self.opportunistic_limit().smaller_of(&self.kept.left_of(&self.free));
        if !spare.is_zero() {
            self.spare.told_at = Some(now);
            out.send(TheMaster, ToMaster::Room { spare: Box::new(spare) });
        }
    }

    /// Hands over what waits, may run anywhere and fits into another node's room, beginning with what would start last here.
    pub(super) fn on_move(&mut self, now: Instant, to: NodeId, mut room: Resources, out: &mut Outbox) {
        loop {
            let attempts = &self.attempts;
            let may_go = |entry: &QueuedEntry| match entry.id {
                EntryId::Attempt(id) => {
                    entry.shape.resources.fits_in(&room) && attempts.get(&id).is_some_and(|one| one.template.anywhere)
                }
                EntryId::Probe(_) => false,
            };
            let Some(entry) = self.queue.drop_last(self.queue_policy.as_ref(), &may_go) else { break };
            let EntryId::Attempt(attempt) = entry.id else { unreachable!("no probe may go") };
            room = room.saturating_sub(&entry.shape.resources);
            self.finish_for(now, attempt, shed_because("another node had room".to_owned()), Some(to), out);
        }
        let (left, queued, expected_wait) = (Box::new(room), self.queue.len() as u32, self.queue.expected_work());
        out.send(TheMaster, ToMaster::Moved { to, left, queued, expected_wait });
    }

    /// Offers room that no grant holds to an opportunistic attempt that has run for so long that to end it would be a waste:
    /// the one that has run for longest, and one after the other where offers come to nothing. The master takes it up where
    /// nobody else wants the room and no limit stands against it.
    pub(super) fn offer_promotion(&mut self, now: Instant, out: &mut Outbox) {
        let Some(offer_after) = self.rules.offer_after else { return };
        let mut booked = Totals::ZERO;
        let of_grants = self.live().filter(|live| live.grant.is_some());
        of_grants.for_each(|live| booked.add(&live.resources));
        let room = booked.left_of(&self.capacity);
        let is_offered = |entry: &Attempt| {
            entry.gives_way() && now.since(entry.since) >= offer_after && entry.template.shape.resources.fits_in(&room)
        };
        let those = self.running_attempts().filter(|(_, entry)| is_offered(entry));
        let mut those: Vec<(Instant, AttemptId)> = those.map(|(id, entry)| (entry.since, id)).collect();
        those.sort_unstable();
        let next =
            those.iter().find(|one| self.spare.offered.is_none_or(|last| **one > last)).or(those.first()).copied();
        self.spare.offered = next;
        if let Some((_, attempt)) = next {
            let resources = Box::new(self.attempts[&attempt].template.shape.resources);
            out.send(TheMaster, ToMaster::Promote { attempt, node: self.node, resources });
        }
    }
}
