//! A small world around the roles: a server (master and job managers over one log), nodes, executors that only pretend.
//! Everything happens in one thread and in a fixed order; connections break and processes die when a test says so.

use amalgam_core::job_manager::{JobManager, JobManagerSettings};
use amalgam_core::master::{JobState, Master, MasterSettings};
use amalgam_core::node::{NodeAgent, NodeSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::*;
use amalgam_core::role::{Change, Event, LostCause, Outbox, Record, Role};
use amalgam_core::vocabulary::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub struct World {
    pub now: Instant,
    pub preset: Preset,
    pub settings: MasterSettings,
    pub queues: QueueTree,
    pub server: Option<Server>,
    epoch: Epoch,
    /// What is on disk.
    pub disk: Vec<Change>,
    pub nodes: Vec<NodeHost>,
    mail: VecDeque<(Address, Address, Message)>,
    pub log: Vec<String>,
    pub records: Vec<Record>,
    pub answers: Vec<(ClientId, ToClient)>,
    next_client: u64,
    pub orphan_lease: Duration,
    pub cache_bytes: u64,
    /// Of each file that a task leaves.
    pub file_bytes: u64,
    /// Whether the log shows messages, too.
    pub verbose: bool,
    /// Every launch that a node has heard.
    pub heard_launches: Vec<(NodeId, Launch)>,
    /// What nodes said of their waits.
    pub told_waits: Vec<ToldWaits>,
    /// Launches stay on their way.
    pub hold_launches: bool,
    held_launches: Vec<(Address, NodeId, Box<Launch>)>,
}

/// A node said how long tasks would wait there.
pub struct ToldWaits {
    pub at: Instant,
    pub node: NodeId,
    pub to: Address,
    /// When attempts of the job start that wait there.
    pub starts: Vec<(AttemptId, Duration)>,
}

pub struct Server {
    pub master: Master,
    pub jobs: BTreeMap<JobId, JobManager>,
    /// Not on disk yet, and the messages that wait for it.
    unsynced: Vec<Change>,
    gated: Vec<(Address, Address, Message)>,
}

pub struct NodeHost {
    pub name: String,
    pub agent: Option<NodeAgent>,
    pub linked: bool,
    pub executor: PretendedExecutor,
    capacity: Resources,
    attributes: Vec<(String, String)>,
}

/// Runs for as long as the command says: `["run", "5s", "exit code"]`.
#[derive(Default)]
pub struct PretendedExecutor {
    pub running: BTreeMap<AttemptId, (LaunchOrder, Instant, Instant)>,
    pub ends: BTreeMap<AttemptId, Arc<Ended>>,
    /// Every attempt that ever became a process.
    pub launched: Vec<(TaskId, AttemptId)>,
    /// Why it cannot launch anything.
    pub fault: Option<String>,
    /// What its node has, with the bytes of each.
    pub files: BTreeMap<Digest, u64>,
    /// Whoever fetches from here gets something else so many times.
    pub sends_wrong: u32,
    /// So many times it finds that what is fetched from here is damaged, and removes it.
    pub spoils: u32,
    /// It does not answer those that fetch from here.
    pub is_silent: bool,
    /// Fetches that were ordered here.
    pub fetched: Vec<(Digest, NodeId)>,
    /// Fetches stay on their way.
    pub holds_fetches: bool,
    held_fetches: Vec<(StoredFile, NodeId)>,
    /// What starts here takes so many times as long, and as much CPU time as elsewhere; 0 is as long.
    pub slowness: u64,
    /// Those that yield their CPU, since when, and for how long others did. They make no progress meanwhile.
    pub yielding: BTreeMap<AttemptId, Instant>,
    pub yielded: BTreeMap<AttemptId, Duration>,
    /// So often it was asked how far attempts have come.
    pub measured: usize,
}

impl PretendedExecutor {
    /// When attempts end by themselves.
    fn next_ends(&self) -> impl Iterator<Item = (AttemptId, Instant)> {
        let working = self.running.iter().filter(|(id, _)| !self.yielding.contains_key(id));
        working.map(|(id, (_, _, end))| (*id, *end))
    }
}

impl World {
    pub fn new(preset: Preset) -> World {
        let settings = MasterSettings { node_grace: Duration::from_secs(20), ..MasterSettings::default() };
        World {
            now: Instant(0),
            preset,
            settings,
            queues: QueueTree::single(),
            server: None,
            epoch: Epoch(0),
            disk: Vec::new(),
            nodes: Vec::new(),
            mail: VecDeque::new(),
            log: Vec::new(),
            records: Vec::new(),
            answers: Vec::new(),
            next_client: 0,
            orphan_lease: Duration::from_secs(600),
            cache_bytes: 10 << 30,
            file_bytes: FILE_BYTES,
            verbose: false,
            heard_launches: Vec::new(),
            told_waits: Vec::new(),
            hold_launches: false,
            held_launches: Vec::new(),
        }
    }

    pub fn with_nodes(preset: Preset, count: u32, capacity: Resources) -> World {
        let mut world = World::new(preset);
        world.start_server();
        for _ in 0..count {
            world.add_node(capacity, &[]);
        }
        world.settle();
        world
    }

    pub fn say(&mut self, what: impl AsRef<str>) {
        let seconds = self.now.0 as f64 / 1e6;
        self.log.push(format!("{seconds:8.3} {}", what.as_ref()));
    }

    // ---- processes that come and go --------------------------------------------------------------------------------

    pub fn start_server(&mut self) {
        assert!(self.server.is_none(), "the server runs");
        self.epoch.0 += 1;
        let mut master =
            self.preset.master(self.epoch, self.settings.clone(), self.queues.clone(), sealing(self.epoch));
        master.recover(&self.disk);
        let mut jobs = BTreeMap::new();
        for (job, state) in master.jobs_from(JobId(0)) {
            if *state != JobState::Pending {
                let settings = JobManagerSettings::default();
                let mut manager = self.preset.job_manager(Arc::clone(job), self.epoch, settings, sealing(self.epoch));
                let own: Vec<Change> =
                    self.disk.iter().filter(|change| change.job() == Some(job.id)).cloned().collect();
                manager.recover(&own);
                jobs.insert(job.id, manager);
            }
        }
        self.server = Some(Server { master, jobs, unsynced: Vec::new(), gated: Vec::new() });
        self.say(format!("server starts, epoch {}", self.epoch.0));
        let managers: Vec<JobId> = self.server.as_ref().unwrap().jobs.keys().copied().collect();
        for job in managers {
            let incarnation = u64::from(self.epoch.0);
            self.at_manager(job, Event::Connected { peer: Address::Master, incarnation });
        }
        self.at_master(Event::Connected { peer: Address::Master, incarnation: u64::from(self.epoch.0) });
        for node in 0..self.nodes.len() {
            self.link(node);
        }
    }

    /// What is not on disk is gone, with the messages that waited for it.
    pub fn kill_server(&mut self) {
        if self.server.take().is_some() {
            self.say("server killed");
            self.mail.retain(|(from, to, _)| !is_served(from) && !is_served(to));
            for node in 0..self.nodes.len() {
                self.unlink(node);
            }
        }
    }

    pub fn add_node(&mut self, capacity: Resources, attributes: &[(&str, &str)]) {
        let name = format!("host{}", self.nodes.len());
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let executor = PretendedExecutor::default();
        self.nodes.push(NodeHost { name, agent: None, linked: false, executor, capacity, attributes });
        self.start_agent(self.nodes.len() - 1);
    }

    pub fn start_agent(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let settings = NodeSettings {
            name: host.name.clone(),
            capacity: ResourceSpec { basic: host.capacity, custom: Vec::new() },
            attributes: Attributes::new(host.attributes.clone()),
            enforcement: vec!["pretended".to_owned()],
            orphan_lease: self.orphan_lease,
            stop_grace: Duration::from_secs(2),
            cache_bytes: self.cache_bytes,
        };
        let id = NodeId(node as u32);
        host.agent = Some(self.preset.node_agent(id, settings, Mac::MIXING));
        self.say(format!("agent of {id} starts"));
        self.at_node(node, Event::Connected { peer: Address::Executor(id), incarnation: 1 });
        self.link(node);
    }

    pub fn kill_agent(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            self.unlink(node);
            self.nodes[node].agent = None;
            self.say(format!("agent of n{node} killed"));
            let id = NodeId(node as u32);
            self.mail.retain(|(from, to, _)| *to != Address::Node(id) && *from != Address::Node(id));
        }
    }

    /// The executor dies with its tasks; another takes its place.
    pub fn kill_executor(&mut self, node: usize) {
        self.say(format!("executor of n{node} killed"));
        let launched = std::mem::take(&mut self.nodes[node].executor.launched);
        self.nodes[node].executor = PretendedExecutor { launched, ..PretendedExecutor::default() };
        let id = NodeId(node as u32);
        self.mail.retain(|(from, to, _)| *to != Address::Executor(id) && *from != Address::Executor(id));
        self.at_node(node, Event::Disconnected { peer: Address::Executor(id) });
        self.at_node(node, Event::Connected { peer: Address::Executor(id), incarnation: 2 });
    }

    pub fn link(&mut self, node: usize) {
        let id = NodeId(node as u32);
        if self.nodes[node].linked || self.nodes[node].agent.is_none() {
            return;
        }
        let Some(server) = &mut self.server else { return };
        let mut out = Outbox::default();
        let named = server.master.name_node(&self.nodes[node].name, &mut out);
        assert_eq!(named, id, "nodes keep their numbers");
        self.take_effects(Address::Master, out);
        // A node hears its number only when that is durable.
        self.sync();
        self.nodes[node].linked = true;
        self.at_master(Event::Connected { peer: Address::Node(id), incarnation: 0 });
        let managers: Vec<JobId> = self.server.as_ref().unwrap().jobs.keys().copied().collect();
        for job in managers {
            self.at_manager(job, Event::Connected { peer: Address::Node(id), incarnation: 0 });
        }
        let incarnation = u64::from(self.epoch.0);
        self.at_node(node, Event::Connected { peer: Address::Master, incarnation });
    }

    /// The connection breaks: what was on its way is lost.
    pub fn unlink(&mut self, node: usize) {
        if !std::mem::take(&mut self.nodes[node].linked) {
            return;
        }
        let id = NodeId(node as u32);
        let crosses = |from: &Address, to: &Address| {
            (*from == Address::Node(id) && is_served(to)) || (*to == Address::Node(id) && is_served(from))
        };
        self.mail.retain(|(from, to, _)| !crosses(from, to));
        if let Some(server) = &mut self.server {
            server.gated.retain(|(from, to, _)| !crosses(from, to));
            self.at_master(Event::Disconnected { peer: Address::Node(id) });
        }
        self.at_node(node, Event::Disconnected { peer: Address::Master });
    }

    // ---- events and effects ----------------------------------------------------------------------------------------

    fn at_master(&mut self, event: Event<ToMaster>) {
        let Some(server) = &mut self.server else { return };
        let mut out = Outbox::default();
        server.master.handle(self.now, event, &mut out);
        self.take_effects(Address::Master, out);
    }

    fn at_manager(&mut self, job: JobId, event: Event<ToJobManager>) {
        let Some(server) = &mut self.server else { return };
        if let Event::Message { body: ToJobManager::Begin { job: admitted, .. }, .. } = &event {
            let (preset, epoch) = (self.preset, self.epoch);
            let make =
                || preset.job_manager(Arc::clone(admitted), epoch, JobManagerSettings::default(), sealing(epoch));
            server.jobs.entry(job).or_insert_with(make);
        }
        let Some(manager) = server.jobs.get_mut(&job) else { return };
        let mut out = Outbox::default();
        manager.handle(self.now, event, &mut out);
        self.take_effects(Address::JobManager(job), out);
    }

    fn at_node(&mut self, node: usize, event: Event<ToNode>) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let mut out = Outbox::default();
        agent.handle(self.now, event, &mut out);
        self.take_effects(Address::Node(NodeId(node as u32)), out);
    }

    fn take_effects(&mut self, from: Address, out: Outbox) {
        for change in &out.changes {
            if let Some(line) = show_change(change) {
                self.say(format!("  {line}"));
            }
        }
        for record in out.records {
            // It says the same as the start, and is not what transcripts are about.
            if !matches!(record, Record::Foretold { .. }) {
                self.say(format!("  {}", show_record(&record)));
            }
            self.records.push(record);
        }
        if let Some(server) = self.server.as_mut().filter(|_| is_served(&from)) {
            server.unsynced.extend(out.changes);
            for (to, message) in out.sends {
                if is_served(&to) {
                    self.mail.push_back((from, to, message));
                } else {
                    server.gated.push((from, to, message));
                }
            }
        } else {
            self.mail.extend(out.sends.into_iter().map(|(to, message)| (from, to, message)));
        }
    }

    /// Everything the server did so far is durable, and what waited for that leaves.
    pub fn sync(&mut self) {
        if let Some(server) = &mut self.server {
            self.disk.append(&mut server.unsynced);
            self.mail.extend(server.gated.drain(..));
        }
    }

    /// Delivers one message; false if there is none.
    pub fn deliver_one(&mut self) -> bool {
        let Some((from, to, message)) = self.mail.pop_front() else { return false };
        if self.verbose {
            self.say(format!("{} -> {}: {}", show_address(&from), show_address(&to), show_message(&message)));
        }
        self.note_waits(from, to, &message);
        self.deliver(from, to, message);
        true
    }

    fn note_waits(&mut self, from: Address, to: Address, message: &Message) {
        let Address::Node(node) = from else { return };
        let starts = match message {
            Message::ToMaster(ToMaster::Waits(_)) => Vec::new(),
            Message::ToJobManager(ToJobManager::Waits { starts, .. }) => starts.to_vec(),
            _ => return,
        };
        self.told_waits.push(ToldWaits { at: self.now, node, to, starts });
    }

    fn deliver(&mut self, from: Address, to: Address, message: Message) {
        match (to, message) {
            (Address::Master, Message::ToMaster(body)) => self.at_master(Event::Message { from, body }),
            (Address::JobManager(job), Message::ToJobManager(body)) => {
                self.at_manager(job, Event::Message { from, body });
            }
            (Address::Node(node), Message::ToNode(ToNode::Launch(launch))) if self.hold_launches => {
                self.held_launches.push((from, node, launch));
            }
            (Address::Node(node), Message::ToNode(body)) => {
                if let ToNode::Launch(launch) = &body {
                    self.heard_launches.push((node, launch.as_ref().clone()));
                }
                let linked = self.nodes[node.0 as usize].linked || !is_served(&from);
                if linked {
                    self.at_node(node.0 as usize, Event::Message { from, body });
                }
            }
            (Address::Executor(node), Message::ToExecutor(body)) => self.at_executor(node, body),
            (Address::Client(client), Message::ToClient(body)) => self.answers.push((client, body)),
            (to, message) => panic!("{message:?} cannot go to {to:?}"),
        }
    }

    /// A job's manager as the next life of the server makes it from these changes.
    pub fn recovered(&self, id: JobId, log: &[Change]) -> JobManager {
        let (job, epoch) = (Arc::clone(self.server.as_ref().unwrap().jobs[&id].job()), Epoch(9));
        let mut manager = self.preset.job_manager(job, epoch, JobManagerSettings::default(), sealing(epoch));
        let own: Vec<Change> = log.iter().filter(|change| change.job() == Some(id)).cloned().collect();
        manager.recover(&own);
        manager
    }

    pub fn deliver_held_fetches(&mut self, node: usize) {
        let executor = &mut self.nodes[node].executor;
        executor.holds_fetches = false;
        for (file, from) in std::mem::take(&mut executor.held_fetches) {
            let node = NodeId(node as u32);
            self.at_executor(node, ToExecutor::Fetch { node, file, from });
        }
    }

    /// Only the one that is held and goes to that node; the file is returned.
    pub fn deliver_held_fetch(&mut self, node: usize, from: NodeId) -> Digest {
        let held = &mut self.nodes[node].executor.held_fetches;
        let at = held.iter().position(|(_, other)| *other == from).expect("that node was asked");
        let (file, from) = held.remove(at);
        let number = NodeId(node as u32);
        let outcome = self.fetch(number, file, from);
        let end = Box::new((file.digest, from, outcome));
        let body = ToNode::Executor(ExecutorReport::Fetched { node: number, end });
        self.at_node(node, Event::Message { from: Address::Executor(number), body });
        file.digest
    }

    fn fetch(&mut self, node: NodeId, file: StoredFile, from: NodeId) -> Fetched {
        let source = &mut self.nodes[from.0 as usize].executor;
        if source.is_silent {
            return Fetched::Unreachable;
        }
        if !source.files.contains_key(&file.digest) {
            return Fetched::Absent;
        }
        if source.spoils > 0 {
            source.spoils -= 1;
            source.files.remove(&file.digest);
            return Fetched::Spoiled;
        }
        if source.sends_wrong > 0 {
            source.sends_wrong -= 1;
            return Fetched::Wrong;
        }
        self.nodes[node.0 as usize].executor.files.insert(file.digest, file.bytes);
        Fetched::Done
    }

    pub fn deliver_held_launches(&mut self) {
        for (from, node, launch) in std::mem::take(&mut self.held_launches) {
            self.deliver(from, Address::Node(node), Message::ToNode(ToNode::Launch(launch)));
        }
    }

    /// Somebody says something to a node in the name of a job's manager.
    pub fn tell_node(&mut self, node: NodeId, job: JobId, body: ToNode) {
        self.at_node(node.0 as usize, Event::Message { from: Address::JobManager(job), body });
    }

    fn at_executor(&mut self, node: NodeId, body: ToExecutor) {
        let now = self.now;
        let mut reports = Vec::new();
        if let ToExecutor::Fetch { file, from, .. } = body {
            let executor = &mut self.nodes[node.0 as usize].executor;
            if executor.holds_fetches {
                return executor.held_fetches.push((file, from));
            }
            executor.fetched.push((file.digest, from));
            let outcome = self.fetch(node, file, from);
            reports.push(ExecutorReport::Fetched { node, end: Box::new((file.digest, from, outcome)) });
        }
        let executor = &mut self.nodes[node.0 as usize].executor;
        match body {
            ToExecutor::Fetch { .. } => {}
            ToExecutor::Drop { files, .. } => executor.files.retain(|digest, _| !files.contains(digest)),
            ToExecutor::Launch(order) if executor.fault.is_some() => {
                let attempt = order.attempt;
                let ended = Ended::without_run(EndReason::NodeFault(executor.fault.clone().expect("just seen")));
                executor.ends.insert(attempt, ended.clone());
                reports.push(ExecutorReport::Finished { attempt, ended });
            }
            ToExecutor::Launch(order)
                if order.inputs.iter().any(|input| !executor.files.contains_key(&input.digest)) =>
            {
                let attempt = order.attempt;
                let gone = order.inputs.iter().filter(|input| !executor.files.contains_key(&input.digest));
                let missing = gone.map(|input| (input.digest, node)).collect();
                let mut ended = Ended::without_run(EndReason::NoInput("it is gone".to_owned()));
                Arc::make_mut(&mut ended).files = Some(Box::new(EndedFiles { outputs: Vec::new(), missing }));
                executor.ends.insert(attempt, ended.clone());
                reports.push(ExecutorReport::Finished { attempt, ended });
            }
            ToExecutor::Launch(order) => {
                let length = order.item.as_deref().unwrap_or(&order.template.program.command[1]);
                let length = Duration::parse(length).expect("a run time");
                let length = Duration(length.0 * executor.slowness.max(1));
                let attempt = order.attempt;
                executor.launched.push((order.task, attempt));
                executor.running.insert(attempt, (*order, now, now + length));
                reports.push(ExecutorReport::Started { attempt, pid: 1 });
            }
            ToExecutor::Promote { attempt, grant } => {
                if let Some((order, ..)) = executor.running.get_mut(&attempt) {
                    order.promote(grant);
                }
            }
            ToExecutor::Yield { attempt } => {
                if executor.running.contains_key(&attempt) {
                    executor.yielding.entry(attempt).or_insert(now);
                }
            }
            ToExecutor::Resume { attempt } => {
                if let Some(yields_since) = executor.yielding.remove(&attempt) {
                    let length = now.since(yields_since);
                    let (_, since, end) = executor.running.get_mut(&attempt).expect("it runs");
                    *since += length;
                    *end += length;
                    let yielded = executor.yielded.entry(attempt).or_default();
                    *yielded += length;
                }
            }
            ToExecutor::Signal { attempt, reason, .. } => {
                executor.yielding.remove(&attempt);
                if executor.running.remove(&attempt).is_some() {
                    let ended = Ended::without_run(reason);
                    executor.ends.insert(attempt, ended.clone());
                    reports.push(ExecutorReport::Finished { attempt, ended });
                }
            }
            ToExecutor::Acknowledge { attempt } => {
                executor.ends.remove(&attempt);
            }
            ToExecutor::Measure { attempts, .. } => {
                executor.measured += 1;
                let running = attempts.iter().filter_map(|attempt| Some((*attempt, executor.running.get(attempt)?)));
                let slowness = executor.slowness.max(1);
                let samples = running.map(|(attempt, (_, since, end))| {
                    let (running_for, length) = (now.since(*since), end.since(*since));
                    let said = Some((running_for.0 * u64::from(WHOLE) / length.0.max(1)) as u32);
                    (attempt, Sample { running_for, said, cpu: Duration(running_for.0 / slowness), read_bytes: 0 })
                });
                reports.push(ExecutorReport::Measured { node, samples: samples.collect() });
            }
            ToExecutor::List { .. } => {
                let ends = executor.ends.iter();
                reports.extend(ends.map(|(id, end)| ExecutorReport::Finished { attempt: *id, ended: end.clone() }));
                let running = executor.running.values();
                let attempts = running.map(|(order, since, _)| {
                    let yields_since = executor.yielding.get(&order.attempt);
                    Executing {
                        order: order.clone(),
                        running_for: yields_since.unwrap_or(&now).since(*since),
                        yields_for: yields_since.map(|since| now.since(*since)),
                        pid: 1,
                        asked_to_end: None,
                    }
                });
                let attempts = attempts.collect();
                if !executor.files.is_empty() {
                    let stored = |(&digest, &bytes): (&Digest, &u64)| StoredFile { digest, bytes };
                    let files = executor.files.iter().map(stored).collect();
                    reports.push(ExecutorReport::Stored { node, files });
                }
                reports.push(ExecutorReport::Executing { attempts });
            }
        }
        for report in reports {
            self.mail.push_back((
                Address::Executor(node),
                Address::Node(node),
                Message::ToNode(ToNode::Executor(report)),
            ));
        }
    }

    /// Delivers and syncs until nothing is on its way.
    pub fn settle(&mut self) {
        let before = self.log.len();
        let mut delivered = 0;
        loop {
            while self.deliver_one() {
                delivered += 1;
                self.verbose |= delivered > 20_000;
                assert!(delivered < 20_040, "it never settles:\n{}", self.log[self.log.len() - 40..].join("\n"));
            }
            self.sync();
            if self.log.len() > before + 20_000 {
                panic!("it never settles:\n{}", self.log[self.log.len() - 40..].join("\n"));
            }
            if self.mail.is_empty() {
                return;
            }
        }
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    /// Lets time pass, event by event.
    pub fn run_for(&mut self, length: Duration) {
        let end = self.now + length;
        let (mut idle, mut last) = (0, self.now);
        while let Some(at) = self.next_event().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            idle = if self.now == last { idle + 1 } else { 0 };
            last = self.now;
            assert!(idle < 1_000, "time stands still:\n{}", self.log[self.log.len().saturating_sub(40)..].join("\n"));
            self.happen();
            self.settle();
        }
        self.now = end;
    }

    pub fn next_event(&self) -> Option<Instant> {
        let server = self.server.iter().flat_map(|server| {
            let managers = server.jobs.values().filter_map(JobManager::next_wakeup);
            managers.chain(server.master.next_wakeup())
        });
        let agents = self.nodes.iter().filter_map(|host| host.agent.as_ref()?.next_wakeup());
        let ends = self.nodes.iter().flat_map(|host| host.executor.next_ends().map(|(_, end)| end));
        server.chain(agents).chain(ends).min()
    }

    /// What is due now happens.
    pub fn happen(&mut self) {
        let now = self.now;
        for node in 0..self.nodes.len() {
            let executor = &mut self.nodes[node].executor;
            let due: Vec<AttemptId> = executor.next_ends().filter(|(_, end)| *end <= now).map(|(id, _)| id).collect();
            for attempt in due {
                let (order, since, _) = executor.running.remove(&attempt).expect("just found");
                let code = order.template.program.command.get(2).map_or(0, |code| code.parse().expect("an exit code"));
                let (run_time, yielded) = (now.since(since), executor.yielded.remove(&attempt).unwrap_or_default());
                let cpu = Duration(run_time.0 / executor.slowness.max(1));
                let usage = Usage { wall: run_time + yielded, yielded, cpu, ..Usage::default() };
                let outputs = outputs(&order, self.file_bytes);
                executor.files.extend(outputs.iter().filter(|_| code == 0).map(|file| (file.digest, file.bytes)));
                let files = EndedFiles { outputs, missing: Vec::new() };
                let files = (code == 0 && !files.outputs.is_empty()).then(|| Box::new(files));
                let ended = Arc::new(Ended { reason: EndReason::Exit(code), usage, message: None, files });
                executor.ends.insert(attempt, ended.clone());
                let id = NodeId(node as u32);
                let report = ExecutorReport::Finished { attempt, ended };
                self.mail.push_back((
                    Address::Executor(id),
                    Address::Node(id),
                    Message::ToNode(ToNode::Executor(report)),
                ));
            }
            if self.nodes[node].agent.as_ref().and_then(NodeAgent::next_wakeup).is_some_and(|at| at <= now) {
                self.at_node(node, Event::Wakeup);
            }
        }
        let Some(server) = &self.server else { return };
        let master_due = server.master.next_wakeup().is_some_and(|at| at <= now);
        let due = |(id, manager): (&JobId, &JobManager)| manager.next_wakeup().filter(|at| *at <= now).map(|_| *id);
        let managers: Vec<JobId> = server.jobs.iter().filter_map(due).collect();
        if master_due {
            self.at_master(Event::Wakeup);
        }
        for job in managers {
            self.at_manager(job, Event::Wakeup);
        }
    }

    // ---- a client --------------------------------------------------------------------------------------------------

    pub fn ask_master(&mut self, body: ToMaster) -> ToClient {
        let client = ClientId(self.next_client);
        self.next_client += 1;
        self.at_master(Event::Message { from: Address::Client(client), body });
        self.settle();
        let answer = self.answers.iter().find(|(to, _)| *to == client);
        answer.map(|(_, answer)| answer.clone()).expect("every request is answered")
    }

    pub fn submit(&mut self, spec: JobSpec) -> JobId {
        match self.ask_master(ToMaster::Submit { spec: Arc::new(spec), key: None }) {
            ToClient::Submitted { job } => job,
            other => panic!("not submitted: {other:?}"),
        }
    }

    /// Submits, and lets the server finish with it, but delivers nothing to the nodes.
    pub fn submit_without_delivery(&mut self, spec: JobSpec) -> JobId {
        let before = self.server.as_ref().map_or(0, |server| server.master.jobs_from(JobId(0)).count());
        let client = Address::Client(ClientId(u64::MAX));
        self.at_master(Event::Message { from: client, body: ToMaster::Submit { spec: Arc::new(spec), key: None } });
        while self.deliver_one() {}
        JobId(before as u64 + 1)
    }

    pub fn refusal(&mut self, spec: JobSpec) -> Refusal {
        match self.ask_master(ToMaster::Submit { spec: Arc::new(spec), key: None }) {
            ToClient::Refused(refusal) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub fn control(&mut self, job: JobId, action: JobAction) -> ToClient {
        self.ask_master(ToMaster::Control { job, action })
    }

    // ---- what came of it -------------------------------------------------------------------------------------------

    pub fn outcome(&self, job: JobId) -> Option<JobOutcome> {
        match self.server.as_ref()?.master.job(job)?.1 {
            JobState::Ended(end) => Some(end.outcome),
            _ => None,
        }
    }

    /// When the job succeeded last.
    pub fn end_of(&self, id: JobId) -> Instant {
        let mut ends = self.disk.iter().filter_map(|change| match change {
            Change::JobEnded { job, at, outcome: JobOutcome::Succeeded } if *job == id => Some(*at),
            _ => None,
        });
        ends.next_back().expect("the job has ended")
    }

    pub fn why(&self, job: JobId) -> Vec<String> {
        let master = &self.server.as_ref().expect("the server runs").master;
        master.explain(job).iter().map(|why| master.describe_why(why)).collect()
    }

    /// Attempts of each task that became a process, on any node.
    pub fn launches(&self) -> BTreeMap<TaskId, BTreeSet<AttemptId>> {
        let mut launches: BTreeMap<TaskId, BTreeSet<AttemptId>> = BTreeMap::new();
        for (task, attempt) in self.nodes.iter().flat_map(|host| &host.executor.launched) {
            assert!(launches.entry(*task).or_default().insert(*attempt), "{attempt} was launched twice");
        }
        launches
    }

    /// Attempts that were written off, with the cause.
    pub fn losses(&self) -> BTreeMap<AttemptId, LostCause> {
        let lost = self.disk.iter().filter_map(|change| match change {
            Change::Lost { attempt, cause, .. } => Some((*attempt, *cause)),
            _ => None,
        });
        lost.collect()
    }

    pub fn running_tasks(&self) -> Vec<TaskId> {
        self.nodes.iter().flat_map(|host| host.executor.running.values().map(|(order, ..)| order.task)).collect()
    }
}

/// What an attempt leaves: of the stage's name and the index, whichever attempt it is.
fn outputs(order: &LaunchOrder, bytes: u64) -> Vec<OutputFile> {
    let index = order.index;
    let named = |name: &String| {
        let name = files::name_for(name, index);
        let text = format!("{}/{index}/{name}", order.template.stage_name);
        OutputFile { name, digest: digest_of(&text), bytes }
    };
    order.template.outputs.iter().map(named).collect()
}

/// Of each pretended file.
pub const FILE_BYTES: u64 = 1_000;

pub fn digest_of(text: &str) -> Digest {
    let mut chance = Chance::new(1, text);
    Digest(std::array::from_fn(|_| chance.below(256_u64) as u8))
}

/// Of the life of the server in this epoch.
pub fn sealing(epoch: Epoch) -> Sealing {
    Sealing { root: Key([epoch.0 as u8; 32]), mac: Mac::MIXING }
}

fn is_served(address: &Address) -> bool {
    matches!(address, Address::Master | Address::JobManager(_))
}

fn show_address(address: &Address) -> String {
    match address {
        Address::Master => "master".to_owned(),
        Address::GlobalMaster(number) => format!("global-{number}"),
        Address::JobManager(job) => format!("job-{job}"),
        Address::Node(node) => node.to_string(),
        Address::Executor(node) => format!("executor-{node}"),
        Address::Client(_) => "client".to_owned(),
    }
}

fn show_message(message: &Message) -> String {
    match message {
        Message::ToMaster(ToMaster::Submit { spec, .. }) => format!("submit {}", spec.name),
        Message::ToMaster(ToMaster::Register(registration)) => {
            format!("register with {} live", registration.live.len())
        }
        Message::ToMaster(ToMaster::Report(report)) => format!("report {} running", report.running),
        Message::ToMaster(ToMaster::NodeFailed { node, suspects: 1 }) => format!("{node} failed an attempt"),
        Message::ToMaster(ToMaster::NodeFailed { node, suspects }) => format!("one of {suspects} failed: {node}"),
        Message::ToMaster(ToMaster::Freed { grants }) => format!("freed {}", list(grants)),
        Message::ToMaster(ToMaster::Return { grants }) => format!("return {}", list(grants)),
        Message::ToMaster(ToMaster::Demand { asks, .. }) => {
            let asks: Vec<String> = asks.iter().map(|ask| format!("{} x{}", ask.id, ask.wanted)).collect();
            format!(
                "demand {}",
                if asks.is_empty() { "as before, work as it is now".to_owned() } else { asks.join(" ") }
            )
        }
        Message::ToMaster(ToMaster::JobEnded { outcome, .. }) => format!("job ended: {outcome:?}"),
        Message::ToJobManager(ToJobManager::Nodes { list, .. }) => {
            let nodes = &list.nodes;
            let open = nodes.iter().filter(|node| node.open).count();
            format!("nodes: {open} of {} open", nodes.len())
        }
        Message::ToJobManager(ToJobManager::Begin { .. }) => "begin".to_owned(),
        Message::ToJobManager(ToJobManager::Granted { grants }) => {
            let grants: Vec<String> = grants.iter().map(|grant| format!("{} on {}", grant.id, grant.node)).collect();
            format!("granted {}", grants.join(" "))
        }
        Message::ToJobManager(ToJobManager::Started { attempt, .. }) => format!("started {attempt}"),
        Message::ToJobManager(ToJobManager::Finished { attempt, ended, .. }) => {
            format!("finished {attempt}: {}", ended.reason)
        }
        Message::ToJobManager(ToJobManager::NotTaken { attempt }) => format!("not taken {attempt}"),
        Message::ToJobManager(ToJobManager::Live { attempts, .. }) => format!("live: [{}]", list(attempts)),
        Message::ToNode(ToNode::Welcome(welcome)) => {
            format!("welcome in epoch {}, grants from {}", welcome.epoch.0, welcome.first_grant)
        }
        Message::ToNode(ToNode::Expire { before }) => format!("tokens before generation {} are void", before.0),
        Message::ToNode(ToNode::Launch(launch)) => format!("launch {} of task {}", launch.attempt, launch.task),
        Message::ToNode(ToNode::Probe(probe)) => format!("probe {}", probe.id),
        Message::ToNode(ToNode::Cancel { probes }) => format!("cancel {}", list(probes)),
        Message::ToJobManager(ToJobManager::Ready { probe }) => format!("ready for {probe}"),
        Message::ToNode(ToNode::Claim(claim)) => format!("claim [{}]", list(&claim.attempts)),
        Message::ToNode(ToNode::Stop { attempt, reason, .. }) => format!("stop {attempt}: {reason}"),
        Message::ToNode(ToNode::Acknowledge { attempt }) => format!("acknowledge {attempt}"),
        Message::ToNode(ToNode::Executor(ExecutorReport::Started { attempt, .. })) => format!("started {attempt}"),
        Message::ToNode(ToNode::Executor(ExecutorReport::Finished { attempt, ended })) => {
            format!("finished {attempt}: {}", ended.reason)
        }
        Message::ToNode(ToNode::Executor(ExecutorReport::Executing { attempts })) => {
            format!("executing {}", attempts.len())
        }
        Message::ToMaster(ToMaster::Room { spare }) => format!("room: {} CPU millis to spare", spare.cpu_millis()),
        Message::ToMaster(ToMaster::Moved { to, left, queued, .. }) => {
            format!("moved to {to}: {} CPU millis left there, {queued} wait here", left.cpu_millis())
        }
        Message::ToNode(ToNode::Steer(steer)) => format!("steer: queues up to {:?}", steer.longest_wait),
        Message::ToNode(ToNode::Move { to, room }) => {
            format!("move to {to} what fits {} CPU millis", room.cpu_millis())
        }
        Message::ToExecutor(ToExecutor::Launch(order)) => format!("launch {}", order.attempt),
        Message::ToExecutor(ToExecutor::Promote { attempt, .. }) => format!("promote {attempt}"),
        Message::ToExecutor(ToExecutor::Yield { attempt }) => format!("yield {attempt}"),
        Message::ToExecutor(ToExecutor::Resume { attempt }) => format!("resume {attempt}"),
        Message::ToExecutor(ToExecutor::Signal { attempt, signal, .. }) => format!("{signal:?} {attempt}"),
        Message::ToExecutor(ToExecutor::Acknowledge { attempt }) => format!("acknowledge {attempt}"),
        Message::ToExecutor(ToExecutor::List { .. }) => "list".to_owned(),
        other => format!("{other:?}"),
    }
}

fn list<T: ToString>(of: &[T]) -> String {
    of.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

fn show_record(record: &Record) -> String {
    match record {
        Record::Blocked { job, why } => {
            format!("job {job} blocked: {}", why.describe(&Kinds::new(), |node| node.to_string()))
        }
        Record::Deferred { job, stage, tasks, left } => {
            format!("{tasks} tasks of stage {stage} of job {job} could wait {left}")
        }
        Record::Started { task, attempt, node, .. } => format!("task {task} started on {node} as {attempt}"),
        Record::Preempting { task, attempt, node, by } => {
            format!("task {task} as {attempt} makes room on {node} for {by}")
        }
        Record::Yielding { task, attempt, node, by } => {
            format!("task {task} as {attempt} leaves its CPU on {node} to {by}")
        }
        Record::Resumed { task, attempt, node, after } => {
            format!("task {task} as {attempt} has its CPU on {node} again, after {after}")
        }
        Record::TokenRefused { task, attempt, node, why } => {
            format!("task {task} as {attempt}: {node} refuses the launch: {why}")
        }
        other => format!("{other:?}"),
    }
}

fn show_change(change: &Change) -> Option<String> {
    match change {
        Change::Launched { task, attempt, node, rule, .. } => {
            Some(format!("task {task} launched on {node} as {attempt}, by {rule}"))
        }
        Change::Finished { task, attempt, ended, last, .. } => {
            let more = if *last { "" } else { ", to be tried again" };
            Some(format!("task {task} ended as {attempt}: {}{more}", ended.reason))
        }
        Change::Promoted { task, attempt, node, .. } => Some(format!("task {task} guaranteed on {node} as {attempt}")),
        Change::Lost { task, attempt, cause, .. } => Some(format!("task {task} lost as {attempt}: {cause:?}")),
        Change::JobEnded { job, outcome, .. } => Some(format!("job {job} ended: {outcome:?}")),
        _ => None,
    }
}

// ---- jobs ----------------------------------------------------------------------------------------------------------

pub fn job(stages: Vec<StageSpec>) -> JobSpec {
    JobSpec {
        name: "test".to_owned(),
        user: "ada".to_owned(),
        submit_dir: "/".to_owned(),
        stages,
        ..JobSpec::default()
    }
}

pub fn stage(name: &str, tasks: u32, run: &str, cpu_millis: u32) -> StageSpec {
    StageSpec {
        name: name.to_owned(),
        after: Vec::new(),
        tasks: TaskSet::Count(tasks),
        program: Arc::new(Program {
            command: std::iter::once("run").chain(run.split(' ')).map(str::to_owned).collect(),
            ..Program::default()
        }),
        resources: ResourceSpec { basic: Resources::new(cpu_millis, 0), custom: Vec::new() },
        expected: None,
        execution: ExecutionType::Guaranteed,
        constraints: Vec::new(),
        near: Vec::new(),
        retries: 0,
        timeout: None,
        outputs: Vec::new(),
        inputs: Vec::new(),
        input_kib: Vec::new(),
    }
}
