//! Who may do what: tokens, their file, and the proof that daemons give each other.
//!
//! A token is a secret that names a user or an agent. Clients send it with every call; daemons never send theirs but prove
//! that they hold it. Until the connection is encrypted nothing may listen beyond this machine.

mod file;

pub use file::{Holder, OVERLAP, TokenEntry, add, client_token, daemon_entries, daemon_token, read, remove, rotate};

use amalgam_core::vocabulary::{BadName, Named};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Who a caller is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub user: String,
    pub admin: bool,
}

impl Identity {
    /// Users rule over their own jobs, administrators over all.
    pub fn may_access(&self, owner: &str) -> bool {
        self.admin || self.user == owner
    }
}

#[derive(Debug, Error)]
pub enum AuthError {
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} can be read by others (mode {mode:o})")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path}:{line}: {problem}")]
    Malformed { path: PathBuf, line: usize, problem: String, remedy: &'static str },
    #[error("{path} holds no token")]
    Empty { path: PathBuf },
    #[error("{path} is empty, and its server has been in use")]
    Emptied { path: PathBuf },
    #[error("{name} has no token in {path}")]
    Unknown { path: PathBuf, name: String },
    #[error("{}", .0.problem)]
    BadName(BadName),
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

impl AuthError {
    /// What would help.
    pub fn remedy(&self) -> String {
        match self {
            AuthError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "check the path; a server makes tokens.toml in its state directory when it starts first".to_owned()
            }
            AuthError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => "make room there".to_owned(),
            AuthError::Io { .. } => "check the path, and that you may read it".to_owned(),
            AuthError::Exposed { path, .. } => format!("run `chmod 600 {}`", path.display()),
            AuthError::Malformed { line, remedy, .. } => format!("mend line {line}: {remedy}"),
            AuthError::Empty { .. } => "add one with `amalgam token add USER`".to_owned(),
            AuthError::Emptied { path } => format!(
                "restore it from a backup; or remove {} to have a new token made for you, and all others void",
                path.display()
            ),
            AuthError::Unknown { .. } => "`amalgam token list` shows who has; `amalgam token add` gives one".to_owned(),
            AuthError::BadName(bad) => bad.remedy.to_owned(),
            AuthError::Random(_) => "try again".to_owned(),
        }
    }
}

/// The tokens of a server, read again whenever their file changes.
pub struct Tokens {
    path: PathBuf,
    loaded: Mutex<Loaded>,
}

/// Inode, size and time of the last change (of contents or mode) of a file: a replaced one differs in one of them.
pub(crate) type Version = Option<(u64, u64, i64, i64)>;

struct Loaded {
    /// Of the file that was looked at last, whether it could be used or not.
    version: Version,
    known: Vec<Known>,
}

/// With the token's digest, so that comparing takes the same time whatever its length.
struct Known {
    digest: [u8; 32],
    entry: TokenEntry,
}

impl Tokens {
    pub const FILE: &'static str = "tokens.toml";

    /// Opens the tokens of a state directory. The first start makes both, with an administrator's token for
    /// `first_user`; so does one that finds nothing in the file, where no start has ended well before.
    ///
    /// # Errors
    /// When the file cannot be used, has a mistake, or can be read by others.
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
            file::create(&path, &TokenEntry { holder, token: new_token()?, until: None })?;
        }
        let tokens = Tokens { path, loaded: Mutex::new(Loaded { version: None, known: Vec::new() }) };
        tokens.reload(&mut tokens.loaded.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(tokens)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Those that are good now, by which daemons are known.
    pub fn entries(&self) -> Vec<TokenEntry> {
        let now = SystemTime::now();
        let loaded = self.current();
        let valid = loaded.known.iter().filter(|known| known.entry.is_valid(now));
        valid.map(|known| known.entry.clone()).collect()
    }

    /// Whose token this is. Looks at every entry whichever fits.
    pub fn holder(&self, token: &str) -> Option<Holder> {
        let now = SystemTime::now();
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = None;
        for known in &self.current().known {
            if bool::from(known.digest.ct_eq(&digest)) && known.entry.is_valid(now) {
                found = Some(known.entry.holder.clone());
            }
        }
        found
    }

    /// The user whose token this is; agents are none.
    pub fn identify(&self, token: &str) -> Option<Identity> {
        match self.holder(token)? {
            Holder::User { name, admin } => Some(Identity { user: name, admin }),
            Holder::Agent { .. } => None,
        }
    }

    /// What the file says, or said when it could be used last: a file that is being edited must not lock everyone out.
    fn current(&self) -> MutexGuard<'_, Loaded> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if version(&self.path) != loaded.version
            && let Err(error) = self.reload(&mut loaded)
        {
            // One that became public must.
            if matches!(error, AuthError::Exposed { .. }) {
                loaded.known.clear();
                tracing::error!("{error}; nobody is let in before that: {}", error.remedy());
            } else {
                tracing::error!("{error}; the tokens that were good before stay so until that: {}", error.remedy());
            }
        }
        loaded
    }

    fn reload(&self, loaded: &mut Loaded) -> Result<(), AuthError> {
        // Asked before: what changes meanwhile is read again. A mistake is told once.
        loaded.version = version(&self.path);
        let entries = file::read(&self.path)?;
        let known = |entry: TokenEntry| Known { digest: Sha256::digest(entry.token.as_bytes()).into(), entry };
        loaded.known = entries.into_iter().map(known).collect();
        Ok(())
    }
}

/// Whether a start has come to its log, which it does once it has tokens.
fn has_been_used(state_dir: &Path) -> bool {
    let counts = ["log", "history"].map(|log| state_dir.join(log).join("epoch"));
    counts.iter().any(|count| fs::metadata(count).is_ok_and(|found| found.len() > 0))
}

fn make_private_dir(path: &Path) -> Result<(), AuthError> {
    crate::private::make_private_dir(path).map_err(|source| AuthError::Io { path: path.to_owned(), source })
}

/// Which file this is, to see when it has changed.
pub(crate) fn version(path: &Path) -> Version {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec()))
}

fn new_token() -> Result<String, AuthError> {
    Ok(hex(&new_nonce()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A challenge that was never given before.
///
/// # Errors
/// When the system gives no random numbers.
pub fn new_nonce() -> Result<[u8; 32], AuthError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(AuthError::Random)?;
    Ok(bytes)
}

/// Shows that one holds the token without sending it. `side` says who speaks (`agent`, `server`), so that an answer
/// cannot be reflected to the one who gave it.
pub fn prove(token: &str, side: &str, nonce: &[u8]) -> [u8; 32] {
    mac(token, side, nonce).finalize().into_bytes().into()
}

/// Whether the other side holds the token; takes the same time either way.
pub fn verify(token: &str, side: &str, nonce: &[u8], proof: &[u8]) -> bool {
    mac(token, side, nonce).verify_slice(proof).is_ok()
}

fn mac(token: &str, side: &str, nonce: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("a key of any length");
    // Lengths first: no two pairs of side and nonce give the same bytes.
    mac.update(&(side.len() as u64).to_le_bytes());
    mac.update(side.as_bytes());
    mac.update(nonce);
    mac
}

/// Refuses to listen beyond this machine.
///
/// # Errors
/// When the address is not a loopback one; the text says what to do instead.
pub fn check_bind(address: SocketAddr) -> Result<(), String> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "{address} can be reached from other machines, and connections are not encrypted yet; listen on \
         127.0.0.1:{port} and reach it through `ssh -L {port}:127.0.0.1:{port} HOST`",
        port = address.port()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_start_makes_a_private_file_with_an_administrator() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let tokens = Tokens::open(&state, "ada").unwrap();
        assert_eq!(fs::metadata(tokens.path()).unwrap().mode() & 0o777, 0o600);
        let token = client_token(tokens.path(), "ada").unwrap();
        assert_eq!(tokens.identify(&token), Some(Identity { user: "ada".to_owned(), admin: true }));
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
        let entry = add(tokens.path(), bob.clone(), false).unwrap();
        assert_eq!(tokens.identify(&entry.token), Some(Identity { user: "bob".to_owned(), admin: false }));
        for name in ["b b", "", "../x", "-x", "a\nb"] {
            let bad = Holder::User { name: name.to_owned(), admin: true };
            assert!(matches!(add(tokens.path(), bad, false), Err(AuthError::BadName(_))));
        }
        let agent = add(tokens.path(), Holder::Agent { name: "vm-1".to_owned() }, false).unwrap();
        assert_eq!((tokens.identify(&agent.token), tokens.holder(&agent.token)), (None, Some(agent.holder.clone())));
        let newer = add(tokens.path(), bob, false).unwrap();
        assert!(tokens.identify(&entry.token).is_some() && tokens.identify(&newer.token).is_some());
        rotate(tokens.path(), "bob", false, true).unwrap();
        assert_eq!((tokens.identify(&entry.token), tokens.identify(&newer.token)), (None, None));
    }

    #[test]
    fn the_last_good_tokens_stay_good_while_the_file_has_a_mistake_or_is_away() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        let token = client_token(tokens.path(), "ada").unwrap();
        let good = fs::read_to_string(tokens.path()).unwrap();
        for length in 1..good.len() {
            fs::write(tokens.path(), &good[..length]).unwrap();
            // What is cut off between two entries is a good file; this one has a single entry.
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
    fn a_file_that_a_first_start_left_empty_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(Tokens::FILE), "").unwrap();
        fs::set_permissions(directory.path().join(Tokens::FILE), fs::Permissions::from_mode(0o600)).unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        let token = client_token(tokens.path(), "ada").unwrap();
        assert_eq!(tokens.identify(&token), Some(Identity { user: "ada".to_owned(), admin: true }));
    }

    #[test]
    fn a_file_that_was_emptied_later_is_not_made_again() {
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
    fn a_proof_holds_for_its_token_side_and_nonce_only() {
        let proof = prove("secret", "agent", b"nonce");
        assert!(verify("secret", "agent", b"nonce", &proof));
        assert!(!verify("other", "agent", b"nonce", &proof));
        assert!(!verify("secret", "server", b"nonce", &proof));
        assert!(!verify("secret", "agent", b"other", &proof));
        assert!(!verify("secret", "agentn", b"once", &proof));
        assert!(!verify("secret", "agent", b"nonce", &proof[..31]));
    }

    #[test]
    fn only_loopback_may_be_bound() {
        assert_eq!(check_bind("127.0.0.1:7433".parse().unwrap()), Ok(()));
        assert_eq!(check_bind("[::1]:0".parse().unwrap()), Ok(()));
        let refusal = check_bind("0.0.0.0:7433".parse().unwrap()).unwrap_err();
        assert!(refusal.contains("ssh -L 7433:127.0.0.1:7433"), "{refusal}");
    }
}
