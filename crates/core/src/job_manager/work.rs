//! The total and the remaining work of a job, updated as tasks end: an update costs the same for a stage of one task and of a
//! million.

use crate::policy::run_time;
use crate::progress::Dag;
use crate::protocol::AdmittedJob;
use crate::vocabulary::{Duration, JobWork, Work};

/// The master gets a new report when the last one is off by more than one part in this number. A large array causes about a
/// hundred reports, not one for each task.
const REPORTED_WITHIN: u64 = 16;

pub(super) struct WorkLeft {
    /// The values that each stage was counted with.
    stages: Vec<Counted>,
    now: JobWork,
    /// The last report to the present master.
    reported: Option<JobWork>,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    /// The run time of one task.
    each: Duration,
    unfinished: u32,
}

impl WorkLeft {
    pub(super) fn new(job: &AdmittedJob, dag: &Dag) -> WorkLeft {
        let mut left =
            WorkLeft { stages: vec![Counted::default(); dag.stages.len()], now: JobWork::default(), reported: None };
        left.recount(job, dag);
        left
    }

    /// After a change to any number of stages.
    pub(super) fn recount(&mut self, job: &AdmittedJob, dag: &Dag) {
        (0..self.stages.len() as u32).for_each(|stage| self.review(stage, job, dag));
    }

    /// After a change to one stage: a task ended, or its run times are better known.
    pub(super) fn review(&mut self, stage: u32, job: &AdmittedJob, dag: &Dag) {
        let (entry, resources) = (dag.stage(stage), &job.resources[stage as usize]);
        let new = Counted { each: run_time(entry.estimate.expected()), unfinished: entry.unfinished() };
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

/// By stage, the assumed run time of a task.
pub(super) fn run_times(dag: &Dag) -> impl Iterator<Item = Duration> {
    dag.stages.iter().map(|stage| Duration(run_time(stage.estimate.expected()).0.max(1)))
}
