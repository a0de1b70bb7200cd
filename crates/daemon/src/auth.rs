//! Who may do what: tokens, their file, and the proof that daemons give each other.
//!
//! A token is a secret that names a user. Clients send it with every call; daemons never send theirs but prove that
//! they hold it. Until the connection is encrypted nothing may listen beyond this machine.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
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

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    pub user: String,
    pub token: String,
    #[serde(default)]
    pub admin: bool,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
}

#[derive(Debug, Error)]
pub enum AuthError {
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} can be read by others (mode {mode:o})")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path} is not a token file: {problem}")]
    Malformed { path: PathBuf, problem: String },
    #[error("{path} holds no token")]
    Empty { path: PathBuf },
    #[error("{0} has a token already")]
    Duplicate(String),
    #[error("`{0}` cannot name a user")]
    BadName(String),
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
            AuthError::Io { .. } => "check the path, and that you may read it".to_owned(),
            AuthError::Exposed { path, .. } => format!("run `chmod 600 {}`", path.display()),
            AuthError::Malformed { .. } => "mend it, or remove it and start the server to make a new one".to_owned(),
            AuthError::Empty { .. } => "add one with `amalgam token add USER`".to_owned(),
            AuthError::Duplicate(_) => "`amalgam token list` shows who has".to_owned(),
            AuthError::BadName(_) => "use letters, digits, dots, dashes and underscores".to_owned(),
            AuthError::Random(_) => "try again".to_owned(),
        }
    }
}

/// The tokens of a server, read again whenever their file changes.
pub struct Tokens {
    path: PathBuf,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    /// Inode, size and time of the last change (of contents or mode) of the file that was read: a replaced file differs in one of them.
    version: Option<(u64, u64, i64, i64)>,
    known: Vec<Known>,
}

/// A token's digest, so that comparing takes the same time whatever its length.
struct Known {
    digest: [u8; 32],
    identity: Identity,
}

impl Tokens {
    pub const FILE: &'static str = "tokens.toml";

    /// Opens the tokens of a state directory. The first start makes both, with an administrator's token for
    /// `first_user`.
    ///
    /// # Errors
    /// When the file cannot be used, is malformed, or can be read by others.
    pub fn open(state_dir: &Path, first_user: &str) -> Result<Tokens, AuthError> {
        make_private_dir(state_dir)?;
        let path = state_dir.join(Tokens::FILE);
        if !path.exists() {
            let first = TokenEntry { user: first_user.to_owned(), token: new_token()?, admin: true };
            write(&path, &TokenFile { token: vec![first] })?;
        }
        let tokens = Tokens { path, loaded: Mutex::new(Loaded { version: None, known: Vec::new() }) };
        tokens.reload(&mut tokens.loaded.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(tokens)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tokens of administrators, which agents prove to hold.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn administrators(&self) -> Result<Vec<String>, AuthError> {
        let entries = read(&self.path)?;
        Ok(entries.into_iter().filter(|entry| entry.admin).map(|entry| entry.token).collect())
    }

    /// Whose token this is. Looks at every entry whichever fits.
    pub fn identify(&self, token: &str) -> Option<Identity> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if version(&self.path) != loaded.version
            && let Err(error) = self.reload(&mut loaded)
        {
            // A file that is being edited must not lock everyone out, one that became public must.
            tracing::warn!("{error}; {}", error.remedy());
            if matches!(error, AuthError::Exposed { .. }) {
                loaded.known.clear();
            }
        }
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = None;
        for known in &loaded.known {
            if bool::from(known.digest.ct_eq(&digest)) {
                found = Some(known.identity.clone());
            }
        }
        found
    }

    fn reload(&self, loaded: &mut Loaded) -> Result<(), AuthError> {
        let version = version(&self.path);
        let entries = read(&self.path)?;
        let known = |entry: TokenEntry| Known {
            digest: Sha256::digest(entry.token.as_bytes()).into(),
            identity: Identity { user: entry.user, admin: entry.admin },
        };
        *loaded = Loaded { version, known: entries.into_iter().map(known).collect() };
        Ok(())
    }
}

/// Adds a user with a new token to a token file, which a running server notices by itself.
///
/// # Errors
/// When the file cannot be used, or the user has a token.
pub fn add(path: &Path, user: &str, admin: bool) -> Result<TokenEntry, AuthError> {
    let well_formed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
    if user.is_empty() || user.len() > 64 || !user.chars().all(well_formed) {
        return Err(AuthError::BadName(user.to_owned()));
    }
    let mut token = read(path)?;
    if token.iter().any(|entry| entry.user == user) {
        return Err(AuthError::Duplicate(user.to_owned()));
    }
    let entry = TokenEntry { user: user.to_owned(), token: new_token()?, admin };
    token.push(entry.clone());
    write(path, &TokenFile { token })?;
    Ok(entry)
}

/// Reads the entries of a token file that only its owner can read.
///
/// # Errors
/// When it cannot be used, is malformed, or can be read by others.
pub fn read(path: &Path) -> Result<Vec<TokenEntry>, AuthError> {
    let text = read_private(path)?;
    let file: TokenFile = toml::from_str(&text).map_err(|error| AuthError::Malformed {
        path: path.to_owned(),
        // Not the whole message: it would quote the line, and with it a secret.
        problem: error.message().to_owned(),
    })?;
    Ok(file.token)
}

/// The token that a client sends: from a server's token file that of `user` or else the first, from any other file
/// its only line.
///
/// # Errors
/// When the file cannot be used, holds none, or can be read by others.
pub fn client_token(path: &Path, user: &str) -> Result<String, AuthError> {
    let text = read_private(path)?;
    let line = text.trim();
    if !line.is_empty() && !line.contains(char::is_whitespace) && !line.contains('=') {
        return Ok(line.to_owned());
    }
    let entries = read(path)?;
    let own = entries.iter().find(|entry| entry.user == user).or(entries.first());
    own.map(|entry| entry.token.clone()).ok_or_else(|| AuthError::Empty { path: path.to_owned() })
}

/// Those by which a daemon with this file knows others: every administrator's, or the only line of a file that is no server's.
///
/// # Errors
/// As of [`client_token`].
pub fn daemon_tokens(path: &Path) -> Result<Vec<String>, AuthError> {
    match read(path) {
        Ok(entries) => Ok(entries.into_iter().filter(|entry| entry.admin).map(|entry| entry.token).collect()),
        Err(_) => Ok(vec![client_token(path, "")?]),
    }
}

fn read_private(path: &Path) -> Result<String, AuthError> {
    let wrong = |source| AuthError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(wrong)?;
    // Asked of the open file: its name may point elsewhere by now.
    let mode = file.metadata().map_err(wrong)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(AuthError::Exposed { path: path.to_owned(), mode });
    }
    io::read_to_string(file).map_err(|source| match source.kind() {
        io::ErrorKind::InvalidData => AuthError::Malformed { path: path.to_owned(), problem: source.to_string() },
        _ => wrong(source),
    })
}

/// Replaces the file in one step: it is never seen half written, not even after a crash.
fn write(path: &Path, file: &TokenFile) -> Result<(), AuthError> {
    let wrong = |source| AuthError::Io { path: path.to_owned(), source };
    let text = toml::to_string(file)
        .map_err(|error| AuthError::Malformed { path: path.to_owned(), problem: error.to_string() })?;
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft).and_then(|mut out| {
            out.write_all(text.as_bytes())?;
            out.sync_all()
        });
    let placed = written.and_then(|()| fs::rename(&draft, path));
    if placed.is_err() {
        let _ = fs::remove_file(&draft);
    }
    placed.map_err(wrong)
}

fn make_private_dir(path: &Path) -> Result<(), AuthError> {
    crate::private::make_private_dir(path).map_err(|source| AuthError::Io { path: path.to_owned(), source })
}

fn version(path: &Path) -> Option<(u64, u64, i64, i64)> {
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
    fn a_running_server_notices_new_and_removed_users() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        let entry = add(tokens.path(), "bob", false).unwrap();
        assert_eq!(tokens.identify(&entry.token), Some(Identity { user: "bob".to_owned(), admin: false }));
        assert!(matches!(add(tokens.path(), "bob", true), Err(AuthError::Duplicate(_))));
        assert!(matches!(add(tokens.path(), "b b", true), Err(AuthError::BadName(_))));
        write(tokens.path(), &TokenFile::default()).unwrap();
        assert_eq!(tokens.identify(&entry.token), None);
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
    fn a_malformed_file_is_refused_without_quoting_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(directory.path(), "ada").unwrap();
        fs::write(tokens.path(), "[[token]]\nuser = 'a'\ntoken = 'hunter2\n").unwrap();
        let refusal = Tokens::open(directory.path(), "ada").err().unwrap().to_string();
        assert!(refusal.contains("is not a token file") && !refusal.contains("hunter2"), "{refusal}");
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
