//! The tasks of a gang start together: no process of a gang starts before every task of its stage that has not
//! succeeded has an attempt at its node, and no attempt is launched while others of the gang run.
//!
//! The open attempts are taken from the changes that job managers report.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, JobId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Gangs {
    /// By job and stage.
    gangs: BTreeMap<(JobId, u32), Gang>,
    /// Number of processes of gangs that have started.
    started: u64,
}

#[derive(Default)]
struct Gang {
    tasks: u32,
    succeeded: BTreeSet<u32>,
    open: BTreeMap<AttemptId, u32>,
    /// Attempts that have arrived at their nodes.
    arrived: BTreeSet<AttemptId>,
    /// All attempts that the gang's starts so far have included.
    may_start: BTreeSet<AttemptId>,
    /// Attempts whose processes have started.
    started: BTreeSet<AttemptId>,
}

impl Gangs {
    fn of(&mut self, task: TaskId) -> Option<&mut Gang> {
        self.gangs.get_mut(&(task.job, task.stage))
    }

    fn take_in(&mut self, change: &Change) -> Result<(), Breach> {
        match change {
            Change::JobAdmitted { job, .. } => {
                let gangs = job.spec.stages.iter().zip(0..).filter(|(stage, _)| stage.gang);
                let gang = |tasks| Gang { tasks, ..Gang::default() };
                self.gangs.extend(gangs.map(|(stage, number)| ((job.id, number), gang(stage.tasks.len()))));
            }
            Change::Launched { attempt, task, .. } => {
                let Some(gang) = self.of(*task) else { return Ok(()) };
                if let Some(other) = gang.open.keys().find(|other| gang.started.contains(other)) {
                    let what = format!("{task} is launched again, but {other} of its gang runs already");
                    return Err(Breach::of_task(*task, what));
                }
                gang.open.insert(*attempt, task.index);
            }
            Change::Finished { attempt, task, ended, .. } => {
                if let Some(gang) = self.of(*task)
                    && gang.open.remove(attempt).is_some()
                    && ended.reason.is_success()
                {
                    gang.succeeded.insert(task.index);
                }
            }
            Change::Lost { attempt, task, .. } => {
                if let Some(gang) = self.of(*task) {
                    gang.open.remove(attempt);
                }
            }
            Change::OutputLost { task, .. } => {
                if let Some(gang) = self.of(*task) {
                    gang.succeeded.remove(&task.index);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The server crashed before this change was on disk.
    fn undo(&mut self, change: &Change) {
        match change {
            Change::Launched { attempt, task, .. } => {
                if let Some(gang) = self.of(*task) {
                    gang.open.remove(attempt);
                }
            }
            Change::Finished { attempt, task, .. } | Change::Lost { attempt, task, .. } => {
                if let Some(gang) = self.of(*task) {
                    gang.succeeded.remove(&task.index);
                    gang.open.insert(*attempt, task.index);
                }
            }
            Change::OutputLost { task, .. } => {
                if let Some(gang) = self.of(*task) {
                    gang.succeeded.insert(task.index);
                }
            }
            Change::JobAdmitted { job, .. } => self.gangs.retain(|(id, _), _| *id != job.id),
            _ => {}
        }
    }

    fn on_ordered_to_start(&mut self, job: JobId, stage: u32) -> Result<(), Breach> {
        let Some(gang) = self.gangs.get_mut(&(job, stage)) else { return Ok(()) };
        let open: BTreeSet<u32> = gang.open.values().copied().collect();
        let lacks = (0..gang.tasks).find(|index| !open.contains(index) && !gang.succeeded.contains(index));
        if let Some(index) = lacks {
            let what = format!("stage {stage} of job {job} starts, but its task {index} has no attempt");
            return Err(Breach::of_task(TaskId { job, stage, index }, what));
        }
        if let Some((attempt, index)) = gang.open.iter().find(|(attempt, _)| !gang.arrived.contains(attempt)) {
            let what = format!("stage {stage} of job {job} starts, but {attempt} has not arrived at its node");
            return Err(Breach::of_task(TaskId { job, stage, index: *index }, what));
        }
        gang.may_start.extend(gang.open.keys());
        Ok(())
    }

    fn on_started(&mut self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        let Some(gang) = self.of(task) else { return Ok(()) };
        if !gang.may_start.contains(&attempt) {
            return Err(Breach::of_task(task, format!("{attempt} started before its gang")));
        }
        gang.started.insert(attempt);
        self.started += 1;
        Ok(())
    }
}

impl Checker for Gangs {
    fn rule(&self) -> &'static str {
        "the tasks of a gang start together, and none without the others"
    }

    fn subjects(&self) -> u64 {
        self.started
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            if let Some(change) = happening.change() {
                self.take_in(change)?;
            }
            match (happening, happening.record()) {
                (Happening::Undone(changes), _) => changes.iter().rev().for_each(|change| self.undo(change)),
                (Happening::TaskStarted { attempt, task, .. }, _) => self.on_started(*attempt, *task)?,
                (_, Some(Record::AwaitsGang { task, attempt, .. })) => {
                    if let Some(gang) = self.of(*task) {
                        gang.arrived.insert(*attempt);
                    }
                }
                (_, Some(Record::GangStarts { job, stage, .. })) => self.on_ordered_to_start(*job, *stage)?,
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{attempt, finished, launched, quiet_world, reported_record, task_started};
    use crate::settings::{NetworkSettings, Settings};
    use crate::testing::{job, run};
    use amalgam_core::policy::inter_job::QueueTree;
    use amalgam_core::preset::Preset;
    use amalgam_core::vocabulary::{
        Attributes, Duration, EndReason, Federation, GlobalId, NodeId, QueueSpec, ResourceSpec, Resources,
    };
    use amalgam_workload::trace::{MalformedLines, Node, TraceJob, Workload};
    use std::sync::Arc;

    /// The breach by these happenings, with a gang of one task.
    fn breach(happened: &[Happening]) -> Option<String> {
        let mut gangs = Gangs::default();
        gangs.gangs.insert((JobId(1), 0), Gang { tasks: 1, ..Gang::default() });
        gangs.check(&quiet_world(), happened).err().map(|breach| breach.what)
    }

    fn arrived(number: u32) -> Happening {
        let task = TaskId { job: JobId(1), stage: 0, index: 0 };
        reported_record(Record::AwaitsGang { task, attempt: attempt(number), node: NodeId(0) })
    }

    fn gang_starts() -> Happening {
        reported_record(Record::GangStarts { job: JobId(1), stage: 0, tasks: 1 })
    }

    #[test]
    fn a_gang_that_starts_without_all_tasks_at_their_nodes_is_noticed() {
        assert!(breach(&[gang_starts()]).is_some_and(|what| what.contains("its task 0 has no attempt")));
        let early = breach(&[launched(attempt(0)), gang_starts()]);
        assert!(early.is_some_and(|what| what.contains("has not arrived at its node")));
        assert_eq!(
            breach(&[launched(attempt(0)), arrived(0), gang_starts(), task_started(0, attempt(0), 1_000)]),
            None
        );
    }

    #[test]
    fn a_process_that_starts_before_its_gang_is_noticed() {
        let what = breach(&[launched(attempt(0)), task_started(0, attempt(0), 1_000)]);
        assert!(what.is_some_and(|what| what.contains("started before its gang")));
    }

    #[test]
    fn a_launch_while_others_of_the_gang_run_is_noticed() {
        let events = [launched(attempt(0)), arrived(0), gang_starts()];
        let again = |between: &[Happening]| breach(&[&events[..], between, &[launched(attempt(1))]].concat());
        assert_eq!(again(&[]), None, "the order to start may be lost");
        let started = task_started(0, attempt(0), 1_000);
        assert!(again(std::slice::from_ref(&started)).is_some_and(|what| what.contains("runs already")));
        assert_eq!(again(&[started, finished(attempt(0), EndReason::Exit(1), false)]), None);
    }

    /// Two clusters of six nodes of one core, and a gang of nine tasks at each of two global masters. The gangs arrive
    /// at the same time.
    fn two_gangs(preset: Preset, seed: u64) -> Simulation {
        let queue = |number: u8| QueueSpec { global: Some(number), ..QueueSpec::named(&format!("root.q{number}")) };
        let queues = QueueTree::new(vec![queue(0), queue(1)]).unwrap();
        let gang = |queue: &str| {
            let mut job = job(queue, 9, Duration::from_secs(20), Duration::from_secs(5));
            Arc::make_mut(&mut job.spec).stages[0].gang = true;
            job
        };
        let jobs: Vec<TraceJob> = ["root.q0", "root.q1"].map(gang).to_vec();
        let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
        let resources = ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() };
        let node = |number| {
            let (name, resources) = (format!("host{number}"), resources.clone());
            Node { name, resources, attributes: Attributes::default() }
        };
        // The jitter makes the order of messages random, and with it which gang gets which node.
        let network = NetworkSettings { jitter: Duration::from_millis(2), ..NetworkSettings::default() };
        let settings = Settings { preset, seed, network, federation: Some((2, 2)), queues, ..Settings::default() };
        let mut world = Simulation::new(settings, &(0..12).map(node).collect::<Vec<_>>(), &workload);
        world.open();
        world.plan(Vec::new());
        world
    }

    #[test]
    fn two_gangs_that_hold_nodes_each_other_needs_release_them_and_both_run() {
        let runs = Preset::FEDERATED.into_iter().flat_map(|preset| (1..=10).map(move |seed| (preset, seed)));
        let mut stuck = 0;
        for (preset, seed) in runs {
            let mut world = two_gangs(preset, seed);
            let happened = run(&mut world, 120_000_000);
            let mut checker = Gangs::default();
            assert_eq!(checker.check(&world, &happened), Ok(()), "{} {seed}", preset.name());
            let (mut given_back, mut succeeded) = ([0; 2], [0; 2]);
            for change in happened.iter().filter_map(Happening::change) {
                let Change::Finished { task, ended, .. } = change else { continue };
                let GlobalId(global) = Federation::new(2, 2, 64).unwrap().admitted_by(task.job);
                match &ended.reason {
                    EndReason::Withdrawn(why) if why.contains("found room") => given_back[usize::from(global)] += 1,
                    reason => succeeded[usize::from(global)] += u32::from(reason.is_success()),
                }
            }
            assert_eq!(succeeded, [9, 9], "{} {seed}: released {given_back:?}", preset.name());
            stuck += u32::from(given_back.iter().all(|count| *count > 0));
        }
        assert!(stuck >= 5, "each gang held nodes that the other needed in {stuck} of 20 runs");
    }
}
