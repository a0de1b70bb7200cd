//! A process starts only once, on the node to which its job manager sent the launch, and with the requested resources.
//! Launches from an intruder are refused.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::places::ProcessId;
use crate::simulation::Simulation;
use amalgam_core::hosting::Fact;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, JobId, NodeId, Resources, TaskId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Tokens {
    /// By job and stage: the resources of a task.
    resources: BTreeMap<JobId, Vec<Resources>>,
    launched: BTreeMap<AttemptId, (TaskId, NodeId)>,
    started: BTreeSet<AttemptId>,
    /// Launches that an intruder sent to a node that could verify them at once.
    intrusions: u64,
}

impl Tokens {
    fn on_started(&mut self, node: usize, attempt: AttemptId, task: TaskId, held: &Resources) -> Result<(), Breach> {
        let node = NodeId(node as u32);
        if self.launched.get(&attempt) != Some(&(task, node)) {
            return Err(Breach::of_task(task, format!("{attempt} started on {node}, where it was not launched")));
        }
        let asked = self.resources.get(&task.job).and_then(|stages| stages.get(task.stage as usize));
        if asked != Some(held) {
            return Err(Breach::of_task(task, format!("{attempt} holds {held:?}, but its job requested {asked:?}")));
        }
        if !self.started.insert(attempt) {
            return Err(Breach::of_task(task, format!("{attempt} started twice")));
        }
        Ok(())
    }
}

/// Whether the node reported in these happenings that it refuses the launch of the attempt.
fn is_refused(node: usize, attempt: AttemptId, happened: &[Happening]) -> bool {
    happened.iter().any(|happening| match happening {
        Happening::Reported(
            ProcessId::Node(place),
            Fact::Record(Record::TokenRefused { attempt: refused, .. } | Record::Stale { attempt: refused, .. }),
        ) => (*place, *refused) == (node, attempt),
        _ => false,
    })
}

impl Checker for Tokens {
    fn rule(&self) -> &'static str {
        "a process starts once, where its job manager launched it, and an intruder's launches are refused"
    }

    /// Launches that an intruder sent to a node that could verify them at once.
    fn subjects(&self) -> u64 {
        self.intrusions
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for (at, happening) in happened.iter().enumerate() {
            match happening {
                Happening::Reported(_, Fact::Change(Change::JobAdmitted { job, .. })) => {
                    self.resources.insert(job.id, job.resources.clone());
                }
                Happening::Reported(_, Fact::Change(Change::Launched { attempt, task, node, .. })) => {
                    self.launched.insert(*attempt, (*task, *node));
                }
                Happening::TaskStarted { node, attempt, task, resources, .. } => {
                    self.on_started(*node, *attempt, *task, resources)?;
                }
                Happening::Intruded { node, attempt, task, is_judged: true } => {
                    self.intrusions += 1;
                    if !is_refused(*node, *attempt, &happened[at..]) {
                        let what = format!("n{node} did not refuse the launch of {attempt} from an intruder");
                        return Err(Breach::of_task(*task, what));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::{admitted, attempt, launched, quiet_world, task_started};
    use amalgam_core::role::TokenFault;
    use amalgam_core::vocabulary::ExecutionType;

    fn check(happened: &[Happening]) -> Result<(), Breach> {
        let known = [admitted(ExecutionType::Guaranteed), launched(attempt(1))];
        Tokens::default().check(&quiet_world(), &[&known, happened].concat())
    }

    #[test]
    fn a_process_that_differs_from_its_launch_is_noticed() {
        assert_eq!(check(&[task_started(0, attempt(1), 1_000)]), Ok(()));
        assert!(check(&[task_started(0, attempt(2), 1_000)]).is_err(), "another attempt");
        assert!(check(&[task_started(1, attempt(1), 1_000)]).is_err(), "another node");
        assert!(check(&[task_started(0, attempt(1), 2_000)]).is_err(), "more resources");
        assert!(check(&[task_started(0, attempt(1), 1_000), task_started(0, attempt(1), 1_000)]).is_err(), "again");
    }

    #[test]
    fn an_intruders_launch_that_is_not_refused_is_noticed() {
        let (attempt, task) = (attempt(2), TaskId { job: JobId(1), ..TaskId::default() });
        let intruded = Happening::Intruded { node: 0, attempt, task, is_judged: true };
        let refusal = |node: u32, attempt| {
            let (node_id, why) = (NodeId(node), TokenFault::NotAuthentic);
            let record = Record::TokenRefused { task, attempt, node: node_id, why };
            Happening::Reported(ProcessId::Node(node as usize), Fact::Record(record))
        };
        assert_eq!(check(&[intruded.clone(), refusal(0, attempt)]), Ok(()));
        assert!(check(std::slice::from_ref(&intruded)).is_err());
        assert!(check(&[refusal(0, attempt), intruded.clone()]).is_err(), "a refusal before the launch");
        assert!(check(&[intruded.clone(), refusal(1, attempt)]).is_err(), "a refusal by another node");
        let other = AttemptId { number: 3, ..attempt };
        assert!(check(&[intruded, refusal(0, other)]).is_err(), "a refusal of another attempt");
    }
}
