//! Join strings: secrets with which a machine gets a token of its own, a limited number of times and for a limited time
//! (ADR 69). They are stored in a file beside the token file.

use super::{AuthError, Credential, DaemonRole, Holder, TokenEntry, file, key_digest};
use crate::config::is_address;
use crate::durable;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) const FILE: &str = "joins.json";

/// What an administrator gives to another machine: where the server is, its authority, and a secret that both have. Written as
/// `HOST:PORT/SHA256/SECRET`, or with several addresses.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinString {
    /// The server's address for agents; those of all its servers, separated by commas, if it has a standby.
    pub address: String,
    /// SHA-256 of the certificate of the authority that signs the server's, in hexadecimal. Clients verify the server by it; daemons by
    /// the secret.
    pub fingerprint: String,
    pub secret: String,
}

/// A secret that has not expired.
#[derive(Serialize, Deserialize)]
struct Join {
    secret: String,
    /// End of its validity, in seconds since 1970.
    until: u64,
    /// How many machines may still use it. One that is used up is kept until its end: the daemon that used it may ask again, since the
    /// answer may have been lost.
    uses: u32,
    /// What they join as.
    #[serde(default = "agent")]
    role: DaemonRole,
}

/// Earlier programs made join strings for agents only.
fn agent() -> DaemonRole {
    DaemonRole::Agent
}

impl JoinString {
    /// # Errors
    /// What it has to look like.
    pub fn parse(text: &str) -> Result<JoinString, String> {
        let is_256_bits = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Vec<&str> = text.trim().split('/').collect();
        match parts[..] {
            [address, fingerprint, secret]
                if is_256_bits(fingerprint) && is_256_bits(secret) && address.split(',').all(is_address) =>
            {
                let [address, fingerprint, secret] = [address, fingerprint, secret].map(str::to_owned);
                Ok(JoinString { address, fingerprint, secret })
            }
            _ => Err("it is not HOST:PORT/SHA256/SECRET or HOST:PORT,HOST:PORT/SHA256/SECRET, the whole line of `amalgam token join`"
                .to_owned()),
        }
    }

    /// The fingerprint in a string, whose secret may be left out: a command line that does not need it can be seen by others.
    ///
    /// # Errors
    /// What the text has to look like.
    pub fn fingerprint_in(text: &str) -> Result<String, String> {
        let whole = match text.trim().split('/').count() {
            2 => format!("{}/{}", text.trim(), "0".repeat(64)),
            _ => text.to_owned(),
        };
        JoinString::parse(&whole).map(|string| string.fingerprint.to_ascii_lowercase())
    }

    /// Identifies the string without containing its secret.
    pub fn digest(&self) -> String {
        super::hex(&Sha256::digest(self.to_string()))
    }
}

impl fmt::Display for JoinString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.address, self.fingerprint, self.secret)
    }
}

/// The secret is not printed by accident.
impl fmt::Debug for JoinString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/...", self.address)
    }
}

/// Makes a secret for `uses` daemons of a role that is valid for this time, and stores it in the state directory.
///
/// # Errors
/// If the file cannot be used.
pub fn make(state_dir: &Path, role: DaemonRole, valid_for: Duration, uses: u32) -> Result<String, AuthError> {
    let secret = super::new_token()?;
    let until = seconds(SystemTime::now()).saturating_add(valid_for.as_secs());
    let join = Join { secret: secret.clone(), until, uses, role };
    change(state_dir, |joins| joins.push(join))?;
    Ok(secret)
}

/// What a machine asks for with a join string.
pub struct Request<'a> {
    pub role: DaemonRole,
    pub name: &'a str,
    /// The public key for which it wants certificates.
    pub key: &'a [u8],
    /// Whether a daemon of this role and name is connected.
    pub is_up: bool,
}

/// Two machines with one name may join at the same time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Adds the entry of a daemon with this public key, which has authenticated itself with its token. The token ends after
/// [`OVERLAP`](super::OVERLAP), and a token that ends is not exchanged: its replacement is. A daemon that asks again for the key of its entry changes nothing.
///
/// # Errors
/// Why not.
pub fn exchange(token_file: &Path, holder: Holder, token: &Credential, key: &[u8]) -> Result<(), String> {
    let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let credential = Credential::Key(key_digest(key));
    let entries = file::read(token_file).map_err(|error| error.to_string())?;
    let now = SystemTime::now();
    // It may have been removed or replaced since the daemon has connected.
    let own = entries.iter().find(|entry| entry.credential == *token && entry.holder == holder && entry.is_valid(now));
    match entries.iter().find(|entry| entry.credential == credential) {
        Some(entry) if entry.holder == holder => Ok(()),
        Some(_) => Err("this key is that of another daemon".to_owned()),
        None if own.is_none_or(|own| own.until.is_some()) => {
            Err("it ends, or is not valid any more; only a token without an end is exchanged".to_owned())
        }
        None => {
            let entry = TokenEntry::with_key(holder, key);
            file::add(token_file, entry, false).map(drop).map_err(|error| error.to_string())
        }
    }
}

/// Whether a machine proves a secret for this role that has not expired.
///
/// # Errors
/// Why not, for the machine.
pub fn has(token_file: &Path, role: DaemonRole, proves: impl Fn(&str) -> bool) -> Result<(), String> {
    let found = find(token_file.parent().unwrap_or(Path::new("/")), role, proves).map_err(logged)?;
    found.map(drop).ok_or_else(|| USELESS.to_owned())
}

/// Uses a secret for a new entry in the token file, and returns it. `proves` tells whether the machine has a secret. A daemon that asks
/// again for the key of its entry uses nothing.
///
/// # Errors
/// Why it gets none, with a remedy. The secret is not used up then, unless the entry could not be written.
pub fn give(token_file: &Path, request: &Request, proves: impl Fn(&str) -> bool) -> Result<String, String> {
    let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let state_dir = token_file.parent().unwrap_or(Path::new("/"));
    let Some(Join { secret, uses, .. }) = find(state_dir, request.role, proves).map_err(logged)? else {
        return Err(USELESS.to_owned());
    };
    let (role, name) = (request.role, request.name);
    role.check(name).map_err(|bad| bad.to_string())?;
    let holder = Holder::Daemon { role, name: name.to_owned() };
    let key = Credential::Key(key_digest(request.key));
    let entries = file::read(token_file).map_err(logged)?;
    let now = SystemTime::now();
    if entries.iter().any(|entry| entry.holder == holder && entry.credential == key && entry.is_valid(now)) {
        return Ok(secret);
    }
    if uses == 0 {
        return Err(USELESS.to_owned());
    }
    let is_taken = |entry: &TokenEntry| entry.holder == holder;
    let taken = |why: &str| match role {
        DaemonRole::Agent => format!("a node named {name} {why}; use another --name"),
        DaemonRole::JobHost | DaemonRole::Global => format!("{} {name} {why}; use another --number", role.title()),
        DaemonRole::Server => format!("a server named {name} {why}; use another --name"),
    };
    if entries.iter().any(is_taken) {
        let (why, flag) = (taken("has a token or certificates already"), role.flag());
        return Err(format!("{why}, or run `amalgam token remove {flag} {name}` at the server first"));
    }
    if entries.iter().any(|entry| entry.credential == key) {
        return Err("this key is that of another daemon; join with a key of its own".to_owned());
    }
    if request.is_up {
        // It may have joined with an administrator's token.
        return Err(taken("is connected"));
    }
    if !use_once(state_dir, &secret).map_err(logged)? {
        return Err(USELESS.to_owned());
    }
    file::add(token_file, TokenEntry::with_key(holder, request.key), false).map_err(logged)?;
    Ok(secret)
}

/// The peer may have proved nothing yet, so it does not learn what is wrong with which file.
fn logged(error: AuthError) -> String {
    tracing::error!("a machine cannot join: {error}; {}", error.remedy());
    "the server cannot use its join strings or tokens; its log says why".to_owned()
}

const USELESS: &str = "the join string is unknown, used up, expired, or for another --role; make another with `amalgam token join` at the \
     server";

/// The secret for this role that `is_meant` selects and that has not expired.
///
/// # Errors
/// If the file cannot be used.
fn find(state_dir: &Path, role: DaemonRole, is_meant: impl Fn(&str) -> bool) -> Result<Option<Join>, AuthError> {
    let joins = read(&state_dir.join(FILE))?;
    Ok(joins.into_iter().find(|join| join.is_valid() && join.role == role && is_meant(&join.secret)))
}

/// Uses the secret once. Returns whether that was still possible.
///
/// # Errors
/// If the file cannot be used.
fn use_once(state_dir: &Path, secret: &str) -> Result<bool, AuthError> {
    change(state_dir, |joins| {
        let found = joins.iter_mut().find(|join| join.secret == secret && join.uses > 0);
        found.map(|join| join.uses -= 1).is_some()
    })
}

impl Join {
    fn is_valid(&self) -> bool {
        seconds(SystemTime::now()) < self.until
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn read(path: &Path) -> Result<Vec<Join>, AuthError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = file::read_private(path)?;
    serde_json::from_str(&text).map_err(|error| AuthError::Malformed {
        path: path.to_owned(),
        line: error.line(),
        problem: "it is not a list of join strings".to_owned(),
        remedy: "remove the file, and make new join strings",
    })
}

/// Changes the valid secrets, one process at a time.
fn change<T>(state_dir: &Path, edit: impl FnOnce(&mut Vec<Join>) -> T) -> Result<T, AuthError> {
    let path: PathBuf = state_dir.join(FILE);
    let wrong = |source: io::Error| AuthError::Io { path: path.clone(), source };
    let _lock = file::lock(state_dir).map_err(wrong)?;
    let mut joins = read(&path)?;
    joins.retain(Join::is_valid);
    let result = edit(&mut joins);
    joins.retain(Join::is_valid);
    let text = serde_json::to_string(&joins).map_err(|error| wrong(error.into()))?;
    durable::replace(&path, text.as_bytes()).map_err(wrong)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_secret_is_used_as_often_as_it_was_made_for() {
        let dir = tempfile::tempdir().unwrap();
        let find = |secret: &str| {
            let found = find(dir.path(), DaemonRole::Agent, |found| found == secret).unwrap();
            found.map(|join| (join.secret, join.uses))
        };
        let secret = make(dir.path(), DaemonRole::Agent, HOUR, 2).unwrap();
        assert_eq!((find(&secret), find("another")), (Some((secret.clone(), 2)), None));
        let used = [(); 3].map(|()| use_once(dir.path(), &secret).unwrap());
        assert_eq!(used, [true, true, false]);
        assert_eq!(find(&secret), Some((secret.clone(), 0)));
    }

    #[test]
    fn a_daemon_that_asks_again_for_its_key_uses_nothing_and_a_revoked_one_gets_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = super::super::Tokens::open(dir.path(), "ada").unwrap();
        let secret = make(dir.path(), DaemonRole::Agent, HOUR, 1).unwrap();
        let ask = |name: &str, key: &[u8], is_up| {
            let request = Request { role: DaemonRole::Agent, name, key, is_up };
            give(tokens.path(), &request, |found| found == secret)
        };
        assert_eq!(ask("a", b"its key", false), Ok(secret.clone()));
        for _ in 0..3 {
            assert_eq!(ask("a", b"its key", true), Ok(secret.clone()));
        }
        assert_eq!(tokens.keys(DaemonRole::Agent, SystemTime::now()).len(), 1);
        // Another key, or another name.
        for (name, key) in [("a", &b"other"[..]), ("b", b"other"), ("b", b"its key")] {
            assert_eq!(ask(name, key, false), Err(USELESS.to_owned()), "{name}");
        }
        // Another daemon with a string of its own cannot use the key or the name, either.
        let second = make(dir.path(), DaemonRole::Agent, HOUR, 1).unwrap();
        let with_second = |name: &str, key: &[u8]| {
            let request = Request { role: DaemonRole::Agent, name, key, is_up: false };
            give(tokens.path(), &request, |found| found == second).unwrap_err()
        };
        assert!(with_second("b", b"its key").contains("this key is that of another daemon"));
        assert!(with_second("a", b"other").contains("has a token or certificates already"));
        let which = super::super::Which { holder: "a", role: Some(DaemonRole::Agent), name: None };
        super::super::remove(tokens.path(), &which).unwrap();
        assert_eq!(ask("a", b"its key", false), Err(USELESS.to_owned()));
    }

    #[test]
    fn a_daemon_exchanges_a_token_that_does_not_end_for_a_key_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = super::super::Tokens::open(dir.path(), "ada").unwrap();
        let own = file::add(tokens.path(), TokenEntry::new(Holder::agent("a")).unwrap(), false).unwrap();
        let exchange = |holder: &str, token: &TokenEntry, key: &[u8]| {
            super::exchange(tokens.path(), Holder::agent(holder), &token.credential, key)
        };
        assert_eq!(exchange("a", &own, b"key"), Ok(()));
        assert_eq!(exchange("a", &own, b"key"), Ok(()));
        let ends = |entry: &TokenEntry| entry.until.is_some();
        let entries = tokens.entries();
        assert!(entries.iter().any(|entry| entry.credential == own.credential && ends(entry)), "the token ends");
        assert!(entries.iter().any(|entry| entry.token().is_none() && !ends(entry)));
        assert!(exchange("b", &own, b"key").unwrap_err().contains("of another daemon"));
        // The token ends now, or was stolen before it was replaced.
        assert!(exchange("a", &own, b"another").unwrap_err().contains("only a token without an end"));
        let newer = file::add(tokens.path(), TokenEntry::new(Holder::agent("a")).unwrap(), false).unwrap();
        assert!(exchange("a", &own, b"another").unwrap_err().contains("only a token without an end"));
        assert!(exchange("b", &newer, b"another").unwrap_err().contains("not valid any more"), "it is another agent's");
        assert_eq!(exchange("a", &newer, b"another"), Ok(()));
        assert_eq!(exchange("a", &own, b"key"), Ok(()), "it has that one");
    }

    #[test]
    fn a_secret_expires() {
        let dir = tempfile::tempdir().unwrap();
        let secret = make(dir.path(), DaemonRole::Agent, Duration::ZERO, 1).unwrap();
        assert!(find(dir.path(), DaemonRole::Agent, |_| true).unwrap().is_none());
        assert!(!use_once(dir.path(), &secret).unwrap());
    }

    #[test]
    fn a_join_string_is_read_as_it_is_written_and_its_secret_is_not_printed() {
        let address = "[fe80::1]:7434".to_owned();
        let string = JoinString { address, fingerprint: "5e3b".repeat(16), secret: "0af9".repeat(16) };
        assert_eq!(JoinString::parse(&format!(" {string}\n")), Ok(string.clone()));
        assert!(!format!("{string:?}").contains(&string.secret));
        let JoinString { fingerprint, secret, .. } = &string;
        for wrong in [
            "",
            "head:7434",
            "head:7434/short/short",
            &format!("head:7434/{secret}"),
            &format!("head/{fingerprint}/{secret}"),
            &format!(":1/{fingerprint}/{secret}"),
            &format!("head:1/{fingerprint}/{secret}/"),
        ] {
            assert!(JoinString::parse(wrong).is_err(), "{wrong}");
        }
        for enough in [string.to_string(), format!("[fe80::1]:7434/{}", fingerprint.to_uppercase())] {
            assert_eq!(JoinString::fingerprint_in(&enough), Ok(fingerprint.clone()), "{enough}");
        }
        assert!(JoinString::fingerprint_in("[fe80::1]:7434").is_err());
    }
}
