//! Without known waits: a task that waits at a node for some time is launched at another one too, and if it waits there as
//! well, at one after the other. The attempt that starts first is kept. The first attempt keeps its place until then.
//!
//! This is how the baseline scheduler of Boutin et al. 2014, section 4, works: "when tasks wait in a queue, the baseline
//! scheduler systematically triggers duplicates to explore other idle" nodes. Departs: a task has one duplicate at a time,
//! which is stopped when the next is sent; opportunistic attempts get none before they are promoted; attempts that wait for
//! files get none, since each node would fetch them again; and the paper does not state when the next duplicate is sent.

use super::{Basis, JobManager, LaunchTarget, RunningAttempt};
use crate::policy::TimeAtNode;
use crate::protocol::Rule;
use crate::role::{Outbox, Record, Trigger};
use crate::vocabulary::{Duration, ExecutionType, Instant, NodeId, TaskId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// When other nodes are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplorationRules {
    /// The time after which a waiting task is tried on another node, and then on the next.
    pub after: Duration,
}

/// Tasks that wait as far as is known, and when another node is tried.
pub(super) struct Exploration {
    rules: ExplorationRules,
    due: BTreeSet<(Instant, TaskId)>,
    of_task: BTreeMap<TaskId, Instant>,
}

impl Exploration {
    pub(super) fn new(rules: ExplorationRules) -> Exploration {
        Exploration { rules, due: BTreeSet::new(), of_task: BTreeMap::new() }
    }

    pub(super) fn on_sent(&mut self, sent: &RunningAttempt) {
        if !sent.rule.is_second() {
            self.set(sent.task, sent.launched_at + self.rules.after);
        }
    }

    /// The next time that another node is tried for the task.
    fn set(&mut self, task: TaskId, at: Instant) {
        self.forget(task);
        self.of_task.insert(task, at);
        self.due.insert((at, task));
    }

    /// The task has started, or has no attempt any more.
    pub(super) fn forget(&mut self, task: TaskId) {
        if let Some(at) = self.of_task.remove(&task) {
            self.due.remove(&(at, task));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn take_due(&mut self, now: Instant) -> Option<TaskId> {
        let &(_, task) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.forget(task);
        Some(task)
    }

    /// Another node is tried for the task now; the next one later.
    fn on_tried(&mut self, now: Instant, task: TaskId) {
        self.set(task, now + self.rules.after);
    }
}

impl JobManager {
    pub(super) fn explore(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(task) = self.own.exploration_mut().and_then(|exploration| exploration.take_due(now)) {
            if self.still_waits(task) {
                // The launch removes this again if the other node has to fetch files.
                if let Some(exploration) = self.own.exploration_mut() {
                    exploration.on_tried(now, task);
                }
                self.try_another_node(now, task, out);
            }
        }
    }

    fn still_waits(&self, task: TaskId) -> bool {
        let waits = |sent: &RunningAttempt| sent.started_at.is_none();
        let first = self.dag.shown(task).and_then(|attempt| self.attempts.get(&attempt));
        first.is_some_and(|first| {
            let twin = first.twin.and_then(|twin| self.attempts.get(&twin));
            waits(first) && twin.is_none_or(waits) && !self.lifecycle.is_stopping()
        })
    }

    /// Sends the task to a node where it does not wait yet, and stops its last duplicate.
    fn try_another_node(&mut self, now: Instant, task: TaskId, out: &mut Outbox) {
        let Some(attempt) = self.dag.shown(task) else { return };
        let may_have_two = |sent: &&RunningAttempt| {
            !sent.holding().counts_as_opportunistic()
                && !self.lifecycle.is_held()
                && !self.dag.stage(sent.task.stage).is_limited()
        };
        let Some(sent) = self.attempts.get(&attempt).filter(may_have_two) else { return };
        let (node, twin, waited) = (sent.node, sent.twin, now.since(sent.launched_at));
        let tried = twin.and_then(|twin| self.attempts.get(&twin)).map(|twin| twin.node);
        let expected = self.dag.stage(task.stage).estimate.expected();
        let execution = ExecutionType::Guaranteed;
        let placed = self.placed(task, node, execution, expected);
        let Some(scheduler) = &mut self.own.scheduler else { return };
        scheduler.advance(now);
        let other = scheduler.reconsider(placed, TimeAtNode::Waited(waited), Duration::ZERO);
        let other = other.map(|other| NodeId(other.node as u32)).filter(|other| Some(*other) != tried);
        let Some(node) = other else { return };
        if let Some(twin) = twin {
            self.discard(now, twin, out);
        }
        out.record(Record::Duplicated { task, attempt, node, trigger: Trigger::Explored });
        let (basis, rule, expected_wait) = (Basis::Queue, Rule::Exploration, Duration::ZERO);
        let target = LaunchTarget { node, basis, rule, passed_over: 0, execution, expected_wait };
        self.launch(now, target, task, execution, out);
    }
}
