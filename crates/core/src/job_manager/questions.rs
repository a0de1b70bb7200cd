//! Queries that change nothing: for the interface, the host of the job manager and the simulator.

use super::{Holding, JobManager, LaunchedIn, RunningAttempt};
use crate::policy::Deferrable;
use crate::progress::Dag;
use crate::protocol::{AdmittedJob, JobOutcome};
use crate::scheduling::LocalScheduler;
use crate::vocabulary::{AttemptId, Duration, Instant, NodeId, TaskId};
use crate::why::Why;
use std::sync::Arc;

/// A job's state, for display and for a simulator that starts from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobDescription {
    pub job: Arc<AdmittedJob>,
    pub held: bool,
    pub cancelled: bool,
    pub outcome: Option<JobOutcome>,
    pub dag: Dag,
    pub running: Vec<RunningDescription>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningDescription {
    pub attempt: AttemptId,
    pub task: TaskId,
    pub node: NodeId,
    /// Since it was launched.
    pub age: Duration,
    /// Since its process started; `None` while it waits at the node.
    pub running_for: Option<Duration>,
}

/// An attempt that was launched and has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenAttempt {
    pub attempt: AttemptId,
    pub task: TaskId,
    pub node: NodeId,
    /// Whether a ledger has booked its resources.
    pub booked: bool,
    pub opportunistic: bool,
    /// When its process started; `None` while it waits at the node.
    pub started_at: Option<Instant>,
}

impl JobManager {
    pub fn dag(&self) -> &Dag {
        &self.dag
    }

    pub fn job(&self) -> &Arc<AdmittedJob> {
        &self.job
    }

    pub fn outcome(&self) -> Option<JobOutcome> {
        self.lifecycle.outcome()
    }

    pub fn is_cancelled(&self) -> bool {
        self.lifecycle.is_cancelled()
    }

    /// When the process of a running attempt started.
    pub fn started_at(&self, attempt: AttemptId) -> Option<Instant> {
        self.attempts.get(&attempt)?.started_at
    }

    /// Whether it has attempts to claim or to stop at the node, has probes there, or considers the node unreachable.
    pub fn concerns(&self, node: NodeId) -> bool {
        self.attempts.is_estranged(node)
            || self.own.scheduler.as_ref().is_some_and(|scheduler| !scheduler.reaches(node))
            || self.attempts.values().any(|running| running.node == node)
            || self.own.scheduler.as_ref().is_some_and(|scheduler| scheduler.has_probes_at(node))
    }

    /// The running attempts.
    pub fn running(&self) -> impl Iterator<Item = (AttemptId, TaskId, NodeId)> {
        self.attempts.iter().map(|(attempt, running)| (*attempt, running.task, running.node))
    }

    /// The running attempts, and whether their resources are booked.
    pub fn open_attempts(&self) -> impl Iterator<Item = OpenAttempt> {
        self.attempts.iter().map(|(attempt, running)| {
            let RunningAttempt { task, node, started_at, .. } = *running;
            let holding = running.holding();
            let (booked, opportunistic) = (holding.is_booked(), holding == Holding::Opportunistic);
            OpenAttempt { attempt: *attempt, task, node, booked, opportunistic, started_at }
        })
    }

    /// Reasons why tasks do not start that the job manager places itself. The master does not know them.
    pub fn explain(&self) -> Vec<Why> {
        if let Some(why) = self.own.reported_why() {
            let is_ready = self.dag.runnable().any(|stage| self.dag.stage(stage).ready() > 0);
            return if is_ready { vec![why.clone()] } else { Vec::new() };
        }
        // It is not known yet whether an attempt from before a restart has started.
        let waits = |running: &&RunningAttempt| {
            !running.holding().is_booked() && running.started_at.is_none() && running.launched_in != LaunchedIn::Earlier
        };
        let tasks = self.attempts.values().filter(waits).count() as u64;
        let at_nodes = (tasks > 0).then_some(Why::AtNodes { tasks });
        let no_node = self.own.scheduler.iter().flat_map(LocalScheduler::explain);
        self.stages_with_held_tasks()
            .chain(self.stages_at_their_limit())
            .chain(self.gangs_that_gather())
            .chain(at_nodes)
            .chain(self.quota_that_binds())
            .chain(self.allowance_that_binds())
            .chain(no_node)
            .collect()
    }

    fn stages_at_their_limit(&self) -> impl Iterator<Item = Why> {
        let limits = self.dag.stages.iter().zip(&self.job.spec.stages);
        limits.filter_map(|(stage, spec)| {
            let most = stage.limit_that_binds()?;
            Some(Why::AtOnce { stage: spec.name.clone(), most, running: stage.running })
        })
    }

    /// Tasks that can wait, and for how long.
    pub fn can_wait(&self, now: Instant) -> impl Iterator<Item = Why> {
        self.deferred().filter(move |part| part.due > now).map(move |part| Why::CanWait {
            stage: self.job.spec.stages[part.stage as usize].name.clone(),
            tasks: part.count,
            left: part.due.since(now),
        })
    }

    /// The same for one task that has not started.
    pub fn task_can_wait(&self, stage: u32, index: u32, now: Instant) -> Option<Why> {
        let part = self.deferred().find(|part| part.stage == stage && part.due > now)?;
        let entry = self.dag.stage(stage);
        // The first tasks in line are needed first.
        let is_needed = entry.place_in_line(index) < entry.ready() - part.count;
        let (stage, left) = (self.job.spec.stages[stage as usize].name.clone(), part.due.since(now));
        (!is_needed).then_some(Why::CanWait { stage, tasks: 1, left })
    }

    /// Whether nothing that it asks for must start now.
    pub fn needs_nothing_now(&self) -> bool {
        let ready: u64 = self.dag.runnable().map(|stage| u64::from(self.dag.stage(stage).ready())).sum();
        ready == self.deferred().map(|part| u64::from(part.count)).sum()
    }

    /// Deferrable tasks of the last policy call, without those that have started since: deferrable tasks start last.
    fn deferred(&self) -> impl Iterator<Item = Deferrable> {
        let left = |part: &Deferrable| part.count.min(self.dag.stage(part.stage).ready());
        let parts = self.requests.deferrable().iter().map(move |part| Deferrable { count: left(part), ..*part });
        parts.filter(|part| part.count > 0)
    }

    /// The scheduler of the job's own; `None` if the master places its tasks.
    pub fn local_scheduler(&self) -> Option<&LocalScheduler> {
        self.own.scheduler.as_ref()
    }

    pub(super) fn description(&self, now: Instant) -> JobDescription {
        let running = self.attempts.iter().map(|(attempt, running)| RunningDescription {
            attempt: *attempt,
            task: running.task,
            node: running.node,
            age: now.since(running.launched_at),
            running_for: running.started_at.map(|at| now.since(at)),
        });
        JobDescription {
            job: Arc::clone(&self.job),
            held: self.lifecycle.is_held(),
            cancelled: self.lifecycle.is_cancelled(),
            outcome: self.lifecycle.outcome(),
            dag: self.dag.clone(),
            running: running.collect(),
        }
    }
}
