//! The known jobs and their states: a job waits to start (held, after other jobs, queue full), has a job manager, or
//! has ended.

use super::JobEnd;
use super::history::History;
use super::turns::{DependencyState, Pending, Turns, Until};
use crate::policy::Trust;
use crate::policy::inter_job::QueueTree;
use crate::protocol::{AdmittedJob, JobOutcome, JobUpdate, RequestedActions};
use crate::role::{Change, Outbox};
use crate::vocabulary::{Chosen, Instant, JobId, JobSpec, QueueId, RequestedTaskActions, TaskAction, UserId};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) struct Admission {
    pub(super) queues: QueueTree,
    pub(super) jobs: BTreeMap<JobId, JobEntry>,
    pub(super) next_job: u64,
    pub(super) users: BTreeMap<String, UserId>,
    /// Trust in users' estimates; users that are not listed are trusted. Not kept across restarts.
    pub(super) trust: BTreeMap<UserId, Trust>,
    pub(super) history: History,
    /// By user and the user's own key.
    pub(super) by_key: BTreeMap<(String, String), JobId>,
    /// In the order in which they ended.
    pub(super) ended: BTreeSet<(Instant, JobId)>,
    /// Number of tasks of these jobs.
    pub(super) ended_tasks: u64,
    /// Ended jobs on which no pending job depends, in the same order.
    forgettable: BTreeSet<(Instant, JobId)>,
    /// The numbers of running and of pending jobs, per queue.
    counts: BTreeMap<QueueId, (u32, u32)>,
    /// Jobs that have started and not ended.
    started: BTreeSet<JobId>,
    /// Which of the pending jobs start or end next.
    pub(super) turns: Turns,
}

pub(super) struct JobEntry {
    pub(super) job: Arc<AdmittedJob>,
    pub(super) queue: QueueId,
    /// The configuration no longer has the queue that it was admitted to.
    pub(super) is_queue_gone: bool,
    pub(super) key: Option<String>,
    pub(super) held: bool,
    /// Its dependencies were met once: they may have been forgotten since.
    pub(super) has_started: bool,
    /// How often it was reopened to run failed tasks.
    pub(super) run: u32,
    /// Set if a user cancelled this run.
    pub(super) cancelled: Option<Box<Cancellation>>,
    /// What users requested of single tasks of it.
    pub(super) tasks: Arc<RequestedTaskActions>,
    /// Its estimates were used to judge its user.
    pub(super) judged: bool,
    /// It ended without its manager.
    pub(super) is_abandoned: bool,
    pub(super) state: JobState,
}

/// The user who cancelled a job, and the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancellation {
    pub by: String,
    pub at: Instant,
}

/// The state of a job, as the master sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobState {
    /// Admitted, without a job manager yet.
    Pending,
    /// Its job manager has it, and knows whether tasks run.
    Started,
    Ended(JobEnd),
}

/// The state of a job with regard to its dependants.
fn dependency_state(jobs: &BTreeMap<JobId, JobEntry>, job: JobId) -> DependencyState {
    match jobs.get(&job).map(|entry| &entry.state) {
        Some(JobState::Ended(JobEnd { outcome: JobOutcome::Succeeded, .. })) => DependencyState::Succeeded,
        Some(JobState::Ended(_)) => DependencyState::Failed,
        Some(JobState::Pending | JobState::Started) | None => DependencyState::Open,
    }
}

impl JobEntry {
    /// The jobs that it waits for before it starts, and the state that they have to reach.
    fn after(&self) -> impl Iterator<Item = (JobId, Until)> {
        let spec = if self.has_started { None } else { Some(&self.job.spec) };
        let jobs = |jobs: fn(&JobSpec) -> &[JobId]| spec.map_or(&[][..], |spec| jobs(spec)).iter().copied();
        let succeed = jobs(|spec| &spec.after_jobs).map(|job| (job, Until::Succeeded));
        succeed.chain(jobs(|spec| &spec.after_jobs_any).map(|job| (job, Until::Ended)))
    }

    pub(super) fn requested_actions(&self) -> RequestedActions {
        RequestedActions {
            held: self.held,
            cancelled: self.cancelled.is_some(),
            run: self.run,
            tasks: Arc::clone(&self.tasks),
        }
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
            ended_tasks: 0,
            forgettable: BTreeSet::new(),
            counts: BTreeMap::new(),
            started: BTreeSet::new(),
            turns: Turns::default(),
        }
    }

    pub(super) fn queues(&self) -> &QueueTree {
        &self.queues
    }

    pub(super) fn job(&self, job: JobId) -> Option<(&Arc<AdmittedJob>, &JobState)> {
        self.jobs.get(&job).map(|entry| (&entry.job, &entry.state))
    }

    pub(super) fn queue_of(&self, job: JobId) -> Option<QueueId> {
        self.jobs.get(&job).filter(|entry| !entry.is_queue_gone).map(|entry| entry.queue)
    }

    pub(super) fn jobs_from(&self, from: JobId) -> impl DoubleEndedIterator<Item = (&Arc<AdmittedJob>, &JobState)> {
        self.jobs.range(from..).map(|(_, entry)| (&entry.job, &entry.state))
    }

    pub(super) fn jobs_below(&self, end: JobId) -> impl DoubleEndedIterator<Item = (&Arc<AdmittedJob>, &JobState)> {
        self.jobs.range(..end).map(|(_, entry)| (&entry.job, &entry.state))
    }

    pub(super) fn is_running(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|entry| entry.state == JobState::Started)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (&Arc<AdmittedJob>, QueueId)> {
        self.started.iter().filter_map(|id| self.jobs.get(id)).map(|entry| (&entry.job, entry.queue))
    }

    /// The numbers of running and of pending jobs of a queue.
    pub(super) fn count_jobs(&self, queue: QueueId) -> (u32, u32) {
        self.counts.get(&queue).copied().unwrap_or_default()
    }

    /// Why a job has no job manager yet, or that it is held; empty for other jobs and for an unknown one.
    pub(super) fn why_not_started(&self, job: JobId) -> Vec<Why> {
        let Some(entry) = self.jobs.get(&job) else { return Vec::new() };
        if entry.held && !matches!(entry.state, JobState::Ended(_)) {
            return vec![Why::Held];
        }
        if entry.state != JobState::Pending {
            return Vec::new();
        }
        let open = |until: Until| {
            let is_open = move |on: JobId| match (dependency_state(&self.jobs, on), until) {
                (DependencyState::Open, _) | (DependencyState::Failed, Until::Succeeded) => true,
                (DependencyState::Succeeded, _) | (DependencyState::Failed, Until::Ended) => false,
            };
            let jobs = entry.after().filter(move |(on, condition)| *condition == until && is_open(*on));
            Some(jobs.map(|(on, _)| on).collect()).filter(|jobs: &Vec<JobId>| !jobs.is_empty())
        };
        let succeed = open(Until::Succeeded).map(|jobs| Why::AfterJobs { jobs });
        let end = open(Until::Ended).map(|jobs| Why::AfterEnds { jobs });
        let whys: Vec<Why> = succeed.into_iter().chain(end).collect();
        let queue = self.queues.spec(entry.queue);
        match queue.max_running_jobs {
            Some(limit) if whys.is_empty() && self.count_jobs(entry.queue).0 >= limit => {
                vec![Why::QueueJobs { queue: queue.name.clone(), limit }]
            }
            _ => whys,
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
        let found = self.queues.leaf(&job.spec.queue);
        let is_queue_gone = found.is_err();
        let queue = found.or_else(|_| self.queues.leaf("")).unwrap_or(job.queue);
        let held = job.spec.held;
        self.jobs.insert(
            id,
            JobEntry {
                job,
                queue,
                is_queue_gone,
                key,
                held,
                has_started: false,
                run: 0,
                cancelled: None,
                tasks: Arc::default(),
                judged: false,
                is_abandoned: false,
                state: JobState::Pending,
            },
        );
        self.enter(id);
    }

    /// Adds a job to the collections for its state.
    fn enter(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let queue = entry.queue;
        let counts = self.counts.entry(queue).or_default();
        match entry.state {
            JobState::Pending => {
                counts.1 += 1;
                let order = (Reverse(entry.job.spec.priority), id);
                let pending = Pending { order, queue, held: entry.held };
                for (on, _) in entry.after() {
                    if let Some(JobState::Ended(end)) = self.jobs.get(&on).map(|entry| &entry.state) {
                        self.forgettable.remove(&(end.at, on));
                    }
                }
                let after = entry.after().map(|(on, until)| (on, until, dependency_state(&self.jobs, on)));
                self.turns.enter(id, pending, after);
            }
            JobState::Started => {
                counts.0 += 1;
                self.started.insert(id);
                self.count_running(queue);
            }
            JobState::Ended(end) => {
                self.ended.insert((end.at, id));
                self.ended_tasks += entry.job.spec.task_count();
                if !self.turns.is_awaited(id) {
                    self.forgettable.insert((end.at, id));
                }
            }
        }
    }

    /// Removes a job from these collections.
    fn leave(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let queue = entry.queue;
        let counts = self.counts.entry(queue).or_default();
        match entry.state {
            JobState::Pending => {
                counts.1 -= 1;
                self.turns.leave(id, entry.after().map(|(on, _)| on));
                for (on, _) in entry.after().filter(|(on, _)| !self.turns.is_awaited(*on)) {
                    if let Some(JobState::Ended(end)) = self.jobs.get(&on).map(|entry| &entry.state) {
                        self.forgettable.insert((end.at, on));
                    }
                }
            }
            JobState::Started => {
                counts.0 -= 1;
                self.started.remove(&id);
                self.count_running(queue);
            }
            JobState::Ended(end) => {
                self.ended.remove(&(end.at, id));
                self.ended_tasks -= entry.job.spec.task_count();
                self.forgettable.remove(&(end.at, id));
            }
        }
    }

    /// Limits of queues have changed, or queues were added ([`QueueTree::changed`]).
    pub(super) fn set_queues(&mut self, queues: QueueTree) {
        self.queues = queues;
        (0..self.queues.len() as u32).for_each(|queue| self.count_running(QueueId(queue)));
    }

    fn count_running(&mut self, queue: QueueId) {
        let (running, limit) = (self.count_jobs(queue).0, self.queues.spec(queue).max_running_jobs);
        self.turns.set_running(queue, running, limit);
    }

    fn set_state(&mut self, job: JobId, change: impl FnOnce(&mut JobEntry)) {
        self.leave(job);
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        change(entry);
        self.enter(job);
        self.turns.on_change(job);
    }

    pub(super) fn set_ended(&mut self, job: JobId, end: JobEnd) {
        self.set_state(job, |entry| entry.state = JobState::Ended(end));
    }

    pub(super) fn set_held(&mut self, job: JobId, held: bool) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.held = held;
            self.turns.set_held(job, held);
        }
    }

    /// Updates at most `left` dependants of jobs whose state has changed.
    pub(super) fn spread_news(&mut self, left: &mut usize) {
        let Admission { turns, jobs, .. } = self;
        turns.spread(left, |job| dependency_state(jobs, job));
    }

    /// The job that ended first, and when, among those on which no pending job depends.
    pub(super) fn forgettable(&self) -> Option<(Instant, JobId)> {
        self.forgettable.first().copied()
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.leave(job);
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
            Change::JobHeld { job, held } => self.set_held(*job, *held),
            Change::JobStarted { job } => self.set_started(*job),
            Change::JobReopened { job, run } => self.set_reopened(*job, *run),
            Change::TasksAsked { job, action, tasks } => self.add_request(*job, *action, tasks),
            Change::CancelAsked { job, by, at } => {
                self.set_cancelled(*job, Cancellation { by: by.clone(), at: *at });
            }
            Change::JobEnded { job, outcome, at } => self.set_ended(*job, JobEnd { outcome: *outcome, at: *at }),
            Change::JobUpdated { job, update, .. } => self.update(*job, update),
            Change::JobAbandoned { job } => self.set_abandoned(*job),
            Change::JobForgotten { job } => {
                self.next_job = self.next_job.max(job.0 + 1);
                self.forget(*job);
            }
            _ => self.history.recover(change),
        }
    }

    /// A dependency of the job that is forgotten.
    pub(super) fn forgotten_dependency(&self, job: JobId) -> Option<JobId> {
        self.jobs.get(&job)?.after().map(|(on, _)| on).find(|on| !self.jobs.contains_key(on))
    }

    /// It has a job manager from now on.
    pub(super) fn set_started(&mut self, job: JobId) {
        self.set_state(job, |entry| (entry.state, entry.has_started) = (JobState::Started, true));
    }

    pub(super) fn set_reopened(&mut self, job: JobId, run: u32) {
        self.set_state(job, |entry| {
            (entry.state, entry.run) = (JobState::Pending, run);
            (entry.cancelled, entry.tasks) = (None, Arc::default());
        });
    }

    pub(super) fn set_abandoned(&mut self, job: JobId) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.is_abandoned = true;
        }
    }

    pub(super) fn set_cancelled(&mut self, job: JobId, cancellation: Cancellation) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.cancelled = Some(Box::new(cancellation));
        }
    }

    pub(super) fn add_request(&mut self, job: JobId, action: TaskAction, tasks: &Chosen) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            Arc::make_mut(&mut entry.tasks).take_in(action, tasks);
        }
    }

    /// A user changed the job: its place is determined again.
    pub(super) fn update(&mut self, job: JobId, update: &JobUpdate) {
        self.leave(job);
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.job = Arc::new(update.applied(&entry.job));
            if update.queue.is_some()
                && let Ok(queue) = self.queues.leaf(&entry.job.spec.queue)
            {
                (entry.queue, entry.is_queue_gone) = (queue, false);
                Arc::make_mut(&mut entry.job).queue = queue;
            }
        }
        self.enter(job);
    }

    /// The dependency that ended first without the success that the job requires.
    pub(super) fn failed_dependency(&self, job: JobId) -> Option<JobId> {
        let ended = |on: JobId| match self.jobs.get(&on)?.state {
            JobState::Ended(JobEnd { outcome: JobOutcome::Succeeded, .. }) => None,
            JobState::Ended(end) => Some((end.at, on)),
            JobState::Pending | JobState::Started => None,
        };
        let after = self.jobs.get(&job)?.after().filter(|(_, until)| *until == Until::Succeeded);
        after.filter_map(|(on, _)| ended(on)).min().map(|(_, on)| on)
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
            // Also if it is as submitted: its job manager knows only what it was sent.
            changes.push(Change::JobHeld { job: id, held: entry.held });
            let started = entry.has_started.then_some(Change::JobStarted { job: id });
            let reopened = (entry.run > 0).then_some(Change::JobReopened { job: id, run: entry.run });
            match entry.state {
                JobState::Pending => changes.extend(started.into_iter().chain(reopened)),
                JobState::Started | JobState::Ended(_) => changes.extend(reopened.into_iter().chain(started)),
            }
            if let Some(Cancellation { by, at }) = entry.cancelled.as_deref() {
                changes.push(Change::CancelAsked { job: id, by: by.clone(), at: *at });
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
