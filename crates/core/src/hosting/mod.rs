//! The roles that one process hosts, and the messages between them: shared by all drivers of roles, real or simulated.
//!
//! Messages between local roles are delivered at once: these roles share one log and fail together. Messages that leave the
//! process are collected in [`Effects`] with the changes that must be durable first.

mod connections;
mod following;
mod journal;
mod nodes;
mod recovery;
mod resting;
mod wakeups;

pub use following::{Followed, Gap, Present};
pub use journal::{Difference, Entry, Replay, RoleEvent};
pub use nodes::Nodes;

use crate::dispatch::Dispatcher;
use crate::global_master::GlobalMaster;
use crate::job_host::JobHost;
use crate::job_manager::{JobManager, JobManagerSettings};
use crate::master::Master;
use crate::node::NodeSettings;
use crate::preset::Preset;
use crate::protocol::{Address, Message, ToGlobalMaster, ToJobHost, ToJobManager, ToMaster, ToNode};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::vocabulary::{
    ClientId, ClusterId, Epoch, Generation, GlobalId, HostId, Instant, JobId, NodeId, Sealing, Seat,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wakeups::Wakeups;

/// The roles of this process. An agent hosts one node, a server the master and usually its job managers, `dev` all of them. Job
/// managers may have processes of their own.
///
/// The fields are in this order in memory, and fields that not every event needs are boxed: most processes of a simulation host
/// one small role, and an event for it reads one cache line here.
#[repr(C)]
pub struct Roles {
    wakeups: Wakeups,
    /// Present if a journal is kept.
    journal: Option<Box<Journal>>,
    pub master: Option<Box<Master>>,
    pub global: Option<Box<GlobalMaster>>,
    /// Present if it has job managers without the master.
    pub job_host: Option<Box<JobHost>>,
    pub nodes: Nodes,
    /// The job managers of this process, and copies of those in other processes ([`Roles::follow`]).
    pub jobs: BTreeMap<JobId, Box<JobManager>>,
    incarnation: Box<Incarnation>,
    /// The next entry of the log of each job host.
    heard: BTreeMap<HostId, u64>,
}

/// Entries that the driver has not taken.
struct Journal {
    entries: Vec<Entry>,
}

/// The settings with which this incarnation of the process makes its roles.
#[derive(Clone, Copy)]
struct Incarnation {
    preset: Preset,
    epoch: Epoch,
    settings: JobManagerSettings,
    sealing: Sealing,
    managers: Managers,
    seat: Option<Seat>,
}

/// Where job managers run, as seen from a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Managers {
    /// In the process of the master or global master that has their jobs.
    WithTheMaster,
    /// Here, without the master.
    Here,
    /// Each job names the process of its manager: the master's, or a job host.
    Shared,
}

/// The connection by which a message leaves a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Egress {
    Executor,
    Client(ClientId),
    Server,
    JobHost(HostId),
    Node(NodeId),
    Cluster(ClusterId),
    Global(GlobalId),
}

/// A message on its way.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Envelope {
    pub from: Address,
    pub to: Address,
    pub message: Message,
}

/// Messages and facts from one role of this process for the others.
enum LocalMessage {
    Envelope(Envelope),
    /// Why the rest of a job waits: a fact that is reported after the consequences of the grants before it.
    Blocked(Record),
}

/// An entry for the log.
#[derive(Clone, Debug)]
pub enum Fact {
    Change(Change),
    Record(Record),
}

impl Fact {
    pub fn job(&self) -> Option<JobId> {
        match self {
            Fact::Change(change) => change.job(),
            Fact::Record(record) => record.job(),
        }
    }

    pub fn is_change(&self) -> bool {
        matches!(self, Fact::Change(_))
    }
}

/// The effects of a turn of the loop outside the roles.
#[derive(Default)]
pub struct Effects {
    pub facts: Vec<Fact>,
    /// Whether `facts` contains a change. If so, messages to other machines wait for the disk, and orders to the executor of this
    /// one for the write.
    pub durable: bool,
    pub envelopes: Vec<Envelope>,
    /// Jobs whose data the nodes of this process can delete.
    pub forgotten: Vec<JobId>,
    /// How many events the roles handled.
    pub handled: Handled,
    /// Messages for roles that this process does not host: a peer has wrong addresses.
    pub misdirected: u32,
    pub passing: Passing,
}

/// Messages between the roles of one process. It is empty before and after each call. It is part of the effects so that the many
/// processes of a simulation use the same memory, which is in the processor's cache.
#[derive(Default)]
pub struct Passing {
    messages: VecDeque<LocalMessage>,
    outbox: Outbox,
}

/// How many decisions for tasks are in the effects of an event.
pub fn decisions(left: &Outbox) -> u32 {
    let decided = left.sends.iter().map(|(_, message)| match message {
        Message::ToJobManager(ToJobManager::Granted { grants }) => grants.len() as u32,
        Message::ToNode(ToNode::Probe(_)) => 1,
        Message::ToNode(ToNode::Launch(launch)) => u32::from(launch.grant.is_none() && launch.probe.is_none()),
        _ => 0,
    });
    decided.sum()
}

/// Events that roles handled, by kind of role, for which a simulator charges time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Handled {
    pub master: u32,
    pub globals: u32,
    pub job_managers: u32,
    pub nodes: u32,
    /// Decisions for tasks: grants of the master, and probes and launches of job managers that place their own tasks.
    pub decisions: u32,
}

/// The epoch that issued the attempt or probe in the message, if it is for a job manager.
fn message_issuer(message: &Message) -> Option<Epoch> {
    match message {
        Message::ToJobManager(body) => body.issuer(),
        _ => None,
    }
}

impl Roles {
    /// The root of `sealing` is new in each incarnation. A process without a master or job managers does not use it.
    pub fn new(preset: Preset, epoch: Epoch, settings: JobManagerSettings, sealing: Sealing) -> Roles {
        Roles {
            wakeups: Wakeups::default(),
            journal: None,
            master: None,
            global: None,
            job_host: None,
            nodes: Nodes::default(),
            jobs: BTreeMap::new(),
            incarnation: Box::new(Incarnation {
                preset,
                epoch,
                settings,
                sealing,
                managers: Managers::WithTheMaster,
                seat: None,
            }),
            heard: BTreeMap::new(),
        }
    }

    /// Has to be called before there are roles.
    pub fn with_managers(mut self, managers: Managers) -> Roles {
        self.incarnation.managers = managers;
        self
    }

    /// Sets its place in a federation. Has to be called before there are roles.
    pub fn seated(mut self, seat: Option<Seat>) -> Roles {
        self.incarnation.seat = seat;
        self
    }

    /// Whether it has roles whose changes have to be durable.
    pub fn keeps_log(&self) -> bool {
        self.master.is_some() || self.has_managers()
    }

    /// Whether it forwards messages between its nodes and the managers of their jobs.
    fn passes_on(&self) -> bool {
        matches!(self.incarnation.seat, Some(Seat::Cluster(..)))
    }

    /// The jobs whose managers handle events here.
    fn managed_here(&self) -> Vec<JobId> {
        if !self.has_managers() {
            return Vec::new();
        }
        self.jobs.iter().filter(|(_, manager)| self.takes_events(manager)).map(|(job, _)| *job).collect()
    }

    /// Whether the manager is not a copy of one in another process.
    fn takes_events(&self, manager: &JobManager) -> bool {
        self.incarnation.managers != Managers::Shared || manager.job().host == HostId::SERVER
    }

    /// Whether this process has, or would have, the manager of a job.
    fn manages(&self, job: JobId) -> bool {
        match self.incarnation.managers {
            Managers::Shared => self.host_of(job) == Some(HostId::SERVER),
            Managers::WithTheMaster | Managers::Here => self.has_managers(),
        }
    }

    /// The process of a job's manager, as far as it is known here. The master may have forgotten the job already.
    fn host_of(&self, job: JobId) -> Option<HostId> {
        let by_manager = self.jobs.get(&job).map(|manager| manager.job().host);
        let by_master = || self.dispatch().and_then(|dispatch| dispatch.job(job)).map(|(job, _)| job.host);
        by_manager.or_else(by_master).or_else(|| self.nodes.host_of(job))
    }

    /// The connection for a message that is not for a role of this process.
    pub fn egress(&self, envelope: &Envelope) -> Egress {
        match (envelope.to, &envelope.message) {
            (Address::Executor(_), _) => Egress::Executor,
            (Address::Client(client), _) => Egress::Client(client),
            (Address::Node(node), _) => match self.incarnation.seat {
                Some(Seat::Global(federation, _)) => Egress::Cluster(federation.cluster_of(node)),
                _ => Egress::Node(node),
            },
            (Address::ClusterMaster(cluster), _) => Egress::Cluster(cluster),
            (Address::GlobalMaster(global), _) => Egress::Global(global),
            (Address::JobHost(host), _) => Egress::JobHost(host),
            (Address::JobManager(job), message) => {
                let stated = message_issuer(message).map(Epoch::host);
                if let Some(Seat::Cluster(federation, _)) = self.incarnation.seat {
                    let issuer = message_issuer(message).and_then(|epoch| federation.issuer(epoch));
                    return Egress::Global(issuer.unwrap_or_else(|| federation.admitted_by(job)));
                }
                if self.incarnation.preset.is_federated() {
                    // The node's master forwards it.
                    return Egress::Server;
                }
                match stated.or_else(|| self.host_of(job)).unwrap_or(HostId::SERVER) {
                    HostId::SERVER => Egress::Server,
                    host => Egress::JobHost(host),
                }
            }
            (Address::Master, _) => Egress::Server,
        }
    }

    fn hears_master(&self) -> bool {
        self.job_host.as_ref().is_none_or(|job_host| job_host.hears_master())
    }

    /// Whether job managers handle events here, if there are any.
    pub fn manages_jobs(&self) -> bool {
        self.has_managers()
    }

    fn has_managers(&self) -> bool {
        match self.incarnation.managers {
            Managers::WithTheMaster | Managers::Shared => {
                self.global.is_some() || self.master.is_some() && !self.passes_on()
            }
            Managers::Here => true,
        }
    }

    /// The jobs, if this process admits them.
    pub fn dispatch(&self) -> Option<&Dispatcher> {
        let by_master = self.master.as_ref().map(|master| master.dispatch());
        by_master.or_else(|| self.global.as_ref().map(|global| global.dispatch()))
    }

    pub fn preset(&self) -> &Preset {
        &self.incarnation.preset
    }

    /// Its place in a federation, if it has one.
    pub fn seat(&self) -> Option<Seat> {
        self.incarnation.seat
    }

    /// The settings of job managers.
    pub fn of_managers(&self) -> JobManagerSettings {
        self.incarnation.settings
    }

    /// Starts a journal of events and effects. Has to be called before there are roles.
    pub fn keep_journal(&mut self) {
        let Incarnation { preset, epoch, settings, sealing: Sealing { root, .. }, managers, seat } = *self.incarnation;
        let started = Entry::Started { preset, epoch, settings, root, managers, seat };
        self.journal = Some(Box::new(Journal { entries: vec![started] }));
    }

    pub fn end_journal(&mut self) {
        self.journal = None;
    }

    /// The entries of the journal since the last call.
    pub fn take_journal(&mut self) -> Vec<Entry> {
        self.journal.as_mut().map(|journal| std::mem::take(&mut journal.entries)).unwrap_or_default()
    }

    fn note(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(journal) = &mut self.journal {
            journal.entries.push(entry());
        }
    }

    /// Connects every role of this process to the master.
    pub fn announce_master(&mut self, now: Instant, effects: &mut Effects) {
        let incarnation = u64::from(self.incarnation.epoch.0);
        for job in self.managed_here() {
            self.at_manager(now, job, Event::Connected { peer: Address::Master, incarnation }, effects);
        }
        // Earlier ends are delivered first: otherwise they would seem to end a job that starts again now.
        self.deliver_local(now, effects);
        self.at_master(now, Event::Connected { peer: Address::Master, incarnation }, effects);
        if let Some(Seat::Global(_, own)) = self.incarnation.seat {
            self.at_global(now, Event::Connected { peer: Address::GlobalMaster(own), incarnation }, effects);
        }
        self.deliver_local(now, effects);
    }

    // ---- events ----------------------------------------------------------------------------------------------------

    pub fn deliver(&mut self, now: Instant, envelope: Envelope, effects: &mut Effects) {
        self.deliver_envelope(now, envelope, effects);
        self.deliver_local(now, effects);
    }

    pub fn next_wakeup(&self) -> Option<Instant> {
        self.wakeups.next()
    }

    pub fn wake_up(&mut self, now: Instant, effects: &mut Effects) {
        while let Some(address) = self.wakeups.pop_due(now) {
            match address {
                Address::Master => self.at_master(now, Event::Wakeup, effects),
                Address::JobManager(job) => self.at_manager(now, job, Event::Wakeup, effects),
                Address::Node(node) => self.at_node(now, node, Event::Wakeup, effects),
                Address::JobHost(_) => self.at_job_host(now, Event::Wakeup, effects),
                Address::GlobalMaster(_) => self.at_global(now, Event::Wakeup, effects),
                Address::ClusterMaster(_) | Address::Executor(_) | Address::Client(_) => {}
            }
            self.deliver_local(now, effects);
        }
    }

    // ---- one role at a time ----------------------------------------------------------------------------------------

    fn deliver_local(&mut self, now: Instant, effects: &mut Effects) {
        while let Some(message) = effects.passing.messages.pop_front() {
            match message {
                LocalMessage::Envelope(envelope) => self.deliver_envelope(now, envelope, effects),
                LocalMessage::Blocked(record) => effects.facts.push(Fact::Record(record)),
            }
        }
    }

    fn deliver_envelope(&mut self, now: Instant, Envelope { from, to, message }: Envelope, effects: &mut Effects) {
        match (to, message) {
            // The global master is the master of its jobs' managers, and of clients.
            (Address::Master, Message::ToMaster(body)) if self.global.is_some() => {
                let body = ToGlobalMaster::OfJobs(Box::new(body));
                self.at_global(now, Event::Message { from, body }, effects);
            }
            (Address::GlobalMaster(_), Message::ToGlobalMaster(body)) if self.global.is_some() => {
                self.at_global(now, Event::Message { from, body }, effects);
            }
            (Address::Master | Address::ClusterMaster(_), Message::ToMaster(body)) => {
                self.at_master(now, Event::Message { from, body }, effects);
            }
            (Address::JobManager(_), message @ Message::ToJobManager(_)) if self.passes_on() => {
                effects.envelopes.push(Envelope { from, to, message });
            }
            (Address::Node(node), message @ Message::ToNode(_)) if self.passes_on() && !self.nodes.contains(node) => {
                effects.envelopes.push(Envelope { from, to, message });
            }
            (Address::JobManager(_), Message::ToJobManager(_)) if from == Address::Master && !self.hears_master() => {}
            (Address::JobManager(job), Message::ToJobManager(body)) => {
                self.at_manager(now, job, Event::Message { from, body }, effects);
            }
            (Address::JobHost(_), Message::ToJobHost(body)) => {
                self.at_job_host(now, Event::Message { from, body }, effects);
            }
            (Address::Node(node), Message::ToNode(body)) => {
                self.at_node(now, node, Event::Message { from, body }, effects);
            }
            _ => effects.misdirected += 1,
        }
    }

    fn at_master(&mut self, now: Instant, event: Event<ToMaster>, effects: &mut Effects) {
        let noted = self.noted(|| RoleEvent::Master(event.clone()));
        if self.hand_to_master(now, event, &mut effects.passing.outbox) {
            effects.handled.master += 1;
            effects.handled.decisions += decisions(&effects.passing.outbox);
            self.note_handled(now, noted, effects);
            self.take_effects(Address::Master, effects);
        }
    }

    fn at_global(&mut self, now: Instant, event: Event<ToGlobalMaster>, effects: &mut Effects) {
        let noted = self.noted(|| RoleEvent::Global(event.clone()));
        if self.hand_to_global(now, event, &mut effects.passing.outbox) {
            effects.handled.globals += 1;
            effects.handled.decisions += decisions(&effects.passing.outbox);
            self.note_handled(now, noted, effects);
            let Some(Seat::Global(_, own)) = self.incarnation.seat else { unreachable!("a global master has a seat") };
            self.take_effects(Address::GlobalMaster(own), effects);
        }
    }

    fn at_job_host(&mut self, now: Instant, event: Event<ToJobHost>, effects: &mut Effects) {
        let noted = self.noted(|| RoleEvent::JobHost(event.clone()));
        if self.hand_to_job_host(now, event, &mut effects.passing.outbox) {
            effects.handled.job_managers += 1;
            self.note_handled(now, noted, effects);
            self.take_effects(Address::JobHost(self.incarnation.epoch.host()), effects);
        }
    }

    fn at_manager(&mut self, now: Instant, job: JobId, event: Event<ToJobManager>, effects: &mut Effects) {
        let is_new = self.job_host.is_some() && !self.jobs.contains_key(&job);
        let noted = self.noted(|| RoleEvent::JobManager(job, event.clone()));
        match self.hand_to_manager(now, job, event, &mut effects.passing.outbox) {
            None => {
                effects.handled.job_managers += 1;
                effects.handled.decisions += decisions(&effects.passing.outbox);
                self.note_handled(now, noted, effects);
                self.take_effects(Address::JobManager(job), effects);
                if is_new {
                    self.report_nodes_away(now, job, effects);
                }
            }
            Some(event) => self.answer_for_forgotten(job, event, effects),
        }
    }

    /// Notifies a new manager of nodes that are not connected.
    fn report_nodes_away(&mut self, now: Instant, job: JobId, effects: &mut Effects) {
        let away: Vec<NodeId> = self.job_host.iter().flat_map(|job_host| job_host.away()).collect();
        for node in away {
            self.at_manager(now, job, Event::Disconnected { peer: Address::Node(node) }, effects);
        }
    }

    fn at_node(&mut self, now: Instant, node: NodeId, event: Event<ToNode>, effects: &mut Effects) {
        if let Event::Message { from, body: ToNode::Forget { job } } = event
            && from == Address::JobManager(job)
        {
            effects.forgotten.push(job);
        }
        let noted = self.noted(|| RoleEvent::Node(node, event.clone()));
        if self.hand_to_node(now, node, event, &mut effects.passing.outbox) {
            effects.handled.nodes += 1;
            self.note_handled(now, noted, effects);
            self.take_effects(Address::Node(node), effects);
        }
    }

    /// The event for the journal, if one is kept.
    fn noted(&self, event: impl FnOnce() -> RoleEvent) -> Option<Box<RoleEvent>> {
        self.journal.is_some().then(|| Box::new(event()))
    }

    fn note_handled(&mut self, now: Instant, noted: Option<Box<RoleEvent>>, effects: &Effects) {
        if let Some(event) = noted {
            let left = effects.passing.outbox.clone();
            self.note(|| Entry::Handled { now, event: *event, left });
        }
    }

    /// Gives an event to its role, which leaves its effects in the outbox. Returns false if the role is not here.
    fn hand_to_master(&mut self, now: Instant, event: Event<ToMaster>, outbox: &mut Outbox) -> bool {
        let Some(master) = &mut self.master else { return false };
        master.handle(now, event, outbox);
        self.wakeups.set(Address::Master, master.next_wakeup());
        true
    }

    fn hand_to_global(&mut self, now: Instant, event: Event<ToGlobalMaster>, outbox: &mut Outbox) -> bool {
        let Some(global) = &mut self.global else { return false };
        global.handle(now, event, outbox);
        let Some(Seat::Global(_, own)) = self.incarnation.seat else { unreachable!("a global master has a seat") };
        self.wakeups.set(Address::GlobalMaster(own), global.next_wakeup());
        true
    }

    fn hand_to_job_host(&mut self, now: Instant, event: Event<ToJobHost>, outbox: &mut Outbox) -> bool {
        let Some(job_host) = &mut self.job_host else { return false };
        job_host.handle(now, event, outbox);
        self.wakeups.set(Address::JobHost(self.incarnation.epoch.host()), job_host.next_wakeup());
        true
    }

    /// The same for a job manager. Returns the event if the manager is not here.
    fn hand_to_manager(
        &mut self,
        now: Instant,
        job: JobId,
        event: Event<ToJobManager>,
        outbox: &mut Outbox,
    ) -> Option<Event<ToJobManager>> {
        if let Event::Message { body: ToJobManager::Start { job: admitted, .. }, .. } = &event {
            let Incarnation { preset, epoch, settings, sealing, .. } = *self.incarnation;
            let generation = self.job_host.as_ref().map_or(Generation::default(), |job_host| job_host.generation());
            let make = || {
                let manager = preset.job_manager(Arc::clone(admitted), epoch, settings, sealing);
                Box::new(manager.starting_with(generation))
            };
            self.jobs.entry(job).or_insert_with(make);
        }
        if !self.has_managers() {
            return Some(event);
        }
        let is_shared = self.incarnation.managers == Managers::Shared;
        let taken_here = |manager: &&mut Box<JobManager>| !is_shared || manager.job().host == HostId::SERVER;
        let Some(manager) = self.jobs.get_mut(&job).filter(taken_here) else { return Some(event) };
        let is_last = matches!(event, Event::Message { body: ToJobManager::Forgotten, .. });
        manager.handle(now, event, outbox);
        let wakeup = manager.next_wakeup().filter(|_| !is_last);
        if is_last {
            self.jobs.remove(&job);
        }
        self.wakeups.set(Address::JobManager(job), wakeup);
        None
    }

    fn hand_to_node(&mut self, now: Instant, node: NodeId, event: Event<ToNode>, outbox: &mut Outbox) -> bool {
        let Some(agent) = self.nodes.get_mut(node) else { return false };
        agent.handle(now, event, outbox);
        self.wakeups.set(Address::Node(node), agent.next_wakeup());
        true
    }

    /// Answers the report of an end or a probe of a forgotten job, which its node would otherwise keep.
    fn answer_for_forgotten(&mut self, job: JobId, event: Event<ToJobManager>, effects: &mut Effects) {
        let Event::Message { from: Address::Node(node), body } = event else { return };
        // Without a master, every job that nodes know has had its manager.
        let may_come = |dispatch: &Dispatcher| dispatch.job(job).is_some();
        if !self.has_managers() || self.dispatch().is_some_and(may_come) {
            return;
        }
        match body {
            ToJobManager::Finished { attempt, .. } => {
                effects.passing.outbox.send(node, ToNode::Acknowledge { attempt });
                effects.passing.outbox.send(node, ToNode::Forget { job });
            }
            ToJobManager::Ready { probe } => effects.passing.outbox.send(node, ToNode::Cancel { probes: vec![probe] }),
            _ => return,
        }
        self.take_effects(Address::JobManager(job), effects);
    }

    fn take_effects(&mut self, from: Address, effects: &mut Effects) {
        let Effects { facts, durable, envelopes, passing: Passing { messages, outbox }, .. } = effects;
        // Most events have no changes and no records.
        if !outbox.changes.is_empty() {
            *durable = true;
            for change in &outbox.changes {
                if let Change::JobAbandoned { job } = change {
                    // Its host sends nothing more about it.
                    self.jobs.remove(job);
                }
            }
            facts.extend(outbox.changes.drain(..).map(Fact::Change));
        }
        if !outbox.records.is_empty() {
            let others = outbox.records.extract_if(.., |record| !matches!(record, Record::Blocked { .. }));
            facts.extend(others.map(Fact::Record));
        }
        let (has_master, has_job_host) = (self.master.is_some(), self.job_host.is_some());
        let has_global = self.global.is_some();
        for (to, message) in outbox.sends.drain(..) {
            let envelope = Envelope { from, to, message };
            let is_local = match to {
                Address::Master => has_master || has_global,
                Address::ClusterMaster(_) => has_master,
                Address::GlobalMaster(_) => has_global,
                Address::JobManager(job) => self.manages(job),
                Address::JobHost(_) => has_job_host,
                Address::Node(node) => self.nodes.contains(node),
                _ => false,
            };
            if is_local {
                messages.push_back(LocalMessage::Envelope(envelope));
            } else {
                envelopes.push(envelope);
            }
        }
        if !outbox.records.is_empty() {
            messages.extend(outbox.records.drain(..).map(LocalMessage::Blocked));
        }
    }

    /// Names a new node; the name becomes durable with the effects of this turn.
    pub fn name_node(&mut self, name: &str, effects: &mut Effects) -> Option<NodeId> {
        let outbox = &mut effects.passing.outbox;
        let node = self.master.as_mut()?.name_node(name, outbox)?;
        self.note(|| Entry::Named { name: name.to_owned(), left: outbox.clone() });
        self.take_effects(Address::Master, effects);
        Some(node)
    }

    pub fn add_local_node(&mut self, node: NodeId, settings: NodeSettings) {
        self.note(|| Entry::NodeAdded { node, settings: settings.clone() });
        let Incarnation { preset, sealing, .. } = &*self.incarnation;
        self.nodes.insert(node, Box::new(preset.node_agent(node, settings, sealing.mac)));
    }
}
