//! Reservations: a large ask must not starve behind small ones.

use super::backfilling::Promise;
use super::reasons::closest;
use super::{Confirm, Scheduler};
use crate::policy::{AskSlot, DemandChange, NextAsk};
use crate::protocol::Rule;
use crate::scheduling::Ledger;
use crate::vocabulary::{AskId, Duration, Instant, NodeId, NodeView};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The node that is reserved for an ask; for a gang, as many as hold all of it. In ascending order.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) ask: AskSlot,
    pub(super) nodes: Vec<NodeId>,
    /// Set if it follows from run times when the nodes are needed.
    pub(super) promise: Option<Promise>,
}

impl Reservation {
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.nodes.binary_search(&node).is_ok()
    }
}

impl Scheduler {
    /// Maximum number of asks in one review that turn out to fit on no nodes.
    const MOST_HOPELESS: usize = 4;

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
        reservation.nodes.iter().for_each(|node| ledger.reserve(*node));
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
    /// reservation, whatever the order of the others is: they use the nodes until then.
    fn for_oldest_gang(&mut self, now: Instant, reserve_after: Duration, ledger: &Ledger) -> Option<Reservation> {
        self.ends.as_ref()?;
        let has_waited = |ask: &AskSlot| now.since(self.queue.ask(*ask).waiting_since) >= reserve_after;
        let may_start = |ask: &AskSlot| !self.hopeless.contains(ask) && self.inter_job.limit_on(*ask).is_none();
        let mut waiting: Vec<AskSlot> =
            self.gangs.parked.iter().copied().filter(|ask| has_waited(ask) && may_start(ask)).collect();
        waiting.sort_unstable_by_key(|ask| self.age(*ask));
        let is_open = |node: NodeId| !ledger.offer_is_closed(node);
        for ask in waiting.into_iter().take(Self::MOST_HOPELESS) {
            let found = self.promised_nodes(now, ask, ledger, &is_open);
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
        let is_open = |node: NodeId| !ledger.offer_is_closed(node);
        let without = || self.nodes_to_keep(ask, ledger, true).map(|nodes| Reservation { ask, nodes, promise: None });
        self.promised_nodes(now, ask, ledger, &is_open).or_else(without)
    }

    /// The nodes that could hold the ask once they are free, and all of its tasks if it is a gang; among the nodes that
    /// take work, or among all that are not lost.
    fn nodes_to_keep(&self, ask: AskSlot, ledger: &Ledger, are_open: bool) -> Option<Vec<NodeId>> {
        let is_counted = |node: NodeId| !are_open || !ledger.offer_is_closed(node);
        let request = self.queue.ask(ask);
        if request.is_gang {
            return self.nodes_for_gang(ask, ledger, &is_counted);
        }
        let could_hold = |view: &NodeView| request.shape.fits_in(&view.capacity) && is_counted(view.node);
        closest(ledger, request.class, &request.shape, &could_hold).map(|node| vec![node])
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

    /// The nodes that are reserved for some ask, in ascending order.
    pub fn reserved_nodes(&self) -> &[NodeId] {
        self.reservation.as_ref().map_or(&[], |kept| &kept.nodes)
    }
}
