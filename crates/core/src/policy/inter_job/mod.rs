//! Whose turn it is. All orders share one set of accounts: queues, users, jobs, and the limits on them.

mod accounts;
mod drf;
mod fifo;
mod fit_index;
mod queue_tree;

pub use accounts::Accounts;
pub use drf::Drf;
pub use fifo::Fifo;
pub use fit_index::FitIndex;
pub use queue_tree::{QueueTree, QueueTreeError};
