//! The limit on open files and connections of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The current limit.
pub fn allowed() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit to the system's maximum and returns it. For processes that have many connections and start no child
/// processes: children would inherit the limit, and some programs cannot handle large ones.
pub fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let is_raised = current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    if is_raised { maximum } else { current }.unwrap_or(u64::MAX)
}
