//! Whose turn it is. All orders share one set of accounts: queues, users, jobs, and the limits on them.

mod accounts;
mod drf;
mod fifo;

pub use accounts::{Accounts, QueueTree, QueueTreeError};
pub use drf::Drf;
pub use fifo::Fifo;
