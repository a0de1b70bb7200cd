//! The roles that one process hosts, and the mail between them: what every driver of roles, real or simulated, shares.
//!
//! Mail between local roles is delivered at once: they share one log and die together. What leaves the process is
//! collected in [`Effects`] with the changes that must be durable first.

mod wakeups;

use crate::job_manager::{JobManager, JobManagerSettings};
use crate::master::{JobState, Master};
use crate::node::NodeAgent;
use crate::preset::Preset;
use crate::protocol::{Address, Message, ToJobManager, ToMaster, ToNode};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::vocabulary::{Epoch, Instant, JobId, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wakeups::Wakeups;

/// Roles of this process. An agent hosts one node, a server the master and its job managers, `dev` all of them.
pub struct Roles {
    pub preset: Preset,
    pub epoch: Epoch,
    pub master: Option<Master>,
    pub jobs: BTreeMap<JobId, JobManager>,
    pub nodes: BTreeMap<NodeId, NodeAgent>,
    settings: JobManagerSettings,
    wakeups: Wakeups,
    mail: VecDeque<Mail>,
    outbox: Outbox,
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
}

/// Events that roles took, by kind of role: what a simulator charges think time for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Handled {
    pub master: u32,
    pub job_managers: u32,
    pub nodes: u32,
}

impl Roles {
    pub fn new(preset: Preset, epoch: Epoch, settings: JobManagerSettings) -> Roles {
        Roles {
            preset,
            epoch,
            master: None,
            jobs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            settings,
            wakeups: Wakeups::default(),
            mail: VecDeque::new(),
            outbox: Outbox::default(),
        }
    }

    /// Brings master and job managers to where the log ends.
    pub fn recover(&mut self, mut master: Master, changes: Vec<Change>) {
        master.recover(&changes);
        let mut by_job: BTreeMap<JobId, Vec<Change>> = BTreeMap::new();
        for change in changes {
            if let Some(job) = change.job() {
                by_job.entry(job).or_default().push(change);
            }
        }
        for (job, state) in master.jobs_from(JobId(0)) {
            let own = by_job.get(&job.id).map_or(&[][..], Vec::as_slice);
            // One that waits to begin again has a manager, which knows what is done.
            if *state == JobState::Pending && !own.iter().any(Change::is_job_managers) {
                continue;
            }
            let mut manager = self.preset.job_manager(Arc::clone(job), self.epoch, self.settings);
            manager.recover(own);
            self.jobs.insert(job.id, manager);
        }
        self.master = Some(master);
    }

    /// Tells every role of this process that the master is there.
    pub fn announce_master(&mut self, now: Instant, effects: &mut Effects) {
        let incarnation = u64::from(self.epoch.0);
        for job in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.at_job(now, job, Event::Connected { peer: Address::Master, incarnation }, effects);
        }
        // What ended before is told first: a job that begins again now would seem to end with its earlier run.
        self.deliver_mail(now, effects);
        self.at_master(now, Event::Connected { peer: Address::Master, incarnation }, effects);
        self.deliver_mail(now, effects);
    }

    // ---- events ----------------------------------------------------------------------------------------------------

    pub fn deliver(&mut self, now: Instant, letter: Letter, effects: &mut Effects) {
        self.mail.push_back(Mail::Letter(letter));
        self.deliver_mail(now, effects);
    }

    /// A node's agent has connected to this server, or one of this process has begun.
    pub fn node_connected(&mut self, now: Instant, node: NodeId, incarnation: u64, effects: &mut Effects) {
        let peer = Address::Node(node);
        self.at_master(now, Event::Connected { peer, incarnation }, effects);
        let concerned = self.jobs.iter().filter(|(_, manager)| manager.concerns(node)).map(|(job, _)| *job);
        for job in concerned.collect::<Vec<_>>() {
            self.at_job(now, job, Event::Connected { peer, incarnation }, effects);
        }
        self.deliver_mail(now, effects);
    }

    pub fn node_disconnected(&mut self, now: Instant, node: NodeId, effects: &mut Effects) {
        self.at_master(now, Event::Disconnected { peer: Address::Node(node) }, effects);
        self.deliver_mail(now, effects);
    }

    /// The connection of the local nodes to their master, which may be in this process.
    pub fn master_connected(&mut self, now: Instant, incarnation: u64, effects: &mut Effects) {
        self.at_all_nodes(now, |_| Event::Connected { peer: Address::Master, incarnation }, effects);
    }

    pub fn master_disconnected(&mut self, now: Instant, effects: &mut Effects) {
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
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
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
                Address::JobManager(job) => self.at_job(now, job, Event::Wakeup, effects),
                Address::Node(node) => self.at_node(now, node, Event::Wakeup, effects),
                Address::GlobalMaster(_) | Address::Executor(_) | Address::Client(_) => {}
            }
            self.deliver_mail(now, effects);
        }
    }

    // ---- one role at a time ----------------------------------------------------------------------------------------

    fn deliver_mail(&mut self, now: Instant, effects: &mut Effects) {
        while let Some(mail) = self.mail.pop_front() {
            let Letter { from, to, message } = match mail {
                Mail::Letter(letter) => letter,
                Mail::Blocked(record) => {
                    effects.facts.push(Fact::Record(record));
                    continue;
                }
            };
            match (to, message) {
                (Address::Master, Message::ToMaster(body)) => {
                    self.at_master(now, Event::Message { from, body }, effects);
                }
                (Address::JobManager(job), Message::ToJobManager(body)) => {
                    self.at_job(now, job, Event::Message { from, body }, effects);
                }
                (Address::Node(node), Message::ToNode(body)) => {
                    self.at_node(now, node, Event::Message { from, body }, effects);
                }
                _ => effects.misdirected += 1,
            }
        }
    }

    fn at_master(&mut self, now: Instant, event: Event<ToMaster>, effects: &mut Effects) {
        if let Some(master) = &mut self.master {
            effects.handled.master += 1;
            master.handle(now, event, &mut self.outbox);
            let wakeup = master.next_wakeup();
            self.wakeups.set(Address::Master, wakeup);
            self.take_effects(Address::Master, effects);
        }
    }

    fn at_job(&mut self, now: Instant, job: JobId, event: Event<ToJobManager>, effects: &mut Effects) {
        if let Event::Message { from: Address::Master, body: ToJobManager::Begin { job: admitted } } = &event
            && !self.jobs.contains_key(&job)
        {
            let manager = self.preset.job_manager(Arc::clone(admitted), self.epoch, self.settings);
            self.jobs.insert(job, manager);
        }
        if !self.jobs.contains_key(&job) {
            return self.answer_for_nobody(job, event, effects);
        }
        if let Some(manager) = self.jobs.get_mut(&job) {
            let is_last = matches!(event, Event::Message { body: ToJobManager::Forgotten, .. });
            effects.handled.job_managers += 1;
            manager.handle(now, event, &mut self.outbox);
            let wakeup = manager.next_wakeup().filter(|_| !is_last);
            if is_last {
                self.jobs.remove(&job);
            }
            self.wakeups.set(Address::JobManager(job), wakeup);
            self.take_effects(Address::JobManager(job), effects);
        }
    }

    /// An end of a job that is forgotten, or a probe of it, interests nobody, but its node keeps it until somebody says
    /// so.
    fn answer_for_nobody(&mut self, job: JobId, event: Event<ToJobManager>, effects: &mut Effects) {
        let Event::Message { from: Address::Node(node), body } = event else { return };
        if self.master.as_ref().is_none_or(|master| master.job(job).is_some()) {
            return;
        }
        match body {
            ToJobManager::Finished { attempt, .. } => {
                self.outbox.send(node, ToNode::Acknowledge { attempt });
                self.outbox.send(node, ToNode::Forget { job });
            }
            ToJobManager::Ready { probe } => self.outbox.send(node, ToNode::Cancel { probes: vec![probe] }),
            _ => return,
        }
        self.take_effects(Address::Master, effects);
    }

    fn at_node(&mut self, now: Instant, node: NodeId, event: Event<ToNode>, effects: &mut Effects) {
        if let Some(agent) = self.nodes.get_mut(&node) {
            if let Event::Message { body: ToNode::Forget { job }, .. } = event {
                effects.forgotten.push(job);
            }
            effects.handled.nodes += 1;
            agent.handle(now, event, &mut self.outbox);
            let wakeup = agent.next_wakeup();
            self.wakeups.set(Address::Node(node), wakeup);
            self.take_effects(Address::Node(node), effects);
        }
    }

    fn take_effects(&mut self, from: Address, effects: &mut Effects) {
        for change in self.outbox.changes.drain(..) {
            effects.durable = true;
            effects.facts.push(Fact::Change(change));
        }
        let mut blocked = Vec::new();
        for record in self.outbox.records.drain(..) {
            match record {
                Record::Blocked { .. } => blocked.push(record),
                _ => effects.facts.push(Fact::Record(record)),
            }
        }
        let (jobs_are_here, nodes) = (self.master.is_some(), &self.nodes);
        for (to, message) in self.outbox.sends.drain(..) {
            let letter = Letter { from, to, message };
            let is_local = match to {
                Address::Master | Address::JobManager(_) => jobs_are_here,
                Address::Node(node) => nodes.contains_key(&node),
                _ => false,
            };
            if is_local {
                self.mail.push_back(Mail::Letter(letter));
            } else {
                effects.letters.push(letter);
            }
        }
        self.mail.extend(blocked.into_iter().map(Mail::Blocked));
    }

    /// The name of a new node is made durable with this turn's effects.
    pub fn name_node(&mut self, name: &str, effects: &mut Effects) -> Option<NodeId> {
        let node = self.master.as_mut()?.name_node(name, &mut self.outbox);
        self.take_effects(Address::Master, effects);
        Some(node)
    }

    pub fn add_local_node(&mut self, node: NodeId, agent: NodeAgent) {
        self.nodes.insert(node, agent);
    }

    /// A node of this process and the master of this process have each other from now on.
    pub fn connect_local_node(&mut self, now: Instant, node: NodeId, effects: &mut Effects) {
        self.node_connected(now, node, 0, effects);
        let incarnation = u64::from(self.epoch.0);
        self.at_node(now, node, Event::Connected { peer: Address::Master, incarnation }, effects);
        self.deliver_mail(now, effects);
    }

    /// What a snapshot of the store holds.
    pub fn durable(&self) -> Vec<Change> {
        let mut changes = self.master.as_ref().map(Role::durable).unwrap_or_default();
        changes.extend(self.jobs.values().flat_map(Role::durable));
        changes
    }
}
