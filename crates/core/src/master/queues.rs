//! The queues of opportunistic work at nodes, as nodes reported them last: their mean, and the longest of them, whose
//! entries may be moved.

use crate::vocabulary::{Duration, NodeId};
use std::collections::BTreeSet;

/// A longer queue counts as this long, so that the sum of the squares over all nodes does not overflow.
const LONGEST_QUEUE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// A node's queue: its expected work, then the number of entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Waiting {
    work: Duration,
    entries: u32,
}

impl Waiting {
    pub(super) fn new(work: Duration, entries: u32) -> Waiting {
        Waiting { work: work.min(LONGEST_QUEUE), entries }
    }
}

/// A queue that is counted.
#[derive(Clone, Copy)]
pub(super) struct CountedQueue {
    waiting: Waiting,
    /// Requests to hand over entries that the node has not answered. No more are made than it has entries: when many
    /// nodes report room at once, they get the entries of several queues.
    asked: u32,
}

/// Sums over the counted queues, and their order.
#[derive(Default)]
pub(super) struct Queues {
    nodes: u64,
    sum: u128,
    squares: u128,
    /// Nodes that may have entries to hand over.
    by_length: BTreeSet<(Waiting, NodeId)>,
}

impl Queues {
    /// Replaces what is known of a node's queue; `None` for a queue that is not counted.
    pub(super) fn replace(&mut self, node: NodeId, queue: &mut Option<CountedQueue>, new: Option<Waiting>) {
        if let Some(CountedQueue { waiting: old, .. }) = *queue {
            self.nodes -= 1;
            self.sum -= u128::from(old.work.0);
            self.squares -= u128::from(old.work.0) * u128::from(old.work.0);
            self.by_length.remove(&(old, node));
        }
        let asked = queue.map_or(0, |queue| queue.asked);
        *queue = new.map(|waiting| CountedQueue { waiting, asked });
        if let Some(new) = new {
            self.nodes += 1;
            self.sum += u128::from(new.work.0);
            self.squares += u128::from(new.work.0) * u128::from(new.work.0);
            if new.entries > asked {
                self.by_length.insert((new, node));
            }
        }
    }

    /// The node with the longest queue of those that can be asked for entries.
    pub(super) fn longest(&self) -> Option<NodeId> {
        self.by_length.last().map(|(_, node)| *node)
    }

    /// The node is asked to hand over entries.
    pub(super) fn on_asked(&mut self, node: NodeId, queue: &mut Option<CountedQueue>) {
        let Some(queue) = queue else { return };
        queue.asked += 1;
        if queue.asked >= queue.waiting.entries {
            self.by_length.remove(&(queue.waiting, node));
        }
    }

    /// The node answers; its queue is this now. False if the queue is unchanged: none of its entries can be moved, and
    /// other nodes are asked until it reports again.
    pub(super) fn on_answered(&mut self, node: NodeId, queue: &mut Option<CountedQueue>, new: Waiting) -> bool {
        let Some(counted) = queue else { return true };
        counted.asked = counted.asked.saturating_sub(1);
        let is_unchanged = counted.waiting == new;
        if is_unchanged {
            self.by_length.remove(&(new, node));
        } else {
            self.replace(node, queue, Some(new));
        }
        !is_unchanged
    }

    /// Their mean plus `deviations` thousandths of their standard deviation.
    pub(super) fn beyond(&self, deviations: u32) -> Option<Duration> {
        let nodes = u128::from(self.nodes);
        let mean = self.sum.checked_div(nodes)?;
        let variance = (self.squares / nodes).saturating_sub(mean * mean);
        let over = variance.isqrt() * u128::from(deviations) / 1_000;
        Some(Duration(u64::try_from(mean + over).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(work: u64, entries: u32) -> Waiting {
        Waiting::new(Duration(work), entries)
    }

    #[test]
    fn the_target_is_the_mean_plus_deviations_of_the_reported_queues() {
        let mut queues = Queues::default();
        assert_eq!(queues.beyond(2_000), None);
        let mut nodes = [None; 3];
        for (node, new) in [(0, Some(100)), (1, Some(8)), (0, Some(2)), (2, Some(9)), (2, None)] {
            queues.replace(NodeId(node), &mut nodes[node as usize], new.map(|work| waiting(work, 1)));
        }
        // 8 and 2 remain.
        assert_eq!(queues.beyond(0), Some(Duration(5)));
        assert_eq!(queues.beyond(2_000), Some(Duration(11)));
        assert_eq!(queues.beyond(1_500), Some(Duration(9)));
    }

    #[test]
    fn a_node_is_asked_at_once_for_no_more_entries_than_it_has() {
        let mut queues = Queues::default();
        let (long, short) = (NodeId(0), NodeId(1));
        let mut nodes = [None; 2];
        let ask = |queues: &mut Queues, nodes: &mut [Option<CountedQueue>; 2]| {
            let node = queues.longest();
            node.into_iter().for_each(|node| queues.on_asked(node, &mut nodes[node.0 as usize]));
            node
        };
        queues.replace(long, &mut nodes[0], Some(waiting(200, 2)));
        queues.replace(short, &mut nodes[1], Some(waiting(100, 1)));
        let asked: Vec<_> = (0..4).map(|_| ask(&mut queues, &mut nodes)).collect();
        assert_eq!(asked, [Some(long), Some(long), Some(short), None]);
        // Its report was sent before it was asked.
        queues.replace(long, &mut nodes[0], Some(waiting(200, 2)));
        assert_eq!(queues.longest(), None);
        assert!(queues.on_answered(long, &mut nodes[0], waiting(100, 1)), "it handed one over");
        assert_eq!(queues.longest(), None, "the other one is on its way");
        assert!(!queues.on_answered(long, &mut nodes[0], waiting(100, 1)), "the other one cannot be moved");
        assert_eq!(queues.longest(), None);
        queues.replace(long, &mut nodes[0], Some(waiting(100, 1)));
        assert_eq!(ask(&mut queues, &mut nodes), Some(long), "it has reported again");
        // It is lost, and comes back.
        queues.replace(long, &mut nodes[0], None);
        queues.replace(long, &mut nodes[0], Some(waiting(100, 1)));
        assert_eq!(queues.longest(), Some(long));
    }
}
