//! Duty: know the nodes, and publish them to job managers that place their own tasks. These get a list when they start
//! and another one soon after it has changed.

use super::Master;
use crate::protocol::{ListedNode, NodeList, ToJobManager};
use crate::role::Outbox;
use crate::scheduling::NodeState;
use crate::vocabulary::{ClosedReason, Crowd, Duration, Instant, JobId, NodeId, NodeViews};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Changes within this time are sent in one list, so that a starting cluster does not cause a list per node.
const TOGETHER: Duration = Duration::from_millis(100);

/// The number of best nodes that are published: as many as a policy may choose among, and some more for nodes that do
/// not fit.
const BEST: usize = 1_024;

/// What the master publishes to job managers. Each variant includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Publish {
    Nothing,
    /// Which nodes there are, when that has changed.
    Nodes,
    /// Their load, on every heartbeat.
    Load,
    /// The best nodes.
    Ranking,
    /// How long tasks would wait at each node, and how likely each is to complete them.
    Waits,
}

#[derive(Default)]
pub(super) struct Publication {
    list: Arc<NodeList>,
    made_at: Instant,
    /// The ledger's count of changes to nodes when the list was made.
    changes: u64,
    /// When the next list is sent.
    pub(super) due: Option<Instant>,
    /// Total number of succeeded attempts at recent points in time.
    ends: VecDeque<(Instant, u64)>,
}

/// Ends of attempts are counted over this time.
const COUNTED_OVER: Duration = Duration::from_secs(60);

impl Publication {
    /// Whether the node takes work according to the published list.
    pub(super) fn offers(&self, node: NodeId) -> bool {
        self.list.nodes.get(node.0 as usize).is_some_and(ListedNode::is_open)
    }
}

impl Master {
    /// Called after every event: determines whether and when to publish.
    pub(super) fn review_publication(&mut self, now: Instant) {
        if self.settings.publish == Publish::Nothing {
            return;
        }
        // A new generation waits for the next list if one is scheduled: tokens of the previous one are still valid.
        let is_late = !self.reports_generation() && self.publication.due.is_none();
        if is_late || self.publication.changes != self.dispatch.rooms.node_changes() {
            let soon = now + TOGETHER;
            self.publication.due = Some(self.publication.due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Whether the current generation of tokens is published; true if nothing is published.
    pub(super) fn reports_generation(&self) -> bool {
        self.settings.publish == Publish::Nothing || self.publication.list.generation == self.claims.tokens.generation()
    }

    pub(super) fn publish_when_due(&mut self, now: Instant, out: &mut Outbox) {
        if self.publication.due.is_none_or(|due| now < due) {
            return;
        }
        let next_load = now + self.settings.publish_every(self.dispatch.rooms.len());
        let reports_load = self.settings.publish > Publish::Nodes;
        self.publication.due = reports_load.then_some(next_load);
        self.make_list(now);
        let message = self.list_message(now);
        for (job, _) in self.dispatch.running() {
            out.send(job.id, message.clone());
        }
    }

    /// Sends the list to jobs that start.
    pub(super) fn publish_to(&mut self, now: Instant, jobs: &[JobId], out: &mut Outbox) {
        if self.settings.publish != Publish::Nothing && !jobs.is_empty() {
            // A job that places by waits places all of its tasks first, and would send them to nodes that had room when
            // the list was made. A list of few nodes is made quickly.
            let kept_for = TOGETHER.min(self.settings.pace(self.dispatch.rooms.len()));
            let is_old = self.settings.publish == Publish::Waits && self.publication.made_at + kept_for <= now;
            if is_old || self.publication.changes != self.dispatch.rooms.node_changes() {
                self.make_list(now);
            }
            let message = self.list_message(now);
            jobs.iter().for_each(|job| out.send(*job, message.clone()));
        }
    }

    fn list_message(&mut self, now: Instant) -> ToJobManager {
        self.count_crowd(now);
        ToJobManager::Nodes { list: Arc::clone(&self.publication.list), margins: self.dispatch.calibration.margins() }
    }

    /// Updates the totals from which job managers predict starts if they have no better data.
    fn count_crowd(&mut self, now: Instant) {
        let ends = &mut self.publication.ends;
        if ends.back().is_some_and(|(at, _)| now.since(*at) < TOGETHER) {
            return;
        }
        let (mut crowd, succeeded) = (Crowd::default(), self.successes);
        let nodes = self.dispatch.rooms.ids();
        let there = nodes
            .filter(|node| self.dispatch.rooms.state(*node) == Some(NodeState::Up) && !self.nodes.is_drained(*node));
        for report in there.filter_map(|node| self.nodes.report(node)) {
            crowd.queued += u64::from(report.queued);
            crowd.free.add(&report.free);
        }
        while ends.get(1).is_some_and(|(at, _)| now.since(*at) > COUNTED_OVER) {
            ends.pop_front();
        }
        let (since, before) = ends.front().copied().unwrap_or((now, succeeded));
        let nanos = now.since(since).0.saturating_mul(1_000);
        // If no attempt has ended in this time, one second is as good as any value.
        crowd.each = nanos.checked_div(succeeded.saturating_sub(before)).unwrap_or(1_000_000_000);
        ends.push_back((now, succeeded));
        self.dispatch.calibration.set_crowd(crowd);
    }

    fn make_list(&mut self, now: Instant) {
        (self.publication.made_at, self.publication.changes) = (now, self.dispatch.rooms.node_changes());
        let nodes = self.dispatch.rooms.ids().map(|node| self.listed(now, node));
        let nodes: Vec<ListedNode> = nodes.collect();
        let best = match self.settings.publish {
            Publish::Nothing | Publish::Nodes | Publish::Load => Vec::new(),
            Publish::Ranking => best(&nodes, BEST),
            // If many nodes are equally good, job managers that choose among some of them would all choose the same
            // ones.
            Publish::Waits => best(&nodes, usize::MAX),
        };
        let generation = self.claims.tokens.generation();
        let success = if self.publishes_odds() { self.reliability.all(now) } else { Vec::new() };
        self.publication.list = Arc::new(NodeList {
            nodes,
            best,
            success,
            every: self.settings.publish_every(self.dispatch.rooms.len()),
            generation,
        });
    }

    /// Whether the likelihood that a node completes its tasks is published.
    pub(super) fn publishes_odds(&self) -> bool {
        self.settings.publish >= Publish::Waits
    }

    fn why_closed(&self, node: NodeId) -> Option<ClosedReason> {
        let is_closed = self.dispatch.rooms.offer_is_closed(node);
        is_closed.then(|| self.dispatch.rooms.closed_reason(node).unwrap_or(ClosedReason::Lost))
    }

    fn listed(&self, now: Instant, node: NodeId) -> ListedNode {
        ListedNode {
            closed_reason: self.why_closed(node),
            capacity: self.dispatch.rooms.node_capacity(node),
            attributes: Arc::clone(self.dispatch.rooms.attributes(node)),
            report: self.nodes.report(node).cloned().unwrap_or_default(),
            waits: self.nodes.waits(now, node).filter(|_| self.settings.publish >= Publish::Waits),
        }
    }
}

/// The numbers of open nodes, ordered by wait, then by number.
fn best(nodes: &[ListedNode], most: usize) -> Vec<u32> {
    let open = nodes.iter().enumerate().filter(|(_, listed)| listed.is_open());
    let mut ranked: Vec<(Duration, u32)> = open.map(|(number, listed)| (listed.rank(), number as u32)).collect();
    if ranked.len() > most {
        ranked.select_nth_unstable(most);
        ranked.truncate(most);
    }
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, number)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ListedWaits, NodeReport};
    use crate::vocabulary::{NodeWaits, Resources, WaitMatrix};

    #[test]
    fn open_nodes_are_ranked_by_the_total_wait_of_a_task() {
        let seconds = Duration::from_secs;
        let node = |open: bool, [expected_wait, running_work, stalled]: [u64; 3]| ListedNode {
            closed_reason: (!open).then_some(ClosedReason::Drained),
            capacity: Default::default(),
            attributes: Arc::default(),
            report: NodeReport {
                expected_wait: seconds(expected_wait),
                running_work: seconds(running_work),
                stalled: seconds(stalled),
                ..NodeReport::default()
            },
            waits: None,
        };
        let nodes = [
            node(true, [3, 0, 0]),
            node(true, [0, 2, 0]),
            node(false, [0; 3]),
            node(true, [0, 0, 4]),
            node(true, [1, 1, 0]),
        ];
        assert_eq!(best(&nodes, BEST), [1, 4, 0, 3]);
    }

    #[test]
    fn waits_that_have_passed_since_the_report_are_not_counted() {
        let seconds = Duration::from_secs;
        let capacity = Resources::new(4_000, 4_096);
        let rank = |busy: u64, opportunistic: u64, age: u64| {
            let matrix = WaitMatrix::new(&capacity, |_, _| seconds(busy), std::iter::empty(), |_, _| Duration::ZERO);
            let waits = Arc::new(NodeWaits { matrix, opportunistic: seconds(opportunistic), ..NodeWaits::default() });
            let (age, silent_for) = (seconds(age), Duration::ZERO);
            let (attributes, report) = (Arc::default(), NodeReport::default());
            let waits = Some(ListedWaits { waits, age, silent_for });
            ListedNode { closed_reason: None, capacity, attributes, report, waits }.rank().as_millis()
        };
        assert_eq!((rank(30, 8, 0), rank(30, 8, 20), rank(30, 40, 35)), (38_000, 10_000, 5_000));
    }

    #[test]
    fn of_many_nodes_only_the_best_are_published() {
        let node = |number: u64| ListedNode {
            closed_reason: None,
            capacity: Default::default(),
            attributes: Arc::default(),
            report: NodeReport { expected_wait: Duration(number * 7_919 % 5_003), ..NodeReport::default() },
            waits: None,
        };
        let nodes: Vec<ListedNode> = (0..5_003).map(node).collect();
        let waits: Vec<u64> =
            best(&nodes, BEST).iter().map(|node| nodes[*node as usize].report.expected_wait.0).collect();
        assert_eq!(waits, (0..BEST as u64).collect::<Vec<_>>());
    }
}
