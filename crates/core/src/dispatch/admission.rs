//! Which jobs there are, and where each is in its life: it waits for its turn (held, after other jobs, queue full), has a job
//! manager, has ended.

use super::JobEnd;
use super::history::History;
use crate::policy::Trust;
use crate::policy::inter_job::QueueTree;
use crate::protocol::{AdmittedJob, JobOutcome, Wishes};
use crate::role::{Change, Outbox};
use crate::vocabulary::{Chosen, Instant, JobId, QueueId, TaskAction, TaskWishes, UserId};
use crate::why::Why;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) struct Admission {
    pub(super) queues: QueueTree,
    pub(super) jobs: BTreeMap<JobId, JobEntry>,
    pub(super) next_job: u64,
    pub(super) users: BTreeMap<String, UserId>,
    /// In users' estimates; in all that are not here. It does not outlive the master.
    pub(super) trust: BTreeMap<UserId, Trust>,
    pub(super) history: History,
    /// By user and the user's own key.
    pub(super) by_key: BTreeMap<(String, String), JobId>,
    /// In the order of their ends.
    pub(super) ended: BTreeSet<(Instant, JobId)>,
    /// How many pending jobs wait for this one.
    pub(super) awaited: BTreeMap<JobId, u32>,
    /// Jobs that have begun and not ended, and that are pending, per queue.
    pub(super) counts: BTreeMap<QueueId, (u32, u32)>,
    /// Jobs that have not ended.
    pub(super) unended: BTreeSet<JobId>,
    /// Those of them without a job manager.
    pub(super) pending: BTreeSet<JobId>,
}

pub(super) struct JobEntry {
    pub(super) job: Arc<AdmittedJob>,
    pub(super) queue: QueueId,
    pub(super) key: Option<String>,
    pub(super) held: bool,
    /// The jobs that it came after had succeeded: they may be forgotten since.
    pub(super) has_begun: bool,
    /// How often it was opened again, to run what had failed.
    pub(super) run: u32,
    /// A user wants this run of it to end.
    pub(super) is_cancelled: bool,
    /// What users want of single tasks of it.
    pub(super) tasks: Arc<TaskWishes>,
    /// What its estimates say of its user is known.
    pub(super) judged: bool,
    /// It ended without its manager.
    pub(super) is_abandoned: bool,
    pub(super) state: JobState,
}

/// Where a job is in its life, as the master sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobState {
    /// Admitted, without a job manager yet.
    Pending,
    /// Its job manager has it; whether anything runs, that one knows.
    Begun,
    Ended(JobEnd),
}

impl JobEntry {
    pub(super) fn wishes(&self) -> Wishes {
        Wishes { held: self.held, cancelled: self.is_cancelled, run: self.run, tasks: Arc::clone(&self.tasks) }
    }
}

impl Admission {
    pub(super) fn new(queues: QueueTree) -> Admission {
        Admission {
            queues,
            jobs: BTreeMap::new(),
            next_job: 1,
            users: BTreeMap::new(),
            trust: BTreeMap::new(),
            history: History::default(),
            by_key: BTreeMap::new(),
            ended: Default::default(),
            awaited: BTreeMap::new(),
            counts: BTreeMap::new(),
            unended: Default::default(),
            pending: Default::default(),
        }
    }

    pub(super) fn queues(&self) -> &QueueTree {
        &self.queues
    }

    pub(super) fn job(&self, job: JobId) -> Option<(&Arc<AdmittedJob>, &JobState)> {
        self.jobs.get(&job).map(|entry| (&entry.job, &entry.state))
    }

    pub(super) fn queue_of(&self, job: JobId) -> Option<QueueId> {
        self.jobs.get(&job).map(|entry| entry.queue)
    }

    pub(super) fn jobs_from(&self, from: JobId) -> impl DoubleEndedIterator<Item = (&Arc<AdmittedJob>, &JobState)> {
        self.jobs.range(from..).map(|(_, entry)| (&entry.job, &entry.state))
    }

    pub(super) fn is_running(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|entry| entry.state == JobState::Begun)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (&Arc<AdmittedJob>, QueueId)> {
        let entries = self.unended.iter().filter_map(|id| self.jobs.get(id));
        entries.filter(|entry| entry.state == JobState::Begun).map(|entry| (&entry.job, entry.queue))
    }

    /// Begun and not begun jobs of a queue.
    pub(super) fn count_jobs(&self, queue: QueueId) -> (u32, u32) {
        self.counts.get(&queue).copied().unwrap_or_default()
    }

    /// What keeps a job from getting its job manager; `None` once it has one, or for an unknown job.
    pub(super) fn why_not_begun(&self, job: JobId) -> Option<Why> {
        let entry = self.jobs.get(&job)?;
        if entry.held && !matches!(entry.state, JobState::Ended(_)) {
            return Some(Why::Held);
        }
        if entry.state != JobState::Pending {
            return None;
        }
        let open = |id: &JobId| !entry.has_begun && self.outcome(*id) != Some(JobOutcome::Succeeded);
        let jobs: Vec<JobId> = entry.job.spec.after_jobs.iter().copied().filter(open).collect();
        if !jobs.is_empty() {
            return Some(Why::AfterJobs { jobs });
        }
        let limit = self.queues.spec(entry.queue).max_running_jobs?;
        (self.count_jobs(entry.queue).0 >= limit)
            .then(|| Why::QueueJobs { queue: self.queues.spec(entry.queue).name.clone(), limit })
    }

    pub(super) fn outcome(&self, job: JobId) -> Option<JobOutcome> {
        match self.jobs.get(&job)?.state {
            JobState::Ended(end) => Some(end.outcome),
            _ => None,
        }
    }

    pub(super) fn user(&mut self, name: &str, out: &mut Outbox) -> UserId {
        let next = UserId(self.users.len() as u32);
        *self.users.entry(name.to_owned()).or_insert_with(|| {
            out.persist(Change::UserSeen { user: next, name: name.to_owned() });
            next
        })
    }

    pub(super) fn insert(&mut self, job: Arc<AdmittedJob>, key: Option<String>) {
        let id = job.id;
        self.next_job = self.next_job.max(id.0 + 1);
        if let Some(key) = &key {
            self.by_key.insert((job.spec.user.clone(), key.clone()), id);
        }
        // The configuration may have changed since: the name decides, not the number.
        let queue = self.queues.leaf(&job.spec.queue).or_else(|_| self.queues.leaf("")).unwrap_or(job.queue);
        let held = job.spec.held;
        self.jobs.insert(
            id,
            JobEntry {
                job,
                queue,
                key,
                held,
                has_begun: false,
                run: 0,
                is_cancelled: false,
                tasks: Arc::default(),
                judged: false,
                is_abandoned: false,
                state: JobState::Pending,
            },
        );
        self.unended.insert(id);
        self.count(id, 1);
    }

    /// Adds a job to what is kept by state, or takes it out.
    fn count(&mut self, id: JobId, by: i32) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let counts = self.counts.entry(entry.queue).or_default();
        match entry.state {
            JobState::Pending => {
                counts.1 = counts.1.strict_add_signed(by);
                for &after in &entry.job.spec.after_jobs {
                    let awaited = self.awaited.entry(after).or_default();
                    *awaited = awaited.strict_add_signed(by);
                    if *awaited == 0 {
                        self.awaited.remove(&after);
                    }
                }
                if by > 0 {
                    self.pending.insert(id)
                } else {
                    self.pending.remove(&id)
                };
            }
            JobState::Begun => counts.0 = counts.0.strict_add_signed(by),
            JobState::Ended(end) => {
                if by > 0 {
                    self.ended.insert((end.at, id))
                } else {
                    self.ended.remove(&(end.at, id))
                };
            }
        }
    }

    pub(super) fn set_state(&mut self, job: JobId, state: JobState) {
        if !self.jobs.contains_key(&job) {
            return;
        }
        self.count(job, -1);
        if matches!(state, JobState::Ended(_)) {
            self.unended.remove(&job);
        } else {
            self.unended.insert(job);
        }
        self.jobs.get_mut(&job).expect("just found").state = state;
        self.count(job, 1);
    }

    /// The job that ended longest ago, of those that no other waits for.
    pub(super) fn forgettable(&self) -> Option<JobId> {
        self.ended.iter().map(|(_, id)| *id).find(|id| !self.awaited.contains_key(id))
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.count(job, -1);
        self.unended.remove(&job);
        if let Some(entry) = self.jobs.remove(&job)
            && let Some(key) = entry.key
        {
            self.by_key.remove(&(entry.job.spec.user.clone(), key));
        }
    }

    pub(super) fn recover(&mut self, change: &Change) {
        match change {
            Change::UserSeen { user, name } => {
                self.users.insert(name.clone(), *user);
            }
            Change::JobAdmitted { job, key } => self.insert(Arc::clone(job), key.clone()),
            Change::JobHeld { job, held } => {
                if let Some(entry) = self.jobs.get_mut(job) {
                    entry.held = *held;
                }
            }
            Change::JobBegun { job } => self.set_begun(*job),
            Change::JobReopened { job, run } => self.set_reopened(*job, *run),
            Change::CancelAsked { job } => self.set_cancelled(*job),
            Change::TasksAsked { job, action, tasks } => self.wish(*job, *action, tasks),
            Change::JobEnded { job, outcome, at } => {
                self.set_state(*job, JobState::Ended(JobEnd { outcome: *outcome, at: *at }));
            }
            Change::JobAbandoned { job } => self.set_abandoned(*job),
            Change::JobForgotten { job } => {
                self.next_job = self.next_job.max(job.0 + 1);
                self.forget(*job);
            }
            _ => self.history.recover(change),
        }
    }

    /// A job that it is to come after and of which nothing is known any more.
    pub(super) fn forgotten_dependency(&self, job: JobId) -> Option<JobId> {
        let entry = self.jobs.get(&job).filter(|entry| !entry.has_begun)?;
        entry.job.spec.after_jobs.iter().copied().find(|after| !self.jobs.contains_key(after))
    }

    pub(super) fn has_failed_dependency(&self, job: JobId) -> bool {
        let entry = &self.jobs[&job];
        let failed = |after: &JobId| self.outcome(*after).is_some_and(|outcome| outcome != JobOutcome::Succeeded);
        !entry.has_begun && entry.job.spec.after_jobs.iter().any(failed)
    }

    /// It has a job manager from now on.
    pub(super) fn set_begun(&mut self, job: JobId) {
        self.set_state(job, JobState::Begun);
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.has_begun = true;
        }
    }

    pub(super) fn set_reopened(&mut self, job: JobId, run: u32) {
        self.set_state(job, JobState::Pending);
        if let Some(entry) = self.jobs.get_mut(&job) {
            (entry.run, entry.is_cancelled, entry.tasks) = (run, false, Arc::default());
        }
    }

    pub(super) fn set_abandoned(&mut self, job: JobId) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.is_abandoned = true;
        }
    }

    pub(super) fn set_cancelled(&mut self, job: JobId) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.is_cancelled = true;
        }
    }

    pub(super) fn wish(&mut self, job: JobId, action: TaskAction, tasks: &Chosen) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            Arc::make_mut(&mut entry.tasks).take_in(action, tasks);
        }
    }

    pub(super) fn durable(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.next_job > 1 {
            // Numbers are never used twice, even when the newest jobs are forgotten.
            changes.push(Change::JobForgotten { job: JobId(self.next_job - 1) });
        }
        changes.extend(self.users.iter().map(|(name, user)| Change::UserSeen { user: *user, name: name.clone() }));
        for (&id, entry) in &self.jobs {
            changes.push(Change::JobAdmitted { job: Arc::clone(&entry.job), key: entry.key.clone() });
            // Also where it is as submitted: its job manager knows only what it was told.
            changes.push(Change::JobHeld { job: id, held: entry.held });
            let begun = entry.has_begun.then_some(Change::JobBegun { job: id });
            let reopened = (entry.run > 0).then_some(Change::JobReopened { job: id, run: entry.run });
            match entry.state {
                JobState::Pending => changes.extend(begun.into_iter().chain(reopened)),
                JobState::Begun | JobState::Ended(_) => changes.extend(reopened.into_iter().chain(begun)),
            }
            if entry.is_cancelled {
                changes.push(Change::CancelAsked { job: id });
            }
            changes.extend(entry.tasks.actions().map(|(action, tasks)| Change::TasksAsked {
                job: id,
                action,
                tasks: Box::new(tasks.clone()),
            }));
            if let JobState::Ended(end) = &entry.state {
                changes.push(Change::JobEnded { job: id, outcome: end.outcome, at: end.at });
            }
            if entry.is_abandoned {
                changes.push(Change::JobAbandoned { job: id });
            }
        }
        changes.extend(self.history.durable());
        changes
    }
}
