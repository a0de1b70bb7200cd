//! Which processes belong to an attempt where no cgroup says so.
//!
//! The executor is a subreaper: whatever loses its parent beneath a task becomes our child. Such a stray is known by
//! its session, or by the variable that every task inherits. One that has cleared both is killed once every attempt
//! that could have started it has ended.

use super::sys;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, c_int};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The variable that marks everything that an attempt starts.
pub const MARK: &str = "AMALGAM_TASK_DIR";

/// The fields of `/proc/PID/stat` that are of use.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    pub state: u8,
    pub parent: i32,
    pub session: i32,
    pub started_ticks: u64,
    pub rss_pages: u64,
    /// With that of its children that have ended.
    pub cpu_ticks: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and parentheses, so the fields are counted from its last one.
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

/// The CPU time of a process, with that of its children that have ended.
pub fn cpu_micros(pid: i32) -> Option<u64> {
    let ticks = stat(pid)?.cpu_ticks;
    Some(ticks.saturating_mul(1_000_000) / rustix::param::clock_ticks_per_second().max(1))
}

/// What a process has read, with its children that have ended: from disks, pipes and memory alike.
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

/// The value of [`MARK`] in the environment that a process was started with.
fn mark(pid: i32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))?;
    Some(PathBuf::from(OsStr::from_bytes(value)))
}

/// Kills what an executor that died here left running: PDEATHSIG has ended its tasks, but not their children.
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
    /// Kept open; absent in kernels built without it, where all of `/proc` is read instead.
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

/// Children of ours that are nobody's main process.
#[derive(Default)]
pub struct Strays {
    known: HashMap<i32, Stray>,
}

enum Stray {
    Of(u64),
    /// Nothing says whose it is; it was there when this was the latest attempt.
    Unmarked {
        latest: u64,
    },
}

/// The attempts as far as attribution needs them, by serial number of launch.
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
    /// Kills the strays of attempts whose main process has ended and returns which of those attempts still have some.
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

/// One look at all processes, to add up what the trees of attempts hold.
pub struct Census {
    processes: HashMap<i32, Stat>,
}

impl Census {
    pub fn take() -> Census {
        Census { processes: all_pids().filter_map(|pid| Some((pid, stat(pid)?))).collect() }
    }

    /// The resident bytes of each main process's session and descendants, in the order of `mains`. Memory that
    /// processes share is counted for each of them.
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
        // Processes come and go during the census, so a chain of parents might close into a ring.
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
