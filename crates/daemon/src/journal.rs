//! The journal of a daemon as a file: the events and effects of its roles, for a replay elsewhere.
//!
//! It is one line that names the format, then a frame for each entry.

use crate::frames::{self, Decoder, FrameError};
use crate::versions::JOURNAL;
use amalgam_core::hosting::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
}

/// A journal that is being written.
pub struct JournalWriter {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl JournalWriter {
    /// Creates a new file in `directory`, and the directory if it is missing. Each run of a process has its own
    /// journal. Only this user can read it, because it contains the key for the tokens of this run.
    pub fn create(directory: &Path, process: &str) -> Result<JournalWriter, JournalError> {
        let wrong = |what, path: &Path| {
            let path = path.to_owned();
            move |error| JournalError::Io { what, path, error }
        };
        fs::create_dir_all(directory).map_err(wrong("make the directory", directory))?;
        for life in 1_u32.. {
            let path = directory.join(format!("{process}-{life}.journal"));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok(JournalWriter { path, file, buffer: JOURNAL.line("journal").into() }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(wrong("create", &path)(error)),
            }
        }
        unreachable!("there are fewer than 2^32 journals")
    }

    /// # Errors
    /// If the file cannot be written. The journal must not be continued then, because entries are missing.
    pub fn write(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let wrong = |error| JournalError::Io { what: "write", path: self.path.clone(), error };
        for entry in entries {
            frames::encode(entry, &mut self.buffer).map_err(|error| wrong(io::Error::other(error)))?;
        }
        self.file.write_all(&self.buffer).map_err(wrong)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Reads a journal from its start.
pub struct JournalReader {
    path: PathBuf,
    file: File,
    frames: Decoder,
    read: u64,
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
        if !JOURNAL.line("journal").as_bytes().starts_with(line) {
            let foreign = |found| JournalError::Foreign { path: path.to_owned(), found };
            JOURNAL.of_line("journal", line).map_err(foreign)?;
        }
        let mut frames = Decoder::default();
        frames.push(&start[line.len()..]);
        Ok(JournalReader { path: path.to_owned(), file, frames, read: 0 })
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

    fn entries(path: &Path) -> Result<Vec<Entry>, JournalError> {
        let mut reader = JournalReader::open(path)?;
        std::iter::from_fn(|| reader.next_entry().transpose()).collect()
    }

    #[test]
    fn written_entries_are_read_and_an_incomplete_last_entry_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        for life in [1, 2] {
            let mut journal = JournalWriter::create(dir.path(), "server").unwrap();
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
