//! Readers of a log that is being written.

use super::StoreError;
use super::files::{HEADER, Kind};
use super::record::{self, EntryRef, FIELDS, HEAD};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads the log while it is written, up to the last commit.
#[derive(Clone, Debug)]
pub struct History {
    dir: PathBuf,
    /// The writer's counter; the maximum if there is no writer.
    committed: Arc<AtomicU64>,
}

impl History {
    /// A reader of a directory without a writer.
    pub fn of(dir: &Path) -> History {
        History { dir: dir.to_owned(), committed: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    pub(super) fn beside(dir: &Path, committed: Arc<AtomicU64>) -> History {
        History { dir: dir.to_owned(), committed }
    }

    /// The number after the last committed entry.
    pub fn end(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Calls `visit` for every entry from number `from` on that is about `job` (or for all), in order, until it breaks.
    /// Returns the number to continue from. Entries that are older than the kept history are skipped.
    pub fn scan(
        &self,
        job: Option<u64>,
        from: u64,
        mut visit: impl FnMut(u64, EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<u64, StoreError> {
        let until = self.committed.load(Ordering::Acquire);
        let segments = Kind::Segment.list(&self.dir)?;
        let mut next = from;
        for (place, &first) in segments.iter().enumerate() {
            let is_needed = segments.get(place + 1).is_none_or(|following| *following > next);
            if !is_needed || first >= until {
                continue;
            }
            let path = Kind::Segment.path(&self.dir, first);
            let file = match File::open(&path) {
                // It was removed after the listing.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(StoreError::file("open", &path))?,
            };
            let mut scan =
                Scan { reader: BufReader::with_capacity(256 << 10, file), sequence: first, record: Vec::new() };
            let flow = scan.run(job, next, until, &mut visit).map_err(StoreError::file("read", &path))?;
            next = next.max(scan.sequence);
            match flow {
                Flow::On => {}
                Flow::Stop => break,
                Flow::Damaged => return Err(StoreError::damaged(&path, 0, format!("entry {next} is damaged"))),
            }
        }
        Ok(next)
    }
}

/// A pass over one segment.
struct Scan {
    reader: BufReader<File>,
    /// Number of the next record.
    sequence: u64,
    record: Vec<u8>,
}

enum Flow {
    On,
    Stop,
    Damaged,
}

impl Scan {
    fn run(
        &mut self,
        job: Option<u64>,
        from: u64,
        until: u64,
        visit: &mut impl FnMut(u64, EntryRef<'_>) -> ControlFlow<()>,
    ) -> io::Result<Flow> {
        self.reader.seek_relative(HEADER as i64)?;
        let mut front = [0; HEAD + FIELDS];
        while self.sequence < until {
            if !read_whole(&mut self.reader, &mut front)? {
                return Ok(Flow::On);
            }
            let Some(length) = record::body_length(&front) else { return Ok(Flow::Damaged) };
            let fields = &front[HEAD..];
            let is_wanted = self.sequence >= from
                && job.is_none_or(|job| record::parse_body(fields).is_some_and(|entry| entry.job == job));
            let sequence = self.sequence;
            if !is_wanted {
                self.reader.seek_relative((length - FIELDS) as i64)?;
                self.sequence += 1;
                continue;
            }
            self.record.clear();
            self.record.extend_from_slice(&front);
            self.record.resize(HEAD + length, 0);
            if !read_whole(&mut self.reader, &mut self.record[front.len()..])? {
                return Ok(Flow::On);
            }
            let Some(framed) = record::read(&self.record) else { return Ok(Flow::Damaged) };
            self.sequence += 1;
            if visit(sequence, framed.entry).is_break() {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::On)
    }
}

/// Returns false if the file ends before, at the writer's position.
fn read_whole(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
