//! The part of a job manager that places tasks itself: its scheduler, and the rules for what it sends, promotes, reviews and
//! sends twice.

use super::allowance::Allowance;
use super::correction::Corrections;
use super::exploration::Exploration;
use super::places::Unlocated;
use super::promotion::Promotions;
use super::{EntitledTasks, LaunchedIn, RunningAttempt};
use crate::policy::Quota;
use crate::progress::Holding;
use crate::protocol::Rule;
use crate::scheduling::LocalScheduler;
use crate::vocabulary::{AttemptId, Duration, Instant, Resources, TaskId};
use crate::why::Why;

pub(super) struct OwnScheduling {
    /// Places all tasks of the job, or only the opportunistic ones; `None` if the master places all.
    pub(super) scheduler: Option<LocalScheduler>,
    rules: Rules,
    /// Whether the quota or the allowance held tasks back at the last check.
    limit_binds: bool,
    /// Stages whose input locations the scheduler does not know yet.
    pub(super) unlocated: Unlocated,
    /// In a follower: the last reason that the followed manager gave for tasks that do not start.
    reported_why: Option<Box<Why>>,
}

/// The rules for the tasks that the job manager places.
pub(super) enum Rules {
    /// No limits, no promotions, no second attempts.
    Unlimited,
    Opportunistic {
        quota: Quota,
        /// `None` if no attempt requests a booking.
        promotions: Option<Promotions>,
    },
    WithinAllowance(Box<WithinAllowance>),
}

/// The parts of a job manager that decides which of its tasks are guaranteed.
pub(super) struct WithinAllowance {
    /// The job's own placements stay within it.
    pub(super) allowance: Allowance,
    /// `None` if placements are not reviewed.
    corrections: Option<Corrections>,
    /// `None` if no other nodes are tried for waiting tasks.
    exploration: Option<Exploration>,
    /// Report the remaining work to the master even without asks.
    pub(super) reports_work: bool,
}

impl Rules {
    pub(super) fn opportunistic(quota: Quota, promote_after: Option<Duration>) -> Rules {
        Rules::Opportunistic { quota, promotions: promote_after.map(Promotions::after) }
    }

    /// `stages`: their number.
    pub(super) fn entitled(tasks: &EntitledTasks, stages: usize) -> Rules {
        Rules::WithinAllowance(Box::new(WithinAllowance {
            allowance: Allowance::new(tasks.allowance),
            corrections: tasks.corrections.map(|rules| Corrections::new(rules, stages)),
            exploration: tasks.explores.map(Exploration::new),
            reports_work: tasks.reports_work,
        }))
    }
}

impl OwnScheduling {
    pub(super) fn new(scheduler: Option<LocalScheduler>, rules: Rules, unlocated: Unlocated) -> OwnScheduling {
        OwnScheduling { scheduler, rules, limit_binds: false, unlocated, reported_why: None }
    }

    /// `None` if the job manager does not decide which of its tasks are guaranteed.
    pub(super) fn entitled(&self) -> Option<&WithinAllowance> {
        if let Rules::WithinAllowance(entitled) = &self.rules { Some(entitled) } else { None }
    }

    pub(super) fn entitled_mut(&mut self) -> Option<&mut WithinAllowance> {
        if let Rules::WithinAllowance(entitled) = &mut self.rules { Some(entitled) } else { None }
    }

    /// Whether the job manager decides which of its tasks are guaranteed.
    pub(super) fn has_allowance(&self) -> bool {
        self.entitled().is_some()
    }

    pub(super) fn allowance(&self) -> Option<&Allowance> {
        self.entitled().map(|entitled| &entitled.allowance)
    }

    pub(super) fn allowance_mut(&mut self) -> Option<&mut Allowance> {
        self.entitled_mut().map(|entitled| &mut entitled.allowance)
    }

    /// The limit of the attempts that the job manager sends; not set if it places guaranteed tasks, too.
    pub(super) fn quota(&self) -> Quota {
        match &self.rules {
            Rules::Opportunistic { quota, .. } => *quota,
            Rules::Unlimited | Rules::WithinAllowance(_) => Quota::default(),
        }
    }

    pub(super) fn promotions_mut(&mut self) -> Option<&mut Promotions> {
        if let Rules::Opportunistic { promotions, .. } = &mut self.rules { promotions.as_mut() } else { None }
    }

    /// Whether other nodes are tried instead of using the waits that nodes report.
    pub(super) fn explores(&self) -> bool {
        self.entitled().is_some_and(|entitled| entitled.exploration.is_some())
    }

    pub(super) fn exploration_mut(&mut self) -> Option<&mut Exploration> {
        self.entitled_mut()?.exploration.as_mut()
    }

    /// `None` if placements are not reviewed.
    pub(super) fn corrections(&self) -> Option<&Corrections> {
        self.entitled()?.corrections.as_ref()
    }

    /// An attempt was sent to a node, or is known from before a restart.
    pub(super) fn on_sent(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        if let Some(entitled) = self.entitled_mut() {
            entitled.on_sent(attempt, sent, resources);
        }
    }

    /// The attempt waits at its node as far as is known.
    pub(super) fn await_start(&mut self, sent: &RunningAttempt) {
        if let Some(exploration) = self.exploration_mut() {
            exploration.on_sent(sent);
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
        match &mut self.rules {
            Rules::Opportunistic { promotions: Some(promotions), .. } if !started.holding().is_booked() => {
                promotions.on_started(since, attempt);
            }
            Rules::Unlimited | Rules::Opportunistic { .. } => {}
            Rules::WithinAllowance(entitled) => entitled.on_started(attempt, started, resources),
        }
        let Some(scheduler) = &mut self.scheduler else { return };
        scheduler.on_started();
        let is_as_it_was_sent = matches!(started.holding(), Holding::Granted | Holding::Entitled);
        if started.rule == Rule::Completion && is_as_it_was_sent {
            scheduler.learn_start(started.expected_wait, since.since(started.launched_at));
        }
    }

    /// The attempt has ended or was written off.
    pub(super) fn on_gone(&mut self, attempt: AttemptId, gone: &RunningAttempt, resources: &Resources) {
        if let Some(entitled) = self.entitled_mut() {
            entitled.on_gone(attempt, gone, resources);
        }
    }

    /// The opportunistic attempt is within the job's allowance from now on.
    pub(super) fn on_promoted(
        &mut self,
        attempt: AttemptId,
        before: &RunningAttempt,
        promoted: &RunningAttempt,
        resources: &Resources,
    ) {
        if let Some(entitled) = self.entitled_mut() {
            entitled.on_promoted(attempt, before, promoted, resources);
        }
    }

    /// The task's node has to fetch input files. No other node is tried, because it would have to fetch them as well.
    pub(super) fn on_awaits_files(&mut self, task: TaskId) {
        if let Some(exploration) = self.exploration_mut() {
            exploration.forget(task);
        }
    }

    /// Sets whether a limit holds tasks back. Returns whether it starts to.
    pub(super) fn starts_to_bind(&mut self, binds: bool) -> bool {
        !std::mem::replace(&mut self.limit_binds, binds) && binds
    }

    /// The followed manager gave this reason for tasks that do not start.
    pub(super) fn follow_reason(&mut self, why: &Why) {
        self.reported_why = Some(Box::new(why.clone()));
    }

    /// In a follower: the last reason that the followed manager gave.
    pub(super) fn reported_why(&self) -> Option<&Why> {
        self.reported_why.as_deref()
    }

    /// The master counts asks from zero, and does not know the allowance.
    pub(super) fn restart(&mut self) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.restart();
        }
        self.restart_allowance();
    }

    pub(super) fn restart_allowance(&mut self) {
        if let Some(allowance) = self.allowance_mut() {
            allowance.restart();
        }
    }

    /// The job starts again, to rerun tasks.
    pub(super) fn rerun(&mut self) {
        if let Some(allowance) = self.allowance_mut() {
            allowance.rerun();
        }
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let opening = self.scheduler.as_ref().and_then(LocalScheduler::next_opening);
        let of_rules = match &self.rules {
            Rules::Unlimited => None,
            Rules::Opportunistic { promotions, .. } => promotions.as_ref().and_then(Promotions::next),
            Rules::WithinAllowance(entitled) => entitled.next_wakeup(),
        };
        opening.into_iter().chain(of_rules).min()
    }
}

impl WithinAllowance {
    fn on_sent(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        self.allowance.on_sent(attempt, sent, resources);
        if sent.started_at.is_some() {
            return;
        }
        if let Some(corrections) = &mut self.corrections {
            corrections.on_sent(attempt, sent);
        }
        if let Some(exploration) = self.exploration.as_mut().filter(|_| sent.launched_in == LaunchedIn::Present) {
            exploration.on_sent(sent);
        }
    }

    fn on_started(&mut self, attempt: AttemptId, started: &RunningAttempt, resources: &Resources) {
        self.allowance.on_started(attempt, started, resources);
        if let Some(corrections) = &mut self.corrections {
            corrections.on_started(attempt, started);
        }
        if let Some(exploration) = &mut self.exploration {
            exploration.forget(started.task);
        }
    }

    fn on_gone(&mut self, attempt: AttemptId, gone: &RunningAttempt, resources: &Resources) {
        self.allowance.on_gone(attempt, gone, resources);
        if let Some(corrections) = &mut self.corrections {
            corrections.on_gone(attempt, gone);
        }
        if let Some(exploration) = self.exploration.as_mut().filter(|_| gone.twin.is_none()) {
            exploration.forget(gone.task);
        }
    }

    fn on_promoted(
        &mut self,
        attempt: AttemptId,
        before: &RunningAttempt,
        promoted: &RunningAttempt,
        resources: &Resources,
    ) {
        self.allowance.on_gone(attempt, before, resources);
        self.allowance.on_sent(attempt, promoted, resources);
        if let Some(corrections) = self.corrections.as_mut().filter(|_| promoted.started_at.is_none()) {
            corrections.on_sent(attempt, promoted);
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let exploration = self.exploration.as_ref().and_then(Exploration::next);
        self.allowance.answer_due.into_iter().chain(exploration).min()
    }
}
