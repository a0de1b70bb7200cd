//! Actions of users on the whole job: hold, release, cancel and rerun.

use super::{JobManager, RunningAttempt};
use crate::protocol::{JobAction, ToNode};
use crate::role::{Change, Outbox, Record};
use crate::vocabulary::{AttemptId, Chosen, EndReason, HostId, Instant};

impl JobManager {
    pub(super) fn on_act(&mut self, now: Instant, action: JobAction, out: &mut Outbox) {
        match action {
            JobAction::Hold => self.hold(true, out),
            JobAction::Release => self.hold(false, out),
            JobAction::Cancel => self.cancel(now, out),
            // A rerun arrives as a new `Begin`.
            JobAction::RerunFailed => {}
            // Only for jobs whose manager is not connected.
            JobAction::Abandon => {}
        }
        self.update_demand(now, out);
    }

    pub(super) fn hold(&mut self, held: bool, out: &mut Outbox) {
        // On the server, the master's log records it already.
        if self.lifecycle.is_held() != held && self.job.host != HostId::SERVER {
            out.persist(Change::HoldReceived { job: self.id(), held });
        }
        self.lifecycle.hold(held);
    }

    pub(super) fn cancel(&mut self, now: Instant, out: &mut Outbox) {
        if !self.lifecycle.is_cancelled() && self.lifecycle.outcome().is_none() {
            out.persist(Change::Cancelled { job: self.id(), at: now });
            self.lifecycle.cancel();
            self.stop_everything(out);
        }
    }

    /// The scheduler of the tasks counts asks from zero.
    pub(super) fn restart_requests(&mut self) {
        self.requests.restart();
        self.own.restart();
    }

    /// Reruns tasks that failed or were cancelled, or only the given ones of these.
    pub(super) fn run_again(&mut self, run: u32, only: Option<Chosen>, out: &mut Outbox) {
        self.rerun(run, only.as_ref());
        out.persist(Change::Rerun { job: self.id(), run, only: only.map(Box::new) });
    }

    pub(super) fn rerun(&mut self, run: u32, only: Option<&Chosen>) {
        self.lifecycle.rerun(run);
        // The master forgot the job's asks when the job ended.
        self.restart_requests();
        self.own.rerun();
        self.master.work.restart();
        match only {
            Some(only) => self.dag.rerun_tasks(&only.0),
            None => self.dag.rerun(),
        }
        self.gangs.restart();
        self.blame.clear();
        self.forget_alone();
        self.master.work.recount(&self.job, &self.dag);
    }

    pub(super) fn stop_everything(&mut self, out: &mut Outbox) {
        self.lifecycle.stop();
        self.gangs.restart();
        self.dag.abandon_all();
        self.master.work.recount(&self.job, &self.dag);
        for (&attempt, running) in self.attempts.iter() {
            self.stop(attempt, running, EndReason::Cancelled, out);
        }
    }

    pub(super) fn stop(&self, attempt: AttemptId, running: &RunningAttempt, reason: EndReason, out: &mut Outbox) {
        let (task, node) = (running.task, running.node);
        out.record(Record::Stopping { task, attempt, node, reason: reason.clone() });
        out.send(node, ToNode::Stop { attempt, reason, grace: self.settings.stop_grace });
    }
}
