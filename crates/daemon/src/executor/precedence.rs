//! CPU and disk priority: opportunistic attempts get only what other work leaves idle.
//!
//! The cgroup of an opportunistic attempt is set to idle. This can be undone at any time. Without a cgroup, the
//! attempt's processes get nice value 19. Undoing this requires a privilege (`CAP_SYS_NICE`, or an `RLIMIT_NICE` of
//! 20); without it, a promoted attempt keeps this nice value. The IO class is always set for the processes, and can
//! always be undone. If a step fails, the attempt continues with its current priority.

use super::members;
use super::sys::{self, Precedence};
use rustix::process::{Resource, getpriority_process, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;

/// Maximum number of passes over the threads of processes that keep creating new ones.
const MOST_LOOKS: usize = 8;

/// Sets the priority of processes to low, or to the one with which this process's children start. Priorities belong to
/// threads, and a new thread inherits the priority of its creator, so the threads are listed until no new ones appear.
/// Without `with_cpu`, for a cgroup that sets the CPU priority, only the IO class is set.
pub fn set(processes: impl Fn() -> Vec<i32>, lower: bool, with_cpu: bool) {
    let precedence = if lower { Precedence::LOWER } else { Precedence::usual(usual_nice()) };
    let mut seen: Vec<i32> = Vec::new();
    for _ in 0..MOST_LOOKS {
        let mut threads: Vec<i32> = processes().into_iter().flat_map(threads_of).collect();
        threads.retain(|thread| !seen.contains(thread));
        if threads.is_empty() {
            return;
        }
        threads.iter().for_each(|thread| sys::set_precedence(*thread, precedence, with_cpu));
        seen.extend(threads);
    }
}

/// The nice value with which children start. This process may have raised its own priority, which children do not keep.
fn usual_nice() -> i32 {
    getpriority_process(None).unwrap_or(0).max(0)
}

fn threads_of(process: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The processes of an attempt that has no cgroup.
pub fn processes_of(main: i32) -> Vec<i32> {
    members::Census::take().members(&[main]).pop().unwrap_or_default()
}

/// Whether this process may lower the nice value of other processes.
pub fn may_raise() -> bool {
    let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    // A limit of `n` allows nice values from `20 - n` on.
    let allows = |limit: u64| limit >= 20_u64.saturating_add_signed(-i64::from(usual_nice()));
    capable || getrlimit(Resource::Nice).current.is_none_or(allows)
}

/// A note for users if promoted attempts keep their low priority on this machine.
pub fn note(groups_see_to_cpu: bool) -> Option<String> {
    (!groups_see_to_cpu && !may_raise()).then(|| {
        "an opportunistic task stays nice when it is promoted: no cgroup sets its CPU priority, and the executor lacks \
         CAP_SYS_NICE"
            .to_owned()
    })
}
