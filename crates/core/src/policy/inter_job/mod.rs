//! Orders of jobs. All of them share one set of accounts: queues, users, jobs, and the limits on them.

mod accounts;
mod capacity;
mod contention;
mod drf;
mod entitlement;
mod fair_shares;
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
mod tetris;
mod tree_line;

pub use accounts::Accounts;
pub use capacity::Capacity;
pub use contention::{Standing, violators};
pub use drf::Drf;
pub use entitlement::{Entitlement, Within};
pub use fair_shares::{Demand, fair_shares};
pub use fifo::Fifo;
pub use fit_index::FitIndex;
pub use layered::Layered;
pub use queue_tree::{QueueTree, QueueTreeError};
pub use round_robin::RoundRobin;
pub use sjf::Sjf;
pub use srtf::Srtf;
pub use tetris::Tetris;
