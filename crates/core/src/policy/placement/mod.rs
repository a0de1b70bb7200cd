//! Policies that choose the node for a task.

mod aligned;
mod batch_sampling;
mod by_room;
mod earliest_completion;
mod next_fit;
mod partitions;
mod random;
mod relaxed_locality;
mod several;
mod top_ranked;
mod unseen;

pub use aligned::Aligned;
pub use batch_sampling::BatchSampling;
pub use by_room::{BestFit, WorstFit};
pub use earliest_completion::{CompletionSettings, EarliestCompletion, estimate};
pub use next_fit::NextFit;
pub use partitions::Partitions;
pub use random::{PowerOfTwo, Random};
pub use relaxed_locality::RelaxedLocality;
pub use top_ranked::TopRanked;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
    use crate::vocabulary::{
        Chance, Duration, ExecutionType, Instant, NodeId, NodeView, NodeViews, Resources, RoomScale,
    };

    /// Nodes with random capacities and rooms, searched one by one.
    pub(super) struct Nodes(Vec<NodeView>);

    impl Nodes {
        pub(super) fn random(seed: u64, count: u32) -> Nodes {
            let mut chance = Chance::new(seed, "nodes");
            let node = |number| {
                let capacity = Resources::new(1_000 * (1 + chance.below(4)), 1_000 * (1 + chance.below(4)));
                let taken = Resources::new(100 * chance.below(40), 100 * chance.below(40));
                NodeView {
                    node: NodeId(number),
                    capacity,
                    free: capacity.saturating_sub(&taken),
                    open: chance.below(10_u32) > 0,
                    queued: chance.below(3),
                    expected_wait: Duration::ZERO,
                    age: Duration::ZERO,
                }
            };
            Nodes((0..count).map(node).collect())
        }

        /// Nodes of one size, some of them free and all others full.
        pub(super) fn with_room(count: u32, is_free: impl Fn(u32) -> bool) -> Nodes {
            let Nodes(mut nodes) = Nodes::random(0, count);
            for (number, node) in (0..).zip(&mut nodes) {
                node.capacity = Resources::new(4_000, 4_000);
                node.free = if is_free(number) { node.capacity } else { Resources::ZERO };
                node.open = true;
            }
            Nodes(nodes)
        }

        pub(super) fn ask(cpu_millis: u32, memory_mib: u32) -> OpenAsk {
            OpenAsk {
                slot: 0,
                shape: Resources::new(cpu_millis, memory_mib),
                class: 0,
                count: 1,
                probes: 0,
                execution: ExecutionType::Auto,
                expected: None,
            }
        }

        pub(super) fn fitting(&self, ask: &OpenAsk) -> impl Iterator<Item = usize> {
            (0..self.len()).filter(|&node| self.has_room(node, 0, &ask.shape))
        }

        fn left(&self, node: usize) -> u64 {
            let mut scale = RoomScale::default();
            self.0.iter().for_each(|node| {
                scale.grow(&node.capacity);
            });
            scale.measure(&self.0[node].free.saturating_sub(&Nodes::ask(500, 300).shape))
        }
    }

    impl NodeViews for Nodes {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn view(&self, index: usize) -> NodeView {
            self.0[index]
        }

        fn has_room(&self, index: usize, _: u32, shape: &Resources) -> bool {
            self.0[index].open && shape.fits_in(&self.0[index].free)
        }
    }

    pub(super) fn one_start(policy: &mut dyn PlacementPolicy, ask: &OpenAsk, nodes: &Nodes) -> Option<usize> {
        let mut decisions = Vec::new();
        policy.place(Instant::ZERO, &[*ask], Budget { starts: 1 }, nodes, &mut decisions);
        match decisions[..] {
            [Decision::Start { node, .. }] => Some(node),
            [Decision::Wait { .. }] => None,
            _ => panic!("one decision for one ask: {decisions:?}"),
        }
    }

    #[test]
    fn best_fit_leaves_least_and_worst_fit_leaves_most() {
        for seed in 0..200 {
            let nodes = Nodes::random(seed, 40);
            let ask = Nodes::ask(500, 300);
            let left = |node| nodes.left(node);
            assert_eq!(one_start(&mut BestFit, &ask, &nodes).map(left), nodes.fitting(&ask).map(left).min());
            assert_eq!(one_start(&mut WorstFit, &ask, &nodes).map(left), nodes.fitting(&ask).map(left).max());
        }
    }
}
