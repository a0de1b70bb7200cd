//! A test cluster around the roles: a server (master and job managers over one log), nodes, and simulated executors.
//! Everything runs in one thread and in a fixed order. Connections break and processes die when a test requests it.

pub mod baselines;
mod executor;
mod show;

use executor::{PretendedExecutor, outputs};

use amalgam_core::dispatch::JobState;
use amalgam_core::job_manager::{JobManager, JobManagerSettings};
use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::node::{NodeAgent, NodeSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::*;
use amalgam_core::role::{Change, Event, LostCause, Outbox, Record, Role};
use amalgam_core::story::{change_by_ids, record_by_ids};
use amalgam_core::vocabulary::*;
use show::{show_address, show_message};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub struct World {
    pub now: Instant,
    pub preset: Preset,
    pub settings: MasterSettings,
    pub queues: QueueTree,
    pub server: Option<Server>,
    epoch: Epoch,
    pub disk: Vec<Change>,
    pub nodes: Vec<NodeHost>,
    mail: VecDeque<(Address, Address, Message)>,
    pub log: Vec<String>,
    pub records: Vec<Record>,
    pub answers: Vec<(ClientId, ToClient)>,
    next_client: u64,
    pub orphan_lease: Duration,
    pub cache_bytes: u64,
    /// Size of each file that a task stores.
    pub file_bytes: u64,
    /// Whether the log also shows messages.
    pub verbose: bool,
    /// Every launch that a node has received.
    pub intercepted_launches: Vec<(NodeId, Launch)>,
    /// The waits that nodes reported.
    pub reported_waits: Vec<ReportedWaits>,
    /// Launches are not delivered.
    pub hold_launches: bool,
    held_launches: Vec<(Address, NodeId, Box<Launch>)>,
}

/// A report of how long tasks would wait at a node.
pub struct ReportedWaits {
    pub at: Instant,
    pub node: NodeId,
    pub to: Address,
    /// The room for opportunistic work.
    pub room: Resources,
    /// When the job's attempts that wait there would start.
    pub starts: Vec<(AttemptId, Duration)>,
}

pub struct Server {
    pub master: Master,
    pub jobs: BTreeMap<JobId, JobManager>,
    /// Changes that are not on disk yet, and the messages that wait for them.
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
    /// The version of its agent's program, from the agent's next start.
    pub program: Option<String>,
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
            intercepted_launches: Vec::new(),
            reported_waits: Vec::new(),
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

    // ---- processes that start and die ------------------------------------------------------------------------------

    pub fn start_server(&mut self) {
        assert!(self.server.is_none(), "the server runs");
        self.epoch.0 += 1;
        let mut master =
            self.preset.master(self.epoch, self.settings.clone(), self.queues.clone(), sealing(self.epoch));
        master.recover(&self.disk);
        let mut jobs = BTreeMap::new();
        for (job, state) in master.dispatch().jobs_from(JobId(0)) {
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

    /// Changes that are not on disk are lost, with the messages that waited for them.
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
        self.nodes.push(NodeHost { name, agent: None, linked: false, executor, capacity, attributes, program: None });
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
            program: host.program.clone(),
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
        let named =
            server.master.name_node(&self.nodes[node].name, &mut out).expect("the number of nodes is not limited");
        assert_eq!(named, id, "nodes keep their numbers");
        self.take_effects(Address::Master, out);
        // A node gets its number only once that is durable.
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

    /// The connection breaks: messages on their way are lost.
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
        if let Event::Message { body: ToJobManager::Start { job: admitted, .. }, .. } = &event {
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
            if let Some(line) = change_by_ids(change) {
                self.say(format!("  {line}"));
            }
        }
        for record in out.records {
            // It repeats the start, and transcripts are not about predictions.
            if !matches!(record, Record::Prediction { .. }) {
                self.say(format!("  {}", record_by_ids(&record)));
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

    /// Makes all changes of the server durable, and sends the messages that waited for that.
    pub fn sync(&mut self) {
        if let Some(server) = &mut self.server {
            self.disk.append(&mut server.unsynced);
            self.mail.extend(server.gated.drain(..));
        }
    }

    /// Delivers one message. Returns false if there is none.
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
        let (waits, starts) = match message {
            Message::ToMaster(ToMaster::Waits(waits)) => (waits, Vec::new()),
            Message::ToJobManager(ToJobManager::Waits { waits, starts }) => (waits, starts.to_vec()),
            _ => return,
        };
        self.reported_waits.push(ReportedWaits { at: self.now, node, to, room: waits.room, starts });
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
                    self.intercepted_launches.push((node, launch.as_ref().clone()));
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

    /// A job's manager as the next run of the server would recover it from these changes.
    pub fn recovered(&self, id: JobId, log: &[Change]) -> JobManager {
        let (job, epoch) = (Arc::clone(self.server.as_ref().unwrap().jobs[&id].job()), Epoch(9));
        let mut manager = self.preset.job_manager(job, epoch, JobManagerSettings::default(), sealing(epoch));
        let own: Vec<Change> = log.iter().filter(|change| change.job() == Some(id)).cloned().collect();
        manager.recover(&own);
        manager
    }

    pub fn deliver_held_launches(&mut self) {
        for (from, node, launch) in std::mem::take(&mut self.held_launches) {
            self.deliver(from, Address::Node(node), Message::ToNode(ToNode::Launch(launch)));
        }
    }

    /// Sends a message to a node as a job's manager.
    pub fn report_node(&mut self, node: NodeId, job: JobId, body: ToNode) {
        self.at_node(node.0 as usize, Event::Message { from: Address::JobManager(job), body });
    }

    /// Requests tasks of a job's first ask, some of which are duplicates, as its manager.
    pub fn request(&mut self, job: JobId, wanted: u64, duplicates: u64) {
        let ask = Ask {
            id: AskId { job, number: 0 },
            resources: Resources::default(),
            constraints: Arc::default(),
            execution: ExecutionType::Guaranteed,
            wanted,
            needed: wanted,
            rank: 1,
            priority: 0,
            is_gang: false,
            locality: Arc::default(),
            expected: Some(Duration::from_secs(60)),
            limit: None,
            duplicates,
        };
        let body = ToMaster::Demand { job, asks: vec![ask], work: Box::default() };
        self.at_master(Event::Message { from: Address::JobManager(job), body });
        self.settle();
    }

    /// Delivers and syncs until no message is left.
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

    /// Handles everything that happens at the present time.
    pub fn happen(&mut self) {
        let now = self.now;
        for node in 0..self.nodes.len() {
            let executor = &mut self.nodes[node].executor;
            let due: Vec<AttemptId> = executor.next_ends().filter(|(_, end)| *end <= now).map(|(id, _)| id).collect();
            for attempt in due {
                let (order, since, _) = executor.running.remove(&attempt).expect("the attempt was just found");
                let code = order.template.program.command.get(2).and_then(ByteString::to_str);
                let code = code.map_or(0, |code| code.parse().expect("an exit code"));
                let (run_time, yielded) = (now.since(since), executor.yielded.remove(&attempt).unwrap_or_default());
                let cpu = if executor.hides_cpu { 0 } else { run_time.0 / executor.slowness.max(1) };
                let usage = Usage { wall: run_time + yielded, yielded, cpu: Duration(cpu), ..Usage::default() };
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

    /// Submits a job, and handles all messages at the server, but delivers nothing to the nodes.
    pub fn submit_without_delivery(&mut self, spec: JobSpec) -> JobId {
        let before = self.server.as_ref().map_or(0, |server| server.master.dispatch().jobs_from(JobId(0)).count());
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
        self.ask_master(ToMaster::Control { job, action, by: "ada".to_owned() })
    }

    // ---- outcomes --------------------------------------------------------------------------------------------------

    pub fn outcome(&self, job: JobId) -> Option<JobOutcome> {
        match self.server.as_ref()?.master.dispatch().job(job)?.1 {
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
        master.dispatch().explain(job).iter().map(|why| master.dispatch().describe_why(why)).collect()
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

/// Size of each simulated file.
pub const FILE_BYTES: u64 = 1_000;

/// The digest of a file with this text.
pub fn digest_of(text: &str) -> Digest {
    let mut chance = Chance::new(1, text);
    Digest(std::array::from_fn(|_| chance.below(256_u64) as u8))
}

/// Seals tokens for the run of the server in this epoch.
pub fn sealing(epoch: Epoch) -> Sealing {
    Sealing { root: Key([epoch.0 as u8; 32]), mac: Mac::MIXING }
}

fn is_served(address: &Address) -> bool {
    matches!(address, Address::Master | Address::JobManager(_))
}

// ---- jobs ----------------------------------------------------------------------------------------------------------

pub fn job(stages: Vec<StageSpec>) -> JobSpec {
    JobSpec { name: "test".to_owned(), user: "ada".to_owned(), submit_dir: "/".into(), stages, ..JobSpec::default() }
}

pub fn stage(name: &str, tasks: u32, run: &str, cpu_millis: u32) -> StageSpec {
    StageSpec {
        name: name.to_owned(),
        after: Vec::new(),
        tasks: TaskSet::Count(tasks),
        program: Arc::new(Program {
            command: std::iter::once("run").chain(run.split(' ')).map(ByteString::from).collect(),
            ..Program::default()
        }),
        resources: ResourceSpec { basic: Resources::new(cpu_millis, 0), custom: Vec::new() },
        expected: None,
        execution: ExecutionType::Guaranteed,
        constraints: Vec::new(),
        near: Vec::new(),
        retries: 0,
        retry_delay: Some(Duration::ZERO),
        timeout: None,
        priority: None,
        gang: false,
        at_once: None,
        outputs: Vec::new(),
        inputs: Vec::new(),
        input_kib: Vec::new(),
        reads: Reads::default(),
    }
}
