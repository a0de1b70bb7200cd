//! The master of a cluster: it owns the nodes and keeps the only ledger of them.
//!
//! Its four duties: [`admit`] lets jobs in and ends them, [`load`] knows which nodes are there ([`publish`] tells of them,
//! [`steer`] limits what is done there without the master, [`faults`] knows which of them fail), [`claims`] confirms placements against the ledger ([`tokens`]
//! lets nodes tell what may be launched), [`central`] decides placements itself.

mod admit;
mod central;
mod claims;
mod faults;
mod history;
mod load;
mod publish;
mod steer;
mod tokens;

pub use admit::JobState;
pub use load::{NodeStatus, PauseStatus, QueueStatus};
pub use publish::Publish;
pub use steer::{OpportunisticLimit, Steering};

use crate::policy::Calibration;
use crate::policy::inter_job::QueueTree;
use crate::policy::reliability::{Reliability, ReliabilitySettings};
use crate::protocol::{Address, AdmittedJob, JobOutcome, RefusalKind, ToClient, ToMaster};
use crate::role::{Change, Event, Outbox, Role};
use crate::scheduling::{Ledger, Scheduler};
use crate::vocabulary::{Chance, ClientId, Duration, Epoch, Instant, JobId, Kinds, NodeId, QueueId, Sealing};
use crate::why::Why;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::sync::Arc;

/// How a master behaves; every part is a setting of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MasterSettings {
    /// How often nodes report; of many, as often as `most_reports` allows.
    pub heartbeat: Duration,
    /// Reports that all nodes together send in a second, at most.
    pub most_reports: NonZeroU32,
    /// Heartbeats that may be missing before a node counts as unreachable.
    pub missed_heartbeats: u32,
    /// How long an unreachable node may stay away before its attempts are given up.
    pub node_grace: Duration,
    pub decide: Decide,
    pub publish: Publish,
    /// How often job managers are told how loaded nodes are; `None` for as often as these report.
    pub publish_every: Option<Duration>,
    /// `None`: there is no opportunistic work, or nobody steers it.
    pub steer: Option<Steering>,
    /// Ended jobs that are remembered.
    pub kept_jobs: usize,
    /// How failures of nodes are counted.
    pub reliability: ReliabilitySettings,
    /// How long a generation of tokens takes. A token counts in its own and in the next one, and up to some heartbeats more.
    pub token_life: Duration,
    /// A part of the jobs goes by another preset.
    pub beside: Option<Beside>,
}

/// Of the jobs in queues that name no preset, so many go by another one than the cluster's own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Beside {
    pub preset: String,
    /// In millionths.
    pub part: u32,
    /// By which they are drawn.
    pub seed: u64,
}

impl Beside {
    fn takes(&self, job: JobId) -> bool {
        Chance::new(self.seed, &format!("preset of job {job}")).below(1_000_000_u32) < self.part
    }
}

/// When the central path decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Decide {
    /// As soon as something changed.
    OnEvents,
    /// Per node, when it reports (what the papers' systems do).
    OnHeartbeats {
        /// At most so many grants for a report; `None` for all that fit.
        most: Option<NonZeroU32>,
    },
}

impl MasterSettings {
    /// From one message of a node that may come at any time to the next, so that all of them together are not too many.
    fn pace(&self, nodes: usize) -> Duration {
        Duration((nodes as u64).saturating_mul(1_000_000) / u64::from(self.most_reports.get()))
    }

    /// How often so many nodes report.
    pub fn heartbeat_of(&self, nodes: usize) -> Duration {
        self.heartbeat.max(self.pace(nodes))
    }

    fn publish_every(&self, nodes: usize) -> Duration {
        self.publish_every.unwrap_or(self.heartbeat_of(nodes))
    }
}

/// A message costs tens of microseconds, and a master has other things to do.
const MOST_REPORTS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");

impl Default for MasterSettings {
    fn default() -> Self {
        MasterSettings {
            heartbeat: Duration::from_secs(1),
            most_reports: MOST_REPORTS,
            missed_heartbeats: 5,
            node_grace: Duration::from_secs(30),
            decide: Decide::OnEvents,
            publish: Publish::Nothing,
            publish_every: None,
            steer: None,
            kept_jobs: 10_000,
            reliability: ReliabilitySettings::USUAL,
            token_life: Duration::from_secs(600),
            beside: None,
        }
    }
}

pub struct Master {
    settings: MasterSettings,
    kinds: Kinds,
    ledger: Ledger,
    admission: admit::Admission,
    nodes: load::Nodes,
    reliability: Reliability,
    /// Attempts that ended well at nodes in this life of the master.
    successes: u64,
    /// How right it was what was said of starts.
    calibration: Calibration,
    looked_for_late_at: Instant,
    publication: publish::Publication,
    claims: claims::Claims,
    scheduler: Scheduler,
}

/// A master's state for people and for a simulator that starts from it.
#[derive(Clone, PartialEq, Debug)]
pub struct MasterDescription {
    pub nodes: Vec<NodeStatus>,
    pub queues: Vec<QueueStatus>,
    pub jobs: Vec<JobStatus>,
    pub open_tasks: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct JobStatus {
    pub job: Arc<AdmittedJob>,
    pub state: JobState,
    pub age: Duration,
}

impl Master {
    pub fn new(
        epoch: Epoch,
        settings: MasterSettings,
        queues: QueueTree,
        scheduler: Scheduler,
        sealing: Sealing,
    ) -> Master {
        Master {
            reliability: reliability(&settings),
            successes: 0,
            calibration: Calibration::default(),
            looked_for_late_at: Instant::ZERO,
            settings,
            kinds: Kinds::new(),
            ledger: Ledger::new(),
            admission: admit::Admission::new(queues),
            nodes: load::Nodes::default(),
            publication: publish::Publication::default(),
            claims: claims::Claims::new(epoch, sealing),
            scheduler,
        }
    }

    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    pub fn epoch(&self) -> Epoch {
        self.claims.epoch()
    }

    fn on_message(&mut self, now: Instant, from: Address, body: ToMaster, out: &mut Outbox) {
        match (from, body) {
            (Address::Client(client), ToMaster::Submit { spec, key }) => self.on_submit(now, client, spec, key, out),
            (Address::Client(client), ToMaster::Control { job, action }) => {
                self.on_control(now, client, job, action, out);
            }
            (Address::Client(client), ToMaster::Drain { node, drained }) => {
                self.on_drain(now, client, node, drained, out);
            }
            (Address::Node(node), ToMaster::Register(registration)) => self.on_register(now, node, *registration, out),
            (Address::Node(node), ToMaster::Report(report)) => self.on_report(now, node, *report, out),
            (Address::Node(node), ToMaster::Waits(waits)) => self.nodes.take_waits(now, node, waits),
            (Address::Node(node), ToMaster::Room { spare }) => self.on_room(node, *spare, out),
            (Address::Node(node), ToMaster::Moved { to, left, queued, expected_wait }) => {
                self.on_moved(node, to, *left, load::Waiting::new(expected_wait, queued), out);
            }
            (Address::Node(node), ToMaster::CannotLaunch { why }) => self.on_cannot_launch(now, node, why, out),
            (Address::JobManager(_), ToMaster::NodeFailed { node, suspects }) => {
                self.on_node_failed(now, node, suspects)
            }
            (Address::JobManager(_), ToMaster::TaskFails { at }) => self.on_task_fails(now, &at),
            (_, ToMaster::Freed { grants } | ToMaster::Return { grants }) => self.on_freed(now, from, &grants, out),
            (Address::JobManager(sender), ToMaster::Wants { job, wants }) if sender == job => {
                self.scheduler.on_wants(job, wants);
            }
            (Address::JobManager(sender), ToMaster::Demand { job, asks, work }) if sender == job => {
                self.on_demand(now, job, &asks, &work, out);
            }
            (Address::JobManager(sender), ToMaster::Claim { job, placements }) if sender == job => {
                self.on_claim(job, &placements, out);
            }
            (Address::JobManager(sender), ToMaster::Promote { attempt, node, resources }) if sender == attempt.job => {
                self.on_promote(attempt, node, &resources, out);
            }
            (Address::Node(sender), ToMaster::Promote { attempt, node, resources }) if sender == node => {
                // Where a report brings so many grants at most, what is left may be wanted at the next.
                let is_wanted = matches!(self.settings.decide, Decide::OnHeartbeats { most: Some(_) });
                if !is_wanted || self.scheduler.open_tasks() == 0 {
                    self.on_promote(attempt, node, &resources, out);
                }
            }
            (Address::JobManager(sender), ToMaster::JobEnded { job, outcome, estimated, means }) if sender == job => {
                self.judge_estimates(job, estimated, out);
                self.remember(job, &means, out);
                self.on_job_ended(now, job, outcome, out);
            }
            (Address::Client(client), _) => {
                refuse(client, RefusalKind::Invalid, "a client cannot send this", "use the public interface", out);
            }
            // A peer that speaks for somebody else is not believed.
            _ => {}
        }
    }

    /// In tests and debug builds, after every event.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            self.ledger.check_invariants();
        }
    }

    // ---- questions from the interface ------------------------------------------------------------------------------

    /// Why nothing (more) of the job starts: the most telling reason first.
    pub fn explain(&self, job: JobId) -> Vec<Why> {
        match self.admission.why_not_begun(job) {
            Some(why) => vec![why],
            None => self.scheduler.explain(job, &self.ledger),
        }
    }

    /// What it knows of its nodes and has booked on them.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn job(&self, job: JobId) -> Option<(&Arc<AdmittedJob>, &JobState)> {
        self.admission.job(job)
    }

    /// Known jobs with ids of at least `from`, in ascending order.
    pub fn jobs_from(&self, from: JobId) -> impl DoubleEndedIterator<Item = (&Arc<AdmittedJob>, &JobState)> {
        self.admission.jobs_from(from)
    }

    /// The queue that a job is in.
    pub fn queue_of(&self, job: JobId) -> Option<QueueId> {
        self.admission.queue_of(job)
    }

    pub fn queue_name(&self, job: JobId) -> Option<&str> {
        self.queue_of(job).map(|queue| self.admission.queues().spec(queue).name.as_str())
    }

    /// Why something waits, in the words of this cluster.
    pub fn describe_why(&self, why: &Why) -> String {
        why.describe(&self.kinds, |node| self.node_name(node).map_or_else(|| node.to_string(), str::to_owned))
    }

    pub fn node_name(&self, node: NodeId) -> Option<&str> {
        self.nodes.name(node)
    }

    /// The number of a node of this name; a new name gets the next number.
    pub fn name_node(&mut self, name: &str, out: &mut Outbox) -> NodeId {
        let (node, is_new) = self.nodes.number(name);
        if is_new {
            self.ledger.expect_node(node);
            out.persist(Change::NodeNamed { node, name: name.to_owned() });
        }
        node
    }

    pub fn node_by_name(&self, name: &str) -> Option<NodeId> {
        self.nodes.find(name)
    }
}

impl Role for Master {
    type Message = ToMaster;
    type Description = MasterDescription;

    fn handle(&mut self, now: Instant, event: Event<ToMaster>, out: &mut Outbox) {
        match event {
            Event::Message { from, body } => self.on_message(now, from, body, out),
            Event::Connected { peer: Address::Node(node), .. } => self.on_node_connected(now, node),
            Event::Disconnected { peer: Address::Node(node) } => self.on_node_disconnected(now, node, out),
            Event::Connected { peer: Address::Master, .. } => self.on_recovered(now, out),
            Event::Connected { .. } | Event::Disconnected { .. } => {}
            Event::Wakeup => {
                self.on_delays(now, out);
                self.on_wakeup(now, out);
                self.advance_when_due(now);
                self.publish_when_due(now, out);
            }
        }
        self.tell_shares(out);
        self.review_publication(now);
        self.check_invariants();
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let reviews = [self.nodes.next_review(), self.scheduler.next_widening(), self.publication.due];
        reviews.into_iter().flatten().min()
    }

    fn recover(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::KindsNamed { kinds } => self.kinds = kinds.clone(),
                Change::NodeNamed { node, name } => {
                    self.nodes.recover(*node, name);
                    self.ledger.expect_node(*node);
                }
                Change::NodeDrained { node, drained } => self.nodes.set_drained(*node, *drained),
                other => self.admission.recover(other),
            }
        }
        for (job, queue) in self.admission.running() {
            self.scheduler.add_job(job.id, queue, job.user, job.spec.priority);
        }
    }

    fn durable(&self) -> Vec<Change> {
        let mut changes = vec![Change::KindsNamed { kinds: self.kinds.clone() }];
        changes.extend(self.nodes.durable());
        changes.extend(self.admission.durable());
        changes
    }

    fn describe(&self, now: Instant) -> MasterDescription {
        let jobs = self.admission.jobs_from(JobId(0)).map(|(job, state)| JobStatus {
            job: Arc::clone(job),
            state: state.clone(),
            age: now.since(job.submitted_at),
        });
        MasterDescription {
            nodes: self.node_statuses(now),
            queues: self.queue_statuses(),
            jobs: jobs.collect(),
            open_tasks: self.scheduler.open_tasks(),
        }
    }
}

/// Nodes that are lost at once are missed within some heartbeats of each other.
fn reliability(settings: &MasterSettings) -> Reliability {
    let ReliabilitySettings { half_life, together } = settings.reliability;
    let together = together.max(Duration(settings.heartbeat.0.saturating_mul(3)));
    Reliability::new(ReliabilitySettings { half_life, together })
}

fn refuse(client: ClientId, kind: RefusalKind, message: &str, remedy: &str, out: &mut Outbox) {
    let refusal = crate::protocol::Refusal { kind, message: message.to_owned(), remedy: remedy.to_owned() };
    out.send(client, ToClient::Refused(refusal));
}

/// What the master knows of a job that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobEnd {
    pub outcome: JobOutcome,
    pub at: Instant,
}
