//! A running attempt with slow progress gets a duplicate, if the whole task is expected to end sooner elsewhere than the rest
//! of the attempt. Both run. The first to succeed counts, and the other one is stopped.
//!
//! This is the straggler detection of Boutin et al. 2014, section 3.4. Departs: both continue until one ends, even if the
//! duplicate has caught up.

use super::correction::{CorrectionRules, part_of};
use super::speeds::Speeds;
use super::{Basis, JobManager, Room, RunningAttempt};
use crate::policy::TimeAtNode;
use crate::progress::{Dag, Stage};
use crate::protocol::{Address, Rule};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, Duration, Ended, ExecutionType, Instant, NodeId, Sample, TaskId, Totals, Workdir};

/// A detected straggler.
#[derive(Clone, Copy)]
struct Straggler {
    task: TaskId,
    node: NodeId,
    /// Completed part of its work, in millionths.
    part: u32,
    left: Duration,
    /// Time for the whole task, at the speed of the others of its stage.
    takes: Duration,
    /// Minimum time to be saved elsewhere.
    margin: Duration,
}

impl JobManager {
    pub(super) fn on_progress(
        &mut self,
        now: Instant,
        from: Address,
        samples: &[(AttemptId, Sample)],
        out: &mut Outbox,
    ) {
        let Some(rules) = self.own.corrections.rules.filter(|rules| rules.progress_every.is_some()) else { return };
        for (attempt, sample) in samples {
            let Some(running) = self.attempts.get(attempt).filter(|running| from == Address::Node(running.node)) else {
                continue;
            };
            let task = running.task;
            let input = match self.speeds.input_of(*attempt) {
                Some(bytes) => bytes,
                None => self.input_bytes(task),
            };
            self.speeds.on_sample(*attempt, task.stage, input, sample);
        }
        for (attempt, _) in samples {
            self.review_progress(now, *attempt, rules, out);
        }
    }

    fn review_progress(&mut self, now: Instant, attempt: AttemptId, rules: CorrectionRules, out: &mut Outbox) {
        if self.lifecycle.is_stopping() || self.lifecycle.is_held() {
            return;
        }
        let Some(straggler) = self.find_straggler(attempt, rules) else { return };
        let (expected, stated) = (Some(straggler.takes), self.job.spec.stages[straggler.task.stage as usize].execution);
        for execution in [ExecutionType::Guaranteed, ExecutionType::Opportunistic] {
            if stated != ExecutionType::Auto && stated != execution || !self.may_send_another(straggler.task, execution)
            {
                continue;
            }
            let Straggler { task, node, part, left, takes, margin } = straggler;
            let placed = self.placed(task, node, execution, expected);
            let Some(scheduler) = &mut self.own.scheduler else { return };
            scheduler.advance(now);
            let better = scheduler.reconsider(placed, TimeAtNode::Runs(left), margin);
            let Some(better) = better else { continue };
            let (elsewhere, expected_wait) = (NodeId(better.node as u32), better.wait);
            out.record(Record::Straggles { task, attempt, node, part, left, elsewhere, takes });
            let (basis, rule) = (Basis::Queue, Rule::Straggler);
            let room = Room { node: elsewhere, basis, rule, passed_over: 0, execution, expected_wait };
            return self.launch(now, room, task, execution, out);
        }
    }

    /// Whether two attempts of it can run at once: in a shared directory they would overwrite each other's files.
    fn keeps_to_itself(&self, task: TaskId) -> bool {
        self.job.spec.stages[task.stage as usize].program.workdir == Workdir::Own
    }

    /// The attempt as a straggler, if it is slower than its stage by enough for a duplicate and has run long enough to tell.
    fn find_straggler(&self, attempt: AttemptId, rules: CorrectionRules) -> Option<Straggler> {
        let sent = self.attempts.get(&attempt)?;
        let may_have_one =
            sent.twin.is_none() && !sent.had_rival && sent.rule != Rule::Copy && self.keeps_to_itself(sent.task);
        let may_have_one = may_have_one && !self.dag.stage(sent.task.stage).is_limited();
        if !may_have_one || sent.started_at.is_none() {
            return None;
        }
        let (progress, takes) = self.speeds.compare(attempt)?;
        let left = progress.left();
        let margin = rules.least_saving.max(part_of(left, rules.saving)).max(part_of(takes, rules.saving));
        if progress.running_for < part_of(takes, rules.saving) || left < takes + margin {
            return None;
        }
        let (task, node) = (sent.task, sent.node);
        Some(Straggler { task, node, part: progress.part, left, takes, margin })
    }

    /// Both attempts run, so the second one has to fit into the job's share. A job may always have one, however small its share.
    pub(super) fn may_send_another(&self, task: TaskId, execution: ExecutionType) -> bool {
        let Some(room) = self.allowed_beside(execution) else { return execution == ExecutionType::Guaranteed };
        let mut taken = Totals::ZERO;
        taken.add(&self.job.resources[task.stage as usize]);
        let is_rival = |running: &RunningAttempt| {
            running.rule == Rule::Copy || running.twin.is_some() && running.rule == Rule::Straggler
        };
        taken.fits_in(&room) || !self.attempts.values().any(is_rival)
    }

    /// Records that a duplicate succeeded before the slow attempt.
    pub(super) fn report_overtaken(&self, by: AttemptId, out: &mut Outbox) {
        let Some(first) = self.attempts.get(&by).filter(|first| first.rule == Rule::Straggler) else { return };
        if let Some((attempt, slow)) = first.twin.and_then(|slow| Some((slow, self.attempts.get(&slow)?))) {
            out.record(Record::Overtaken { task: slow.task, attempt, node: slow.node, by });
        }
    }

    /// Counts the work of a task that succeeded.
    pub(super) fn note_speed(&mut self, task: TaskId, ended: &Ended) {
        if self.watches_progress() && ended.reason.is_success() {
            let input = self.input_bytes(task);
            self.speeds.on_finished(task.stage, input, ended.usage.run_time(), ended.usage.cpu);
        }
    }

    /// The same for all tasks that succeeded before a restart.
    pub(super) fn recall_speeds(&mut self) {
        if !self.watches_progress() {
            return;
        }
        self.speeds = Speeds::new(self.dag.stages.len());
        for (stage, index, wall, cpu) in finished_tasks(&self.dag) {
            let input = self.input_bytes(TaskId { job: self.id(), stage, index });
            self.speeds.on_finished(stage, input, wall, cpu);
        }
    }

    fn watches_progress(&self) -> bool {
        self.own.corrections.rules.is_some_and(|rules| rules.progress_every.is_some())
    }
}

fn finished_tasks(dag: &Dag) -> Vec<(u32, u32, Duration, Duration)> {
    let stages = (0..).zip(&dag.stages);
    let of_stage = |(stage, entry): (u32, &Stage)| {
        entry.succeeded_runs().map(move |(index, wall, cpu)| (stage, index, wall, cpu)).collect::<Vec<_>>()
    };
    stages.flat_map(of_stage).collect()
}
