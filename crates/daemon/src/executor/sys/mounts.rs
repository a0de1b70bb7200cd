//! Gives a process mounts of its own, by system calls in the child that becomes the task.
//!
//! The child must have memory of its own: opening and mounting directories can block.

use super::Credentials;
use super::sandbox::{self, Sandbox};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

/// The most directories that are private, and the most that are kept.
pub const MOST: usize = 3;

/// The mounts of a task. Everything is resolved, because the child may not allocate memory.
#[derive(Default, Debug)]
pub struct Mounts {
    /// Directories that take the place of the node's; at most [`MOST`].
    pub private: Vec<Private>,
    /// Directories of the node below private ones that stay where they are; at most [`MOST`].
    pub kept: Vec<Kept>,
    /// A place for a new file system in memory.
    pub memory: Option<CString>,
    /// What a process without privileges writes into its maps of users and groups, to be the same user as before.
    pub maps: Option<[CString; 2]>,
    /// What separates it from the rest of the node as well.
    pub sandbox: Option<Sandbox>,
}

#[derive(Debug)]
pub struct Private {
    pub source: CString,
    /// The numbers of the file system and the directory: its path may lead elsewhere since.
    pub identity: (u64, u64),
    pub target: CString,
    /// Whether the task may write to it; only a sandbox has others.
    pub is_writable: bool,
}

#[derive(Debug)]
pub struct Kept {
    pub source: CString,
    pub target: CString,
    /// Whether the path is the user's, and must be one that the user can reach.
    pub is_users: bool,
}

/// What did not work. The error number says why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Namespace,
    Mount,
    /// A directory of the user cannot be opened.
    Directory,
    Devices,
    Processes,
    ReadOnly,
}

impl Mounts {
    /// The private directory that hides a path of the node from the task.
    pub fn hiding(&self, path: &Path) -> Option<PathBuf> {
        let shows = |directory: &CStr| path.starts_with(as_path(directory));
        let emptied = self.sandbox.iter().flat_map(|sandbox| &sandbox.emptied);
        let private = self.private.iter().map(|private| &private.target).chain(&self.memory).chain(emptied);
        let hiding =
            private.map(|target| as_path(target)).find(|target| path.starts_with(target) && path != *target)?;
        let is_kept = self.kept.iter().any(|kept| shows(&kept.target));
        (!is_kept).then(|| hiding.to_owned())
    }
}

/// The mounts of directories that a task may write to, as open files; negative where there is none. Paths of a user may lead elsewhere
/// by now.
pub struct Written {
    pub kept: [c_int; MOST],
    pub working: c_int,
}

/// Bytes of the longest path, and of a zero byte after it.
const LONGEST: usize = libc::PATH_MAX as usize + 1;

/// A path that was made for the kernel.
pub fn as_path(text: &CStr) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(text.to_bytes()))
}

/// Moves this process into namespaces of its own and mounts the directories there. With `user`, paths of the user are opened
/// with that user's rights.
///
/// # Safety
/// Must be called only in a child with memory of its own, and only system calls may follow.
pub unsafe fn enter(mounts: &Mounts, user: Option<Credentials<'_>>) -> Result<(), Fault> {
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        create_namespaces(mounts)?;
        // The node's later mounts are seen here, and none of these mounts on the node.
        if libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), libc::MS_REC | libc::MS_SLAVE, ptr::null()) < 0 {
            return Err(Fault::Mount);
        }
        // All are opened first, because the mounts may hide them. A mount needs directories that were opened in this namespace.
        let mut private = [-1; MOST];
        for (place, directory) in private.iter_mut().zip(&mounts.private) {
            *place = open(&directory.source, libc::O_NOFOLLOW);
            if *place < 0 || !is_same(*place, directory.identity) {
                return Err(Fault::Mount);
            }
        }
        let mut kept = [-1; MOST];
        let mut written = Written { kept: [-1; MOST], working: -1 };
        for (place, directory) in kept.iter_mut().zip(&mounts.kept) {
            *place = match directory.is_users {
                true => open_as(&directory.source, user),
                false => open(&directory.source, libc::O_NOFOLLOW),
            };
            if *place < 0 {
                return Err(if directory.is_users { Fault::Directory } else { Fault::Mount });
            }
            if mounts.sandbox.is_some() && directory.is_users && real_path(*place).is_none() {
                *libc::__errno_location() = libc::EACCES;
                return Err(Fault::Directory);
            }
        }
        if let Some(working) = mounts.sandbox.as_ref().and_then(|sandbox| sandbox.working.as_ref()) {
            let file = open_as(working, user);
            if file < 0 {
                return Err(Fault::Directory);
            }
            // On itself, so that it can be written to when the mount that contains it is read-only. Where links lead to what a sandbox
            // has of its own, it stays read-only.
            if let Some(real) = real_path(file) {
                let target = real.as_ptr().cast::<c_char>();
                written.working = bind_written(file, CStr::from_ptr(target), libc::MS_BIND | libc::MS_REC)?;
            }
        }
        for (file, directory) in private.iter().zip(&mounts.private) {
            if !bind(*file, &directory.target, libc::MS_BIND) {
                return Err(Fault::Mount);
            }
        }
        for ((file, is_written), directory) in kept.iter().zip(&mut written.kept).zip(&mounts.kept) {
            *is_written = bind_written(*file, &directory.target, libc::MS_BIND | libc::MS_REC)?;
        }
        if let Some(sandbox) = &mounts.sandbox {
            sandbox::replace_devices(&sandbox.devices)?;
        }
        if let Some(place) = &mounts.memory
            && !mount_new(c"tmpfs", place, libc::MS_NOSUID | libc::MS_NODEV, c"mode=1777")
        {
            return Err(Fault::Mount);
        }
        match &mounts.sandbox {
            Some(sandbox) => sandbox::close(sandbox, mounts, &written),
            None => Ok(()),
        }
    }
}

/// # Safety
/// As for [`enter`].
unsafe fn create_namespaces(mounts: &Mounts) -> Result<(), Fault> {
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        // The namespace of a sandbox's user was created with the process.
        let others = match (&mounts.sandbox, &mounts.maps) {
            (Some(_), _) => libc::CLONE_NEWIPC,
            (None, Some(_)) => libc::CLONE_NEWUSER,
            (None, None) => 0,
        };
        if libc::unshare(libc::CLONE_NEWNS | others) < 0 {
            return Err(Fault::Namespace);
        }
        if let Some([of_users, of_groups]) = &mounts.maps {
            // The kernel demands that a process without privileges gives up to change its groups.
            let is_mapped = write_to(c"/proc/self/setgroups", c"deny")
                && write_to(c"/proc/self/uid_map", of_users)
                && write_to(c"/proc/self/gid_map", of_groups);
            if !is_mapped {
                return Err(Fault::Namespace);
            }
        }
        Ok(())
    }
}

/// Mounts a new file system.
///
/// # Safety
/// As for [`enter`].
pub unsafe fn mount_new(kind: &CStr, target: &CStr, flags: libc::c_ulong, options: &CStr) -> bool {
    let options: *const c_void = options.as_ptr().cast();
    // SAFETY: a plain system call with valid pointers.
    unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options) == 0 }
}

/// # Safety
/// As for [`enter`].
unsafe fn write_to(path: &CStr, text: &CStr) -> bool {
    let length = text.count_bytes();
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        file >= 0 && libc::write(file, text.as_ptr().cast(), length) == length.cast_signed()
    }
}

/// # Safety
/// As for [`enter`].
pub(super) unsafe fn open(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: plain system call with a valid pointer.
    unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC | flags) }
}

/// Opens a directory with the rights of a user. The system calls are made directly, as in `become_user`.
///
/// # Safety
/// As for [`enter`].
unsafe fn open_as(path: &CStr, user: Option<Credentials<'_>>) -> c_int {
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        let Some(user) = user else { return open(path, 0) };
        if libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) != 0 {
            return -1;
        }
        libc::syscall(libc::SYS_setfsgid, user.gid);
        libc::syscall(libc::SYS_setfsuid, user.uid);
        // These calls return the id before, also if they changed nothing.
        let is_user = libc::syscall(libc::SYS_setfsuid, -1) == libc::c_long::from(user.uid)
            && libc::syscall(libc::SYS_setfsgid, -1) == libc::c_long::from(user.gid);
        let file = if is_user { open(path, 0) } else { -1 };
        let errno = if is_user { *libc::__errno_location() } else { libc::EPERM };
        libc::syscall(libc::SYS_setfsuid, libc::geteuid());
        libc::syscall(libc::SYS_setfsgid, libc::getegid());
        *libc::__errno_location() = errno;
        file
    }
}

/// # Safety
/// As for [`enter`].
unsafe fn is_same(file: c_int, identity: (u64, u64)) -> bool {
    // SAFETY: `stat` is plain data that the kernel fills in.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        if libc::fstat(file, &raw mut found) < 0 {
            return false;
        }
        *libc::__errno_location() = libc::ESTALE;
        (found.st_dev, found.st_ino) == identity
    }
}

/// Mounts an opened directory at a path.
///
/// # Safety
/// As for [`enter`].
pub unsafe fn bind(file: c_int, target: &CStr, flags: libc::c_ulong) -> bool {
    let source = path_of(file);
    let none = ptr::null();
    // SAFETY: the path ends with a zero byte, and the target is valid.
    unsafe { libc::mount(source.as_ptr().cast::<c_char>(), target.as_ptr(), none, flags, ptr::null()) == 0 }
}

/// Mounts an opened directory at a path. Returns the open mount, or a negative number if the directory is on a mount that cannot be written
/// to.
///
/// # Safety
/// As for [`enter`].
unsafe fn bind_written(file: c_int, target: &CStr, flags: libc::c_ulong) -> Result<c_int, Fault> {
    // SAFETY: plain system calls with valid pointers; `stat` is plain data that the kernel fills in.
    unsafe {
        let is_writable = sandbox::is_writable(file);
        if !bind(file, target, flags) {
            return Err(Fault::Mount);
        }
        if !is_writable {
            return Ok(-1);
        }
        let mut found: libc::stat = std::mem::zeroed();
        let mount = open(target, libc::O_NOFOLLOW);
        match mount >= 0 && libc::fstat(file, &raw mut found) == 0 && is_same(mount, (found.st_dev, found.st_ino)) {
            true => Ok(mount),
            false => Err(Fault::Mount),
        }
    }
}

/// The path of an open directory, without links; `None` if the directory is one that no user may have writable in a sandbox.
///
/// # Safety
/// As for [`enter`].
unsafe fn real_path(file: c_int) -> Option<[u8; LONGEST]> {
    let mut path = [0; LONGEST];
    let link = path_of(file);
    // SAFETY: both are buffers of this function, and the path ends with a zero byte.
    let length = unsafe { libc::readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), LONGEST) };
    let length = usize::try_from(length).ok().filter(|length| *length < LONGEST)?;
    let is_within = |own: &&CStr| {
        let own = own.to_bytes();
        path[..length].starts_with(own) && matches!(path[own.len()], 0 | b'/')
    };
    (&path[..length] != b"/" && !sandbox::OWN.iter().any(is_within)).then_some(path)
}

/// The path of an open file of this process.
pub(super) fn path_of(file: c_int) -> [u8; 32] {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let mut path = [0; 32];
    path[..PREFIX.len()].copy_from_slice(PREFIX);
    let mut rest = file;
    let digits = file.checked_ilog10().unwrap_or(0) as usize + 1;
    for digit in path[PREFIX.len()..][..digits].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_open_file_has_its_number() {
        for (file, expected) in
            [(0, "/proc/self/fd/0"), (10, "/proc/self/fd/10"), (i32::MAX, "/proc/self/fd/2147483647")]
        {
            let path = path_of(file);
            assert_eq!(CStr::from_bytes_until_nul(&path).unwrap().to_str(), Ok(expected));
        }
    }

    #[test]
    fn what_is_below_a_private_directory_and_not_kept_is_hidden() {
        let private = Private { source: c"/s".into(), identity: (0, 0), target: c"/tmp".into(), is_writable: true };
        let kept = Kept { source: c"/tmp/a/b".into(), target: c"/tmp/a/b".into(), is_users: false };
        let memory = Some(c"/dev/shm".into());
        let mounts = Mounts { private: vec![private], kept: vec![kept], memory, ..Mounts::default() };
        let hiding = |path: &str| mounts.hiding(Path::new(path));
        assert_eq!(hiding("/tmp/a/c"), Some("/tmp".into()));
        assert_eq!(hiding("/dev/shm/x"), Some("/dev/shm".into()));
        for shown in ["/tmp", "/tmp/a/b", "/tmp/a/b/c", "/tmpx", "/usr/bin/env"] {
            assert_eq!(hiding(shown), None, "{shown}");
        }
    }
}
