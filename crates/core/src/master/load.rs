//! Duty: know the nodes: which are connected, how loaded they are, and which are lost.

use super::Master;
use super::labels::Labels;
use super::queues::{CountedQueue, Queues, Waiting};
use crate::dispatch::{NodeNames, refuse};
use crate::policy::Forecast;
use crate::policy::reliability::Doubt;
use crate::protocol::{
    ListedWaits, LiveAttempt, NodeReport, RefusalKind, Registration, Steer, ToClient, ToJobHost, ToJobManager, ToNode,
    Welcome,
};
use crate::role::{Change, Outbox, Record};
use crate::scheduling::{Booking, Ledger, NodeState};
use crate::vocabulary::{
    Attribute, Attributes, ClientId, ClosedReason, Duration, Generation, Instant, JobId, Named, NodeId, NodeViews,
    NodeWaits, ResourceSpec, Resources,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How long a node gets no work after it could not launch; doubled each time that it fails again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of a pause. A pause that has been over for this long is forgotten.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// What is known of every node besides its resources.
#[derive(Default)]
pub(super) struct Nodes {
    /// The number of the first one.
    first: u32,
    entries: Vec<NodeEntry>,
    queues: Queues,
    /// When nodes are checked for silence next.
    review_at: Option<Instant>,
    /// When this incarnation of the master started.
    started: Option<Instant>,
}

/// The order in memory matters: fields that each report uses come first, and rare ones are boxed. The entries of a
/// large cluster are visited in turn, and none is in a cache.
#[derive(Default)]
#[repr(C, align(64))]
struct NodeEntry {
    report: NodeReport,
    last_contact: Option<Instant>,
    /// Its queue as it is counted in `queues`.
    queue: Option<CountedQueue>,
    drained: bool,
    /// Whether its reports are left out, in a simulation.
    rests: bool,
    /// The oldest generation of tokens that is valid, as the node was notified.
    reported_oldest: Generation,
    pause: Option<Box<Pause>>,
    forecast: Option<Box<Forecast>>,
    /// How long tasks would wait there, and when the node reported it.
    waits: Option<Box<(Instant, Arc<NodeWaits>)>>,
    /// The limits that were sent last on its present connection.
    steer: Option<Box<Steer>>,
    /// When an earlier incarnation of the master heard from it last, as recorded.
    received_before: Option<Instant>,
    /// Since when it is unreachable or expected.
    away_since: Option<Instant>,
    enforcement: Vec<String>,
    program: Option<String>,
    labels: Option<Box<Labels>>,
}

/// A node could not launch an attempt. A pause that is over is kept for some time: if the node fails again, the next
/// one is longer.
struct Pause {
    since: Instant,
    length: Duration,
    is_over: bool,
    why: String,
}

impl Pause {
    fn left(&self, now: Instant) -> Duration {
        Duration(self.length.0.saturating_sub(now.since(self.since).0))
    }
}

impl NodeEntry {
    fn pause_now(&self) -> Option<&Pause> {
        self.pause.as_deref().filter(|pause| !pause.is_over)
    }

    /// Forgets its failures; true if it was paused.
    fn end_pause(&mut self) -> bool {
        self.pause.take().is_some_and(|pause| !pause.is_over)
    }

    /// Whether its drain state and its pause let it take work.
    fn takes_work(&self) -> bool {
        self.closed_reason().is_none()
    }

    fn closed_reason(&self) -> Option<ClosedReason> {
        match self.pause_now() {
            _ if self.drained => Some(ClosedReason::Drained),
            Some(pause) => Some(ClosedReason::Paused { why: pause.why.clone() }),
            None => None,
        }
    }

    fn heard(&self) -> Option<Instant> {
        self.last_contact.or(self.received_before)
    }
}

/// One node, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStatus {
    pub node: NodeId,
    pub name: String,
    pub state: NodeState,
    pub drained: bool,
    pub paused: Option<PauseStatus>,
    pub capacity: Resources,
    pub free: Resources,
    /// Grants that have not been freed.
    pub bookings: u32,
    pub report: NodeReport,
    pub attributes: Attributes,
    /// Those that operators set.
    pub labels: Attributes,
    pub enforcement: Vec<String>,
    /// The version of its agent's program, as its last registration reported it.
    pub program: Option<String>,
    /// Time since its last message, if known.
    pub silent_for: Option<Duration>,
    /// When this incarnation of the master started, if it has not heard from the node.
    pub unheard_since: Option<Instant>,
    pub reserved: bool,
    /// Set if attempts fail there. `is_avoided`: attempts are therefore sent to other nodes.
    pub doubt: Option<Doubt>,
    pub is_avoided: bool,
    /// How many times as long tasks take there until they succeed, in thousandths, if the node is known to be slow.
    pub slowness: Option<u32>,
}

/// Why a node is paused, because a launch failed there, and the time left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PauseStatus {
    pub why: String,
    pub left: Duration,
}

impl Nodes {
    pub(super) fn from_node(first: NodeId) -> Nodes {
        Nodes { first: first.0, ..Nodes::default() }
    }

    /// The number that the next new node gets.
    pub(super) fn next(&self) -> NodeId {
        NodeId(self.first + self.entries.len() as u32)
    }

    fn index(&self, node: NodeId) -> usize {
        (node.0 - self.first) as usize
    }

    fn get(&self, node: NodeId) -> Option<&NodeEntry> {
        self.entries.get(node.0.checked_sub(self.first)? as usize)
    }

    fn by_number(&self) -> impl Iterator<Item = (NodeId, &NodeEntry)> {
        (self.first..).map(NodeId).zip(&self.entries)
    }

    pub(super) fn recover(&mut self, node: NodeId) {
        self.entry(node);
        // Its grace period starts with the first event of this incarnation.
        self.review_at = Some(Instant::ZERO);
    }

    fn entry(&mut self, node: NodeId) -> &mut NodeEntry {
        let index = self.index(node);
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, NodeEntry::default);
        }
        &mut self.entries[index]
    }

    pub(super) fn set_drained(&mut self, node: NodeId, drained: bool) {
        self.entry(node).drained = drained;
    }

    pub(super) fn labels_mut(&mut self, node: NodeId) -> &mut Option<Box<Labels>> {
        &mut self.entry(node).labels
    }

    pub(super) fn set_received(&mut self, node: NodeId, at: Instant) {
        self.entry(node).received_before = Some(at);
    }

    pub(super) fn started(&mut self, now: Instant) {
        self.started = Some(now);
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        self.count_queue(node, None);
        *self.entry(node) = NodeEntry::default();
    }

    pub(super) fn durable(&self, names: &NodeNames, rooms: &Ledger) -> Vec<Change> {
        let mut changes = Vec::new();
        for (node, entry) in self.by_number() {
            if rooms.is_removed(node) {
                changes.push(Change::NodeRemoved { node });
                continue;
            }
            changes.extend(names.of(node).map(|name| Change::NodeNamed { node, name: name.to_owned() }));
            if entry.drained {
                changes.push(Change::NodeDrained { node, drained: true });
            }
            let labels = entry.labels.as_ref().map(|labels| labels.set().clone());
            changes.extend(labels.map(|labels| Change::NodeLabelled { node, labels }));
            changes.extend(entry.heard().map(|at| Change::NodeLastSeen { node, at }));
        }
        changes
    }

    pub(super) fn is_drained(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|entry| entry.drained)
    }

    pub(super) fn report(&self, node: NodeId) -> Option<&NodeReport> {
        self.get(node).map(|entry| &entry.report)
    }

    /// How long tasks would wait there, if the node has reported it.
    pub(super) fn waits(&self, now: Instant, node: NodeId) -> Option<ListedWaits> {
        let entry = self.get(node)?;
        let (reported_at_node, waits) = entry.waits.as_deref()?;
        let silent_for = now.since(entry.last_contact.unwrap_or(*reported_at_node));
        Some(ListedWaits { waits: Arc::clone(waits), age: now.since(*reported_at_node), silent_for })
    }

    pub(super) fn take_waits(&mut self, now: Instant, node: NodeId, waits: Arc<NodeWaits>) {
        self.entry(node).waits = Some(Box::new((now, waits)));
    }

    /// Whether it rests, and when it was heard last.
    pub(super) fn rest_mut(&mut self, node: NodeId) -> (&mut bool, &mut Option<Instant>) {
        let NodeEntry { rests, last_contact, .. } = self.entry(node);
        (rests, last_contact)
    }

    fn take_report(&mut self, now: Instant, node: NodeId, report: NodeReport, is_there: bool) {
        let counts = is_there && self.entry(node).takes_work();
        self.count_queue(node, counts.then(|| Waiting::new(report.expected_wait, report.queued)));
        let entry = self.entry(node);
        entry.last_contact = Some(now);
        entry.report = report;
    }

    /// Counts the node with this queue from now on; `None`: the node is not counted.
    fn count_queue(&mut self, node: NodeId, new: Option<Waiting>) {
        let (queues, queue) = self.queue_mut(node);
        queues.replace(node, queue, new);
    }

    /// The node's queue as it is counted in the queues.
    pub(super) fn queue_mut(&mut self, node: NodeId) -> (&mut Queues, &mut Option<CountedQueue>) {
        self.entry(node);
        let index = self.index(node);
        (&mut self.queues, &mut self.entries[index].queue)
    }

    pub(super) fn queues(&self) -> &Queues {
        &self.queues
    }

    pub(super) fn forecast(&mut self, node: NodeId) -> &mut Forecast {
        self.entry(node).forecast.get_or_insert_default()
    }

    /// Whether these limits have not been sent to the node; they count as sent from now on.
    pub(super) fn is_new_steer(&mut self, node: NodeId, steer: Steer) -> bool {
        let sent = &mut self.entry(node).steer;
        let is_new = sent.as_deref() != Some(&steer);
        if is_new {
            *sent = Some(Box::new(steer));
        }
        is_new
    }

    /// Whether the node was not notified that earlier generations have expired; it counts as notified from now on.
    pub(super) fn is_new_expiry(&mut self, node: NodeId, oldest: Generation) -> bool {
        std::mem::replace(&mut self.entry(node).reported_oldest, oldest) != oldest
    }

    pub(super) fn next_review(&self) -> Option<Instant> {
        self.review_at
    }
}

impl Master {
    pub(super) fn on_node_connected(&mut self, now: Instant, node: NodeId) {
        self.dispatch.rooms.expect_node(node);
        self.nodes.entry(node).last_contact = Some(now);
    }

    /// A node reports everything that holds resources there, and the ledger is reconciled with it.
    pub(super) fn on_register(&mut self, now: Instant, node: NodeId, registration: Registration, out: &mut Outbox) {
        let mut enforcement = registration.enforcement;
        self.add_kinds(&registration.capacity, &mut enforcement, out);
        let attributes = self.labelled(node, offered(&registration.attributes, &mut enforcement));
        // It is printed and recorded, so it follows the rules of a job's title.
        let program = registration.program.filter(|program| Named::Job.check(program).is_ok());
        let mut capacity = registration.capacity;
        capacity.custom.retain(|(name, _)| self.dispatch.kinds.index(name).is_some());
        let capacity = self.dispatch.kinds.resolve(&capacity).unwrap_or(capacity.basic);

        let was_lost = self.dispatch.rooms.state(node) == Some(NodeState::Lost);
        self.reliability.on_join(node, attributes.get("rack"));
        self.dispatch.rooms.join(node, capacity, attributes);
        self.reconcile(now, node, &registration.live, out);
        // What it was asked to hand over before is forgotten there.
        self.nodes.count_queue(node, None);
        let oldest = self.claims.tokens.oldest();
        let entry = self.nodes.entry(node);
        entry.steer = None;
        entry.waits = None;
        entry.reported_oldest = oldest;
        entry.enforcement = enforcement;
        entry.program = program;
        entry.last_contact = Some(now);
        entry.away_since = None;
        self.show_open(node);
        self.nodes.review_at.get_or_insert(now + self.heartbeat());

        self.record_join(now, node, out);
        let welcome = Welcome {
            node,
            registration: registration.number,
            epoch: self.claims.epoch(),
            first_grant: self.claims.first_to_come(),
            kinds: self.dispatch.kinds.clone(),
            heartbeat: self.heartbeat(),
            pace: self.settings.pace(self.dispatch.rooms.len()),
            key: self.claims.tokens.node_key(node),
            oldest,
            passes_on: self.federated.is_some(),
        };
        out.send(node, ToNode::Welcome(Box::new(welcome)));
        if was_lost {
            let running: Vec<JobId> = self.dispatch.running().map(|(job, _)| job.id).collect();
            for job in running {
                out.send(job, ToJobManager::NodesReturned { nodes: Arc::new([node]) });
            }
        }
        self.dispatch.scheduler.on_capacity(self.dispatch.rooms.capacity());
        self.dispatch.scheduler.on_room_opened();
        self.dispatch.decide(now, &[], &mut self.claims, out);
    }

    /// Adds the custom kinds of resources of a node to those of the cluster.
    fn add_kinds(&mut self, capacity: &ResourceSpec, enforcement: &mut Vec<String>, out: &mut Outbox) {
        let mut kinds = self.dispatch.kinds.clone();
        for (name, _) in &capacity.custom {
            let added = match self.federated {
                // All clusters number the kinds in the same way.
                Some(_) if kinds.index(name).is_none() => {
                    Err(format!("`{name}` is not among the kinds of resources of the federation"))
                }
                _ => kinds.add(name).map(drop),
            };
            if let Err(why) = added {
                enforcement.push(format!("not offered: {why}"));
            }
        }
        if kinds != self.dispatch.kinds {
            out.persist(Change::KindsNamed { kinds: kinds.clone() });
            for host in &self.dispatch.hosts {
                out.send(*host, ToJobHost::Kinds { kinds: kinds.clone() });
            }
            self.dispatch.kinds = kinds;
        }
    }

    /// Frees bookings that the node does not have (the launch was lost in transit), and books attempts of the node that
    /// the ledger does not have (they were booked in an earlier incarnation).
    fn reconcile(&mut self, now: Instant, node: NodeId, live: &[LiveAttempt], out: &mut Outbox) {
        let grants = live.iter().filter_map(|attempt| attempt.grant);
        let held: BTreeSet<_> = grants.map(|grant| (grant.epoch, grant.number)).collect();
        let booked: Vec<Booking> = self.dispatch.rooms.bookings_on(node).collect();
        for booking in booked {
            if !held.contains(&(booking.grant.epoch, booking.grant.number)) {
                self.dispatch.rooms.free(booking.grant);
                self.dispatch.scheduler.on_freed(now, &booking);
            }
        }
        let mut without_owner = BTreeSet::new();
        // Attempts with a numbered GPU first: the numbers of the others are chosen around them.
        let (numbered, others): (Vec<_>, Vec<_>) = live.iter().partition(|attempt| attempt.shared_gpu.is_some());
        for attempt in numbered.into_iter().chain(others) {
            let mut job = attempt.attempt.job;
            // Jobs of a federation are not known here.
            if self.federated.is_none() && !self.dispatch.is_running(job) {
                without_owner.insert(job);
                // Booked for no job until the node has stopped it.
                job = JobId(0);
            }
            if let Some(grant) = attempt.grant.filter(|grant| self.dispatch.rooms.booking(*grant).is_none()) {
                let booking = Booking { grant, job, node, resources: attempt.resources };
                self.dispatch.rooms.adopt_at(booking, attempt.shared_gpu);
                self.dispatch.scheduler.on_adopted(&booking);
            }
        }
        for job in without_owner {
            out.send(node, ToNode::Disown { job });
        }
    }

    pub(super) fn on_report(&mut self, now: Instant, node: NodeId, mut report: NodeReport, out: &mut Outbox) {
        std::mem::take(&mut report.starts).iter().for_each(|start| self.dispatch.calibration.learn(now, start));
        std::mem::take(&mut report.late).iter().for_each(|late| self.dispatch.calibration.on_late(late));
        self.dispatch.count_late(now);
        let state = self.dispatch.rooms.state(node);
        let is_there = matches!(state, Some(NodeState::Up | NodeState::Unreachable));
        self.count_successes(now, node, report.succeeded);
        self.nodes.take_report(now, node, report, is_there);
        match state {
            Some(NodeState::Up) => self.dispatch.decide_on_heartbeat(now, node, &mut self.claims, out),
            // It was silent, but its connection held: nothing was lost.
            Some(NodeState::Unreachable) => self.take_back(now, node, out),
            Some(NodeState::Lost) => out.send(node, ToNode::RegisterAgain),
            Some(NodeState::Expected) | None => {}
        }
        if is_there {
            // After the decision, so that the forecast includes what guaranteed work has just been granted.
            self.steer(node, out);
            self.expire_tokens(node, out);
        }
    }

    fn take_back(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        self.nodes.entry(node).away_since = None;
        self.dispatch.rooms.set_state(node, NodeState::Up);
        self.show_open(node);
        self.record_join(now, node, out);
        self.dispatch.scheduler.on_room_opened();
        self.dispatch.decide(now, &[], &mut self.claims, out);
    }

    /// Opens the node for work or closes it, according to its drain state and its pause.
    fn show_open(&mut self, node: NodeId) {
        match self.nodes.entry(node).closed_reason() {
            None => self.dispatch.rooms.set_open(node, true),
            Some(why) => self.dispatch.rooms.close(node, why),
        }
    }

    /// The pause of a node continues while it is not connected.
    fn record_join(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        let entry = self.nodes.entry(node);
        out.record(Record::NodeJoined { node, program: entry.program.clone() });
        if let Some(pause) = entry.pause_now() {
            out.record(Record::NodePaused { node, length: pause.left(now), why: pause.why.clone() });
        }
    }

    pub(super) fn on_node_disconnected(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if self.dispatch.rooms.state(node) == Some(NodeState::Up) {
            self.dispatch.rooms.set_open(node, false);
            self.dispatch.rooms.set_state(node, NodeState::Unreachable);
            let entry = self.nodes.entry(node);
            entry.away_since = Some(now);
            // So that the time since its last message is still known after a restart.
            out.persist(Change::NodeLastSeen { node, at: entry.last_contact.unwrap_or(now) });
            self.nodes.count_queue(node, None);
            out.record(Record::NodeUnreachable { node });
        }
    }

    /// A node that fails immediately would attract one task after the other, so it is paused.
    pub(super) fn on_cannot_launch(&mut self, now: Instant, node: NodeId, why: String, out: &mut Outbox) {
        let entry = self.nodes.entry(node);
        // Of several launches that were in transit, only the first failure counts.
        if entry.pause_now().is_some() {
            return;
        }
        let length = entry.pause.as_ref().map_or(FIRST_PAUSE, |last| LONGEST_PAUSE.min(Duration(last.length.0 * 2)));
        entry.pause = Some(Box::new(Pause { since: now, length, is_over: false, why: why.clone() }));
        self.show_open(node);
        out.record(Record::NodePaused { node, length, why });
    }

    fn review_pause(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        let entry = self.nodes.entry(node);
        let Some(pause) = &mut entry.pause else { return };
        let age = now.since(pause.since);
        if pause.is_over {
            // It has launched since, or had nothing to launch: in both cases the next failure is a first one.
            entry.pause.take_if(|pause| age >= pause.length + LONGEST_PAUSE);
        } else if age >= pause.length {
            pause.is_over = true;
            if entry.takes_work() && self.dispatch.rooms.state(node) == Some(NodeState::Up) {
                out.record(Record::NodeResumed { node });
                self.dispatch.rooms.set_open(node, true);
                self.dispatch.scheduler.on_room_opened();
            }
        }
    }

    /// The interval between reports, with the number of known nodes.
    fn heartbeat(&self) -> Duration {
        self.settings.heartbeat_of(self.dispatch.rooms.len())
    }

    pub(super) fn on_wakeup(&mut self, now: Instant, out: &mut Outbox) {
        if self.nodes.review_at.is_none_or(|at| now < at) {
            return;
        }
        self.nodes.review_at = Some(now + self.heartbeat());
        let silence = Duration(self.heartbeat().0 * u64::from(self.settings.missed_heartbeats));
        for index in 0..self.nodes.entries.len() {
            let node = self.dispatch.rooms.node(index);
            self.review_pause(now, node, out);
            match self.dispatch.rooms.state(node) {
                Some(NodeState::Up) => {
                    let NodeEntry { last_contact: heard, rests, .. } = &self.nodes.entries[index];
                    if !rests && now.since(heard.unwrap_or(now)) > silence {
                        self.on_node_disconnected(now, node, out);
                    }
                }
                Some(NodeState::Expected | NodeState::Unreachable) => {
                    let since = *self.nodes.entries[index].away_since.get_or_insert(now);
                    if now.since(since) >= self.settings.node_grace {
                        self.give_up(now, node, out);
                    }
                }
                Some(NodeState::Lost) | None => {}
            }
        }
        self.report_success_rates(now);
        self.dispatch.scheduler.review_reservation(now, &mut self.dispatch.rooms);
        // Only this review decides about the room of reserved nodes: they must not wait until another task ends there.
        let kept: Vec<NodeId> = self.dispatch.scheduler.reserved_nodes().to_vec();
        self.dispatch.decide(now, &kept, &mut self.claims, out);
    }

    /// A node was unreachable for longer than its grace period: its attempts are lost.
    fn give_up(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        self.count_loss(now, node);
        let started = self.nodes.started;
        let entry = self.nodes.entry(node);
        if let (None, Some(started)) = (entry.heard(), started) {
            // It has been silent at least since then.
            entry.received_before = Some(started);
            out.persist(Change::NodeLastSeen { node, at: started });
        }
        self.dispatch.rooms.set_state(node, NodeState::Lost);
        let booked: Vec<Booking> = self.dispatch.rooms.bookings_on(node).collect();
        for booking in booked {
            self.dispatch.rooms.free(booking.grant);
            self.dispatch.scheduler.on_freed(now, &booking);
        }
        self.dispatch.scheduler.on_capacity(self.dispatch.rooms.capacity());
        out.record(Record::NodeLost { node });
        // The ledger of a restarted master does not know whose attempts were there; each job manager does.
        let running: Vec<JobId> = self.dispatch.running().map(|(job, _)| job.id).collect();
        for job in running {
            out.send(job, ToJobManager::NodeLost { node });
        }
        self.dispatch.decide(now, &[], &mut self.claims, out);
    }

    pub(super) fn on_drain(&mut self, now: Instant, client: ClientId, node: NodeId, drained: bool, out: &mut Outbox) {
        if self.dispatch.rooms.state(node).is_none() {
            let message = format!("node {node} not found");
            refuse(client, RefusalKind::NotFound, &message, "`amalgam node list` shows the nodes", out);
            return;
        }
        out.send(client, ToClient::Done);
        if !drained {
            self.reliability.forgive(node);
            self.dispatch.scheduler.forget_speed(now, node, &mut self.dispatch.rooms);
            self.report_success_rates(now);
        }
        let entry = self.nodes.entry(node);
        // Undraining a node states that it works again.
        let resumes = !drained && entry.end_pause();
        let is_new = std::mem::replace(&mut entry.drained, drained) != drained;
        let is_up = self.dispatch.rooms.state(node) == Some(NodeState::Up);
        if is_new {
            out.persist(Change::NodeDrained { node, drained });
            out.record(Record::NodeDrained { node, drained });
        } else if resumes && is_up {
            out.record(Record::NodeResumed { node });
        }
        if is_up && (is_new || resumes) {
            self.show_open(node);
            if !drained {
                self.dispatch.scheduler.on_room_opened();
                self.dispatch.decide(now, &[], &mut self.claims, out);
            }
        } else if is_up && !drained {
            // It may not be slow any more.
            self.dispatch.decide(now, &[], &mut self.claims, out);
        }
    }

    /// Forgets a node that does not return.
    pub(super) fn on_remove_node(&mut self, now: Instant, client: ClientId, node: NodeId, out: &mut Outbox) {
        let name = self.dispatch.names.of(node).map_or_else(|| node.to_string(), str::to_owned);
        let is_drained = self.nodes.is_drained(node);
        let (kind, message, remedy) = match self.dispatch.rooms.state(node) {
            None => (RefusalKind::NotFound, format!("node {node} not found"), "`amalgam node list` shows the nodes"),
            Some(NodeState::Up) => {
                let message = format!("node {name} is connected: it would join again");
                (RefusalKind::Conflict, message, "stop its agent first")
            }
            Some(NodeState::Unreachable | NodeState::Expected) if !is_drained => {
                let message = format!("node {name} is not connected, and its tasks may still run");
                (RefusalKind::Conflict, message, "wait until it is lost, or drain it first to give up its tasks")
            }
            Some(state) => {
                out.send(client, ToClient::Done);
                if state != NodeState::Lost {
                    self.give_up(now, node, out);
                }
                self.forget_node(node);
                out.persist(Change::NodeRemoved { node });
                return;
            }
        };
        refuse(client, kind, &message, remedy, out);
    }

    pub fn node_statuses(&self, now: Instant) -> Vec<NodeStatus> {
        let usual = self.reliability.usual(now);
        let status = |(node, entry): (NodeId, &NodeEntry)| {
            let doubt = self.reliability.doubt(now, node, usual);
            Some(NodeStatus {
                node,
                name: self.dispatch.names.of(node).unwrap_or_default().to_owned(),
                state: self.dispatch.rooms.state(node)?,
                drained: entry.drained,
                paused: entry.pause_now().map(|pause| PauseStatus { why: pause.why.clone(), left: pause.left(now) }),
                capacity: self.dispatch.rooms.node_capacity(node),
                free: self.dispatch.rooms.node_free(node),
                bookings: self.dispatch.rooms.node_bookings(node),
                report: entry.report.clone(),
                attributes: self.dispatch.rooms.attributes(node).as_ref().clone(),
                labels: entry.labels.as_ref().map(|labels| labels.set().clone()).unwrap_or_default(),
                enforcement: entry.enforcement.clone(),
                program: entry.program.clone(),
                silent_for: entry.heard().map(|heard| now.since(heard)),
                unheard_since: self.nodes.started.filter(|_| entry.last_contact.is_none()),
                reserved: self.dispatch.scheduler.reserved_nodes().binary_search(&node).is_ok(),
                doubt,
                is_avoided: doubt.is_some() && (self.publishes_odds() || self.dispatch.rooms.is_slow(node)),
                slowness: self.dispatch.rooms.is_slow(node).then(|| self.dispatch.rooms.slowness(node)),
            })
        };
        self.nodes.by_number().filter_map(status).collect()
    }
}

/// The attributes with valid names and values; the others are added to the sentences about the node.
fn offered(attributes: &Attributes, enforcement: &mut Vec<String>) -> Attributes {
    let valid = attributes.iter().filter_map(|Attribute { name, value }| {
        let wrong = Named::Attribute.check(name).err().or_else(|| Named::Job.check(value).err());
        match wrong {
            None => Some((name.clone(), value.clone())),
            Some(wrong) => {
                enforcement.push(format!("not offered: {wrong}"));
                None
            }
        }
    });
    Attributes::new(valid.collect::<Vec<_>>())
}
