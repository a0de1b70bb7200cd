//! Orders in which a node starts what waits there.

mod by_kind;
mod fifo;
pub mod projection;

pub use by_kind::ByKind;
pub use fifo::Fifo;
