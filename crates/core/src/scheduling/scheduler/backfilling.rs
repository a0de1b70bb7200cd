//! Run times tell when reserved nodes are needed. Until then other tasks run there (Lifka 1995, EASY; Mualem and Feitelson 2001,
//! section 2.2).
//!
//! The time is a promise. It may become earlier, and it becomes later only once it was not kept: because a task ran for longer than
//! expected, or a node was lost. Then only tasks whose time limits end in time run on the nodes, so a gang is delayed by wrong
//! predictions once.

use super::gangs::nodes_with_most_room;
use super::{Confirm, Reservation, Scheduler};
use crate::policy::{AskSlot, NextAsk};
use crate::protocol::Rule;
use crate::scheduling::request_queue::OpenRequest;
use crate::scheduling::{Booking, Ledger};
use crate::vocabulary::{Duration, GrantId, Instant, NodeId, Resources};
use std::collections::BTreeMap;

/// When bookings end, as far as that is known.
#[derive(Default)]
pub(super) struct Ends {
    /// By the slot of the grant.
    known: Vec<(GrantId, Known)>,
}

/// When a booking ends.
#[derive(Clone, Copy, Default)]
struct Known {
    end: Instant,
    /// When its task is stopped.
    latest: Option<Instant>,
}

impl Ends {
    pub(super) fn set(&mut self, grant: GrantId, end: Option<Instant>, latest: Option<Instant>) {
        let slot = grant.slot as usize;
        if self.known.len() <= slot {
            self.known.resize(slot + 1, (GrantId::default(), Known::default()));
        }
        self.known[slot] = end.map_or_else(Default::default, |end| (grant, Known { end, latest }));
    }

    /// When the booking is expected to end; `None` if only its time limit is known.
    pub(super) fn expected(&self, grant: GrantId, now: Instant) -> Option<Instant> {
        let (_, known) = self.known.get(grant.slot as usize)?;
        self.of(grant, now).filter(|_| known.latest != Some(known.end))
    }

    /// `None` if that is not known. A task that runs for longer than expected takes as long again as it is late, or until it is
    /// stopped.
    fn of(&self, grant: GrantId, now: Instant) -> Option<Instant> {
        let (_, known) = self.known.get(grant.slot as usize).filter(|(known, _)| *known == grant)?;
        if known.end > now {
            return Some(known.end);
        }
        let again = now + now.since(known.end).max(Duration::from_secs(1));
        Some(known.latest.filter(|latest| *latest > now).map_or(again, |latest| latest.min(again)))
    }
}

/// When the reserved nodes are needed, and for how much.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    by: Instant,
    /// An earlier promise to the same ask was not kept.
    is_late: bool,
    /// By node, in the order of the reservation: for how many tasks room is kept.
    tasks: Vec<u32>,
}

/// A reserved node.
struct KeptNode {
    node: NodeId,
    /// What is free now.
    room: Resources,
    /// What is free now and not needed later either.
    spare: Resources,
}

/// How many tasks of a shape have room.
struct Rooms {
    /// On reserved nodes.
    until_needed: u64,
    spare: u64,
    /// On other nodes: up to how many were searched, and how many were found.
    elsewhere: Option<(u64, u64)>,
}

impl Scheduler {
    /// Maximum number of waiting asks that are tried on reserved nodes in one event.
    const EXAMINED_FOR_BACKFILLING: usize = 256;
    /// Least number of nodes that are examined to find those that have room for a gang first; more if these could not hold it four
    /// times.
    const EXAMINED_FOR_PROMISE: usize = 1_024;
    /// Reserved nodes are examined at most once in this time for each of them; at the latest with the next review of nodes.
    const BACKFILLED_AFTER_FOR_EACH: Duration = Duration::from_micros(10);

    /// Of the nodes that are examined, those that have room for all tasks of a gang, or for one task, at the earliest time; in
    /// ascending order. `None` if too little is known of when tasks end.
    pub(super) fn promised_nodes(&self, now: Instant, ask: AskSlot, ledger: &Ledger) -> Option<Reservation> {
        let ends = self.ends.as_ref()?;
        let request = self.queue.ask(ask);
        let wanted = if request.is_gang { request.open() } else { 1 };
        let mut found: Vec<(Instant, NodeId, u32)> = Vec::new();
        let (mut examined, mut could_hold) = (0, 0);
        let is_counted = self.reservable(ask, ledger);
        for (node, most) in nodes_with_most_room(request, ledger, &is_counted) {
            if examined >= Self::EXAMINED_FOR_PROMISE && could_hold >= wanted.saturating_mul(4) {
                break;
            }
            (examined, could_hold) = (examined + 1, could_hold + most);
            let mut room = ledger.offer(node);
            let mut before = request.shape.times_in(&room);
            found.extend((before > 0).then_some((now, node, before)));
            let with_end = |booking: Booking| Some((ends.of(booking.grant, now)?, booking.grant, booking.resources));
            let mut ending: Vec<_> = ledger.staying_on(node).filter_map(with_end).collect();
            ending.sort_unstable();
            for (end, _, resources) in ending {
                room = sum(&room, &resources, &ledger.node_capacity(node));
                let times = request.shape.times_in(&room);
                found.extend((times > before).then(|| (end, node, times - before)));
                before = times.max(before);
            }
        }
        found.sort_unstable();
        let mut tasks: BTreeMap<NodeId, u32> = BTreeMap::new();
        let (mut left, mut by) = (wanted, now);
        for (at, node, more) in found {
            if left == 0 {
                break;
            }
            let taken = u32::try_from(left.min(u64::from(more))).expect("as small as the other one");
            *tasks.entry(node).or_default() += taken;
            (left, by) = (left - u64::from(taken), at);
        }
        let (nodes, tasks) = tasks.into_iter().unzip();
        (left == 0).then_some(Reservation { ask, nodes, promise: Some(Promise { by, is_late: false, tasks }) })
    }

    /// Runs waiting tasks on reserved nodes if they are to end before those are needed, or use what is not needed.
    pub(super) fn backfill(&mut self, now: Instant, ledger: &mut Ledger, confirm: &mut Confirm<'_>) {
        let Some(reservation) = self.reservation.as_ref().filter(|kept| kept.promise.is_some()) else {
            return self.is_backfill_due = false;
        };
        let pause = Duration(Self::BACKFILLED_AFTER_FOR_EACH.0.saturating_mul(reservation.nodes.len() as u64));
        if now.since(self.backfilled_at) < pause {
            return;
        }
        (self.backfilled_at, self.is_backfill_due) = (now, false);
        let kept_for = reservation.ask;
        let mut kept = self.kept_nodes(now, ledger);
        let mut asks = Vec::new();
        if !kept.is_empty() {
            self.inter_job.blocked(&mut |ask| {
                asks.push(ask);
                asks.len() == Self::EXAMINED_FOR_BACKFILLING
            });
        }
        let mut rooms = BTreeMap::new();
        for ask in asks.into_iter().filter(|ask| *ask != kept_for) {
            if self.may_be_backfilled(now, ask, &kept, &mut rooms, ledger) {
                self.start_until_needed(now, ask, &kept, ledger, confirm);
                // What is left of the room is not the same any more.
                (kept, rooms) = (self.kept_nodes(now, ledger), BTreeMap::new());
            }
        }
    }

    /// Whether there is room for a task of the ask, or for all of them if it is a gang, some of it on reserved nodes. The rooms for
    /// each shape are counted once.
    fn may_be_backfilled(
        &self,
        now: Instant,
        ask: AskSlot,
        kept: &[KeptNode],
        rooms: &mut BTreeMap<(u32, Resources), Rooms>,
        ledger: &mut Ledger,
    ) -> bool {
        let request = self.queue.ask(ask);
        let wanted = if request.is_gang { request.open() } else { request.open().min(1) };
        if wanted == 0 || self.inter_job.limit_on(ask).is_some() {
            return false;
        }
        let count = || {
            let reached = || kept.iter().filter(|kept| self.reaches(ask, kept.node, ledger));
            let times = |room: &Resources| u64::from(request.shape.times_in(room));
            let (until_needed, spare) =
                (reached().map(|kept| times(&kept.room)).sum(), reached().map(|kept| times(&kept.spare)).sum());
            Rooms { until_needed, spare, elsewhere: None }
        };
        let rooms = rooms.entry((request.class, request.shape)).or_insert_with(count);
        let on_kept = if self.ends_in_time(now, request) { rooms.until_needed } else { rooms.spare };
        let missing = wanted.saturating_sub(on_kept);
        if on_kept == 0 || missing == 0 {
            return on_kept > 0;
        }
        let is_known = |(most, found): (u64, u64)| most >= missing || found < most;
        if !rooms.elsewhere.is_some_and(is_known) {
            ledger.tighten();
            rooms.elsewhere = Some((missing, ledger.rooms_for(request.class, &request.shape, missing)));
        }
        rooms.elsewhere.is_some_and(|(_, found)| found >= missing)
    }

    /// Whether a task that starts now ends before the reserved nodes are needed. Once predictions were wrong, only its time limit counts.
    fn ends_in_time(&self, now: Instant, request: &OpenRequest) -> bool {
        let Some(promise) = self.reservation.as_ref().and_then(|kept| kept.promise.as_ref()) else { return false };
        let (end, latest) = request.ends(now);
        let end = if promise.is_late { latest } else { end };
        end.is_some_and(|end| end <= promise.by)
    }

    /// Starts as many tasks of the ask on reserved nodes as have room; all of a gang, on other nodes, too.
    fn start_until_needed(
        &mut self,
        now: Instant,
        ask: AskSlot,
        kept: &[KeptNode],
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) {
        let request = self.queue.ask(ask);
        let (shape, is_gang, in_time) = (request.shape, request.is_gang, self.ends_in_time(now, request));
        let choice = NextAsk { ask, passed_over: 0, parked: true };
        for kept in kept {
            if !self.reaches(ask, kept.node, ledger) {
                continue;
            }
            let room = if in_time { &kept.room } else { &kept.spare };
            for _ in 0..shape.times_in(room) {
                // The limits of a gang were compared with all of it.
                if self.queue.ask(ask).open() == 0 || !is_gang && self.inter_job.limit_on(ask).is_some() {
                    return;
                }
                if self.grant(now, choice, kept.node, Rule::Backfilled, ledger, confirm).is_err() {
                    return;
                }
            }
        }
        while is_gang && self.queue.ask(ask).open() > 0 {
            if !self.place_one(now, choice, Rule::Backfilled, ledger, confirm) {
                return;
            }
        }
    }

    /// The reserved nodes on which something is free.
    fn kept_nodes(&self, now: Instant, ledger: &Ledger) -> Vec<KeptNode> {
        let Some(reservation) = &self.reservation else { return Vec::new() };
        let Some(promise) = &reservation.promise else { return Vec::new() };
        let shape = &self.queue.ask(reservation.ask).shape;
        let ends = |booking: &Booking| self.ends.as_ref().and_then(|ends| ends.of(booking.grant, now));
        let of_node = |(&node, &tasks): (&NodeId, &u32)| {
            let room = ledger.offer(node);
            let ending = ledger.staying_on(node).filter(|booking| ends(booking).is_some_and(|end| end <= promise.by));
            let capacity = ledger.node_capacity(node);
            let later = ending.fold(room, |room, booking| sum(&room, &booking.resources, &capacity));
            let spare = less(&later, shape, tasks);
            KeptNode { node, room, spare: Resources(std::array::from_fn(|kind| room.0[kind].min(spare.0[kind]))) }
        };
        let with_room =
            reservation.nodes.iter().zip(&promise.tasks).filter(|(node, _)| !ledger.offer(**node).is_zero());
        with_room.map(of_node).collect()
    }

    /// Looks for nodes that are free earlier than those that are reserved, and if those are not free in time, for others.
    pub(super) fn advance_promise(&mut self, now: Instant, ledger: &mut Ledger) {
        let Some(Reservation { ask, promise, .. }) = &self.reservation else { return };
        let (ask, was_late) = (*ask, promise.as_ref().is_some_and(|promise| promise.is_late));
        let by = promise.as_ref().map(|promise| promise.by);
        let Some(mut found) = self.promised_nodes(now, ask, ledger) else { return };
        let Some(promise) = &mut found.promise else { return };
        let is_late = by.is_some_and(|by| by < now);
        // All waiting asks are tried again when nodes leave the reservation, so it has to be worth that.
        let is_earlier = by.is_none_or(|by| promise.by + Duration(by.since(now).0 / 8) < by);
        if is_late || is_earlier {
            promise.is_late = was_late || is_late;
            self.end_reservation(ledger);
            self.reserve(found, ledger);
        }
    }
}

fn sum(one: &Resources, other: &Resources, most: &Resources) -> Resources {
    Resources(std::array::from_fn(|kind| one.0[kind].saturating_add(other.0[kind]).min(most.0[kind])))
}

/// What is left without this many tasks.
fn less(from: &Resources, shape: &Resources, tasks: u32) -> Resources {
    Resources(std::array::from_fn(|kind| from.0[kind].saturating_sub(shape.0[kind].saturating_mul(tasks))))
}
