//! Placements are reviewed when a node reports: a task that would end sooner elsewhere gets a duplicate there. The attempt
//! that starts first is kept, and the other one is stopped.
//!
//! This is the duplicate scheduling of Boutin et al. 2014, section 3.4, with its three triggers. Departs: the remaining wait
//! of a task is not that of a new task; nodes report when each guaranteed task starts. Opportunistic tasks, whose start is
//! not known, get no duplicates before they are promoted. A duplicate is sent regardless of the remaining allowance, since
//! only one of the two runs, and counts as held while it is open.

use super::{Basis, JobManager, LaunchTarget, LaunchedIn, RunningAttempt};
use crate::policy::{TimeAtNode, run_time};
use crate::protocol::{Rule, ToNode};
use crate::role::{Change, LostCause, Outbox, Record, Trigger};
use crate::scheduling::PlacedTask;
use crate::vocabulary::{AttemptId, Duration, EndReason, Ended, ExecutionType, Instant, NodeId, TaskId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of placements reviewed in one event, the oldest first.
const LOOKS: usize = 32;

/// When a task gets a duplicate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CorrectionRules {
    /// Minimum time that the duplicate saves.
    pub least_saving: Duration,
    /// The same as a percentage of the remaining time and of the run time: a duplicate is work for two nodes.
    pub saving: u32,
    /// The same for an attempt that only waits so far: only one of the two ever runs.
    pub saving_while_waiting: u32,
    /// If set, running attempts are reviewed as well, and their nodes report progress at this interval.
    pub progress_every: Option<Duration>,
}

impl CorrectionRules {
    pub const USUAL: CorrectionRules = CorrectionRules {
        least_saving: Duration::from_secs(1),
        saving: 50,
        saving_while_waiting: 50,
        progress_every: Some(Duration::from_secs(3)),
    };
}

pub(super) struct Corrections {
    rules: CorrectionRules,
    /// Guaranteed attempts that wait as far as is known, by node and in total. Nodes do not report when opportunistic ones start.
    waiting: BTreeMap<NodeId, BTreeSet<AttemptId>>,
    waiting_anywhere: BTreeSet<AttemptId>,
    /// By stage, the waiting times of tasks that have started.
    waited: Vec<Waited>,
}

#[derive(Clone, Copy, Default)]
struct Waited {
    sum: Duration,
    tasks: u32,
}

impl Waited {
    fn mean(&self) -> Option<Duration> {
        self.sum.0.checked_div(u64::from(self.tasks)).map(Duration)
    }
}

impl Corrections {
    pub(super) fn new(rules: CorrectionRules, stages: usize) -> Corrections {
        let (waiting, waiting_anywhere, waited) = (BTreeMap::new(), BTreeSet::new(), vec![Waited::default(); stages]);
        Corrections { rules, waiting, waiting_anywhere, waited }
    }

    pub(super) fn on_sent(&mut self, attempt: AttemptId, sent: &RunningAttempt) {
        // It is not known whether an attempt from before a restart waits, and a duplicate gets no duplicate.
        let is_reviewed = !sent.holding().counts_as_opportunistic()
            && sent.launched_in == LaunchedIn::Present
            && !sent.rule.is_second();
        if is_reviewed {
            self.waiting_anywhere.insert(attempt);
            self.waiting.entry(sent.node).or_default().insert(attempt);
        }
    }

    pub(super) fn on_started(&mut self, attempt: AttemptId, sent: &RunningAttempt) {
        self.forget(attempt, sent.node);
        let waited = &mut self.waited[sent.task.stage as usize];
        waited.tasks += 1;
        waited.sum += sent.started_at.unwrap_or(sent.launched_at).since(sent.launched_at);
    }

    pub(super) fn on_gone(&mut self, attempt: AttemptId, sent: &RunningAttempt) {
        self.forget(attempt, sent.node);
    }

    /// Attempts that wait on this node, or on any node, in the order of ids.
    fn waiting_at(&self, node: Option<NodeId>) -> impl Iterator<Item = AttemptId> {
        let there = node.map_or(Some(&self.waiting_anywhere), |node| self.waiting.get(&node));
        there.into_iter().flatten().copied()
    }

    /// How long the started tasks of the stage waited; `None` if none has started.
    fn mean_wait(&self, stage: u32) -> Option<Duration> {
        self.waited[stage as usize].mean()
    }

    fn forget(&mut self, attempt: AttemptId, node: NodeId) {
        self.waiting_anywhere.remove(&attempt);
        if let Some(waiting) = self.waiting.get_mut(&node) {
            waiting.remove(&attempt);
            if waiting.is_empty() {
                self.waiting.remove(&node);
            }
        }
    }
}

impl JobManager {
    /// Reviews the attempts that wait on this node, or on any node.
    pub(super) fn review_waiting(&mut self, now: Instant, node: Option<NodeId>, out: &mut Outbox) {
        let is_idle = self.lifecycle.is_stopping() || self.lifecycle.is_held() || self.own.explores();
        let Some(corrections) = self.own.corrections().filter(|_| !is_idle) else { return };
        let rules = corrections.rules;
        let is_alone = |attempt: &AttemptId| self.attempts.get(attempt).is_some_and(|sent| sent.twin.is_none());
        let waiting: Vec<AttemptId> = corrections.waiting_at(node).filter(is_alone).take(LOOKS).collect();
        for attempt in waiting {
            self.review_decision(now, attempt, rules, out);
        }
    }

    fn review_decision(&mut self, now: Instant, attempt: AttemptId, rules: CorrectionRules, out: &mut Outbox) {
        let Some(sent) = self.attempts.get(&attempt) else { return };
        // Its node has not reported the start yet.
        let Some(starts_at) = sent.starts_at else { return };
        let task = sent.task;
        let (elapsed, left, expected) = (now.since(sent.launched_at), starts_at.since(now), sent.expected_wait);
        let expected_run = self.dag.expected(task.stage, task.index);
        let part = |of| part_of(of, rules.saving_while_waiting);
        let margin = rules.least_saving.max(part(left)).max(part(run_time(expected_run)));
        if left <= margin {
            return;
        }
        let mean = self.own.corrections().and_then(|corrections| corrections.mean_wait(task.stage));
        let mean = mean.unwrap_or(Duration::MAX);
        let trigger = if elapsed + left > expected + expected.max(rules.least_saving) {
            Trigger::Underestimated
        } else if left > mean {
            Trigger::AboveMean
        } else if elapsed > mean {
            Trigger::WaitedLong
        } else {
            return;
        };
        self.send_beside(now, attempt, left, margin, trigger, out);
    }

    /// Launches a guaranteed attempt elsewhere instead of promoting an opportunistic one that would still wait for `left`, if
    /// that saves enough. This is not a review of a placement, but part of the paper's upgrades (section 3.5).
    pub(super) fn upgrade_elsewhere(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        left: Duration,
        out: &mut Outbox,
    ) -> bool {
        let (Some(corrections), Some(sent)) = (self.own.corrections(), self.attempts.get(&attempt)) else {
            return false;
        };
        let rules = corrections.rules;
        let expected_run = self.dag.expected(sent.task.stage, sent.task.index);
        let part = |of| part_of(of, rules.saving_while_waiting);
        let margin = rules.least_saving.max(part(left)).max(part(run_time(expected_run)));
        left > margin && self.send_beside(now, attempt, left, margin, Trigger::Upgraded, out)
    }

    /// Launches a guaranteed attempt beside this one, if that ends sooner by at least `margin`.
    fn send_beside(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        left: Duration,
        margin: Duration,
        trigger: Trigger,
        out: &mut Outbox,
    ) -> bool {
        // The task of a copy has already ended.
        let may_have_two =
            |sent: &&RunningAttempt| sent.rule != Rule::Copy && !self.dag.stage(sent.task.stage).is_limited();
        let Some(sent) = self.attempts.get(&attempt).filter(may_have_two) else { return false };
        let (task, node, execution) = (sent.task, sent.node, ExecutionType::Guaranteed);
        let expected_run = self.dag.expected(task.stage, task.index);
        let placed = self.placed(task, node, execution, expected_run);
        let Some(scheduler) = &mut self.own.scheduler else { return false };
        scheduler.advance(now);
        let Some(better) = scheduler.reconsider(placed, TimeAtNode::Waits(left), margin) else { return false };
        let (node, expected_wait, rule) = (NodeId(better.node as u32), better.wait, Rule::Duplicate);
        out.record(Record::Duplicated { task, attempt, node, trigger });
        let target = LaunchTarget { node, basis: Basis::Queue, rule, passed_over: 0, execution, expected_wait };
        self.launch(now, target, task, execution, out);
        true
    }

    /// The task as input of a new decision of the job's own scheduler.
    pub(super) fn placed(
        &self,
        task: TaskId,
        node: NodeId,
        execution: ExecutionType,
        expected: Option<Duration>,
    ) -> PlacedTask {
        let ask = self.requests.ask_of(task.stage, execution == ExecutionType::Opportunistic);
        PlacedTask { ask, node, execution, expected, pieces: self.blocks_of(task) }
    }

    /// Links the attempt to the one that the task's record shows.
    pub(super) fn pair(&mut self, attempt: AttemptId, task: TaskId) {
        let Some(first) = self.dag.shown(task).filter(|first| *first != attempt) else { return };
        if self.attempts.get(&first).is_none() {
            return;
        }
        let is_race = self.attempts.get(&attempt).is_some_and(|other| other.rule == Rule::Straggler);
        self.attempts.pair(first, attempt, is_race);
    }

    /// Stops an attempt that is no longer needed.
    pub(super) fn discard(&mut self, now: Instant, attempt: AttemptId, out: &mut Outbox) {
        let Some(gone) = self.remove_running(attempt) else { return };
        let (task, node, reason) = (gone.task, gone.node, EndReason::Cancelled);
        out.record(Record::Stopping { task, attempt, node, reason: reason.clone() });
        let has_waited =
            gone.started_at.is_none() && gone.launched_in == LaunchedIn::Present && self.own.has_allowance();
        if has_waited && !gone.holding().counts_as_opportunistic() {
            let (waited, expected) = (now.since(gone.launched_at), gone.expected_wait);
            out.record(Record::WaitedInVain { task, attempt, node, waited, expected });
        }
        out.send(node, ToNode::Stop { attempt, reason, grace: self.settings.stop_grace });
        // If the node misses the message, the next claim to it stops the attempt.
        self.attempts.estrange(node);
        self.pass_on(task, node, false, gone.twin);
        if gone.rule == Rule::Copy {
            self.dag.pass(node);
        }
        self.note_given_up(attempt, task, LostCause::Superseded);
        out.persist(Change::Lost { attempt, task, node, cause: LostCause::Superseded, last: false, at: now });
    }

    /// One of two attempts ended without success. The other one continues.
    pub(super) fn end_beside(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        ended: &RunningAttempt,
        other: AttemptId,
        how: Arc<Ended>,
        out: &mut Outbox,
    ) {
        let (task, node) = (ended.task, ended.node);
        if matches!(how.reason, EndReason::NodeFault(_) | EndReason::Shed) {
            self.close_node(now, node, out);
        }
        self.take_files(task, attempt, node, &how);
        self.pass_on(task, node, ended.counts_beside(&how.reason), Some(other));
        out.persist(Change::Finished { attempt, task, node, ended: how, last: false, at: now });
        self.place(now, out);
    }

    /// One of two attempts is lost.
    pub(super) fn lose_beside(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        lost: &RunningAttempt,
        other: AttemptId,
        cause: LostCause,
        out: &mut Outbox,
    ) {
        let (task, node) = (lost.task, lost.node);
        self.pass_on(task, node, false, Some(other));
        self.note_given_up(attempt, task, cause);
        out.persist(Change::Lost { attempt, task, node, cause, last: false, at: now });
    }

    /// The task's record shows the other attempt from now on.
    pub(super) fn pass_on(&mut self, task: TaskId, over: NodeId, failed: bool, other: Option<AttemptId>) {
        if let Some((other, node)) = other.and_then(|other| Some((other, self.attempts.get(&other)?.node))) {
            self.dag.went_on(task, over, failed, other, node);
        }
    }
}

impl RunningAttempt {
    /// Whether its failure counts while another attempt of its task continues. Two attempts that race are one try of the
    /// task, which fails if both do.
    pub(super) fn counts_beside(&self, reason: &EndReason) -> bool {
        !self.had_rival && counts_as_failure(reason)
    }
}

/// A percentage of a duration.
pub(super) fn part_of(of: Duration, hundredths: u32) -> Duration {
    Duration(of.0 / 100 * u64::from(hundredths))
}

/// Whether the task could be at fault.
pub(super) fn counts_as_failure(reason: &EndReason) -> bool {
    !reason.is_infrastructure() && *reason != EndReason::Cancelled
}
