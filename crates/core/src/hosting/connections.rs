//! Connections between processes: the roles of this one are notified when one is made or breaks.

use super::{Effects, Roles};
use crate::protocol::{Address, ToNode};
use crate::role::Event;
use crate::vocabulary::{ClusterId, GlobalId, HostId, Instant, NodeId};

impl Roles {
    /// A cluster's master is connected to this process, which has a global master.
    pub fn cluster_connected(&mut self, now: Instant, cluster: ClusterId, incarnation: u64, effects: &mut Effects) {
        self.at_global(now, Event::Connected { peer: Address::ClusterMaster(cluster), incarnation }, effects);
        self.deliver_local(now, effects);
    }

    pub fn cluster_disconnected(&mut self, now: Instant, cluster: ClusterId, effects: &mut Effects) {
        self.at_global(now, Event::Disconnected { peer: Address::ClusterMaster(cluster) }, effects);
        self.deliver_local(now, effects);
    }

    /// A global master is connected to this process, which has the master of a cluster.
    pub fn global_connected(&mut self, now: Instant, global: GlobalId, incarnation: u64, effects: &mut Effects) {
        self.at_master(now, Event::Connected { peer: Address::GlobalMaster(global), incarnation }, effects);
        self.deliver_local(now, effects);
    }

    pub fn global_disconnected(&mut self, now: Instant, global: GlobalId, effects: &mut Effects) {
        self.at_master(now, Event::Disconnected { peer: Address::GlobalMaster(global) }, effects);
        self.deliver_local(now, effects);
    }

    /// A node's agent has connected to this server, or one of this process has started.
    pub fn node_connected(&mut self, now: Instant, node: NodeId, incarnation: u64, effects: &mut Effects) {
        let peer = Address::Node(node);
        self.at_master(now, Event::Connected { peer, incarnation }, effects);
        // The node accepts no messages of job managers before it knows their process.
        self.at_job_host(now, Event::Connected { peer, incarnation }, effects);
        let concerned = self.managed_here().into_iter().filter(|job| self.jobs[job].concerns(node));
        for job in concerned.collect::<Vec<_>>() {
            self.at_manager(now, job, Event::Connected { peer, incarnation }, effects);
        }
        self.deliver_local(now, effects);
    }

    pub fn node_disconnected(&mut self, now: Instant, node: NodeId, effects: &mut Effects) {
        let peer = Address::Node(node);
        self.at_master(now, Event::Disconnected { peer }, effects);
        self.at_job_host(now, Event::Disconnected { peer }, effects);
        // In the server, job managers rely on the master's decision about the node.
        if self.job_host.is_some() {
            for job in self.managed_here() {
                self.at_manager(now, job, Event::Disconnected { peer }, effects);
            }
        }
        self.deliver_local(now, effects);
    }

    /// A job host has connected to the master of this process, or to its nodes.
    pub fn host_connected(&mut self, now: Instant, host: HostId, incarnation: u64, effects: &mut Effects) {
        let peer = Address::JobHost(host);
        self.at_master(now, Event::Connected { peer, incarnation }, effects);
        self.at_all_nodes(now, |_| Event::Connected { peer, incarnation }, effects);
    }

    pub fn host_disconnected(&mut self, now: Instant, host: HostId, effects: &mut Effects) {
        self.at_master(now, Event::Disconnected { peer: Address::JobHost(host) }, effects);
        self.at_all_nodes(now, |_| Event::Disconnected { peer: Address::JobHost(host) }, effects);
    }

    /// The local nodes, or the local job managers if the master is elsewhere, are connected to the master.
    pub fn master_connected(&mut self, now: Instant, incarnation: u64, effects: &mut Effects) {
        if self.job_host.is_some() {
            self.at_job_host(now, Event::Connected { peer: Address::Master, incarnation }, effects);
            for job in self.managed_here() {
                self.at_manager(now, job, Event::Connected { peer: Address::Master, incarnation }, effects);
            }
        }
        self.at_all_nodes(now, |_| Event::Connected { peer: Address::Master, incarnation }, effects);
    }

    pub fn master_disconnected(&mut self, now: Instant, effects: &mut Effects) {
        self.at_job_host(now, Event::Disconnected { peer: Address::Master }, effects);
        self.at_all_nodes(now, |_| Event::Disconnected { peer: Address::Master }, effects);
    }

    pub fn executor_connected(&mut self, now: Instant, incarnation: u64, effects: &mut Effects) {
        let event = |node| Event::Connected { peer: Address::Executor(node), incarnation };
        self.at_all_nodes(now, event, effects);
    }

    pub fn executor_disconnected(&mut self, now: Instant, effects: &mut Effects) {
        self.at_all_nodes(now, |node| Event::Disconnected { peer: Address::Executor(node) }, effects);
    }

    pub(super) fn at_all_nodes(
        &mut self,
        now: Instant,
        event: impl Fn(NodeId) -> Event<ToNode>,
        effects: &mut Effects,
    ) {
        for node in self.nodes.ids().collect::<Vec<_>>() {
            self.at_node(now, node, event(node), effects);
        }
        self.deliver_local(now, effects);
    }

    /// A node of this process is connected to a peer: its master or a job host elsewhere, or its executor.
    pub fn local_node_connected(
        &mut self,
        now: Instant,
        node: NodeId,
        peer: Address,
        incarnation: u64,
        effects: &mut Effects,
    ) {
        self.at_node(now, node, Event::Connected { peer, incarnation }, effects);
        self.deliver_local(now, effects);
    }

    pub fn local_node_disconnected(&mut self, now: Instant, node: NodeId, peer: Address, effects: &mut Effects) {
        self.at_node(now, node, Event::Disconnected { peer }, effects);
        self.deliver_local(now, effects);
    }

    /// Connects a node of this process to the master of this process.
    pub fn connect_local_node(&mut self, now: Instant, node: NodeId, effects: &mut Effects) {
        self.node_connected(now, node, 0, effects);
        let incarnation = u64::from(self.incarnation.epoch.0);
        self.local_node_connected(now, node, Address::Master, incarnation, effects);
    }
}
