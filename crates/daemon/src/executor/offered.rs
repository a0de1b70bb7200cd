//! What an executor that starts in this process's control group could use, without any change to the groups.

use super::own_group::own_group;
use super::processes::least;
use rustix::fs::{Access, access};
use std::fs;
use std::path::{Path, PathBuf};

/// Control groups of one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offered {
    pub version: u8,
    /// Where an executor would create groups.
    pub group: PathBuf,
    /// Controllers that are necessary for limits and cannot be used there.
    pub missing: Vec<&'static str>,
    /// Whether this process may create groups there.
    pub is_writable: bool,
    /// The most processes in the group, if that is limited.
    pub processes: Option<u64>,
}

const NEEDED: [&str; 2] = ["cpu", "memory"];

/// `None` if no control groups are mounted.
pub fn offered() -> Option<Offered> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    offered_by(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
}

fn offered_by(mounts: &str, own: &str) -> Option<Offered> {
    let second = own_group(mounts, own, None).map(|group| {
        let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
        let is_missing = |name: &&str| !controllers.split_whitespace().any(|known| known == *name);
        let missing = NEEDED.into_iter().filter(is_missing).collect();
        let is_writable = is_writable(&group) && is_writable_file(&group.join("cgroup.procs"));
        Offered { version: 2, missing, is_writable, processes: least(&group), group }
    });
    // A mount without controllers is the second one beside version 1.
    let is_whole = second.as_ref().is_some_and(|second| second.missing.is_empty());
    let first = NEEDED.map(|name| own_group(mounts, own, Some(name)).filter(|group| group.is_dir()));
    let found: Vec<PathBuf> = first.iter().flatten().cloned().collect();
    let Some(group) = found.last().cloned().filter(|_| !is_whole) else { return second };
    let missing = NEEDED.into_iter().zip(&first).filter(|(_, group)| group.is_none()).map(|(name, _)| name).collect();
    let is_writable = found.iter().all(|group| is_writable(group));
    let processes = own_group(mounts, own, Some("pids")).and_then(|group| least(&group));
    Some(Offered { version: 1, group, missing, is_writable, processes })
}

fn is_writable(directory: &Path) -> bool {
    access(directory, Access::WRITE_OK).is_ok()
}

fn is_writable_file(file: &Path) -> bool {
    access(file, Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_controllers_and_limits_are_found() {
        let tree = tempfile::tempdir().unwrap();
        let group = tree.path().join("unified/service");
        fs::create_dir_all(&group).unwrap();
        let mounts = format!("29 25 0:26 / {} rw - cgroup2 cgroup2 rw\n", tree.path().join("unified").display());
        let own = "0::/service\n";
        fs::write(group.join("cgroup.controllers"), "cpuset cpu pids\n").unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        fs::write(group.join("pids.max"), "max\n").unwrap();
        fs::write(tree.path().join("unified/pids.max"), "100\n").unwrap();
        let found = offered_by(&mounts, own).unwrap();
        assert_eq!((found.version, &found.group, found.missing.as_slice()), (2, &group, &["memory"][..]));
        assert_eq!((found.is_writable, found.processes), (true, Some(100)));

        // Version 1 beside it has both controllers.
        let mut mixed = mounts;
        for controller in ["cpu", "memory"] {
            let at = tree.path().join(controller);
            fs::create_dir(&at).unwrap();
            mixed += &format!("30 25 0:27 / {} rw - cgroup cgroup rw,{controller}\n", at.display());
        }
        let found = offered_by(&mixed, "5:memory:/\n4:cpu:/\n0::/service\n").unwrap();
        assert_eq!((found.version, found.missing.len(), found.is_writable), (1, 0, true));
        assert_eq!(offered_by("", own), None);
    }
}
