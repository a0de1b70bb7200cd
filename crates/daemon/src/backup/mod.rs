//! Archives of state directories: of a server, a global master or a job host.
//!
//! ```text
//! manifest.json      version, kind and time of the archive; size and SHA-256 of each file
//! tokens.toml ...    the files in the order of the manifest
//! usage/...          totals of users and queues, see `accounting::files`
//! log/...            the log up to an entry, see `store/copy.rs`
//! ```
//!
//! An archive is a tar file without compression. It contains secrets.
//!
//! * `writing.rs` [`write`]; `restoring.rs` [`restore`]

mod restoring;
mod writing;

pub use restoring::{LIVES, Restored, restore};
pub use writing::write;

use crate::accounting;
use crate::audit::{self, AuditLog};
use crate::auth::{LastUses, Tokens, USERS_FILE, joins};
use crate::authority::{self, Authority};
use crate::identity::Identity;
use crate::seat;
use crate::store::{self, StoreError};
use crate::stored_terms;
use crate::versions::{STORE, Versions};
use amalgam_core::vocabulary::ClusterId;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest.json";
/// The version of the manifest. Keys are added without a new version.
const FORMAT: u32 = 1;
/// The log of a process, and the stories of a server whose records are in etcd.
const LOGS: [&str; 2] = ["log", "history"];

/// The first file of an archive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// The version of the program that wrote the archive.
    pub program: String,
    /// The versions of the entries of the log.
    pub store: Versions,
    /// The owner of the directory.
    pub kind: String,
    pub at: String,
    pub files: Vec<Listed>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listed {
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

impl Manifest {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Whether the records of the server are in etcd, and not in the archive.
    pub fn has_no_records(&self) -> bool {
        !self.files.iter().any(|file| file.path.starts_with("log/"))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("cannot {what} {path}: {error}", path = path.display())]
    File { what: &'static str, path: PathBuf, error: io::Error },
    #[error("cannot write the archive: {0}")]
    Write(io::Error),
    #[error("cannot read the archive: {0}")]
    Read(io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("there is no log of a server, global master or job host in {dir}", dir = dir.display())]
    NoLog { dir: PathBuf },
    #[error("this is not an archive of `amalgam backup`: {0}")]
    NotOurs(String),
    #[error("the archive has format {format} of program {program}, and this program reads format {FORMAT}")]
    Newer { format: u64, program: String },
    #[error("the archive has {found} of the store, of program {program}, and this program reads {STORE}")]
    Versions { found: Versions, program: String },
    #[error("the archive is damaged: {0}")]
    Damaged(String),
    #[error("{dir} is not empty{owner}", dir = dir.display())]
    NotEmpty { dir: PathBuf, owner: String },
    #[error("a restored log would have {LIVES} starts or more, and a start has no higher number")]
    TooManyStarts,
}

impl BackupError {
    pub fn remedy(&self) -> &'static str {
        match self {
            BackupError::NoLog { .. } => {
                "run this on the machine of the daemon, and name its state directory with --state-dir (a job host's --work-dir); of \
                 `amalgam dev` with several clusters, name each directory in it"
            }
            BackupError::File { .. } | BackupError::Write(_) => {
                "check the permissions and the space on the disk, and run this as the user of the daemon or as root"
            }
            BackupError::Store(_) => "nothing was written",
            BackupError::Read(_) | BackupError::Damaged(_) => {
                "use another copy of it, or an older archive; nothing was restored"
            }
            BackupError::NotOurs(_) => {
                "name a file that `amalgam backup` wrote; decompress it before if it is compressed"
            }
            BackupError::Newer { .. } | BackupError::Versions { .. } => {
                "restore it with the program that wrote it, or one that reads it; nothing was restored"
            }
            BackupError::NotEmpty { .. } => {
                "stop the daemon if it runs, and move the directory aside; or name a new directory with --state-dir"
            }
            BackupError::TooManyStarts => "restore an older archive; nothing was restored",
        }
    }

    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
        move |error| BackupError::File { what, path: path.to_owned(), error }
    }
}

/// The names of the files outside of the logs, in the order of an archive. A directory does not have all of them.
fn small_files() -> Vec<String> {
    let fixed = [
        Tokens::FILE,
        LastUses::FILE,
        joins::FILE,
        Authority::FILE,
        Authority::KEY_FILE,
        Authority::NEXT_KEY_FILE,
        authority::NEXT_FILE,
        Identity::FILE,
        USERS_FILE,
        seat::FILE,
        stored_terms::NAME,
        AuditLog::FILE,
    ];
    let rotated = (1..=audit::KEPT).map(|number| format!("{}.{number}", AuditLog::FILE));
    let of_clusters = (0..=u8::MAX).map(|cluster| Identity::file_of_cluster(ClusterId(cluster)));
    fixed.into_iter().map(str::to_owned).chain(of_clusters).chain(rotated).collect()
}

/// Whether an archive may contain a file of this path. So none leads out of the directory.
fn is_known(path: &str) -> bool {
    match path.split_once('/') {
        None => small_files().iter().any(|known| known == path),
        Some((accounting::DIR, name)) => accounting::is_file(name),
        Some((log, name)) => LOGS.contains(&log) && store::is_part(name),
    }
}

#[cfg(test)]
mod tests;
