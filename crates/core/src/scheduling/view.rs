//! What a scheduler away from the ledger believes of the nodes: their last reports, how old those are, and its own
//! unconfirmed claims. (The master's scheduler needs none of this: its view is the ledger.)

use crate::protocol::NodeReport;
use crate::vocabulary::{ClassTable, Instant, NodeId, NodeView, NodeViews, Resources};

#[derive(Default)]
pub struct ClusterView {
    nodes: Vec<Belief>,
    classes: ClassTable,
    now: Instant,
}

#[derive(Clone, Default)]
struct Belief {
    capacity: Resources,
    report: NodeReport,
    reported_at: Instant,
    claimed_since: Resources,
    open: bool,
}

impl ClusterView {
    pub fn new() -> ClusterView {
        let mut view = ClusterView::default();
        view.classes.add_class();
        view
    }

    /// Takes in a node's own words; they replace what was claimed in the meantime.
    pub fn on_report(&mut self, now: Instant, node: NodeId, capacity: Resources, report: NodeReport) {
        let index = node.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, Belief::default());
        }
        self.classes.set(0, index, true);
        self.now = now;
        self.nodes[index] = Belief { capacity, report, reported_at: now, claimed_since: Resources::ZERO, open: true };
    }

    /// Counts a claim that no report shows yet.
    pub fn on_claimed(&mut self, node: NodeId, resources: &Resources) {
        let belief = &mut self.nodes[node.0 as usize];
        belief.claimed_since = belief.claimed_since.saturating_add(resources);
    }

    pub fn close(&mut self, node: NodeId) {
        if let Some(belief) = self.nodes.get_mut(node.0 as usize) {
            belief.open = false;
        }
    }

    pub fn report(&self, node: NodeId) -> Option<&NodeReport> {
        self.nodes.get(node.0 as usize).map(|belief| &belief.report)
    }
}

impl NodeViews for ClusterView {
    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn view(&self, index: usize) -> NodeView {
        let belief = &self.nodes[index];
        NodeView {
            node: NodeId(index as u32),
            capacity: belief.capacity,
            free: belief.report.free.saturating_sub(&belief.claimed_since),
            open: belief.open,
            queued: belief.report.queued,
            expected_wait: belief.report.expected_wait,
            age: self.now.since(belief.reported_at),
        }
    }

    fn has_room(&self, index: usize, class: u32, shape: &Resources) -> bool {
        let view = self.view(index);
        view.open && shape.fits_in(&view.free) && self.classes.meets(class, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_claims_count_until_the_next_report() {
        let mut view = ClusterView::new();
        let (capacity, task) = (Resources::new(1_000, 0), Resources::new(600, 0));
        let report = NodeReport { free: capacity, ..NodeReport::default() };
        view.on_report(Instant(5), NodeId(0), capacity, report.clone());
        assert_eq!(view.find_room(0, &task, 0), Some(0));
        view.on_claimed(NodeId(0), &task);
        assert_eq!(view.find_room(0, &task, 0), None);
        view.on_report(Instant(9), NodeId(0), capacity, report);
        assert_eq!(view.find_room(0, &task, 0), Some(0));
        view.close(NodeId(0));
        assert_eq!(view.find_room(0, &task, 0), None);
    }
}
