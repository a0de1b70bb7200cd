//! Which queues may have work of others preempted, and whose work first (Megha, section IV-C, algorithm 2): only if
//! there is no room, a queue below its share, at the cost of the queue that is furthest above its own.
//!
//! Departs: the queue has to be within its share including the tasks it asks for; the paper lets it exceed its share by
//! one task. So two queues with tasks that are large compared with their shares do not preempt each other endlessly.

use super::QueueTree;
use crate::vocabulary::{QueueId, Resources, Totals};

/// What a queue holds, and its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueShare {
    pub queue: QueueId,
    /// In millionths of the cluster.
    pub share: u64,
    pub used: Totals,
}

impl QueueShare {
    /// Whether it would be within its share with `count` more of this shape.
    pub fn may_have(&self, more: &Resources, count: u64, capacity: &Totals) -> bool {
        let mut with = self.used;
        with.add_times(more, count);
        with.dominant_share(capacity) <= self.share
    }

    /// How far it is above its share, in millionths of the cluster; zero within its share.
    fn violation(&self, capacity: &Totals) -> u64 {
        self.used.dominant_share(capacity).saturating_sub(self.share)
    }
}

/// Queues above their shares: the one furthest above first; among equals, the one with the smaller number.
pub fn violators(queues: &[QueueShare], capacity: &Totals) -> Vec<QueueId> {
    let violations = queues.iter().map(|queue| (queue.violation(capacity), queue.queue));
    let mut beyond: Vec<(u64, QueueId)> = violations.filter(|(violation, _)| *violation > 0).collect();
    beyond.sort_unstable_by_key(|&(violation, queue)| (std::cmp::Reverse(violation), queue));
    beyond.into_iter().map(|(_, queue)| queue).collect()
}

impl QueueTree {
    /// The queues that accept jobs, and the share of each when there is not enough for all, in millionths of the
    /// cluster.
    pub fn shares(&self) -> impl Iterator<Item = (QueueId, u64)> {
        self.leaves().map(|queue| (queue, u64::from(self.spec(queue).guaranteed)))
    }

    /// Whether work may be preempted for some queue.
    pub fn has_shares(&self) -> bool {
        self.shares().any(|(queue, share)| share > 0 && self.global_of(queue).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(cores: u64) -> Totals {
        let mut totals = Totals::ZERO;
        totals.add_times(&Resources::new(1_000, 0), cores);
        totals
    }

    fn queue(queue: u32, share: u64, used: u64) -> QueueShare {
        QueueShare { queue: QueueId(queue), share, used: cores(used) }
    }

    #[test]
    fn a_queue_may_have_more_up_to_its_share() {
        let capacity = cores(100);
        let queue = queue(1, 250_000, 24);
        assert!(queue.may_have(&Resources::new(1_000, 0), 1, &capacity));
        assert!(!queue.may_have(&Resources::new(1_001, 0), 1, &capacity));
        assert!(!queue.may_have(&Resources::new(0, 1), 1, &capacity), "the cluster has no memory");
    }

    #[test]
    fn the_largest_violation_comes_first_and_queues_within_their_shares_are_left_out() {
        let queues = [queue(1, 100_000, 20), queue(2, 500_000, 50), queue(3, 0, 20), queue(4, 0, 10)];
        assert_eq!(violators(&queues, &cores(100)), [QueueId(3), QueueId(1), QueueId(4)]);
        let equal = [queue(9, 0, 5), queue(2, 0, 5)];
        assert_eq!(violators(&equal, &cores(100)), [QueueId(2), QueueId(9)]);
    }
}
