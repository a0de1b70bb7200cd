//! Places a task on a node with its input, then in a rack with it, then anywhere, the longer the task has waited. The node is
//! chosen at random, since its load is unknown (the baseline scheduler of Boutin et al. 2014: Apollo, section 4: "locality is
//! modeled as a per-task scheduling constraint that is relaxed over time", "without any global cluster load information").
//!
//! Nodes queue the tasks they get, so the first attempt of a task is sent to a node with its input at once. The constraint is
//! relaxed for the duplicates that are sent while it waits. A task without an input is placed anywhere. Departs: the paper
//! does not state how long each step takes.

use crate::policy::{Alternative, Budget, Decision, OpenAsk, PlacementPolicy, TimeAtNode, run_time};
use crate::vocabulary::{Chance, Duration, Instant, NodeViews};

/// Draws for a suitable node before nodes are examined one by one.
const DRAWS: u32 = 16;

pub struct RelaxedLocality {
    chance: Chance,
    /// Waiting time within which only nodes with the input are chosen.
    node: Duration,
    /// Time after `node` within which nodes in racks with the input are chosen as well.
    rack: Duration,
}

impl RelaxedLocality {
    pub fn new(chance: Chance, node: Duration, rack: Duration) -> RelaxedLocality {
        RelaxedLocality { chance, node, rack }
    }

    /// The node for a task that has waited for the given time, never the avoided one.
    fn choose(
        &mut self,
        ask: &OpenAsk,
        waited: Duration,
        avoided: Option<usize>,
        view: &dyn NodeViews,
    ) -> Option<usize> {
        let suits = |node: usize| node < view.len() && view.has_room(node, ask.class, &ask.shape);
        let local = view.local(ask.class).iter().map(|node| node.0 as usize);
        let mut within: Vec<usize> = if waited < self.node + self.rack { local.collect() } else { Vec::new() };
        within.retain(|node| suits(*node));
        if waited >= self.node || within.is_empty() {
            let is_over = waited >= self.node + self.rack;
            let near = view.near(ask.class).iter().filter(|_| !is_over).map(|node| node.0 as usize);
            within.extend(near.filter(|node| suits(*node)));
        }
        if within.is_empty() {
            return self.anywhere(ask, avoided, view);
        }
        // If no node is left, the constraint still holds: the task is not placed elsewhere.
        within.retain(|node| Some(*node) != avoided);
        let count = u32::try_from(within.len()).ok().filter(|count| *count > 0)?;
        Some(within[self.chance.below(count) as usize])
    }

    fn anywhere(&mut self, ask: &OpenAsk, avoided: Option<usize>, view: &dyn NodeViews) -> Option<usize> {
        let nodes = u32::try_from(view.len()).expect("a node's number has 32 bits");
        if nodes == 0 {
            return None;
        }
        let suits = |node: &usize| Some(*node) != avoided && view.has_room(*node, ask.class, &ask.shape);
        let mut drawn = 0;
        for _ in 0..DRAWS {
            drawn = self.chance.below(nodes) as usize;
            if suits(&drawn) {
                return Some(drawn);
            }
        }
        (0..view.len()).map(|step| (drawn + step) % view.len()).find(suits)
    }
}

impl PlacementPolicy for RelaxedLocality {
    fn takes_batches(&self) -> bool {
        true
    }

    fn knows_load(&self) -> bool {
        false
    }

    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        let mut left = u64::from(budget.starts);
        for ask in asks {
            for _ in 0..ask.count.min(left) {
                let Some(node) = self.choose(ask, Duration::ZERO, None, view) else { break };
                out.push(Decision::Start { ask: ask.slot, node });
                left -= 1;
            }
        }
    }

    fn reconsider(
        &mut self,
        ask: &OpenAsk,
        node: usize,
        time: TimeAtNode,
        view: &dyn NodeViews,
    ) -> Option<Alternative> {
        let (waited, saving) = match time {
            TimeAtNode::Waited(waited) => (waited, Duration::ZERO),
            // It has run, so the constraint on its input is fully relaxed.
            TimeAtNode::Runs(left) => (Duration::MAX, Duration(left.0.checked_sub(run_time(ask.expected).0)?)),
            // Waits are unknown to this policy.
            TimeAtNode::Waits(_) => return None,
        };
        let node = self.choose(ask, waited, Some(node), view)?;
        Some(Alternative { node, wait: Duration::ZERO, saving })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{ExecutionType, NodeId, NodeView, Resources};
    use std::collections::BTreeSet;

    const STEP: Duration = Duration::from_secs(3);

    /// Ten nodes: some have the input, others are in their racks, and some have no room.
    #[derive(Default)]
    struct Nodes {
        local: Vec<NodeId>,
        near: Vec<NodeId>,
        full: Vec<usize>,
    }

    impl NodeViews for Nodes {
        fn len(&self) -> usize {
            10
        }

        fn local(&self, _: u32) -> &[NodeId] {
            &self.local
        }

        fn near(&self, _: u32) -> &[NodeId] {
            &self.near
        }

        fn best(&self) -> &[u32] {
            unreachable!("it asks for no load")
        }

        fn rank(&self, _: usize) -> Duration {
            unreachable!("it asks for no load")
        }

        fn wait(&self, _: usize, _: &Resources, _: ExecutionType) -> Duration {
            unreachable!("it asks for no load")
        }

        fn view(&self, _: usize) -> NodeView {
            unreachable!("it asks for no load")
        }

        fn has_room(&self, node: usize, _: u32, _: &Resources) -> bool {
            !self.full.contains(&node)
        }
    }

    fn ask(count: u64) -> OpenAsk {
        let (execution, expected) = (ExecutionType::Guaranteed, Some(Duration::from_secs(10)));
        OpenAsk { slot: 0, shape: Resources::ZERO, class: 0, count, probes: 0, execution, expected }
    }

    fn policy(seed: u64) -> RelaxedLocality {
        RelaxedLocality::new(Chance::new(seed, "placement"), STEP, STEP)
    }

    fn first(nodes: &Nodes) -> BTreeSet<usize> {
        let mut decisions = Vec::new();
        policy(1).place(Instant::ZERO, &[ask(400)], Budget { starts: 300 }, nodes, &mut decisions);
        assert_eq!(decisions.len(), 300, "no more than may start");
        let start = |decision: Decision| match decision {
            Decision::Start { node, .. } => node,
            other => panic!("{other:?}"),
        };
        decisions.into_iter().map(start).collect()
    }

    /// The nodes that may get a duplicate of a task that has waited on this node for the given number of seconds.
    fn beside(nodes: &Nodes, node: usize, seconds: u64) -> BTreeSet<usize> {
        let waited = TimeAtNode::Waited(Duration::from_secs(seconds));
        (0..200).filter_map(|seed| Some(policy(seed).reconsider(&ask(1), node, waited, nodes)?.node)).collect()
    }

    fn with_input() -> Nodes {
        Nodes { local: vec![NodeId(2), NodeId(3)], near: vec![NodeId(4)], full: Vec::new() }
    }

    #[test]
    fn what_has_an_input_goes_there_then_to_its_rack_and_then_anywhere() {
        let nodes = with_input();
        assert_eq!(first(&nodes), [2, 3].into());
        assert_eq!(beside(&nodes, 2, 0), [3].into());
        assert_eq!(beside(&nodes, 2, 2), [3].into());
        assert_eq!(beside(&nodes, 2, 3), [3, 4].into());
        assert_eq!(beside(&nodes, 2, 5), [3, 4].into());
        assert_eq!(beside(&nodes, 2, 6), (0..10).filter(|node| *node != 2).collect());
    }

    #[test]
    fn while_only_one_node_has_the_input_nothing_goes_elsewhere_before_the_constraint_is_relaxed() {
        let nodes = Nodes { local: vec![NodeId(2)], ..with_input() };
        assert_eq!(beside(&nodes, 2, 2), BTreeSet::new());
        assert_eq!(beside(&nodes, 2, 3), [4].into());
    }

    #[test]
    fn what_no_node_with_the_input_takes_goes_to_the_next_best_at_once() {
        let nodes = Nodes { full: vec![2, 3], ..with_input() };
        assert_eq!(first(&nodes), [4].into());
        let nodes = Nodes { full: vec![2, 3, 4, 5], ..with_input() };
        assert_eq!(first(&nodes), [0, 1, 6, 7, 8, 9].into());
    }

    #[test]
    fn without_an_input_all_nodes_are_as_good_but_for_the_one_where_it_waits() {
        assert_eq!(first(&Nodes::default()), (0..10).collect());
        assert_eq!(beside(&Nodes::default(), 7, 0), (0..10).filter(|node| *node != 7).collect());
        let one_is_left = Nodes { full: (0..9).collect(), ..Nodes::default() };
        assert_eq!((beside(&one_is_left, 3, 0), beside(&one_is_left, 9, 0)), ([9].into(), BTreeSet::new()));
    }

    #[test]
    fn a_slow_task_runs_again_where_that_is_done_sooner_and_waits_are_not_told() {
        let saving = |time| policy(1).reconsider(&ask(1), 0, time, &with_input()).map(|found| found.saving.0);
        assert_eq!(saving(TimeAtNode::Runs(Duration::from_secs(25))), Some(15_000_000));
        assert_eq!(saving(TimeAtNode::Runs(Duration::from_secs(5))), None);
        assert_eq!(saving(TimeAtNode::Waits(Duration::from_secs(500))), None);
    }
}
