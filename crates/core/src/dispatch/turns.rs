//! Determines which pending jobs start or end next. Its state is updated job by job, so the cost of a submission or an
//! end depends on its dependencies only, however many other jobs wait.

use crate::vocabulary::{JobId, QueueId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The order in which jobs start: higher priorities first, then the order of submission.
pub(super) type StartOrder = (Reverse<i32>, JobId);

/// The state of a job with regard to its dependants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DependencyState {
    /// It has not ended.
    Open,
    Succeeded,
    /// It ended without success.
    Failed,
}

/// The state that a dependant waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Until {
    Succeeded,
    Ended,
}

/// A pending job to be added.
pub(super) struct Pending {
    pub order: StartOrder,
    pub queue: QueueId,
    pub held: bool,
}

/// The next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Start(JobId),
    /// A job that had to succeed before it did not.
    End(JobId),
}

#[derive(Default)]
pub(super) struct Turns {
    waiters: BTreeMap<JobId, Waiter>,
    /// The state of a job (first) as a dependant (second) was notified of it.
    dependencies: BTreeMap<(JobId, JobId), Dependency>,
    /// Jobs whose state changed, with the first dependant that was not notified.
    news: BTreeMap<JobId, JobId>,
    lines: BTreeMap<QueueId, Line>,
    /// The first job of each line that may start now.
    heads: BTreeSet<(StartOrder, QueueId)>,
    /// Jobs that can never start.
    doomed: BTreeSet<StartOrder>,
    steps: u64,
}

struct Waiter {
    order: StartOrder,
    queue: QueueId,
    held: bool,
    /// Jobs that it waits for.
    open: u32,
    /// Jobs that had to succeed and ended without success.
    failed: u32,
}

#[derive(Clone, Copy)]
struct Dependency {
    until: Until,
    reported: DependencyState,
}

/// The jobs of a queue that only the queue's limit keeps from starting.
#[derive(Default)]
struct Line {
    ready: BTreeSet<StartOrder>,
    running: u32,
    limit: Option<u32>,
}

impl Line {
    fn head(&self) -> Option<StartOrder> {
        let has_room = self.limit.is_none_or(|limit| self.running < limit);
        self.ready.first().copied().filter(|_| has_room)
    }
}

impl Dependency {
    fn is_open(self) -> bool {
        self.reported == DependencyState::Open
    }

    fn has_failed(self) -> bool {
        self.reported == DependencyState::Failed && self.until == Until::Succeeded
    }
}

impl Turns {
    /// Adds a waiting job with its dependencies.
    pub fn enter(
        &mut self,
        job: JobId,
        pending: Pending,
        after: impl Iterator<Item = (JobId, Until, DependencyState)>,
    ) {
        let Pending { order, queue, held } = pending;
        let mut waiter = Waiter { order, queue, held, open: 0, failed: 0 };
        for (on, until, reported) in after {
            self.steps += 1;
            let dependency = Dependency { until, reported };
            let before = self.dependencies.get(&(on, job)).copied();
            // If a job is named twice, the stricter condition applies.
            if before.is_none_or(|before| before.until == Until::Ended) {
                self.dependencies.insert((on, job), dependency);
                waiter.forget(before);
                waiter.learn(dependency);
            }
        }
        self.waiters.insert(job, waiter);
        self.sort_in(job);
    }

    /// Removes a job that no longer waits, with its dependencies.
    pub fn leave(&mut self, job: JobId, after: impl Iterator<Item = JobId>) {
        self.take_out(job);
        self.waiters.remove(&job);
        for on in after {
            self.steps += 1;
            self.dependencies.remove(&(on, job));
        }
    }

    pub fn set_held(&mut self, job: JobId, held: bool) {
        self.take_out(job);
        if let Some(waiter) = self.waiters.get_mut(&job) {
            waiter.held = held;
        }
        self.sort_in(job);
    }

    /// Sets how many jobs of the queue run, and how many may.
    pub fn set_running(&mut self, queue: QueueId, running: u32, limit: Option<u32>) {
        self.change_line(queue, |line| (line.running, line.limit) = (running, limit));
    }

    /// The state of the job has changed: its dependants are notified in the next steps.
    pub fn on_change(&mut self, job: JobId) {
        if self.is_awaited(job) {
            self.news.insert(job, JobId(0));
        }
    }

    /// Whether pending jobs depend on it.
    pub fn is_awaited(&self, job: JobId) -> bool {
        self.dependants_from(job, JobId(0)).next().is_some()
    }

    fn dependants_from(&self, job: JobId, from: JobId) -> impl Iterator<Item = (JobId, Dependency)> {
        let range = self.dependencies.range((job, from)..=(job, JobId(u64::MAX)));
        range.map(|((_, dependant), dependency)| (*dependant, *dependency))
    }

    /// Notifies at most `left` dependants of changes.
    pub fn spread(&mut self, left: &mut usize, state: impl Fn(JobId) -> DependencyState) {
        while *left > 0
            && let Some((&job, &from)) = self.news.first_key_value()
        {
            let reported = state(job);
            let dependants: Vec<(JobId, Dependency)> = self.dependants_from(job, from).take(*left).collect();
            *left -= dependants.len();
            match dependants.last() {
                Some((last, _)) if *left == 0 => self.news.insert(job, JobId(last.0 + 1)),
                _ => self.news.remove(&job),
            };
            for (dependant, before) in dependants {
                self.report(job, dependant, before, reported);
            }
        }
    }

    fn report(&mut self, job: JobId, dependant: JobId, before: Dependency, reported: DependencyState) {
        self.steps += 1;
        let now = Dependency { reported, ..before };
        self.dependencies.insert((job, dependant), now);
        self.take_out(dependant);
        if let Some(waiter) = self.waiters.get_mut(&dependant) {
            waiter.forget(Some(before));
            waiter.learn(now);
        }
        self.sort_in(dependant);
    }

    /// The next step, once all dependants are notified.
    pub fn next(&mut self) -> Option<Turn> {
        self.steps += 1;
        // Ends first: a job that has to start before others may wait for such an end.
        let end = self.doomed.first().map(|(_, job)| Turn::End(*job));
        end.or_else(|| self.heads.first().map(|((_, job), _)| Turn::Start(*job)))
    }

    pub fn has_more(&self) -> bool {
        !(self.news.is_empty() && self.heads.is_empty() && self.doomed.is_empty())
    }

    /// How many jobs and dependencies were examined so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn sort_in(&mut self, job: JobId) {
        let Some(Waiter { order, queue, held: false, open, failed }) = self.waiters.get(&job) else { return };
        let (order, queue) = (*order, *queue);
        match (*failed, *open) {
            (1.., _) => _ = self.doomed.insert(order),
            (0, 0) => self.change_line(queue, |line| _ = line.ready.insert(order)),
            (0, _) => {}
        }
    }

    fn take_out(&mut self, job: JobId) {
        let Some(Waiter { order, queue, .. }) = self.waiters.get(&job) else { return };
        let (order, queue) = (*order, *queue);
        if !self.doomed.remove(&order) && self.lines.get(&queue).is_some_and(|line| line.ready.contains(&order)) {
            self.change_line(queue, |line| _ = line.ready.remove(&order));
        }
    }

    fn change_line(&mut self, queue: QueueId, change: impl FnOnce(&mut Line)) {
        let line = self.lines.entry(queue).or_default();
        let before = line.head();
        change(line);
        let now = line.head();
        if before != now {
            before.map(|head| self.heads.remove(&(head, queue)));
            now.map(|head| self.heads.insert((head, queue)));
        }
    }
}

impl Waiter {
    fn learn(&mut self, dependency: Dependency) {
        self.open += u32::from(dependency.is_open());
        self.failed += u32::from(dependency.has_failed());
    }

    fn forget(&mut self, dependency: Option<Dependency>) {
        let Some(dependency) = dependency else { return };
        self.open -= u32::from(dependency.is_open());
        self.failed -= u32::from(dependency.has_failed());
    }
}
