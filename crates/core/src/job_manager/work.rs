//! The total and the remaining work of a job, updated as tasks end: an update costs the same for a stage of one task and of a
//! million.

use crate::policy::run_time;
use crate::progress::{Dag, Stage};
use crate::protocol::AdmittedJob;
use crate::vocabulary::{Duration, Instant, JobWork, Work};

/// The master gets a new report when the last one is off by more than one part in this number. A large array causes about a
/// hundred reports, not one for each task.
const REPORTED_WITHIN: u64 = 16;

/// Least assumed run time of a task if that is judged by how long the first one has run.
const LEAST_ASSUMED: Duration = Duration::from_secs(1);

pub(super) struct WorkLeft {
    /// The values that each stage was counted with.
    stages: Vec<Counted>,
    now: JobWork,
    /// The last report to the present master.
    reported: Option<JobWork>,
    unknown: Unknown,
}

/// What is assumed of a stage of whose run times nothing is known.
#[derive(Clone, Copy, Default)]
struct Unknown {
    /// Its tasks are assumed to run twice as long as the first had run at this time; `None`: as long as those of any other.
    seen_at: Option<Instant>,
    /// When to look again: when the first task of some stage has run twice as long.
    due: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    /// The run time of one task.
    each: Duration,
    unfinished: u32,
}

impl WorkLeft {
    pub(super) fn new(job: &AdmittedJob, dag: &Dag) -> WorkLeft {
        WorkLeft::assuming(Unknown::default(), job, dag)
    }

    fn assuming(unknown: Unknown, job: &AdmittedJob, dag: &Dag) -> WorkLeft {
        let stages = vec![Counted::default(); dag.stages.len()];
        let mut left = WorkLeft { stages, now: JobWork::default(), reported: None, unknown };
        left.recount(job, dag);
        left
    }

    /// The same, counted from nothing.
    pub(super) fn counted_anew(&self, job: &AdmittedJob, dag: &Dag) -> WorkLeft {
        WorkLeft::assuming(self.unknown, job, dag)
    }

    /// From now on, run times of which nothing is known are judged by how long tasks run: a task that has run for some time is
    /// expected to run for as long again, and one that has not started, for a second. So a new job gets the chance to show
    /// that it is short, and one that is not stops to count as such.
    pub(super) fn judge_unknown(&mut self, job: &AdmittedJob, dag: &Dag) {
        self.unknown.seen_at = Some(Instant::ZERO);
        self.recount(job, dag);
    }

    /// A task of the stage was launched.
    pub(super) fn on_launched(&mut self, now: Instant, stage: &Stage) {
        if self.unknown.seen_at.is_some() && stage.estimate.expected().is_none() {
            let due = now + LEAST_ASSUMED;
            self.unknown.due = Some(self.unknown.due.map_or(due, |before| before.min(due)));
        }
    }

    /// When [`WorkLeft::look_again`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.unknown.due
    }

    /// Judges unknown run times by how long tasks have run until now, if that is due. Returns whether it was.
    pub(super) fn look_again(&mut self, now: Instant, job: &AdmittedJob, dag: &Dag) -> bool {
        if self.unknown.due.is_none_or(|at| now < at) {
            return false;
        }
        let is_unknown = |stage: &&Stage| stage.running > 0 && stage.estimate.expected().is_none();
        let launches = dag.stages.iter().filter(is_unknown).filter_map(|stage| stage.first_launch);
        let due = launches.map(|first| now + now.since(first).max(LEAST_ASSUMED)).min();
        self.unknown = Unknown { seen_at: Some(now), due };
        self.recount(job, dag);
        true
    }

    /// After a change to any number of stages.
    pub(super) fn recount(&mut self, job: &AdmittedJob, dag: &Dag) {
        (0..self.stages.len() as u32).for_each(|stage| self.review(stage, job, dag));
    }

    /// After a change to one stage: a task ended, or its run times are better known.
    pub(super) fn review(&mut self, stage: u32, job: &AdmittedJob, dag: &Dag) {
        let (entry, resources) = (dag.stage(stage), &job.resources[stage as usize]);
        let each = entry.estimate.expected().or_else(|| self.unknown.assumed(entry));
        let new = Counted { each: run_time(each), unfinished: entry.unfinished() };
        let old = std::mem::replace(&mut self.stages[stage as usize], new);
        if new.each != old.each {
            self.now.total.sub(&Work::of(resources, old.each, entry.total));
            self.now.total.add(&Work::of(resources, new.each, entry.total));
        }
        self.now.remaining.sub(&Work::of(resources, old.each, old.unfinished));
        self.now.remaining.add(&Work::of(resources, new.each, new.unfinished));
    }

    /// A new master gets a new report.
    pub(super) fn restart(&mut self) {
        self.reported = None;
    }

    pub(super) fn is_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// Whether the last report is too far off. A master that got no asks needs no report.
    pub(super) fn is_news(&self) -> bool {
        self.reported.is_some_and(|reported| {
            self.now.remaining.differs(&reported.remaining, REPORTED_WITHIN)
                || self.now.total.differs(&reported.total, REPORTED_WITHIN)
        })
    }

    /// The report for the master.
    pub(super) fn report(&mut self) -> Box<JobWork> {
        self.reported = Some(self.now);
        Box::new(self.now)
    }

    pub(super) fn now(&self) -> &JobWork {
        &self.now
    }
}

impl Unknown {
    fn assumed(&self, stage: &Stage) -> Option<Duration> {
        let ran = |at: Instant| stage.first_launch.map_or(Duration::ZERO, |first| at.since(first));
        self.seen_at.map(|at| Duration(ran(at).0.saturating_mul(2)).max(LEAST_ASSUMED))
    }
}

/// By stage, the assumed run time of a task.
pub(super) fn run_times(dag: &Dag) -> impl Iterator<Item = Duration> {
    dag.stages.iter().map(|stage| Duration(run_time(stage.estimate.expected()).0.max(1)))
}
