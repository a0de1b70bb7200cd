//! Finds the control group of this process.

use std::path::{Path, PathBuf};

/// The directory of this process's group, in the tree of a version 1 controller or in version 2.
pub fn own_group(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let matches = match controller {
            None => controllers.is_empty(),
            Some(name) => controllers.split(',').any(|known| known == name),
        };
        matches.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = after.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1)?);
        let matches = match controller {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && options.split(',').any(|known| known == name),
        };
        let mut fields = before.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        // In a container, the mount may contain only a part of the tree, but the path starts at the tree's root.
        let beneath = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        matches.then(|| Path::new(mount).join(beneath))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_on_hosts_and_in_containers() {
        let mounts = "\
            25 21 0:22 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
            26 21 0:23 /docker/abc /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n\
            27 21 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = "4:memory:/docker/abc/child\n2:cpu,cpuacct:/user\n0::/system.slice/amalgam.service\n";
        let find = |controller| own_group(mounts, own, controller).unwrap();
        assert_eq!(find(Some("cpu")), Path::new("/sys/fs/cgroup/cpu/user"));
        assert_eq!(find(Some("memory")), Path::new("/sys/fs/cgroup/memory/child"));
        assert_eq!(find(None), Path::new("/sys/fs/cgroup/unified/system.slice/amalgam.service"));
        assert_eq!(own_group(mounts, own, Some("pids")), None);
    }
}
