//! A job manager that places tasks itself: it probes nodes, or sends tasks to their queues.

use super::open_attempts::Outstanding;
use super::places::next_tasks;
use super::{AllowanceRules, Basis, CorrectionRules, ExplorationRules, JobManager, LaunchTarget};
use crate::policy::{Mix, PlacementPolicy, Quota};
use crate::protocol::{Address, Ask, NodeList, Rule, ToNode};
use crate::role::{Outbox, Record};
use crate::scheduling::{LocalScheduler, Step};
use crate::vocabulary::{
    AskId, AttemptId, Chance, Duration, ExecutionType, Instant, Margins, NodeId, NodeWaits, Prediction, ProbeId,
};
use crate::why::Why;
use std::sync::Arc;

/// Settings of a job manager that places tasks itself.
pub struct OwnPlacement {
    pub placement: Box<dyn PlacementPolicy>,
    pub tasks: OwnTasks,
}

/// Which tasks a job manager places itself, and the rules for them.
pub enum OwnTasks {
    /// All tasks, without limits.
    Everything,
    /// Opportunistic tasks; the master places the others.
    Opportunistic {
        /// Which tasks are opportunistic.
        mix: (Mix, Chance),
        quota: Quota,
        /// Request a booking for own attempts that have run for this long, and repeat the request at this interval.
        promote_after: Option<Duration>,
    },
    /// All tasks; which of them are guaranteed depends on the job's allowance.
    Entitled(EntitledTasks),
}

/// The rules of a job manager that places all tasks within the job's allowance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntitledTasks {
    pub allowance: AllowanceRules,
    /// Report the amount of work of the job to the master, which the allowance depends on.
    pub reports_work: bool,
    /// If set, placements are reviewed when a node reports.
    pub corrections: Option<CorrectionRules>,
    /// If set, other nodes are tried for waiting tasks, without any report.
    pub explores: Option<ExplorationRules>,
    /// Assumed run time of all tasks, used instead of estimates.
    pub assumed_run_time: Option<Duration>,
}

impl JobManager {
    pub(super) fn on_nodes(&mut self, now: Instant, list: Arc<NodeList>, margins: Arc<Margins>, out: &mut Outbox) {
        self.on_generation(list.generation);
        if let Some(scheduler) = &mut self.own.scheduler {
            scheduler.set_margins(now, margins);
            let steps = scheduler.on_nodes(now, list);
            self.carry_out(now, steps, out);
        }
        self.place(now, out);
        self.review_waiting(now, None, out);
    }

    pub(super) fn schedule(&mut self, now: Instant, asks: &[Ask], out: &mut Outbox) {
        if let Some(scheduler) = &mut self.own.scheduler {
            asks.iter().for_each(|ask| scheduler.on_ask(now, ask));
        }
        self.place(now, out);
    }

    /// A node reports how long tasks would wait there.
    pub(super) fn on_waits(
        &mut self,
        now: Instant,
        from: Address,
        waits: Arc<NodeWaits>,
        starts: &[(AttemptId, Duration)],
        out: &mut Outbox,
    ) {
        let Address::Node(node) = from else { return };
        for (attempt, wait) in starts {
            self.attempts.expect_start(node, *attempt, now + *wait);
        }
        if let Some(scheduler) = &mut self.own.scheduler {
            scheduler.on_waits(now, node, waits);
        }
        self.place(now, out);
        self.review_waiting(now, Some(node), out);
    }

    /// Carries out the decisions of the scheduler.
    pub(super) fn place(&mut self, now: Instant, out: &mut Outbox) {
        if self.own.has_allowance() {
            self.place_within_allowance(now, out);
            return self.record_limit(self.allowance_that_binds(), out);
        }
        let Outstanding { booked, unbooked } = self.attempts.outstanding();
        let left = self.own.quota().left(booked, unbooked);
        let steps = self.own.scheduler.as_mut().map(|scheduler| scheduler.decide(now, left)).unwrap_or_default();
        self.carry_out(now, steps, out);
        if self.own.quota().is_set() {
            self.record_limit(self.quota_that_binds(), out);
        }
    }

    fn place_within_allowance(&mut self, now: Instant, out: &mut Outbox) {
        self.request_allowance(now, out);
        let Some(scheduler) = &mut self.own.scheduler else { return };
        scheduler.advance(now);
        let is_free = self.promote_starved(now, out);
        if is_free {
            self.promote_sent(now, out);
        }
        if !self.own.scheduler.as_ref().is_some_and(LocalScheduler::has_open_tasks) {
            if is_free {
                self.promote_within_allowance(now, out);
            }
            return;
        }
        self.expect_next();
        let guaranteed = is_free.then_some(ExecutionType::Guaranteed);
        for execution in guaranteed.into_iter().chain([ExecutionType::Opportunistic]) {
            // Tasks sent in the first turn count in the second.
            let Some(allowed) = self.allowed(execution) else { return };
            let Some(scheduler) = &mut self.own.scheduler else { return };
            let steps = scheduler.decide_batches(now, allowed, &next_tasks(&self.job, &self.dag, &self.requests));
            self.carry_out(now, steps, out);
            if execution == ExecutionType::Guaranteed {
                self.promote_within_allowance(now, out);
            }
        }
    }

    /// Sets the expected run time of the next task of each ask in the job's own scheduler. Later tasks read less.
    fn expect_next(&mut self) {
        for ask in 0..self.requests.len() {
            self.requests.next_stage(ask).into_iter().for_each(|stage| self.line_up(stage));
        }
        let (requests, dag) = (&self.requests, &self.dag);
        let of_stage = |stage| {
            dag.next_task(stage).map_or(dag.stage(stage).estimate.expected(), |index| dag.expected(stage, index))
        };
        if let Some(scheduler) = &mut self.own.scheduler {
            scheduler.expect(|ask| requests.next_stage(ask).and_then(of_stage));
        }
    }

    /// Records a limit once, each time that it starts to hold tasks back.
    fn record_limit(&mut self, limit: Option<Why>, out: &mut Outbox) {
        let starts_to_bind = self.own.starts_to_bind(limit.is_some());
        if let Some(why) = limit.filter(|_| starts_to_bind) {
            out.record(Record::Blocked { job: self.id(), why });
        }
    }

    /// The quota, if it keeps the job's own tasks from being sent to nodes.
    pub(super) fn quota_that_binds(&self) -> Option<Why> {
        let Outstanding { booked, unbooked } = self.attempts.outstanding();
        let limit = self.own.quota().limit_on(booked, unbooked);
        limit.filter(|_| self.own.scheduler.as_ref().is_some_and(LocalScheduler::has_open_tasks))
    }

    pub(super) fn carry_out(&mut self, now: Instant, steps: Vec<Step>, out: &mut Outbox) {
        for step in steps {
            match step {
                Step::Start { ask, node, task, rule, execution, wait } => {
                    let (basis, expected_wait) = (Basis::Queue, wait);
                    let target = LaunchTarget { node, basis, rule, passed_over: 0, execution, expected_wait };
                    self.bind(now, ask, task, target, out);
                }
                Step::Probe { node, probe } => out.send(node, ToNode::Probe(probe)),
                Step::Cancel { node, probes } => out.send(node, ToNode::Cancel { probes }),
            }
        }
    }

    /// Sends the next opportunistic task of the stage to a node that had room when another one did not. False if it does not
    /// suit.
    pub(super) fn send_to(&mut self, stage: u32, node: NodeId) -> bool {
        let ask = self.requests.opportunistic_ask(stage);
        self.own.scheduler.as_mut().is_some_and(|scheduler| scheduler.send_to(ask, node))
    }

    /// A node keeps room for a probe: the next task gets it, if one is left.
    pub(super) fn on_ready(&mut self, now: Instant, from: Address, probe: ProbeId, out: &mut Outbox) {
        let Address::Node(node) = from else { return };
        let execution = ExecutionType::Auto;
        let (rule, expected_wait) = (Rule::Ready, Duration::ZERO);
        let is_bound = self.take_probe(now, probe).is_some_and(|(ask, prediction)| {
            let basis = Basis::Probe(probe, prediction);
            let target = LaunchTarget { node, basis, rule, passed_over: 0, execution, expected_wait };
            self.bind(now, ask, None, target, out)
        });
        if !is_bound {
            out.send(node, ToNode::Cancel { probes: vec![probe] });
        }
        self.place(now, out);
    }

    fn take_probe(&mut self, now: Instant, probe: ProbeId) -> Option<(AskId, Option<Prediction>)> {
        let scheduler = self.own.scheduler.as_mut().filter(|_| probe.epoch == self.attempts.epoch())?;
        scheduler.on_ready(now, probe.number)
    }

    /// The node gets no more tasks for some time, or until the master publishes again which nodes take work.
    pub(super) fn close_node(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if let Some(scheduler) = &mut self.own.scheduler {
            let steps = scheduler.close(now, node);
            self.carry_out(now, steps, out);
        }
    }

    /// The node has lost its probes.
    pub(super) fn forget_probes(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if let Some(scheduler) = &mut self.own.scheduler {
            let steps = scheduler.forget_node(node);
            self.carry_out(now, steps, out);
        }
    }
}
