//! A running attempt with slow progress gets a duplicate, if the whole task is expected to end sooner elsewhere than the rest
//! of the attempt. Both run. The first to succeed counts, and the other one is stopped.
//!
//! This is the straggler detection of Boutin et al. 2014, section 3.4. Departs: both continue until one ends, even if the
//! duplicate has caught up.
//!
//! A slow transfer of a file is found here as well; its writer runs again ([`super::copies`]).

use super::RunningAttempt;
use super::correction::{CorrectionRules, part_of};
use super::speeds::Speeds;
use crate::policy::run_time;
use crate::protocol::Rule;
use crate::vocabulary::{AttemptId, Duration, NodeId, Sample, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// Assumed transfer rate of a file if nothing is slow, in bytes per second.
const USUAL_RATE: u64 = 80_000_000;

/// Finds what is slow: the speeds of the attempts, and the tasks that write their files again.
pub(super) struct Stragglers {
    /// `None` if nodes do not report progress.
    rules: Option<CorrectionRules>,
    speeds: Speeds,
    /// Open attempts that write the files of finished tasks again, and their tasks.
    copies: BTreeMap<AttemptId, TaskId>,
    /// Tasks that had such an attempt since the last restart.
    copied: BTreeSet<TaskId>,
}

/// A task that may end sooner on another node.
#[derive(Clone, Copy)]
pub(super) struct Slow {
    pub task: TaskId,
    pub node: NodeId,
    /// Remaining time there.
    pub left: Duration,
    /// Expected run time of the whole task.
    pub expected: Option<Duration>,
    /// Minimum time to be saved elsewhere.
    pub margin: Duration,
}

/// A detected straggler.
#[derive(Clone, Copy)]
pub(super) struct Straggler {
    pub slow: Slow,
    /// Completed part of its work, in millionths.
    pub part: u32,
    /// Time for the whole task, at the speed of the others of its stage.
    pub takes: Duration,
}

/// The writer of a file that an attempt waits for.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub task: TaskId,
    pub node: NodeId,
    /// Size of the file.
    pub bytes: u64,
    /// Expected run time of the task.
    pub expected: Option<Duration>,
}

impl Stragglers {
    /// `stages`: their number.
    pub(super) fn new(rules: Option<CorrectionRules>, stages: usize) -> Stragglers {
        let rules = rules.filter(|rules| rules.progress_every.is_some());
        Stragglers { rules, speeds: Speeds::new(stages), copies: BTreeMap::new(), copied: BTreeSet::new() }
    }

    /// Whether nodes report progress, so that stragglers can be found.
    pub(super) fn are_watched(&self) -> bool {
        self.rules.is_some()
    }

    /// An attempt was sent to a node, or is known from before a restart.
    pub(super) fn on_sent(&mut self, attempt: AttemptId, sent: &RunningAttempt) {
        if sent.rule == Rule::Copy {
            self.copies.insert(attempt, sent.task);
        }
    }

    /// The attempt has ended or was written off.
    pub(super) fn on_gone(&mut self, attempt: AttemptId) {
        self.speeds.on_gone(attempt);
        self.copies.remove(&attempt);
    }

    /// The input of a running attempt, if it reported before.
    pub(super) fn input_of(&self, attempt: AttemptId) -> Option<u64> {
        self.speeds.input_of(attempt)
    }

    pub(super) fn on_sample(&mut self, attempt: AttemptId, stage: u32, input_bytes: u64, sample: &Sample) {
        self.speeds.on_sample(attempt, stage, input_bytes, sample);
    }

    /// A task succeeded.
    pub(super) fn on_finished(&mut self, stage: u32, input_bytes: u64, wall: Duration, cpu: Duration) {
        self.speeds.on_finished(stage, input_bytes, wall, cpu);
    }

    /// Drops what is known of the speeds of tasks. `stages`: their number.
    pub(super) fn forget_speeds(&mut self, stages: usize) {
        self.speeds = Speeds::new(stages);
    }

    /// The attempt as a straggler, if it is slower than its stage by enough for a duplicate and has run long enough to tell.
    pub(super) fn find_straggler(&self, attempt: AttemptId, sent: &RunningAttempt) -> Option<Straggler> {
        let rules = self.rules?;
        let may_have_one = sent.twin.is_none() && !sent.had_rival && sent.rule != Rule::Copy;
        if !may_have_one || sent.started_at.is_none() {
            return None;
        }
        let (progress, takes) = self.speeds.compare(attempt)?;
        let left = progress.left();
        let margin = rules.least_saving.max(part_of(left, rules.saving)).max(part_of(takes, rules.saving));
        if progress.running_for < part_of(takes, rules.saving) || left < takes + margin {
            return None;
        }
        let slow = Slow { task: sent.task, node: sent.node, left, expected: Some(takes), margin };
        Some(Straggler { slow, part: progress.part, takes })
    }

    /// Whether the straggler is slower than its stage also by the CPU time that it needs. If not, the task has more to do than others
    /// with as much input, and would take as long elsewhere. `None` if the CPU time says nothing.
    pub(super) fn is_hindered(&self, attempt: AttemptId, straggler: &Straggler) -> Option<bool> {
        let takes = self.speeds.time_by_cpu(attempt)?;
        Some(straggler.slow.left >= takes + straggler.slow.margin)
    }

    /// The writer of a file that an attempt has `waited` for, if writing the file elsewhere saves enough and was not tried. The
    /// progress of a fetch is not known: it counts as half done.
    pub(super) fn find_slow_fetch(&self, writer: &Written, waited: Duration) -> Option<Slow> {
        let rules = self.rules?;
        let &Written { task, node, bytes, expected } = writer;
        let left = waited;
        let way = Duration((u128::from(bytes) * 1_000_000 / u128::from(USUAL_RATE)).try_into().unwrap_or(u64::MAX));
        let part = |of| part_of(of, rules.saving);
        let margin = rules.least_saving.max(part(left)).max(part(run_time(expected))) + way;
        let saves_enough = left >= run_time(expected) + margin;
        (saves_enough && !self.is_copied(task)).then_some(Slow { task, node, left, expected, margin })
    }

    /// One copy is enough: a third node would be as far away.
    fn is_copied(&self, writer: TaskId) -> bool {
        self.copied.contains(&writer) || self.copies.values().any(|task| *task == writer)
    }

    /// The task writes its files again.
    pub(super) fn on_copied(&mut self, writer: TaskId) {
        self.copied.insert(writer);
    }

    /// Open attempts that write the files of finished tasks again, and their tasks, in the order of ids.
    pub(super) fn copies(&self) -> impl Iterator<Item = (AttemptId, TaskId)> {
        self.copies.iter().map(|(attempt, task)| (*attempt, *task))
    }
}
