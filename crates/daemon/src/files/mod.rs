//! Files that tasks leave for others: each node's store of them, and how they come from another node's.
//!
//! Both the agent and its executor use the store. It is a directory of files that are named after their contents, which
//! appear and go in one step, so they need not agree about it.

mod fetcher;
mod left;
mod store;

pub use fetcher::{Fetcher, Piece, PieceAsk, Source, fetcher};
pub use left::{Left, PutError};
pub use store::{FileStore, Incoming};

/// So many bytes of a file are in one frame: letters between server and agent wait for no more.
pub const PIECE: u32 = 512 << 10;
/// So many pieces are read for others at once.
pub const MOST_SERVED: usize = 8;
