//! Names, headers and durable creation of the store's files.

use super::StoreError;
use crate::durable;
use crate::versions::{STORE, Versions};
use std::fs;
use std::path::{Path, PathBuf};

/// The file that identifies a log among all others. Its owner creates it after the store was opened for the first time.
pub const IDENTITY: &str = "identity";
pub const IDENTITY_BYTES: usize = 16;
/// Bytes before the first record of a segment or a snapshot: eight bytes of magic, the number in its name, a checksum.
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

    /// The path of a file. Numbers have a fixed width, so that names are in order.
    pub fn path(self, dir: &Path, number: u64) -> PathBuf {
        dir.join(format!("{}{number:020}", self.prefix()))
    }

    /// The numbers of all files of this kind, in ascending order.
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

    /// Whether this is the name of such a file.
    pub fn is_name(self, name: &str) -> bool {
        let number = name.strip_prefix(self.prefix());
        number.is_some_and(|number| number.len() == 20 && number.bytes().all(|byte| byte.is_ascii_digit()))
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

/// Creates a file that is complete or absent, even after a crash.
pub fn create_whole(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    durable::replace(path, content).map_err(StoreError::file("write", path))
}

pub fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    durable::sync_dir(dir).map_err(StoreError::file("sync", dir))
}

/// Whether nothing was ever acknowledged from this directory. Then incomplete files are left from a first start, for
/// example on a full disk, and can be replaced.
pub fn is_unused(dir: &Path) -> Result<bool, StoreError> {
    let long = |number: &u64| {
        fs::metadata(Kind::Segment.path(dir, *number)).is_ok_and(|segment| segment.len() > HEADER as u64)
    };
    // The owner's identity is created last. If it is complete, a segment that is too short is damaged.
    let was_opened = fs::metadata(dir.join(IDENTITY)).is_ok_and(|identity| identity.len() >= IDENTITY_BYTES as u64);
    let segments = Kind::Segment.list(dir)?;
    let has_short = segments.iter().any(|number| {
        fs::metadata(Kind::Segment.path(dir, *number)).is_ok_and(|segment| segment.len() < HEADER as u64)
    });
    let has_snapshot = !Kind::Snapshot.list(dir)?.is_empty();
    Ok(!(has_snapshot || segments.iter().any(long) || was_opened && has_short))
}

/// The versions of the directory's entries. A directory without entries gets the newest version.
pub fn check_format(dir: &Path, is_unused: bool) -> Result<Versions, StoreError> {
    let path = dir.join("format");
    let newest = Versions { oldest: STORE.newest, newest: STORE.newest };
    let line = STORE.line("store");
    match fs::read(&path) {
        Ok(found) if found == line.as_bytes() => Ok(newest),
        Ok(found) if line.as_bytes().starts_with(&found) => match is_unused {
            true => make_again(&path, line.as_bytes()).map(|()| newest),
            false => Err(StoreError::damaged(&path, found.len() as u64, "the file is cut short")),
        },
        Ok(found) => match STORE.of_mark("store", &found) {
            Ok(_) if is_unused => create_whole(&path, line.as_bytes()).map(|()| newest),
            Ok(versions) => Ok(versions),
            Err(found) => Err(StoreError::Format { path, dir: dir.to_owned(), found }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Without this file, the format of the other files is unknown.
            match is_unused {
                true => create_whole(&path, line.as_bytes()).map(|()| newest),
                false => Err(StoreError::damaged(&path, 0, "the file is missing although there are segments")),
            }
        }
        Err(error) => Err(StoreError::file("read", &path)(error)),
    }
}

/// Marks a directory with entries of these versions: with all of them before the first entry of the newest version, and
/// with the newest once a snapshot has replaced the others.
pub fn mark(dir: &Path, versions: Versions) -> Result<(), StoreError> {
    create_whole(&dir.join("format"), versions.mark("store").as_bytes())
}

/// Increments the epoch durably.
pub fn next_epoch(dir: &Path, is_unused: bool) -> Result<u32, StoreError> {
    let path = dir.join("epoch");
    let before = match fs::read_to_string(&path) {
        // If its last character is missing, the number is wrong.
        Ok(text) => match (text.strip_suffix('\n').map(str::parse::<u32>), is_unused) {
            (Some(Ok(number)), _) => number,
            (_, true) => {
                tracing::warn!(path = %path.display(), "this file is incomplete after a first start; creating it again");
                0
            }
            (_, false) => return Err(StoreError::damaged(&path, 0, "it has no complete number")),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // A restart with epoch 1 would issue ids a second time.
            if !is_unused {
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

/// As [`create_whole`], for an incomplete file.
pub fn make_again(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    tracing::warn!(path = %path.display(), "this file is incomplete after a first start; creating it again");
    create_whole(path, content)
}
