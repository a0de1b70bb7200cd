//! A state directory belongs to one place in one federation: numbers of nodes and jobs in its log mean nothing elsewhere.

use amalgam_core::vocabulary::{Federation, Seat};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

const FILE: &str = "federation";

#[derive(thiserror::Error, Debug)]
pub enum SeatError {
    #[error(
        "{path} belongs to {kept}, and the configuration says {given}: use another --state-dir, or the configuration and the \
         number that it was begun with"
    )]
    Other { path: String, kept: String, given: String },
    #[error("cannot keep in {path} which place in its federation it belongs to: {error}")]
    Io { path: String, error: io::Error },
}

/// Notes at the first start whose state this is, and compares it at each later one; the directory is locked by its caller.
///
/// # Errors
/// Where it is another's, or cannot be read or written.
pub fn keep(state_dir: &Path, seat: Option<Seat>) -> Result<(), SeatError> {
    let path = state_dir.join(FILE);
    let given = describe(seat);
    let failed = |error| SeatError::Io { path: path.display().to_string(), error };
    match fs::read_to_string(&path) {
        Ok(kept) if kept.trim_end() == given => Ok(()),
        Ok(kept) => {
            let (path, kept) = (state_dir.display().to_string(), kept.trim_end().to_owned());
            Err(SeatError::Other { path, kept, given })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && seat.is_none() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => write(state_dir, &given).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

fn write(state_dir: &Path, text: &str) -> io::Result<()> {
    let unfinished = state_dir.join(format!("{FILE}.new"));
    let mut file = File::create(&unfinished)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&unfinished, state_dir.join(FILE))?;
    File::open(state_dir)?.sync_all()
}

fn describe(seat: Option<Seat>) -> String {
    let of = |Federation { clusters, globals, span }: Federation| {
        format!(
            "a federation of {clusters} clusters and {globals} global masters, with {span} numbers of nodes for a cluster"
        )
    };
    match seat {
        None => "a server without a federation".to_owned(),
        Some(Seat::Cluster(federation, cluster)) => format!("the master of {cluster} of {}", of(federation)),
        Some(Seat::Global(federation, global)) => format!("global master {} of {}", global.0, of(federation)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{ClusterId, GlobalId};

    #[test]
    fn a_state_directory_keeps_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = |number, span| Some(Seat::Cluster(Federation::new(3, 2, span).unwrap(), ClusterId(number)));
        keep(dir.path(), None).unwrap();
        keep(dir.path(), cluster(1, 10)).unwrap();
        keep(dir.path(), cluster(1, 10)).unwrap();
        let others =
            [cluster(0, 10), cluster(1, 11), None, Some(Seat::Global(Federation::new(3, 2, 10).unwrap(), GlobalId(1)))];
        for other in others {
            let refused = keep(dir.path(), other).unwrap_err().to_string();
            assert!(refused.contains("belongs to the master of cluster 1 of a federation of 3 clusters"), "{refused}");
        }
    }
}
