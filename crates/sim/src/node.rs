//! A simulated node: its agent, and the executor beside it, which outlives the agent.

use crate::executor::Executor;
use crate::process::Process;
use crate::sealing::NOTHING;
use crate::settings::Settings;
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::node::{NodeSettings, Uploads};
use amalgam_core::vocabulary::{Duration, Epoch, Instant, Kinds, NodeId, Resources};
use amalgam_workload::trace::Node;

/// Between the request to terminate and the kill, as in the daemons.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// Aligned to cache lines, because thousands of nodes are accessed one after the other.
#[repr(C, align(64))]
pub struct SimulatedNode {
    pub agent: Process,
    node: Box<Node>,
    pub executor: Executor,
    /// When the executor will have carried out its last order. It carries out one order after the other.
    pub ordered_until: Instant,
    /// Counts the connections of agent and executor: orders and reports of an earlier connection are lost.
    pub executor_link: u32,
    /// The files that it sends to other nodes.
    pub uploads: Box<Uploads>,
}

impl SimulatedNode {
    pub fn new(settings: &Settings, node: &Node) -> SimulatedNode {
        SimulatedNode {
            agent: Process::dead(settings.preset),
            node: Box::new(node.clone()),
            executor: Executor::leaving(settings.files.bytes, settings.files.vary),
            ordered_until: Instant::ZERO,
            executor_link: 0,
            uploads: Box::default(),
        }
    }

    pub fn capacity(&self) -> &Resources {
        &self.node.resources.basic
    }

    /// The resources of the node, with the custom kinds that are in `kinds`.
    pub fn offers(&self, kinds: &Kinds) -> Resources {
        let named = |(name, amount): &(String, u32)| Some((kinds.index(name)?, *amount));
        let custom = self.node.resources.custom.iter().filter_map(named);
        custom.fold(self.node.resources.basic, |all, (kind, amount)| all.with(kind, amount))
    }

    pub fn new_agent(&self, settings: &Settings, number: usize) -> Process {
        let id = NodeId(number as u32);
        let agent = NodeSettings {
            name: self.node.name.clone(),
            capacity: self.node.resources.clone(),
            attributes: self.node.attributes.clone(),
            enforcement: Vec::new(),
            orphan_lease: settings.orphan_lease,
            stop_grace: STOP_GRACE,
            cache_bytes: settings.files.cache_bytes,
            program: None,
        };
        let mut roles = Roles::new(settings.preset, Epoch(0), JobManagerSettings::default(), NOTHING);
        roles.add_local_node(id, agent);
        Process::new(roles)
    }

    /// The share of the node's CPUs that other tasks use beside a task with these resources.
    pub fn busy_beside(&self, resources: &Resources) -> f64 {
        let others = self.executor.used_cpu().saturating_sub(u64::from(resources.cpu_millis()));
        (others as f64 / f64::from(self.capacity().cpu_millis().max(1))).min(1.0)
    }
}
