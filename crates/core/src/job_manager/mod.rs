//! The manager of one job: it knows the DAG, asks for resources, binds grants to tasks, issues attempts and commits one
//! result per task. Only it makes new attempts.
//!
//! Handlers follow the order of a job's life.

mod allowance;
mod attempts;
mod blame;
mod by_age;
mod chosen;
mod copies;
mod correction;
mod exchange;
mod exploration;
mod files;
mod first_starts;
mod gangs;
mod late_ends;
mod node_claims;
mod open_attempts;
mod places;
mod placing;
mod promotion;
mod questions;
mod requests;
mod retries;
mod saved;
mod sizes;
mod speeds;
mod stragglers;
mod templates;
mod updates;
mod work;

pub use allowance::AllowanceRules;
pub use correction::CorrectionRules;
pub use exploration::ExplorationRules;
pub use questions::{JobDescription, OpenAttempt, RunningDescription};

pub use crate::progress::{
    ChosenCounts, Dag, Estimate, EstimateSource, SavedProgress, Spent, Stage, TaskOutputs, TaskRecord, TaskState,
    TaskStatus,
};

use crate::policy::{IntraJobPolicy, Quota};
use crate::progress::files::Files;
use crate::progress::{Holding, LostCause};
use crate::protocol::{
    Address, AdmittedJob, Ask, Claim, Grant, JobAction, JobOutcome, Rule, TheMaster, ToJobHost, ToJobManager, ToMaster,
    ToNode, Wishes,
};
use crate::role::{Change, Event, Outbox, Record, Role};
use crate::scheduling::LocalScheduler;
use crate::vocabulary::{
    AskId, AttemptId, Chosen, Duration, EndReason, Epoch, Estimated, ExecutionType, Federation, Foretold, Generation,
    GrantId, HostId, Instant, JobId, NodeId, ProbeId, Sealing, SharedGpu, TaskId, Totals,
};
use crate::why::Why;
use allowance::Allowance;
use blame::Blame;
use correction::Corrections;
use exploration::Exploration;
use first_starts::FirstStarts;
use gangs::Gangs;
use node_claims::NodeClaims;
use open_attempts::{Attempts, Life, RunningAttempt};
use places::Unlocated;
pub use placing::OwnPlacement;
use promotion::Promotions;
use requests::{Progress, Requests};
use serde::{Deserialize, Serialize};
use speeds::Speeds;
use std::sync::Arc;
use templates::Templates;
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
    epoch: Epoch,
    settings: JobManagerSettings,
    intra_job: Box<dyn IntraJobPolicy>,
    dag: Dag,
    requests: Requests,
    /// The job's share of the cluster, once the master has reported it.
    share: Option<Box<Totals>>,
    /// Whether the current event is more than a wakeup.
    is_news: bool,
    /// Whether no policy took long during the current event so far.
    has_time: bool,
    /// Resources donated and received; `None` if the policy never yields.
    account: Option<Box<exchange::Account>>,
    /// Places all tasks of the job, or only the opportunistic ones; `None` if the master places all.
    scheduler: Option<LocalScheduler>,
    /// If set, the job's own placements stay within its allowance.
    allowance: Option<Box<Allowance>>,
    corrections: Corrections,
    exploration: Exploration,
    blame: Blame,
    speeds: Speeds,
    first_starts: FirstStarts,
    gangs: Gangs,
    quota: Quota,
    /// Whether the quota or the allowance held tasks back at the last check.
    limit_binds: bool,
    /// `None` if no task writes or reads files.
    files: Option<Box<Files>>,
    /// Stages whose input locations the scheduler does not know yet.
    unlocated: Unlocated,
    promotions: Promotions,
    work: WorkLeft,
    /// Report the remaining work to the master even without asks.
    tells_work: bool,
    templates: Templates,
    /// Open attempts may have been launched with another timeout.
    has_new_timeout: bool,
    begun: bool,
    /// Number of times the job was reopened to rerun failed tasks.
    run: u32,
    held: bool,
    cancelled: bool,
    /// Running attempts are being stopped: the job was cancelled, or too many tasks failed.
    stopping: bool,
    /// Reported to the master and not withdrawn since.
    outcome: Option<JobOutcome>,
    /// Epoch of the master that counts the asks now.
    master_epoch: Epoch,
    sealing: Sealing,
    /// The newest known generation, used for new tokens.
    generation: Generation,
    attempts: Attempts,
    node_claims: NodeClaims,
    /// In a follower: the last reason that the followed manager gave for tasks that do not start.
    told_why: Option<Box<Why>>,
}

/// Where a task may be launched, and the rule that scheduled it.
struct Room {
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
    Grant(GrantId, Option<Foretold>, Option<SharedGpu>),
    /// The node keeps room for this probe.
    Probe(ProbeId, Option<Foretold>),
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
        if let Some(assumed) = own.as_ref().and_then(|own| own.assumed_run_time) {
            dag.stages.iter_mut().for_each(|stage| stage.estimate.assume(assumed));
        }
        let corrections = Corrections::new(own.as_ref().and_then(|own| own.corrections), dag.stages.len());
        let exploration = Exploration::new(own.as_ref().and_then(|own| own.explores));
        let tells_work = own.as_ref().is_some_and(|own| own.tells_work);
        let speeds = Speeds::new(dag.stages.len());
        let first_starts = FirstStarts::new(dag.stages.len());
        let gangs = Gangs::new(&job.spec, job.id.0);
        let (placement, mix, quota, allowance, promote_after) = match own {
            Some(OwnPlacement { placement, mix, quota, allowance, promote_after, .. }) => {
                (Some(placement), mix, quota, allowance, promote_after)
            }
            None => (None, None, Quota::default(), None, None),
        };
        let requests = Requests::new(&job, mix);
        let (work, templates) = (WorkLeft::new(&job, &dag), Templates::new(&job));
        let scheduler = placement.map(|placement| LocalScheduler::new(job.id, epoch, requests.asks(), placement));
        let account = intra_job.yields().then(Box::default);
        let attempts = Attempts::new(job.id, epoch);
        let (files, unlocated) = (Files::new(&job.spec), Unlocated::new(&job.spec));
        JobManager {
            job,
            epoch,
            settings,
            intra_job,
            dag,
            requests,
            share: None,
            is_news: true,
            has_time: true,
            account,
            scheduler,
            allowance: allowance.map(|rules| Box::new(Allowance::new(rules))),
            corrections,
            exploration,
            blame: Blame::default(),
            speeds,
            first_starts,
            gangs,
            quota,
            limit_binds: false,
            files,
            unlocated,
            promotions: Promotions::after(promote_after),
            work,
            tells_work,
            templates,
            begun: false,
            run: 0,
            held: false,
            cancelled: false,
            has_new_timeout: false,
            stopping: false,
            outcome: None,
            master_epoch: Epoch(0),
            sealing,
            generation: Generation::default(),
            attempts,
            node_claims: NodeClaims::default(),
            told_why: None,
        }
    }

    /// Uses this generation for its tokens from now on, as counted by its job host.
    #[must_use]
    pub fn beginning_with(mut self, generation: Generation) -> JobManager {
        self.generation = generation;
        self
    }

    /// Takes the master's token generation, unless a job host counts its own.
    fn on_generation(&mut self, generation: Generation) {
        if self.job.host == HostId::SERVER {
            self.generation = generation.max(self.generation);
        }
    }

    fn id(&self) -> JobId {
        self.job.id
    }

    fn on_message(&mut self, now: Instant, from: Address, body: ToJobManager, out: &mut Outbox) {
        match body {
            ToJobManager::Begin { share, wishes, lost, .. } => self.on_begin(now, share, wishes, &lost, out),
            ToJobManager::Share { share } => {
                self.share = Some(share);
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
            ToJobManager::Generation { generation } => self.generation = generation,
            ToJobManager::NodesReturned { nodes } => self.on_nodes_returned(now, &nodes, out),
            ToJobManager::NodeLost { node } => self.on_node_lost(now, node, out),
        }
    }

    /// Parts of it may be known: the message is repeated where one may have been lost.
    fn on_begin(
        &mut self,
        now: Instant,
        share: Option<Box<Totals>>,
        wishes: Wishes,
        lost: &[NodeId],
        out: &mut Outbox,
    ) {
        if wishes.run < self.run {
            // A late repetition from before the latest run.
            return;
        }
        self.share = share.or(self.share.take());
        let is_begun = std::mem::replace(&mut self.begun, true);
        let is_news = !is_begun || (wishes.held, wishes.cancelled, wishes.run) != (self.held, self.cancelled, self.run);
        if !is_begun && self.job.host != HostId::SERVER {
            out.persist(Change::Managed { job: Arc::clone(&self.job) });
            let (job, submitted_at) = (self.id(), self.job.submitted_at);
            out.send(self.job.host, ToJobHost::Has { job, submitted_at });
        }
        self.hold(wishes.held, out);
        for node in lost {
            self.on_node_lost(now, *node, out);
        }
        if wishes.run > self.run {
            self.run_again(wishes.run, wishes.tasks.rerun.clone(), out);
        }
        let is_news = self.do_what_is_wished(now, &wishes.tasks, out) || is_news;
        if wishes.cancelled {
            self.cancel(now, out);
        }
        if !is_begun {
            let first = self.job.spec.stages.iter().enumerate().filter(|(_, stage)| stage.after.is_empty());
            first.for_each(|(stage, _)| self.first_starts.on_ready(now, stage as u32));
        }
        if is_news {
            self.update_demand(now, out);
        }
    }

    /// Sends changed asks to the scheduler of the tasks (the master or the job's own); ends the job when nothing is left to do.
    fn update_demand(&mut self, now: Instant, out: &mut Outbox) {
        if !self.begun {
            return;
        }
        self.reopen_lost(now, out);
        self.dag.end_rests(now);
        self.drop_idle_copies(now, out);
        self.locate_inputs();
        self.locate_earlier();
        self.review_gangs(now, out);
        let (job, dag, attempts, gangs) = (&self.job, &self.dag, &self.attempts, &self.gangs);
        let progress = Progress { job, dag, attempts, gangs, is_news: self.is_news };
        let asks = self.requests.update(now, progress, self.share.as_deref(), self.intra_job.as_mut(), self.held);
        self.has_time &= !self.requests.took_long();
        self.note_demand(now, out);
        self.review_alone(now);
        let is_for_master = |ask: &Ask| self.scheduler.is_none() || self.requests.is_for_master(ask.execution);
        let (asks, own): (Vec<Ask>, Vec<Ask>) = asks.into_iter().partition(is_for_master);
        if !asks.is_empty() {
            out.send(TheMaster, ToMaster::Demand { job: self.id(), asks, work: self.work.tell() });
        }
        self.schedule(now, &own, out);
        if self.dag.is_finished() && self.attempts.is_empty() && self.outcome.is_none() {
            let outcome = self.final_outcome();
            self.outcome = Some(outcome);
            self.keep_exchange(now, out);
            // Only complete stages: in others, the tasks that succeeded may be the short ones.
            let stages = self.dag.stages.iter();
            let means = stages.map(|stage| stage.estimate.mean().filter(|_| stage.is_complete())).collect();
            let (job, run, estimated) = (self.id(), self.run, self.estimated());
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
    fn tell_work(&mut self, out: &mut Outbox) {
        if self.work.is_news() && !self.dag.is_finished() {
            out.send(TheMaster, ToMaster::Demand { job: self.id(), asks: Vec::new(), work: self.work.tell() });
        }
    }

    fn final_outcome(&self) -> JobOutcome {
        match self.dag.first_failure() {
            _ if self.cancelled => JobOutcome::Cancelled,
            Some((_, _, reason)) => JobOutcome::Failed { exit_code: reason.exit_code() },
            None if self.dag.has_cancelled() => JobOutcome::Cancelled,
            None => JobOutcome::Succeeded,
        }
    }

    // ---- grants ----------------------------------------------------------------------------------------------------

    fn on_granted(&mut self, now: Instant, grants: &[Grant], out: &mut Outbox) {
        let mut unused = Vec::new();
        for grant in grants {
            if grant.id.epoch < self.master_epoch {
                // The grant is from an earlier master, and the present one does not know it.
                out.record(Record::StaleGrant { from: Address::Master, grant: grant.id });
                continue;
            }
            let Grant { id, ask, node, rule, passed_over, generation, foretold, shared_gpu } = *grant;
            self.on_generation(generation);
            let (basis, execution) = (Basis::Grant(id, foretold, shared_gpu), ExecutionType::Auto);
            let expected_wait = Duration::ZERO;
            let room = Room { node, basis, rule, passed_over, execution, expected_wait };
            if !self.bind(now, ask, None, room, out) {
                unused.push(id);
            }
        }
        if !unused.is_empty() {
            out.send(TheMaster, ToMaster::Return { grants: unused });
            self.update_demand(now, out);
        }
        if self.quota.is_set() {
            // The quota may have become wider.
            self.place(now, out);
        }
    }

    /// Launches the next task of an ask, or the decided one; false if none is left.
    fn bind(&mut self, now: Instant, ask: AskId, decided: Option<u32>, room: Room, out: &mut Outbox) -> bool {
        let stage = self.requests.on_grant(ask, &self.dag, self.held);
        stage.iter().for_each(|(stage, _)| self.line_up(*stage));
        let task =
            stage.and_then(|(stage, execution)| Some((stage, self.next_on(stage, decided, room.node)?, execution)));
        if let Some((stage, index, execution)) = task {
            let task = TaskId { job: self.id(), stage, index };
            self.launch(now, room, task, execution, out);
        }
        task.is_some()
    }

    // ---- node connections ------------------------------------------------------------------------------------------

    fn on_node_connected(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.set_reached(node, true);
        }
        self.claim(now, node, out);
        self.forget_probes(now, node, out);
        self.place(now, out);
    }

    /// Messages sent there now would be lost, even if the master is still connected to the node.
    fn on_node_disconnected(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if let Some(scheduler) = &mut self.scheduler {
            let steps = scheduler.set_reached(node, false);
            self.take(now, steps, out);
            self.place(now, out);
        }
    }

    fn on_nodes_returned(&mut self, now: Instant, nodes: &[NodeId], out: &mut Outbox) {
        let running = self.attempts.values().map(|running| running.node);
        let mut concerned: Vec<NodeId> = running.chain(self.attempts.estranged()).collect();
        concerned.sort_unstable();
        concerned.dedup();
        for node in concerned.into_iter().filter(|node| nodes.binary_search(node).is_ok()) {
            self.claim(now, node, out);
        }
    }

    /// Claims our attempts at a node; the node kills the others.
    fn claim(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        let attempts = self.attempts.at_node(node);
        if attempts.is_empty() && !self.attempts.is_estranged(node) {
            return;
        }
        let repeat_at = now + self.settings.repeat_claims;
        let number = self.node_claims.open(node, attempts.clone(), repeat_at);
        self.send_claim(node, number, attempts, out);
    }

    fn send_claim(&self, node: NodeId, number: u32, attempts: Vec<AttemptId>, out: &mut Outbox) {
        let (job, epoch, next_attempt) = (self.id(), self.epoch, self.attempts.next_number());
        let generation = self.generation;
        out.send(node, ToNode::Claim(Claim { job, epoch, number, attempts, next_attempt, generation }));
    }

    /// Which of the claimed attempts the node has. The others were lost on the way there, or with its executor.
    fn on_live(
        &mut self,
        now: Instant,
        (node, name): (NodeId, String),
        answered: (Epoch, u32),
        live: &[AttemptId],
        out: &mut Outbox,
    ) {
        let (epoch, number) = answered;
        if epoch != self.epoch {
            return;
        }
        let Some(claimed) = self.node_claims.answered(node, number) else { return };
        self.attempts.reconcile(node);
        self.learn_name(node, name, out);
        for attempt in claimed {
            let Some(running) = self.attempts.get_mut(&attempt) else { continue };
            if !live.contains(&attempt) {
                self.write_off(now, attempt, LostCause::Unknown, out);
            } else if running.life == Life::Earlier || running.started_at.is_some() {
                if running.life == Life::Earlier {
                    running.life = Life::Adopted;
                    if running.started_at.is_none() {
                        self.exploration.on_sent(running);
                    }
                }
                out.record(Record::Adopted { task: running.task, attempt, node });
            }
            if self.attempts.get(&attempt).is_some_and(|running| running.holding() == Holding::Promoted) {
                // The node may have missed the promotion.
                out.send(node, ToNode::Promote { attempt, grant: None });
            }
            // The request may have been lost with the connection.
            match self.attempts.get(&attempt) {
                Some(running) if self.stopping || self.is_cancelled_task(running.task) => {
                    self.stop(attempt, running, EndReason::Cancelled, out);
                }
                Some(running) => {
                    self.say_timeout_again(attempt, running, out);
                    self.say_again_to_gang(attempt, out);
                }
                None => {}
            }
        }
        self.update_demand(now, out);
    }

    fn on_node_lost(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        self.node_claims.close(node);
        let lost = self.attempts.at_node(node);
        if !lost.is_empty() && self.job.host != HostId::SERVER {
            // The node may be connected to us although the master lost it.
            let number = self.node_claims.number();
            self.send_claim(node, number, Vec::new(), out);
        }
        for attempt in lost {
            self.write_off(now, attempt, LostCause::NodeLost, out);
        }
        // A launch there would be lost, and no second message would report the loss.
        self.close_node(now, node, out);
        self.forget_files_at(node);
        self.update_demand(now, out);
    }

    fn on_wakeup(&mut self, now: Instant, out: &mut Outbox) {
        for node in self.node_claims.take_due(now) {
            self.claim(now, node, out);
        }
        self.ask_for_promotions(now, out);
        self.explore(now, out);
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

    // ---- user actions ----------------------------------------------------------------------------------------------

    fn on_act(&mut self, now: Instant, action: JobAction, out: &mut Outbox) {
        match action {
            JobAction::Hold => self.hold(true, out),
            JobAction::Release => self.hold(false, out),
            JobAction::Cancel => self.cancel(now, out),
            // A rerun arrives as a new `Begin`.
            JobAction::RerunFailed => {}
            // Only for jobs whose manager is not connected.
            JobAction::Abandon => {}
        }
        self.update_demand(now, out);
    }

    fn hold(&mut self, held: bool, out: &mut Outbox) {
        // On the server, the master's log records it already.
        if self.held != held && self.job.host != HostId::SERVER {
            out.persist(Change::HoldHeard { job: self.id(), held });
        }
        self.held = held;
    }

    fn cancel(&mut self, now: Instant, out: &mut Outbox) {
        if !self.cancelled && self.outcome.is_none() {
            out.persist(Change::Cancelled { job: self.id(), at: now });
            self.cancelled = true;
            self.stop_everything(out);
        }
    }

    /// The scheduler of the tasks counts asks from zero.
    fn restart_requests(&mut self) {
        self.requests.restart();
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.restart();
        }
        if let Some(allowance) = &mut self.allowance {
            allowance.restart();
        }
    }

    /// Reruns tasks that failed or were cancelled, or only the given ones of these.
    fn run_again(&mut self, run: u32, only: Option<Chosen>, out: &mut Outbox) {
        self.rerun(run, only.as_ref());
        out.persist(Change::Rerun { job: self.id(), run, only: only.map(Box::new) });
    }

    fn rerun(&mut self, run: u32, only: Option<&Chosen>) {
        self.run = run;
        self.cancelled = false;
        self.stopping = false;
        self.outcome = None;
        // The master forgot the job's asks when the job ended.
        self.restart_requests();
        self.allowance.iter_mut().for_each(|allowance| allowance.rerun());
        self.work.restart();
        match only {
            Some(only) => self.dag.rerun_tasks(&only.0),
            None => self.dag.rerun(),
        }
        self.gangs.restart();
        self.blame.clear();
        self.forget_alone();
        self.work.recount(&self.job, &self.dag);
    }

    fn stop_everything(&mut self, out: &mut Outbox) {
        self.stopping = true;
        self.gangs.restart();
        self.dag.abandon_all();
        self.work.recount(&self.job, &self.dag);
        for (&attempt, running) in self.attempts.iter() {
            self.stop(attempt, running, EndReason::Cancelled, out);
        }
    }

    fn stop(&self, attempt: AttemptId, running: &RunningAttempt, reason: EndReason, out: &mut Outbox) {
        let (task, node) = (running.task, running.node);
        out.record(Record::Stopping { task, attempt, node, reason: reason.clone() });
        out.send(node, ToNode::Stop { attempt, reason, grace: self.settings.stop_grace });
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
            self.attempts.len() - twins / 2 - self.corrections.copies.len(),
            "numbers of running tasks and running attempts"
        );
        self.attempts.check_invariants();
        for (index, stage) in self.dag.stages.iter().enumerate() {
            let counted = stage.waiting() + stage.running + stage.succeeded + stage.failed + stage.cancelled;
            assert_eq!(counted, stage.total, "each task of stage {index} is in one state");
        }
        assert_eq!(self.work.now(), WorkLeft::new(&self.job, &self.dag).now(), "remaining work");
        self.scheduler.iter().for_each(LocalScheduler::check_invariants);
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
        (self.is_news, self.has_time) = (!matches!(event, Event::Wakeup), true);
        match event {
            Event::Message { from, body } => self.on_message(now, from, body, out),
            Event::Connected { peer: Address::Master, incarnation } => {
                self.master_epoch = Epoch(incarnation as u32);
                match self.job.host {
                    HostId::SERVER => self.restart_requests(),
                    // The manager kept running, and only it counts its asks.
                    _ => self.allowance.iter_mut().for_each(|allowance| allowance.restart()),
                }
                self.work.restart();
                // Reported again below if it still applies.
                self.outcome = None;
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
        let opening = self.scheduler.as_ref().and_then(LocalScheduler::next_opening);
        let answer = self.allowance.as_ref().and_then(|allowance| allowance.answer_due);
        let reviews = [self.requests.review_at(), self.gangs.next_review(), self.next_rest_end()];
        let own = [opening, self.promotions.next(), answer, self.exploration.next()];
        let own = own.into_iter().chain(reviews);
        self.node_claims.next_repeat().into_iter().chain(own.flatten()).min()
    }

    fn recover(&mut self, changes: &[Change]) {
        changes.iter().for_each(|change| self.take_back(change));
        self.work.recount(&self.job, &self.dag);
        self.recover_gangs();
        // Before the restart, a new timeout may not have reached all nodes. Repeating it has no effect.
        self.has_new_timeout = true;
        self.recall_speeds();
        self.check_invariants();
    }

    fn durable(&self) -> Vec<Change> {
        let (job, progress) = (self.id(), Box::new(self.progress()));
        let mut changes = Vec::new();
        if self.job.host != HostId::SERVER {
            changes.push(Change::Managed { job: Arc::clone(&self.job) });
            changes.push(Change::HoldHeard { job, held: self.held });
        }
        changes.push(Change::Progress { job, progress });
        changes
    }

    fn describe(&self, now: Instant) -> JobDescription {
        self.description(now)
    }
}
