//! Orders in which a node starts what waits there.

mod fifo;

pub use fifo::Fifo;
