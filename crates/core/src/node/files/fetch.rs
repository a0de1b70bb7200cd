//! A file that a node fetches: which nodes may have it, and how the nodes that were asked answered.

use crate::vocabulary::{Duration, Instant, NodeId};
use std::collections::VecDeque;

/// A node that sends a different file than requested is asked at most this many times.
const MOST_WRONG: u32 = 3;
/// A node that stops before the end of the file is asked at most this many times.
const MOST_CUT_SHORT: u32 = 10;
/// Nodes that do not answer are asked again after `RETRY`, and no more once they have not answered for `PATIENCE`.
const RETRY: Duration = Duration(2_000_000);
const PATIENCE: Duration = Duration(30_000_000);
/// A node that sends the file to others is asked again after the time that a fast network needs for it, within these bounds.
const SHORT_TURN: Duration = Duration(200_000);
const LONG_TURN: Duration = Duration(2_000_000);
const BYTES_PER_MICROSECOND: u64 = 1_000;
/// Maximum number of holders to ask for a file that is sent to others.
const MOST_HOLDERS: usize = 8;

pub(super) struct Fetch {
    pub bytes: u64,
    pub readers: u32,
    /// Number of `readers` that are guaranteed.
    pub guaranteed: u32,
    pub step: Step,
    /// When the executor was first asked to fetch it.
    pub asked_at: Option<Instant>,
    /// Nodes that may have the file. The first is asked next.
    holders: VecDeque<Holder>,
    /// Nodes that turned out not to have the file, and why.
    in_vain: Vec<(NodeId, &'static str)>,
    /// Number of holders to ask before the next pause.
    unasked: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Waiting,
    Asked(NodeId),
    /// No node answered; all are asked again at this time.
    Paused(Instant),
}

struct Holder {
    node: NodeId,
    /// How many times it sent a different file.
    wrong: u32,
    /// How many times it stopped before the end.
    cut_short: u32,
    /// Since when it has not answered.
    silent_since: Option<Instant>,
}

impl Holder {
    fn new(node: NodeId) -> Holder {
        Holder { node, wrong: 0, cut_short: 0, silent_since: None }
    }
}

impl Fetch {
    pub fn new(bytes: u64) -> Fetch {
        Fetch {
            bytes,
            readers: 0,
            guaranteed: 0,
            step: Step::Waiting,
            asked_at: None,
            holders: VecDeque::new(),
            in_vain: Vec::new(),
            unasked: 0,
        }
    }

    /// The node that is asked next.
    pub fn next_holder(&self) -> Option<NodeId> {
        self.holders.front().map(|holder| holder.node)
    }

    pub fn asked_in_vain(&self) -> impl Iterator<Item = NodeId> {
        self.in_vain.iter().map(|(node, _)| *node)
    }

    /// Why no node is left to ask.
    pub fn why_in_vain(&self) -> String {
        let each: Vec<String> = self.in_vain.iter().map(|(node, trouble)| format!("{node} {trouble}")).collect();
        if each.is_empty() { "no node is known to have it".to_owned() } else { each.join("; ") }
    }

    pub fn add_holder(&mut self, own: NodeId, node: NodeId) {
        if self.in_vain.iter().any(|(known, _)| *known == node) {
            return;
        }
        if node == own {
            return self.was_absent(own);
        }
        if self.holders.iter().all(|known| known.node != node) {
            self.holders.push_back(Holder::new(node));
            self.unasked += 1;
        }
    }

    /// Adds a node that is asked next. Returns false if it was known to have the file.
    pub fn add_first(&mut self, node: NodeId) -> bool {
        let is_new = self.holders.iter().all(|known| known.node != node);
        if is_new {
            self.holders.push_front(Holder::new(node));
            self.unasked += 1;
        }
        is_new
    }

    pub fn was_absent(&mut self, holder: NodeId) {
        self.give_up(holder, "no longer has it (a node drops files that exceed its --cache)");
    }

    /// Its copy is damaged.
    pub fn was_spoiled(&mut self, holder: NodeId) {
        self.give_up(holder, "had a damaged copy with a wrong checksum");
    }

    /// Another holder is asked first, if there is one.
    pub fn was_wrong(&mut self, holder: NodeId) {
        let Some(wrong) = self.holders.iter_mut().find(|known| known.node == holder) else { return };
        wrong.silent_since = None;
        wrong.wrong += 1;
        if wrong.wrong >= MOST_WRONG {
            self.give_up(holder, "sent a file with a wrong checksum each time");
        } else {
            self.holders.rotate_left(1);
        }
    }

    /// It sent the start of the file, and then nothing more.
    pub fn was_cut_short(&mut self, now: Instant, holder: NodeId) {
        let Some(cut) = self.holders.iter_mut().find(|known| known.node == holder) else { return };
        cut.silent_since = Some(now);
        cut.cut_short += 1;
        if cut.cut_short >= MOST_CUT_SHORT {
            self.give_up(holder, "stopped before the end of the file each time");
        } else {
            self.holders.rotate_left(1);
        }
        self.pause_after_all(now, RETRY);
    }

    /// It sends the file to others now. Those that it named are asked next.
    pub fn was_busy(&mut self, now: Instant, own: NodeId, holder: NodeId, named: &[NodeId]) {
        let Some(busy) = self.holders.iter_mut().find(|known| known.node == holder) else { return };
        busy.silent_since = None;
        // It is not slow: the file is not on its way.
        self.asked_at = None;
        self.holders.rotate_left(1);
        for &node in named.iter().rev() {
            let is_known = node == own || self.in_vain.iter().any(|(known, _)| *known == node);
            if !is_known && self.add_first(node) && self.holders.len() > MOST_HOLDERS {
                // The one that was asked last: those that it named are less busy.
                self.holders.pop_back();
            }
        }
        let turn = Duration(self.bytes / BYTES_PER_MICROSECOND);
        self.pause_after_all(now, turn.clamp(SHORT_TURN, LONG_TURN));
    }

    pub fn was_silent(&mut self, now: Instant, holder: NodeId) {
        let Some(silent) = self.holders.iter_mut().find(|known| known.node == holder) else { return };
        if now.since(*silent.silent_since.get_or_insert(now)) >= PATIENCE {
            self.give_up(holder, "did not answer for 30s");
        } else {
            self.holders.rotate_left(1);
        }
        self.pause_after_all(now, RETRY);
    }

    fn pause_after_all(&mut self, now: Instant, pause: Duration) {
        self.unasked = self.unasked.saturating_sub(1);
        if self.unasked == 0 && !self.holders.is_empty() {
            self.unasked = self.holders.len();
            self.step = Step::Paused(now + pause);
        }
    }

    fn give_up(&mut self, holder: NodeId, trouble: &'static str) {
        self.holders.retain(|known| known.node != holder);
        self.in_vain.push((holder, trouble));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: NodeId = NodeId(0);
    const ONE: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);

    fn fetch() -> Fetch {
        let mut fetch = Fetch::new(1);
        [ONE, OTHER].into_iter().for_each(|node| fetch.add_holder(OWN, node));
        fetch
    }

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000)
    }

    #[test]
    fn only_nodes_that_were_silent_themselves_are_given_up() {
        let mut fetch = fetch();
        (0..4).for_each(|round| fetch.was_silent(at(10 * round), ONE));
        assert_eq!(fetch.asked_in_vain().collect::<Vec<_>>(), [ONE]);
        fetch.was_silent(at(31), OTHER);
        assert_eq!(fetch.next_holder(), Some(OTHER), "its first silence started just now");
        assert_eq!(fetch.why_in_vain(), "n1 did not answer for 30s");
    }

    #[test]
    fn a_busy_node_is_asked_again_for_ever_after_those_that_it_named() {
        let mut fetch = Fetch::new(1 << 30);
        fetch.add_holder(OWN, ONE);
        for round in 0..100 {
            fetch.was_busy(at(round), OWN, ONE, &[]);
            assert!(matches!(fetch.step, Step::Paused(until) if until.since(at(round)).0 == 1_073_741));
            fetch.step = Step::Waiting;
        }
        fetch.was_busy(at(100), OWN, ONE, &[OWN, OTHER, NodeId(3)]);
        assert!(fetch.step == Step::Waiting && fetch.next_holder() == Some(OTHER));
        fetch.was_absent(OTHER);
        assert_eq!(fetch.next_holder(), Some(NodeId(3)));
        fetch.was_busy(at(101), OWN, NodeId(3), &[OTHER]);
        assert_eq!(fetch.next_holder(), Some(ONE), "a node without the file is not asked again");
        (4..100).for_each(|node| fetch.was_busy(at(102), OWN, ONE, &[NodeId(node)]));
        assert_eq!(fetch.holders.len(), MOST_HOLDERS);
    }

    #[test]
    fn a_node_that_sent_a_part_gets_new_patience_a_limited_number_of_times() {
        let mut fetch = fetch();
        for round in 0..9 {
            fetch.was_silent(at(40 * round), ONE);
            fetch.was_cut_short(at(40 * round + 20), ONE);
        }
        assert_eq!(fetch.asked_in_vain().count(), 0);
        fetch.was_cut_short(at(400), ONE);
        assert_eq!(fetch.asked_in_vain().collect::<Vec<_>>(), [ONE]);
    }
}
