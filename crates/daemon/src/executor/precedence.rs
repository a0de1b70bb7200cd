//! What is opportunistic gets the CPU and the disks that nothing else wants.
//!
//! A cgroup is made idle beside those of guaranteed attempts, and that can be taken back at any time. Where there is none, the
//! attempt's processes are made nice, and it takes a privilege (`CAP_SYS_NICE`, or `RLIMIT_NICE` of 20) to undo that: without
//! it a promoted attempt stays nice. Its class of IO goes with its processes everywhere, and can always be taken back.
//! Nothing of this is worth an attempt: where a step fails, it runs on as it is.

use super::members;
use super::sys::{self, Precedence};
use rustix::process::{Resource, getpriority_process, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;

/// Where a process that forks all the time is looked for its new threads no longer.
const MOST_LOOKS: usize = 8;

/// Gives processes the precedence that this one's children are born with, or takes it from them. It belongs to threads, and new ones have that of the
/// thread that made them; so it is looked until there are none that were not seen. With a cgroup that sees to the CPU only
/// their IO is concerned.
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

/// What children are born with: this process may have asked to answer soon, for itself alone.
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

/// Whether this process may undo that others were made nice.
pub fn may_raise() -> bool {
    let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    // The limit counts downwards: 1 is the nicest.
    let allows = |limit: u64| limit >= 20_u64.saturating_add_signed(-i64::from(usual_nice()));
    capable || getrlimit(Resource::Nice).current.is_none_or(allows)
}

/// What is not as it should be on this machine.
pub fn note(groups_see_to_cpu: bool) -> Option<String> {
    (!groups_see_to_cpu && !may_raise()).then(|| {
        "an opportunistic task stays nice when it is promoted, for no cgroup sees to its CPU and the executor lacks \
         CAP_SYS_NICE"
            .to_owned()
    })
}
