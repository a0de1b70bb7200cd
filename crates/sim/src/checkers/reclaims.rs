//! Under presets that preempt work of jobs beyond their entitlements: each attempt is preempted for one job only, for another
//! job than its own, and for one that runs; and an attempt of a gang is not preempted. (That jobs keep what they are entitled to is asserted in
//! the scheduler, which knows it. That no job starves is checked by the liveness of all jobs.) In a federation, it is preempted for an
//! attempt of the same global master.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::protocol::{AdmittedJob, Rule};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default)]
pub struct Reclaims {
    jobs: BTreeMap<JobId, Arc<AdmittedJob>>,
    /// The attempts that were preempted, and for which job.
    preempted: BTreeMap<AttemptId, JobId>,
    /// Attempts in a federation for which others may be preempted by the order of jobs.
    reclaiming: BTreeSet<AttemptId>,
}

impl Reclaims {
    fn on_record(&mut self, world: &Simulation, record: &Record) -> Result<(), Breach> {
        let (task, attempt, by) = match *record {
            Record::Reclaiming { task, attempt, by, .. } => (task, attempt, by),
            Record::Preempting { task, attempt, by, .. } if self.reclaiming.contains(&by) => (task, attempt, by.job),
            _ => return Ok(()),
        };
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
        if let Some(federation) = world.settings().federation_of(world.nodes().count())
            && federation.admitted_by(task.job) != federation.admitted_by(by)
        {
            return wrong(format!("attempt {attempt} is preempted for job {by} of another global master"));
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

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            match happening.change() {
                Some(Change::JobAdmitted { job, .. }) => drop(self.jobs.insert(job.id, Arc::clone(job))),
                Some(Change::Launched { attempt, rule: Rule::Reclaimed, .. }) => {
                    self.reclaiming.insert(*attempt);
                }
                _ => happening.record().map_or(Ok(()), |record| self.on_record(world, record))?,
            }
        }
        Ok(())
    }

    fn subjects(&self) -> u64 {
        self.preempted.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{job, nodes, run};
    use amalgam_core::policy::inter_job::QueueTree;
    use amalgam_core::preset::Preset;
    use amalgam_core::protocol::JobOutcome;
    use amalgam_core::vocabulary::{Duration, QueueSpec, Resources};
    use amalgam_workload::trace::{MalformedLines, Workload};

    const SECOND: u64 = 1_000_000;
    /// Of the first job, each of whose tasks runs for an hour.
    const LONG: Duration = Duration::from_secs(3_600);

    /// Two clusters of two nodes with four cores and two global masters, or one cluster of four nodes under `amalgam`. The first global
    /// master has a job that holds all cores, and at 100 s this one or the other gets a job with two tasks of 10 s.
    fn world(preset: Preset, of_short: u8) -> Simulation {
        world_of(preset, (of_short, 2), 0, 1)
    }

    /// The same with this number of tasks of the second job, this guarantee of its queue in millionths, and tasks of the first job
    /// that need this number of cores.
    fn world_of(preset: Preset, (of_short, count): (u8, u32), guaranteed: u32, cores: u32) -> Simulation {
        let queue = |name, global, guaranteed| QueueSpec { global: Some(global), guaranteed, ..QueueSpec::named(name) };
        let queues = QueueTree::new(vec![queue("root.long", 0, 0), queue("root.short", of_short, guaranteed)]).unwrap();
        let federation = (preset != Preset::AMALGAM).then_some((2, 2));
        let settings = Settings { preset, federation, queues, ..Settings::default() };
        let mut jobs = vec![
            job("root.long", 64 / cores, Duration::from_secs(1), LONG),
            job("root.short", count, Duration::from_secs(100), Duration::from_secs(10)),
        ];
        Arc::make_mut(&mut jobs[0].spec).stages[0].resources.basic = Resources::new(cores * 1_000, 0);
        let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
        let mut world = Simulation::new(settings, &nodes(4, 4), &workload);
        world.open();
        world.plan(Vec::new());
        world
    }

    /// When the second job ended, in seconds, and how many attempts were preempted until then.
    fn end_of_short(happened: &[Happening]) -> (Option<u64>, usize) {
        let mut preempted = BTreeSet::new();
        for happening in happened {
            if let Some(Record::Preempting { attempt, .. } | Record::Reclaiming { attempt, .. }) = happening.record() {
                preempted.insert(*attempt);
            }
            if let Some(Change::JobEnded { outcome: JobOutcome::Succeeded, at, .. }) = happening.change() {
                return (Some(at.0 / SECOND), preempted.len());
            }
        }
        (None, preempted.len())
    }

    #[test]
    fn in_a_federation_a_global_master_preempts_work_of_its_own_jobs_only() {
        for (preset, of_short, wanted) in [
            (Preset::AMALGAM_IN_FEDERATIONS, 0, true),
            (Preset::AMALGAM_IN_FEDERATIONS, 1, false),
            (Preset::MEGHA_PLUS, 0, false),
        ] {
            let mut world = world(preset, of_short);
            let happened = run(&mut world, 1_000 * SECOND);
            let mut checker = Reclaims::default();
            assert_eq!(checker.check(&world, &happened), Ok(()));
            let (ended, preempted) = end_of_short(&happened);
            assert_eq!((ended.is_some(), preempted > 0), (wanted, wanted), "{} {of_short}: {ended:?}", preset.name());
            assert_eq!(checker.subjects() as usize, preempted);
            if wanted {
                // A task has to wait for as long as an attempt had run; the second one takes the room of the first.
                assert_eq!((preempted, ended), (1, Some(219)));
            }
        }
    }

    /// One of the nodes has been reserved for the first job's other tasks since the 30th second.
    #[test]
    fn several_tasks_get_the_room_of_one_attempt_and_none_is_refused() {
        for preset in [Preset::AMALGAM, Preset::AMALGAM_IN_FEDERATIONS] {
            let mut world = world_of(preset, (0, 8), 500_000, 4);
            let happened = run(&mut world, 1_000 * SECOND);
            let refused = |happening: &&Happening| matches!(happening.record(), Some(Record::LaunchRefused { .. }));
            assert_eq!(happened.iter().filter(refused).count(), 0);
            assert_eq!(end_of_short(&happened), (Some(110), 2), "{:?}", world.settings().federation);
        }
    }
}
