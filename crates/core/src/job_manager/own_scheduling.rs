//! The part of a job manager that places tasks itself: its scheduler, and the rules for what it sends, promotes, reviews and
//! sends twice.

use super::allowance::Allowance;
use super::correction::Corrections;
use super::exploration::Exploration;
use super::promotion::Promotions;
use super::{Life, OwnPlacement, RunningAttempt};
use crate::policy::Quota;
use crate::progress::Holding;
use crate::protocol::{Ask, Rule};
use crate::scheduling::LocalScheduler;
use crate::vocabulary::{AttemptId, Epoch, Instant, JobId, Resources, TaskId};

pub(super) struct OwnScheduling {
    /// Places all tasks of the job, or only the opportunistic ones; `None` if the master places all.
    pub(super) scheduler: Option<LocalScheduler>,
    /// If set, the job's own placements stay within its allowance.
    pub(super) allowance: Option<Box<Allowance>>,
    pub(super) quota: Quota,
    pub(super) corrections: Corrections,
    pub(super) exploration: Exploration,
    pub(super) promotions: Promotions,
    /// Whether the quota or the allowance held tasks back at the last check.
    limit_binds: bool,
    /// Report the remaining work to the master even without asks.
    pub(super) reports_work: bool,
}

impl OwnScheduling {
    /// `stages`: their number. `asks`: of the job, in the order of their ids.
    pub(super) fn new(
        own: Option<OwnPlacement>,
        (job, epoch): (JobId, Epoch),
        stages: usize,
        asks: impl Iterator<Item = Ask>,
    ) -> OwnScheduling {
        let Some(own) = own else {
            return OwnScheduling {
                scheduler: None,
                allowance: None,
                quota: Quota::default(),
                corrections: Corrections::new(None, stages),
                exploration: Exploration::new(None),
                promotions: Promotions::after(None),
                limit_binds: false,
                reports_work: false,
            };
        };
        OwnScheduling {
            scheduler: Some(LocalScheduler::new(job, epoch, asks, own.placement)),
            allowance: own.allowance.map(|rules| Box::new(Allowance::new(rules))),
            quota: own.quota,
            corrections: Corrections::new(own.corrections, stages),
            exploration: Exploration::new(own.explores),
            promotions: Promotions::after(own.promote_after),
            limit_binds: false,
            reports_work: own.reports_work,
        }
    }

    /// Whether the job manager decides which of its tasks are guaranteed.
    pub(super) fn has_allowance(&self) -> bool {
        self.allowance.is_some()
    }

    /// An attempt was sent to a node, or is known from before a restart.
    pub(super) fn on_sent(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        if let Some(allowance) = &mut self.allowance {
            allowance.on_sent(attempt, sent, resources);
        }
        if sent.started_at.is_none() {
            self.corrections.on_sent(attempt, sent);
            if sent.life == Life::Present {
                self.exploration.on_sent(sent);
            }
        }
    }

    /// The attempt's process started at `since`.
    pub(super) fn on_started(
        &mut self,
        attempt: AttemptId,
        started: &RunningAttempt,
        since: Instant,
        resources: &Resources,
    ) {
        if !started.holding().is_booked() {
            self.promotions.on_started(since, attempt);
        }
        if let Some(allowance) = &mut self.allowance {
            allowance.on_started(attempt, started, resources);
        }
        self.corrections.on_started(attempt, started);
        self.exploration.forget(started.task);
        let Some(scheduler) = &mut self.scheduler else { return };
        scheduler.on_started();
        let is_as_it_was_sent = matches!(started.holding(), Holding::Granted | Holding::Entitled);
        if started.rule == Rule::Completion && is_as_it_was_sent {
            scheduler.learn_start(started.expected_wait, since.since(started.launched_at));
        }
    }

    /// The attempt has ended or was written off.
    pub(super) fn on_gone(&mut self, attempt: AttemptId, gone: &RunningAttempt, resources: &Resources) {
        if let Some(allowance) = &mut self.allowance {
            allowance.on_gone(attempt, gone, resources);
        }
        self.corrections.on_gone(attempt, gone);
        if gone.twin.is_none() {
            self.exploration.forget(gone.task);
        }
    }

    /// The opportunistic attempt is within the job's allowance from now on.
    pub(super) fn on_promoted(&mut self, attempt: AttemptId, promoted: &mut RunningAttempt, resources: &Resources) {
        if let Some(allowance) = &mut self.allowance {
            allowance.on_gone(attempt, promoted, resources);
            promoted.promote();
            allowance.on_sent(attempt, promoted, resources);
        }
        if promoted.started_at.is_none() {
            self.corrections.on_sent(attempt, promoted);
        }
    }

    /// The task's node has to fetch input files. No other node is tried, because it would have to fetch them as well.
    pub(super) fn on_awaits_files(&mut self, task: TaskId) {
        self.exploration.forget(task);
    }

    /// Sets whether a limit holds tasks back. Returns whether it starts to.
    pub(super) fn starts_to_bind(&mut self, binds: bool) -> bool {
        !std::mem::replace(&mut self.limit_binds, binds) && binds
    }

    /// The master counts asks from zero, and does not know the allowance.
    pub(super) fn restart(&mut self) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.restart();
        }
        self.restart_allowance();
    }

    pub(super) fn restart_allowance(&mut self) {
        if let Some(allowance) = &mut self.allowance {
            allowance.restart();
        }
    }

    /// The job starts again, to rerun tasks.
    pub(super) fn rerun(&mut self) {
        if let Some(allowance) = &mut self.allowance {
            allowance.rerun();
        }
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let opening = self.scheduler.as_ref().and_then(LocalScheduler::next_opening);
        let answer = self.allowance.as_ref().and_then(|allowance| allowance.answer_due);
        [opening, self.promotions.next(), answer, self.exploration.next()].into_iter().flatten().min()
    }
}
