//! The system calls that require `unsafe`: launching, waiting with resource usage, signals as a descriptor, access to
//! files as another user, and programs that deny access to devices.

pub mod bpf;
mod init;
mod launch;
pub mod mounts;
pub mod sandbox;

pub use init::ending_of;
pub use launch::{
    Apart, ChildStack, Credentials, Launch, LaunchError, SHELL, Step, failure_of, has_execed, launch, launch_apart,
};

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lower {
    Io,
    CpuAndIo,
}

/// Priority for CPU and disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precedence {
    nice: c_int,
    /// In the format of `ioprio_set`.
    io: c_int,
}

impl Precedence {
    /// Only what other processes leave idle: nice value 19 and the idle IO class.
    pub const LOWER: Precedence = Precedence { nice: 19, io: 3 << 13 };

    /// A nice value, and no IO class, so that the kernel derives the IO priority from the nice value.
    pub fn usual(nice: c_int) -> Precedence {
        Precedence { nice, io: 0 }
    }
}

/// The score by which the kernel selects the process to kill when the machine runs out of memory.
const OOM_SCORE: &CStr = c"/proc/self/oom_score_adj";

/// Whether this process is protected when the machine runs out of memory: the kernel prefers to kill others.
pub fn is_spared() -> bool {
    let score = OOM_SCORE.to_str().ok().and_then(|path| std::fs::read_to_string(path).ok());
    score.and_then(|score| score.trim().parse::<i32>().ok()).is_some_and(|score| score < 0)
}

/// The exit status and resource usage of a reaped child.
pub struct Exit {
    pub status: c_int,
    pub cpu_micros: u64,
    pub max_rss_bytes: u64,
}

impl Exit {
    fn of(status: c_int, usage: &libc::rusage) -> Exit {
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        Exit {
            status,
            cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
            max_rss_bytes: usage.ru_maxrss as u64 * 1024,
        }
    }
}

/// The pid of a child that has exited and is not reaped. While it is a zombie, its pid and process group are not
/// reused.
pub fn exited_child() -> Option<i32> {
    // SAFETY: `siginfo_t` is plain data that the kernel fills in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for writing, and after success its child fields are the active ones.
    let pid = unsafe {
        if libc::waitid(libc::P_ALL, 0, &raw mut info, flags) < 0 {
            return None;
        }
        info.si_pid()
    };
    (pid > 0).then_some(pid)
}

/// Reaps a child that [`exited_child`] returned.
pub fn reap(pid: i32) -> io::Result<Exit> {
    let mut status = 0;
    // SAFETY: `rusage` is plain data that the kernel fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for writing.
    if unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } != pid {
        return Err(io::Error::last_os_error());
    }
    Ok(Exit::of(status, &usage))
}

/// Signals that the executor ignores: those of a terminal, `SIGPIPE`, and `SIGXFSZ`. For the latter two, the write
/// returns an error, which is reported.
const IGNORED: [c_int; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE, libc::SIGXFSZ];

/// Returns a descriptor from which `SIGCHLD` and `SIGTERM` are read. Sets all other signals to their default, except
/// the ignored ones, whatever was inherited from the parent.
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: signal sets are plain data and every pointer is valid; no handler runs, so no invariants are at stake.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, if IGNORED.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL });
        }
        // The C library reserves the first real-time signals and does not allow to change them, so this uses the system
        // call.
        let default = [0_u64; 4];
        for signal in 32..libc::SIGRTMIN() {
            let nothing = ptr::null_mut::<c_void>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), nothing, size_of::<u64>());
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Reads all pending signals from the descriptor. Returns true if one of them is `SIGTERM`.
pub fn take_signals(descriptor: BorrowedFd<'_>) -> bool {
    let mut terminate = false;
    loop {
        // SAFETY: `signalfd_siginfo` is plain data, and the length given is its size.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: as above.
        let read = unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut info).cast(), size) };
        if read != size as isize {
            return terminate;
        }
        terminate |= info.ssi_signo == libc::SIGTERM as u32;
    }
}

/// Gives all signals their default action, and blocks all or none.
///
/// # Safety
/// Must be called only in the child of a clone, before it executes a program.
unsafe fn reset_signals(blocks: bool) {
    // SAFETY: plain system calls with valid pointers; a signal set is plain data.
    unsafe {
        // Ignored signals would stay ignored after the exec.
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        for signal in IGNORED {
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        }
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut blocked);
        if blocks {
            // Signals that are not blocked would be lost: this is the first process of a namespace.
            libc::sigfillset(&raw mut blocked);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const blocked, ptr::null_mut());
    }
}

/// Closes all descriptors but the three streams and these. Others should be close-on-exec already. Kernels before 5.9 do not have
/// this call.
///
/// # Safety
/// Must be called only in the child of a clone, before it executes a program.
unsafe fn close_others(mut but: [c_int; 2]) {
    but.sort_unstable();
    let mut from = 3;
    for file in but.into_iter().filter(|file| *file >= 3) {
        if from < file {
            close_between(from, libc::c_uint::try_from(file - 1).unwrap_or_default());
        }
        from = file + 1;
    }
    close_between(from, libc::c_uint::MAX);
}

/// Closes these files, one by one before kernel 5.9.
fn close_between(first: c_int, last: libc::c_uint) {
    // SAFETY: plain system calls; `rlimit` is plain data that the kernel fills in.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) == 0 {
            return;
        }
        let mut files: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files);
        let most = files.rlim_max.min(1 << 20) as c_int;
        for file in first..c_int::try_from(last).unwrap_or(most).saturating_add(1).min(most) {
            libc::close(file);
        }
    }
}

/// Forks the process, which must have a single thread. Returns true in the child.
pub fn fork() -> io::Result<bool> {
    // SAFETY: with one thread, no other thread can hold a lock, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid == 0),
    }
}

/// Exits without destructors or exit handlers: after a [`fork`], they belong to the parent.
pub fn exit_at_once(code: c_int) -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(code) }
}

/// Raises the soft limit of open files to the hard limit. Returns the previous limits, which tasks get.
pub fn raise_open_files() -> Option<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) } < 0 {
        return None;
    }
    let raised = libc::rlimit { rlim_cur: before.rlim_max, ..before };
    // SAFETY: `raised` is valid for reading.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    Some(before)
}

/// Sends a signal to a process, or with a negative pid to its process group. Returns false if it was not sent, for
/// example because there is no such process.
pub fn kill(pid: i32, signal: c_int) -> bool {
    // SAFETY: kill has no memory preconditions. 0 and -1, which mean many processes, are excluded.
    pid != 0 && pid != -1 && unsafe { libc::kill(pid, signal) } == 0
}

/// Sends a signal to the process group of a task. A task of another user that has not made its group yet gets it alone; it
/// has not been reaped.
pub fn kill_group(pid: i32, signal: c_int) -> bool {
    kill(-pid, signal) || kill(pid, signal)
}

/// Sets the priority of a thread, or of the calling thread for 0. Makes only system calls. Errors are ignored: if a
/// call is not permitted or the thread does not exist, nothing changes.
pub fn set_precedence(thread: c_int, precedence: Precedence, with_cpu: bool) {
    /// `IOPRIO_WHO_PROCESS`: `thread` is a thread id.
    const WHO_PROCESS: c_int = 1;
    // SAFETY: neither call accesses memory.
    unsafe {
        if with_cpu {
            libc::setpriority(libc::PRIO_PROCESS, thread.cast_unsigned(), precedence.nice);
        }
        libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, thread, precedence.io);
    }
}

/// The sets of capabilities of a thread, as `capget` and `capset` take them: effective, permitted and inheritable of the first
/// 32, then of the others.
type Capabilities = [u32; 6];

/// The call with the present layout of [`Capabilities`], for this thread.
fn capabilities(call: libc::c_long, sets: &mut Capabilities) -> io::Result<()> {
    const LAYOUT: u32 = 0x2008_0522;
    let mut header = [LAYOUT, 0];
    // SAFETY: both pointers are valid for reading and writing, and have the sizes of this layout.
    let result = unsafe { libc::syscall(call, header.as_mut_ptr(), sets.as_mut_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// While it exists, this thread accesses files with the rights of a user and not as root: links that the user made lead only
/// to what the user may access, those in `/proc` included.
pub struct ActsAs {
    /// The groups of this process.
    groups: Vec<libc::gid_t>,
    capabilities: Capabilities,
}

impl ActsAs {
    /// # Errors
    /// If this process may not change its user.
    pub fn user(user: Credentials<'_>) -> io::Result<ActsAs> {
        let mut groups = vec![0; 1 << 16];
        // SAFETY: plain system calls with valid pointers. They change only this thread.
        unsafe {
            let count = libc::getgroups(groups.len() as c_int, groups.as_mut_ptr());
            groups.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
            if libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut own = Capabilities::default();
            capabilities(libc::SYS_capget, &mut own)?;
            let acts = ActsAs { groups, capabilities: own };
            libc::syscall(libc::SYS_setfsgid, user.gid);
            libc::syscall(libc::SYS_setfsuid, user.uid);
            // The calls above return the id before, so whether they worked is asked with ids that do not exist.
            let ids = [libc::SYS_setfsuid, libc::SYS_setfsgid].map(|call| libc::syscall(call, -1) as u32);
            if ids != [user.uid, user.gid] {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            // What is left are the capabilities to return to the own ids.
            const SETGID_AND_SETUID: u32 = 1 << 6 | 1 << 7;
            let mut few = own;
            (few[0], few[3]) = (own[0] & SETGID_AND_SETUID, 0);
            capabilities(libc::SYS_capset, &mut few)?;
            Ok(acts)
        }
    }
}

impl Drop for ActsAs {
    fn drop(&mut self) {
        // They are permitted, so they can be made effective again.
        let _ = capabilities(libc::SYS_capset, &mut self.capabilities);
        // SAFETY: plain system calls with valid pointers. A process that could take the user's ids can take its own again.
        unsafe {
            libc::syscall(libc::SYS_setfsuid, libc::geteuid());
            libc::syscall(libc::SYS_setfsgid, libc::getegid());
            libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr());
        }
    }
}
