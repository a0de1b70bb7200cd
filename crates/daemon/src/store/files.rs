//! Names, headers and durable creation of the store's files.

use super::StoreError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub const FORMAT: &str = "amalgam store 20\n";
/// Bytes before the first record of a segment or a snapshot: eight of magic, the number in its name, a checksum.
pub const HEADER: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Segment,
    Snapshot,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::Segment => "segment-",
            Kind::Snapshot => "snapshot-",
        }
    }

    fn magic(self) -> [u8; 8] {
        match self {
            Kind::Segment => *b"AMGSEG1\n",
            Kind::Snapshot => *b"AMGSNP1\n",
        }
    }

    /// The numbers have a fixed width, so that a listing by name is in order.
    pub fn path(self, dir: &Path, number: u64) -> PathBuf {
        dir.join(format!("{}{number:020}", self.prefix()))
    }

    /// The numbers of all files of this kind, ascending.
    pub fn list(self, dir: &Path) -> Result<Vec<u64>, StoreError> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(dir).map_err(StoreError::file("read", dir))? {
            let name = entry.map_err(StoreError::file("read", dir))?.file_name();
            let number: Option<u64> = name.to_str().and_then(|name| name.strip_prefix(self.prefix())?.parse().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub fn header(self, number: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.magic());
        header[8..16].copy_from_slice(&number.to_le_bytes());
        let crc = crc32fast::hash(&header[..16]);
        header[16..].copy_from_slice(&crc.to_le_bytes());
        header
    }
}

/// Makes a file that is there as a whole or not at all, also after a crash.
pub fn create_whole(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let staged = staged(path);
    let write = || {
        let mut file = create(&staged)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(StoreError::file("write", &staged))?;
    put_in_place(&staged, path)
}

/// Makes a file that is empty and of no concern to others.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Where a file is written before it gets its name.
pub fn staged(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

/// Gives a synced file its name, durably.
pub fn put_in_place(staged: &Path, path: &Path) -> Result<(), StoreError> {
    fs::rename(staged, path).map_err(StoreError::file("rename", path))?;
    sync_dir(path.parent().unwrap_or(path))
}

pub fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(StoreError::file("sync", dir))
}

pub fn check_format(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join("format");
    match fs::read_to_string(&path) {
        Ok(found) if found == FORMAT => Ok(()),
        Ok(found) => Err(StoreError::Format { path, dir: dir.to_owned(), found: found.chars().take(80).collect() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Without it, segments that are there were written by nobody knows what.
            match Kind::Segment.list(dir)?.is_empty() {
                true => create_whole(&path, FORMAT.as_bytes()),
                false => Err(StoreError::damaged(&path, 0, "the file is missing although there are segments")),
            }
        }
        Err(error) => Err(StoreError::file("read", &path)(error)),
    }
}

/// Counts this opening, durably.
pub fn next_epoch(dir: &Path) -> Result<u32, StoreError> {
    let path = dir.join("epoch");
    let before = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<u32>().map_err(|_| StoreError::damaged(&path, 0, "it holds no number"))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // A restart at 1 would issue ids a second time.
            if !Kind::Segment.list(dir)?.is_empty() {
                return Err(StoreError::damaged(&path, 0, "the file is missing although there are segments"));
            }
            0
        }
        Err(error) => return Err(StoreError::file("read", &path)(error)),
    };
    let epoch = before.checked_add(1).ok_or_else(|| StoreError::damaged(&path, 0, "the number is too large"))?;
    create_whole(&path, format!("{epoch}\n").as_bytes())?;
    Ok(epoch)
}
