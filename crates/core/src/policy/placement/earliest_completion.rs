//! The node where a task would be done first (Boutin et al. 2014: Apollo, section 3.3), for a batch of tasks at once.
//!
//! Looked at are nodes with much of the input, some of those in their racks, two that are lightly loaded, and two that have
//! spoken for themselves lately. What a task would
//! cost on each is estimated ([`completion`](crate::policy::completion)), and a little chance added, so that schedulers which know the same do not all do
//! the same (section 3.4). Then tasks are matched with nodes, one for each node and batch ([`matching`](crate::policy::matching)), and sent by
//! quality: who waits least goes first, and who would have to wait is matched again with others. What may fail is taken to wait
//! for longer, by what it is expected to lose.
//!
//! One step beyond the paper, by settings: a node may take several tasks of a batch (`several.rs`), and nodes are looked at with what
//! others may have sent there (`unseen.rs`).
//!
//! Departs: of a rack some nodes are drawn, and not all looked at; how long a task works is learned from others that have
//! finished, wherever these read their input, so that a part of its reading counts twice, the same on every node.

use super::several::{Known, Part as PairPart, Several};
use super::unseen::Unseen;
use crate::policy::completion::{Estimate, MILLION, Odds, Part, Rates};
use crate::policy::matching::Candidates;
use crate::policy::{Alternative, Budget, Decision, OpenAsk, PlacementPolicy, Standing, run_time};
use crate::vocabulary::{Chance, Duration, Instant, NodeId, NodeViews};
use serde::{Deserialize, Serialize};

/// Tasks that are matched at once.
const BATCH: usize = 1_000;
/// And so many for each node, which takes one of them.
const PER_NODE: usize = 4;
/// Nodes with the input that are looked at for a task, and as many in their racks.
const NEAR: usize = 4;
/// Those that are lightly loaded are the best part of the ranking, one in so many, at least so many, and all that are as good.
const LIGHT_PART: usize = 4;
const LIGHT_LEAST: usize = 4;
/// Of the nodes that were heard of last without the master, so many.
const HEARD: usize = 16;
/// Of a batch, those are sent that start at once, and at least the best part, one in so many.
const SENT_PART: usize = 4;
/// Draws for a node that suits, after which all are looked at.
const DRAWS: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompletionSettings {
    /// Lightly loaded nodes that are looked at for each task.
    pub light: u32,
    /// Rounds of proposals in which a batch is matched.
    pub rounds: u32,
    /// To each estimate is added a random time below so many hundredths of the time in which nodes are heard of anew: so long
    /// others may decide without knowing of each other.
    pub spread: u32,
    /// Where a node may fail, the part of the time that is lost with it counts so many hundredfold: K.
    pub penalty: u32,
    pub rates: Rates,
    /// A node may take several tasks of a batch, each behind those before it.
    pub several: bool,
    /// Room that nobody holds comes first: opportunistic tasks start there at once, and for guaranteed ones nobody has to yield.
    pub spares: bool,
    /// Nodes are looked at with what others may have sent there: so that so many hundredths of the tasks that are expected to start
    /// at once do so.
    pub at_once: Option<u32>,
}

impl CompletionSettings {
    /// With two lightly loaded nodes and the rates of the paper's example in figure 4, and three rounds, in which its matching usually ends.
    /// A task that fails has run for nothing at worst, and takes as long again elsewhere: twice the time. The paper found its
    /// constant empirically, and does not say it.
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
    /// By task of the batch, the place of its ask.
    asks: Vec<u32>,
    /// The same for all tasks of an ask: its nodes with the input that are looked at.
    local: Vec<usize>,
    /// Lightly loaded nodes that are looked at for one task.
    drawn: Vec<usize>,
    /// All that suit the ask, once draws have failed to find one.
    suitable: Option<Vec<usize>>,
    /// In the batch that is made.
    takes_several: bool,
    /// No task is to go there.
    avoided: Option<usize>,
    /// So many of the best nodes are lightly loaded.
    lightly_loaded: u32,
    /// The random time that is added is below this.
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

    fn begin(&mut self, view: &dyn NodeViews) {
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
            // What a node said itself is newer than any list.
            let heard = view.heard();
            if let Some(last) = heard.len().checked_sub(1) {
                let node = heard[last - self.chance.below(heard.len().min(HEARD) as u64) as usize];
                self.add_if_suits(node.0 as usize, ask, view);
            }
        }
    }

    /// One more lightly loaded node that suits; where none of those drawn does, any that does. What the job itself has filled since
    /// the nodes were ranked is not lightly loaded any more.
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
                self.several.parts.push(PairPart { run, chance: Duration(self.chance.below(below)) });
            }
            return;
        }
        let estimate = estimate(node, ask, view, &self.settings.rates);
        let cost = cost(node, &estimate, view, &self.settings);
        let risk = Duration(cost.0.saturating_sub(estimate.unless_it_fails().0));
        let cost = cost + Duration(self.chance.below(self.spread.0.max(1)));
        self.candidates.push(node as u32, cost, estimate.wait + risk);
    }

    /// Those with most of the input.
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

/// The best part of the ranking, and all that are as good as the last of that part.
fn lightly_loaded(view: &dyn NodeViews) -> u32 {
    let best = view.best();
    let part = (best.len() / LIGHT_PART).max(LIGHT_LEAST).min(best.len());
    let Some(last) = part.checked_sub(1).map(|last| view.rank(best[last] as usize)) else { return 0 };
    (part + best[part..].partition_point(|&node| view.rank(node as usize) <= last)) as u32
}

/// C, without chance.
pub(super) fn cost(node: usize, estimate: &Estimate, view: &dyn NodeViews, settings: &CompletionSettings) -> Duration {
    let success = u64::from(view.success(node));
    if success >= MILLION {
        return estimate.unless_it_fails();
    }
    estimate.completion(&Odds { success, penalty: u64::from(settings.penalty) * (MILLION / 100) })
}

/// What a task of the ask would go through on the node.
pub fn estimate(node: usize, ask: &OpenAsk, view: &dyn NodeViews, rates: &Rates) -> Estimate {
    let wait = view.wait(node, &ask.shape, ask.execution);
    Estimate { fetch: Duration::ZERO, wait, run: run_on(node, ask, view, rates) }
}

/// How long it would read and work there.
fn run_on(node: usize, ask: &OpenAsk, view: &dyn NodeViews, rates: &Rates) -> Duration {
    let mut reading = Duration::ZERO;
    view.input(node, ask.class, &mut |bytes, lies| reading += rates.reading(&[Part { bytes, lies }]));
    reading + run_time(ask.expected)
}

impl PlacementPolicy for EarliestCompletion {
    fn takes_batches(&self) -> bool {
        true
    }

    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        self.begin(view);
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
            self.several.find(&Known { asks, ask_of: &self.asks, view, settings, unseen, spread })
        } else {
            self.candidates.find(self.settings.rounds)
        };
        let ask_of = |task: u32| asks[self.asks[task as usize] as usize].slot;
        let start = |task: u32, node: u32| Decision::Start { ask: ask_of(task), node: node as usize };
        // Who would have to wait may find a better node in another batch.
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
        standing: Standing,
        view: &dyn NodeViews,
    ) -> Option<Alternative> {
        self.begin(view);
        let mut here = estimate(node, ask, view, &self.settings.rates);
        match standing {
            Standing::Waits(wait) => here.wait = wait,
            Standing::Waited(_) => {}
            Standing::Runs(left) => {
                // It is the node that may be slow.
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

    /// Nodes by what a task waits there, in ranked order, and how far its input of 5 GB is.
    struct Nodes {
        waits: Vec<Duration>,
        ranked: Vec<u32>,
        lies: Vec<Distance>,
        local: Vec<NodeId>,
        /// In millionths; those after the last are sure.
        success: Vec<u32>,
        interval: Duration,
        /// What was sent there since they were ranked, as equals, fills them.
        filled: Vec<usize>,
    }

    impl Nodes {
        fn without_input(waits: &[u64]) -> Nodes {
            let waits: Vec<Duration> = waits.iter().map(|wait| Duration::from_secs(*wait)).collect();
            let mut ranked: Vec<u32> = (0..waits.len() as u32).collect();
            ranked.sort_by_key(|node| waits[*node as usize]);
            let (lies, interval) = (vec![Distance::OnNode; waits.len()], Duration::from_secs(1));
            Nodes { lies, waits, ranked, local: Vec::new(), success: Vec::new(), interval, filled: Vec::new() }
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
                show(5_000 * MB, self.lies[index]);
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
        // Read on the node 5 GB take 31.25 s, elsewhere 62.5 s.
        for (wait, expected) in [(31, 0), (32, 1)] {
            let mut waits = vec![0; 40];
            waits[0] = wait;
            let mut nodes = Nodes::without_input(&waits);
            nodes.lies[1..].fill(Distance::Elsewhere);
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
            nodes.lies[1..].fill(Distance::InRack);
            nodes.local = vec![NodeId(0)];
            nodes.success = vec![success];
            let chosen: Vec<usize> = (0..50).flat_map(|seed| sent(seed, 1, &nodes)).map(|node| node.min(1)).collect();
            assert_eq!(chosen, vec![expected; 50], "with P = {success} millionths");
        }
    }

    #[test]
    fn the_penalty_says_how_much_a_failure_costs() {
        let mut nodes = Nodes::without_input(&[0; 40]);
        nodes.lies[1..].fill(Distance::InRack);
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
            policy.reconsider(&ask(1), 1, Standing::Waits(Duration::from_secs(5)), nodes)
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
            |node, wait| policy.reconsider(&ask(1), node, Standing::Waits(Duration::from_secs(wait)), &nodes);
        let saved = (0..50).filter_map(|_| reconsider(1, 60)).map(|better| better.saving).collect::<Vec<_>>();
        assert!(saved.len() > 30 && saved.iter().all(|saving| *saving > Duration::from_secs(54)), "{saved:?}");
        assert!((0..50).all(|_| reconsider(0, 0).is_none()), "nowhere is it done sooner");
    }

    #[test]
    fn what_runs_goes_to_another_node_however_good_its_own_is() {
        let nodes = Nodes::without_input(&[0, 5, 5]);
        let mut policy = EarliestCompletion::new(Chance::new(1, "placement"), CompletionSettings::USUAL);
        let asked = OpenAsk { expected: Some(Duration::from_secs(10)), ..ask(1) };
        let mut reconsider = |left| policy.reconsider(&asked, 0, Standing::Runs(Duration::from_secs(left)), &nodes);
        let saved = (0..50).filter_map(|_| reconsider(60)).collect::<Vec<_>>();
        assert!(saved.len() > 30 && saved.iter().all(|better| better.node != 0), "{saved:?}");
        let by: Vec<u64> = saved.iter().map(|better| better.saving.as_millis() / 1_000).collect();
        assert!(by.iter().all(|by| (44..=45).contains(by)), "60 s against 5 s and 10 s: {by:?}");
        assert!((0..50).all(|_| reconsider(15).is_none()), "it is done as soon here");
    }
}
