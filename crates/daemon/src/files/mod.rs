//! Files that tasks leave for other tasks: the store of each node, and the transfer from other nodes.
//!
//! The agent and its executor both use the store. It is a directory of files that are named after their contents. Files
//! appear and disappear atomically, so the two processes need no coordination.

pub mod direct;
pub mod filling;
mod left;
mod piece;
mod store;

pub use filling::FillError;
pub use left::{Left, PutError};
pub use piece::{Piece, PieceAsk, Rest, Source, micros_of, time_of};
pub use store::{FileStore, Incoming};

/// Number of bytes of a file in one frame. Messages between server and agent do not wait for larger ones.
pub const PIECE: u32 = 512 << 10;
/// Maximum number of pieces that are read for other nodes at once.
pub const MOST_SERVED: usize = 8;
