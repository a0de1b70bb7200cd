//! A piece of a file that another node has.

use amalgam_core::vocabulary::{Digest, NodeId};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::pin::Pin;

/// A request for a piece of a file of another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceAsk {
    pub node: NodeId,
    pub digest: Digest,
    pub offset: u64,
    pub limit: u32,
    /// The received file had another checksum: the node has to verify its copy.
    pub is_suspect: bool,
}

/// A part of a file of another node, or the reason why there is none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Piece {
    Bytes(#[serde(with = "amalgam_core::vocabulary::byte_string")] Vec<u8>),
    Absent,
    /// The node does not answer, or cannot read its file now.
    Unreachable,
    /// The first piece, with the time at which the file was written, in microseconds since 1970.
    First {
        #[serde(with = "amalgam_core::vocabulary::byte_string")]
        bytes: Vec<u8>,
        written: i64,
    },
}

/// The source of files from nodes of other machines.
pub trait Source: Send + Sync {
    fn piece(&self, ask: PieceAsk) -> Pin<Box<dyn Future<Output = Piece> + Send + '_>>;
}
