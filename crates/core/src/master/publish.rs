//! Duty: know the nodes, and tell schedulers elsewhere of them. Job managers that place their own tasks get one list
//! when they begin and another soon after it has changed.

use super::Master;
use crate::protocol::{ListedNode, ToJobManager};
use crate::role::Outbox;
use crate::vocabulary::{Duration, Instant, JobId, NodeId, NodeViews};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Changes within so long go into one list: a cluster that starts is not told of node by node.
const TOGETHER: Duration = Duration::from_millis(100);

/// What the master tells schedulers elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Publish {
    Nothing,
    /// Which nodes there are, when that has changed.
    Nodes,
    /// How loaded they are, too, on every heartbeat.
    Load,
}

#[derive(Default)]
pub(super) struct Publication {
    nodes: Arc<Vec<ListedNode>>,
    /// The ledger's count of changes to nodes when the list was made.
    changes: u64,
    /// When the next list is sent.
    pub(super) due: Option<Instant>,
}

impl Master {
    /// After every event: whether there is something to publish, and when.
    pub(super) fn review_publication(&mut self, now: Instant) {
        if self.settings.publish != Publish::Nothing && self.publication.changes != self.ledger.node_changes() {
            let soon = now + TOGETHER;
            self.publication.due = Some(self.publication.due.map_or(soon, |due| due.min(soon)));
        }
    }

    pub(super) fn publish_when_due(&mut self, now: Instant, out: &mut Outbox) {
        if self.publication.due.is_none_or(|due| now < due) {
            return;
        }
        let next_load = now + self.settings.heartbeat;
        self.publication.due = (self.settings.publish == Publish::Load).then_some(next_load);
        self.make_list();
        for (job, _) in self.admission.running() {
            out.send(job.id, self.list_message());
        }
    }

    /// Tells a job that begins.
    pub(super) fn publish_to(&mut self, job: JobId, out: &mut Outbox) {
        if self.settings.publish != Publish::Nothing {
            if self.publication.changes != self.ledger.node_changes() {
                self.make_list();
            }
            out.send(job, self.list_message());
        }
    }

    fn list_message(&self) -> ToJobManager {
        ToJobManager::Nodes { nodes: Arc::clone(&self.publication.nodes) }
    }

    fn make_list(&mut self) {
        self.publication.changes = self.ledger.node_changes();
        let nodes = (0..self.ledger.len()).map(|index| self.listed(NodeId(index as u32)));
        self.publication.nodes = Arc::new(nodes.collect());
    }

    fn listed(&self, node: NodeId) -> ListedNode {
        ListedNode {
            open: !self.ledger.offer_is_closed(node),
            capacity: self.ledger.node_capacity(node),
            attributes: Arc::clone(self.ledger.attributes(node)),
            report: self.nodes.report(node).cloned().unwrap_or_default(),
        }
    }
}
