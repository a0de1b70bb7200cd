//! A job manager that places all its tasks itself stays within the job's allowance. Guaranteed tasks may hold the allowance,
//! opportunistic tasks in addition a percentage of the job's share. The manager reports what the job would hold and does
//! hold; the master replies with the job's share and its present allowance.

use super::by_age::ByAge;
use super::{JobManager, RunningAttempt};
use crate::protocol::{Address, TheMaster, ToMaster, ToNode};
use crate::role::{Change, Outbox, Record};
use crate::scheduling::Allowed;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{AllowanceRequest, AttemptId, Duration, ExecutionType, Instant, Resources, Totals};
use crate::why::{Used, Why};
use serde::{Deserialize, Serialize};

/// The master gets a new report when the last one is off by more than one part in this number.
const REPORTED_WITHIN: u64 = 16;

/// A master that has not answered within this time is considered down.
const ANSWERED_WITHIN: Duration = Duration::from_millis(100);

/// Number of attempts, the oldest that could be promoted, from which one is chosen.
const LOOKS: usize = 32;
/// Duplicates of slow tasks may exceed the allowance by this percentage.
const BESIDE: u32 = 10;
/// Maximum weight of an attempt. A higher weight would not start few tasks much sooner, and would use up the allowance for
/// tasks that become ready later.
const MOST_WEIGHT: u64 = 16;
/// A wait up to this long counts as none.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Limits for the tasks of a job that are sent to nodes without a booking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllowanceRules {
    /// Percentage of the job's share that its opportunistic tasks may hold.
    pub opportunistic: u32,
    /// An opportunistic attempt that has waited for this long is promoted before new tasks are sent. Free allowance is kept
    /// for it until it suffices.
    pub starved_after: Duration,
    /// Also promote attempts that yield their CPU, or would start at once if guaranteed, before new tasks are sent: a stage
    /// ends with its last task.
    pub sent_first: bool,
}

/// Resources that sent tasks hold, or will hold once they start.
pub(super) struct Allowance {
    rules: AllowanceRules,
    guaranteed: Held,
    opportunistic: Held,
    /// Resources of opportunistic attempts, each multiplied by its weight while it waits. Limited by their part of the share.
    weighed: Totals,
    /// Opportunistic attempts: those that wait, by when they were sent; those that run, with or without their CPU, by when
    /// they started.
    waiting: ByAge,
    running: ByAge,
    yielding: ByAge,
    /// An attempt that has waited for too long and needs more than is free, which is kept for it.
    kept_for: Option<AttemptId>,
    /// Maximum for guaranteed tasks from the master's last message, and the number of this message; zero if the present
    /// master has sent none.
    most: Totals,
    number: u32,
    /// The last report to the present master, the number of reports, and the largest allowance since.
    reported: Option<Box<AllowanceRequest>>,
    reports: u32,
    most_since: Totals,
    /// When to stop waiting for the answer to the last report. Until then, no opportunistic tasks are sent: they may soon be
    /// guaranteed.
    pub(super) answer_due: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Held {
    attempts: u32,
    resources: Totals,
}

impl Allowance {
    pub(super) fn new(rules: AllowanceRules) -> Allowance {
        Allowance {
            rules,
            guaranteed: Held::default(),
            opportunistic: Held::default(),
            weighed: Totals::ZERO,
            waiting: ByAge::default(),
            running: ByAge::default(),
            yielding: ByAge::default(),
            kept_for: None,
            most: Totals::ZERO,
            number: 0,
            reported: None,
            reports: 0,
            most_since: Totals::ZERO,
            answer_due: None,
        }
    }

    fn held(&mut self, is_opportunistic: bool) -> &mut Held {
        if is_opportunistic { &mut self.opportunistic } else { &mut self.guaranteed }
    }

    pub(super) fn on_sent(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        let held = self.held(sent.holding().counts_as_opportunistic());
        held.attempts += 1;
        held.resources.add(resources);
        if sent.holding().counts_as_opportunistic() {
            self.weighed.add_times(resources, weight_now(sent));
            match sent.started_at {
                Some(since) => self.running.insert(sent.task.stage, (since, attempt)),
                None => self.waiting.insert(sent.task.stage, (sent.launched_at, attempt)),
            };
        }
    }

    /// An opportunistic attempt runs: nodes no longer draw it by its weight.
    pub(super) fn on_started(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        if let Some(since) = sent.started_at.filter(|_| sent.holding().counts_as_opportunistic()) {
            self.weighed.sub_times(resources, u64::from(sent.weight) - 1);
            self.waiting.remove(sent.task.stage, &(sent.launched_at, attempt));
            self.running.insert(sent.task.stage, (since, attempt));
        }
    }

    pub(super) fn on_gone(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        let held = self.held(sent.holding().counts_as_opportunistic());
        held.attempts -= 1;
        held.resources.sub(resources);
        if sent.holding().counts_as_opportunistic() {
            self.weighed.sub_times(resources, weight_now(sent));
            let stage = sent.task.stage;
            match sent.started_at {
                Some(since) => {
                    self.running.remove(stage, &(since, attempt)) || self.yielding.remove(stage, &(since, attempt))
                }
                None => self.waiting.remove(stage, &(sent.launched_at, attempt)),
            };
        }
    }

    /// A running attempt got its CPU back, or lost it.
    fn on_cpu(&mut self, attempt: AttemptId, stage: u32, since: Instant, has_cpu: bool) {
        let (from, to) =
            if has_cpu { (&mut self.yielding, &mut self.running) } else { (&mut self.running, &mut self.yielding) };
        if from.remove(stage, &(since, attempt)) {
            to.insert(stage, (since, attempt));
        }
    }

    /// Resources for more attempts. A job may always have one opportunistic attempt, however small its share: no job starves,
    /// and the rest of the cluster is used if there are more jobs than guaranteed tasks.
    fn allowed(&self, execution: ExecutionType, share: &Totals) -> Option<Allowed> {
        let (most, held, one_goes) = match execution {
            ExecutionType::Opportunistic if self.answer_due.is_some() => return None,
            ExecutionType::Opportunistic => {
                (share.hundredths(self.rules.opportunistic), &self.weighed, self.opportunistic.attempts == 0)
            }
            ExecutionType::Guaranteed | ExecutionType::Auto => (self.most, &self.guaranteed.resources, false),
        };
        Some(Allowed { execution, room: most.saturating_sub(held), one_goes })
    }

    /// Weight of a task in the nodes' random choice: how often the job's remaining tasks (`open`) fit into what the job may
    /// still send. Makes up for having fewer tasks than other jobs.
    fn weight(&self, share: &Totals, open: &Totals) -> u16 {
        let room = share.hundredths(self.rules.opportunistic).saturating_sub(&self.weighed);
        let wanted = (0..WIDTH).filter(|&kind| open.0[kind] > 0);
        let times = wanted.map(|kind| room.0[kind] / open.0[kind]).min().unwrap_or(1);
        times.clamp(1, MOST_WEIGHT) as u16
    }

    /// The same for duplicates of slow tasks, which may exceed the guaranteed allowance.
    fn allowed_beside(&self, execution: ExecutionType, share: &Totals) -> Totals {
        match execution {
            ExecutionType::Opportunistic => self.allowed(execution, share).map_or(Totals::ZERO, |allowed| allowed.room),
            ExecutionType::Guaranteed | ExecutionType::Auto if self.kept_for.is_some() => Totals::ZERO,
            ExecutionType::Guaranteed | ExecutionType::Auto => {
                self.most.hundredths(100 + BESIDE).saturating_sub(&self.guaranteed.resources)
            }
        }
    }

    /// A new master gets a new report. Until it answers, the last allowance applies.
    pub(super) fn restart(&mut self) {
        (self.number, self.reported, self.answer_due) = (0, None, None);
    }

    /// The job had ended and runs again.
    pub(super) fn rerun(&mut self) {
        self.most = Totals::ZERO;
        self.restart();
    }

    /// A report without the demand.
    fn request(&self) -> AllowanceRequest {
        AllowanceRequest {
            allowance: self.most,
            number: self.number,
            holds: self.guaranteed.resources,
            ..AllowanceRequest::default()
        }
    }

    /// The report is sent to the master.
    fn report(&mut self, now: Instant, request: &mut AllowanceRequest) {
        self.reports += 1;
        request.report = self.reports;
        (self.reported, self.most_since) = (Some(Box::new(*request)), self.most);
        self.answer_due = Some(now + ANSWERED_WITHIN);
    }

    /// Whether the master needs a new report. A job above its allowance also reports when it holds less.
    fn is_news(&self, request: &AllowanceRequest) -> bool {
        let Some(reported) = &self.reported else {
            return request.all != Totals::ZERO || request.may_hold() != Totals::ZERO;
        };
        let is_over = !reported.holds.fits_in(&self.most);
        is_off(&reported.all, &request.all)
            || reported.one != request.one
            || !self.most_since.fits_in(&self.most)
            || is_over && (request.holds.fits_in(&self.most) || is_off(&reported.holds, &request.holds))
    }
}

/// A running attempt counts once.
fn weight_now(sent: &RunningAttempt) -> u64 {
    if sent.started_at.is_some() { 1 } else { u64::from(sent.weight) }
}

fn is_off(reported: &Totals, now: &Totals) -> bool {
    (0..WIDTH).any(|kind| reported.0[kind].abs_diff(now.0[kind]).saturating_mul(REPORTED_WITHIN) > reported.0[kind])
}

impl JobManager {
    /// The master sets the maximum for guaranteed tasks.
    pub(super) fn on_allowance(&mut self, now: Instant, number: u32, answers: u32, most: &Totals, out: &mut Outbox) {
        let Some(allowance) = self.own.allowance_mut() else { return };
        if allowance.most != *most {
            out.record(Record::Allowed { job: self.job.id, most: Box::new(*most) });
        }
        (allowance.number, allowance.most) = (number, *most);
        allowance.answer_due = allowance.answer_due.filter(|_| answers != allowance.reports);
        allowance.most_since = allowance.most_since.larger_of(most);
        self.place(now, out);
    }

    /// How much may be sent of an execution type.
    pub(super) fn allowed(&self, execution: ExecutionType) -> Option<Allowed> {
        let share = self.master.share_or_nothing();
        self.own.allowance()?.allowed(execution, &share)
    }

    /// The weight of an opportunistic attempt of the stage that is about to be sent.
    pub(super) fn weight(&self, stage: u32) -> u16 {
        let Some(allowance) = self.own.allowance() else { return 1 };
        let mut open = Totals::ZERO;
        let stages = self.dag.stages.iter().zip(&self.job.spec.stages).zip(&self.job.resources);
        for ((stage, spec), resources) in stages {
            if spec.execution != ExecutionType::Guaranteed {
                open.add_times(resources, u64::from(stage.ready()));
            }
        }
        open.add(&self.job.resources[stage as usize]);
        allowance.weight(&self.master.share_or_nothing(), &open)
    }

    /// Resources for duplicates of slow attempts.
    pub(super) fn allowed_beside(&self, execution: ExecutionType) -> Option<Totals> {
        let share = self.master.share_or_nothing();
        self.own.allowance().map(|allowance| allowance.allowed_beside(execution, &share))
    }

    /// Promotes attempts that have waited for too long before new tasks are sent, the oldest first. False if the oldest needs
    /// more than is free, which is kept for it.
    pub(super) fn promote_starved(&mut self, now: Instant, out: &mut Outbox) -> bool {
        while let Some(attempt) = self.starved(now) {
            let Some(task) = self.attempts.get(&attempt).map(|sent| sent.task) else { break };
            let room = self.allowed(ExecutionType::Guaranteed).map_or(Totals::ZERO, |allowed| allowed.room);
            if room.holds(&self.job.resources[task.stage as usize]) == 0 {
                self.keep_room(Some(attempt));
                return false;
            }
            self.promote_here_or_elsewhere(now, attempt, self.wait_if_promoted(attempt), out);
        }
        self.keep_room(None);
        true
    }

    fn keep_room(&mut self, kept_for: Option<AttemptId>) {
        if let Some(allowance) = self.own.allowance_mut() {
            allowance.kept_for = kept_for;
        }
    }

    /// Promotes sent attempts that do not run and would if guaranteed, the oldest first.
    pub(super) fn promote_sent(&mut self, now: Instant, out: &mut Outbox) {
        while self.own.allowance().is_some_and(|allowance| allowance.rules.sent_first) && !self.lifecycle.is_stopping()
        {
            let next = self.allowed(ExecutionType::Guaranteed).and_then(|allowed| self.first_sent(&allowed.room));
            let Some(attempt) = next else { return };
            self.promote(now, attempt, Duration::ZERO, out);
        }
    }

    /// Only among attempts that fit into the room.
    fn first_sent(&self, room: &Totals) -> Option<AttemptId> {
        let allowance = self.own.allowance()?;
        let (yielding, waiting) =
            (self.promotable(&allowance.yielding, room), self.promotable(&allowance.waiting, room));
        let mut at_once = yielding.chain(waiting).filter(|(_, attempt)| self.wait_if_promoted(*attempt) <= AT_ONCE);
        let first = at_once.next()?;
        Some(at_once.fold(first, |first, one| first.min(one)).1)
    }

    /// The attempt's node reports that the attempt has its CPU, or has not.
    pub(super) fn on_yields(&mut self, from: Address, attempt: AttemptId, has_cpu: bool) {
        let Some(sent) = self.attempts.get(&attempt).filter(|sent| Address::Node(sent.node) == from) else { return };
        if let (Some(allowance), Some(since)) = (self.own.allowance_mut(), sent.started_at) {
            allowance.on_cpu(attempt, sent.task.stage, since, has_cpu);
        }
    }

    /// Promotes opportunistic attempts as far as the allowance permits: first those that would start at once, then running
    /// ones, then the one with the shortest wait, and last those that run without their CPU.
    pub(super) fn promote_within_allowance(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(allowed) = self.allowed(ExecutionType::Guaranteed).filter(|_| !self.lifecycle.is_stopping()) {
            let Some((attempt, wait)) = self.best_to_promote(&allowed.room) else { return };
            self.promote_here_or_elsewhere(now, attempt, wait, out);
        }
    }

    fn promote_here_or_elsewhere(&mut self, now: Instant, attempt: AttemptId, wait: Duration, out: &mut Outbox) {
        if wait <= AT_ONCE || !self.upgrade_elsewhere(now, attempt, wait, out) {
            self.promote(now, attempt, wait, out);
        }
    }

    /// The attempt is guaranteed from now on, and is expected to start after `wait`.
    fn promote(&mut self, now: Instant, attempt: AttemptId, wait: Duration, out: &mut Outbox) {
        self.take_promotion(attempt);
        self.attempts.expect_wait(now, attempt, wait);
        let Some(running) = self.attempts.get(&attempt) else { return };
        let (task, node) = (running.task, running.node);
        out.persist(Change::Promoted { attempt, task, node, grant: None, at: now });
        out.send(node, ToNode::Promote { attempt, grant: None });
    }

    fn starved(&self, now: Instant) -> Option<AttemptId> {
        let allowance = self.own.allowance().filter(|_| !self.lifecycle.is_stopping())?;
        // An attempt larger than the whole allowance does not keep others waiting.
        let (since, attempt) = self.promotable(&allowance.waiting, &allowance.most).next()?;
        (now.since(since) >= allowance.rules.starved_after).then_some(attempt)
    }

    /// Only among attempts that fit into the room.
    fn best_to_promote(&self, room: &Totals) -> Option<(AttemptId, Duration)> {
        let allowance = self.own.allowance()?;
        let waiting = self.promotable(&allowance.waiting, room);
        let waiting = waiting.map(|(_, attempt)| (attempt, self.wait_if_promoted(attempt)));
        let best = waiting.min_by_key(|best| best.1);
        let first = |those| self.promotable(those, room).next().map(|(_, attempt)| (attempt, Duration::ZERO));
        // An attempt without its CPU gets it back after other guaranteed work.
        let running = || first(&allowance.running);
        best.filter(|(_, wait)| *wait <= AT_ONCE).or_else(running).or(best).or_else(|| first(&allowance.yielding))
    }

    /// The oldest attempts that fit into the room and have no twin.
    fn promotable<'a>(&'a self, those: &'a ByAge, room: &'a Totals) -> impl Iterator<Item = (Instant, AttemptId)> + 'a {
        let fits = |stage| room.holds(&self.job.resources[stage as usize]) > 0;
        let is_alone = |attempt| self.attempts.get(&attempt).is_some_and(|sent| sent.twin.is_none());
        those.oldest(fits, is_alone).take(LOOKS)
    }

    fn wait_if_promoted(&self, attempt: AttemptId) -> Duration {
        let (Some(sent), Some(scheduler)) = (self.attempts.get(&attempt), &self.own.scheduler) else {
            return Duration::ZERO;
        };
        let ask = self.requests.ask_of(sent.task.stage, false);
        scheduler.wait(ask, sent.node, ExecutionType::Guaranteed)
    }

    /// The attempt is within the job's allowance from now on.
    pub(super) fn take_promotion(&mut self, attempt: AttemptId) {
        let Some(before) = self.attempts.promote(attempt) else { return };
        let resources = &self.job.resources[before.task.stage as usize];
        self.own.on_promoted(attempt, &before, &self.attempts[&attempt], resources);
    }

    /// Reports to the master what the job would hold if all its running and ready tasks ran, and what it holds.
    pub(super) fn request_allowance(&mut self, now: Instant, out: &mut Outbox) {
        let Some(allowance) = self.own.allowance_mut() else { return };
        allowance.answer_due = allowance.answer_due.filter(|due| *due > now);
        let mut request = allowance.request();
        self.add_demand(&mut request);
        let Some(entitled) = self.own.entitled_mut().filter(|entitled| entitled.allowance.is_news(&request)) else {
            return;
        };
        if entitled.reports_work && !self.master.work.is_reported() {
            let (job, asks, work) = (self.job.id, Vec::new(), self.master.work.report());
            out.send(TheMaster, ToMaster::Demand { job, asks, work });
        }
        entitled.allowance.report(now, &mut request);
        out.send(TheMaster, ToMaster::AllowanceRequest { job: self.job.id, request: Box::new(request) });
    }

    /// What all running and ready tasks would hold, and one of them.
    fn add_demand(&self, request: &mut AllowanceRequest) {
        let mut of_running = Resources::ZERO;
        for (number, (stage, resources)) in (0..).zip(self.dag.stages.iter().zip(&self.job.resources)) {
            let ask = self.requests.ask_of(number, false);
            // A stage that suits no node needs nothing.
            let waits = !self.lifecycle.is_held()
                && self.own.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_suited(ask));
            let ready = if waits { u64::from(stage.ready()) } else { 0 };
            request.all.add_times(resources, u64::from(stage.running) + ready);
            for (count, one) in [(ready, &mut request.one), (u64::from(stage.running), &mut of_running)] {
                if count > 0 && (one.is_zero() || resources.0 < one.0) {
                    *one = *resources;
                }
            }
        }
        if request.one.is_zero() {
            request.one = of_running;
        }
    }

    /// The allowance, if it keeps the next task from being sent.
    pub(super) fn allowance_that_binds(&self) -> Option<Why> {
        let (allowance, scheduler) = (self.own.allowance()?, self.own.scheduler.as_ref()?);
        if allowance.answer_due.is_some() {
            // A new allowance has just been requested.
            return None;
        }
        let waits = |stage: &u32| scheduler.is_suited(self.requests.ask_of(*stage, false));
        let next = self.dag.runnable().filter(|stage| self.dag.stage(*stage).ready() > 0).find(waits)?;
        let share = self.master.share_or_nothing().hundredths(allowance.rules.opportunistic);
        let kept_for = allowance.kept_for.and_then(|attempt| self.attempts.get(&attempt));
        let of_one = &self.job.resources[kept_for.map_or(next, |sent| sent.task.stage) as usize];
        let (held, most) = (&allowance.guaranteed.resources, &allowance.most);
        let kind = (0..WIDTH).find(|&kind| most.0[kind].saturating_sub(held.0[kind]) < u64::from(of_one.0[kind]))?;
        let used = |held: &Totals, most: &Totals| Used { used: held.0[kind], most: most.0[kind] };
        let (guaranteed, opportunistic) = (used(held, most), used(&allowance.weighed, &share));
        Some(Why::Allowance { kind, guaranteed, opportunistic })
    }

    /// In tests and debug builds.
    pub(super) fn check_allowance(&self) {
        let Some(allowance) = self.own.allowance() else { return };
        let (mut counted, mut weighed) = ([Held::default(); 2], Totals::ZERO);
        for running in self.attempts.values() {
            let held = &mut counted[usize::from(running.holding().counts_as_opportunistic())];
            held.attempts += 1;
            let resources = &self.job.resources[running.task.stage as usize];
            held.resources.add(resources);
            weighed.add_times(
                resources,
                if running.holding().counts_as_opportunistic() { weight_now(running) } else { 0 },
            );
        }
        assert_eq!(weighed, allowance.weighed, "resources of opportunistic tasks by weight");
        let opportunistic = allowance.waiting.len() + allowance.running.len() + allowance.yielding.len();
        assert_eq!(
            opportunistic, allowance.opportunistic.attempts as usize,
            "each opportunistic attempt waits or runs"
        );
        assert_eq!(
            counted,
            [allowance.guaranteed, allowance.opportunistic],
            "resources of guaranteed and opportunistic tasks"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, JobId};

    const CORE: Resources = Resources::new(1_000, 512);

    fn cores(cores: u64) -> Totals {
        let mut all = Totals::ZERO;
        all.add_times(&CORE, cores);
        all
    }

    #[test]
    fn weights_of_few_tasks_use_up_the_allowance() {
        let rules = AllowanceRules { opportunistic: 200, starved_after: Duration::ZERO, sent_first: false };
        let mut allowance = Allowance::new(rules);
        // The limit is twice this share.
        let share = cores(20);
        let mut sum = 0;
        for left in (1..=7).rev() {
            let weight = allowance.weight(&share, &cores(left));
            allowance.weighed.add_times(&CORE, u64::from(weight));
            sum += weight;
        }
        assert_eq!((sum, allowance.weighed), (40, cores(40)), "the whole limit");
        assert_eq!(allowance.weight(&share, &cores(1)), 1, "at least 1, with nothing left");
    }

    #[test]
    fn weights_are_limited_by_a_maximum_and_the_scarcest_resource() {
        let allowance =
            Allowance::new(AllowanceRules { opportunistic: 100, starved_after: Duration::ZERO, sent_first: false });
        let mut large = Totals::ZERO;
        large.add(&Resources::new(1_000, 2_560));
        assert_eq!(allowance.weight(&cores(12), &cores(1)), 12);
        assert_eq!(allowance.weight(&cores(1_000), &cores(1)), MOST_WEIGHT as u16);
        assert_eq!(allowance.weight(&cores(12), &large), 2, "limited by memory");
        assert_eq!(allowance.weight(&cores(12), &Totals::ZERO), 1, "no demand");
    }

    #[test]
    fn running_attempts_with_and_without_cpu_are_kept_apart() {
        let mut allowance =
            Allowance::new(AllowanceRules { opportunistic: 100, starved_after: Duration::ZERO, sent_first: false });
        let attempt = |number| AttemptId { job: JobId(1), epoch: Epoch(1), number };
        let (one, other) = ((Instant(5), attempt(1)), (Instant(7), attempt(2)));
        let all = |those: &ByAge| those.oldest(|stage| stage == 3, |_| true).collect::<Vec<_>>();
        [one, other].into_iter().for_each(|since| allowance.running.insert(3, since));
        allowance.on_cpu(one.1, 3, one.0, false);
        allowance.on_cpu(one.1, 3, one.0, false);
        assert_eq!((all(&allowance.running), all(&allowance.yielding)), (vec![other], vec![one]));
        allowance.on_cpu(one.1, 3, one.0, true);
        assert_eq!((all(&allowance.running), all(&allowance.yielding)), (vec![one, other], vec![]));
        allowance.on_cpu(attempt(3), 3, Instant(9), false);
        assert_eq!(allowance.yielding.len(), 0, "an unknown attempt");
    }
}
