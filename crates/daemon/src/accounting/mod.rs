//! What users and queues asked for, used and lost, by day: totals that outlive the jobs.
//!
//! They are counted from the log, beside the event loop: each entry once, as its number is stored with the totals (`days.rs`).
//! Amounts are split over the days in which they were held (UTC).

mod days;
mod report;

use crate::api::Report;
use crate::dates::{By, DAY};
use crate::durable;
use crate::shell::{Handle, decode};
use crate::store::{History, StoreError};
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::resources::{CPU, MEMORY};
use amalgam_core::vocabulary::{AttemptId, Duration, EndReason, Ended, Instant, JobId, Resources, TaskId};
use days::Days;
pub use days::{DIR, files, is_file};
use report::Filter;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// How often the log is read.
const INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);
/// Totals of jobs that were forgotten before they could be counted.
const UNKNOWN: &str = "(unknown)";

/// What was counted for a user and a queue in a day. CPU is in thousandths of a CPU times milliseconds, memory in MiB times
/// milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Jobs that ended.
    pub jobs: u64,
    /// Tasks that ended and are not tried again.
    pub tasks: u64,
    /// Attempts that ended or were lost.
    pub attempts: u64,
    pub cpu_asked: u64,
    pub cpu_used: u64,
    pub memory_asked: u64,
    pub memory_used: u64,
    /// First starts of tasks, and their total time since the task could run, in milliseconds.
    pub starts: u64,
    pub waited: u64,
    /// Attempts that were preempted or shed, and the CPU that they held.
    pub preempted: u64,
    pub cpu_preempted: u64,
    /// Attempts that were lost with their node or their launch, and the CPU that they held.
    pub lost: u64,
    pub cpu_lost: u64,
}

impl Counts {
    pub fn add(&mut self, more: &Counts) {
        let sum = |own: &mut u64, more: u64| *own = own.saturating_add(more);
        sum(&mut self.jobs, more.jobs);
        sum(&mut self.tasks, more.tasks);
        sum(&mut self.attempts, more.attempts);
        sum(&mut self.cpu_asked, more.cpu_asked);
        sum(&mut self.cpu_used, more.cpu_used);
        sum(&mut self.memory_asked, more.memory_asked);
        sum(&mut self.memory_used, more.memory_used);
        sum(&mut self.starts, more.starts);
        sum(&mut self.waited, more.waited);
        sum(&mut self.preempted, more.preempted);
        sum(&mut self.cpu_preempted, more.cpu_preempted);
        sum(&mut self.lost, more.lost);
        sum(&mut self.cpu_lost, more.cpu_lost);
    }
}

/// The user and the queue of a job, and the resources of a task of each stage.
#[derive(Clone)]
struct Job {
    user: Arc<str>,
    queue: Arc<str>,
    resources: Arc<[Resources]>,
}

impl Job {
    fn of(job: &AdmittedJob) -> Job {
        Job {
            user: job.spec.user.as_str().into(),
            queue: job.spec.queue.as_str().into(),
            resources: job.resources.as_slice().into(),
        }
    }

    fn unknown() -> Job {
        Job { user: UNKNOWN.into(), queue: UNKNOWN.into(), resources: Arc::default() }
    }
}

/// What is needed to count the next entry.
struct Book {
    days: Days,
    jobs: BTreeMap<JobId, Job>,
    /// Attempts that have not ended, with the time of their launch.
    launched: BTreeMap<AttemptId, Instant>,
}

impl Book {
    fn take(&mut self, sequence: u64, fact: &Fact, at: Instant) {
        match fact {
            Fact::Change(change) => self.take_change(sequence, change),
            Fact::Record(Record::Started { task, allocation: Some(allocation), .. }) => {
                let waited = allocation.total().0 / 1_000;
                let counts = Counts { starts: 1, waited, ..Counts::default() };
                self.add(sequence, task.job, at, &counts);
            }
            Fact::Record(_) => {}
        }
    }

    fn take_change(&mut self, sequence: u64, change: &Change) {
        match change {
            Change::JobAdmitted { job, .. } | Change::Managed { job } => drop(self.jobs.insert(job.id, Job::of(job))),
            Change::JobUpdated { job, update, .. } => {
                if let (Some(entry), Some(queue)) = (self.jobs.get_mut(job), &update.queue) {
                    entry.queue = queue.as_str().into();
                }
            }
            Change::JobForgotten { job } => drop(self.jobs.remove(job)),
            Change::JobEnded { job, at, .. } => {
                self.add(sequence, *job, *at, &Counts { jobs: 1, ..Counts::default() });
            }
            Change::Launched { attempt, at, .. } => drop(self.launched.insert(*attempt, *at)),
            Change::Finished { attempt, task, ended, last, at, .. } => {
                self.launched.remove(attempt);
                self.on_finished(sequence, *task, ended, *last, *at);
            }
            // Its time was counted when it was given up.
            Change::EndedLate { task, ended, at, .. } => {
                let used = Used { held: Duration::ZERO, ..Used::of(ended) };
                self.spread(sequence, *task, *at, &used, |_| Counts::default());
            }
            Change::Lost { attempt, task, last, at, .. } => {
                let held = self.launched.remove(attempt).map_or(Duration::ZERO, |launched| at.since(launched));
                let counts = Counts { attempts: 1, lost: 1, tasks: u64::from(*last), ..Counts::default() };
                self.add(sequence, task.job, *at, &counts);
                let used = Used { held, ..Used::default() };
                self.spread(sequence, *task, *at, &used, |cpu| Counts { cpu_lost: cpu, ..Counts::default() });
            }
            _ => {}
        }
    }

    fn on_finished(&mut self, sequence: u64, task: TaskId, ended: &Ended, last: bool, at: Instant) {
        let is_preempted = matches!(ended.reason, EndReason::Preempted | EndReason::Shed);
        let (tasks, preempted) = (u64::from(last), u64::from(is_preempted));
        self.add(sequence, task.job, at, &Counts { attempts: 1, tasks, preempted, ..Counts::default() });
        self.spread(sequence, task, at, &Used::of(ended), |cpu| Counts {
            cpu_preempted: if is_preempted { cpu } else { 0 },
            ..Counts::default()
        });
    }

    fn job(&self, job: JobId) -> Job {
        self.jobs.get(&job).cloned().unwrap_or_else(Job::unknown)
    }

    fn add(&mut self, sequence: u64, job: JobId, at: Instant, counts: &Counts) {
        let Job { user, queue, .. } = self.job(job);
        self.days.add(sequence, at.0 / DAY, (&user, &queue), counts);
    }

    /// Adds what an attempt held and used until `at` to the days in which it did so. `beside` has more counts for a day, by the
    /// CPU that it held in that day.
    fn spread(&mut self, sequence: u64, task: TaskId, at: Instant, used: &Used, beside: impl Fn(u64) -> Counts) {
        let Job { user, queue, resources } = self.job(task.job);
        let of_task = resources.get(task.stage as usize).copied().unwrap_or(Resources::ZERO);
        let whole = used.held.0.max(1);
        let first = at.0.saturating_sub(used.held.0.min(MOST_DAYS * DAY));
        let mut before = first;
        for day in first / DAY..=at.0 / DAY {
            let until = ((day + 1) * DAY).min(at.0);
            // Parts from the start to the end of the day, so that no rounding is lost.
            let part = |amount: u128, end: u64| (amount * u128::from(end - first) / u128::from(whole)) as u64;
            let in_day = |amount: u128| match used.held {
                Duration::ZERO => amount as u64,
                _ => part(amount, until) - part(amount, before),
            };
            let held = |kind: usize| u128::from(of_task.0[kind]) * u128::from(used.held.0) / 1_000;
            let cpu_asked = in_day(held(CPU));
            let mut counts = beside(cpu_asked);
            (counts.cpu_asked, counts.memory_asked) = (cpu_asked, in_day(held(MEMORY)));
            (counts.cpu_used, counts.memory_used) = (in_day(used.cpu), in_day(used.memory));
            self.days.add(sequence, day, (&user, &queue), &counts);
            before = until;
        }
    }
}

/// The longest time of an attempt that is counted.
const MOST_DAYS: u64 = 366;

/// How long an attempt held its resources, and what it used, in the units of [`Counts`].
#[derive(Default)]
struct Used {
    held: Duration,
    cpu: u128,
    /// The most memory that it had at once, for all of its time.
    memory: u128,
}

impl Used {
    fn of(ended: &Ended) -> Used {
        let usage = &ended.usage;
        let wall = Duration(usage.wall.0.min(MOST_DAYS * DAY));
        // A microsecond of a CPU is a thousandth of a CPU for a millisecond.
        let memory = u128::from(usage.max_memory_bytes) * u128::from(wall.0) / (1_000 << 20);
        Used { held: wall, cpu: u128::from(usage.cpu.0), memory }
    }
}

/// The totals of a process, which continue to be counted.
pub struct Accounting {
    history: History,
    handle: Handle,
    /// Read by threads that may block.
    book: Arc<Mutex<Option<Book>>>,
    /// The days before the jobs of the roles are known.
    unopened: Mutex<Option<Days>>,
    /// Opened once.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
pub enum AccountingError {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("cannot use the totals of usage: {0}")]
    Io(#[from] std::io::Error),
    #[error("the server is stopping")]
    Stopping,
}

impl Accounting {
    /// # Errors
    /// If the directory with the totals cannot be read.
    pub fn open(state_dir: &Path, history: History, handle: Handle, kept_days: u32) -> std::io::Result<Accounting> {
        let days = Days::open(&state_dir.join(DIR), history.end(), kept_days)?;
        let unopened = Mutex::new(Some(days));
        Ok(Accounting { history, handle, book: Arc::default(), unopened, opening: tokio::sync::Mutex::new(()) })
    }

    /// Counts what the log gets, for as long as the process runs.
    pub async fn run(self: Arc<Accounting>) {
        let mut has_failed = false;
        loop {
            match self.catch_up().await {
                Ok(()) => has_failed = false,
                Err(AccountingError::Stopping) => return,
                // Repeated failures have the same reason.
                Err(_) if has_failed => {}
                Err(error) => {
                    tracing::error!(%error, "cannot count the usage of jobs; trying again");
                    has_failed = true;
                }
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Totals of the days from `from` to `to`, up to what is committed now.
    ///
    /// # Errors
    /// If the log or the totals cannot be read.
    pub async fn report(
        &self,
        (from, to): (u64, u64),
        by: By,
        user: Option<String>,
    ) -> Result<Report, AccountingError> {
        self.catch_up().await?;
        let book = Arc::clone(&self.book);
        blocking(move || {
            let book = book.lock().unwrap_or_else(PoisonError::into_inner);
            let days = &book.as_ref().ok_or(AccountingError::Stopping)?.days;
            Ok(report::report(days, &Filter { from, to, user }, by)?)
        })
        .await
    }

    async fn catch_up(&self) -> Result<(), AccountingError> {
        self.learn_jobs().await?;
        let (book, history) = (Arc::clone(&self.book), self.history.clone());
        blocking(move || {
            let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
            read(book.as_mut().ok_or(AccountingError::Stopping)?, &history)
        })
        .await
    }

    /// At the start: the jobs and attempts of which the log that is read later has only the ends.
    async fn learn_jobs(&self) -> Result<(), AccountingError> {
        let _only = self.opening.lock().await;
        let Some(days) = self.unopened.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        let known = self.handle.ask(known).await;
        match known {
            Ok((jobs, launched)) => {
                *self.book.lock().unwrap_or_else(PoisonError::into_inner) = Some(Book { days, jobs, launched });
                Ok(())
            }
            Err(_) => Err(AccountingError::Stopping),
        }
    }
}

type Known = (BTreeMap<JobId, Job>, BTreeMap<AttemptId, Instant>);

fn known(roles: &Roles, _: Instant) -> Known {
    let jobs = roles.dispatch().into_iter().flat_map(|dispatch| dispatch.jobs_from(JobId(0)));
    let jobs = jobs.map(|(job, _)| (job.id, Job::of(job))).collect();
    let open = roles.jobs.values().flat_map(|manager| manager.open_attempts());
    let launched = open.filter_map(|open| Some((open.attempt, open.started_at?))).collect();
    (jobs, launched)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AccountingError> + Send + 'static,
) -> Result<T, AccountingError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(AccountingError::Stopping))
}

/// Counts the entries that were committed since the last call, and stores the totals.
fn read(book: &mut Book, history: &History) -> Result<(), AccountingError> {
    let from = book.days.next();
    let mut first = None;
    let next = history.scan(None, from, |sequence, entry| {
        first.get_or_insert(sequence);
        // An entry of a version that this program does not read: what it has is not counted, as in stories.
        if let Ok(fact) = decode(entry) {
            book.take(sequence, &fact, Instant(entry.at_micros));
        }
        ControlFlow::Continue(())
    })?;
    if let Some(first) = first.filter(|first| *first > from) {
        tracing::warn!(missing = first - from, "entries of the log were removed before their usage was counted");
    }
    Ok(book.days.save(next)?)
}

/// Writes a file of totals.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    durable::replace(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::Usage;

    const HOUR: u64 = 3_600 * 1_000_000;

    fn book(dir: &Path) -> Book {
        let days = Days::open(dir, 0, 400).unwrap();
        let resources = [Resources::new(2_000, 1_024)];
        let job = Job { user: "ada".into(), queue: "root.a".into(), resources: Arc::new(resources) };
        Book { days, jobs: BTreeMap::from([(JobId(1), job)]), launched: BTreeMap::new() }
    }

    fn finished(number: u32, hours: u64, at: u64, reason: EndReason) -> Change {
        let usage = Usage {
            wall: Duration(hours * HOUR),
            cpu: Duration(hours * HOUR),
            max_memory_bytes: 512 << 20,
            ..Usage::default()
        };
        let ended = Ended { reason, usage, message: None, files: None };
        let job = JobId(1);
        let attempt = AttemptId { job, epoch: amalgam_core::vocabulary::Epoch(1), number };
        let (task, node) = (TaskId { job, stage: 0, index: number }, Default::default());
        Change::Finished { attempt, task, node, ended: Arc::new(ended), last: true, at: Instant(at) }
    }

    fn hours(amount: u64) -> u64 {
        amount / (1_000 * 3_600 * 1_000)
    }

    #[test]
    fn an_attempt_counts_in_each_day_in_which_it_ran() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = book(dir.path());
        // From 20:00 to 2:00 two days later.
        let end = 102 * DAY + 2 * HOUR;
        book.take_change(0, &finished(1, 30, end, EndReason::Exit(0)));
        book.take_change(1, &finished(2, 1, end, EndReason::Preempted));
        book.days.save(2).unwrap();
        let of = |day: u64| {
            let day = book.days.load(day).unwrap();
            day.rows.get(&("ada".to_owned(), "root.a".to_owned())).copied().unwrap_or_default()
        };
        assert_eq!([100, 101, 102].map(|day| hours(of(day).cpu_asked)), [8, 48, 4 + 2]);
        assert_eq!([100, 101, 102].map(|day| hours(of(day).cpu_used)), [4, 24, 2 + 1]);
        assert_eq!(of(101).memory_asked, 1_024 * 24 * HOUR / 1_000);
        assert_eq!(of(101).memory_used, 512 * 24 * HOUR / 1_000);
        let last = of(102);
        assert_eq!((last.attempts, last.tasks, last.preempted, hours(last.cpu_preempted)), (2, 2, 1, 2));
        assert_eq!(of(100).attempts, 0);
    }

    #[test]
    fn a_lost_attempt_counts_from_its_launch_and_its_late_end_only_what_it_used() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = book(dir.path());
        let Change::Finished { attempt, task, node, ended, .. } = finished(1, 3, 0, EndReason::Exit(0)) else {
            panic!("an end")
        };
        let (start, end) = (Instant(100 * DAY), Instant(100 * DAY + 5 * HOUR));
        book.launched.insert(attempt, start);
        let cause = amalgam_core::role::LostCause::NodeLost;
        book.take_change(0, &Change::Lost { attempt, task, node, cause, last: false, at: end });
        book.take_change(1, &Change::EndedLate { attempt, task, node, ended, at: end });
        book.days.save(2).unwrap();
        let counts = *book.days.load(100).unwrap().rows.values().next().unwrap();
        assert_eq!((counts.attempts, counts.lost, counts.tasks), (1, 1, 0));
        assert_eq!([counts.cpu_asked, counts.cpu_lost, counts.cpu_used].map(hours), [10, 10, 3]);
    }

    #[test]
    fn entries_are_counted_once_if_the_process_ends_while_days_are_stored() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [
            finished(1, 1, 100 * DAY + 12 * HOUR, EndReason::Exit(0)),
            finished(2, 1, 101 * DAY + 12 * HOUR, EndReason::Exit(0)),
        ];
        let mut first = book(dir.path());
        entries.iter().enumerate().for_each(|(at, entry)| first.take_change(at as u64, entry));
        // One of two days is stored, and not the number of the next entry.
        first.days.store_day(100, 2).unwrap();
        drop(first);
        let mut second = book(dir.path());
        assert_eq!(second.days.next(), 0);
        entries.iter().enumerate().for_each(|(at, entry)| second.take_change(at as u64, entry));
        second.days.save(2).unwrap();
        let third = book(dir.path());
        for day in [100, 101] {
            assert_eq!(third.days.load(day).unwrap().rows.values().map(|counts| counts.tasks).sum::<u64>(), 1);
        }
    }
}
