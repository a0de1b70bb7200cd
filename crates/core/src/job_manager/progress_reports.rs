//! Progress of running attempts as nodes report it, and second attempts of what is slow.

use super::stragglers::{Slow, Straggler};
use super::{Basis, JobManager, LaunchTarget, RunningAttempt};
use crate::policy::TimeAtNode;
use crate::progress::{Dag, Stage};
use crate::protocol::{Address, Rule};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, Duration, Ended, ExecutionType, Instant, NodeId, Sample, TaskId, Totals, Workdir};

impl JobManager {
    pub(super) fn on_progress(
        &mut self,
        now: Instant,
        from: Address,
        samples: &[(AttemptId, Sample)],
        out: &mut Outbox,
    ) {
        if !self.stragglers.are_watched() {
            return;
        }
        for (attempt, sample) in samples {
            let Some(running) = self.attempts.get(attempt).filter(|running| from == Address::Node(running.node)) else {
                continue;
            };
            let task = running.task;
            let input = match self.stragglers.input_of(*attempt) {
                Some(bytes) => bytes,
                None => self.input_bytes(task),
            };
            self.stragglers.on_sample(*attempt, task.stage, input, sample);
        }
        for (attempt, _) in samples {
            self.review_progress(now, *attempt, out);
        }
        if self.duplicates.has_changed() {
            self.update_demand(now, out);
        }
    }

    fn review_progress(&mut self, now: Instant, attempt: AttemptId, out: &mut Outbox) {
        if self.lifecycle.is_stopping() || self.lifecycle.is_held() {
            return;
        }
        let may_have_two =
            |sent: &&RunningAttempt| self.keeps_to_itself(sent.task) && !self.dag.stage(sent.task.stage).is_limited();
        let Some(sent) = self.attempts.get(&attempt).filter(may_have_two) else { return };
        let straggler = self.stragglers.find_straggler(attempt, sent);
        if self.own.scheduler.is_none() {
            return self.request_duplicate(attempt, straggler);
        }
        let Some(straggler) = straggler else { return };
        let Straggler { slow, part, takes } = straggler;
        let Some(target) = self.target_of_another(now, &slow, Rule::Straggler) else { return };
        let Slow { task, node, left, .. } = slow;
        let (elsewhere, execution) = (target.node, target.execution);
        out.record(Record::Straggles { task, attempt, node, part, left, elsewhere, takes });
        self.launch(now, target, task, execution, out);
    }

    /// Whether two attempts of it can run at once: in a shared directory they would overwrite each other's files.
    fn keeps_to_itself(&self, task: TaskId) -> bool {
        self.job.spec.stages[task.stage as usize].program.workdir == Workdir::Own
    }

    /// Room on a node where another attempt of the slow task ends sooner by the margin.
    pub(super) fn target_of_another(&mut self, now: Instant, slow: &Slow, rule: Rule) -> Option<LaunchTarget> {
        let &Slow { task, node, left, expected, margin } = slow;
        let stated = self.job.spec.stages[task.stage as usize].execution;
        for execution in [ExecutionType::Guaranteed, ExecutionType::Opportunistic] {
            if stated != ExecutionType::Auto && stated != execution || !self.may_send_another(task, execution) {
                continue;
            }
            let placed = self.placed(task, node, execution, expected);
            let scheduler = self.own.scheduler.as_mut()?;
            scheduler.advance(now);
            let Some(better) = scheduler.reconsider(placed, TimeAtNode::Runs(left), margin) else { continue };
            let (node, expected_wait) = (NodeId(better.node as u32), better.wait);
            return Some(LaunchTarget { node, basis: Basis::Queue, rule, passed_over: 0, execution, expected_wait });
        }
        None
    }

    /// Both attempts run, so the second one has to fit into the job's share. A job may always have one, however small its share.
    fn may_send_another(&self, task: TaskId, execution: ExecutionType) -> bool {
        let Some(room) = self.allowed_beside(execution) else { return execution == ExecutionType::Guaranteed };
        let mut taken = Totals::ZERO;
        taken.add(&self.job.resources[task.stage as usize]);
        let is_rival = |running: &RunningAttempt| {
            running.rule == Rule::Copy || running.twin.is_some() && running.rule == Rule::Straggler
        };
        taken.fits_in(&room) || !self.attempts.values().any(is_rival)
    }

    /// Records that a duplicate succeeded before the slow attempt.
    pub(super) fn report_overtaken(&mut self, by: AttemptId, out: &mut Outbox) {
        let Some(first) = self.attempts.get(&by).filter(|first| first.rule == Rule::Straggler) else { return };
        if let Some((attempt, slow)) = first.twin.and_then(|slow| Some((slow, self.attempts.get(&slow)?))) {
            out.record(Record::Overtaken { task: slow.task, attempt, node: slow.node, by });
            self.duplicates.on_won(attempt);
        }
    }

    /// Counts the work of a task that succeeded.
    pub(super) fn note_speed(&mut self, task: TaskId, ended: &Ended) {
        if self.stragglers.are_watched() && ended.reason.is_success() {
            let input = self.input_bytes(task);
            self.stragglers.on_finished(task.stage, input, ended.usage.run_time(), ended.usage.cpu);
        }
    }

    /// The same for all tasks that succeeded before a restart.
    pub(super) fn recall_speeds(&mut self) {
        if !self.stragglers.are_watched() {
            return;
        }
        self.stragglers.forget_speeds(self.dag.stages.len());
        for (stage, index, wall, cpu) in finished_tasks(&self.dag) {
            let input = self.input_bytes(TaskId { job: self.id(), stage, index });
            self.stragglers.on_finished(stage, input, wall, cpu);
        }
    }
}

fn finished_tasks(dag: &Dag) -> Vec<(u32, u32, Duration, Duration)> {
    let stages = (0..).zip(&dag.stages);
    let of_stage = |(stage, entry): (u32, &Stage)| {
        entry.succeeded_runs().map(move |(index, wall, cpu)| (stage, index, wall, cpu)).collect::<Vec<_>>()
    };
    stages.flat_map(of_stage).collect()
}
