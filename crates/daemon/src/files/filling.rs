//! Moves the contents of files between connections and the disk. A receiver reads, hashes and writes on a thread each.

use super::Incoming;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;
use sha2::Digest as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, ScopedJoinHandle};

/// Bytes that one thread hands to the next.
const PART: usize = 256 << 10;
/// Number of parts between the threads of a receiver.
const PARTS: usize = 8;

/// Bytes after which the disk is asked to write what it has. Otherwise it would write the whole file after the transfer.
const TO_DISK: u64 = 32 << 20;

/// Why a file was not received completely.
#[derive(Debug)]
pub enum FillError {
    /// The sender stopped. What it sent before is kept.
    Source(io::Error),
    /// It cannot be written here.
    Disk(io::Error),
}

impl Incoming {
    /// Adds the next `count` bytes of `source`.
    pub fn fill(&mut self, source: &mut impl Read, count: u64) -> Result<(), FillError> {
        if count <= PART as u64 {
            // Two more threads would take longer.
            let mut part = vec![0; count as usize];
            let read = read_part(source, &mut part);
            let (length, ended) = match read {
                Ok(()) => (part.len(), Ok(())),
                Err((length, error)) => (length, Err(FillError::Source(error))),
            };
            return self.write(&part[..length]).map_err(FillError::Disk).and(ended);
        }
        let Incoming { hash, file, bytes, .. } = self;
        let out = file.file();
        // Writes are faster then, and a disk without the room for it is noticed at once. Not all file systems support it.
        let is_reserved = match fallocate(out, FallocateFlags::KEEP_SIZE, *bytes, count) {
            Err(Errno::NOSPC) => return Err(FillError::Disk(Errno::NOSPC.into())),
            reserved => reserved.is_ok(),
        };
        let (ended, written) = thread::scope(|threads| {
            let (free_in, free) = channel();
            let (to_hash, to_be_hashed) = sync_channel::<Part>(PARTS);
            let (to_disk, to_be_written) = sync_channel::<Part>(PARTS);
            threads.spawn(move || hash_parts(hash, &to_be_hashed, &to_disk));
            let (to_flush, to_be_flushed) = sync_channel(1);
            let flusher = threads.spawn(move || flush_parts(out, &to_be_flushed));
            let writer = threads.spawn(move || write_parts(out, &to_be_written, &free_in, &to_flush));
            let ended = read_parts(source, count, &free, &to_hash);
            drop(to_hash);
            let written = joined(writer);
            // The kernel reports an error of the disk only once.
            (ended, joined(flusher).and(written))
        });
        self.bytes += written.map_err(FillError::Disk)?;
        if is_reserved && ended.is_err() {
            // What another source does not send needs no room.
            out.set_len(self.bytes).map_err(FillError::Disk)?;
        }
        ended.map_err(FillError::Source)
    }
}

/// A buffer, and how many of its bytes are used.
struct Part(Vec<u8>, usize);

fn read_parts(source: &mut impl Read, count: u64, free: &Receiver<Part>, next: &SyncSender<Part>) -> io::Result<()> {
    let (mut left, mut made) = (count, 0);
    while left > 0 {
        let part = if made < PARTS {
            made += 1;
            Part(vec![0; PART], 0)
        } else {
            // Without a writer, its error is the one that counts.
            let Ok(part) = free.recv() else { return Ok(()) };
            part
        };
        let Part(mut bytes, _) = part;
        let wanted = left.min(PART as u64) as usize;
        let (length, ended) = match read_part(source, &mut bytes[..wanted]) {
            Ok(()) => (wanted, Ok(())),
            Err((length, error)) => (length, Err(error)),
        };
        left -= length as u64;
        if next.send(Part(bytes, length)).is_err() {
            return Ok(());
        }
        ended?;
    }
    Ok(())
}

/// Fills the part. After an error, returns how many bytes came before it, too.
fn read_part(source: &mut impl Read, part: &mut [u8]) -> Result<(), (usize, io::Error)> {
    let mut length = 0;
    while length < part.len() {
        match source.read(&mut part[length..]) {
            Ok(0) => return Err((length, io::ErrorKind::UnexpectedEof.into())),
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((length, error)),
        }
    }
    Ok(())
}

fn hash_parts(hash: &mut sha2::Sha256, parts: &Receiver<Part>, next: &SyncSender<Part>) {
    while let Ok(Part(bytes, length)) = parts.recv() {
        hash.update(&bytes[..length]);
        if next.send(Part(bytes, length)).is_err() {
            return;
        }
    }
}

fn write_parts(
    mut out: &File,
    parts: &Receiver<Part>,
    free: &Sender<Part>,
    to_flush: &SyncSender<()>,
) -> io::Result<u64> {
    let (mut written, mut asked) = (0, 0);
    while let Ok(Part(bytes, length)) = parts.recv() {
        out.write_all(&bytes[..length])?;
        written += length as u64;
        if written - asked >= TO_DISK {
            asked = written;
            // Without a place, the disk is busy with an earlier part.
            let _ = to_flush.try_send(());
        }
        // At the end, nobody needs it.
        let _ = free.send(Part(bytes, 0));
    }
    Ok(written)
}

fn flush_parts(out: &File, asked: &Receiver<()>) -> io::Result<()> {
    while let Ok(()) = asked.recv() {
        out.sync_data()?;
    }
    Ok(())
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Sends `count` bytes of a file, from an offset on.
pub fn send(file: &File, offset: u64, count: u64, out: &mut impl Write) -> io::Result<()> {
    // The kernel then reads ahead in larger parts. Not all file systems support it.
    let _ = fadvise(file, offset, None, Advice::Sequential);
    let mut part = vec![0; PART.min(count.max(1) as usize)];
    let (mut at, end) = (offset, offset + count);
    while at < end {
        let wanted = (end - at).min(part.len() as u64) as usize;
        let length = file.read_at(&mut part[..wanted], at)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.write_all(&part[..length])?;
        at += length as u64;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FileStore;
    use amalgam_core::vocabulary::{Digest, NodeId};
    use sha2::Sha256;
    use std::os::unix::fs::MetadataExt;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at / 7 % 251) as u8).collect()
    }

    #[test]
    fn a_file_of_several_parts_is_received_from_several_senders() {
        let state = tempfile::tempdir().unwrap();
        let store = FileStore::of(state.path(), NodeId(1));
        let all = bytes(PART * (2 * PARTS + 3) + 17);
        let (first, second) = all.split_at(PART * (PARTS + 1) + 5);
        let digest = Digest(Sha256::digest(&all).into());
        let mut incoming = store.incoming().unwrap();
        let broken = incoming.fill(&mut &first[..], all.len() as u64);
        assert!(matches!(broken, Err(FillError::Source(error)) if error.kind() == io::ErrorKind::UnexpectedEof));
        assert_eq!(incoming.bytes(), first.len() as u64);
        let allocated = incoming.file.file().metadata().unwrap().blocks() * 512;
        assert!(allocated <= first.len() as u64 + PART as u64, "room is kept for what did not come: {allocated}");
        let small = &second[..100];
        incoming.fill(&mut &small[..], 60).unwrap();
        assert!(matches!(incoming.fill(&mut &small[60..], 41), Err(FillError::Source(_))));
        assert_eq!(incoming.bytes(), first.len() as u64 + 100);
        incoming.fill(&mut &second[100..], second.len() as u64 - 100).unwrap();
        assert_eq!(incoming.keep(Some(digest)).unwrap().map(|stored| stored.bytes), Some(all.len() as u64));
    }

    #[test]
    fn a_part_of_a_file_is_sent_and_one_that_is_too_short_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        let (path, all) = (home.path().join("file"), bytes(3 * PART));
        std::fs::write(&path, &all).unwrap();
        let file = File::open(&path).unwrap();
        let mut sent = Vec::new();
        send(&file, 5, all.len() as u64 - 5, &mut sent).unwrap();
        assert!(sent == all[5..]);
        let short = send(&file, 5, all.len() as u64, &mut io::sink()).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        send(&file, 0, 0, &mut io::sink()).unwrap();
    }
}
