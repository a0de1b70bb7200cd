//! The owner of a state directory: one server, or one process of a federation. The numbers of nodes and jobs in its log
//! are invalid for any other.

use crate::durable;
use amalgam_core::vocabulary::{Federation, Seat};
use std::fs;
use std::io;
use std::path::Path;

pub(crate) const FILE: &str = "federation";

#[derive(thiserror::Error, Debug)]
pub enum SeatError {
    #[error(
        "{path} belongs to {kept}, and this process would be {given}: use another --state-dir, or start it with the same \
         configuration and --number, or --clusters and --globals"
    )]
    Other { path: String, kept: String, given: String },
    #[error("cannot store the owner of the state directory in {path}: {error}")]
    Io { path: String, error: io::Error },
}

/// Stores the owner of the state directory at the first start, and compares it at each later one. The caller has locked
/// the directory.
///
/// # Errors
/// If it belongs to another process, or cannot be read or written.
pub(crate) fn keep(state_dir: &Path, seat: Option<Seat>) -> Result<(), SeatError> {
    keep_as(state_dir, describe(seat))
}

/// Stores and compares the owner of an existing directory with the state directories of all processes of a federation.
///
/// # Errors
/// If it belongs to another process, or cannot be read or written.
pub fn keep_whole(state_dir: &Path, federation: Federation) -> Result<(), SeatError> {
    keep_as(state_dir, format!("all processes of {}", size(federation)))
}

fn keep_as(state_dir: &Path, given: String) -> Result<(), SeatError> {
    let path = state_dir.join(FILE);
    let failed = |error| SeatError::Io { path: path.display().to_string(), error };
    let write = |text: &str| durable::replace(&path, format!("{text}\n").as_bytes()).map_err(failed);
    match fs::read_to_string(&path) {
        Ok(kept) if kept.strip_suffix('\n') == Some(&*given) => Ok(()),
        // An incomplete file: it is written before any other file of this process.
        Ok(kept) if given.starts_with(&kept) && !kept.ends_with('\n') => write(&given),
        Ok(kept) => {
            let (path, kept) = (state_dir.display().to_string(), kept.trim_end().to_owned());
            Err(SeatError::Other { path, kept, given })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => write(&given),
        Err(error) => Err(failed(error)),
    }
}

fn describe(seat: Option<Seat>) -> String {
    match seat {
        None => "a server without a federation".to_owned(),
        Some(Seat::Cluster(federation, cluster)) => format!("the master of {cluster} of {}", size(federation)),
        Some(Seat::Global(federation, global)) => format!("{global} of {}", size(federation)),
    }
}

fn size(Federation { clusters, globals, span }: Federation) -> String {
    format!(
        "a federation of {clusters} clusters and {globals} global masters, with {span} numbers of nodes for a cluster"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{ClusterId, GlobalId};

    #[test]
    fn a_state_directory_cannot_change_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = |number, span| Some(Seat::Cluster(Federation::new(3, 2, span).unwrap(), ClusterId(number)));
        keep(dir.path(), cluster(1, 10)).unwrap();
        let whole = fs::read(dir.path().join(FILE)).unwrap();
        for length in 0..=whole.len() {
            fs::write(dir.path().join(FILE), &whole[..length]).unwrap();
            keep(dir.path(), cluster(1, 10)).unwrap();
            assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), whole, "an incomplete file is written again");
        }
        let others =
            [cluster(0, 10), cluster(1, 11), None, Some(Seat::Global(Federation::new(3, 2, 10).unwrap(), GlobalId(1)))];
        for other in others {
            let refused = keep(dir.path(), other).unwrap_err().to_string();
            assert!(refused.contains("belongs to the master of cluster 1 of a federation of 3 clusters"), "{refused}");
        }
        let plain = tempfile::tempdir().unwrap();
        keep(plain.path(), None).unwrap();
        let refused = keep_whole(plain.path(), Federation::new(3, 2, 10).unwrap()).unwrap_err().to_string();
        assert!(
            refused.contains("belongs to a server without a federation, and this process would be all processes"),
            "{refused}"
        );
    }
}
