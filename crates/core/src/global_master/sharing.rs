//! Duty: where there is no room, tasks of queues beyond their shares give way to those of this global master's queues that lack some
//! of theirs (Megha, section IV-C).
//!
//! What its own queues hold it knows exactly: what it was told of, and what it proposed since. So none of them has others give
//! way when it is beyond its own share, however stale the view of those others.

use super::GlobalMaster;
use crate::dispatch::Claims;
use crate::policy::inter_job::{Standing, violators};
use crate::protocol::Rule;
use crate::role::Outbox;
use crate::scheduling::{Blocked, Granting, Ledger, NodeState};
use crate::vocabulary::{Duration, GrantId, Instant, NodeId, NodeViews, QueueId, Resources, Totals};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Asks of a queue that are looked at together: the first of them may suit no node that others could leave.
const MOST_ASKS: usize = 16;
/// Nodes that are looked at for one ask and one queue.
const MOST_NODES: usize = 4_096;
/// After a search that found nobody, the next one of the same queue.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of who holds what.
pub(super) struct Sharing {
    /// This global master's queues that have shares.
    own: Vec<OwnQueue>,
    /// By the number of the node.
    on_nodes: Vec<Box<[(QueueId, Resources)]>>,
    nodes_of: BTreeMap<QueueId, BTreeSet<NodeId>>,
    /// Proposals that their clusters' words do not take into account yet, by cluster.
    unseen: Vec<VecDeque<Unseen>>,
}

struct OwnQueue {
    queue: QueueId,
    /// A search found nobody; then the next one.
    retry_at: Option<Instant>,
    /// The node that others gave way on last.
    last: NodeId,
}

/// A proposal on its way.
struct Unseen {
    grant: GrantId,
    queue: QueueId,
    resources: Resources,
    instead_of: Option<QueueId>,
}

/// Where a task gets room, and who gives way to it.
#[derive(Clone, Copy)]
struct Place {
    ask: Blocked,
    node: NodeId,
    victim: QueueId,
}

impl Sharing {
    pub(super) fn new(own: impl Iterator<Item = QueueId>, clusters: usize) -> Sharing {
        let own = own.map(|queue| OwnQueue { queue, retry_at: None, last: NodeId(0) }).collect();
        let unseen = std::iter::repeat_with(VecDeque::new).take(clusters).collect();
        Sharing { own, on_nodes: Vec::new(), nodes_of: BTreeMap::new(), unseen }
    }

    /// Whether anybody here could have others give way.
    pub(super) fn is_wanted(&self) -> bool {
        !self.own.is_empty()
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.own.iter().filter_map(|own| own.retry_at).min()
    }

    pub(super) fn on_held(&mut self, node: NodeId, held: Box<[(QueueId, Resources)]>) {
        if !self.is_wanted() {
            return;
        }
        let index = node.0 as usize;
        if self.on_nodes.len() <= index {
            self.on_nodes.resize(index + 1, Box::default());
        }
        for (queue, _) in std::mem::take(&mut self.on_nodes[index]) {
            self.nodes_of.entry(queue).or_default().remove(&node);
        }
        for (queue, _) in &held {
            self.nodes_of.entry(*queue).or_default().insert(node);
        }
        self.on_nodes[index] = held;
    }

    fn on_proposed(&mut self, cluster: usize, proposal: Unseen) {
        self.unseen[cluster].push_back(proposal);
    }

    /// The cluster's word takes into account what was proposed up to this number.
    pub(super) fn on_seen(&mut self, cluster: usize, seen: u64) {
        let unseen = &mut self.unseen[cluster];
        while unseen.front().is_some_and(|proposal| proposal.grant.number <= seen) {
            unseen.pop_front();
        }
    }

    /// Nobody launches under these.
    pub(super) fn on_returned(&mut self, grants: &[GrantId]) {
        for unseen in &mut self.unseen {
            unseen.retain(|proposal| !grants.contains(&proposal.grant));
        }
    }

    fn held(&self, queue: QueueId, node: NodeId) -> Resources {
        let on_node = self.on_nodes.get(node.0 as usize);
        let held = on_node.and_then(|held| held.iter().find(|(other, _)| *other == queue));
        held.map_or(Resources::ZERO, |(_, held)| *held)
    }

    /// So much of it is promised away.
    fn take(&mut self, queue: QueueId, node: NodeId, resources: &Resources) {
        let on_node = self.on_nodes.get_mut(node.0 as usize);
        if let Some((_, held)) = on_node.and_then(|held| held.iter_mut().find(|(other, _)| *other == queue)) {
            *held = held.saturating_sub(resources);
        }
    }

    /// The nodes on which the queue holds something, those after this one first.
    fn nodes_after(&self, queue: QueueId, node: NodeId) -> impl Iterator<Item = NodeId> {
        let nodes = self.nodes_of.get(&queue).into_iter();
        nodes.flat_map(move |nodes| {
            let after = (std::ops::Bound::Excluded(node), std::ops::Bound::Unbounded);
            nodes.range(after).chain(nodes.range(..=node)).copied()
        })
    }
}

impl GlobalMaster {
    /// What the queue's tasks hold in all clusters together, as they say and with what was proposed since.
    fn used(&self, queue: QueueId) -> Totals {
        let mut used = Totals::ZERO;
        for told in self.clusters.iter().filter_map(|cluster| cluster.usage.get(&queue)) {
            used.0.iter_mut().zip(&told.0).for_each(|(sum, more)| *sum += more);
        }
        let unseen = || self.sharing.unseen.iter().flatten();
        unseen().filter(|unseen| unseen.queue == queue).for_each(|unseen| used.add(&unseen.resources));
        unseen().filter(|unseen| unseen.instead_of == Some(queue)).for_each(|unseen| used.take(&unseen.resources, 1));
        used
    }

    fn standings(&self) -> Vec<Standing> {
        let shares = self.dispatch.queues().shares();
        shares.map(|(queue, share)| Standing { queue, share, used: self.used(queue) }).collect()
    }

    /// Only with this it is known that a queue of its own lacks something: every cluster has said what runs there.
    fn knows_all(&self) -> bool {
        self.clusters.iter().all(|cluster| cluster.told.is_some() && cluster.is_settled)
    }

    /// For tasks that found no room.
    pub(super) fn have_others_give_way(&mut self, now: Instant, out: &mut Outbox) {
        self.note_proposals();
        if !self.sharing.is_wanted() {
            return;
        }
        if self.dispatch.scheduler.open_tasks() == 0 || !self.knows_all() {
            self.sharing.own.iter_mut().for_each(|own| own.retry_at = None);
            return;
        }
        for number in 0..self.sharing.own.len() {
            let OwnQueue { queue, retry_at, .. } = self.sharing.own[number];
            if retry_at.is_some_and(|at| now < at) {
                continue;
            }
            self.sharing.own[number].retry_at = None;
            loop {
                let standings = self.standings();
                let asks = self.who_lacks(queue, &standings);
                if asks.is_empty() {
                    break;
                }
                let Some(place) = self.find_place(number, asks, &standings) else {
                    self.sharing.own[number].retry_at = Some(now + PAUSE);
                    break;
                };
                if !self.give(now, &place) {
                    break;
                }
                self.sharing.own[number].last = place.node;
            }
        }
        self.proposals.announce(out);
    }

    /// Asks that wait for room, and with which their queue would be within its share.
    fn who_lacks(&self, queue: QueueId, standings: &[Standing]) -> Vec<Blocked> {
        let Some(own) = standings.iter().find(|standing| standing.queue == queue) else { return Vec::new() };
        let mut asks = self.dispatch.scheduler.blocked_in(queue, MOST_ASKS);
        asks.retain(|ask| own.may_have(&ask.shape, self.dispatch.rooms.capacity()));
        asks
    }

    /// For the first of the asks for which there is one.
    fn find_place(&self, number: usize, asks: Vec<Blocked>, standings: &[Standing]) -> Option<Place> {
        let victims = violators(standings, self.dispatch.rooms.capacity());
        let last = self.sharing.own[number].last;
        asks.into_iter().find_map(|ask| {
            let find = |victim: &QueueId| self.find_node(&ask, *victim, last).map(|node| (node, *victim));
            victims.iter().find_map(find).map(|(node, victim)| Place { ask, node, victim })
        })
    }

    /// A node on which the victim's tasks hold enough for it, with what is free.
    fn find_node(&self, ask: &Blocked, victim: QueueId, last: NodeId) -> Option<NodeId> {
        let rooms = &self.dispatch.rooms;
        let suits = |node: &NodeId| {
            let room = || rooms.offer(*node).saturating_add(&self.sharing.held(victim, *node));
            rooms.classes().meets(ask.class, rooms.index(*node))
                && rooms.state(*node) == Some(NodeState::Up)
                && ask.shape.fits_in(&room())
                && ask.shape.fits_in(&rooms.view(rooms.index(*node)).capacity)
        };
        self.sharing.nodes_after(victim, last).take(MOST_NODES).find(suits)
    }

    fn give(&mut self, now: Instant, place: &Place) -> bool {
        let Place { ask, node, victim } = *place;
        let rule = Rule::Share { at_cost_of: victim };
        let GlobalMaster { dispatch, proposals, .. } = self;
        let confirm = &mut |rooms: &mut Ledger, proposal: &Granting| proposals.confirm(rooms, proposal);
        let given = dispatch.scheduler.give(now, ask.slot, node, rule, &mut dispatch.rooms, confirm);
        if given {
            self.note_proposals();
            self.sharing.take(victim, node, &ask.shape);
        }
        given
    }

    /// What was proposed since this was done last.
    pub(super) fn note_proposals(&mut self) {
        for (booking, rule) in self.proposals.take_new() {
            let Some(queue) = self.dispatch.queue_of(booking.job) else { continue };
            let instead_of = match rule {
                Rule::Share { at_cost_of } => Some(at_cost_of),
                _ => None,
            };
            let cluster = usize::from(self.federation.cluster_of(booking.node).0);
            self.sharing
                .on_proposed(cluster, Unseen { grant: booking.grant, queue, resources: booking.resources, instead_of });
        }
    }
}
