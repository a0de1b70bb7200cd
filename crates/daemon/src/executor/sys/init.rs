//! The first process of a sandbox. The kernel does not deliver signals with a default action to it, and it has to reap the
//! processes that lose their parents. So it is not the task but its parent, on a copy of the executor's memory: it makes
//! only system calls.
//!
//! It passes signals of the node on to the task, and how the task ended to the executor. When it ends, the kernel kills all
//! other processes of the sandbox.

use super::Exit;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// How the task ended, as it is written to the executor.
type Ending = [u64; 3];

/// How the task of a first process ended. `None` if the first process was killed.
pub fn ending_of(pipe: BorrowedFd<'_>) -> Option<Exit> {
    let mut ending: Ending = [0; 3];
    let size = size_of::<Ending>();
    // SAFETY: the buffer is valid for writing, and any bytes are valid numbers.
    let length = unsafe { libc::read(pipe.as_raw_fd(), ending.as_mut_ptr().cast(), size) };
    let [status, cpu_micros, max_rss_bytes] = ending;
    (length == size as isize).then_some(Exit { status: status as c_int, cpu_micros, max_rss_bytes })
}

/// Whether the executor has ended: it does not read this pipe any more.
///
/// # Safety
/// Must be called only in a child with memory of its own.
pub unsafe fn is_orphan(pipe: c_int) -> bool {
    let mut watched = libc::pollfd { fd: pipe, events: 0, revents: 0 };
    // SAFETY: a plain system call with a valid pointer.
    unsafe { libc::poll(&raw mut watched, 1, 0) == 1 && watched.revents & libc::POLLERR != 0 }
}

/// Splits this process, the first one of a namespace, all of whose signals are blocked. Returns in its child, which becomes
/// the task: false if it could not be created.
///
/// # Safety
/// As for [`is_orphan`].
pub unsafe fn split(report: c_int, ending: c_int) -> bool {
    // SAFETY: plain system calls with valid pointers. The call is made directly, because the C library's would take locks that
    // other threads of the executor may have held.
    unsafe {
        match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t {
            task @ 1.. => {
                // Files of the task would stay open.
                for file in [0, 1, 2, report] {
                    libc::close(file);
                }
                keep_little();
                watch(task, ending)
            }
            0 => {
                libc::close(ending);
                let mut none: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
                // As without a sandbox, it leads a process group that gets the signals for it.
                libc::setsid() >= 0
            }
            _ => false,
        }
    }
}

/// Protects this process from the task, which may run as the same user.
///
/// # Safety
/// As for [`is_orphan`].
unsafe fn keep_little() {
    /// To pass on signals to a task of another user.
    const KILL: u32 = 1 << 5;
    // SAFETY: plain system calls.
    unsafe {
        // A copy of the executor's memory is not for the task.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        let mut own = super::Capabilities::default();
        if super::capabilities(libc::SYS_capget, &mut own).is_ok() {
            let mut few = [own[0] & KILL, own[1] & KILL, 0, 0, 0, 0];
            let _ = super::capabilities(libc::SYS_capset, &mut few);
        }
    }
}

/// Waits until the task ends.
///
/// # Safety
/// As for [`is_orphan`].
unsafe fn watch(task: libc::pid_t, ending: c_int) -> ! {
    // SAFETY: plain system calls with valid pointers; signal sets, `siginfo_t` and `rusage` are plain data.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&raw const all, &raw mut info);
            // A process of the sandbox has a number here; it can send the task signals itself.
            let is_from_outside = signal > 0 && info.si_code <= 0 && info.si_pid() == 0;
            if signal != libc::SIGCHLD && is_from_outside && libc::kill(-task, signal) < 0 {
                libc::kill(task, signal);
            }
            loop {
                let mut status = 0;
                let mut usage: libc::rusage = std::mem::zeroed();
                let ended = libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage);
                if ended <= 0 {
                    break;
                }
                if ended == task {
                    let told: Ending = {
                        let exit = Exit::of(status, &usage);
                        [exit.status as u64, exit.cpu_micros, exit.max_rss_bytes]
                    };
                    libc::write(ending, told.as_ptr().cast::<c_void>(), size_of::<Ending>());
                    libc::_exit(0)
                }
            }
        }
    }
}
