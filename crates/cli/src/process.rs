//! This process: who runs it, what it holds, and what signals do to it.

use amalgam_core::vocabulary::Named;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

/// Who runs this program.
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

/// As the system's database of users has it.
fn name_of(user: libc::uid_t) -> Option<String> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut texts = [0; 16 << 10];
    let mut found = ptr::null_mut();
    // SAFETY: all that is pointed to lives as long as the call, and the length is that of the buffer.
    unsafe { libc::getpwuid_r(user, entry.as_mut_ptr(), texts.as_mut_ptr(), texts.len(), &mut found) };
    if found.is_null() {
        return None;
    }
    // SAFETY: `found` points to `entry`, which was filled, and its name is a C string within `texts`.
    let name = unsafe { CStr::from_ptr((*found).pw_name) };
    name.to_str().ok().filter(|name| can_name_user(name)).map(str::to_owned)
}

/// The most that this process ever held, in bytes.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}

/// `amalgam list | head` must end like any other filter. Rust's runtime ignores the signal unless told otherwise.
pub fn die_of_broken_pipes() {
    // SAFETY: no other thread runs yet, and the default action needs no handler.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// A write past the limit for files fails, with an error that names the file, rather than end the process without a word.
/// The executor gives tasks the default back.
pub fn outlive_full_files() {
    // SAFETY: no other thread runs yet, and to ignore needs no handler.
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
