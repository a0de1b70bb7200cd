//! The driver: it takes the next thing from the agenda, gives it to the process that it is for, and notes what follows.
//!
//! One process is the server, with the master and the job managers; every node is a process of its own, with an executor
//! beside it. They are connected by [`Network`]. Everything that happens is a function of the settings and the workload.

use crate::agenda::Agenda;
use crate::execution::{Course, Execution, WorkloadTask};
use crate::executor::{Executor, Reaction};
use crate::metrics::{JobResult, Metrics, Results, WINDOW, Window};
use crate::network::{Direction, Network};
use crate::process::{Input, Process};
use crate::settings::Settings;
use amalgam_core::hosting::{Effects, Letter, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::node::NodeSettings;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToClient, ToExecutor, ToMaster, ToNode};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::resources::WIDTH;
use amalgam_core::vocabulary::{
    AttemptId, ClientId, Duration, EndReason, Epoch, Instant, LaunchOrder, NodeId, Resources, TaskId, Totals,
};
use amalgam_workload::trace::{Node, TraceJob, Workload};
use std::collections::VecDeque;
use std::sync::Arc;

/// How long an agent waits for its master before it ends what runs: as long as the daemons do.
const ORPHAN_LEASE: Duration = Duration::from_secs(600);
const STOP_GRACE: Duration = Duration::from_secs(10);

pub struct Simulation {
    now: Instant,
    agenda: Agenda<Occurrence>,
    settings: Settings,
    server: Process,
    nodes: Vec<SimulatedNode>,
    network: Network,
    execution: Execution,
    jobs: Vec<TraceJob>,
    metrics: Metrics,
    /// Jobs that have not arrived.
    to_arrive: usize,
    events: u64,
    /// Reports of executors that reach their agents at once.
    at_once: VecDeque<(usize, ExecutorReport)>,
}

struct SimulatedNode {
    agent: Process,
    capacity: Resources,
    executor: Executor,
}

/// Something on the agenda, whose places are used again: a message needs no allocation of its own.
#[allow(clippy::large_enum_variant)]
enum Occurrence {
    Arrives {
        job: u32,
    },
    Connects {
        node: usize,
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
        reason: EndReason,
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

/// What a run led to.
pub struct Outcome {
    pub results: Results,
    pub jobs: Vec<JobResult>,
    pub windows: Vec<Window>,
}

impl Simulation {
    pub fn new(settings: Settings, nodes: &[Node], workload: &Workload) -> Simulation {
        let mut capacity = Totals::default();
        for node in nodes {
            for kind in 0..WIDTH {
                capacity.0[kind] += u64::from(node.resources.basic.0[kind]);
            }
        }
        let network = Network::new(nodes.len(), settings.network, settings.seed);
        let mut simulation = Simulation {
            now: Instant::ZERO,
            agenda: Agenda::default(),
            server: server(&settings, nodes),
            nodes: nodes.iter().enumerate().map(|(number, node)| simulated_node(&settings, number, node)).collect(),
            network,
            execution: Execution::new(settings.execution, settings.seed),
            jobs: workload.jobs.clone(),
            metrics: Metrics::new(&workload.jobs, &capacity),
            to_arrive: workload.jobs.len(),
            events: 0,
            at_once: VecDeque::new(),
            settings,
        };
        for node in 0..nodes.len() {
            simulation.agenda.note(Instant::ZERO, Occurrence::Connects { node });
        }
        for (number, job) in workload.jobs.iter().enumerate() {
            simulation.agenda.note(Instant::ZERO + job.arrival, Occurrence::Arrives { job: number as u32 });
        }
        simulation.agenda.note(Instant::ZERO + WINDOW, Occurrence::WindowEnds);
        simulation
    }

    /// Runs until every job has ended, or the time is over.
    pub fn run(mut self) -> Outcome {
        let until = self.settings.until.map(|length| Instant::ZERO + length);
        while self.is_anything_left() {
            let Some(at) = self.agenda.next_at() else { break };
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
            Occurrence::Connects { node } => self.connect(node),
            Occurrence::Delivered { place, life, sent, letter } => self.deliver(place, life, sent, letter),
            Occurrence::Ordered { node, order } => self.order(node, *order),
            Occurrence::Reported { node, report } => self.report(node, *report),
            Occurrence::TaskEnds { node, attempt, reason } => self.end_task(node, attempt, reason),
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
        self.metrics.on_arrival(job);
        let spec = Arc::clone(&self.jobs[job as usize].spec);
        let from = Address::Client(ClientId(u64::from(job)));
        let message = Message::ToMaster(ToMaster::Submit { spec, key: None });
        self.put(Place::Server, Input::Letter(Letter { from, to: Address::Master, message }));
    }

    fn connect(&mut self, node: usize) {
        self.network.connect(node);
        let (id, incarnation) = (NodeId(node as u32), u64::from(self.network.link(node).life));
        self.put(Place::Server, Input::NodeConnected { node: id, incarnation });
        self.put(Place::Node(node), Input::ExecutorConnected { incarnation: 1 });
        self.put(Place::Node(node), Input::MasterConnected { incarnation });
    }

    // ---- processes -------------------------------------------------------------------------------------------------

    fn process(&mut self, place: Place) -> &mut Process {
        match place {
            Place::Server => &mut self.server,
            Place::Node(node) => &mut self.nodes[node].agent,
        }
    }

    /// Something is there; it is taken at once or when the process is free.
    fn put(&mut self, place: Place, input: Input) {
        let now = self.now;
        let process = self.process(place);
        process.put(input);
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
        let mut effects = Effects::default();
        self.process(place).take_turn(now, &costs, &mut effects);
        self.let_out(place, effects);
    }

    /// What a turn led to is told, and leaves when the turn is over.
    fn let_out(&mut self, place: Place, effects: Effects) {
        let handled = effects.handled;
        self.events += u64::from(handled.master) + u64::from(handled.job_managers) + u64::from(handled.nodes);
        let over = self.process(place).busy_until;
        let (answers, letters): (Vec<Letter>, Vec<Letter>) =
            effects.letters.into_iter().partition(|letter| matches!(letter.to, Address::Client(_)));
        // A job's number is known before the first fact about it is told.
        for answer in answers {
            self.answer(answer);
        }
        for fact in &effects.facts {
            self.metrics.on_fact(self.now, fact);
        }
        for letter in letters {
            self.leave(place, over, letter);
        }
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

    fn answer(&mut self, letter: Letter) {
        let (Address::Client(ClientId(job)), Message::ToClient(answer)) = (letter.to, letter.message) else { return };
        match answer {
            ToClient::Submitted { job: id } => self.metrics.on_admitted(job as u32, id),
            ToClient::Refused(refusal) => self.metrics.on_refused(self.now, job as u32, refusal.message),
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
            // Nobody else is there.
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
            self.metrics.on_launch_delivered(launch.task, self.now.since(sent));
        }
        self.put(place, Input::Letter(letter));
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
                Reaction::Ended { order } => self.metrics.on_ended(self.now, order.task, &order.carried.resources),
            }
        }
    }

    fn begin_task(&mut self, node: usize, attempt: AttemptId, task: TaskId, resources: &Resources) {
        self.metrics.on_began(self.now, task, resources);
        let Course { length, reason } = self.course(node, task, resources);
        self.agenda.note(self.now + length, Occurrence::TaskEnds { node, attempt, reason });
    }

    fn course(&mut self, node: usize, task: TaskId, resources: &Resources) -> Course {
        let TaskId { stage, index, .. } = task;
        let Some(job) = self.metrics.job_of(task.job) else {
            return Course { length: Duration::ZERO, reason: EndReason::Exit(0) };
        };
        let run_time = self.jobs[job as usize].run_times[stage as usize].of(index);
        let busy = if self.execution.heeds_neighbours() { self.nodes[node].busy_beside(resources) } else { 0.0 };
        self.execution.course(WorkloadTask { job, stage, index }, run_time, busy)
    }

    fn end_task(&mut self, node: usize, attempt: AttemptId, reason: EndReason) {
        let Some((order, report)) = self.nodes[node].executor.end(self.now, attempt, reason) else {
            // It was ended before its time.
            return;
        };
        let LaunchOrder { task, carried, .. } = *order;
        self.metrics.on_ended(self.now, task, &carried.resources);
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
        let letter = Letter { from: Address::Executor(id), to: Address::Node(id), message };
        self.put(Place::Node(node), Input::Letter(letter));
    }

    // ---- the end ---------------------------------------------------------------------------------------------------

    fn finish(mut self) -> Outcome {
        let (results, windows) = self.metrics.finish(self.now, &self.jobs);
        let results = Results {
            preset: self.settings.preset.name().to_owned(),
            seed: self.settings.seed,
            nodes: self.nodes.len() as u64,
            events: self.events,
            ..results
        };
        Outcome { results, jobs: self.metrics.job_results(&self.jobs), windows }
    }
}

impl SimulatedNode {
    /// The share of its CPUs that others use beside a task with these resources.
    fn busy_beside(&self, resources: &Resources) -> f64 {
        let others = self.executor.used_cpu().saturating_sub(u64::from(resources.cpu_millis()));
        (others as f64 / f64::from(self.capacity.cpu_millis().max(1))).min(1.0)
    }
}

/// The server, which has known the nodes' names for long.
fn server(settings: &Settings, nodes: &[Node]) -> Process {
    let epoch = Epoch(1);
    let named = nodes.iter().enumerate();
    let named = named.map(|(number, node)| Change::NodeNamed { node: NodeId(number as u32), name: node.name.clone() });
    let mut roles = Roles::new(settings.preset, epoch, JobManagerSettings::default());
    roles.recover(settings.preset.master(epoch, settings.master.clone(), settings.queues.clone()), named.collect());
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
    SimulatedNode { agent: Process::new(roles), capacity: node.resources.basic, executor: Executor::default() }
}
