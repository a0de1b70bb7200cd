//! The interface of all roles: a state machine that takes an event and leaves its effects in an outbox.

pub use crate::progress::LostCause;
use crate::progress::SavedProgress;
use crate::protocol::{Address, AdmittedJob, ClaimError, JobOutcome, JobUpdate, Message, Peer, Rule};
use crate::vocabulary::{
    AllocationTime, AttemptId, Chosen, ClockOffset, ClusterId, Duration, Ended, Exchange, Foretold, ForetoldStart,
    GrantId, HostId, Instant, JobId, Kinds, NodeId, PastRuns, Recurring, Spans, TaskAction, TaskId, Totals, UserId,
};
use crate::why::Why;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A state machine without IO, driven by a daemon or by the simulator.
pub trait Role {
    type Message;
    type Description;

    /// Handles one event. All effects are left in `out`.
    fn handle(&mut self, now: Instant, event: Event<Self::Message>, out: &mut Outbox);

    /// When the role needs a `Wakeup`; asked after every `handle`.
    fn next_wakeup(&self) -> Option<Instant>;

    /// Restores what an earlier incarnation persisted, in order, before the first event.
    fn recover(&mut self, changes: &[Change]);

    /// Changes that give a new role this one's durable state, for a snapshot of the store.
    fn durable(&self) -> Vec<Change>;

    /// Its state for people, and for a simulator that starts from it. Times are given as ages, not as instants.
    fn describe(&self, now: Instant) -> Self::Description;
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event<M> {
    Message {
        from: Address,
        body: M,
    },
    /// A connection to `peer` is established. Each incarnation of the peer has another number.
    Connected {
        peer: Address,
        incarnation: u64,
    },
    /// The connection to `peer` broke. A driver that cannot detect this may omit it: silence has the same effect later.
    Disconnected {
        peer: Address,
    },
    Wakeup,
}

/// The effects of one or several events.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Outbox {
    pub sends: Vec<(Address, Message)>,
    pub changes: Vec<Change>,
    pub records: Vec<Record>,
}

impl Outbox {
    pub fn send<P: Peer>(&mut self, to: P, body: P::Message) {
        self.sends.push(to.envelope(body));
    }

    /// Makes a change durable before any message of this or a later `handle` is sent. For a receiver on another machine
    /// the change is on disk by then; for an order to the executor on the same machine it is written.
    pub fn persist(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Reports a fact for metrics, stories, transcripts and reasons, after the changes of its event. No message is
    /// delayed by it.
    pub fn record(&mut self, fact: Record) {
        self.records.push(fact);
    }

    pub fn clear(&mut self) {
        self.sends.clear();
        self.changes.clear();
        self.records.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.changes.is_empty() && self.records.is_empty()
    }
}

/// A change of a role's state that survives a crash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    // Changes of the master.
    KindsNamed {
        kinds: Kinds,
    },
    UserSeen {
        user: UserId,
        name: String,
    },
    NodeNamed {
        node: NodeId,
        name: String,
    },
    NodeDrained {
        node: NodeId,
        drained: bool,
    },
    /// The last message of the node before it disconnected was at this time.
    NodeHeard {
        node: NodeId,
        at: Instant,
    },
    /// The node was removed. A node that connects under its name is a new one.
    NodeRemoved {
        node: NodeId,
    },
    JobAdmitted {
        job: Arc<AdmittedJob>,
        key: Option<String>,
    },
    JobHeld {
        job: JobId,
        held: bool,
    },
    /// The job was released to its job manager.
    JobBegun {
        job: JobId,
    },
    JobEnded {
        job: JobId,
        outcome: JobOutcome,
        at: Instant,
    },
    JobReopened {
        job: JobId,
        /// How often it has been reopened.
        run: u32,
    },
    /// A user cancelled the job, whose manager may not have received it.
    CancelAsked {
        job: JobId,
        by: String,
        at: Instant,
    },
    /// A user requested an action on single tasks of the job, whose manager may not have received it.
    TasksAsked {
        job: JobId,
        action: TaskAction,
        tasks: Box<Chosen>,
    },
    /// A user changed the job.
    JobUpdated {
        job: JobId,
        update: Box<JobUpdate>,
        by: String,
    },
    JobForgotten {
        job: JobId,
    },
    /// The job was ended without its manager, whose process was not connected.
    JobAbandoned {
        job: JobId,
    },
    /// The run times of a job's tasks, by stage, in its last runs; used for later runs.
    RunTimesLearned {
        recurring: Recurring,
        stages: Arc<[Option<PastRuns>]>,
    },

    /// The master's process has received the log entries of this job host before this number.
    Heard {
        host: HostId,
        next: u64,
    },

    // Changes of a job manager.
    /// A job host has taken the job.
    Managed {
        job: Arc<AdmittedJob>,
    },
    /// The job host has forgotten the job.
    Unmanaged {
        job: JobId,
    },
    /// The job manager was notified that the job is held, or not held any more.
    HoldHeard {
        job: JobId,
        held: bool,
    },
    Launched {
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        grant: Option<GrantId>,
        /// It can be preempted unless it is promoted.
        opportunistic: bool,
        /// Its weight in the node's random choice, if it is opportunistic.
        weight: u16,
        rule: Rule,
        passed_over: u32,
        at: Instant,
    },
    /// An attempt's end, and the consequence for the task: `last` if the task is not retried.
    Finished {
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        ended: Arc<Ended>,
        last: bool,
        at: Instant,
    },
    /// An attempt's end was reported after it was given up: its usage is counted, and nothing else follows.
    EndedLate {
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        ended: Arc<Ended>,
        at: Instant,
    },
    /// An attempt that will never report.
    Lost {
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        cause: LostCause,
        last: bool,
        at: Instant,
    },
    /// A file that the task wrote and that is still needed is lost: the task runs again.
    OutputLost {
        task: TaskId,
        file: String,
        at: Instant,
    },
    /// An opportunistic attempt became a guaranteed one.
    Promoted {
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        /// `None`: it is within its job's entitlement, and no ledger holds its resources.
        grant: Option<GrantId>,
        at: Instant,
    },
    /// What the job donated and received so far.
    Exchanged {
        job: JobId,
        exchange: Box<Exchange>,
        at: Instant,
    },
    /// No task of the job starts any more.
    Cancelled {
        job: JobId,
        at: Instant,
    },
    /// Tasks of the stage are held, released, or cancelled.
    TasksChosen {
        job: JobId,
        action: TaskAction,
        stage: u32,
        tasks: Spans,
        at: Instant,
    },
    /// Failed, skipped and cancelled tasks wait again.
    Rerun {
        job: JobId,
        /// How often the job has been rerun.
        run: u32,
        /// Only these tasks; `None` for all.
        only: Option<Box<Chosen>>,
    },
    /// The whole progress of a job, in a snapshot.
    Progress {
        job: JobId,
        progress: Box<SavedProgress>,
    },
}

/// Why an attempt that waits got a duplicate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Trigger {
    /// It has to wait much longer than expected.
    Underestimated,
    /// It has to wait longer than the mean of its stage.
    AboveMean,
    /// It has waited longer than the mean of its stage.
    WaitedLong,
    /// It may be guaranteed now, and would start sooner on another node.
    Upgraded,
    /// It waits, and it is not known whether it would wait elsewhere.
    Explored,
}

/// Why a node refused a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TokenFault {
    /// Its generation has expired.
    Expired,
    /// It was not made for this launch: it is forged, or belongs to another node, another attempt or another cluster.
    NotAuthentic,
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenFault::Expired => "its token has expired",
            TokenFault::NotAuthentic => "its token is not valid for it",
        })
    }
}

/// A fact that a role reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Record {
    Submitted {
        job: JobId,
        tasks: u64,
    },
    Held {
        job: JobId,
        held: bool,
    },
    /// A job's ask was considered and could not be met.
    Blocked {
        job: JobId,
        why: Why,
    },
    /// The attempt waits at its node.
    Queued {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
    },
    /// An attempt is at its node and waits for all attempts of its gang to be at theirs.
    AwaitsGang {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
    },
    /// The node of a launch lacks files that the task reads, and fetches them first.
    AwaitsFiles {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        files: u32,
        bytes: u64,
    },
    /// All of its input files are there.
    FilesArrived {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
    },
    Started {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        waited: Duration,
        /// How long it was expected to wait when it was sent to the node's queue or became guaranteed there; `None` if
        /// that was not estimated.
        expected: Option<Duration>,
        opportunistic: bool,
        /// It became guaranteed while it waited.
        promoted: bool,
        /// Present for a task's first start, if this incarnation of the job's manager saw its stage become ready.
        allocation: Option<AllocationTime>,
    },
    /// A guaranteed attempt that waited was given up for another one of its task, after `waited`; it was expected to
    /// wait for `expected`.
    WaitedInVain {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        waited: Duration,
        expected: Duration,
    },
    /// An attempt started whose start, and possibly run time, had been predicted.
    Foretold {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        foretold: Foretold,
        start: ForetoldStart,
        /// How long it is expected to run.
        run: Option<Duration>,
    },
    /// A running attempt was found again after its owner or its node's agent had been down.
    Adopted {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
    },
    /// The node was asked to stop the attempt.
    Stopping {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        reason: crate::vocabulary::EndReason,
    },
    /// The decision for an attempt that waits was changed: its task is launched on this node, too.
    Duplicated {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        trigger: Trigger,
    },
    /// A running attempt is slow: it has done `part` of its work, in millionths, and is expected to take `left` longer.
    /// Its task is launched on another node, too, where it is expected to take less in total.
    Straggles {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        part: u32,
        left: Duration,
        elsewhere: NodeId,
        takes: Duration,
    },
    /// The attempt has waited for this time for a file that `from` has: the task that wrote the file runs again on
    /// another node.
    SlowInput {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        waited: Duration,
        writer: TaskId,
        from: NodeId,
        elsewhere: NodeId,
    },
    /// The duplicate of a slow attempt ended first.
    Overtaken {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        by: AttemptId,
    },
    /// The task is retried.
    Retried {
        task: TaskId,
        failures: u32,
        retries: u32,
        /// The wait before the next attempt.
        delay: Duration,
        /// The cause was not the task, so that no retry is used.
        costs_none: bool,
    },
    /// The user's stated run times were far too low in some jobs: all tasks of that user are guaranteed from now on.
    /// Or, with `believed`, no longer, after the same number of jobs with better estimates.
    EstimatesJudged {
        job: JobId,
        believed: bool,
    },
    /// What the job's guaranteed tasks may hold in total from now on, if the job places them itself.
    Allowed {
        job: JobId,
        most: Box<Totals>,
    },
    /// All tasks of a gang are in place and start.
    GangBegins {
        job: JobId,
        stage: u32,
        tasks: u32,
    },
    /// The dependencies of a stage are met.
    StageReady {
        job: JobId,
        stage: u32,
    },
    /// These tasks of the stage could wait for `left` without delaying the job's end. Recorded each time that a stage
    /// gets such tasks.
    Deferred {
        job: JobId,
        stage: u32,
        tasks: u32,
        left: Duration,
    },
    /// A late message about an attempt that is not current was dropped.
    Stale {
        from: Address,
        attempt: AttemptId,
    },
    /// A late message about a grant was dropped.
    StaleGrant {
        from: Address,
        grant: GrantId,
    },
    /// A message was too late and was dropped.
    StaleMessage {
        from: Address,
    },
    /// A cluster numbers the kinds of resources differently from the global master that records this and therefore
    /// places nothing there.
    OtherKinds {
        cluster: ClusterId,
    },
    /// A global master's launch was refused: its view of the node was out of date.
    LaunchRefused {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        why: ClaimError,
    },
    /// A launch got room on a node that is internal to another global master.
    Repartitioned {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
    },
    NodeJoined {
        node: NodeId,
    },
    NodeUnreachable {
        node: NodeId,
    },
    NodeLost {
        node: NodeId,
    },
    NodeDrained {
        node: NodeId,
        drained: bool,
    },
    /// The node could not launch; it gets no work for `length`.
    NodePaused {
        node: NodeId,
        length: Duration,
        why: String,
    },
    /// Its pause is over.
    NodeResumed {
        node: NodeId,
    },
    /// An attempt without an owner was killed.
    Orphaned {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
    },
    /// The node stops an attempt for a guaranteed one that found no room: an opportunistic one or, in a federation, one
    /// of a queue beyond its share.
    Preempting {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        by: AttemptId,
    },
    /// A running opportunistic attempt yields its CPU to a guaranteed one, and continues with what is left.
    Yielding {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        by: AttemptId,
    },
    /// It has its CPU again, `after` this time.
    Resumed {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        after: Duration,
    },
    /// The node refused a launch because of its token.
    TokenRefused {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        why: TokenFault,
    },
}

impl Change {
    /// The job of the change; `None` for changes of the cluster.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Change::KindsNamed { .. }
            | Change::UserSeen { .. }
            | Change::NodeNamed { .. }
            | Change::NodeDrained { .. }
            | Change::NodeHeard { .. }
            | Change::NodeRemoved { .. }
            | Change::Heard { .. }
            | Change::RunTimesLearned { .. } => None,
            Change::JobAdmitted { job, .. } | Change::Managed { job } => Some(job.id),
            Change::JobHeld { job, .. }
            | Change::JobBegun { job }
            | Change::JobEnded { job, .. }
            | Change::JobReopened { job, .. }
            | Change::CancelAsked { job, .. }
            | Change::TasksAsked { job, .. }
            | Change::TasksChosen { job, .. }
            | Change::JobForgotten { job }
            | Change::JobUpdated { job, .. }
            | Change::JobAbandoned { job }
            | Change::Exchanged { job, .. }
            | Change::Cancelled { job, .. }
            | Change::Rerun { job, .. }
            | Change::Unmanaged { job }
            | Change::HoldHeard { job, .. }
            | Change::Progress { job, .. } => Some(*job),
            Change::Launched { attempt, .. }
            | Change::Finished { attempt, .. }
            | Change::EndedLate { attempt, .. }
            | Change::Lost { attempt, .. }
            | Change::Promoted { attempt, .. } => Some(attempt.job),
            Change::OutputLost { task, .. } => Some(task.job),
        }
    }

    pub fn task(&self) -> Option<TaskId> {
        match self {
            Change::Launched { task, .. }
            | Change::Finished { task, .. }
            | Change::EndedLate { task, .. }
            | Change::Lost { task, .. }
            | Change::OutputLost { task, .. }
            | Change::Promoted { task, .. } => Some(*task),
            _ => None,
        }
    }

    /// Converts the instants of a job manager in another process to the clock of this one. (Instants from the master,
    /// such as the time of the job's submission, use the master's clock already.)
    pub fn set_clock(&mut self, offset: ClockOffset) {
        match self {
            Change::Launched { at, .. }
            | Change::Finished { at, .. }
            | Change::EndedLate { at, .. }
            | Change::Lost { at, .. }
            | Change::OutputLost { at, .. }
            | Change::Promoted { at, .. }
            | Change::TasksChosen { at, .. }
            | Change::Cancelled { at, .. } => *at = at.by_clock(offset),
            Change::Exchanged { at, exchange, .. } => {
                *at = at.by_clock(offset);
                exchange.set_clock(offset);
            }
            Change::Progress { progress, .. } => progress.set_clock(offset),
            _ => {}
        }
    }

    /// Whether the change is persisted by a job manager, not by the master.
    pub fn is_job_managers(&self) -> bool {
        matches!(
            self,
            Change::Managed { .. }
                | Change::Unmanaged { .. }
                | Change::HoldHeard { .. }
                | Change::Launched { .. }
                | Change::Finished { .. }
                | Change::EndedLate { .. }
                | Change::Lost { .. }
                | Change::OutputLost { .. }
                | Change::Promoted { .. }
                | Change::Exchanged { .. }
                | Change::Cancelled { .. }
                | Change::TasksChosen { .. }
                | Change::Rerun { .. }
                | Change::Progress { .. }
        )
    }
}

impl Record {
    pub fn job(&self) -> Option<JobId> {
        match self {
            Record::Submitted { job, .. }
            | Record::Held { job, .. }
            | Record::Blocked { job, .. }
            | Record::EstimatesJudged { job, .. }
            | Record::Allowed { job, .. }
            | Record::GangBegins { job, .. }
            | Record::StageReady { job, .. }
            | Record::Deferred { job, .. } => Some(*job),
            Record::Stale { attempt, .. } => Some(attempt.job),
            _ => self.task().map(|task| task.job),
        }
    }

    pub fn task(&self) -> Option<TaskId> {
        match self {
            Record::Queued { task, .. }
            | Record::AwaitsGang { task, .. }
            | Record::AwaitsFiles { task, .. }
            | Record::FilesArrived { task, .. }
            | Record::Started { task, .. }
            | Record::WaitedInVain { task, .. }
            | Record::Foretold { task, .. }
            | Record::Adopted { task, .. }
            | Record::Stopping { task, .. }
            | Record::Duplicated { task, .. }
            | Record::Straggles { task, .. }
            | Record::Overtaken { task, .. }
            | Record::SlowInput { task, .. }
            | Record::Retried { task, .. }
            | Record::Orphaned { task, .. }
            | Record::Preempting { task, .. }
            | Record::Yielding { task, .. }
            | Record::Resumed { task, .. }
            | Record::TokenRefused { task, .. }
            | Record::LaunchRefused { task, .. }
            | Record::Repartitioned { task, .. } => Some(*task),
            _ => None,
        }
    }
}
