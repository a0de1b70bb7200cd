//! Durable changes of roles: what a log stores.

use crate::progress::{LostCause, SavedProgress};
use crate::protocol::{AdmittedJob, JobOutcome, JobUpdate, Rule};
use crate::vocabulary::{
    AttemptId, Attributes, Chosen, ClockOffset, Ended, Exchange, GrantId, HostId, Instant, JobId, Kinds, NodeId,
    PastRuns, QueueSettings, Recurring, Spans, TaskAction, TaskId, UserId,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    NodeLastSeen {
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
    JobStarted {
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
    HoldReceived {
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

    /// All labels that operators have given to the node: a change of the master.
    NodeLabelled {
        node: NodeId,
        labels: Attributes,
    },
    /// All limits of the queue that were set while the server ran: a change of the master. Empty if it was reset.
    QueueSet {
        queue: String,
        settings: QueueSettings,
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
            | Change::NodeLastSeen { .. }
            | Change::NodeRemoved { .. }
            | Change::NodeLabelled { .. }
            | Change::QueueSet { .. }
            | Change::Heard { .. }
            | Change::RunTimesLearned { .. } => None,
            Change::JobAdmitted { job, .. } | Change::Managed { job } => Some(job.id),
            Change::JobHeld { job, .. }
            | Change::JobStarted { job }
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
            | Change::HoldReceived { job, .. }
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
                | Change::HoldReceived { .. }
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
