//! A global master: it has jobs and places their tasks on all clusters of a federation, according to its view of them
//! (Megha, section IV). The clusters' masters pass on its proposals or refuse them, and notify it of changes.
//!
//! The view is not durable: each cluster's master sends its full state on a new connection. The jobs are in the global
//! master's log.

mod first_refusal;
mod kept;
mod proposals;
mod sharing;

use crate::dispatch::{DispatchSettings, Dispatcher, JobStatus, QueueStatus};
use crate::policy::inter_job::QueueTree;
use crate::protocol::{
    Address, ClusterUpdate, GlobalIntroduction, NodeNews, Since, ToGlobalMaster, ToJobManager, ToMaster,
};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::scheduling::{Booking, Ledger, NodeState, Scheduler};
use crate::vocabulary::{
    Attributes, ClusterId, Duration, Epoch, Federation, GlobalId, GrantId, Instant, JobId, NodeId, QueueId, Resources,
    Totals,
};
use first_refusal::FirstRefusal;
use kept::Kept;
use proposals::Proposals;
use sharing::Sharing;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub struct GlobalMaster {
    federation: Federation,
    own: GlobalId,
    /// Jobs, and the view of the nodes that they are placed on.
    dispatch: Dispatcher,
    proposals: Proposals,
    sharing: Sharing,
    first_refusal: FirstRefusal,
    kept: Kept,
    /// By number.
    clusters: Vec<Cluster>,
    /// Nodes that were lost and have not returned; for a moment also those that join and were not there before.
    lost: BTreeSet<NodeId>,
    /// Counts introductions.
    introductions: u32,
}

/// What is known of a cluster.
#[derive(Default)]
struct Cluster {
    /// Set until the cluster has sent its full state on the present connection: the number of the introduction that it
    /// has to answer.
    awaited: Option<u64>,
    /// The incarnation and the version of its last notification.
    reported: Option<(Epoch, u64)>,
    /// When it sent its last notification.
    heard: Option<Instant>,
    usage: BTreeMap<QueueId, Totals>,
    is_settled: bool,
}

/// The view of a node, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct BelievedNode {
    pub node: NodeId,
    pub name: String,
    pub cluster: ClusterId,
    pub state: NodeState,
    /// Whether it takes work: its cluster's master may have drained or paused it.
    pub is_open: bool,
    pub capacity: Resources,
    pub free: Resources,
    /// Bookings of this global master there.
    pub bookings: u32,
    pub attributes: Attributes,
    /// Time since the last notification of its cluster's master; `None` before the first one.
    pub age: Option<Duration>,
}

/// A global master's state for people and for a simulator that starts from it.
#[derive(Clone, PartialEq, Debug)]
pub struct GlobalDescription {
    pub known_nodes: u64,
    pub queues: Vec<QueueStatus>,
    pub jobs: Vec<JobStatus>,
    pub open_tasks: u64,
}

impl GlobalMaster {
    /// `epoch` identifies this incarnation and contains the number of the global master.
    pub fn new(
        epoch: Epoch,
        (federation, own): (Federation, GlobalId),
        settings: DispatchSettings,
        queues: QueueTree,
        scheduler: Scheduler,
    ) -> GlobalMaster {
        let settings = DispatchSettings { numbers: federation.job_numbers(own), ..settings };
        let is_own = |(queue, share): &(QueueId, u64)| *share > 0 && queues.global_of(*queue) == Some(own.0);
        let shares = queues.shares().filter(is_own).map(|(queue, _)| queue);
        let sharing = Sharing::new(shares, usize::from(federation.clusters));
        let mut global = GlobalMaster {
            federation,
            own,
            dispatch: Dispatcher::new(settings, queues, scheduler, Ledger::new().for_nodes(federation.most_nodes())),
            proposals: Proposals::new(epoch, federation, sharing.is_wanted()),
            sharing,
            first_refusal: FirstRefusal::default(),
            kept: Kept::new(usize::from(federation.clusters)),
            clusters: federation.clusters().map(|_| Cluster::default()).collect(),
            lost: BTreeSet::new(),
            introductions: 0,
        };
        global.note_knowledge();
        global
    }

    /// For this time, room that opens in the partitions of other global masters is left to them.
    #[must_use]
    pub fn leaving_to_others(mut self, length: Option<Duration>) -> GlobalMaster {
        self.first_refusal = FirstRefusal::of_length(length);
        self
    }

    /// Its jobs, and its view of the nodes.
    pub fn dispatch(&self) -> &Dispatcher {
        &self.dispatch
    }

    pub fn federation(&self) -> Federation {
        self.federation
    }

    pub fn own(&self) -> GlobalId {
        self.own
    }

    /// The nodes in its view.
    pub fn believed_nodes(&self, now: Instant) -> Vec<BelievedNode> {
        let rooms = &self.dispatch.rooms;
        let believed = |node: NodeId| {
            let state = rooms.state(node).filter(|state| *state != NodeState::Expected)?;
            let cluster = self.federation.cluster_of(node);
            let heard = self.clusters[usize::from(cluster.0)].heard;
            Some(BelievedNode {
                node,
                name: self.dispatch.names.of(node).unwrap_or_default().to_owned(),
                cluster,
                state,
                is_open: rooms.is_open(node),
                capacity: rooms.node_capacity(node),
                free: rooms.node_free(node),
                bookings: rooms.node_bookings(node),
                attributes: rooms.attributes(node).as_ref().clone(),
                age: heard.map(|heard| now.since(heard)),
            })
        };
        rooms.ids().filter_map(believed).collect()
    }

    fn on_message(&mut self, now: Instant, from: Address, body: ToGlobalMaster, out: &mut Outbox) {
        match body {
            ToGlobalMaster::ClusterUpdate(update) => self.on_cluster_update(now, *update, out),
            ToGlobalMaster::OfJobs(body) => match *body {
                // The master of the node's cluster counts its failures.
                ToMaster::NodeFailed { node, suspects } if self.federation.has(node) => {
                    out.send(self.federation.cluster_of(node), ToMaster::NodeFailed { node, suspects });
                }
                body => {
                    if let ToMaster::Return { grants } = &body {
                        self.sharing.on_returned(grants);
                    }
                    self.dispatch.on_message(now, from, body, &mut self.proposals, out);
                }
            },
        }
    }

    // ---- clusters --------------------------------------------------------------------------------------------------

    /// Nothing is proposed to the cluster before it has sent its full state: messages in transit are lost.
    fn on_connected(&mut self, now: Instant, cluster: ClusterId, out: &mut Outbox) {
        self.close(cluster);
        self.introduce(now, cluster, out);
    }

    fn introduce(&mut self, now: Instant, cluster: ClusterId, out: &mut Outbox) {
        self.introductions += 1;
        let epoch = self.proposals.epoch();
        let number = u64::from(epoch.0) << 32 | u64::from(self.introductions);
        if let Some(entry) = self.clusters.get_mut(usize::from(cluster.0)) {
            entry.awaited = Some(number);
            // The usage of its queues may have changed since.
            entry.is_settled = false;
            self.note_knowledge();
            let jobs = self.dispatch.running().map(|(job, queue)| (job.id, queue)).collect();
            out.send(cluster, ToMaster::Introduce(Box::new(GlobalIntroduction { epoch, number, jobs })));
            if self.keeps_nodes_of(cluster) {
                self.repeat_kept(now, cluster, out);
            }
        }
    }

    /// Own work is preempted only while all clusters have reported.
    fn note_knowledge(&mut self) {
        let knows_all = self.knows_all();
        self.dispatch.scheduler.review_only_if(knows_all);
    }

    fn close(&mut self, cluster: ClusterId) {
        for node in self.federation.nodes_of(cluster).map(NodeId) {
            self.first_refusal.forget(node);
            match self.dispatch.rooms.state(node) {
                Some(NodeState::Up) => self.dispatch.rooms.set_state(node, NodeState::Unreachable),
                Some(_) => {}
                None => break,
            }
        }
    }

    fn on_cluster_update(&mut self, now: Instant, update: ClusterUpdate, out: &mut Outbox) {
        let ClusterUpdate { cluster, life, since, version, seen, freed, refused, nodes, usage, is_settled, spared } =
            update;
        let Some(entry) = self.clusters.get_mut(usize::from(cluster.0)) else { return };
        let span = self.federation.nodes_of(cluster);
        let is_there = |node: NodeId| span.contains(&node.0);
        let (mut returned, mut lost) = (Vec::new(), Vec::new());
        let is_whole = matches!(since, Since::Nothing { .. });
        match since {
            Since::Nothing { introduction, kinds, held } => {
                let is_answer = entry.awaited == Some(introduction);
                let is_again =
                    entry.awaited.is_none() && entry.reported.is_some_and(|(of, at)| of == life && at <= version);
                if !is_answer && !is_again {
                    return out.record(Record::StaleMessage { from: Address::ClusterMaster(cluster) });
                }
                if kinds != self.dispatch.kinds {
                    return out.record(Record::OtherKinds { cluster });
                }
                entry.awaited = None;
                // Proposals from before the introduction have been examined or are lost.
                let looked_at = if is_answer { u64::MAX } else { seen };
                let held = held.into_iter().filter(|held| is_there(held.node)).collect();
                self.reconcile(now, cluster, looked_at, &held_grants(held));
                self.sharing.on_seen(usize::from(cluster.0), looked_at);
            }
            Since::Version(since) => {
                if entry.awaited.is_some() || entry.reported.is_none_or(|(of, at)| of != life || version < at) {
                    return out.record(Record::StaleMessage { from: Address::ClusterMaster(cluster) });
                }
                if entry.reported != Some((life, since)) {
                    // A notification in between is missing.
                    return self.introduce(now, cluster, out);
                }
            }
        }
        let entry = &mut self.clusters[usize::from(cluster.0)];
        entry.reported = Some((life, version));
        entry.heard = Some(now);
        entry.usage = usage.into_iter().collect();
        entry.is_settled = is_settled;
        self.note_knowledge();
        self.sharing.on_seen(usize::from(cluster.0), seen);
        let from = Address::ClusterMaster(cluster);
        for booking in refused.iter().filter_map(|grant| self.dispatch.rooms.booking(*grant)) {
            self.dispatch.scheduler.on_refused(now, self.dispatch.rooms.index(booking.node));
        }
        self.dispatch.free(now, from, &refused, out);
        spared.iter().for_each(|grant| self.dispatch.rooms.spare(*grant));
        self.dispatch.note_ended(now, &freed, false);
        let left = self.to_be_left(&freed);
        self.dispatch.free(now, from, &freed, out);
        self.leave_room(&left);
        let (had, changes) = (*self.dispatch.rooms.capacity(), self.dispatch.rooms.node_changes());
        let mut opened = Vec::new();
        for news in nodes.into_iter().filter(|news| is_there(news.node())) {
            self.take_news(now, (news, seen, is_whole), &mut opened, &mut returned, &mut lost);
        }
        if self.dispatch.rooms.node_changes() != changes {
            self.dispatch.scheduler.on_room_opened();
        }
        if *self.dispatch.rooms.capacity() != had {
            self.dispatch.scheduler.on_capacity(self.dispatch.rooms.capacity());
        }
        self.report_managers(returned, lost, is_whole, out);
        if self.dispatch.scheduler.open_tasks() > 0 {
            self.dispatch.decide(now, &opened, &mut self.proposals, out);
        }
        self.review_reservation(now, out);
    }

    /// Books what the cluster reports as held, and nothing else: proposals up to `seen` that it does not report are
    /// freed.
    fn reconcile(&mut self, now: Instant, cluster: ClusterId, seen: u64, held: &BTreeMap<(Epoch, u64), Booking>) {
        let epoch = self.proposals.epoch();
        let span = self.federation.nodes_of(cluster).map(NodeId);
        let rooms = &mut self.dispatch.rooms;
        if let Some(last) = span.clone().next_back() {
            rooms.expect_node(last);
        }
        // What is being preempted nevertheless is reported when it is free.
        span.clone().for_each(|node| rooms.spare_all(node));
        let booked: Vec<Booking> = span.flat_map(|node| self.dispatch.rooms.bookings_on(node)).collect();
        let is_known = |grant: &GrantId| grant.epoch != epoch || grant.number <= seen;
        for booking in booked.iter().filter(|booking| is_known(&booking.grant)) {
            if !held.contains_key(&(booking.grant.epoch, booking.grant.number)) {
                self.dispatch.rooms.free(booking.grant);
                self.dispatch.scheduler.on_freed(now, booking);
            }
        }
        let booked: BTreeSet<(Epoch, u64)> =
            booked.iter().map(|booking| (booking.grant.epoch, booking.grant.number)).collect();
        for (_, booking) in held.iter().filter(|(grant, _)| !booked.contains(grant)) {
            self.dispatch.rooms.adopt(*booking);
            self.dispatch.scheduler.on_adopted(booking);
        }
    }

    fn take_news(
        &mut self,
        now: Instant,
        (news, seen, is_whole): (NodeNews, u64, bool),
        opened: &mut Vec<NodeId>,
        returned: &mut Vec<NodeId>,
        lost: &mut Vec<NodeId>,
    ) {
        let rooms = &mut self.dispatch.rooms;
        match news {
            NodeNews::Joined { node, name, capacity, attributes } => {
                // The clusters do not report nodes that they expect: attempts may run there that are not known after a restart.
                if !matches!(rooms.state(node), Some(NodeState::Up | NodeState::Unreachable)) {
                    self.lost.insert(node);
                }
                rooms.join(node, capacity, attributes);
                rooms.set_open(node, true);
                self.dispatch.names.insert(node, name);
                returned.push(node);
            }
            NodeNews::Room { node, free, closed_reason, held, kept_for } if rooms.state(node).is_some() => {
                if rooms.state(node) == Some(NodeState::Unreachable) {
                    rooms.set_state(node, NodeState::Up);
                }
                match closed_reason {
                    None if !rooms.is_open(node) => rooms.set_open(node, true),
                    Some(why) if rooms.closed_reason(node).as_ref() != Some(&why) => rooms.close(node, why),
                    _ => {}
                }
                self.sharing.on_held(node, held);
                let kept_since = kept_for.map(|waited| now.before(waited));
                self.dispatch.scheduler.note_kept_by_another(node, kept_since, &mut self.dispatch.rooms);
                if self.take_room(now, node, free, seen, is_whole) {
                    opened.push(node);
                }
            }
            NodeNews::Away { node, lost: false } if rooms.state(node) == Some(NodeState::Up) => {
                rooms.set_state(node, NodeState::Unreachable);
            }
            NodeNews::Removed { node } => {
                if rooms.state(node).is_some_and(|state| state != NodeState::Lost) {
                    self.give_up(now, node);
                    lost.push(node);
                }
                self.dispatch.rooms.remove(node);
                self.dispatch.names.remove(node);
            }
            NodeNews::Away { node, lost: true } if rooms.state(node).is_some_and(|state| state != NodeState::Lost) => {
                self.give_up(now, node);
                lost.push(node);
            }
            NodeNews::Room { .. } | NodeNews::Away { .. } => {}
        }
    }

    /// Job managers claim their attempts at returned nodes and write off their attempts at lost nodes. A returned node
    /// that was lost or unknown may have attempts of jobs that have ended, so their managers are notified, too.
    fn report_managers(&mut self, mut returned: Vec<NodeId>, lost: Vec<NodeId>, is_whole: bool, out: &mut Outbox) {
        if returned.is_empty() && lost.is_empty() {
            return;
        }
        let running: Vec<JobId> = self.dispatch.running().map(|(job, _)| job.id).collect();
        if !returned.is_empty() {
            returned.sort_unstable();
            returned.dedup();
            let mut was_lost = false;
            for node in &returned {
                was_lost |= self.lost.remove(node);
            }
            let nodes: Arc<[NodeId]> = returned.into();
            let mut send = |job| out.send(job, ToJobManager::NodesReturned { nodes: Arc::clone(&nodes) });
            if is_whole || was_lost {
                self.dispatch.jobs_from(JobId(0)).for_each(|(job, _)| send(job.id));
            } else {
                running.iter().for_each(|job| send(*job));
            }
        }
        for node in lost {
            self.lost.insert(node);
            running.iter().for_each(|job| out.send(*job, ToJobManager::NodeLost { node }));
        }
    }

    /// The bookings on the node are lost.
    fn give_up(&mut self, now: Instant, node: NodeId) {
        self.dispatch.rooms.set_state(node, NodeState::Lost);
        let booked: Vec<Booking> = self.dispatch.rooms.bookings_on(node).collect();
        for booking in booked {
            self.dispatch.rooms.free(booking.grant);
            self.dispatch.scheduler.on_freed(now, &booking);
        }
        self.sharing.on_held(node, Box::default());
    }

    /// Checked after every event in tests and debug builds.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            self.dispatch.rooms.check_invariants();
        }
    }
}

fn held_grants(held: Vec<crate::protocol::HeldGrant>) -> BTreeMap<(Epoch, u64), Booking> {
    let booking = |held: crate::protocol::HeldGrant| {
        let crate::protocol::HeldGrant { grant, job, node, resources } = held;
        ((grant.epoch, grant.number), Booking { grant, job, node, resources })
    };
    held.into_iter().map(booking).collect()
}

impl Role for GlobalMaster {
    type Message = ToGlobalMaster;
    type Description = GlobalDescription;

    fn handle(&mut self, now: Instant, event: Event<ToGlobalMaster>, out: &mut Outbox) {
        match event {
            Event::Message { from, body } => self.on_message(now, from, body, out),
            Event::Connected { peer: Address::ClusterMaster(cluster), .. } => self.on_connected(now, cluster, out),
            Event::Disconnected { peer: Address::ClusterMaster(cluster) } => self.close(cluster),
            Event::Connected { peer: Address::GlobalMaster(own), .. } if own == self.own => {
                self.dispatch.on_recovered(now, out);
            }
            Event::Connected { .. } | Event::Disconnected { .. } => {}
            Event::Wakeup => {
                self.dispatch.take_turns_when_due(now, out);
                self.dispatch.forget_old(now, out);
                self.see_openings(now, out);
                self.dispatch.on_delays(now, &mut self.proposals, out);
            }
        }
        self.preempt_others(now, out);
        self.dispatch.started.clear();
        self.dispatch.report_shares(out);
        self.check_invariants();
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let own = [self.sharing.next_retry(), self.first_refusal.next_due()];
        let scheduler = [self.dispatch.scheduler.next_widening(), self.dispatch.scheduler.next_reclaim()];
        let dispatch = [self.dispatch.next_turns(), self.dispatch.next_forgetting()];
        own.into_iter().chain(scheduler).chain(dispatch).flatten().min()
    }

    fn recover(&mut self, changes: &[Change]) {
        changes.iter().for_each(|change| self.dispatch.recover(change));
        self.dispatch.recovered();
    }

    fn durable(&self) -> Vec<Change> {
        self.dispatch.durable()
    }

    fn describe(&self, now: Instant) -> GlobalDescription {
        let known = self
            .dispatch
            .rooms
            .ids()
            .filter(|node| !matches!(self.dispatch.rooms.state(*node), None | Some(NodeState::Expected)));
        GlobalDescription {
            known_nodes: known.count() as u64,
            queues: self.dispatch.queue_statuses(),
            jobs: self.dispatch.job_statuses(now),
            open_tasks: self.dispatch.scheduler.open_tasks(),
        }
    }
}
