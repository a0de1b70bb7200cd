//! What checkers see of a simulation: everything, and they can change nothing.

use crate::faults::Faults;
use crate::places::Place;
use crate::process::Process;
use crate::settings::Settings;
use crate::simulation::Simulation;
use amalgam_core::hosting::Roles;
use amalgam_core::master::{JobState, Master};
use amalgam_core::node::NodeAgent;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{Duration, Instant, JobId, Kinds, NodeId, Resources};
use amalgam_workload::trace::TraceJob;

/// No work of an agent takes so long.
const HANG: Duration = Duration::from_secs(1);

impl Simulation {
    pub fn now(&self) -> Instant {
        self.now
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn jobs(&self) -> &[TraceJob] {
        &self.jobs
    }

    pub fn nodes(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    /// The server's roles; `None` while it is down.
    pub fn server(&self) -> Option<&Roles> {
        Some(&self.server.roles).filter(|_| self.server.is_up)
    }

    pub fn master(&self) -> Option<&Master> {
        self.server()?.master.as_deref()
    }

    /// The agent of a node; `None` while it is down.
    pub fn agent(&self, node: usize) -> Option<&NodeAgent> {
        self.nodes[node].agent.roles.nodes.get(NodeId(node as u32))
    }

    /// The agent of a node is up, has taken everything and works at nothing.
    pub fn is_idle(&self, node: usize) -> bool {
        let agent = &self.nodes[node].agent;
        agent.is_up && !agent.has_mail() && agent.busy_until <= self.now
    }

    /// The agent of a node takes nothing for longer than its work explains.
    pub fn hangs(&self, node: usize) -> bool {
        self.nodes[node].agent.busy_until > self.now + HANG
    }

    /// The custom kinds of resources that the master has named.
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// With the custom kinds that the master has named so far: no others can be used.
    pub fn capacity(&self, node: usize) -> Resources {
        self.nodes[node].offers(&self.kinds)
    }

    /// Ends that the executor keeps because nobody acknowledged them.
    pub fn unacknowledged(&self, node: usize) -> usize {
        self.nodes[node].executor.ends()
    }

    /// The changes that are durable.
    pub fn log(&self) -> &[Change] {
        self.faults.as_deref().map_or(&[], Faults::log)
    }

    /// Whether the server's roles took something in this step: else what they know is what they knew before.
    pub fn server_moved(&self) -> bool {
        self.turns.contains(&Place::Server)
    }

    /// The nodes that have told everything and been told everything, as far as that, or what they and the server know,
    /// may be new since the last step.
    pub fn quiet_nodes(&self) -> impl Iterator<Item = usize> {
        let moved = |node: usize| self.server_moved() || self.turns.contains(&Place::Node(node));
        self.nodes().filter(move |&node| moved(node) && self.is_quiet(node))
    }

    /// Whether a node and the server have told each other everything: no message between them is on its way or waits to
    /// be taken.
    pub fn is_quiet(&self, node: usize) -> bool {
        let has_taken_all = |process: &Process| process.is_up && !process.has_mail();
        self.network.link(node).is_quiet() && has_taken_all(&self.server) && has_taken_all(&self.nodes[node].agent)
    }

    pub fn is_healed(&self) -> bool {
        self.faults.as_deref().is_some_and(Faults::is_healed)
    }

    /// Every client has its answer, and every job that was taken has ended.
    pub fn is_done(&self) -> bool {
        let all_answered = self.faults.as_deref().is_some_and(Faults::all_answered);
        all_answered && self.master().is_some_and(|master| unended(master).next().is_none())
    }
}

/// The jobs that have not ended.
pub fn unended(master: &Master) -> impl Iterator<Item = JobId> {
    let jobs = master.jobs_from(JobId(0));
    jobs.filter(|(_, state)| !matches!(state, JobState::Ended(_))).map(|(job, _)| job.id)
}
