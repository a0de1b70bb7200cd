//! Orders in which a node starts what waits there.

mod by_kind;
mod fifo;

pub use by_kind::ByKind;
pub use fifo::Fifo;
