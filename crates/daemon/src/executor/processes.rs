//! How many processes a group may have.

use std::fs;
use std::path::Path;

/// The most processes and threads that one task may have: a quarter of what this group and the kernel allow, so that a task that
/// starts processes without end leaves the others enough.
pub fn most_of_a_task(group: &Path) -> u64 {
    const FEWEST: u64 = 64;
    let kernel = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let kernel = kernel.into_iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    let all = kernel.chain(least(group)).min().unwrap_or(u64::from(u16::MAX));
    (all / 4).max(FEWEST)
}

/// The lowest limit of processes of the group and its ancestors.
pub fn least(group: &Path) -> Option<u64> {
    let limit = |directory: &Path| fs::read_to_string(directory.join("pids.max")).ok()?.trim().parse::<u64>().ok();
    group.ancestors().filter_map(limit).min()
}
