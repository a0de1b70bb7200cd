//! The properties of this machine, as seen from this process's cgroup.

use super::containers::Runtime;
use super::own_group::own_group;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    pub hostname: String,
    /// Processors that this process may use.
    pub cpus: u32,
    /// Memory of the machine or the limit of this process's cgroup, whichever is less.
    pub memory_mib: u32,
    pub arch: String,
    /// The kernel's release, such as `6.1.0-28-amd64`.
    pub kernel: String,
    /// The `ID` of os-release, such as `debian`.
    pub os: Option<String>,
    /// Number of NVIDIA devices.
    pub gpus: u32,
    /// Whether there is a runtime for containers.
    pub containers: bool,
}

impl Host {
    pub fn inspect() -> Host {
        let system = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (mounts, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
        let machine = total_memory(&read("/proc/meminfo")).unwrap_or(0);
        let memory = memory_limit(&mounts, &own).map_or(machine, |limit| limit.min(machine));
        Host {
            hostname: text(system.nodename()),
            cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
            memory_mib: (memory >> 20) as u32,
            arch: text(system.machine()),
            kernel: text(system.release()),
            os: os_id(&read("/etc/os-release")),
            gpus: count_gpus(Path::new("/dev")),
            containers: std::env::var_os("PATH").is_some_and(|search| Runtime::find(&search).is_some()),
        }
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The lowest limit of this process's cgroup and its ancestors, in version 1 or 2.
fn memory_limit(mounts: &str, own: &str) -> Option<u64> {
    let v1 = own_group(mounts, own, Some("memory")).map(|group| (group, "memory.limit_in_bytes"));
    let v2 = own_group(mounts, own, None).map(|group| (group, "memory.max"));
    v1.into_iter().chain(v2).filter_map(|(group, file)| least_limit(&group, file)).min()
}

fn least_limit(group: &Path, file: &str) -> Option<u64> {
    let limit = |directory: &Path| fs::read_to_string(directory.join(file)).ok()?.trim().parse::<u64>().ok();
    group.ancestors().filter_map(limit).min()
}

fn os_id(release: &str) -> Option<String> {
    let id = release.lines().find_map(|line| line.strip_prefix("ID="))?;
    Some(id.trim_matches(['"', '\'']).to_owned())
}

/// Counts `/dev/nvidia0` and so on. A query to the driver would require its library.
fn count_gpus(devices: &Path) -> u32 {
    let names = fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| PathBuf::from(entry.file_name()));
    let is_gpu = |name: &PathBuf| {
        let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        number.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names.filter(is_gpu).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inspect_finds_the_properties_of_this_machine() {
        let host = Host::inspect();
        assert!(host.cpus > 0 && host.memory_mib > 0, "{host:?}");
        assert!(!host.arch.is_empty() && !host.kernel.is_empty() && !host.hostname.is_empty(), "{host:?}");
    }

    #[test]
    fn the_lowest_limit_of_the_ancestors_is_used() {
        let tree = tempfile::tempdir().unwrap();
        let inner = tree.path().join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        fs::write(tree.path().join("outer/memory.max"), "1073741824\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(least_limit(&inner, "memory.max"), Some(1 << 30));
    }

    #[test]
    fn os_memory_and_gpus_are_read() {
        assert_eq!(os_id("NAME=\"Debian\"\nID=\"debian\"\n").as_deref(), Some("debian"));
        assert_eq!(total_memory("MemTotal:       24683520 kB\n"), Some(24_683_520 << 10));
        let devices = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia"] {
            fs::write(devices.path().join(name), "").unwrap();
        }
        assert_eq!(count_gpus(devices.path()), 2);
    }
}
