//! Removes all files that a task has left in a directory, with a few descriptors for any depth and width, and never
//! files outside: no link is followed, and mounted file systems are unmounted, not emptied.
//!
//! A directory that is not empty is first moved up into the top directory, under a new name. So no path becomes long,
//! nothing is kept in memory for each level, and a mount point, which cannot be moved, is never entered.

use rustix::fs::{AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum number of mounts on one name.
const MOST_MOUNTS: u32 = 16;
/// Number of entries that are removed between two pauses.
const STRIDE: u32 = 256;
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const OWNER: Mode = Mode::RWXU;

/// Entries that could not be removed: one example with the reason, and their number.
#[derive(Debug)]
pub struct Leftover {
    pub example: String,
    pub error: Errno,
    pub count: u64,
}

/// The speed of a removal.
pub struct Pace {
    removed: u32,
    since: Instant,
    /// Whether pauses are skipped.
    hurries: Box<dyn Fn() -> bool + Send>,
}

impl Pace {
    /// Works at most half of the time, unless `hurries` returns true.
    pub fn gentle(hurries: impl Fn() -> bool + Send + 'static) -> Pace {
        Pace { removed: 0, since: Instant::now(), hurries: Box::new(hurries) }
    }

    pub fn fast() -> Pace {
        Pace::gentle(|| true)
    }

    fn step(&mut self) {
        self.removed += 1;
        if self.removed < STRIDE {
            return;
        }
        self.removed = 0;
        if !(self.hurries)() {
            std::thread::sleep(self.since.elapsed().min(LONGEST_PAUSE));
        }
        self.since = Instant::now();
    }
}

/// Removes a file, a link, or a directory with its content. A missing path is no error.
///
/// # Errors
/// The entries that remain, in a directory with this name.
pub fn remove_tree(path: &Path, pace: &mut Pace) -> Result<(), Leftover> {
    let failed = |error| Leftover { example: path.display().to_string(), error, count: 1 };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::INVAL))?;
    match unlink(CWD, &name, AtFlags::empty()) {
        Ok(()) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(failed(error)),
    }
    let top = open_directory(CWD, &name).map_err(failed)?;
    let mut removal = Removal { top, next: 0, pace, first: None, failed: HashSet::new(), count: 0 };
    while removal.pass().map_err(failed)? {}
    let Removal { first, count, .. } = removal;
    match (unlink(CWD, &name, AtFlags::REMOVEDIR), first) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some((example, error))) => Err(Leftover { example, error, count }),
        (Err(error), None) => Err(failed(error)),
    }
}

struct Removal<'a> {
    top: OwnedFd,
    next: u64,
    pace: &'a mut Pace,
    first: Option<(String, Errno)>,
    /// Entries of the top directory that cannot be removed.
    failed: HashSet<CString>,
    count: u64,
}

/// An entry cannot be removed, and the reason is recorded.
struct Noted;

impl Removal<'_> {
    /// Removes all entries of the top directory once. Returns false if no more can be removed.
    fn pass(&mut self) -> Result<bool, Errno> {
        let mut has_come_on = false;
        for entry in Dir::read_from(&self.top)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_itself_or_parent(name) || self.failed.contains(name) {
                continue;
            }
            let removed = match unlink(self.top.as_fd(), name, AtFlags::empty()) {
                Err(Errno::ISDIR) => self.remove_directory(name),
                removed => removed.map_err(|error| self.note(name, error)),
            };
            self.pace.step();
            match removed {
                Ok(()) => has_come_on = true,
                Err(Noted) => drop(self.failed.insert(name.to_owned())),
            }
        }
        Ok(has_come_on)
    }

    /// Removes a directory of the top directory. Directories in it that are not empty are moved to the top directory.
    fn remove_directory(&mut self, name: &CStr) -> Result<(), Noted> {
        match unlink(self.top.as_fd(), name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(self.note(name, error)),
        }
        let directory = open_directory(self.top.as_fd(), name).map_err(|error| self.note(name, error))?;
        let noted = self.count;
        // Some file systems skip entries of a list while others are removed.
        while self.empty(&directory).map_err(|error| self.note(name, error))? && self.count == noted {}
        match unlink(self.top.as_fd(), name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            // The reason is recorded already.
            Err(_) if self.count > noted => Err(Noted),
            Err(error) => Err(self.note(name, error)),
        }
    }

    /// Returns true if an entry was removed.
    fn empty(&mut self, directory: &OwnedFd) -> Result<bool, Errno> {
        let mut has_come_on = false;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_itself_or_parent(name) {
                continue;
            }
            let removed = match unlink(directory.as_fd(), name, AtFlags::empty()) {
                Err(Errno::ISDIR) => match unlink(directory.as_fd(), name, AtFlags::REMOVEDIR) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => self.move_up(directory, name),
                    removed => removed,
                },
                removed => removed,
            };
            self.pace.step();
            match removed {
                Ok(()) => has_come_on = true,
                Err(error) => drop(self.note(name, error)),
            }
        }
        Ok(has_come_on)
    }

    fn move_up(&mut self, from: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let mut is_released = false;
        loop {
            let fresh = format!(".removed-{}", self.next);
            let moved = match rustix::fs::renameat_with(from, name, &self.top, &fresh, RenameFlags::NOREPLACE) {
                // The file system does not support the flag.
                Err(Errno::INVAL) if rustix::fs::statat(&self.top, &fresh, AtFlags::SYMLINK_NOFOLLOW).is_err() => {
                    rustix::fs::renameat(from, name, &self.top, &fresh)
                }
                moved => moved,
            };
            match moved {
                Err(Errno::EXIST) => self.next += 1,
                Err(Errno::ACCESS | Errno::PERM) if !is_released => {
                    is_released = true;
                    release(from.as_fd(), name);
                    let _ = open_up(from.as_fd(), name);
                }
                Ok(()) => {
                    self.next += 1;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn note(&mut self, name: &CStr, error: Errno) -> Noted {
        self.count += 1;
        self.first.get_or_insert_with(|| (String::from_utf8_lossy(name.to_bytes()).escape_debug().to_string(), error));
        Noted
    }
}

fn is_itself_or_parent(name: &CStr) -> bool {
    name == c"." || name == c".."
}

/// Removes one name. Obstacles such as permissions, attributes and mounts are removed if possible.
fn unlink(parent: impl AsFd, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    let (mut is_released, mut mounts) = (false, 0);
    loop {
        match rustix::fs::unlinkat(&parent, name, flags) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ACCESS | Errno::PERM) if !is_released => {
                is_released = true;
                release(&parent, name);
            }
            // The top directory itself may be a mount of the node's administrator.
            Err(Errno::BUSY) if mounts < MOST_MOUNTS && !name.to_bytes().contains(&b'/') && unmount(&parent, name) => {
                mounts += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Opens a directory, even if its owner has no permission for it.
fn open_directory(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(&parent, name, flags, Mode::empty());
    let directory = match open() {
        Err(Errno::ACCESS) => open_up(&parent, name).and_then(|()| open()),
        opened => opened,
    }?;
    let is_open = rustix::fs::fstat(&directory).is_ok_and(|found| Mode::from_raw_mode(found.st_mode).contains(OWNER));
    if !is_open {
        let _ = rustix::fs::fchmod(&directory, OWNER);
    }
    Ok(directory)
}

/// Restores the owner's permissions for a directory, without following links.
fn open_up(parent: impl AsFd, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), OWNER)
}

/// Removes obstacles to the removal of a name: attributes of the file or its directory, or the mode of the directory.
fn release(parent: impl AsFd, name: &CStr) {
    if !name.to_bytes().contains(&b'/') {
        let _ = rustix::fs::fchmod(&parent, OWNER);
        clear_attributes(&parent);
    }
    let kind = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map(|found| found.st_mode);
    // Opening other kinds of files may have side effects.
    if kind.is_ok_and(|mode| matches!(FileType::from_raw_mode(mode), FileType::RegularFile | FileType::Directory)) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::openat(&parent, name, flags, Mode::empty()) {
            clear_attributes(file);
        }
    }
}

fn clear_attributes(file: impl AsFd) {
    let forbidding = IFlags::IMMUTABLE | IFlags::APPEND;
    if let Ok(attributes) = rustix::fs::ioctl_getflags(&file)
        && attributes.intersects(forbidding)
    {
        let _ = rustix::fs::ioctl_setflags(&file, attributes - forbidding);
    }
}

/// Detaches a mount on this name. Returns true if there was one.
fn unmount(parent: impl AsFd, name: &CStr) -> bool {
    let start = format!("/proc/self/fd/{}/", parent.as_fd().as_raw_fd());
    let Ok(path) = CString::new([start.as_bytes(), name.to_bytes()].concat()) else { return false };
    // SAFETY: the path is a C string that lives as long as the call.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    fn remove(path: &Path) -> Result<(), Leftover> {
        remove_tree(path, &mut Pace::fast())
    }

    #[test]
    fn all_entries_of_a_directory_are_removed_and_none_outside() {
        let home = tempfile::tempdir().unwrap();
        let (top, outside) = (home.path().join("top"), home.path().join("outside"));
        for directory in [top.join("closed/inner"), top.join("empty"), outside.clone()] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(outside.join("mine"), "").unwrap();
        symlink(&outside, top.join("link")).unwrap();
        symlink(outside.join("mine"), top.join("closed/link")).unwrap();
        fs::write(top.join("closed/inner/file"), "").unwrap();
        fs::write(top.join(OsStr::from_bytes(b"caf\xe9")), "").unwrap();
        // Names that the removal itself uses must not be an obstacle.
        fs::create_dir_all(top.join(".removed-0/.removed-1/.removed-0/x")).unwrap();
        for closed in ["closed/inner", "closed"] {
            fs::set_permissions(top.join(closed), Permissions::from_mode(0o000)).unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists() && outside.join("mine").exists());
        symlink(&outside, &top).unwrap();
        remove(&top).unwrap();
        assert!(fs::symlink_metadata(&top).is_err() && outside.join("mine").exists());
        remove(&top).unwrap();
    }

    #[test]
    fn a_very_deep_tree_is_removed_with_few_descriptors() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut at = open_directory(CWD, &CString::new(top.as_os_str().as_bytes()).unwrap()).unwrap();
        // Longer than the maximum path, and deeper than the descriptor limit.
        for _ in 0..1_500 {
            rustix::fs::mkdirat(&at, c"deeper", OWNER).unwrap();
            rustix::fs::openat(&at, c"file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            at = open_directory(&at, c"deeper").unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_mounted_file_system_is_unmounted_and_not_emptied() {
        let home = tempfile::tempdir().unwrap();
        let (top, data) = (home.path().join("top"), home.path().join("data"));
        fs::create_dir_all(top.join("a/b/mounted")).unwrap();
        fs::create_dir(&data).unwrap();
        fs::write(data.join("mine"), "").unwrap();
        let mount = Command::new("mount").arg("--bind").args([&data, &top.join("a/b/mounted")]).output();
        if !mount.is_ok_and(|mount| mount.status.success()) {
            return println!("skipped: this user cannot mount");
        }
        remove(&top).unwrap();
        assert!(!top.exists() && data.join("mine").exists());
    }

    #[test]
    fn immutable_files_are_removed_if_the_attribute_can_be_cleared() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/c"), "").unwrap();
        let names = ["a/b/c", "a/b", "a"].map(|name| top.join(name));
        let chattr = Command::new("chattr").arg("+i").args(&names).output();
        if !chattr.is_ok_and(|chattr| chattr.status.success()) {
            return println!("skipped: this user cannot set the attribute");
        }
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn an_entry_that_cannot_be_removed_is_counted() {
        let home = tempfile::tempdir().unwrap();
        let proc = Path::new("/proc/self/task");
        let error = remove(proc).unwrap_err();
        assert!(error.count > 0, "{error:?}");
        drop(home);
    }
}
