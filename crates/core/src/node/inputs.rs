//! The input files of a node's attempts: attempts wait for them, and hold them while they run.

use super::files::Effects;
use super::{NodeAgent, State};
use crate::protocol::{TheExecutor, ToExecutor};
use crate::role::{Outbox, Record};
use crate::scheduling::Lack;
use crate::vocabulary::{AttemptId, Digest, Ended, Fetched, InputFile, Instant, JobId, NodeId, StoredFile, TaskId};
use std::sync::Arc;

impl NodeAgent {
    /// A task arrived that reads files. Until they are here, the queue passes over it.
    pub(super) fn gather(&mut self, now: Instant, id: AttemptId, inputs: &Arc<[InputFile]>, out: &mut Outbox) {
        if inputs.is_empty() {
            return;
        }
        self.queue.hold(id, Lack::Files);
        let is_opportunistic = self.attempts[&id].is_opportunistic();
        let others = if self.queue.lacks(id, Lack::Others) { self.others_of_gang(id) } else { Vec::new() };
        self.files.add_reader(self.node, id, Arc::clone(inputs), is_opportunistic, &others);
        self.follow_files(now, out);
        if self.files.is_any_lacking() {
            self.attempts.on_lacking_files(now);
        }
    }

    /// The attempts of other tasks here that wait for the others of the same gang.
    fn others_of_gang(&self, id: AttemptId) -> Vec<AttemptId> {
        let own = self.attempts[&id].task;
        let waiting = self.attempts.iter().filter(|(other, _)| self.queue.lacks(*other, Lack::Others));
        let is_other = |task: TaskId| (task.job, task.stage) == (own.job, own.stage) && task != own;
        waiting.filter(|(_, other)| is_other(other.task)).map(|(id, _)| id).collect()
    }

    pub(super) fn on_fetched(&mut self, now: Instant, end: (Digest, NodeId, Fetched), out: &mut Outbox) {
        self.files.on_fetched(now, self.node, end);
        self.follow_files(now, out);
    }

    pub(super) fn on_holder(&mut self, now: Instant, digest: Digest, holder: NodeId, out: &mut Outbox) {
        self.files.on_holder(self.node, digest, holder);
        self.follow_files(now, out);
    }

    /// The executor has reported everything. One without files sends no list of them.
    pub(super) fn end_list(&mut self, now: Instant, out: &mut Outbox) {
        if self.files.awaits_list() {
            self.on_stored(now, Vec::new(), out);
        }
    }

    /// The files that the executor has.
    pub(super) fn on_stored(&mut self, now: Instant, stored: Vec<StoredFile>, out: &mut Outbox) {
        let attempts = &self.attempts;
        self.files.on_listed(self.node, stored, |id| !attempts.is_queued(&id));
        self.follow_files(now, out);
    }

    pub(super) fn fetch_again(&mut self, now: Instant, out: &mut Outbox) {
        self.files.ask_again(self.node);
        self.follow_files(now, out);
    }

    pub(super) fn retry_fetches(&mut self, now: Instant, out: &mut Outbox) {
        if self.files.next_retry().is_some_and(|at| at <= now) {
            self.files.retry(now, self.node);
            self.follow_files(now, out);
        }
    }

    /// An attempt ended: it reads no files any more.
    pub(super) fn release_files(&mut self, now: Instant, id: AttemptId, ended: &Ended, out: &mut Outbox) {
        if !self.files.concerns(id, ended) {
            return;
        }
        let attempts = &self.attempts;
        // Files that an attempt stored before it failed are not needed by any task.
        let are_read = attempts.get(&id).is_some_and(|entry| !entry.template.keeps_outputs);
        let are_read = are_read && ended.reason.is_success();
        self.files.on_end(self.node, id, ended, are_read, |id| !attempts.is_queued(&id));
        self.follow_files(now, out);
    }

    /// Drops the files that only this job has stored or read.
    pub(super) fn forget_files_of(&mut self, now: Instant, job: JobId, out: &mut Outbox) {
        self.files.forget_job(job);
        self.follow_files(now, out);
    }

    /// An opportunistic attempt became guaranteed.
    pub(super) fn guarantee_files(&mut self, now: Instant, id: AttemptId, out: &mut Outbox) {
        self.files.guarantee(self.node, id);
        self.follow_files(now, out);
    }

    /// Opportunistic readers that wait return to the line if guaranteed ones lack their room, the newest first. If that
    /// is not enough, those that run are preempted, as when memory is lacking.
    fn make_cache_room(&mut self, now: Instant, out: &mut Outbox) {
        if !self.files.lacks_guaranteed_room() {
            return;
        }
        let (mut leaving, mut waiting, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for (id, came) in self.files.opportunistic_with_room() {
            match self.attempts.get(&id).map(|entry| &entry.state) {
                Some(State::Queued(_)) => waiting.push((came, id)),
                Some(State::Starting | State::Running) => running.push((self.attempts[&id].since, id)),
                _ => leaving.push(id),
            }
        }
        waiting.sort_unstable();
        running.sort_unstable();
        let waiting = waiting.into_iter().rev().map(|(_, id)| id);
        let others: Vec<AttemptId> = waiting.chain(running.into_iter().rev().map(|(_, id)| id)).collect();
        let Some((by, those)) = self.files.in_the_way(&leaving, &others) else { return };
        for id in those {
            if self.attempts.is_queued(&id) {
                self.files.send_back(id);
                continue;
            }
            self.preempt(now, id, by, out);
        }
        self.files.admit(self.node);
    }

    /// Checks that no guaranteed reader lacks room that opportunistic ones have, unless these are about to leave it.
    pub(super) fn check_cache_room(&self) {
        self.files.check_room(|id| {
            let entry = self.attempts.get(&id);
            entry.is_some_and(|entry| matches!(entry.state, State::Queued(_) | State::Starting | State::Running))
        });
    }

    fn follow_files(&mut self, now: Instant, out: &mut Outbox) {
        self.make_cache_room(now, out);
        let Effects { ask, drop, arrived, held, failed } = self.files.take_effects(now);
        let node = self.node;
        held.into_iter().for_each(|id| self.queue.hold(id, Lack::Files));
        if !drop.is_empty() {
            out.send(TheExecutor(node), ToExecutor::Drop { node, files: drop });
        }
        for (file, from) in ask {
            out.send(TheExecutor(node), ToExecutor::Fetch { node, file, from });
        }
        for (id, ended) in failed {
            self.queue.remove(id);
            if self.attempts.is_queued(&id) {
                self.finish(now, id, ended, out);
            }
        }
        if arrived.is_empty() {
            return;
        }
        for &id in &arrived {
            self.queue.release(id, Lack::Files);
            self.report_in_place(id, out);
            if let Some(entry) = self.attempts.get(&id) {
                out.record(Record::FilesArrived { task: entry.task, attempt: id, node });
            }
        }
        self.start_what_fits(now, out);
        let waits = |id: &&AttemptId| {
            let entry = self.attempts.get(id);
            entry.is_some_and(|entry| entry.grant.is_some() && matches!(entry.state, State::Queued(_)))
        };
        if let Some(&last) = arrived.iter().rfind(waits) {
            self.make_room(now, last, out);
        }
    }
}
