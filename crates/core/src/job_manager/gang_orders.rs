//! Handlers of gangs: they send the orders that [`super::gangs`] gives for the attempts of a gang.

use super::gangs::{GangProgress, Order, Start};
use super::{JobManager, RunningAttempt};
use crate::protocol::{Address, ToNode};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, EndReason, Instant, NodeId, TaskId};
use crate::why::Why;

impl JobManager {
    /// Takes all steps that are due. Called before the asks are updated, and when an attempt may have arrived at its node.
    pub(super) fn review_gangs(&mut self, now: Instant, out: &mut Outbox) {
        if self.lifecycle.is_stopping() {
            return;
        }
        for stage in self.gangs.stages() {
            let progress = self.progress_of_gang(stage);
            match self.gangs.review(now, stage, &progress, &self.attempts) {
                None => {}
                Some(Order::Start(starts)) => {
                    send_starts(starts, out);
                    out.record(Record::GangStarts { job: self.id(), stage, tasks: progress.running });
                }
                Some(Order::Stop(reason)) => {
                    for (attempt, running) in self.attempts.of_stage(stage) {
                        self.stop(attempt, running, reason.clone(), out);
                    }
                }
            }
        }
    }

    fn progress_of_gang(&self, stage: u32) -> GangProgress {
        let entry = self.dag.stage(stage);
        GangProgress {
            waiting: if entry.abandoned { 0 } else { entry.waiting() },
            running: entry.running,
            has_failed: entry.failed > 0 || entry.abandoned,
            fetches: !self.job.spec.stages[stage as usize].inputs.is_empty(),
        }
    }

    /// A node has reported its name.
    pub(super) fn learn_name(&mut self, node: NodeId, name: String, out: &mut Outbox) {
        send_starts(self.gangs.learn_name(node, name, &self.attempts), out);
    }

    pub(super) fn on_in_place(
        &mut self,
        now: Instant,
        from: Address,
        attempt: AttemptId,
        node_name: String,
        out: &mut Outbox,
    ) {
        let stale = Record::Stale { from, attempt };
        let at_its_node = |running: &&RunningAttempt| from == Address::Node(running.node);
        let Some(running) = self.attempts.get(&attempt).filter(at_its_node) else { return out.record(stale) };
        let (node, stage) = (running.node, running.task.stage);
        self.learn_name(node, node_name, out);
        if !self.gangs.is_gang(stage) {
            return out.record(stale);
        }
        if self.lifecycle.is_stopping() {
            return self.stop(attempt, &self.attempts[&attempt], EndReason::Cancelled, out);
        }
        match self.gangs.on_in_place(stage, attempt, &self.attempts) {
            None => self.review_gangs(now, out),
            Some(order) => self.send_order(attempt, order, out),
        }
    }

    /// A task started or succeeded, so its gang was started before a restart: the others may start too.
    pub(super) fn note_gang_started(&mut self, now: Instant, task: TaskId, out: &mut Outbox) {
        if !self.gangs.is_gang(task.stage) || self.gangs.withholds(task.stage) || self.lifecycle.is_stopping() {
            return;
        }
        let stage = self.dag.stage(task.stage);
        let is_complete = stage.waiting() == 0 && stage.failed == 0;
        match self.gangs.on_started(task.stage, is_complete, &self.attempts) {
            Some(starts) => send_starts(starts, out),
            None => self.review_gangs(now, out),
        }
    }

    /// Repeats the last message to an attempt that is live at its node: it may have been lost.
    pub(super) fn resend_to_gang(&mut self, attempt: AttemptId, out: &mut Outbox) {
        if let Some(order) = self.gangs.last_order(attempt, &self.attempts) {
            self.send_order(attempt, order, out);
        }
    }

    fn send_order(&self, attempt: AttemptId, order: Order, out: &mut Outbox) {
        match order {
            Order::Start(starts) => send_starts(starts, out),
            Order::Stop(reason) => self.stop(attempt, &self.attempts[&attempt], reason, out),
        }
    }

    /// Gangs with placed tasks that wait for the others.
    pub(super) fn gangs_that_gather(&self) -> impl Iterator<Item = Why> {
        self.gangs.gathering().filter_map(|(stage, in_place)| {
            let entry = self.dag.stage(stage);
            (entry.running > 0).then(|| Why::GangGathers {
                stage: self.job.spec.stages[stage as usize].name.clone(),
                in_place,
                tasks: entry.running + entry.ready(),
            })
        })
    }
}

fn send_starts(starts: Vec<Start>, out: &mut Outbox) {
    for Start { attempt, node, hosts } in starts {
        out.send(node, ToNode::StartTask { attempt, hosts });
    }
}
