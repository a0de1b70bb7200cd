//! When each access token was last used, for people who decide which ones to remove.

use super::{Credential, hex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The precision of the times in the file, in seconds.
const PRECISION: u64 = 60;

/// The last uses by the first bytes of the tokens' digests, in seconds since 1970. The file is not needed by the server: a use
/// that is lost in a crash does not matter.
pub struct LastUses {
    path: PathBuf,
    noted: Mutex<Noted>,
}

struct Noted {
    times: Times,
    /// What the file has.
    written: Times,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Times(BTreeMap<String, u64>);

impl LastUses {
    pub(crate) const FILE: &'static str = "tokens-used.json";

    /// Those of a state directory. A file that cannot be read counts as empty.
    pub fn open(state_dir: &Path) -> LastUses {
        let path = state_dir.join(LastUses::FILE);
        let text = fs::read_to_string(&path).ok();
        let times: Times = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        LastUses { path, noted: Mutex::new(Noted { written: times.clone(), times }) }
    }

    /// When the token with this digest was last used.
    fn of(&self, digest: &[u8; 32]) -> Option<SystemTime> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.times.0.get(&key(digest)).map(|at| UNIX_EPOCH + Duration::from_secs(*at))
    }

    /// When this token or certificate was last used.
    pub fn of_credential(&self, credential: &Credential) -> Option<SystemTime> {
        self.of(&credential.digest())
    }

    /// Notes a use now, and writes the file if it has an older use of this token than its precision allows.
    pub(super) fn note(&self, digest: &[u8; 32]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(digest);
        let is_due = noted.written.0.get(&key).is_none_or(|written| now.abs_diff(*written) >= PRECISION);
        noted.times.0.insert(key, now);
        if !is_due {
            return;
        }
        noted.written = noted.times.clone();
        let fresh = self.path.with_extension("new");
        let written = serde_json::to_vec(&noted.times).map_err(std::io::Error::other);
        let written = written.and_then(|text| fs::write(&fresh, text)).and_then(|()| fs::rename(&fresh, &self.path));
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "cannot write when access tokens were last used");
        }
    }
}

fn key(digest: &[u8; 32]) -> String {
    hex(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_read_by_another_process() {
        let directory = tempfile::tempdir().unwrap();
        let uses = LastUses::open(directory.path());
        assert_eq!(uses.of(&[1; 32]), None);
        uses.note(&[1; 32]);
        let read = LastUses::open(directory.path());
        assert!(read.of(&[1; 32]).unwrap().elapsed().unwrap() < Duration::from_secs(60));
        assert_eq!(read.of(&[2; 32]), None);
        uses.note(&[2; 32]);
        assert!(LastUses::open(directory.path()).of(&[2; 32]).is_some(), "also soon after that of another token");
        fs::write(directory.path().join(LastUses::FILE), "damaged").unwrap();
        assert_eq!(LastUses::open(directory.path()).of(&[1; 32]), None);
    }
}
