//! A simulated process: it hosts roles as a daemon does, takes its inputs in turns, and is busy while it works.

use crate::sealing::NOTHING;
use crate::settings::Costs;
use amalgam_core::hosting::{Effects, Envelope, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{ClusterId, Duration, Epoch, GlobalId, HostId, Instant, NodeId};
use std::collections::VecDeque;

/// Maximum number of inputs in one turn, as in the daemons.
const TURN: usize = 1_024;

/// An input of a process. Inputs are taken in the order of their arrival.
#[allow(clippy::large_enum_variant)]
pub enum Input {
    Envelope(Envelope),
    NodeConnected { node: NodeId, incarnation: u64 },
    NodeDisconnected { node: NodeId },
    MasterConnected { incarnation: u64 },
    MasterDisconnected,
    HostConnected { host: HostId, incarnation: u64 },
    HostDisconnected { host: HostId },
    ClusterConnected { cluster: ClusterId, incarnation: u64 },
    ClusterDisconnected { cluster: ClusterId },
    GlobalConnected { global: GlobalId, incarnation: u64 },
    GlobalDisconnected { global: GlobalId },
    ExecutorConnected { incarnation: u64 },
    ExecutorDisconnected,
}

/// `repr(C)` keeps the order of the fields in memory: all fields before the roles fit in one cache line.
#[repr(C)]
pub struct Process {
    pub is_up: bool,
    /// Whether a turn is on the agenda.
    pub turn_noted: bool,
    /// Costs of less than a microsecond that have not been charged.
    owed_nanos: u16,
    /// The process works or waits for its disk until then.
    pub busy_until: Instant,
    /// The earliest wake-up that is on the agenda.
    pub wakeup_noted: Option<Instant>,
    inbox: VecDeque<Input>,
    /// Total time of work and of waiting for the disk, in microseconds.
    pub busy: u64,
    pub roles: Roles,
}

impl Process {
    pub fn new(roles: Roles) -> Process {
        Process {
            is_up: true,
            turn_noted: false,
            owed_nanos: 0,
            busy_until: Instant::ZERO,
            wakeup_noted: None,
            inbox: VecDeque::new(),
            busy: 0,
            roles,
        }
    }

    /// Stands for a process that died: it hosts no role and takes no input.
    pub fn dead(preset: Preset) -> Process {
        let roles = Roles::new(preset, Epoch(0), JobManagerSettings::default(), NOTHING);
        Process { is_up: false, ..Process::new(roles) }
    }

    pub fn put(&mut self, input: Input) {
        self.inbox.push_back(input);
    }

    pub fn has_messages(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Whether the process is not busy and no input waits.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.busy_until <= now && !self.turn_noted && self.inbox.is_empty()
    }

    /// Takes a turn of an idle process with the input that arrives now. Disk writes take `slowness` times as long as
    /// usual.
    pub fn take_at_once(&mut self, now: Instant, input: Input, costs: &Costs, slowness: u64, effects: &mut Effects) {
        handle(&mut self.roles, now, input, effects);
        self.roles.wake_up(now, effects);
        self.charge(now, 1, costs, slowness, effects);
    }

    /// Gives the waiting inputs to the roles and wakes the roles whose wake-up time has come.
    pub fn take_turn(&mut self, now: Instant, costs: &Costs, slowness: u64, effects: &mut Effects) {
        let taken = self.inbox.len().min(TURN);
        for input in self.inbox.drain(..taken) {
            handle(&mut self.roles, now, input, effects);
        }
        self.roles.wake_up(now, effects);
        self.charge(now, taken, costs, slowness, effects);
    }

    /// Makes the process busy for the time that the turn costs.
    fn charge(&mut self, now: Instant, received: usize, costs: &Costs, slowness: u64, effects: &Effects) {
        let handled = effects.handled;
        let events = u64::from(handled.master + handled.globals) * costs.master_event
            + u64::from(handled.job_managers) * costs.job_manager_event
            + u64::from(handled.nodes) * costs.node_event
            + u64::from(handled.decisions) * costs.decision;
        let messages = (received + effects.envelopes.len()) as u64 * costs.message;
        let disk = if effects.durable && self.roles.keeps_log() { costs.disk * slowness } else { 0 };
        let nanos = u64::from(self.owed_nanos) + events + messages + disk;
        self.owed_nanos = (nanos % 1_000) as u16;
        self.busy += nanos / 1_000;
        self.busy_until = now + Duration::from_micros(nanos / 1_000);
    }
}

fn handle(roles: &mut Roles, now: Instant, input: Input, effects: &mut Effects) {
    match input {
        Input::Envelope(envelope) => roles.deliver(now, envelope, effects),
        Input::NodeConnected { node, incarnation } => roles.node_connected(now, node, incarnation, effects),
        Input::NodeDisconnected { node } => roles.node_disconnected(now, node, effects),
        Input::MasterConnected { incarnation } => roles.master_connected(now, incarnation, effects),
        Input::MasterDisconnected => roles.master_disconnected(now, effects),
        Input::HostConnected { host, incarnation } => roles.host_connected(now, host, incarnation, effects),
        Input::HostDisconnected { host } => roles.host_disconnected(now, host, effects),
        Input::ClusterConnected { cluster, incarnation } => roles.cluster_connected(now, cluster, incarnation, effects),
        Input::ClusterDisconnected { cluster } => roles.cluster_disconnected(now, cluster, effects),
        Input::GlobalConnected { global, incarnation } => roles.global_connected(now, global, incarnation, effects),
        Input::GlobalDisconnected { global } => roles.global_disconnected(now, global, effects),
        Input::ExecutorConnected { incarnation } => roles.executor_connected(now, incarnation, effects),
        Input::ExecutorDisconnected => roles.executor_disconnected(now, effects),
    }
}
