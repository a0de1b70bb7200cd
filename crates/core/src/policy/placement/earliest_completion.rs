//! The node where a task would be done first (Boutin et al. 2014: Apollo, section 3.3), for a batch of tasks at once.
//!
//! Candidates are nodes with much of the input, some nodes in their racks, two lightly loaded nodes, and two nodes that
//! reported directly of late. The cost of a task on each candidate is estimated ([`completion`](crate::policy::completion)).
//! A small random time is added, so that schedulers with the same information decide differently (section 3.4). Tasks are then
//! matched with nodes, one task for each node and batch ([`matching`](crate::policy::matching)), and sent in ascending order of
//! wait. Tasks that would have to wait are matched again in another batch. Where an attempt may fail, its expected loss is
//! added to the wait.
//!
//! Beyond the paper, by settings: a node may take several tasks of a batch (`several.rs`), and estimates include tasks that
//! other schedulers may have sent to a node (`unseen.rs`).
//!
//! Departs: some nodes of a rack are drawn instead of examining all. The run time of a task is learned from finished tasks,
//! wherever they read their input, so a part of the reading time counts twice, equally on every node.

use super::several::{BatchInput, FixedCost, Several};
use super::unseen::Unseen;
use crate::policy::completion::{Estimate, InputPiece, MILLION, Odds, Rates};
use crate::policy::matching::Candidates;
use crate::policy::{Alternative, Budget, Decision, OpenAsk, PlacementPolicy, TimeAtNode, run_time};
use crate::vocabulary::{Chance, Duration, Instant, NodeId, NodeViews};
use serde::{Deserialize, Serialize};

/// Maximum number of tasks in a batch.
const BATCH: usize = 1_000;
/// Maximum number of tasks in a batch for each node of the view. Each node takes one of them.
const PER_NODE: usize = 4;
/// Maximum number of candidates with the input for a task, and of candidates in their racks.
const NEAR: usize = 4;
/// Lightly loaded nodes are the best quarter of the ranking, at least [`LIGHT_LEAST`], and all nodes that rank equally.
const LIGHT_PART: usize = 4;
const LIGHT_LEAST: usize = 4;
/// Candidates that reported directly are drawn from this many of the latest.
const HEARD: usize = 16;
/// The tasks of a batch that start at once are sent, and in any case the best one in this many.
const SENT_PART: usize = 4;
/// Draws for a suitable node before all nodes are examined.
const DRAWS: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompletionSettings {
    /// Number of lightly loaded candidates for each task.
    pub light: u32,
    /// Maximum number of rounds of proposals to match a batch.
    pub rounds: u32,
    /// Upper bound of the random time that is added to each estimate, in percent of the interval between two updates of the
    /// nodes. Within that interval, schedulers decide without knowing each other's decisions.
    pub spread: u32,
    /// K, in percent: the factor for the time that is expected to be lost where an attempt may fail.
    pub penalty: u32,
    pub rates: Rates,
    /// A node may take several tasks of a batch, each placed behind the previous ones.
    pub several: bool,
    /// Prefer unused room: opportunistic tasks start there at once, and guaranteed tasks displace no opportunistic work.
    pub spares: bool,
    /// Estimates include tasks that other schedulers may have sent to a node, so that this percentage of the tasks that are
    /// expected to start at once do so.
    pub at_once: Option<u32>,
}

impl CompletionSettings {
    /// Two lightly loaded nodes and the rates of the paper's example in figure 4, and three rounds, in which its matching
    /// usually ends. At worst, a task that fails has run in vain and takes as long again elsewhere: twice the time. The paper
    /// found its constant empirically and does not state it.
    pub const USUAL: CompletionSettings = CompletionSettings {
        light: 2,
        rounds: 3,
        spread: 10,
        penalty: 200,
        rates: Rates { on_node: 160_000_000, in_rack: 100_000_000, elsewhere: 80_000_000 },
        several: false,
        spares: false,
        at_once: None,
    };
}

pub struct EarliestCompletion {
    chance: Chance,
    settings: CompletionSettings,
    candidates: Candidates,
    several: Several,
    unseen: Option<Unseen>,
    /// For each task of the batch, the index of its ask.
    asks: Vec<u32>,
    /// Candidates with the input, the same for all tasks of an ask.
    local: Vec<usize>,
    /// Lightly loaded candidates of the current task.
    drawn: Vec<usize>,
    /// All nodes that suit the ask; computed when draws do not find one.
    suitable: Option<Vec<usize>>,
    /// Whether nodes take several tasks of the current batch.
    takes_several: bool,
    /// A node that is no candidate.
    avoided: Option<usize>,
    /// Number of lightly loaded nodes, at the start of the ranking.
    lightly_loaded: u32,
    /// Upper bound of the random time that is added.
    spread: Duration,
}

impl EarliestCompletion {
    pub fn new(chance: Chance, settings: CompletionSettings) -> EarliestCompletion {
        EarliestCompletion {
            chance,
            settings,
            candidates: Candidates::default(),
            several: Several::default(),
            unseen: settings.at_once.map(Unseen::new),
            asks: Vec::new(),
            local: Vec::new(),
            drawn: Vec::new(),
            suitable: None,
            takes_several: false,
            avoided: None,
            lightly_loaded: 0,
            spread: Duration::ZERO,
        }
    }

    fn start_batch(&mut self, view: &dyn NodeViews) {
        self.candidates.clear();
        self.several.clear();
        self.asks.clear();
        self.lightly_loaded = lightly_loaded(view);
        self.spread = Duration(view.interval().0 / 100 * u64::from(self.settings.spread));
    }

    /// Adds one task of the ask with its candidates.
    fn add_task(&mut self, place: u32, ask: &OpenAsk, view: &dyn NodeViews) {
        self.candidates.push_task();
        self.several.matcher.push_task();
        self.asks.push(place);
        for at in 0..self.local.len() {
            self.add(self.local[at], ask, view);
        }
        if !view.near(ask.class).is_empty() {
            for _ in 0..NEAR {
                let near = view.near(ask.class);
                let node = near[self.chance.below(near.len() as u64) as usize];
                self.add_if_suits(node.0 as usize, ask, view);
            }
        }
        self.drawn.clear();
        for _ in 0..self.settings.light {
            if let Some(node) = self.light(ask, view) {
                self.drawn.push(node);
                self.add(node, ask, view);
            }
            // A node's direct report is newer than any list.
            let heard = view.heard();
            if let Some(last) = heard.len().checked_sub(1) {
                let node = heard[last - self.chance.below(heard.len().min(HEARD) as u64) as usize];
                self.add_if_suits(node.0 as usize, ask, view);
            }
        }
    }

    /// Another lightly loaded node that suits, or any suitable node if the draws find none. Nodes that the job itself has filled
    /// since the ranking are used only if the draws find no other.
    fn light(&mut self, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let (best, among) = (view.best(), self.lightly_loaded);
        let mut filled = None;
        for _ in 0..if among > self.drawn.len() as u32 { DRAWS } else { 0 } {
            let node = best[self.chance.below(among) as usize] as usize;
            if self.drawn.contains(&node) || view.is_filled(node) && filled.is_some() {
                continue;
            }
            if view.has_room(node, ask.class, &ask.shape) {
                if !view.is_filled(node) {
                    return Some(node);
                }
                filled = Some(node);
            }
        }
        if filled.is_some() {
            return filled;
        }
        let nodes = u32::try_from(view.len()).expect("a node's number has 32 bits");
        let suits = |node: &usize| view.has_room(*node, ask.class, &ask.shape);
        let suitable = self.suitable.get_or_insert_with(|| (0..nodes as usize).filter(suits).collect());
        let count = u32::try_from(suitable.len()).ok().filter(|count| *count > 0)?;
        Some(suitable[self.chance.below(count) as usize])
    }

    fn add_if_suits(&mut self, node: usize, ask: &OpenAsk, view: &dyn NodeViews) {
        if node < view.len() && view.has_room(node, ask.class, &ask.shape) {
            self.add(node, ask, view);
        }
    }

    fn add(&mut self, node: usize, ask: &OpenAsk, view: &dyn NodeViews) {
        if self.avoided == Some(node) {
            return;
        }
        if self.takes_several {
            if self.several.matcher.push(node as u32) {
                let (run, below) = (run_on(node, ask, view, &self.settings.rates), self.spread.0.max(1));
                self.several.parts.push(FixedCost { run, chance: Duration(self.chance.below(below)) });
            }
            return;
        }
        let estimate = estimate(node, ask, view, &self.settings.rates);
        let cost = cost(node, &estimate, view, &self.settings);
        let risk = Duration(cost.0.saturating_sub(estimate.unless_it_fails().0));
        let cost = cost + Duration(self.chance.below(self.spread.0.max(1)));
        self.candidates.push(node as u32, cost, estimate.wait + risk);
    }

    /// Finds the suitable nodes with most of the input.
    fn find_local(&mut self, ask: &OpenAsk, view: &dyn NodeViews) {
        self.local.clear();
        self.suitable = None;
        let suits = |node: &NodeId| {
            let node = node.0 as usize;
            node < view.len() && view.has_room(node, ask.class, &ask.shape)
        };
        self.local
            .extend(view.local(ask.class).iter().filter(|node| suits(node)).map(|node| node.0 as usize).take(NEAR));
    }
}

/// The number of lightly loaded nodes: the best part of the ranking, and all nodes that rank equally to its last.
fn lightly_loaded(view: &dyn NodeViews) -> u32 {
    let best = view.best();
    let part = (best.len() / LIGHT_PART).max(LIGHT_LEAST).min(best.len());
    let Some(last) = part.checked_sub(1).map(|last| view.rank(best[last] as usize)) else { return 0 };
    (part + best[part..].partition_point(|&node| view.rank(node as usize) <= last)) as u32
}

/// C, without the random time.
pub(super) fn cost(node: usize, estimate: &Estimate, view: &dyn NodeViews, settings: &CompletionSettings) -> Duration {
    let success = u64::from(view.success(node));
    if success >= MILLION {
        return estimate.unless_it_fails();
    }
    estimate.completion(&Odds { success, penalty: u64::from(settings.penalty) * (MILLION / 100) })
}

/// Estimated times of a task of the ask on the node.
pub fn estimate(node: usize, ask: &OpenAsk, view: &dyn NodeViews, rates: &Rates) -> Estimate {
    let wait = view.wait(node, &ask.shape, ask.execution);
    Estimate { fetch: Duration::ZERO, wait, run: run_on(node, ask, view, rates) }
}

/// Estimated time to read the input and run on the node.
fn run_on(node: usize, ask: &OpenAsk, view: &dyn NodeViews, rates: &Rates) -> Duration {
    let mut reading = Duration::ZERO;
    view.input(node, ask.class, &mut |bytes, distance| reading += rates.reading(&[InputPiece { bytes, distance }]));
    reading + run_time(ask.expected)
}

impl PlacementPolicy for EarliestCompletion {
    fn takes_batches(&self) -> bool {
        true
    }

    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        self.start_batch(view);
        self.takes_several = self.settings.several;
        let most = BATCH.min(budget.starts as usize).min(view.len().saturating_mul(PER_NODE));
        for (place, ask) in (0..).zip(asks) {
            let left = most - self.asks.len();
            if left == 0 {
                break;
            }
            self.find_local(ask, view);
            for _ in 0..ask.count.min(left as u64) {
                self.add_task(place, ask, view);
            }
        }
        let found = if std::mem::take(&mut self.takes_several) {
            let (settings, unseen, spread) = (&self.settings, self.unseen, self.spread);
            self.several.find(&BatchInput { asks, ask_of: &self.asks, view, settings, unseen, spread })
        } else {
            self.candidates.find(self.settings.rounds)
        };
        let ask_of = |task: u32| asks[self.asks[task as usize] as usize].slot;
        let start = |task: u32, node: u32| Decision::Start { ask: ask_of(task), node: node as usize };
        // Tasks that would have to wait may get a better node in another batch.
        let at_once = found.partition_point(|one| one.wait <= self.spread);
        let sent = at_once.max(found.len().div_ceil(SENT_PART));
        out.extend(found[..sent].iter().map(|one| start(one.task, one.node)));
    }

    fn on_started(&mut self, expected: Duration, waited: Duration) {
        if let Some(unseen) = &mut self.unseen {
            unseen.learn(expected, waited);
        }
    }

    fn reconsider(
        &mut self,
        ask: &OpenAsk,
        node: usize,
        time: TimeAtNode,
        view: &dyn NodeViews,
    ) -> Option<Alternative> {
        self.start_batch(view);
        let mut here = estimate(node, ask, view, &self.settings.rates);
        match time {
            TimeAtNode::Waits(wait) => here.wait = wait,
            TimeAtNode::Waited(_) => {}
            TimeAtNode::Runs(left) => {
                // The node may be the cause of the slow attempt.
                self.avoided = Some(node);
                let reading = here.run - run_time(ask.expected);
                (here.wait, here.run) = (Duration::ZERO, reading + left);
            }
        }
        self.find_local(ask, view);
        self.add_task(0, ask, view);
        self.avoided = None;
        let best = *self.candidates.find(1).first()?;
        let saving = Duration(cost(node, &here, view, &self.settings).0.saturating_sub(best.cost.0));
        let is_other = best.node as usize != node;
        (is_other && saving > Duration::ZERO).then_some(Alternative {
            node: best.node as usize,
            wait: view.wait(best.node as usize, &ask.shape, ask.execution),
            saving,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Distance, ExecutionType, NodeView, Resources};

    const MB: u64 = 1_000_000;

    /// Nodes with their waits, their ranking, and the distance of the 5 GB input.
    struct Nodes {
        waits: Vec<Duration>,
        ranked: Vec<u32>,
        distance: Vec<Distance>,
        local: Vec<NodeId>,
        /// In millionths; 1 for nodes after the last entry.
        success: Vec<u32>,
        interval: Duration,
        /// Nodes that tasks have filled since the ranking. If there are any, all nodes rank equally.
        filled: Vec<usize>,
    }

    impl Nodes {
        fn without_input(waits: &[u64]) -> Nodes {
            let waits: Vec<Duration> = waits.iter().map(|wait| Duration::from_secs(*wait)).collect();
            let mut ranked: Vec<u32> = (0..waits.len() as u32).collect();
            ranked.sort_by_key(|node| waits[*node as usize]);
            let (distance, interval) = (vec![Distance::OnNode; waits.len()], Duration::from_secs(1));
            Nodes { distance, waits, ranked, local: Vec::new(), success: Vec::new(), interval, filled: Vec::new() }
        }
    }

    impl NodeViews for Nodes {
        fn len(&self) -> usize {
            self.waits.len()
        }

        fn best(&self) -> &[u32] {
            &self.ranked
        }

        fn rank(&self, index: usize) -> Duration {
            if self.filled.is_empty() { self.waits[index] } else { Duration::ZERO }
        }

        fn wait(&self, index: usize, _: &Resources, _: ExecutionType) -> Duration {
            self.waits[index]
        }

        fn is_filled(&self, index: usize) -> bool {
            self.filled.contains(&index)
        }

        fn input(&self, index: usize, _: u32, show: &mut dyn FnMut(u64, Distance)) {
            if !self.local.is_empty() {
                show(5_000 * MB, self.distance[index]);
            }
        }

        fn local(&self, _: u32) -> &[NodeId] {
            &self.local
        }

        fn interval(&self) -> Duration {
            self.interval
        }

        fn success(&self, index: usize) -> u32 {
            self.success.get(index).copied().unwrap_or(1_000_000)
        }

        fn view(&self, _: usize) -> NodeView {
            unreachable!("it asks for waits")
        }

        fn has_room(&self, _: usize, _: u32, _: &Resources) -> bool {
            true
        }
    }

    fn ask(count: u64) -> OpenAsk {
        let (shape, execution) = (Resources::new(1_000, 0), ExecutionType::Guaranteed);
        OpenAsk { slot: 0, shape, class: 0, count, probes: 0, execution, expected: Some(Duration::from_secs(1)) }
    }

    fn sent(seed: u64, count: u64, nodes: &Nodes) -> Vec<usize> {
        let mut policy = EarliestCompletion::new(Chance::new(seed, "placement"), CompletionSettings::USUAL);
        let mut out = Vec::new();
        policy.place(Instant::ZERO, &[ask(count)], Budget { starts: count as u32 }, nodes, &mut out);
        let node = |decision: &Decision| match *decision {
            Decision::Start { node, .. } => node,
            _ => panic!("it starts tasks only"),
        };
        out.iter().map(node).collect()
    }

    #[test]
    fn a_task_goes_where_it_would_be_done_first() {
        // Reading 5 GB takes 31.25 s on the node and 62.5 s elsewhere.
        for (wait, expected) in [(31, 0), (32, 1)] {
            let mut waits = vec![0; 40];
            waits[0] = wait;
            let mut nodes = Nodes::without_input(&waits);
            nodes.distance[1..].fill(Distance::Elsewhere);
            nodes.local = vec![NodeId(0)];
            let chosen: Vec<usize> = (0..50).flat_map(|seed| sent(seed, 1, &nodes)).map(|node| node.min(1)).collect();
            assert_eq!(chosen, vec![expected; 50], "a wait of {wait} s");
        }
    }

    #[test]
    fn lightly_loaded_are_the_best_part_and_all_that_are_as_good() {
        assert_eq!(lightly_loaded(&Nodes::without_input(&[])), 0);
        assert_eq!(lightly_loaded(&Nodes::without_input(&[0, 1, 2])), 3, "a few are all");
        let waits: Vec<u64> = (0..40).collect();
        assert_eq!(lightly_loaded(&Nodes::without_input(&waits)), 10);
        let many_idle: Vec<u64> = (0..40_u64).map(|node| node.saturating_sub(24)).collect();
        assert_eq!(lightly_loaded(&Nodes::without_input(&many_idle)), 25);
    }

    #[test]
    fn as_many_nodes_are_looked_at_as_are_drawn() {
        let nodes = Nodes::without_input(&[60, 0]);
        let chosen: Vec<usize> = (0..50).flat_map(|seed| sent(seed, 1, &nodes)).collect();
        assert_eq!(chosen, [1; 50], "never the same node twice");
    }

    #[test]
    fn what_was_filled_since_is_not_lightly_loaded_any_more() {
        let mut nodes = Nodes::without_input(&[60, 60, 60, 60, 0]);
        nodes.filled = vec![0, 1, 2, 3];
        let found = (0..200).flat_map(|seed| sent(seed, 1, &nodes)).filter(|&node| node == 4).count();
        // Of two draws, two fifths find it; of 32, all but one in a thousand.
        assert!(found >= 197, "{found} of 200");
    }

    #[test]
    fn equal_nodes_are_chosen_by_chance() {
        let nodes = Nodes::without_input(&[0; 20]);
        let mut chosen = [0_u32; 20];
        (0..2_000).flat_map(|seed| sent(seed, 1, &nodes)).for_each(|node| chosen[node] += 1);
        assert!(chosen.iter().all(|times| (60..150).contains(times)), "{chosen:?}");
    }

    #[test]
    fn the_less_often_nodes_are_heard_of_the_more_is_left_to_chance() {
        let spread_over = |interval: u64| {
            let mut nodes = Nodes::without_input(&[0, 1, 2, 3, 100, 100, 100, 100]);
            nodes.ranked = vec![0];
            nodes.local = (0..4).map(NodeId).collect();
            nodes.interval = Duration::from_secs(interval);
            let mut chosen: Vec<usize> = (0..200).flat_map(|seed| sent(seed, 1, &nodes)).collect();
            chosen.sort_unstable();
            chosen.dedup();
            chosen
        };
        assert_eq!((spread_over(0), spread_over(1), spread_over(9)), (vec![0], vec![0], vec![0]));
        assert_eq!((spread_over(15), spread_over(60)), (vec![0, 1], vec![0, 1, 2, 3]));
    }

    #[test]
    fn of_a_batch_those_are_sent_that_start_at_once_and_at_least_a_quarter() {
        let busy = Nodes::without_input(&(100..140).collect::<Vec<u64>>());
        let all = sent(1, 10, &busy);
        assert!((1..=3).contains(&all.len()), "{all:?}");
        let mut waits = vec![0; 36];
        waits.extend([900; 4]);
        let half_idle = Nodes { ranked: (0..40).rev().collect(), ..Nodes::without_input(&waits) };
        for seed in 0..50 {
            let sent = sent(seed, 30, &half_idle);
            assert!(sent.len() >= 15 && sent.iter().all(|node| *node < 36), "{sent:?}");
        }
    }

    #[test]
    fn a_node_that_fails_is_chosen_only_where_the_others_take_longer_than_it_takes_with_its_failures() {
        // A task takes 32.25 s there and 51 s elsewhere: as much, with P = 0.42.
        for (success, expected) in [(410_000, 1), (430_000, 0), (1_000_000, 0)] {
            let mut nodes = Nodes::without_input(&[0; 40]);
            nodes.distance[1..].fill(Distance::InRack);
            nodes.local = vec![NodeId(0)];
            nodes.success = vec![success];
            let chosen: Vec<usize> = (0..50).flat_map(|seed| sent(seed, 1, &nodes)).map(|node| node.min(1)).collect();
            assert_eq!(chosen, vec![expected; 50], "with P = {success} millionths");
        }
    }

    #[test]
    fn the_penalty_says_how_much_a_failure_costs() {
        let mut nodes = Nodes::without_input(&[0; 40]);
        nodes.distance[1..].fill(Distance::InRack);
        (nodes.local, nodes.success) = (vec![NodeId(0)], vec![900_000]);
        for (penalty, expected) in [(200, 0), (670, 0), (700, 1)] {
            let settings = CompletionSettings { penalty, ..CompletionSettings::USUAL };
            let mut policy = EarliestCompletion::new(Chance::new(1, "placement"), settings);
            let mut out = Vec::new();
            policy.place(Instant::ZERO, &[ask(1)], Budget { starts: 1 }, &nodes, &mut out);
            let is_sent =
                |decision: &Decision| matches!(decision, Decision::Start { node, .. } if (*node).min(1) == expected);
            assert!(out.len() == 1 && is_sent(&out[0]), "{penalty}: {out:?}");
        }
    }

    #[test]
    fn of_a_batch_what_would_go_to_a_node_that_fails_is_matched_again() {
        let mut nodes = Nodes::without_input(&[0; 8]);
        nodes.local = (0..8).map(NodeId).collect();
        nodes.success = vec![300_000; 2];
        for seed in 0..50 {
            let sent = sent(seed, 8, &nodes);
            assert!(sent.len() >= 4 && sent.iter().all(|node| *node >= 2), "{sent:?}");
        }
    }

    #[test]
    fn what_waits_at_a_node_that_fails_is_done_sooner_elsewhere() {
        let mut nodes = Nodes::without_input(&[5; 4]);
        nodes.local = (0..4).map(NodeId).collect();
        let reconsider = |nodes: &Nodes, seed| {
            let mut policy = EarliestCompletion::new(Chance::new(seed, "placement"), CompletionSettings::USUAL);
            policy.reconsider(&ask(1), 1, TimeAtNode::Waits(Duration::from_secs(5)), nodes)
        };
        assert!((0..50).all(|seed| reconsider(&nodes, seed).is_none()), "all are alike");
        nodes.success = vec![1_000_000, 500_000];
        for seed in 0..50 {
            let better = reconsider(&nodes, seed).expect("it fails every other time");
            let seconds = better.saving.as_millis();
            assert!(better.node != 1 && better.wait == Duration::from_secs(5), "{better:?}");
            assert!((18_500..18_700).contains(&seconds), "half of 37.25 s: {seconds}");
        }
        nodes.success = vec![500_000, 1_000_000, 500_000, 500_000];
        assert!((0..50).all(|seed| reconsider(&nodes, seed).is_none()), "the others fail");
    }

    #[test]
    fn a_decision_is_changed_only_for_a_node_where_the_task_is_done_sooner() {
        let nodes = Nodes::without_input(&[0, 5, 5, 5]);
        let mut policy = EarliestCompletion::new(Chance::new(1, "placement"), CompletionSettings::USUAL);
        let mut reconsider =
            |node, wait| policy.reconsider(&ask(1), node, TimeAtNode::Waits(Duration::from_secs(wait)), &nodes);
        let saved = (0..50).filter_map(|_| reconsider(1, 60)).map(|better| better.saving).collect::<Vec<_>>();
        assert!(saved.len() > 30 && saved.iter().all(|saving| *saving > Duration::from_secs(54)), "{saved:?}");
        assert!((0..50).all(|_| reconsider(0, 0).is_none()), "nowhere is it done sooner");
    }

    #[test]
    fn what_runs_goes_to_another_node_however_good_its_own_is() {
        let nodes = Nodes::without_input(&[0, 5, 5]);
        let mut policy = EarliestCompletion::new(Chance::new(1, "placement"), CompletionSettings::USUAL);
        let asked = OpenAsk { expected: Some(Duration::from_secs(10)), ..ask(1) };
        let mut reconsider = |left| policy.reconsider(&asked, 0, TimeAtNode::Runs(Duration::from_secs(left)), &nodes);
        let saved = (0..50).filter_map(|_| reconsider(60)).collect::<Vec<_>>();
        assert!(saved.len() > 30 && saved.iter().all(|better| better.node != 0), "{saved:?}");
        let by: Vec<u64> = saved.iter().map(|better| better.saving.as_millis() / 1_000).collect();
        assert!(by.iter().all(|by| (44..=45).contains(by)), "60 s against 5 s and 10 s: {by:?}");
        assert!((0..50).all(|_| reconsider(15).is_none()), "it is done as soon here");
    }
}
