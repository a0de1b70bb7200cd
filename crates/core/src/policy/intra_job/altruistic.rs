//! Altruism (Carbyne 3.3, lines 16 to 25 of its pseudocode): a job asks for the tasks that must start now so that it
//! ends as soon as its share allows, and declares the others deferrable.
//!
//! The earliest end T results from packing the remaining work into the share; then every task is delayed as far as T
//! allows (`plan.rs`). The plan is kept. A new one is made when the share shrinks, run times change, tasks come back,
//! or the job has fallen behind; and when the share grows or stages end, in case T can be earlier. Between such events
//! T does not change, which is theorem 3.1.
//!
//! At a scheduling event the job yields with the probability P(altruism) (3.4), and otherwise needs everything.
//!
//! Besides the plan, and whether the job yields or not, the policy follows how the job would run with exactly its share
//! (`alone.rs`), to compare its end with that.

use super::alone::Alone;
use super::dagps::Search;
use super::plan::{Order, Plan, StageWork, plan};
use crate::policy::{
    DagProgress, Deferrable, IntraJobPolicy, JobDemand, RunnableStage, StageDemand, StageGraph, is_near, run_time,
};
use crate::vocabulary::{Chance, Duration, Instant, Totals};

/// The unit of probabilities.
const WHOLE: u32 = 1_000_000;

/// Up to this many running tasks are planned individually; for more, the remaining times are rounded up to a fraction
/// of the run time.
const EXACT_RUNNING: usize = 256;

/// Number of these fractions.
const PARTS: u64 = 16;

/// A task that runs longer than expected is assumed to run for one part in LATE_BY of the time it ran already, so that
/// its job is planned again only a few times while that time doubles; but at least for LATE, while the message about
/// its end may be on its way.
const LATE_BY: u64 = 8;
const LATE: Duration = Duration::from_millis(10);

/// The order in which plans are packed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanOrder {
    Fixed(Order),
    /// The order that DAGPS finds for the job at its start (`dagps.rs`). The search takes long, so it continues from
    /// event to event, and covers the whole DAG. Until it ends, the order is the critical path.
    Dagps,
}

/// Pause after a piece of the search, for other work.
const BETWEEN_PIECES: Duration = Duration::from_micros(1);
/// After this many plans in a row that could not be kept, the search for an order continues while plans are made, and
/// there is a pause between plans: tasks that must start are kept from it by a full cluster, a limit of concurrent
/// tasks, a delay before a retry, or a user. Until one of them starts, which is an event that ends the pause, the end of
/// the job moves, and with it the time until which other tasks can be deferred. It is one part in LATE_BY of the time
/// since the last such event, and at least BETWEEN_PLANS.
const MOST_IN_VAIN: u32 = 8;
const BETWEEN_PLANS: Duration = Duration::from_millis(10);

/// A share that is larger or smaller by more than this factor starts another search, but at most MOST_SEARCHES in
/// total.
const OTHER_SHARE: u64 = 2;
const MOST_SEARCHES: u32 = 4;

pub struct Altruistic {
    order: Order,
    search: Searching,
    /// Number of searches started.
    searches: u32,
    /// The policy asked to be called again for the search only.
    awaits_piece: bool,
    /// Number of plans in a row that could not be kept.
    in_vain: u32,
    /// The time of the last event that was more than a wakeup.
    news_at: Instant,
    /// P(altruism), in millionths.
    altruism: u32,
    chance: Chance,
    /// The result of the last draw.
    yields: bool,
    held: Option<HeldPlan>,
    alone: Option<Alone>,
}

/// The state of the search for an order.
enum Searching {
    /// The order is given.
    Never,
    ToStart,
    Started(Box<Search>),
    /// The order was found for this share.
    Ended(Totals),
}

struct HeldPlan {
    /// No better order was found since the plan was made.
    has_best_order: bool,
    share: Totals,
    end: Instant,
    /// The stages that had tasks ready when it was made or last confirmed.
    runnable: Vec<u32>,
    stages: Vec<PlannedStage>,
}

struct PlannedStage {
    run_time: Duration,
    /// Tasks that had started at the last review.
    started: u32,
    /// The number of tasks that must have started by each time, counted from the start of the job; ascending.
    due: Vec<(Instant, u32)>,
}

impl Altruistic {
    pub fn new(order: PlanOrder, altruism: u32, chance: Chance) -> Altruistic {
        let (order, search) = match order {
            PlanOrder::Fixed(order) => (order, Searching::Never),
            PlanOrder::Dagps => (Order::CriticalPath, Searching::ToStart),
        };
        let (searches, awaits_piece, in_vain, news_at) = (0, false, 0, Instant::ZERO);
        let (yields, held, alone) = (false, None, None);
        Altruistic { order, search, searches, awaits_piece, in_vain, news_at, altruism, chance, yields, held, alone }
    }

    /// Whether the job yields. There is no new draw if the policy is called only to continue the search.
    fn yields_now(&mut self, is_news: bool) -> bool {
        if !std::mem::take(&mut self.awaits_piece) || is_news {
            self.yields = self.altruism >= WHOLE || self.chance.below(WHOLE) < self.altruism;
        }
        self.yields
    }

    /// Runs a piece of the search for an order if there is time for it. Returns whether the search continues.
    fn search_on(&mut self, now: Instant, graph: &dyn StageGraph, share: &Totals, has_time: bool) -> bool {
        let starts = match &self.search {
            Searching::Never => return false,
            Searching::Started(_) => false,
            // For an empty share all orders are equal.
            _ if *share == Totals::ZERO => return false,
            Searching::ToStart => true,
            Searching::Ended(of) if self.searches < MOST_SEARCHES && is_far(of, share) => true,
            Searching::Ended(_) => return false,
        };
        if !has_time {
            return true;
        }
        if starts {
            self.searches += 1;
            self.search = Searching::Started(Box::new(Search::new(work_left(now, graph), share)));
        } else if let Searching::Started(search) = &mut self.search
            && !search.go_on()
        {
            self.order = search.order().clone();
            self.search = Searching::Ended(*search.share());
            self.held.iter_mut().for_each(|held| held.has_best_order = false);
            self.alone.iter_mut().for_each(Alone::reorder);
        }
        true
    }

    /// Ensures that there is a valid plan, the old one if possible. Returns whether a new one was made.
    fn review(&mut self, now: Instant, dag: &DagProgress<'_>, share: &Totals) -> bool {
        let holds = self.held.as_mut().is_some_and(|held| held.holds(now, dag, share));
        self.in_vain = if holds || self.held.is_none() { 0 } else { self.in_vain.saturating_add(1) };
        let is_current = |held: &HeldPlan| held.has_best_order && held.share == *share && held.has_stages(dag.runnable);
        if holds && self.held.as_ref().is_some_and(is_current) {
            return false;
        }
        let work = work_left(now, dag.graph);
        let new = HeldPlan::new(now, dag, share, &work, &self.order);
        match &mut self.held {
            // Greedy packing may find a later end although less work is left.
            Some(held) if holds && new.end > held.end => {
                held.share = *share;
                held.runnable = new.runnable;
                held.has_best_order = true;
            }
            held => *held = Some(new),
        }
        true
    }
}

impl IntraJobPolicy for Altruistic {
    fn demand(&mut self, now: Instant, dag: &DagProgress<'_>, share: Option<&Totals>) -> JobDemand {
        let yields = self.yields_now(dag.is_news);
        if dag.is_news {
            self.news_at = now;
        }
        let in_order = self.order != Order::Packing;
        // Without known run times no task can be declared deferrable.
        let is_known = dag.graph.knows_run_times();
        let Some(share) = share.filter(|_| yields && is_known) else {
            return JobDemand { needed: dag.everything(), in_order, ..JobDemand::default() };
        };
        let mut demand = JobDemand { in_order, ..JobDemand::default() };
        if dag.runnable.is_empty() {
            return demand;
        }
        let has_planned = self.review(now, dag, share);
        let is_in_vain = self.in_vain >= MOST_IN_VAIN;
        let searches = self.search_on(now, dag.graph, share, !has_planned || is_in_vain);
        self.awaits_piece = searches;
        demand.took_long = has_planned || searches;
        let held = self.held.as_ref().expect("just reviewed");
        for &RunnableStage { stage, ready, .. } in dag.runnable {
            let planned = &held.stages[stage as usize];
            let count = planned.missing(now).min(ready);
            if count > 0 {
                demand.needed.push(StageDemand { stage, count });
            }
            if ready > count {
                let due = planned.next_due(now).unwrap_or(held.end);
                demand.deferrable.push(Deferrable { stage, count: ready - count, due });
            }
        }
        let next_due = held.stages.iter().filter_map(|planned| planned.next_due(now)).min();
        let pause = Duration(now.since(self.news_at).0 / LATE_BY).max(BETWEEN_PLANS);
        let next_due = if is_in_vain { next_due.map(|due| due.max(now + pause)) } else { next_due };
        demand.review_at = if searches { Some(now + BETWEEN_PIECES) } else { next_due };
        demand
    }

    fn end_alone(
        &mut self,
        now: Instant,
        graph: &dyn StageGraph,
        share: Option<&Totals>,
        has_time: bool,
    ) -> Option<Instant> {
        let share = share.filter(|share| **share != Totals::ZERO);
        if let Some(alone) = &mut self.alone {
            alone.follow(now, graph, share, &self.order, has_time);
            return alone.end(now, graph);
        }
        // A job that never yields has no plans.
        let share = share.filter(|_| self.altruism > 0)?;
        let work = work_left(now, graph);
        self.alone.insert(Alone::new(now, work, share, &self.order)).end(now, graph)
    }

    fn rerun(&mut self) {
        self.alone = None;
        if !matches!(self.search, Searching::Never) {
            (self.search, self.searches) = (Searching::ToStart, 0);
        }
    }

    fn came_back(&mut self, stage: u32) {
        if let Some(alone) = &mut self.alone {
            alone.came_back(stage);
        }
    }

    fn yields(&self) -> bool {
        true
    }
}

impl HeldPlan {
    fn new(now: Instant, dag: &DagProgress<'_>, share: &Totals, work: &[StageWork], order: &Order) -> HeldPlan {
        let Plan { length, latest } = plan(work, share, order);
        let stages = work.iter().zip(latest).enumerate().map(|(stage, (work, latest))| {
            let started = dag.graph.tasks(stage as u32) - work.unstarted;
            let due = latest.into_iter().scan(started, |sum, (after, count)| {
                *sum += count;
                Some((now + after, *sum))
            });
            PlannedStage { run_time: work.duration, started, due: due.collect() }
        });
        HeldPlan {
            has_best_order: true,
            share: *share,
            end: now + length,
            runnable: dag.runnable.iter().map(|runnable| runnable.stage).collect(),
            stages: stages.collect(),
        }
    }

    fn has_stages(&self, runnable: &[RunnableStage]) -> bool {
        self.runnable.iter().copied().eq(runnable.iter().map(|runnable| runnable.stage))
    }

    /// Whether the job can still end when planned.
    fn holds(&mut self, now: Instant, dag: &DagProgress<'_>, share: &Totals) -> bool {
        let graph = dag.graph;
        self.share.fits_in(share)
            && self.stages.iter_mut().enumerate().all(|(number, planned)| {
                let stage = number as u32;
                let unstarted = graph.unstarted(stage);
                let started = graph.tasks(stage) - unstarted;
                let none_came_back = started >= std::mem::replace(&mut planned.started, started);
                let is_ready = || dag.runnable.iter().any(|runnable| runnable.stage == stage);
                none_came_back
                    && (unstarted == 0
                        || is_near(planned.run_time, run_time(graph.expected(stage)))
                            && (planned.missing(now) == 0 || is_ready()))
            })
    }
}

impl PlannedStage {
    /// How many more tasks must have started by now.
    fn missing(&self, now: Instant) -> u32 {
        let due = self.due.partition_point(|(at, _)| *at <= now);
        let wanted = due.checked_sub(1).map_or(0, |last| self.due[last].1);
        wanted.saturating_sub(self.started)
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        self.due.iter().find(|(at, wanted)| *at > now && *wanted > self.started).map(|(at, _)| *at)
    }
}

fn is_far(one: &Totals, other: &Totals) -> bool {
    let is_more = |one: u64, other: u64| one > other.saturating_mul(OTHER_SHARE);
    one.0.iter().zip(&other.0).any(|(&one, &other)| is_more(one, other) || is_more(other, one))
}

pub(super) fn work_left(now: Instant, graph: &dyn StageGraph) -> Vec<StageWork> {
    let stage = |stage| StageWork {
        resources: *graph.resources(stage),
        duration: Duration(run_time(graph.expected(stage)).0.max(1)),
        unstarted: graph.unstarted(stage),
        running: Vec::new(),
        after: graph.dependencies(stage).to_vec(),
        ..StageWork::default()
    };
    let mut work: Vec<StageWork> = (0..graph.len() as u32).map(stage).collect();
    graph.each_running(&mut |stage, since| {
        let entry = &mut work[stage as usize];
        let (ran_for, expected) = (now.since(since), entry.duration);
        let left = if ran_for < expected { expected - ran_for } else { Duration(ran_for.0 / LATE_BY).max(LATE) };
        entry.running.push((left, 1));
    });
    work.iter_mut().for_each(StageWork::group_running);
    work
}

impl StageWork {
    fn group_running(&mut self) {
        if self.running.len() > EXACT_RUNNING {
            let part = self.duration.0.div_ceil(PARTS);
            self.running.iter_mut().for_each(|(left, _)| *left = Duration(left.0.div_ceil(part) * part));
        }
        self.running.sort_unstable();
        self.running.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0 };
            same
        });
    }
}
