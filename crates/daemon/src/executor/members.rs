//! Finds the processes of an attempt without a cgroup.
//!
//! The executor is a subreaper: a task's process that loses its parent becomes a child of the executor, a *stray*. Its
//! attempt is found by its session, or by the environment variable that all processes of a task inherit. A stray that
//! has changed both is killed when all attempts that could have started it have ended.

use super::sys;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, c_int};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The environment variable that marks all processes of an attempt.
pub const MARK: &str = "AMALGAM_TASK_DIR";

/// The used fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    pub state: u8,
    pub parent: i32,
    pub session: i32,
    pub started_ticks: u64,
    pub rss_pages: u64,
    /// Including its children that have exited.
    pub cpu_ticks: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and parentheses, so the fields are counted from the last closing parenthesis.
    let after = text.iter().rposition(|byte| *byte == b')')? + 2;
    let text = std::str::from_utf8(text.get(after..)?).ok()?;
    let fields: Vec<&str> = text.split(' ').collect();
    let ticks = |range: std::ops::Range<usize>| {
        fields.get(range)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()
    };
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
        rss_pages: fields.get(21)?.parse().ok()?,
        cpu_ticks: ticks(11..15)?,
    })
}

/// The CPU time of a process and its exited children, in microseconds.
pub fn cpu_micros(pid: i32) -> Option<u64> {
    let ticks = stat(pid)?.cpu_ticks;
    Some(ticks.saturating_mul(1_000_000) / rustix::param::clock_ticks_per_second().max(1))
}

/// Number of bytes that a process and its exited children have read, from disks, pipes and the page cache.
pub fn read_bytes(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
}

pub fn kill(pid: i32) {
    if pid > 0 {
        sys::kill(pid, libc::SIGKILL);
    }
}

/// Every pid on the machine.
fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The value of [`MARK`] in a process's initial environment.
fn mark(pid: i32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))?;
    Some(PathBuf::from(OsStr::from_bytes(value)))
}

/// Kills the remaining processes of an earlier executor: PDEATHSIG has killed its tasks, but not their children.
pub fn kill_remains(task_dirs: &Path) {
    let own = std::process::id() as i32;
    for pid in all_pids().filter(|pid| *pid != own) {
        if mark(pid).is_some_and(|directory| directory.starts_with(task_dirs)) {
            kill(pid);
        }
    }
}

/// The children of this process.
pub struct Children {
    /// The kernel's list of children. `None` in kernels built without it; all of `/proc` is read then.
    list: Option<File>,
    own: i32,
}

impl Children {
    pub fn new() -> Children {
        let own = std::process::id() as i32;
        Children { list: File::open(format!("/proc/self/task/{own}/children")).ok(), own }
    }

    pub fn pids(&self) -> Vec<i32> {
        let Some(list) = &self.list else {
            return all_pids().filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == self.own)).collect();
        };
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = list.read_at(&mut piece, text.len() as u64) {
            text.extend_from_slice(&piece[..length]);
        }
        String::from_utf8_lossy(&text).split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

/// Children of the executor that are not the main process of an attempt.
#[derive(Default)]
pub struct Strays {
    known: HashMap<i32, Stray>,
}

enum Stray {
    Of(u64),
    /// Its attempt is unknown. It was found when `latest` was the latest attempt.
    Unmarked {
        latest: u64,
    },
}

/// The attempts, by the serial number of their launch, to find the owners of strays.
pub trait Owners {
    fn by_main_process(&self, pid: i32) -> Option<u64>;
    fn by_task_dir(&self, directory: &Path) -> Option<u64>;
    fn latest(&self) -> u64;
    /// The oldest attempt whose main process still runs.
    fn oldest_running(&self) -> Option<u64>;
    /// Whether the attempt's main process still runs.
    fn is_running(&self, serial: u64) -> bool;
}

impl Strays {
    /// Kills the strays of attempts whose main process has exited. Returns the attempts that still have strays.
    pub fn sweep(&mut self, children: &[i32], owners: &dyn Owners) -> HashSet<u64> {
        let mut unfinished = HashSet::new();
        self.known.retain(|pid, _| children.contains(pid));
        for &pid in children {
            if owners.by_main_process(pid).is_some_and(|serial| owners.is_running(serial)) {
                continue;
            }
            let Some(stat) = stat(pid).filter(|stat| stat.state != b'Z') else { continue };
            let stray = self.known.entry(pid).or_insert_with(|| {
                let by_session = owners.by_main_process(stat.session);
                let owner = by_session.or_else(|| owners.by_task_dir(&mark(pid)?));
                owner.map_or(Stray::Unmarked { latest: owners.latest() }, Stray::Of)
            });
            match *stray {
                Stray::Of(serial) if owners.is_running(serial) => {}
                Stray::Of(serial) => {
                    kill(pid);
                    unfinished.insert(serial);
                }
                Stray::Unmarked { latest } if owners.oldest_running().is_some_and(|oldest| oldest <= latest) => {}
                Stray::Unmarked { latest } => {
                    kill(pid);
                    unfinished.insert(latest);
                }
            }
        }
        unfinished
    }

    /// Signals the strays of one attempt.
    pub fn signal(&self, serial: u64, signal: c_int) {
        for (pid, stray) in &self.known {
            if matches!(stray, Stray::Of(owner) if *owner == serial) {
                sys::kill(*pid, signal);
            }
        }
    }
}

/// A list of all processes on the machine, to add up the memory of attempts.
pub struct Census {
    processes: HashMap<i32, Stat>,
}

impl Census {
    pub fn take() -> Census {
        Census { processes: all_pids().filter_map(|pid| Some((pid, stat(pid)?))).collect() }
    }

    /// The resident bytes of each main process's session and descendants, in the order of `mains`. Shared memory is
    /// counted once for each process.
    pub fn resident_bytes(&self, mains: &[i32]) -> Vec<u64> {
        let places: HashMap<i32, usize> = mains.iter().enumerate().map(|(place, pid)| (*pid, place)).collect();
        let mut pages = vec![0; mains.len()];
        for (pid, stat) in &self.processes {
            if let Some(place) = self.owner(*pid, stat, &places) {
                pages[place] += stat.rss_pages;
            }
        }
        let page = rustix::param::page_size() as u64;
        pages.into_iter().map(|pages: u64| pages * page).collect()
    }

    /// The processes of each main process's session and its descendants, in the order of `mains`.
    pub fn members(&self, mains: &[i32]) -> Vec<Vec<i32>> {
        let places: HashMap<i32, usize> = mains.iter().enumerate().map(|(place, pid)| (*pid, place)).collect();
        let mut members = vec![Vec::new(); mains.len()];
        for (pid, stat) in &self.processes {
            if let Some(place) = self.owner(*pid, stat, &places) {
                members[place].push(*pid);
            }
        }
        members
    }

    fn owner(&self, pid: i32, stat: &Stat, places: &HashMap<i32, usize>) -> Option<usize> {
        if let Some(place) = places.get(&stat.session) {
            return Some(*place);
        }
        // Processes start and exit while the list is read, so parents could form a cycle.
        let mut ancestor = pid;
        for _ in 0..64 {
            if let Some(place) = places.get(&ancestor) {
                return Some(*place);
            }
            ancestor = self.processes.get(&ancestor)?.parent;
        }
        None
    }
}
