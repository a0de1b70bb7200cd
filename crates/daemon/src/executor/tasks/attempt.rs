//! One attempt on this machine: its priority, its usage and the reason of its end.

use super::launch::explain;
use crate::executor::accounts::Account;
use crate::executor::capture::Capture;
use crate::executor::containers;
use crate::executor::exec_failure;
use crate::executor::hierarchy::Leaf;
use crate::executor::input::Input;
use crate::executor::precedence;
use crate::executor::prepare::Prepared;
use crate::executor::progress::Measured;
use crate::executor::sys::{self, ActsAs, Exit};
use amalgam_core::protocol::{Executing, ExecutorReport};
use amalgam_core::vocabulary as words;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use words::{EndReason, LaunchOrder, Usage};

pub(super) struct Attempt {
    pub(super) order: LaunchOrder,
    /// Files that the program may be; the first one that exists is. Several only if it runs as another user.
    pub(super) programs: Vec<PathBuf>,
    /// The account that it runs as; `None` for this process's own.
    pub(super) account: Option<Arc<Account>>,
    /// Set until it is known that another user's process has exec'd.
    pub(super) starting: Option<Starting>,
    /// How the task of a sandbox ended; `pid` is the process around it.
    pub(super) ending: Option<OwnedFd>,
    /// The container that `pid` runs.
    pub(super) container: Option<containers::Started>,
    pub(super) pid: i32,
    pub(super) launched: Instant,
    pub(super) captures: [Capture; 2],
    /// The input ends when this is dropped.
    pub(super) _input: Option<Input>,
    pub(super) task_dir: PathBuf,
    pub(super) leaf: Option<Leaf>,
    pub(super) oom_kills_before: u64,
    pub(super) cpu_before: u64,
    /// Whether its start was reported.
    pub(super) announced: bool,
    /// The reason for which the agent ordered its end.
    pub(super) ordered_end: Option<EndReason>,
    /// Set if it was killed because it exceeded its memory limit: its memory in bytes.
    pub(super) over_memory: Option<u64>,
    /// Whether it gets only the CPU and disk time that others leave idle.
    pub(super) is_lower: bool,
    /// When it started to yield its CPU, if it yields now.
    pub(super) yields_since: Option<Instant>,
    /// The time for which it yielded before that.
    pub(super) yielded: Duration,
}

/// What explains why a process did not exec.
pub(super) struct Starting {
    pub(super) report: OwnedFd,
    pub(super) prepared: Box<Prepared>,
}

impl Attempt {
    /// Forgets what is only needed until the process has exec'd.
    pub(super) fn note_exec(&mut self) {
        self.starting.take_if(|starting| sys::has_execed(starting.report.as_fd()));
    }

    /// Why its process did not exec, if it did not; with the rights of the task's user.
    pub(super) fn start_failure(&self) -> Option<EndReason> {
        let Starting { report, prepared } = self.starting.as_ref()?;
        let failure = sys::failure_of(report.as_fd())?;
        Some(explain(&failure, prepared, self.order.template.shape.resources.memory_mib()))
    }

    /// Accesses files with the rights of the task's user from now on, if it is another one.
    ///
    /// # Errors
    /// If that is not possible; files that the user can change must not be accessed then.
    pub(super) fn act_as_its_user(&self) -> io::Result<Option<ActsAs>> {
        self.account.as_ref().map(|account| ActsAs::user(account.credentials())).transpose()
    }

    fn program(&self) -> &Path {
        match self.programs.as_slice() {
            [program] => program,
            several => several.iter().find(|program| program.is_file()).map_or(Path::new(""), PathBuf::as_path),
        }
    }

    /// Sets the CPU and disk priority: low for opportunistic attempts and while an attempt yields, otherwise normal.
    pub(super) fn set_precedence(&mut self) {
        let lower = self.order.is_opportunistic() || self.yields_since.is_some();
        if std::mem::replace(&mut self.is_lower, lower) == lower {
            return;
        }
        let main = self.pid;
        match &mut self.leaf {
            Some(leaf) => {
                leaf.set_lower(lower);
                precedence::set(|| leaf.members(), lower, !leaf.weighs_cpu());
            }
            None => precedence::set(|| precedence::processes_of(main), lower, true),
        }
    }

    pub(super) fn kill(&self) {
        sys::kill_group(self.pid, libc::SIGKILL);
        if let Some(leaf) = &self.leaf {
            leaf.kill_members();
        }
    }

    /// The reason of the attempt's end. The reason of an ordered end has priority. A kill at the memory limit is the
    /// reason unless the task succeeded in spite of it.
    /// `failed_start` is [`Attempt::start_failure`], and `reads` whether files may be read, see
    /// [`Attempt::act_as_its_user`].
    pub(super) fn reason(
        &self,
        status: i32,
        oom_killed: bool,
        failed_start: Option<EndReason>,
        reads: bool,
    ) -> EndReason {
        if let Some(ordered) = self.ordered_end.clone().or(failed_start) {
            return ordered;
        }
        let plain = match libc::WIFSIGNALED(status) {
            true => EndReason::Signal(libc::WTERMSIG(status) as u8),
            false => EndReason::Exit(libc::WEXITSTATUS(status) as u8),
        };
        let for_memory = self.over_memory.is_some() || oom_killed;
        match plain {
            _ if for_memory && !plain.is_success() => EndReason::OutOfMemory,
            // The kernel sends these signals to a program whose file is incomplete.
            EndReason::Signal(signal)
                if reads && [libc::SIGSEGV, libc::SIGBUS, libc::SIGKILL].contains(&signal.into()) =>
            {
                exec_failure::cut_short(self.program()).unwrap_or(plain)
            }
            _ => plain,
        }
    }

    /// A message that explains a failure, in addition to the task's own.
    pub(super) fn why_failed(&self, reason: &EndReason) -> Option<String> {
        match reason {
            EndReason::OutOfMemory => {
                // Without a limit of its own, the task exceeded a limit of the node.
                let limit = Some(self.order.template.shape.resources.memory_mib()).filter(|limit| *limit > 0)?;
                // With a cgroup, the kernel does not allow more than the limit.
                let used = self.over_memory.map_or(u64::from(limit), |bytes| bytes.div_ceil(1 << 20));
                Some(format!("used {used} of {limit} MiB; request more with -r memory"))
            }
            // Exit codes of shells, `env` and interpreters with invalid arguments.
            EndReason::Exit(2 | 126 | 127) => exec_failure::carriage_return(self.program()),
            _ => None,
        }
    }

    pub(super) fn usage(&self, exit: &Exit) -> Usage {
        let [stdout, stderr] = &self.captures;
        Usage {
            wall: micros(self.launched.elapsed()),
            yielded: micros(self.yielded()),
            cpu: words::Duration::from_micros(exit.cpu_micros),
            max_memory_bytes: exit.max_rss_bytes,
            stdout_bytes: stdout.bytes,
            stderr_bytes: stderr.bytes,
            dropped_bytes: stdout.dropped + stderr.dropped,
        }
    }

    fn yielded(&self) -> Duration {
        self.yielded + self.yields_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Time since the launch, without the time for which the attempt yielded.
    fn running_for(&self) -> words::Duration {
        let until = self.yields_since.unwrap_or_else(Instant::now);
        micros(until.duration_since(self.launched).saturating_sub(self.yielded))
    }

    pub(super) fn measured(&self) -> Measured<'_> {
        Measured {
            pid: self.pid,
            running_for: self.running_for(),
            task_dir: &self.task_dir,
            leaf: self.leaf.as_ref(),
            account: self.account.as_deref(),
            cpu_before: self.cpu_before,
        }
    }

    pub(super) fn started(&self) -> ExecutorReport {
        ExecutorReport::Started { attempt: self.order.attempt, pid: self.pid as u32 }
    }

    pub(super) fn describe(&self) -> Executing {
        Executing {
            order: self.order.clone(),
            running_for: self.running_for(),
            yields_for: self.yields_since.map(|since| micros(since.elapsed())),
            pid: self.pid as u32,
            asked_to_end: self.ordered_end.clone(),
        }
    }
}

fn micros(length: Duration) -> words::Duration {
    words::Duration::from_micros(length.as_micros() as u64)
}
