//! An attempt that has not ended, as its job manager knows it.

use crate::protocol::Rule;
use crate::vocabulary::{AttemptId, Duration, Instant, NodeId, TaskId};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RunningAttempt {
    pub task: TaskId,
    pub node: NodeId,
    pub holding: Holding,
    /// The other attempt of its task, where there are two.
    pub twin: Option<AttemptId>,
    /// The other one that there is, or was last, is there because one of the two was slow; whichever ends well first counts.
    pub had_rival: bool,
    /// How long it was expected to wait when it was sent, and when it starts by its node's last report.
    pub expected_wait: Duration,
    pub starts_at: Option<Instant>,
    /// The rule by which it was launched.
    pub rule: Rule,
    /// As its node draws by it, if it is opportunistic.
    pub weight: u16,
    pub launched_at: Instant,
    pub started_at: Option<Instant>,
    pub life: Life,
}

impl RunningAttempt {
    /// One that has just been launched in the present life, without a twin.
    pub fn launched(task: TaskId, node: NodeId, holding: Holding, rule: Rule, at: Instant) -> RunningAttempt {
        RunningAttempt {
            task,
            node,
            holding,
            twin: None,
            had_rival: false,
            expected_wait: Duration::ZERO,
            starts_at: None,
            rule,
            weight: 1,
            launched_at: at,
            started_at: None,
            life: Life::Present,
        }
    }
}

/// By what right an attempt holds resources of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Holding {
    /// A grant: a ledger has booked them since its launch.
    Granted,
    /// It was launched as opportunistic, and a ledger has booked them since.
    GrantedLater,
    /// They are within what the job is entitled to.
    Entitled,
    /// It was launched as opportunistic, and is within what the job is entitled to since.
    Promoted,
    /// None: it is preempted by those that have one.
    Opportunistic,
}

impl Holding {
    pub fn is_booked(self) -> bool {
        matches!(self, Holding::Granted | Holding::GrantedLater)
    }

    /// Whether it counts as opportunistic where its job accounts for it, also if a ledger has booked it since.
    pub fn counts_as_opportunistic(self) -> bool {
        matches!(self, Holding::Opportunistic | Holding::GrantedLater)
    }

    /// As it is from now on if a ledger has booked it.
    pub fn booked(self) -> Holding {
        if self.counts_as_opportunistic() { Holding::GrantedLater } else { Holding::Granted }
    }
}

/// In which life of the job manager an attempt was launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Present,
    /// In an earlier one, and its node has not confirmed it yet.
    Earlier,
    /// In an earlier one, and its node has it.
    Adopted,
}
