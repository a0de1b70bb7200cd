//! Reports nodes that fail attempts to the master, and tasks that fail on one node after another, since then the nodes are
//! not at fault. Failures of the task itself, preemptions and cancellations are not reported.

use super::{JobManager, LaunchedIn, RunningAttempt};
use crate::protocol::{Rule, TheMaster, ToMaster};
use crate::role::{LostCause, Outbox};
use crate::vocabulary::{EndReason, Ended, Instant, NodeId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// By task that has not ended, the nodes that failed it. Not kept across restarts.
#[derive(Default)]
pub(super) struct Blame {
    failed: BTreeMap<TaskId, Vec<(NodeId, Instant)>>,
}

impl Blame {
    /// The task has ended.
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
            // An attempt from before a restart may have been given up because the server was down.
            EndReason::NodeLost if attempt.launched_in == LaunchedIn::Present => {}
            // Either this node cannot get files or the others cannot send them. If no node was asked, none failed.
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

    /// The attempt never reported its end. If it had not started, it may have been lost on the way, which is not its node's
    /// fault.
    pub(super) fn blame_loss(&mut self, now: Instant, attempt: &RunningAttempt, cause: LostCause, out: &mut Outbox) {
        let &RunningAttempt { node, started_at, launched_in, .. } = attempt;
        if started_at.is_none() || launched_in != LaunchedIn::Present {
            return;
        }
        match cause {
            LostCause::Unknown => out.send(TheMaster, ToMaster::NodeFailed { node, suspects: 1 }),
            // The master reported this itself.
            LostCause::NodeLost => {}
            LostCause::NotTaken | LostCause::Refused(_) | LostCause::Superseded | LostCause::Copied => return,
        }
        self.note_failure(now, attempt, out);
    }

    fn note_failure(&mut self, now: Instant, attempt: &RunningAttempt, out: &mut Outbox) {
        let &RunningAttempt { task, node, rule, .. } = attempt;
        if rule == Rule::Copy {
            // The task has already ended.
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
