//! The read-only view of a simulation for checkers.

use crate::faults::Faults;
use crate::places::ProcessId;
use crate::process::Process;
use crate::settings::Settings;
use crate::simulation::Simulation;
use amalgam_core::dispatch::{Dispatcher, JobState};
use amalgam_core::job_manager::JobManager;
use amalgam_core::master::Master;
use amalgam_core::node::NodeAgent;
use amalgam_core::role::Change;
use amalgam_core::scheduling::{Ledger, NodeState};
use amalgam_core::vocabulary::{AttemptId, Digest, Duration, Instant, JobId, Kinds, NodeId, Resources};
use amalgam_workload::trace::TraceJob;

/// Longer than any work of an agent takes.
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

    /// The job managers of all processes that are up, with their places.
    pub fn job_managers(&self) -> impl Iterator<Item = (ProcessId, &JobManager)> {
        let managers = (0..).zip(&self.managers).map(|(number, process)| (ProcessId::Managers(number), process));
        let globals = (0..).zip(&self.globals).map(|(number, process)| (ProcessId::Global(number), process));
        let all = std::iter::once((ProcessId::Server, &self.server)).chain(managers).chain(globals);
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

    /// The dispatchers of the processes that are up and accept jobs: the server, or the global masters.
    pub fn dispatchers(&self) -> impl Iterator<Item = &Dispatcher> {
        let up = self.globals.iter().filter(|process| process.is_up);
        let globals = up.filter_map(|process| process.roles.global.as_deref()).map(|global| global.dispatch());
        self.master().map(|master| master.dispatch()).into_iter().chain(globals)
    }

    /// The dispatcher that knows the job.
    pub fn dispatcher(&self, job: JobId) -> Option<&Dispatcher> {
        self.dispatchers().find(|dispatcher| dispatcher.job(job).is_some())
    }

    /// The ledger of the node's master; `None` while the master is down.
    pub fn ledger_of(&self, node: usize) -> Option<&Ledger> {
        let process = self.process_at(self.places.master_of(node));
        process.roles.master.as_deref().filter(|_| process.is_up).map(|master| master.ledger())
    }

    /// Whether the ledger of its master shows the node as up.
    pub fn is_counted_on(&self, node: usize) -> bool {
        self.ledger_of(node).is_some_and(|ledger| ledger.state(NodeId(node as u32)) == Some(NodeState::Up))
    }

    /// The agent of a node; `None` while it is down.
    pub fn agent(&self, node: usize) -> Option<&NodeAgent> {
        self.nodes[node].agent.roles.nodes.get(NodeId(node as u32))
    }

    /// The input files of an attempt that runs on the node.
    pub fn inputs_of(&self, node: usize, attempt: AttemptId) -> Option<impl Iterator<Item = Digest>> {
        self.nodes[node].executor.inputs_of(attempt)
    }

    /// Whether the agent of a node is up, has an empty inbox and is not busy.
    pub fn is_idle(&self, node: usize) -> bool {
        let agent = &self.nodes[node].agent;
        agent.is_up && !agent.has_messages() && agent.busy_until <= self.now
    }

    /// Whether the agent of a node is busy for longer than its work explains.
    pub fn hangs(&self, node: usize) -> bool {
        self.nodes[node].agent.busy_until > self.now + HANG
    }

    /// Whether any master, global master or node agent is busy for longer than its work explains.
    pub fn some_hang(&self) -> bool {
        let processes = std::iter::once(&self.server).chain(&self.clusters).chain(&self.globals);
        processes.into_iter().any(|process| process.busy_until > self.now + HANG)
            || self.nodes().any(|node| self.hangs(node))
    }

    /// The custom kinds of resources that the master has named.
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// The capacity of a node, with the custom kinds that the master has named so far: no others can be used.
    pub fn capacity(&self, node: usize) -> Resources {
        self.nodes[node].offers(&self.kinds)
    }

    /// Number of ends that the executor keeps because they were not acknowledged.
    pub fn unacknowledged(&self, node: usize) -> usize {
        self.nodes[node].executor.ends()
    }

    /// The durable changes of all processes that have a log.
    pub fn log(&self) -> impl Iterator<Item = &Change> {
        self.faults.iter().flat_map(|faults| faults.log())
    }

    /// Whether this process took a turn in this step. If not, the state of its roles is unchanged.
    pub fn moved(&self, place: ProcessId) -> bool {
        self.turns.contains(&place)
    }

    /// Whether any process other than a node took a turn in this step.
    pub fn server_moved(&self) -> bool {
        self.turns.iter().any(|place| !matches!(place, ProcessId::Node(_)))
    }

    /// The quiet nodes (see [`Simulation::is_quiet`]) for which this, or the state of the node or of the server, may
    /// have changed in this step.
    pub fn quiet_nodes(&self) -> impl Iterator<Item = usize> {
        let moved = |node: usize| self.server_moved() || self.turns.contains(&ProcessId::Node(node));
        self.nodes().filter(move |&node| moved(node) && self.is_quiet(node))
    }

    /// Whether no message is in transit or waits in an inbox between a node, its master, the global masters and the
    /// processes of job managers.
    pub fn is_quiet(&self, node: usize) -> bool {
        let has_taken_all = |process: &Process| process.is_up && !process.has_messages();
        let is_quiet = |link: &usize| self.network.link(*link).is_quiet();
        is_quiet(&node)
            && has_taken_all(self.process_at(self.places.master_of(node)))
            && has_taken_all(&self.nodes[node].agent)
            && self.managers.iter().chain(&self.globals).all(has_taken_all)
            && self.inner_links(node).chain(self.links_with_managers(node)).all(|link| is_quiet(&link))
    }

    /// The links of the node's master with the processes of job managers, or with global masters.
    fn inner_links(&self, node: usize) -> impl Iterator<Item = usize> {
        let master = self.places.master_of(node);
        let managers = (0..self.places.managers).map(ProcessId::Managers);
        let outer = managers.chain((0..self.places.globals()).map(ProcessId::Global));
        outer.filter_map(move |place| self.places.link(master, place)).map(|(link, _)| link)
    }

    fn links_with_managers(&self, node: usize) -> impl Iterator<Item = usize> {
        let link = move |number| self.places.link(ProcessId::Managers(number), ProcessId::Node(node));
        (0..self.places.managers).filter_map(link).map(|(link, _)| link)
    }

    pub fn is_healed(&self) -> bool {
        self.faults.as_deref().is_some_and(Faults::is_healed)
    }

    /// Whether every client has its answer and every accepted job has ended.
    pub fn is_done(&self) -> bool {
        let all_answered = self.faults.as_deref().is_some_and(Faults::all_answered);
        all_answered && self.all_dispatch() && self.unended().next().is_none()
    }

    /// Whether every process that accepts jobs is up.
    pub fn all_dispatch(&self) -> bool {
        self.dispatchers().count() == self.places.globals().max(1)
    }

    /// The jobs that have not ended, of all processes that accept jobs and are up.
    pub fn unended(&self) -> impl Iterator<Item = JobId> {
        let jobs = self.dispatchers().flat_map(|dispatcher| dispatcher.jobs_from(JobId(0)));
        jobs.filter(|(_, state)| !matches!(state, JobState::Ended(_))).map(|(job, _)| job.id)
    }

    fn process_at(&self, place: ProcessId) -> &Process {
        match place {
            ProcessId::Server => &self.server,
            ProcessId::Managers(number) => &self.managers[number],
            ProcessId::Cluster(number) => &self.clusters[number],
            ProcessId::Global(number) => &self.globals[number],
            ProcessId::Node(node) => &self.nodes[node].agent,
        }
    }
}
