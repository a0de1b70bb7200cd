//! The effects of each fault on a simulation.

use super::setup::{cluster, global, managers};
use super::{Occurrence, Simulation, disconnected, roles};
use crate::faults::{Answer, Fault, Faults, Happening, Moment, Planned, Turn};
use crate::network::Direction;
use crate::places::ProcessId;
use crate::process::{Input, Process};
use amalgam_core::hosting::{Envelope, Fact};
use amalgam_core::protocol::{Address, JobAction, Message, ToMaster};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{ClientId, Duration, EndReason, Epoch, Federation, Instant, JobId, NodeId};

/// The client that sends requests of users other than submissions.
const OPERATOR: Address = Address::Client(ClientId(u64::MAX));
/// The longest time until a process tries again to connect.
const RECONNECT: Duration = Duration::from_secs(1);

impl Simulation {
    /// Puts the planned faults on the agenda.
    pub fn plan(&mut self, plan: Vec<Planned>) {
        for (number, planned) in plan.iter().enumerate() {
            self.agenda.note(planned.at, Occurrence::Strikes { fault: number as u32 });
        }
        let mut faults = Faults::new(plan, &self.places, self.jobs.len());
        let writers: Vec<ProcessId> = self.places.all().filter(|place| !matches!(place, ProcessId::Node(_))).collect();
        for place in writers {
            faults.writer(place).log = self.process(place).roles.durable();
        }
        self.faults = Some(Box::new(faults));
    }

    /// The happenings since the last call.
    pub fn take_happened(&mut self) -> Vec<Happening> {
        self.faults.as_mut().map(|faults| faults.take_happened()).unwrap_or_default()
    }

    fn faults(&mut self) -> &mut Faults {
        self.faults.as_mut().expect("a simulation with faults")
    }

    pub(crate) fn strike(&mut self, number: u32) {
        if self.faults().is_healed {
            return;
        }
        let planned = &mut self.faults().plan[number as usize];
        if let Some((moment, after)) = planned.upon.take() {
            return self.faults().armed.push((moment, after, number));
        }
        let fault = planned.fault.clone();
        if !self.finds_something(&fault) {
            return;
        }
        self.faults().note(Happening::Fault(fault.clone()));
        match fault {
            Fault::Crash { place: ProcessId::Node(node), down, noticed } => self.crash_agent(node, down, noticed),
            Fault::Crash { place, down, noticed } => self.crash_writer(place, down, noticed),
            Fault::DiskFails { place, reached, down, noticed } => {
                self.save_part_of_turn(place, reached);
                self.crash_writer(place, down, noticed);
            }
            Fault::DiskSlow { place, lasts } => {
                let end = self.now + lasts;
                let until = self.faults().slow_until(place);
                *until = end.max(*until);
            }
            Fault::CannotLaunch { node, lasts } => {
                let end = self.now + lasts;
                let until = &mut self.faults().faulty_until[node];
                *until = end.max(*until);
            }
            Fault::ExecutorDies { node } => self.kill_executor(node),
            Fault::Break { link, lasts, noticed_outside, noticed_inside } => {
                let parted = self.now + lasts;
                let until = &mut self.faults().parted_until[link];
                *until = parted.max(*until);
                self.break_off(link, noticed_outside, noticed_inside);
            }
            Fault::Pause { place, length } => {
                let until = self.now + length;
                let process = self.process(place);
                process.busy_until = process.busy_until.max(until);
            }
            Fault::Act { job, action } => {
                if let Some(job) = self.faults().id_of(job) {
                    self.ask_about_job(job, action);
                }
            }
            Fault::SubmitAgain { job } => {
                if self.faults().answers[job as usize] != Answer::NotAsked {
                    self.submit(job);
                }
            }
            Fault::Drain { node, drained } => {
                self.drain(node, drained);
            }
            Fault::Intrude { how, which } => {
                if let Some(intruding) = self.intrusion(how, which) {
                    self.intrude(intruding);
                }
            }
            Fault::Heal => self.heal(),
        }
    }

    /// Whether the target of the fault exists and is in a state in which the fault has an effect.
    fn finds_something(&self, fault: &Fault) -> bool {
        let is_up = |place: ProcessId| match place {
            ProcessId::Server => self.server.is_up,
            ProcessId::Managers(number) => self.managers[number].is_up,
            ProcessId::Cluster(number) => self.clusters[number].is_up,
            ProcessId::Global(number) => self.globals[number].is_up,
            ProcessId::Node(node) => self.nodes[node].agent.is_up,
        };
        let faults = self.faults.as_ref().expect("a simulation with faults");
        match *fault {
            Fault::Crash { place, .. } | Fault::Pause { place, .. } | Fault::DiskFails { place, .. } => is_up(place),
            Fault::Act { job, .. } => faults.id_of(job).is_some(),
            Fault::SubmitAgain { job } => faults.answers[job as usize] != Answer::NotAsked,
            Fault::Intrude { how, which } => self.intrusion(how, which).is_some(),
            _ => true,
        }
    }

    /// Puts the faults that wait for this moment on the agenda. If the moment has an end, they strike before it.
    pub(crate) fn on_moment(&mut self, moment: Moment, end: Option<Instant>) {
        let Some(faults) = &mut self.faults else { return };
        for (after, fault) in faults.take_armed(moment) {
            let half = end.map_or(Duration::MAX, |end| Duration::from_micros(end.since(self.now).as_micros() / 2));
            self.agenda.note(self.now + after.min(half), Occurrence::Strikes { fault });
        }
    }

    /// Keeps the effects of a process's turn until it is over.
    pub(crate) fn hold(&mut self, place: ProcessId, turn: Turn) {
        let (over, is_moment) = (turn.over, turn.changes_something());
        self.faults().hold(place, turn);
        if is_moment {
            self.on_moment(Moment::InTurn, Some(over));
        }
    }

    fn ask(&mut self, place: ProcessId, body: ToMaster) {
        let envelope = Envelope { from: OPERATOR, to: Address::Master, message: Message::ToMaster(body) };
        self.put(place, Input::Envelope(envelope));
    }

    fn ask_about_job(&mut self, job: JobId, action: JobAction) {
        let admitted_by = |federation: Federation| ProcessId::Global(usize::from(federation.admitted_by(job).0));
        let place = self.places.federation.map_or(ProcessId::Server, admitted_by);
        self.ask(place, ToMaster::Control { job, action, by: "operator".to_owned() });
    }

    fn drain(&mut self, node: usize, drained: bool) {
        self.ask(self.places.master_of(node), ToMaster::Drain { node: NodeId(node as u32), drained });
    }

    // ---- processes -------------------------------------------------------------------------------------------------

    /// A process with a log crashes.
    fn crash_writer(&mut self, place: ProcessId, down: Duration, noticed: Duration) {
        if !self.process(place).is_up {
            return;
        }
        *self.process(place) = Process::dead(self.settings.preset);
        if let Some(turn) = self.faults().writer(place).turn.take() {
            let changes = turn.facts.into_iter().filter_map(|fact| match fact {
                Fact::Change(change) => Some(change),
                Fact::Record(_) => None,
            });
            self.faults().note(Happening::Undone(changes.collect()));
        }
        self.part(place, noticed);
        self.agenda.note(self.now + down, Occurrence::Starts { place });
    }

    /// Breaks all connections of a process that crashed. The processes at the other ends notice after `noticed`.
    fn part(&mut self, place: ProcessId, noticed: Duration) {
        for link in self.places.links_of(place) {
            self.network.forget_delivered(link);
            let is_inner = self.places.ends(link).0 == place;
            let (outside, inside) = if is_inner { (noticed, Duration::ZERO) } else { (Duration::ZERO, noticed) };
            self.break_off(link, outside, inside);
        }
    }

    /// Makes the first changes of the turn that is being written durable.
    fn save_part_of_turn(&mut self, place: ProcessId, thousandths: u32) {
        let Some(turn) = &mut self.faults().writer(place).turn else { return };
        let reached = turn.facts.len() * thousandths as usize / 1_000;
        // Records are reported only once the whole turn is durable.
        let reached: Vec<Fact> = turn.facts.drain(..reached).filter(Fact::is_change).collect();
        self.report_facts(place, &reached, &[]);
    }

    /// The factor by which the disk of this process takes longer now.
    pub(crate) fn slowness(&self, place: ProcessId) -> u64 {
        self.faults.as_ref().map_or(1, |faults| faults.slowness(self.now, place))
    }

    /// Why the node cannot start processes; `None` if it can.
    pub(crate) fn launch_fault(&self, node: usize) -> Option<EndReason> {
        let is_faulty = self.faults.as_ref().is_some_and(|faults| faults.cannot_launch(self.now, node));
        is_faulty.then(|| EndReason::NodeFault("no space left on the disk".to_owned()))
    }

    fn crash_agent(&mut self, node: usize, down: Duration, noticed: Duration) {
        let host = &mut self.nodes[node];
        if !host.agent.is_up {
            return;
        }
        host.agent = Process::dead(self.settings.preset);
        host.executor_link += 1;
        self.faults().forget_intercepted(node);
        self.part(ProcessId::Node(node), noticed);
        self.agenda.note(self.now + down, Occurrence::Starts { place: ProcessId::Node(node) });
    }

    /// A process starts, unless it runs already.
    pub(crate) fn start(&mut self, place: ProcessId) {
        if self.process(place).is_up {
            return;
        }
        if let Some(faults) = &mut self.faults {
            faults.note(Happening::Started(place));
        }
        match place {
            ProcessId::Server => self.start_server(),
            ProcessId::Managers(number) => self.start_managers(number),
            ProcessId::Cluster(number) => self.start_cluster(number),
            ProcessId::Global(number) => self.start_global(number),
            ProcessId::Node(node) => self.start_agent(node),
        }
    }

    fn start_server(&mut self) {
        let (life, log) = self.next_life(ProcessId::Server);
        let settings = &self.settings;
        let mut roles = roles(settings, Epoch(life));
        roles.recover(settings.master.clone(), settings.queues.clone(), log);
        roles.announce_master(self.now, &mut self.effects);
        self.server = Process::new(roles);
        self.server.busy_until = self.now;
        self.let_out(ProcessId::Server);
        self.await_connections(ProcessId::Server);
        for job in self.faults().awaited() {
            self.submit(job);
        }
    }

    fn start_cluster(&mut self, number: usize) {
        let place = ProcessId::Cluster(number);
        let (life, log) = self.next_life(place);
        let federation = self.places.federation.expect("a federation");
        let mut process = cluster(&self.settings, federation, number, life, log);
        process.roles.announce_master(self.now, &mut self.effects);
        self.clusters[number] = process;
        self.clusters[number].busy_until = self.now;
        self.let_out(place);
        self.await_connections(place);
    }

    fn start_global(&mut self, number: usize) {
        let place = ProcessId::Global(number);
        let (life, log) = self.next_life(place);
        let federation = self.places.federation.expect("a federation");
        let mut process = global(&self.settings, federation, number, life, log);
        process.roles.announce_master(self.now, &mut self.effects);
        self.globals[number] = process;
        self.globals[number].busy_until = self.now;
        self.let_out(place);
        self.await_connections(place);
        for job in self.faults().awaited() {
            if self.place_of_client(job) == place {
                self.submit(job);
            }
        }
    }

    /// Starts a new incarnation. Returns its number and the log.
    fn next_life(&mut self, place: ProcessId) -> (u32, Vec<Change>) {
        let writer = self.faults().writer(place);
        writer.life += 1;
        (writer.life, writer.log.clone())
    }

    fn start_managers(&mut self, number: usize) {
        let place = ProcessId::Managers(number);
        let (life, log) = self.next_life(place);
        self.managers[number] = managers(&self.settings, number, life, log);
        self.managers[number].busy_until = self.now;
        self.let_out(place);
        self.await_connections(place);
    }

    /// Notes attempts to connect on all links of a process.
    fn await_connections(&mut self, place: ProcessId) {
        for link in self.places.links_of(place) {
            self.agenda.note(self.now + self.until_retry(link), Occurrence::Connects { link });
        }
    }

    fn start_agent(&mut self, node: usize) {
        let agent = self.nodes[node].new_agent(&self.settings, node);
        self.nodes[node].agent = agent;
        self.put(ProcessId::Node(node), Input::ExecutorConnected { incarnation: 1 });
        for link in self.places.links_of(ProcessId::Node(node)) {
            self.agenda.note(self.now, Occurrence::Connects { link });
        }
    }

    fn kill_executor(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        host.executor_link += 1;
        let dead = host.executor.die();
        for (order, held) in dead.into_running() {
            self.task_ended(node, &order, &held, EndReason::NodeLost);
        }
        self.put(ProcessId::Node(node), Input::ExecutorDisconnected);
        self.put(ProcessId::Node(node), Input::ExecutorConnected { incarnation: 2 });
    }

    // ---- connections -----------------------------------------------------------------------------------------------

    fn break_off(&mut self, link: usize, noticed_outside: Duration, noticed_inside: Duration) {
        if !self.network.link(link).is_connected() {
            return;
        }
        self.network.break_off(self.now, link);
        let life = self.network.link(link).life;
        let mut note = |after: Duration, end: ProcessId| {
            self.agenda.note(self.now + after, Occurrence::Notices { end, link, life });
        };
        let (inner, outer) = self.places.ends(link);
        note(noticed_outside, outer);
        note(noticed_inside, inner);
    }

    /// One end of a connection notices that the connection broke, unless there is a new one by now.
    pub(crate) fn notice(&mut self, end: ProcessId, link: usize, life: u32) {
        let state = self.network.link(link);
        if state.life != life || state.is_connected() {
            return;
        }
        let (inner, outer) = self.places.ends(link);
        if end == inner {
            self.network.give_up(self.now, link, Direction::Inward);
            self.put(inner, disconnected(inner, outer));
        } else {
            self.network.give_up(self.now, link, Direction::Outward);
            self.put(outer, disconnected(outer, inner));
            self.agenda.note(self.now + self.until_retry(link), Occurrence::Connects { link });
        }
    }

    /// Whether the outer process can connect to the inner one now. If only a partition prevents it, notes another
    /// attempt.
    pub(crate) fn can_connect(&mut self, link: usize) -> bool {
        let (inner, outer) = self.places.ends(link);
        if self.network.link(link).is_connected() || !self.process(inner).is_up || !self.process(outer).is_up {
            return false;
        }
        let parted_until = self.faults.as_ref().map_or(Instant::ZERO, |faults| faults.parted_until[link]);
        if parted_until > self.now {
            self.agenda.note(parted_until + self.until_retry(link), Occurrence::Connects { link });
        }
        parted_until <= self.now
    }

    /// The time until the next attempt to connect. It differs between links, so that not all connect at once.
    fn until_retry(&self, link: usize) -> Duration {
        Duration::from_micros(RECONNECT.as_micros() * (link as u64 % 10 + 1) / 10)
    }

    // ---- healing ---------------------------------------------------------------------------------------------------

    fn heal(&mut self) {
        self.faults().is_healed = true;
        self.faults().parted_until.fill(Instant::ZERO);
        self.faults().faulty_until.fill(Instant::ZERO);
        self.faults().slow_until.fill(Instant::ZERO);
        let all: Vec<ProcessId> = self.places.all().collect();
        all.into_iter().for_each(|place| self.start(place));
        for link in 0..self.places.links() {
            self.agenda.note(self.now + self.until_retry(link), Occurrence::Connects { link });
        }
        for node in 0..self.nodes.len() {
            self.drain(node, false);
        }
        for job in self.faults().awaited() {
            self.submit(job);
        }
        let known: Vec<JobId> = (0..self.jobs.len() as u32).filter_map(|job| self.faults().id_of(job)).collect();
        for job in known {
            self.release(job);
        }
    }

    pub(crate) fn release(&mut self, job: JobId) {
        self.ask_about_job(job, JobAction::Release);
    }
}
