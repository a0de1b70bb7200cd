//! Whose fault it was: the master is told of nodes that fail attempts, and of tasks that fail on one node after another, since
//! then it was not the nodes. What a task did to itself, what gave way, and what was cancelled is nobody's fault here.

use super::{JobManager, Life, RunningAttempt};
use crate::protocol::{Rule, TheMaster, ToMaster};
use crate::role::{LostCause, Outbox};
use crate::vocabulary::{EndReason, Ended, Instant, NodeId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// Where tasks failed through their nodes that have not ended. It does not outlive the server.
#[derive(Default)]
pub(super) struct Blame {
    failed: BTreeMap<TaskId, Vec<(NodeId, Instant)>>,
}

impl Blame {
    /// The task is over.
    pub(super) fn forget(&mut self, task: TaskId) {
        self.failed.remove(&task);
    }

    pub(super) fn forget_all(&mut self, over: impl Fn(&TaskId) -> bool) {
        self.failed.retain(|task, _| !over(task));
    }

    pub(super) fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.failed.keys().copied()
    }

    pub(super) fn clear(&mut self) {
        self.failed.clear();
    }
}

impl JobManager {
    pub(super) fn blame_end(&mut self, now: Instant, attempt: &RunningAttempt, ended: &Ended, out: &mut Outbox) {
        let mut suspects = BTreeSet::from([attempt.node]);
        match &ended.reason {
            EndReason::NodeFault(_) => {}
            // One of an earlier life may have been given up because the server was away.
            EndReason::NodeLost if attempt.life == Life::Present => {}
            // Either it cannot get files or the others cannot send them; where nobody was asked, nobody failed.
            EndReason::NoInput(_) if !ended.missing().is_empty() => {
                suspects.extend(ended.missing().iter().map(|(_, node)| *node));
            }
            _ => return,
        }
        for &node in &suspects {
            out.send(TheMaster, ToMaster::NodeFailed { node, suspects: suspects.len() as u32 });
        }
        self.note_failure(now, attempt, out);
    }

    /// It never said how it ended. What had not started may have been lost on the way, which is not its node's fault.
    pub(super) fn blame_loss(&mut self, now: Instant, attempt: &RunningAttempt, cause: LostCause, out: &mut Outbox) {
        let &RunningAttempt { node, started_at, life, .. } = attempt;
        if started_at.is_none() || life != Life::Present {
            return;
        }
        match cause {
            LostCause::Unknown => out.send(TheMaster, ToMaster::NodeFailed { node, suspects: 1 }),
            // The master said so.
            LostCause::NodeLost => {}
            LostCause::NotTaken | LostCause::Refused(_) | LostCause::Superseded | LostCause::Copied => return,
        }
        self.note_failure(now, attempt, out);
    }

    fn note_failure(&mut self, now: Instant, attempt: &RunningAttempt, out: &mut Outbox) {
        let &RunningAttempt { task, node, rule, .. } = attempt;
        if rule == Rule::Copy {
            // The task is over.
            return;
        }
        let failed = self.blame.failed.entry(task).or_default();
        failed.retain(|(other, _)| *other != node);
        failed.push((node, now));
        if failed.len() > 1 {
            let at = failed.iter().map(|(node, at)| (*node, now.since(*at))).collect();
            out.send(TheMaster, ToMaster::TaskFails { at });
        }
    }
}
