//! How each fault changes a simulation.

use super::{Answer, Fault, Faults, Happening, Moment, Planned, Turn};
use crate::network::Direction;
use crate::places::Place;
use crate::process::{Input, Process};
use crate::sealing::of_life;
use crate::simulation::{Occurrence, Simulation};
use amalgam_core::hosting::{Fact, Letter, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::protocol::{Address, JobAction, Message, ToMaster};
use amalgam_core::vocabulary::{ClientId, Duration, EndReason, Instant, JobId, NodeId};

/// Who asks for things beside the submitters.
const OPERATOR: Address = Address::Client(ClientId(u64::MAX));
/// An agent tries so often to reach its server.
const RECONNECT: Duration = Duration::from_secs(1);
/// What passes between a master and job managers elsewhere is not yet said again after a break.
const NO_FAULTS_YET: &str = "nothing goes wrong yet where job managers have processes of their own";

impl Simulation {
    /// Lets these things go wrong, each at its time.
    pub fn plan(&mut self, plan: Vec<Planned>) {
        assert!(self.managers.is_empty(), "{NO_FAULTS_YET}");
        for (number, planned) in plan.iter().enumerate() {
            self.agenda.note(planned.at, Occurrence::Strikes { fault: number as u32 });
        }
        let mut faults = Faults::new(plan, self.nodes.len(), self.jobs.len());
        faults.log = self.server.roles.durable();
        self.faults = Some(Box::new(faults));
    }

    /// What has happened since this was last asked.
    pub fn take_happened(&mut self) -> Vec<Happening> {
        self.faults.as_mut().map(|faults| faults.take_happened()).unwrap_or_default()
    }

    fn faults(&mut self) -> &mut Faults {
        self.faults.as_mut().expect("only a simulation with faults has faults on its agenda")
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
            Fault::Crash { place: Place::Managers(_), .. } => unreachable!("{NO_FAULTS_YET}"),
            Fault::Crash { place: Place::Server, down, noticed } => self.crash_server(down, noticed),
            Fault::Crash { place: Place::Node(node), down, noticed } => self.crash_agent(node, down, noticed),
            Fault::DiskFails { reached, down, noticed } => {
                self.save_part_of_turn(reached);
                self.crash_server(down, noticed);
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
            Fault::Break { node, lasts, noticed_by_node, noticed_by_server } => {
                let parted = self.now + lasts;
                let until = &mut self.faults().parted_until[node];
                *until = parted.max(*until);
                self.break_off(node, noticed_by_node, noticed_by_server);
            }
            Fault::Pause { place, length } => {
                let until = self.now + length;
                let process = self.process(place);
                process.busy_until = process.busy_until.max(until);
            }
            Fault::Act { job, action } => {
                if let Some(job) = self.faults().id_of(job) {
                    self.ask_master(ToMaster::Control { job, action });
                }
            }
            Fault::SubmitAgain { job } => {
                if self.faults().answers[job as usize] != Answer::NotAsked {
                    self.submit(job);
                }
            }
            Fault::Drain { node, drained } => {
                self.ask_master(ToMaster::Drain { node: NodeId(node as u32), drained });
            }
            Fault::Intrude { how, which } => {
                if let Some(intruding) = self.intrusion(how, which) {
                    self.intrude(intruding);
                }
            }
            Fault::Heal => self.heal(),
        }
    }

    /// Whether there is what the fault would strike.
    fn finds_something(&self, fault: &Fault) -> bool {
        let is_up = |place: Place| match place {
            Place::Server => self.server.is_up,
            Place::Managers(number) => self.managers[number].is_up,
            Place::Node(node) => self.nodes[node].agent.is_up,
        };
        let faults = self.faults.as_ref().expect("only a simulation with faults has faults on its agenda");
        match *fault {
            Fault::Crash { place, .. } | Fault::Pause { place, .. } => is_up(place),
            Fault::DiskFails { .. } => self.server.is_up,
            Fault::Act { job, .. } => faults.id_of(job).is_some(),
            Fault::SubmitAgain { job } => faults.answers[job as usize] != Answer::NotAsked,
            Fault::Intrude { how, which } => self.intrusion(how, which).is_some(),
            _ => true,
        }
    }

    /// What waits for this moment strikes soon, and before `end` where the moment has one.
    pub(crate) fn on_moment(&mut self, moment: Moment, end: Option<Instant>) {
        let Some(faults) = &mut self.faults else { return };
        for (after, fault) in faults.take_armed(moment) {
            let half = end.map_or(Duration::MAX, |end| Duration::from_micros(end.since(self.now).as_micros() / 2));
            self.agenda.note(self.now + after.min(half), Occurrence::Strikes { fault });
        }
    }

    /// Keeps what a turn of the server leads to until it is over.
    pub(crate) fn hold(&mut self, turn: Turn) {
        let (over, is_moment) = (turn.over, turn.changes_something());
        self.faults().hold(turn);
        if is_moment {
            self.on_moment(Moment::InTurn, Some(over));
        }
    }

    fn ask_master(&mut self, body: ToMaster) {
        let letter = Letter { from: OPERATOR, to: Address::Master, message: Message::ToMaster(body) };
        self.put(Place::Server, Input::Letter(letter));
    }

    // ---- processes -------------------------------------------------------------------------------------------------

    fn crash_server(&mut self, down: Duration, noticed: Duration) {
        if !self.server.is_up {
            return;
        }
        self.server = Process::dead(self.settings.preset);
        if let Some(turn) = self.faults().turn.take() {
            let changes = turn.facts.into_iter().filter_map(|fact| match fact {
                Fact::Change(change) => Some(change),
                Fact::Record(_) => None,
            });
            self.faults().note(Happening::Undone(changes.collect()));
        }
        for node in 0..self.nodes.len() {
            self.network.forget_delivered(node);
            self.break_off(node, noticed, Duration::ZERO);
        }
        self.agenda.note(self.now + down, Occurrence::Starts { place: Place::Server });
    }

    /// The first changes of the turn that is being written have reached the disk.
    fn save_part_of_turn(&mut self, thousandths: u32) {
        let Some(turn) = &mut self.faults().turn else { return };
        let reached = turn.facts.len() * thousandths as usize / 1_000;
        // Records are told when they are durable, and until then to nobody.
        let reached: Vec<Fact> = turn.facts.drain(..reached).filter(Fact::is_change).collect();
        self.tell(Place::Server, &reached, &[]);
    }

    /// How many times as long as usual the disk of this place takes now.
    pub(crate) fn slowness(&self, place: Place) -> u64 {
        self.faults.as_ref().map_or(1, |faults| faults.slowness(self.now, place))
    }

    /// Why no process can be made on the node; `None` where it can.
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
        self.faults().forget_overheard(node);
        self.network.forget_delivered(node);
        self.break_off(node, Duration::ZERO, noticed);
        self.agenda.note(self.now + down, Occurrence::Starts { place: Place::Node(node) });
    }

    /// A process starts, unless it runs already.
    pub(crate) fn start(&mut self, place: Place) {
        if self.process(place).is_up {
            return;
        }
        if let Some(faults) = &mut self.faults {
            faults.note(Happening::Started(place));
        }
        match place {
            Place::Server => self.start_server(),
            Place::Managers(_) => unreachable!("{NO_FAULTS_YET}"),
            Place::Node(node) => self.start_agent(node),
        }
    }

    fn start_server(&mut self) {
        let faults = self.faults();
        faults.epoch.0 += 1;
        let (epoch, log) = (faults.epoch, faults.log.clone());
        let settings = &self.settings;
        let mut roles =
            Roles::new(settings.preset, epoch, JobManagerSettings::default(), of_life(settings.seed, epoch));
        roles.recover(settings.master.clone(), settings.queues.clone(), log);
        roles.announce_master(self.now, &mut self.effects);
        self.server = Process::new(roles);
        self.server.busy_until = self.now;
        self.let_out(Place::Server);
        for node in 0..self.nodes.len() {
            self.agenda.note(self.now + self.until_retry(node), Occurrence::Connects { node });
        }
        for job in self.faults().awaited() {
            self.submit(job);
        }
    }

    fn start_agent(&mut self, node: usize) {
        let agent = self.nodes[node].new_agent(&self.settings, node);
        self.nodes[node].agent = agent;
        self.put(Place::Node(node), Input::ExecutorConnected { incarnation: 1 });
        self.agenda.note(self.now, Occurrence::Connects { node });
    }

    fn kill_executor(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        host.executor_link += 1;
        let dead = host.executor.die();
        for (order, held) in dead.into_running() {
            self.task_ended(node, &order, &held, EndReason::NodeLost);
        }
        self.put(Place::Node(node), Input::ExecutorDisconnected);
        self.put(Place::Node(node), Input::ExecutorConnected { incarnation: 2 });
    }

    // ---- connections -----------------------------------------------------------------------------------------------

    fn break_off(&mut self, node: usize, noticed_by_node: Duration, noticed_by_server: Duration) {
        if !self.network.link(node).is_connected() {
            return;
        }
        self.network.break_off(self.now, node);
        let life = self.network.link(node).life;
        let mut note = |after: Duration, end: Place| {
            self.agenda.note(self.now + after, Occurrence::Notices { end, node, life });
        };
        note(noticed_by_node, Place::Node(node));
        note(noticed_by_server, Place::Server);
    }

    /// One end of a connection notices that it broke, unless there is another one by now.
    pub(crate) fn notice(&mut self, end: Place, node: usize, life: u32) {
        let link = self.network.link(node);
        if link.life != life || link.is_connected() {
            return;
        }
        match end {
            Place::Server => {
                self.network.give_up(self.now, node, Direction::Inward);
                self.put(end, Input::NodeDisconnected { node: NodeId(node as u32) });
            }
            Place::Managers(_) => unreachable!("{NO_FAULTS_YET}"),
            Place::Node(_) => {
                self.network.give_up(self.now, node, Direction::Outward);
                self.put(end, Input::MasterDisconnected);
                self.agenda.note(self.now + self.until_retry(node), Occurrence::Connects { node });
            }
        }
    }

    /// Whether the node reaches the server now; where only a partition is in the way, it tries again.
    pub(crate) fn can_connect(&mut self, node: usize) -> bool {
        if self.network.link(node).is_connected() || !self.server.is_up || !self.nodes[node].agent.is_up {
            return false;
        }
        let parted_until = self.faults.as_ref().map_or(Instant::ZERO, |faults| faults.parted_until[node]);
        if parted_until > self.now {
            self.agenda.note(parted_until + self.until_retry(node), Occurrence::Connects { node });
        }
        parted_until <= self.now
    }

    /// Agents do not all come at once.
    fn until_retry(&self, node: usize) -> Duration {
        Duration::from_micros(RECONNECT.as_micros() * (node as u64 % 10 + 1) / 10)
    }

    // ---- healing ---------------------------------------------------------------------------------------------------

    fn heal(&mut self) {
        self.faults().is_healed = true;
        self.faults().parted_until.fill(Instant::ZERO);
        self.faults().faulty_until.fill(Instant::ZERO);
        self.faults().slow_until.fill(Instant::ZERO);
        self.start(Place::Server);
        for node in 0..self.nodes.len() {
            self.start(Place::Node(node));
            self.agenda.note(self.now + self.until_retry(node), Occurrence::Connects { node });
            self.ask_master(ToMaster::Drain { node: NodeId(node as u32), drained: false });
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
        self.ask_master(ToMaster::Control { job, action: JobAction::Release });
    }
}
