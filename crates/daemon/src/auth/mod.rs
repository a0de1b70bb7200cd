//! Authentication: access tokens, their file, and the proofs that daemons exchange.
//!
//! A token is a secret that identifies a user or an agent. Clients send it with every call. Daemons never send theirs,
//! but prove that they have it. Clients on other machines verify the server by its certificate first.

mod file;
pub mod joins;
mod local;
mod oidc;
mod roles;
mod scopes;
mod shared;
mod uses;

pub use file::{
    Credential, Holder, OVERLAP, TokenEntry, Which, add, client_token, daemon_entries, daemon_token, key_digest, lock,
    newest, read, read_private, remove, rotate,
};
pub use local::{LocalSocket, LocalUser, USUAL_SOCKET};
pub use oidc::{Claimed, Issuers, Refusal};
pub use roles::DaemonRole;
pub use scopes::{Scope, Scopes};
pub use shared::SharedUser;
use shared::SharedUsers;
pub(crate) use shared::USERS_FILE;
pub use uses::LastUses;

use crate::audit::AuditLog;
use crate::config::{Config, IsolationRules};
use amalgam_core::vocabulary::{BadName, ClusterId, Named};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;
use subtle::ConstantTimeEq;
use thiserror::Error;

/// The user of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub user: String,
    /// What its access token may be used for.
    pub scopes: Scopes,
}

impl Identity {
    /// Users may access their own jobs, and all jobs with the scope `operate`.
    pub fn may_access(&self, owner: &str) -> bool {
        self.scopes.has(Scope::Operate) || self.user == owner
    }
}

/// Returns certificates in PEM as they are now: a rotation changes them.
pub type TrustedPem = Arc<dyn Fn() -> String + Send + Sync>;

/// Who may call, and as which account on the nodes their tasks run.
pub struct Callers {
    pub tokens: Arc<Tokens>,
    pub accounts: Arc<Accounts>,
    /// What they change is recorded there; `None` in tests.
    pub audit: Option<Arc<AuditLog>>,
    /// Where users of this machine call without a token.
    pub local: Option<LocalSocket>,
    /// The authorities that clients on other machines trust.
    pub trusted: Option<TrustedPem>,
    /// Whose tokens identify users, besides `tokens`.
    pub issuers: Arc<Issuers>,
    /// What the tasks of their jobs do not share with their nodes.
    pub isolation: Arc<IsolationRules>,
}

impl Callers {
    /// Those of a process with this configuration and audit log.
    ///
    /// # Errors
    /// If the local socket cannot be made, or a file of an issuer's keys cannot be used.
    pub fn open(tokens: Arc<Tokens>, config: Config, audit: Arc<AuditLog>) -> Result<Callers, AuthError> {
        let bind = |path: PathBuf| LocalSocket::bind(&path).map_err(|source| AuthError::Socket { path, source });
        let issuers = Arc::new(Issuers::start(config.oidc)?);
        let local = config.listen_local.map(bind).transpose()?;
        let accounts = Arc::new(Accounts::new(config.accounts));
        let isolation = Arc::new(IsolationRules::new(config.isolation));
        Ok(Callers { tokens, accounts, audit: Some(audit), local, trusted: None, issuers, isolation })
    }
}

/// The audit log of a state directory. A process opens it once, because it counts what it writes.
///
/// # Errors
/// If the file cannot be opened.
pub fn audit_log(state_dir: &Path) -> Result<Arc<AuditLog>, AuthError> {
    let opened = AuditLog::open(state_dir);
    opened.map(Arc::new).map_err(|source| AuthError::Io { path: state_dir.join(AuditLog::FILE), source })
}

/// The accounts of users who have another name on the nodes, by the name of the user.
#[derive(Default)]
pub struct Accounts(RwLock<BTreeMap<String, String>>);

impl Accounts {
    pub fn new(by_user: BTreeMap<String, String>) -> Accounts {
        Accounts(RwLock::new(by_user))
    }

    pub fn of(&self, user: &str) -> String {
        let by_user = self.0.read().unwrap_or_else(PoisonError::into_inner);
        by_user.get(user).map_or(user, String::as_str).to_owned()
    }

    /// Jobs that are submitted from now on use these.
    pub fn replace(&self, by_user: BTreeMap<String, String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = by_user;
    }
}

#[derive(Debug, Error)]
pub enum AuthError {
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot listen at {path}: {source}")]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot use {path}, `jwks` in [[oidc]] of the configuration: {why}", path = path.display())]
    Jwks { path: PathBuf, why: String },
    #[error("cannot start the thread that fetches the keys of an issuer: {0}")]
    Thread(io::Error),
    #[error("{path} can be read by others (mode {mode:o})")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path}:{line}: {problem}")]
    Malformed { path: PathBuf, line: usize, problem: String, remedy: &'static str },
    #[error("{path} has no token")]
    Empty { path: PathBuf },
    #[error("{path} is empty, and its server has been in use")]
    Emptied { path: PathBuf },
    #[error("{} has no token {whose}", .path.display())]
    Unknown { path: PathBuf, whose: String },
    #[error("{name} has no token, but certificates, which the server replaces by itself")]
    HasKey { name: String },
    #[error("{}", .0.problem)]
    BadName(BadName),
    #[error("the system returns no random numbers: {0}")]
    Random(getrandom::Error),
}

impl AuthError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            AuthError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "check the path; a server creates tokens.toml in its state directory at its first start; a daemon of another machine joins \
                 with a string of `amalgam token join` (--join)"
                    .to_owned()
            }
            AuthError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free space on its disk".to_owned()
            }
            AuthError::Io { .. } => "check the path and its permissions".to_owned(),
            AuthError::Jwks { .. } => "write the issuer's JWKS to it, or name another file or its URL".to_owned(),
            AuthError::Thread(_) => "raise the limit of threads, and try again".to_owned(),
            AuthError::Socket { .. } => "name another path with --listen-local, or leave it out".to_owned(),
            AuthError::Exposed { path, .. } => format!("run `chmod 600 {}`", path.display()),
            AuthError::Malformed { line, remedy, .. } => format!("correct line {line}: {remedy}"),
            AuthError::Empty { .. } => "add one with `amalgam token add USER`".to_owned(),
            AuthError::Emptied { path } => format!(
                "restore it from a backup; or remove {} to get a new token and make all others invalid",
                path.display()
            ),
            AuthError::Unknown { .. } => {
                "`amalgam token list` shows the users and agents that have a token; `amalgam token add` creates one"
                    .to_owned()
            }
            AuthError::HasKey { .. } => {
                "for a new key, remove its entry with `amalgam token remove`, and join it again with `amalgam token join`"
                    .to_owned()
            }
            AuthError::BadName(bad) => bad.remedy.to_owned(),
            AuthError::Random(_) => "try again".to_owned(),
        }
    }
}

/// The tokens of a server. They are read again whenever their file changes.
pub struct Tokens {
    path: PathBuf,
    loaded: Mutex<Loaded>,
    uses: LastUses,
    /// Of another server.
    others: SharedUsers,
}

/// Inode, size and time of the last change (of contents or mode) of a file. A replaced file differs in at least one of
/// them.
pub(crate) type Version = Option<(u64, u64, i64, i64)>;

struct Loaded {
    /// Version of the file at the last read, whether it was valid or not.
    version: Version,
    entries: Vec<HashedEntry>,
}

/// An entry with its credential's digest, so that comparisons take constant time for any length.
struct HashedEntry {
    digest: [u8; 32],
    entry: TokenEntry,
}

impl Tokens {
    pub const FILE: &'static str = "tokens.toml";

    /// Opens the tokens of a state directory. The first start creates the directory and the file, with an
    /// administrator's token for `first_user`. So does a start that finds an empty file, unless the server has been
    /// used before.
    ///
    /// # Errors
    /// If the file cannot be used, has a mistake, or can be read by others.
    pub fn open(state_dir: &Path, first_user: &str) -> Result<Tokens, AuthError> {
        make_private_dir(state_dir)?;
        let path = state_dir.join(Tokens::FILE);
        let is_empty = path.exists() && file::read_private(&path)?.trim().is_empty();
        if is_empty && has_been_used(state_dir) {
            return Err(AuthError::Emptied { path });
        }
        if is_empty || !path.exists() {
            Named::User.check(first_user).map_err(AuthError::BadName)?;
            let holder = Holder::User { name: first_user.to_owned(), admin: true };
            file::create(&path, &TokenEntry::new(holder)?)?;
        }
        let uses = LastUses::open(state_dir);
        let (loaded, others) = (Mutex::new(Loaded { version: None, entries: Vec::new() }), SharedUsers::of(state_dir));
        let tokens = Tokens { path, loaded, uses, others };
        tokens.reload(&mut tokens.loaded.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(tokens)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a valid token makes this user an administrator.
    pub fn has_administrator(&self, user: &str) -> bool {
        let is_theirs =
            |entry: &TokenEntry| matches!(&entry.holder, Holder::User { name, admin: true } if name == user);
        self.entries().iter().any(is_theirs) || self.others.has_administrator(user, SystemTime::now())
    }

    /// The users for another server, which is to accept their tokens.
    pub fn users(&self) -> Vec<SharedUser> {
        self.entries().iter().filter_map(SharedUser::of).collect()
    }

    /// Accepts the tokens of the users that another server sent before the last stop.
    ///
    /// # Errors
    /// If their file cannot be used, or others can read it.
    pub fn load_others(&self, cluster: ClusterId) -> Result<(), AuthError> {
        self.others.load(cluster)
    }

    /// Accepts the tokens of these users of another server, besides those of the file, and of no others.
    pub fn accept_others(&self, users: Vec<SharedUser>) {
        if let Err(error) = self.others.replace(users) {
            tracing::error!("{error}; they are not known after a restart; {}", error.remedy());
        }
    }

    /// The valid entry of the daemon whose certificates are for a public key with this digest.
    pub fn entry_of_key(&self, digest: &str) -> Option<TokenEntry> {
        let now = SystemTime::now();
        let is_meant = |entry: &TokenEntry| {
            matches!(&entry.credential, Credential::Key(key) if key == digest) && entry.is_valid(now)
        };
        let loaded = self.current();
        loaded.entries.iter().map(|hashed| &hashed.entry).find(|entry| is_meant(entry)).cloned()
    }

    /// The digests of the keys of all daemons of a role with certificates, in the order of the file.
    pub fn keys(&self, role: DaemonRole, now: SystemTime) -> Vec<String> {
        let key = |entry: &TokenEntry| match &entry.credential {
            Credential::Key(key) if entry.is_valid(now) && entry.holder.role() == Some(role) => Some(key.clone()),
            Credential::Key(_) | Credential::Token(_) => None,
        };
        self.current().entries.iter().filter_map(|hashed| key(&hashed.entry)).collect()
    }

    /// The valid entries, which daemons use to verify each other.
    pub fn entries(&self) -> Vec<TokenEntry> {
        let now = SystemTime::now();
        let loaded = self.current();
        let valid = loaded.entries.iter().filter(|hashed| hashed.entry.is_valid(now));
        valid.map(|hashed| hashed.entry.clone()).collect()
    }

    /// Notes that a token or certificate was used now.
    pub fn note_use(&self, credential: &Credential) {
        self.uses.note(&credential.digest());
    }

    /// The entry of a token, which is used now.
    pub fn entry(&self, token: &str) -> Option<TokenEntry> {
        let found = self.find(token)?;
        self.uses.note(&Sha256::digest(token.as_bytes()).into());
        Some(found)
    }

    /// Whether a token is still valid.
    pub fn is_valid(&self, token: &str) -> bool {
        self.find(token).is_some()
    }

    /// Compares all entries, so that the time does not depend on the match.
    fn find(&self, token: &str) -> Option<TokenEntry> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let now = SystemTime::now();
        let mut found = self.others.find(token, now);
        let loaded = self.current();
        for hashed in &loaded.entries {
            let is_equal = bool::from(hashed.digest.ct_eq(&digest));
            if is_equal && hashed.entry.token().is_some() && hashed.entry.is_valid(now) {
                found = Some(hashed.entry.clone());
            }
        }
        found
    }

    /// The user of a token. `None` for tokens of daemons.
    pub fn identify(&self, token: &str) -> Option<Identity> {
        let TokenEntry { holder, scopes, .. } = self.entry(token)?;
        match holder {
            Holder::User { name, .. } => Some(Identity { user: name, scopes }),
            Holder::Daemon { .. } => None,
        }
    }

    /// The entries of the file, or of its last valid version: a file that is being edited must not lock out all users.
    fn current(&self) -> MutexGuard<'_, Loaded> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if version(&self.path) != loaded.version
            && let Err(error) = self.reload(&mut loaded)
        {
            // Except a file that became readable for others.
            if matches!(error, AuthError::Exposed { .. }) {
                loaded.entries.clear();
                tracing::error!("{error}; all tokens are refused until this is done: {}", error.remedy());
            } else {
                tracing::error!("{error}; the previous tokens stay valid until this is done: {}", error.remedy());
            }
        }
        loaded
    }

    fn reload(&self, loaded: &mut Loaded) -> Result<(), AuthError> {
        // Get the version first, so that later changes are read again. A mistake is reported once for each version.
        loaded.version = version(&self.path);
        let entries = file::read(&self.path)?;
        let hashed = |entry: TokenEntry| HashedEntry { digest: entry.credential.digest(), entry };
        loaded.entries = entries.into_iter().map(hashed).collect();
        Ok(())
    }
}

/// Whether an earlier start opened its log, which happens after its tokens exist.
fn has_been_used(state_dir: &Path) -> bool {
    let counts = ["log", "history"].map(|log| state_dir.join(log).join("epoch"));
    counts.iter().any(|count| fs::metadata(count).is_ok_and(|found| found.len() > 0))
}

fn make_private_dir(path: &Path) -> Result<(), AuthError> {
    crate::private::make_private_dir(path).map_err(|source| AuthError::Io { path: path.to_owned(), source })
}

/// The version of a file, to detect changes.
pub(crate) fn version(path: &Path) -> Version {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec()))
}

fn new_token() -> Result<String, AuthError> {
    Ok(hex(&new_nonce()?))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A random challenge that is never used again.
///
/// # Errors
/// If the system returns no random numbers.
pub fn new_nonce() -> Result<[u8; 32], AuthError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(AuthError::Random)?;
    Ok(bytes)
}

/// Proves possession of the token without sending it. `side` is the sender (`agent`, `server`), so that a proof cannot
/// be sent back to its sender as an answer.
pub fn prove(token: &str, side: &str, nonce: &[u8]) -> [u8; 32] {
    mac(token, side, nonce).finalize().into_bytes().into()
}

/// Whether the other side has the token. Takes constant time.
pub fn verify(token: &str, side: &str, nonce: &[u8], proof: &[u8]) -> bool {
    mac(token, side, nonce).verify_slice(proof).is_ok()
}

fn mac(token: &str, side: &str, nonce: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("a key of any length");
    // The length first, so that different pairs of side and nonce have different bytes.
    mac.update(&(side.len() as u64).to_le_bytes());
    mac.update(side.as_bytes());
    mac.update(nonce);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_start_creates_a_private_file_with_an_administrator() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let tokens = Tokens::open(&state, "ada").unwrap();
        assert_eq!(fs::metadata(tokens.path()).unwrap().mode() & 0o777, 0o600);
        let token = client_token(tokens.path(), "ada").unwrap();
        assert_eq!(tokens.identify(&token), Some(Identity { user: "ada".to_owned(), scopes: Scopes::ADMIN }));
        for wrong in ["", "x", &token[1..], &token.to_uppercase()] {
            assert_eq!(tokens.identify(wrong), None);
        }
        assert_eq!(Tokens::open(&state, "eve").unwrap().identify(&token).unwrap().user, "ada");
    }

    #[test]
    fn a_running_server_notices_new_and_removed_users_and_agents() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        let bob = Holder::User { name: "bob".to_owned(), admin: false };
        let entry = add(tokens.path(), TokenEntry::new(bob.clone()).unwrap(), false).unwrap();
        assert_eq!(
            tokens.identify(entry.token().unwrap()),
            Some(Identity { user: "bob".to_owned(), scopes: Scopes::USUAL })
        );
        for name in ["b b", "", "../x", "-x", "a\nb"] {
            let bad = Holder::User { name: name.to_owned(), admin: true };
            assert!(matches!(add(tokens.path(), TokenEntry::new(bad).unwrap(), false), Err(AuthError::BadName(_))));
        }
        let agent = add(tokens.path(), TokenEntry::new(Holder::agent("vm-1")).unwrap(), false).unwrap();
        assert_eq!(
            (tokens.identify(agent.token().unwrap()), tokens.entry(agent.token().unwrap())),
            (None, Some(agent.clone()))
        );
        let newer = add(tokens.path(), TokenEntry::new(bob).unwrap(), false).unwrap();
        assert!(tokens.identify(entry.token().unwrap()).is_some() && tokens.identify(newer.token().unwrap()).is_some());
        rotate(tokens.path(), &Which { holder: "bob", role: None, name: None }, true).unwrap();
        assert_eq!((tokens.identify(entry.token().unwrap()), tokens.identify(newer.token().unwrap())), (None, None));
    }

    #[test]
    fn the_last_valid_tokens_stay_valid_while_the_file_is_invalid_or_missing() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        let token = client_token(tokens.path(), "ada").unwrap();
        let good = fs::read_to_string(tokens.path()).unwrap();
        for length in 1..good.len() {
            fs::write(tokens.path(), &good[..length]).unwrap();
            // A file that is cut between two entries is valid, but this one has a single entry.
            let is_whole = read(tokens.path()).is_ok();
            assert!(tokens.identify(&token).is_some() || is_whole, "cut at {length}");
            if !is_whole {
                assert!(matches!(Tokens::open(directory.path(), "ada"), Err(AuthError::Malformed { .. })));
            }
        }
        fs::write(tokens.path(), &good).unwrap();
        assert!(tokens.identify(&token).is_some());
        fs::remove_file(tokens.path()).unwrap();
        assert!(tokens.identify(&token).is_some() && tokens.entries().len() == 1);
    }

    #[test]
    fn an_empty_file_of_a_first_start_is_created_again() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(Tokens::FILE), "").unwrap();
        fs::set_permissions(directory.path().join(Tokens::FILE), fs::Permissions::from_mode(0o600)).unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        let token = client_token(tokens.path(), "ada").unwrap();
        assert_eq!(tokens.identify(&token), Some(Identity { user: "ada".to_owned(), scopes: Scopes::ADMIN }));
    }

    #[test]
    fn an_empty_file_of_a_used_server_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = Tokens::open(directory.path(), "ada").unwrap().path().to_owned();
        fs::create_dir(directory.path().join("log")).unwrap();
        fs::write(directory.path().join("log/epoch"), "1").unwrap();
        fs::write(&path, "\n").unwrap();
        assert!(matches!(Tokens::open(directory.path(), "ada"), Err(AuthError::Emptied { .. })));
        fs::remove_file(&path).unwrap();
        Tokens::open(directory.path(), "ada").unwrap();
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        let token = client_token(tokens.path(), "ada").unwrap();
        fs::set_permissions(tokens.path(), fs::Permissions::from_mode(0o640)).unwrap();
        let refusal = Tokens::open(directory.path(), "ada").err().unwrap();
        assert!(refusal.to_string().ends_with("(mode 640)"), "{refusal}");
        assert_eq!(refusal.remedy(), format!("run `chmod 600 {}`", tokens.path().display()));
        assert_eq!(tokens.identify(&token), None);
    }

    #[test]
    fn a_proof_is_valid_only_for_its_token_side_and_nonce() {
        let proof = prove("secret", "agent", b"nonce");
        assert!(verify("secret", "agent", b"nonce", &proof));
        assert!(!verify("other", "agent", b"nonce", &proof));
        assert!(!verify("secret", "server", b"nonce", &proof));
        assert!(!verify("secret", "agent", b"other", &proof));
        assert!(!verify("secret", "agentn", b"once", &proof));
        assert!(!verify("secret", "agent", b"nonce", &proof[..31]));
    }
}
