//! The next node, cyclically, that has room: next fit of bin packing (Johnson 1973), except that skipped bins are not closed.
//! It spreads tasks over the nodes and finds room without visiting the occupied ones.

use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::vocabulary::{Instant, NodeViews};

#[derive(Default)]
pub struct NextFit {
    next: usize,
}

impl PlacementPolicy for NextFit {
    /// Decides one start for each ask and call, so that each decision sees the room that the previous one left.
    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        for ask in asks.iter().take(budget.starts as usize) {
            let node = view.find_room(ask.class, &ask.shape, self.next);
            self.next = node.map_or(self.next, |node| node + 1);
            out.push(Decision::on(ask, node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::placement::tests::{Nodes, one_start};

    #[test]
    fn next_fit_goes_around_the_nodes_with_room_and_leaves_none_of_them_out() {
        for seed in 0..50 {
            let nodes = Nodes::random(seed, 40);
            let ask = Nodes::ask(500, 300);
            let fitting: Vec<usize> = nodes.fitting(&ask).collect();
            let mut policy = NextFit::default();
            let chosen: Vec<usize> =
                (0..2 * fitting.len()).filter_map(|_| one_start(&mut policy, &ask, &nodes)).collect();
            assert_eq!(chosen, [&fitting[..], &fitting].concat(), "seed {seed}");
        }
    }

    #[test]
    fn next_fit_stays_where_it_is_when_no_node_has_room() {
        let nodes = Nodes::random(1, 40);
        let (small, huge) = (Nodes::ask(500, 300), Nodes::ask(99_000, 300));
        let mut policy = NextFit::default();
        let fitting: Vec<usize> = nodes.fitting(&small).take(2).collect();
        assert_eq!(one_start(&mut policy, &small, &nodes), Some(fitting[0]));
        assert_eq!(one_start(&mut policy, &huge, &nodes), None);
        assert_eq!(one_start(&mut policy, &small, &nodes), Some(fitting[1]));
    }
}
