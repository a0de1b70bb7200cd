//! A process begins only where its job manager launched it, with what it asked for, and once. Whoever else brings a launch
//! is refused.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::places::Place;
use crate::simulation::Simulation;
use amalgam_core::hosting::Fact;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, JobId, NodeId, Resources, TaskId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Tokens {
    /// Of each job, what a task of each stage holds.
    resources: BTreeMap<JobId, Vec<Resources>>,
    launched: BTreeMap<AttemptId, (TaskId, NodeId)>,
    began: BTreeSet<AttemptId>,
    /// Launches that an intruder brought to a node which could judge them at once.
    intrusions: u64,
}

impl Tokens {
    fn on_began(&mut self, node: usize, attempt: AttemptId, task: TaskId, held: &Resources) -> Result<(), Breach> {
        let node = NodeId(node as u32);
        if self.launched.get(&attempt) != Some(&(task, node)) {
            return Err(Breach::of_task(task, format!("{attempt} began on {node}, where nobody launched it")));
        }
        let asked = self.resources.get(&task.job).and_then(|stages| stages.get(task.stage as usize));
        if asked != Some(held) {
            return Err(Breach::of_task(task, format!("{attempt} holds {held:?}, and its job asked for {asked:?}")));
        }
        if !self.began.insert(attempt) {
            return Err(Breach::of_task(task, format!("{attempt} began twice")));
        }
        Ok(())
    }
}

/// Whether the node said of the attempt, here and now, that it does not take the launch.
fn is_refused(node: usize, attempt: AttemptId, happened: &[Happening]) -> bool {
    happened.iter().any(|happening| match happening {
        Happening::Told(
            Place::Node(place),
            Fact::Record(Record::TokenRefused { attempt: refused, .. } | Record::Stale { attempt: refused, .. }),
        ) => (*place, *refused) == (node, attempt),
        _ => false,
    })
}

impl Checker for Tokens {
    fn rule(&self) -> &'static str {
        "a process begins once, where its job manager launched it, and an intruder's launches are refused"
    }

    /// Launches that an intruder brought to a node which could judge them at once.
    fn subjects(&self) -> u64 {
        self.intrusions
    }

    fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for (at, happening) in happened.iter().enumerate() {
            match happening {
                Happening::Told(_, Fact::Change(Change::JobAdmitted { job, .. })) => {
                    self.resources.insert(job.id, job.resources.clone());
                }
                Happening::Told(_, Fact::Change(Change::Launched { attempt, task, node, .. })) => {
                    self.launched.insert(*attempt, (*task, *node));
                }
                Happening::Began { node, attempt, task, resources, .. } => {
                    self.on_began(*node, *attempt, *task, resources)?;
                }
                Happening::Intruded { node, attempt, task, is_judged: true } => {
                    self.intrusions += 1;
                    if !is_refused(*node, *attempt, &happened[at..]) {
                        let what = format!("n{node} did not refuse the launch of {attempt} that an intruder brought");
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
    use crate::checkers::testing::{admitted, attempt, began, launched, quiet_world};
    use amalgam_core::role::TokenFault;
    use amalgam_core::vocabulary::ExecutionType;

    fn check(happened: &[Happening]) -> Result<(), Breach> {
        let known = [admitted(ExecutionType::Guaranteed), launched(attempt(1))];
        Tokens::default().check(&quiet_world(), &[&known, happened].concat())
    }

    #[test]
    fn what_was_launched_may_begin_there_and_as_it_was_launched() {
        assert_eq!(check(&[began(0, attempt(1), 1_000)]), Ok(()));
        assert!(check(&[began(0, attempt(2), 1_000)]).is_err(), "another attempt");
        assert!(check(&[began(1, attempt(1), 1_000)]).is_err(), "another node");
        assert!(check(&[began(0, attempt(1), 2_000)]).is_err(), "more resources");
        assert!(check(&[began(0, attempt(1), 1_000), began(0, attempt(1), 1_000)]).is_err(), "again");
    }

    #[test]
    fn an_intruders_launch_that_is_not_refused_is_noticed() {
        let (attempt, task) = (attempt(2), TaskId { job: JobId(1), ..TaskId::default() });
        let intruded = Happening::Intruded { node: 0, attempt, task, is_judged: true };
        let refusal = |node: u32, attempt| {
            let (node_id, why) = (NodeId(node), TokenFault::NotAuthentic);
            let record = Record::TokenRefused { task, attempt, node: node_id, why };
            Happening::Told(Place::Node(node as usize), Fact::Record(record))
        };
        assert_eq!(check(&[intruded.clone(), refusal(0, attempt)]), Ok(()));
        assert!(check(std::slice::from_ref(&intruded)).is_err());
        assert!(check(&[refusal(0, attempt), intruded.clone()]).is_err(), "that was before");
        assert!(check(&[intruded.clone(), refusal(1, attempt)]).is_err(), "that was another node");
        let other = AttemptId { number: 3, ..attempt };
        assert!(check(&[intruded, refusal(0, other)]).is_err(), "that was another attempt");
    }
}
