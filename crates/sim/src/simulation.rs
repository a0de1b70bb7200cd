//! The driver: it takes the next thing from the agenda, gives it to the process that it is for, and notes what follows.
//!
//! One process is the server, with the master and the job managers; every node is a process of its own, with an executor
//! beside it. They are connected by [`Network`]. Everything that happens is a function of the settings and the workload.

use crate::agenda::Agenda;
use crate::executor::{Executor, Reaction};
use crate::metrics::{Metrics, Outcome, Results, WINDOW};
use crate::network::{Direction, Network};
use crate::process::Process;
use crate::settings::{Costs, NetworkSettings, Settings};
use amalgam_core::hosting::{Effects, Letter, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::node::NodeSettings;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToClient, ToExecutor, ToMaster, ToNode};
use amalgam_core::vocabulary::{
    AttemptId, ClientId, Duration, EndReason, Epoch, Instant, LaunchOrder, NodeId, Resources, TaskId, Totals,
};
use amalgam_workload::trace::{Node, TraceJob, Workload};
use std::collections::VecDeque;
use std::sync::Arc;

/// How long an agent waits for its master before it ends what runs: as long as the daemons do.
const ORPHAN_LEASE: Duration = Duration::from_secs(600);
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long a cluster without a running task is watched for something to begin.
const PATIENCE: Duration = Duration::from_secs(24 * 3_600);

pub struct Simulation {
    now: Instant,
    agenda: Agenda<Occurrence>,
    settings: Settings,
    server: Process,
    nodes: Vec<SimulatedNode>,
    network: Network,
    jobs: Vec<TraceJob>,
    metrics: Metrics,
    /// Jobs that have not arrived.
    to_arrive: usize,
    /// When a job last arrived, or a task last began or ended.
    last_progress: Instant,
    events: u64,
    /// Reports of executors that reach their agents at once.
    at_once: VecDeque<(usize, ExecutorReport)>,
    /// Empty between two turns; kept for its room.
    effects: Effects,
}

struct SimulatedNode {
    agent: Process,
    executor: Executor,
}

/// Something on the agenda, whose places are used again: a message needs no allocation of its own.
#[allow(clippy::large_enum_variant)]
enum Occurrence {
    Arrives {
        job: u32,
    },
    Delivered {
        place: Place,
        life: u32,
        sent: Instant,
        letter: Letter,
    },
    /// An executor carries out an order, or its report reaches the agent.
    Ordered {
        node: usize,
        order: Box<ToExecutor>,
    },
    Reported {
        node: usize,
        report: Box<ExecutorReport>,
    },
    TaskEnds {
        node: usize,
        attempt: AttemptId,
    },
    Turn {
        place: Place,
    },
    Wakeup {
        place: Place,
    },
    WindowEnds,
}

/// Which process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Server,
    Node(usize),
}

impl Simulation {
    pub fn new(settings: Settings, nodes: &[Node], workload: &Workload) -> Simulation {
        let capacities: Vec<Resources> = nodes.iter().map(|node| node.resources.basic).collect();
        let network = Network::new(nodes.len(), settings.network, settings.seed);
        let mut simulation = Simulation {
            now: Instant::ZERO,
            agenda: Agenda::default(),
            server: server(&settings),
            nodes: nodes.iter().enumerate().map(|(number, node)| simulated_node(&settings, number, node)).collect(),
            network,
            jobs: workload.jobs.clone(),
            metrics: Metrics::new(&workload.jobs, &capacities),
            to_arrive: workload.jobs.len(),
            last_progress: Instant::ZERO,
            events: 0,
            at_once: VecDeque::new(),
            effects: Effects::default(),
            settings,
        };
        simulation.assemble();
        for (number, job) in workload.jobs.iter().enumerate() {
            simulation.agenda.note(Instant::ZERO + job.arrival, Occurrence::Arrives { job: number as u32 });
        }
        simulation.agenda.note(Instant::ZERO + WINDOW, Occurrence::WindowEnds);
        simulation
    }

    /// The cluster stands before the first job arrives: nodes join in no time.
    fn assemble(&mut self) {
        let costs = std::mem::replace(&mut self.settings.costs, Costs::NONE);
        self.network.set_delays(NetworkSettings { delay: Duration::ZERO, jitter: Duration::ZERO });
        for node in 0..self.nodes.len() {
            self.connect(node);
        }
        while self.agenda.next_at() == Some(Instant::ZERO) {
            self.step();
        }
        self.settings.costs = costs;
        self.network.set_delays(self.settings.network);
    }

    /// Runs until every job has ended, the time is over, or nothing has begun or ended for [`PATIENCE`] although nothing
    /// runs: what is left then waits for ever.
    pub fn run(mut self) -> Outcome {
        let until = self.settings.until.map(|length| Instant::ZERO + length);
        while self.is_anything_left() {
            let Some(at) = self.agenda.next_at() else { break };
            let is_stuck = self.to_arrive == 0 && !self.metrics.is_any_task_running();
            if is_stuck && at.since(self.last_progress) > PATIENCE {
                break;
            }
            if let Some(until) = until.filter(|until| at > *until) {
                self.now = until;
                break;
            }
            self.step();
        }
        self.finish()
    }

    fn is_anything_left(&self) -> bool {
        self.to_arrive > 0 || self.metrics.is_running()
    }

    /// Lets the next thing happen; false when nothing is left.
    pub fn step(&mut self) -> bool {
        let Some((at, occurrence)) = self.agenda.pop() else { return false };
        self.now = at;
        self.happen(occurrence);
        while let Some((node, report)) = self.at_once.pop_front() {
            self.report(node, report);
        }
        true
    }

    fn happen(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Arrives { job } => self.arrive(job),
            Occurrence::Delivered { place, life, sent, letter } => self.deliver(place, life, sent, letter),
            Occurrence::Ordered { node, order } => self.order(node, *order),
            Occurrence::Reported { node, report } => self.report(node, *report),
            Occurrence::TaskEnds { node, attempt } => self.end_task(node, attempt),
            Occurrence::Turn { place } => {
                self.process(place).turn_noted = false;
                self.turn(place);
            }
            Occurrence::Wakeup { place } => self.wake_up(place),
            Occurrence::WindowEnds => {
                self.metrics.on_window(self.now);
                self.agenda.note(self.now + WINDOW, Occurrence::WindowEnds);
            }
        }
    }

    // ---- jobs and connections --------------------------------------------------------------------------------------

    fn arrive(&mut self, job: u32) {
        self.to_arrive -= 1;
        self.last_progress = self.now;
        self.metrics.on_arrival(job);
        let spec = Arc::clone(&self.jobs[job as usize].spec);
        let from = Address::Client(ClientId(u64::from(job)));
        let message = Message::ToMaster(ToMaster::Submit { spec, key: None });
        self.put(Place::Server, Letter { from, to: Address::Master, message });
    }

    fn connect(&mut self, node: usize) {
        let mut effects = Effects::default();
        let name = self.nodes[node].agent.roles.nodes.values().next().map(|agent| agent.name().to_owned());
        let Some(name) = name else { return };
        let id = self.server.roles.name_node(&name, &mut effects);
        debug_assert_eq!(id, Some(NodeId(node as u32)), "nodes are numbered in the order of their first connections");
        self.network.connect(node);
        let incarnation = u64::from(self.network.link(node).life);
        self.server.roles.node_connected(self.now, NodeId(node as u32), incarnation, &mut effects);
        self.after_turn(Place::Server, effects);
        let mut effects = Effects::default();
        let roles = &mut self.nodes[node].agent.roles;
        roles.executor_connected(self.now, 1, &mut effects);
        roles.master_connected(self.now, incarnation, &mut effects);
        self.after_turn(Place::Node(node), effects);
    }

    // ---- processes -------------------------------------------------------------------------------------------------

    fn process(&mut self, place: Place) -> &mut Process {
        match place {
            Place::Server => &mut self.server,
            Place::Node(node) => &mut self.nodes[node].agent,
        }
    }

    /// A letter is there; it is taken at once or when the process is free.
    fn put(&mut self, place: Place, letter: Letter) {
        let now = self.now;
        let process = self.process(place);
        process.put(letter);
        if process.busy_until <= now && !process.turn_noted {
            self.turn(place);
        } else {
            self.note_turn(place);
        }
    }

    fn note_turn(&mut self, place: Place) {
        let process = self.process(place);
        if !std::mem::replace(&mut process.turn_noted, true) {
            let at = process.busy_until;
            self.agenda.note(at, Occurrence::Turn { place });
        }
    }

    fn wake_up(&mut self, place: Place) {
        let now = self.now;
        let process = self.process(place);
        process.wakeup_noted = None;
        if process.roles.next_wakeup().is_none_or(|at| at > now) {
            // It was put off since.
            self.note_wakeup(place);
        } else if process.busy_until <= now {
            self.turn(place);
        } else {
            self.note_turn(place);
        }
    }

    fn turn(&mut self, place: Place) {
        let (now, costs) = (self.now, self.settings.costs);
        let mut effects = std::mem::take(&mut self.effects);
        self.process(place).take_turn(now, &costs, &mut effects);
        self.let_out(place, &mut effects);
        self.effects = effects;
    }

    /// After events that came past the inbox.
    fn after_turn(&mut self, place: Place, mut effects: Effects) {
        let (now, costs) = (self.now, self.settings.costs);
        self.process(place).charge(now, 0, &costs, &effects);
        self.let_out(place, &mut effects);
    }

    /// What a turn led to is told, and leaves when the turn is over.
    fn let_out(&mut self, place: Place, effects: &mut Effects) {
        let handled = std::mem::take(&mut effects.handled);
        self.events += u64::from(handled.master) + u64::from(handled.job_managers) + u64::from(handled.nodes);
        let over = self.process(place).busy_until;
        // A job's number is known before the first fact about it is told.
        for letter in effects.letters.iter().filter(|letter| matches!(letter.to, Address::Client(_))) {
            self.answer(letter);
        }
        for fact in effects.facts.drain(..) {
            self.metrics.on_fact(self.now, &fact);
        }
        for letter in effects.letters.drain(..) {
            self.leave(place, over, letter);
        }
        effects.forgotten.clear();
        effects.durable = false;
        if self.process(place).has_mail() {
            self.note_turn(place);
        }
        self.note_wakeup(place);
    }

    fn note_wakeup(&mut self, place: Place) {
        let process = self.process(place);
        let Some(at) = process.roles.next_wakeup() else { return };
        if process.wakeup_noted.is_none_or(|noted| at < noted) {
            process.wakeup_noted = Some(at);
            let at = at.max(self.now);
            self.agenda.note(at, Occurrence::Wakeup { place });
        }
    }

    fn answer(&mut self, letter: &Letter) {
        let (Address::Client(ClientId(job)), Message::ToClient(answer)) = (letter.to, &letter.message) else { return };
        match answer {
            ToClient::Submitted { job: id } => self.metrics.on_admitted(job as u32, *id),
            ToClient::Refused(refusal) => self.metrics.on_refused(self.now, job as u32, refusal.message.clone()),
            ToClient::Done => {}
        }
    }

    // ---- messages --------------------------------------------------------------------------------------------------

    fn leave(&mut self, from: Place, at: Instant, letter: Letter) {
        let (node, direction, place) = match (from, letter.to) {
            (Place::Node(node), Address::Executor(_)) => {
                if let Message::ToExecutor(order) = letter.message {
                    self.leave_for_executor(node, at, order);
                }
                return;
            }
            (Place::Node(node), _) => (node, Direction::ToServer, Place::Server),
            (Place::Server, Address::Node(NodeId(node))) => {
                let node = node as usize;
                (node, Direction::ToNode, Place::Node(node))
            }
            // Clients have their answers.
            (Place::Server, _) => return,
        };
        if let Some((arrival, life)) = self.network.send(at, node, direction) {
            self.agenda.note(arrival, Occurrence::Delivered { place, life, sent: at, letter });
        }
    }

    fn deliver(&mut self, place: Place, life: u32, sent: Instant, letter: Letter) {
        let node = match (place, letter.from) {
            (Place::Node(node), _) => node,
            (Place::Server, Address::Node(NodeId(node))) => node as usize,
            (Place::Server, _) => return,
        };
        if !self.network.delivers(node, life) {
            return;
        }
        if let Message::ToNode(ToNode::Launch(launch)) = &letter.message {
            self.metrics.on_launch_delivered(self.now, launch.task, self.now.since(sent));
        }
        self.put(place, letter);
    }

    // ---- executors -------------------------------------------------------------------------------------------------

    fn leave_for_executor(&mut self, node: usize, at: Instant, order: ToExecutor) {
        let launch = Duration::from_micros(self.settings.costs.launch / 1_000);
        let at = if matches!(order, ToExecutor::Launch(_)) { at + launch } else { at };
        if at <= self.now {
            self.order(node, order);
        } else {
            self.agenda.note(at, Occurrence::Ordered { node, order: Box::new(order) });
        }
    }

    fn order(&mut self, node: usize, order: ToExecutor) {
        let mut reactions = Vec::new();
        self.nodes[node].executor.on_order(self.now, order, &mut reactions);
        for reaction in reactions {
            match reaction {
                Reaction::Report(report) => self.at_once.push_back((node, report)),
                Reaction::Began { attempt, task, resources } => self.begin_task(node, attempt, task, &resources),
                Reaction::Ended { order } => {
                    self.metrics.on_ended(self.now, node, order.task, &order.carried.resources);
                }
            }
        }
    }

    fn begin_task(&mut self, node: usize, attempt: AttemptId, task: TaskId, resources: &Resources) {
        self.last_progress = self.now;
        let launch = Duration::from_micros(self.settings.costs.launch / 1_000);
        self.metrics.on_began(self.now, node, task, resources, launch);
        let run_time = self.run_time(task);
        self.agenda.note(self.now + run_time, Occurrence::TaskEnds { node, attempt });
    }

    fn run_time(&self, task: TaskId) -> Duration {
        let job = self.metrics.job_of(task.job).map(|job| &self.jobs[job as usize]);
        job.map_or(Duration::ZERO, |job| job.run_times[task.stage as usize].of(task.index))
    }

    fn end_task(&mut self, node: usize, attempt: AttemptId) {
        let Some((order, report)) = self.nodes[node].executor.end(self.now, attempt, EndReason::Exit(0)) else {
            // It was ended before its time.
            return;
        };
        self.last_progress = self.now;
        let LaunchOrder { task, carried, .. } = *order;
        self.metrics.on_ended(self.now, node, task, &carried.resources);
        let exit = Duration::from_micros(self.settings.costs.exit / 1_000);
        if exit == Duration::ZERO {
            self.at_once.push_back((node, report));
        } else {
            self.agenda.note(self.now + exit, Occurrence::Reported { node, report: Box::new(report) });
        }
    }

    fn report(&mut self, node: usize, report: ExecutorReport) {
        let id = NodeId(node as u32);
        let message = Message::ToNode(ToNode::Executor(report));
        self.put(Place::Node(node), Letter { from: Address::Executor(id), to: Address::Node(id), message });
    }

    // ---- the end ---------------------------------------------------------------------------------------------------

    fn finish(self) -> Outcome {
        let outcome = self.metrics.finish(self.now, &self.jobs);
        let results = Results {
            preset: self.settings.preset.name().to_owned(),
            seed: self.settings.seed,
            nodes: self.nodes.len() as u64,
            events: self.events,
            ..outcome.results
        };
        Outcome { results, ..outcome }
    }
}

/// Of all nodes together.
pub fn capacity(nodes: &[Node]) -> Totals {
    let mut capacity = Totals::default();
    nodes.iter().for_each(|node| capacity.add(&node.resources.basic));
    capacity
}

fn server(settings: &Settings) -> Process {
    let epoch = Epoch(1);
    let mut roles = Roles::new(settings.preset, epoch, JobManagerSettings::default());
    roles.recover(settings.preset.master(epoch, settings.master.clone(), settings.queues.clone()), Vec::new());
    Process::new(roles)
}

fn simulated_node(settings: &Settings, number: usize, node: &Node) -> SimulatedNode {
    let id = NodeId(number as u32);
    let agent = NodeSettings {
        name: node.name.clone(),
        capacity: node.resources.clone(),
        attributes: node.attributes.clone(),
        enforcement: Vec::new(),
        orphan_lease: ORPHAN_LEASE,
        stop_grace: STOP_GRACE,
    };
    let mut roles = Roles::new(settings.preset, Epoch(0), JobManagerSettings::default());
    roles.add_local_node(id, settings.preset.node_agent(id, agent));
    SimulatedNode { agent: Process::new(roles), executor: Executor::default() }
}
