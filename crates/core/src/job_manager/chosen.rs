//! Actions of users on single tasks of a job: hold, release, cancel and rerun. Adjacent tasks are stored as one range.

use super::JobManager;
use crate::progress::TaskState;
use crate::role::{Change, Outbox};
use crate::vocabulary::{AttemptId, Chosen, EndReason, Instant, RequestedTaskActions, Spans, TaskAction, TaskId};
use crate::why::Why;

impl JobManager {
    pub(super) fn on_act_on_tasks(&mut self, now: Instant, action: TaskAction, tasks: &Chosen, out: &mut Outbox) {
        for (stage, spans) in &tasks.0 {
            self.act_on_tasks(now, action, *stage, spans.clone(), out);
        }
        self.update_demand(now, out);
    }

    /// Applies actions that were missed. Returns whether there were any.
    pub(super) fn apply_requested(
        &mut self,
        now: Instant,
        requested_actions: &RequestedTaskActions,
        out: &mut Outbox,
    ) -> bool {
        let nothing = Spans::default();
        let mut is_any = false;
        for number in 0..self.dag.stages.len() as u32 {
            let of = |chosen: &Chosen| chosen.0.get(&number).unwrap_or(&nothing).clone();
            let stage = self.dag.stage(number);
            let (mut held, mut cancelled, mut released) =
                (of(&requested_actions.held), of(&requested_actions.cancelled), stage.held.all.clone());
            released.take_all(&held);
            held.take_all(&stage.held.all);
            cancelled.take_all(&stage.to_cancel);
            for (action, tasks) in
                [(TaskAction::Release, released), (TaskAction::Hold, held), (TaskAction::Cancel, cancelled)]
            {
                if !tasks.is_empty() {
                    is_any = true;
                    self.act_on_tasks(now, action, number, tasks, out);
                }
            }
        }
        is_any
    }

    fn act_on_tasks(&mut self, now: Instant, action: TaskAction, stage: u32, tasks: Spans, out: &mut Outbox) {
        let is_known = self.dag.stages.get(stage as usize).is_some_and(|entry| tasks.last() < Some(entry.total));
        if !is_known || action == TaskAction::RerunFailed || self.lifecycle.outcome().is_some() {
            return;
        }
        self.choose(action, stage, &tasks);
        if action == TaskAction::Cancel {
            self.stop_tasks(stage, &tasks, out);
        }
        out.persist(Change::TasksChosen { job: self.id(), action, stage, tasks, at: now });
    }

    pub(super) fn choose(&mut self, action: TaskAction, stage: u32, tasks: &Spans) {
        match action {
            TaskAction::Hold => self.dag.hold_tasks(stage, tasks),
            TaskAction::Release => self.dag.release_tasks(stage, tasks),
            // Applies to the whole job, which starts again for it.
            TaskAction::RerunFailed => {}
            TaskAction::Cancel => {
                let chosen = |task: &TaskId| task.stage == stage && tasks.contains(task.index);
                self.blame.forget_all(chosen);
                if self.dag.cancel_tasks(stage, tasks) {
                    self.dag.abandon_dependents(stage);
                    if self.gangs.is_gang(stage) {
                        self.dag.abandon(stage);
                    }
                }
                self.master.work.recount(&self.job, &self.dag);
            }
        }
    }

    fn stop_tasks(&self, stage: u32, tasks: &Spans, out: &mut Outbox) {
        let runs = |task: TaskId| {
            let record = self.dag.stage(task.stage).record(task.index);
            record.is_some_and(|record| record.state == TaskState::Running)
        };
        let chosen = self
            .attempts
            .of_stage(stage)
            .filter(|(_, running)| tasks.contains(running.task.index) && runs(running.task));
        let attempts: Vec<AttemptId> = chosen.map(|(attempt, _)| attempt).collect();
        for attempt in attempts {
            self.stop(attempt, &self.attempts[&attempt], EndReason::Cancelled, out);
        }
    }

    pub(super) fn is_cancelled_task(&self, task: TaskId) -> bool {
        self.dag.stage(task.stage).is_to_be_cancelled(task.index)
    }

    /// Stages with held tasks that could start otherwise.
    pub(super) fn stages_with_held_tasks(&self) -> impl Iterator<Item = Why> {
        let stages = self.dag.stages.iter().zip(&self.job.spec.stages);
        stages.filter(|(stage, _)| stage.inputs_missing == 0 && !stage.abandoned).filter_map(|(stage, spec)| {
            let tasks = stage.held.fresh.len() + stage.held.touched.len();
            (tasks > 0).then(|| Why::TasksHeld { stage: spec.name.clone(), tasks })
        })
    }
}
