//! The roles that one process hosts, and the mail between them: what every driver of roles, real or simulated, shares.
//!
//! Mail between local roles is delivered at once: they share one log and die together. What leaves the process is
//! collected in [`Effects`] with the changes that must be durable first.

mod following;
mod journal;
mod nodes;
mod wakeups;

pub use following::{Followed, Gap, Present};
pub use journal::{Difference, Entry, Replay, RoleEvent};
pub use nodes::Nodes;

use crate::dispatch::{DispatchSettings, Dispatcher, JobState};
use crate::global_master::GlobalMaster;
use crate::job_host::{JobHost, JobHostSettings};
use crate::job_manager::{JobManager, JobManagerSettings};
use crate::master::{Master, MasterSettings};
use crate::node::NodeSettings;
use crate::policy::inter_job::QueueTree;
use crate::preset::Preset;
use crate::protocol::{Address, AdmittedJob, Message, ToGlobalMaster, ToJobHost, ToJobManager, ToMaster, ToNode};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::vocabulary::{
    ClientId, ClusterId, Epoch, Generation, GlobalId, HostId, Instant, JobId, NodeId, Sealing, Seat,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wakeups::Wakeups;

/// Roles of this process. An agent hosts one node, a server the master and mostly its job managers, `dev` all of them; and job
/// managers may have processes of their own.
///
/// In this order in memory, and boxed what not every event needs: most processes of a simulation host one small role, and
/// an event for it reads one line of the cache here.
#[repr(C)]
pub struct Roles {
    wakeups: Wakeups,
    /// Where one is kept.
    journal: Option<Box<Journal>>,
    pub master: Option<Box<Master>>,
    pub global: Option<Box<GlobalMaster>>,
    /// Where it has job managers, and not the master.
    pub job_host: Option<Box<JobHost>>,
    pub nodes: Nodes,
    /// The job managers of this process; where others have them, what is known of these ([`Roles::follow`]).
    pub jobs: BTreeMap<JobId, Box<JobManager>>,
    life: Box<Life>,
    /// How far into the logs of processes of job managers.
    heard: BTreeMap<HostId, u64>,
}

/// What the driver has not taken of the journal.
struct Journal {
    entries: Vec<Entry>,
}

/// What this life of the process makes its roles with.
#[derive(Clone, Copy)]
struct Life {
    preset: Preset,
    epoch: Epoch,
    settings: JobManagerSettings,
    sealing: Sealing,
    managers: Managers,
    seat: Option<Seat>,
}

/// Where job managers are, as seen from a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Managers {
    /// All are with the master, or the global master, that has their jobs.
    WithTheMaster,
    /// Here, and the master is not.
    Here,
    /// Each job says where its own is: with the master, or in a process of job managers.
    Shared,
}

/// By which connection a letter leaves a process.
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
pub struct Letter {
    pub from: Address,
    pub to: Address,
    pub message: Message,
}

impl Letter {
    /// It is for the executor of this process.
    pub fn is_order(&self) -> bool {
        matches!(self.to, Address::Executor(_))
    }
}

/// What the roles of this process leave for one another.
enum Mail {
    Letter(Letter),
    /// Why the rest of a job waits: a fact, told after what the grants before it lead to.
    Blocked(Record),
}

/// Something that the log keeps.
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

/// What a turn of the loop leads to outside the roles.
#[derive(Default)]
pub struct Effects {
    pub facts: Vec<Fact>,
    /// Whether `facts` holds a change: letters to other machines wait for the disk then, orders to the executor of this
    /// one for the write.
    pub durable: bool,
    pub letters: Vec<Letter>,
    /// Jobs of which the nodes of this process need to keep nothing.
    pub forgotten: Vec<JobId>,
    /// How many events the roles took.
    pub handled: Handled,
    /// Letters that came for a role which this process does not host: a peer has its addresses wrong.
    pub misdirected: u32,
    pub passing: Passing,
}

/// What roles of one process leave for one another. It is empty before and after each call, and part of the effects so
/// that the many processes of a simulation use the same room, which the processor has at hand.
#[derive(Default)]
pub struct Passing {
    mail: VecDeque<Mail>,
    outbox: Outbox,
}

/// What an event led a role to decide.
pub fn decisions(left: &Outbox) -> u32 {
    let decided = left.sends.iter().map(|(_, message)| match message {
        Message::ToJobManager(ToJobManager::Granted { grants }) => grants.len() as u32,
        Message::ToNode(ToNode::Probe(_)) => 1,
        Message::ToNode(ToNode::Launch(launch)) => u32::from(launch.grant.is_none() && launch.probe.is_none()),
        _ => 0,
    });
    decided.sum()
}

/// Events that roles took, by kind of role: what a simulator charges think time for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Handled {
    pub master: u32,
    pub globals: u32,
    pub job_managers: u32,
    pub nodes: u32,
    /// What was decided for a task: grants of the master, and probes and launches of job managers that place themselves.
    pub decisions: u32,
}

/// Whose attempt or probe it is about, if it is for a job manager.
fn message_issuer(message: &Message) -> Option<Epoch> {
    match message {
        Message::ToJobManager(body) => body.issuer(),
        _ => None,
    }
}

/// The manager of a job as its changes leave it; one that waits to begin again has one, which knows what is done.
fn recovered_manager(
    preset: Preset,
    epoch: Epoch,
    settings: JobManagerSettings,
    sealing: Sealing,
    job: &Arc<AdmittedJob>,
    state: &JobState,
    own: &[Change],
) -> Option<(JobId, Box<JobManager>)> {
    if *state == JobState::Pending && !own.iter().any(Change::is_job_managers) {
        return None;
    }
    let mut manager = preset.job_manager(Arc::clone(job), epoch, settings, sealing);
    manager.recover(own);
    Some((job.id, Box::new(manager)))
}

impl Roles {
    /// The root of `sealing` is this life's own. A process without a master or job managers makes nothing with it.
    pub fn new(preset: Preset, epoch: Epoch, settings: JobManagerSettings, sealing: Sealing) -> Roles {
        Roles {
            wakeups: Wakeups::default(),
            journal: None,
            master: None,
            global: None,
            job_host: None,
            nodes: Nodes::default(),
            jobs: BTreeMap::new(),
            life: Box::new(Life { preset, epoch, settings, sealing, managers: Managers::WithTheMaster, seat: None }),
            heard: BTreeMap::new(),
        }
    }

    /// Call it before there are roles.
    pub fn with_managers(mut self, managers: Managers) -> Roles {
        self.life.managers = managers;
        self
    }

    /// Its place in a federation. Call it before there are roles.
    pub fn seated(mut self, seat: Option<Seat>) -> Roles {
        self.life.seat = seat;
        self
    }

    /// It has roles whose changes must survive it.
    pub fn keeps_log(&self) -> bool {
        self.master.is_some() || self.has_managers()
    }

    /// It passes on what is between its nodes and the managers of their jobs.
    fn passes_on(&self) -> bool {
        matches!(self.life.seat, Some(Seat::Cluster(..)))
    }

    /// The jobs whose managers take events here.
    fn managed_here(&self) -> Vec<JobId> {
        if !self.has_managers() {
            return Vec::new();
        }
        self.jobs.iter().filter(|(_, manager)| self.takes_events(manager)).map(|(job, _)| *job).collect()
    }

    /// It is no copy of what another process has.
    fn takes_events(&self, manager: &JobManager) -> bool {
        self.life.managers != Managers::Shared || manager.job().host == HostId::SERVER
    }

    /// Whether the manager of a job, known or not, is here.
    fn manages(&self, job: JobId) -> bool {
        match self.life.managers {
            Managers::Shared => self.host_of(job) == Some(HostId::SERVER),
            Managers::WithTheMaster | Managers::Here => self.has_managers(),
        }
    }

    /// Where a job's manager is, as far as is known here. The master may have forgotten it already.
    fn host_of(&self, job: JobId) -> Option<HostId> {
        let by_manager = self.jobs.get(&job).map(|manager| manager.job().host);
        let by_master = || self.dispatch().and_then(|dispatch| dispatch.job(job)).map(|(job, _)| job.host);
        by_manager.or_else(by_master).or_else(|| self.nodes.host_of(job))
    }

    /// How a letter leaves that is for nobody here.
    pub fn egress(&self, letter: &Letter) -> Egress {
        match (letter.to, &letter.message) {
            (Address::Executor(_), _) => Egress::Executor,
            (Address::Client(client), _) => Egress::Client(client),
            (Address::Node(node), _) => match self.life.seat {
                Some(Seat::Global(federation, _)) => Egress::Cluster(federation.cluster_of(node)),
                _ => Egress::Node(node),
            },
            (Address::ClusterMaster(cluster), _) => Egress::Cluster(cluster),
            (Address::GlobalMaster(global), _) => Egress::Global(global),
            (Address::JobHost(host), _) => Egress::JobHost(host),
            (Address::JobManager(job), message) => {
                let said = message_issuer(message).map(Epoch::host);
                if let Some(Seat::Cluster(federation, _)) = self.life.seat {
                    let issuer = message_issuer(message).and_then(|epoch| federation.issuer(epoch));
                    return Egress::Global(issuer.unwrap_or_else(|| federation.admitted_by(job)));
                }
                if self.life.preset.is_federated() {
                    // The node's master passes on.
                    return Egress::Server;
                }
                match said.or_else(|| self.host_of(job)).unwrap_or(HostId::SERVER) {
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

    /// Job managers take events here, where there are any.
    pub fn manages_jobs(&self) -> bool {
        self.has_managers()
    }

    fn has_managers(&self) -> bool {
        match self.life.managers {
            Managers::WithTheMaster | Managers::Shared => {
                self.global.is_some() || self.master.is_some() && !self.passes_on()
            }
            Managers::Here => true,
        }
    }

    /// Which jobs there are, where this process admits them.
    pub fn dispatch(&self) -> Option<&Dispatcher> {
        let by_master = self.master.as_ref().map(|master| master.dispatch());
        by_master.or_else(|| self.global.as_ref().map(|global| global.dispatch()))
    }

    pub fn preset(&self) -> &Preset {
        &self.life.preset
    }

    /// Its place in a federation, if it has one.
    pub fn seat(&self) -> Option<Seat> {
        self.life.seat
    }

    /// What job managers go by.
    pub fn of_managers(&self) -> JobManagerSettings {
        self.life.settings
    }

    /// Notes from here on what the roles are given and what they leave. Call it before there are roles.
    pub fn keep_journal(&mut self) {
        let Life { preset, epoch, settings, sealing: Sealing { root, .. }, managers, seat } = *self.life;
        let began = Entry::Began { preset, epoch, settings, root, managers, seat };
        self.journal = Some(Box::new(Journal { entries: vec![began] }));
    }

    pub fn end_journal(&mut self) {
        self.journal = None;
    }

    /// What the journal has grown by since this was asked last.
    pub fn take_journal(&mut self) -> Vec<Entry> {
        self.journal.as_mut().map(|journal| std::mem::take(&mut journal.entries)).unwrap_or_default()
    }

    fn note(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(journal) = &mut self.journal {
            journal.entries.push(entry());
        }
    }

    /// Makes a master, and job managers where they are with it, and brings them to where the log ends.
    pub fn recover(&mut self, settings: MasterSettings, queues: QueueTree, changes: Vec<Change>) {
        self.note(|| Entry::Recovered { settings: settings.clone(), queues: queues.clone(), changes: changes.clone() });
        let Life { preset, epoch, settings: of_managers, sealing, .. } = *self.life;
        let mut master = preset.master(epoch, settings, queues, sealing);
        master.recover(&changes);
        let mut by_job: BTreeMap<JobId, Vec<Change>> = BTreeMap::new();
        let mut of_others = Vec::new();
        for change in changes {
            let Some(job) = change.job() else {
                of_others.push(change);
                continue;
            };
            // One that the master has forgotten may still be known of its host.
            match master.dispatch().job(job).map(|(job, _)| job.host) {
                Some(HostId::SERVER) => by_job.entry(job).or_default().push(change),
                _ => of_others.push(change),
            }
        }
        self.recover_managed(of_others);
        let jobs = master.dispatch().jobs_from(JobId(0)).filter(|(job, _)| job.host == HostId::SERVER);
        for (job, state) in jobs {
            let own = by_job.get(&job.id).map_or(&[][..], Vec::as_slice);
            self.jobs.extend(recovered_manager(preset, epoch, of_managers, sealing, job, state, own));
        }
        self.master = Some(Box::new(master));
    }

    /// Makes the global master that its seat names, and the managers of its jobs, and brings them to where the log ends.
    ///
    /// # Panics
    /// Without such a seat.
    pub fn recover_global(&mut self, settings: DispatchSettings, queues: QueueTree, changes: Vec<Change>) {
        self.note(|| Entry::GlobalRecovered {
            settings: settings.clone(),
            queues: queues.clone(),
            changes: changes.clone(),
        });
        let Life { preset, epoch, settings: of_managers, sealing, seat, .. } = *self.life;
        let Some(Seat::Global(federation, own)) = seat else { panic!("{seat:?} is no seat of a global master") };
        let mut global = preset.global_master(epoch, (federation, own), settings, queues);
        global.recover(&changes);
        let mut by_job: BTreeMap<JobId, Vec<Change>> = BTreeMap::new();
        for change in changes {
            if let Some(job) = change.job() {
                by_job.entry(job).or_default().push(change);
            }
        }
        for (job, state) in global.dispatch().jobs_from(JobId(0)) {
            let own = by_job.get(&job.id).map_or(&[][..], Vec::as_slice);
            self.jobs.extend(recovered_manager(preset, epoch, of_managers, sealing, job, state, own));
        }
        self.global = Some(Box::new(global));
    }

    /// Makes this the process of job managers that its epoch names, and brings these to where their log ends.
    pub fn recover_job_managers(&mut self, changes: Vec<Change>) {
        self.note(|| Entry::JobsRecovered { changes: changes.clone() });
        let Life { epoch, settings, sealing, .. } = *self.life;
        let JobManagerSettings { token_life, node_grace, .. } = settings;
        let mut job_host = JobHost::new(epoch, sealing, JobHostSettings { token_life, node_grace });
        job_host.recover(&changes);
        self.recover_managed(changes);
        self.job_host = Some(Box::new(job_host));
    }

    /// Tells every role of this process that the master is there.
    pub fn announce_master(&mut self, now: Instant, effects: &mut Effects) {
        let incarnation = u64::from(self.life.epoch.0);
        for job in self.managed_here() {
            self.at_manager(now, job, Event::Connected { peer: Address::Master, incarnation }, effects);
        }
        // What ended before is told first: a job that begins again now would seem to end with its earlier run.
        self.deliver_mail(now, effects);
        self.at_master(now, Event::Connected { peer: Address::Master, incarnation }, effects);
        if let Some(Seat::Global(_, own)) = self.life.seat {
            self.at_global(now, Event::Connected { peer: Address::GlobalMaster(own), incarnation }, effects);
        }
        self.deliver_mail(now, effects);
    }

    /// A cluster's master and this process, which has a global master, have each other.
    pub fn cluster_connected(&mut self, now: Instant, cluster: ClusterId, incarnation: u64, effects: &mut Effects) {
        self.at_global(now, Event::Connected { peer: Address::ClusterMaster(cluster), incarnation }, effects);
        self.deliver_mail(now, effects);
    }

    pub fn cluster_disconnected(&mut self, now: Instant, cluster: ClusterId, effects: &mut Effects) {
        self.at_global(now, Event::Disconnected { peer: Address::ClusterMaster(cluster) }, effects);
        self.deliver_mail(now, effects);
    }

    /// A global master and this process, which has the master of a cluster, have each other.
    pub fn global_connected(&mut self, now: Instant, global: GlobalId, incarnation: u64, effects: &mut Effects) {
        self.at_master(now, Event::Connected { peer: Address::GlobalMaster(global), incarnation }, effects);
        self.deliver_mail(now, effects);
    }

    pub fn global_disconnected(&mut self, now: Instant, global: GlobalId, effects: &mut Effects) {
        self.at_master(now, Event::Disconnected { peer: Address::GlobalMaster(global) }, effects);
        self.deliver_mail(now, effects);
    }

    // ---- events ----------------------------------------------------------------------------------------------------

    pub fn deliver(&mut self, now: Instant, letter: Letter, effects: &mut Effects) {
        self.deliver_letter(now, letter, effects);
        self.deliver_mail(now, effects);
    }

    /// A node's agent has connected to this server, or one of this process has begun.
    pub fn node_connected(&mut self, now: Instant, node: NodeId, incarnation: u64, effects: &mut Effects) {
        let peer = Address::Node(node);
        self.at_master(now, Event::Connected { peer, incarnation }, effects);
        // The node takes nothing of job managers before it knows their process.
        self.at_job_host(now, Event::Connected { peer, incarnation }, effects);
        let concerned = self.managed_here().into_iter().filter(|job| self.jobs[job].concerns(node));
        for job in concerned.collect::<Vec<_>>() {
            self.at_manager(now, job, Event::Connected { peer, incarnation }, effects);
        }
        self.deliver_mail(now, effects);
    }

    pub fn node_disconnected(&mut self, now: Instant, node: NodeId, effects: &mut Effects) {
        let peer = Address::Node(node);
        self.at_master(now, Event::Disconnected { peer }, effects);
        self.at_job_host(now, Event::Disconnected { peer }, effects);
        // With the server, job managers go by what the master makes of it.
        if self.job_host.is_some() {
            for job in self.managed_here() {
                self.at_manager(now, job, Event::Disconnected { peer }, effects);
            }
        }
        self.deliver_mail(now, effects);
    }

    /// A process of job managers has connected to the master of this one, or to the nodes of this one.
    pub fn host_connected(&mut self, now: Instant, host: HostId, incarnation: u64, effects: &mut Effects) {
        let peer = Address::JobHost(host);
        self.at_master(now, Event::Connected { peer, incarnation }, effects);
        self.at_all_nodes(now, |_| Event::Connected { peer, incarnation }, effects);
    }

    pub fn host_disconnected(&mut self, now: Instant, host: HostId, effects: &mut Effects) {
        self.at_master(now, Event::Disconnected { peer: Address::JobHost(host) }, effects);
        self.at_all_nodes(now, |_| Event::Disconnected { peer: Address::JobHost(host) }, effects);
    }

    /// The connection of the local nodes, or of the local job managers where the master is elsewhere, to the master.
    pub fn master_connected(&mut self, now: Instant, incarnation: u64, effects: &mut Effects) {
        if self.job_host.is_some() {
            self.at_job_host(now, Event::Connected { peer: Address::Master, incarnation }, effects);
            for job in self.managed_here() {
                self.at_manager(now, job, Event::Connected { peer: Address::Master, incarnation }, effects);
            }
        }
        self.at_all_nodes(now, |_| Event::Connected { peer: Address::Master, incarnation }, effects);
    }

    pub fn master_disconnected(&mut self, now: Instant, effects: &mut Effects) {
        self.at_job_host(now, Event::Disconnected { peer: Address::Master }, effects);
        self.at_all_nodes(now, |_| Event::Disconnected { peer: Address::Master }, effects);
    }

    pub fn executor_connected(&mut self, now: Instant, incarnation: u64, effects: &mut Effects) {
        let event = |node| Event::Connected { peer: Address::Executor(node), incarnation };
        self.at_all_nodes(now, event, effects);
    }

    pub fn executor_disconnected(&mut self, now: Instant, effects: &mut Effects) {
        self.at_all_nodes(now, |node| Event::Disconnected { peer: Address::Executor(node) }, effects);
    }

    fn at_all_nodes(&mut self, now: Instant, event: impl Fn(NodeId) -> Event<ToNode>, effects: &mut Effects) {
        for node in self.nodes.ids().collect::<Vec<_>>() {
            self.at_node(now, node, event(node), effects);
        }
        self.deliver_mail(now, effects);
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
            self.deliver_mail(now, effects);
        }
    }

    // ---- one role at a time ----------------------------------------------------------------------------------------

    fn deliver_mail(&mut self, now: Instant, effects: &mut Effects) {
        while let Some(mail) = effects.passing.mail.pop_front() {
            match mail {
                Mail::Letter(letter) => self.deliver_letter(now, letter, effects),
                Mail::Blocked(record) => effects.facts.push(Fact::Record(record)),
            }
        }
    }

    fn deliver_letter(&mut self, now: Instant, Letter { from, to, message }: Letter, effects: &mut Effects) {
        match (to, message) {
            // Whoever has jobs is the master of their managers, and of clients.
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
                effects.letters.push(Letter { from, to, message });
            }
            (Address::Node(node), message @ Message::ToNode(_)) if self.passes_on() && !self.nodes.contains(node) => {
                effects.letters.push(Letter { from, to, message });
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
            let Some(Seat::Global(_, own)) = self.life.seat else { unreachable!("it was made for its seat") };
            self.take_effects(Address::GlobalMaster(own), effects);
        }
    }

    fn at_job_host(&mut self, now: Instant, event: Event<ToJobHost>, effects: &mut Effects) {
        let noted = self.noted(|| RoleEvent::JobHost(event.clone()));
        if self.hand_to_job_host(now, event, &mut effects.passing.outbox) {
            effects.handled.job_managers += 1;
            self.note_handled(now, noted, effects);
            self.take_effects(Address::JobHost(self.life.epoch.host()), effects);
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
                    self.tell_who_is_away(now, job, effects);
                }
            }
            Some(event) => self.answer_for_nobody(job, event, effects),
        }
    }

    /// A manager that is new hears which nodes cannot be reached.
    fn tell_who_is_away(&mut self, now: Instant, job: JobId, effects: &mut Effects) {
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

    /// An event as the journal is to have it, where one is kept.
    fn noted(&self, event: impl FnOnce() -> RoleEvent) -> Option<Box<RoleEvent>> {
        self.journal.is_some().then(|| Box::new(event()))
    }

    fn note_handled(&mut self, now: Instant, noted: Option<Box<RoleEvent>>, effects: &Effects) {
        if let Some(event) = noted {
            let left = effects.passing.outbox.clone();
            self.note(|| Entry::Handled { now, event: *event, left });
        }
    }

    /// Gives one event to the role that it is for, which leaves its effects in the outbox. False if the role is not here.
    fn hand_to_master(&mut self, now: Instant, event: Event<ToMaster>, outbox: &mut Outbox) -> bool {
        let Some(master) = &mut self.master else { return false };
        master.handle(now, event, outbox);
        self.wakeups.set(Address::Master, master.next_wakeup());
        true
    }

    fn hand_to_global(&mut self, now: Instant, event: Event<ToGlobalMaster>, outbox: &mut Outbox) -> bool {
        let Some(global) = &mut self.global else { return false };
        global.handle(now, event, outbox);
        let Some(Seat::Global(_, own)) = self.life.seat else { unreachable!("it was made for its seat") };
        self.wakeups.set(Address::GlobalMaster(own), global.next_wakeup());
        true
    }

    fn hand_to_job_host(&mut self, now: Instant, event: Event<ToJobHost>, outbox: &mut Outbox) -> bool {
        let Some(job_host) = &mut self.job_host else { return false };
        job_host.handle(now, event, outbox);
        self.wakeups.set(Address::JobHost(self.life.epoch.host()), job_host.next_wakeup());
        true
    }

    /// The same; an event for a job manager that is not here comes back.
    fn hand_to_manager(
        &mut self,
        now: Instant,
        job: JobId,
        event: Event<ToJobManager>,
        outbox: &mut Outbox,
    ) -> Option<Event<ToJobManager>> {
        if let Event::Message { body: ToJobManager::Begin { job: admitted, .. }, .. } = &event {
            let Life { preset, epoch, settings, sealing, .. } = *self.life;
            let generation = self.job_host.as_ref().map_or(Generation::default(), |job_host| job_host.generation());
            let make = || {
                let manager = preset.job_manager(Arc::clone(admitted), epoch, settings, sealing);
                Box::new(manager.beginning_with(generation))
            };
            self.jobs.entry(job).or_insert_with(make);
        }
        if !self.has_managers() {
            return Some(event);
        }
        let is_shared = self.life.managers == Managers::Shared;
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

    /// An end of a job that is forgotten, or a probe of it, interests nobody, but its node keeps it until somebody says
    /// so.
    fn answer_for_nobody(&mut self, job: JobId, event: Event<ToJobManager>, effects: &mut Effects) {
        let Event::Message { from: Address::Node(node), body } = event else { return };
        // Where there is no master, every job that nodes know of has had its manager.
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
        let Effects { facts, durable, letters, passing: Passing { mail, outbox }, .. } = effects;
        // Most events change nothing, and of most there is nothing to tell.
        if !outbox.changes.is_empty() {
            *durable = true;
            for change in &outbox.changes {
                if let Change::JobAbandoned { job } = change {
                    // Nobody will tell more of it.
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
            let letter = Letter { from, to, message };
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
                mail.push_back(Mail::Letter(letter));
            } else {
                letters.push(letter);
            }
        }
        if !outbox.records.is_empty() {
            mail.extend(outbox.records.drain(..).map(Mail::Blocked));
        }
    }

    /// The name of a new node is made durable with this turn's effects.
    pub fn name_node(&mut self, name: &str, effects: &mut Effects) -> Option<NodeId> {
        let outbox = &mut effects.passing.outbox;
        let node = self.master.as_mut()?.name_node(name, outbox)?;
        self.note(|| Entry::Named { name: name.to_owned(), left: outbox.clone() });
        self.take_effects(Address::Master, effects);
        Some(node)
    }

    pub fn add_local_node(&mut self, node: NodeId, settings: NodeSettings) {
        self.note(|| Entry::NodeAdded { node, settings: settings.clone() });
        let Life { preset, sealing, .. } = &*self.life;
        self.nodes.insert(node, Box::new(preset.node_agent(node, settings, sealing.mac)));
    }

    /// A node of this process and the master of this process have each other from now on.
    pub fn connect_local_node(&mut self, now: Instant, node: NodeId, effects: &mut Effects) {
        self.node_connected(now, node, 0, effects);
        let incarnation = u64::from(self.life.epoch.0);
        self.local_node_connected(now, node, Address::Master, incarnation, effects);
    }

    /// A node of this process and somebody elsewhere, its master or a process of job managers, or its own executor have each
    /// other.
    pub fn local_node_connected(
        &mut self,
        now: Instant,
        node: NodeId,
        peer: Address,
        incarnation: u64,
        effects: &mut Effects,
    ) {
        self.at_node(now, node, Event::Connected { peer, incarnation }, effects);
        self.deliver_mail(now, effects);
    }

    pub fn local_node_disconnected(&mut self, now: Instant, node: NodeId, peer: Address, effects: &mut Effects) {
        self.at_node(now, node, Event::Disconnected { peer }, effects);
        self.deliver_mail(now, effects);
    }

    /// What a snapshot of the store holds.
    pub fn durable(&self) -> Vec<Change> {
        let mut changes = self.master.as_ref().map(|master| master.durable()).unwrap_or_default();
        changes.extend(self.global.iter().flat_map(|global| global.durable()));
        changes.extend(self.job_host.iter().flat_map(|job_host| job_host.durable()));
        changes.extend(self.jobs.values().flat_map(|manager| manager.durable()));
        changes.extend(self.heard.iter().map(|(&host, &next)| Change::Heard { host, next }));
        changes
    }
}
