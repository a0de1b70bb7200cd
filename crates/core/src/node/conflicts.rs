//! Conflicts between guaranteed and opportunistic work for the same resources. Opportunistic work is preempted, and
//! stays within the limits that the master sets.

use super::{Attempt, NodeAgent, State};
use crate::protocol::{Address, Launch, Steer, TheExecutor, TheMaster, ToExecutor, ToJobManager, ToMaster};
use crate::role::{Outbox, Record};
use crate::vocabulary::resources::CPU;
use crate::vocabulary::{
    AttemptId, EndReason, Ended, ExecutionType, GrantId, Instant, JobId, Resources, Totals, Usage,
};
use std::sync::Arc;

impl Attempt {
    /// Not booked and not guaranteed: it is preempted when guaranteed work needs its resources.
    pub(super) fn is_opportunistic(&self) -> bool {
        self.grant.is_none() && self.template.shape.execution == ExecutionType::Opportunistic
    }

    pub(super) fn is_preemptible(&self) -> bool {
        self.is_opportunistic() && matches!(self.state, State::Starting | State::Running)
    }
}

pub(super) fn shed_because(why: String) -> Arc<Ended> {
    Arc::new(Ended { reason: EndReason::Shed, usage: Usage::default(), message: Some(why), files: None })
}

impl NodeAgent {
    /// Resources that opportunistic work may hold in addition to what it holds. One attempt may always run; otherwise a
    /// task that is larger than the limit would wait permanently.
    pub fn opportunistic_room(&self) -> Resources {
        self.room.left_for_opportunistic()
    }

    pub(super) fn on_steer(&mut self, now: Instant, steer: Steer, out: &mut Outbox) {
        self.room.limit_opportunistic(steer.room);
        self.queue.limit_wait(steer.longest_wait);
        self.start_what_fits(now, out);
        self.shed(now, out);
    }

    /// Sheds waiting entries beyond the limit of the queue: their job managers place them elsewhere. This is done only
    /// when the master has just sent the limit. Shedding by an older limit before each report would keep the target
    /// from growing.
    fn shed(&mut self, now: Instant, out: &mut Outbox) {
        while let Some((attempt, why)) = self.queue.shed() {
            self.finish(now, attempt, shed_because(why), out);
        }
    }

    /// Sheds an opportunistic launch that finds the queue full.
    pub(super) fn keep_queue_short(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let Some(limit) = self.queue.exceeded_limit() else { return };
        if self.attempts.get(&id).is_some_and(|entry| entry.is_opportunistic()) {
            self.queue.remove(id);
            self.finish(now, id, shed_because(format!("the queue is full: limit {limit}")), out);
        }
    }

    /// Books an opportunistic attempt that runs; otherwise returns the grant.
    pub(super) fn on_promote(&mut self, now: Instant, id: AttemptId, grant: GrantId, out: &mut Outbox) {
        if !self.master.honours(Some(grant)) {
            return;
        }
        let held = match self.attempts.get(&id) {
            Some(entry) if entry.is_preemptible() => {
                self.room.on_booked(&entry.holds());
                self.attempts.on_booked(id, grant);
                out.send(TheExecutor(self.node), ToExecutor::Promote { attempt: id, grant: Some(grant) });
                Some(grant)
            }
            Some(entry) if entry.is_at_executor() => entry.grant,
            _ => None,
        };
        if let Some(held) = held {
            out.send(id.job, ToJobManager::Promoted { attempt: id, grant: held });
        }
        if held != Some(grant) {
            out.send(TheMaster, ToMaster::Freed { grants: vec![grant], unfinished: true });
        }
        if held.is_some() {
            self.guarantee_files(now, id, out);
        }
        self.start_what_fits(now, out);
    }

    /// An opportunistic attempt is within its job's share: it is not booked and not preempted any more. If it waits, it
    /// waits behind earlier guaranteed entries.
    pub(super) fn on_entitled(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let Some(entry) = self.attempts.get(&id).filter(|entry| entry.is_opportunistic()) else { return };
        if entry.is_at_executor() {
            self.room.on_entitled(&entry.holds());
        }
        if let State::Starting | State::Running = entry.state {
            out.send(TheExecutor(self.node), ToExecutor::Promote { attempt: id, grant: None });
        }
        let shape = self.attempts.on_entitled(id);
        self.queue.on_entitled(id, shape);
        self.waits.on_change(now);
        self.guarantee_files(now, id, out);
        self.start_what_fits(now, out);
    }

    /// The master preempts attempts in favour of a launch. None is preempted if the launch is refused.
    pub(super) fn on_launch_instead(
        &mut self,
        now: Instant,
        from: Address,
        launch: Box<Launch>,
        of: &[GrantId],
        out: &mut Outbox,
    ) {
        let by = launch.attempt;
        let was_here = self.attempts.contains(&by);
        self.on_launch(now, from, launch, out);
        if was_here || !self.attempts.contains(&by) {
            return;
        }
        self.held_under(of).into_iter().for_each(|victim| self.preempt(now, victim, by, out));
    }

    /// The master preempts attempts for a task of this job, which it granted their room.
    pub(super) fn on_preempt(&mut self, now: Instant, grants: &[GrantId], by: JobId, out: &mut Outbox) {
        let here: Vec<GrantId> = self.attempts.iter().filter_map(|(_, attempt)| attempt.grant).collect();
        self.refuse_later(grants.iter().copied().filter(|grant| !here.contains(grant)));
        for victim in self.held_under(grants) {
            let entry = &self.attempts[&victim];
            if !matches!(entry.state, State::Stopping { .. } | State::Ended(_)) {
                out.record(Record::Reclaiming { task: entry.task, attempt: victim, node: self.node, by });
                self.on_stop(now, victim, EndReason::Preempted, self.settings.stop_grace, out);
            }
        }
    }

    fn held_under(&self, grants: &[GrantId]) -> Vec<AttemptId> {
        let holds_one = |attempt: &Attempt| attempt.grant.is_some_and(|grant| grants.contains(&grant));
        self.attempts.iter().filter(|(_, attempt)| holds_one(attempt)).map(|(id, _)| id).collect()
    }

    pub(super) fn preempt(&mut self, now: Instant, victim: AttemptId, by: AttemptId, out: &mut Outbox) {
        let entry = &self.attempts[&victim];
        if matches!(entry.state, State::Stopping { .. } | State::Ended(_)) {
            return;
        }
        out.record(Record::Preempting { task: entry.task, attempt: victim, node: self.node, by });
        self.attempts.on_preempted(victim, by);
        self.on_stop(now, victim, EndReason::Preempted, self.settings.stop_grace, out);
    }

    /// Preempts opportunistic attempts for guaranteed ones that wait; `by` is the last of them. The newest are
    /// preempted first, since they lose least, and no more than needed. Booked entries always fit beside other booked
    /// ones; entries that are not booked count only as far as room is left for them. If attempts yield their CPU, none
    /// is stopped for CPU.
    pub(super) fn make_room(&mut self, now: Instant, by: AttemptId, out: &mut Outbox) {
        if !self.room.has_opportunistic() {
            return;
        }
        let mut coming = Totals::ZERO;
        coming.add(self.room.free());
        let mut most = coming;
        for (_, entry) in self.attempts.running() {
            if let State::Stopping { .. } = entry.state {
                coming.add(&entry.holds());
            }
            if matches!(entry.state, State::Stopping { .. }) || entry.is_preemptible() {
                most.add(&entry.holds());
            }
        }
        // Guaranteed attempts that wait for their own CPU have priority over all of them.
        for (_, entry) in self.attempts.running().filter(|(_, entry)| entry.awaits_cpu() && !entry.is_opportunistic()) {
            most.sub_times(&entry.cpu(), 1);
        }
        let mut wanted = Totals::ZERO;
        for entry in self.queue.guaranteed_without_room() {
            let mut together = wanted;
            together.add(&entry.shape.resources);
            if entry.booked || together.fits_in(&most) {
                wanted = together;
            }
        }
        if self.attempts.may_yield() {
            wanted.0[CPU] = 0;
        }
        let mut victims = Vec::new();
        for (id, entry) in self.attempts.running().rev().filter(|(_, entry)| entry.is_preemptible()) {
            if wanted.fits_in(&coming) {
                break;
            }
            coming.add(&entry.holds());
            victims.push(id);
        }
        // Some victims may not be needed after later ones were added. The attempt that would lose most is spared first.
        for at in (0..victims.len()).rev() {
            let mut without = coming;
            without.sub(&self.attempts[&victims[at]].holds());
            if wanted.fits_in(&without) {
                coming = without;
                victims.remove(at);
            }
        }
        victims.into_iter().for_each(|victim| self.preempt(now, victim, by, out));
    }
}
