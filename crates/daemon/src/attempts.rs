//! The attempts of a job, read from its log. They include earlier attempts of tasks that were retried.

use crate::api::{AttemptState, AttemptSummary, Timestamp};
use crate::story::JobNames;
use amalgam_core::hosting::Fact;
use amalgam_core::role::{Change, LostCause, Record};
use amalgam_core::vocabulary::{AttemptId, EndReason, Ended, TaskId};
use std::collections::BTreeMap;

/// Attempts of a job or of one of its tasks, in launch order.
pub struct Attempts {
    names: JobNames,
    task: Option<TaskId>,
    limit: usize,
    found: Vec<AttemptSummary>,
    places: BTreeMap<AttemptId, usize>,
    /// Number of found attempts that have not ended.
    open: usize,
    /// Log sequence number of the first attempt beyond the limit.
    next: Option<u64>,
}

impl Attempts {
    pub fn new(names: JobNames, task: Option<TaskId>, limit: usize) -> Attempts {
        let (found, places) = (Vec::new(), BTreeMap::new());
        Attempts { names, task, limit, found, places, open: 0, next: None }
    }

    /// Processes the next fact of the log. Returns false if no later fact can change the result.
    pub fn apply(&mut self, sequence: u64, at: u64, fact: &Fact) -> bool {
        let at = Timestamp(at);
        match fact {
            Fact::Change(Change::Launched { attempt, task, node, .. })
                if self.task.is_none_or(|only| only == *task) =>
            {
                if self.found.len() < self.limit {
                    self.places.insert(*attempt, self.found.len());
                    self.open += 1;
                    let (stage, node) = (self.names.stage(task.stage).to_owned(), self.names.plain(*node));
                    let (attempt, index, launched_at) = (attempt.to_string(), task.index, at);
                    let task = task.to_string();
                    let launched =
                        AttemptSummary { attempt, task, stage, index, node, launched_at, ..Default::default() };
                    self.found.push(launched);
                } else {
                    self.next.get_or_insert(sequence);
                }
            }
            Fact::Record(Record::Started { attempt, .. }) => {
                if let Some(one) = self.of(*attempt).filter(|one| one.ended_at.is_none()) {
                    (one.state, one.started_at) = (AttemptState::Running, Some(at));
                }
            }
            Fact::Change(Change::Finished { attempt, ended, .. }) => self.end(*attempt, at, |one| {
                one.state = state(&ended.reason);
                one.reason = (!ended.reason.is_success()).then(|| reason(ended));
                one.report_use(ended, at);
            }),
            Fact::Change(Change::Lost { attempt, cause, .. }) => self.end(*attempt, at, |one| {
                (one.state, one.reason) = (lost_state(*cause), Some(lost_reason(*cause)));
            }),
            Fact::Change(Change::EndedLate { attempt, ended, .. }) => {
                if let Some(one) = self.of(*attempt) {
                    one.report_use(ended, at);
                }
            }
            _ => {}
        }
        self.next.is_none() || self.open > 0
    }

    /// The attempts, and the log sequence number from which the next page starts.
    pub fn found(self) -> (Vec<AttemptSummary>, Option<u64>) {
        (self.found, self.next)
    }

    fn of(&mut self, attempt: AttemptId) -> Option<&mut AttemptSummary> {
        self.places.get(&attempt).and_then(|place| self.found.get_mut(*place))
    }

    fn end(&mut self, attempt: AttemptId, at: Timestamp, change: impl FnOnce(&mut AttemptSummary)) {
        if let Some(one) = self.of(attempt).filter(|one| one.ended_at.is_none()) {
            one.ended_at = Some(at);
            change(one);
            self.open -= 1;
        }
    }
}

impl AttemptSummary {
    fn report_use(&mut self, ended: &Ended, at: Timestamp) {
        let usage = &ended.usage;
        let has_run = usage.wall.as_micros() > 0;
        self.exit_code = Some(ended.reason.exit_code());
        self.wall_seconds = Some(usage.wall.as_secs_f64());
        self.cpu_seconds = Some(usage.cpu.as_secs_f64());
        self.max_memory_bytes = Some(usage.max_memory_bytes);
        if self.started_at.is_none() && has_run {
            self.started_at = Some(Timestamp(at.0.saturating_sub(usage.wall.as_micros())));
        }
    }
}

fn state(reason: &EndReason) -> AttemptState {
    match reason {
        reason if reason.is_success() => AttemptState::Succeeded,
        EndReason::Preempted | EndReason::Shed => AttemptState::Preempted,
        EndReason::NodeLost => AttemptState::Lost,
        EndReason::Cancelled | EndReason::Withdrawn(_) => AttemptState::Cancelled,
        _ => AttemptState::Failed,
    }
}

fn reason(ended: &Ended) -> String {
    match &ended.message {
        Some(message) => format!("{}: {}", ended.reason, message.trim_end()),
        None => ended.reason.to_string(),
    }
}

fn lost_state(cause: LostCause) -> AttemptState {
    match cause {
        LostCause::NodeLost | LostCause::Unknown | LostCause::NotTaken | LostCause::Refused(_) => AttemptState::Lost,
        LostCause::Superseded => AttemptState::Cancelled,
        LostCause::Copied => AttemptState::Succeeded,
    }
}

fn lost_reason(cause: LostCause) -> String {
    match cause {
        LostCause::NodeLost => "its node was unreachable for too long".to_owned(),
        LostCause::Unknown => "its node does not have it, or no longer".to_owned(),
        LostCause::NotTaken => "its node did not accept it".to_owned(),
        LostCause::Refused(why) => format!("it was not launched: {why}"),
        LostCause::Superseded => "another attempt of its task started or finished first".to_owned(),
        LostCause::Copied => "it wrote the files of its task again".to_owned(),
    }
}
