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
    NodeConnected {
        node: NodeId,
        incarnation: u64,
    },
    NodeDisconnected {
        node: NodeId,
    },
    MasterConnected {
        incarnation: u64,
    },
    MasterDisconnected,
    HostConnected {
        host: HostId,
        incarnation: u64,
    },
    HostDisconnected {
        host: HostId,
    },
    ClusterConnected {
        cluster: ClusterId,
        incarnation: u64,
    },
    ClusterDisconnected {
        cluster: ClusterId,
    },
    GlobalConnected {
        global: GlobalId,
        incarnation: u64,
    },
    GlobalDisconnected {
        global: GlobalId,
    },
    ExecutorConnected {
        incarnation: u64,
    },
    ExecutorDisconnected,
    /// This many reports of nodes that rest, which only cost time (ADR 90).
    Reports(u64),
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

    /// A report of a node that rests arrives.
    pub fn put_report(&mut self, now: Instant, nanos: u64) {
        if self.is_idle(now) {
            self.busy_until = now + self.charge_nanos(nanos);
        } else if let Some(Input::Reports(waiting)) = self.inbox.back_mut() {
            *waiting += 1;
        } else {
            self.inbox.push_back(Input::Reports(1));
        }
    }

    /// Takes the turns that begin by then and have nothing but such reports.
    pub fn take_reports(&mut self, until: Instant, nanos: u64) {
        while self.busy_until <= until
            && !self.turn_noted
            && let [Input::Reports(waiting)] = self.inbox.make_contiguous()
        {
            let taken = (*waiting).min(TURN as u64);
            *waiting -= taken;
            if *waiting == 0 {
                self.inbox.clear();
            }
            let work = self.charge_nanos(taken * nanos);
            self.busy_until += work;
        }
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
        let (mut taken, mut reports) = (0, 0);
        while taken + reports < TURN
            && let Some(input) = self.inbox.pop_front()
        {
            if let Input::Reports(waiting) = input {
                let now_taken = waiting.min((TURN - taken - reports) as u64);
                reports += now_taken as usize;
                if waiting > now_taken {
                    self.inbox.push_front(Input::Reports(waiting - now_taken));
                }
            } else {
                taken += 1;
                handle(&mut self.roles, now, input, effects);
            }
        }
        self.roles.wake_up(now, effects);
        self.charge(now, taken, costs, slowness, effects);
        let work = self.charge_nanos(reports as u64 * costs.received_report());
        self.busy_until += work;
    }

    /// Costs of less than a microsecond that have not been charged.
    pub fn owed_nanos(&self) -> u64 {
        self.owed_nanos.into()
    }

    /// Adds work to the total, and returns its time in whole microseconds.
    pub fn charge_nanos(&mut self, nanos: u64) -> Duration {
        let nanos = u64::from(self.owed_nanos) + nanos;
        self.owed_nanos = (nanos % 1_000) as u16;
        self.busy += nanos / 1_000;
        Duration::from_micros(nanos / 1_000)
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
        self.busy_until = now + self.charge_nanos(events + messages + disk);
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
        Input::Reports(_) => {}
    }
}
