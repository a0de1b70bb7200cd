//! Orders of jobs. All of them share one set of accounts: queues, users, jobs, and the limits on them.

mod accounts;
mod capacity;
mod contention;
mod drf;
mod entitlement;
mod fair_clock;
mod fair_deadlines;
mod fair_shares;
mod fair_sojourn;
mod fifo;
mod fit_index;
mod layered;
mod line;
mod queue_tree;
mod round_robin;
mod shares;
mod sjf;
mod sojourn;
mod srtf;
mod standings;
mod tetris;
mod tree_line;

pub use accounts::Accounts;
pub use capacity::Capacity;
pub use contention::{QueueShare, violators};
pub use drf::Drf;
pub use entitlement::{Entitlement, Within};
pub use fair_shares::{Demand, fair_shares};
pub use fair_sojourn::FairSojourn;
pub use fifo::Fifo;
pub use fit_index::FitIndex;
pub use layered::Layered;
pub use queue_tree::{QueueTree, QueueTreeError};
pub use round_robin::RoundRobin;
pub use sjf::Sjf;
pub use srtf::Srtf;
pub use tetris::Tetris;

use crate::policy::InterJobPolicy;
use serde::{Deserialize, Serialize};

/// The order in which jobs get room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InterJob {
    /// Priority, then order of submission.
    Fifo,
    /// Guaranteed and maximum shares of hierarchical queues.
    Capacity,
    /// Weighted dominant resource fairness over hierarchical queues. With strict shares no job gets more than its fair share,
    /// even if room stays idle.
    Drf { strict: bool },
    /// The job with the least work.
    Sjf,
    /// The job with the least remaining work.
    Srtf,
    /// Packing; `fairness` is the knob f in millionths, below 1: only the part 1 - f of the jobs, those furthest below
    /// their fair share, is considered.
    Tetris { fairness: u32 },
    /// Queues take turns.
    RoundRobin,
    /// Dominant resource fairness between queues; in a queue the job that would be done first with fair shares.
    FairSojourn,
}

impl InterJob {
    /// The policy of this order over the queues.
    pub fn policy(self, queues: QueueTree) -> Box<dyn InterJobPolicy> {
        match self {
            InterJob::Fifo => Box::new(Fifo::new(queues)),
            InterJob::Capacity => Box::new(Capacity::new(queues)),
            InterJob::Drf { strict: false } => Box::new(Drf::new(queues)),
            InterJob::Drf { strict: true } => Box::new(Drf::strict(queues)),
            InterJob::Sjf => Box::new(Sjf::new(queues)),
            InterJob::Srtf => Box::new(Srtf::new(queues)),
            InterJob::FairSojourn => Box::new(FairSojourn::new(queues)),
            InterJob::RoundRobin => Box::new(RoundRobin::new(queues)),
            InterJob::Tetris { fairness } => Box::new(Tetris::new(queues, fairness)),
        }
    }
}
