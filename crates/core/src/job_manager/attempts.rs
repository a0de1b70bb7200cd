//! The course of attempts in the job manager: launch, start, end and loss, and the consequences for their tasks.

use super::correction::counts_as_failure;
use super::{Basis, Holding, JobManager, LaunchTarget, LaunchedIn, RunningAttempt};
use crate::protocol::{Address, Launch, ProposedLaunch, Rule, ToMaster, ToNode};
use crate::role::{Change, LostCause, Outbox, Record};
use crate::scheduling::LocalScheduler;
use crate::vocabulary::{
    AllocationTime, AtNode, AttemptId, ByteString, Duration, EndReason, Ended, ExecutionType, Instant, NodeId,
    Prediction, Route, TaskId, Token,
};
use std::sync::Arc;

/// A task that has had this many losses through its nodes fails at the next one: most likely it takes its nodes down, or no node can run it.
const MAX_LOSSES: u8 = 16;

impl JobManager {
    pub(super) fn launch(
        &mut self,
        now: Instant,
        target: LaunchTarget,
        task: TaskId,
        execution: ExecutionType,
        out: &mut Outbox,
    ) {
        let LaunchTarget { node, basis, rule, passed_over, execution: either, expected_wait } = target;
        let execution = if execution == ExecutionType::Auto { either } else { execution };
        let attempt = self.attempts.make_id();
        if rule.is_second() {
            self.dag.launched_beside(task.stage, task.index);
        } else {
            self.dag.launched(task.stage, task.index, attempt, node, now);
            self.master.work.on_launched(now, task.stage, &self.dag);
        }
        let is_entitled = self.own.has_allowance() && execution == ExecutionType::Guaranteed;
        let holding = match basis.grant() {
            Some(_) => Holding::Granted,
            None if is_entitled => Holding::Entitled,
            None => Holding::Opportunistic,
        };
        let opportunistic = holding == Holding::Opportunistic;
        // A duplicate is an attempt beyond the job's tasks.
        let weight = if opportunistic && !rule.is_second() { self.weight(task.stage) } else { 1 };
        let mut launched = RunningAttempt::launched(task, node, holding, rule, now);
        (launched.expected_wait, launched.weight) = (expected_wait, weight);
        self.insert_running(attempt, launched);
        let grant = basis.grant();
        let at = now;
        out.persist(Change::Launched { attempt, task, node, grant, opportunistic, weight, rule, passed_over, at });
        let mut launch = self.launch_message(attempt, task, execution, basis);
        launch.weight = weight;
        launch.prediction = self.predict(now, basis, task.stage, opportunistic, expected_wait);
        let master =
            self.settings.federation.filter(|_| holding.is_booked()).map(|federation| federation.cluster_of(node));
        if master.is_none() {
            launch.token = self.launches.token(node, &launch.allocation());
        }
        if self.record_awaited(&launch, node, out) {
            // Another node would have to fetch the same files.
            self.own.on_awaits_files(task);
        }
        let launch = Box::new(launch);
        match master {
            Some(master) => {
                let queue = self.job.queue;
                let instead_of = match rule {
                    Rule::Share { at_cost_of } => Some(at_cost_of),
                    _ => None,
                };
                let proposed = ProposedLaunch { node, queue, instead_of, launch };
                out.send(master, ToMaster::Launch(Box::new(proposed)));
            }
            None => out.send(node, ToNode::Launch(launch)),
        }
    }

    pub(super) fn launch_message(
        &mut self,
        attempt: AttemptId,
        task: TaskId,
        execution: ExecutionType,
        basis: Basis,
    ) -> Launch {
        let tasks = &self.job.spec.stages[task.stage as usize].tasks;
        Launch {
            attempt,
            task,
            grant: basis.grant(),
            shared_gpu: basis.shared_gpu(),
            probe: basis.probe(),
            is_of_gang: self.gangs.is_gang(task.stage),
            template: self.launches.template(&self.job, task.stage, execution),
            index: tasks.index_value(task.index),
            item: tasks.item(task.index).map(ByteString::from),
            expected: self.dag.expected(task.stage, task.index),
            weight: 1,
            inputs: self.inputs_of(task),
            prediction: None,
            token: Token::default(),
        }
    }

    /// Whether expected waits are known: nodes report them to a manager with an allowance, if its scheduler uses them.
    pub(super) fn knows_waits(&self) -> bool {
        self.own.has_allowance() && self.own.scheduler.as_ref().is_some_and(LocalScheduler::knows_load)
    }

    /// The prediction of an attempt's start. For a grant or a probe, it was made with the ask.
    pub(super) fn predict(
        &mut self,
        now: Instant,
        basis: Basis,
        stage: u32,
        opportunistic: bool,
        expected_wait: Duration,
    ) -> Option<Prediction> {
        match basis {
            Basis::Grant(_, prediction, _) | Basis::Probe(_, prediction) => prediction,
            Basis::Queue => {
                let way = if opportunistic { Route::SentOpportunistic } else { Route::Sent };
                let known = self.knows_waits().then_some(expected_wait);
                let ask = self.requests.ask_of(stage, opportunistic);
                Some(self.own.scheduler.as_mut()?.predict(now, way, known, ask))
            }
        }
    }

    pub(super) fn insert_running(&mut self, attempt: AttemptId, running: RunningAttempt) {
        if let Some(account) = &mut self.account {
            account.on_held(&self.job.resources[running.task.stage as usize], running.rule);
        }
        self.own.on_sent(attempt, &running, &self.job.resources[running.task.stage as usize]);
        self.stragglers.on_sent(attempt, &running);
        let (task, rule) = (running.task, running.rule);
        self.attempts.insert(attempt, running);
        if rule.is_second() {
            self.pair(attempt, task);
        }
    }

    pub(super) fn remove_running(&mut self, attempt: AttemptId) -> Option<RunningAttempt> {
        let running = self.attempts.remove(attempt)?;
        if let Some(account) = &mut self.account {
            account.on_freed(&self.job.resources[running.task.stage as usize], running.rule);
        }
        self.own.on_gone(attempt, &running, &self.job.resources[running.task.stage as usize]);
        self.stragglers.on_gone(attempt);
        self.duplicates.withdraw(attempt);
        self.gangs.on_gone(running.task.stage, attempt);
        Some(running)
    }

    pub(super) fn on_started(
        &mut self,
        now: Instant,
        from: Address,
        attempt: AttemptId,
        running_for: Duration,
        at_node: Option<AtNode>,
        out: &mut Outbox,
    ) {
        let Some(running) = self.attempts.get(&attempt) else {
            return out.record(Record::Stale { from, attempt });
        };
        if running.started_at.is_none() {
            let since = now.before(running_for);
            self.attempts.started(attempt, since);
            let running = &self.attempts[&attempt];
            self.own.on_started(attempt, running, since, &self.job.resources[running.task.stage as usize]);
            // The record of a recovered attempt was written before the restart.
            if running.launched_in == LaunchedIn::Present {
                let (task, node, waited) = (running.task, running.node, now.since(running.launched_at));
                let expected = self.own.has_allowance().then_some(running.expected_wait);
                let (opportunistic, promoted) =
                    (running.holding().counts_as_opportunistic(), running.holding() == Holding::Promoted);
                let queue = self.first_starts.on_started(running.launched_at, task, self.dag.stage(task.stage).total);
                let time = |(queue, at)| AllocationTime::of(queue, waited, running_for, at);
                let allocation = queue.zip(at_node).map(time);
                let started =
                    Record::Started { task, attempt, node, waited, expected, opportunistic, promoted, allocation };
                out.record(started);
            }
            let (task, node, twin) = (running.task, running.node, running.twin.filter(|_| !running.had_rival));
            self.note_arrival(task, node);
            if let Some(twin) = twin {
                self.discard(now, twin, out);
            }
            self.note_gang_started(now, task, out);
            self.drop_idle_copies(now, out);
        }
    }

    /// The node did not accept the launch, or the master of its cluster did not send it on.
    pub(super) fn on_not_launched(
        &mut self,
        now: Instant,
        from: Address,
        attempt: AttemptId,
        cause: LostCause,
        out: &mut Outbox,
    ) {
        // A node can only report on attempts that were sent to it.
        let may_say = |running: &&RunningAttempt| match cause {
            LostCause::Refused(_) => from == Address::Master,
            _ => from == Address::Node(running.node),
        };
        let running = self.attempts.get(&attempt).filter(may_say);
        if let Some(running) = running {
            // The node does not accept work now, and would not at once.
            let (node, booked) = (running.node, running.holding().is_booked());
            if !booked {
                self.close_node(now, node, out);
            }
            self.write_off(now, attempt, cause, out);
            self.update_demand(now, out);
        } else {
            out.record(Record::Stale { from, attempt });
        }
    }

    // ---- ends ------------------------------------------------------------------------------------------------------

    /// The end of an attempt, once; repeated messages are acknowledged again.
    pub(super) fn on_finished(
        &mut self,
        now: Instant,
        from: Address,
        attempt: AttemptId,
        ended: Arc<Ended>,
        instead: Option<NodeId>,
        out: &mut Outbox,
    ) {
        if let Address::Node(node) = from {
            // Sent only after the changes of this handler are durable.
            out.send(node, ToNode::Acknowledge { attempt });
        }
        self.discard_rival(now, attempt, &ended.reason, out);
        let Some(running) = self.remove_running(attempt) else {
            if let Address::Node(node) = from {
                self.end_late(now, attempt, node, &ended, out);
            }
            return out.record(Record::Stale { from, attempt });
        };
        if running.rule != Rule::Copy {
            self.dag.spend(running.task, &ended.usage, false);
        }
        self.blame_end(now, &running, &ended, out);
        let RunningAttempt { task, node, twin, rule, .. } = running;
        if rule == Rule::Copy {
            self.end_copy(now, attempt, &running, &ended, out);
            return self.end_late(now, attempt, running.node, &ended, out);
        }
        if let Some(other) = twin {
            return self.end_beside(now, attempt, &running, other, ended, out);
        }
        let last = self.is_last(task, &ended.reason);
        if last {
            self.blame.forget(task);
        } else {
            self.requests.came_back(task.stage, running.holding().counts_as_opportunistic());
            self.policy.came_back(task.stage);
        }
        match (&ended.reason, instead) {
            (EndReason::Shed, Some(instead)) if !last && self.send_to(task.stage, instead) => {}
            // A node that sheds has a longer queue than its published load shows.
            (EndReason::NodeFault(_) | EndReason::Shed, _) => self.close_node(now, node, out),
            _ => {}
        }
        self.take_files(task, attempt, node, &ended);
        self.note_speed(task, &ended);
        let ready = self.dag.ended(task.stage, task.index, &ended, last, now);
        self.master.work.review(task.stage, &self.job, &self.dag);
        let (succeeded, costs_none) = (ended.reason.is_success(), ended.reason.is_infrastructure());
        out.persist(Change::Finished { attempt, task, node, ended, last, at: now });
        for &stage in &ready {
            self.first_starts.on_ready(now, stage);
            out.record(Record::StageReady { job: self.id(), stage });
        }
        if succeeded {
            self.note_gang_started(now, task, out);
        }
        if !last {
            self.record_retry(now, task, costs_none, out);
        } else if !succeeded && !self.lifecycle.is_cancelled() {
            self.on_task_failed(task, out);
        }
        self.drop_idle_copies(now, out);
        self.review_asks_after(now, task.stage, succeeded && ready.is_empty(), out);
        self.keep_exchange_now_and_then(now, out);
        self.report_work(out);
    }

    /// Discards the other attempt of the task if this end decides the task.
    fn discard_rival(&mut self, now: Instant, attempt: AttemptId, reason: &EndReason, out: &mut Outbox) {
        if let Some(&RunningAttempt { task, twin: Some(other), had_rival, .. }) = self.attempts.get(&attempt) {
            let failed_finally = !had_rival && counts_as_failure(reason) && self.is_last(task, reason);
            if reason.is_success() {
                self.report_overtaken(attempt, out);
            }
            if reason.is_success() || failed_finally {
                self.discard(now, other, out);
            }
        }
    }

    /// A success that makes no stage ready changes no asks, unless others of its gang have to start again.
    fn review_asks_after(&mut self, now: Instant, stage: u32, is_plain_success: bool, out: &mut Outbox) {
        if !is_plain_success
            || self.attempts.is_empty()
            || self.gangs.is_gang(stage)
            || self.dag.stage(stage).is_limited()
            || self.duplicates.has_changed()
        {
            self.update_demand(now, out);
        } else if self.own.quota().is_set() || self.own.has_allowance() {
            self.place(now, out);
        }
    }

    pub(super) fn is_last(&self, task: TaskId, reason: &EndReason) -> bool {
        let is_given_up = self.lifecycle.is_cancelled() || self.is_cancelled_task(task);
        if is_given_up || reason.is_success() || *reason == EndReason::Cancelled {
            return true;
        }
        let stage = &self.job.spec.stages[task.stage as usize];
        let record = self.dag.stage(task.stage).record(task.index).expect("a task with an attempt has a record");
        match reason {
            reason if reason.is_loss() => record.losses >= MAX_LOSSES,
            reason if reason.is_infrastructure() => false,
            _ => u32::from(record.failures) >= stage.retries,
        }
    }

    pub(super) fn record_retry(&self, now: Instant, task: TaskId, costs_none: bool, out: &mut Outbox) {
        let record = self.dag.stage(task.stage).record(task.index).expect("a retried task has a record");
        let retries = self.job.spec.stages[task.stage as usize].retries;
        let delay = self.dag.delayed_until(task.stage, task.index).map_or(Duration::ZERO, |until| until.since(now));
        out.record(Record::Retried { task, failures: u32::from(record.failures), retries, delay, costs_none });
    }

    /// A task failed and is not tried again: its dependents never run, and too many failures stop the job.
    pub(super) fn on_task_failed(&mut self, task: TaskId, out: &mut Outbox) {
        self.dag.abandon_dependents(task.stage);
        if self.gangs.is_gang(task.stage) {
            self.dag.abandon(task.stage);
        }
        self.master.work.recount(&self.job, &self.dag);
        if self.job.spec.max_fails.is_some_and(|limit| self.dag.failed_tasks() > u64::from(limit)) {
            self.stop_everything(out);
        }
    }

    pub(super) fn write_off(&mut self, now: Instant, attempt: AttemptId, cause: LostCause, out: &mut Outbox) {
        let Some(running) = self.remove_running(attempt) else { return };
        if cause == LostCause::NodeLost {
            self.attempts.estrange(running.node);
        }
        self.blame_loss(now, &running, cause, out);
        if running.rule == Rule::Copy {
            return self.lose_copy(now, attempt, &running, cause, out);
        }
        if let Some(twin) = running.twin {
            return self.lose_beside(now, attempt, &running, twin, cause, out);
        }
        let RunningAttempt { task, node, .. } = running;
        self.note_given_up(attempt, task, cause);
        let is_given_up = self.lifecycle.is_cancelled() || self.is_cancelled_task(task);
        let last = cause == LostCause::NodeLost && self.is_last(task, &EndReason::NodeLost) || is_given_up;
        self.dag.lost(task.stage, task.index, cause, last, now);
        if last {
            self.blame.forget(task);
        } else {
            self.requests.came_back(task.stage, running.holding().counts_as_opportunistic());
            self.policy.came_back(task.stage);
        }
        self.master.work.review(task.stage, &self.job, &self.dag);
        out.persist(Change::Lost { attempt, task, node, cause, last, at: now });
        if !last {
            self.record_retry(now, task, true, out);
        } else if !self.lifecycle.is_cancelled() {
            self.on_task_failed(task, out);
        }
    }
}
