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
/// One CPU that others leave idle, and what the runtimes need.
const SHAPE: Shape = Shape { cpu_millis: 1_000, memory_mib: 512, lower: true };

#[derive(Default)]
pub(super) struct Removals {
    running: BTreeMap<i32, Helper>,
    waiting: VecDeque<Trial>,
    /// Groups of processes that have ended, with processes that these left.
    emptying: Vec<Leaf>,
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

impl Removals {
    /// Whether nothing is under way, except what was killed and does not end.
    pub fn is_idle(&self) -> bool {
        self.running.values().all(|helper| helper.since.elapsed() >= 2 * PATIENCE) && self.waiting.is_empty()
    }

    pub fn has(&self, pid: i32) -> bool {
        self.running.contains_key(&pid)
    }

    /// When [`Tasks::watch_removals`] has to be called. `often` is the interval while processes are killed.
    pub fn next_wakeup(&self, often: Duration) -> Option<Instant> {
        let leftovers = (!self.emptying.is_empty()).then(|| Instant::now() + often);
        // Again after the same time, if it could not be killed.
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
        self.removals.emptying.extend(leaf);
        if is_removed {
            self.containers.forget(container);
        } else if number < MOST_TRIALS {
            // Podman fails at first if the process that watched the container was killed as well.
            self.removals.waiting.push_back(Trial { container, number: number + 1 });
        } else {
            tracing::warn!("the container of attempt {container} could not be removed; the next executor tries again");
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
        let (empty, others) = std::mem::take(&mut self.removals.emptying).into_iter().partition(Leaf::kill_members);
        self.removals.emptying = others;
        let empty: Vec<Leaf> = empty;
        empty.into_iter().for_each(|leaf| self.give_back(Some(leaf)));
        while self.removals.running.len() < MOST_AT_ONCE
            && let Some(trial) = self.removals.waiting.pop_front()
        {
            self.remove_container(trial);
        }
    }

    fn remove_container(&mut self, trial: Trial) {
        if self.removals.running.len() >= MOST_AT_ONCE {
            return self.removals.waiting.push_back(trial);
        }
        let Some(removal) = self.containers.get(trial.container) else { return };
        let leaf = match &mut self.enforcer {
            Enforcer::Cgroups(cgroups) => cgroups.take(SHAPE, &Devices::default()).map(Some),
            Enforcer::Census | Enforcer::Nothing => Ok(None),
        };
        match leaf.and_then(|leaf| self.start_removal(&removal, leaf)) {
            Ok((pid, leaf)) => drop(self.removals.running.insert(pid, Helper { trial, since: Instant::now(), leaf })),
            Err(error) => tracing::warn!(
                "the container of attempt {} could not be removed: {error}; the next executor tries again",
                trial.container
            ),
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
