//! Users whose access tokens another server has made. A global master accepts those of the first cluster that it has joined, and
//! knows the digests of the tokens only (ADR 85).

use super::file::{Credential, Holder, TokenEntry};
use super::scopes::{Scope, Scopes};
use super::{AuthError, hex, read_private};
use crate::durable;
use amalgam_core::vocabulary::ClusterId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;

pub(crate) const USERS_FILE: &str = "users.json";

/// A token of a user, without the token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedUser {
    user: String,
    /// SHA-256 of the token, in hexadecimal.
    digest: String,
    /// Distinguishes tokens of one user.
    name: Option<String>,
    scopes: Vec<String>,
    /// The end of its validity, in seconds since 1970.
    until: Option<u64>,
}

impl SharedUser {
    /// `None` for daemons.
    pub fn of(entry: &TokenEntry) -> Option<SharedUser> {
        let (Holder::User { name: user, .. }, Credential::Token(token)) = (&entry.holder, &entry.credential) else {
            return None;
        };
        let until = entry.until.map(|until| until.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
        Some(SharedUser {
            user: user.clone(),
            digest: hex(&Sha256::digest(token.as_bytes())),
            name: entry.name.clone(),
            scopes: entry.scopes.names().map(str::to_owned).collect(),
            until,
        })
    }

    /// A scope that this version does not know gives no right.
    fn scopes(&self) -> Option<Scopes> {
        Scopes::of(self.scopes.iter().filter_map(|scope| scope.parse::<Scope>().ok()))
    }

    fn until(&self) -> Option<SystemTime> {
        self.until.map(|until| UNIX_EPOCH + Duration::from_secs(until))
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        self.until().is_none_or(|until| now < until)
    }

    fn is_administrator(&self) -> bool {
        self.scopes().is_some_and(|scopes| scopes.has(Scope::Admin))
    }

    fn entry(&self, token: &str) -> Option<TokenEntry> {
        let scopes = self.scopes()?;
        let holder = Holder::User { name: self.user.clone(), admin: scopes.has(Scope::Admin) };
        let credential = Credential::Token(token.to_owned());
        Some(TokenEntry { holder, name: self.name.clone(), credential, scopes, until: self.until() })
    }
}

#[derive(Serialize, Deserialize)]
struct UsersFile {
    cluster: u32,
    users: Vec<SharedUser>,
}

/// The users that another server has sent, and the file that keeps them for starts without that server.
pub(super) struct SharedUsers {
    path: PathBuf,
    users: Mutex<Vec<SharedUser>>,
    /// The cluster whose users they are.
    cluster: AtomicU32,
}

impl SharedUsers {
    /// None yet.
    pub fn of(state_dir: &Path) -> SharedUsers {
        SharedUsers { path: state_dir.join(USERS_FILE), users: Mutex::default(), cluster: AtomicU32::default() }
    }

    fn users(&self) -> MutexGuard<'_, Vec<SharedUser>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of the file, if there is one and it is of this cluster, whose users will be accepted.
    ///
    /// # Errors
    /// If it cannot be used, or others can read it.
    pub fn load(&self, cluster: ClusterId) -> Result<(), AuthError> {
        self.cluster.store(cluster.0.into(), Ordering::Relaxed);
        if !self.path.exists() {
            return Ok(());
        }
        let text = read_private(&self.path)?;
        let file: UsersFile = serde_json::from_str(&text).map_err(|error| AuthError::Malformed {
            path: self.path.clone(),
            line: error.line(),
            problem: "it is not a list of users".to_owned(),
            remedy: "remove the file; the cluster's master sends the list again",
        })?;
        if file.cluster == u32::from(cluster.0) {
            *self.users() = file.users;
        }
        Ok(())
    }

    /// These, and no others, from now on.
    ///
    /// # Errors
    /// If the file cannot be written. They are valid nevertheless.
    pub fn replace(&self, new: Vec<SharedUser>) -> Result<(), AuthError> {
        let mut users = self.users();
        if *users == new {
            return Ok(());
        }
        *users = new;
        let file = UsersFile { cluster: self.cluster.load(Ordering::Relaxed), users: users.clone() };
        let text = serde_json::to_string(&file).expect("strings can be written as JSON");
        let wrong = |source| AuthError::Io { path: self.path.clone(), source };
        durable::replace(&self.path, text.as_bytes()).map_err(wrong)
    }

    /// The entry of a token. Compares all, so that the time does not depend on the match.
    pub fn find(&self, token: &str, now: SystemTime) -> Option<TokenEntry> {
        let digest = hex(&Sha256::digest(token.as_bytes()));
        let mut found = None;
        for user in self.users().iter() {
            let is_equal = bool::from(user.digest.as_bytes().ct_eq(digest.as_bytes()));
            if is_equal && user.is_valid(now) {
                found = user.entry(token);
            }
        }
        found
    }

    pub fn has_administrator(&self, name: &str, now: SystemTime) -> bool {
        self.users().iter().any(|user| user.user == name && user.is_administrator() && user.is_valid(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_another_server_are_known_by_their_tokens_until_they_are_removed_or_their_tokens_end() {
        let dir = tempfile::tempdir().unwrap();
        let entry = |name: &str, admin| TokenEntry::new(Holder::User { name: name.to_owned(), admin }).unwrap();
        let (ada, bob) = (entry("ada", true), TokenEntry { name: Some("ci".to_owned()), ..entry("bob", false) });
        let now = SystemTime::now();
        let end = now + Duration::from_secs(60);
        let old = TokenEntry { until: Some(end), ..entry("old", false) };
        let shared: Vec<_> = [&ada, &bob, &old].into_iter().filter_map(SharedUser::of).collect();
        assert_eq!(SharedUser::of(&TokenEntry::new(Holder::agent("vm-1")).unwrap()), None);
        let known = SharedUsers::of(dir.path());
        known.load(ClusterId(0)).unwrap();
        let find = |known: &SharedUsers, entry: &TokenEntry, now| known.find(entry.token().unwrap(), now);
        assert_eq!(find(&known, &ada, now), None);
        known.replace(shared).unwrap();
        // Also after a restart.
        let again = SharedUsers::of(dir.path());
        again.load(ClusterId(0)).unwrap();
        let of_another = SharedUsers::of(dir.path());
        of_another.load(ClusterId(1)).unwrap();
        assert_eq!(find(&of_another, &ada, now), None, "they are users of another cluster");
        for known in [&known, &again] {
            assert_eq!(find(known, &ada, now), Some(ada.clone()));
            assert_eq!(find(known, &bob, now), Some(bob.clone()));
            assert!(find(known, &old, now).is_some() && find(known, &old, end).is_none());
            assert!(known.has_administrator("ada", now) && !known.has_administrator("bob", now));
        }
        let file = std::fs::read_to_string(dir.path().join(USERS_FILE)).unwrap();
        assert!(!file.contains(ada.token().unwrap()), "the tokens themselves are not sent");
        known.replace(vec![SharedUser::of(&bob).unwrap()]).unwrap();
        assert_eq!((find(&known, &ada, now), known.has_administrator("ada", now)), (None, false));
    }
}
