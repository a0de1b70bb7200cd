//! Removes files of ended tasks without blocking the loop that launches tasks: the loop only renames a directory, and a
//! thread with low priority removes it. The next process removes what an earlier one has not.

mod tree;

pub use tree::{Leftover, Pace, remove_tree};

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the directory with entries that wait for removal.
const WAITING: &str = "removed";
/// Name of the directory with entries that could not be removed.
const ASIDE: &str = "unremovable";
/// Number of waiting entries from which the thread makes no pauses.
const MANY: u64 = 64;
/// Maximum number of entries that are sent to the thread. It finds further ones in their directory.
const MOST: u64 = 4_096;

/// The remover of one state directory. Any number of threads may use it.
pub struct Remover {
    state: PathBuf,
    /// Number of entries that were sent to the thread and are not removed.
    waiting: Arc<AtomicU64>,
    /// Whether there are entries that were not sent to the thread.
    has_more: Arc<AtomicBool>,
    orders: Mutex<Option<Sender<PathBuf>>>,
    notes: (Sender<String>, Mutex<Receiver<String>>),
    /// Readable when there are notes.
    bell: Arc<OwnedFd>,
}

impl Remover {
    /// Starts with the entries that an earlier process left.
    pub fn new(state: &Path) -> io::Result<Remover> {
        use rustix::event::{EventfdFlags, eventfd};
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (send, receive) = channel();
        let remover = Remover {
            state: state.to_owned(),
            waiting: Arc::default(),
            has_more: Arc::default(),
            orders: Mutex::default(),
            notes: (send, Mutex::new(receive)),
            bell,
        };
        // The reason why entries could not be removed may be gone.
        for left in [ASIDE, WAITING].iter().flat_map(|name| entries(&state.join(name))) {
            remover.put_away(&left);
        }
        Ok(remover)
    }

    /// Removes a file or directory in the background. Its path is free when this returns, unless it cannot be renamed:
    /// then it is removed at its path, if possible.
    pub fn put_away(&self, path: &Path) {
        let waiting = self.state.join(WAITING);
        let (path, is_away) = match rename_into(path, &waiting) {
            Ok(away) => (away, true),
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => return,
            Err(_) => (path.to_owned(), false),
        };
        // An entry at its old path cannot be found in their directory.
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MOST || !is_away {
            let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
            let is_ordered = match orders.take().map_or_else(|| self.start(), Ok) {
                Ok(started) => orders.insert(started).send(path.clone()).is_ok(),
                Err(_) => false,
            };
            if is_ordered {
                return;
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if is_away && self.waiting.load(Ordering::Relaxed) > 0 {
            self.has_more.store(true, Ordering::Relaxed);
            return;
        }
        // No thread can remove it.
        if let Some(note) = remove_or_put_aside(&self.state, &path, &mut Pace::fast()) {
            self.say(note);
        }
    }

    /// Messages about entries that could not be removed, with place and reason, since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        self.notes.1.lock().unwrap_or_else(PoisonError::into_inner).try_iter().collect()
    }

    /// Readable when [`Remover::take_notes`] has messages.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn say(&self, note: String) {
        let _ = self.notes.0.send(note);
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    fn start(&self) -> io::Result<Sender<PathBuf>> {
        let (orders, ordered) = channel::<PathBuf>();
        let (state, notes) = (self.state.clone(), self.notes.0.clone());
        let (bell, waiting, has_more) = (Arc::clone(&self.bell), Arc::clone(&self.waiting), Arc::clone(&self.has_more));
        std::thread::Builder::new().name("removal".to_owned()).spawn(move || {
            crate::priority::lower_priority();
            let many = Arc::clone(&waiting);
            let mut pace = Pace::gentle(move || many.load(Ordering::Relaxed) > MANY);
            let mut remove = |path: &Path| {
                if let Some(note) = remove_or_put_aside(&state, path, &mut pace) {
                    let _ = notes.send(note);
                    let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
                }
            };
            for path in ordered {
                // It may have been found in the directory and removed meanwhile.
                if fs::symlink_metadata(&path).is_ok() {
                    remove(&path);
                }
                while has_more.swap(false, Ordering::Relaxed) {
                    entries(&state.join(WAITING)).iter().for_each(|left| remove(left));
                }
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(orders)
    }
}

/// Removes a directory of an executor's state, or else moves it aside. Returns a message if it could not be removed.
pub fn remove_or_put_aside(state: &Path, path: &Path, pace: &mut Pace) -> Option<String> {
    let Leftover { example, error, count } = remove_tree(path, pace).err()?;
    let now = rename_into(path, &state.join(ASIDE)).unwrap_or_else(|_| path.to_owned());
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    Some(format!(
        "cannot remove {example}{more} ({}), which a task left; it is in {} until an administrator or the node's next start removes it",
        io::Error::from(error),
        now.display()
    ))
}

/// Moves an entry into a directory, under a new name.
fn rename_into(path: &Path, directory: &Path) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let target = directory.join(format!("{now}-{}-{number}", std::process::id()));
    match fs::rename(path, &target) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            make_directory(directory)?;
            fs::rename(path, &target)?;
        }
        renamed => renamed?,
    }
    Ok(target)
}

/// Creates the directory. A file at its path is removed.
fn make_directory(directory: &Path) -> io::Result<()> {
    match crate::private::make_private_dir(directory) {
        Err(error) if fs::symlink_metadata(directory).is_ok_and(|found| !found.is_dir()) => {
            fs::remove_file(directory).map_err(|_| error)?;
            crate::private::make_private_dir(directory)
        }
        made => made,
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(Instant::now() < deadline, "still waiting until {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn removed_entries_vanish_at_once_and_leftovers_of_an_earlier_process_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let remover = Remover::new(state.path()).unwrap();
        let left = state.path().join("left");
        for _ in 0..3 {
            fs::create_dir_all(left.join("a/b")).unwrap();
            remover.put_away(&left);
            assert!(!left.exists());
        }
        remover.put_away(&left);
        let is_empty = |name: &str| entries(&state.path().join(name)).is_empty();
        wait_until("all entries are removed", || is_empty(WAITING));
        drop(remover);
        for left in ["removed/earlier/a", "unremovable/earlier/a"] {
            fs::create_dir_all(state.path().join(left)).unwrap();
        }
        let remover = Remover::new(state.path()).unwrap();
        wait_until("leftovers of an earlier process are removed", || is_empty(WAITING) && is_empty(ASIDE));
        assert_eq!(remover.take_notes(), Vec::<String>::new());
    }

    /// The thread finds further entries in their directory.
    #[test]
    fn entries_beyond_the_limit_are_removed_without_blocking_the_caller() {
        let state = tempfile::tempdir().unwrap();
        let remover = Remover::new(state.path()).unwrap();
        // As if the maximum number waited.
        remover.waiting.store(MOST, Ordering::Relaxed);
        for number in 0..3 {
            let left = state.path().join(number.to_string());
            fs::create_dir_all(left.join("a")).unwrap();
            remover.put_away(&left);
            assert!(!left.exists());
        }
        assert_eq!(entries(&state.path().join(WAITING)).len(), 3);
        remover.waiting.store(0, Ordering::Relaxed);
        fs::create_dir(state.path().join("last")).unwrap();
        remover.put_away(&state.path().join("last"));
        wait_until("all entries are removed", || entries(&state.path().join(WAITING)).is_empty());
    }

    #[test]
    fn an_entry_that_cannot_be_removed_is_reported_and_blocks_no_other() {
        let state = tempfile::tempdir().unwrap();
        let remover = Remover::new(state.path()).unwrap();
        // No user can remove or rename this directory.
        remover.put_away(Path::new("/proc/self/task"));
        wait_until("it is reported", || remover.waiting.load(Ordering::Relaxed) == 0);
        let [note] = remover.take_notes().try_into().unwrap();
        assert!(note.starts_with("cannot remove ") && note.contains("it is in /proc/self/task until"), "{note}");
        // A file at the path of the remover's own directory does not stop it.
        fs::remove_dir(state.path().join(WAITING)).unwrap();
        fs::write(state.path().join(WAITING), "").unwrap();
        fs::create_dir(state.path().join("left")).unwrap();
        remover.put_away(&state.path().join("left"));
        wait_until("it is removed", || remover.waiting.load(Ordering::Relaxed) == 0);
        assert!(!state.path().join("left").exists());
    }
}
