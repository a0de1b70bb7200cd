//! A job manager that places all its tasks itself keeps to what its job is entitled to: as much as it is allowed is guaranteed,
//! and beyond that a part as large as its share, or several times as large, is opportunistic. It says what its job would hold
//! and does hold, and the master what that entitles it to and what of that it may have now.

use super::by_age::ByAge;
use super::{Holding, JobManager, RunningAttempt};
use crate::protocol::{Address, TheMaster, ToMaster, ToNode};
use crate::role::{Change, Outbox, Record};
use crate::scheduling::Allowed;
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{AttemptId, Duration, ExecutionType, Instant, Resources, Totals, Wants};
use crate::why::{Used, Why};
use serde::{Deserialize, Serialize};

/// What the master knows is off by one part in so many before it is told anew.
const TOLD_WITHIN: u64 = 16;

/// A master that has not answered for so long is away.
const ANSWERED_WITHIN: Duration = Duration::from_millis(100);

/// Of so many attempts that could be promoted, the oldest, one is chosen.
const LOOKS: usize = 32;
/// So many hundredths of what is allowed may be held beyond that by second attempts of slow tasks.
const BESIDE: u32 = 10;
/// An attempt weighs as much as so many at most: where there are few tasks, more would not make them start much sooner, and
/// what becomes ready later finds the allowance used up.
const MOST_WEIGHT: u64 = 16;
/// Nobody calls that waiting.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How much of a job may be sent to nodes without a booking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllowanceRules {
    /// Its opportunistic tasks may hold so many hundredths of the job's share.
    pub opportunistic: u32,
    /// An opportunistic attempt that has waited for so long gets what the job may hold next, before all that was not sent yet.
    /// What is free is kept for it until that is enough.
    pub starved_after: Duration,
    /// And one that yields its CPU, or waits where it would start at once if it were guaranteed, goes before it however short that
    /// was: a stage is over when its last task is, and not when most are.
    pub sent_first: bool,
}

/// What its tasks that were sent to nodes hold, or will once they start.
pub(super) struct Allowance {
    rules: AllowanceRules,
    guaranteed: Held,
    opportunistic: Held,
    /// What opportunistic attempts hold, each as often as it weighs while it waits: that is within what they may hold.
    weighed: Totals,
    /// Opportunistic attempts since they were sent, which wait as far as is known; and those that run, since then, with their
    /// CPU or without.
    waiting: ByAge,
    running: ByAge,
    yielding: ByAge,
    /// It has waited for too long, and needs more than is free: that is kept for it.
    kept_for: Option<AttemptId>,
    /// What its guaranteed tasks may hold together, as the master said last, and the number of that word; zero where the present
    /// master said nothing.
    most: Totals,
    number: u32,
    /// What the present master was told, and the most that was allowed since.
    told: Option<Box<Wants>>,
    said: u32,
    most_since: Totals,
    /// Until then an answer to what was told last is waited for: what may be guaranteed in a moment is not sent as opportunistic.
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
            told: None,
            said: 0,
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

    /// An opportunistic attempt runs since then, and nobody draws it any more.
    pub(super) fn on_started(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        if let Some(since) = sent.started_at.filter(|_| sent.holding().counts_as_opportunistic()) {
            self.weighed.take(resources, u64::from(sent.weight) - 1);
            self.waiting.remove(sent.task.stage, &(sent.launched_at, attempt));
            self.running.insert(sent.task.stage, (since, attempt));
        }
    }

    pub(super) fn on_gone(&mut self, attempt: AttemptId, sent: &RunningAttempt, resources: &Resources) {
        let held = self.held(sent.holding().counts_as_opportunistic());
        held.attempts -= 1;
        held.resources.sub(resources);
        if sent.holding().counts_as_opportunistic() {
            self.weighed.take(resources, weight_now(sent));
            let stage = sent.task.stage;
            match sent.started_at {
                Some(since) => {
                    self.running.remove(stage, &(since, attempt)) || self.yielding.remove(stage, &(since, attempt))
                }
                None => self.waiting.remove(stage, &(sent.launched_at, attempt)),
            };
        }
    }

    /// One of those that run has its CPU, or has not.
    fn on_cpu(&mut self, attempt: AttemptId, stage: u32, since: Instant, has_cpu: bool) {
        let (from, to) =
            if has_cpu { (&mut self.yielding, &mut self.running) } else { (&mut self.running, &mut self.yielding) };
        if from.remove(stage, &(since, attempt)) {
            to.insert(stage, (since, attempt));
        }
    }

    /// What may go beside what is out. A job may always have one opportunistic attempt out, however small its share: so none
    /// starves, and where there are more jobs than may have a guaranteed task the rest of the cluster is used.
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

    /// How much more likely a node is to draw a task than one of a job with many, where this one has only these left: as often
    /// as they go into what the job may still send.
    fn weight(&self, share: &Totals, open: &Totals) -> u16 {
        let room = share.hundredths(self.rules.opportunistic).saturating_sub(&self.weighed);
        let wanted = (0..WIDTH).filter(|&kind| open.0[kind] > 0);
        let times = wanted.map(|kind| room.0[kind] / open.0[kind]).min().unwrap_or(1);
        times.clamp(1, MOST_WEIGHT) as u16
    }

    /// The same for second attempts of slow tasks, which what may not be guaranteed of the cluster is for as well.
    fn allowed_beside(&self, execution: ExecutionType, share: &Totals) -> Totals {
        match execution {
            ExecutionType::Opportunistic => self.allowed(execution, share).map_or(Totals::ZERO, |allowed| allowed.room),
            ExecutionType::Guaranteed | ExecutionType::Auto if self.kept_for.is_some() => Totals::ZERO,
            ExecutionType::Guaranteed | ExecutionType::Auto => {
                self.most.hundredths(100 + BESIDE).saturating_sub(&self.guaranteed.resources)
            }
        }
    }

    /// A master that knows nothing of the job is told anew. Until it says otherwise, the last one's word holds.
    pub(super) fn restart(&mut self) {
        (self.number, self.told, self.answer_due) = (0, None, None);
    }

    /// The job had ended.
    pub(super) fn rerun(&mut self) {
        self.most = Totals::ZERO;
        self.restart();
    }

    /// What the master does not know and has use for: whoever holds more than it is allowed says so as it becomes less.
    fn is_news(&self, wants: &Wants) -> bool {
        let Some(told) = &self.told else { return wants.all != Totals::ZERO || wants.may_hold() != Totals::ZERO };
        let is_over = !told.holds.fits_in(&self.most);
        is_off(&told.all, &wants.all)
            || told.one != wants.one
            || !self.most_since.fits_in(&self.most)
            || is_over && (wants.holds.fits_in(&self.most) || is_off(&told.holds, &wants.holds))
    }
}

/// As one of them counts that runs.
fn weight_now(sent: &RunningAttempt) -> u64 {
    if sent.started_at.is_some() { 1 } else { u64::from(sent.weight) }
}

fn is_off(told: &Totals, now: &Totals) -> bool {
    (0..WIDTH).any(|kind| told.0[kind].abs_diff(now.0[kind]).saturating_mul(TOLD_WITHIN) > told.0[kind])
}

impl JobManager {
    /// The master says how much may be guaranteed.
    pub(super) fn on_allowance(&mut self, now: Instant, number: u32, answers: u32, most: &Totals, out: &mut Outbox) {
        let Some(allowance) = &mut self.allowance else { return };
        if allowance.most != *most {
            out.record(Record::Allowed { job: self.job.id, most: Box::new(*most) });
        }
        (allowance.number, allowance.most) = (number, *most);
        allowance.answer_due = allowance.answer_due.filter(|_| answers != allowance.said);
        allowance.most_since = allowance.most_since.larger_of(most);
        self.place(now, out);
    }

    /// How much of a kind may be sent.
    pub(super) fn allowed(&self, execution: ExecutionType) -> Option<Allowed> {
        let share = self.share.as_deref().copied().unwrap_or(Totals::ZERO);
        self.allowance.as_ref()?.allowed(execution, &share)
    }

    /// That of an opportunistic attempt of the stage, which is about to be sent.
    pub(super) fn weight(&self, stage: u32) -> u16 {
        let Some(allowance) = &self.allowance else { return 1 };
        let mut open = Totals::ZERO;
        let stages = self.dag.stages.iter().zip(&self.job.spec.stages).zip(&self.job.resources);
        for ((stage, spec), resources) in stages {
            if spec.execution != ExecutionType::Guaranteed {
                open.add_times(resources, u64::from(stage.ready()));
            }
        }
        open.add(&self.job.resources[stage as usize]);
        allowance.weight(&self.share.as_deref().copied().unwrap_or(Totals::ZERO), &open)
    }

    /// What may go beside a slow attempt.
    pub(super) fn allowed_beside(&self, execution: ExecutionType) -> Option<Totals> {
        let share = self.share.as_deref().copied().unwrap_or(Totals::ZERO);
        self.allowance.as_ref().map(|allowance| allowance.allowed_beside(execution, &share))
    }

    /// What has waited for too long goes before all that was not sent yet, the oldest first. False where the oldest needs more than
    /// is free: nothing else gets that.
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
        self.allowance.iter_mut().for_each(|allowance| allowance.kept_for = kept_for);
    }

    /// So does what was sent and does not run, the oldest first, where it would.
    pub(super) fn promote_sent(&mut self, now: Instant, out: &mut Outbox) {
        while self.allowance.as_ref().is_some_and(|allowance| allowance.rules.sent_first) && !self.stopping {
            let next = self.allowed(ExecutionType::Guaranteed).and_then(|allowed| self.first_sent(&allowed.room));
            let Some(attempt) = next else { return };
            self.promote(now, attempt, Duration::ZERO, out);
        }
    }

    /// Of what fits into the room.
    fn first_sent(&self, room: &Totals) -> Option<AttemptId> {
        let allowance = self.allowance.as_ref()?;
        let (yielding, waiting) =
            (self.promotable(&allowance.yielding, room), self.promotable(&allowance.waiting, room));
        let mut at_once = yielding.chain(waiting).filter(|(_, attempt)| self.wait_if_promoted(*attempt) <= AT_ONCE);
        let first = at_once.next()?;
        Some(at_once.fold(first, |first, one| first.min(one)).1)
    }

    /// The attempt's node says that it has its CPU, or has not.
    pub(super) fn on_yields(&mut self, from: Address, attempt: AttemptId, has_cpu: bool) {
        let Some(sent) = self.attempts.get(&attempt).filter(|sent| Address::Node(sent.node) == from) else { return };
        if let (Some(allowance), Some(since)) = (&mut self.allowance, sent.started_at) {
            allowance.on_cpu(attempt, sent.task.stage, since, has_cpu);
        }
    }

    /// Opportunistic attempts become guaranteed as far as the allowance goes, first what makes most of it: what waits where it would
    /// start at once, then what runs, then what would wait least, and what runs without its CPU last.
    pub(super) fn promote_within_allowance(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(allowed) = self.allowed(ExecutionType::Guaranteed).filter(|_| !self.stopping) {
            let Some((attempt, wait)) = self.best_to_promote(&allowed.room) else { return };
            self.promote_here_or_elsewhere(now, attempt, wait, out);
        }
    }

    fn promote_here_or_elsewhere(&mut self, now: Instant, attempt: AttemptId, wait: Duration, out: &mut Outbox) {
        if wait <= AT_ONCE || !self.upgrade_elsewhere(now, attempt, wait, out) {
            self.promote(now, attempt, wait, out);
        }
    }

    /// The attempt is guaranteed from now on, and is expected to start after so long.
    fn promote(&mut self, now: Instant, attempt: AttemptId, wait: Duration, out: &mut Outbox) {
        self.take_promotion(attempt);
        let Some(running) = self.attempts.get_mut(&attempt) else { return };
        running.expected_wait = now.since(running.launched_at) + wait;
        let (task, node) = (running.task, running.node);
        out.persist(Change::Promoted { attempt, task, node, grant: None, at: now });
        out.send(node, ToNode::Promote { attempt, grant: None });
    }

    fn starved(&self, now: Instant) -> Option<AttemptId> {
        let allowance = self.allowance.as_ref().filter(|_| !self.stopping)?;
        // What is larger than all that is allowed keeps nobody waiting.
        let (since, attempt) = self.promotable(&allowance.waiting, &allowance.most).next()?;
        (now.since(since) >= allowance.rules.starved_after).then_some(attempt)
    }

    /// Of what fits into the room.
    fn best_to_promote(&self, room: &Totals) -> Option<(AttemptId, Duration)> {
        let allowance = self.allowance.as_ref()?;
        let waiting = self.promotable(&allowance.waiting, room);
        let waiting = waiting.map(|(_, attempt)| (attempt, self.wait_if_promoted(attempt)));
        let best = waiting.min_by_key(|best| best.1);
        let first = |those| self.promotable(those, room).next().map(|(_, attempt)| (attempt, Duration::ZERO));
        // Who has no CPU gets it back after other guaranteed work.
        let running = || first(&allowance.running);
        best.filter(|(_, wait)| *wait <= AT_ONCE).or_else(running).or(best).or_else(|| first(&allowance.yielding))
    }

    /// The oldest of those for which the room is large enough, and of whose task there is no other attempt.
    fn promotable<'a>(&'a self, those: &'a ByAge, room: &'a Totals) -> impl Iterator<Item = (Instant, AttemptId)> + 'a {
        let fits = |stage| room.holds(&self.job.resources[stage as usize]) > 0;
        let is_alone = |attempt| self.attempts.get(&attempt).is_some_and(|sent| sent.twin.is_none());
        those.oldest(fits, is_alone).take(LOOKS)
    }

    fn wait_if_promoted(&self, attempt: AttemptId) -> Duration {
        let (Some(sent), Some(scheduler)) = (self.attempts.get(&attempt), &self.scheduler) else {
            return Duration::ZERO;
        };
        let ask = self.requests.ask_of(sent.task.stage, false);
        scheduler.wait(ask, sent.node, ExecutionType::Guaranteed)
    }

    /// The attempt is within what the job is entitled to from now on.
    pub(super) fn take_promotion(&mut self, attempt: AttemptId) {
        let Some(running) =
            self.attempts.get_mut(&attempt).filter(|running| running.holding() == Holding::Opportunistic)
        else {
            return;
        };
        if let Some(allowance) = &mut self.allowance {
            let resources = &self.job.resources[running.task.stage as usize];
            allowance.on_gone(attempt, running, resources);
            running.promote();
            allowance.on_sent(attempt, running, resources);
        }
        if running.started_at.is_none() {
            self.corrections.on_sent(attempt, running);
        }
    }

    /// Tells the master what the job would hold if all of it ran that runs or could, and what it holds.
    pub(super) fn tell_wants(&mut self, now: Instant, out: &mut Outbox) {
        let Some(allowance) = &mut self.allowance else { return };
        allowance.answer_due = allowance.answer_due.filter(|due| *due > now);
        let Allowance { most, number, .. } = **allowance;
        let mut wants = Wants { allowance: most, number, holds: allowance.guaranteed.resources, ..Wants::default() };
        let mut of_running = Resources::ZERO;
        for (number, (stage, resources)) in (0..).zip(self.dag.stages.iter().zip(&self.job.resources)) {
            let ask = self.requests.ask_of(number, false);
            // What no node suits has no use for anything.
            let waits = !self.held && self.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_suited(ask));
            let ready = if waits { u64::from(stage.ready()) } else { 0 };
            wants.all.add_times(resources, u64::from(stage.running) + ready);
            for (count, one) in [(ready, &mut wants.one), (u64::from(stage.running), &mut of_running)] {
                if count > 0 && (one.is_zero() || resources.0 < one.0) {
                    *one = *resources;
                }
            }
        }
        if wants.one.is_zero() {
            wants.one = of_running;
        }
        if allowance.is_news(&wants) {
            if self.tells_work && !self.work.is_told() {
                let (job, asks, work) = (self.job.id, Vec::new(), self.work.tell());
                out.send(TheMaster, ToMaster::Demand { job, asks, work });
            }
            allowance.said += 1;
            wants.said = allowance.said;
            out.send(TheMaster, ToMaster::Wants { job: self.job.id, wants: Box::new(wants) });
            (allowance.told, allowance.most_since) = (Some(Box::new(wants)), most);
            allowance.answer_due = Some(now + ANSWERED_WITHIN);
        }
    }

    /// What keeps the next task from being sent, where that is what the job may hold.
    pub(super) fn allowance_that_binds(&self) -> Option<Why> {
        let (allowance, scheduler) = (self.allowance.as_ref()?, self.scheduler.as_ref()?);
        if allowance.answer_due.is_some() {
            // What it may hold is asked for just now.
            return None;
        }
        let waits = |stage: &u32| scheduler.is_suited(self.requests.ask_of(*stage, false));
        let next = self.dag.runnable().filter(|stage| self.dag.stage(*stage).ready() > 0).find(waits)?;
        let share = self.share.as_deref().copied().unwrap_or(Totals::ZERO).hundredths(allowance.rules.opportunistic);
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
        let Some(allowance) = &self.allowance else { return };
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
        assert_eq!(weighed, allowance.weighed, "what opportunistic tasks hold by their weights");
        let opportunistic = allowance.waiting.len() + allowance.running.len() + allowance.yielding.len();
        assert_eq!(opportunistic, allowance.opportunistic.attempts as usize, "each of them waits or runs");
        assert_eq!(
            counted,
            [allowance.guaranteed, allowance.opportunistic],
            "what guaranteed and opportunistic tasks hold"
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
    fn few_tasks_weigh_as_much_together_as_the_allowance_has_room_for() {
        let rules = AllowanceRules { opportunistic: 200, starved_after: Duration::ZERO, sent_first: false };
        let mut allowance = Allowance::new(rules);
        // Twice this share.
        let share = cores(20);
        let mut sum = 0;
        for left in (1..=7).rev() {
            let weight = allowance.weight(&share, &cores(left));
            allowance.weighed.add_times(&CORE, u64::from(weight));
            sum += weight;
        }
        assert_eq!((sum, allowance.weighed), (40, cores(40)), "all of it");
        assert_eq!(allowance.weight(&share, &cores(1)), 1, "nothing is left, and it weighs something");
    }

    #[test]
    fn no_task_weighs_more_than_is_settled_and_the_scarcest_kind_decides() {
        let allowance =
            Allowance::new(AllowanceRules { opportunistic: 100, starved_after: Duration::ZERO, sent_first: false });
        let mut large = Totals::ZERO;
        large.add(&Resources::new(1_000, 2_560));
        assert_eq!(allowance.weight(&cores(12), &cores(1)), 12);
        assert_eq!(allowance.weight(&cores(1_000), &cores(1)), MOST_WEIGHT as u16);
        assert_eq!(allowance.weight(&cores(12), &large), 2, "twice its memory");
        assert_eq!(allowance.weight(&cores(12), &Totals::ZERO), 1, "what wants nothing");
    }

    #[test]
    fn who_runs_without_its_cpu_is_told_from_who_has_it() {
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
        assert_eq!(allowance.yielding.len(), 0, "one that is not known");
    }
}
