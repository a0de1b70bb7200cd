//! Batches: the open tasks that the policy places together, within what the job may hold.

use super::{LocalAsk, LocalScheduler, Step};
use crate::policy::{Budget, Decision, OpenAsk};
use crate::protocol::Rule;
use crate::vocabulary::{Duration, ExecutionType, Instant, NodeId, NodeViews, Piece, Totals};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of tasks with their own inputs that are considered individually, for each ask of a batch.
const NAMED: u64 = 1_000;

/// A task of an ask in a batch.
pub(super) struct NamedTask {
    pub(super) ask: u32,
    pub(super) index: u32,
    pub(super) expected: Option<Duration>,
}

/// One of the next tasks of an ask whose tasks have their own inputs.
pub struct NextTask {
    /// Its place in its stage.
    pub index: u32,
    pub pieces: Vec<Piece>,
    /// Its expected run time, if known.
    pub expected: Option<Duration>,
}

/// The next tasks of an ask, at most as many as given, without those that have a node already; `None` if all tasks are
/// alike.
pub type NextTasks<'a> = &'a dyn Fn(u32, u64, &BTreeSet<u32>) -> Option<Vec<NextTask>>;

/// How much may be sent of one execution type.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    pub execution: ExecutionType,
    /// The resources that all of these tasks may have in total.
    pub room: Totals,
    /// One task may be sent even if it is larger than the room.
    pub one_goes: bool,
}

impl LocalScheduler {
    /// Sends open tasks of this execution type within this room, batch by batch; asks in the order of their ranks.
    pub fn decide_batches(&mut self, now: Instant, mut allowed: Allowed, next: NextTasks<'_>) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut taken = BTreeMap::new();
        let rule = if self.placement.knows_load() { Rule::Completion } else { Rule::Sampling };
        loop {
            let (batch, named) = self.batch(&allowed, next, &taken);
            let starts = u32::try_from(batch.iter().map(|ask| ask.count).sum::<u64>()).unwrap_or(u32::MAX);
            if starts == 0 {
                return steps;
            }
            let mut decisions = Vec::new();
            self.placement.place(now, &batch, Budget { starts }, &self.view, &mut decisions);
            let before = steps.len();
            for decision in decisions {
                let Decision::Start { ask, node } = decision else { continue };
                let task = (ask as usize).checked_sub(self.asks.len()).map(|place| &named[place]);
                let ask = task.map_or(ask, |task| task.ask);
                if let Some(task) = task {
                    taken.entry(ask).or_insert_with(BTreeSet::new).insert(task.index);
                }
                allowed.one_goes = false;
                allowed.room.sub_times(&self.asks[ask as usize].ask.resources, 1);
                steps.push(self.start(ask as usize, task, NodeId(node as u32), rule, allowed.execution));
            }
            self.view.forget_tasks();
            if steps.len() == before {
                return steps;
            }
        }
    }

    /// The open tasks that fit into the room. A task with its own input is an ask of one task, whose slot follows those
    /// of the asks.
    fn batch(
        &mut self,
        allowed: &Allowed,
        next: NextTasks<'_>,
        taken: &BTreeMap<u32, BTreeSet<u32>>,
    ) -> (Vec<OpenAsk>, Vec<NamedTask>) {
        let takes = |ask: &LocalAsk| ask.ask.execution == ExecutionType::Auto || ask.ask.execution == allowed.execution;
        let mut open: Vec<(u32, &LocalAsk)> =
            (0..).zip(&self.asks).filter(|(_, ask)| ask.open() > 0 && takes(ask)).collect();
        open.sort_by_key(|(number, ask)| (ask.ask.rank, *number));
        let mut room = allowed.room;
        let mut batch = Vec::with_capacity(open.len());
        let mut named: Vec<NamedTask> = Vec::new();
        let none_taken = BTreeSet::new();
        for (slot, entry) in open {
            let shape = entry.ask.resources;
            // An ask without a suitable node does not keep the others from the room.
            if self.view.find_room(slot, &shape, 0).is_none() {
                continue;
            }
            let mut count = entry.open().min(room.holds(&shape));
            if count == 0 && allowed.one_goes && batch.is_empty() {
                count = 1;
            }
            if count > 0 {
                room.sub_times(&shape, count);
                let (execution, expected) = (allowed.execution, entry.expected);
                let ask = OpenAsk { slot, shape, class: slot, count, probes: 0, execution, expected };
                let Some(tasks) = next(slot, count.min(NAMED), taken.get(&slot).unwrap_or(&none_taken)) else {
                    batch.push(ask);
                    continue;
                };
                for NextTask { index, pieces, expected } in tasks {
                    let class = self.view.add_task(slot, pieces);
                    batch.push(OpenAsk {
                        slot: (self.asks.len() + named.len()) as u32,
                        class,
                        count: 1,
                        expected,
                        ..ask
                    });
                    named.push(NamedTask { ask: slot, index, expected });
                }
            }
        }
        (batch, named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::node_queue::projection::{Use, Workload};
    use crate::policy::placement::{CompletionSettings, EarliestCompletion, RelaxedLocality};
    use crate::protocol::{Ask, Holder, ListedNode, ListedWaits, NodeList, NodeReport};
    use crate::vocabulary::{AskId, Chance, Epoch, JobId, NodeWaits, Resources};
    use std::sync::Arc;

    const CORE: Resources = Resources::new(1_000, 0);
    const TWO: Resources = Resources::new(2_000, 0);
    /// Reading it takes ten seconds on its node and twenty from elsewhere.
    const INPUT: u64 = 1_600_000_000;

    /// Nodes of two cores that are busy for these numbers of seconds.
    fn nodes(busy: &[u64]) -> Arc<NodeList> {
        let node = |&seconds: &u64| {
            let running = [Use { resources: TWO, lasting: Duration::from_secs(seconds) }];
            let matrix = Workload { capacity: &TWO, running: &running, queued: &[] }.waits(Duration::ZERO);
            let waits = Arc::new(NodeWaits { matrix, ..NodeWaits::default() });
            ListedNode {
                closed_reason: None,
                capacity: TWO,
                attributes: Arc::default(),
                report: NodeReport::default(),
                waits: Some(ListedWaits { waits, age: Duration::ZERO, silent_for: Duration::ZERO }),
            }
        };
        let best = (0..busy.len() as u32).collect();
        Arc::new(NodeList { nodes: busy.iter().map(node).collect(), best, ..NodeList::default() })
    }

    /// The nodes to which this many tasks of ten seconds and one core are sent, and how many seconds each is expected
    /// to wait.
    fn sent(wanted: u64, input: &[u32], busy: &[u64], seed: u64) -> Vec<(u32, u64)> {
        decided(wanted, input, nodes(busy), seed, Instant::ZERO)
    }

    /// The same with a list that was received at the start.
    fn decided(wanted: u64, input: &[u32], list: Arc<NodeList>, seed: u64, now: Instant) -> Vec<(u32, u64)> {
        let holder = |&node: &u32| Holder { node: NodeId(node), bytes: INPUT };
        let ask = Ask {
            id: AskId::default(),
            resources: CORE,
            constraints: Arc::default(),
            execution: ExecutionType::Guaranteed,
            wanted,
            needed: wanted,
            rank: 0,
            priority: 0,
            is_gang: false,
            locality: Arc::new(input.iter().map(holder).collect()),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        // Enough nodes are drawn for each task that all are examined.
        let settings = CompletionSettings { light: 32, ..CompletionSettings::USUAL };
        let placement = EarliestCompletion::new(Chance::new(seed, "local"), settings);
        let mut scheduler = LocalScheduler::new(JobId(1), Epoch(1), std::iter::once(ask), Box::new(placement));
        scheduler.on_nodes(Instant::ZERO, list);
        scheduler.advance(now);
        scheduler.expect(|_| Some(Duration::from_secs(10)));
        let room = Totals(std::array::from_fn(|_| 1_000_000));
        let allowed = Allowed { execution: ExecutionType::Guaranteed, room, one_goes: false };
        let steps = scheduler.decide_batches(now, allowed, &|_, _, _| None);
        let start = |step: &Step| match step {
            Step::Start { node, wait, .. } => (node.0, wait.0 / 1_000_000),
            other => panic!("{other:?}"),
        };
        steps.iter().map(start).collect()
    }

    #[test]
    fn a_node_with_the_input_is_chosen_while_its_queue_costs_less_than_the_transfer() {
        for seed in 0..20 {
            assert_eq!(sent(1, &[0], &[9, 0, 0, 0], seed)[0].0, 0);
            assert_ne!(sent(1, &[0], &[11, 0, 0, 0], seed)[0].0, 0);
        }
    }

    #[test]
    fn a_policy_without_loads_gets_none_and_its_waits_are_not_predicted() {
        let ask = Ask {
            id: AskId::default(),
            resources: CORE,
            constraints: Arc::default(),
            execution: ExecutionType::Guaranteed,
            wanted: 1,
            needed: 1,
            rank: 0,
            priority: 0,
            is_gang: false,
            locality: Arc::default(),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        let placement = RelaxedLocality::new(Chance::new(1, "local"), Duration::ZERO, Duration::ZERO);
        let mut scheduler = LocalScheduler::new(JobId(1), Epoch(1), std::iter::once(ask), Box::new(placement));
        scheduler.on_nodes(Instant::ZERO, nodes(&[60]));
        let reported = nodes(&[50]).nodes[0].waits.as_ref().map(|listed| Arc::clone(&listed.waits));
        scheduler.on_waits(Instant::ZERO, NodeId(0), reported.expect("the node reports its waits"));
        let room = Totals(std::array::from_fn(|_| 1_000_000));
        let allowed = Allowed { execution: ExecutionType::Guaranteed, room, one_goes: false };
        let steps = scheduler.decide_batches(Instant::ZERO, allowed, &|_, _, _| None);
        assert!(matches!(steps[..], [Step::Start { rule: Rule::Sampling, wait: Duration::ZERO, .. }]), "{steps:?}");
        assert_eq!(scheduler.wait(0, NodeId(0), ExecutionType::Guaranteed), Duration::ZERO);
    }

    #[test]
    fn an_ask_without_a_suitable_node_does_not_block_other_asks() {
        let ask = |number: u32, cpu_millis: u32| Ask {
            id: AskId { job: JobId(1), number },
            resources: Resources::new(cpu_millis, 0),
            constraints: Arc::default(),
            execution: ExecutionType::Guaranteed,
            wanted: 9,
            needed: 9,
            rank: number,
            priority: 0,
            is_gang: false,
            locality: Arc::default(),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        let placement = EarliestCompletion::new(Chance::new(1, "local"), CompletionSettings::USUAL);
        let asks = [ask(0, 3_000), ask(1, 1_000)].into_iter();
        let mut scheduler = LocalScheduler::new(JobId(1), Epoch(1), asks, Box::new(placement));
        scheduler.on_nodes(Instant::ZERO, nodes(&[0; 4]));
        let mut room = Totals::ZERO;
        room.add_times(&CORE, 5);
        let allowed = Allowed { execution: ExecutionType::Guaranteed, room, one_goes: false };
        let steps = scheduler.decide_batches(Instant::ZERO, allowed, &|_, _, _| None);
        let is_small = |step: &Step| matches!(step, Step::Start { ask: AskId { number: 1, .. }, .. });
        assert!(steps.len() == 5 && steps.iter().all(is_small), "{steps:?}");
    }

    #[test]
    fn tasks_with_their_own_inputs_are_sent_once_each_to_their_input_while_no_task_waits_there() {
        const TASKS: u64 = 40;
        let ask = Ask {
            id: AskId::default(),
            resources: CORE,
            constraints: Arc::default(),
            execution: ExecutionType::Guaranteed,
            wanted: TASKS,
            needed: TASKS,
            rank: 0,
            priority: 0,
            is_gang: false,
            locality: Arc::default(),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        let at = |task: u32| NodeId(task * 7 % 20);
        let next = |number: u32, most: u64, taken: &BTreeSet<u32>| {
            assert_eq!(number, 0);
            let left = (0..TASKS as u32).filter(|task| !taken.contains(task)).take(most as usize);
            let task = |index| NextTask {
                index,
                pieces: vec![Piece { bytes: INPUT, at: vec![at(index)] }],
                expected: Some(Duration::from_secs(10)),
            };
            Some(left.map(task).collect())
        };
        for seed in 0..20 {
            let placement = EarliestCompletion::new(Chance::new(seed, "local"), CompletionSettings::USUAL);
            let asks = std::iter::once(ask.clone());
            let mut scheduler = LocalScheduler::new(JobId(1), Epoch(1), asks, Box::new(placement));
            scheduler.on_nodes(Instant::ZERO, nodes(&[0; 20]));
            let room = Totals(std::array::from_fn(|_| 1_000_000));
            let allowed = Allowed { execution: ExecutionType::Guaranteed, room, one_goes: false };
            let steps = scheduler.decide_batches(Instant::ZERO, allowed, &next);
            let sent: Vec<(u32, NodeId)> = steps
                .iter()
                .map(|step| match step {
                    Step::Start { task: Some(task), node, .. } => (*task, *node),
                    other => panic!("{other:?}"),
                })
                .collect();
            let tasks: BTreeSet<u32> = sent.iter().map(|(task, _)| *task).collect();
            assert_eq!((sent.len(), tasks.len()), (TASKS as usize, TASKS as usize), "each once");
            // Two for each node of two cores.
            assert!(sent.iter().all(|(task, node)| *node == at(*task)), "seed {seed}: {sent:?}");
        }
    }

    #[test]
    fn without_an_input_the_shortest_queue_is_chosen() {
        for seed in 0..20 {
            assert_eq!(sent(2, &[], &[60, 60, 3, 60], seed), [(2, 3); 2]);
        }
    }

    #[test]
    fn failure_rates_do_not_change_without_new_reports() {
        let list = NodeList { success: vec![1_000_000, 400_000], ..(*nodes(&[0; 3])).clone() };
        let list = Arc::new(list);
        for (seed, now) in (0..20).flat_map(|seed| [(seed, 0), (seed, 3_600)]) {
            let now = Instant::ZERO + Duration::from_secs(now);
            let found = decided(4, &[], Arc::clone(&list), seed, now);
            assert!(found.len() == 4 && found.iter().all(|(node, _)| *node != 1), "{found:?}");
        }
    }

    #[test]
    fn a_burst_fills_nodes_evenly_and_exceeds_their_room_only_once_all_are_full() {
        for seed in 0..20 {
            let mut found = sent(12, &[], &[0; 4], seed);
            found.sort_unstable();
            let on_each: Vec<(u32, u64)> = (0..4).flat_map(|node| [(node, 0), (node, 0), (node, 10)]).collect();
            assert_eq!(found, on_each, "seed {seed}");
        }
    }
}
