//! The server's copies of job managers in other processes, made from the facts that these report, equal the job
//! managers: also if facts are reported twice, and after the server has restarted from its log.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::places::{self, ProcessId};
use crate::simulation::{Simulation, roles};
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::job_manager::JobManager;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::vocabulary::{Epoch, Instant, JobId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// The copies decide and launch nothing, so any epoch is valid.
const LIFE: Epoch = Epoch(1);
/// After this many facts, some are reported again.
const AGAIN: u64 = 64;

#[derive(Default)]
pub struct Following {
    /// The copies, created at the first fact.
    copies: Option<Roles>,
    /// All facts that each process of job managers has reported.
    reported: BTreeMap<usize, Vec<(Instant, Fact)>>,
    facts: u64,
}

impl Following {
    fn follow(&mut self, world: &Simulation, number: usize, fact: Fact) -> Result<(), Breach> {
        let copies = self.copies.get_or_insert_with(|| roles(world.settings(), LIFE));
        let reported = self.reported.entry(number).or_default();
        reported.push((world.now(), fact));
        self.facts += 1;
        let again = if self.facts.is_multiple_of(AGAIN) { AGAIN as usize / 2 } else { 1 };
        let first = reported.len().saturating_sub(again);
        let news = copies.follow(places::host(number), first as u64, reported[first..].to_vec());
        match news.map(|news| news.len()) {
            Ok(1) => Ok(()),
            other => Err(Breach::new(format!("of {again} facts with one new one, the copy took {other:?}"))),
        }
    }

    /// The server restarts from its log.
    fn restart(&mut self, world: &Simulation) {
        if let Some(copies) = &self.copies {
            let mut again = roles(world.settings(), LIFE);
            again.recover(Default::default(), QueueTree::single(), copies.durable());
            self.copies = Some(again);
        }
    }
}

impl Checker for Following {
    fn rule(&self) -> &'static str {
        "the server's copies of job managers in other processes equal them"
    }

    /// Facts that job managers in other processes reported.
    fn subjects(&self) -> u64 {
        self.facts
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            match happening {
                Happening::Reported(ProcessId::Managers(number), fact) => self.follow(world, *number, fact.clone())?,
                Happening::Started(ProcessId::Server) => self.restart(world),
                _ => {}
            }
        }
        Ok(())
    }

    fn check_end(&mut self, world: &Simulation) -> Result<(), Breach> {
        let Some(copies) = &self.copies else { return Ok(()) };
        let elsewhere = world.job_managers().filter(|(place, _)| *place != ProcessId::Server);
        let managers: BTreeMap<JobId, _> = elsewhere.map(|(_, manager)| (manager.job().id, manager)).collect();
        let known: BTreeSet<JobId> = copies.jobs.keys().copied().collect();
        if !known.iter().eq(managers.keys()) {
            return Err(Breach::new(format!("the job managers are {:?}, the copies {known:?}", managers.keys())));
        }
        for (job, manager) in managers {
            let copy = &copies.jobs[&job];
            let running = |manager: &JobManager| manager.running().collect::<Vec<_>>();
            if running(copy) != running(manager) {
                let what = format!("job {job} runs {:?}, but the copy has {:?}", running(manager), running(copy));
                return Err(Breach::of_job(job, what));
            }
            let stages = 0..manager.dag().stages.len() as u32;
            let tasks = stages.flat_map(|stage| (0..manager.dag().stage(stage).total).map(move |index| (stage, index)));
            for (stage, index) in tasks {
                let state = |manager: &JobManager| {
                    let status = manager.dag().stage(stage).status(index)?;
                    let record = status.record.filter(|record| record.attempts > 0);
                    Some((status.state, record.map(|record| (record.attempt(job), record.failures))))
                };
                if state(copy) != state(manager) {
                    let task = TaskId { job, stage, index };
                    let what = format!("{task} is {:?}, but the copy has {:?}", state(manager), state(copy));
                    return Err(Breach::of_task(task, what));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{run, simulation_of};
    use amalgam_core::preset::Preset;
    use amalgam_core::role::Change;

    #[test]
    fn a_change_that_is_not_reported_is_noticed() {
        let settings = Settings { preset: Preset::APOLLO, manager_processes: 1, ..Settings::default() };
        let mut world = simulation_of(settings, 4, &[]);
        let happened = run(&mut world, 40_000_000);
        let mut all = Following::default();
        assert_eq!(all.check(&world, &happened), Ok(()));
        assert!(all.subjects() > 10);
        all.check(&world, &[Happening::Started(ProcessId::Server)]).unwrap();
        assert_eq!(all.check_end(&world), Ok(()));
        let is_end = |happening: &&Happening| matches!(happening.change(), Some(Change::Finished { .. }));
        let last = happened.iter().rposition(|happening| is_end(&happening)).unwrap();
        let mut without = Following::default();
        let received: Vec<Happening> =
            happened.iter().enumerate().filter(|(at, _)| *at != last).map(|(_, received)| received.clone()).collect();
        without.check(&world, &received).unwrap();
        assert!(without.check_end(&world).is_err());
    }
}
