//! How long an attempt runs and whether it fails: the run time of the workload, changed by chance and by other attempts
//! on the node.

use amalgam_core::vocabulary::{Chance, Duration, EndReason, ExecutionType};
use std::collections::BTreeMap;

/// Deviations from the run times of the workload. By default there are none.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExecutionSettings {
    /// How much longer an attempt runs if others use all CPUs of its node when it starts: 0.5 is 50 % longer.
    /// Proportionally less if others use a part of the CPUs.
    pub slowdown: f64,
    /// The probability that an attempt is a straggler, and the factor of its run time if it is.
    pub stragglers: f64,
    pub straggler_factor: f64,
    /// Nodes on which everything takes longer. They do not report it.
    pub slow_nodes: Option<SlowNodes>,
    /// The probability that an attempt fails, at a random time of its run.
    pub failures: f64,
    /// The probability that an attempt ignores requests to terminate.
    pub stubborn: f64,
    /// Mean time to set up an attempt and to clean up after it. The attempt holds its resources during this time. Drawn
    /// uniformly from 0.5 to 1.5 times this value.
    pub start_up: Duration,
    /// Maximum time for which a guaranteed attempt holds its resources before its owner learns of the grant, as with
    /// owners that ask on heartbeats. Drawn uniformly from 0 up to this value.
    pub grant_delay: Duration,
}

impl Default for ExecutionSettings {
    fn default() -> ExecutionSettings {
        ExecutionSettings {
            slowdown: 0.0,
            stragglers: 0.0,
            straggler_factor: 5.0,
            slow_nodes: None,
            failures: 0.0,
            stubborn: 0.0,
            start_up: Duration::ZERO,
            grant_delay: Duration::ZERO,
        }
    }
}

/// The last of each `every` nodes takes `factor` times as long for every attempt.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlowNodes {
    /// At least 1.
    pub every: u32,
    pub factor: f64,
}

impl SlowNodes {
    fn has(self, node: usize) -> bool {
        (node + 1).is_multiple_of(self.every as usize)
    }
}

/// A task, by its numbers in the workload, which do not depend on the order of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WorkloadTask {
    pub job: u32,
    pub stage: u32,
    pub index: u32,
}

/// Draws the run of each attempt. It depends only on the seed, the task and the number of the task's attempt.
pub struct Execution {
    settings: ExecutionSettings,
    seed: u64,
    /// Number of attempts that have started, by task. Only counted if the settings have random parts.
    tries: BTreeMap<WorkloadTask, u32>,
}

/// The run of an attempt that is not stopped early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedRun {
    pub length: Duration,
    /// Run time if it did not fail, and if it was not slowed down either.
    pub whole: Duration,
    pub nominal: Duration,
    pub reason: EndReason,
    pub is_straggler: bool,
    /// It ignores requests to terminate.
    pub is_stubborn: bool,
}

impl Default for PlannedRun {
    /// An attempt that ends at once.
    fn default() -> PlannedRun {
        let (length, whole, nominal) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        PlannedRun { length, whole, nominal, reason: EndReason::Exit(0), is_straggler: false, is_stubborn: false }
    }
}

impl Execution {
    pub fn new(settings: ExecutionSettings, seed: u64) -> Execution {
        Execution { settings, seed, tries: BTreeMap::new() }
    }

    /// The run time on this node of a task that takes `run_time` on others.
    pub fn on_node(&self, node: usize, run_time: Duration) -> Duration {
        let slow = self.settings.slow_nodes.filter(|slow| slow.has(node));
        slow.map_or(run_time, |slow| scaled(run_time, slow.factor))
    }

    /// Whether [`Execution::planned_run`] depends on the CPUs that others use.
    pub fn heeds_neighbours(&self) -> bool {
        self.settings.slowdown > 0.0
    }

    /// The run of the next attempt of a task whose undisturbed run time is `run_time`. Others use `busy` of its
    /// node's CPUs, a share in 0..=1.
    pub fn planned_run(
        &mut self,
        task: WorkloadTask,
        run_time: Duration,
        busy: f64,
        execution: ExecutionType,
    ) -> PlannedRun {
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
        PlannedRun { length, whole, nominal, reason, is_straggler, is_stubborn }
    }
}

impl ExecutionSettings {
    fn takes_time_before(&self) -> bool {
        self.start_up > Duration::ZERO || self.grant_delay > Duration::ZERO
    }

    /// How long an attempt holds its resources in addition to its run time.
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
    fn runs_are_the_same_in_any_order_of_tasks() {
        let settings = ExecutionSettings { stragglers: 0.5, failures: 0.5, ..ExecutionSettings::default() };
        let tries = |order: &[WorkloadTask]| {
            let mut execution = Execution::new(settings, 7);
            let mut runs: Vec<_> =
                order.iter().map(|&task| (task, execution.planned_run(task, SECOND, 0.0, Guaranteed))).collect();
            runs.sort_by_key(|(task, _)| *task);
            runs
        };
        assert_eq!(tries(&[TASK, TASK, OTHER, TASK]), tries(&[OTHER, TASK, TASK, TASK]));
        let lengths: Vec<Duration> = tries(&[TASK; 20]).into_iter().map(|(_, run)| run.length).collect();
        assert!(lengths.iter().any(|length| *length != lengths[0]), "each attempt is drawn separately");
    }

    #[test]
    fn stragglers_and_failures_have_the_configured_probabilities() {
        let settings = ExecutionSettings { stragglers: 0.2, failures: 0.1, ..ExecutionSettings::default() };
        let mut execution = Execution::new(settings, 1);
        let runs: Vec<PlannedRun> = (0..2_000).map(|_| execution.planned_run(TASK, SECOND, 0.0, Guaranteed)).collect();
        let failed = runs.iter().filter(|run| run.reason == EndReason::Exit(1)).count();
        let slow = runs.iter().filter(|run| run.length == Duration::from_secs(5)).count();
        assert!((150..250).contains(&failed), "{failed}");
        assert!((310..410).contains(&slow), "stragglers that do not fail: {slow}");
    }

    #[test]
    fn the_last_of_each_ten_nodes_is_slow_if_it_is_set() {
        let slow_nodes = Some(SlowNodes { every: 10, factor: 2.0 });
        let execution = Execution::new(ExecutionSettings { slow_nodes, ..ExecutionSettings::default() }, 1);
        let slow: Vec<usize> =
            (0..30).filter(|node| execution.on_node(*node, SECOND) == Duration(2 * SECOND.0)).collect();
        assert_eq!(slow, [9, 19, 29]);
        assert_eq!(execution.on_node(8, SECOND), SECOND);
    }

    #[test]
    fn other_attempts_slow_a_task_down_only_with_a_slowdown_setting() {
        let slowed = ExecutionSettings { slowdown: 0.5, ..ExecutionSettings::default() };
        assert_eq!(
            Execution::new(slowed, 1).planned_run(TASK, SECOND, 0.5, Guaranteed).length,
            Duration::from_millis(1_250)
        );
        assert_eq!(
            Execution::new(ExecutionSettings::default(), 1).planned_run(TASK, SECOND, 1.0, Guaranteed).length,
            SECOND
        );
    }

    #[test]
    fn start_up_and_for_guaranteed_attempts_the_grant_delay_lengthen_an_attempt() {
        let settings = ExecutionSettings {
            start_up: Duration::from_secs(4),
            grant_delay: Duration::from_secs(2),
            ..ExecutionSettings::default()
        };
        let mean = |kind| {
            let mut execution = Execution::new(settings, 1);
            let lengths = (0..2_000).map(|_| execution.planned_run(TASK, SECOND, 0.0, kind).length.as_secs_f64());
            lengths.sum::<f64>() / 2_000.0
        };
        let (opportunistic, guaranteed) = (mean(Opportunistic), mean(Guaranteed));
        assert!((4.9..5.1).contains(&opportunistic), "{opportunistic}");
        assert!((5.9..6.1).contains(&guaranteed), "{guaranteed}");
    }
}
