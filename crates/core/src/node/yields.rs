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

#[derive(Default)]
pub(super) struct Yields {
    /// Number of attempts that yield, whether opportunistic or guaranteed by now.
    pub(super) attempts: u32,
    /// When the first of them has yielded for too long.
    pub(super) due: Option<Instant>,
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
        let is_any_yielding = self.running_attempts().any(|(_, entry)| entry.awaits_cpu());
        if !self.queue.lacks_guaranteed_room() && !is_any_yielding {
            self.start_next(now, out);
        }
    }

    /// The free resources if every attempt that may yield did so.
    fn free_if_all_yielded(&self) -> Resources {
        let running = self.room.has_opportunistic().then(|| self.running_attempts());
        let those = running.into_iter().flatten().filter(|(_, entry)| entry.may_yield());
        self.room.free_without(those.map(|(_, entry)| entry.cpu()))
    }

    /// Takes the guaranteed entry out of the queue that starts next if it gets the CPU of all attempts that may yield.
    /// Attempts that wait for their own CPU have priority.
    fn pick_as_if_all_yielded(&mut self, now: Instant) -> Option<QueuedEntry> {
        let mut free = self.free_if_all_yielded();
        let mut running = Vec::with_capacity(self.running.len());
        for (attempt, entry) in self.running_attempts() {
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
        for (id, entry) in self.running_attempts().rev().filter(|(_, entry)| entry.may_yield()) {
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
        let due = self.due.iter().find(|(_, other)| *other == id).copied();
        self.due.retain(|(_, other)| *other != id);
        let entry = self.attempts.get_mut(&id).expect("it runs");
        let (task, node, cpu, job) = (entry.task, self.node, entry.cpu(), id.job);
        let (before, timeout_left) = (entry.yielded_until.since(now), due.map(|(at, _)| at.since(now)));
        entry.yielding = Some(Yielding { since: now, before, timeout_left, by: Some(by) });
        self.room.on_yield(&cpu);
        out.record(Record::Yielding { task, attempt: id, node, by });
        out.send(TheExecutor(node), ToExecutor::Yield { attempt: id });
        out.send(job, ToJobManager::Yields { attempt: id, has_cpu: false });
        self.note_yields();
        self.waits.on_change(now);
    }

    fn resume(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        let entry = self.attempts.get_mut(&id).expect("it runs");
        let Yielding { since, before, timeout_left, .. } = entry.yielding.take().expect("it yields");
        entry.yielded_until = now + before + now.since(since);
        let (task, node, cpu, after) = (entry.task, self.node, entry.cpu(), now.since(since));
        entry.since += after;
        self.due.extend(timeout_left.map(|left| (now + left, id)));
        if let Some(running) = self.running.iter_mut().find(|one| one.attempt == id) {
            running.expected_end = running.expected_end.map(|end| end + after);
        }
        let is_opportunistic = entry.is_opportunistic();
        self.room.on_resume(&cpu, is_opportunistic);
        out.record(Record::Resumed { task, attempt: id, node, after });
        out.send(TheExecutor(node), ToExecutor::Resume { attempt: id });
        out.send(id.job, ToJobManager::Yields { attempt: id, has_cpu: true });
        self.note_yields();
        self.waits.on_change(now);
    }

    /// Attempts that became guaranteed while they yielded wait only for other guaranteed work.
    fn resume_promoted(&mut self, now: Instant, out: &mut Outbox) {
        while self.yields.attempts > 0 {
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
        while self.yields.attempts > 0 {
            let Some((id, cpu)) = self.first_yielding(Attempt::is_opportunistic) else { return };
            if cpu.cpu_millis() > self.room.free_for_resuming().cpu_millis() {
                return;
            }
            self.resume(now, id, out);
        }
    }

    /// The first of these attempts to start, with the CPU that it waits for.
    fn first_yielding(&self, is_one: impl Fn(&Attempt) -> bool) -> Option<(AttemptId, Resources)> {
        let mut those = self.running_attempts().filter(|(_, entry)| entry.awaits_cpu());
        those.find(|(_, entry)| is_one(entry)).map(|(id, entry)| (id, entry.cpu()))
    }

    /// Counts the attempts that yield, and finds when the first of them has yielded for too long.
    pub(super) fn note_yields(&mut self) {
        let yielding = || self.running_attempts().filter_map(|(_, entry)| Some((entry.yielding?, entry)));
        let those = || yielding().filter(|(_, entry)| entry.awaits_cpu());
        let ends = |longest| those().map(|(yielding, _)| yielding.is_for(longest)).min();
        self.yields = Yields { attempts: yielding().count() as u32, due: self.rules.yields_for.and_then(ends) };
    }

    /// Stops attempts that have yielded for too long, even if they were promoted meanwhile: their tasks may find CPU
    /// elsewhere.
    pub(super) fn end_overdue_yields(&mut self, now: Instant, out: &mut Outbox) {
        let Some(longest) = self.rules.yields_for else { return };
        let is_overdue =
            |entry: &Attempt| entry.awaits_cpu() && entry.yielding.is_some_and(|one| one.is_for(longest) <= now);
        let those = self.running_attempts().filter(|(_, entry)| is_overdue(entry));
        let those: Vec<AttemptId> = those.map(|(id, _)| id).collect();
        for id in those {
            let entry = &self.attempts[&id];
            let (task, node, by) = (entry.task, self.node, entry.yielding.and_then(|yielding| yielding.by));
            self.preempting.extend(by.map(|by| (id, by)));
            out.record(Record::Stopping { task, attempt: id, node, reason: EndReason::Preempted });
            self.on_stop(now, id, EndReason::Preempted, self.settings.stop_grace, out);
        }
        self.note_yields();
    }

    /// The rules do not allow yielding, but an earlier agent with other rules left attempts that yield. They continue
    /// as far as there is room, and the others are stopped.
    pub(super) fn end_yields_of_other_rules(&mut self, now: Instant, out: &mut Outbox) {
        if self.rules.yields_for.is_some() || self.yields.attempts == 0 {
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
        self.note_yields();
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
