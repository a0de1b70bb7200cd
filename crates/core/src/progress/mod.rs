//! The state of a job that its manager keeps across restarts: its stages and tasks, their files, and the attempts that run.
//! Plain data without messages and effects.

mod by_size;
mod chosen;
mod dag;
mod estimate;
pub(crate) mod files;
mod records;
mod retry_delays;
mod stage;
mod usage;

pub use chosen::ChosenCounts;
pub use dag::Dag;
pub use estimate::{Estimate, EstimateSource};
pub use files::TaskOutputs;
pub use stage::{Stage, TaskRecord, TaskState, TaskStatus};
pub use usage::Spent;

use crate::protocol::{ClaimError, Rule};
use crate::vocabulary::{AttemptId, ClockOffset, Exchange, Instant, NodeId, TaskId};
use files::Files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SavedAttempt {
    pub(crate) attempt: AttemptId,
    pub(crate) task: TaskId,
    pub(crate) node: NodeId,
    pub(crate) holding: Holding,
    pub(crate) rule: Rule,
    pub(crate) weight: u16,
    pub(crate) had_rival: bool,
    pub(crate) launched_at: Instant,
}

/// A job's progress in a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SavedProgress {
    pub(crate) dag: Dag,
    pub(crate) run: u32,
    pub(crate) cancelled: bool,
    pub(crate) stopping: bool,
    pub(crate) running: Vec<SavedAttempt>,
    pub(crate) estranged: BTreeSet<NodeId>,
    pub(crate) given_up: Vec<(AttemptId, TaskId)>,
    /// Resources donated and received; `None` if the policy never yields.
    pub(crate) exchange: Option<Box<Exchange>>,
    pub(crate) files: Option<Box<Files>>,
}

impl SavedProgress {
    /// See [`crate::role::Change::set_clock`].
    pub(crate) fn set_clock(&mut self, offset: ClockOffset) {
        self.dag.set_clock(offset);
        for saved in &mut self.running {
            saved.launched_at = saved.launched_at.by_clock(offset);
        }
        self.exchange.iter_mut().for_each(|exchange| exchange.set_clock(offset));
    }
}

/// Why an attempt was written off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LostCause {
    /// Its node was silent for longer than the grace period.
    NodeLost,
    /// The node answered that it does not have the attempt: the launch was lost on the way, or its executor exited.
    Unknown,
    /// The node refused the launch.
    NotTaken,
    /// Another attempt of its task started, or succeeded, first; or it is not needed any more.
    Superseded,
    /// The master of its node's cluster refused to forward its launch.
    Refused(ClaimError),
    /// It has written the files of a finished task once more, or failed to: the state of the task is unchanged.
    Copied,
}

/// What entitles an attempt to the resources of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Holding {
    /// A grant: booked since its launch.
    Granted,
    /// Launched as opportunistic, and booked since.
    GrantedLater,
    /// The job's allowance.
    Entitled,
    /// Launched as opportunistic, and within the job's allowance since.
    Promoted,
    /// Nothing: entitled attempts preempt it.
    Opportunistic,
}

impl Holding {
    pub fn is_booked(self) -> bool {
        matches!(self, Holding::Granted | Holding::GrantedLater)
    }

    /// Whether it counts as opportunistic in the job's accounting, even if it was booked since.
    pub fn counts_as_opportunistic(self) -> bool {
        matches!(self, Holding::Opportunistic | Holding::GrantedLater)
    }

    /// The holding after a booking.
    pub fn booked(self) -> Holding {
        if self.counts_as_opportunistic() { Holding::GrantedLater } else { Holding::Granted }
    }
}
