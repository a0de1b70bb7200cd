//! The agent of a node. It accepts launches, queues attempts that do not fit yet, assigns devices, has the executor run
//! processes, stops them in time, and keeps every end until its owner has stored it on disk.
//!
//! The executor owns the processes and outlives the agent; a new agent starts by asking the executor what runs.

mod attempt;
mod attempts;
mod conflicts;
mod devices;
mod executor_link;
mod files;
mod hosts;
mod inputs;
mod joining;
mod kept;
mod master_link;
mod owners;
mod probes;
mod progress;
mod queue;
mod resting;
mod room;
mod spare;
mod starting;
mod stopping;
mod timeouts;
mod tokens;
mod uploads;
mod waits;
mod yields;

use crate::policy::QueuePolicy;
use crate::protocol::{
    Address, ExecutorReport, Launch, LiveAttempt, TheExecutor, TheMaster, ToExecutor, ToJobManager, ToMaster, ToNode,
};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::scheduling::Lack;
use crate::vocabulary::{
    AttemptId, Attributes, Duration, EndReason, Ended, EntryId, HostId, HostList, Instant, Mac, NodeId, ProbeId,
    QueuedEntry, ResourceSpec, Resources, TaskId,
};
use attempt::{Attempt, State};
use attempts::Attempts;
use executor_link::ExecutorLink;
use files::Files;
pub use files::MOST_FETCHES;
use hosts::JobHosts;
use master_link::{MasterLink, Overdue};
use queue::Queue;
pub use resting::Rest;
use room::Room;
use serde::{Deserialize, Serialize};
use spare::Spare;
use std::sync::Arc;
use tokens::Tokens;
pub use uploads::{Turn, Uploads};
pub use waits::ReportWaits;
use waits::Waits;

/// What a node is and how it behaves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeSettings {
    pub name: String,
    pub capacity: ResourceSpec,
    pub attributes: Attributes,
    /// How limits are enforced and which cannot be enforced, one sentence each.
    pub enforcement: Vec<String>,
    /// Attempts whose owner is not connected for longer than this are stopped.
    pub orphan_lease: Duration,
    /// The time between the request to terminate and the kill, for timeouts and attempts without an owner.
    pub stop_grace: Duration,
    /// Maximum number of bytes of files that are kept here for tasks to read.
    pub cache_bytes: u64,
    /// The version of the agent's program, for administrators.
    pub program: Option<String>,
}

/// How a node treats opportunistic work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct OpportunisticRules {
    /// An opportunistic launch that makes the queue longer than this is shed at once.
    pub queue_limit: Option<u32>,
    /// For how long resources that guaranteed work has freed are kept for guaranteed work.
    pub keep_freed: Duration,
    /// Opportunistic attempts that have run for this long are offered to the master for promotion if they fit beside
    /// booked work.
    pub offer_after: Option<Duration>,
    /// The master gets a report of spare room that nothing here needs: with each node report, and when the room grows,
    /// but then not more often than this.
    pub report_spare: Option<Duration>,
    /// If guaranteed work lacks only CPU, opportunistic attempts yield theirs for at most this long. Without a value
    /// they are stopped.
    pub yields_for: Option<Duration>,
}

/// The state machine of a node's agent. Each of its parts owns a piece of the state; this handles messages and lets the parts
/// know what has happened.
///
/// The fields are stored in this order. A simulation visits thousands of agents in turn, and most events need only the
/// first few cache lines of an agent.
#[repr(C, align(64))]
pub struct NodeAgent {
    node: NodeId,
    executor: ExecutorLink,
    attempts: Attempts,
    master: MasterLink,
    hosts: JobHosts,
    queue: Queue,
    room: Room,
    spare: Spare,
    waits: Waits,
    tokens: Tokens,
    files: Box<Files>,
    settings: NodeSettings,
}

impl NodeAgent {
    pub fn new(
        node: NodeId,
        settings: NodeSettings,
        queue_policy: Box<dyn QueuePolicy>,
        rules: OpportunisticRules,
        mac: Mac,
    ) -> NodeAgent {
        NodeAgent {
            node,
            room: Room::new(settings.capacity.basic, rules.keep_freed),
            files: Box::new(Files::new(settings.cache_bytes)),
            queue: Queue::new(queue_policy, rules.queue_limit),
            spare: Spare::new(rules.report_spare, rules.offer_after),
            waits: Waits::default(),
            attempts: Attempts::new(rules.yields_for),
            master: MasterLink::default(),
            hosts: JobHosts::default(),
            executor: ExecutorLink::default(),
            tokens: Tokens::new(mac),
            settings,
        }
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether its master has accepted the registration on the present connection.
    pub fn is_welcomed(&self) -> bool {
        self.master.is_welcomed()
    }

    /// Whether the executor has said which attempts it has, so that [`NodeAgent::live`] lacks none of them.
    pub fn knows_its_attempts(&self) -> bool {
        self.executor.is_known()
    }

    /// All attempts that have not ended: they are queued or at the executor.
    pub fn live(&self) -> impl Iterator<Item = LiveAttempt> {
        let live = self.attempts.iter().filter(|(_, attempt)| !matches!(attempt.state, State::Ended(_)));
        live.map(|(id, attempt)| LiveAttempt {
            attempt: id,
            grant: attempt.grant,
            resources: attempt.template.shape.resources,
            shared_gpu: attempt.shared_gpu,
        })
    }

    /// Entries that wait for room, in the order of arrival.
    pub fn queued(&self) -> &[QueuedEntry] {
        self.queue.entries()
    }

    /// Whether the attempt was asked to stop. It holds its resources until it has ended.
    pub fn is_ending(&self, attempt: AttemptId) -> bool {
        self.attempts.get(&attempt).is_some_and(|entry| matches!(entry.state, State::Stopping { .. }))
    }

    /// Whether an entry waits for its files or its gang, so that later entries may start before it.
    pub fn awaits_files(&self, entry: EntryId) -> bool {
        self.queue.is_held(entry)
    }

    /// All probes, with true for those whose job manager was asked for a task: the node keeps room for these.
    pub fn probes(&self) -> impl Iterator<Item = (ProbeId, bool)> {
        self.queue.probes()
    }

    /// The resources that are neither used nor kept for a probe.
    pub fn free(&self) -> &Resources {
        self.room.free()
    }

    fn on_message(&mut self, now: Instant, from: Address, body: ToNode, out: &mut Outbox) {
        if body.only_from().is_some_and(|only| only != from) {
            return out.record(Record::StaleMessage { from });
        }
        match body {
            ToNode::Welcome(welcome) => {
                // A welcome to an earlier registration is ignored: the ledger may have freed grants that it made after
                // that welcome.
                if self.master.awaits_welcome(welcome.registration) {
                    self.on_welcome(now, *welcome, out);
                }
            }
            ToNode::RegisterAgain => {
                self.master.on_connected();
                self.register(now, out);
                self.drop_probes(now, HostId::SERVER, out);
            }
            ToNode::ResendEnds { host } => self.resend_ends(host, out),
            ToNode::Greeting(greeting) => self.on_greeting(now, from, *greeting, out),
            ToNode::Steer(steer) => self.on_steer(now, *steer, out),
            ToNode::Move { to, room } => self.on_move(now, to, *room, out),
            ToNode::Expire { before } => match from {
                Address::JobHost(host) => self.tokens.expire(host, before),
                _ => self.tokens.expire(HostId::SERVER, before),
            },
            ToNode::Launch(launch) => self.on_launch(now, from, launch, out),
            ToNode::LaunchInstead { launch, of } => self.on_launch_instead(now, from, launch, &of, out),
            ToNode::Preempt { grants, by } => self.on_preempt(now, &grants, by, out),
            ToNode::Probe(probe) => self.on_probe(now, probe, out),
            ToNode::Cancel { probes } => self.on_cancel(now, &probes, out),
            ToNode::Executor(ExecutorReport::Started { attempt, .. }) => self.on_started(now, from, attempt, out),
            ToNode::Executor(ExecutorReport::Finished { attempt, ended }) => self.on_finished(now, attempt, ended, out),
            ToNode::Executor(ExecutorReport::Executing { attempts }) => self.on_executing(now, attempts, out),
            ToNode::Executor(ExecutorReport::Stored { files, .. }) => self.on_stored(now, files, out),
            ToNode::Executor(ExecutorReport::Fetched { end, .. }) => self.on_fetched(now, *end, out),
            ToNode::Executor(ExecutorReport::Measured { samples, .. }) => self.on_measured(samples, out),
            ToNode::StartTask { attempt, hosts } => self.on_start_task(now, from, attempt, hosts, out),
            ToNode::SetTimeout { attempt, timeout } => self.on_set_timeout(from, attempt, timeout, out),
            ToNode::Promote { attempt, grant: Some(grant) } => self.on_promote(now, attempt, grant, out),
            ToNode::Promote { attempt, grant: None } => self.on_entitled(now, attempt, out),
            ToNode::Stop { attempt, reason, grace } => self.on_stop(now, attempt, reason, grace, out),
            ToNode::Holder { digest, node } => self.on_holder(now, digest, node, out),
            ToNode::Acknowledge { attempt } => self.on_acknowledge(from, attempt, out),
            ToNode::Claim(claim) => self.on_claim(now, claim, out),
            ToNode::Disown { job } => self.on_disown(now, job, out),
            ToNode::Forget { job } => {
                self.on_disown(now, job, out);
                self.forget_files_of(now, job, out);
            }
        }
    }

    // ---- from launch to end ----------------------------------------------------------------------------------------

    fn accept(&mut self, now: Instant, launch: Box<Launch>, out: &mut Outbox) {
        let attempt = launch.attempt;
        let has_kept_room = launch.probe.is_some_and(|probe| self.take_probe(probe));
        self.tokens.received_from(attempt.epoch);
        let Launch { task, grant, shared_gpu, expected, weight, prediction, is_of_gang, .. } = *launch;
        let (template, inputs) = (Arc::clone(&launch.template), Arc::clone(&launch.inputs));
        let (id, shape, booked) = (EntryId::Attempt(attempt), Arc::clone(&template.shape), grant.is_some());
        let entry = QueuedEntry { id, shape, booked, queued_at: now, expected, weight };
        let is_guaranteed = entry.is_guaranteed();
        self.queue.push(entry, has_kept_room);
        let prediction = prediction.map(|prediction| (prediction, now));
        let entry = Attempt::new(task, template, now, State::Queued(launch));
        let entry = Attempt { grant, shared_gpu, expected, prediction, ..entry };
        self.attempts.add(attempt, entry);
        self.waits.on_change(now);
        if is_of_gang {
            self.queue.hold(attempt, Lack::Others);
        }
        self.gather(now, attempt, &inputs, out);
        self.report_in_place(attempt, out);
        self.start_what_fits(now, out);
        if self.attempts.is_queued(&attempt) {
            let node = self.node;
            out.record(match self.queue.lacks(attempt, Lack::Others) {
                true => Record::AwaitsGang { task, attempt, node },
                false => Record::Queued { task, attempt, node },
            });
            if is_guaranteed {
                self.make_room(now, attempt, out);
            } else {
                self.queue.on_opportunistic_waits(now);
                self.keep_queue_short(now, attempt, out);
            }
        }
    }

    /// Reports that the attempt can start, if it waits for nothing but the others of its gang.
    fn report_in_place(&self, id: AttemptId, out: &mut Outbox) {
        if self.queue.lacks(id, Lack::Others) && !self.queue.lacks(id, Lack::Files) {
            let node_name = self.settings.name.clone();
            out.send(id.job, ToJobManager::InPlace { attempt: id, node_name });
        }
    }

    /// The job manager repeats this message where it may have been lost.
    fn on_start_task(&mut self, now: Instant, from: Address, id: AttemptId, hosts: Arc<HostList>, out: &mut Outbox) {
        if !self.queue.lacks(id, Lack::Others) {
            return out.record(Record::Stale { from, attempt: id });
        }
        self.attempts.on_gang_in_place(id, hosts);
        self.queue.release(id, Lack::Others);
        self.waits.on_change(now);
        self.start_what_fits(now, out);
    }

    /// The executor reports that an attempt ended. It repeats the report until it is acknowledged.
    fn on_finished(&mut self, now: Instant, id: AttemptId, ended: Arc<Ended>, out: &mut Outbox) {
        match self.attempts.get(&id).map(|entry| &entry.state) {
            Some(State::Ended(_)) => {}
            Some(_) => self.finish(now, id, ended, out),
            None => {
                // The attempt is from before the start of this agent.
                out.send(id.job, ToJobManager::Finished { attempt: id, ended: Arc::clone(&ended), instead: None });
                let task = TaskId { job: id.job, ..TaskId::default() };
                let entry = Attempt::new(task, Arc::default(), now, State::Ended(ended));
                self.attempts.add(id, entry);
            }
        }
    }

    /// Frees what the attempt held, notifies its owner and the master, and starts what fits now.
    fn finish(&mut self, now: Instant, id: AttemptId, ended: Arc<Ended>, out: &mut Outbox) {
        self.finish_for(now, id, ended, None, out);
    }

    /// Like `finish`. `instead` is another node that has room for the task.
    fn finish_for(
        &mut self,
        now: Instant,
        id: AttemptId,
        ended: Arc<Ended>,
        instead: Option<NodeId>,
        out: &mut Outbox,
    ) {
        let entry = &self.attempts[&id];
        let (was_at_executor, grant) = (entry.is_at_executor(), entry.grant);
        if was_at_executor {
            self.room.on_end(entry);
            if !entry.is_opportunistic() && self.serves(id.epoch.host()) {
                self.room.keep_freed(now, &entry.holds());
            }
        }
        let ended = self.attempts.end(id, ended);
        self.waits.on_change(now);
        let unfinished = !ended.reason.is_success();
        self.master.on_ended(!unfinished);
        if let EndReason::NodeFault(why) = &ended.reason {
            out.send(TheMaster, ToMaster::CannotLaunch { why: why.clone() });
        }
        out.send(id.job, ToJobManager::Finished { attempt: id, ended: Arc::clone(&ended), instead });
        if let Some(grant) = grant {
            out.send(TheMaster, ToMaster::Freed { grants: vec![grant], unfinished });
        }
        self.release_files(now, id, &ended, out);
        self.start_what_fits(now, out);
        if was_at_executor {
            self.spare.on_room_grew(now);
        }
    }

    fn on_acknowledge(&mut self, from: Address, id: AttemptId, out: &mut Outbox) {
        match self.attempts.get(&id).map(|entry| &entry.state) {
            Some(State::Ended(_)) => {
                self.attempts.remove_ended(id);
                out.send(TheExecutor(self.node), ToExecutor::Acknowledge { attempt: id });
            }
            _ => out.record(Record::Stale { from, attempt: id }),
        }
    }

    fn on_wakeup(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(id) = self.attempts.take_due(now) {
            self.on_due(now, id, out);
        }
        if self.room.expire_kept(now) {
            self.start_what_fits(now, out);
            self.spare.on_room_grew(now);
        }
        self.retry_fetches(now, out);
        if self.spare.is_due(now) {
            self.report_spare(now, out);
        }
        if self.waits.is_due(now) {
            self.report_waits(now, false, out);
        }
        if self.attempts.is_measurement_due(now) {
            self.measure(now, out);
        }
        if self.attempts.is_yield_due(now) {
            self.end_overdue_yields(now, out);
        }
        self.end_abandoned(now, out);
        match self.master.take_due(now) {
            Some(Overdue::Report) => self.report(now, out),
            Some(Overdue::StopOrphans) => self.stop_orphans_of(now, HostId::SERVER, out),
            None => {}
        }
    }

    /// The next wakeup, apart from the link to the master.
    fn next_besides_reports(&self) -> Option<Instant> {
        let (attempts, hosts, kept) = (self.attempts.next_due(), self.hosts.next_due(), self.room.next_expiry());
        let (spare, waits, files) = (self.spare.next_due(), self.waits.next_due(), self.files.next_retry());
        let dues = [attempts, hosts, kept, spare, waits, files];
        let next = dues.map(|at| at.unwrap_or(Instant::NEVER)).into_iter().fold(Instant::NEVER, Instant::min);
        (next < Instant::NEVER).then_some(next)
    }

    /// Runs after every event, in tests and debug builds.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.attempts.check_invariants();
        let queued = self.attempts.iter().filter(|(_, attempt)| matches!(attempt.state, State::Queued(_))).count();
        self.queue.check_invariants(queued);
        let running: Vec<&Attempt> = self.attempts.running().map(|(_, entry)| entry).collect();
        self.room.check_invariants(&running, self.queue.kept_room());
        self.files.check_invariants();
        self.check_cache_room();
    }
}

/// A node's state for people and for a simulator that starts from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeDescription {
    pub node: NodeId,
    pub name: String,
    pub capacity: Resources,
    pub free: Resources,
    /// With the time since each was launched.
    pub running: Vec<(AttemptId, TaskId, Resources, Duration)>,
    pub queued: Vec<(EntryId, Resources, Duration)>,
    /// Ends that their owners have not acknowledged.
    pub unacknowledged: u32,
}

impl Role for NodeAgent {
    type Message = ToNode;
    type Description = NodeDescription;

    fn handle(&mut self, now: Instant, event: Event<ToNode>, out: &mut Outbox) {
        match event {
            Event::Message { from, body } => self.on_message(now, from, body, out),
            Event::Connected { peer: Address::Executor(_), .. } => self.on_executor_connected(out),
            Event::Disconnected { peer: Address::Executor(_) } => self.executor.on_disconnected(),
            Event::Connected { peer: Address::Master, .. } => {
                self.master.on_connected();
                self.tokens.forget_early();
                self.register(now, out);
                self.drop_probes(now, HostId::SERVER, out);
            }
            Event::Disconnected { peer: Address::Master } => {
                self.tokens.forget_early();
                self.master.on_disconnected(now + self.settings.orphan_lease);
                self.on_passed_on_no_more(now);
                self.drop_probes(now, HostId::SERVER, out);
            }
            Event::Connected { peer: Address::JobHost(host), .. } => self.on_host_connected(now, host, out),
            Event::Disconnected { peer: Address::JobHost(host) } => self.on_host_disconnected(now, host, out),
            Event::Connected { .. } | Event::Disconnected { .. } => {}
            Event::Wakeup => self.on_wakeup(now, out),
        }
        self.check_invariants();
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let (link, others) = (self.master.next_due(), self.next_besides_reports());
        let next = link.unwrap_or(Instant::NEVER).min(others.unwrap_or(Instant::NEVER));
        (next < Instant::NEVER).then_some(next)
    }

    /// A node agent stores nothing on disk: its executor knows what runs.
    fn recover(&mut self, _: &[Change]) {}

    fn durable(&self) -> Vec<Change> {
        Vec::new()
    }

    fn describe(&self, now: Instant) -> NodeDescription {
        let running = self.attempts.running();
        let running =
            running.map(|(id, entry)| (id, entry.task, entry.template.shape.resources, now.since(entry.since)));
        let queued =
            self.queue.entries().iter().map(|entry| (entry.id, entry.shape.resources, now.since(entry.queued_at)));
        let ended = self.attempts.iter().filter(|(_, attempt)| matches!(attempt.state, State::Ended(_)));
        NodeDescription {
            node: self.node,
            name: self.settings.name.clone(),
            capacity: *self.room.capacity(),
            free: *self.room.free(),
            running: running.collect(),
            queued: queued.collect(),
            unacknowledged: ended.count() as u32,
        }
    }
}
