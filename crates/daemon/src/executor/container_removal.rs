//! Removes containers that their runtimes do not remove any more. A record of each container outlives its executor: if that is killed, the
//! next one removes what it left (ADR 84).

use super::accounts::Account;
use super::sys::Credentials;
use crate::durable;
use amalgam_core::vocabulary::AttemptId;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Variables of the node that are about a task.
const OF_TASK: [&[u8]; 3] = [b"AMALGAM_", b"TMPDIR=", b"PWD="];

/// A command that removes a container, and whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Removal {
    pub program: PathBuf,
    pub arguments: Vec<Vec<u8>>,
    pub environment: Vec<Vec<u8>>,
    user: Option<Owner>,
}

/// The user of a container, as the account was when it started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Owner {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Removal {
    /// `node` is the environment of a task without the variables of its job.
    pub fn new(program: &Path, arguments: &[&str], node: &[Vec<u8>], account: Option<&Account>) -> Removal {
        let is_of_task = |entry: &&Vec<u8>| OF_TASK.iter().any(|of| entry.starts_with(of));
        Removal {
            program: program.to_owned(),
            arguments: arguments.iter().map(|word| word.as_bytes().to_vec()).collect(),
            environment: node.iter().filter(|entry| !is_of_task(entry)).cloned().collect(),
            user: account.map(|account| Owner { uid: account.uid, gid: account.gid, groups: account.groups.clone() }),
        }
    }

    pub fn credentials(&self) -> Option<Credentials<'_>> {
        self.user.as_ref().map(|Owner { uid, gid, groups }| Credentials { uid: *uid, gid: *gid, groups })
    }
}

/// The removals of an executor's containers that exist, in its directory.
pub struct Records(PathBuf);

impl Records {
    pub fn new(state: &Path) -> Records {
        Records(state.join("containers"))
    }

    fn path(&self, attempt: AttemptId) -> PathBuf {
        self.0.join(attempt.to_string())
    }

    /// Remembers a container that is about to start, durably.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn add(&self, attempt: AttemptId, removal: &Removal) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        durable::replace(&self.path(attempt), &serde_json::to_vec(removal)?)
    }

    /// Forgets a container that was removed.
    pub fn forget(&self, attempt: AttemptId) {
        // If it stays, the next executor finds no such container.
        let _ = fs::remove_file(self.path(attempt));
    }

    pub fn get(&self, attempt: AttemptId) -> Option<Removal> {
        serde_json::from_slice(&fs::read(self.path(attempt)).ok()?).ok()
    }

    /// The containers that are remembered. Records that cannot be read are removed.
    pub fn remaining(&self) -> Vec<(AttemptId, Removal)> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Vec::new() };
        let known = |path: &Path| {
            let attempt = AttemptId::parse(path.file_name()?.to_str()?)?;
            Some((attempt, self.get(attempt)?))
        };
        let mut found = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            match known(&path) {
                Some(record) => found.push(record),
                None => drop(fs::remove_file(path)),
            }
        }
        found.sort_unstable_by_key(|(attempt, _)| *attempt);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, JobId};

    #[test]
    fn records_are_found_until_their_container_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let records = Records::new(state.path());
        assert_eq!(records.remaining(), []);
        let attempt = |number| AttemptId { job: JobId(1), epoch: Epoch(1), number };
        let removal = Removal::new(Path::new("/usr/bin/podman"), &["podman", "rm"], &[b"PATH=/bin".to_vec()], None);
        for number in [2, 1] {
            records.add(attempt(number), &removal).unwrap();
        }
        fs::write(state.path().join("containers/1-1-3"), "{").unwrap();
        assert_eq!(records.remaining(), [(attempt(1), removal.clone()), (attempt(2), removal.clone())]);
        records.forget(attempt(1));
        assert_eq!(records.remaining(), [(attempt(2), removal)]);
        assert!(!state.path().join("containers/1-1-3").exists());
    }
}
