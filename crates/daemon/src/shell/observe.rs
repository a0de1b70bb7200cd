//! Converts facts to events of the HTTP interface.

use crate::api::{Event, EventKind, JobState, TaskState, Timestamp};
use crate::endings;
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::role::{Change, LostCause, Record};
use amalgam_core::vocabulary::{AttemptId, EndReason, Ended, Instant, JobId, NodeId, TaskId};
use std::collections::BTreeMap;

/// The events for these facts, each with the position of its fact.
pub fn events<'a>(facts: impl Iterator<Item = (Instant, &'a Fact)> + Clone, roles: &Roles) -> Vec<(usize, Event)> {
    let mut events = Vec::new();
    // The roles have applied all facts already, so only the last task's end in a stage may report the stage's end.
    let ends = facts.clone().enumerate().filter_map(|(position, (_, fact))| Some((ended_task(fact)?, position)));
    let last_ends: BTreeMap<(JobId, u32), usize> = ends.map(|(task, at)| ((task.job, task.stage), at)).collect();
    for (position, (at, fact)) in facts.enumerate() {
        let is_last_end =
            ended_task(fact).is_some_and(|task| last_ends.get(&(task.job, task.stage)) == Some(&position));
        let view = View { roles, at: at.into(), is_last_end };
        match fact {
            Fact::Change(change) => view.of_change(change, &mut |event| events.push((position, event))),
            Fact::Record(record) => view.of_record(record, &mut |event| events.push((position, event))),
        }
    }
    events
}

/// The task that ends with this fact and is not tried again.
fn ended_task(fact: &Fact) -> Option<TaskId> {
    match fact {
        Fact::Change(Change::Finished { task, last: true, .. } | Change::Lost { task, last: true, .. }) => Some(*task),
        _ => None,
    }
}

struct View<'a> {
    roles: &'a Roles,
    at: Timestamp,
    /// Whether no later fact ends a task of the same stage.
    is_last_end: bool,
}

impl View<'_> {
    fn of_change(&self, change: &Change, report: &mut dyn FnMut(Event)) {
        match change {
            Change::JobAdmitted { job, .. } => report(self.of_job(EventKind::JobSubmitted, job.id)),
            Change::JobHeld { job, held: true } => report(self.of_job(EventKind::JobHeld, *job)),
            Change::JobHeld { job, held: false } => report(self.of_job(EventKind::JobReleased, *job)),
            Change::JobStarted { job } | Change::JobReopened { job, .. } => {
                report(self.of_job(EventKind::JobStarted, *job))
            }
            Change::JobEnded { job, outcome, .. } => {
                let exit_code = Some(endings::exit_code(*outcome));
                let reason = endings::reason(self.roles.dispatch(), *job, *outcome);
                let state = Some(JobState::of_outcome(*outcome).word().to_owned());
                report(Event { state, exit_code, reason, ..self.of_job(EventKind::JobEnded, *job) });
            }
            Change::Finished { attempt, task, node, ended, last, .. } => {
                let event = self.of_end(EventKind::AttemptEnded, *attempt, *task, *node, ended);
                report(event.clone());
                self.of_last(*last, event, *task, report);
            }
            // The launch was refused, so there was no attempt. It ends the task only if the job was cancelled.
            Change::Lost { attempt, task, node, cause: LostCause::Refused(_), last, .. } => {
                let end = Ended::without_run(EndReason::Cancelled);
                self.of_last(*last, self.of_end(EventKind::TaskEnded, *attempt, *task, *node, &end), *task, report);
            }
            Change::Lost { attempt, task, node, cause, last, .. } => {
                let lost = Ended::without_run(match cause {
                    LostCause::Superseded | LostCause::Copied | LostCause::Refused(_) => EndReason::Cancelled,
                    LostCause::NodeLost | LostCause::Unknown | LostCause::NotTaken => EndReason::NodeLost,
                });
                let event = self.of_end(EventKind::AttemptEnded, *attempt, *task, *node, &lost);
                report(event.clone());
                self.of_last(*last, event, *task, report);
            }
            _ => {}
        }
    }

    fn of_last(&self, last: bool, event: Event, task: TaskId, report: &mut dyn FnMut(Event)) {
        if !last {
            return;
        }
        let state = self.roles.jobs.get(&task.job).and_then(|manager| {
            let status = manager.dag().stage(task.stage).status(task.index)?;
            Some(TaskState::of_end(status.state)?.word().to_owned())
        });
        report(Event { kind: EventKind::TaskEnded, state, ..event });
        let stage_is_over = self.roles.jobs.get(&task.job).is_some_and(|manager| {
            let stage = manager.dag().stage(task.stage);
            stage.running == 0 && (stage.abandoned || stage.waiting() == 0)
        });
        if stage_is_over && self.is_last_end {
            report(self.of_stage(EventKind::StageEnded, task.job, task.stage));
        }
    }

    fn of_record(&self, record: &Record, report: &mut dyn FnMut(Event)) {
        match record {
            Record::Started { task, attempt, node, .. } => {
                report(self.of_attempt(EventKind::AttemptStarted, *attempt, *task, *node));
            }
            Record::StageReady { job, stage } => report(self.of_stage(EventKind::StageStarted, *job, *stage)),
            Record::NodeJoined { node, program } => {
                report(Event { program: program.clone(), ..self.of_node(EventKind::NodeUp, *node) });
            }
            Record::NodeUnreachable { node } => report(self.of_node(EventKind::NodeUnreachable, *node)),
            Record::NodeLost { node } => report(self.of_node(EventKind::NodeLost, *node)),
            Record::NodeDrained { node, drained: true } => report(self.of_node(EventKind::NodeDrained, *node)),
            Record::NodePaused { node, why, .. } => {
                report(Event { reason: Some(why.clone()), ..self.of_node(EventKind::NodePaused, *node) });
            }
            Record::NodeResumed { node } | Record::NodeDrained { node, drained: false } => {
                report(self.of_node(EventKind::NodeUp, *node))
            }
            _ => {}
        }
    }

    fn of_job(&self, kind: EventKind, job: JobId) -> Event {
        let known = self.roles.dispatch().and_then(|dispatch| dispatch.job(job));
        let user = known.map(|(job, _)| job.spec.user.clone());
        Event { job: Some(job.0), user, ..Event::new(self.at, kind) }
    }

    fn of_stage(&self, kind: EventKind, job: JobId, stage: u32) -> Event {
        let name = self.roles.jobs.get(&job).and_then(|manager| manager.job().spec.stages.get(stage as usize));
        Event { stage: name.map(|stage| stage.name.clone()), ..self.of_job(kind, job) }
    }

    fn of_attempt(&self, kind: EventKind, attempt: AttemptId, task: TaskId, node: NodeId) -> Event {
        let event = self.of_stage(kind, task.job, task.stage);
        Event {
            task: Some(task.to_string()),
            index: Some(task.index),
            attempt: Some(attempt.to_string()),
            ..self.at_node(node, event)
        }
    }

    fn of_end(&self, kind: EventKind, attempt: AttemptId, task: TaskId, node: NodeId, ended: &Ended) -> Event {
        let succeeded = ended.reason.is_success();
        Event {
            exit_code: Some(ended.reason.exit_code()),
            reason: (!succeeded).then(|| ended.reason.to_string()),
            stdout_bytes: Some(ended.usage.stdout_bytes),
            stderr_bytes: Some(ended.usage.stderr_bytes),
            ..self.of_attempt(kind, attempt, task, node)
        }
    }

    fn of_node(&self, kind: EventKind, node: NodeId) -> Event {
        self.at_node(node, Event::new(self.at, kind))
    }

    /// Adds the node's number, and its name if it is known.
    fn at_node(&self, node: NodeId, event: Event) -> Event {
        let name = self.roles.dispatch().and_then(|dispatch| dispatch.names.of(node));
        let name = name.map_or_else(|| node.to_string(), str::to_owned);
        Event { node: Some(name), node_id: Some(node.0), ..event }
    }
}
