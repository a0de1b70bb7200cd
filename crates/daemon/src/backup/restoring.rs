//! Puts an archive into a new state directory, once all of it has been verified.

use super::{BackupError, FORMAT, LOGS, Listed, MANIFEST, Manifest, is_known};
use crate::auth::hex;
use crate::durable;
use crate::private::make_private_dir;
use crate::store::raise_epoch;
use crate::versions::STORE;
use rustix::fs::{Gid, Uid};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Starts of a process: more have no number. The issuer takes the other bits of an epoch.
pub const LIVES: u32 = 1 << 24;
/// A restored process starts with a number that the original one has not reached after the backup, if it was started less often
/// than this. Nodes refuse older numbers, and ids contain them.
const STEP: u32 = 1 << 16;
const MOST_MANIFEST: u64 = 64 << 20;

/// What was restored.
#[derive(Debug)]
pub struct Restored {
    pub manifest: Manifest,
    /// The number that its next start has.
    pub epoch: u32,
}

/// Verifies the archive and makes it the content of `dir`, which is missing or empty. After an error nothing is left there.
///
/// # Errors
/// If the directory is in use, the archive is damaged or of a version that this program does not read, or files cannot be
/// written.
pub fn restore(archive: &mut dyn Read, dir: &Path) -> Result<Restored, BackupError> {
    let owner = check_target(dir)?;
    let staging = Staging::beside(dir)?;
    let manifest = unpack(archive, &staging.0)?;
    let mut epoch = 0;
    for log in LOGS.map(|log| staging.0.join(log)).iter().filter(|log| log.exists()) {
        epoch = epoch.max(raise_epoch(log, STEP, LIVES)?.ok_or(BackupError::TooManyStarts)?);
        durable::sync_dir(log).map_err(BackupError::file("sync", log))?;
    }
    if let Some(owner) = owner {
        give(&staging.0, owner)?;
    }
    durable::sync_dir(&staging.0).map_err(BackupError::file("sync", &staging.0))?;
    let moved = fs::rename(&staging.0, dir).and_then(|()| durable::sync_parent(dir));
    moved.map_err(BackupError::file("move the restored directory to", dir))?;
    Ok(Restored { manifest, epoch })
}

/// The user and group of an existing directory that belongs to another user.
fn check_target(dir: &Path) -> Result<Option<(u32, u32)>, BackupError> {
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(BackupError::file("look at", dir)(error)),
    };
    let mut entries = fs::read_dir(dir).map_err(BackupError::file("read", dir))?;
    if entries.next().is_some() {
        let is_state = LOGS.iter().any(|log| dir.join(log).exists());
        let owner = if is_state { ": it is the state directory of a daemon" } else { "" };
        return Err(BackupError::NotEmpty { dir: dir.to_owned(), owner: owner.to_owned() });
    }
    let is_foreign = found.uid() != rustix::process::geteuid().as_raw();
    Ok(is_foreign.then_some((found.uid(), found.gid())))
}

/// A directory beside the final one, which is removed unless it was moved there.
struct Staging(PathBuf);

impl Staging {
    fn beside(dir: &Path) -> Result<Staging, BackupError> {
        // The parts of the path, without a final slash.
        let dir: PathBuf = std::path::absolute(dir).map_err(BackupError::file("find", dir))?.components().collect();
        let mut name = dir.file_name().map_or_else(OsString::new, OsString::from);
        name.push(format!(".restoring-{}", std::process::id()));
        let path = dir.with_file_name(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(BackupError::file("make", parent))?;
        }
        // A link that another user left there is not followed.
        fs::create_dir(&path).map_err(BackupError::file("make", &path))?;
        let staging = Staging(path);
        make_private_dir(&staging.0).map_err(BackupError::file("make", &staging.0))?;
        Ok(staging)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After the last step there is none.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn unpack(archive: &mut dyn Read, to: &Path) -> Result<Manifest, BackupError> {
    let mut archive = tar::Archive::new(archive);
    let not_ours = |error: io::Error| BackupError::NotOurs(error.to_string());
    let mut entries = archive.entries().map_err(not_ours)?;
    let first = entries.next().ok_or_else(|| BackupError::NotOurs("it is empty".to_owned()))?.map_err(not_ours)?;
    let manifest = read_manifest(first)?;
    for listed in &manifest.files {
        let missing = || BackupError::Damaged(format!("it ends before {}", listed.path));
        let entry = entries.next().ok_or_else(missing)?.map_err(BackupError::Read)?;
        unpack_file(entry, listed, to)?;
    }
    match entries.next() {
        None => Ok(manifest),
        Some(_) => Err(BackupError::Damaged("it has more files than its manifest lists".to_owned())),
    }
}

fn read_manifest(entry: tar::Entry<'_, impl Read>) -> Result<Manifest, BackupError> {
    if entry.path_bytes() != MANIFEST.as_bytes() {
        return Err(BackupError::NotOurs(format!("its first file is not {MANIFEST}")));
    }
    let mut text = Vec::new();
    entry.take(MOST_MANIFEST).read_to_end(&mut text).map_err(BackupError::Read)?;
    let wrong = |error: serde_json::Error| BackupError::Damaged(format!("{MANIFEST}: {error}"));
    let value: Value = serde_json::from_slice(&text).map_err(wrong)?;
    // The other keys may have changed in another format.
    let program = value["program"].as_str().unwrap_or("unknown").to_owned();
    match value["format"].as_u64() {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => return Err(BackupError::Newer { format, program }),
        None => return Err(BackupError::NotOurs(format!("{MANIFEST} names no format"))),
    }
    let manifest: Manifest = serde_json::from_value(value).map_err(wrong)?;
    let found = manifest.store;
    if !(STORE.contains(found.oldest) && STORE.contains(found.newest)) {
        return Err(BackupError::Versions { found, program });
    }
    let has_log = LOGS.iter().any(|log| manifest.files.iter().any(|file| file.path == format!("{log}/epoch")));
    if !has_log {
        return Err(BackupError::Damaged("its manifest lists no log".to_owned()));
    }
    match manifest.files.iter().find(|file| !is_known(&file.path)) {
        Some(file) => Err(BackupError::Damaged(format!(
            "{:?} is not the name of a file of a state directory; program {program} wrote the archive",
            file.path
        ))),
        None => Ok(manifest),
    }
}

/// Writes a file that the manifest lists.
fn unpack_file(mut entry: tar::Entry<'_, impl Read>, listed: &Listed, to: &Path) -> Result<(), BackupError> {
    let Listed { path, bytes, sha256 } = listed;
    if *entry.path_bytes() != *path.as_bytes() || !entry.header().entry_type().is_file() || entry.size() != *bytes {
        return Err(BackupError::Damaged(format!("there is another file in the place of {path}")));
    }
    let target = to.join(path);
    let parent = target.parent().unwrap_or(to);
    make_private_dir(parent).map_err(BackupError::file("make", parent))?;
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target);
    let mut file = created.map_err(BackupError::file("write", &target))?;
    let (mut hasher, mut buffer, mut copied) = (Sha256::new(), vec![0; 256 << 10], 0);
    loop {
        let read = entry.read(&mut buffer).map_err(BackupError::Read)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        file.write_all(&buffer[..read]).map_err(BackupError::file("write", &target))?;
        copied += read as u64;
    }
    if copied != *bytes {
        return Err(BackupError::Damaged(format!("it ends within {path}")));
    }
    if hex(&hasher.finalize()) != *sha256 {
        return Err(BackupError::Damaged(format!("the SHA-256 of {path} is not that of the manifest")));
    }
    file.sync_all().map_err(BackupError::file("sync", &target))
}

/// Gives the directory and all files in it to a user.
fn give(dir: &Path, owner: (u32, u32)) -> Result<(), BackupError> {
    let failed = || BackupError::file("change the owner of", dir);
    for entry in fs::read_dir(dir).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        if path.is_dir() {
            give(&path, owner)?;
        } else {
            chown(&path, owner)?;
        }
    }
    chown(dir, owner)
}

fn chown(path: &Path, (user, group): (u32, u32)) -> Result<(), BackupError> {
    let changed = File::open(path).and_then(|file| {
        rustix::fs::fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(io::Error::from)
    });
    changed.map_err(BackupError::file("change the owner of", path))
}
