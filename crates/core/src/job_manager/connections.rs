//! Connections to nodes: which of the job's attempts a node has, and what follows when a node is lost.

use super::{JobManager, LaunchedIn};
use crate::progress::{Holding, LostCause};
use crate::protocol::{Claim, ToNode};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, EndReason, Epoch, HostId, Instant, NodeId};

impl JobManager {
    pub(super) fn on_node_connected(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if let Some(scheduler) = &mut self.own.scheduler {
            scheduler.set_reached(node, true);
        }
        self.claim(now, node, out);
        self.forget_probes(now, node, out);
        self.place(now, out);
    }

    /// Messages sent there now would be lost, even if the master is still connected to the node.
    pub(super) fn on_node_disconnected(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if let Some(scheduler) = &mut self.own.scheduler {
            let steps = scheduler.set_reached(node, false);
            self.carry_out(now, steps, out);
            self.place(now, out);
        }
    }

    pub(super) fn on_nodes_returned(&mut self, now: Instant, nodes: &[NodeId], out: &mut Outbox) {
        let running = self.attempts.values().map(|running| running.node);
        let mut concerned: Vec<NodeId> = running.chain(self.attempts.estranged()).collect();
        concerned.sort_unstable();
        concerned.dedup();
        for node in concerned.into_iter().filter(|node| nodes.binary_search(node).is_ok()) {
            self.claim(now, node, out);
        }
    }

    /// Claims our attempts at a node; the node kills the others.
    pub(super) fn claim(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        let attempts = self.attempts.at_node(node);
        if attempts.is_empty() && !self.attempts.is_estranged(node) {
            return;
        }
        let repeat_at = now + self.settings.repeat_claims;
        let number = self.attempts.claims.open(node, attempts.clone(), repeat_at);
        self.send_claim(node, number, attempts, out);
    }

    pub(super) fn send_claim(&self, node: NodeId, number: u32, attempts: Vec<AttemptId>, out: &mut Outbox) {
        let (job, epoch, next_attempt) = (self.id(), self.attempts.epoch(), self.attempts.next_number());
        let generation = self.launches.generation();
        out.send(node, ToNode::Claim(Claim { job, epoch, number, attempts, next_attempt, generation }));
    }

    /// Which of the claimed attempts the node has. The others were lost on the way there, or with its executor.
    pub(super) fn on_live(
        &mut self,
        now: Instant,
        (node, name): (NodeId, String),
        answered: (Epoch, u32),
        live: &[AttemptId],
        out: &mut Outbox,
    ) {
        let (epoch, number) = answered;
        if epoch != self.attempts.epoch() {
            return;
        }
        let Some(claimed) = self.attempts.claims.answered(node, number) else { return };
        self.attempts.reconcile(node);
        self.learn_name(node, name, out);
        for attempt in claimed {
            let Some(running) = self.attempts.get(&attempt) else { continue };
            let (task, has_started) = (running.task, running.started_at.is_some());
            let is_unconfirmed = running.launched_in == LaunchedIn::Earlier;
            if !live.contains(&attempt) {
                self.write_off(now, attempt, LostCause::Unknown, out);
            } else if is_unconfirmed || has_started {
                if is_unconfirmed {
                    self.attempts.confirm(attempt);
                }
                if is_unconfirmed && !has_started {
                    self.own.await_start(&self.attempts[&attempt]);
                }
                out.record(Record::Adopted { task, attempt, node });
            }
            if self.attempts.get(&attempt).is_some_and(|running| running.holding() == Holding::Promoted) {
                // The node may have missed the promotion.
                out.send(node, ToNode::Promote { attempt, grant: None });
            }
            // The request may have been lost with the connection.
            match self.attempts.get(&attempt) {
                Some(running) if self.lifecycle.is_stopping() || self.is_cancelled_task(running.task) => {
                    self.stop(attempt, running, EndReason::Cancelled, out);
                }
                Some(running) => {
                    self.resend_timeout(attempt, running, out);
                    self.resend_to_gang(attempt, out);
                }
                None => {}
            }
        }
        self.update_demand(now, out);
    }

    pub(super) fn on_node_lost(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        self.attempts.claims.close(node);
        let lost = self.attempts.at_node(node);
        if !lost.is_empty() && self.job.host != HostId::SERVER {
            // The node may be connected to us although the master lost it.
            let number = self.attempts.claims.number();
            self.send_claim(node, number, Vec::new(), out);
        }
        for attempt in lost {
            self.write_off(now, attempt, LostCause::NodeLost, out);
        }
        // A launch there would be lost, and no second message would report the loss.
        self.close_node(now, node, out);
        self.forget_files_at(node);
        self.update_demand(now, out);
    }
}
