//! Gangs: all open tasks of an ask get room at once, or none (ADR 54).

use super::{Confirm, Reservation, Scheduler};
use crate::policy::{AskSlot, DemandChange, NextAsk};
use crate::protocol::Rule;
use crate::scheduling::Ledger;
use crate::scheduling::request_queue::OpenRequest;
use crate::vocabulary::{Instant, NodeId, NodeViews, Resources};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Asks whose open tasks are granted all at once, and that found no room.
#[derive(Default)]
pub(super) struct Gangs {
    pub(super) parked: BTreeSet<AskSlot>,
    /// The count of growths of room when the present review of all of them started, how many are left, and the last one
    /// that was examined.
    growths: u64,
    left: usize,
    last: AskSlot,
}

impl Scheduler {
    /// Maximum number of waiting gangs that are examined in one event, after room has grown.
    const LOOKED_AT_GANGS: usize = 4;

    /// Lets the next gang that finds room for all of its tasks be scheduled again; a further one once this gang has
    /// been placed.
    pub(super) fn rouse_gangs(&mut self, ledger: &mut Ledger) {
        if self.gangs.growths != ledger.growths() {
            (self.gangs.growths, self.gangs.left) = (ledger.growths(), self.gangs.parked.len());
        }
        if self.gangs.left == 0 {
            return;
        }
        ledger.tighten();
        for _ in 0..Self::LOOKED_AT_GANGS.min(self.gangs.left) {
            let after = (std::ops::Bound::Excluded(self.gangs.last), std::ops::Bound::Unbounded);
            let next = self.gangs.parked.range(after).next().or(self.gangs.parked.first());
            let Some(&ask) = next else { return self.gangs.left = 0 };
            (self.gangs.last, self.gangs.left) = (ask, self.gangs.left - 1);
            if self.has_room_for_all(ask, &[], ledger) {
                self.gangs.parked.remove(&ask);
                return self.inter_job.on_change(&DemandChange::RoomFor { ask });
            }
        }
    }

    /// Whether all open tasks of the ask find room, including the room that is reserved on these nodes. All tasks have
    /// one shape, so no choice of nodes for the first of them leaves too little for the last.
    fn has_room_for_all(&self, ask: AskSlot, kept: &[NodeId], ledger: &Ledger) -> bool {
        let request = self.queue.ask(ask);
        let suits = |node: &&NodeId| ledger.classes().meets(request.class, ledger.index(**node));
        let on = |node: &NodeId| u64::from(request.shape.times_in(&ledger.offer(*node)));
        let on_kept: u64 = kept.iter().filter(suits).map(on).sum();
        let wanted = request.open().saturating_sub(on_kept);
        ledger.rooms_for(request.class, &request.shape, wanted) >= wanted
    }

    pub(super) fn place_gang(
        &mut self,
        now: Instant,
        choice: NextAsk,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) -> bool {
        ledger.tighten();
        let rule = self.inter_job.rule();
        self.has_room_for_all(choice.ask, &[], ledger) && self.place_all(now, choice, rule, ledger, confirm)
    }

    fn place_all(
        &mut self,
        now: Instant,
        choice: NextAsk,
        rule: Rule,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) -> bool {
        while self.queue.ask(choice.ask).open() > 0 {
            if !self.place_one(now, choice, rule, ledger, confirm) {
                return false;
            }
        }
        true
    }

    /// Places the gang once the reserved nodes have room for the tasks that find none elsewhere.
    pub(super) fn try_kept_gang(&mut self, now: Instant, ask: AskSlot, ledger: &mut Ledger, confirm: &mut Confirm<'_>) {
        let kept = self.reservation.as_ref().map_or(&[][..], |kept| &kept.nodes);
        ledger.tighten();
        if !self.has_room_for_all(ask, kept, ledger) || self.inter_job.limit_on(ask).is_some() {
            return;
        }
        self.end_reservation(ledger);
        self.gangs.parked.remove(&ask);
        let choice = NextAsk { ask, passed_over: 0, parked: false };
        self.place_all(now, choice, Rule::Reservation, ledger, confirm);
    }

    /// As many nodes as can hold all tasks of the ask once they are free, starting with those with the most room;
    /// `None` if all nodes together are too small.
    pub(super) fn nodes_for_gang(
        &self,
        ask: AskSlot,
        ledger: &Ledger,
        is_counted: &dyn Fn(NodeId) -> bool,
    ) -> Option<Vec<NodeId>> {
        let request = self.queue.ask(ask);
        let mut left = request.open();
        let mut chosen = Vec::new();
        for (node, most) in nodes_with_most_room(request, ledger, is_counted) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(most);
            chosen.push(node);
        }
        chosen.sort_unstable();
        (left == 0).then_some(chosen)
    }

    /// Whether the reserved nodes are still large enough.
    pub(super) fn could_hold(&self, kept: &Reservation, ledger: &Ledger) -> bool {
        let request = self.queue.ask(kept.ask);
        let on = |node: &NodeId| u64::from(request.shape.times_in(&ledger.node_capacity(*node)));
        let wanted = if request.is_gang { request.open() } else { 1 };
        kept.nodes.iter().map(on).sum::<u64>() >= wanted
    }
}

/// Nodes on which tasks of the request may run, those with the most room now first, and how many each could hold if it were free.
pub(super) fn nodes_with_most_room(
    request: &OpenRequest,
    ledger: &Ledger,
    is_counted: &dyn Fn(NodeId) -> bool,
) -> impl Iterator<Item = (NodeId, u64)> {
    let meeting = (0..ledger.len()).filter(|&index| ledger.classes().meets(request.class, index));
    let open = meeting.map(|index| ledger.node(index)).filter(|node| is_counted(*node));
    let times = |room: &Resources| u64::from(request.shape.times_in(room));
    let mut nodes: Vec<(Reverse<u64>, NodeId, u64)> = open
        .map(|node| (Reverse(times(&ledger.offer(node))), node, times(&ledger.node_capacity(node))))
        .filter(|(_, _, most)| *most > 0)
        .collect();
    nodes.sort_unstable();
    nodes.into_iter().map(|(_, node, most)| (node, most))
}
