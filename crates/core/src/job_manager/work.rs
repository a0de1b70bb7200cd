//! The total and the remaining work of a job, updated as tasks end: an update costs the same for a stage of one task and of a
//! million.

use crate::policy::run_time;
use crate::progress::{Dag, Stage};
use crate::protocol::AdmittedJob;
use crate::vocabulary::{Duration, Instant, JobWork, Work};

/// The master gets a new report when the last one is off by more than one part in this number. A large array causes about a
/// hundred reports, not one for each task.
const REPORTED_WITHIN: u64 = 16;

/// Least assumed run time of a task if that is judged by how long tasks have run.
const LEAST_ASSUMED: Duration = Duration::from_secs(1);

pub(super) struct WorkLeft {
    /// The values that each stage was counted with.
    stages: Vec<Counted>,
    now: JobWork,
    /// The last report to the present master.
    reported: Option<JobWork>,
    unknown: Unknown,
}

/// How run times of which nothing is known are judged.
#[derive(Clone, Default)]
struct Unknown {
    /// By how long tasks run; otherwise all are assumed to take equally long.
    is_judged: bool,
    stages: Vec<Seen>,
    /// When to look again: when tasks of some stage have run twice as long.
    due: Option<Instant>,
}

/// How long tasks of a stage have been seen to run.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Since when tasks of it run, if any do.
    since: Option<Instant>,
    /// The longest time for which any ran without a break, when that was looked at last.
    ran: Duration,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    /// The run time of one task.
    each: Duration,
    unfinished: u32,
}

impl WorkLeft {
    pub(super) fn new(job: &AdmittedJob, dag: &Dag) -> WorkLeft {
        let stages = vec![Seen::default(); dag.stages.len()];
        WorkLeft::assuming(Unknown { stages, ..Unknown::default() }, job, dag)
    }

    fn assuming(unknown: Unknown, job: &AdmittedJob, dag: &Dag) -> WorkLeft {
        let stages = vec![Counted::default(); dag.stages.len()];
        let mut left = WorkLeft { stages, now: JobWork::default(), reported: None, unknown };
        left.recount(job, dag);
        left
    }

    /// The same, counted from nothing.
    pub(super) fn counted_anew(&self, job: &AdmittedJob, dag: &Dag) -> WorkLeft {
        WorkLeft::assuming(self.unknown.clone(), job, dag)
    }

    /// From now on, run times of which nothing is known are judged by how long tasks run: those that have run for some time are
    /// expected to run for as long again, and those of a stage that has not started, for a second. So a new job gets the chance to
    /// show that it is short, and a long job stops counting as short.
    pub(super) fn judge_unknown(&mut self, job: &AdmittedJob, dag: &Dag) {
        self.unknown.is_judged = true;
        self.recount(job, dag);
    }

    /// A task of the stage was launched.
    pub(super) fn on_launched(&mut self, now: Instant, number: u32, dag: &Dag) {
        if self.unknown.is_judged && is_unknown(dag.stage(number)) && self.unknown.stages[number as usize].start(now) {
            let due = now + LEAST_ASSUMED;
            self.unknown.due = Some(self.unknown.due.map_or(due, |before| before.min(due)));
        }
    }

    /// Takes the attempts that were launched before a restart into account: by stage, and when.
    pub(super) fn on_recovered(&mut self, launched: impl Iterator<Item = (u32, Instant)>, dag: &Dag) {
        let Unknown { is_judged, ref mut stages, ref mut due } = self.unknown;
        for (stage, at) in launched.filter(|(stage, _)| is_judged && is_running_unknown(dag.stage(*stage))) {
            let since = &mut stages[stage as usize].since;
            *since = Some(since.map_or(at, |before| before.min(at)));
            *due = Some(Instant::ZERO);
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
        self.unknown.due = None;
        for (number, _) in (0..).zip(&dag.stages).filter(|(_, stage)| is_running_unknown(stage)) {
            let Unknown { stages, due, .. } = &mut self.unknown;
            let seen = &mut stages[number as usize];
            let runs = seen.since.map_or(Duration::ZERO, |since| now.since(since));
            seen.ran = seen.ran.max(runs);
            let again = now + runs.max(LEAST_ASSUMED);
            *due = Some(due.map_or(again, |at| at.min(again)));
            self.review(number, job, dag);
        }
        true
    }

    /// After a change to any number of stages.
    pub(super) fn recount(&mut self, job: &AdmittedJob, dag: &Dag) {
        (0..self.stages.len() as u32).for_each(|stage| self.review(stage, job, dag));
    }

    /// After a change to one stage: a task ended, or its run times are better known.
    pub(super) fn review(&mut self, stage: u32, job: &AdmittedJob, dag: &Dag) {
        let (entry, resources) = (dag.stage(stage), &job.resources[stage as usize]);
        if entry.running == 0 {
            self.unknown.stages[stage as usize].since = None;
        }
        let each = entry.estimate.expected().or_else(|| self.unknown.assumed(stage));
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
    fn assumed(&self, stage: u32) -> Option<Duration> {
        let ran = self.stages[stage as usize].ran;
        self.is_judged.then(|| Duration(ran.0.saturating_mul(2)).max(LEAST_ASSUMED))
    }
}

impl Seen {
    /// Returns whether none of the tasks ran before.
    fn start(&mut self, at: Instant) -> bool {
        let is_first = self.since.is_none();
        self.since.get_or_insert(at);
        is_first
    }
}

fn is_unknown(stage: &Stage) -> bool {
    stage.estimate.expected().is_none()
}

fn is_running_unknown(stage: &Stage) -> bool {
    stage.running > 0 && is_unknown(stage)
}

/// By stage, the assumed run time of a task.
pub(super) fn run_times(dag: &Dag) -> impl Iterator<Item = Duration> {
    dag.stages.iter().map(|stage| Duration(run_time(stage.estimate.expected()).0.max(1)))
}
