//! Files that are complete or absent, even after a crash, a full disk or a disk failure.
//!
//! Every file that a later start reads is written as a draft beside it, synced and renamed, and its directory is
//! synced.

use rustix::fs::{Gid, Uid};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Extension of an incomplete file.
pub const DRAFT: &str = "tmp";

/// An incomplete file under a temporary name. It gets its name in [`Temporary::rename`]; if it is dropped before, it is
/// removed.
#[derive(Debug)]
pub struct Temporary {
    file: File,
    path: PathBuf,
    is_renamed: bool,
}

impl Temporary {
    /// Creates the file with these permissions, within the user's umask.
    ///
    /// # Errors
    /// If the name exists, or its directory cannot be written to.
    pub fn create(path: PathBuf, mode: u32) -> io::Result<Temporary> {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        Ok(Temporary { file, path, is_renamed: false })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name, which survives a crash. A file or a link of that name is replaced.
    ///
    /// # Errors
    /// If it could not be written to the disk. The previous file is unchanged then.
    pub fn rename(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.is_renamed = true;
        sync_parent(target)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            // It would use space on a full disk, and may contain a secret.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// An incomplete file, whose temporary name follows from its final one. It gets that in [`Draft::finish`]; if it is
/// dropped before, it is removed.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    output: Output,
}

#[derive(Debug)]
enum Output {
    Temporary(Temporary),
    /// A pipe or a device, which cannot be replaced.
    InPlace(File),
}

impl Draft {
    /// Starts a file that only this user can read. Only one caller may write a file at a time.
    ///
    /// # Errors
    /// If its directory cannot be written to.
    pub fn private(path: &Path) -> io::Result<Draft> {
        Draft::start(path, 0o600)
    }

    /// Starts a file that others may read, within the user's umask.
    ///
    /// # Errors
    /// If its directory cannot be written to.
    pub fn shared(path: &Path) -> io::Result<Draft> {
        Draft::start(path, 0o666)
    }

    fn start(path: &Path, mode: u32) -> io::Result<Draft> {
        // The target of a link is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let before = fs::metadata(&path).ok();
        if before.as_ref().is_some_and(|found| !found.is_file()) {
            let file = OpenOptions::new().write(true).open(&path)?;
            return Ok(Draft { path, output: Output::InPlace(file) });
        }
        let draft = draft_of(&path);
        // A draft that a crash left may belong to another user, or be a link.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let temporary = Temporary::create(draft, mode)?;
        match before {
            Some(before) => take_after(temporary.file(), &before),
            None if mode & 0o077 == 0 => belong_to_directory(temporary.file(), temporary.path()),
            None => {}
        }
        Ok(Draft { path, output: Output::Temporary(temporary) })
    }

    /// Gives the file its name, which survives a crash.
    ///
    /// # Errors
    /// If it could not be written to the disk. The previous file is unchanged then.
    pub fn finish(self) -> io::Result<()> {
        match self.output {
            Output::Temporary(temporary) => temporary.rename(&self.path),
            Output::InPlace(mut file) => file.flush(),
        }
    }

    fn file(&self) -> &File {
        match &self.output {
            Output::Temporary(temporary) => temporary.file(),
            Output::InPlace(file) => file,
        }
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// If an administrator changes a user's file, it still belongs to that user.
fn take_after(file: &File, before: &Metadata) {
    let _ = file.set_permissions(Permissions::from_mode(before.mode() & 0o777));
    if before.uid() != rustix::process::geteuid().as_raw() {
        let (owner, group) = (Uid::from_raw(before.uid()), Gid::from_raw(before.gid()));
        let _ = rustix::fs::fchown(file, Some(owner), Some(group));
    }
}

/// If an administrator makes a private file in another user's directory, such as a server's state directory, that user can
/// read it.
pub(crate) fn belong_to_directory(file: &File, path: &Path) {
    let directory = path.parent().and_then(|parent| fs::metadata(parent).ok());
    if let Some(directory) = directory.filter(|found| found.uid() != rustix::process::geteuid().as_raw()) {
        let (owner, group) = (Uid::from_raw(directory.uid()), Gid::from_raw(directory.gid()));
        let _ = rustix::fs::fchown(file, Some(owner), Some(group));
    }
}

/// Replaces or creates a file that only this user can read.
///
/// # Errors
/// If it could not be written to the disk. The previous file is unchanged then.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut draft = Draft::private(path)?;
    draft.write_all(content)?;
    draft.finish()
}

fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".");
    name.push(DRAFT);
    path.with_file_name(name)
}

/// Makes creations, renames and removals in the directory of this file durable.
///
/// # Errors
/// As reported by the file system.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => sync_dir(Path::new(".")),
    }
}

/// Makes creations, renames and removals in this directory durable.
///
/// # Errors
/// As reported by the file system.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    match File::open(dir)?.sync_all() {
        // Some file systems do not support this for directories.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_completely_or_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known.json");
        replace(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut draft = Draft::private(&path).unwrap();
        draft.write_all(b"tw").unwrap();
        assert_eq!(names(dir.path()), ["known.json", "known.json.tmp"]);
        drop(draft);
        assert_eq!((fs::read(&path).unwrap(), names(dir.path())), (b"one".to_vec(), vec!["known.json".to_owned()]));
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
    }

    #[test]
    fn a_private_file_belongs_to_the_owner_of_its_directory() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can give files to other users");
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1234), Some(1235)).unwrap();
        let (private, shared) = (dir.path().join("joins.json"), dir.path().join("shared"));
        let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid(), found.mode() & 0o777));
        replace(&private, b"one").unwrap();
        replace(&private, b"two").unwrap();
        assert_eq!(owner(&private).unwrap(), (1234, 1235, 0o600));
        Draft::shared(&shared).unwrap().finish().unwrap();
        assert_eq!(owner(&shared).unwrap().0, 0);
    }

    #[test]
    fn a_draft_of_a_crash_is_replaced_and_a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(dir.path().join("real.tmp"), "half").unwrap();
        fs::set_permissions(dir.path().join("real.tmp"), Permissions::from_mode(0o400)).unwrap();
        replace(&path, b"whole").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        replace(&link, b"through the link").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"through the link");
        assert_eq!(names(dir.path()), ["link", "real"]);
    }

    #[test]
    fn a_temporary_file_replaces_a_link_and_not_its_target_and_is_removed_without_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let (new, target, link) = (dir.path().join("new"), dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink("target", &link).unwrap();
        let temporary = Temporary::create(new.clone(), 0o600).unwrap();
        assert!(Temporary::create(new.clone(), 0o600).is_err(), "another caller writes it");
        temporary.file().write_all(b"new").unwrap();
        temporary.rename(&link).unwrap();
        assert_eq!((fs::read(&target).unwrap(), fs::read(&link).unwrap()), (b"old".to_vec(), b"new".to_vec()));
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        drop(Temporary::create(new, 0o600).unwrap());
        assert_eq!(names(dir.path()), ["link", "target"]);
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        replace(Path::new("/dev/null"), b"anything").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let mut full = Draft::shared(Path::new("/dev/full")).unwrap();
        assert_eq!(full.write_all(b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
