//! The access tokens and certificates with which daemons authenticate each other.

use super::Wire;
use crate::auth::{self, AuthError, Credential, TokenEntry, Tokens};
use crate::authority::{Certified, Expected, fingerprint};
use crate::channel::Mutual;
use crate::identity::{Identity, NewKey};
use amalgam_core::vocabulary::HostId;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

/// A source of access tokens.
#[derive(Clone)]
pub enum Secrets {
    /// The tokens of this server.
    Server(Arc<Tokens>),
    /// A server's `tokens.toml`, or a file with a single token. It is read again each time a token is needed.
    File(Arc<TokenFile>),
    Single(String),
    /// The certificates of a daemon that joined with a string, and the daemon that it connects to. It has no token.
    Certificates(Arc<Identity>, Expected),
}

pub struct TokenFile {
    path: PathBuf,
    /// The user whose token is preferred, if the node has none.
    user: String,
    /// The node whose agent this is. Its own token is preferred to users' tokens.
    node: Option<String>,
    /// Where an agent keeps the certificates that the server gives it instead of its token.
    place: OnceLock<PathBuf>,
    /// Those, once it has them.
    identity: OnceLock<Arc<Identity>>,
    /// The last tokens that could be read. They are used while the file cannot be read, for example during an edit.
    good: Mutex<Good>,
}

#[derive(Default)]
struct Good {
    own: Option<String>,
    all: Vec<TokenEntry>,
}

impl Secrets {
    /// The tokens of a file. `node` is set for the agent of a node.
    pub fn file(path: PathBuf, user: String, node: Option<String>) -> Secrets {
        let (place, identity, good) = Default::default();
        Secrets::File(Arc::new(TokenFile { path, user, node, place, identity, good }))
    }

    /// The token with which this process authenticates itself.
    ///
    /// # Errors
    /// If the file cannot be read and no earlier read succeeded, or if other users can read it.
    pub fn own(&self) -> Result<String, AuthError> {
        match self {
            Secrets::Server(tokens) => auth::daemon_token(tokens.path(), None, ""),
            Secrets::File(file) if file.identity().is_some() => Ok(String::new()),
            Secrets::File(file) => {
                let read = auth::daemon_token(&file.path, file.node.as_deref(), &file.user).map(Some);
                let own = file.or_last(read, |good| &mut good.own)?;
                own.ok_or_else(|| AuthError::Empty { path: file.path.clone() })
            }
            Secrets::Single(token) => Ok(token.clone()),
            Secrets::Certificates(..) => Ok(String::new()),
        }
    }

    /// The same, for connections to a job host.
    pub(super) fn for_job_host(&self, HostId(host): HostId) -> Secrets {
        match self {
            Secrets::Certificates(identity, _) => Secrets::Certificates(Arc::clone(identity), Expected::JobHost(host)),
            Secrets::File(file) => match file.identity() {
                Some(identity) => Secrets::Certificates(Arc::clone(identity), Expected::JobHost(host)),
                None => self.clone(),
            },
            Secrets::Server(_) | Secrets::Single(_) => self.clone(),
        }
    }

    /// Lets an agent with a token of its own exchange it for certificates, which it keeps in this directory. Those that it has got for
    /// the present token are used at once.
    ///
    /// # Errors
    /// If the file of the certificates cannot be used.
    pub fn exchange_in(&self, directory: &Path) -> Result<(), AuthError> {
        let Secrets::File(file) = self else { return Ok(()) };
        if let Some(identity) = Identity::load(directory)?
            && file.has_token_of(&identity)
            && !identity.has_expired()
        {
            let _ = file.identity.set(Arc::new(identity));
        }
        let _ = file.place.set(directory.join(Identity::FILE));
        Ok(())
    }

    /// The public key for which the server is asked for a certificate.
    pub(super) fn wanted(&self) -> Option<Vec<u8>> {
        let Secrets::File(file) = self else { return None };
        let (place, token) = (file.place.get()?, file.token()?);
        if file.identity().is_some() {
            return None;
        }
        let key = NewKey::for_string(place, &digest_of(&token));
        let key = key.inspect_err(|error| tracing::warn!("{error}; this agent keeps its token; {}", error.remedy()));
        Some(key.ok()?.public())
    }

    /// The certificates of this daemon, if it has some instead of a token, and the daemon that it connects to.
    pub(super) fn mutual(&self) -> Option<Mutual<'_>> {
        match self {
            Secrets::Certificates(identity, expected) => Some((identity, expected.clone())),
            Secrets::File(file) => file.identity().map(|identity| (identity, Expected::Server)),
            Secrets::Server(_) | Secrets::Single(_) => None,
        }
    }

    /// The certificates of this daemon, if it has some instead of a token.
    pub(crate) fn identity(&self) -> Option<&Arc<Identity>> {
        match self {
            Secrets::Certificates(identity, _) => Some(identity),
            Secrets::File(file) => file.identity(),
            Secrets::Server(_) | Secrets::Single(_) => None,
        }
    }

    /// The tokens with which peers may authenticate themselves.
    ///
    /// # Errors
    /// If the file cannot be read and no earlier read succeeded, or if other users can read it.
    pub(super) fn all(&self) -> Result<Vec<TokenEntry>, AuthError> {
        match self {
            Secrets::Server(tokens) => Ok(tokens.entries()),
            Secrets::File(file) => file.or_last(auth::daemon_entries(&file.path), |good| &mut good.all),
            Secrets::Single(token) => Ok(vec![TokenEntry::single(token)]),
            Secrets::Certificates(..) => Ok(Vec::new()),
        }
    }

    /// Uses a newer certificate of this daemon from now on. Returns the answer to the server once it is stored.
    pub(super) fn renew(&self, certified: Certified) -> Option<Wire> {
        let signer = certified.between.first().map(|signer| fingerprint(&CertificateDer::from(signer.as_slice())));
        let stored = match (self, self.identity()) {
            (_, Some(identity)) => identity.replace(certified),
            (Secrets::File(file), None) => file.exchange(certified)?,
            (_, None) => return None,
        };
        match stored {
            Ok(()) => signer.map(Wire::Stored),
            Err(error) => {
                tracing::error!("{error}; the previous certificate stays in use until it ends; {}", error.remedy());
                None
            }
        }
    }

    /// Uses this list of the keys that may authenticate daemons which this one meets.
    pub(super) fn allow(&self, keys: Vec<String>) {
        if let Some(identity) = self.identity() {
            identity.allow(keys);
        }
    }

    /// Whether an operator can change the tokens while this process runs.
    pub(super) fn may_change(&self) -> bool {
        !matches!(self, Secrets::Single(_))
    }

    /// A value that changes when the file changes.
    pub(super) fn version(&self) -> auth::Version {
        match self {
            Secrets::Server(tokens) => auth::version(tokens.path()),
            Secrets::File(file) => auth::version(&file.path),
            Secrets::Single(_) | Secrets::Certificates(..) => None,
        }
    }
}

/// The token or the key with which a peer has authenticated itself.
pub(super) struct Validity {
    secrets: Secrets,
    credential: Credential,
    /// The version of the tokens' file at the last check.
    version: auth::Version,
    until: Option<SystemTime>,
}

impl Validity {
    /// Interval at which it is checked.
    const INTERVAL: Duration = Duration::from_secs(1);

    /// Starts to watch a token that is used now. `None` if it cannot be revoked.
    pub(super) fn of(secrets: &Secrets, entry: &TokenEntry) -> Option<Validity> {
        let (credential, until) = (entry.credential.clone(), entry.until);
        if let Secrets::Server(tokens) = secrets {
            tokens.note_use(&credential);
        }
        // The version before the token was read is not known, so the first check reads it again.
        secrets.may_change().then(|| Validity { secrets: secrets.clone(), credential, version: None, until })
    }

    /// Returns when the token has been removed or has expired.
    pub(super) async fn ended(mut self) {
        loop {
            tokio::time::sleep(Validity::INTERVAL).await;
            if !self.is_valid() {
                return;
            }
        }
    }

    fn is_valid(&mut self) -> bool {
        if let (Some(identity), Credential::Key(key)) = (self.secrets.identity(), &self.credential)
            && !identity.allows(key)
        {
            return false;
        }
        let version = self.secrets.version();
        if version != self.version {
            // While the file cannot be read, what was valid stays valid.
            if let Ok(entries) = self.secrets.all() {
                let found = entries.into_iter().find(|entry| entry.credential == self.credential);
                let Some(entry) = found else { return false };
                (self.until, self.version) = (entry.until, version);
            }
        }
        self.until.is_none_or(|until| SystemTime::now() < until)
    }
}

/// Identifies the token for which certificates were given, without containing it.
fn digest_of(token: &str) -> String {
    auth::hex(&Sha256::digest(format!("exchanged {token}")))
}

impl TokenFile {
    /// The token of this file now.
    fn token(&self) -> Option<String> {
        auth::daemon_token(&self.path, self.node.as_deref(), &self.user).ok()
    }

    /// Whether the certificates were given for the token of this file. An operator may write another one, to start anew, or remove it.
    fn has_token_of(&self, identity: &Identity) -> bool {
        self.token().is_none_or(|token| identity.is_of(&digest_of(&token)))
    }

    /// The certificates that are used instead of the token.
    fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.get().filter(|identity| self.has_token_of(identity))
    }

    /// Stores the first certificate. `None` if this daemon did not ask for one.
    fn exchange(&self, certified: Certified) -> Option<Result<(), AuthError>> {
        let (place, digest) = (self.place.get()?, digest_of(&self.token()?));
        let key = NewKey::for_string(place, &digest).ok()?;
        let created = Identity::create(place.clone(), digest, key, certified).map(|identity| {
            let _ = self.identity.set(Arc::new(identity));
            tracing::warn!(
                "this agent has a certificate now, in {}: its token is not needed any more, and ends in 24 hours",
                place.display()
            );
        });
        Some(created)
    }

    /// Returns `read`, or the last value with a warning if `read` is an error.
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
                tracing::warn!("{error}; the previous tokens stay in use; {}", error.remedy());
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
    fn the_last_valid_tokens_are_used_while_the_file_is_invalid() {
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
