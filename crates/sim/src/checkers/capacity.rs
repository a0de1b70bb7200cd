//! No node uses more resources than it has.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{AttemptId, Resources, TaskId};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Capacity {
    /// By node: the resources of each attempt, and whether it yields its CPU.
    running: BTreeMap<usize, BTreeMap<AttemptId, (Resources, bool)>>,
    /// Number of tasks that started beside others.
    shared: u64,
}

impl Capacity {
    fn hold(
        &mut self,
        world: &Simulation,
        node: usize,
        attempt: AttemptId,
        task: TaskId,
        held: (Resources, bool),
    ) -> Result<(), Breach> {
        let running = self.running.entry(node).or_default();
        running.insert(attempt, held);
        let held =
            running.values().map(|(resources, yields)| if *yields { resources.with(CPU, 0) } else { *resources });
        let total = held.fold(Resources::ZERO, |sum, next| sum.saturating_add(&next));
        let capacity = world.capacity(node);
        if total.fits_in(&capacity) {
            return Ok(());
        }
        let short = total.shortage(&capacity);
        Err(Breach::of_task(task, format!("with attempt {attempt}, n{node} uses more than it has, by {short:?}")))
    }
}

impl Checker for Capacity {
    fn rule(&self) -> &'static str {
        "no node is over-committed"
    }

    /// Tasks that started beside others.
    fn subjects(&self) -> u64 {
        self.shared
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            match happening {
                Happening::TaskStarted { node, attempt, task, resources, .. } => {
                    self.shared += u64::from(self.running.get(node).is_some_and(|running| !running.is_empty()));
                    self.hold(world, *node, *attempt, *task, (*resources, false))?;
                }
                Happening::Yielded { node, attempt, .. } => {
                    self.running.entry(*node).or_default().entry(*attempt).and_modify(|(_, yields)| *yields = true);
                }
                Happening::Resumed { node, attempt, task } => {
                    if let Some((resources, _)) = self.running.get(node).and_then(|running| running.get(attempt)) {
                        self.hold(world, *node, *attempt, *task, (*resources, false))?;
                    }
                }
                Happening::Ended { node, attempt, .. } => {
                    self.running.entry(*node).or_default().remove(attempt);
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
    use crate::checkers::testing::{attempt, quiet_world, task_started};

    #[test]
    fn the_cpu_of_a_yielding_attempt_is_free_until_it_resumes() {
        let (world, mut checker) = (quiet_world(), Capacity::default());
        let task = TaskId::default();
        let yielded = Happening::Yielded { node: 0, attempt: attempt(1), task };
        let story = [task_started(0, attempt(1), 1_500), yielded, task_started(0, attempt(2), 1_500)];
        assert_eq!(checker.check(&world, &story), Ok(()));
        assert!(checker.check(&world, &[Happening::Resumed { node: 0, attempt: attempt(1), task }]).is_err());
    }

    #[test]
    fn two_tasks_that_do_not_fit_together_are_noticed() {
        let world = quiet_world();
        let mut checker = Capacity::default();
        assert_eq!(checker.check(&world, &[task_started(0, attempt(1), 1_500)]), Ok(()));
        assert!(checker.check(&world, &[task_started(0, attempt(2), 1_000)]).is_err());
    }
}
