//! A batch in which a node may take several tasks. Each time that a node gets a task, the waits of the other tasks there are
//! computed again behind it. This uses a copy of the load; the view of the nodes does not change until tasks are launched.

use super::earliest_completion::{CompletionSettings, cost};
use super::unseen::Unseen;
use crate::policy::completion::Estimate;
use crate::policy::matching::{Growing, Pairing, Regret};
use crate::policy::{OpenAsk, run_time};
use crate::vocabulary::{Duration, ExecutionType, Load, NodeViews};

/// Buffers that are reused between batches.
#[derive(Default)]
pub(super) struct Several {
    pub(super) matcher: Regret,
    /// For each pair of a task and a node.
    pub(super) parts: Vec<FixedCost>,
    /// The load given to each node, by its place in the batch.
    loads: Vec<Load>,
}

/// The part of a task's cost on a node that does not change within a batch.
#[derive(Clone, Copy)]
pub(super) struct FixedCost {
    /// Time to read the input and run.
    pub(super) run: Duration,
    /// The random time that is added.
    pub(super) chance: Duration,
}

/// The values that do not change while a batch is matched.
pub(super) struct BatchInput<'a> {
    pub(super) asks: &'a [OpenAsk],
    /// For each task, the index of its ask.
    pub(super) ask_of: &'a [u32],
    pub(super) view: &'a dyn NodeViews,
    pub(super) settings: &'a CompletionSettings,
    pub(super) unseen: Option<Unseen>,
    /// Upper bound of the random time that is added.
    pub(super) spread: Duration,
}

struct Batch<'a> {
    input: &'a BatchInput<'a>,
    parts: &'a [FixedCost],
    loads: &'a mut Vec<Load>,
}

impl Several {
    pub(super) fn clear(&mut self) {
        self.matcher.clear();
        self.parts.clear();
    }

    /// The tasks of the batch with their nodes, in ascending order of wait.
    pub(super) fn find(&mut self, input: &BatchInput<'_>) -> &[crate::policy::matching::Match] {
        let Several { matcher, parts, loads } = self;
        matcher.find(|nodes| {
            loads.clear();
            loads.resize(nodes.len(), Load::default());
            Batch { input, parts, loads }
        })
    }
}

impl Batch<'_> {
    fn ask(&self, of: Pairing) -> &OpenAsk {
        &self.input.asks[self.input.ask_of[of.task as usize] as usize]
    }
}

impl Growing for Batch<'_> {
    fn offer(&self, of: Pairing) -> (Duration, Duration) {
        let BatchInput { view, settings, unseen, .. } = *self.input;
        let (ask, node, part) = (self.ask(of), of.node as usize, self.parts[of.pair as usize]);
        let mut before = self.loads[of.place as usize];
        let is_opportunistic = ask.execution == ExecutionType::Opportunistic;
        let has_spare = settings.spares && view.has_spare(node, &ask.shape, &before);
        if let Some(unseen) = unseen {
            unseen.add_to(&mut before, &ask.shape);
        }
        let wait = match is_opportunistic && has_spare {
            true => Duration::ZERO,
            false => view.wait_behind(node, &ask.shape, ask.execution, &before),
        };
        // The loss of displaced work is unknown. So it only decides between nodes that are about equal for the task.
        let displaces = settings.spares && !is_opportunistic && !has_spare;
        let estimate = Estimate { fetch: Duration::ZERO, wait, run: part.run };
        let cost = cost(node, &estimate, view, settings);
        let risk = Duration(cost.0.saturating_sub(estimate.unless_it_fails().0));
        let aside = if displaces { self.input.spread } else { Duration::ZERO };
        (cost + part.chance + aside, wait + risk)
    }

    fn assign(&mut self, of: Pairing) {
        let (shape, lasting) = (self.ask(of).shape, run_time(self.ask(of).expected));
        self.loads[of.place as usize].add(&shape, lasting);
    }
}

#[cfg(test)]
mod tests {
    use super::super::EarliestCompletion;
    use super::*;
    use crate::policy::{Budget, Decision, PlacementPolicy};
    use crate::vocabulary::{Chance, Instant, NodeView, Resources};

    const CORE: Resources = Resources::new(1_000, 0);
    /// Draws enough candidates for each task to include all nodes.
    const SEVERAL: CompletionSettings = CompletionSettings { light: 32, several: true, ..CompletionSettings::USUAL };

    /// Nodes with numbers of free cores. A task that finds none waits for a minute.
    struct Free {
        cores: Vec<u64>,
        /// Cores of each node that opportunistic work would yield to guaranteed work.
        yielding: u64,
        ranked: Vec<u32>,
    }

    impl Free {
        fn new(cores: &[u64]) -> Free {
            Free { cores: cores.to_vec(), yielding: 0, ranked: (0..cores.len() as u32).collect() }
        }
    }

    impl NodeViews for Free {
        fn len(&self) -> usize {
            self.cores.len()
        }

        fn best(&self) -> &[u32] {
            &self.ranked
        }

        fn rank(&self, _: usize) -> Duration {
            Duration::ZERO
        }

        fn wait(&self, index: usize, shape: &Resources, execution: ExecutionType) -> Duration {
            self.wait_behind(index, shape, execution, &Load::default())
        }

        fn wait_behind(&self, index: usize, shape: &Resources, execution: ExecutionType, more: &Load) -> Duration {
            let yielding = if execution == ExecutionType::Guaranteed { self.yielding } else { 0 };
            let has_room =
                more.resources.0[0] + u64::from(shape.cpu_millis()) <= (self.cores[index] + yielding) * 1_000;
            if has_room { Duration::ZERO } else { Duration::from_secs(60) }
        }

        fn has_spare(&self, index: usize, shape: &Resources, more: &Load) -> bool {
            more.resources.0[0] + u64::from(shape.cpu_millis()) <= self.cores[index] * 1_000
        }

        fn interval(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn view(&self, _: usize) -> NodeView {
            unreachable!("it asks for waits")
        }

        fn has_room(&self, _: usize, _: u32, _: &Resources) -> bool {
            true
        }
    }

    /// How many tasks each node gets in one batch.
    fn sent(settings: CompletionSettings, count: u64, execution: ExecutionType, nodes: &Free, seed: u64) -> Vec<u32> {
        let mut policy = EarliestCompletion::new(Chance::new(seed, "several"), settings);
        let mut out = Vec::new();
        let (shape, expected) = (CORE, Some(Duration::from_secs(10)));
        let ask = OpenAsk { slot: 0, shape, class: 0, count, probes: 0, execution, expected };
        policy.place(Instant::ZERO, &[ask], Budget { starts: count as u32 }, nodes, &mut out);
        let mut sent = vec![0; nodes.cores.len()];
        for decision in out {
            let Decision::Start { node, .. } = decision else { panic!("it starts tasks only") };
            sent[node] += 1;
        }
        sent
    }

    #[test]
    fn a_node_with_room_for_eight_gets_eight_at_once_and_one_that_is_full_none() {
        for seed in 0..20 {
            let sent =
                |settings, count| sent(settings, count, ExecutionType::Guaranteed, &Free::new(&[8, 2, 0, 0]), seed);
            assert_eq!(sent(SEVERAL, 10), [8, 2, 0, 0], "seed {seed}");
            assert_eq!(sent(SEVERAL, 12), [8, 2, 0, 0], "who would wait is matched again: seed {seed}");
            let one_each = CompletionSettings { several: false, ..SEVERAL };
            assert!(sent(one_each, 10).iter().all(|count| *count <= 1), "seed {seed}");
        }
    }

    #[test]
    fn opportunistic_tasks_go_first_where_they_start_at_once() {
        let spares = CompletionSettings { spares: true, ..SEVERAL };
        for seed in 0..20 {
            let sent = |cores: &[u64]| sent(spares, 3, ExecutionType::Opportunistic, &Free::new(cores), seed);
            assert_eq!(sent(&[2, 0, 1]), [2, 0, 1]);
            assert_eq!(sent(&[0, 0, 0]).iter().sum::<u32>(), 1, "the best quarter waits at nodes");
        }
    }

    #[test]
    fn a_guaranteed_task_starts_on_a_node_where_no_task_has_to_yield_for_it() {
        let chosen = |spares| -> Vec<u32> {
            let settings = CompletionSettings { spares, ..SEVERAL };
            let nodes = Free { yielding: 5, ..Free::new(&[0, 1, 0]) };
            (0..40).map(|seed| sent(settings, 1, ExecutionType::Guaranteed, &nodes, seed)[1]).collect()
        };
        assert_eq!(chosen(true), [1; 40]);
        assert!(chosen(false).contains(&0), "it would start at once anywhere");
        let nodes = Free { yielding: 5, ..Free::new(&[0, 1, 0]) };
        let spares = CompletionSettings { spares: true, ..SEVERAL };
        assert_eq!(sent(spares, 9, ExecutionType::Guaranteed, &nodes, 1).iter().sum::<u32>(), 9, "others yield then");
    }

    #[test]
    fn of_nodes_that_are_expected_to_have_room_the_one_with_more_is_taken() {
        let cautious = CompletionSettings { at_once: Some(95), ..SEVERAL };
        let chosen = |settings| -> Vec<u32> {
            let one = |seed| sent(settings, 1, ExecutionType::Guaranteed, &Free::new(&[1, 9, 1]), seed)[1];
            (0..40).map(one).collect()
        };
        assert_eq!(chosen(cautious), [1; 40]);
        assert!(chosen(SEVERAL).contains(&0), "all are as good, as far as is known");
    }
}
