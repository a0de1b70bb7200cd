//! Tasks that begin together do: no process of a gang begins before every task of its stage that has not succeeded has an attempt in
//! place, and none is launched beside others that run.
//!
//! Which attempts are open is counted by what job managers wrote down.

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
    /// Processes that began, of gangs.
    begun: u64,
}

#[derive(Default)]
struct Gang {
    tasks: u32,
    succeeded: BTreeSet<u32>,
    open: BTreeMap<AttemptId, u32>,
    /// Attempts that are known to be at their nodes.
    arrived: BTreeSet<AttemptId>,
    /// Those of them, and of all before, that were told to begin.
    may_start: BTreeSet<AttemptId>,
    /// Those that became processes.
    begun: BTreeSet<AttemptId>,
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
                if let Some(other) = gang.open.keys().find(|other| gang.begun.contains(other)) {
                    let what = format!("{task} is launched anew, and {other} of its gang runs since before");
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

    /// The server died before this was on disk: it is not so.
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
            let what = format!("stage {stage} of job {job} is told to begin, and its task {index} is nowhere");
            return Err(Breach::of_task(TaskId { job, stage, index }, what));
        }
        if let Some((attempt, index)) = gang.open.iter().find(|(attempt, _)| !gang.arrived.contains(attempt)) {
            let what =
                format!("stage {stage} of job {job} is told to begin, and {attempt} has not arrived at its node");
            return Err(Breach::of_task(TaskId { job, stage, index: *index }, what));
        }
        gang.may_start.extend(gang.open.keys());
        Ok(())
    }

    fn on_began(&mut self, attempt: AttemptId, task: TaskId) -> Result<(), Breach> {
        let Some(gang) = self.of(task) else { return Ok(()) };
        if !gang.may_start.contains(&attempt) {
            return Err(Breach::of_task(task, format!("{attempt} began, and its gang was not told to begin")));
        }
        gang.begun.insert(attempt);
        self.begun += 1;
        Ok(())
    }
}

impl Checker for Gangs {
    fn rule(&self) -> &'static str {
        "the tasks of a gang begin together, and none without the others"
    }

    fn subjects(&self) -> u64 {
        self.begun
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            if let Some(change) = happening.change() {
                self.take_in(change)?;
            }
            match (happening, happening.record()) {
                (Happening::Undone(changes), _) => changes.iter().rev().for_each(|change| self.undo(change)),
                (Happening::Began { attempt, task, .. }, _) => self.on_began(*attempt, *task)?,
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
    use crate::checkers::testing::{attempt, began, finished, launched, quiet_world, reported_record};
    use crate::settings::{NetworkSettings, Settings};
    use crate::testing::{job, run};
    use amalgam_core::policy::inter_job::QueueTree;
    use amalgam_core::preset::Preset;
    use amalgam_core::vocabulary::{
        Attributes, Duration, EndReason, Federation, GlobalId, NodeId, QueueSpec, ResourceSpec, Resources,
    };
    use amalgam_workload::trace::{MalformedLines, Node, TraceJob, Workload};
    use std::sync::Arc;

    /// What the rule says of these, where a gang of one task is known.
    fn breach(happened: &[Happening]) -> Option<String> {
        let mut gangs = Gangs::default();
        gangs.gangs.insert((JobId(1), 0), Gang { tasks: 1, ..Gang::default() });
        gangs.check(&quiet_world(), happened).err().map(|breach| breach.what)
    }

    fn arrived(number: u32) -> Happening {
        let task = TaskId { job: JobId(1), stage: 0, index: 0 };
        reported_record(Record::AwaitsGang { task, attempt: attempt(number), node: NodeId(0) })
    }

    fn begins() -> Happening {
        reported_record(Record::GangStarts { job: JobId(1), stage: 0, tasks: 1 })
    }

    #[test]
    fn a_gang_that_is_told_to_begin_without_a_task_is_noticed() {
        assert!(breach(&[begins()]).is_some_and(|what| what.contains("its task 0 is nowhere")));
        let early = breach(&[launched(attempt(0)), begins()]);
        assert!(early.is_some_and(|what| what.contains("has not arrived at its node")));
        assert_eq!(breach(&[launched(attempt(0)), arrived(0), begins(), began(0, attempt(0), 1_000)]), None);
    }

    #[test]
    fn a_process_that_begins_before_its_gang_is_noticed() {
        let what = breach(&[launched(attempt(0)), began(0, attempt(0), 1_000)]);
        assert!(what.is_some_and(|what| what.contains("was not told to begin")));
    }

    #[test]
    fn a_launch_beside_those_that_run_is_noticed() {
        let told = [launched(attempt(0)), arrived(0), begins()];
        let again = |between: &[Happening]| breach(&[&told[..], between, &[launched(attempt(1))]].concat());
        assert_eq!(again(&[]), None, "what it was told may be lost");
        let begun = began(0, attempt(0), 1_000);
        assert!(again(std::slice::from_ref(&begun)).is_some_and(|what| what.contains("runs since before")));
        assert_eq!(again(&[begun, finished(attempt(0), EndReason::Exit(1), false)]), None);
    }

    /// Two clusters of six nodes of one core, and a gang of nine at each of two global masters, which come at the same time.
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
        // Which of two letters comes first is drawn, and so who gets which node.
        let network = NetworkSettings { jitter: Duration::from_millis(2), ..NetworkSettings::default() };
        let settings = Settings { preset, seed, network, federation: Some((2, 2)), queues, ..Settings::default() };
        let mut world = Simulation::new(settings, &(0..12).map(node).collect::<Vec<_>>(), &workload);
        world.open();
        world.plan(Vec::new());
        world
    }

    #[test]
    fn two_gangs_that_each_hold_what_the_other_needs_come_apart_and_both_run() {
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
            assert_eq!(succeeded, [9, 9], "{} {seed}: {given_back:?} were given back", preset.name());
            stuck += u32::from(given_back.iter().all(|count| *count > 0));
        }
        assert!(stuck >= 5, "that each held some of what the other needed came up in {stuck} of 20 runs");
    }
}
