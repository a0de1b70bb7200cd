//! The files that all servers of a cluster have in common: with them, a standby is the same server for agents, job hosts, global
//! masters and clients (ADR 85). A process that has them can be every daemon of the cluster.

use super::{Authority, AuthorityError, NEXT_FILE, of, place};
use crate::auth::{self, AuthError, Tokens, joins};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

/// In the order in which they are written: a crash after each leaves an authority that can be used.
const NAMES: [&str; 6] =
    [Authority::NEXT_KEY_FILE, NEXT_FILE, Authority::KEY_FILE, Authority::FILE, Tokens::FILE, joins::FILE];
/// Without these there is no server.
const NEEDED: [&str; 3] = [Authority::KEY_FILE, Authority::FILE, Tokens::FILE];

/// Their names and contents. Those that do not exist are missing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFiles(Vec<(String, String)>);

/// Their contents are secret.
impl std::fmt::Debug for SharedFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl SharedFiles {
    /// Those of a state directory.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(state_dir: &Path) -> Result<SharedFiles, AuthorityError> {
        let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
        let mut files = Vec::new();
        for name in NAMES {
            let path = state_dir.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => files.push((name.to_owned(), text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(of(&path)(error)),
            }
        }
        Ok(SharedFiles(files))
    }

    /// Writes them to another state directory, and removes those that are missing. Other names are ignored.
    ///
    /// # Errors
    /// If a file cannot be written, or one is missing without which there is no server: nothing is written then.
    pub fn write(&self, state_dir: &Path) -> Result<(), AuthorityError> {
        let text = |name: &str| self.0.iter().find(|(known, _)| known == name).map(|(_, text)| text);
        if let Some(missing) = NEEDED.into_iter().find(|name| text(name).is_none()) {
            let path = state_dir.join(missing);
            let source = io::Error::new(io::ErrorKind::NotFound, "the active server did not send it");
            return Err(AuthError::Io { path, source }.into());
        }
        let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
        for name in NAMES {
            let path = state_dir.join(name);
            if let Some(text) = text(name)
                && fs::read_to_string(&path).ok().as_ref() != Some(text)
            {
                place(&path, text)?;
            }
        }
        for name in NAMES.into_iter().filter(|name| text(name).is_none()) {
            let path = state_dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(of(&path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a state directory has those without which there is no server.
    pub fn are_in(state_dir: &Path) -> bool {
        NEEDED.into_iter().all(|name| state_dir.join(name).exists())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{finish, start};

    #[test]
    fn another_directory_has_the_same_files_and_the_same_authority_also_after_a_rotation() {
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        Tokens::open(one.path(), "ada").unwrap();
        let first = Authority::open(one.path()).unwrap();
        let copy = || SharedFiles::read(one.path()).unwrap();
        assert!(!SharedFiles::are_in(two.path()));
        copy().write(two.path()).unwrap();
        assert!(SharedFiles::are_in(two.path()));
        let second = Authority::open(two.path()).unwrap();
        assert_eq!(first.pem(), second.pem());
        start(one.path()).unwrap();
        copy().write(two.path()).unwrap();
        assert_eq!((first.pem(), second.signers().trusted.len()), (second.pem(), 2));
        finish(one.path(), false).unwrap();
        copy().write(two.path()).unwrap();
        assert_eq!((copy(), second.signers().trusted.len()), (SharedFiles::read(two.path()).unwrap(), 1));
        assert_eq!(first.pem(), second.pem());
        let shown = format!("{:?}", copy());
        assert!(shown.contains("ca-key.pem") && !shown.contains("BEGIN"), "{shown}");
    }

    #[test]
    fn no_other_file_is_written_and_nothing_without_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| (name.to_owned(), "text".to_owned());
        let odd = SharedFiles(["ca.pem", "ca-key.pem", "tokens.toml", "../out", "log/epoch"].map(file).into());
        odd.write(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        let empty = tempfile::tempdir().unwrap();
        let refused = SharedFiles(vec![file("ca.pem"), file("tokens.toml")]).write(empty.path()).unwrap_err();
        assert!(refused.to_string().contains("did not send it"), "{refused}");
        assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
    }
}
