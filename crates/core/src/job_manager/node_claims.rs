//! A job manager's claims to its attempts at a node. The node answers with those that are alive.

use crate::vocabulary::{AttemptId, Instant, NodeId};
use std::collections::BTreeMap;

/// The claims that nodes have not answered, one for each node at most.
#[derive(Default)]
pub(super) struct NodeClaims {
    open: BTreeMap<NodeId, OpenClaim>,
    next: u32,
}

struct OpenClaim {
    number: u32,
    attempts: Vec<AttemptId>,
    repeat_at: Instant,
}

impl NodeClaims {
    /// A number for a claim that needs no answer.
    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Waits for the answer to a claim of these attempts, in place of an earlier one. Returns its number.
    pub fn open(&mut self, node: NodeId, attempts: Vec<AttemptId>, repeat_at: Instant) -> u32 {
        let number = self.number();
        self.open.insert(node, OpenClaim { number, attempts, repeat_at });
        number
    }

    /// The attempts of the claim with this number, which is closed; `None` if the node answers an earlier one.
    pub fn answered(&mut self, node: NodeId, number: u32) -> Option<Vec<AttemptId>> {
        self.open.get(&node).filter(|claim| claim.number == number)?;
        self.open.remove(&node).map(|claim| claim.attempts)
    }

    /// The node's answer is not awaited any more.
    pub fn close(&mut self, node: NodeId) {
        self.open.remove(&node);
    }

    /// Closes the claims that are to be repeated by now, and returns their nodes.
    pub fn take_due(&mut self, now: Instant) -> Vec<NodeId> {
        let due: Vec<NodeId> =
            self.open.iter().filter(|(_, claim)| claim.repeat_at <= now).map(|(node, _)| *node).collect();
        due.iter().for_each(|node| self.close(*node));
        due
    }

    pub fn next_repeat(&self) -> Option<Instant> {
        self.open.values().map(|claim| claim.repeat_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, JobId};

    const ATTEMPT: AttemptId = AttemptId { job: JobId(1), epoch: Epoch(0), number: 0 };

    #[test]
    fn only_the_newest_claim_is_answered_and_a_due_one_is_repeated() {
        let (node, mut claims) = (NodeId(3), NodeClaims::default());
        let first = claims.open(node, vec![ATTEMPT], Instant(10));
        let second = claims.open(node, vec![ATTEMPT], Instant(20));
        assert_eq!(claims.answered(node, first), None);
        assert_eq!(claims.answered(NodeId(4), second), None);
        assert_eq!(claims.next_repeat(), Some(Instant(20)));
        assert_eq!(claims.take_due(Instant(19)), []);
        assert_eq!(claims.answered(node, second), Some(vec![ATTEMPT]));
        assert_eq!(claims.answered(node, second), None, "it is closed");
        claims.open(node, vec![ATTEMPT], Instant(30));
        assert_eq!(claims.take_due(Instant(30)), [node]);
        assert_eq!((claims.next_repeat(), claims.number()), (None, 3));
    }
}
