//! What every role is: a state machine that takes an event and leaves its effects in an outbox.

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

    /// Takes one event. Effects are left in `out`; there are no others.
    fn handle(&mut self, now: Instant, event: Event<Self::Message>, out: &mut Outbox);

    /// When it wants a `Wakeup`; asked after every `handle`.
    fn next_wakeup(&self) -> Option<Instant>;

    /// Takes in what an earlier life persisted, in order, before the first event.
    fn recover(&mut self, changes: &[Change]);

    /// Changes that lead a fresh role to this one's durable state: what a snapshot of the store holds.
    fn durable(&self) -> Vec<Change>;

    /// Its state for people, and for a simulator that starts from it: ages, no instants.
    fn describe(&self, now: Instant) -> Self::Description;
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event<M> {
    Message {
        from: Address,
        body: M,
    },
    /// A connection to `peer` stands. `incarnation` tells one life of the peer from the next.
    Connected {
        peer: Address,
        incarnation: u64,
    },
    /// The connection to `peer` broke. A driver that cannot notice need not say it: silence has the same effect later.
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

    /// Durable before any send of this or a later handle leaves, for as long as its receiver can live: on disk before it
    /// leaves the machine, written before an order goes to the executor beside it.
    pub fn persist(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// A fact for metrics, stories, transcripts and reasons, told after the changes of its event; nothing waits for it.
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

/// What must survive a crash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    // The master's.
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
    /// It was heard then, before it went away.
    NodeHeard {
        node: NodeId,
        at: Instant,
    },
    /// There is no such node any more. One that comes back under its name is a new one.
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
    /// The job was let go to its job manager.
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
        /// How often by now.
        run: u32,
    },
    /// A user wants the job to end, whose manager may not have heard of it.
    CancelAsked {
        job: JobId,
        by: String,
        at: Instant,
    },
    /// A user wants something of single tasks of the job, whose manager may not have heard of it.
    TasksAsked {
        job: JobId,
        action: TaskAction,
        tasks: Box<Chosen>,
    },
    /// A user changed it.
    JobUpdated {
        job: JobId,
        update: Box<JobUpdate>,
        by: String,
    },
    JobForgotten {
        job: JobId,
    },
    /// The job ended without its manager, which is in a process that was away.
    JobAbandoned {
        job: JobId,
    },
    /// How long tasks of a job ran, by stage, in its last runs; it counts for those to come.
    RunTimesLearned {
        recurring: Recurring,
        stages: Arc<[Option<PastRuns>]>,
    },

    /// The master's process has what the log of this process of job managers holds before this number.
    Heard {
        host: HostId,
        next: u64,
    },

    // A job manager's.
    /// Its process, which is not the master's, has the job from now on.
    Managed {
        job: Arc<AdmittedJob>,
    },
    /// And has forgotten it.
    Unmanaged {
        job: JobId,
    },
    /// It heard that the job is held, or is not any more.
    HoldHeard {
        job: JobId,
        held: bool,
    },
    Launched {
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        grant: Option<GrantId>,
        /// It gives way to others, unless it is promoted.
        opportunistic: bool,
        /// How likely its node is to choose it, if it is.
        weight: u16,
        rule: Rule,
        passed_over: u32,
        at: Instant,
    },
    /// An attempt's end, with what became of the task: `last` when the task is not tried again.
    Finished {
        attempt: AttemptId,
        task: TaskId,
        node: NodeId,
        ended: Arc<Ended>,
        last: bool,
        at: Instant,
    },
    /// An attempt said how it ended after it was given up: what it used counts, and nothing else follows.
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
    /// Nobody has a file any more that the task left and somebody still reads: the task runs again.
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
        /// `None`: it is within what its job is entitled to, and no ledger holds its resources.
        grant: Option<GrantId>,
        at: Instant,
    },
    /// What the job gave and received so far.
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
    /// Tasks of the stage are held, let go, or cancelled.
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
        /// How often they have by now.
        run: u32,
        /// Only these.
        only: Option<Box<Chosen>>,
    },
    /// The whole progress of a job, in a snapshot.
    Progress {
        job: JobId,
        progress: Box<crate::job_manager::SavedProgress>,
    },
}

/// Why an attempt was written off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LostCause {
    /// Its node was silent for longer than the grace period.
    NodeLost,
    /// The node answered that it does not have it: the launch was lost on the way, or its executor died.
    Unknown,
    /// The node did not take it.
    NotTaken,
    /// Another attempt of its task started, or ended well, first; or nobody needs it any more.
    Superseded,
    /// The master of its node's cluster did not let its launch pass.
    Refused(ClaimError),
    /// It has written the files of a finished task once more, or could not: the task stays as it was.
    Copied,
}

/// Why an attempt that waits got a duplicate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Trigger {
    /// It has to wait much longer than was expected.
    Underestimated,
    /// It has to wait longer than the mean of its stage.
    AboveMean,
    /// It has waited longer than the mean of its stage.
    WaitedLong,
    /// It may be guaranteed now, and would start sooner on another node.
    Upgraded,
    /// It waits, and nobody knows whether it would elsewhere.
    Explored,
}

/// Why a node refused a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TokenFault {
    /// Its generation is void.
    Expired,
    /// It was not made for this launch: it is forged, or of another node, another attempt or another cluster.
    NotAuthentic,
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenFault::Expired => "its token has expired",
            TokenFault::NotAuthentic => "its token was not made for it",
        })
    }
}

/// A fact.
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
    /// An attempt is at its node and does not start before all of its gang are at theirs.
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
    /// Everything that it reads is there.
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
        /// How long it was expected to wait when it was sent to the node's queue, or became guaranteed there; `None` where that
        /// was not estimated.
        expected: Option<Duration>,
        opportunistic: bool,
        /// It became guaranteed while it waited.
        promoted: bool,
        /// Of a task's first start, where its stage was seen to be ready in this life of the job's manager.
        allocation: Option<AllocationTime>,
    },
    /// A guaranteed attempt was given up for another one of its task while it waited, after so long; expected was this.
    WaitedInVain {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        waited: Duration,
        expected: Duration,
    },
    /// An attempt started whose start had been foretold, and its run time perhaps.
    Foretold {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        foretold: Foretold,
        start: ForetoldStart,
        /// How long it is expected to run.
        run: Option<Duration>,
    },
    /// A running attempt was found again after its owner or its node's agent was away.
    Adopted {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
    },
    /// The node was asked to end the attempt.
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
    /// A running attempt is slow: it has done this part of its work, in millionths, and is expected to take so much longer.
    /// Its task is launched on another node, too, where all of it is expected to take less.
    Straggles {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        part: u32,
        left: Duration,
        elsewhere: NodeId,
        takes: Duration,
    },
    /// The attempt has waited for so long for a file that `from` has: the task that wrote it runs once more, elsewhere.
    SlowInput {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        waited: Duration,
        writer: TaskId,
        from: NodeId,
        elsewhere: NodeId,
    },
    /// The duplicate of a slow attempt was done first.
    Overtaken {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        by: AttemptId,
    },
    /// The task is tried again.
    Retried {
        task: TaskId,
        failures: u32,
        retries: u32,
        /// After so long.
        delay: Duration,
        /// The fault was not the task's.
        costs_none: bool,
    },
    /// Its user stated run times that were far too low in some jobs: from now on all tasks of that user are guaranteed; or
    /// no longer, after as many jobs with better estimates.
    EstimatesJudged {
        job: JobId,
        believed: bool,
    },
    /// So much the job's guaranteed tasks may hold together from now on, where it places them itself.
    Allowed {
        job: JobId,
        most: Box<Totals>,
    },
    /// So many tasks of a stage are in place, which are all of its gang: they are told to begin.
    GangBegins {
        job: JobId,
        stage: u32,
        tasks: u32,
    },
    /// A stage's inputs are there.
    StageReady {
        job: JobId,
        stage: u32,
    },
    /// So many tasks of the stage could wait for so long, for the job ends no later. Said once each time that a stage comes
    /// to have such tasks.
    Deferred {
        job: JobId,
        stage: u32,
        tasks: u32,
        left: Duration,
    },
    /// Something about an attempt that is not current any more came late; it was dropped.
    Stale {
        from: Address,
        attempt: AttemptId,
    },
    /// The same about a grant.
    StaleGrant {
        from: Address,
        grant: GrantId,
    },
    /// A whole message came too late.
    StaleMessage {
        from: Address,
    },
    /// A cluster goes by other numbers of kinds of resources than the global master that this is told by, which places nothing there.
    OtherKinds {
        cluster: ClusterId,
    },
    /// A global master's launch came to nothing: its view of the node was wrong.
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
    /// The node could not launch; it gets no work for so long.
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
    /// The node ends an attempt for the sake of a guaranteed one that found no room: an opportunistic one, or, in a federation, one of
    /// a queue beyond its share.
    Preempting {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        by: AttemptId,
    },
    /// A running opportunistic attempt leaves its CPU to a guaranteed one, and goes on with what is left.
    Yielding {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        by: AttemptId,
    },
    /// It has its CPU again, so long after.
    Resumed {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        after: Duration,
    },
    /// A launch came whose token does not speak for it; the node did not take it.
    TokenRefused {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        why: TokenFault,
    },
}

impl Change {
    /// The job it is about; `None` for the cluster's own.
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

    /// Of a job manager in another process: its instants become those of this one. (What it was told by the master, such as when
    /// its job was submitted, is the master's.)
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

    /// Whether a job manager keeps it, rather than the master.
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
