//! The job's asks: one counted ask for each kind of task (shape, constraints, execution type, nodes with its input), for any
//! number of stages and tasks. The task that uses a grant is chosen when the grant arrives.

use super::Attempts;
use super::gangs::Gangs;
use super::job_policy::JobPolicy;
use crate::policy::{Deferrable, JobDemand, Mix, RunnableStage, StageGraph};
use crate::progress::Dag;
use crate::protocol::{AdmittedJob, Ask};
use crate::vocabulary::{AskId, Chance, Duration, ExecutionType, Instant, Resources, Totals};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The progress of the job, as its policy sees it.
#[derive(Clone, Copy)]
pub(super) struct Progress<'a> {
    pub job: &'a AdmittedJob,
    pub dag: &'a Dag,
    pub attempts: &'a Attempts,
    pub gangs: &'a Gangs,
}

impl StageGraph for Progress<'_> {
    fn len(&self) -> usize {
        self.dag.stages.len()
    }

    fn dependents(&self, stage: u32) -> &[u32] {
        &self.dag.stage(stage).dependents
    }

    fn dependencies(&self, stage: u32) -> &[u32] {
        &self.job.spec.stages[stage as usize].after
    }

    fn expected(&self, stage: u32) -> Option<Duration> {
        self.dag.stage(stage).estimate.expected()
    }

    fn longest(&self, stage: u32) -> Duration {
        self.dag.stage(stage).estimate.longest()
    }

    fn resources(&self, stage: u32) -> &Resources {
        &self.job.resources[stage as usize]
    }

    fn tasks(&self, stage: u32) -> u32 {
        self.dag.stage(stage).total
    }

    fn unstarted(&self, stage: u32) -> u32 {
        let stage = self.dag.stage(stage);
        if stage.abandoned { 0 } else { stage.waiting() }
    }

    fn each_running(&self, show: &mut dyn FnMut(u32, Instant)) {
        for attempt in self.attempts.values() {
            show(attempt.task.stage, attempt.started_at.unwrap_or(attempt.launched_at));
        }
    }
}

pub(super) struct Requests {
    asks: Vec<Counted>,
    stages: Vec<StageKinds>,
    runnable: Vec<RunnableStage>,
    /// Makes tasks guaranteed or opportunistic; without it, the execution type of the stage applies.
    mix: Option<(Mix, Chance)>,
    /// When to ask the policy again.
    review_at: Option<Instant>,
    /// Deferrable demand from the last policy call.
    deferrable: Vec<Deferrable>,
    demand: OpenDemand,
    /// The stages of duplicates that are requested, with repetitions.
    beside: Vec<u32>,
    /// Whether asks say how long their tasks run.
    reports_run_times: bool,
}

/// Total resources asked for and not granted. Counted only while some demand is deferrable.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct OpenDemand {
    /// For tasks that must start now.
    pub needed: Totals,
    pub deferred: Totals,
}

/// Counts the guaranteed and opportunistic ready tasks of a stage, but not which tasks they are.
struct StageKinds {
    accepts: ExecutionType,
    /// Numbers of the asks for the two execution types; equal if one ask serves both.
    guaranteed: u32,
    opportunistic: u32,
    /// Ready tasks whose execution type is decided, and how many of them are opportunistic.
    decided: u32,
    ready_opportunistic: u32,
}

impl StageKinds {
    /// Decides the execution type of tasks that became ready.
    fn review(&mut self, stage: &RunnableStage, mix: &mut Option<(Mix, Chance)>) {
        let Some((mix, chance)) = mix else { return };
        let new = stage.ready.saturating_sub(self.decided);
        if new > 0 {
            self.ready_opportunistic += match self.accepts {
                ExecutionType::Guaranteed => 0,
                ExecutionType::Opportunistic => new,
                ExecutionType::Auto => mix.draw(new, stage.expected, chance),
            };
        }
        self.decided = stage.ready;
        self.ready_opportunistic = self.ready_opportunistic.min(stage.ready);
    }

    /// A task is sent to a node.
    fn count_sent(&mut self, is_opportunistic: bool) {
        self.decided = self.decided.saturating_sub(1);
        self.ready_opportunistic = self.ready_opportunistic.saturating_sub(u32::from(is_opportunistic));
    }
}

struct Counted {
    ask: Ask,
    /// Stages whose tasks may use its grants, in order.
    stages: VecDeque<u32>,
    /// Grants received for it from the present master, or tasks bound by the job's own scheduler.
    granted: u64,
    /// Whether the master has the current `ask`, but for a small change of the expected run time.
    is_sent: bool,
    /// The expected run time that the master has.
    told: Option<Duration>,
}

impl Requests {
    pub(super) fn new(job: &AdmittedJob, mix: Option<(Mix, Chance)>) -> Requests {
        let mut requests = Requests {
            asks: Vec::new(),
            stages: Vec::new(),
            runnable: Vec::new(),
            mix,
            review_at: None,
            deferrable: Vec::new(),
            demand: OpenDemand::default(),
            beside: Vec::new(),
            reports_run_times: false,
        };
        let mut known = BTreeMap::new();
        for (number, stage) in job.spec.stages.iter().enumerate() {
            let accepts = if job.only_guaranteed || stage.gang { ExecutionType::Guaranteed } else { stage.execution };
            let (guaranteed, opportunistic) = match (&requests.mix, accepts) {
                (None, _) => (accepts, accepts),
                (Some(_), ExecutionType::Auto) => (ExecutionType::Guaranteed, ExecutionType::Opportunistic),
                (Some(_), only) => (only, only),
            };
            let [guaranteed, opportunistic] = [guaranteed, opportunistic].map(|execution| {
                let (resources, near) = (job.resources[number], &job.near[number]);
                // Stages with known inputs have an ask each: their inputs are on different nodes.
                let reads = stage.has_inputs().then_some(number);
                let kind = (resources, execution, stage.constraints.clone(), Arc::clone(near), reads);
                let kind = (kind, stage.priority_in(&job.spec), stage.gang.then_some(number));
                *known.entry(kind).or_insert_with(|| requests.add(job, number, execution))
            });
            let kinds = StageKinds { accepts, guaranteed, opportunistic, decided: 0, ready_opportunistic: 0 };
            requests.stages.push(kinds);
        }
        requests
    }

    /// The job has another priority: makes new asks, none of which has been sent.
    pub(super) fn update_job(&mut self, job: &AdmittedJob) {
        let mix = self.mix.take();
        *self = Requests { reports_run_times: self.reports_run_times, ..Requests::new(job, mix) };
    }

    /// Requests duplicates of tasks of these stages, after the tasks that have no attempt.
    pub(super) fn request_beside(&mut self, stages: Vec<u32>) {
        self.beside = stages;
    }

    pub(super) fn report_run_times(&mut self) {
        self.reports_run_times = true;
    }

    /// Adds an ask for tasks like those of this stage.
    fn add(&mut self, job: &AdmittedJob, stage: usize, execution: ExecutionType) -> u32 {
        let number = self.asks.len() as u32;
        let ask = Ask {
            id: AskId { job: job.id, number },
            resources: job.resources[stage],
            constraints: Arc::new(job.spec.stages[stage].constraints.clone()),
            execution,
            wanted: 0,
            needed: 0,
            rank: number + 1,
            priority: job.spec.stages[stage].priority_in(&job.spec),
            is_gang: job.spec.stages[stage].gang,
            locality: Arc::clone(&job.near[stage]),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        self.asks.push(Counted { ask, stages: VecDeque::new(), granted: 0, is_sent: true, told: None });
        number
    }

    pub(super) fn asks(&self) -> impl Iterator<Item = Ask> {
        self.asks.iter().map(|counted| counted.ask.clone())
    }

    /// Asks the policy again. Returns the asks that changed since they were sent.
    pub(super) fn update(
        &mut self,
        now: Instant,
        progress: Progress<'_>,
        share: Option<&Totals>,
        policy: &mut JobPolicy,
        paused: bool,
    ) -> Vec<Ask> {
        let Progress { job, dag, gangs, .. } = progress;
        self.runnable.clear();
        if !paused {
            // A gang starts nothing while one of its tasks may not start.
            let is_withheld =
                |stage: &u32| gangs.withholds(*stage) || gangs.is_gang(*stage) && !dag.stage(*stage).may_all_start();
            self.runnable.extend(dag.runnable().filter(|stage| !is_withheld(stage)).map(|stage| RunnableStage {
                stage,
                resources: job.resources[stage as usize],
                ready: dag.stage(stage).ready(),
                expected: dag.stage(stage).estimate.expected(),
            }));
        }
        for stage in &self.runnable {
            self.stages[stage.stage as usize].review(stage, &mut self.mix);
        }
        let demand = policy.demand(now, &self.runnable, &progress, share);
        self.review_at = demand.review_at;
        let mut open = vec![Open::default(); self.asks.len()];
        self.asks.iter_mut().for_each(|counted| counted.stages.clear());
        // An ask whose rank is still higher than that of the ask before it keeps the rank, and is not sent again.
        let mut last_rank = 0;
        for (stage, count, needed) in by_stage(&demand) {
            // A gang asks for all its tasks or none.
            let all = gangs.is_gang(stage).then(|| dag.stage(stage).ready());
            let (count, needed) = all.map_or((count, needed), |all| (all, if needed > 0 { all } else { 0 }));
            for (ask, count) in self.parts(stage, count).into_iter().filter(|(_, count)| *count > 0) {
                open[ask].count += u64::from(count);
                open[ask].needed += u64::from(needed.min(count));
                let counted = &mut self.asks[ask];
                counted.stages.push_back(stage);
                if counted.stages.len() == 1 {
                    counted.set_rank(if demand.in_order { counted.ask.rank.max(last_rank + 1) } else { 0 });
                    last_rank = counted.ask.rank;
                }
            }
        }
        for stage in self.beside.iter().filter(|_| !paused) {
            let open = &mut open[self.ask_of(*stage, false) as usize];
            (open.count, open.needed, open.duplicates) = (open.count + 1, open.needed + 1, open.duplicates + 1);
        }
        let default_timeout = job.default_timeout;
        let times = |stage: u32| {
            let timeout = job.spec.stages[stage as usize].timeout.or(default_timeout);
            (dag.stage(stage).estimate.expected(), timeout)
        };
        if self.reports_run_times {
            self.asks.iter_mut().for_each(|counted| counted.set_times(times));
        }
        for (counted, open) in self.asks.iter_mut().zip(open) {
            let (wanted, needed) = (counted.granted + open.count, counted.granted + open.needed);
            counted.set_counts(wanted, needed, open.duplicates);
        }
        self.deferrable = demand.deferrable;
        self.demand = self.count_open();
        self.unreported()
    }

    pub(super) fn review_at(&self) -> Option<Instant> {
        self.review_at
    }

    /// Deferrable demand by stage, from the last policy call.
    pub(super) fn deferrable(&self) -> &[Deferrable] {
        &self.deferrable
    }

    pub(super) fn open_demand(&self) -> &OpenDemand {
        &self.demand
    }

    fn count_open(&self) -> OpenDemand {
        let mut open = OpenDemand::default();
        if self.deferrable.is_empty() {
            return open;
        }
        for Counted { ask, granted, .. } in &self.asks {
            let needed = ask.needed.saturating_sub(*granted);
            let deferred = ask.wanted.saturating_sub(*granted).saturating_sub(needed);
            open.needed.add_times(&ask.resources, needed);
            open.deferred.add_times(&ask.resources, deferred);
        }
        open
    }

    /// In tests and debug builds.
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.demand, self.count_open(), "the open demand matches the asks and grants");
    }

    fn unreported(&mut self) -> Vec<Ask> {
        let unreported = self.asks.iter_mut().filter(|counted| !counted.is_sent);
        unreported
            .map(|counted| {
                (counted.is_sent, counted.told) = (true, counted.ask.expected);
                counted.ask.clone()
            })
            .collect()
    }

    /// A master without the job's asks counts from zero.
    pub(super) fn restart(&mut self) {
        for counted in &mut self.asks {
            counted.granted = 0;
            counted.ask.wanted = 0;
            counted.ask.needed = 0;
            counted.ask.duplicates = 0;
            (counted.is_sent, counted.told) = (true, None);
        }
        self.deferrable.clear();
        self.demand = OpenDemand::default();
    }

    /// How many of `count` tasks of a stage belong to each of its asks.
    fn parts(&self, stage: u32, count: u32) -> [(usize, u32); 2] {
        let kinds = &self.stages[stage as usize];
        let opportunistic = kinds.ready_opportunistic.min(count);
        [(kinds.opportunistic as usize, opportunistic), (kinds.guaranteed as usize, count - opportunistic)]
    }

    /// The stage whose next task uses the grant; `None` if no task is left or the job is held.
    pub(super) fn on_grant(&mut self, ask: AskId, dag: &Dag, is_held: bool) -> Option<(u32, ExecutionType)> {
        let counted = self.asks.get_mut(ask.number as usize)?;
        if !self.deferrable.is_empty() {
            self.demand.on_grant(&counted.ask, counted.granted);
        }
        counted.granted += 1;
        if is_held {
            return None;
        }
        let (number, execution) = (ask.number, counted.ask.execution);
        let is_opportunistic = self.mix.is_some() && execution == ExecutionType::Opportunistic;
        while let Some(&stage) = counted.stages.front() {
            let kinds = &mut self.stages[stage as usize];
            let opportunistic = kinds.ready_opportunistic;
            let ready = dag.stage(stage).ready();
            let left = if is_opportunistic { opportunistic.min(ready) } else { ready.saturating_sub(opportunistic) };
            debug_assert!(number == kinds.guaranteed || number == kinds.opportunistic);
            if left > 0 {
                kinds.count_sent(is_opportunistic);
                return Some((stage, execution));
            }
            counted.stages.pop_front();
        }
        None
    }

    /// A task of the stage waits again, with the same execution type.
    pub(super) fn came_back(&mut self, stage: u32, is_opportunistic: bool) {
        if self.mix.is_some() {
            let kinds = &mut self.stages[stage as usize];
            kinds.decided += 1;
            kinds.ready_opportunistic += u32::from(is_opportunistic);
        }
    }

    /// Number of asks.
    pub(super) fn len(&self) -> u32 {
        self.asks.len() as u32
    }

    /// The stage whose task is next for this ask.
    pub(super) fn next_stage(&self, ask: u32) -> Option<u32> {
        self.asks[ask as usize].stages.front().copied()
    }

    /// The number of the ask for tasks of the stage.
    pub(super) fn ask_of(&self, stage: u32, is_opportunistic: bool) -> u32 {
        let StageKinds { guaranteed, opportunistic, .. } = self.stages[stage as usize];
        if is_opportunistic { opportunistic } else { guaranteed }
    }

    /// The number of the ask for opportunistic tasks of the stage.
    pub(super) fn opportunistic_ask(&self, stage: u32) -> u32 {
        self.ask_of(stage, true)
    }

    /// Whether the master places tasks of this kind although the job manager has a scheduler of its own.
    pub(super) fn is_for_master(&self, execution: ExecutionType) -> bool {
        self.mix.is_some() && execution == ExecutionType::Guaranteed
    }
}

impl OpenDemand {
    /// Counts one more grant of the ask, after `granted` earlier ones. Tasks that must start now come first.
    fn on_grant(&mut self, ask: &Ask, granted: u64) {
        if granted < ask.needed {
            self.needed.sub(&ask.resources);
        } else if granted < ask.wanted {
            self.deferred.sub(&ask.resources);
        }
    }
}

/// Ungranted tasks of one ask.
#[derive(Clone, Copy, Default)]
struct Open {
    count: u64,
    needed: u64,
    duplicates: u64,
}

/// The stages with demand: how many tasks, and how many of them are needed now.
fn by_stage(demand: &JobDemand) -> Vec<(u32, u32, u32)> {
    let mut stages: Vec<(u32, u32, u32)> =
        demand.needed.iter().map(|part| (part.stage, part.count, part.count)).collect();
    for part in &demand.deferrable {
        match stages.iter_mut().find(|(stage, ..)| *stage == part.stage) {
            Some((_, count, _)) => *count += part.count,
            None => stages.push((part.stage, part.count, 0)),
        }
    }
    stages
}

impl Counted {
    /// Sets how long its tasks run: as long as those of the slowest stage, from what is known of each.
    fn set_times(&mut self, of: impl Fn(u32) -> (Option<Duration>, Option<Duration>)) {
        let longest =
            |one: Option<Duration>, other: Option<Duration>| one.zip(other).map(|(one, other)| one.max(other));
        let times = self.stages.iter().map(|stage| of(*stage));
        let Some((expected, limit)) = times.reduce(|one, other| (longest(one.0, other.0), longest(one.1, other.1)))
        else {
            return;
        };
        // What changes by less than half is sent with other news.
        let is_news = match (self.told, expected) {
            (Some(before), Some(now)) => now.0.abs_diff(before.0) > before.0 / 2,
            (before, now) => before.is_none() && now.is_some(),
        };
        self.is_sent &= !is_news && self.ask.limit == limit;
        (self.ask.expected, self.ask.limit) = (expected, limit);
    }

    fn set_counts(&mut self, wanted: u64, needed: u64, duplicates: u64) {
        let (ask, new) = (&mut self.ask, (wanted, needed, duplicates));
        self.is_sent &= new == (ask.wanted, ask.needed, ask.duplicates);
        (ask.wanted, ask.needed, ask.duplicates) = new;
    }

    fn set_rank(&mut self, rank: u32) {
        self.is_sent &= rank == self.ask.rank;
        self.ask.rank = rank;
    }
}
