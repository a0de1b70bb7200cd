//! Reading the log back: the newest snapshot, then every segment after it.

use super::files::{HEADER, Kind, make_again, sync_dir};
use super::record::{self, Entry};
use super::{StoreError, snapshot};
use crate::durable::DRAFT;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
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
    /// What a crash left of the last, never acknowledged writes, and was cut off.
    pub torn_bytes: u64,
}

/// The log as far as the writer needs to know it.
pub struct Tail {
    /// The segment to go on with.
    pub segment: u64,
    pub length: u64,
    /// As much of it is on disk for certain.
    pub synced: u64,
    pub next_sequence: u64,
}

/// The sound part of a segment.
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

/// Files that a crash kept from getting their names.
fn remove_staged(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::file("read", dir))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == DRAFT) {
            fs::remove_file(&path).map_err(StoreError::file("remove", &path))?;
        }
    }
    Ok(())
}

/// A first start that did not write all of its segment's header has written nothing after it.
fn mend_first_segment(dir: &Path) -> Result<(), StoreError> {
    let (path, header) = (Kind::Segment.path(dir, 0), Kind::Segment.header(0));
    let found = fs::read(&path).map_err(StoreError::file("read", &path))?;
    // Of a file that was not synced a crash may leave zeros.
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

/// What was written and not synced is whole after a power failure, or cut short, or has holes, with sound records
/// behind them. What a later record calls synced was whole once, and then lost.
fn check_torn(path: &Path, bytes: &[u8], at: usize, is_last: bool) -> Result<(), StoreError> {
    if !is_last {
        return Err(StoreError::damaged(path, at as u64, "a record is damaged, and a later segment follows"));
    }
    let was_synced = |later: usize| record::read(&bytes[later..]).is_some_and(|framed| framed.synced > at as u64);
    match (at + 1..bytes.len()).find(|later| was_synced(*later)) {
        None => Ok(()),
        Some(later) => {
            let what = format!("a record is damaged that was on disk when the one at byte {later} was made");
            Err(StoreError::damaged(path, at as u64, what))
        }
    }
}

/// Puts the end of the last segment on disk. A process that was killed may have left it to the kernel; and when a sync
/// failed, the kernel may take what it could not write for written, so it is written again.
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
    let failed = StoreError::file("cut the torn end off", path);
    let cut = || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(length)?;
        file.sync_all()
    };
    cut().map_err(failed)?;
    sync_dir(path.parent().unwrap_or(path))
}
