//! Under presets that preempt work of jobs beyond their entitlements: each attempt is preempted for one job only, for another
//! job than its own, and for one that runs; and an attempt of a gang is not preempted. (That jobs keep what they are entitled to is asserted in
//! the scheduler, which knows it. That no job starves is checked by the liveness of all jobs.)

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, JobId};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub struct Reclaims {
    jobs: BTreeMap<JobId, Arc<AdmittedJob>>,
    /// The attempts that were preempted, and for which job.
    preempted: BTreeMap<AttemptId, JobId>,
}

impl Reclaims {
    fn on_record(&mut self, record: &Record) -> Result<(), Breach> {
        let Record::Reclaiming { task, attempt, by, .. } = *record else { return Ok(()) };
        let wrong = |what: String| Err(Breach::of_task(task, what));
        if let Some(before) = self.preempted.insert(attempt, by).filter(|before| *before != by) {
            return wrong(format!("attempt {attempt} is preempted for job {by}, and was for job {before}"));
        }
        if task.job == by {
            return wrong(format!("attempt {attempt} is preempted for its own job"));
        }
        if !self.jobs.contains_key(&by) {
            return wrong(format!("attempt {attempt} is preempted for job {by}, which is not known"));
        }
        let stage = self.jobs.get(&task.job).and_then(|job| job.spec.stages.get(task.stage as usize));
        if stage.is_some_and(|stage| stage.gang) {
            return wrong(format!("attempt {attempt} of a gang is preempted"));
        }
        Ok(())
    }
}

impl Checker for Reclaims {
    fn rule(&self) -> &'static str {
        "an attempt beyond its job's entitlement is preempted once, for another job, and is of no gang"
    }

    fn check(&mut self, _: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            match happening.change() {
                Some(Change::JobAdmitted { job, .. }) => drop(self.jobs.insert(job.id, Arc::clone(job))),
                _ => happening.record().map_or(Ok(()), |record| self.on_record(record))?,
            }
        }
        Ok(())
    }

    fn subjects(&self) -> u64 {
        self.preempted.len() as u64
    }
}
