//! What checkers see of a simulation: everything, and they can change nothing.

use crate::faults::Faults;
use crate::places::Place;
use crate::process::Process;
use crate::settings::Settings;
use crate::simulation::Simulation;
use amalgam_core::dispatch::JobState;
use amalgam_core::job_manager::JobManager;
use amalgam_core::master::Master;
use amalgam_core::node::NodeAgent;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{AttemptId, Digest, Duration, Instant, JobId, Kinds, NodeId, Resources};
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

    /// Those of processes that are up, and the place of each.
    pub fn job_managers(&self) -> impl Iterator<Item = (Place, &JobManager)> {
        let managers = (0..).zip(&self.managers).map(|(number, process)| (Place::Managers(number), process));
        let globals = (0..).zip(&self.globals).map(|(number, process)| (Place::Global(number), process));
        let all = std::iter::once((Place::Server, &self.server)).chain(managers).chain(globals);
        let up = all.filter(|(_, process)| process.is_up);
        up.flat_map(|(place, process)| process.roles.jobs.values().map(move |manager| (place, &**manager)))
    }

    pub fn job_manager(&self, job: JobId) -> Option<&JobManager> {
        let all = std::iter::once(&self.server).chain(&self.managers).chain(&self.globals);
        let up = all.filter(|process| process.is_up);
        up.filter_map(|process| process.roles.jobs.get(&job)).map(|manager| &**manager).next()
    }

    pub fn master(&self) -> Option<&Master> {
        self.server.roles.master.as_deref().filter(|_| self.server.is_up)
    }

    /// The agent of a node; `None` while it is down.
    pub fn agent(&self, node: usize) -> Option<&NodeAgent> {
        self.nodes[node].agent.roles.nodes.get(NodeId(node as u32))
    }

    /// What an attempt that runs there was given.
    pub fn inputs_of(&self, node: usize, attempt: AttemptId) -> Option<impl Iterator<Item = Digest>> {
        self.nodes[node].executor.inputs_of(attempt)
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

    /// The changes that are durable, of each process that writes some.
    pub fn log(&self) -> impl Iterator<Item = &Change> {
        self.faults.iter().flat_map(|faults| faults.log())
    }

    /// Whether the roles of this process took something in this step: else what they know is what they knew before.
    pub fn moved(&self, place: Place) -> bool {
        self.turns.contains(&place)
    }

    /// Whether those of the server did, or of a process of job managers.
    pub fn server_moved(&self) -> bool {
        self.turns.iter().any(|place| !matches!(place, Place::Node(_)))
    }

    /// The nodes that have told everything and been told everything, as far as that, or what they and the server know,
    /// may be new since the last step.
    pub fn quiet_nodes(&self) -> impl Iterator<Item = usize> {
        let moved = |node: usize| self.server_moved() || self.turns.contains(&Place::Node(node));
        self.nodes().filter(move |&node| moved(node) && self.is_quiet(node))
    }

    /// Whether a node, the server and the processes of job managers have told each other everything: no message between them is
    /// on its way or waits to be taken.
    pub fn is_quiet(&self, node: usize) -> bool {
        let has_taken_all = |process: &Process| process.is_up && !process.has_mail();
        let is_quiet = |link: &usize| self.network.link(*link).is_quiet();
        is_quiet(&node)
            && has_taken_all(&self.server)
            && has_taken_all(&self.nodes[node].agent)
            && self.managers.iter().all(has_taken_all)
            && self.inner_links().chain(self.links_with_managers(node)).all(|link| is_quiet(&link))
    }

    /// Those of the server with the processes of job managers.
    fn inner_links(&self) -> impl Iterator<Item = usize> {
        (0..self.places.managers)
            .filter_map(|number| self.places.link(Place::Server, Place::Managers(number)))
            .map(|(link, _)| link)
    }

    fn links_with_managers(&self, node: usize) -> impl Iterator<Item = usize> {
        let link = move |number| self.places.link(Place::Managers(number), Place::Node(node));
        (0..self.places.managers).filter_map(link).map(|(link, _)| link)
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
    let jobs = master.dispatch().jobs_from(JobId(0));
    jobs.filter(|(_, state)| !matches!(state, JobState::Ended(_))).map(|(job, _)| job.id)
}
