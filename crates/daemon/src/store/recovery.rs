//! Recovery: reads the newest snapshot, then every segment after it.

use super::files::{HEADER, Kind, make_again, sync_dir};
use super::record::{self, Entry};
use super::{StoreError, snapshot};
use crate::durable::DRAFT;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The content of a directory when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// Number of times that this directory has been opened, including this one.
    pub epoch: u32,
    /// The state in the newest snapshot; empty if there is none.
    pub snapshot: Vec<Entry>,
    /// All entries that were committed after the snapshot, in order.
    pub entries: Vec<Entry>,
    /// The number of the first of `entries`.
    pub first_sequence: u64,
    /// Bytes of incomplete writes that a crash left. They were never acknowledged and are cut off.
    pub torn_bytes: u64,
}

/// The end of the log, for the writer.
pub struct Tail {
    /// The segment to continue.
    pub segment: u64,
    pub length: u64,
    /// The part of it that is certainly on disk.
    pub synced: u64,
    pub next_sequence: u64,
}

/// The undamaged part of a segment.
struct Sound {
    length: u64,
    synced: u64,
}

pub fn recover(dir: &Path, is_unused: bool) -> Result<(Recovered, Option<Tail>), StoreError> {
    remove_staged(dir)?;
    let snapshots = Kind::Snapshot.list(dir)?;
    let snapshot = snapshots.last().copied();
    let state = snapshot.map_or(Ok(Vec::new()), |number| snapshot::read(&Kind::Snapshot.path(dir, number)))?;
    let first_sequence = snapshot.unwrap_or(0);
    let mut recovered = Recovered { epoch: 0, snapshot: state, entries: Vec::new(), first_sequence, torn_bytes: 0 };

    let segments = Kind::Segment.list(dir)?;
    if let (true, [0]) = (is_unused, &segments[..]) {
        mend_first_segment(dir)?;
    }
    let needed: Vec<u64> = segments.iter().copied().filter(|first| *first >= first_sequence).collect();
    if segments.is_empty() && snapshot.is_none() {
        return Ok((recovered, None));
    }
    let mut tail = None;
    let mut expected = first_sequence;
    for (place, &first) in needed.iter().enumerate() {
        if first != expected {
            let missing = Kind::Segment.path(dir, expected);
            return Err(StoreError::damaged(&missing, 0, format!("the segment is missing; the next is {first}")));
        }
        let is_last = place + 1 == needed.len();
        let Sound { length, synced } = read_segment(dir, first, is_last, &mut recovered)?;
        expected = first_sequence + recovered.entries.len() as u64;
        tail = Some(Tail { segment: first, length, synced, next_sequence: expected });
    }
    match tail {
        Some(tail) => Ok((recovered, Some(tail))),
        None => Err(StoreError::damaged(&Kind::Segment.path(dir, first_sequence), 0, "the segment is missing")),
    }
}

/// Removes files that a crash left under their draft names.
fn remove_staged(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::file("read", dir))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == DRAFT) {
            fs::remove_file(&path).map_err(StoreError::file("remove", &path))?;
        }
    }
    Ok(())
}

/// Completes the header of the first segment. If a first start did not write all of it, it wrote nothing after it.
fn mend_first_segment(dir: &Path) -> Result<(), StoreError> {
    let (path, header) = (Kind::Segment.path(dir, 0), Kind::Segment.header(0));
    let found = fs::read(&path).map_err(StoreError::file("read", &path))?;
    // A crash may leave zeros in a file that was not synced.
    let is_torn = found.len() < HEADER && header.starts_with(&found) || found.iter().all(|byte| *byte == 0);
    if is_torn { make_again(&path, &header) } else { Ok(()) }
}

/// Appends a segment's entries to `recovered`.
fn read_segment(dir: &Path, first: u64, is_last: bool, recovered: &mut Recovered) -> Result<Sound, StoreError> {
    let path = Kind::Segment.path(dir, first);
    let bytes = fs::read(&path).map_err(StoreError::file("read", &path))?;
    if bytes.get(..HEADER) != Some(&Kind::Segment.header(first)) {
        return Err(StoreError::damaged(&path, 0, "its header is damaged"));
    }
    let (mut at, mut synced) = (HEADER, HEADER as u64);
    while at < bytes.len() {
        let Some(framed) = record::read(&bytes[at..]) else {
            check_torn(&path, &bytes, at, is_last)?;
            cut(&path, at as u64)?;
            recovered.torn_bytes = (bytes.len() - at) as u64;
            break;
        };
        recovered.entries.push(framed.entry.to_owned());
        at += framed.length;
        synced = framed.synced;
    }
    Ok(Sound { length: at as u64, synced })
}

/// Unsynced writes are complete after a power failure, or cut short, or have holes before undamaged records. But a
/// record before the point that a later record calls synced was complete once: its damage is an error.
pub(super) fn check_torn(path: &Path, bytes: &[u8], at: usize, is_last: bool) -> Result<(), StoreError> {
    if !is_last {
        return Err(StoreError::damaged(path, at as u64, "a record is damaged, and a later segment follows"));
    }
    let was_synced = |later: usize| record::read(&bytes[later..]).is_some_and(|framed| framed.synced > at as u64);
    match (at + 1..bytes.len()).find(|later| was_synced(*later)) {
        None => Ok(()),
        Some(later) => {
            let what = format!("a damaged record was on disk before the record at byte {later} was written");
            Err(StoreError::damaged(path, at as u64, what))
        }
    }
}

/// Syncs the end of the last segment. A process that was killed may have left it to the kernel. After a failed sync,
/// the kernel may consider unwritten pages as written, so the end is written again.
pub fn sync_again(dir: &Path, tail: &Tail) -> Result<(), StoreError> {
    let path = Kind::Segment.path(dir, tail.segment);
    let sync = || {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut unsure = vec![0; (tail.length - tail.synced) as usize];
        file.read_exact_at(&mut unsure, tail.synced)?;
        file.write_all_at(&unsure, tail.synced)?;
        file.sync_data()
    };
    sync().map_err(StoreError::file("sync", &path))
}

fn cut(path: &Path, length: u64) -> Result<(), StoreError> {
    let failed = StoreError::file("truncate", path);
    let cut = || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(length)?;
        file.sync_all()
    };
    cut().map_err(failed)?;
    sync_dir(path.parent().unwrap_or(path))
}
