//! Reading the log back: the newest snapshot, then every segment after it.

use super::files::{HEADER, Kind, sync_dir};
use super::record::{self, Entry};
use super::{StoreError, snapshot};
use std::fs::{self, OpenOptions};
use std::path::Path;

/// What a directory held when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// How often this directory has been opened, this time included.
    pub epoch: u32,
    /// The state in the newest snapshot; empty when there is none.
    pub snapshot: Vec<Entry>,
    /// Everything committed after that, in order.
    pub entries: Vec<Entry>,
    /// The number of the first of `entries`.
    pub first_sequence: u64,
    /// What a crash left of a last, never acknowledged write, and was cut off.
    pub torn_bytes: u64,
}

/// The log as far as the writer needs to know it.
pub struct Tail {
    /// The segment to go on with.
    pub segment: u64,
    pub length: u64,
    pub next_sequence: u64,
}

pub fn recover(dir: &Path, epoch: u32) -> Result<(Recovered, Option<Tail>), StoreError> {
    remove_staged(dir)?;
    let snapshots = Kind::Snapshot.list(dir)?;
    let snapshot = snapshots.last().copied();
    let state = snapshot.map_or(Ok(Vec::new()), |number| snapshot::read(&Kind::Snapshot.path(dir, number)))?;
    let first_sequence = snapshot.unwrap_or(0);
    let mut recovered = Recovered { epoch, snapshot: state, entries: Vec::new(), first_sequence, torn_bytes: 0 };

    let segments = Kind::Segment.list(dir)?;
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
        let length = read_segment(dir, first, is_last, &mut recovered)?;
        expected = first_sequence + recovered.entries.len() as u64;
        tail = Some(Tail { segment: first, length, next_sequence: expected });
    }
    match tail {
        Some(tail) => Ok((recovered, Some(tail))),
        None => Err(StoreError::damaged(&Kind::Segment.path(dir, first_sequence), 0, "the segment is missing")),
    }
}

/// Files that a crash kept from getting their names.
fn remove_staged(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::file("read", dir))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == "tmp") {
            fs::remove_file(&path).map_err(StoreError::file("remove", &path))?;
        }
    }
    Ok(())
}

/// Appends a segment's entries to `recovered` and returns the length of its sound part.
fn read_segment(dir: &Path, first: u64, is_last: bool, recovered: &mut Recovered) -> Result<u64, StoreError> {
    let path = Kind::Segment.path(dir, first);
    let bytes = fs::read(&path).map_err(StoreError::file("read", &path))?;
    if bytes.get(..HEADER) != Some(&Kind::Segment.header(first)) {
        return Err(StoreError::damaged(&path, 0, "its header is damaged"));
    }
    let mut at = HEADER;
    while at < bytes.len() {
        let Some((entry, length)) = record::read(&bytes[at..]) else {
            check_torn(&path, &bytes, at, is_last)?;
            cut(&path, at as u64)?;
            recovered.torn_bytes = (bytes.len() - at) as u64;
            break;
        };
        recovered.entries.push(entry.to_owned());
        at += length;
    }
    Ok(at as u64)
}

/// A write that a crash cut short leaves a bad record with nothing sound behind it, in the last segment. Anything else
/// that is bad was once good.
fn check_torn(path: &Path, bytes: &[u8], at: usize, is_last: bool) -> Result<(), StoreError> {
    if !is_last {
        return Err(StoreError::damaged(path, at as u64, "a record is damaged, and a later segment follows"));
    }
    match (at + 1..bytes.len()).find(|later| record::read(&bytes[*later..]).is_some()) {
        None => Ok(()),
        Some(later) => {
            let what = format!("a record is damaged, and a sound one follows at byte {later}");
            Err(StoreError::damaged(path, at as u64, what))
        }
    }
}

fn cut(path: &Path, length: u64) -> Result<(), StoreError> {
    let failed = StoreError::file("cut the torn end off", path);
    let cut = || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(length)?;
        file.sync_all()
    };
    cut().map_err(failed)?;
    sync_dir(path.parent().unwrap_or(path))
}
