//! No node runs more than it has.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::vocabulary::{AttemptId, Resources};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Capacity {
    running: BTreeMap<usize, BTreeMap<AttemptId, Resources>>,
    /// Tasks that began beside others.
    shared: u64,
}

impl Checker for Capacity {
    fn rule(&self) -> &'static str {
        "no node is over-committed"
    }

    /// Tasks that began beside others.
    fn subjects(&self) -> u64 {
        self.shared
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for happening in happened {
            match happening {
                Happening::Began { node, attempt, task, resources, .. } => {
                    let running = self.running.entry(*node).or_default();
                    self.shared += u64::from(!running.is_empty());
                    running.insert(*attempt, *resources);
                    let total = running.values().fold(Resources::ZERO, |sum, next| sum.saturating_add(next));
                    let capacity = world.capacity(*node);
                    if !total.fits_in(&capacity) {
                        let short = total.shortage(&capacity);
                        let what = format!("with attempt {attempt}, n{node} runs more than it has, by {short:?}");
                        return Err(Breach::of_task(*task, what));
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
    use crate::checkers::testing::{attempt, began, quiet_world};

    #[test]
    fn two_tasks_that_do_not_fit_together_are_noticed() {
        let world = quiet_world();
        let mut checker = Capacity::default();
        assert_eq!(checker.check(&world, &[began(0, attempt(1), 1_500)]), Ok(()));
        assert!(checker.check(&world, &[began(0, attempt(2), 1_000)]).is_err());
    }
}
