//! The driver: it takes the next entry from the agenda, passes it to its process, and puts the effects on the agenda.
//!
//! One process is the server, with the master and, unless they have processes of their own, the job managers. Every
//! node is a process with an executor beside it. [`Network`] connects the processes. A run depends only on the
//! settings, the nodes and the workload.

mod executors;
mod intrusions;
mod resting;
mod setup;
mod strikes;

pub(crate) use setup::roles;

use crate::agenda::Agenda;
use crate::execution::Execution;
use crate::executor::Reaction;
use crate::faults::{Faults, Happening, Turn};
use crate::inputs::Inputs;
use crate::metrics::{Busy, Metrics, Outcome, Results, WINDOW, Watched};
use crate::network::{Direction, Network};
use crate::node::SimulatedNode;
use crate::places::{self, Places, ProcessId};
use crate::process::{Input, Process};
use crate::settings::{Settings, Understating};
use crate::story::Story;
use amalgam_core::hosting::{Effects, Egress, Envelope, Fact, Handled};
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToClient, ToExecutor, ToMaster, ToNode};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{
    AttemptId, ClientId, ClusterId, Duration, EndReason, Fetched, GlobalId, HostId, Instant, JobId, Kinds, NodeId,
    Resources, StoredFile, Totals,
};
use amalgam_workload::trace::{Node, TraceJob};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A simulation ends after this time without progress and without a running task.
const PATIENCE: Duration = Duration::from_secs(24 * 3_600);

pub struct Simulation {
    pub(crate) now: Instant,
    pub(crate) agenda: Agenda<Occurrence>,
    /// Messages and orders to executors that are in transit.
    envelopes: Slab<Envelope>,
    orders: Slab<ToExecutor>,
    pub(crate) settings: Settings,
    pub(crate) places: Places,
    pub(crate) server: Process,
    pub(crate) managers: Vec<Process>,
    /// The masters of a federation's clusters, and its global masters.
    pub(crate) clusters: Vec<Process>,
    pub(crate) globals: Vec<Process>,
    pub(crate) nodes: Vec<SimulatedNode>,
    pub(crate) network: Network,
    execution: Execution,
    /// Where inputs are stored, if the settings place them.
    inputs: Option<Box<Inputs>>,
    pub(crate) jobs: Vec<TraceJob>,
    /// The custom kinds of resources that the master has named.
    pub(crate) kinds: Kinds,
    metrics: Metrics,
    /// Jobs that have not arrived.
    to_arrive: usize,
    /// When a job last arrived, or a task last started or ended.
    last_progress: Instant,
    events: u64,
    /// Reports of executors that reach their agents at once.
    at_once: VecDeque<(usize, ExecutorReport)>,
    /// Processes that took a turn in the current step.
    pub(crate) turns: Vec<ProcessId>,
    /// Empty between turns and between orders. Kept so that their memory is reused.
    pub(crate) effects: Effects,
    reactions: Vec<Reaction>,
    /// `None` in a simulation without faults.
    pub(crate) faults: Option<Box<Faults>>,
    story: Option<Story>,
    /// Number of file transfers so far.
    fetches: u64,
    watched: Vec<Watched>,
    /// Jobs that arrive once another job of their queue has ended, by queue.
    followers: BTreeMap<String, VecDeque<u32>>,
    /// `None` if every report is simulated.
    resting: Option<Box<resting::Resting>>,
}

/// An entry of the agenda. With tens of thousands of nodes there are as many ends of tasks and wake-ups to come, so
/// each entry fits in one cache line; messages and orders are stored in slabs.
#[repr(align(64))]
pub(crate) enum Occurrence {
    Arrives {
        job: u32,
    },
    /// A process starts.
    Starts {
        place: ProcessId,
    },
    /// The outer process of a connection reaches the inner one; `Greeted` is the inner one's answer.
    Connects {
        link: usize,
    },
    Greeted {
        link: usize,
        life: u32,
        sent: Instant,
    },
    Delivered {
        link: u32,
        direction: Direction,
        life: u32,
        sent: Instant,
        /// Its key in `envelopes`.
        envelope: u32,
    },
    /// An executor carries out an order, or its report reaches the agent.
    Ordered {
        node: usize,
        link: u32,
        /// Its key in `orders`.
        order: u32,
    },
    Reported {
        node: usize,
        link: u32,
        report: ExecutorReport,
    },
    /// A file that an executor fetched has arrived, or the fetch has failed.
    Fetched {
        node: usize,
        link: u32,
        end: Box<(StoredFile, NodeId, Fetched)>,
    },
    TaskEnds {
        node: usize,
        attempt: AttemptId,
        reason: EndReason,
    },
    Turn {
        place: ProcessId,
    },
    Wakeup {
        place: ProcessId,
    },
    WindowEnds,
    /// A planned fault strikes.
    Strikes {
        fault: u32,
    },
    /// One end of a connection notices that the connection broke.
    Notices {
        end: ProcessId,
        link: usize,
        life: u32,
    },
}

const _: () = assert!(size_of::<Option<Occurrence>>() == 64, "an occurrence fits in one cache line");

impl Simulation {
    /// Runs until every job has ended or `until` is reached. Also stops if all jobs have
    /// arrived, no task runs, and nothing has arrived, started or ended for [`PATIENCE`], because the remaining jobs would wait
    /// permanently, and, in strict mode, at the first refused job.
    pub fn run(self) -> Outcome {
        self.run_watched(&mut |_| {})
    }

    /// Like [`Simulation::run`], but calls `watch` regularly with the number of jobs that have ended or were refused.
    pub fn run_watched(mut self, watch: &mut dyn FnMut(usize)) -> Outcome {
        /// Steps between two calls of `watch`.
        const GLANCE: u32 = 1 << 16;
        self.assemble();
        self.let_nodes_rest();
        self.open();
        let until = self.settings.until.map(|length| Instant::ZERO + length);
        let mut steps = 0_u32;
        while self.is_anything_left() {
            let Some(at) = self.agenda.next_at() else { break };
            if self.settings.strict && self.metrics.has_refused() {
                break;
            }
            let is_stuck = self.to_arrive == 0 && !self.metrics.is_any_task_running();
            if is_stuck && at.since(self.last_progress) > PATIENCE {
                self.now = self.last_progress + PATIENCE;
                break;
            }
            if let Some(until) = until.filter(|until| at > *until) {
                self.now = until;
                break;
            }
            self.step();
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(GLANCE) {
                watch(self.jobs.len() - self.metrics.jobs_left());
            }
        }
        watch(self.jobs.len() - self.metrics.jobs_left());
        self.finish()
    }

    fn is_anything_left(&self) -> bool {
        self.to_arrive > 0 || self.metrics.is_running()
    }

    /// Takes the next entry from the agenda and carries it out. False if the agenda is empty.
    pub fn step(&mut self) -> bool {
        let Some((at, occurrence)) = self.agenda.pop() else { return false };
        self.now = at;
        self.turns.clear();
        while let Some((place, turn)) = self.faults.as_mut().and_then(|faults| faults.take_finished_turn(at)) {
            self.report_facts(place, &turn.facts, &turn.answers);
        }
        self.happen(occurrence);
        while let Some((node, report)) = self.at_once.pop_front() {
            self.report(node, report);
        }
        true
    }

    fn happen(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Arrives { job } => self.arrive(job),
            Occurrence::Starts { place } => self.start(place),
            Occurrence::Connects { link } => self.connect(link),
            Occurrence::Greeted { link, life, sent } => self.greet(link, life, sent),
            Occurrence::Delivered { link, direction, life, sent, envelope } => {
                let envelope = self.envelopes.remove(envelope as usize);
                self.deliver(link as usize, direction, life, sent, envelope);
            }
            Occurrence::Ordered { node, link, order } => {
                let order = self.orders.remove(order as usize);
                if self.nodes[node].executor_link == link {
                    self.order(node, order);
                }
            }
            Occurrence::Reported { node, link, report } if self.nodes[node].executor_link == link => {
                self.report(node, report);
            }
            Occurrence::Fetched { node, link, end } => {
                self.end_upload(node, &end);
                if self.nodes[node].executor_link == link {
                    self.end_fetch(node, *end);
                }
            }
            Occurrence::Reported { .. } => {}
            Occurrence::TaskEnds { node, attempt, reason } => self.end_task(node, attempt, reason),
            Occurrence::Turn { place } => self.take_noted_turn(place),
            Occurrence::Wakeup { place } => self.wake_up(place),
            Occurrence::WindowEnds => {
                self.metrics.on_window(self.now);
                self.agenda.note(self.now + WINDOW, Occurrence::WindowEnds);
            }
            Occurrence::Strikes { fault } => self.strike(fault),
            Occurrence::Notices { end, link, life } => self.notice(end, link, life),
        }
    }

    // ---- jobs and connections --------------------------------------------------------------------------------------

    fn arrive(&mut self, job: u32) {
        self.to_arrive -= 1;
        self.last_progress = self.now;
        self.metrics.on_arrival(self.now, job);
        self.submit(job);
    }

    pub(crate) fn submit(&mut self, job: u32) {
        let spec = Arc::clone(&self.jobs[job as usize].spec);
        let from = Address::Client(ClientId(u64::from(job)));
        // With faults, a client may have to submit its job twice. The key identifies the job.
        let key = self.faults.is_some().then(|| job.to_string());
        if let Some(faults) = &mut self.faults {
            faults.submitted(job);
        }
        let message = Message::ToMaster(ToMaster::Submit { spec, key });
        let place = self.place_of_client(job);
        self.put(place, Input::Envelope(Envelope { from, to: Address::Master, message }));
    }

    /// The process that a job is submitted to. In a federation: the global master that is home to its queue, or,
    /// without a home, the global masters in rotation.
    pub(crate) fn place_of_client(&self, job: u32) -> ProcessId {
        let Some(federation) = self.places.federation else { return ProcessId::Server };
        let spec = &self.jobs[job as usize].spec;
        let home = self.settings.queues.home(&spec.queue);
        ProcessId::Global(home.unwrap_or(job as usize % usize::from(federation.globals)))
    }

    fn connect(&mut self, link: usize) {
        if !self.can_connect(link) {
            return;
        }
        self.network.connect(link);
        // The greeting is the first message to the outer end.
        if let Some((arrival, life)) = self.network.send(self.now, link, Direction::Outward) {
            self.agenda.note(arrival, Occurrence::Greeted { link, life, sent: self.now });
        }
        let (inner, outer) = self.places.ends(link);
        self.put(inner, connected(inner, outer, u64::from(self.network.link(link).life)));
        self.repeat(link, Direction::Inward);
    }

    fn greet(&mut self, link: usize, life: u32, sent: Instant) {
        if self.network.delivers(self.now, link, Direction::Outward, life, sent) {
            self.network.greeted(link);
            let (inner, outer) = self.places.ends(link);
            self.put(outer, connected(outer, inner, u64::from(life)));
            self.repeat(link, Direction::Outward);
        }
    }

    fn repeat(&mut self, link: usize, direction: Direction) {
        let (inner, outer) = self.places.ends(link);
        let place = if direction == Direction::Outward { outer } else { inner };
        for envelope in self.network.repeats(link, direction).collect::<Vec<_>>() {
            if let Some(faults) = &mut self.faults {
                faults.note(Happening::Repeated { to: place, message: Box::new(envelope.message.clone()) });
            }
            self.put(place, Input::Envelope(envelope));
        }
    }

    // ---- processes -------------------------------------------------------------------------------------------------

    pub(crate) fn process(&mut self, place: ProcessId) -> &mut Process {
        let Simulation { server, managers, clusters, globals, nodes, .. } = self;
        process_at(server, [managers, clusters, globals], nodes, place)
    }

    /// Gives an input to a process, which takes it at once or when it is no longer busy.
    pub(crate) fn put(&mut self, place: ProcessId, input: Input) {
        self.attend(place);
        let (now, slowness) = (self.now, self.slowness(place));
        let Simulation { server, managers, clusters, globals, nodes, settings, effects, .. } = self;
        let process = process_at(server, [managers, clusters, globals], nodes, place);
        if !process.is_up {
            return;
        }
        if process.is_idle(now) {
            process.take_at_once(now, input, &settings.costs, slowness, effects);
            self.let_out(place);
        } else {
            process.put(input);
            self.note_turn(place);
        }
    }

    fn note_turn(&mut self, place: ProcessId) {
        let process = self.process(place);
        if !std::mem::replace(&mut process.turn_noted, true) {
            let at = process.busy_until;
            self.agenda.note(at, Occurrence::Turn { place });
        }
    }

    fn take_noted_turn(&mut self, place: ProcessId) {
        self.attend(place);
        let now = self.now;
        let process = self.process(place);
        process.turn_noted = false;
        if process.busy_until > now {
            // The process has become busy for longer in the meantime, such as by a pause.
            self.note_turn(place);
        } else {
            self.turn(place);
        }
    }

    fn wake_up(&mut self, place: ProcessId) {
        let now = self.now;
        if self.rests_on(place) {
            return;
        }
        let process = self.process(place);
        if process.wakeup_noted.is_some_and(|noted| noted > now) {
            // This entry is obsolete: an earlier wake-up was noted after it, and that one noted its successor.
            return;
        }
        process.wakeup_noted = None;
        if process.roles.next_wakeup().is_none_or(|at| at > now) {
            // The role has postponed its wake-up in the meantime.
            self.note_wakeup(place);
        } else if process.busy_until <= now {
            self.turn(place);
        } else {
            self.note_turn(place);
        }
    }

    fn turn(&mut self, place: ProcessId) {
        let (now, slowness) = (self.now, self.slowness(place));
        let Simulation { server, managers, clusters, globals, nodes, settings, effects, .. } = self;
        process_at(server, [managers, clusters, globals], nodes, place).take_turn(
            now,
            &settings.costs,
            slowness,
            effects,
        );
        self.let_out(place);
    }

    /// Reports the facts of a turn. Its messages leave when the turn is over.
    pub(crate) fn let_out(&mut self, place: ProcessId) {
        let handled = std::mem::take(&mut self.effects.handled);
        let Handled { master, globals, job_managers, nodes, .. } = handled;
        self.events += [master, globals, job_managers, nodes].map(u64::from).iter().sum::<u64>();
        self.effects.forgotten.clear();
        self.effects.durable = false;
        self.turns.push(place);
        let over = self.process(place).busy_until;
        if !self.effects.facts.is_empty() || matches!(place, ProcessId::Server | ProcessId::Global(_)) {
            self.report_turn(place, over);
        }
        if !self.effects.envelopes.is_empty() {
            let mut envelopes = std::mem::take(&mut self.effects.envelopes);
            envelopes.drain(..).for_each(|envelope| self.leave(place, over, envelope));
            self.effects.envelopes = envelopes;
        }
        if self.process(place).has_messages() {
            self.note_turn(place);
        }
        match place {
            ProcessId::Node(node) if self.rest(node) => {}
            _ => self.note_wakeup(place),
        }
        if place == ProcessId::Server {
            self.tell_of_tokens();
        }
    }

    /// In a simulation with faults, the facts and answers of a turn are held until the turn is over, because a crash
    /// may undo them before. Otherwise they are reported at once.
    fn report_turn(&mut self, place: ProcessId, over: Instant) {
        let Effects { facts, envelopes, .. } = &mut self.effects;
        if self.faults.is_some() && !matches!(place, ProcessId::Node(_)) && over > self.now {
            let answers = envelopes.extract_if(.., |envelope| is_answer(envelope)).collect();
            let facts = std::mem::take(facts);
            self.hold(place, Turn { over, facts, answers });
        } else {
            let (mut facts, envelopes) = (std::mem::take(facts), std::mem::take(envelopes));
            self.report_facts(place, &facts, &envelopes);
            facts.clear();
            (self.effects.facts, self.effects.envelopes) = (facts, envelopes);
        }
    }

    /// Reports the facts of a turn to the metrics, the checkers and the story, and its answers to the clients.
    pub(crate) fn report_facts(&mut self, place: ProcessId, facts: &[Fact], envelopes: &[Envelope]) {
        // A job's id has to be known before the first fact about the job is reported.
        for envelope in envelopes.iter().filter(|envelope| is_answer(envelope)) {
            self.answer(envelope);
        }
        for fact in facts {
            if let Fact::Change(Change::KindsNamed { kinds }) = fact {
                self.kinds = kinds.clone();
            }
            self.metrics.on_fact(self.now, fact);
            self.follow(fact);
            if let Some(faults) = &mut self.faults {
                faults.report(place, fact);
            }
            if let Some(story) = &mut self.story {
                story.add_fact(self.now, place, fact);
            }
        }
    }

    /// In a closed loop, the end of a job lets the next job of its queue arrive.
    fn follow(&mut self, fact: &Fact) {
        if let Fact::Change(Change::JobEnded { job, .. }) = fact
            && !self.followers.is_empty()
            && let Some(ended) = self.metrics.job_of(*job)
            && let Some(job) =
                self.followers.get_mut(&self.jobs[ended as usize].spec.queue).and_then(VecDeque::pop_front)
        {
            self.agenda.note(self.now, Occurrence::Arrives { job });
        }
    }

    /// Records a happening for the checkers and the story.
    fn note(&mut self, happening: impl Fn() -> Happening) {
        if let Some(faults) = &mut self.faults {
            faults.note(happening());
        }
        if let Some(story) = &mut self.story {
            story.add(self.now, &happening());
        }
    }

    fn note_wakeup(&mut self, place: ProcessId) {
        if let Some(at) = self.process(place).roles.next_wakeup() {
            self.note_wakeup_at(place, at);
        }
    }

    fn note_wakeup_at(&mut self, place: ProcessId, at: Instant) {
        let process = self.process(place);
        if process.wakeup_noted.is_none_or(|noted| at < noted) {
            process.wakeup_noted = Some(at);
            let at = at.max(self.now);
            self.agenda.note(at, Occurrence::Wakeup { place });
        }
    }

    fn answer(&mut self, envelope: &Envelope) {
        let (Address::Client(ClientId(job)), Message::ToClient(answer)) = (envelope.to, &envelope.message) else {
            return;
        };
        let job = job as u32;
        match answer {
            ToClient::Submitted { job: id } => self.on_submitted(job, *id),
            ToClient::Refused(refusal) if self.jobs.get(job as usize).is_some() => {
                self.metrics.on_refused(self.now, job, refusal.message.clone());
                if let Some(faults) = &mut self.faults {
                    faults.refused(job);
                }
            }
            ToClient::Refused(_) | ToClient::Done | ToClient::AsBefore => {}
        }
    }

    fn on_submitted(&mut self, job: u32, id: JobId) {
        self.metrics.on_admitted(job, id);
        let Some(faults) = &mut self.faults else { return };
        faults.answered(job, id);
        if faults.is_healed() {
            self.release(id);
        }
    }

    // ---- messages --------------------------------------------------------------------------------------------------

    fn leave(&mut self, from: ProcessId, at: Instant, mut envelope: Envelope) {
        if let ProcessId::Node(node) = from {
            if let Message::ToExecutor(order) = envelope.message {
                return self.leave_for_executor(node, at, order);
            }
            self.understate(node, &mut envelope.message);
        }
        let place = self.place_of(from, &envelope);
        // Messages to clients do not use the network; `tell` has reported them.
        let Some((link, direction)) = self.places.link(from, place) else { return };
        if let Some((arrival, life)) = self.network.send(at, link, direction) {
            let (link, envelope) = (link as u32, self.envelopes.insert(envelope) as u32);
            self.agenda.note(arrival, Occurrence::Delivered { link, direction, life, sent: at, envelope });
        }
    }

    /// The process that receives a message from `from`.
    fn place_of(&self, from: ProcessId, envelope: &Envelope) -> ProcessId {
        let process = match from {
            ProcessId::Node(node) if self.places.managers == 0 => return self.places.master_of(node),
            _ if self.places.managers == 0 && self.places.federation.is_none() => return self.places.of(envelope.to),
            ProcessId::Server => &self.server,
            ProcessId::Managers(number) => &self.managers[number],
            ProcessId::Cluster(number) => &self.clusters[number],
            ProcessId::Global(number) => &self.globals[number],
            ProcessId::Node(node) => &self.nodes[node].agent,
        };
        match process.roles.egress(envelope) {
            Egress::JobHost(HostId(host)) => ProcessId::Managers(usize::from(host) - 1),
            Egress::Node(NodeId(node)) => ProcessId::Node(node as usize),
            Egress::Cluster(ClusterId(cluster)) => ProcessId::Cluster(usize::from(cluster)),
            Egress::Global(GlobalId(global)) => ProcessId::Global(usize::from(global)),
            Egress::Server | Egress::Client(_) | Egress::Executor => ProcessId::Server,
        }
    }

    /// Reduces the work that a node reports, if the settings make this node understate.
    fn understate(&self, node: usize, message: &mut Message) {
        let Understating { nodes, divisor } = self.settings.understating;
        if node < nodes
            && let Message::ToMaster(ToMaster::Report(report)) = message
        {
            for work in [&mut report.expected_wait, &mut report.running_work, &mut report.stalled] {
                *work = Duration::from_micros(work.as_micros() / divisor.max(1));
            }
        }
    }

    fn deliver(&mut self, link: usize, direction: Direction, life: u32, sent: Instant, envelope: Envelope) {
        let (inner, outer) = self.places.ends(link);
        let place = if direction == Direction::Outward { outer } else { inner };
        let arrives = self.network.delivers(self.now, link, direction, life, sent);
        if let ProcessId::Node(node) = place {
            self.overhear(node, &envelope, arrives);
        }
        if !arrives {
            return;
        }
        self.network.delivered(link, direction, &envelope);
        if let Message::ToNode(body) = &envelope.message
            && let Some(launch) = body.launch()
        {
            self.metrics.on_launch_delivered(self.now, launch.task, self.now.since(sent));
        }
        if let Message::ToMaster(ToMaster::Launch(proposed)) = &envelope.message {
            self.metrics.on_launch_passed(proposed.launch.task, self.now.since(sent));
        }
        if let Message::ToNode(ToNode::Steer(steer)) = &envelope.message
            && let ProcessId::Node(node) = place
            && self.settings.watched == Some(node)
        {
            self.watch(node, &steer.room);
        }
        self.put(place, Input::Envelope(envelope));
    }

    /// Records the CPUs that opportunistic work may hold and holds at a node.
    fn watch(&mut self, node: usize, room: &Resources) {
        let node = &self.nodes[node];
        let of_capacity = |cpu: u64| cpu as f64 / f64::from(node.capacity().cpu_millis().max(1));
        let limit = of_capacity(u64::from(room.cpu_millis())).min(1.0);
        let held = of_capacity(node.executor.opportunistic_cpu());
        self.watched.push(Watched { at_s: self.now.0 as f64 / 1e6, limit, held });
    }

    // ---- the end ---------------------------------------------------------------------------------------------------

    fn finish(mut self) -> Outcome {
        self.wake_all_nodes();
        let busy = self.busy();
        let outcome = self.metrics.finish(self.now, &self.jobs);
        let results = Results {
            preset: self.settings.preset.name().to_owned(),
            seed: self.settings.seed,
            nodes: self.nodes.len() as u64,
            events: self.events,
            mattered: self.events - self.resting.map_or(0, |resting| resting.events),
            busy,
            ..outcome.results
        };
        let story = self.story.map(Story::into_lines).unwrap_or_default();
        Outcome { results, story, watched: self.watched, ..outcome }
    }

    fn busy(&self) -> Busy {
        let of = |process: &Process| process.busy as f64 / self.now.0.max(1) as f64;
        Busy {
            server: self.clusters.iter().map(of).fold(of(&self.server), f64::max),
            managers: self.managers.iter().chain(&self.globals).map(of).fold(0.0, f64::max),
            nodes: self.nodes.iter().map(|node| of(&node.agent)).fold(0.0, f64::max),
        }
    }
}

/// Total of the basic resources of the nodes.
pub fn capacity(nodes: &[Node]) -> Totals {
    let mut capacity = Totals::default();
    nodes.iter().for_each(|node| capacity.add(&node.resources.basic));
    capacity
}

fn process_at<'a>(
    server: &'a mut Process,
    [managers, clusters, globals]: [&'a mut Vec<Process>; 3],
    nodes: &'a mut [SimulatedNode],
    place: ProcessId,
) -> &'a mut Process {
    match place {
        ProcessId::Server => server,
        ProcessId::Managers(number) => &mut managers[number],
        ProcessId::Cluster(number) => &mut clusters[number],
        ProcessId::Global(number) => &mut globals[number],
        ProcessId::Node(node) => &mut nodes[node].agent,
    }
}

fn is_answer(envelope: &Envelope) -> bool {
    matches!(envelope.to, Address::Client(_))
}

/// The input of process `to` when it is connected to another.
fn connected(to: ProcessId, other: ProcessId, incarnation: u64) -> Input {
    match other {
        ProcessId::Cluster(number) if matches!(to, ProcessId::Global(_)) => {
            Input::ClusterConnected { cluster: ClusterId(number as u8), incarnation }
        }
        ProcessId::Global(number) => Input::GlobalConnected { global: GlobalId(number as u8), incarnation },
        ProcessId::Server | ProcessId::Cluster(_) => Input::MasterConnected { incarnation },
        ProcessId::Managers(number) => Input::HostConnected { host: places::host(number), incarnation },
        ProcessId::Node(node) => Input::NodeConnected { node: NodeId(node as u32), incarnation },
    }
}

/// The input of process `to` when it is no longer connected to another.
pub(crate) fn disconnected(to: ProcessId, other: ProcessId) -> Input {
    match other {
        ProcessId::Cluster(number) if matches!(to, ProcessId::Global(_)) => {
            Input::ClusterDisconnected { cluster: ClusterId(number as u8) }
        }
        ProcessId::Global(number) => Input::GlobalDisconnected { global: GlobalId(number as u8) },
        ProcessId::Server | ProcessId::Cluster(_) => Input::MasterDisconnected,
        ProcessId::Managers(number) => Input::HostDisconnected { host: places::host(number) },
        ProcessId::Node(node) => Input::NodeDisconnected { node: NodeId(node as u32) },
    }
}
