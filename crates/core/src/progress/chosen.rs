//! Tasks that a user holds, cancels or runs again. Adjacent tasks are stored as one range.

use super::{Dag, Stage, TaskRecord, TaskState};
use crate::vocabulary::{EndReason, Spans};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tasks of a stage that a user holds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct HeldTasks {
    /// All of them, in any state: a running one continues, and is not tried again.
    pub(crate) all: Spans,
    /// Those that wait and were never launched.
    pub(crate) fresh: Spans,
    /// The others that wait.
    pub(crate) touched: Spans,
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
    pub(crate) fn reopen_tasks(&mut self, chosen: &Spans) {
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
    pub(crate) fn is_to_be_cancelled(&self, index: u32) -> bool {
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
    pub(crate) fn hold_tasks(&mut self, stage: u32, chosen: &Spans) {
        self.stages[stage as usize].hold(chosen);
        self.review(stage);
    }

    pub(crate) fn release_tasks(&mut self, stage: u32, chosen: &Spans) {
        self.stages[stage as usize].release(chosen);
        self.review(stage);
    }

    /// Running tasks are marked to be stopped. Returns whether a waiting one was cancelled.
    pub(crate) fn cancel_tasks(&mut self, stage: u32, chosen: &Spans) -> bool {
        let resting = self.resting_in(stage).filter(|index| chosen.contains(*index)).collect::<Vec<_>>();
        for index in &resting {
            self.retry_delays.remove(stage, *index);
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
    pub(crate) fn rerun_tasks(&mut self, chosen: &BTreeMap<u32, Spans>) {
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

impl TaskRecord {
    /// The task was tried, and is not tried again.
    fn cancel(&mut self) {
        self.state = TaskState::Cancelled;
        self.set_reason(&EndReason::Cancelled);
    }
}
