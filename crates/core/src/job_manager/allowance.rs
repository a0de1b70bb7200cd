//! A job manager that places all its tasks itself keeps to what its job is entitled to: so much of its tasks is guaranteed, and
//! beyond that a part as large, or several times as large, is opportunistic. It says what its job would hold, and the master
//! what that entitles it to.

use super::{JobManager, RunningAttempt};
use crate::protocol::{TheMaster, ToMaster, ToNode};
use crate::role::{Change, Outbox};
use crate::scheduling::Allowed;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{AttemptId, Duration, ExecutionType, Instant, Resources, Totals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What the master knows is off by one part in so many before it is told anew.
const TOLD_WITHIN: u64 = 16;

/// How much of a job may be sent to nodes without a booking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllowanceRules {
    /// Its guaranteed tasks may hold so many hundredths of the job's share. What all jobs leave so evens out that tasks do not
    /// fill nodes without a gap.
    pub guaranteed: u32,
    /// And its opportunistic ones so many hundredths of it.
    pub opportunistic: u32,
    /// An opportunistic attempt that has waited for so long gets what the job may hold next, before all that was not sent yet.
    pub starved_after: Duration,
}

/// What its tasks that were sent to nodes hold, or will once they start.
pub(super) struct Allowance {
    rules: AllowanceRules,
    guaranteed: Held,
    opportunistic: Held,
    /// Opportunistic attempts since they were sent, which wait as far as is known; and those that run, since then.
    waiting: BTreeSet<(Instant, AttemptId)>,
    running: BTreeSet<(Instant, AttemptId)>,
    /// What the present master was told that the job wants.
    told: Option<Totals>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Held {
    attempts: u32,
    resources: Totals,
}

impl Allowance {
    pub(super) fn new(rules: AllowanceRules) -> Allowance {
        let (guaranteed, opportunistic) = (Held::default(), Held::default());
        Allowance { rules, guaranteed, opportunistic, waiting: BTreeSet::new(), running: BTreeSet::new(), told: None }
    }

    fn held(&mut self, is_opportunistic: bool) -> &mut Held {
        if is_opportunistic { &mut self.opportunistic } else { &mut self.guaranteed }
    }

    pub(super) fn on_sent(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        let held = self.held(sent.opportunistic);
        held.attempts += 1;
        held.resources.add(resources);
        if sent.opportunistic {
            match sent.started_at {
                Some(since) => self.running.insert((since, attempt)),
                None => self.waiting.insert((sent.launched_at, attempt)),
            };
        }
    }

    /// An opportunistic attempt runs since then.
    pub(super) fn on_started(&mut self, attempt: AttemptId, sent: &RunningAttempt) {
        if let Some(since) = sent.started_at.filter(|_| sent.opportunistic) {
            self.waiting.remove(&(sent.launched_at, attempt));
            self.running.insert((since, attempt));
        }
    }

    pub(super) fn on_gone(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        let held = self.held(sent.opportunistic);
        held.attempts -= 1;
        held.resources.sub(resources);
        if sent.opportunistic {
            match sent.started_at {
                Some(since) => self.running.remove(&(since, attempt)),
                None => self.waiting.remove(&(sent.launched_at, attempt)),
            };
        }
    }

    /// What may go beside what is out. A job may always have one attempt of a kind out, however small its share: so none starves.
    fn allowed(&self, execution: ExecutionType, share: &Totals) -> Allowed {
        let (most, held) = match execution {
            ExecutionType::Opportunistic => (times(share, self.rules.opportunistic), &self.opportunistic),
            ExecutionType::Guaranteed | ExecutionType::Auto => (times(share, self.rules.guaranteed), &self.guaranteed),
        };
        let room = Totals(std::array::from_fn(|kind| most.0[kind].saturating_sub(held.resources.0[kind])));
        Allowed { execution, room, one_goes: held.attempts == 0 }
    }

    /// The same for second attempts of slow tasks, which the rest of the share is for as well.
    fn allowed_beside(&self, execution: ExecutionType, share: &Totals) -> Totals {
        match execution {
            ExecutionType::Opportunistic => self.allowed(execution, share).room,
            ExecutionType::Guaranteed | ExecutionType::Auto => {
                let most = times(share, self.rules.guaranteed.max(100));
                Totals(std::array::from_fn(|kind| most.0[kind].saturating_sub(self.guaranteed.resources.0[kind])))
            }
        }
    }

    /// A master that knows nothing of the job is told anew.
    pub(super) fn restart(&mut self) {
        self.told = None;
    }
}

fn times(share: &Totals, hundredths: u32) -> Totals {
    Totals(share.0.map(|amount| (u128::from(amount) * u128::from(hundredths) / 100).try_into().unwrap_or(u64::MAX)))
}

fn is_off(told: &Totals, now: &Totals) -> bool {
    (0..WIDTH).any(|kind| told.0[kind].abs_diff(now.0[kind]).saturating_mul(TOLD_WITHIN) > told.0[kind])
}

impl JobManager {
    /// How much of a kind may be sent.
    pub(super) fn allowed(&self, execution: ExecutionType) -> Option<Allowed> {
        let share = self.share.as_deref().copied().unwrap_or(Totals::ZERO);
        self.allowance.as_ref().map(|allowance| allowance.allowed(execution, &share))
    }

    /// What may go beside a slow attempt.
    pub(super) fn allowed_beside(&self, execution: ExecutionType) -> Option<Totals> {
        let share = self.share.as_deref().copied().unwrap_or(Totals::ZERO);
        self.allowance.as_ref().map(|allowance| allowance.allowed_beside(execution, &share))
    }

    /// What has waited for too long goes before all that was not sent yet.
    pub(super) fn promote_starved(&mut self, now: Instant, out: &mut Outbox) {
        if let Some(allowance) = &self.allowance {
            let starved_after = allowance.rules.starved_after;
            self.promote_within_allowance(now, starved_after, out);
        }
    }

    /// Opportunistic attempts that are older than this become guaranteed as far as the job's share goes: those that wait first,
    /// then those that run, and the oldest first of each.
    pub(super) fn promote_within_allowance(&mut self, now: Instant, older_than: Duration, out: &mut Outbox) {
        let only_waiting = older_than > Duration::ZERO;
        while let Some(allowed) = self.allowed(ExecutionType::Guaranteed) {
            let Some(allowance) = &self.allowance else { return };
            let waiting = allowance.waiting.first().filter(|(since, _)| now.since(*since) >= older_than);
            let next = waiting.or_else(|| allowance.running.first().filter(|_| !only_waiting));
            let Some(&(_, attempt)) = next else { return };
            let Some(running) = self.running.get(&attempt) else { return };
            let (task, node) = (running.task, running.node);
            let mut taken = Totals::ZERO;
            taken.add(&self.job.resources[task.stage as usize]);
            if !taken.fits_in(&allowed.room) && !allowed.one_goes || self.stopping {
                return;
            }
            self.take_promotion(attempt);
            out.persist(Change::Promoted { attempt, task, node, grant: None, at: now });
            out.send(node, ToNode::Promote { attempt, grant: None });
        }
    }

    /// The attempt is within what the job is entitled to from now on.
    pub(super) fn take_promotion(&mut self, attempt: AttemptId) {
        let Some(running) = self.running.get_mut(&attempt).filter(|running| running.opportunistic) else { return };
        if let Some(allowance) = &mut self.allowance {
            let resources = &self.job.resources[running.task.stage as usize];
            allowance.on_gone(attempt, running, resources);
            (running.opportunistic, running.promoted) = (false, true);
            allowance.on_sent(attempt, running, resources);
        }
    }

    /// Tells the master what the job would hold if all of it ran that runs or could.
    pub(super) fn tell_wants(&mut self, out: &mut Outbox) {
        let Some(allowance) = &self.allowance else { return };
        let mut wants = Totals::ZERO;
        for (stage, resources) in self.dag.stages.iter().zip(&self.job.resources) {
            let ready = if self.held { 0 } else { stage.ready() };
            wants.add_times(resources, u64::from(stage.running) + u64::from(ready));
        }
        if allowance.told.is_none_or(|told| is_off(&told, &wants)) {
            out.send(TheMaster, ToMaster::Wants { job: self.id(), wants: Box::new(wants) });
            self.allowance.as_mut().expect("just seen").told = Some(wants);
        }
    }

    /// In tests and debug builds.
    pub(super) fn check_allowance(&self) {
        let Some(allowance) = &self.allowance else { return };
        let mut counted = [Held::default(); 2];
        for running in self.running.values() {
            let held = &mut counted[usize::from(running.opportunistic)];
            held.attempts += 1;
            held.resources.add(&self.job.resources[running.task.stage as usize]);
        }
        let opportunistic = allowance.waiting.len() + allowance.running.len();
        assert_eq!(opportunistic, allowance.opportunistic.attempts as usize, "each of them waits or runs");
        assert_eq!(
            counted,
            [allowance.guaranteed, allowance.opportunistic],
            "what guaranteed and opportunistic tasks hold"
        );
    }
}
