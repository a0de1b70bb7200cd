//! Which pending jobs begin or end next. What that needs is kept up to date job by job, so a submission or an end costs
//! what depends on it, however many other jobs wait.

use crate::vocabulary::{JobId, QueueId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// In the order in which jobs begin: higher priorities first, then the order of submission.
pub(super) type Place = (Reverse<i32>, JobId);

/// What a job's dependants may take it for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It has not ended.
    Open,
    Succeeded,
    /// It ended in another way.
    Failed,
}

/// What a dependant waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Until {
    Succeeded,
    Ended,
}

/// A pending job, as it is to be entered.
pub(super) struct Pending {
    pub place: Place,
    pub queue: QueueId,
    pub held: bool,
}

/// The next thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Begin(JobId),
    /// A job that it comes after did not succeed.
    End(JobId),
}

#[derive(Default)]
pub(super) struct Turns {
    waiters: BTreeMap<JobId, Waiter>,
    /// What a dependant (second) has been told of a job that it comes after (first).
    dependencies: BTreeMap<(JobId, JobId), Dependency>,
    /// Jobs whose standing changed, with the first dependant that has not been told.
    news: BTreeMap<JobId, JobId>,
    lines: BTreeMap<QueueId, Line>,
    /// The first of each line that may begin now.
    heads: BTreeSet<(Place, QueueId)>,
    /// Those that can never begin.
    doomed: BTreeSet<Place>,
    steps: u64,
}

struct Waiter {
    place: Place,
    queue: QueueId,
    held: bool,
    /// Jobs that it waits for.
    open: u32,
    /// Jobs of which it needs success and that ended without.
    failed: u32,
}

#[derive(Clone, Copy)]
struct Dependency {
    until: Until,
    told: Standing,
}

/// The jobs of a queue that only the queue's limit keeps from beginning.
#[derive(Default)]
struct Line {
    ready: BTreeSet<Place>,
    running: u32,
    limit: Option<u32>,
}

impl Line {
    fn head(&self) -> Option<Place> {
        let has_room = self.limit.is_none_or(|limit| self.running < limit);
        self.ready.first().copied().filter(|_| has_room)
    }
}

impl Dependency {
    fn is_open(self) -> bool {
        self.told == Standing::Open
    }

    fn has_failed(self) -> bool {
        self.told == Standing::Failed && self.until == Until::Succeeded
    }
}

impl Turns {
    /// A job waits from now on, also for these jobs.
    pub fn enter(&mut self, job: JobId, pending: Pending, after: impl Iterator<Item = (JobId, Until, Standing)>) {
        let Pending { place, queue, held } = pending;
        let mut waiter = Waiter { place, queue, held, open: 0, failed: 0 };
        for (on, until, told) in after {
            self.steps += 1;
            let dependency = Dependency { until, told };
            let before = self.dependencies.get(&(on, job)).copied();
            // Named twice, the stricter wish counts.
            if before.is_none_or(|before| before.until == Until::Ended) {
                self.dependencies.insert((on, job), dependency);
                waiter.forget(before);
                waiter.learn(dependency);
            }
        }
        self.waiters.insert(job, waiter);
        self.sort_in(job);
    }

    /// It waits no more, and needs to know nothing of these.
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

    /// So many jobs of the queue run, of so many that may.
    pub fn set_running(&mut self, queue: QueueId, running: u32, limit: Option<u32>) {
        self.change_line(queue, |line| (line.running, line.limit) = (running, limit));
    }

    /// The standing of the job is another one: its dependants are told in the next steps.
    pub fn on_change(&mut self, job: JobId) {
        if self.is_awaited(job) {
            self.news.insert(job, JobId(0));
        }
    }

    /// Whether pending jobs wait for it, or waited and have not begun.
    pub fn is_awaited(&self, job: JobId) -> bool {
        self.dependants_from(job, JobId(0)).next().is_some()
    }

    fn dependants_from(&self, job: JobId, from: JobId) -> impl Iterator<Item = (JobId, Dependency)> {
        let range = self.dependencies.range((job, from)..=(job, JobId(u64::MAX)));
        range.map(|((_, dependant), dependency)| (*dependant, *dependency))
    }

    /// Tells dependants what has changed, as many as are `left`.
    pub fn spread(&mut self, left: &mut usize, standing: impl Fn(JobId) -> Standing) {
        while *left > 0
            && let Some((&job, &from)) = self.news.first_key_value()
        {
            let told = standing(job);
            let dependants: Vec<(JobId, Dependency)> = self.dependants_from(job, from).take(*left).collect();
            *left -= dependants.len();
            match dependants.last() {
                Some((last, _)) if *left == 0 => self.news.insert(job, JobId(last.0 + 1)),
                _ => self.news.remove(&job),
            };
            for (dependant, before) in dependants {
                self.tell(job, dependant, before, told);
            }
        }
    }

    fn tell(&mut self, job: JobId, dependant: JobId, before: Dependency, told: Standing) {
        self.steps += 1;
        let now = Dependency { told, ..before };
        self.dependencies.insert((job, dependant), now);
        self.take_out(dependant);
        if let Some(waiter) = self.waiters.get_mut(&dependant) {
            waiter.forget(Some(before));
            waiter.learn(now);
        }
        self.sort_in(dependant);
    }

    /// What is to be done next, once all news is spread.
    pub fn next(&mut self) -> Option<Turn> {
        self.steps += 1;
        // An end may be what a job waits for that is to begin before others.
        let end = self.doomed.first().map(|(_, job)| Turn::End(*job));
        end.or_else(|| self.heads.first().map(|((_, job), _)| Turn::Begin(*job)))
    }

    pub fn has_more(&self) -> bool {
        !(self.news.is_empty() && self.heads.is_empty() && self.doomed.is_empty())
    }

    /// How many jobs and dependencies were looked at so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn sort_in(&mut self, job: JobId) {
        let Some(Waiter { place, queue, held: false, open, failed }) = self.waiters.get(&job) else { return };
        let (place, queue) = (*place, *queue);
        match (*failed, *open) {
            (1.., _) => _ = self.doomed.insert(place),
            (0, 0) => self.change_line(queue, |line| _ = line.ready.insert(place)),
            (0, _) => {}
        }
    }

    fn take_out(&mut self, job: JobId) {
        let Some(Waiter { place, queue, .. }) = self.waiters.get(&job) else { return };
        let (place, queue) = (*place, *queue);
        if !self.doomed.remove(&place) && self.lines.get(&queue).is_some_and(|line| line.ready.contains(&place)) {
            self.change_line(queue, |line| _ = line.ready.remove(&place));
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
