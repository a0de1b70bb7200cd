//! Copies of a log, also while its process writes it.
//!
//! Nothing is locked and the process is not asked. A file that is open stays readable after its removal, a segment only grows, and
//! a snapshot never changes. So all files are opened first; then the part of the log that was written by then is determined and
//! checked like in a recovery.

use super::files::{HEADER, IDENTITY, Kind};
use super::{StoreError, record, recovery, snapshot};
use crate::versions::{STORE, Versions};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek};
use std::path::Path;
use std::thread;
use std::time::Duration;

const FORMAT: &str = "format";
const EPOCH: &str = "epoch";
/// Snapshots are rare, so a second attempt rarely fails.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// A file of a copy.
#[derive(Debug)]
pub struct Part {
    pub name: String,
    pub content: Content,
}

#[derive(Debug)]
pub enum Content {
    Bytes(Vec<u8>),
    /// The start of an open file.
    Start {
        file: File,
        length: u64,
    },
}

enum Failed {
    /// Files were created or removed during the attempt, or are missing.
    Changed(StoreError),
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        match error {
            StoreError::File { error: ref cause, .. } if cause.kind() == ErrorKind::NotFound => Failed::Changed(error),
            error => Failed::Store(error),
        }
    }
}

/// Whether a log has a file of this name that a copy contains.
pub fn is_part(name: &str) -> bool {
    [FORMAT, EPOCH, IDENTITY].contains(&name) || Kind::Segment.is_name(name) || Kind::Snapshot.is_name(name)
}

/// Everything that was written to the log before the call, and perhaps more: the newest snapshot, all segments up to one
/// entry, and the small files. With the versions of the log.
///
/// # Errors
/// If the log is damaged, of a version that this program does not read, or cannot be read.
pub fn parts(dir: &Path) -> Result<(Versions, Vec<Part>), StoreError> {
    for _ in 1..ATTEMPTS {
        match attempt(dir) {
            Ok(parts) => return Ok(parts),
            Err(Failed::Store(error)) => return Err(error),
            Err(Failed::Changed(_)) => thread::sleep(PAUSE),
        }
    }
    attempt(dir).map_err(|(Failed::Changed(error) | Failed::Store(error))| error)
}

fn attempt(dir: &Path) -> Result<(Versions, Vec<Part>), Failed> {
    let read = |name: &str| fs::read(dir.join(name)).map_err(StoreError::file("read", &dir.join(name)));
    let format = read(FORMAT)?;
    let versions = STORE.of_mark("store", &format).map_err(|found| StoreError::Format {
        path: dir.join(FORMAT),
        dir: dir.to_owned(),
        found,
    })?;
    let mut parts = Vec::new();
    let newest = Kind::Snapshot.list(dir)?.last().copied();
    if let Some(number) = newest {
        let path = Kind::Snapshot.path(dir, number);
        let (file, length) = open(&path)?;
        snapshot::parse(&path, &start_of(&file, length).map_err(StoreError::file("read", &path))?)?;
        parts.push(part(&path, file, length));
    }
    segments(dir, newest.unwrap_or(0), &mut parts)?;
    // A start increments it before the first entry of its own, and the segments were read before.
    parts.push(Part { name: EPOCH.to_owned(), content: Content::Bytes(read(EPOCH)?) });
    match read(IDENTITY) {
        Ok(identity) => parts.push(Part { name: IDENTITY.to_owned(), content: Content::Bytes(identity) }),
        Err(StoreError::File { error, .. }) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    if read(FORMAT)? != format {
        return Err(Failed::Changed(StoreError::damaged(&dir.join(FORMAT), 0, "the file changes all the time")));
    }
    parts.push(Part { name: FORMAT.to_owned(), content: Content::Bytes(format) });
    Ok((versions, parts))
}

/// Adds all segments. Those from entry `first` on follow one another.
fn segments(dir: &Path, first: u64, parts: &mut Vec<Part>) -> Result<(), Failed> {
    let mut opened = Vec::new();
    for number in Kind::Segment.list(dir)? {
        let path = Kind::Segment.path(dir, number);
        opened.push((number, open(&path)?.0, path));
    }
    let mut expected = first;
    for (place, (number, file, path)) in opened.iter().enumerate() {
        let failed = |error| StoreError::file("look at", path)(error);
        // The last one may have grown since it was opened. The others are complete.
        let length = file.metadata().map_err(failed)?.len();
        if *number < first {
            continue;
        }
        if *number != expected {
            let missing = Kind::Segment.path(dir, expected);
            let what = format!("the segment is missing; the next is {number}");
            return Err(Failed::Changed(StoreError::damaged(&missing, 0, what)));
        }
        let bytes = start_of(file, length).map_err(StoreError::file("read", path))?;
        let (entries, length) = whole_records(path, *number, &bytes, place + 1 == opened.len())?;
        expected += entries;
        let file = file.try_clone().map_err(failed)?;
        parts.push(part(path, file, length));
    }
    if opened.last().is_none_or(|(number, ..)| *number < first) {
        let missing = Kind::Segment.path(dir, first);
        return Err(Failed::Changed(StoreError::damaged(&missing, 0, "the segment is missing")));
    }
    // History: it is not read for a recovery.
    for (_, file, path) in opened.into_iter().filter(|(number, ..)| *number < first) {
        let length = file.metadata().map_err(StoreError::file("look at", &path))?.len();
        parts.push(part(&path, file, length));
    }
    Ok(())
}

/// The number of the records at the start of a segment, and the length of its part up to the last of them. What follows in the
/// last segment is being written.
fn whole_records(path: &Path, number: u64, bytes: &[u8], is_last: bool) -> Result<(u64, u64), StoreError> {
    if bytes.get(..HEADER) != Some(&Kind::Segment.header(number)) {
        return Err(StoreError::damaged(path, 0, "its header is damaged"));
    }
    let (mut entries, mut at) = (0, HEADER);
    while at < bytes.len() {
        let Some(framed) = record::read(&bytes[at..]) else {
            recovery::check_torn(path, bytes, at, is_last)?;
            break;
        };
        entries += 1;
        at += framed.length;
    }
    Ok((entries, at as u64))
}

fn open(path: &Path) -> Result<(File, u64), StoreError> {
    let opened = File::open(path).and_then(|file| file.metadata().map(|found| (file, found.len())));
    opened.map_err(StoreError::file("open", path))
}

fn start_of(mut file: &File, length: u64) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn part(path: &Path, file: File, length: u64) -> Part {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Part { name, content: Content::Start { file, length } }
}

/// Changes the number of starts in a copy that no process uses: the next start has a number higher by `by` than it would have
/// had. Returns the number of that start, or `None` if it is not below `limit`.
pub fn raise_epoch(dir: &Path, by: u32, limit: u32) -> Result<Option<u32>, StoreError> {
    let path = dir.join(EPOCH);
    let text = fs::read_to_string(&path).map_err(StoreError::file("read", &path))?;
    let before = text.strip_suffix('\n').and_then(|number| number.parse::<u32>().ok());
    let before = before.ok_or_else(|| StoreError::damaged(&path, 0, "it has no complete number"))?;
    let Some(raised) = before.checked_add(by).filter(|raised| *raised < limit - 1) else { return Ok(None) };
    super::files::create_whole(&path, format!("{raised}\n").as_bytes())?;
    Ok(Some(raised + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{EntryRef, Options, Store};
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const OPTIONS: Options = Options {
        segment_bytes: 2048,
        history_bytes: 4096,
        history_for: None,
        full_at_bytes: None,
        broken_at_bytes: None,
    };

    fn number(payload: &[u8]) -> u64 {
        u64::from_le_bytes(*payload.first_chunk().unwrap())
    }

    fn entry(payload: &[u8]) -> EntryRef<'_> {
        EntryRef { kind: 1, job: 1, at_micros: 1, payload }
    }

    /// Counts until it is stopped. Each entry is a number, and a snapshot is the last number.
    fn count(dir: &Path, committed: &AtomicU64, stop: &AtomicBool) {
        let (mut store, _) = Store::open(dir, OPTIONS).unwrap();
        for next in 0.. {
            // Several pages, so that a copy can meet an incomplete write.
            let mut payload = vec![7; 1 + (next as usize * 37) % 9000];
            payload.splice(..0, u64::to_le_bytes(next));
            store.append(&[entry(&payload)]).unwrap();
            store.commit().unwrap();
            committed.store(next + 1, Ordering::SeqCst);
            if store.needs_snapshot() && next % 3 == 0 {
                store.write_snapshot([entry(&payload[..8])]).unwrap();
            }
            if stop.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    fn copied(parts: Vec<Part>, to: &Path) -> PathBuf {
        let dir = to.join("copy");
        fs::create_dir(&dir).unwrap();
        for Part { name, content } in parts {
            let bytes = match content {
                Content::Bytes(bytes) => bytes,
                Content::Start { file, length } => start_of(&file, length).unwrap(),
            };
            assert!(is_part(&name), "{name}");
            File::create(dir.join(name)).unwrap().write_all(&bytes).unwrap();
        }
        dir
    }

    #[test]
    fn copies_of_a_log_that_is_written_have_everything_that_was_committed_before() {
        let home = tempfile::tempdir().unwrap();
        let (log, committed, stop) = (home.path().join("log"), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| count(&log, &committed, &stop));
            while committed.load(Ordering::SeqCst) < 20 {
                thread::sleep(Duration::from_millis(1));
            }
            for _ in 0..60 {
                let before = committed.load(Ordering::SeqCst);
                let (versions, parts) = parts(&log).unwrap_or_else(|error| {
                    stop.store(true, Ordering::SeqCst);
                    panic!("{error}")
                });
                assert_eq!(versions.newest, STORE.newest);
                let target = tempfile::tempdir().unwrap();
                let (_, recovered) = Store::open(&copied(parts, target.path()), OPTIONS).unwrap();
                assert_eq!(recovered.torn_bytes, 0, "a copy has whole records only");
                let counted = recovered.snapshot.iter().chain(&recovered.entries).map(|entry| number(&entry.payload));
                let counted: Vec<u64> = counted.collect();
                let consecutive = counted.windows(2).all(|pair| pair[1] == pair[0] + 1);
                assert!(consecutive && recovered.first_sequence > 0, "{counted:?}");
                assert!(*counted.last().unwrap() + 1 >= before, "{counted:?} instead of {before}");
            }
            stop.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn a_missing_segment_or_a_damaged_record_is_not_copied() {
        let home = tempfile::tempdir().unwrap();
        let log = home.path().join("log");
        let (mut store, _) = Store::open(&log, OPTIONS).unwrap();
        for _ in 0..30 {
            store.append(&[entry(&[1; 500])]).unwrap();
            store.commit().unwrap();
        }
        let segments = Kind::Segment.list(&log).unwrap();
        let path = Kind::Segment.path(&log, segments[1]);
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[HEADER + 30] ^= 1;
        fs::write(&path, damaged).unwrap();
        let error = parts(&log).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        fs::remove_file(&path).unwrap();
        let error = parts(&log).unwrap_err().to_string();
        assert!(error.contains("the segment is missing"), "{error}");
        fs::write(&path, whole).unwrap();
        parts(&log).unwrap();
    }

    #[test]
    fn a_raised_number_of_starts_is_that_of_the_next_start() {
        let home = tempfile::tempdir().unwrap();
        let log = home.path().join("log");
        drop(Store::open(&log, OPTIONS).unwrap());
        assert_eq!(raise_epoch(&log, 100, 1000).unwrap(), Some(102));
        let (store, recovered) = Store::open(&log, OPTIONS).unwrap();
        assert_eq!(recovered.epoch, 102);
        drop(store);
        assert_eq!(raise_epoch(&log, 897, 1000).unwrap(), None);
        assert_eq!(raise_epoch(&log, 896, 1000).unwrap(), Some(999));
    }
}
