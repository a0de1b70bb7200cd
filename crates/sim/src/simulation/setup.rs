//! How a simulation is set up: its processes in their incarnations, and the first entries of its agenda.

use super::{Occurrence, Simulation};
use crate::agenda::Agenda;
use crate::execution::Execution;
use crate::inputs::Inputs;
use crate::metrics::{Metrics, WINDOW};
use crate::network::Network;
use crate::node::SimulatedNode;
use crate::places::{self, Places, ProcessId};
use crate::process::Process;
use crate::sealing::of_life;
use crate::settings::{Costs, NetworkSettings, ONCE_ANOTHER_ENDED, Settings};
use crate::story::Story;
use amalgam_core::hosting::{Effects, Managers, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::master::MasterSettings;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{ClusterId, Duration, Epoch, Federation, GlobalId, Instant, NodeId, Resources, Seat};
use amalgam_workload::trace::{Node, TraceJob, Workload};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Epoch of the server's first incarnation.
const EPOCH: Epoch = Epoch(1);

impl Simulation {
    pub fn new(mut settings: Settings, nodes: &[Node], workload: &Workload) -> Simulation {
        complete(&mut settings, nodes);
        let federation = settings.federation_of(nodes.len());
        let places = Places { nodes: nodes.len(), managers: usize::from(settings.manager_processes), federation };
        let network = Network::new(places.links(), settings.network, settings.seed);
        let mut jobs = workload.jobs.clone();
        let inputs = settings.inputs.map(|inputs| Box::new(Inputs::new(inputs, settings.seed, nodes, &mut jobs)));
        let metrics = metrics(&settings, nodes, &jobs);
        let mut simulation = Simulation {
            now: Instant::ZERO,
            agenda: Agenda::default(),
            envelopes: Slab::default(),
            orders: Slab::default(),
            places,
            server: match federation {
                None => server(&settings, nodes),
                Some(_) => Process::dead(settings.preset),
            },
            clusters: clusters(&settings, places, nodes),
            globals: (0..places.globals())
                .map(|number| global(&settings, federation.expect("a federation"), number, 1, Vec::new()))
                .collect(),
            managers: (0..places.managers).map(|number| managers(&settings, number, 1, Vec::new())).collect(),
            nodes: nodes.iter().map(|node| SimulatedNode::new(&settings, node)).collect(),
            network,
            execution: Execution::new(settings.execution, settings.seed),
            inputs,
            to_arrive: jobs.len(),
            jobs,
            kinds: settings.master.dispatch.kinds.clone(),
            metrics,
            last_progress: Instant::ZERO,
            events: 0,
            at_once: VecDeque::new(),
            turns: Vec::new(),
            effects: Effects::default(),
            reactions: Vec::new(),
            faults: None,
            story: settings.story.map(Story::of),
            fetches: 0,
            watched: Vec::new(),
            followers: BTreeMap::new(),
            resting: None,
            settings,
        };
        simulation.note_starts();
        simulation
    }

    /// Notes when each node starts, and when the other processes connect.
    fn note_starts(&mut self) {
        let (places, nodes) = (self.places, self.nodes.len());
        for node in 0..nodes {
            let at = Instant(self.settings.join_over.as_micros() * node as u64 / nodes as u64);
            self.agenda.note(at, Occurrence::Starts { place: ProcessId::Node(node) });
        }
        for number in 0..places.managers {
            let (link, _) = places.link(ProcessId::Server, ProcessId::Managers(number)).expect("linked to the server");
            self.agenda.note(Instant::ZERO, Occurrence::Connects { link });
        }
        let between = (0..places.clusters()).flat_map(|c| (0..places.globals()).map(move |g| (c, g)));
        for (cluster, global) in between {
            let link = places.link(ProcessId::Cluster(cluster), ProcessId::Global(global)).expect("linked").0;
            self.agenda.note(Instant::ZERO, Occurrence::Connects { link });
        }
    }

    /// Puts the arrivals of the jobs on the agenda.
    pub(crate) fn open(&mut self) {
        for (number, job) in self.jobs.iter().enumerate() {
            if job.arrival == ONCE_ANOTHER_ENDED {
                self.followers.entry(job.spec.queue.clone()).or_default().push_back(number as u32);
                continue;
            }
            self.agenda.note(Instant::ZERO + job.arrival, Occurrence::Arrives { job: number as u32 });
        }
        self.agenda.note(Instant::ZERO + WINDOW, Occurrence::WindowEnds);
    }

    /// Lets the nodes join before the first job arrives, without costs or delays.
    pub(super) fn assemble(&mut self) {
        let costs = std::mem::replace(&mut self.settings.costs, Costs::NONE);
        self.network.set_delays(NetworkSettings { delay: Duration::ZERO, ..NetworkSettings::default() });
        while self.agenda.next_at() == Some(Instant::ZERO) {
            self.step();
        }
        self.settings.costs = costs;
        self.network.set_delays(self.settings.network);
    }
}

/// Sets what follows from the preset, from other settings and from the nodes.
fn complete(settings: &mut Settings, nodes: &[Node]) {
    if settings.preset.is_federated() {
        settings.federation.get_or_insert((1, 1));
        // Job managers run in the global masters.
        settings.manager_processes = 0;
    }
    settings.master.dispatch.hosts = settings.manager_processes;
    if settings.federation.is_some() {
        let custom = nodes.iter().flat_map(|node| &node.resources.custom);
        // Kinds beyond the limit are ignored: no node offers them.
        custom.for_each(|(name, _)| drop(settings.master.dispatch.kinds.add(name)));
    }
}

fn metrics(settings: &Settings, nodes: &[Node], jobs: &[TraceJob]) -> Metrics {
    let capacities: Vec<Resources> = nodes.iter().map(|node| node.resources.basic).collect();
    let mut metrics = Metrics::new(jobs, &capacities);
    if settings.master.dispatch.beside.is_some() || settings.queues.presets().next().is_some() {
        metrics.keep_apart(settings.preset.name());
    }
    metrics.measure_guarantees(&settings.queues, jobs, &capacities);
    settings.watched_job.into_iter().for_each(|job| metrics.watch(job));
    metrics.keeps_allowances = settings.oracle;
    metrics
}

/// The server, with the names of the nodes in its log.
fn server(settings: &Settings, nodes: &[Node]) -> Process {
    let mut roles = roles(settings, EPOCH);
    let named = named(nodes, 0..nodes.len() as u32);
    roles.recover(settings.master.clone(), settings.queues.clone(), named);
    Process::new(roles)
}

/// The masters of a federation's clusters, each with the names of its nodes in its log.
fn clusters(settings: &Settings, places: Places, nodes: &[Node]) -> Vec<Process> {
    let first = |number: usize| {
        let federation = places.federation.expect("a federation");
        let names = named(nodes, federation.nodes_of(ClusterId(number as u8)));
        cluster(settings, federation, number, 1, names)
    };
    (0..places.clusters()).map(first).collect()
}

/// The log entries that name the nodes with these numbers. Numbers without a node are left out.
fn named(nodes: &[Node], numbers: std::ops::Range<u32>) -> Vec<Change> {
    let there = numbers.filter_map(|number| Some((number, nodes.get(number as usize)?)));
    there.map(|(number, node)| Change::NodeNamed { node: NodeId(number), name: node.name.clone() }).collect()
}

pub(crate) fn roles(settings: &Settings, epoch: Epoch) -> Roles {
    roles_seated(settings, epoch, None)
}

fn roles_seated(settings: &Settings, epoch: Epoch, seat: Option<Seat>) -> Roles {
    let federation = seat.map(|(Seat::Cluster(federation, _) | Seat::Global(federation, _))| federation);
    let of_managers = JobManagerSettings {
        federation,
        token_life: settings.master.token_life,
        node_grace: settings.master.node_grace,
        ..JobManagerSettings::default()
    };
    let managers = if settings.manager_processes > 0 { Managers::Shared } else { Managers::WithTheMaster };
    let roles = Roles::new(settings.preset, epoch, of_managers, of_life(settings.seed, epoch));
    roles.with_managers(managers).seated(seat)
}

/// The master of a cluster in the given incarnation, recovered from its log.
pub(super) fn cluster(
    settings: &Settings,
    federation: Federation,
    number: usize,
    life: u32,
    log: Vec<Change>,
) -> Process {
    let own = ClusterId(number as u8);
    // Each master has a key of its own.
    let seat = Some(Seat::Cluster(federation, own));
    let settings = Settings { seed: settings.seed.wrapping_add(number as u64), ..settings.clone() };
    let mut roles = roles_seated(&settings, Epoch(life), seat);
    let master = MasterSettings { federated: Some((federation, own)), ..settings.master.clone() };
    roles.recover(master, settings.queues.clone(), log);
    Process::new(roles)
}

/// A global master in the given incarnation, recovered from its log.
pub(super) fn global(
    settings: &Settings,
    federation: Federation,
    number: usize,
    life: u32,
    log: Vec<Change>,
) -> Process {
    let own = GlobalId(number as u8);
    let epoch = Epoch::of_host(own.host(), life).expect("a process crashes less often than incarnations can count");
    let mut roles = roles_seated(settings, epoch, Some(Seat::Global(federation, own)));
    roles.recover_global(settings.master.dispatch.clone(), settings.queues.clone(), log);
    Process::new(roles)
}

/// A process of job managers in the given incarnation, recovered from its log.
pub(super) fn managers(settings: &Settings, number: usize, life: u32, log: Vec<Change>) -> Process {
    let host = places::host(number);
    let epoch = Epoch::of_host(host, life).expect("a process crashes less often than incarnations can count");
    let mut roles = roles(settings, epoch).with_managers(Managers::Here);
    roles.recover_job_managers(log);
    Process::new(roles)
}
