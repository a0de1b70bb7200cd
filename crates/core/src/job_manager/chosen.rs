//! Actions of users on single tasks of a job: hold, release, cancel and rerun. Adjacent tasks are stored as one range.

use super::JobManager;
use super::dag::{Dag, Stage, TaskRecord, TaskState};
use crate::role::{Change, Outbox};
use crate::vocabulary::{AttemptId, Chosen, EndReason, Instant, Spans, TaskAction, TaskId, TaskWishes};
use crate::why::Why;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tasks of a stage that a user holds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(super) struct HeldTasks {
    /// All of them, in any state: a running one continues, and is not tried again.
    pub(super) all: Spans,
    /// Those that wait and were never launched.
    pub(super) fresh: Spans,
    /// The others that wait.
    pub(super) touched: Spans,
}

/// Number of chosen tasks by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChosenCounts {
    pub waiting: u32,
    pub held: u32,
    pub running: u32,
    pub succeeded: u32,
    pub failed: u32,
    pub cancelled: u32,
}

impl Stage {
    fn hold(&mut self, chosen: &Spans) {
        self.held.all.add_all(chosen);
        let fresh = self.fresh.take_all(chosen);
        self.held.fresh.add_all(&fresh);
        let touched: Vec<_> = self.line.iter().filter(|(_, index)| chosen.contains(*index)).copied().collect();
        for place in touched {
            self.line.remove(&place);
            self.held.touched.insert(place.1);
        }
    }

    fn release(&mut self, chosen: &Spans) {
        self.held.all.take_all(chosen);
        let fresh = self.held.fresh.take_all(chosen);
        self.fresh.add_all(&fresh);
        for index in self.held.touched.take_all(chosen).iter() {
            self.line.insert(self.place_of(index));
        }
    }

    /// Cancels those that wait, except resting ones.
    fn cancel_waiting(&mut self, chosen: &Spans) {
        for spans in [&mut self.fresh, &mut self.held.fresh] {
            let fresh = spans.take_all(chosen);
            self.cancelled += fresh.len();
            self.cancelled_fresh.add_all(&fresh);
        }
        let touched: Vec<_> = self.line.iter().filter(|(_, index)| chosen.contains(*index)).copied().collect();
        for place in &touched {
            self.line.remove(place);
        }
        let held = self.held.touched.take_all(chosen);
        for index in touched.into_iter().map(|(_, index)| index).chain(held.iter()) {
            self.cancel_touched(index);
        }
    }

    fn cancel_touched(&mut self, index: u32) {
        self.records[index].cancel();
        self.cancelled += 1;
    }

    /// Chosen tasks that failed or were cancelled wait again.
    pub(super) fn reopen_tasks(&mut self, chosen: &Spans) {
        self.to_cancel.take_all(chosen);
        let fresh = self.cancelled_fresh.take_all(chosen);
        self.cancelled -= fresh.len();
        for (start, end) in fresh.ranges() {
            self.fresh.add(start, end);
        }
        let ended = self.records.iter().filter(|(index, record)| {
            matches!(record.state, TaskState::Failed | TaskState::Cancelled) && chosen.contains(*index)
        });
        for index in ended.map(|(index, _)| index).collect::<Vec<_>>() {
            let record = &mut self.records[index];
            let counter = if record.state == TaskState::Failed { &mut self.failed } else { &mut self.cancelled };
            *counter -= 1;
            (record.state, record.failures, record.losses) = (TaskState::Waiting, 0, 0);
            self.wait_again(index);
        }
        let held = self.held.all.clone();
        self.hold(&held);
    }

    /// All tasks except the chosen ones.
    fn all_but(&self, chosen: &Spans) -> Spans {
        let mut others = Spans::below(self.total);
        others.take_all(chosen);
        others
    }

    /// Whether the task was cancelled, although it may still run.
    pub(super) fn is_to_be_cancelled(&self, index: u32) -> bool {
        self.to_cancel.contains(index)
    }

    /// Number of these tasks by state.
    pub fn count_chosen(&self, chosen: &Spans) -> ChosenCounts {
        let mut counts = ChosenCounts::default();
        let all = Spans::below(self.total).take_all(chosen);
        let within = |spans: &Spans| spans.clone().take_all(&all).len();
        let mut seen = 0;
        for (_, record) in self.records.iter().filter(|(index, record)| record.attempts > 0 && all.contains(*index)) {
            let counter = match record.state {
                TaskState::Waiting => continue,
                TaskState::Running => &mut counts.running,
                TaskState::Succeeded => &mut counts.succeeded,
                TaskState::Failed => &mut counts.failed,
                TaskState::Cancelled => &mut counts.cancelled,
            };
            *counter += 1;
            seen += 1;
        }
        let cancelled_fresh = within(&self.cancelled_fresh);
        counts.held = within(&self.held.fresh) + within(&self.held.touched);
        counts.waiting = all.len() - seen - cancelled_fresh - counts.held;
        counts.cancelled += cancelled_fresh;
        if self.abandoned {
            counts.cancelled += std::mem::take(&mut counts.waiting) + std::mem::take(&mut counts.held);
        }
        counts
    }
}

impl Dag {
    pub(super) fn hold_tasks(&mut self, stage: u32, chosen: &Spans) {
        self.stages[stage as usize].hold(chosen);
        self.review(stage);
    }

    pub(super) fn release_tasks(&mut self, stage: u32, chosen: &Spans) {
        self.stages[stage as usize].release(chosen);
        self.review(stage);
    }

    /// Running tasks are marked to be stopped. Returns whether a waiting one was cancelled.
    pub(super) fn cancel_tasks(&mut self, stage: u32, chosen: &Spans) -> bool {
        let resting = self.resting_in(stage).filter(|index| chosen.contains(*index)).collect::<Vec<_>>();
        for index in &resting {
            self.rests.remove(stage, *index);
        }
        let entry = &mut self.stages[stage as usize];
        let before = entry.cancelled;
        entry.to_cancel.add_all(chosen);
        entry.resting -= resting.len() as u32;
        resting.iter().for_each(|index| entry.cancel_touched(*index));
        entry.cancel_waiting(chosen);
        let is_any = entry.cancelled > before;
        self.review(stage);
        is_any
    }

    /// In an ended job, chosen tasks that failed or were cancelled wait again, and so does what depends on them. Other tasks
    /// that were cancelled with the job do not start.
    pub(super) fn rerun_tasks(&mut self, chosen: &BTreeMap<u32, Spans>) {
        // The tasks of a job that ended before it started are not abandoned yet.
        self.abandon_all();
        for number in 0..self.stages.len() as u32 {
            let entry = &self.stages[number as usize];
            let nothing = Spans::default();
            let own = chosen.get(&number).unwrap_or(&nothing);
            if entry.abandoned && (entry.inputs_missing == 0 || !own.is_empty()) {
                let others = entry.all_but(own);
                self.cancel_tasks(number, &others);
            }
            self.stages[number as usize].reopen_tasks(own);
        }
        for number in 0..self.stages.len() {
            self.stages[number].abandoned = false;
        }
        for number in 0..self.stages.len() as u32 {
            if self.stage(number).failed + self.stage(number).cancelled > 0 {
                self.abandon_dependents(number);
            }
        }
        (0..self.stages.len() as u32).for_each(|number| self.review(number));
    }

    /// Whether single tasks were cancelled.
    pub fn has_cancelled(&self) -> bool {
        self.stages.iter().any(|stage| stage.cancelled > 0)
    }
}

impl JobManager {
    pub(super) fn on_act_on_tasks(&mut self, now: Instant, action: TaskAction, tasks: &Chosen, out: &mut Outbox) {
        for (stage, spans) in &tasks.0 {
            self.act_on_tasks(now, action, *stage, spans.clone(), out);
        }
        self.update_demand(now, out);
    }

    /// Applies actions that were missed. Returns whether there were any.
    pub(super) fn do_what_is_wished(&mut self, now: Instant, wishes: &TaskWishes, out: &mut Outbox) -> bool {
        let nothing = Spans::default();
        let mut is_any = false;
        for number in 0..self.dag.stages.len() as u32 {
            let of = |chosen: &Chosen| chosen.0.get(&number).unwrap_or(&nothing).clone();
            let stage = self.dag.stage(number);
            let (mut held, mut cancelled, mut released) =
                (of(&wishes.held), of(&wishes.cancelled), stage.held.all.clone());
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
        if !is_known || action == TaskAction::RerunFailed || self.outcome.is_some() {
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
                self.work.recount(&self.job, &self.dag);
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

impl TaskRecord {
    /// The task was tried, and is not tried again.
    fn cancel(&mut self) {
        self.state = TaskState::Cancelled;
        self.set_reason(&EndReason::Cancelled);
    }
}
