//! If guaranteed work lacks only CPU, opportunistic attempts yield theirs and are not stopped. They keep their other
//! resources, and continue at a lower priority with the CPU that is left (Boutin et al. 2014: Apollo, section 3.5).
//!
//! The CPU is assigned in this order: to attempts that became guaranteed while they yielded, and others yield for them;
//! to guaranteed work that starts; to attempts that yield, in the order of their start; and last to new opportunistic
//! work. An attempt that has yielded for too long is stopped, so that its task can run elsewhere; time for which it has
//! run in between is subtracted.
//!
//! The clock of an attempt stops while it yields: neither its timeout nor its expected run time includes that time.

use super::{Attempt, NodeAgent, State};
use crate::protocol::{TheExecutor, ToExecutor, ToJobManager};
use crate::role::{Outbox, Record};
use crate::vocabulary::resources::CPU;
use crate::vocabulary::{AttemptId, Duration, EndReason, EntryId, Instant, QueuedEntry, Resources};

/// The rule for yielding, and the attempts that yield now.
pub(super) struct Yields {
    /// For how long an attempt yields at most; `None`: attempts are stopped.
    longest: Option<Duration>,
    /// Number of attempts that yield, whether opportunistic or guaranteed by now.
    attempts: usize,
    /// When the first of them has yielded for too long.
    due: Option<Instant>,
}

impl Yields {
    pub(super) fn for_at_most(longest: Option<Duration>) -> Yields {
        Yields { longest, attempts: 0, due: None }
    }

    pub(super) fn are_allowed(&self) -> bool {
        self.longest.is_some()
    }

    pub(super) fn is_any(&self) -> bool {
        self.attempts > 0
    }

    pub(super) fn count(&self) -> usize {
        self.attempts
    }

    /// The attempts at the executor, or their yields, are others than before.
    pub(super) fn note<'a>(&mut self, at_executor: impl Iterator<Item = &'a Attempt>) {
        (self.attempts, self.due) = (0, None);
        for entry in at_executor {
            let Some(yielding) = entry.yielding else { continue };
            self.attempts += 1;
            let end = self.longest.filter(|_| entry.awaits_cpu()).map(|longest| yielding.is_for(longest));
            self.due = self.due.into_iter().chain(end).min();
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|at| at <= now)
    }

    /// Whether the attempt has yielded for too long.
    pub(super) fn is_overdue(&self, now: Instant, entry: &Attempt) -> bool {
        let has_ended = |yielding: Yielding| self.longest.is_some_and(|longest| yielding.is_for(longest) <= now);
        entry.awaits_cpu() && entry.yielding.is_some_and(has_ended)
    }
}

/// An attempt that holds all its resources but its CPU.
#[derive(Clone, Copy)]
pub(super) struct Yielding {
    pub(super) since: Instant,
    /// For how long it had yielded before, less the time that it has run since.
    pub(super) before: Duration,
    /// The rest of its timeout, which does not pass while it yields.
    pub(super) timeout_left: Option<Duration>,
    /// The attempt for which it yields. Not known if it yielded before this agent started.
    pub(super) by: Option<AttemptId>,
}

impl Yielding {
    /// When it has yielded for `length`.
    fn is_for(&self, length: Duration) -> Instant {
        self.since + Duration(length.0.saturating_sub(self.before.0))
    }
}

impl Attempt {
    /// Its resources that are not available to others.
    pub(super) fn holds(&self) -> Resources {
        if self.yielding.is_some() { self.template.shape.resources.with(CPU, 0) } else { self.template.shape.resources }
    }

    pub(super) fn cpu(&self) -> Resources {
        cpu_of(&self.template.shape.resources)
    }

    /// It continues as soon as it has its CPU.
    pub(super) fn awaits_cpu(&self) -> bool {
        self.yielding.is_some() && matches!(self.state, State::Starting | State::Running)
    }

    fn may_yield(&self) -> bool {
        self.is_preemptible() && self.yielding.is_none() && self.cpu().cpu_millis() > 0
    }

    /// For how long it has had its CPU.
    pub(super) fn running_for(&self, now: Instant) -> Duration {
        self.yielding.map_or(now, |yielding| yielding.since).since(self.since)
    }
}

fn cpu_of(resources: &Resources) -> Resources {
    Resources::new(resources.cpu_millis(), 0)
}

impl NodeAgent {
    /// Assigns the CPU in the order that the module describes.
    pub(super) fn start_and_resume(&mut self, now: Instant, out: &mut Outbox) {
        if !self.executor.is_known() {
            return;
        }
        self.resume_promoted(now, out);
        while self.queue.lacks_guaranteed_room()
            && let Some(entry) = self.pick_as_if_all_yielded(now)
        {
            match entry.id {
                EntryId::Attempt(attempt) => {
                    self.take_cpu(now, &cpu_of(&entry.shape.resources), attempt, out);
                    self.start(now, attempt, out);
                }
                EntryId::Probe(probe) => self.ask_back(probe, entry.shape.resources, out),
            }
        }
        self.resume_opportunistic(now, out);
        let is_any_yielding = self.attempts.running().any(|(_, entry)| entry.awaits_cpu());
        if !self.queue.lacks_guaranteed_room() && !is_any_yielding {
            self.start_next(now, out);
        }
    }

    /// The free resources if every attempt that may yield did so.
    fn free_if_all_yielded(&self) -> Resources {
        let running = self.room.has_opportunistic().then(|| self.attempts.running());
        let those = running.into_iter().flatten().filter(|(_, entry)| entry.may_yield());
        self.room.free_without(those.map(|(_, entry)| entry.cpu()))
    }

    /// Takes the guaranteed entry out of the queue that starts next if it gets the CPU of all attempts that may yield.
    /// Attempts that wait for their own CPU have priority.
    fn pick_as_if_all_yielded(&mut self, now: Instant) -> Option<QueuedEntry> {
        let mut free = self.free_if_all_yielded();
        let mut running = Vec::with_capacity(self.attempts.running_count());
        for (attempt, entry) in self.attempts.running() {
            let mut one = entry.as_running(now, attempt);
            match entry.is_opportunistic() {
                true if entry.may_yield() || entry.yielding.is_some() => one.resources = one.resources.with(CPU, 0),
                false if entry.yielding.is_some() => free = free.saturating_sub(&entry.cpu()),
                _ => {}
            }
            running.push(one);
        }
        self.queue.pick(now, &mut running.into_iter(), &free, Resources::ZERO)
    }

    /// Has opportunistic attempts yield until `wanted` is free: the newest first, since they lose least, and no more
    /// than needed.
    fn take_cpu(&mut self, now: Instant, wanted: &Resources, by: AttemptId, out: &mut Outbox) {
        let mut coming = self.room.free().cpu_millis();
        let mut those = Vec::new();
        for (id, entry) in self.attempts.running().rev().filter(|(_, entry)| entry.may_yield()) {
            if wanted.cpu_millis() <= coming {
                break;
            }
            coming += entry.cpu().cpu_millis();
            those.push((id, entry.cpu().cpu_millis()));
        }
        // Some of them may not be needed after later ones were added.
        for at in (0..those.len()).rev() {
            if wanted.cpu_millis() <= coming - those[at].1 {
                coming -= those.remove(at).1;
            }
        }
        for (id, _) in those {
            self.have_yield(now, id, by, out);
        }
    }

    fn have_yield(&mut self, now: Instant, id: AttemptId, by: AttemptId, out: &mut Outbox) {
        self.attempts.on_yield(now, id, by);
        let entry = &self.attempts[&id];
        let (task, node, cpu, job) = (entry.task, self.node, entry.cpu(), id.job);
        self.room.on_yield(&cpu);
        out.record(Record::Yielding { task, attempt: id, node, by });
        out.send(TheExecutor(node), ToExecutor::Yield { attempt: id });
        out.send(job, ToJobManager::Yields { attempt: id, has_cpu: false });
        self.waits.on_change(now);
    }

    fn resume(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let after = self.attempts.on_resume(now, id);
        let entry = &self.attempts[&id];
        let (task, node) = (entry.task, self.node);
        self.room.on_resume(&entry.cpu(), entry.is_opportunistic());
        out.record(Record::Resumed { task, attempt: id, node, after });
        out.send(TheExecutor(node), ToExecutor::Resume { attempt: id });
        out.send(id.job, ToJobManager::Yields { attempt: id, has_cpu: true });
        self.waits.on_change(now);
    }

    /// Attempts that became guaranteed while they yielded wait only for other guaranteed work.
    fn resume_promoted(&mut self, now: Instant, out: &mut Outbox) {
        while self.attempts.is_any_yielding() {
            let Some((id, cpu)) = self.first_yielding(|entry| !entry.is_opportunistic()) else { return };
            if cpu.cpu_millis() > self.free_if_all_yielded().cpu_millis() {
                return;
            }
            self.take_cpu(now, &cpu, id, out);
            self.resume(now, id, out);
        }
    }

    /// No guaranteed work can start now. If some can later, they yield again.
    fn resume_opportunistic(&mut self, now: Instant, out: &mut Outbox) {
        while self.attempts.is_any_yielding() {
            let Some((id, cpu)) = self.first_yielding(Attempt::is_opportunistic) else { return };
            if cpu.cpu_millis() > self.room.free_for_resuming().cpu_millis() {
                return;
            }
            self.resume(now, id, out);
        }
    }

    /// The first of these attempts to start, with the CPU that it waits for.
    fn first_yielding(&self, is_one: impl Fn(&Attempt) -> bool) -> Option<(AttemptId, Resources)> {
        let mut those = self.attempts.running().filter(|(_, entry)| entry.awaits_cpu());
        those.find(|(_, entry)| is_one(entry)).map(|(id, entry)| (id, entry.cpu()))
    }

    /// Stops attempts that have yielded for too long, even if they were promoted meanwhile: their tasks may find CPU
    /// elsewhere.
    pub(super) fn end_overdue_yields(&mut self, now: Instant, out: &mut Outbox) {
        for (id, by) in self.attempts.overdue_yields(now) {
            if let Some(by) = by {
                self.attempts.on_preempted(id, by);
            }
            let (task, node) = (self.attempts[&id].task, self.node);
            out.record(Record::Stopping { task, attempt: id, node, reason: EndReason::Preempted });
            self.on_stop(now, id, EndReason::Preempted, self.settings.stop_grace, out);
        }
        self.attempts.note_yields();
    }

    /// The rules do not allow yielding, but an earlier agent with other rules left attempts that yield. They continue
    /// as far as there is room, and the others are stopped.
    pub(super) fn end_yields_of_other_rules(&mut self, now: Instant, out: &mut Outbox) {
        if self.attempts.may_yield() || !self.attempts.is_any_yielding() {
            return;
        }
        while let Some((id, cpu)) = self.first_yielding(|_| true) {
            if cpu.fits_in(self.room.free()) {
                self.resume(now, id, out);
            } else {
                out.record(Record::Stopping {
                    task: self.attempts[&id].task,
                    attempt: id,
                    node: self.node,
                    reason: EndReason::Preempted,
                });
                self.on_stop(now, id, EndReason::Preempted, self.settings.stop_grace, out);
            }
        }
        self.attempts.note_yields();
    }

    /// Messages that were sent while the connection to the executor was down are lost.
    pub(super) fn resend_yield(&self, id: AttemptId, does_yield: bool, out: &mut Outbox) {
        let is_to_yield = self.attempts[&id].yielding.is_some();
        if is_to_yield != does_yield {
            let order =
                if is_to_yield { ToExecutor::Yield { attempt: id } } else { ToExecutor::Resume { attempt: id } };
            out.send(TheExecutor(self.node), order);
        }
    }
}
