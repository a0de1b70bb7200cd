//! Records: facts for stories and metrics. No role reads them.

use crate::protocol::{Address, ClaimError};
use crate::vocabulary::{
    AllocationTime, AttemptId, ClusterId, Duration, GrantId, JobId, NodeId, PredictedStart, Prediction, TaskId, Totals,
};
use crate::why::Why;
use serde::{Deserialize, Serialize};
use std::fmt;

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
    Prediction {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        prediction: Prediction,
        start: PredictedStart,
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
    GangStarts {
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
        /// The version of its agent's program, if the agent reported it.
        program: Option<String>,
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
    /// The node stops an attempt of a job that holds more than it is entitled to, for a task of a job that holds less.
    Reclaiming {
        task: TaskId,
        attempt: AttemptId,
        node: NodeId,
        by: JobId,
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

impl Record {
    pub fn job(&self) -> Option<JobId> {
        match self {
            Record::Submitted { job, .. }
            | Record::Held { job, .. }
            | Record::Blocked { job, .. }
            | Record::EstimatesJudged { job, .. }
            | Record::Allowed { job, .. }
            | Record::GangStarts { job, .. }
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
            | Record::Prediction { task, .. }
            | Record::Adopted { task, .. }
            | Record::Stopping { task, .. }
            | Record::Duplicated { task, .. }
            | Record::Straggles { task, .. }
            | Record::Overtaken { task, .. }
            | Record::SlowInput { task, .. }
            | Record::Retried { task, .. }
            | Record::Orphaned { task, .. }
            | Record::Preempting { task, .. }
            | Record::Reclaiming { task, .. }
            | Record::Yielding { task, .. }
            | Record::Resumed { task, .. }
            | Record::TokenRefused { task, .. }
            | Record::LaunchRefused { task, .. }
            | Record::Repartitioned { task, .. } => Some(*task),
            _ => None,
        }
    }
}
