//! The tasks of a job.

use super::ends::task_reason;
use super::{Job, look};
use crate::api::{ChosenCounts, TaskState, TaskSummary, Timestamp};
use crate::http::TaskFilter;
use amalgam_core::dispatch;
use amalgam_core::hosting::Roles;
use amalgam_core::progress;
use amalgam_core::vocabulary::{ByteString, Chosen, EndReason, Instant, JobId, Spans, TaskId};

/// Maximum number of tasks that one page examines. A filter that few tasks match may need several pages.
const LOOKED_AT: u32 = 100_000;

/// Tasks, and the (stage, position) at which the next page starts.
pub type TasksFound = (Vec<TaskSummary>, Option<(u32, u32)>);

/// Tasks from (stage, position) on.
pub fn tasks(
    roles: &Roles,
    id: JobId,
    filter: &TaskFilter,
    from: (u32, u32),
    limit: usize,
    now: Instant,
) -> Option<TasksFound> {
    let job = look(roles, id, now)?;
    let mut found = Vec::new();
    let mut looked_at = 0;
    let (mut stage, mut index) = from;
    if let (Some(only), Some(position)) = (filter.stage, filter.index) {
        (stage, index) = (stage.max(only), index.max(position));
    }
    while let Some(spec) = job.job.spec.stages.get(stage as usize) {
        let wanted = filter.stage.is_none_or(|only| only == stage);
        if !wanted || index >= spec.tasks.len() {
            (stage, index) = (stage + 1, 0);
            continue;
        }
        if found.len() == limit || looked_at == LOOKED_AT {
            return Some((found, Some((stage, index))));
        }
        looked_at += 1;
        let summary = job.task(stage, index);
        if filter.admits(TaskId { job: id, stage, index }, summary.state) {
            found.push(summary);
        }
        index += 1;
        if filter.index.is_some() {
            (stage, index) = (stage + 1, filter.index.unwrap_or(0));
        }
    }
    Some((found, None))
}

impl Job<'_> {
    fn task(&self, stage: u32, index: u32) -> TaskSummary {
        let spec = &self.job.spec.stages[stage as usize];
        let progress = self.manager.map(|manager| manager.dag().stage(stage));
        let status = progress.and_then(|progress| progress.status(index));
        let record = status.as_ref().and_then(|status| status.record);
        let task = TaskId { job: self.job.id, stage, index };
        let launched = status.as_ref().is_some_and(|status| status.state == progress::TaskState::Running);
        let attempt = record.map(|record| record.attempt(self.job.id));
        let ended = record.filter(|_| !launched);
        let started_at = match (launched, ended) {
            (true, _) => attempt.and_then(|attempt| self.manager?.started_at(attempt)),
            (false, Some(record)) => Some(record.at.before(record.wall)),
            (false, None) => None,
        };
        let state = match status.as_ref().map(|status| status.state) {
            Some(progress::TaskState::Waiting) if progress.is_some_and(|stage| stage.inputs_missing == 0) => {
                TaskState::Queued
            }
            Some(progress::TaskState::Waiting) => TaskState::Waiting,
            Some(progress::TaskState::Running) if started_at.is_none() => TaskState::Queued,
            Some(progress::TaskState::Running) => TaskState::Running,
            Some(progress::TaskState::Succeeded) => TaskState::Succeeded,
            Some(progress::TaskState::Failed) => TaskState::Failed,
            Some(progress::TaskState::Cancelled) => TaskState::Cancelled,
            None if matches!(self.state, dispatch::JobState::Ended(_)) => TaskState::Cancelled,
            None => TaskState::Waiting,
        };
        let can_wait = self.manager.filter(|_| state == TaskState::Queued && !launched);
        let can_wait = can_wait.and_then(|manager| manager.task_can_wait(stage, index, self.now));
        // While its first attempt runs, no usage is known.
        let has_ended = ended.is_some() || record.is_some_and(|record| record.attempts > 1);
        let spent = self.manager.filter(|_| has_ended).map(|manager| manager.dag().spent_by(stage, index));
        let retry_delays = self.manager.and_then(|manager| manager.why_delayed(stage, index, self.now));
        let retry_delays =
            retry_delays.filter(|_| state == TaskState::Queued).map(|why| self.dispatch.describe_why(&why));
        let reason = status.as_ref().and_then(|status| status.reason.as_ref());
        let message = status.as_ref().and_then(|status| status.message.as_ref());
        TaskSummary {
            task: task.to_string(),
            stage: spec.name.clone(),
            index,
            value: spec.tasks.index_value(index),
            item: spec.tasks.item(index).map(ByteString::from),
            state,
            node: record.map(|record| self.dispatch.names.of(record.node).unwrap_or_default().to_owned()),
            attempt: attempt.map(|attempt| attempt.to_string()),
            attempts: record.map_or(0, |record| u32::from(record.attempts)),
            exit_code: reason.map(EndReason::exit_code),
            reason: reason
                .filter(|reason| !reason.is_success())
                .map(|reason| task_reason(reason, message, spec.timeout.or(self.job.default_timeout)))
                .map(|reason| retry_delays.map_or(reason.clone(), |retry_delays| format!("{reason}; {retry_delays}")))
                .or_else(|| can_wait.map(|why| self.dispatch.describe_why(&why))),
            started_at: started_at.map(Timestamp::from),
            ended_at: ended.map(|record| record.at.into()),
            wall_seconds: spent.map(|spent| spent.wall.as_secs_f64()),
            cpu_seconds: spent.map(|spent| spent.cpu.as_secs_f64()),
            max_memory_bytes: spent.map(|spent| spent.max_memory_bytes),
        }
    }
}

/// Counts these tasks by state. Tasks that the job does not have are not counted.
pub fn count_chosen(roles: &Roles, id: JobId, chosen: &Chosen) -> ChosenCounts {
    let mut sum = ChosenCounts::default();
    let Some((job, state)) = roles.dispatch().and_then(|dispatch| dispatch.job(id)) else { return sum };
    let manager = roles.jobs.get(&id);
    for (stage, spans) in &chosen.0 {
        let Some(spec) = job.spec.stages.get(*stage as usize) else { continue };
        let Some(progress) = manager.map(|manager| manager.dag().stage(*stage)) else {
            let tasks = Spans::below(spec.tasks.len()).take_all(spans).len();
            let has_ended = matches!(state, dispatch::JobState::Ended(_));
            *(if has_ended { &mut sum.cancelled } else { &mut sum.waiting }) += tasks;
            continue;
        };
        let counts = progress.count_chosen(spans);
        sum.waiting += counts.waiting;
        sum.held += counts.held;
        sum.running += counts.running;
        sum.succeeded += counts.succeeded;
        sum.failed += counts.failed;
        sum.cancelled += counts.cancelled;
    }
    sum
}
