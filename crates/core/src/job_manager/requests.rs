//! What the job asks for: one counted ask per kind of task (shape, constraints, execution type, nodes with its
//! input), whatever the number of stages and tasks behind it. Which task uses a grant is decided when the grant is there.

use super::dag::Dag;
use crate::policy::{DagProgress, IntraJobPolicy, Mix, RunnableStage};
use crate::protocol::{AdmittedJob, Ask};
use crate::vocabulary::{AskId, Chance, ExecutionType, Instant, Totals};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub(super) struct Requests {
    asks: Vec<Counted>,
    stages: Vec<StageKinds>,
    runnable: Vec<RunnableStage>,
    /// Makes tasks guaranteed or opportunistic; without it each asks for what its stage says.
    mix: Option<(Mix, Chance)>,
}

/// The ready tasks of a stage, each of which is guaranteed or opportunistic. It is counted how many are and not which.
struct StageKinds {
    accepts: ExecutionType,
    /// The asks of the two kinds, where they are told apart.
    guaranteed: u32,
    opportunistic: u32,
    /// Ready tasks whose kind is decided, and how many of them are opportunistic.
    decided: u32,
    ready_opportunistic: u32,
}

impl StageKinds {
    /// So many tasks are ready: decides about those that are new.
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

    /// A task leaves for a node.
    fn take(&mut self, is_opportunistic: bool) {
        self.decided = self.decided.saturating_sub(1);
        self.ready_opportunistic = self.ready_opportunistic.saturating_sub(u32::from(is_opportunistic));
    }
}

struct Counted {
    ask: Ask,
    /// Stages whose tasks may use its grants, whoever comes first at the front.
    stages: VecDeque<u32>,
    /// Grants received for it from the present master, or tasks bound by the job's own scheduler.
    granted: u64,
    /// Whether the master was told `ask.wanted`.
    told: bool,
}

impl Requests {
    pub(super) fn new(job: &AdmittedJob, mix: Option<(Mix, Chance)>) -> Requests {
        let mut requests = Requests { asks: Vec::new(), stages: Vec::new(), runnable: Vec::new(), mix };
        let mut known = BTreeMap::new();
        for (number, stage) in job.spec.stages.iter().enumerate() {
            let accepts = if job.only_guaranteed { ExecutionType::Guaranteed } else { stage.execution };
            let (guaranteed, opportunistic) = match (&requests.mix, accepts) {
                (None, _) => (accepts, accepts),
                (Some(_), ExecutionType::Auto) => (ExecutionType::Guaranteed, ExecutionType::Opportunistic),
                (Some(_), only) => (only, only),
            };
            let [guaranteed, opportunistic] = [guaranteed, opportunistic].map(|execution| {
                let (resources, near) = (job.resources[number], &job.near[number]);
                let kind = (resources, execution, stage.constraints.clone(), Arc::clone(near));
                *known.entry(kind).or_insert_with(|| requests.add(job, number, execution))
            });
            let kinds = StageKinds { accepts, guaranteed, opportunistic, decided: 0, ready_opportunistic: 0 };
            requests.stages.push(kinds);
        }
        requests
    }

    /// An ask for tasks such as those of this stage.
    fn add(&mut self, job: &AdmittedJob, stage: usize, execution: ExecutionType) -> u32 {
        let number = self.asks.len() as u32;
        let ask = Ask {
            id: AskId { job: job.id, number },
            resources: job.resources[stage],
            constraints: Arc::new(job.spec.stages[stage].constraints.clone()),
            execution,
            wanted: 0,
            rank: number + 1,
            locality: Arc::clone(&job.near[stage]),
        };
        self.asks.push(Counted { ask, stages: VecDeque::new(), granted: 0, told: true });
        number
    }

    pub(super) fn asks(&self) -> impl Iterator<Item = Ask> {
        self.asks.iter().map(|counted| counted.ask.clone())
    }

    /// Asks the policy anew. Returns the asks whose count the master does not know yet.
    pub(super) fn update(
        &mut self,
        now: Instant,
        job: &AdmittedJob,
        dag: &Dag,
        policy: &mut dyn IntraJobPolicy,
        paused: bool,
    ) -> Vec<Ask> {
        self.runnable.clear();
        if !paused {
            self.runnable.extend(dag.runnable().map(|stage| RunnableStage {
                stage,
                resources: job.resources[stage as usize],
                ready: dag.stage(stage).ready(),
                expected: dag.stage(stage).estimate.expected(),
            }));
        }
        for stage in &self.runnable {
            self.stages[stage.stage as usize].review(stage, &mut self.mix);
        }
        // No intra-job policy here looks at its share yet, so the master does not send one.
        let demand = policy.demand(now, &DagProgress { runnable: &self.runnable, graph: dag }, &Totals::ZERO);
        let mut open = vec![0u64; self.asks.len()];
        self.asks.iter_mut().for_each(|counted| counted.stages.clear());
        // An ask that has a rank after the one before it keeps it, and is not told again.
        let mut last_rank = 0;
        for wanted in &demand.needed {
            for (ask, count) in self.parts(wanted.stage, wanted.count).into_iter().filter(|(_, count)| *count > 0) {
                open[ask] += u64::from(count);
                let counted = &mut self.asks[ask];
                counted.stages.push_back(wanted.stage);
                if counted.stages.len() == 1 {
                    counted.set_rank(if demand.in_order { counted.ask.rank.max(last_rank + 1) } else { 0 });
                    last_rank = counted.ask.rank;
                }
            }
        }
        for (counted, open) in self.asks.iter_mut().zip(open) {
            let wanted = counted.granted + open;
            counted.told &= wanted == counted.ask.wanted;
            counted.ask.wanted = wanted;
        }
        self.untold()
    }

    fn untold(&mut self) -> Vec<Ask> {
        let untold = self.asks.iter_mut().filter(|counted| !counted.told);
        untold
            .map(|counted| {
                counted.told = true;
                counted.ask.clone()
            })
            .collect()
    }

    /// A master that knows nothing of the job's asks counts from zero.
    pub(super) fn restart(&mut self) {
        for counted in &mut self.asks {
            counted.granted = 0;
            counted.ask.wanted = 0;
            counted.told = true;
        }
    }

    /// Of so many tasks of a stage, how many belong to which ask.
    fn parts(&self, stage: u32, count: u32) -> [(usize, u32); 2] {
        let kinds = &self.stages[stage as usize];
        let opportunistic = kinds.ready_opportunistic.min(count);
        [(kinds.opportunistic as usize, opportunistic), (kinds.guaranteed as usize, count - opportunistic)]
    }

    /// The stage whose next task uses the grant, if one is left that could. Nobody of a held job does.
    pub(super) fn on_grant(&mut self, ask: AskId, dag: &Dag, is_held: bool) -> Option<(u32, ExecutionType)> {
        let counted = self.asks.get_mut(ask.number as usize)?;
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
                kinds.take(is_opportunistic);
                return Some((stage, execution));
            }
            counted.stages.pop_front();
        }
        None
    }

    /// A task of the stage waits again, as what it was.
    pub(super) fn came_back(&mut self, stage: u32, is_opportunistic: bool) {
        if self.mix.is_some() {
            let kinds = &mut self.stages[stage as usize];
            kinds.decided += 1;
            kinds.ready_opportunistic += u32::from(is_opportunistic);
        }
    }

    /// The number of the ask for opportunistic tasks of the stage.
    pub(super) fn opportunistic_ask(&self, stage: u32) -> u32 {
        self.stages[stage as usize].opportunistic
    }

    /// Whether the master places tasks of this kind although the job manager has a scheduler of its own.
    pub(super) fn is_for_master(&self, execution: ExecutionType) -> bool {
        self.mix.is_some() && execution == ExecutionType::Guaranteed
    }
}

impl Counted {
    fn set_rank(&mut self, rank: u32) {
        self.told &= rank == self.ask.rank;
        self.ask.rank = rank;
    }
}
