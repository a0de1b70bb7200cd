//! This process: its user, its memory and its signals.

use amalgam_core::vocabulary::Named;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

/// The user who runs this program.
pub fn user() -> String {
    let named =
        ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok().filter(|user| can_name_user(user)));
    // SAFETY: it has no preconditions.
    let id = unsafe { libc::getuid() };
    named.or_else(|| name_of(id)).unwrap_or_else(|| format!("uid{id}"))
}

fn can_name_user(name: &str) -> bool {
    Named::User.check(name).is_ok()
}

/// The name in the system's user database.
fn name_of(user: libc::uid_t) -> Option<String> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut texts = [0; 16 << 10];
    let mut found = ptr::null_mut();
    // SAFETY: all pointers are valid during the call, and the length is the buffer's.
    unsafe { libc::getpwuid_r(user, entry.as_mut_ptr(), texts.as_mut_ptr(), texts.len(), &mut found) };
    if found.is_null() {
        return None;
    }
    // SAFETY: `found` points to `entry`, which the call filled, and its name is a C string within `texts`.
    let name = unsafe { CStr::from_ptr((*found).pw_name) };
    name.to_str().ok().filter(|name| can_name_user(name)).map(str::to_owned)
}

/// The peak memory of this process in bytes.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}

/// Restores the default action of SIGPIPE, which Rust's runtime ignores: `amalgam list | head` has to end like other filters.
pub fn die_of_broken_pipes() {
    // SAFETY: no other thread runs yet, and the default action needs no handler.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Ignores SIGXFSZ: a write past the file size limit fails with an error that names the file, instead of killing the process.
/// The executor restores the default for tasks.
pub fn outlive_full_files() {
    // SAFETY: no other thread runs yet, and ignoring a signal needs no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_names_of_the_database_if_they_are_in_it() {
        assert_eq!(name_of(0).as_deref(), Some("root"));
        assert_eq!(name_of(libc::uid_t::MAX - 1), None);
    }
}
