//! The time to match a batch of tasks to nodes, for several distributions of costs.

use super::millis;
use crate::matching::{Acceptance, Costs, Pair, Stable, UNSUITABLE, greedy, optimal};
use amalgam_cli::failure::Result;
use amalgam_core::policy::matching::{Growing, Pairing, Regret};
use amalgam_core::vocabulary::{Chance, Duration};
use amalgam_sim::statistics::{percentile, sorted};
use clap::Args;
use std::hint::black_box;
use std::time::Instant;

/// Rounds of a limited matching.
const ROUNDS: u32 = 3;
/// The exact matching is much slower, so it is timed this many times less often.
const SELDOM: u32 = 20;

#[derive(Args)]
pub struct MatchingArgs {
    /// Tasks of a batch
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: u32,
    /// Nodes that are looked at [default: 100, 300 and 1,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: Option<u32>,
    /// Batches of each kind
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batches: u32,
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// How the costs of tasks differ.
#[derive(Clone, Copy)]
enum Kind {
    /// Every task prefers different nodes.
    Own,
    /// All but twenty nodes are unsuitable for a task: because of its input, or because only twenty were drawn.
    Few,
    /// All tasks prefer the same nodes, so the nodes' expected waits matter most.
    Alike,
}

pub fn execute(args: &MatchingArgs) -> Result<()> {
    let nodes = args.nodes.map_or(vec![100, 300, 1_000], |nodes| vec![nodes]);
    say!(
        "batches of {} tasks, {} of each kind; milliseconds; required is less than 2 for a stable matching in {ROUNDS} rounds \
         with up to 1,000 nodes",
        args.tasks,
        args.batches
    );
    for nodes in nodes {
        for (kind, name) in [
            (Kind::Own, "every task likes other ones"),
            (Kind::Few, "twenty suit a task"),
            (Kind::Alike, "all tasks like the same ones"),
        ] {
            say!("{nodes} nodes, {name}");
            measure(args, kind, nodes)?;
        }
    }
    Ok(())
}

fn measure(args: &MatchingArgs, kind: Kind, nodes: u32) -> Result<()> {
    let mut limited = Stable::new(ROUNDS, Acceptance::Final);
    let mut unlimited = Stable::new(u32::MAX, Acceptance::Final);
    let mut deferred = Stable::new(u32::MAX, Acceptance::Deferred);
    let mut chance = Chance::new(args.seed, "bench matching");
    let mut regret = Regret::default();
    let mut timings: [Timing; 7] = [
        Timing::of("reading all costs once"),
        Timing::of("greedy"),
        Timing::of("stable, 3 rounds"),
        Timing::of("stable, all rounds"),
        Timing::of("stable, deferred"),
        Timing::of("greatest regret first"),
        Timing::of("optimal"),
    ];
    for batch in 0..args.batches {
        let (costs, waits) = draw(&mut chance, kind, args.tasks as usize, nodes as usize);
        let wait = |pair: Pair| waits[pair.node as usize];
        let [floor, by_greedy, by_limited, by_unlimited, by_deferred, by_regret, exact] = &mut timings;
        floor.time(&costs, |costs| {
            black_box((0..costs.tasks()).flat_map(|task| costs.row(task)).min());
            Vec::new()
        });
        by_greedy.time(&costs, greedy);
        by_limited.time(&costs, |costs| limited.find(costs, wait));
        by_unlimited.time(&costs, |costs| unlimited.find(costs, wait));
        by_deferred.time(&costs, |costs| deferred.find(costs, wait));
        if matches!(kind, Kind::Few) {
            by_regret.time(&costs, |costs| of_regret(&mut regret, costs, &waits));
        }
        if batch % SELDOM == 0 {
            exact.time(&costs, optimal);
        }
    }
    timings.into_iter().filter(|timing| !timing.millis.is_empty()).try_for_each(Timing::print)
}

/// A node may take several tasks, one after the other. Only where few nodes suit a task: job managers never consider more.
fn of_regret(matcher: &mut Regret, costs: &Costs, waits: &[Duration]) -> Vec<Pair> {
    matcher.clear();
    for task in 0..costs.tasks() {
        matcher.push_task();
        let suits = costs.row(task).iter().enumerate().filter(|(_, cost)| **cost != UNSUITABLE);
        suits.for_each(|(node, _)| assert!(matcher.push(node as u32), "each node is looked at once"));
    }
    let found = matcher.find(|nodes| Queues { costs, waits, added: vec![Duration::ZERO; nodes.len()] });
    found.iter().map(|one| Pair { task: one.task, node: one.node }).collect()
}

struct Queues<'a> {
    costs: &'a Costs,
    waits: &'a [Duration],
    /// By place of a node, the run time of the tasks that it got.
    added: Vec<Duration>,
}

impl Growing for Queues<'_> {
    fn offer(&self, of: Pairing) -> (Duration, Duration) {
        let (cost, added) = (self.costs.of(Pair { task: of.task, node: of.node }), self.added[of.place as usize]);
        (cost + added, self.waits[of.node as usize] + added)
    }

    fn assign(&mut self, of: Pairing) {
        let (cost, wait) = self.offer(of);
        self.added[of.place as usize] += cost - wait;
    }
}

/// Costs in microseconds, and the expected wait of each node.
fn draw(chance: &mut Chance, kind: Kind, tasks: usize, nodes: usize) -> (Costs, Vec<Duration>) {
    const SUITABLE: usize = 20;
    let waits: Vec<Duration> = (0..nodes).map(|_| Duration(chance.below(60_000_000_u64))).collect();
    let mut costs = Costs::new(tasks, nodes);
    for task in 0..tasks {
        let row = costs.row_mut(task);
        let run = 1_000_000 + chance.below(30_000_000_u64);
        match kind {
            Kind::Own => (0..nodes).for_each(|node| row[node] = Duration(run + chance.below(60_000_000_u64))),
            Kind::Alike => {
                (0..nodes).for_each(|node| row[node] = waits[node] + Duration(run + chance.below(1_000_000_u64)));
            }
            Kind::Few => {
                for _ in 0..SUITABLE {
                    let node = chance.below(nodes as u32) as usize;
                    row[node] = waits[node] + Duration(run + chance.below(30_000_000_u64));
                }
            }
        }
    }
    (costs, waits)
}

struct Timing {
    what: &'static str,
    millis: Vec<f64>,
    pairs: usize,
    /// Sum of the costs of all pairs, in seconds.
    costs: f64,
}

impl Timing {
    fn of(what: &'static str) -> Timing {
        Timing { what, millis: Vec::new(), pairs: 0, costs: 0.0 }
    }

    fn time<P: AsRef<[Pair]>>(&mut self, costs: &Costs, find: impl FnOnce(&Costs) -> P) {
        let started = Instant::now();
        let pairs = black_box(find(black_box(costs)));
        self.millis.push(millis(started.elapsed()));
        self.pairs += pairs.as_ref().len();
        self.costs += costs.total(pairs.as_ref()) as f64 / 1e6;
    }

    fn print(self) -> Result<()> {
        let (count, pairs) = (self.millis.len(), self.pairs as f64);
        let times = sorted(self.millis);
        let [p50, p95, p99, most] = [50, 95, 99, 100].map(|percent| percentile(&times, percent));
        say_on!("  {:<24}p50 {p50:.3}  p95 {p95:.3}  p99 {p99:.3}  max {most:.3}", self.what);
        match self.pairs {
            0 => say!(),
            _ => say!("  matches {:.0} at {:.2} s", pairs / count as f64, self.costs / pairs),
        }
        Ok(())
    }
}
