//! How long an attempt really runs and whether it fails: what the workload says, changed by chance and by its neighbours.

use amalgam_core::vocabulary::{Chance, Duration, EndReason, ExecutionType};
use std::collections::BTreeMap;

/// What befalls attempts beyond what the workload says; by default nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExecutionSettings {
    /// How much longer an attempt runs that starts on a node whose CPUs are all in use by others: 0.5 is half as long
    /// again. In proportion where they are partly in use.
    pub slowdown: f64,
    /// The probability that an attempt is a straggler, and how many times as long it runs then.
    pub stragglers: f64,
    pub straggler_factor: f64,
    /// The probability that an attempt fails, at a random moment of its run.
    pub failures: f64,
    /// The probability that an attempt heeds no request to end.
    pub stubborn: f64,
    /// How long it takes on average until an attempt does its work, and to clear up after it: room is taken meanwhile, and
    /// the node's other attempts go on. Uniformly drawn from the half to three halves of this.
    pub start_up: Duration,
    /// The room of a guaranteed attempt is taken for up to so long before its owner asks what it was given, as owners
    /// that ask on heartbeats do. Uniformly drawn.
    pub grant_delay: Duration,
}

impl Default for ExecutionSettings {
    fn default() -> ExecutionSettings {
        ExecutionSettings {
            slowdown: 0.0,
            stragglers: 0.0,
            straggler_factor: 5.0,
            failures: 0.0,
            stubborn: 0.0,
            start_up: Duration::ZERO,
            grant_delay: Duration::ZERO,
        }
    }
}

/// A task by the numbers of its workload, which do not depend on the order of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WorkloadTask {
    pub job: u32,
    pub stage: u32,
    pub index: u32,
}

/// Draws what befalls each try of a task from the seed, the task and the number of the try alone.
pub struct Execution {
    settings: ExecutionSettings,
    seed: u64,
    /// Tries that began, where anything is left to chance.
    tries: BTreeMap<WorkloadTask, u32>,
}

/// What an attempt goes through if nobody ends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Course {
    pub length: Duration,
    /// How long it would take if it did not fail, and how long if it was not slow either.
    pub whole: Duration,
    pub nominal: Duration,
    pub reason: EndReason,
    pub is_straggler: bool,
    /// It heeds no request to end.
    pub is_stubborn: bool,
}

impl Default for Course {
    /// It ends at once.
    fn default() -> Course {
        let (length, whole, nominal) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Course { length, whole, nominal, reason: EndReason::Exit(0), is_straggler: false, is_stubborn: false }
    }
}

impl Execution {
    pub fn new(settings: ExecutionSettings, seed: u64) -> Execution {
        Execution { settings, seed, tries: BTreeMap::new() }
    }

    /// Whether [`Execution::course`] looks at what the others use.
    pub fn heeds_neighbours(&self) -> bool {
        self.settings.slowdown > 0.0
    }

    /// The next try of a task that takes `run_time` when nothing befalls it; others use `busy` of its node's CPUs, a
    /// share in 0..=1.
    pub fn course(&mut self, task: WorkloadTask, run_time: Duration, busy: f64, execution: ExecutionType) -> Course {
        let ExecutionSettings { slowdown, stragglers, straggler_factor, failures, stubborn, .. } = self.settings;
        let mut factor = 1.0 + slowdown * busy;
        let (mut is_straggler, mut done) = (false, 1.0);
        let mut reason = EndReason::Exit(0);
        let mut is_stubborn = false;
        let mut before = Duration::ZERO;
        if stragglers > 0.0 || failures > 0.0 || stubborn > 0.0 || self.settings.takes_time_before() {
            let tries = self.tries.entry(task).or_default();
            let WorkloadTask { job, stage, index } = task;
            let mut chance = Chance::new(self.seed, &format!("try {tries} of {job}.{stage}.{index}"));
            *tries += 1;
            if chance.unit() < stragglers {
                factor *= straggler_factor;
                is_straggler = true;
            }
            if chance.unit() < failures {
                done = chance.unit();
                reason = EndReason::Exit(1);
            }
            is_stubborn = stubborn > 0.0 && chance.unit() < stubborn;
            before = self.settings.time_before(execution, &mut chance);
        }
        let lasting = |factor: f64| before + if factor == 1.0 { run_time } else { scaled(run_time, factor) };
        let (length, whole, nominal) = (lasting(factor * done), lasting(factor), lasting(1.0));
        Course { length, whole, nominal, reason, is_straggler, is_stubborn }
    }
}

impl ExecutionSettings {
    fn takes_time_before(&self) -> bool {
        self.start_up > Duration::ZERO || self.grant_delay > Duration::ZERO
    }

    /// How long an attempt takes its room beside the time that its work takes.
    fn time_before(&self, execution: ExecutionType, chance: &mut Chance) -> Duration {
        let start_up = scaled(self.start_up, 0.5 + chance.unit());
        match execution {
            ExecutionType::Opportunistic => start_up,
            ExecutionType::Guaranteed | ExecutionType::Auto => start_up + scaled(self.grant_delay, chance.unit()),
        }
    }
}

fn scaled(time: Duration, factor: f64) -> Duration {
    Duration::from_micros((time.as_micros() as f64 * factor).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    use ExecutionType::{Guaranteed, Opportunistic};

    const TASK: WorkloadTask = WorkloadTask { job: 1, stage: 0, index: 7 };
    const OTHER: WorkloadTask = WorkloadTask { index: 8, ..TASK };
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn tries_are_the_same_in_any_order_of_tasks() {
        let settings = ExecutionSettings { stragglers: 0.5, failures: 0.5, ..ExecutionSettings::default() };
        let tries = |order: &[WorkloadTask]| {
            let mut execution = Execution::new(settings, 7);
            let mut courses: Vec<_> =
                order.iter().map(|&task| (task, execution.course(task, SECOND, 0.0, Guaranteed))).collect();
            courses.sort_by_key(|(task, _)| *task);
            courses
        };
        assert_eq!(tries(&[TASK, TASK, OTHER, TASK]), tries(&[OTHER, TASK, TASK, TASK]));
        let lengths: Vec<Duration> = tries(&[TASK; 20]).into_iter().map(|(_, course)| course.length).collect();
        assert!(lengths.iter().any(|length| *length != lengths[0]), "each try has its own luck");
    }

    #[test]
    fn stragglers_and_failures_come_as_often_as_asked_for() {
        let settings = ExecutionSettings { stragglers: 0.2, failures: 0.1, ..ExecutionSettings::default() };
        let mut execution = Execution::new(settings, 1);
        let courses: Vec<Course> = (0..2_000).map(|_| execution.course(TASK, SECOND, 0.0, Guaranteed)).collect();
        let failed = courses.iter().filter(|course| course.reason == EndReason::Exit(1)).count();
        let slow = courses.iter().filter(|course| course.length == Duration::from_secs(5)).count();
        assert!((150..250).contains(&failed), "{failed}");
        assert!((310..410).contains(&slow), "stragglers that do not fail: {slow}");
    }

    #[test]
    fn neighbours_slow_a_task_down_and_nothing_else_changes_it_by_default() {
        let slowed = ExecutionSettings { slowdown: 0.5, ..ExecutionSettings::default() };
        assert_eq!(
            Execution::new(slowed, 1).course(TASK, SECOND, 0.5, Guaranteed).length,
            Duration::from_millis(1_250)
        );
        assert_eq!(
            Execution::new(ExecutionSettings::default(), 1).course(TASK, SECOND, 1.0, Guaranteed).length,
            SECOND
        );
    }

    #[test]
    fn an_attempt_takes_its_room_while_it_starts_and_a_guaranteed_one_from_its_grant_on() {
        let settings = ExecutionSettings {
            start_up: Duration::from_secs(4),
            grant_delay: Duration::from_secs(2),
            ..ExecutionSettings::default()
        };
        let mean = |kind| {
            let mut execution = Execution::new(settings, 1);
            let lengths = (0..2_000).map(|_| execution.course(TASK, SECOND, 0.0, kind).length.as_secs_f64());
            lengths.sum::<f64>() / 2_000.0
        };
        let (opportunistic, guaranteed) = (mean(Opportunistic), mean(Guaranteed));
        assert!((4.9..5.1).contains(&opportunistic), "{opportunistic}");
        assert!((5.9..6.1).contains(&guaranteed), "{guaranteed}");
    }
}
