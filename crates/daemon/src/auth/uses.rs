//! When each access token was last used, for people who decide which ones to remove.

use super::{Credential, hex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io, thread};

/// Interval at which the file is written at most, and the precision of the times.
const INTERVAL: Duration = Duration::from_secs(60);

/// The last uses by the first bytes of the tokens' digests, in seconds since 1970. The file is not needed by the server: a use
/// that is lost in a crash does not matter.
pub struct LastUses(Arc<Mutex<Noted>>);

struct Noted {
    path: PathBuf,
    times: Times,
    written: Option<Instant>,
    /// Whether there are uses that the file does not have, which a thread will write.
    is_dirty: bool,
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
        let times = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        LastUses(Arc::new(Mutex::new(Noted { path, times, written: None, is_dirty: false })))
    }

    /// When the token with this digest was last used.
    fn of(&self, digest: &[u8; 32]) -> Option<SystemTime> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.times.0.get(&key(digest)).map(|at| UNIX_EPOCH + Duration::from_secs(*at))
    }

    /// When this token or certificate was last used.
    pub fn of_credential(&self, credential: &Credential) -> Option<SystemTime> {
        self.of(&credential.digest())
    }

    /// Notes a use now. The file has it at once, or when the interval since the last writing has passed.
    pub(super) fn note(&self, digest: &[u8; 32]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.times.0.insert(key(digest), now);
        let passed = noted.written.map_or(INTERVAL, |at| at.elapsed());
        if passed >= INTERVAL {
            noted.write();
        } else if !noted.is_dirty {
            let (wait, later) = (INTERVAL - passed, Arc::downgrade(&self.0));
            let waiting = thread::Builder::new().name("token-uses".to_owned());
            // Without a thread, the next use that finds the interval passed writes it.
            noted.is_dirty = waiting.spawn(move || write_after(wait, &later)).is_ok();
        }
    }
}

/// A process that ends in order loses no use.
impl Drop for LastUses {
    fn drop(&mut self) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.is_dirty {
            noted.write();
        }
    }
}

fn write_after(wait: Duration, noted: &Weak<Mutex<Noted>>) {
    thread::sleep(wait);
    if let Some(noted) = noted.upgrade() {
        let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.is_dirty {
            noted.write();
        }
    }
}

impl Noted {
    fn write(&mut self) {
        (self.written, self.is_dirty) = (Some(Instant::now()), false);
        let fresh = self.path.with_extension("new");
        let written = serde_json::to_vec(&self.times).map_err(io::Error::other);
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
        assert_eq!(LastUses::open(directory.path()).of(&[2; 32]), None, "the file is not written for each use");
        drop(uses);
        assert!(LastUses::open(directory.path()).of(&[2; 32]).is_some(), "nor is a use lost");
        fs::write(directory.path().join(LastUses::FILE), "damaged").unwrap();
        assert_eq!(LastUses::open(directory.path()).of(&[1; 32]), None);
    }
}
