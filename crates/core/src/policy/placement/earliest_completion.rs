//! The node where a task would be done first (Boutin et al. 2014: Apollo, section 3.3), for a batch of tasks at once.
//!
//! Looked at are nodes with much of the input, some of those in their racks, and two that are lightly loaded. What a task would
//! cost on each is estimated ([`completion`](crate::policy::completion)), and a little chance added, so that schedulers which know the same do not all do
//! the same (section 3.4). Then tasks are matched with nodes, one for each node and batch ([`matching`](crate::policy::matching)), and sent by
//! quality: who waits least goes first.
//!
//! Departs: of a rack some nodes are drawn, and not all looked at; tasks of an ask are alike, so that no task goes before
//! another for the size of its input.

use crate::policy::completion::{Estimate, Odds, Part, Rates};
use crate::policy::matching::Candidates;
use crate::policy::{Alternative, Budget, Decision, OpenAsk, PlacementPolicy, run_time};
use crate::vocabulary::{Chance, Duration, Instant, NodeId, NodeViews};
use serde::{Deserialize, Serialize};

/// Tasks that are matched at once.
const BATCH: usize = 1_000;
/// Nodes with the input that are looked at for a task, and as many in their racks.
const NEAR: usize = 4;
/// Those that are lightly loaded are the best part of the ranking, one in so many, and at least so many.
const LIGHT_PART: usize = 4;
const LIGHT_LEAST: usize = 16;
/// Draws for a node that suits, after which all are looked at.
const DRAWS: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompletionSettings {
    /// Lightly loaded nodes that are looked at for each task.
    pub light: u32,
    /// Rounds of proposals in which a batch is matched.
    pub rounds: u32,
    /// To each estimate is added a random time below this.
    pub spread: Duration,
    pub rates: Rates,
}

impl CompletionSettings {
    /// With two lightly loaded nodes and the rates of the paper's example in figure 4, and three rounds, in which its matching usually ends.
    pub const USUAL: CompletionSettings = CompletionSettings {
        light: 2,
        rounds: 3,
        spread: Duration::from_millis(100),
        rates: Rates { on_node: 160_000_000, in_rack: 100_000_000, elsewhere: 80_000_000 },
    };
}

pub struct EarliestCompletion {
    chance: Chance,
    settings: CompletionSettings,
    candidates: Candidates,
    /// By task of the batch, its ask.
    asks: Vec<u32>,
    /// The same for all tasks of an ask: its nodes with the input that are looked at.
    local: Vec<usize>,
}

impl EarliestCompletion {
    pub fn new(chance: Chance, settings: CompletionSettings) -> EarliestCompletion {
        let (candidates, asks, local) = (Candidates::default(), Vec::new(), Vec::new());
        EarliestCompletion { chance, settings, candidates, asks, local }
    }

    /// Adds one task of the ask with its candidates.
    fn add_task(&mut self, ask: &OpenAsk, view: &dyn NodeViews) {
        self.candidates.push_task();
        self.asks.push(ask.slot);
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
        for _ in 0..self.settings.light {
            if let Some(node) = self.light(ask, view) {
                self.add(node, ask, view);
            }
        }
    }

    /// A lightly loaded node that suits; where none of those drawn does, any that does.
    fn light(&mut self, ask: &OpenAsk, view: &dyn NodeViews) -> Option<usize> {
        let best = view.best();
        let among = (best.len() / LIGHT_PART).max(LIGHT_LEAST).min(best.len()) as u32;
        for _ in 0..if among > 0 { DRAWS } else { 0 } {
            let node = best[self.chance.below(among) as usize] as usize;
            if view.has_room(node, ask.class, &ask.shape) {
                return Some(node);
            }
        }
        let nodes = u32::try_from(view.len()).expect("a node's number has 32 bits");
        if nodes == 0 {
            return None;
        }
        view.find_room(ask.class, &ask.shape, self.chance.below(nodes) as usize)
    }

    fn add_if_suits(&mut self, node: usize, ask: &OpenAsk, view: &dyn NodeViews) {
        if node < view.len() && view.has_room(node, ask.class, &ask.shape) {
            self.add(node, ask, view);
        }
    }

    fn add(&mut self, node: usize, ask: &OpenAsk, view: &dyn NodeViews) {
        let estimate = estimate(node, ask, view, &self.settings.rates);
        let cost = estimate.completion(&Odds::SURE) + Duration(self.chance.below(self.settings.spread.0.max(1)));
        self.candidates.push(node as u32, cost, estimate.wait);
    }

    /// Those with most of the input.
    fn find_local(&mut self, ask: &OpenAsk, view: &dyn NodeViews) {
        self.local.clear();
        let suits = |node: &NodeId| {
            let node = node.0 as usize;
            node < view.len() && view.has_room(node, ask.class, &ask.shape)
        };
        self.local
            .extend(view.local(ask.class).iter().filter(|node| suits(node)).map(|node| node.0 as usize).take(NEAR));
    }
}

/// What a task of the ask would go through on the node.
pub fn estimate(node: usize, ask: &OpenAsk, view: &dyn NodeViews, rates: &Rates) -> Estimate {
    let mut reading = Duration::ZERO;
    view.input(node, ask.class, &mut |bytes, lies| reading += rates.reading(&[Part { bytes, lies }]));
    let wait = view.wait(node, &ask.shape, ask.execution);
    Estimate { fetch: Duration::ZERO, wait, run: reading + run_time(ask.expected) }
}

impl PlacementPolicy for EarliestCompletion {
    fn takes_batches(&self) -> bool {
        true
    }

    fn place(&mut self, _: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>) {
        self.candidates.clear();
        self.asks.clear();
        let most = BATCH.min(budget.starts as usize);
        for ask in asks {
            let left = most - self.candidates.tasks();
            if left == 0 {
                break;
            }
            self.find_local(ask, view);
            for _ in 0..ask.count.min(left as u64) {
                self.add_task(ask, view);
            }
        }
        let found = self.candidates.find(self.settings.rounds);
        let start = |task: u32, node: u32| Decision::Start { ask: self.asks[task as usize], node: node as usize };
        out.extend(found.iter().map(|one| start(one.task, one.node)));
    }

    fn reconsider(&mut self, ask: &OpenAsk, node: usize, wait: Duration, view: &dyn NodeViews) -> Option<Alternative> {
        self.candidates.clear();
        self.asks.clear();
        self.find_local(ask, view);
        self.add_task(ask, view);
        let best = *self.candidates.find(1).first()?;
        let here = Estimate { wait, ..estimate(node, ask, view, &self.settings.rates) };
        let saving = Duration(here.completion(&Odds::SURE).0.saturating_sub(best.cost.0));
        let is_other = best.node as usize != node;
        (is_other && saving > Duration::ZERO).then_some(Alternative {
            node: best.node as usize,
            wait: best.wait,
            saving,
        })
    }
}
