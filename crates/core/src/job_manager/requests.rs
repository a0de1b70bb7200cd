//! What the job asks for: one counted ask per kind of task (shape, constraints, execution type, nodes with its
//! input), whatever the number of
//! stages and tasks behind it. Which task uses a grant is decided when the grant is there.

use super::dag::Dag;
use crate::policy::{DagProgress, IntraJobPolicy, RunnableStage};
use crate::protocol::{AdmittedJob, Ask};
use crate::vocabulary::{AskId, Instant, Totals};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct Requests {
    asks: Vec<Counted>,
    /// Which ask a stage's tasks belong to.
    ask_of_stage: Vec<u32>,
    runnable: Vec<RunnableStage>,
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
    pub(super) fn new(job: &AdmittedJob) -> Requests {
        let mut asks: Vec<Counted> = Vec::new();
        let mut ask_of_stage = Vec::with_capacity(job.spec.stages.len());
        let mut known = std::collections::BTreeMap::new();
        for ((stage, resources), near) in job.spec.stages.iter().zip(&job.resources).zip(&job.near) {
            let kind = (*resources, stage.execution, stage.constraints.clone(), Arc::clone(near));
            let number = *known.entry(kind).or_insert_with(|| {
                let ask = Ask {
                    id: AskId { job: job.id, number: asks.len() as u32 },
                    resources: *resources,
                    constraints: Arc::new(stage.constraints.clone()),
                    execution: stage.execution,
                    wanted: 0,
                    rank: asks.len() as u32 + 1,
                    locality: Arc::clone(near),
                };
                asks.push(Counted { ask, stages: VecDeque::new(), granted: 0, told: true });
                asks.len() as u32 - 1
            });
            ask_of_stage.push(number);
        }
        Requests { asks, ask_of_stage, runnable: Vec::new() }
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
        // No intra-job policy here looks at its share yet, so the master does not send one.
        let demand = policy.demand(now, &DagProgress { runnable: &self.runnable, graph: dag }, &Totals::ZERO);
        let mut open = vec![0u64; self.asks.len()];
        self.asks.iter_mut().for_each(|counted| counted.stages.clear());
        // An ask that has a rank after the one before it keeps it, and is not told again.
        let mut last_rank = 0;
        for wanted in &demand.needed {
            let ask = self.ask_of_stage[wanted.stage as usize] as usize;
            open[ask] += u64::from(wanted.count);
            let counted = &mut self.asks[ask];
            counted.stages.push_back(wanted.stage);
            if counted.stages.len() == 1 {
                counted.set_rank(if demand.in_order { counted.ask.rank.max(last_rank + 1) } else { 0 });
                last_rank = counted.ask.rank;
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

    /// The stage whose next task uses the grant, if one is left that could.
    pub(super) fn on_grant(&mut self, ask: AskId, dag: &Dag) -> Option<u32> {
        let counted = self.asks.get_mut(ask.number as usize)?;
        counted.granted += 1;
        while counted.stages.front().is_some_and(|&stage| dag.stage(stage).ready() == 0) {
            counted.stages.pop_front();
        }
        counted.stages.front().copied()
    }
}

impl Counted {
    fn set_rank(&mut self, rank: u32) {
        self.told &= rank == self.ask.rank;
        self.ask.rank = rank;
    }
}
