//! A piece of a file that another node has.

use super::Incoming;
use amalgam_core::vocabulary::{Digest, Fetched, NodeId, StoredFile};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

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

    /// Fetches the rest of a file without pieces, if its node can be reached directly.
    fn rest(&self, _: StoredFile, _: NodeId, incoming: Incoming) -> Pin<Box<dyn Future<Output = Rest> + Send + '_>> {
        Box::pin(async { Rest::NotDirect(incoming) })
    }
}

/// The result of fetching the rest of a file.
pub enum Rest {
    /// It has to be requested in pieces.
    NotDirect(Incoming),
    /// With what has arrived, if more is missing. The error is one of this node's disk.
    Ended(io::Result<(Fetched, Option<Incoming>)>),
}

impl Piece {
    pub fn first(bytes: Vec<u8>, written: SystemTime) -> Piece {
        Piece::First { bytes, written: micros_of(written) }
    }
}

/// A time in microseconds since 1970.
pub fn micros_of(time: SystemTime) -> i64 {
    let micros = |length: Duration| i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

/// Converts a time from another node, which may be out of range.
pub fn time_of(micros: i64) -> SystemTime {
    let length = Duration::from_micros(micros.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let time = if micros < 0 { epoch.checked_sub(length) } else { epoch.checked_add(length) };
    time.unwrap_or_else(SystemTime::now)
}
