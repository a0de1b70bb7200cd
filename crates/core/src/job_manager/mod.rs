//! The manager of one job: it knows the DAG, asks for resources, binds grants to tasks, issues attempts and commits one
//! result per task. Only it makes new attempts.
//!
//! Each part owns its state: `Attempts`, `OwnScheduling`, `Stragglers`, `Gangs`, `Files` and the others. Parts do not
//! send messages. The handlers do, which are methods of `JobManager`: they pass a part what it has to know, and apply what
//! it returns. This file has the start of the job, its demand and its grants; the other handlers are in the submodules.

mod actions;
mod allowance;
mod at_master;
mod attempts;
mod blame;
mod by_age;
mod chosen;
mod connections;
mod copies;
mod correction;
mod duplicates;
mod exchange;
mod exploration;
mod files;
mod first_starts;
mod gang_orders;
mod gangs;
mod job_policy;
mod late_ends;
mod launches;
mod lifecycle;
mod node_claims;
mod open_attempts;
mod own_scheduling;
mod places;
mod placing;
mod progress_reports;
mod promotion;
mod questions;
mod requests;
mod retries;
mod saved;
mod sealer;
mod sizes;
mod speeds;
mod stragglers;
mod updates;
mod work;

pub use allowance::AllowanceRules;
pub use correction::CorrectionRules;
pub use exploration::ExplorationRules;
pub use questions::{JobDescription, OpenAttempt, RunningDescription};

use crate::policy::IntraJobPolicy;
use crate::progress::files::Files;
use crate::progress::{Dag, Holding, LostCause, TaskState};
use crate::protocol::{
    Address, AdmittedJob, Ask, Grant, JobOutcome, RequestedActions, Rule, TheMaster, ToJobHost, ToJobManager, ToMaster,
    ToNode,
};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::scheduling::LocalScheduler;
use crate::vocabulary::{
    AskId, Duration, Epoch, Estimated, ExecutionType, Federation, Generation, GrantId, HostId, Instant, JobId, NodeId,
    Prediction, ProbeId, Sealing, SharedGpu, TaskId, Totals,
};
use at_master::AtMaster;
use blame::Blame;
use duplicates::WantedDuplicates;
use first_starts::FirstStarts;
use gangs::Gangs;
use job_policy::JobPolicy;
use launches::Launches;
use lifecycle::Lifecycle;
use open_attempts::{Attempts, LaunchedIn, RunningAttempt};
use own_scheduling::{OwnScheduling, Rules};
use places::Unlocated;
pub use placing::{EntitledTasks, OwnPlacement, OwnTasks};
use requests::{Progress, Requests};
use sealer::Sealer;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use stragglers::Stragglers;
use work::WorkLeft;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobManagerSettings {
    /// Time between the request to terminate and the kill.
    pub stop_grace: Duration,
    /// An unanswered claim is repeated after this time.
    pub repeat_claims: Duration,
    /// Length of a token generation, where a job host counts generations itself.
    pub token_life: Duration,
    /// A job host gives up the attempts on a node that is not connected for this long.
    pub node_grace: Duration,
    /// Set if grants are proposals of a global master, and launches are sent through the nodes' masters.
    pub federation: Option<Federation>,
}

impl Default for JobManagerSettings {
    fn default() -> Self {
        JobManagerSettings {
            stop_grace: Duration::from_secs(10),
            repeat_claims: Duration::from_secs(5),
            token_life: Duration::from_secs(600),
            node_grace: Duration::from_secs(30),
            federation: None,
        }
    }
}

pub struct JobManager {
    job: Arc<AdmittedJob>,
    settings: JobManagerSettings,
    policy: JobPolicy,
    dag: Dag,
    requests: Requests,
    /// What the master has reported, and the reports to it.
    master: AtMaster,
    /// Resources donated and received; `None` if the policy never yields.
    account: Option<Box<exchange::Account>>,
    /// The placement of the tasks that the job manager places itself.
    own: OwnScheduling,
    blame: Blame,
    stragglers: Stragglers,
    duplicates: WantedDuplicates,
    first_starts: FirstStarts,
    gangs: Gangs,
    /// `None` if no task writes or reads files.
    files: Option<Box<Files>>,
    launches: Launches,
    lifecycle: Lifecycle,
    attempts: Attempts,
}

/// Where a task may be launched, and the rule that scheduled it.
#[derive(Clone, Copy)]
struct LaunchTarget {
    node: NodeId,
    basis: Basis,
    rule: Rule,
    passed_over: u32,
    /// Execution type of a task whose ask is `Auto`.
    execution: ExecutionType,
    /// Expected wait at the node.
    expected_wait: Duration,
}

/// How an attempt gets a node's resources.
#[derive(Clone, Copy)]
enum Basis {
    /// They are booked in the master's ledger; a GPU is named if the task gets a part of one.
    Grant(GrantId, Option<Prediction>, Option<SharedGpu>),
    /// The node keeps room for this probe.
    Probe(ProbeId, Option<Prediction>),
    /// The attempt waits at the node until resources are free.
    Queue,
}

impl Basis {
    fn grant(self) -> Option<GrantId> {
        match self {
            Basis::Grant(grant, ..) => Some(grant),
            Basis::Probe(..) | Basis::Queue => None,
        }
    }

    fn shared_gpu(self) -> Option<SharedGpu> {
        match self {
            Basis::Grant(.., shared_gpu) => shared_gpu,
            Basis::Probe(..) | Basis::Queue => None,
        }
    }

    fn probe(self) -> Option<ProbeId> {
        match self {
            Basis::Probe(probe, _) => Some(probe),
            Basis::Grant(..) | Basis::Queue => None,
        }
    }
}

impl JobManager {
    pub fn new(
        job: Arc<AdmittedJob>,
        epoch: Epoch,
        settings: JobManagerSettings,
        intra_job: Box<dyn IntraJobPolicy>,
        own: Option<OwnPlacement>,
        sealing: Sealing,
    ) -> JobManager {
        let mut dag = Dag::new(&job.spec, &job.recalled);
        let stages = dag.stages.len();
        let (placement, tasks) = own.map(|own| (own.placement, own.tasks)).unzip();
        let (mut mix, mut corrections) = (None, None);
        let rules = match tasks {
            None | Some(OwnTasks::Everything) => Rules::Unlimited,
            Some(OwnTasks::Opportunistic { mix: of_job, quota, promote_after }) => {
                mix = Some(of_job);
                Rules::opportunistic(quota, promote_after)
            }
            Some(OwnTasks::Entitled(tasks)) => {
                if let Some(assumed) = tasks.assumed_run_time {
                    dag.stages.iter_mut().for_each(|stage| stage.estimate.assume(assumed));
                }
                corrections = tasks.corrections;
                Rules::entitled(&tasks, stages)
            }
        };
        let requests = Requests::new(&job, mix);
        let scheduler = placement.map(|policy| LocalScheduler::new(job.id, epoch, requests.asks(), policy));
        JobManager {
            settings,
            account: intra_job.yields().then(Box::default),
            policy: JobPolicy::new(intra_job),
            requests,
            master: AtMaster::new(WorkLeft::new(&job, &dag)),
            own: OwnScheduling::new(scheduler, rules, Unlocated::new(&job.spec)),
            blame: Blame::default(),
            stragglers: Stragglers::new(corrections, stages),
            duplicates: WantedDuplicates::default(),
            first_starts: FirstStarts::new(stages),
            gangs: Gangs::new(&job.spec, job.id.0),
            files: Files::new(&job.spec),
            launches: Launches::new(&job, Sealer::new(sealing)),
            lifecycle: Lifecycle::default(),
            attempts: Attempts::new(job.id, epoch),
            dag,
            job,
        }
    }

    /// Reports to the master how long the tasks of its asks run, and judges unknown run times by how long tasks have run.
    #[must_use]
    pub fn reporting_run_times(mut self) -> JobManager {
        self.requests.report_run_times();
        self.master.work.judge_unknown(&self.job, &self.dag);
        self
    }

    /// Looks for slow attempts of tasks that the master places.
    #[must_use]
    pub fn finding_stragglers(mut self, rules: CorrectionRules) -> JobManager {
        self.stragglers = Stragglers::new(Some(rules), self.dag.stages.len());
        self
    }

    /// Uses this generation for its tokens from now on, as counted by its job host.
    #[must_use]
    pub fn starting_with(mut self, generation: Generation) -> JobManager {
        self.launches.set_generation(generation);
        self
    }

    /// Takes the master's token generation, unless a job host counts its own.
    fn on_generation(&mut self, generation: Generation) {
        if self.job.host == HostId::SERVER {
            self.launches.advance_generation(generation);
        }
    }

    fn id(&self) -> JobId {
        self.job.id
    }

    fn on_message(&mut self, now: Instant, from: Address, body: ToJobManager, out: &mut Outbox) {
        match body {
            ToJobManager::Start { share, requested_actions, lost, .. } => {
                self.on_start(now, share, requested_actions, &lost, out)
            }
            ToJobManager::Share { share } => {
                self.master.set_share(share);
                self.update_demand(now, out);
            }
            ToJobManager::Allowance { number, answers, allowance } => {
                self.on_allowance(now, number, answers, &allowance, out);
            }
            ToJobManager::Act(action) => self.on_act(now, action, out),
            ToJobManager::ActOnTasks { action, tasks } => self.on_act_on_tasks(now, action, &tasks, out),
            ToJobManager::Updated { job, is_placed_anew } => self.on_updated(now, job, is_placed_anew, out),
            ToJobManager::Nodes { list, margins } => self.on_nodes(now, list, margins, out),
            ToJobManager::Waits { waits, starts } => self.on_waits(now, from, waits, &starts, out),
            ToJobManager::Granted { grants } => self.on_granted(now, &grants, out),
            ToJobManager::Started { attempt, running_for, at_node } => {
                self.on_started(now, from, attempt, running_for, at_node, out);
            }
            ToJobManager::Yields { attempt, has_cpu } => self.on_yields(from, attempt, has_cpu),
            ToJobManager::Lacks { attempt, files } => self.on_lacks(now, from, attempt, &files, out),
            ToJobManager::Progress { samples } => self.on_progress(now, from, &samples, out),
            ToJobManager::Finished { attempt, ended, instead } => {
                self.on_finished(now, from, attempt, ended, instead, out);
            }
            ToJobManager::InPlace { attempt, node_name } => self.on_in_place(now, from, attempt, node_name, out),
            ToJobManager::Promoted { attempt, grant } => self.on_promoted(now, attempt, grant, out),
            ToJobManager::Ready { probe } => self.on_ready(now, from, probe, out),
            ToJobManager::NotTaken { attempt } => {
                self.on_not_launched(now, from, attempt, LostCause::NotTaken, out);
            }
            ToJobManager::NotPassed { attempt, why } => {
                self.on_not_launched(now, from, attempt, LostCause::Refused(why), out);
            }
            ToJobManager::Live { node, node_name, epoch, number, attempts } => {
                self.on_live(now, (node, node_name), (epoch, number), &attempts, out);
            }
            ToJobManager::Forgotten => self.on_forgotten(out),
            ToJobManager::Generation { generation } => self.launches.set_generation(generation),
            ToJobManager::NodesReturned { nodes } => self.on_nodes_returned(now, &nodes, out),
            ToJobManager::NodeLost { node } => self.on_node_lost(now, node, out),
        }
    }

    /// Parts of it may be known: the message is repeated where one may have been lost.
    fn on_start(
        &mut self,
        now: Instant,
        share: Option<Box<Totals>>,
        requested_actions: RequestedActions,
        lost: &[NodeId],
        out: &mut Outbox,
    ) {
        if requested_actions.run < self.lifecycle.run() {
            // A late repetition from before the latest run.
            return;
        }
        if let Some(share) = share {
            self.master.set_share(share);
        }
        let is_started = self.lifecycle.start();
        let is_news = !is_started
            || (requested_actions.held, requested_actions.cancelled, requested_actions.run)
                != (self.lifecycle.is_held(), self.lifecycle.is_cancelled(), self.lifecycle.run());
        if !is_started && self.job.host != HostId::SERVER {
            out.persist(Change::Managed { job: Arc::clone(&self.job) });
            let (job, submitted_at) = (self.id(), self.job.submitted_at);
            out.send(self.job.host, ToJobHost::Has { job, submitted_at });
        }
        self.hold(requested_actions.held, out);
        for node in lost {
            self.on_node_lost(now, *node, out);
        }
        if requested_actions.run > self.lifecycle.run() {
            self.run_again(requested_actions.run, requested_actions.tasks.rerun.clone(), out);
        }
        let is_news = self.apply_requested(now, &requested_actions.tasks, out) || is_news;
        if requested_actions.cancelled {
            self.cancel(now, out);
        }
        if !is_started {
            let first = self.job.spec.stages.iter().enumerate().filter(|(_, stage)| stage.after.is_empty());
            first.for_each(|(stage, _)| self.first_starts.on_ready(now, stage as u32));
        }
        if is_news {
            self.update_demand(now, out);
        }
    }

    /// Sends changed asks to the scheduler of the tasks (the master or the job's own); ends the job when nothing is left to do.
    fn update_demand(&mut self, now: Instant, out: &mut Outbox) {
        if !self.lifecycle.has_started() {
            return;
        }
        self.reopen_lost(now, out);
        self.dag.end_retry_delays(now);
        self.drop_idle_copies(now, out);
        self.locate_inputs();
        self.locate_earlier();
        self.review_gangs(now, out);
        let (job, dag, attempts, gangs) = (&self.job, &self.dag, &self.attempts, &self.gangs);
        let progress = Progress { job, dag, attempts, gangs };
        let is_held = self.lifecycle.is_held();
        self.requests.request_beside(self.duplicates.take());
        let asks = self.requests.update(now, progress, self.master.share(), &mut self.policy, is_held);
        self.note_demand(now, out);
        self.review_alone(now);
        let is_for_master = |ask: &Ask| self.own.scheduler.is_none() || self.requests.is_for_master(ask.execution);
        let (asks, own): (Vec<Ask>, Vec<Ask>) = asks.into_iter().partition(is_for_master);
        if !asks.is_empty() {
            out.send(TheMaster, ToMaster::Demand { job: self.id(), asks, work: self.master.work.report() });
        }
        self.schedule(now, &own, out);
        if self.dag.is_finished() && self.attempts.is_empty() && self.lifecycle.outcome().is_none() {
            let outcome = self.final_outcome();
            self.lifecycle.end(outcome);
            self.keep_exchange(now, out);
            // Only complete stages: in others, the tasks that succeeded may be the short ones.
            let stages = self.dag.stages.iter();
            let means = stages.map(|stage| stage.estimate.mean().filter(|_| stage.is_complete())).collect();
            let (job, run, estimated) = (self.id(), self.lifecycle.run(), self.estimated());
            let submitted_at = self.job.submitted_at;
            let ended = ToMaster::JobEnded { job, submitted_at, run, outcome, estimated, means };
            out.send(TheMaster, ended);
        }
    }

    /// Stated and measured run times of the tasks that succeeded; `None` if none were stated.
    fn estimated(&self) -> Option<Estimated> {
        let stages = self.dag.stages.iter().filter_map(|stage| stage.estimate.judged());
        stages
            .reduce(|one, next| Estimated { stated: one.stated + next.stated, measured: one.measured + next.measured })
    }

    /// Reports the remaining work to the master if the last report is too far off.
    fn report_work(&mut self, out: &mut Outbox) {
        if self.master.work.is_news() && !self.dag.is_finished() {
            out.send(TheMaster, ToMaster::Demand { job: self.id(), asks: Vec::new(), work: self.master.work.report() });
        }
    }

    fn final_outcome(&self) -> JobOutcome {
        match self.dag.first_failure() {
            _ if self.lifecycle.is_cancelled() => JobOutcome::Cancelled,
            Some((_, _, reason)) => JobOutcome::Failed { exit_code: reason.exit_code() },
            None if self.dag.has_cancelled() => JobOutcome::Cancelled,
            None => JobOutcome::Succeeded,
        }
    }

    // ---- grants ----------------------------------------------------------------------------------------------------

    fn on_granted(&mut self, now: Instant, grants: &[Grant], out: &mut Outbox) {
        let mut unused = Vec::new();
        for grant in grants {
            if self.master.is_unknown(grant.id) {
                out.record(Record::StaleGrant { from: Address::Master, grant: grant.id });
                continue;
            }
            let Grant { id, ask, node, rule, passed_over, generation, prediction, shared_gpu } = *grant;
            self.on_generation(generation);
            let (basis, execution) = (Basis::Grant(id, prediction, shared_gpu), ExecutionType::Auto);
            let expected_wait = Duration::ZERO;
            let target = LaunchTarget { node, basis, rule, passed_over, execution, expected_wait };
            if !self.bind(now, ask, None, target, out) && !self.launch_duplicate(now, ask, target, out) {
                unused.push(id);
            }
        }
        if !unused.is_empty() {
            out.send(TheMaster, ToMaster::Return { grants: unused });
            self.update_demand(now, out);
        }
        if self.own.quota().is_set() {
            // The quota may have become wider.
            self.place(now, out);
        }
    }

    /// Launches the next task of an ask, or the decided one; false if none is left.
    fn bind(&mut self, now: Instant, ask: AskId, decided: Option<u32>, target: LaunchTarget, out: &mut Outbox) -> bool {
        let stage = self.requests.on_grant(ask, &self.dag, self.lifecycle.is_held());
        stage.iter().for_each(|(stage, _)| self.line_up(*stage));
        let task =
            stage.and_then(|(stage, execution)| Some((stage, self.next_on(stage, decided, target.node)?, execution)));
        if let Some((stage, index, execution)) = task {
            let task = TaskId { job: self.id(), stage, index };
            self.launch(now, target, task, execution, out);
        }
        task.is_some()
    }

    fn on_wakeup(&mut self, now: Instant, out: &mut Outbox) {
        for node in self.attempts.claims.take_due(now) {
            self.claim(now, node, out);
        }
        self.ask_for_promotions(now, out);
        self.explore(now, out);
        if self.master.work.look_again(now, &self.job, &self.dag) {
            self.report_work(out);
        }
        let reviews = [self.requests.review_at(), self.gangs.next_review(), self.dag.next_due()];
        if reviews.into_iter().flatten().any(|at| at <= now) {
            self.update_demand(now, out);
        }
        self.place(now, out);
    }

    /// The output of the job's attempts is not needed any more.
    fn on_forgotten(&self, out: &mut Outbox) {
        if self.job.host != HostId::SERVER {
            out.persist(Change::Unmanaged { job: self.id() });
        }
        for node in self.dag.nodes() {
            out.send(node, ToNode::Forget { job: self.id() });
        }
    }

    /// In tests and debug builds, after every event.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let running: u32 = self.dag.stages.iter().map(|stage| stage.running).sum();
        let twins = self.attempts.values().filter(|running| running.twin.is_some()).count();
        assert_eq!(
            running as usize,
            self.attempts.len() - twins / 2 - self.stragglers.copies().count(),
            "numbers of running tasks and running attempts"
        );
        self.attempts.check_invariants();
        for (index, stage) in self.dag.stages.iter().enumerate() {
            let counted = stage.waiting() + stage.running + stage.succeeded + stage.failed + stage.cancelled;
            assert_eq!(counted, stage.total, "each task of stage {index} is in one state");
        }
        assert_eq!(self.master.work.now(), self.master.work.counted_anew(&self.job, &self.dag).now(), "remaining work");
        self.own.scheduler.iter().for_each(LocalScheduler::check_invariants);
        for task in self.blame.tasks() {
            let record = self.dag.stage(task.stage).record(task.index).expect("a task that failed has a record");
            assert!(record.state <= TaskState::Running, "{task} has ended, but the nodes it failed on are still kept");
        }
        self.requests.check_invariants();
        self.check_account();
        self.check_allowance();
    }
}

impl Role for JobManager {
    type Message = ToJobManager;
    type Description = JobDescription;

    fn handle(&mut self, now: Instant, event: Event<ToJobManager>, out: &mut Outbox) {
        self.add_up(now);
        self.policy.on_event(!matches!(event, Event::Wakeup));
        match event {
            Event::Message { from, body } => self.on_message(now, from, body, out),
            Event::Connected { peer: Address::Master, incarnation } => {
                self.master.on_connected(Epoch(incarnation as u32));
                match self.job.host {
                    HostId::SERVER => self.restart_requests(),
                    // The manager kept running, and only it counts its asks.
                    _ => self.own.restart_allowance(),
                }
                // Reported again below if it still applies.
                self.lifecycle.withdraw_outcome();
                self.update_demand(now, out);
            }
            Event::Connected { peer: Address::Node(node), .. } => self.on_node_connected(now, node, out),
            Event::Disconnected { peer: Address::Node(node) } => self.on_node_disconnected(now, node, out),
            Event::Connected { .. } | Event::Disconnected { .. } => {}
            Event::Wakeup => self.on_wakeup(now, out),
        }
        self.review_exchange();
        self.check_invariants();
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let reviews = [self.requests.review_at(), self.gangs.next_review(), self.next_retry()];
        let own = [self.attempts.claims.next_repeat(), self.own.next_wakeup(), self.master.work.due()];
        own.into_iter().chain(reviews).flatten().min()
    }

    fn recover(&mut self, changes: &[Change]) {
        changes.iter().for_each(|change| self.take_back(change));
        self.master.work.recount(&self.job, &self.dag);
        let launched = self.attempts.values().map(|sent| (sent.task.stage, sent.launched_at));
        self.master.work.on_recovered(launched, &self.dag);
        self.gangs.recover(&self.dag, &self.attempts);
        self.launches.on_restart();
        self.recall_speeds();
        self.check_invariants();
    }

    fn durable(&self) -> Vec<Change> {
        let (job, progress) = (self.id(), Box::new(self.progress()));
        let mut changes = Vec::new();
        if self.job.host != HostId::SERVER {
            changes.push(Change::Managed { job: Arc::clone(&self.job) });
            changes.push(Change::HoldReceived { job, held: self.lifecycle.is_held() });
        }
        changes.push(Change::Progress { job, progress });
        changes
    }

    fn describe(&self, now: Instant) -> JobDescription {
        self.description(now)
    }
}
