//! Finds and creates cgroups: version 2 with one tree, version 1 with a tree for each controller.
//!
//! Each executor has a parent group below the group in which it was started. The parent is named after the executor's
//! pid and start time, so that a later executor finds the parents of executors that have exited.

use super::devices::{DeviceGate, DeviceNumber};
use super::own_group::own_group;
use super::processes::most_of_a_task;
use super::{Mechanism, members};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Length of a scheduling period, in which a group may use its quota.
const PERIOD_MICROS: u64 = 100_000;
/// Minimum quota that the kernel accepts.
const LEAST_QUOTA_MICROS: u64 = 1_000;
/// Prefix of the names of executors' parent groups.
const PREFIX: &str = "amalgam-";
/// Name of the group of agents and executors below a delegated group, which may have no members itself.
const SUPERVISOR: &str = "amalgam-supervisor";

/// The limits of a group; zero means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    pub cpu_millis: u32,
    pub memory_mib: u32,
    /// Whether it gets only the CPU time that its siblings leave idle.
    pub lower: bool,
}

/// The executor's parent groups.
#[derive(Debug)]
pub enum Hierarchy {
    V1 {
        cpu: Option<PathBuf>,
        memory: Option<PathBuf>,
        /// That of the devices controller, if access to devices is restricted.
        devices: Option<PathBuf>,
        /// The group whose members are listed: that of the memory controller, or of another one if there is none.
        members: PathBuf,
        /// That of the pids controller, and the most processes and threads of a leaf.
        processes: Option<(PathBuf, u64)>,
    },
    V2 {
        parent: PathBuf,
        restricts_devices: bool,
        /// The most processes and threads of a leaf.
        processes: u64,
    },
}

/// A group that holds one attempt at a time.
#[derive(Debug)]
pub struct Leaf {
    pub shape: Shape,
    /// Version 1: files to which the child writes `0` to enter the group.
    pub join: Vec<OwnedFd>,
    /// Version 2: the directory of the group in which the child is created.
    pub born_in: Option<OwnedFd>,
    /// The file with the counter `oom_kill`.
    events: Option<File>,
    usage: Option<File>,
    cpu: Option<File>,
    /// The group with the CPU controller, if there is one.
    weighed: Option<Weighed>,
    /// `None` if access to devices is not restricted.
    devices: Option<DeviceGate>,
    /// The group whose members are listed.
    members: PathBuf,
    kill: Option<PathBuf>,
    directories: Vec<PathBuf>,
}

/// The group of a leaf that has the CPU controller.
#[derive(Debug)]
struct Weighed {
    directory: PathBuf,
    /// Name of the file with the weight.
    file: &'static str,
    /// The lowest weight that the kernel accepts.
    least: u64,
    usual: u64,
}

impl Weighed {
    /// Gives the group only the CPU time that its siblings leave idle, or its usual weight.
    fn set(&self, lower: bool) -> io::Result<()> {
        let write = |name: &str, number: u64| {
            let mut file = OpenOptions::new().write(true).truncate(true).open(self.directory.join(name))?;
            file.write_all(number.to_string().as_bytes())
        };
        // Only version 2 has disk weights, and only with the IO controller.
        let _ = write("io.weight", if lower { 1 } else { 100 });
        // Kernels before 5.15 have no `cpu.idle`. While it is 1, the weight cannot be set.
        match write("cpu.idle", lower.into()) {
            Ok(()) if lower => Ok(()),
            _ => write(self.file, if lower { self.least } else { self.usual }),
        }
    }
}

impl Hierarchy {
    /// Sets up version 2, or otherwise version 1. Also returns notes about missing controllers.
    ///
    /// # Errors
    /// Why neither version can be used.
    pub fn find() -> Result<(Hierarchy, Vec<String>), String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let name = parent_name(std::process::id());
        let second = own_group(&mounts, &own, None).ok_or_else(|| "no cgroup v2 is mounted".to_owned());
        let second_error = match second.and_then(|group| Hierarchy::set_up_v2(&group, &name)) {
            Ok(hierarchy) => return Ok((hierarchy, Vec::new())),
            Err(error) => error,
        };
        let groups = ["cpu", "memory", "pids"].map(|controller| own_group(&mounts, &own, Some(controller)));
        Hierarchy::set_up_v1(groups, &name).map_err(|error| format!("version 2: {second_error}; version 1: {error}"))
    }

    pub fn mechanism(&self) -> Mechanism {
        match self {
            Hierarchy::V1 { .. } => Mechanism::CgroupV1,
            Hierarchy::V2 { .. } => Mechanism::CgroupV2,
        }
    }

    pub fn limits_memory(&self) -> bool {
        matches!(self, Hierarchy::V2 { .. } | Hierarchy::V1 { memory: Some(_), .. })
    }

    pub fn limits_cpu(&self) -> bool {
        matches!(self, Hierarchy::V2 { .. } | Hierarchy::V1 { cpu: Some(_), .. })
    }

    fn set_up_v2(group: &Path, name: &str) -> Result<Hierarchy, String> {
        let available = fs::read_to_string(group.join("cgroup.controllers")).map_err(|error| error.to_string())?;
        for controller in ["cpu", "memory"] {
            if !available.split_whitespace().any(|known| known == controller) {
                return Err(format!("{} offers no {controller} controller", group.display()));
            }
        }
        // An agent that has started an executor before is in this group, and so is its next executor.
        let is_supervisor = group.file_name().is_some_and(|name| name == SUPERVISOR);
        let group = group.parent().filter(|_| is_supervisor).unwrap_or(group);
        remove_stale(group);
        enable_controllers(group)?;
        let parent = group.join(name);
        make(&parent)?;
        enable(&parent.join("cgroup.subtree_control"))?;
        // All tasks together get a weight for each of the machine's cores, not the weight of one process.
        let weight = (100 * host_cpus()).min(10_000);
        let _ = fs::write(parent.join("cpu.weight"), weight.to_string());
        let processes = most_of_a_task(group);
        Ok(Hierarchy::V2 { parent, restricts_devices: false, processes })
    }

    fn set_up_v1(groups: [Option<PathBuf>; 3], name: &str) -> Result<(Hierarchy, Vec<String>), String> {
        let mut errors = Vec::new();
        let most = groups[2].as_deref().map(most_of_a_task);
        let [cpu, memory, pids] = groups.map(|group| {
            let result = group.ok_or_else(|| "not mounted".to_owned()).and_then(|group| {
                remove_stale(&group);
                let parent = group.join(name);
                make(&parent).map(|()| parent)
            });
            result.map_err(|error| errors.push(error)).ok()
        });
        if let Some(cpu) = &cpu {
            // All tasks together get a weight for each of the machine's cores, not the weight of one process.
            let _ = fs::write(cpu.join("cpu.shares"), (1024 * host_cpus()).min(262_144).to_string());
        }
        let mut notes = Vec::new();
        if memory.is_none() {
            notes.push(format!("memory is not limited: its cgroup controller cannot be used ({})", errors.join("; ")));
        }
        if cpu.is_none() {
            notes.push(format!("CPU is not limited: its cgroup controller cannot be used ({})", errors.join("; ")));
        }
        if cpu.is_none() && memory.is_none() {
            return Err(errors.join("; "));
        }
        // Members are listed in one tree.
        let members = memory.as_ref().or(pids.as_ref()).or(cpu.as_ref()).cloned().unwrap_or_default();
        let processes = pids.zip(most);
        Ok((Hierarchy::V1 { cpu, memory, devices: None, members, processes }, notes))
    }

    /// Prepares to restrict access to devices in leaves, and tries it with these ones. Must be called before there are
    /// leaves.
    ///
    /// # Errors
    /// Why this is not possible.
    pub fn prepare_devices(&mut self, some: Vec<DeviceNumber>) -> Result<(), String> {
        let refused = |error: io::Error| format!("the kernel refuses to restrict access to devices: {error}");
        match self {
            Hierarchy::V2 { parent, restricts_devices, .. } => {
                let mut gate = DeviceGate::v2(parent).map_err(refused)?;
                gate.deny(some).and_then(|()| gate.deny(Vec::new())).map_err(refused)?;
                *restricts_devices = true;
            }
            Hierarchy::V1 { cpu, memory, devices, members, processes } => {
                let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
                let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
                let group = own_group(&mounts, &own, Some("devices")).ok_or("the devices controller is not mounted")?;
                // With a list of allowed devices instead, as in some containers, an entry may be wider than one device.
                if !fs::read_to_string(group.join("devices.list")).is_ok_and(|list| list == "a *:* rwm\n") {
                    return Err(format!("{} has a list of devices", group.display()));
                }
                remove_stale(&group);
                let parent = group.join(parent_name(std::process::id()));
                make(&parent)?;
                let mut gate = DeviceGate::v1(parent.clone());
                if let Err(error) = gate.deny(some).and_then(|()| gate.deny(Vec::new())) {
                    let limited = processes.iter().map(|(parent, _)| parent);
                    let mut others = cpu.iter().chain(memory.iter()).chain([&*members]).chain(limited);
                    if others.all(|other| *other != parent) {
                        let _ = fs::remove_dir(parent);
                    }
                    return Err(refused(error));
                }
                *devices = Some(parent);
            }
        }
        Ok(())
    }

    pub fn make_leaf(&self, number: u64, shape: Shape) -> io::Result<Leaf> {
        let under = |parent: &PathBuf| parent.join(number.to_string());
        match self {
            Hierarchy::V2 { parent, restricts_devices, processes } => {
                let leaf = make_leaf_v2(&under(parent), shape, *processes)?;
                let devices = restricts_devices.then(|| DeviceGate::v2(&under(parent))).transpose()?;
                Ok(Leaf { devices, ..leaf })
            }
            Hierarchy::V1 { cpu, memory, devices, members, processes } => {
                let leaf = make_leaf_v1(cpu.as_ref().map(under), memory.as_ref().map(under), under(members), shape)?;
                let leaf = match processes {
                    Some((parent, most)) => leaf.with_processes_v1(under(parent), *most)?,
                    None => leaf,
                };
                match devices.as_ref().map(under) {
                    Some(directory) => leaf.with_devices_v1(directory),
                    None => Ok(leaf),
                }
            }
        }
    }

    /// Removes the parent groups. Their leaves must have been removed.
    pub fn remove(&self) {
        let parents = match self {
            Hierarchy::V2 { parent, .. } => vec![parent],
            Hierarchy::V1 { cpu, memory, devices, members, processes } => {
                let limited = processes.iter().map(|(parent, _)| parent);
                cpu.iter().chain(memory).chain(devices).chain([members]).chain(limited).collect()
            }
        };
        for parent in parents {
            let _ = fs::remove_dir(parent);
        }
    }
}

fn make_leaf_v2(directory: &Path, shape: Shape, processes: u64) -> io::Result<Leaf> {
    create(directory)?;
    // The file is missing where the parent has no such controller.
    let _ = fs::write(directory.join("pids.max"), processes.to_string());
    if shape.cpu_millis > 0 {
        let quota = quota_micros(shape.cpu_millis);
        fs::write(directory.join("cpu.max"), format!("{quota} {PERIOD_MICROS}"))?;
    }
    // The default weight of a group is 100.
    let usual = if shape.cpu_millis > 0 { (u64::from(shape.cpu_millis) / 10).clamp(1, 10_000) } else { 100 };
    let weighed = Weighed { directory: directory.to_owned(), file: "cpu.weight", least: 1, usual };
    if shape.cpu_millis > 0 || shape.lower {
        weighed.set(shape.lower)?;
    }
    if shape.memory_mib > 0 {
        fs::write(directory.join("memory.max"), bytes(shape.memory_mib).to_string())?;
        // The file is missing without swap accounting in the kernel.
        let _ = fs::write(directory.join("memory.swap.max"), "0");
    }
    let kill = directory.join("cgroup.kill");
    Ok(Leaf {
        shape,
        join: Vec::new(),
        born_in: Some(File::open(directory)?.into()),
        events: File::open(directory.join("memory.events")).ok(),
        usage: File::open(directory.join("memory.current")).ok(),
        cpu: File::open(directory.join("cpu.stat")).ok(),
        weighed: Some(weighed),
        devices: None,
        members: directory.to_owned(),
        kill: kill.exists().then_some(kill),
        directories: vec![directory.to_owned()],
    })
}

fn make_leaf_v1(cpu: Option<PathBuf>, memory: Option<PathBuf>, members: PathBuf, shape: Shape) -> io::Result<Leaf> {
    let mut directories: Vec<PathBuf> = cpu.iter().chain(&memory).chain([&members]).cloned().collect();
    directories.dedup();
    for directory in &directories {
        create(directory)?;
    }
    // `cpuacct` is usually in the same tree as `cpu`.
    let accounting = cpu.as_ref().and_then(|cpu| File::open(cpu.join("cpuacct.usage")).ok());
    if let Some(cpu) = cpu.as_ref().filter(|_| shape.cpu_millis > 0) {
        fs::write(cpu.join("cpu.cfs_period_us"), PERIOD_MICROS.to_string())?;
        fs::write(cpu.join("cpu.cfs_quota_us"), quota_micros(shape.cpu_millis).to_string())?;
    }
    // The default number of shares of a group is 1024.
    let shares = (u64::from(shape.cpu_millis) * 1024 / 1000).clamp(2, 262_144);
    let usual = if shape.cpu_millis > 0 { shares } else { 1024 };
    let weighed = cpu.map(|directory| Weighed { directory, file: "cpu.shares", least: 2, usual });
    if let Some(weighed) = weighed.as_ref().filter(|_| shape.cpu_millis > 0 || shape.lower) {
        weighed.set(shape.lower)?;
    }
    if let Some(memory) = memory.as_ref().filter(|_| shape.memory_mib > 0) {
        let limit = bytes(shape.memory_mib).to_string();
        fs::write(memory.join("memory.limit_in_bytes"), &limit)?;
        // The file is missing without swap accounting in the kernel. Its limit may not be below the one above, so it is
        // written second.
        let _ = fs::write(memory.join("memory.memsw.limit_in_bytes"), &limit);
    }
    let join = directories.iter().map(|directory| entrance_v1(directory));
    Ok(Leaf {
        shape,
        join: join.collect::<io::Result<_>>()?,
        born_in: None,
        events: memory.as_ref().and_then(|memory| File::open(memory.join("memory.oom_control")).ok()),
        usage: memory.as_ref().and_then(|memory| File::open(memory.join("memory.usage_in_bytes")).ok()),
        cpu: accounting,
        weighed,
        devices: None,
        members,
        kill: None,
        directories,
    })
}

/// `tasks`, not `cgroup.procs`: a single thread that moves itself does not take the kernel's lock on all processes, which
/// can take up to 10 ms.
fn entrance_v1(directory: &Path) -> io::Result<OwnedFd> {
    OpenOptions::new().write(true).open(directory.join("tasks")).map(OwnedFd::from)
}

impl Leaf {
    fn with_processes_v1(mut self, directory: PathBuf, most: u64) -> io::Result<Leaf> {
        if !self.directories.contains(&directory) {
            create(&directory)?;
            self.join.push(entrance_v1(&directory)?);
            self.directories.push(directory.clone());
        }
        fs::write(directory.join("pids.max"), most.to_string())?;
        Ok(self)
    }

    fn with_devices_v1(mut self, directory: PathBuf) -> io::Result<Leaf> {
        create(&directory)?;
        self.join.push(entrance_v1(&directory)?);
        self.devices = Some(DeviceGate::v1(directory.clone()));
        self.directories.push(directory);
        Ok(self)
    }

    /// Denies access to these devices only.
    pub fn deny_devices(&mut self, denied: Vec<DeviceNumber>) -> io::Result<()> {
        self.devices.as_mut().map_or(Ok(()), |gate| gate.deny(denied))
    }

    /// Number of processes that the kernel has killed in the group at its memory limit since it was created.
    pub fn oom_kills(&self) -> u64 {
        self.events.as_ref().and_then(|file| counter(file, Some("oom_kill"))).unwrap_or(0)
    }

    /// CPU time used in the group since it was created, in microseconds; `None` if the kernel does not count it.
    pub fn cpu_micros(&self) -> Option<u64> {
        let file = self.cpu.as_ref()?;
        counter(file, Some("usage_usec")).or_else(|| Some(counter(file, None)? / 1_000))
    }

    pub fn memory_bytes(&self) -> u64 {
        self.usage.as_ref().and_then(|file| counter(file, None)).unwrap_or(0)
    }

    /// Whether the group sets the CPU priority, so that its processes need no nice value.
    pub fn weighs_cpu(&self) -> bool {
        self.weighed.is_some()
    }

    /// Sets whether the group gets only the CPU time that its siblings leave idle.
    pub fn set_lower(&mut self, lower: bool) {
        // After an error the shape keeps the old value, so that the pool does not reuse the group wrongly.
        if self.weighed.as_ref().is_none_or(|weighed| weighed.set(lower).is_ok()) {
            self.shape.lower = lower;
        }
    }

    /// The pids in the group and in groups that the task has created below it. The files are opened each time: in
    /// version 1, an open file's list may be a second old.
    pub fn members(&self) -> Vec<i32> {
        groups_of(&self.members).iter().flat_map(|group| pids_in(&group.join(PROCESSES))).collect()
    }

    /// Whether the task has created groups below its own. Their controllers, in version 2, prevent that another process
    /// enters this one.
    pub fn has_groups(&self) -> bool {
        // A directory has a link from itself, from its parent, and from each directory in it.
        self.directories.iter().any(|directory| fs::metadata(directory).is_ok_and(|found| found.nlink() > 2))
    }

    /// Kills all members. Returns true if there were none.
    pub fn kill_members(&self) -> bool {
        let members = self.members();
        if members.is_empty() {
            return true;
        }
        let killed_at_once = self.kill.as_ref().is_some_and(|file| fs::write(file, "1").is_ok());
        if !killed_at_once {
            members.into_iter().for_each(members::kill);
        }
        false
    }

    /// Removes the group's directories. It must have no members.
    pub fn remove(self) {
        // A task may have created groups below its own.
        for directory in self.directories.iter().flat_map(|directory| groups_of(directory)) {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// The file with the pids of a group's members.
const PROCESSES: &str = "cgroup.procs";

/// A group and all groups below it, children before their parents.
fn groups_of(group: &Path) -> Vec<PathBuf> {
    let mut all = vec![group.to_owned()];
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let beneath = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let beneath: Vec<PathBuf> = beneath.map(|entry| entry.path()).collect();
        all.extend(beneath);
        next += 1;
    }
    all.reverse();
    all
}

/// The number in `file`, or the number on the line that starts with `name`.
fn counter(file: &File, name: Option<&str>) -> Option<u64> {
    let mut buffer = [0; 512];
    let length = file.read_at(&mut buffer, 0).ok()?;
    let text = std::str::from_utf8(&buffer[..length]).ok()?;
    match name {
        None => text.trim().parse().ok(),
        Some(name) => text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok()),
    }
}

fn pids_in(file: &Path) -> Vec<i32> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn host_cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

fn quota_micros(cpu_millis: u32) -> u64 {
    (u64::from(cpu_millis) * PERIOD_MICROS / 1000).max(LEAST_QUOTA_MICROS)
}

fn bytes(memory_mib: u32) -> u64 {
    u64::from(memory_mib) << 20
}

fn create(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Whatever the umask: programs read their own limits there.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

fn make(directory: &Path) -> Result<(), String> {
    create(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("cannot write `{text}` to {}: {error}", file.display()))
}

/// Enables the CPU and memory controllers for the children of a group, and the IO controller if it is available.
fn enable(control: &Path) -> Result<(), String> {
    let _ = fs::write(control, "+io");
    // Not before the others: in a group with members, `pids` alone would make it a threaded one, which cannot have them.
    write(control, "+cpu +memory +pids").or_else(|_| write(control, "+cpu +memory"))
}

/// Enables limits for children of `group`. Version 2 forbids this while the group itself has members, so members that
/// run this program move into a child group. If other programs are members, none moves, and an administrator has to
/// provide a separate group.
fn enable_controllers(group: &Path) -> Result<(), String> {
    let control = group.join("cgroup.subtree_control");
    let Err(error) = enable(&control) else { return Ok(()) };
    let separate = |error| format!("{error} (other programs are in this group; start under a unit with Delegate=yes)");
    let program = fs::read_link("/proc/self/exe").ok();
    let exists = |pid: &i32| members::stat(*pid).is_some();
    let runs_this = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).ok() == program || !exists(pid);
    let members = pids_in(&group.join(PROCESSES));
    if members.is_empty() {
        return Err(error);
    }
    if !members.iter().all(runs_this) {
        return Err(separate(error));
    }
    let supervisor = group.join(SUPERVISOR);
    make(&supervisor)?;
    for pid in members.into_iter().filter(exists) {
        write(&supervisor.join(PROCESSES), &pid.to_string())?;
    }
    enable(&control).map_err(separate)
}

/// `amalgam-<pid>-<start time>`. The start time is needed because pids are reused. It is 0 for a pid without a running
/// process, which is no executor's name.
fn parent_name(pid: u32) -> String {
    let alive = members::stat(pid as i32).filter(|stat| !matches!(stat.state, b'Z' | b'X'));
    let started = alive.map_or(0, |stat| stat.started_ticks);
    format!("{PREFIX}{pid}-{started}")
}

/// Kills all processes in groups of executors that have exited, and removes the groups.
fn remove_stale(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if let Some(pid) = pid
            && name.to_str() != Some(&parent_name(pid))
        {
            clear_out(&entry.path());
        }
    }
}

/// Kills the members of a group and of all groups below it, and removes the groups. Pid 0 stands for a process in
/// another pid namespace. Such a group belongs to another container and is kept.
fn clear_out(group: &Path) {
    for directory in &groups_of(group) {
        for _ in 0..50 {
            let members = pids_in(&directory.join(PROCESSES));
            if members.contains(&0) {
                return;
            }
            if members.is_empty() {
                break;
            }
            members.into_iter().for_each(members::kill);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let _ = fs::remove_dir(directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_groups_are_listed_before_their_parents() {
        let tree = tempfile::tempdir().unwrap();
        let deep = tree.path().join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("cgroup.procs"), "").unwrap();
        let groups = groups_of(tree.path());
        assert_eq!(groups, [deep.clone(), tree.path().join("a/b"), tree.path().join("a"), tree.path().to_owned()]);
    }

    const SHAPE: Shape = Shape { cpu_millis: 1_500, memory_mib: 64, lower: false };

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn version_2_limits_are_written_to_the_leafs_files() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        let hierarchy = Hierarchy::set_up_v2(tree.path(), "amalgam-1-2").unwrap();
        assert_eq!(read(&tree.path().join("cgroup.subtree_control")), "+cpu +memory +pids");
        let directory = tree.path().join("amalgam-1-2/7");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("cpu.weight"), "").unwrap();
        let leaf = hierarchy.make_leaf(7, SHAPE).unwrap();
        assert_eq!(read(&directory.join("cpu.max")), "150000 100000");
        assert_eq!(read(&directory.join("cpu.weight")), "150");
        assert_eq!(read(&directory.join("memory.max")), "67108864");
        assert_eq!(read(&directory.join("memory.swap.max")), "0");
        let processes: u64 = read(&directory.join("pids.max")).parse().unwrap();
        assert!(processes >= 64, "{processes}");
        assert!(leaf.born_in.is_some() && leaf.join.is_empty());
        assert!(leaf.kill_members(), "a group without members has nothing to kill");
    }

    #[test]
    fn a_group_of_low_priority_is_idle_until_it_is_raised() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        let hierarchy = Hierarchy::set_up_v2(tree.path(), "amalgam-1-2").unwrap();
        let directory = tree.path().join("amalgam-1-2/7");
        fs::create_dir(&directory).unwrap();
        let files = ["cpu.idle", "cpu.weight", "io.weight"];
        files.iter().for_each(|name| fs::write(directory.join(name), "").unwrap());
        let mut leaf = hierarchy.make_leaf(7, Shape { lower: true, ..SHAPE }).unwrap();
        let contents = || files.map(|name| fs::read_to_string(directory.join(name)).unwrap_or_default());
        assert_eq!(contents(), ["1", "", "1"]);
        leaf.set_lower(false);
        assert_eq!((contents(), leaf.shape), (["0", "150", "100"].map(String::from), SHAPE));
        fs::remove_file(directory.join("cpu.idle")).unwrap();
        leaf.set_lower(true);
        assert_eq!((contents(), leaf.shape.lower), (["", "1", "1"].map(String::from), true), "the lowest weight");
        fs::remove_file(directory.join("cpu.weight")).unwrap();
        leaf.set_lower(false);
        assert!(leaf.shape.lower, "the weight could not be set");
    }

    #[test]
    fn version_2_without_the_cpu_controller_is_refused() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("cgroup.controllers"), "cpuset pids\n").unwrap();
        let error = Hierarchy::set_up_v2(tree.path(), "amalgam-1-2").unwrap_err();
        assert!(error.ends_with("offers no cpu controller"), "{error}");
    }

    #[test]
    fn version_1_limits_are_written_in_each_tree() {
        let trees = tempfile::tempdir().unwrap();
        let [cpu, memory, pids] = ["cpu", "memory", "pids"].map(|name| trees.path().join(name));
        for tree in [&cpu, &memory, &pids] {
            fs::create_dir_all(tree.join("parent/3")).unwrap();
            ["tasks", "cpu.shares"].iter().for_each(|name| fs::write(tree.join("parent/3").join(name), "").unwrap());
        }
        let (hierarchy, notes) =
            Hierarchy::set_up_v1([Some(cpu.clone()), Some(memory.clone()), Some(pids.clone())], "parent").unwrap();
        assert!(notes.is_empty() && hierarchy.limits_cpu() && hierarchy.limits_memory());
        let leaf = hierarchy.make_leaf(3, SHAPE).unwrap();
        assert_eq!(leaf.join.len(), 3);
        assert!(read(&pids.join("parent/3/pids.max")).parse::<u64>().unwrap() >= 64);
        assert_eq!(read(&cpu.join("parent/3/cpu.cfs_quota_us")), "150000");
        assert_eq!(read(&cpu.join("parent/3/cpu.shares")), "1536");
        assert_eq!(read(&memory.join("parent/3/memory.limit_in_bytes")), "67108864");
        fs::write(memory.join("parent/3/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n").unwrap();
        let leaf = hierarchy.make_leaf(3, leaf.shape).unwrap();
        assert_eq!(leaf.oom_kills(), 4);
    }

    #[test]
    fn one_missing_controller_is_noted_and_two_are_refused() {
        let tree = tempfile::tempdir().unwrap();
        let (hierarchy, notes) = Hierarchy::set_up_v1([None, Some(tree.path().to_owned()), None], "p").unwrap();
        assert!(hierarchy.limits_memory() && !hierarchy.limits_cpu());
        assert!(notes[0].starts_with("CPU is not limited"));
        assert!(Hierarchy::set_up_v1([None, None, Some(tree.path().to_owned())], "p").is_err());
    }
}
