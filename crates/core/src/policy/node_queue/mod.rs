//! Policies that order the tasks in a node's queue.

mod by_kind;
mod fifo;
mod gap_filling;
pub mod projection;

pub use by_kind::ByKind;
pub use fifo::Fifo;
pub use gap_filling::GapFilling;
