//! A lock on a directory for one process at a time. It ends when its process exits, for any reason.

use crate::private::{check_private_dir, make_private_dir};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "the directory {dir} is in use by process {pid}; stop that process, or use another directory",
        dir = dir.display()
    )]
    InUse { dir: PathBuf, pid: String },
    #[error("cannot {what} {path}: {error}", path = path.display())]
    File { what: &'static str, path: PathBuf, error: io::Error },
}

/// Creates the directory if it is missing and takes the lock with this name in it. The lock is held as long as the file
/// is open.
pub fn lock(dir: &Path, name: &str) -> Result<File, LockError> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |error| LockError::File { what, path, error }
    };
    // Other users may pass through an executor's directory to those of their tasks.
    check_private_dir(dir).or_else(|_| make_private_dir(dir)).map_err(failed("make the directory", dir))?;
    let path = dir.join(name);
    try_lock(&path).map_err(failed("lock", &path))?.map_err(|pid| LockError::InUse { dir: dir.to_owned(), pid })
}

/// The locked file, with the id of this process in it; or else the id of the process that holds the lock.
fn try_lock(path: &Path) -> io::Result<Result<File, String>> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)?;
            return Ok(Err(pid.trim().to_owned()));
        }
        Err(error) => return Err(error.into()),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Ok(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_lock_names_the_process_that_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path(), "lock").unwrap();
        let refused = lock(dir.path(), "lock").unwrap_err().to_string();
        assert!(refused.contains(&format!("in use by process {};", std::process::id())), "{refused}");
        lock(dir.path(), "another").unwrap();
        drop(first);
        lock(dir.path(), "lock").unwrap();
    }
}
