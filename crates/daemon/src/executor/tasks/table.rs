//! The attempts that have not ended, by their ids and processes.

use super::attempt::Attempt;
use crate::executor::members::Owners;
use crate::executor::sys::Exit;
use amalgam_core::vocabulary::AttemptId;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Instant;

/// The attempts that have not ended.
#[derive(Default)]
pub(super) struct Table {
    pub(super) by_serial: BTreeMap<u64, Attempt>,
    pub(super) serial_of: HashMap<AttemptId, u64>,
    pub(super) serial_of_pid: HashMap<i32, u64>,
    /// Attempts whose main process has exited.
    pub(super) leaving: BTreeMap<u64, Leaving>,
}

pub(super) struct Leaving {
    pub(super) exit: Exit,
    pub(super) since: Instant,
    /// Whether the process group was found empty. It is not checked again, because its number may be reused.
    pub(super) group_gone: bool,
}

impl Table {
    pub(super) fn get(&self, attempt: AttemptId) -> Option<&Attempt> {
        self.by_serial.get(self.serial_of.get(&attempt)?)
    }

    pub(super) fn get_mut(&mut self, attempt: AttemptId) -> Option<&mut Attempt> {
        self.by_serial.get_mut(self.serial_of.get(&attempt)?)
    }

    pub(super) fn is_running_main(&self, pid: i32) -> bool {
        self.serial_of_pid.get(&pid).is_some_and(|serial| self.is_running(*serial))
    }

    pub(super) fn insert(&mut self, serial: u64, attempt: Attempt) {
        self.serial_of.insert(attempt.order.attempt, serial);
        self.serial_of_pid.insert(attempt.pid, serial);
        self.by_serial.insert(serial, attempt);
    }

    pub(super) fn remove(&mut self, serial: u64) -> Option<(Attempt, Exit)> {
        let leaving = self.leaving.remove(&serial)?;
        let attempt = self.by_serial.remove(&serial)?;
        self.serial_of.remove(&attempt.order.attempt);
        // The pid may belong to a newer attempt, because it could be reused since it was reaped.
        if self.serial_of_pid.get(&attempt.pid) == Some(&serial) {
            self.serial_of_pid.remove(&attempt.pid);
        }
        Some((attempt, leaving.exit))
    }
}

impl Owners for Table {
    fn by_main_process(&self, pid: i32) -> Option<u64> {
        self.serial_of_pid.get(&pid).copied()
    }

    fn by_task_dir(&self, directory: &Path) -> Option<u64> {
        let owner = self.by_serial.iter().find(|(_, attempt)| attempt.task_dir == directory);
        owner.map(|(serial, _)| *serial)
    }

    fn latest(&self) -> u64 {
        self.by_serial.last_key_value().map_or(0, |(serial, _)| *serial)
    }

    fn oldest_running(&self) -> Option<u64> {
        self.by_serial.keys().copied().find(|serial| self.is_running(*serial))
    }

    fn is_running(&self, serial: u64) -> bool {
        self.by_serial.contains_key(&serial) && !self.leaving.contains_key(&serial)
    }
}
