//! Reservations: a large ask must not starve behind small ones.

use super::backfilling::Promise;
use super::gangs::nodes_with_most_room;
use super::reasons::closest;
use super::{Confirm, Scheduler};
use crate::policy::{AskSlot, DemandChange, NextAsk};
use crate::protocol::Rule;
use crate::scheduling::Ledger;
use crate::scheduling::request_queue::OpenRequest;
use crate::vocabulary::{AskId, Duration, Federation, GlobalId, Instant, NodeId, NodeView};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The node that is reserved for an ask; for a gang, as many as hold all of it. In ascending order.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) ask: AskSlot,
    pub(super) nodes: Vec<NodeId>,
    /// Set if it follows from run times when the nodes are needed.
    pub(super) promise: Option<Promise>,
}

/// In a federation: which nodes are reserved here first, and which by others.
pub(super) struct Federated {
    federation: Federation,
    own: GlobalId,
    /// With the time since when the task or gang has waited for which they are reserved.
    kept_by_others: BTreeMap<NodeId, Instant>,
}

impl Reservation {
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.nodes.binary_search(&node).is_ok()
    }
}

impl Scheduler {
    /// Nodes that another global master has reserved are reserved here if the ask has waited for longer than the other one, by this time
    /// at least: more than messages take.
    const OLDER_BY: Duration = Duration::from_secs(1);
    /// Maximum number of asks in one review that turn out to fit on no nodes.
    const MOST_HOPELESS: usize = 4;

    /// For a global master: it reserves nodes of its own partitions, and others only for what these could not hold if they were empty.
    pub fn reserving_first_in(self, federation: Federation, own: GlobalId) -> Scheduler {
        Scheduler { federated: Some(Federated { federation, own, kept_by_others: BTreeMap::new() }), ..self }
    }

    /// Set if another global master has reserved the node: since when the task or gang has waited for which it did. Nothing is placed
    /// there.
    pub fn note_kept_by_another(&mut self, node: NodeId, since: Option<Instant>, ledger: &mut Ledger) {
        let Some(federated) = &mut self.federated else { return };
        let Some(since) = since else {
            if federated.kept_by_others.remove(&node).is_some() {
                ledger.unreserve(node);
                self.on_room_opened();
            }
            return;
        };
        if federated.kept_by_others.insert(node, since).is_some() {
            return;
        }
        if self.reservation.as_ref().is_some_and(|kept| kept.has(node)) {
            self.end_reservation(ledger);
        }
        ledger.reserve(node);
    }

    /// Reserves a node for an ask, or nodes for a gang, of which no task has started for too long.
    pub fn review_reservation(&mut self, now: Instant, ledger: &mut Ledger) {
        let Some(reserve_after) = self.settings.reserve_after else { return };
        if let Some(kept) = &self.reservation {
            let is_of_use = |node: &NodeId| self.reaches(kept.ask, *node, ledger) && !ledger.offer_is_closed(*node);
            if self.inter_job.limit_on(kept.ask).is_none()
                && kept.nodes.iter().all(is_of_use)
                && self.could_hold(kept, ledger)
            {
                let Some(urgent) = self.for_more_urgent_gang(now, reserve_after, ledger) else {
                    return self.advance_promise(now, ledger);
                };
                self.end_reservation(ledger);
                return self.reserve(urgent, ledger);
            }
            self.end_reservation(ledger);
        }
        let changes = ledger.node_changes();
        if self.hopeless_at != changes {
            (self.hopeless_at, self.hopeless) = (changes, BTreeSet::new());
        }
        let of_gang = self.for_oldest_gang(now, reserve_after, ledger);
        let first = self.first_starved(now, reserve_after, ledger);
        // Of the two, the one that has waited longer: neither is passed over for ever.
        let age = |kept: &Reservation| self.age(kept.ask);
        let found = of_gang.into_iter().chain(first).min_by_key(age);
        if let Some(reservation) = found {
            self.reserve(reservation, ledger);
        }
    }

    pub(super) fn reserve(&mut self, reservation: Reservation, ledger: &mut Ledger) {
        for node in &reservation.nodes {
            if let Some(federated) = &mut self.federated {
                federated.kept_by_others.remove(node);
            }
            ledger.reserve(*node);
        }
        self.reservation = Some(reservation);
    }

    /// The reservation for a gang of a higher priority than that of the ask which has one.
    fn for_more_urgent_gang(&mut self, now: Instant, reserve_after: Duration, ledger: &Ledger) -> Option<Reservation> {
        let priority = |ask: AskSlot| self.queue.ask(ask).priority;
        let kept = priority(self.reservation.as_ref()?.ask);
        if !self.gangs.parked.iter().any(|ask| priority(*ask) > kept) {
            return None;
        }
        self.for_oldest_gang(now, reserve_after, ledger).filter(|found| self.queue.ask(found.ask).priority > kept)
    }

    /// Of several asks that wait, that with the smallest is first.
    fn age(&self, ask: AskSlot) -> (Reverse<i32>, Instant, AskId) {
        let request = self.queue.ask(ask);
        (Reverse(request.priority), request.waiting_since, request.id)
    }

    /// If it is known when nodes are free for it, the gang of the highest priority that has waited for the longest time gets a
    /// reservation, whatever the order of the others is: they use the nodes until then. In a federation it gets one in any case: when
    /// the tasks of other global masters end is never known.
    fn for_oldest_gang(&mut self, now: Instant, reserve_after: Duration, ledger: &Ledger) -> Option<Reservation> {
        self.ends.as_ref()?;
        let has_waited = |ask: &AskSlot| now.since(self.queue.ask(*ask).waiting_since) >= reserve_after;
        let may_start = |ask: &AskSlot| !self.hopeless.contains(ask) && self.inter_job.limit_on(*ask).is_none();
        let mut waiting: Vec<AskSlot> =
            self.gangs.parked.iter().copied().filter(|ask| has_waited(ask) && may_start(ask)).collect();
        waiting.sort_unstable_by_key(|ask| self.age(*ask));
        for ask in waiting.into_iter().take(Self::MOST_HOPELESS) {
            let unknown = || self.federated.as_ref().and_then(|_| self.unpromised_nodes(ask, ledger));
            let found = self.promised_nodes(now, ask, ledger).or_else(unknown);
            if found.is_some() {
                return found;
            }
            if self.nodes_to_keep(ask, ledger, false).is_none() {
                self.hopeless.insert(ask);
            }
        }
        None
    }

    /// The reservation for the first ask in the policy's order, if it has waited for too long. (An ask further back is not
    /// starved: it waits for the asks before it. It is considered only if the present nodes could not hold the asks before it
    /// even if they were empty.)
    fn first_starved(&mut self, now: Instant, reserve_after: Duration, ledger: &Ledger) -> Option<Reservation> {
        let (mut found, mut hopeless) = (None, Vec::new());
        self.inter_job.blocked(&mut |ask| {
            if self.hopeless.contains(&ask) || !self.queue.ask(ask).has_tasks() {
                return false;
            }
            if now.since(self.queue.ask(ask).waiting_since) < reserve_after {
                return true;
            }
            found = self.reservation_for(now, ask, ledger);
            // Nodes that are drained or not connected may return soon, and this ask has priority.
            if found.is_some() || self.nodes_to_keep(ask, ledger, false).is_some() {
                return true;
            }
            hopeless.push(ask);
            hopeless.len() == Self::MOST_HOPELESS
        });
        self.hopeless.extend(hopeless);
        found
    }

    fn reservation_for(&self, now: Instant, ask: AskSlot, ledger: &Ledger) -> Option<Reservation> {
        self.promised_nodes(now, ask, ledger).or_else(|| self.unpromised_nodes(ask, ledger))
    }

    fn unpromised_nodes(&self, ask: AskSlot, ledger: &Ledger) -> Option<Reservation> {
        self.nodes_to_keep(ask, ledger, true).map(|nodes| Reservation { ask, nodes, promise: None })
    }

    /// The nodes that could hold the ask once they are free, and all of its tasks if it is a gang; among the nodes that
    /// take work, or among all that are not lost.
    fn nodes_to_keep(&self, ask: AskSlot, ledger: &Ledger, are_open: bool) -> Option<Vec<NodeId>> {
        let may_be_reserved = self.reservable(ask, ledger);
        let is_counted = |node: NodeId| !are_open || may_be_reserved(node);
        let request = self.queue.ask(ask);
        if request.is_gang {
            return self.nodes_for_gang(ask, ledger, &is_counted);
        }
        let could_hold = |view: &NodeView| request.shape.fits_in(&view.capacity) && is_counted(view.node);
        closest(ledger, request.class, &request.shape, &could_hold).map(|node| vec![node])
    }

    /// A node with room for a task of the request that another global master has reserved.
    pub(super) fn kept_by_another(&self, request: &OpenRequest, ledger: &Ledger) -> Option<Why> {
        let has_room = |node: &&NodeId| {
            ledger.classes().meets(request.class, ledger.index(**node)) && request.shape.fits_in(&ledger.offer(**node))
        };
        let node = *self.federated.as_ref()?.kept_by_others.keys().find(has_room)?;
        Some(Why::ReservedElsewhere { node })
    }

    pub(super) fn is_kept_by_another(&self, node: NodeId) -> bool {
        self.federated.as_ref().is_some_and(|federated| federated.kept_by_others.contains_key(&node))
    }

    /// Whether a node takes work and may be reserved for the ask.
    pub(super) fn reservable<'a>(&'a self, ask: AskSlot, ledger: &'a Ledger) -> impl Fn(NodeId) -> bool + 'a {
        let federated = self.federated.as_ref();
        let is_in_partition = move |node: NodeId| federated.is_none_or(|it| it.federation.internal_to(node) == it.own);
        let request = self.queue.ask(ask);
        let wanted = if request.is_gang { request.open() } else { 1 };
        let is_open_in_partition = |node: NodeId| is_in_partition(node) && !ledger.offer_is_closed(node);
        let own_suffices = federated.is_none() || {
            let own = nodes_with_most_room(request, ledger, &is_open_in_partition);
            own.map(|(_, most)| most).sum::<u64>() >= wanted
        };
        let is_older_than = move |since: &Instant| request.waiting_since + Self::OLDER_BY < *since;
        move |node: NodeId| {
            (!own_suffices || is_in_partition(node))
                && !ledger.offer_is_closed(node)
                && federated.is_none_or(|it| it.kept_by_others.get(&node).is_none_or(is_older_than))
        }
    }

    /// Whether the ask may use the node; it may wait for room near its input again.
    pub(super) fn reaches(&self, ask: AskSlot, node: NodeId, ledger: &Ledger) -> bool {
        ledger.classes().meets(self.queue.ask(ask).class, ledger.index(node))
    }

    pub(super) fn try_reservation(
        &mut self,
        now: Instant,
        ask: AskSlot,
        node: NodeId,
        most: Option<u32>,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) {
        let shape = self.queue.ask(ask).shape;
        let fits = shape.fits_in(&ledger.offer(node)) && self.reaches(ask, node, ledger);
        if !fits || self.inter_job.limit_on(ask).is_some() {
            return;
        }
        let choice = NextAsk { ask, passed_over: 0, parked: false };
        if self.grant(now, choice, node, Rule::Reservation, ledger, confirm).is_ok() {
            self.end_reservation(ledger);
            self.fill_node(now, node, most.map(|most| most - 1), ledger, confirm);
        }
    }

    pub(super) fn is_kept_for(&self, ask: AskSlot) -> bool {
        self.reservation.as_ref().is_some_and(|kept| kept.ask == ask)
    }

    /// Ends the reservation if its ask has found room elsewhere or is not needed any more.
    pub(super) fn end_reservation_if_unwanted(&mut self, ask: AskSlot, ledger: &mut Ledger) {
        if self.is_kept_for(ask) && !self.queue.ask(ask).has_tasks() {
            self.end_reservation(ledger);
        }
    }

    /// Shows the room of the reserved nodes to searches again.
    pub(super) fn end_reservation(&mut self, ledger: &mut Ledger) {
        if let Some(reservation) = self.reservation.take() {
            reservation.nodes.into_iter().for_each(|node| ledger.unreserve(node));
            self.inter_job.on_change(&DemandChange::RoomOpened);
        }
    }

    /// Whether nodes are reserved at all.
    pub fn reserves(&self) -> bool {
        self.settings.reserve_after.is_some()
    }

    /// Since when the ask has waited for which nodes are reserved.
    pub fn reserved_since(&self) -> Option<Instant> {
        self.reservation.as_ref().map(|kept| self.queue.ask(kept.ask).waiting_since)
    }

    /// The nodes that are reserved for some ask, in ascending order.
    pub fn reserved_nodes(&self) -> &[NodeId] {
        self.reservation.as_ref().map_or(&[], |kept| &kept.nodes)
    }
}
