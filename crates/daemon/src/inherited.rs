//! Releases what a daemon inherits from the process that started it. Otherwise a lock or a pipe of a shell would stay
//! open as long as the daemon, its executor and its tasks run, and a blocked signal could never stop them.

use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::{mem, ptr};

/// The first descriptor that is not standard input, output or error.
const FIRST: RawFd = 3;

/// Closes inherited descriptors, unblocks all signals and restores the default action of SIGCHLD. Descriptors that were
/// passed on purpose stay open, but are closed in child processes: those that an argument names (`/dev/fd/63`), and
/// those of a service manager (`LISTEN_FDS`). Call it at the start of a program, before it opens files or starts
/// threads.
pub fn let_go(arguments: impl IntoIterator<Item = OsString>) {
    let (is_listening, count) = (own_number("LISTEN_PID"), own_number("LISTEN_FDS"));
    let passed = if is_listening == Some(std::process::id() as i32) { count.unwrap_or(0) } else { 0 };
    let named: Vec<RawFd> = arguments.into_iter().filter_map(|argument| descriptor_in(&argument)).collect();
    let is_kept = |number: &RawFd| named.contains(number) || (FIRST..FIRST.saturating_add(passed)).contains(number);
    // All are listed before any is closed. The descriptor of the list itself is closed by then.
    for number in open_descriptors().into_iter().filter(|number| *number >= FIRST) {
        if is_kept(&number) {
            // SAFETY: it is open, and no other code closes it meanwhile, as there are no other threads.
            let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
        } else {
            // SAFETY: nothing in this program has opened it, so nothing in it will use it.
            unsafe { libc::close(number) };
        }
    }
    // SAFETY: a signal set is plain data, both pointers are valid, and no handler runs.
    unsafe {
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        // If the signal is ignored, the exit status of child processes is lost.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

fn own_number(variable: &str) -> Option<i32> {
    std::env::var(variable).ok()?.parse().ok()
}

fn open_descriptors() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The number in an argument such as `/dev/fd/63` or `--config=/proc/self/fd/63`.
fn descriptor_in(argument: &OsStr) -> Option<RawFd> {
    let bytes = argument.as_bytes();
    let start = [&b"/dev/fd/"[..], b"/proc/self/fd/"].into_iter().find_map(|place| {
        let at = bytes.windows(place.len()).position(|window| window == place)?;
        Some(at + place.len())
    })?;
    std::str::from_utf8(bytes.get(start..)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_named_in_arguments_are_found() {
        let of = |argument: &str| descriptor_in(OsStr::new(argument));
        assert_eq!(of("/dev/fd/63"), Some(63));
        assert_eq!(of("--config=/proc/self/fd/5"), Some(5));
        for other in ["", "/dev/fd/", "/dev/fd/x", "/dev/null", "fd/3"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
