//! Chaos: scenarios that are drawn from seeds and checked after every event. After all faults have ended, every job has
//! to end.
//!
//! A run depends only on its seed, so a failure is replayed by running its seed again.

mod cluster;
mod coverage;
mod draws;
mod jobs;
mod misfortune;
mod queues;
mod scenario;
mod variants;

pub use coverage::{Coverage, Met, TotalCoverage};

use crate::checkers::{self, Breach, Checker};
use crate::faults::Happening;
use crate::parallel::in_order;
use crate::simulation::Simulation;
use crate::story;
use amalgam_core::vocabulary::{Duration, Instant, TaskId};
use scenario::{Scenario, UNSAFE_FOR};
use serde::Serialize;
use std::any::Any;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// After the last job has ended, all its state on nodes is gone within this time.
const SETTLES_WITHIN: Duration = Duration::from_secs(120);
/// A seed takes some thousand steps. One that takes this many does not end.
const MOST_STEPS: u64 = 3_000_000;
/// Maximum number of lines of a failure's story.
const SHOWN: usize = 30;

/// The result of one seed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub preset: &'static str,
    pub nodes: usize,
    pub jobs: usize,
    pub faults: usize,
    pub steps: u64,
    pub simulated_seconds: f64,
    /// Hash of all happenings: equal runs have equal digests.
    pub digest: String,
    pub coverage: Coverage,
    pub failure: Option<Failure>,
}

/// A rule that was broken.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Failure {
    pub rule: String,
    pub what: String,
    pub at_s: f64,
    /// The last happenings that concern the task or job of the failure, or all if it concerns none.
    pub story: Vec<String>,
}

/// Runs each seed and calls `report` with its report, in the order of the seeds with any number of threads.
pub fn run_seeds(seeds: RangeInclusive<u64>, threads: usize, report: impl FnMut(Report)) {
    in_order(seeds, threads, run_seed, report);
}

/// Runs one seed.
pub fn run_seed(seed: u64) -> Report {
    Trial::new(seed).run().0
}

/// Runs one seed and returns its report and the story of all happenings, or of those that concern one task.
pub fn run_seed_with_story(seed: u64, task: Option<TaskId>) -> (Report, Vec<String>) {
    let (report, happened) = Trial::new(seed).run();
    let concerned =
        happened.iter().filter(|(_, happening)| task.is_none_or(|task| story::concerns_task(happening, task)));
    (report, concerned.map(|(at, happening)| story::line(*at, happening)).collect())
}

/// One run of a seed.
struct Trial {
    seed: u64,
    faults: usize,
    world: Simulation,
    checkers: Vec<Box<dyn Checker>>,
    happened: Vec<(Instant, Happening)>,
    coverage: Coverage,
    steps: u64,
}

/// The rule that was broken, and how.
type Broken = (String, Breach);

impl Trial {
    fn new(seed: u64) -> Trial {
        let Scenario { settings, nodes, workload, plan } = Scenario::draw(seed);
        let faults = plan.len() - 1;
        let checkers = checkers::all(settings.preset, Instant::ZERO + UNSAFE_FOR);
        let mut world = Simulation::new(settings, &nodes, &workload);
        world.open();
        world.plan(plan);
        Trial { seed, faults, world, checkers, coverage: Coverage::default(), happened: Vec::new(), steps: 0 }
    }

    fn run(mut self) -> (Report, Vec<(Instant, Happening)>) {
        let broken = catch_unwind(AssertUnwindSafe(|| self.play())).unwrap_or_else(|panic| {
            Err(("the roles' own assertions hold".to_owned(), Breach::new(panic_message(panic.as_ref()))))
        });
        self.coverage.conclude(&self.checkers);
        let failure = broken.err().map(|(rule, breach)| Failure {
            rule,
            at_s: self.world.now().0 as f64 / 1e6,
            story: self.last_lines(&breach),
            what: breach.what,
        });
        let report = Report {
            seed: self.seed,
            preset: self.world.settings().preset.name(),
            nodes: self.world.nodes().len(),
            jobs: self.world.jobs().len(),
            faults: self.faults,
            steps: self.steps,
            simulated_seconds: self.world.now().0 as f64 / 1e6,
            digest: story::digest(&self.happened),
            coverage: self.coverage,
            failure,
        };
        (report, self.happened)
    }

    /// Runs until all faults have ended and every job has ended, and then until all state of the jobs is gone.
    fn play(&mut self) -> Result<(), Broken> {
        while !(self.world.is_healed() && self.world.is_done()) {
            self.step()?;
            if self.steps > MOST_STEPS {
                let what = format!("not finished after {MOST_STEPS} steps");
                return Err(("the run ends".to_owned(), Breach::new(what)));
            }
        }
        let settled = self.world.now() + SETTLES_WITHIN;
        while self.world.now() < settled {
            self.step()?;
        }
        for checker in &mut self.checkers {
            let rule = checker.rule();
            checker.check_end(&self.world).map_err(|breach| (rule.to_owned(), breach))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Broken> {
        self.steps += 1;
        self.world.step();
        let (now, happened) = (self.world.now(), self.world.take_happened());
        happened.iter().for_each(|happening| self.coverage.take_in(happening));
        let broken = self.checkers.iter_mut().find_map(|checker| {
            let rule = checker.rule();
            checker.check(&self.world, &happened).err().map(|breach| (rule.to_owned(), breach))
        });
        self.happened.extend(happened.into_iter().map(|happening| (now, happening)));
        broken.map_or(Ok(()), Err)
    }

    fn last_lines(&self, breach: &Breach) -> Vec<String> {
        let concerned = self.happened.iter().filter(|(_, happening)| concerns(happening, breach));
        let mut lines: Vec<String> = concerned.map(|(at, happening)| story::line(*at, happening)).collect();
        lines.split_off(lines.len().saturating_sub(SHOWN))
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// Whether the happening belongs to the story of the breach.
fn concerns(happening: &Happening, breach: &Breach) -> bool {
    match (breach.task, breach.job) {
        (Some(task), _) => story::concerns_task(happening, task),
        (None, Some(job)) => story::is_of_cluster(happening) || story::job_of(happening) == Some(job),
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::role::Change;

    /// Reports a breach, or panics, as soon as a task is launched.
    struct Never {
        panics: bool,
    }

    impl Checker for Never {
        fn rule(&self) -> &'static str {
            "nothing is launched"
        }

        fn subjects(&self) -> u64 {
            0
        }

        fn check(&mut self, _world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
            let launched = happened.iter().find_map(|happening| match happening.change() {
                Some(Change::Launched { task, .. }) => Some(*task),
                _ => None,
            });
            match launched {
                Some(_) if self.panics => panic!("something was launched"),
                Some(task) => Err(Breach::of_task(task, format!("task {task} was launched"))),
                None => Ok(()),
            }
        }
    }

    fn failure(panics: bool) -> Failure {
        let mut trial = Trial::new(4);
        trial.checkers.push(Box::new(Never { panics }));
        trial.run().0.failure.expect("a task was launched")
    }

    #[test]
    fn a_failure_names_the_broken_rule_and_its_story_ends_with_the_breach() {
        let failure = failure(false);
        assert_eq!(failure.rule, "nothing is launched");
        let task = failure.what.strip_suffix(" was launched").expect("a launch");
        assert!(failure.at_s > 0.0);
        let is_launch =
            |line: &String| line.contains(&format!("{task} granted")) || line.contains(&format!("{task} sent"));
        assert!(failure.story.last().is_some_and(is_launch), "{failure:?}");
    }

    #[test]
    fn a_panic_of_a_role_is_a_failure_of_its_seed() {
        assert_eq!(failure(true).what, "something was launched");
    }
}
