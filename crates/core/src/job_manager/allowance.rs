//! A job manager that places all its tasks itself keeps to what its job is entitled to: so much of its tasks is guaranteed, and
//! beyond that a part as large, or several times as large, is opportunistic. It says what its job would hold, and the master
//! what that entitles it to.

use super::JobManager;
use crate::protocol::{TheMaster, ToMaster};
use crate::role::Outbox;
use crate::scheduling::Allowed;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{ExecutionType, Resources, Totals};
use serde::{Deserialize, Serialize};

/// What the master knows is off by one part in so many before it is told anew.
const TOLD_WITHIN: u64 = 16;

/// How much of a job may be sent to nodes without a booking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllowanceRules {
    /// For each hundred of what its guaranteed tasks may hold, its opportunistic ones may hold so many more.
    pub opportunistic: u32,
}

/// What its tasks that were sent to nodes hold, or will once they start.
pub(super) struct Allowance {
    rules: AllowanceRules,
    guaranteed: Held,
    opportunistic: Held,
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
        Allowance { rules, guaranteed: Held::default(), opportunistic: Held::default(), told: None }
    }

    fn held(&mut self, is_opportunistic: bool) -> &mut Held {
        if is_opportunistic { &mut self.opportunistic } else { &mut self.guaranteed }
    }

    pub(super) fn on_sent(&mut self, resources: &Resources, is_opportunistic: bool) {
        let held = self.held(is_opportunistic);
        held.attempts += 1;
        held.resources.add(resources);
    }

    pub(super) fn on_gone(&mut self, resources: &Resources, is_opportunistic: bool) {
        let held = self.held(is_opportunistic);
        held.attempts -= 1;
        held.resources.sub(resources);
    }

    /// What may go beside what is out. A job may always have one attempt of a kind out, however small its share: so none starves.
    fn allowed(&self, execution: ExecutionType, share: &Totals) -> Allowed {
        let (most, held) = match execution {
            ExecutionType::Opportunistic => (times(share, self.rules.opportunistic), &self.opportunistic),
            ExecutionType::Guaranteed | ExecutionType::Auto => (*share, &self.guaranteed),
        };
        let room = Totals(std::array::from_fn(|kind| most.0[kind].saturating_sub(held.resources.0[kind])));
        Allowed { execution, room, one_goes: held.attempts == 0 }
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
    /// The same guaranteed tasks first, then opportunistic ones.
    pub(super) fn allowed(&self) -> Option<[Allowed; 2]> {
        let allowance = self.allowance.as_ref()?;
        let share = self.share.as_deref().copied().unwrap_or(Totals::ZERO);
        Some([ExecutionType::Guaranteed, ExecutionType::Opportunistic].map(|kind| allowance.allowed(kind, &share)))
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
        assert_eq!(
            counted,
            [allowance.guaranteed, allowance.opportunistic],
            "what guaranteed and opportunistic tasks hold"
        );
    }
}
