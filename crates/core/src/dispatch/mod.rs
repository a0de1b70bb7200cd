//! The common part of masters and global masters: admits, starts and ends jobs, and lets a scheduler place their asks
//! on the known nodes, as far as the owners of the nodes confirm it.

mod admission;
mod central;
mod history;
mod life;
mod names;
mod queues;
mod submission;
mod tasks;
mod turns;
mod updates;

pub use admission::{Cancellation, JobState};
pub use names::NodeNames;
pub use queues::Reconfiguration;

use crate::policy::Calibration;
use crate::policy::inter_job::QueueTree;
use crate::protocol::{Address, AdmittedJob, JobOutcome, Refusal, RefusalKind, ToClient, ToMaster};
use crate::role::{Change, Outbox};
use crate::scheduling::{Booking, ClaimError, Granting, Ledger, NodeState, Scheduler};
use crate::vocabulary::{
    Chance, ClientId, Duration, GrantId, HostId, Instant, JobId, JobNumbers, Kinds, NodeId, QueueId, QueueSettings,
    Totals,
};
use crate::why::Why;
use admission::Admission;
use queues::Configured;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

/// How jobs are dispatched; every field is a setting of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DispatchSettings {
    pub decide: Decide,
    /// Number of ended jobs that are remembered.
    pub kept_jobs: usize,
    /// Another preset for a part of the jobs.
    pub beside: Option<Beside>,
    /// Number of job hosts, which are numbered from 1. If there are any, the server has no job managers.
    pub hosts: u8,
    /// Users whose estimates are wrong get no opportunistic tasks. Not needed where nothing is opportunistic.
    pub judges_users: bool,
    /// Each job's manager places all of its tasks one by one, so gangs are not supported.
    pub jobs_place_all: bool,
    /// The numbers of jobs that are assigned here; other global masters may assign the others.
    pub numbers: JobNumbers,
    /// The kinds of resources that have fixed numbers from the start.
    pub kinds: Kinds,
    /// For how long ended jobs are remembered; `None`: as long as there are not too many.
    #[serde(default)]
    pub kept_for: Option<Duration>,
    /// Number of tasks of ended jobs that are remembered together; `None`: no limit. The job that ended last is remembered however many
    /// tasks it has.
    #[serde(default)]
    pub kept_tasks: Option<u64>,
}

impl Default for DispatchSettings {
    fn default() -> DispatchSettings {
        DispatchSettings {
            decide: Decide::OnEvents,
            kept_jobs: 10_000,
            beside: None,
            hosts: 0,
            judges_users: false,
            jobs_place_all: false,
            numbers: JobNumbers::default(),
            kinds: Kinds::new(),
            kept_for: None,
            kept_tasks: None,
        }
    }
}

/// A part of the jobs in queues that name no preset uses this preset instead of the cluster's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Beside {
    pub preset: String,
    /// In millionths.
    pub part: u32,
    /// Seed of the random choice of these jobs.
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
    /// As soon as something changes.
    OnEvents,
    /// Per node, when it reports (what the papers' systems do).
    OnHeartbeats {
        /// Maximum number of grants per report; `None`: all that fit.
        most: Option<NonZeroU32>,
    },
}

impl DispatchSettings {
    /// Where the manager of a newly admitted job runs: in one of the connected job hosts or, if none is connected, in
    /// any.
    fn host_of(&self, job: JobId, connected: &BTreeSet<HostId>) -> HostId {
        let turn = |count: usize| (job.0 % count as u64) as usize;
        let there: Vec<HostId> = connected.iter().copied().filter(|host| host.0 <= self.hosts).collect();
        match (self.hosts, there.len()) {
            (0, _) => HostId::SERVER,
            (hosts, 0) => HostId(turn(hosts.into()) as u8 + 1),
            (_, count) => there[turn(count)],
        }
    }
}

/// Confirms placements: implemented by the owner of the nodes, and by a role that asks their owners.
pub trait Confirmation {
    /// # Errors
    /// If there is no room after all.
    fn confirm(&mut self, rooms: &mut Ledger, proposal: &Granting) -> Result<GrantId, ClaimError>;

    /// Confirms it in place of other bookings, which are preempted if there is no room; the function selects which may be.
    /// Returns the grant and what is preempted.
    ///
    /// # Errors
    /// If these bookings hold too little, or nothing is preempted here.
    fn confirm_instead(
        &mut self,
        _rooms: &mut Ledger,
        _proposal: &Granting,
        _may_be_preempted: &dyn Fn(&Booking) -> bool,
    ) -> Result<(GrantId, Vec<Booking>), ClaimError> {
        Err(ClaimError::NoRoom)
    }

    /// Sends what was confirmed since the last call.
    fn announce(&mut self, out: &mut Outbox);
}

/// How and when a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobEnd {
    pub outcome: JobOutcome,
    pub at: Instant,
}

/// One queue, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueStatus {
    pub queue: QueueId,
    pub spec: crate::vocabulary::QueueSpec,
    pub usage: crate::policy::QueueUsage,
    pub running_jobs: u32,
    pub pending_jobs: u32,
    /// What was set of it while the server ran.
    pub set: QueueSettings,
}

#[derive(Clone, PartialEq, Debug)]
pub struct JobStatus {
    pub job: Arc<AdmittedJob>,
    pub state: JobState,
    pub age: Duration,
}

pub struct Dispatcher {
    pub settings: DispatchSettings,
    pub kinds: Kinds,
    are_kinds_logged: bool,
    pub names: NodeNames,
    /// The nodes: the owner's ledger, or what is believed of them.
    pub rooms: Ledger,
    pub scheduler: Scheduler,
    /// How accurate predictions of starts were.
    pub calibration: Calibration,
    /// Connected job hosts.
    pub hosts: BTreeSet<HostId>,
    /// Jobs whose managers were started in this event, or were sent their state again.
    pub started: Vec<JobId>,
    admission: Admission,
    configured: Configured,
    /// When to continue with jobs that start or end and that an event left for later.
    turns_due: Option<Instant>,
    looked_for_late_at: Instant,
    /// When old jobs were forgotten last.
    forgot_at: Instant,
}

impl Dispatcher {
    /// `rooms` has no nodes yet.
    pub fn new(settings: DispatchSettings, queues: QueueTree, mut scheduler: Scheduler, rooms: Ledger) -> Dispatcher {
        if settings.decide != Decide::OnEvents {
            scheduler.use_slow_nodes();
        }
        Dispatcher {
            kinds: settings.kinds.clone(),
            settings,
            are_kinds_logged: false,
            names: NodeNames::default(),
            rooms,
            scheduler,
            calibration: Calibration::default(),
            hosts: BTreeSet::new(),
            started: Vec::new(),
            configured: Configured { tree: queues.clone(), set: BTreeMap::new() },
            admission: Admission::new(queues),
            turns_due: None,
            looked_for_late_at: Instant::ZERO,
            forgot_at: Instant::ZERO,
        }
    }

    /// Messages of clients and job managers. A peer cannot act for another one.
    pub fn on_message(
        &mut self,
        now: Instant,
        from: Address,
        body: ToMaster,
        claims: &mut dyn Confirmation,
        out: &mut Outbox,
    ) {
        match (from, body) {
            (Address::Client(client), ToMaster::Submit { spec, key }) => self.on_submit(now, client, spec, key, out),
            (Address::Client(client), ToMaster::ControlTasks { job, action, tasks }) => {
                self.on_control_tasks(now, client, job, action, tasks, out);
            }
            (Address::Client(client), ToMaster::Control { job, action, by }) => {
                self.on_control(now, client, job, (action, by), out);
            }
            (Address::Client(client), ToMaster::Update { job, update, by }) => {
                self.on_update(now, client, job, *update, by, out);
            }
            (Address::Client(client), _) => {
                refuse(client, RefusalKind::Invalid, "a client cannot send this", "use the public interface", out);
            }
            (_, ToMaster::Freed { grants, unfinished }) => {
                self.note_ended(now, &grants, unfinished);
                self.take_back(now, from, &grants, claims, out);
            }
            (_, ToMaster::Return { grants }) => self.take_back(now, from, &grants, claims, out),
            (Address::JobManager(sender), ToMaster::AllowanceRequest { job, request }) if sender == job => {
                self.scheduler.on_allowance_request(job, request);
            }
            (Address::JobManager(sender), ToMaster::Demand { job, asks, work }) if sender == job => {
                self.on_demand(now, job, &asks, &work, claims, out);
            }
            (Address::JobManager(sender), ToMaster::JobEnded { job, submitted_at, run, outcome, estimated, means })
                if sender == job && self.is_in_run(job, submitted_at, run) =>
            {
                self.judge_estimates(job, estimated, out);
                self.remember(job, &means, out);
                self.on_job_ended(now, job, outcome, out);
            }
            _ => {}
        }
    }

    pub fn recover(&mut self, change: &Change) {
        match change {
            // The log uses the numbers that it records.
            Change::KindsNamed { kinds } => {
                self.are_kinds_logged = kinds.custom() == self.settings.kinds.custom();
                if !self.settings.kinds.custom().starts_with(kinds.custom()) {
                    self.kinds = kinds.clone();
                    self.are_kinds_logged = true;
                }
            }
            Change::QueueSet { queue, settings } => self.configured.remember(queue, *settings),
            other => self.admission.recover(other),
        }
    }

    /// After all changes: adds the running jobs to the scheduler.
    pub fn recovered(&mut self) {
        self.recover_queues();
        for (job, queue) in self.admission.running() {
            self.scheduler.add_job(job, queue);
        }
    }

    pub fn durable(&self) -> Vec<Change> {
        let mut changes = vec![Change::KindsNamed { kinds: self.kinds.clone() }];
        let set = self.configured.set.iter();
        changes.extend(set.map(|(queue, settings)| Change::QueueSet { queue: queue.clone(), settings: *settings }));
        changes.extend(self.admission.durable());
        changes
    }

    // ---- questions -------------------------------------------------------------------------------------------------

    /// Why no (further) task of the job starts: the most important reason first.
    pub fn explain(&self, job: JobId) -> Vec<Why> {
        match self.admission.why_not_started(job) {
            whys if whys.is_empty() => self.scheduler.explain(job, &self.rooms),
            whys => whys,
        }
    }

    /// What the job holds, and the part of it within its share if all queues have work; work beyond that may be preempted. `None`
    /// under presets that preempt nothing.
    pub fn held_within_share(&self, job: JobId) -> Option<(Totals, Totals)> {
        self.scheduler.held_within_share(job)
    }

    /// Describes why something waits, with the names of this cluster.
    pub fn describe_why(&self, why: &Why) -> String {
        why.describe(&self.kinds, |node| self.names.of(node).map_or_else(|| node.to_string(), str::to_owned))
    }

    pub fn job(&self, job: JobId) -> Option<(&Arc<AdmittedJob>, &JobState)> {
        self.admission.job(job)
    }

    /// Known jobs with ids of at least `from`, in ascending order.
    pub fn jobs_from(&self, from: JobId) -> impl DoubleEndedIterator<Item = (&Arc<AdmittedJob>, &JobState)> {
        self.admission.jobs_from(from)
    }

    /// Known jobs with ids below this one, or all, in ascending order.
    pub fn jobs_below(&self, end: Option<JobId>) -> impl DoubleEndedIterator<Item = (&Arc<AdmittedJob>, &JobState)> {
        self.admission.jobs_below(end.unwrap_or(JobId(u64::MAX)))
    }

    /// Jobs that have started and not ended.
    pub fn running(&self) -> impl Iterator<Item = (&Arc<AdmittedJob>, QueueId)> {
        self.admission.running()
    }

    pub fn is_running(&self, job: JobId) -> bool {
        self.admission.is_running(job)
    }

    /// Whether a user holds it, pending or running.
    pub fn is_held(&self, job: JobId) -> bool {
        self.admission.jobs.get(&job).is_some_and(|entry| entry.held)
    }

    /// The cancellation of its current run, if a user cancelled it.
    pub fn cancellation(&self, job: JobId) -> Option<&Cancellation> {
        self.admission.jobs.get(&job)?.cancelled.as_deref()
    }

    /// How many jobs and dependencies were examined so far to determine which jobs start and end.
    pub fn steps(&self) -> u64 {
        self.admission.turns.steps()
    }

    /// The queue that a job is in, if the configuration still has it.
    pub fn queue_of(&self, job: JobId) -> Option<QueueId> {
        self.admission.queue_of(job)
    }

    /// The full name of the queue that it is, or was, in.
    pub fn queue_name(&self, job: JobId) -> Option<&str> {
        let (job, _) = self.job(job)?;
        match self.queue_of(job.id) {
            Some(queue) => Some(&self.admission.queues().spec(queue).name),
            None => Some(&job.spec.queue),
        }
    }

    pub fn queues(&self) -> &QueueTree {
        self.admission.queues()
    }

    /// The preset that a random part of all jobs uses, if there is one.
    pub fn drawn_preset(&self) -> Option<&str> {
        self.settings.beside.as_ref().map(|beside| &*beside.preset)
    }

    /// Whether each job places its tasks one by one, so that gangs are not supported.
    pub fn jobs_place_all(&self) -> bool {
        self.settings.jobs_place_all
    }

    /// Whether the manager of some job is, or will be, in this job host.
    pub fn has_jobs_at(&self, host: HostId) -> bool {
        self.jobs_from(JobId(0)).any(|(job, _)| job.host == host)
    }

    pub fn nodes_given_up(&self) -> impl Iterator<Item = NodeId> {
        self.rooms.ids().filter(|node| self.rooms.state(*node) == Some(NodeState::Lost))
    }

    pub fn queue_statuses(&self) -> Vec<QueueStatus> {
        let tree = self.admission.queues();
        let status = |index: usize| {
            let queue = QueueId(index as u32);
            let (running_jobs, pending_jobs) = self.admission.count_jobs(queue);
            QueueStatus {
                queue,
                spec: tree.spec(queue).clone(),
                usage: self.scheduler.queue_usage(queue),
                running_jobs,
                pending_jobs,
                set: self.configured.set.get(&tree.spec(queue).name).copied().unwrap_or_default(),
            }
        };
        (0..tree.len()).map(status).collect()
    }

    pub fn job_statuses(&self, now: Instant) -> Vec<JobStatus> {
        let status = |(job, state): (&Arc<AdmittedJob>, &JobState)| JobStatus {
            job: Arc::clone(job),
            state: state.clone(),
            age: now.since(job.submitted_at),
        };
        self.jobs_from(JobId(0)).map(status).collect()
    }
}

pub fn refuse(client: ClientId, kind: RefusalKind, message: &str, remedy: &str, out: &mut Outbox) {
    let refusal = Refusal { kind, message: message.to_owned(), remedy: remedy.to_owned() };
    out.send(client, ToClient::Refused(refusal));
}
