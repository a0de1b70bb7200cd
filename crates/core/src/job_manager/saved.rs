//! What a job manager keeps across a restart: its changes one by one, and its whole progress in a snapshot.

use super::work::run_times;
use super::{JobManager, LaunchedIn, RunningAttempt};
use crate::progress::files::Files;
use crate::progress::{Holding, LostCause, SavedAttempt, SavedProgress};
use crate::protocol::Rule;
use crate::role::{Change, Record};
use crate::vocabulary::{AttemptId, Ended, Exchange, Instant, NodeId, TaskId};
use crate::why::Why;

impl JobManager {
    /// Applies a change of the same manager in another process. A follower handles no events.
    pub fn follow(&mut self, change: &Change) {
        self.take_back(change);
    }

    /// The same for records, which carry the starts of processes and the reasons why tasks do not start.
    pub fn follow_record(&mut self, at: Instant, record: &Record) {
        match record {
            Record::Started { attempt, .. } => self.follow_start(*attempt, at),
            Record::Blocked { why, .. } => self.follow_reason(why),
            _ => {}
        }
    }

    pub fn follow_start(&mut self, attempt: AttemptId, at: Instant) {
        self.attempts.started(attempt, at);
    }

    pub fn follow_reason(&mut self, why: &Why) {
        self.own.follow_reason(why);
    }

    /// Applies one recorded change.
    pub(super) fn take_back(&mut self, change: &Change) {
        match change {
            Change::JobStarted { .. } | Change::Managed { .. } => {
                self.lifecycle.start();
            }
            Change::JobHeld { held, .. } | Change::HoldReceived { held, .. } => self.lifecycle.hold(*held),
            Change::Launched { attempt, task, node, grant, opportunistic, weight, rule, at, .. } => {
                if rule.is_second() {
                    self.dag.launched_beside(task.stage, task.index);
                } else {
                    self.dag.launched(task.stage, task.index, *attempt, *node, *at);
                    self.recall_size(*task);
                }
                let holding = match grant {
                    Some(_) => Holding::Granted,
                    None if *opportunistic => Holding::Opportunistic,
                    None => Holding::Entitled,
                };
                let mut launched = RunningAttempt::launched(*task, *node, holding, *rule, *at);
                launched.weight = *weight;
                self.recover_running(*attempt, launched);
            }
            Change::Promoted { attempt, grant: Some(_), .. } => self.book(*attempt),
            Change::Promoted { attempt, grant: None, .. } => self.take_promotion(*attempt),
            Change::Finished { attempt, task, node, ended, last, at } => {
                self.recover_end(*attempt, *task, *node, ended, *last, *at);
            }
            Change::Lost { attempt, task, node, cause, last, at } => {
                self.recover_loss(*attempt, *task, *node, *cause, *last, *at);
            }
            Change::EndedLate { attempt, task, ended, .. } => {
                self.attempts.take_given_up(*attempt);
                self.dag.spend(*task, &ended.usage, true);
            }
            Change::OutputLost { task, file, .. } => self.reopen(*task, file),
            Change::Exchanged { exchange, .. } => self.recover_exchange(exchange),
            Change::Cancelled { .. } => {
                self.lifecycle.cancel();
                self.dag.abandon_all();
            }
            Change::JobEnded { outcome, .. } => {
                self.lifecycle.end(*outcome);
                // The tasks of a job that ended before it started are not abandoned yet.
                self.dag.abandon_all();
            }
            Change::JobReopened { .. } => self.lifecycle.withdraw_outcome(),
            Change::TasksChosen { action, stage, tasks, .. } => self.choose(*action, *stage, tasks),
            Change::Rerun { run, only, .. } => self.rerun(*run, only.as_deref()),
            Change::Progress { progress, .. } => self.recover_progress(progress.as_ref().clone()),
            _ => {}
        }
    }

    pub(super) fn progress(&self) -> SavedProgress {
        let running = self.attempts.iter().map(|(&attempt, running)| {
            let RunningAttempt { task, node, rule, weight, had_rival, launched_at, .. } = *running;
            let holding = running.holding();
            SavedAttempt { attempt, task, node, holding, rule, weight, had_rival, launched_at }
        });
        let (estranged, given_up) = self.attempts.saved();
        SavedProgress {
            dag: self.dag.clone(),
            run: self.lifecycle.run(),
            cancelled: self.lifecycle.is_cancelled(),
            stopping: self.lifecycle.is_stopping(),
            running: running.collect(),
            estranged,
            given_up,
            files: self.files.as_ref().map(|files| files.saved()),
            exchange: self.account.as_ref().map(|account| Box::new(account.kept())),
        }
    }

    fn recover_running(&mut self, attempt: AttemptId, mut launched: RunningAttempt) {
        launched.launched_in = LaunchedIn::Earlier;
        self.insert_running(attempt, launched);
    }

    fn recover_end(&mut self, attempt: AttemptId, task: TaskId, node: NodeId, ended: &Ended, last: bool, at: Instant) {
        let running = self.remove_running(attempt);
        if running.is_some() {
            self.dag.spend(task, &ended.usage, false);
        }
        if let Some((over, other)) = running.as_ref().and_then(|running| Some((running, running.twin?))) {
            self.take_files(task, attempt, node, ended);
            self.pass_on(task, node, over.counts_beside(&ended.reason), Some(other));
        } else if running.is_some() {
            self.take_files(task, attempt, node, ended);
            self.dag.ended(task.stage, task.index, ended, last, at);
            let failed = last && !ended.reason.is_success() && !self.lifecycle.is_cancelled();
            self.recover_failure(failed, task.stage);
        }
    }

    fn recover_loss(
        &mut self,
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        cause: LostCause,
        last: bool,
        at: Instant,
    ) {
        let running = self.remove_running(attempt);
        if running.is_some() {
            self.note_given_up(attempt, task, cause);
        }
        if running.is_some() && matches!(cause, LostCause::NodeLost | LostCause::Superseded) {
            self.attempts.estrange(node);
        }
        if running.as_ref().is_some_and(|running| running.rule == Rule::Copy) {
            self.dag.pass(node);
        } else if let Some(other) = running.as_ref().and_then(|running| running.twin) {
            self.pass_on(task, node, false, Some(other));
        } else if running.is_some() {
            self.dag.lost(task.stage, task.index, cause, last, at);
            self.recover_failure(last && !self.lifecycle.is_cancelled(), task.stage);
        }
    }

    fn recover_progress(&mut self, progress: SavedProgress) {
        let SavedProgress { dag, run, cancelled, stopping, running, estranged, given_up, exchange, files } = progress;
        self.attempts.recover(estranged, given_up);
        (self.dag, self.files) = (dag, files.map(Files::recovered));
        self.lifecycle.recover(run, cancelled, stopping);
        for saved in running {
            let SavedAttempt { attempt, task, node, holding, rule, weight, had_rival, launched_at } = saved;
            let mut launched = RunningAttempt::launched(task, node, holding, rule, launched_at);
            (launched.weight, launched.had_rival) = (weight, had_rival);
            self.recover_running(attempt, launched);
        }
        exchange.iter().for_each(|exchange| self.recover_exchange(exchange));
    }

    fn recover_exchange(&mut self, kept: &Exchange) {
        if let Some(account) = &mut self.account {
            account.recover(kept, run_times(&self.dag).collect());
        }
    }

    fn recover_failure(&mut self, failed: bool, stage: u32) {
        if failed {
            self.dag.abandon_dependents(stage);
            if self.gangs.is_gang(stage) {
                self.dag.abandon(stage);
            }
            if self.job.spec.max_fails.is_some_and(|limit| self.dag.failed_tasks() > u64::from(limit)) {
                self.lifecycle.stop();
                self.dag.abandon_all();
            }
        }
    }
}
