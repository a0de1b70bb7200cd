//! What proves a daemon to another one, and others to it.

use crate::auth::{self, AuthError, TokenEntry, Tokens};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the tokens are.
#[derive(Clone)]
pub enum Secrets {
    /// Those of this server.
    Server(Arc<Tokens>),
    /// A file as a server has it, or one with a single token, read again whenever it is needed.
    File(Arc<TokenFile>),
    Single(String),
}

pub struct TokenFile {
    path: PathBuf,
    /// Whose token is preferred.
    user: String,
    /// The node whose agent this is; its own token is preferred to anybody's.
    node: Option<String>,
    /// What was read last: a file that is being edited must not keep anybody out.
    good: Mutex<Good>,
}

#[derive(Default)]
struct Good {
    own: Option<String>,
    all: Vec<TokenEntry>,
}

impl Secrets {
    /// The tokens of a file, for the agent of `node` if it is one.
    pub fn file(path: PathBuf, user: String, node: Option<String>) -> Secrets {
        Secrets::File(Arc::new(TokenFile { path, user, node, good: Mutex::default() }))
    }

    /// The one that proves this process.
    ///
    /// # Errors
    /// When the file cannot be read, and never could.
    pub fn own(&self) -> Result<String, AuthError> {
        match self {
            Secrets::Server(tokens) => auth::daemon_token(tokens.path(), None, ""),
            Secrets::File(file) => {
                let read = auth::daemon_token(&file.path, file.node.as_deref(), &file.user).map(Some);
                let own = file.or_last(read, |good| &mut good.own)?;
                own.ok_or_else(|| AuthError::Empty { path: file.path.clone() })
            }
            Secrets::Single(token) => Ok(token.clone()),
        }
    }

    /// Those that others may prove.
    ///
    /// # Errors
    /// When the file cannot be read, and never could.
    pub(super) fn all(&self) -> Result<Vec<TokenEntry>, AuthError> {
        match self {
            Secrets::Server(tokens) => Ok(tokens.entries()),
            Secrets::File(file) => file.or_last(auth::daemon_entries(&file.path), |good| &mut good.all),
            Secrets::Single(token) => Ok(vec![TokenEntry::single(token)]),
        }
    }

    /// Whether an operator can change them while this process lives.
    pub(super) fn may_change(&self) -> bool {
        !matches!(self, Secrets::Single(_))
    }

    /// Changes when the file does.
    pub(super) fn version(&self) -> auth::Version {
        match self {
            Secrets::Server(tokens) => auth::version(tokens.path()),
            Secrets::File(file) => auth::version(&file.path),
            Secrets::Single(_) => None,
        }
    }
}

impl TokenFile {
    /// What was read, or what could be read last, which is told.
    fn or_last<T: Clone + Default + PartialEq>(
        &self,
        read: Result<T, AuthError>,
        kept: impl Fn(&mut Good) -> &mut T,
    ) -> Result<T, AuthError> {
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        let last = kept(&mut good);
        match read {
            Ok(read) => {
                last.clone_from(&read);
                Ok(read)
            }
            Err(error) if matches!(error, AuthError::Exposed { .. }) || *last == T::default() => Err(error),
            Err(error) => {
                tracing::warn!("{error}; going on with what it said before; {}", error.remedy());
                Ok(last.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_is_being_edited_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        };
        let secrets = Secrets::file(path.clone(), "ada".to_owned(), Some("vm-1".to_owned()));
        assert!(secrets.own().is_err() && secrets.all().is_err());
        write("[[token]]\nuser = 'ada'\ntoken = 'one'\nadmin = true\n");
        assert_eq!((secrets.own().unwrap(), secrets.all().unwrap().len()), ("one".to_owned(), 1));
        write("[[token]]\nuser = 'ada\n");
        assert_eq!((secrets.own().unwrap(), secrets.all().unwrap().len()), ("one".to_owned(), 1));
        write("[[token]]\nagent = 'vm-1'\ntoken = 'two'\n");
        assert_eq!(secrets.own().unwrap(), "two");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(secrets.own().is_err() && secrets.all().is_err());
    }
}
