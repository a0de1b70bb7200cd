//! The agent of a node: takes launches, queues what does not fit yet, hands out devices, has the executor run
//! processes, ends them in time, and keeps every end until its owner has it on disk.
//!
//! The executor owns the processes and outlives the agent; a new agent begins by asking what there is.

mod conflicts;
mod devices;
mod fetch;
mod files;
mod hosts;
mod joining;
mod kept;
mod probes;
mod progress;
mod spare;
mod timeouts;
mod tokens;
mod waits;
mod yields;

use crate::policy::QueuePolicy;
use crate::protocol::{
    Address, Claim, ExecutorReport, Launch, LiveAttempt, Steer, TaskSignal, TheExecutor, TheMaster, ToExecutor,
    ToJobManager, ToMaster, ToNode,
};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::scheduling::{Lack, NodeQueue};
use crate::vocabulary::resources::GPU;
use crate::vocabulary::{
    AtNode, AttemptId, Attributes, Devices, Duration, EndReason, Ended, EntryId, ExecutionType, Foretold,
    ForetoldStart, GrantId, HostId, HostList, Instant, JobId, Kinds, LaunchOrder, Mac, NodeId, ProbeId, QueuedEntry,
    ResourceSpec, Resources, RunningEntry, SharedGpu, TaskId, TaskShape, TaskTemplate, Totals,
};
use conflicts::OpportunisticUse;
use devices::DevicePool;
use files::Files;
pub use files::MOST_FETCHES;
use hosts::JobHosts;
use kept::KeptRoom;
use probes::Probes;
use progress::Watch;
use serde::{Deserialize, Serialize};
use spare::Spare;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokens::Tokens;
pub use waits::TellWaits;
use waits::Waits;
use yields::{Yielding, Yields};

/// What a node is and how it behaves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeSettings {
    pub name: String,
    pub capacity: ResourceSpec,
    pub attributes: Attributes,
    /// How limits are enforced and what cannot be, one sentence each.
    pub enforcement: Vec<String>,
    /// Attempts whose owner stays away for longer are killed.
    pub orphan_lease: Duration,
    /// Between the request to terminate and the kill, for timeouts and attempts without an owner.
    pub stop_grace: Duration,
    /// The most bytes of files that are kept here for tasks to read.
    pub cache_bytes: u64,
}

/// What a node does about opportunistic work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct OpportunisticRules {
    /// Opportunistic launches that come when so many wait go back at once.
    pub queue_limit: Option<u32>,
    /// For how long room that guaranteed work leaves is kept for guaranteed work.
    pub keep_freed: Duration,
    /// Where the ledger has room, attempts that have run for so long are offered it.
    pub offer_after: Option<Duration>,
    /// The master is told of room that nothing here wants: with each report, and when it grows, but not more often than this.
    pub tell_spare: Option<Duration>,
    /// Where guaranteed work lacks only CPU, opportunistic attempts yield theirs, for so long at most; without it they are ended.
    pub yields_for: Option<Duration>,
}

/// Starts of which the master is told at once, at most.
const MOST_STARTS: usize = 64;

/// In this order in memory: a simulation comes by thousands of agents in turn, and finds what most events need in few lines
/// of the cache.
#[repr(C, align(64))]
pub struct NodeAgent {
    node: NodeId,
    executor: ExecutorLink,
    /// When something is due for an attempt: its timeout, or its kill.
    due: BTreeSet<(Instant, AttemptId)>,
    /// Boxed, since a map keeps room for eleven of what it holds, and most nodes run few.
    attempts: BTreeMap<AttemptId, Box<Attempt>>,
    /// Those at the executor, in the order of launch.
    running: Vec<AtExecutor>,
    master: MasterLink,
    hosts: JobHosts,
    queue: NodeQueue,
    queue_policy: Box<dyn QueuePolicy>,
    probes: Probes,
    opportunistic: OpportunisticUse,
    /// The capacity without what is held.
    free: Resources,
    kept: KeptRoom,
    /// Since when something opportunistic waits and none has started.
    stalled_since: Option<Instant>,
    rules: OpportunisticRules,
    spare: Spare,
    waits: Waits,
    watch: Watch,
    yields: Yields,
    /// What attempts at the executor and probes whose turn it is take up. An agent may find more here than it has, because
    /// it has less than in its earlier life or does not know its custom kinds yet.
    held: Totals,
    capacity: Resources,
    tokens: Tokens,
    devices: DevicePool,
    files: Box<Files>,
    kinds: Kinds,
    /// Running attempts that are to end, and for whose sake.
    making_way: BTreeMap<AttemptId, AttemptId>,
    /// What the master allows.
    steer: Steer,
    /// The number of the latest registration.
    registration: u64,
    /// Attempts that have ended well.
    succeeded: u32,
    /// What started and had been foretold; the master is told with the next report.
    starts: Vec<ForetoldStart>,
    /// Claims that came before the executor had said what there is.
    early_claims: Vec<Claim>,
    settings: NodeSettings,
}

enum MasterLink {
    Down {
        orphans_at: Option<Instant>,
    },
    /// Connected, and told what is here as soon as that is known.
    Connected {
        registered: bool,
    },
    Welcomed {
        first_grant: GrantId,
        heartbeat: Duration,
        next_report: Instant,
    },
}

#[derive(PartialEq, Eq)]
enum ExecutorLink {
    Down,
    /// Asked what it runs.
    Asked,
    Known,
}

/// An attempt at the executor, with what each report asks of all of them.
struct AtExecutor {
    attempt: AttemptId,
    expected: Option<Duration>,
    /// When it would end by that.
    expected_end: Option<Instant>,
    /// When the executor is asked next how far it has come.
    measured_at: Instant,
}

impl AtExecutor {
    fn new(attempt: AttemptId, since: Instant, expected: Option<Duration>) -> AtExecutor {
        let expected_end = expected.map(|length| since + length);
        AtExecutor { attempt, expected, expected_end, measured_at: Instant::NEVER }
    }
}

struct Attempt {
    task: TaskId,
    template: Arc<TaskTemplate>,
    /// `None`: no ledger holds its resources.
    grant: Option<GrantId>,
    expected: Option<Duration>,
    devices: Devices,
    /// Of which GPU it has a part by its grant.
    shared_gpu: Option<SharedGpu>,
    /// When it was queued, then when it went to the executor; and as much later as it had to do without its CPU since.
    since: Instant,
    /// How long it was queued.
    waited: Duration,
    yielding: Option<Yielding>,
    /// Until then it has to run to make up for having yielded.
    yielded_until: Instant,
    /// Where all tasks of its gang are, once they may begin.
    hosts: Option<Arc<HostList>>,
    /// What was said of its start, and when it came here; until it has started.
    foretold: Option<(Foretold, Instant)>,
    state: State,
}

impl Attempt {
    /// Of which nothing more is known.
    fn new(task: TaskId, template: Arc<TaskTemplate>, since: Instant, state: State) -> Attempt {
        Attempt {
            task,
            template,
            grant: None,
            expected: None,
            devices: Devices::new(),
            shared_gpu: None,
            since,
            waited: Duration::ZERO,
            yielding: None,
            yielded_until: since,
            hosts: None,
            foretold: None,
            state,
        }
    }
}

enum State {
    Queued(Box<Launch>),
    /// Ordered from the executor.
    Starting,
    Running,
    /// Asked to end for this reason; killed at the instant in `due`.
    Stopping {
        reason: EndReason,
        killed: bool,
    },
    /// Kept until acknowledged.
    Ended(Arc<Ended>),
}

impl NodeAgent {
    pub fn new(
        node: NodeId,
        settings: NodeSettings,
        queue_policy: Box<dyn QueuePolicy>,
        rules: OpportunisticRules,
        mac: Mac,
    ) -> NodeAgent {
        let capacity = settings.capacity.basic;
        NodeAgent {
            node,
            kinds: Kinds::new(),
            capacity,
            held: Totals::ZERO,
            opportunistic: OpportunisticUse::default(),
            free: capacity,
            devices: DevicePool::new(&capacity),
            files: Box::new(Files::new(settings.cache_bytes)),
            queue: NodeQueue::default(),
            queue_policy,
            rules,
            kept: KeptRoom::for_length(rules.keep_freed),
            steer: Steer::default(),
            making_way: BTreeMap::new(),
            stalled_since: None,
            spare: Spare::default(),
            waits: Waits::default(),
            watch: Watch::default(),
            yields: Yields::default(),
            probes: Probes::default(),
            attempts: BTreeMap::new(),
            running: Vec::new(),
            due: BTreeSet::new(),
            master: MasterLink::Down { orphans_at: None },
            hosts: JobHosts::default(),
            registration: 0,
            succeeded: 0,
            starts: Vec::new(),
            executor: ExecutorLink::Down,
            tokens: Tokens::new(mac),
            early_claims: Vec::new(),
            settings,
        }
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether its master knows, on the present connection, what is here.
    pub fn is_welcomed(&self) -> bool {
        matches!(self.master, MasterLink::Welcomed { .. })
    }

    /// All attempts that hold resources of the ledger: they are queued or running.
    pub fn live(&self) -> impl Iterator<Item = LiveAttempt> {
        let live = self.attempts.iter().filter(|(_, attempt)| !matches!(attempt.state, State::Ended(_)));
        live.map(|(id, attempt)| LiveAttempt {
            attempt: *id,
            grant: attempt.grant,
            resources: attempt.template.shape.resources,
            shared_gpu: attempt.shared_gpu,
        })
    }

    /// Attempts at the executor, in the order of launch.
    fn running_attempts(&self) -> impl DoubleEndedIterator<Item = (AttemptId, &Attempt)> {
        self.running.iter().map(|one| (one.attempt, &*self.attempts[&one.attempt]))
    }

    /// What waits for room, in the order in which it came.
    pub fn queued(&self) -> &[QueuedEntry] {
        self.queue.entries()
    }

    /// Whether it was asked to end, and keeps what it holds until it has.
    pub fn is_ending(&self, attempt: AttemptId) -> bool {
        self.attempts.get(&attempt).is_some_and(|entry| matches!(entry.state, State::Stopping { .. }))
    }

    /// Whether something that waits does so for its files, and lets others pass.
    pub fn awaits_files(&self, entry: EntryId) -> bool {
        self.queue.is_held(entry)
    }

    /// Probes that wait for their turn, and those whose turn it is: for these, room is kept.
    pub fn probes(&self) -> impl Iterator<Item = (ProbeId, bool)> {
        self.probes.iter()
    }

    /// What is neither used nor kept.
    pub fn free(&self) -> &Resources {
        &self.free
    }

    fn on_message(&mut self, now: Instant, from: Address, body: ToNode, out: &mut Outbox) {
        if body.only_from().is_some_and(|only| only != from) {
            return out.record(Record::StaleMessage { from });
        }
        match body {
            ToNode::Welcome(welcome) => {
                // Since an earlier one, the ledger may have freed what was granted after its welcome.
                if welcome.registration == self.registration && self.awaits_welcome() {
                    self.on_welcome(now, *welcome, out);
                }
            }
            ToNode::IntroduceYourself => {
                self.master = MasterLink::Connected { registered: false };
                self.register(now, out);
                self.drop_probes(now, HostId::SERVER, out);
            }
            ToNode::SayEndsAgain { host } => self.say_ends_again(host, out),
            ToNode::Greeting(greeting) => self.on_greeting(now, from, *greeting, out),
            ToNode::Steer(steer) => self.on_steer(now, *steer, out),
            ToNode::Move { to, room } => self.on_move(now, to, *room, out),
            ToNode::Expire { before } => match from {
                Address::JobHost(host) => self.tokens.expire(host, before),
                _ => self.tokens.expire(HostId::SERVER, before),
            },
            ToNode::Launch(launch) => self.on_launch(now, from, launch, out),
            ToNode::LaunchInstead { launch, of } => self.on_launch_instead(now, from, launch, &of, out),
            ToNode::Probe(probe) => self.on_probe(now, probe, out),
            ToNode::Cancel { probes } => self.on_cancel(now, &probes, out),
            ToNode::Executor(ExecutorReport::Started { attempt, .. }) => self.on_started(now, from, attempt, out),
            ToNode::Executor(ExecutorReport::Finished { attempt, ended }) => self.on_finished(now, attempt, ended, out),
            ToNode::Executor(ExecutorReport::Executing { attempts }) => self.on_executing(now, attempts, out),
            ToNode::Executor(ExecutorReport::Stored { files, .. }) => self.on_stored(now, files, out),
            ToNode::Executor(ExecutorReport::Fetched { end, .. }) => self.on_fetched(now, *end, out),
            ToNode::Executor(ExecutorReport::Measured { samples, .. }) => self.on_measured(samples, out),
            ToNode::BeginTask { attempt, hosts } => self.on_begin_task(now, from, attempt, hosts, out),
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

    // ---- an attempt's life -----------------------------------------------------------------------------------------

    fn take(&mut self, now: Instant, launch: Box<Launch>, out: &mut Outbox) {
        let attempt = launch.attempt;
        let has_kept_room = launch.probe.is_some_and(|probe| self.take_probe(probe));
        self.tokens.heard_of(attempt.epoch);
        let Launch { task, grant, shared_gpu, expected, weight, foretold, is_of_gang, .. } = *launch;
        let (template, inputs) = (Arc::clone(&launch.template), Arc::clone(&launch.inputs));
        let (id, shape, booked) = (EntryId::Attempt(attempt), Arc::clone(&template.shape), grant.is_some());
        let entry = QueuedEntry { id, shape, booked, queued_at: now, expected, weight };
        let is_guaranteed = entry.is_guaranteed();
        if has_kept_room {
            self.queue.push_front(entry);
        } else {
            self.queue.push(entry);
        }
        let foretold = foretold.map(|foretold| (foretold, now));
        let entry = Attempt::new(task, template, now, State::Queued(launch));
        let entry = Attempt { grant, shared_gpu, expected, foretold, ..entry };
        self.attempts.insert(attempt, Box::new(entry));
        self.waits.on_change(now);
        if is_of_gang {
            self.queue.hold(id, Lack::Others);
        }
        self.gather(now, attempt, &inputs, out);
        self.say_in_place(attempt, out);
        self.start_what_fits(now, out);
        if self.attempts.get(&attempt).is_some_and(|entry| matches!(entry.state, State::Queued(_))) {
            let node = self.node;
            out.record(match self.queue.lacks(id, Lack::Others) {
                true => Record::AwaitsGang { task, attempt, node },
                false => Record::Queued { task, attempt, node },
            });
            if is_guaranteed {
                self.make_room(now, attempt, out);
            } else {
                let others = self.queue.entries().iter().filter(|entry| entry.is_opportunistic()).count();
                if others <= 1 {
                    self.stalled_since = Some(now);
                }
                self.keep_queue_short(now, attempt, out);
            }
        }
    }

    /// If nothing but the others of its gang keeps it from starting.
    fn say_in_place(&self, id: AttemptId, out: &mut Outbox) {
        let lacks = |lack| self.queue.lacks(EntryId::Attempt(id), lack);
        if lacks(Lack::Others) && !lacks(Lack::Files) {
            let node_name = self.settings.name.clone();
            out.send(id.job, ToJobManager::InPlace { attempt: id, node_name });
        }
    }

    /// It is said again where it may have been lost.
    fn on_begin_task(&mut self, now: Instant, from: Address, id: AttemptId, hosts: Arc<HostList>, out: &mut Outbox) {
        let entry = EntryId::Attempt(id);
        if !self.queue.lacks(entry, Lack::Others) {
            return out.record(Record::Stale { from, attempt: id });
        }
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.hosts = Some(hosts);
        }
        self.queue.release(entry, Lack::Others);
        self.waits.on_change(now);
        self.start_what_fits(now, out);
    }

    /// Whether a launch under this grant counts on the present connection.
    fn honours(&self, grant: Option<GrantId>) -> bool {
        let Some(grant) = grant else { return true };
        let MasterLink::Welcomed { first_grant: first, .. } = &self.master else { return false };
        (grant.epoch, grant.number) >= (first.epoch, first.number)
    }

    fn start_what_fits(&mut self, now: Instant, out: &mut Outbox) {
        match self.rules.yields_for {
            Some(_) => self.start_and_resume(now, out),
            None => self.start_next(now, out),
        }
        if self.queue.has_guaranteed() {
            // What is coming was enough for those that wait, and may not be any more; or what was in their way is gone.
            let last = self.queue.entries().iter().rev().find_map(QueuedEntry::guaranteed_attempt);
            self.make_room(now, last.expect("one is guaranteed"), out);
        }
    }

    /// As long as the queue's policy finds room for something.
    fn start_next(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(entry) = self.pick(now) {
            match entry.id {
                EntryId::Attempt(attempt) => self.start(now, attempt, out),
                EntryId::Probe(probe) => self.ask_back(probe, entry.shape.resources, out),
            }
        }
    }

    fn pick(&mut self, now: Instant) -> Option<QueuedEntry> {
        if self.executor != ExecutorLink::Known || self.queue.is_empty() {
            return None;
        }
        let room = self.room_for_opportunistic();
        let attempts = &self.attempts;
        let mut running = self.running.iter().map(|one| attempts[&one.attempt].as_running(now, one.attempt));
        self.queue.pick(now, self.queue_policy.as_mut(), &mut running, &self.free, room)
    }

    fn start(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let entry = self.attempts.get_mut(&id).expect("a queued attempt is known");
        let State::Queued(launch) = std::mem::replace(&mut entry.state, State::Starting) else {
            unreachable!("only queued attempts are in the queue")
        };
        let resources = entry.template.shape.resources;
        entry.devices = self.devices.take(&resources, entry.shared_gpu, &self.kinds);
        entry.waited = now.since(entry.since);
        entry.since = now;
        let order = LaunchOrder {
            attempt: id,
            task: launch.task,
            node: self.node,
            node_name: self.settings.name.clone(),
            template: launch.template,
            index: launch.index,
            item: launch.item,
            devices: entry.devices.clone(),
            inputs: launch.inputs,
            hosts: entry.hosts.take(),
            grant: entry.grant,
            shared_gpu: entry.shared_gpu,
            expected: entry.expected,
        };
        out.send(TheExecutor(self.node), ToExecutor::Launch(Box::new(order)));
        let mut running = AtExecutor::new(id, now, entry.expected);
        self.watch.on_running(now, &mut running);
        self.running.push(running);
        self.hold(&resources);
        if self.attempts[&id].is_opportunistic() {
            self.opportunistic.add(&resources);
            self.stalled_since = (!self.queue.is_empty()).then_some(now);
        } else {
            self.kept.take(&resources);
        }
    }

    fn on_started(&mut self, now: Instant, from: Address, id: AttemptId, out: &mut Outbox) {
        if self.attempts.contains_key(&id) {
            self.started(now, id, Duration::ZERO, out);
        } else {
            out.record(Record::Stale { from, attempt: id });
        }
    }

    /// The process has been there for `running_for`: its timeout counts from its start.
    fn started(&mut self, now: Instant, id: AttemptId, running_for: Duration, out: &mut Outbox) {
        let entry = self.attempts.get_mut(&id).expect("the caller found it");
        let mut at_node = None;
        if let State::Starting = entry.state {
            entry.state = State::Running;
            at_node = Some(AtNode { waited: entry.waited, making: now.before(running_for).since(entry.since) });
            if let Some((foretold, came)) = entry.foretold.take() {
                let start = foretold.started(now.before(running_for).since(came));
                if self.starts.len() < MOST_STARTS {
                    self.starts.push(start);
                }
                let (task, attempt, node) = (entry.task, id, self.node);
                out.record(Record::Foretold { task, attempt, node, foretold, start, run: entry.expected });
            }
            let timeout = entry.template.timeout;
            match &mut entry.yielding {
                Some(yielding) => {
                    yielding.timeout_left = timeout.map(|timeout| Duration(timeout.0.saturating_sub(running_for.0)));
                }
                None => self.due.extend(timeout.map(|timeout| (now.before(running_for) + timeout, id))),
            }
        }
        out.send(id.job, ToJobManager::Started { attempt: id, running_for, at_node });
    }

    /// The executor says that an attempt ended; repeated until acknowledged.
    fn on_finished(&mut self, now: Instant, id: AttemptId, ended: Arc<Ended>, out: &mut Outbox) {
        match self.attempts.get(&id).map(|entry| &entry.state) {
            Some(State::Ended(_)) => {}
            Some(_) => self.finish(now, id, ended, out),
            None => {
                // From before this agent's time.
                out.send(id.job, ToJobManager::Finished { attempt: id, ended: Arc::clone(&ended), instead: None });
                let task = TaskId { job: id.job, ..TaskId::default() };
                let entry = Attempt::new(task, Arc::default(), now, State::Ended(ended));
                self.attempts.insert(id, Box::new(entry));
            }
        }
    }

    /// Frees what the attempt held, tells its owner and the master, and starts what fits now.
    fn finish(&mut self, now: Instant, id: AttemptId, ended: Arc<Ended>, out: &mut Outbox) {
        self.finish_for(now, id, ended, None, out);
    }

    /// The same; its task would find room at another node.
    fn finish_for(
        &mut self,
        now: Instant,
        id: AttemptId,
        ended: Arc<Ended>,
        instead: Option<NodeId>,
        out: &mut Outbox,
    ) {
        let ended = self.with_cause(id, ended);
        self.waits.on_change(now);
        let entry = self.attempts.get_mut(&id).expect("the caller found it");
        let (held, is_opportunistic, grant) = (entry.is_at_executor(), entry.is_opportunistic(), entry.grant);
        entry.state = State::Ended(Arc::clone(&ended));
        let (devices, resources) = (std::mem::take(&mut entry.devices), entry.holds());
        let shape = Arc::clone(&entry.template.shape);
        let did_yield = entry.yielding.take().is_some();
        if held {
            self.devices.give_back(&devices, &shape.resources, &self.kinds);
            if let Some(place) = self.running.iter().position(|other| other.attempt == id) {
                self.running.remove(place);
            }
            self.release(&resources);
            if is_opportunistic {
                self.opportunistic.sub(&resources);
            }
            if !is_opportunistic && self.serves(id.epoch.host()) {
                self.kept.keep(now, &resources);
            }
            self.due.retain(|(_, other)| *other != id);
            if did_yield {
                self.note_yields();
            }
        }
        self.succeeded = self.succeeded.wrapping_add(u32::from(ended.reason.is_success()));
        if let EndReason::NodeFault(why) = &ended.reason {
            out.send(TheMaster, ToMaster::CannotLaunch { why: why.clone() });
        }
        out.send(id.job, ToJobManager::Finished { attempt: id, ended: Arc::clone(&ended), instead });
        if let Some(grant) = grant {
            out.send(TheMaster, ToMaster::Freed { grants: vec![grant] });
        }
        self.release_files(now, id, &ended, out);
        self.start_what_fits(now, out);
        if held {
            self.on_room_grew(now);
        }
    }

    fn hold(&mut self, resources: &Resources) {
        self.held.add(resources);
        self.free = self.find_free();
    }

    fn release(&mut self, resources: &Resources) {
        self.held.sub(resources);
        self.free = self.find_free();
    }

    fn find_free(&self) -> Resources {
        self.free_beside(&self.held)
    }

    /// The capacity without what is held; of GPUs what one task may have.
    fn free_beside(&self, held: &Totals) -> Resources {
        let mut free = held.left_of(&self.capacity);
        free.0[GPU] = free.0[GPU].min(self.devices.free_gpus());
        free
    }

    fn on_acknowledge(&mut self, from: Address, id: AttemptId, out: &mut Outbox) {
        match self.attempts.get(&id).map(|entry| &entry.state) {
            Some(State::Ended(_)) => {
                self.attempts.remove(&id);
                out.send(TheExecutor(self.node), ToExecutor::Acknowledge { attempt: id });
            }
            _ => out.record(Record::Stale { from, attempt: id }),
        }
    }

    // ---- stopping --------------------------------------------------------------------------------------------------

    fn on_stop(&mut self, now: Instant, id: AttemptId, reason: EndReason, grace: Duration, out: &mut Outbox) {
        let Some(entry) = self.attempts.get_mut(&id) else { return };
        match &entry.state {
            State::Queued(_) => {
                self.queue.remove(EntryId::Attempt(id));
                self.finish(now, id, Ended::without_run(reason), out);
            }
            State::Starting | State::Running => {
                entry.state = State::Stopping { reason: reason.clone(), killed: false };
                self.due.retain(|(_, other)| *other != id);
                self.due.insert((now + grace, id));
                let signal = TaskSignal::Terminate;
                out.send(TheExecutor(self.node), ToExecutor::Signal { attempt: id, signal, reason });
            }
            State::Stopping { .. } | State::Ended(_) => {}
        }
    }

    fn on_wakeup(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(&(at, id)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, id));
            self.on_due(now, id, out);
        }
        if self.kept.expire(now) {
            self.start_what_fits(now, out);
            self.on_room_grew(now);
        }
        self.retry_fetches(now, out);
        if self.spare.due.is_some_and(|at| at <= now) {
            self.tell_spare(now, out);
        }
        if self.waits.due.is_some_and(|at| at <= now) {
            self.tell_waits(now, false, out);
        }
        if self.watch.due.is_some_and(|at| at <= now) {
            self.measure(now, out);
        }
        if self.yields.due.is_some_and(|at| at <= now) {
            self.end_overdue_yields(now, out);
        }
        self.end_abandoned(now, out);
        match &mut self.master {
            MasterLink::Welcomed { heartbeat, next_report, .. } if *next_report <= now => {
                *next_report = now + *heartbeat;
                self.report(now, out);
            }
            MasterLink::Down { orphans_at } if orphans_at.is_some_and(|at| at <= now) => {
                *orphans_at = None;
                self.stop_orphans_of(now, HostId::SERVER, out);
            }
            _ => {}
        }
    }

    fn on_due(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let Some(entry) = self.attempts.get_mut(&id) else { return };
        match &mut entry.state {
            State::Stopping { killed, reason } if !*killed => {
                *killed = true;
                let (signal, reason) = (TaskSignal::Kill, reason.clone());
                out.send(TheExecutor(self.node), ToExecutor::Signal { attempt: id, signal, reason });
            }
            State::Running => {
                let (task, node, reason) = (entry.task, self.node, EndReason::Timeout);
                out.record(Record::Stopping { task, attempt: id, node, reason: reason.clone() });
                self.on_stop(now, id, reason, self.settings.stop_grace, out);
            }
            _ => {}
        }
    }

    // ---- owners ----------------------------------------------------------------------------------------------------

    /// A job manager says which attempts are its own.
    fn on_claim(&mut self, now: Instant, claim: Claim, out: &mut Outbox) {
        if self.executor != ExecutorLink::Known {
            // A later claim says more than an earlier one.
            self.early_claims.retain(|other| other.job != claim.job);
            return self.early_claims.push(claim);
        }
        if self.is_outdated(claim.epoch) {
            return;
        }
        self.tokens.on_claim(&claim);
        let Claim { job, epoch, number, attempts: claimed, .. } = claim;
        self.tokens.heard_of(epoch);
        let here: Vec<AttemptId> = self.attempts.keys().copied().filter(|id| id.job == job).collect();
        let attempts = claimed.iter().copied().filter(|id| self.attempts.contains_key(id)).collect();
        let node_name = self.settings.name.clone();
        out.send(job, ToJobManager::Live { node: self.node, node_name, epoch, number, attempts });
        for (attempt, entry) in self.running_attempts().filter(|(attempt, _)| claimed.contains(attempt)) {
            if !matches!(entry.state, State::Starting) {
                let running_for = entry.running_for(now);
                out.send(job, ToJobManager::Started { attempt, running_for, at_node: None });
            }
            // Said once when it was promoted, and perhaps lost.
            if let Some(grant) = entry.grant.filter(|_| entry.template.shape.execution == ExecutionType::Opportunistic)
            {
                out.send(job, ToJobManager::Promoted { attempt, grant });
            }
        }
        for id in claimed.iter().filter(|id| self.attempts.contains_key(id)) {
            self.say_in_place(*id, out);
        }
        // An end is told until its owner has it, also where that wants nothing of it any more: so it is told that it came late.
        let has_ended = |id: &AttemptId| matches!(self.attempts[id].state, State::Ended(_));
        let foreign: Vec<AttemptId> = here.into_iter().filter(|id| !claimed.contains(id) && !has_ended(id)).collect();
        self.stop_orphans(now, &foreign, out);
    }

    fn on_disown(&mut self, now: Instant, job: JobId, out: &mut Outbox) {
        self.drop_probes_of(now, job, out);
        let here: Vec<AttemptId> = self.attempts.keys().copied().filter(|id| id.job == job).collect();
        self.stop_orphans(now, &here, out);
    }

    /// Ends attempts without an owner; their ends interest nobody.
    fn stop_orphans(&mut self, now: Instant, orphans: &[AttemptId], out: &mut Outbox) {
        for &id in orphans {
            let Some(entry) = self.attempts.get(&id) else { continue };
            if let State::Ended(_) = entry.state {
                self.attempts.remove(&id);
                out.send(TheExecutor(self.node), ToExecutor::Acknowledge { attempt: id });
                continue;
            }
            out.record(Record::Orphaned { task: entry.task, attempt: id, node: self.node });
            self.on_stop(now, id, EndReason::NodeLost, self.settings.stop_grace, out);
        }
    }

    /// In tests and debug builds, after every event.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let at_executor = self.attempts.values().filter(|attempt| attempt.is_at_executor()).count();
        assert_eq!(self.running.len(), at_executor, "running attempts and attempts at the executor");
        let queued = self.attempts.values().filter(|attempt| matches!(attempt.state, State::Queued(_))).count();
        assert_eq!(self.queue.len(), queued + self.probes.queued(), "queue entries, queued attempts and probes");
        let mut held = self.probes.kept_room();
        self.running_attempts().for_each(|(_, entry)| held.add(&entry.holds()));
        assert_eq!(self.held, held, "what attempts and probes hold");
        let mut opportunistic = Totals::ZERO;
        let those = self.running_attempts().map(|(_, entry)| entry).filter(|entry| entry.is_opportunistic());
        those.for_each(|entry| opportunistic.add(&entry.holds()));
        let yielding = self.attempts.values().filter(|entry| entry.yielding.is_some());
        assert_eq!(yielding.count(), self.yields.attempts as usize, "attempts that yield");
        assert_eq!(*self.opportunistic.held(), opportunistic, "what opportunistic attempts hold");
        assert_eq!(self.free, self.find_free(), "what is free is what nothing holds");
        let devices = self.running_attempts().map(|(_, entry)| (&entry.devices, &entry.template.shape.resources));
        self.devices.check_invariants(devices, &self.capacity, &self.kinds);
        self.files.check_invariants();
        self.check_cache_room();
    }
}

impl Attempt {
    /// Whether it holds resources, because the executor runs it.
    fn is_at_executor(&self) -> bool {
        matches!(self.state, State::Starting | State::Running | State::Stopping { .. })
    }

    fn as_running(&self, now: Instant, attempt: AttemptId) -> RunningEntry {
        let TaskShape { resources, execution } = *self.template.shape;
        let started_at = now.before(self.running_for(now));
        RunningEntry { attempt, resources, execution, started_at, expected: self.expected }
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
            Event::Disconnected { peer: Address::Executor(_) } => self.executor = ExecutorLink::Down,
            Event::Connected { peer: Address::Master, .. } => {
                self.master = MasterLink::Connected { registered: false };
                self.tokens.forget_early();
                self.register(now, out);
                self.drop_probes(now, HostId::SERVER, out);
            }
            Event::Disconnected { peer: Address::Master } => {
                self.tokens.forget_early();
                let orphans_at = Some(now + self.settings.orphan_lease);
                self.master = MasterLink::Down { orphans_at };
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
        let due = self.due.first().map(|(at, _)| *at);
        let link = match &self.master {
            MasterLink::Down { orphans_at } => *orphans_at,
            MasterLink::Connected { .. } => None,
            MasterLink::Welcomed { next_report, .. } => Some(*next_report),
        };
        let (waits, files) = (self.waits.due, self.files.next_retry());
        let (yields, hosts) = (self.yields.due, self.hosts.next_due());
        let dues = [due, link, hosts, self.kept.next_expiry(), self.spare.due, waits, self.watch.due, files, yields];
        let next = dues.map(|at| at.unwrap_or(Instant::NEVER)).into_iter().fold(Instant::NEVER, Instant::min);
        (next < Instant::NEVER).then_some(next)
    }

    /// A node keeps nothing of its own on disk: its executor remembers.
    fn recover(&mut self, _: &[Change]) {}

    fn durable(&self) -> Vec<Change> {
        Vec::new()
    }

    fn describe(&self, now: Instant) -> NodeDescription {
        let running = self.running_attempts();
        let running =
            running.map(|(id, entry)| (id, entry.task, entry.template.shape.resources, now.since(entry.since)));
        let queued =
            self.queue.entries().iter().map(|entry| (entry.id, entry.shape.resources, now.since(entry.queued_at)));
        let ended = self.attempts.values().filter(|attempt| matches!(attempt.state, State::Ended(_)));
        NodeDescription {
            node: self.node,
            name: self.settings.name.clone(),
            capacity: self.capacity,
            free: self.free,
            running: running.collect(),
            queued: queued.collect(),
            unacknowledged: ended.count() as u32,
        }
    }
}
