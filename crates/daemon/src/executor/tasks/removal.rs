//! Processes that remove containers which their runtimes left (ADR 84).
//!
//! They run as the container's user, who can configure what the runtime runs. So they are limited as tasks are: by a cgroup without any
//! of the node's devices, and by time.

use super::attempt::Attempt;
use super::{Enforcer, Tasks};
use crate::executor::container_removal::Removal;
use crate::executor::hierarchy::{Leaf, Shape};
use crate::executor::sys::{self, Apart, Launch};
use amalgam_core::vocabulary::{AttemptId, Devices};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// How often the removal of a container is tried.
const MOST_TRIALS: u32 = 3;
/// The most that run at once. Others wait.
const MOST_AT_ONCE: usize = 4;
/// After this time, a trial has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// When this process stops, removals have this time.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(3);
/// A process in an uninterruptible wait cannot be killed. After this time, its group is left as it is.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(10);
/// One CPU and what the runtimes need. Not less weight than others have: meanwhile they hold locks of the user's containers.
const SHAPE: Shape = Shape { cpu_millis: 1_000, memory_mib: 512, lower: false };

#[derive(Default)]
pub(super) struct Removals {
    running: BTreeMap<i32, Helper>,
    waiting: VecDeque<Trial>,
    /// Groups of processes that have ended, with processes that these left, and since when.
    emptying: Vec<(Leaf, Instant)>,
    /// What went wrong.
    notes: Vec<String>,
}

#[derive(Clone, Copy)]
struct Trial {
    container: AttemptId,
    /// From 1.
    number: u32,
}

struct Helper {
    trial: Trial,
    since: Instant,
    leaf: Option<Leaf>,
}

impl Helper {
    /// Whether it was killed and does not end.
    fn is_stuck(&self) -> bool {
        self.since.elapsed() >= 2 * PATIENCE
    }
}

impl Removals {
    /// Whether nothing is under way, except what was killed and does not end.
    pub fn is_idle(&self) -> bool {
        self.running.values().all(Helper::is_stuck) && self.waiting.is_empty()
    }

    /// Whether nothing is under way that a process waits for which stops since then.
    pub fn may_stop(&self, since: Instant) -> bool {
        self.is_idle() || since.elapsed() >= PATIENCE_AT_THE_END
    }

    fn is_full(&self) -> bool {
        self.running.values().filter(|helper| !helper.is_stuck()).count() >= MOST_AT_ONCE
    }

    /// Gives up what is tried for an earlier container of this attempt: the next one has the same name.
    pub fn forget(&mut self, container: AttemptId) {
        self.waiting.retain(|trial| trial.container != container);
    }

    pub fn has(&self, pid: i32) -> bool {
        self.running.contains_key(&pid)
    }

    /// When [`Tasks::watch_removals`] has to be called. `often` is the interval while processes are killed.
    pub fn next_wakeup(&self, often: Duration) -> Option<Instant> {
        let leftovers = (!self.emptying.is_empty()).then(|| Instant::now() + often);
        // Once a second, if it could not be killed.
        let due = |helper: &Helper| (helper.since + PATIENCE).max(Instant::now() + Duration::from_secs(1));
        self.running.values().map(due).chain(leftovers).min()
    }
}

impl Tasks {
    /// Forgets the container of an attempt, which its runtime has removed; or removes it, if the runtime was killed before it did.
    pub(super) fn leave_container(&mut self, attempt: &Attempt, was_killed: bool) {
        if attempt.container.as_ref().is_none_or(|container| container.removal.is_none()) {
            return;
        }
        match was_killed {
            true => self.remove_container(Trial { container: attempt.order.attempt, number: 1 }),
            false => self.containers.forget(attempt.order.attempt),
        }
    }

    /// Removes the containers that an executor before this one had when it was killed.
    pub(super) fn remove_remaining_containers(&mut self) {
        for (container, _) in self.containers.remaining() {
            self.remove_container(Trial { container, number: 1 });
        }
    }

    /// Ends a trial, if the child that was reaped is one.
    pub(super) fn on_removal(&mut self, pid: i32, is_removed: bool) {
        let Some(Helper { trial: Trial { container, number }, leaf, .. }) = self.removals.running.remove(&pid) else {
            return;
        };
        self.removals.emptying.extend(leaf.map(|leaf| (leaf, Instant::now())));
        if is_removed {
            self.containers.forget(container);
        } else {
            // Podman fails at first if the process that watched the container was killed as well.
            self.try_again(Trial { container, number }, "its runtime failed, or took too long");
        }
        self.watch_removals();
    }

    /// Kills what takes too long and what was left, and starts what waits.
    pub fn watch_removals(&mut self) {
        for (pid, helper) in &self.removals.running {
            if helper.since.elapsed() >= PATIENCE {
                if let Some(leaf) = &helper.leaf {
                    leaf.kill_members();
                }
                sys::kill(-pid, libc::SIGKILL);
            }
        }
        for (leaf, since) in std::mem::take(&mut self.removals.emptying) {
            if leaf.kill_members() {
                self.give_back(Some(leaf));
            } else if since.elapsed() < LEFTOVER_PATIENCE {
                self.removals.emptying.push((leaf, since));
            }
        }
        while !self.removals.is_full()
            && let Some(trial) = self.removals.waiting.pop_front()
        {
            self.remove_container(trial);
        }
    }

    /// What could not be done, for the agent.
    pub fn take_removal_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.removals.notes)
    }

    fn try_again(&mut self, Trial { container, number }: Trial, why: &str) {
        if number < MOST_TRIALS {
            return self.removals.waiting.push_back(Trial { container, number: number + 1 });
        }
        let note =
            format!("the container of attempt {container} could not be removed: {why}; the next executor tries again");
        self.removals.notes.push(note);
    }

    fn remove_container(&mut self, trial: Trial) {
        if self.removals.is_full() {
            return self.removals.waiting.push_back(trial);
        }
        // An attempt of a cluster that was made again may have the same id, and its container the same name.
        if self.table.serial_of.contains_key(&trial.container) {
            return;
        }
        let Some(removal) = self.containers.get(trial.container) else { return };
        let leaf = match &mut self.enforcer {
            Enforcer::Cgroups(cgroups) => cgroups.take(SHAPE, &Devices::default()).map(Some),
            Enforcer::Census | Enforcer::Nothing => Ok(None),
        };
        match leaf.and_then(|leaf| self.start_removal(&removal, leaf)) {
            Ok((pid, leaf)) => drop(self.removals.running.insert(pid, Helper { trial, since: Instant::now(), leaf })),
            Err(error) => self.try_again(trial, &error.to_string()),
        }
    }

    fn start_removal(&mut self, removal: &Removal, leaf: Option<Leaf>) -> io::Result<(i32, Option<Leaf>)> {
        let c_strings = |words: &[Vec<u8>]| words.iter().cloned().filter_map(|word| CString::new(word).ok()).collect();
        let [arguments, environment]: [Vec<CString>; 2] =
            [&removal.arguments, &removal.environment].map(|words| c_strings(words));
        let program = CString::new(removal.program.as_os_str().as_bytes())?;
        let request = Launch {
            programs: &[program],
            arguments: &arguments,
            environment: &environment,
            directory: c"/",
            stdio: [self.null.as_fd(); 3],
            join: leaf.as_ref().map_or(&[], |leaf| leaf.join.as_slice()),
            born_in: leaf.as_ref().and_then(|leaf| leaf.born_in.as_ref()).map(AsFd::as_fd),
            open_files: self.open_files,
            limits: &[],
            data: None,
            lower: None,
            is_spared: self.is_spared,
            umask: None,
            user: removal.credentials(),
            mounts: None,
        };
        match sys::launch_apart(&request, &mut self.stack) {
            Ok(Apart { pid, .. }) => Ok((pid, leaf)),
            Err(failure) => {
                self.give_back(leaf);
                Err(failure.error)
            }
        }
    }
}
