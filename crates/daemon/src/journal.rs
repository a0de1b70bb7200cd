//! The journal of a daemon as a file: the events and effects of its roles, for a replay elsewhere.
//!
//! It is one line that names the format, then a frame for each entry.

use crate::frames::{self, Decoder, FrameError};
use crate::versions::{JOURNAL, WIRE};
use amalgam_core::hosting::Entry;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Maximum length of a journal's first line, in bytes.
const LONGEST_LINE: u64 = 80;
const PIECE: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {what} {path}: {error}", path = path.display())]
    Io { what: &'static str, path: PathBuf, error: io::Error },
    #[error(
        "{path} is not a journal that this program reads: it starts with {found:?}, and the program reads {JOURNAL} of `amalgam journal`",
        path = path.display()
    )]
    Foreign { path: PathBuf, found: String },
    #[error("{path}, entry {entry}: {error}", path = path.display())]
    Damaged { path: PathBuf, entry: u64, error: FrameError },
    #[error(
        "{path} has reached the limit of {limit} bytes; what it has can be replayed. Raise --journal-limit, or restart this process to \
         record again",
        path = path.display()
    )]
    Full { path: PathBuf, limit: u64 },
}

/// Where the journals of a process are written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalPlace {
    pub directory: PathBuf,
    /// Maximum size of all journals of the process there, those of its earlier runs included, in bytes.
    pub limit: u64,
    /// For how long the journal of an earlier run is kept after its last entry.
    pub kept_for: Option<Duration>,
}

/// Maximum size of the journals of a process if none is set, in bytes.
pub const JOURNAL_LIMIT: u64 = 4 << 30;

/// A journal that is being written.
pub struct JournalWriter {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    written: u64,
    limit: u64,
    kept_for: Option<Duration>,
    /// The journals of earlier runs, the newest first. They are removed when there is no room for this one, or when they are too old.
    earlier: Vec<EarlierRun>,
}

struct EarlierRun {
    number: u32,
    path: PathBuf,
    bytes: u64,
    ended: SystemTime,
}

impl JournalWriter {
    /// Creates a new file in `directory`, and the directory if it is missing. Each run of a process has its own
    /// journal. Only this user can read it, because it contains the key for the tokens of this run.
    pub fn create(place: &JournalPlace, process: &str) -> Result<JournalWriter, JournalError> {
        let JournalPlace { directory, limit, kept_for } = place;
        let wrong = |what, path: &Path| {
            let path = path.to_owned();
            move |error| JournalError::Io { what, path, error }
        };
        fs::create_dir_all(directory).map_err(wrong("make the directory", directory))?;
        let earlier = earlier_runs(directory, process).map_err(wrong("look at", directory))?;
        let first = earlier.first().map_or(1, |run| run.number + 1);
        for life in first.. {
            let path = directory.join(format!("{process}-{life}.journal"));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    // Another process of this name does not remove it. It ends with this process.
                    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
                        .map_err(|error| wrong("lock", &path)(error.into()))?;
                    let buffer = JOURNAL.line("journal").into();
                    let (limit, kept_for) = (*limit, *kept_for);
                    return Ok(JournalWriter { path, file, buffer, written: 0, limit, kept_for, earlier });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(wrong("create", &path)(error)),
            }
        }
        unreachable!("there are fewer than 2^32 journals")
    }

    /// Removes journals of earlier runs where the limits of size and age require it.
    ///
    /// # Errors
    /// If the file cannot be written, or is full. The journal must not be continued then, because entries are missing.
    pub fn write(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let wrong = |path: &Path, error| JournalError::Io { what: "write", path: path.to_owned(), error };
        for entry in entries {
            frames::encode(entry, &mut self.buffer).map_err(|error| wrong(&self.path, io::Error::other(error)))?;
        }
        self.make_room(SystemTime::now())?;
        self.file.write_all(&self.buffer).map_err(|error| wrong(&self.path, error))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl JournalWriter {
    fn make_room(&mut self, now: SystemTime) -> Result<(), JournalError> {
        while self.has_too_old(now)
            && let Some(EarlierRun { path, .. }) = self.earlier.pop()
        {
            if let Err(error) = remove_unless_written(&path) {
                // There may be room all the same.
                tracing::warn!("cannot remove {}, which is older than --journal-for: {error}", path.display());
            }
        }
        let own = self.written + self.buffer.len() as u64;
        while own + self.earlier.iter().map(|run| run.bytes).sum::<u64>() > self.limit {
            let Some(EarlierRun { path, .. }) = self.earlier.pop() else {
                return Err(JournalError::Full { path: self.path.clone(), limit: self.limit });
            };
            remove_unless_written(&path).map_err(|error| JournalError::Io { what: "remove", path, error })?;
        }
        Ok(())
    }

    fn has_too_old(&self, now: SystemTime) -> bool {
        let (Some(kept_for), Some(oldest)) = (self.kept_for, self.earlier.last()) else { return false };
        now.duration_since(oldest.ended).is_ok_and(|age| age > kept_for)
    }
}

/// Leaves a journal that another process of this name is writing, or has removed.
fn remove_unless_written(path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => fs::remove_file(path),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The journals of earlier runs of a process, the newest first.
fn earlier_runs(directory: &Path, process: &str) -> io::Result<Vec<EarlierRun>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let life =
            name.to_str().and_then(|name| name.strip_prefix(process)?.strip_prefix('-')?.strip_suffix(".journal"));
        if let Some(number) = life.and_then(|life| life.parse::<u32>().ok()).filter(|life| *life < u32::MAX)
            && let Ok(file) = entry.metadata()
        {
            let ended = file.modified()?;
            found.push(EarlierRun { number, path: entry.path(), bytes: file.len(), ended });
        }
    }
    found.sort_unstable_by_key(|run| std::cmp::Reverse(run.number));
    Ok(found)
}

/// Reads a journal from its start.
pub struct JournalReader {
    path: PathBuf,
    file: File,
    frames: Decoder,
    read: u64,
    /// The version of the file.
    version: u32,
}

impl JournalReader {
    /// # Errors
    /// If it cannot be read, or has another format.
    pub fn open(path: &Path) -> Result<JournalReader, JournalError> {
        let wrong = |error| JournalError::Io { what: "read", path: path.to_owned(), error };
        let mut file = File::open(path).map_err(wrong)?;
        let mut start = Vec::new();
        Read::by_ref(&mut file).take(LONGEST_LINE).read_to_end(&mut start).map_err(wrong)?;
        let line = &start[..start.iter().position(|byte| *byte == b'\n').map_or(start.len(), |end| end + 1)];
        // A process that was killed at its start has not written the first line, or only a part of it.
        let mut version = JOURNAL.newest;
        if !JOURNAL.line("journal").as_bytes().starts_with(line) {
            let foreign = |found| JournalError::Foreign { path: path.to_owned(), found };
            version = JOURNAL.of_line("journal", line).map_err(foreign)?;
        }
        let mut frames = Decoder::default();
        frames.push(&start[line.len()..]);
        Ok(JournalReader { path: path.to_owned(), file, frames, read: 0, version })
    }

    /// The next entry; `None` at the end. The last entry may be incomplete if its process was killed.
    ///
    /// # Errors
    /// If the file cannot be read, or has an entry that this version does not know.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, JournalError> {
        loop {
            let damaged = |error| JournalError::Damaged { path: self.path.clone(), entry: self.read + 1, error };
            if let Some(entry) = self.frames.next().map_err(damaged)? {
                self.read += 1;
                return Ok(Some(entry));
            }
            let mut piece = vec![0; PIECE];
            let wrong = |error| JournalError::Io { what: "read", path: self.path.clone(), error };
            match self.file.read(&mut piece).map_err(wrong)? {
                0 => return Ok(None),
                bytes => self.frames.push(&piece[..bytes]),
            }
        }
    }
}

impl JournalReader {
    /// The version of the wire that the process spoke.
    pub fn wire_version(&self) -> u32 {
        // The versions of both advance together.
        if self.version == JOURNAL.newest { WIRE.newest } else { WIRE.oldest }
    }

    /// Number of bytes after the last complete entry, once the end is reached: an entry that was cut off by a kill, or
    /// a damaged one.
    pub fn left_over(&self) -> usize {
        self.frames.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::hosting::Managers;
    use amalgam_core::job_manager::JobManagerSettings;
    use amalgam_core::preset::Preset;
    use amalgam_core::vocabulary::{Epoch, Key};
    use std::os::unix::fs::MetadataExt;

    fn started(epoch: u32) -> Entry {
        let (settings, root) = (JobManagerSettings::default(), Key([epoch as u8; 32]));
        Entry::Started {
            preset: Preset::TETRIS,
            epoch: Epoch(epoch),
            settings,
            root,
            managers: Managers::WithTheMaster,
            seat: None,
        }
    }

    fn place(directory: &Path, limit: u64) -> JournalPlace {
        JournalPlace { directory: directory.to_owned(), limit, kept_for: None }
    }

    fn entries(path: &Path) -> Result<Vec<Entry>, JournalError> {
        let mut reader = JournalReader::open(path)?;
        std::iter::from_fn(|| reader.next_entry().transpose()).collect()
    }

    #[test]
    fn written_entries_are_read_and_an_incomplete_last_entry_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        for life in [1, 2] {
            let mut journal = JournalWriter::create(&place(dir.path(), JOURNAL_LIMIT), "server").unwrap();
            journal.write(&[started(life)]).unwrap();
            journal.write(&[started(life + 10), started(life + 20)]).unwrap();
        }
        let path = dir.path().join("server-2.journal");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(entries(&path).unwrap(), [started(2), started(12), started(22)]);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(entries(&path).unwrap(), [started(2), started(12)]);
        let mut reader = JournalReader::open(&path).unwrap();
        while reader.next_entry().unwrap().is_some() {}
        assert_eq!(reader.left_over(), (bytes.len() - JOURNAL.line("journal").len()) / 3 - 1);
    }

    #[test]
    fn journals_of_earlier_runs_are_removed_when_they_are_too_old_also_while_the_process_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = |life| dir.path().join(format!("server-{life}.journal"));
        let hour = Duration::from_secs(3600);
        let create = || {
            let place = JournalPlace { kept_for: Some(hour), ..place(dir.path(), JOURNAL_LIMIT) };
            JournalWriter::create(&place, "server").unwrap()
        };
        for (life, age) in [(1, 2 * hour), (2, hour / 2)] {
            create().write(&[started(life)]).unwrap();
            File::open(path(life)).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        let mut last = create();
        last.write(&[started(3)]).unwrap();
        assert!(!path(1).exists() && path(2).exists());
        last.make_room(SystemTime::now() + hour).unwrap();
        assert!(!path(2).exists() && path(3).exists());
    }

    #[test]
    fn the_oldest_journals_of_a_process_are_removed_and_the_last_one_ends_at_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let files = || {
            let names =
                fs::read_dir(dir.path()).unwrap().map(|found| found.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        let mut other = JournalWriter::create(&place(dir.path(), JOURNAL_LIMIT), "server-b").unwrap();
        other.write(&[started(1)]).unwrap();
        let whole = fs::metadata(dir.path().join("server-b-1.journal")).unwrap().len();
        let entry = whole - JOURNAL.line("journal").len() as u64;
        // Room for three journals of one entry each.
        let limit = 3 * whole + entry / 2;
        let create = || JournalWriter::create(&place(dir.path(), limit), "server").unwrap();
        for life in 1..=4 {
            create().write(&[started(life)]).unwrap();
        }
        assert_eq!(files(), ["server-2.journal", "server-3.journal", "server-4.journal", "server-b-1.journal"]);
        // One that another process is writing stays.
        let written = File::open(dir.path().join("server-3.journal")).unwrap();
        rustix::fs::flock(&written, FlockOperation::NonBlockingLockExclusive).unwrap();
        let mut last = create();
        for number in 0..3 {
            last.write(&[started(number)]).unwrap();
        }
        assert_eq!(files(), ["server-3.journal", "server-5.journal", "server-b-1.journal"]);
        let full = last.write(&[started(9)]).unwrap_err().to_string();
        assert!(full.contains("server-5.journal has reached the limit"), "{full}");
        let path = dir.path().join("server-5.journal");
        assert_eq!(entries(&path).unwrap(), [started(0), started(1), started(2)]);
    }

    #[test]
    fn the_journal_of_a_process_that_was_killed_at_its_start_has_no_entries() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server-1.journal");
        let line = JOURNAL.line("journal");
        for length in 0..=line.len() {
            fs::write(&path, &line[..length]).unwrap();
            assert_eq!(entries(&path).unwrap(), []);
        }
    }

    #[test]
    fn another_format_and_a_damaged_entry_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "something").unwrap();
        let error = entries(&path).unwrap_err().to_string();
        assert!(
            error.contains("log is not a journal that this program reads: it starts with \"something\""),
            "{error}"
        );
        fs::write(&path, [JOURNAL.line("journal").as_bytes(), &[2, 0, 0, 0, 99, 99]].concat()).unwrap();
        let error = entries(&path).unwrap_err().to_string();
        assert!(error.contains("log, entry 1: invalid frame"), "{error}");
    }
}
