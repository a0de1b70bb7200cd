//! Why tasks wait: the reasons of asks that are open, and of shapes that fit on no node.

use super::Scheduler;
use crate::policy::AskSlot;
use crate::scheduling::locality::Reach;
use crate::scheduling::{Ledger, WithoutSlow};
use crate::vocabulary::{AskId, ClosedReason, Constraint, JobId, NodeId, NodeView, NodeViews, Resources, unmet};
use crate::why::Why;

/// Maximum number of nodes that an explanation examines to find the one with the most room.
const EXPLAINED_NODES: usize = 4_096;

impl Scheduler {
    /// Why no further task of the job starts now: the reasons of its asks with open tasks, each once. Empty if no task
    /// is open.
    pub fn explain(&self, job: JobId, ledger: &Ledger) -> Vec<Why> {
        let Some(slot) = self.queue.job_slot(job) else { return Vec::new() };
        let asks = &self.queue.job(slot).asks;
        let open = asks.iter().copied().filter(|&ask| self.queue.ask(ask).open() > 0);
        open.flat_map(|ask| self.explain_ask(ask, ledger)).fold(Vec::new(), |mut reasons, why| {
            if !reasons.contains(&why) {
                reasons.push(why);
            }
            reasons
        })
    }

    fn explain_ask(&self, ask: AskSlot, ledger: &Ledger) -> Vec<Why> {
        let request = self.queue.ask(ask);
        if let Some(limit) = self.inter_job.limit_on(ask) {
            return vec![limit];
        }
        let (tasks, shape) = (request.open(), &request.shape);
        let short_of_rooms = || {
            let rooms = ledger.rooms_for(request.widest_class, shape, tasks);
            (rooms < tasks).then_some(Why::Gang { tasks, rooms })
        };
        let kept = || {
            let kept = self.reservation.as_ref().filter(|kept| kept.ask == ask)?;
            Some(Why::NodesReserved { nodes: kept.nodes.len() as u32 })
        };
        let fit = explain_fit(request.widest_class, shape, ledger);
        let fit = match &fit {
            None | Some(Why::Occupied { .. }) if request.is_gang => kept().or_else(short_of_rooms),
            Some(Why::Occupied { .. }) => self.kept_by_another(request, ledger).or(fit),
            _ => fit,
        };
        let is_near = request.reach != Reach::Anywhere;
        let near = (is_near && fit.is_none() && ledger.find_room(request.class, &request.shape, 0).is_none())
            .then_some(Why::NearInput);
        let slow = || {
            let others = WithoutSlow(ledger).find_room(request.class, shape, 0);
            let node = ledger.node(ledger.find_room(request.class, shape, 0).filter(|_| others.is_none())?);
            Some(Why::SlowNode { node, times: ledger.slowness(node) })
        };
        let slow = if fit.is_none() && near.is_none() && !request.is_gang { slow() } else { None };
        let mut reasons: Vec<Why> = fit.into_iter().chain(near).chain(slow).collect();
        let no_node_will_do = matches!(
            reasons.first(),
            Some(Why::NoNode { .. } | Why::Constraints { .. } | Why::TooLarge { .. } | Why::Closed { .. })
        );
        if no_node_will_do {
            return reasons;
        }
        if let Some(kept) = self.reservation.as_ref().filter(|kept| kept.ask != ask)
            && let Some(&node) = kept.nodes.iter().find(|node| request.shape.fits_in(&ledger.offer(**node)))
        {
            let job = self.queue.ask(kept.ask).id.job;
            reasons.insert(0, Why::Reserved { node, job });
        }
        if let Some((jobs, first)) = self.inter_job.ahead_of(ask) {
            reasons.push(Why::Ahead { jobs, first, rule: self.inter_job.rule() });
        }
        if reasons.is_empty() {
            reasons.push(Why::NextHeartbeat);
        }
        reasons
    }

    /// The first reason why the ask of this id waits.
    pub fn explain_blocked(&self, ask: AskId, ledger: &Ledger) -> Option<Why> {
        let slot = self.queue.ask_slot(ask)?;
        self.explain_ask(slot, ledger).into_iter().next()
    }
}

/// Why a task of this shape and class finds no node; `None` if a node has room.
pub fn explain_fit(class: u32, shape: &Resources, ledger: &Ledger) -> Option<Why> {
    let is_alive = |index: usize| ledger.view(index).open;
    if !(0..ledger.len()).any(is_alive) {
        return Some(no_node(ledger));
    }
    if !(0..ledger.len()).any(|index| is_alive(index) && ledger.classes().meets(class, index)) {
        return Some(Why::Constraints { unmet: unmet_constraints(class, ledger) });
    }
    if ledger.find_room(class, shape, 0).is_some() {
        return None;
    }
    let large_enough = |view: &NodeView| view.open && shape.fits_in(&view.capacity);
    if let Some(node) = closest(ledger, class, shape, &|view| large_enough(view) && ledger.is_open(view.node)) {
        return Some(Why::Occupied { closest: node, short: shape.shortage(&ledger.offer(node)) });
    }
    if let Some(closest) = closest(ledger, class, shape, &large_enough) {
        let others_are_open = ledger.ids().any(|node| ledger.is_open(node));
        let closed_reason = ledger.closed_reason(closest).unwrap_or(ClosedReason::Closed);
        return Some(if others_are_open { Why::Closed { closest, closed_reason } } else { no_node(ledger) });
    }
    let node = largest(ledger, class, shape)?;
    Some(Why::TooLarge { closest: node, short: shape.shortage(&ledger.node_capacity(node)) })
}

/// No node takes work: the reasons of the first known nodes.
fn no_node(ledger: &Ledger) -> Why {
    let known = || ledger.ids().filter(|node| ledger.state(*node).is_some());
    let closed_reason = known().filter_map(|node| Some((node, ledger.closed_reason(node)?)));
    Why::NoNode { known: known().count() as u32, closed_reason: closed_reason.take(ClosedReason::SHOWN).collect() }
}

/// What keeps tasks of the class from all nodes that take work.
fn unmet_constraints(class: u32, ledger: &Ledger) -> Vec<Constraint> {
    let nodes = || (0..ledger.len()).filter(|&index| ledger.view(index).open);
    unmet(ledger.class_constraints(class), || nodes().map(|index| &**ledger.attributes(ledger.node(index))))
}

/// The node with the most room for the task, among those that count.
pub(super) fn closest(
    ledger: &Ledger,
    class: u32,
    shape: &Resources,
    counts: &dyn Fn(&NodeView) -> bool,
) -> Option<NodeId> {
    let meeting = (0..ledger.len()).filter(|&index| ledger.classes().meets(class, index));
    let views = meeting.map(|index| ledger.view(index)).filter(|view| counts(view)).take(EXPLAINED_NODES);
    views.map(|view| (lack(shape, &ledger.offer(view.node)), view.node)).min().map(|(_, node)| node)
}

/// The node whose capacity comes nearest to what the task needs.
fn largest(ledger: &Ledger, class: u32, shape: &Resources) -> Option<NodeId> {
    let meeting = (0..ledger.len()).filter(|&index| ledger.classes().meets(class, index));
    let views = meeting.map(|index| ledger.view(index)).filter(|view| view.open).take(EXPLAINED_NODES);
    views.map(|view| (lack(shape, &view.capacity), view.node)).min().map(|(_, node)| node)
}

/// How much of `shape` is missing, summed over kinds, in millionths of the requested amount of each.
fn lack(shape: &Resources, room: &Resources) -> u64 {
    let short = shape.shortage(room);
    let kinds = shape.0.iter().zip(short.0).filter(|(wanted, _)| **wanted > 0);
    kinds.map(|(&wanted, short)| u64::from(short) * 1_000_000 / u64::from(wanted)).sum()
}
