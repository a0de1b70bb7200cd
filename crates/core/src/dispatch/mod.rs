//! What masters and global masters have in common: jobs come in, begin and end, and a scheduler gives their asks room on the
//! nodes that are known, as far as whoever owns these confirms it.

mod admission;
mod central;
mod history;
mod life;
mod names;
mod submission;
mod tasks;
mod turns;
mod updates;

pub use admission::{Cancellation, JobState};
pub use names::NodeNames;

use crate::policy::Calibration;
use crate::policy::inter_job::QueueTree;
use crate::protocol::{Address, AdmittedJob, JobOutcome, Refusal, RefusalKind, ToClient, ToMaster};
use crate::role::{Change, Outbox};
use crate::scheduling::{ClaimError, Granting, Ledger, NodeState, Scheduler};
use crate::vocabulary::{
    Chance, ClientId, Duration, GrantId, HostId, Instant, JobId, JobNumbers, Kinds, NodeId, QueueId,
};
use crate::why::Why;
use admission::Admission;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

/// How jobs are dispatched; every part is a setting of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DispatchSettings {
    pub decide: Decide,
    /// Ended jobs that are remembered.
    pub kept_jobs: usize,
    /// A part of the jobs goes by another preset.
    pub beside: Option<Beside>,
    /// So many processes beside the server's have job managers, which are numbered from 1; the server has none then.
    pub hosts: u8,
    /// Users whose estimates are wrong get no opportunistic tasks; where nothing is opportunistic, estimates harm nobody.
    pub judges_users: bool,
    /// Each job's manager places all of its tasks, one by one: none of them can be of a gang.
    pub jobs_place_all: bool,
    /// Others may number jobs beside.
    pub numbers: JobNumbers,
    /// The kinds of resources that have their numbers from the beginning.
    pub kinds: Kinds,
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
        }
    }
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

impl DispatchSettings {
    /// Where the manager of a job is that is admitted now: in one of the processes that are connected, or, where none is, in any.
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

/// Whoever confirms placements: the owner of the nodes, or somebody who asks their owners.
pub trait Claims {
    /// # Errors
    /// Where there is no room after all.
    fn confirm(&mut self, rooms: &mut Ledger, proposal: &Granting) -> Result<GrantId, ClaimError>;

    /// Passes on what was confirmed since it was called last.
    fn announce(&mut self, out: &mut Outbox);
}

/// What is known of a job that has ended.
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
    /// How right it was what was said of starts.
    pub calibration: Calibration,
    /// Processes of job managers that are connected.
    pub hosts: BTreeSet<HostId>,
    /// Jobs whose managers have begun in this event, or are told again what is wanted.
    pub begun: Vec<JobId>,
    admission: Admission,
    /// Jobs are to begin or to end that an event left to the next.
    turns_due: Option<Instant>,
    looked_for_late_at: Instant,
}

impl Dispatcher {
    /// `rooms` has no nodes yet.
    pub fn new(settings: DispatchSettings, queues: QueueTree, scheduler: Scheduler, rooms: Ledger) -> Dispatcher {
        Dispatcher {
            kinds: settings.kinds.clone(),
            settings,
            are_kinds_logged: false,
            names: NodeNames::default(),
            rooms,
            scheduler,
            calibration: Calibration::default(),
            hosts: BTreeSet::new(),
            begun: Vec::new(),
            admission: Admission::new(queues),
            turns_due: None,
            looked_for_late_at: Instant::ZERO,
        }
    }

    /// What clients and job managers say to whoever has their jobs. A peer that speaks for somebody else is not believed.
    pub fn on_message(
        &mut self,
        now: Instant,
        from: Address,
        body: ToMaster,
        claims: &mut dyn Claims,
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
            (_, ToMaster::Freed { grants } | ToMaster::Return { grants }) => {
                let nodes = self.free(now, from, &grants, out);
                self.decide(now, &nodes, claims, out);
            }
            (Address::JobManager(sender), ToMaster::Wants { job, wants }) if sender == job => {
                self.scheduler.on_wants(job, wants);
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
            // What is in the log goes by the numbers there.
            Change::KindsNamed { kinds } => {
                self.are_kinds_logged = kinds.custom() == self.settings.kinds.custom();
                if !self.settings.kinds.custom().starts_with(kinds.custom()) {
                    self.kinds = kinds.clone();
                    self.are_kinds_logged = true;
                }
            }
            other => self.admission.recover(other),
        }
    }

    /// After all changes: the jobs that run are known to the scheduler.
    pub fn recovered(&mut self) {
        for (job, queue) in self.admission.running() {
            self.scheduler.add_job(job.id, queue, job.user, job.spec.priority);
        }
    }

    pub fn durable(&self) -> Vec<Change> {
        let mut changes = vec![Change::KindsNamed { kinds: self.kinds.clone() }];
        changes.extend(self.admission.durable());
        changes
    }

    // ---- questions -------------------------------------------------------------------------------------------------

    /// Why nothing (more) of the job starts: the most telling reason first.
    pub fn explain(&self, job: JobId) -> Vec<Why> {
        match self.admission.why_not_begun(job) {
            whys if whys.is_empty() => self.scheduler.explain(job, &self.rooms),
            whys => whys,
        }
    }

    /// Why something waits, in the words of this cluster.
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

    /// Those that have begun and not ended.
    pub fn running(&self) -> impl Iterator<Item = (&Arc<AdmittedJob>, QueueId)> {
        self.admission.running()
    }

    pub fn is_running(&self, job: JobId) -> bool {
        self.admission.is_running(job)
    }

    /// Whether a user holds it, be it that it runs.
    pub fn is_held(&self, job: JobId) -> bool {
        self.admission.jobs.get(&job).is_some_and(|entry| entry.held)
    }

    /// Who cancelled this run of it, if somebody did.
    pub fn cancellation(&self, job: JobId) -> Option<&Cancellation> {
        self.admission.jobs.get(&job)?.cancelled.as_deref()
    }

    /// How many jobs and dependencies were looked at so far to find out which jobs begin and end.
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

    /// The preset that a part of all jobs goes by, where there is one.
    pub fn drawn_preset(&self) -> Option<&str> {
        self.settings.beside.as_ref().map(|beside| &*beside.preset)
    }

    /// Whether each job places its tasks one by one, so that nobody finds room for a gang.
    pub fn jobs_place_all(&self) -> bool {
        self.settings.jobs_place_all
    }

    /// Whether this process of job managers has, or is to have, the manager of some job.
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
