//! The master of a cluster: it owns the nodes and keeps the only ledger of them.
//!
//! It admits jobs and schedules them centrally ([`Dispatcher`]). [`load`] knows the nodes, [`publish`] sends lists of
//! them to job managers, [`steer`] limits the opportunistic work that others place on them, and [`faults`] knows which
//! nodes fail, and [`labels`] what operators state of them. [`claims`] confirms placements against the ledger, and [`tokens`] lets nodes verify launches. In a
//! federation ([`federation`]) the master has no jobs: global masters propose launches and are notified of changes of
//! its nodes.

mod claims;
mod faults;
mod federation;
mod holdings;
mod labels;
mod load;
mod publish;
mod queues;
mod resting;
mod steer;
mod tokens;

use federation::{Federated, refuse_jobs};
pub use load::{NodeStatus, PauseStatus};
pub use publish::Publish;
pub use steer::{OpportunisticLimit, Steering};

use crate::dispatch::{Decide, DispatchSettings, Dispatcher, JobStatus, QueueStatus, Reconfiguration};
use crate::policy::inter_job::QueueTree;
use crate::policy::reliability::{Reliability, ReliabilitySettings};
use crate::protocol::{Address, ToMaster};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::scheduling::{Ledger, Scheduler};
use crate::vocabulary::{ClusterId, Duration, Epoch, Federation, Instant, Kinds, NodeId, Sealing};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// The master's behaviour; every field is a setting of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MasterSettings {
    /// How often nodes report; less often in a large cluster, so that `most_reports` is not exceeded.
    pub heartbeat: Duration,
    /// Maximum number of reports per second, over all nodes.
    pub most_reports: NonZeroU32,
    /// Heartbeats that may be missing before a node becomes unreachable.
    pub missed_heartbeats: u32,
    /// How long a node may be unreachable before its attempts are given up.
    pub node_grace: Duration,
    pub dispatch: DispatchSettings,
    pub publish: Publish,
    /// How often job managers get the load of the nodes; `None`: as often as nodes report.
    pub publish_every: Option<Duration>,
    /// `None`: there is no opportunistic work, or it is not steered.
    pub steer: Option<Steering>,
    /// How failures of nodes are counted.
    pub reliability: ReliabilitySettings,
    /// Global masters are notified of changes after at most this time; `None`: at each heartbeat.
    pub report_changes_after: Option<Duration>,
    /// The federation and the number of this cluster in it.
    pub federated: Option<(Federation, ClusterId)>,
    /// Length of a generation of tokens. A token is valid in its own and in the next generation, and up to some
    /// heartbeats longer.
    pub token_life: Duration,
}

impl MasterSettings {
    /// Interval between messages of one node that may arrive at any time, so that all nodes together stay within the
    /// limit.
    fn pace(&self, nodes: usize) -> Duration {
        Duration((nodes as u64).saturating_mul(1_000_000) / u64::from(self.most_reports.get()))
    }

    /// Interval between the reports of a node, in a cluster of `nodes` nodes.
    pub fn heartbeat_of(&self, nodes: usize) -> Duration {
        self.heartbeat.max(self.pace(nodes))
    }

    fn publish_every(&self, nodes: usize) -> Duration {
        self.publish_every.unwrap_or(self.heartbeat_of(nodes))
    }
}

/// A report costs tens of microseconds, and the master needs time for other events.
const MOST_REPORTS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");

impl Default for MasterSettings {
    fn default() -> Self {
        MasterSettings {
            heartbeat: Duration::from_secs(1),
            most_reports: MOST_REPORTS,
            missed_heartbeats: 5,
            node_grace: Duration::from_secs(30),
            dispatch: DispatchSettings::default(),
            publish: Publish::Nothing,
            publish_every: None,
            steer: None,
            reliability: ReliabilitySettings::USUAL,
            report_changes_after: None,
            federated: None,
            token_life: Duration::from_secs(600),
        }
    }
}

pub struct Master {
    settings: MasterSettings,
    /// Jobs, and the ledger of the nodes that they are placed on.
    dispatch: Dispatcher,
    nodes: load::Nodes,
    reliability: Reliability,
    /// Attempts that succeeded at nodes in this incarnation of the master.
    successes: u64,
    publication: publish::Publication,
    claims: claims::Claims,
    /// Present if its cluster is part of a federation.
    federated: Option<Box<federation::Federated>>,
}

/// A master's state for people and for a simulator that starts from it.
#[derive(Clone, PartialEq, Debug)]
pub struct MasterDescription {
    pub nodes: Vec<NodeStatus>,
    pub queues: Vec<QueueStatus>,
    pub jobs: Vec<JobStatus>,
    pub open_tasks: u64,
}

impl Master {
    pub fn new(
        epoch: Epoch,
        settings: MasterSettings,
        queues: QueueTree,
        scheduler: Scheduler,
        sealing: Sealing,
    ) -> Master {
        let judges_users = settings.steer.is_some();
        let jobs_place_all = settings.publish != Publish::Nothing && settings.steer.is_none();
        let dispatch = DispatchSettings { judges_users, jobs_place_all, ..settings.dispatch.clone() };
        let has_shares = queues.has_shares();
        let federated =
            settings.federated.map(|(federation, cluster)| Box::new(Federated::new(federation, cluster, has_shares)));
        let first = federated.as_ref().map_or(NodeId(0), |federated| federated.first_node());
        let mut rooms = Ledger::from_node(first);
        if federated.is_some() {
            rooms.keep_news();
        }
        Master {
            reliability: reliability(&settings),
            successes: 0,
            dispatch: Dispatcher::new(dispatch, queues, scheduler, rooms),
            settings,
            nodes: load::Nodes::from_node(first),
            publication: publish::Publication::default(),
            claims: claims::Claims::new(epoch, sealing),
            federated,
        }
    }

    pub fn kinds(&self) -> &Kinds {
        &self.dispatch.kinds
    }

    pub fn epoch(&self) -> Epoch {
        self.claims.epoch()
    }

    fn on_message(&mut self, now: Instant, from: Address, body: ToMaster, out: &mut Outbox) {
        match (from, body) {
            (Address::Client(client), ToMaster::Drain { node, drained }) => {
                self.on_drain(now, client, node, drained, out);
            }
            (Address::Client(client), ToMaster::RemoveNode { node }) => self.on_remove_node(now, client, node, out),
            (Address::Client(client), ToMaster::Label { node, labels }) => {
                self.on_label(now, client, node, &labels, out);
            }
            (Address::Client(client), ToMaster::SetQueue { queue, settings }) if self.federated.is_none() => {
                self.dispatch.on_set_queue(now, client, &queue, settings, &mut self.claims, out);
            }
            (Address::Client(client), ToMaster::Reconfigure { queues, kept_jobs, kept_for, kept_tasks })
                if self.federated.is_none() =>
            {
                let wanted = Reconfiguration { queues, kept_jobs: kept_jobs as usize, kept_for, kept_tasks };
                self.dispatch.on_reconfigure(now, client, wanted, &mut self.claims, out);
            }
            (Address::Node(node), _) if self.dispatch.rooms.is_removed(node) => {
                out.record(Record::StaleMessage { from });
            }
            (Address::Node(node), ToMaster::Register(registration)) => self.on_register(now, node, *registration, out),
            (Address::Node(node), ToMaster::Report(report)) => self.on_report(now, node, *report, out),
            (Address::Node(node), ToMaster::Waits(waits)) => self.nodes.take_waits(now, node, waits),
            (Address::Node(node), ToMaster::Room { spare }) => self.on_room(node, *spare, out),
            (Address::Node(node), ToMaster::Moved { to, left, queued, expected_wait }) => {
                self.on_moved(node, to, *left, queues::Waiting::new(expected_wait, queued), out);
            }
            (Address::Node(node), ToMaster::CannotLaunch { why }) => self.on_cannot_launch(now, node, why, out),
            (Address::JobManager(_) | Address::GlobalMaster(_), ToMaster::NodeFailed { node, suspects }) => {
                self.on_node_failed(now, node, suspects)
            }
            (Address::JobManager(_), ToMaster::TaskFails { at }) => self.on_task_fails(now, &at),
            (Address::JobManager(sender), ToMaster::Promote { attempt, node, resources }) if sender == attempt.job => {
                self.on_promote(attempt, node, &resources, out);
            }
            (Address::Node(sender), ToMaster::Promote { attempt, node, resources }) if sender == node => {
                // With a limit on grants per report, waiting tasks may need the remaining room at the next report.
                let is_wanted = matches!(self.settings.dispatch.decide, Decide::OnHeartbeats { most: Some(_) });
                if !is_wanted || self.dispatch.scheduler.open_tasks() == 0 {
                    self.on_promote(attempt, node, &resources, out);
                }
            }
            (Address::JobManager(sender), ToMaster::Launch(proposed)) if sender == proposed.launch.attempt.job => {
                self.on_proposed(*proposed, out);
            }
            (Address::GlobalMaster(global), ToMaster::Introduce(introduction)) => {
                self.on_introduced(global, *introduction, out);
            }
            (Address::GlobalMaster(global), ToMaster::MakeRoom { grant, instead_of }) => {
                self.on_make_room(global, grant, instead_of);
            }
            (Address::GlobalMaster(global), ToMaster::Keep { nodes, waited }) => {
                self.on_keep(global, nodes, now.before(waited));
            }
            (Address::Client(client), ToMaster::Submit { .. }) if self.federated.is_some() => refuse_jobs(client, out),
            (from, body) => self.dispatch.on_message(now, from, body, &mut self.claims, out),
        }
    }

    /// Checked after every event in tests and debug builds.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            self.dispatch.rooms.check_invariants();
        }
    }

    // ---- questions from the interface ------------------------------------------------------------------------------

    /// Its jobs, and what is known of the nodes.
    pub fn dispatch(&self) -> &Dispatcher {
        &self.dispatch
    }

    /// Its nodes and the bookings on them.
    pub fn ledger(&self) -> &Ledger {
        &self.dispatch.rooms
    }

    /// The number of the node with this name; a new name gets the next number. `None` if the cluster may not have more
    /// nodes.
    pub fn name_node(&mut self, name: &str, out: &mut Outbox) -> Option<NodeId> {
        if let Some(known) = self.dispatch.names.find(name) {
            return Some(known);
        }
        let node = self.nodes.next();
        if self.federated.as_ref().is_some_and(|federated| !federated.has(node)) {
            return None;
        }
        self.know_node(node, name.to_owned());
        out.persist(Change::NodeNamed { node, name: name.to_owned() });
        Some(node)
    }

    fn forget_node(&mut self, node: NodeId) {
        self.nodes.forget(node);
        self.dispatch.rooms.remove(node);
        self.dispatch.scheduler.on_node_removed(node, &mut self.dispatch.rooms);
        self.dispatch.names.remove(node);
    }

    fn know_node(&mut self, node: NodeId, name: String) {
        self.dispatch.names.insert(node, name);
        self.nodes.recover(node);
        self.dispatch.rooms.expect_node(node);
    }
}

impl Role for Master {
    type Message = ToMaster;
    type Description = MasterDescription;

    fn handle(&mut self, now: Instant, event: Event<ToMaster>, out: &mut Outbox) {
        match event {
            Event::Message { from, body } => self.on_message(now, from, body, out),
            Event::Connected { peer: Address::Node(node), .. } => self.on_node_connected(now, node),
            Event::Disconnected { peer: Address::Node(node) } => self.on_node_disconnected(now, node, out),
            Event::Connected { peer: Address::Master, .. } => {
                self.nodes.started(now);
                self.dispatch.on_recovered(now, out);
            }
            Event::Connected { peer: Address::JobHost(host), incarnation } => {
                self.dispatch.on_host_connected(host, incarnation, out);
            }
            Event::Disconnected { peer: Address::JobHost(host) } => drop(self.dispatch.hosts.remove(&host)),
            Event::Connected { peer: Address::GlobalMaster(global), .. } => self.on_global_connected(global, out),
            Event::Disconnected { peer: Address::GlobalMaster(global) } => self.forget_global(global),
            Event::Connected { .. } | Event::Disconnected { .. } => {}
            Event::Wakeup => {
                self.dispatch.take_turns_when_due(now, out);
                self.dispatch.forget_old(now, out);
                self.dispatch.on_delays(now, &mut self.claims, out);
                self.on_wakeup(now, out);
                self.advance_when_due(now);
                self.publish_when_due(now, out);
                self.beat_when_due(now);
            }
        }
        let started = std::mem::take(&mut self.dispatch.started);
        self.publish_to(now, &started, out);
        self.dispatch.report_shares(out);
        self.review_publication(now);
        self.report_to_globals(now, out);
        self.check_invariants();
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let beat = self.federated.as_ref().and_then(|federated| federated.next_beat());
        let scheduler = &self.dispatch.scheduler;
        let dispatch = [self.dispatch.next_turns(), self.dispatch.next_forgetting()];
        let dispatch = dispatch.into_iter().chain([
            scheduler.next_widening(),
            scheduler.next_reclaim(),
            scheduler.next_slow_offer(),
        ]);
        let reviews = [self.nodes.next_review(), self.publication.due, beat].into_iter().chain(dispatch);
        reviews.flatten().min()
    }

    fn recover(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::NodeNamed { node, name } => self.know_node(*node, name.clone()),
                Change::NodeDrained { node, drained } => self.nodes.set_drained(*node, *drained),
                Change::NodeLastSeen { node, at } => self.nodes.set_received(*node, *at),
                Change::NodeRemoved { node } => self.forget_node(*node),
                Change::NodeLabelled { node, labels } => self.set_labels(*node, labels.clone()),
                other => self.dispatch.recover(other),
            }
        }
        self.dispatch.recovered();
    }

    fn durable(&self) -> Vec<Change> {
        let mut changes = self.nodes.durable(&self.dispatch.names, &self.dispatch.rooms);
        changes.extend(self.dispatch.durable());
        changes
    }

    fn describe(&self, now: Instant) -> MasterDescription {
        MasterDescription {
            nodes: self.node_statuses(now),
            queues: self.dispatch.queue_statuses(),
            jobs: self.dispatch.job_statuses(now),
            open_tasks: self.dispatch.scheduler.open_tasks(),
        }
    }
}

/// Losses of nodes that fail together are detected within some heartbeats of each other.
fn reliability(settings: &MasterSettings) -> Reliability {
    let ReliabilitySettings { half_life, together } = settings.reliability;
    let together = together.max(Duration(settings.heartbeat.0.saturating_mul(3)));
    Reliability::new(ReliabilitySettings { half_life, together })
}
