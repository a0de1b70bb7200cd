//! The end of an attempt: exit, remaining processes, declared outputs, report.

use super::attempt::Attempt;
use super::table::Leaving;
use super::{Enforcer, Tasks};
use crate::executor::accounts::Account;
use crate::executor::capture::Capture;
use crate::executor::containers;
use crate::executor::hierarchy::Leaf;
use crate::executor::output_path;
use crate::executor::outputs::Stored;
use crate::executor::prepare;
use crate::executor::sys;
use crate::executor::task_dirs::message_in;
use amalgam_core::protocol::{Executing, ExecutorReport};
use amalgam_core::vocabulary::{AttemptId, EndReason, Ended, EndedFiles, LaunchOrder, NodeId, Stream};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process in an uninterruptible wait cannot be killed. After this time, the attempt ends although the process
/// remains.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(10);

impl Tasks {
    /// Reaps every child that has exited.
    pub fn on_children(&mut self) {
        while let Some(pid) = sys::exited_child() {
            let serial = self.table.serial_of_pid.get(&pid).copied();
            if serial.is_some() || self.removals.has(pid) {
                // While its leader is a zombie, the group's number cannot be reused.
                sys::kill(-pid, libc::SIGKILL);
            }
            let Ok(exit) = sys::reap(pid) else { return };
            self.on_removal(pid, exit.status == 0);
            if let Some(serial) = serial {
                let ending = self.table.by_serial.get(&serial).and_then(|attempt| attempt.ending.as_ref());
                let exit = ending.and_then(|pipe| sys::ending_of(pipe.as_fd())).unwrap_or(exit);
                self.table.leaving.insert(serial, Leaving { exit, since: Instant::now(), group_gone: false });
            }
        }
    }

    /// Kills the remaining processes of attempts whose main process has exited, and ends the attempts without any.
    pub fn settle(&mut self) {
        if self.table.leaving.is_empty() {
            return;
        }
        // A remaining process has lost its parent, so it is a child of this process or a descendant of such a child.
        let mut children = self.children.pids();
        children.retain(|pid| !self.removals.has(*pid));
        let none_left = children.iter().all(|pid| self.table.is_running_main(*pid));
        let unfinished = match self.enforcer {
            Enforcer::Cgroups(_) => HashSet::new(),
            _ if none_left => HashSet::new(),
            _ => self.strays.sweep(&children, &self.table),
        };
        let mut ended = Vec::new();
        for (serial, leaving) in &mut self.table.leaving {
            let Some(attempt) = self.table.by_serial.get(serial) else { continue };
            leaving.group_gone = leaving.group_gone || !sys::kill(-attempt.pid, libc::SIGKILL);
            let others_gone = match &attempt.leaf {
                Some(leaf) => none_left || leaf.kill_members(),
                None => !unfinished.contains(serial),
            };
            let all_gone = leaving.group_gone && others_gone;
            if all_gone || leaving.since.elapsed() >= LEFTOVER_PATIENCE {
                ended.push((*serial, all_gone));
            }
        }
        for (serial, all_gone) in ended {
            self.finish(serial, all_gone);
        }
    }

    fn finish(&mut self, serial: u64, all_gone: bool) {
        let Some((mut attempt, exit)) = self.table.remove(serial) else { return };
        prepare::remove_inputs(&attempt.order, &self.state, &self.remover);
        for capture in &mut attempt.captures {
            capture.finish(&mut self.buffer);
        }
        let oom_killed = attempt.leaf.as_ref().is_some_and(|leaf| leaf.oom_kills() > attempt.oom_kills_before);
        // Only this process's own user can read the output.
        let of_runtime = self.failure_of_runtime(&attempt, exit.status);
        // What the task's user can change is read with that user's rights.
        let acts = attempt.act_as_its_user();
        let failed_start = acts.is_ok().then(|| attempt.start_failure()).flatten();
        if !attempt.announced && failed_start.is_none() {
            self.reports.push(attempt.started());
        }
        let reason = attempt.reason(exit.status, oom_killed, failed_start, acts.is_ok());
        let reason = match (of_runtime, reason) {
            (Some(why), EndReason::Exit(_)) => why,
            (_, reason) => reason,
        };
        let usage = attempt.usage(&exit);
        let leaves_files = reason.is_success() && !attempt.order.template.outputs.is_empty();
        let executing = leaves_files.then(|| attempt.describe());
        let mut messages = Vec::new();
        match &acts {
            Ok(_) => messages.extend(message_in(&attempt.task_dir).into_iter().chain(attempt.why_failed(&reason))),
            Err(error) => messages.push(format!("the executor cannot read files as the task's user: {error}")),
        }
        drop(acts);
        self.leave_container(&attempt, libc::WIFSIGNALED(exit.status));
        self.task_dirs.give_back(attempt.task_dir);
        if oom_killed && reason != EndReason::OutOfMemory {
            messages.push("the kernel killed one of the task's processes at the memory limit".to_owned());
        }
        if !all_gone {
            messages.push("a process of the task remains and could not be killed".to_owned());
        }
        let past_cap: u64 = attempt.captures.iter().map(Capture::past_cap).sum();
        messages.extend(attempt.captures.iter_mut().filter_map(|capture| capture.trouble.take()));
        if past_cap > 0 {
            messages.push(format!("the last {past_cap} bytes of the output, above its cap, were not kept"));
        }
        let message = (!messages.is_empty()).then(|| messages.join("\n"));
        let ended = Ended { reason, usage, message, files: None };
        // A cgroup that still has a member cannot be reused.
        self.give_back(attempt.leaf.filter(|_| all_gone));
        match executing {
            Some(executing) => self.store(executing, attempt.account, ended),
            None => self.end(attempt.order.attempt, attempt.order.node, Arc::new(ended)),
        }
    }

    /// Why the runtime of an attempt's container failed, if there is one and it did.
    fn failure_of_runtime(&self, attempt: &Attempt, status: i32) -> Option<EndReason> {
        let container = attempt.container.as_ref().filter(|_| libc::WIFEXITED(status))?;
        let errors = output_path(&self.state, attempt.order.attempt, Stream::Stderr);
        containers::failure(container, libc::WEXITSTATUS(status), &errors)
    }

    pub(super) fn give_back(&mut self, leaf: Option<Leaf>) {
        if let (Enforcer::Cgroups(cgroups), Some(leaf)) = (&mut self.enforcer, leaf) {
            cgroups.give_back(leaf);
        }
    }

    fn store(&mut self, executing: Executing, account: Option<Arc<Account>>, ended: Ended) {
        let LaunchOrder { attempt, node, .. } = executing.order;
        match self.outputs.store(executing.order.clone(), account) {
            Ok(()) => drop(self.storing.insert(attempt, (executing, ended))),
            Err(reason) => self.end(attempt, node, Arc::new(Ended { reason, ..ended })),
        }
    }

    /// Readable when [`Tasks::on_stored`] has to be called.
    pub fn outputs_bell(&self) -> BorrowedFd<'_> {
        self.outputs.bell()
    }

    /// Ends the attempts whose outputs are stored.
    pub fn on_stored(&mut self) {
        for Stored { attempt, outputs, failure } in self.outputs.take_done() {
            let Some((executing, mut ended)) = self.storing.remove(&attempt) else { continue };
            // The node has these outputs, even if others could not be stored.
            ended.files = (!outputs.is_empty()).then(|| Box::new(EndedFiles { outputs, missing: Vec::new() }));
            ended.reason = failure.unwrap_or(ended.reason);
            self.end(attempt, executing.order.node, Arc::new(ended));
        }
    }

    pub(super) fn end(&mut self, attempt: AttemptId, node: NodeId, ended: Arc<Ended>) {
        if self.served.as_ref().is_some_and(|served| !served.contains(&node)) {
            return;
        }
        self.ends.insert(attempt, (node, ended.clone()));
        self.reports.push(ExecutorReport::Finished { attempt, ended });
    }
}
