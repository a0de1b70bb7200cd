//! Rules that hold with any faults. They are checked after every event, from outside the roles.
//!
//! A checker sees the whole simulation and the happenings since its last check. It keeps its own records, so that it
//! does not repeat a bug of the roles.

mod agreement;
mod attempts;
mod capacity;
mod endings;
mod following;
mod gangs;
mod limits;
mod liveness;
mod outputs;
mod preemption;
mod probes;
mod reclaims;
mod room;
mod shares;
mod starvation;
mod submissions;
#[cfg(test)]
mod testing;
mod tokens;
mod yields;

use crate::faults::Happening;
use crate::node::STOP_GRACE;
use crate::simulation::Simulation;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Duration, Instant, JobId, TaskId};

pub trait Checker {
    /// The rule, as a sentence.
    fn rule(&self) -> &'static str;

    /// # Errors
    /// How the rule was broken.
    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach>;

    /// How often the rule could have been broken. A rule without subjects has checked nothing.
    fn subjects(&self) -> u64;

    /// Other counts for the coverage.
    fn saw(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// A last check after all faults and all jobs have ended and the settling time has passed.
    ///
    /// # Errors
    /// How the rule was broken.
    fn check_end(&mut self, _world: &Simulation) -> Result<(), Breach> {
        Ok(())
    }
}

/// How a rule was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breach {
    pub what: String,
    /// The task and the job that the breach concerns, if it is a single one.
    pub task: Option<TaskId>,
    pub job: Option<JobId>,
}

impl Breach {
    pub fn new(what: String) -> Breach {
        Breach { what, task: None, job: None }
    }

    pub fn of_task(task: TaskId, what: String) -> Breach {
        Breach { what, task: Some(task), job: Some(task.job) }
    }

    pub fn of_job(job: JobId, what: String) -> Breach {
        Breach { what, task: None, job: Some(job) }
    }
}

/// Longest time from the end of a process to the start of the next: reports, messages, launches.
const HAND_OVER: Duration = Duration::from_secs(1);

/// All rules, for a simulation of this preset in which all faults have ended by `healed_by`.
pub fn all(preset: Preset, healed_by: Instant) -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(capacity::Capacity::default()),
        Box::new(attempts::Attempts::default()),
        Box::new(agreement::Agreement::default()),
        Box::new(preemption::Preemption::new(
            preset.preempts_for_shares(),
            preset.entitled().is_some(),
            STOP_GRACE + HAND_OVER,
        )),
        Box::new(probes::Probes::default()),
        Box::new(room::Room::new(preset)),
        Box::new(outputs::Outputs::default()),
        Box::new(starvation::Starvation::new(preset)),
        Box::new(limits::Limits::default()),
        Box::new(reclaims::Reclaims::default()),
        Box::new(shares::Shares::default()),
        Box::new(submissions::Submissions::default()),
        Box::new(gangs::Gangs::default()),
        Box::new(tokens::Tokens::default()),
        Box::new(yields::Yields::new(preset.entitled().and_then(|settings| settings.yields_for))),
        Box::new(endings::Endings::default()),
        Box::new(following::Following::default()),
        Box::new(liveness::Liveness::new(healed_by)),
    ]
}
