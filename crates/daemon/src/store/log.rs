//! The writer of the log.

use super::StoreError;
use super::files::{HEADER, Kind, check_format, create_whole, is_unused, mark, next_epoch, sync_dir};
use super::history::History;
use super::record::{self, EntryRef, FIELDS, MOST_BODY};
use super::recovery::{Recovered, recover, sync_again};
use super::snapshot::SnapshotWriter;
use crate::lock::lock;
use crate::versions::{STORE, Versions};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

#[derive(Clone, Debug)]
pub struct Options {
    /// Size after which a new segment is started.
    pub segment_bytes: u64,
    /// Size of older segments that are kept although recovery does not need them.
    pub history_bytes: u64,
    /// For how long they are kept; `None` for as long as they are not too large.
    pub history_for: Option<Duration>,
    /// For tests: writes fail as on a full disk if a segment would exceed this size.
    pub full_at_bytes: Option<u64>,
    /// For tests: syncs fail as on a broken disk if a segment has exceeded this size.
    pub broken_at_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            history_bytes: 1 << 30,
            history_for: None,
            full_at_bytes: None,
            broken_at_bytes: None,
        }
    }
}

/// The only writer of a state directory. Its owner calls [`Store::append`] any number of times, then [`Store::write`]
/// for entries that must survive this process, and [`Store::commit`], which may block, for entries that must survive
/// the machine.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    options: Options,
    _lock: File,
    file: File,
    segment: u64,
    /// Length of the segment up to the last commit.
    length: u64,
    next_sequence: u64,
    /// Appended entries that are not written.
    buffer: Vec<u8>,
    /// Bytes of the segment that are written but not synced.
    unsynced: u64,
    committed: Arc<AtomicU64>,
    needs_snapshot: bool,
    /// Whether recovery reads entries of the version before. The mark names both versions then.
    has_older: bool,
    poisoned: Option<String>,
}

impl Store {
    pub fn open(dir: &Path, options: Options) -> Result<(Store, Recovered), StoreError> {
        let lock = lock(dir, "lock")?;
        let is_unused = is_unused(dir)?;
        let versions = check_format(dir, is_unused)?;
        // Read before the mark is changed and the epoch is incremented: a damaged store must not be changed.
        let (mut recovered, tail) = recover(dir, is_unused)?;
        let has_older = versions.oldest < STORE.newest;
        if has_older {
            let Versions { oldest, .. } = versions;
            tracing::info!(dir = %dir.display(), oldest, newest = STORE.newest, "upgrading a store with the next snapshot");
            mark(dir, Versions { oldest, ..STORE })?;
        }
        recovered.epoch = next_epoch(dir, is_unused)?;
        let (segment, length, next_sequence) = match tail {
            Some(tail) => {
                sync_again(dir, &tail)?;
                (tail.segment, tail.length, tail.next_sequence)
            }
            None => {
                create_whole(&Kind::Segment.path(dir, 0), &Kind::Segment.header(0))?;
                (0, HEADER as u64, 0)
            }
        };
        let file = open_segment(dir, segment)?;
        let store = Store {
            dir: dir.to_owned(),
            _lock: lock,
            file,
            segment,
            length,
            next_sequence,
            buffer: Vec::new(),
            unsynced: 0,
            committed: Arc::new(AtomicU64::new(next_sequence)),
            // Several segments since the last snapshot make starts slow.
            needs_snapshot: has_older || segment > recovered.first_sequence,
            has_older,
            poisoned: None,
            options,
        };
        store.limit_history(recovered.first_sequence)?;
        Ok((store, recovered))
    }

    /// Adds entries, which are durable after the next [`Store::commit`]. Returns the number of the first.
    pub fn append(&mut self, entries: &[EntryRef<'_>]) -> Result<u64, StoreError> {
        self.check()?;
        let too_large = entries.iter().map(|entry| FIELDS + entry.payload.len()).find(|bytes| *bytes > MOST_BODY);
        if let Some(bytes) = too_large {
            return Err(StoreError::TooLarge { bytes, limit: MOST_BODY });
        }
        let first = self.next_sequence;
        for entry in entries {
            record::write(*entry, self.length, &mut self.buffer);
        }
        self.next_sequence += entries.len() as u64;
        Ok(first)
    }

    /// Passes all appended entries to the operating system. They then survive the exit of this process, but not a
    /// failure of the machine.
    ///
    /// # Errors
    /// Permanent, like those of [`Store::commit`].
    pub fn write(&mut self) -> Result<(), StoreError> {
        self.check()?;
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.write_out() {
            // Best effort: a restart also detects an incomplete end.
            let _ = self.file.set_len(self.length + self.unsynced);
            return Err(self.fail(error));
        }
        self.unsynced += self.buffer.len() as u64;
        self.buffer.clear();
        // Free the memory of a huge commit.
        self.buffer.shrink_to(1 << 20);
        Ok(())
    }

    /// Makes all appended entries durable: one write, unless they are written already, and one fdatasync.
    ///
    /// # Errors
    /// Permanent: the content of a disk after a failed sync is unknown, so no entries are accepted until a restart has
    /// read the log.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        self.write()?;
        if self.unsynced == 0 {
            return Ok(());
        }
        self.sync().map_err(|error| self.fail(error))?;
        self.length += self.unsynced;
        self.unsynced = 0;
        self.committed.store(self.next_sequence, Ordering::Release);
        if self.length >= self.options.segment_bytes {
            self.rotate()?;
            self.needs_snapshot = true;
        }
        Ok(())
    }

    fn write_out(&mut self) -> io::Result<()> {
        let written = self.length + self.unsynced;
        let room = self.options.full_at_bytes.map_or(u64::MAX, |full| full.saturating_sub(written));
        if self.buffer.len() as u64 > room {
            self.file.write_all(&self.buffer[..room as usize])?;
            return Err(rustix::io::Errno::NOSPC.into());
        }
        self.file.write_all(&self.buffer)
    }

    fn sync(&self) -> io::Result<()> {
        if self.options.broken_at_bytes.is_some_and(|broken| self.length + self.unsynced > broken) {
            return Err(rustix::io::Errno::IO.into());
        }
        self.file.sync_data()
    }

    fn fail(&mut self, error: io::Error) -> StoreError {
        let error = StoreError::file("write", &Kind::Segment.path(&self.dir, self.segment))(error);
        self.poison(error)
    }

    /// Starts a new segment. The buffer has to be empty.
    fn rotate(&mut self) -> Result<(), StoreError> {
        let first = self.next_sequence;
        let made = create_whole(&Kind::Segment.path(&self.dir, first), &Kind::Segment.header(first))
            .and_then(|()| open_segment(&self.dir, first));
        self.file = made.map_err(|error| self.poison(error))?;
        self.segment = first;
        self.length = HEADER as u64;
        Ok(())
    }

    /// Whether a segment has become full since the last snapshot, or entries of the version before are to be replaced.
    pub fn needs_snapshot(&self) -> bool {
        self.needs_snapshot
    }

    /// Commits, and starts a snapshot of the state after the last appended entry. The returned writer can be used on
    /// any thread. The number that [`SnapshotWriter::finish`] returns is the argument of [`Store::forget_before`].
    pub fn start_snapshot(&mut self) -> Result<SnapshotWriter, StoreError> {
        self.commit()?;
        if self.segment != self.next_sequence {
            self.rotate()?;
        }
        self.needs_snapshot = false;
        SnapshotWriter::new(&self.dir, self.next_sequence)
    }

    /// Writes a complete snapshot.
    pub fn write_snapshot<'a>(&mut self, state: impl IntoIterator<Item = EntryRef<'a>>) -> Result<(), StoreError> {
        let mut writer = self.start_snapshot()?;
        for entry in state {
            writer.write(entry)?;
        }
        let finished = writer.finish()?;
        self.forget_before(finished)
    }

    /// After a finished snapshot: removes older snapshots, and the oldest segments beyond the limit for history. If the
    /// snapshot replaced entries of the version before, the store is marked with the newest version only.
    pub fn forget_before(&mut self, snapshot: u64) -> Result<(), StoreError> {
        for older in Kind::Snapshot.list(&self.dir)?.into_iter().filter(|number| *number < snapshot) {
            remove(&Kind::Snapshot.path(&self.dir, older))?;
        }
        self.limit_history(snapshot)?;
        if self.has_older {
            mark(&self.dir, Versions { oldest: STORE.newest, ..STORE })?;
            self.has_older = false;
            tracing::info!(dir = %self.dir.display(), newest = STORE.newest, "the store is upgraded");
        }
        Ok(())
    }

    /// Removes the oldest segments before this snapshot that are too old, or more than are kept.
    fn limit_history(&self, snapshot: u64) -> Result<(), StoreError> {
        let (mut kept, now) = (0, SystemTime::now());
        let history = Kind::Segment.list(&self.dir)?.into_iter().filter(|first| *first < snapshot);
        for path in history.rev().map(|first| Kind::Segment.path(&self.dir, first)) {
            let found = fs::metadata(&path).map_err(StoreError::file("look at", &path))?;
            kept += found.len();
            // A segment is as old as its last entry.
            let age = found.modified().ok().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
            if kept > self.options.history_bytes || self.options.history_for.is_some_and(|longest| age > longest) {
                remove(&path)?;
            }
        }
        sync_dir(&self.dir)
    }

    /// A reader for other threads.
    pub fn history(&self) -> History {
        History::beside(&self.dir, Arc::clone(&self.committed))
    }

    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    fn check(&self) -> Result<(), StoreError> {
        self.poisoned.as_ref().map_or(Ok(()), |why| Err(StoreError::Poisoned(why.clone())))
    }

    fn poison(&mut self, error: StoreError) -> StoreError {
        self.buffer = Vec::new();
        self.poisoned = Some(error.to_string());
        error
    }
}

fn open_segment(dir: &Path, first: u64) -> Result<File, StoreError> {
    let path = Kind::Segment.path(dir, first);
    OpenOptions::new().append(true).open(&path).map_err(StoreError::file("open", &path))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    fs::remove_file(path).map_err(StoreError::file("remove", path))
}
