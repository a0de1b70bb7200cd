//! The durable log: segments that are only appended to, snapshots that shorten recovery, and one fdatasync for many
//! entries.
//!
//! ```text
//! lock               held by the process that writes
//! format             versions of the snapshot and of the segments after it
//! epoch              number of times that it was opened
//! segment-<first>    a header, then records; named after the number of its first entry
//! snapshot-<next>    the state before entry <next>, as records of its own
//! ```
//!
//! Entries are numbered from 0, and numbers are never reused. Recovery reads the newest snapshot and the segments after
//! it; older segments are history. Each record contains how much of its segment was synced when it was created. Damage
//! after that point was never acknowledged and is cut off. Damage before it is refused, because acknowledged entries
//! would be lost.
//!
//! A store of the version before is upgraded by a snapshot at the start (ADR 63). Until that is durable, `format` names both
//! versions. Older segments are not rewritten.
//!
//! * `record.rs` framing; `files.rs` names, headers and durable renames; `recovery.rs` reading the log
//! * `log.rs` [`Store`], the writer; `snapshot.rs` its snapshots; `history.rs` readers beside it; `copy.rs` copies of it

mod copy;
mod files;
mod history;
mod log;
mod record;
mod recovery;
mod snapshot;

pub(crate) use copy::{Content, Part, is_part, parts, raise_epoch};
pub(crate) use files::{IDENTITY, IDENTITY_BYTES};
pub use history::History;
pub use log::{Options, Store};
pub use record::{Entry, EntryRef};
pub use recovery::Recovered;
pub use snapshot::SnapshotWriter;

use crate::lock::LockError;
use crate::replica::ReplicaError;
use crate::versions::STORE;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Identifies the log of a server among all others: a random number that is created with the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerId(pub(crate) [u8; IDENTITY_BYTES]);

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {what} {path}: {error}", path = path.display())]
    File { what: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    #[error(
        "{path} has the format {found:?}, and this program reads {STORE} of `amalgam store`; use a program that reads it, or move \
         {dir} aside to start afresh",
        path = path.display(), dir = dir.display()
    )]
    Format { path: PathBuf, dir: PathBuf, found: String },
    #[error(
        "the store is damaged: {path} at byte {offset}: {what}. Nothing was changed. Restore {dir} from a backup, or \
         move {dir} aside to start afresh",
        path = path.display(), dir = dir.display()
    )]
    Damaged { path: PathBuf, dir: PathBuf, offset: u64, what: String },
    #[error("the store has failed earlier and accepts no entries until a restart: {0}")]
    Poisoned(String),
    #[error("an entry of {bytes} bytes is larger than the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
}

impl StoreError {
    /// The remedy for an operator whose process exited with this error.
    pub fn remedy(&self) -> &'static str {
        match self {
            StoreError::Replica(error) => error.remedy(),
            _ => {
                "nothing that was acknowledged is lost; make room on the disk, or repair it, and start the server again"
            }
        }
    }

    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        move |error| StoreError::File { what, path: path.to_owned(), error }
    }

    fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> StoreError {
        let dir = path.parent().unwrap_or(path).to_owned();
        StoreError::Damaged { path: path.to_owned(), dir, offset, what: what.into() }
    }
}
