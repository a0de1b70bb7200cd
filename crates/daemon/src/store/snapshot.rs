//! Snapshots: the whole state as records, so that recovery need not read the log from its start.

use super::StoreError;
use super::files::{HEADER, Kind};
use super::record::{self, Entry, EntryRef};
use crate::durable::Draft;
use std::fs;
use std::io::{BufWriter, IntoInnerError, Write};
use std::path::{Path, PathBuf};

/// The end of a complete snapshot: a length that no record has, then the number of its records.
const END: u32 = u32::MAX;
const FOOTER: usize = 16;

/// Writes one snapshot. It can be sent to another thread while the store accepts more entries.
#[derive(Debug)]
pub struct SnapshotWriter {
    file: BufWriter<Draft>,
    path: PathBuf,
    next_sequence: u64,
    count: u64,
    buffer: Vec<u8>,
}

impl SnapshotWriter {
    pub(super) fn new(dir: &Path, next_sequence: u64) -> Result<SnapshotWriter, StoreError> {
        let path = Kind::Snapshot.path(dir, next_sequence);
        let start = || {
            let mut file = BufWriter::with_capacity(1 << 20, Draft::private(&path)?);
            file.write_all(&Kind::Snapshot.header(next_sequence))?;
            Ok(file)
        };
        let file = start().map_err(StoreError::file("write", &path))?;
        Ok(SnapshotWriter { file, path, next_sequence, count: 0, buffer: Vec::new() })
    }

    /// # Errors
    /// After an error the snapshot has to be dropped. Older snapshots stay valid.
    pub fn write(&mut self, entry: EntryRef<'_>) -> Result<(), StoreError> {
        self.buffer.clear();
        record::write(entry, 0, &mut self.buffer);
        self.count += 1;
        self.file.write_all(&self.buffer).map_err(StoreError::file("write", &self.path))
    }

    /// Makes the snapshot durable and valid. Returns the argument for [`super::Store::forget_before`].
    pub fn finish(mut self) -> Result<u64, StoreError> {
        let mut footer = [0; FOOTER];
        footer[..4].copy_from_slice(&END.to_le_bytes());
        footer[4..12].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32fast::hash(&footer[..12]);
        footer[12..].copy_from_slice(&crc.to_le_bytes());
        let written = self.file.write_all(&footer);
        let draft = written.and_then(|()| self.file.into_inner().map_err(IntoInnerError::into_error));
        draft.and_then(Draft::finish).map_err(StoreError::file("write", &self.path))?;
        Ok(self.next_sequence)
    }
}

/// Reads a snapshot. It got its name when it was complete, so any error in it is damage.
pub fn read(path: &Path) -> Result<Vec<Entry>, StoreError> {
    parse(path, &fs::read(path).map_err(StoreError::file("read", path))?)
}

/// Reads a snapshot with this content.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>, StoreError> {
    let number = path.file_name().and_then(|name| name.to_str()?.rsplit('-').next()?.parse().ok()).unwrap_or(0);
    if bytes.get(..HEADER) != Some(&Kind::Snapshot.header(number)) {
        return Err(StoreError::damaged(path, 0, "its header is damaged"));
    }
    let mut entries = Vec::new();
    let mut at = HEADER;
    while let Some(framed) = record::read(&bytes[at..]) {
        entries.push(framed.entry.to_owned());
        at += framed.length;
    }
    let footer = &bytes[at..];
    let is_complete = footer.len() == FOOTER
        && footer[..4] == END.to_le_bytes()
        && footer[4..12] == (entries.len() as u64).to_le_bytes()
        && footer[12..] == crc32fast::hash(&footer[..12]).to_le_bytes();
    match is_complete {
        true => Ok(entries),
        false => Err(StoreError::damaged(path, at as u64, "a record or the end of the snapshot is damaged")),
    }
}
