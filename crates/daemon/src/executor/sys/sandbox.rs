//! What separates a process from its node: devices, processes and read-only mounts, by system calls in the child that becomes
//! the task's first process.

use super::mounts::{Fault, Mounts, Written, bind, mount_new, open, path_of};
use std::ffi::{CStr, CString, c_int};
use std::ptr;

/// The part of a sandbox that is resolved before its process starts.
#[derive(Default, Debug)]
pub struct Sandbox {
    /// The working directory, if no private directory hides it. It stays writable where it is.
    pub working: Option<CString>,
    /// Paths below [`DEV`] that the task has; those that do not exist are left out.
    pub devices: Vec<Device>,
    /// Directories of the node in whose place the task finds empty ones.
    pub emptied: Vec<CString>,
    /// Makes mounts read-only as on a kernel that has no call for all of them.
    pub one_by_one: bool,
}

/// A device file, and the directories above it from the outermost one on.
#[derive(Debug)]
pub struct Device {
    pub path: CString,
    pub above: Vec<CString>,
}

/// Directories that a sandbox has of its own, or empty. Working directories in them are not writable.
pub const OWN: [&CStr; 4] = [c"/dev", c"/proc", c"/sys", c"/run/user"];

/// The directory of devices, with a slash at the end.
pub const DEV: &str = "/dev/";
/// How many bytes of the list of mounts are read. On a node that has a longer one, and a kernel before 5.12, tasks do not start.
const MOST_OF_LIST: usize = 4 << 20;

/// What a task must not change in its view of the kernel. Most of it belongs to root, and a task may run as root.
const KERNEL: [&CStr; 7] =
    [c"/proc/sys", c"/proc/sysrq-trigger", c"/proc/irq", c"/proc/bus", c"/proc/fs", c"/proc/acpi", c"/proc/scsi"];
const LINKS: [(&CStr, &CStr); 5] = [
    (c"/proc/self/fd", c"/dev/fd"),
    (c"/proc/self/fd/0", c"/dev/stdin"),
    (c"/proc/self/fd/1", c"/dev/stdout"),
    (c"/proc/self/fd/2", c"/dev/stderr"),
    (c"pts/ptmx", c"/dev/ptmx"),
];

/// Whether an opened directory is on a mount that may be written to.
///
/// # Safety
/// Must be called only in a child with memory of its own.
pub unsafe fn is_writable(directory: c_int) -> bool {
    // SAFETY: `statfs` is plain data that the kernel fills in.
    unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        libc::fstatvfs(directory, &raw mut found) == 0 && found.f_flag & libc::ST_RDONLY == 0
    }
}

/// Mounts a `/dev` with these devices only.
///
/// # Safety
/// As for [`is_writable`].
pub unsafe fn replace_devices(devices: &[Device]) -> Result<(), Fault> {
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let before = libc::open(c"/dev".as_ptr(), flags | libc::O_DIRECTORY);
        if before < 0 || !mount_new(c"tmpfs", c"/dev", libc::MS_NOSUID | libc::MS_NOEXEC, c"mode=0755,size=1m") {
            return Err(Fault::Devices);
        }
        for Device { path, above } in devices {
            let file = libc::openat(before, path.as_ptr().add(DEV.len()), flags);
            if file < 0 {
                continue;
            }
            for directory in above {
                // It exists if another device is there.
                libc::mkdir(directory.as_ptr(), 0o755);
            }
            let place = libc::open(path.as_ptr(), libc::O_CREAT | libc::O_CLOEXEC | libc::O_RDONLY, 0o600);
            if place < 0 || !bind(file, path, libc::MS_BIND) {
                return Err(Fault::Devices);
            }
            libc::close(place);
            libc::close(file);
        }
        libc::close(before);
        for (target, link) in LINKS {
            if libc::symlink(target.as_ptr(), link.as_ptr()) < 0 {
                return Err(Fault::Devices);
            }
        }
        for (directory, mode) in [(c"/dev/shm", 0o1777), (c"/dev/pts", 0o755), (c"/dev/mqueue", 0o1777)] {
            if libc::mkdir(directory.as_ptr(), mode) < 0 {
                return Err(Fault::Devices);
            }
        }
        let quiet = libc::MS_NOSUID | libc::MS_NOEXEC;
        // A kernel may have neither pseudoterminals nor queues.
        let is_missing = || *libc::__errno_location() == libc::ENODEV;
        let pts = mount_new(c"devpts", c"/dev/pts", quiet, c"newinstance,ptmxmode=0666,mode=0620") || is_missing();
        let queues = mount_new(c"mqueue", c"/dev/mqueue", quiet | libc::MS_NODEV, c"") || is_missing();
        if pts && queues { Ok(()) } else { Err(Fault::Devices) }
    }
}

/// Mounts the task's own `/proc`, and makes everything read-only but what is the task's.
///
/// # Safety
/// As for [`is_writable`]. The devices must have been replaced before.
pub unsafe fn close(sandbox: &Sandbox, mounts: &Mounts, written: &Written) -> Result<(), Fault> {
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        let quiet = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NODEV;
        for place in &sandbox.emptied {
            if !mount_new(c"tmpfs", place, quiet, c"mode=0755") {
                return Err(Fault::Mount);
            }
        }
        // What the node mounts later could be written to.
        if libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), libc::MS_REC | libc::MS_PRIVATE, ptr::null()) < 0 {
            return Err(Fault::Mount);
        }
        if !mount_new(c"proc", c"/proc", quiet, c"") {
            return Err(Fault::Processes);
        }
        for path in KERNEL {
            let file = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if file >= 0 && !bind(file, path, libc::MS_BIND) {
                return Err(Fault::Processes);
            }
            libc::close(file);
        }
        let at_once = !sandbox.one_by_one && set_read_only(libc::AT_FDCWD, c"/", libc::AT_RECURSIVE, true);
        if !at_once && !close_one_by_one(mounts.maps.is_some()) {
            return Err(Fault::ReadOnly);
        }
        let private = mounts.private.iter().filter(|private| private.is_writable).map(|private| &private.target);
        let mut are_open = open_again(open(c"/proc", 0), at_once);
        for path in private.chain(&mounts.memory) {
            are_open = are_open && open_again(open(path, 0), at_once);
        }
        for mount in written.kept.into_iter().chain([written.working]).filter(|mount| *mount >= 0) {
            are_open = are_open && open_again(mount, at_once);
        }
        if are_open { Ok(()) } else { Err(Fault::ReadOnly) }
    }
}

/// Sets or clears that the mount at a path from an open directory is read-only, with the call of kernel 5.12.
///
/// # Safety
/// As for [`is_writable`].
unsafe fn set_read_only(from: c_int, path: &CStr, flags: c_int, on: bool) -> bool {
    const READ_ONLY: u64 = 1;
    // What to set, what to clear, the propagation, a namespace of users.
    let attributes: [u64; 4] = [if on { READ_ONLY } else { 0 }, if on { 0 } else { READ_ONLY }, 0, 0];
    let (call, length) = (libc::SYS_mount_setattr, size_of_val(&attributes));
    // SAFETY: a plain system call with valid pointers.
    unsafe { libc::syscall(call, from, path.as_ptr(), flags, attributes.as_ptr(), length) == 0 }
}

/// Lets an open mount that was made read-only be written to.
///
/// # Safety
/// As for [`is_writable`].
unsafe fn open_again(mount: c_int, at_once: bool) -> bool {
    const SAME: [(libc::c_ulong, libc::c_ulong); 6] = [
        (libc::ST_NOSUID, libc::MS_NOSUID),
        (libc::ST_NODEV, libc::MS_NODEV),
        (libc::ST_NOEXEC, libc::MS_NOEXEC),
        (libc::ST_NOATIME, libc::MS_NOATIME),
        (libc::ST_NODIRATIME, libc::MS_NODIRATIME),
        (libc::ST_RELATIME, libc::MS_RELATIME),
    ];
    // SAFETY: plain system calls with valid pointers; `statvfs` is plain data that the kernel fills in.
    unsafe {
        if at_once {
            return set_read_only(mount, c"", libc::AT_EMPTY_PATH, false);
        }
        let mut found: libc::statvfs = std::mem::zeroed();
        if libc::fstatvfs(mount, &raw mut found) < 0 {
            return false;
        }
        let kept = SAME.iter().filter(|(there, _)| found.f_flag & there != 0).fold(0, |all, (_, flag)| all | flag);
        let path = path_of(mount);
        CStr::from_bytes_until_nul(&path).is_ok_and(|path| remount(path, kept))
    }
}

/// # Safety
/// As for [`is_writable`].
unsafe fn remount(path: &CStr, flags: libc::c_ulong) -> bool {
    let flags = libc::MS_REMOUNT | libc::MS_BIND | flags;
    // SAFETY: a plain system call with valid pointers.
    unsafe { libc::mount(ptr::null(), path.as_ptr(), ptr::null(), flags, ptr::null()) == 0 }
}

/// Makes every mount of this process read-only. With `is_the_tasks_user`, this process reaches no other mounts than its task.
///
/// # Safety
/// As for [`is_writable`].
unsafe fn close_one_by_one(is_the_tasks_user: bool) -> bool {
    // SAFETY: plain system calls with valid pointers. The memory is this process's alone.
    unsafe {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let room = libc::mmap(ptr::null_mut(), MOST_OF_LIST, access, kind, -1, 0);
        let file = libc::open(c"/proc/self/mountinfo".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if room == libc::MAP_FAILED || file < 0 {
            return false;
        }
        let mut length = 0;
        loop {
            let read = libc::read(file, room.add(length), MOST_OF_LIST - length);
            match usize::try_from(read) {
                Ok(0) if length == MOST_OF_LIST => {
                    *libc::__errno_location() = libc::EOVERFLOW;
                    return false;
                }
                Ok(0) => break,
                Ok(read) => length += read,
                Err(_) => return false,
            }
        }
        let list = std::slice::from_raw_parts_mut(room.cast::<u8>(), length);
        for line in list.split_mut(|byte| *byte == b'\n') {
            let Some((path, flags)) = mount_of(line) else { continue };
            if remount(path, flags | libc::MS_RDONLY) {
                continue;
            }
            // A mount that another one hides cannot be reached by its path, neither here nor by the task.
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR | libc::EINVAL => {}
                // Nor can one below a directory that only others may enter.
                libc::EACCES if is_the_tasks_user => {}
                _ => return false,
            }
        }
        libc::munmap(room, MOST_OF_LIST);
        libc::close(file);
        true
    }
}

/// The place of a mount and its flags, of a line of `/proc/self/mountinfo`, which is changed.
fn mount_of(line: &mut [u8]) -> Option<(&CStr, libc::c_ulong)> {
    const FLAGS: [(&[u8], libc::c_ulong); 6] = [
        (b"nosuid", libc::MS_NOSUID),
        (b"nodev", libc::MS_NODEV),
        (b"noexec", libc::MS_NOEXEC),
        (b"noatime", libc::MS_NOATIME),
        (b"nodiratime", libc::MS_NODIRATIME),
        (b"relatime", libc::MS_RELATIME),
    ];
    let spaces =
        |line: &[u8], nth| line.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(at, _)| at).nth(nth);
    let (start, end, last) = (spaces(line, 3)? + 1, spaces(line, 4)?, spaces(line, 5)?);
    let of = |option: &[u8]| FLAGS.iter().find(|(name, _)| *name == option).map_or(0, |(_, flag)| *flag);
    let flags = line[end + 1..last].split(|byte| *byte == b',').fold(0, |all, option| all | of(option));
    // Some bytes are written as three octal digits. The final zero takes the place of the space, or of a digit.
    let (mut from, mut to) = (start, start);
    while from < end {
        let is_escaped = line[from] == b'\\' && from + 3 < end;
        let octal = |digits: &[u8]| digits.iter().fold(0, |byte: u8, digit| byte << 3 | (digit & 7));
        let byte = if is_escaped { octal(&line[from + 1..from + 4]) } else { line[from] };
        line[to] = byte;
        (from, to) = (from + if is_escaped { 4 } else { 1 }, to + 1);
    }
    line[to] = 0;
    Some((CStr::from_bytes_with_nul(&line[start..=to]).ok()?, flags))
}

/// Gives up the rights that programs could give back: what is left is what the user has.
///
/// # Safety
/// Must be called only in a process of one thread.
pub unsafe fn drop_privileges() -> bool {
    // SAFETY: plain system calls.
    unsafe {
        let mut none = super::Capabilities::default();
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && super::capabilities(libc::SYS_capset, &mut none).is_ok()
    }
}

/// Removes all capabilities from those that programs can have. Fails without effect in a process that has none.
///
/// # Safety
/// As for [`drop_privileges`].
pub unsafe fn bound_capabilities() {
    // SAFETY: plain system calls. The one after the last capability fails.
    unsafe { (0..64).all(|capability: libc::c_ulong| libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) };
}

#[cfg(test)]
mod tests {
    use super::super::launch::tests::order;
    use super::super::{Apart, ChildStack, Launch, failure_of, launch_apart};
    use super::*;
    use std::fs;
    use std::os::fd::AsFd;

    /// What a program in a sandbox prints. `None` if there are no namespaces.
    fn printed(script: &str, sandbox: Sandbox) -> Option<String> {
        let null = fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        let out = tempfile::NamedTempFile::new().unwrap();
        let mounts = Mounts { memory: Some(c"/dev/shm".into()), sandbox: Some(sandbox), ..Mounts::default() };
        let programs = [c"/bin/sh".into()];
        let order = Launch {
            arguments: &[c"sh".into(), c"-c".into(), CString::new(script).unwrap()],
            environment: &[c"PATH=/usr/bin:/bin".into()],
            stdio: [null.as_fd(), out.as_file().as_fd(), null.as_fd()],
            mounts: Some(&mounts),
            ..order(&programs, &null)
        };
        // Its end must be awaited: the first process ends with the reader of this pipe.
        let Apart { pid, report, ending: _ending } = launch_apart(&order, &mut ChildStack::default()).ok()?;
        // SAFETY: plain wait for this process's child.
        unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
        assert!(failure_of(report.as_fd()).is_none());
        Some(fs::read_to_string(out.path()).unwrap())
    }

    #[test]
    fn old_and_new_kernels_make_the_same_mounts_read_only() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: this needs root");
        }
        let place = tempfile::Builder::new().prefix("with space").tempdir_in("/").unwrap();
        let working = CString::new(place.path().to_str().unwrap()).unwrap();
        let script = format!(
            "cut -d' ' -f5,6 /proc/self/mountinfo; touch /usr/made /etc/made || echo closed; touch '{}/made' && echo open",
            place.path().display()
        );
        let of = |one_by_one| {
            let null = Device { path: c"/dev/null".into(), above: Vec::new() };
            let working = Some(working.clone());
            printed(&script, Sandbox { working, devices: vec![null], emptied: vec![c"/srv".into()], one_by_one })
        };
        let (Some(at_once), Some(one_by_one)) = (of(false), of(true)) else {
            return println!("skipped: there are no namespaces");
        };
        // Mounts that others hide cannot be reached by their paths; the last one at each path counts.
        let last = |text: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.map(|(path, flags)| (path.to_owned(), flags.to_owned())).collect::<std::collections::BTreeMap<_, _>>()
        };
        assert!(at_once.ends_with("closed\nopen\n") && one_by_one.ends_with("closed\nopen\n"), "{one_by_one}");
        assert_eq!(last(&at_once), last(&one_by_one));
        assert!(last(&at_once)["/"].starts_with("ro,") && last(&at_once)["/srv"].starts_with("ro,"));
        assert!(place.path().join("made").exists());
    }

    #[test]
    fn a_mount_is_read_with_its_flags_and_escaped_bytes() {
        let of = |text: &str| {
            let mut line = text.as_bytes().to_vec();
            mount_of(&mut line).map(|(path, flags)| (path.to_str().unwrap().to_owned(), flags))
        };
        let plain = "36 35 98:0 /mnt1 /mnt2 rw,nosuid,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(of(plain), Some(("/mnt2".to_owned(), libc::MS_NOSUID | libc::MS_NOATIME)));
        let escaped = r"36 35 98:0 / /a\040b\134c\012 ro,nodev,noexec,relatime,nodiratime - x y z";
        let flags = libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RELATIME | libc::MS_NODIRATIME;
        assert_eq!(of(escaped), Some(("/a b\\c\n".to_owned(), flags)));
        for wrong in ["", "36 35 98:0 / /mnt2", " ", "1 2 3 4 5"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
