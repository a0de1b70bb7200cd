//! Duty: where there is no room, tasks of queues beyond their shares are preempted for tasks of this global master's
//! queues that are below theirs (Megha, section IV-C).
//!
//! The usage of its own queues is known exactly: the reported usage and the proposals since. So none of them causes
//! preemptions beyond its own share, even if the view of other queues is out of date.

use super::GlobalMaster;
use super::proposals::NewProposal;
use crate::dispatch::Confirmation;
use crate::policy::inter_job::{QueueShare, violators};
use crate::protocol::Rule;
use crate::role::Outbox;
use crate::scheduling::{Blocked, Booking, Granting, Ledger};
use crate::vocabulary::{Duration, GrantId, Instant, JobId, NodeId, QueueId, Resources, Totals};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of asks of a queue that are considered together. They have different shapes or constraints: for the
/// first one there may be no node that other queues could leave.
const MOST_ASKS: usize = 16;
/// Maximum number of nodes that are examined for these asks and one queue; the next search continues after them.
const MOST_NODES: usize = 8_192;
/// How long the same queue waits after a search that found no node.
const PAUSE: Duration = Duration::from_millis(100);

/// What queues hold, as far as it is known.
pub(super) struct Sharing {
    /// This global master's queues that have shares.
    own: Vec<OwnQueue>,
    /// By the number of the node.
    on_nodes: Vec<Box<[(QueueId, Resources)]>>,
    nodes_of: BTreeMap<QueueId, BTreeSet<NodeId>>,
    /// Resources that proposals in transit take from a queue on a node.
    promised: BTreeMap<(NodeId, QueueId), Totals>,
    /// Resources that queues get and lose by proposals in transit.
    coming: BTreeMap<QueueId, Totals>,
    going: BTreeMap<QueueId, Totals>,
    /// Proposals that the reports of their clusters do not include yet, by cluster.
    unseen: Vec<VecDeque<Unseen>>,
}

struct OwnQueue {
    queue: QueueId,
    /// Set if a search found no node: when the next one starts.
    retry_at: Option<Instant>,
    /// The node that was examined last.
    last: NodeId,
}

/// A proposal in transit.
struct Unseen {
    grant: GrantId,
    node: NodeId,
    queue: QueueId,
    resources: Resources,
    /// What the queues lose whose tasks are preempted for it.
    instead_of: Vec<(QueueId, Resources)>,
}

/// Where a task gets room, and the queue whose tasks are preempted for it.
#[derive(Clone, Copy)]
struct RoomByPreemption {
    ask: Blocked,
    node: NodeId,
    victim: QueueId,
}

impl Sharing {
    pub(super) fn new(own: impl Iterator<Item = QueueId>, clusters: usize) -> Sharing {
        let own = own.map(|queue| OwnQueue { queue, retry_at: None, last: NodeId(0) }).collect();
        let unseen = std::iter::repeat_with(VecDeque::new).take(clusters).collect();
        Sharing {
            own,
            on_nodes: Vec::new(),
            nodes_of: BTreeMap::new(),
            promised: BTreeMap::new(),
            coming: BTreeMap::new(),
            going: BTreeMap::new(),
            unseen,
        }
    }

    /// Whether this global master has queues for which others may be preempted.
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
        self.coming.entry(proposal.queue).or_default().add(&proposal.resources);
        for (victim, lost) in &proposal.instead_of {
            self.going.entry(*victim).or_default().add(lost);
            self.promised.entry((proposal.node, *victim)).or_default().add(lost);
        }
        self.unseen[cluster].push_back(proposal);
    }

    /// The proposal is no longer in transit.
    fn settle(&mut self, proposal: &Unseen) {
        let Unseen { node, queue, resources, instead_of, .. } = proposal;
        take_from(&mut self.coming, *queue, resources);
        for (victim, lost) in instead_of {
            take_from(&mut self.going, *victim, lost);
            take_from(&mut self.promised, (*node, *victim), lost);
        }
    }

    /// The cluster's report includes the proposals up to this number.
    pub(super) fn on_seen(&mut self, cluster: usize, seen: u64) {
        while let Some(proposal) = self.unseen[cluster].pop_front_if(|proposal| proposal.grant.number <= seen) {
            self.settle(&proposal);
        }
    }

    /// No task is launched with these grants.
    pub(super) fn on_returned(&mut self, grants: &[GrantId]) {
        for cluster in 0..self.unseen.len() {
            let unseen = std::mem::take(&mut self.unseen[cluster]);
            let (returned, left): (VecDeque<Unseen>, VecDeque<Unseen>) =
                unseen.into_iter().partition(|proposal| grants.contains(&proposal.grant));
            self.unseen[cluster] = left;
            returned.iter().for_each(|proposal| self.settle(proposal));
        }
    }

    /// What the queue could still leave on the node.
    fn held(&self, queue: QueueId, node: NodeId) -> Resources {
        let on_node = self.on_nodes.get(node.0 as usize);
        let held = on_node.and_then(|held| held.iter().find(|(other, _)| *other == queue));
        let held = held.map_or(Resources::ZERO, |(_, held)| *held);
        self.promised.get(&(node, queue)).map_or(held, |promised| promised.left_of(&held))
    }

    /// The nodes on which the queue holds resources, starting with those after this one.
    fn nodes_after(&self, queue: QueueId, node: NodeId) -> impl Iterator<Item = NodeId> {
        let nodes = self.nodes_of.get(&queue).into_iter();
        nodes.flat_map(move |nodes| {
            let after = (std::ops::Bound::Excluded(node), std::ops::Bound::Unbounded);
            nodes.range(after).chain(nodes.range(..=node)).copied()
        })
    }
}

impl GlobalMaster {
    /// What the queue's tasks hold in all clusters, as reported and with the proposals since. Resources that proposals
    /// may take from it are included: the cluster may find that no task has to be preempted.
    fn held(&self, queue: QueueId) -> Totals {
        let mut held = self.sharing.coming.get(&queue).copied().unwrap_or_default();
        for usage in self.clusters.iter().filter_map(|cluster| cluster.usage.get(&queue)) {
            held.0.iter_mut().zip(&usage.0).for_each(|(sum, more)| *sum += more);
        }
        held
    }

    /// The same without the resources that proposals in transit may take from it.
    fn used(&self, queue: QueueId) -> Totals {
        self.held(queue).saturating_sub(&self.sharing.going.get(&queue).copied().unwrap_or_default())
    }

    fn queue_shares(&self) -> Vec<QueueShare> {
        let shares = self.dispatch.queues().shares();
        shares.map(|(queue, share)| QueueShare { queue, share, used: self.used(queue) }).collect()
    }

    /// Whether every cluster has reported its usage: only then it is known that an own queue is below its share.
    pub(super) fn knows_all(&self) -> bool {
        self.clusters.iter().all(|cluster| cluster.reported.is_some() && cluster.is_settled)
    }

    /// Preempts tasks of queues beyond their shares for tasks that found no room.
    pub(super) fn preempt_others(&mut self, now: Instant, out: &mut Outbox) {
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
            while self.dispatch.scheduler.has_blocked(queue) {
                let queues = self.queue_shares();
                let mut asks = self.who_lacks(queue);
                asks.retain(|ask| ask.at_once == 1 || self.has_places_for_all(ask, &queues));
                if asks.is_empty() {
                    break;
                }
                let (found, last) = self.find_room(number, &asks, &queues);
                self.sharing.own[number].last = last;
                let Some(room) = found else {
                    self.sharing.own[number].retry_at = Some(now + PAUSE);
                    break;
                };
                if !self.give(now, &room) {
                    break;
                }
            }
        }
        self.proposals.announce(out);
    }

    /// Waiting asks with which their queue would still be within its share.
    fn who_lacks(&self, queue: QueueId) -> Vec<Blocked> {
        let mut shares = self.dispatch.queues().shares();
        let Some((_, share)) = shares.find(|(other, _)| *other == queue) else { return Vec::new() };
        let own = QueueShare { queue, share, used: self.held(queue) };
        let capacity = self.dispatch.rooms.capacity();
        self.dispatch.scheduler.blocked_in(queue, MOST_ASKS, |shape, count| own.may_have(shape, count, capacity))
    }

    /// A place for one of the asks, at the cost of the queue furthest beyond its share that has one; and the node after
    /// which the next search starts.
    fn find_room(&self, number: usize, asks: &[Blocked], queues: &[QueueShare]) -> (Option<RoomByPreemption>, NodeId) {
        let from = self.sharing.own[number].last;
        let most = MOST_NODES / asks.len();
        let mut next = None;
        for victim in violators(queues, self.dispatch.rooms.capacity()) {
            let mut last = from;
            for node in self.sharing.nodes_after(victim, from).take(most) {
                last = node;
                if let Some(ask) = asks.iter().find(|ask| self.could_leave(victim, node, ask)) {
                    return (Some(RoomByPreemption { ask: *ask, node, victim }), node);
                }
            }
            next.get_or_insert(last);
        }
        (None, next.unwrap_or(from))
    }

    /// Whether the free resources of the node and those that the victim's tasks hold there are enough for the ask.
    fn could_leave(&self, victim: QueueId, node: NodeId, ask: &Blocked) -> bool {
        self.places_on(victim, node, ask) > 0
    }

    /// For how many tasks of the ask they are enough.
    fn places_on(&self, victim: QueueId, node: NodeId, ask: &Blocked) -> u32 {
        let rooms = &self.dispatch.rooms;
        if !rooms.classes().meets(ask.class, rooms.index(node)) || rooms.offer_is_closed(node) {
            return 0;
        }
        let room = rooms.offer(node).saturating_add(&self.sharing.held(victim, node));
        ask.shape.times_in(&room.smaller_of(&rooms.node_capacity(node)))
    }

    /// No task is preempted for a part of a gang, which could not start without the rest.
    fn has_places_for_all(&self, ask: &Blocked, queues: &[QueueShare]) -> bool {
        let mut places: BTreeMap<NodeId, u32> = BTreeMap::new();
        for victim in violators(queues, self.dispatch.rooms.capacity()) {
            for node in self.sharing.nodes_after(victim, NodeId(0)).take(MOST_NODES) {
                let on_node = places.entry(node).or_default();
                *on_node = (*on_node).max(self.places_on(victim, node, ask));
            }
        }
        places.values().map(|places| u64::from(*places)).sum::<u64>() >= ask.at_once
    }

    fn give(&mut self, now: Instant, room: &RoomByPreemption) -> bool {
        let RoomByPreemption { ask, node, victim } = *room;
        let rule = Rule::Share { at_cost_of: victim };
        let GlobalMaster { dispatch, proposals, .. } = self;
        let confirm = &mut |rooms: &mut Ledger, proposal: &Granting| proposals.confirm(rooms, proposal);
        let given = dispatch.scheduler.give(now, ask.slot, node, rule, &mut dispatch.rooms, confirm);
        self.note_proposals();
        given
    }

    /// Counts the proposals since the last call.
    pub(super) fn note_proposals(&mut self) {
        for proposal in self.proposals.take_new() {
            let Some(queue) = self.dispatch.queue_of(proposal.booking.job) else { continue };
            let instead_of = what_queues_lose(&proposal, |job| self.dispatch.queue_of(job));
            let NewProposal { booking, .. } = proposal;
            let cluster = usize::from(self.federation.cluster_of(booking.node).0);
            let Booking { grant, node, resources, .. } = booking;
            self.sharing.on_proposed(cluster, Unseen { grant, node, queue, resources, instead_of });
        }
    }
}

/// What a proposal in transit takes from queues on its node: as much as it needs from the queue that it names, and all of the bookings
/// that are preempted for it.
fn what_queues_lose(proposal: &NewProposal, queue_of: impl Fn(JobId) -> Option<QueueId>) -> Vec<(QueueId, Resources)> {
    let NewProposal { booking, rule, victims } = proposal;
    match rule {
        Rule::Share { at_cost_of } => vec![(*at_cost_of, booking.resources)],
        _ => victims.iter().filter_map(|victim| Some((queue_of(victim.job)?, victim.resources))).collect(),
    }
}

fn take_from<K: Ord>(totals: &mut BTreeMap<K, Totals>, key: K, resources: &Resources) {
    if let Entry::Occupied(mut entry) = totals.entry(key) {
        entry.get_mut().sub(resources);
        if *entry.get() == Totals::ZERO {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Epoch;

    const OWN: QueueId = QueueId(1);
    const OTHER: QueueId = QueueId(2);

    fn cores(cores: u32) -> Resources {
        Resources::new(cores * 1_000, 0)
    }

    fn proposal(number: u64, node: u32, instead_of: Option<QueueId>) -> Unseen {
        let grant = GrantId { epoch: Epoch(1), number, slot: 0 };
        let instead_of = instead_of.into_iter().map(|victim| (victim, cores(1))).collect();
        Unseen { grant, node: NodeId(node), queue: OWN, resources: cores(1), instead_of }
    }

    #[test]
    fn proposals_in_transit_count_until_they_are_seen_or_returned() {
        let mut sharing = Sharing::new([OWN].into_iter(), 2);
        sharing.on_held(NodeId(7), Box::new([(OTHER, cores(3))]));
        sharing.on_proposed(0, proposal(1, 7, Some(OTHER)));
        sharing.on_proposed(0, proposal(2, 7, Some(OTHER)));
        sharing.on_proposed(1, proposal(3, 9, None));
        let coming = |sharing: &Sharing| sharing.coming.get(&OWN).map(|totals| totals.0[0]);
        assert_eq!((sharing.held(OTHER, NodeId(7)), coming(&sharing)), (cores(1), Some(3_000)));
        sharing.on_seen(0, 1);
        assert_eq!((sharing.held(OTHER, NodeId(7)), coming(&sharing)), (cores(2), Some(2_000)));
        sharing.on_returned(&[proposal(2, 7, None).grant, proposal(3, 9, None).grant]);
        assert_eq!((sharing.held(OTHER, NodeId(7)), coming(&sharing)), (cores(3), None));
        assert!(sharing.promised.is_empty() && sharing.going.is_empty());
    }

    /// Else a fifth core of a node of four would be given, after a booking of all four was preempted for a task of one.
    #[test]
    fn what_is_preempted_for_a_proposal_in_transit_is_not_taken_from_its_queue_again() {
        let booking = |job, cpus| Booking {
            grant: proposal(job, 7, None).grant,
            job: JobId(job),
            node: NodeId(7),
            resources: cores(cpus),
        };
        let new = NewProposal { booking: booking(1, 1), rule: Rule::Reclaimed, victims: vec![booking(2, 4)] };
        let instead_of = what_queues_lose(&new, |job| Some(if job == JobId(2) { OTHER } else { OWN }));
        let mut sharing = Sharing::new([OWN].into_iter(), 1);
        sharing.on_held(NodeId(7), Box::new([(OTHER, cores(4))]));
        sharing.on_proposed(0, Unseen { instead_of, ..proposal(1, 7, None) });
        assert_eq!(sharing.held(OTHER, NodeId(7)), Resources::ZERO);
        assert_eq!(sharing.going.get(&OTHER).map(|totals| totals.0[0]), Some(4_000));
        sharing.on_seen(0, 1);
        assert!(sharing.promised.is_empty() && sharing.going.is_empty());
    }

    #[test]
    fn a_search_continues_after_the_last_node_of_the_previous_one() {
        let mut sharing = Sharing::new([OWN].into_iter(), 1);
        for node in [3, 5, 9] {
            sharing.on_held(NodeId(node), Box::new([(OTHER, cores(1))]));
        }
        let after = |node| sharing.nodes_after(OTHER, NodeId(node)).map(|node| node.0).collect::<Vec<_>>();
        assert_eq!([after(0), after(3), after(4), after(9)], [[3, 5, 9], [5, 9, 3], [5, 9, 3], [3, 5, 9]]);
    }
}
