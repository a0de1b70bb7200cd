//! How much work the job is and how much of it is left, kept as tasks end: a step costs the same for a stage of one
//! task as for one of a million.

use super::dag::Dag;
use crate::policy::run_time;
use crate::protocol::AdmittedJob;
use crate::vocabulary::{Duration, JobWork, Work};

/// The master is told when what it knows is off by more than one part in so many. So it hears of a large array some
/// hundred times, and not once for each task.
const TOLD_WITHIN: u64 = 16;

pub(super) struct WorkLeft {
    /// What each stage was counted by.
    stages: Vec<Counted>,
    now: JobWork,
    /// What the present master was told.
    told: Option<JobWork>,
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
            WorkLeft { stages: vec![Counted::default(); dag.stages.len()], now: JobWork::default(), told: None };
        left.recount(job, dag);
        left
    }

    /// After a change to any number of stages.
    pub(super) fn recount(&mut self, job: &AdmittedJob, dag: &Dag) {
        (0..self.stages.len() as u32).for_each(|stage| self.review(stage, job, dag));
    }

    /// After a change to one stage: some task of it ended, or its run times are better known.
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

    /// A master that knows nothing of the job is told anew.
    pub(super) fn restart(&mut self) {
        self.told = None;
    }

    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Whether what the master knows is too far off. One that was not asked for anything needs to know nothing.
    pub(super) fn is_news(&self) -> bool {
        self.told.is_some_and(|told| {
            self.now.remaining.differs(&told.remaining, TOLD_WITHIN) || self.now.total.differs(&told.total, TOLD_WITHIN)
        })
    }

    /// What to tell the master now.
    pub(super) fn tell(&mut self) -> Box<JobWork> {
        self.told = Some(self.now);
        Box::new(self.now)
    }

    pub(super) fn now(&self) -> &JobWork {
        &self.now
    }
}
