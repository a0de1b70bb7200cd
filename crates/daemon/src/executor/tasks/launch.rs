//! The launch of an attempt.

use super::attempt::{Attempt, Starting};
use super::{CENSUS_INTERVAL, Enforcer, Tasks, YOUTH};
use crate::executor::accounts::{self, Account, Accounts};
use crate::executor::capture::Capture;
use crate::executor::containers;
use crate::executor::devices::KnownDevices;
use crate::executor::exec_failure;
use crate::executor::hierarchy::{Leaf, Shape};
use crate::executor::input::Input;
use crate::executor::isolation;
use crate::executor::output_path;
use crate::executor::prepare::{self, Place, Prepared, node_fault};
use crate::executor::sys::{self, Apart, Launch, LaunchError, Lower, SHELL, Step};
use crate::executor::user_limits::UserLimits;
use amalgam_core::protocol::ExecutorReport;
use amalgam_core::vocabulary::{AttemptId, EndReason, Ended, LaunchOrder, Stream};
use rustix::fs::{Gid, Uid};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Tasks {
    pub(super) fn on_launch(&mut self, order: LaunchOrder) {
        let attempt = order.attempt;
        if let Some((_, ended)) = self.ends.get(&attempt) {
            return self.reports.push(ExecutorReport::Finished { attempt, ended: ended.clone() });
        }
        if let Some(running) = self.table.get(attempt) {
            return self.reports.push(running.started());
        }
        if self.awaiting.contains_key(&attempt) {
            return;
        }
        if let Some((executing, _)) = self.storing.get(&attempt) {
            return self.reports.push(ExecutorReport::Started { attempt, pid: executing.pid });
        }
        let node = order.node;
        if let Some(ended) = prepare::lacking(&order, &self.state) {
            return self.end(attempt, node, ended);
        }
        match self.account_of(&order) {
            None => drop(self.awaiting.insert(attempt, order)),
            Some(Ok(account)) => self.launch_as(order, account),
            Some(Err(reason)) => self.end(attempt, node, Ended::without_run(reason)),
        }
    }

    /// The account that the task runs as; `None` as long as it is looked up. An account of `None` is this process's own.
    fn account_of(&mut self, order: &LaunchOrder) -> Option<Result<Option<Arc<Account>>, EndReason>> {
        let Some(accounts) = &mut self.accounts else { return Some(Ok(None)) };
        let Some(name) = &order.template.account else { return Some(Err(accounts::unnamed())) };
        Some(accounts.get(name)?.map(Some))
    }

    /// Launches the attempts that waited for their accounts.
    pub fn on_accounts(&mut self) {
        let names = self.accounts.as_mut().map(Accounts::take_answers).unwrap_or_default();
        for name in names {
            let waiting = self.awaiting.extract_if(.., |_, order| order.template.account.as_ref() == Some(&name));
            let orders: Vec<LaunchOrder> = waiting.map(|(_, order)| order).collect();
            for order in orders {
                self.on_launch(order);
            }
        }
    }

    fn launch_as(&mut self, order: LaunchOrder, account: Option<Arc<Account>>) {
        let (attempt, node) = (order.attempt, order.node);
        if let Err(reason) = self.launch(order, account) {
            self.end(attempt, node, Ended::without_run(reason));
        }
    }

    /// Launches an attempt. If this fails, its directory and cgroup are returned.
    fn launch(&mut self, order: LaunchOrder, account: Option<Arc<Account>>) -> Result<(), EndReason> {
        let task_dir = self.task_dirs.take().map_err(|error| node_fault("create a directory for the task", &error))?;
        let leaf = match &mut self.enforcer {
            Enforcer::Cgroups(cgroups) => cgroups.take(shape(&order), &order.devices).map(Some),
            Enforcer::Census | Enforcer::Nothing => Ok(None),
        };
        let leaf = leaf.inspect_err(|_| self.task_dirs.give_back(task_dir.clone()));
        let leaf = leaf.map_err(|error| node_fault("create a cgroup for the task", &error))?;
        let launched = Instant::now();
        let oom_kills_before = leaf.as_ref().map_or(0, Leaf::oom_kills);
        let cpu_before = leaf.as_ref().and_then(Leaf::cpu_micros).unwrap_or(0);
        let started = match self.start(&order, &task_dir, leaf.as_ref(), account.as_deref()) {
            Ok(started) => started,
            Err(reason) => {
                prepare::remove_inputs(&order, &self.state, &self.remover);
                if order.template.program.container.is_some() {
                    self.containers.forget(order.attempt);
                }
                self.task_dirs.give_back(task_dir);
                self.give_back_unused(leaf, &reason);
                return Err(reason);
            }
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        let limits_memory = order.template.shape.resources.memory_mib() > 0;
        if limits_memory && matches!(self.enforcer, Enforcer::Census) && self.next_census.is_none() {
            self.next_census = Some(launched + CENSUS_INTERVAL);
        }
        let is_lower = order.is_opportunistic();
        let attempt = Attempt {
            order,
            programs: started.programs,
            account,
            starting: started.starting,
            ending: started.ending,
            container: started.container,
            pid: started.pid,
            launched,
            captures: started.captures,
            _input: started.input,
            task_dir,
            leaf,
            oom_kills_before,
            cpu_before,
            announced: false,
            ordered_end: None,
            over_memory: None,
            is_lower,
            yields_since: None,
            yielded: Duration::ZERO,
        };
        self.table.insert(serial, attempt);
        self.young.push_back((launched + YOUTH, serial));
        Ok(())
    }

    /// Starts the process of an order.
    fn start(
        &mut self,
        order: &LaunchOrder,
        task_dir: &Path,
        leaf: Option<&Leaf>,
        account: Option<&Account>,
    ) -> Result<Started, EndReason> {
        let no_pipe = |error: io::Error| node_fault("create a pipe for the task's output", &error);
        let (state, base, remover) = (&self.state, &self.base, &*self.remover);
        let UserLimits { open_files, limits, data } = self.limits(order, account);
        let place = Place { task_dir, state, base, remover, account, declared: &self.declared, open_files };
        let mut prepared = prepare::prepare(order, &place)?;
        if prepared.mounts.as_ref().is_some_and(|mounts| mounts.sandbox.is_some()) {
            KnownDevices::new(&self.declared).renumber(order, &mut prepared.environment);
        } else if let Enforcer::Cgroups(cgroups) = &self.enforcer {
            cgroups.devices.renumber(order, &mut prepared.environment);
        }
        self.remember_container(order.attempt, prepared.container.as_ref())?;
        let open = |stream| {
            let path = output_path(&self.state, order.attempt, stream);
            let (capture, writer) = Capture::new(path, order.template.program.output_cap)?;
            give(&writer, account)?;
            Ok((capture, writer))
        };
        let (stdout, stdout_writer) = open(Stream::Stdout).map_err(no_pipe)?;
        let (stderr, stderr_writer) = open(Stream::Stderr).map_err(no_pipe)?;
        let input = self.open_input(order, account)?;
        let (input, stdin) = input.unzip();
        let request = Launch {
            programs: &prepared.programs,
            arguments: &prepared.arguments,
            environment: &prepared.environment,
            directory: &prepared.directory,
            stdio: [stdin.as_ref().unwrap_or(&self.null).as_fd(), stdout_writer.as_fd(), stderr_writer.as_fd()],
            join: leaf.map_or(&[], |leaf| leaf.join.as_slice()),
            born_in: leaf.and_then(|leaf| leaf.born_in.as_ref()).map(AsFd::as_fd),
            open_files,
            limits: &limits,
            data,
            lower: order.is_opportunistic().then(|| match leaf.is_some_and(Leaf::weighs_cpu) {
                true => Lower::Io,
                false => Lower::CpuAndIo,
            }),
            is_spared: self.is_spared,
            umask: order.template.program.umask.or_else(|| account.map(|_| USUAL_UMASK)),
            user: account.map(Account::credentials),
            mounts: prepared.mounts.as_ref(),
        };
        let memory_mib = order.template.shape.resources.memory_mib();
        let explained = |failure: LaunchError| explain(&failure, &prepared, memory_mib);
        let (pid, report, ending) = match account.is_some() || prepared.mounts.is_some() {
            true => sys::launch_apart(&request, &mut self.stack)
                .map(|Apart { pid, report, ending }| (pid, Some(report), ending)),
            false => match sys::launch(&request, &mut self.stack) {
                Err(failure) if failure.step == Step::Exec && failure.error.raw_os_error() == Some(libc::ENOEXEC) => {
                    let arguments = exec_failure::as_script(&prepared)?;
                    let programs = [SHELL.to_owned()];
                    let request = Launch { programs: &programs, arguments: &arguments, ..request };
                    sys::launch(&request, &mut self.stack)
                }
                launched => launched,
            }
            .map(|pid| (pid, None, None)),
        }
        .map_err(explained)?;
        let programs = exec_failure::files(&prepared);
        let container = prepared.container.clone();
        let starting = report.map(|report| Starting { report, prepared: Box::new(prepared) });
        Ok(Started { pid, programs, starting, ending, container, captures: [stdout, stderr], input })
    }

    fn remember_container(
        &mut self,
        attempt: AttemptId,
        container: Option<&containers::Started>,
    ) -> Result<(), EndReason> {
        let Some(removal) = container.and_then(|container| container.removal.as_ref()) else { return Ok(()) };
        self.removals.forget(attempt);
        let added = self.containers.add(attempt, removal);
        added.map_err(|error| node_fault("write down that a container starts", &error))
    }

    /// The standard input of a task that has one, and the task's end of it.
    fn open_input(
        &self,
        order: &LaunchOrder,
        account: Option<&Account>,
    ) -> Result<Option<(Input, OwnedFd)>, EndReason> {
        if !order.template.program.stdin {
            return Ok(None);
        }
        let opened = Input::open(&self.state, order.attempt);
        let given = opened.and_then(|(input, stdin)| give(&stdin, account).map(|()| (input, stdin)));
        given.map(Some).map_err(|error| node_fault("create a pipe for the task's input", &error))
    }

    fn limits(&self, order: &LaunchOrder, account: Option<&Account>) -> UserLimits {
        let of_user = account.map_or(&[][..], |account| &account.limits);
        UserLimits::of(of_user, self.open_files, self.backstop(order))
    }

    /// A limit on the memory that a task can take between two measurements, so that it cannot take all of the machine's
    /// memory. Programs map more memory than they use, so the limit is twice the requested memory plus 1 GiB.
    fn backstop(&self, order: &LaunchOrder) -> Option<libc::rlimit> {
        let memory_mib = order.template.shape.resources.memory_mib();
        if memory_mib == 0 || !matches!(self.enforcer, Enforcer::Census) {
            return None;
        }
        let bytes = (u64::from(memory_mib) * 2 + 1_024) << 20;
        Some(libc::rlimit { rlim_cur: bytes, rlim_max: bytes })
    }

    /// Returns the cgroup of an attempt that did not start. After a node fault it is removed, because the next attempt
    /// might fail to enter it, too.
    fn give_back_unused(&mut self, leaf: Option<Leaf>, reason: &EndReason) {
        match reason {
            EndReason::NodeFault(_) => leaf.into_iter().for_each(Leaf::remove),
            _ => self.give_back(leaf),
        }
    }
}

fn shape(order: &LaunchOrder) -> Shape {
    let basic = &order.template.shape.resources;
    Shape { cpu_millis: basic.cpu_millis(), memory_mib: basic.memory_mib(), lower: order.is_opportunistic() }
}

/// A process that was started.
struct Started {
    pid: i32,
    programs: Vec<PathBuf>,
    starting: Option<Starting>,
    ending: Option<OwnedFd>,
    container: Option<containers::Started>,
    captures: [Capture; 2],
    input: Option<Input>,
}

/// The umask of tasks that run as their job's user and whose job sets none: that of most systems' logins.
const USUAL_UMASK: u16 = 0o022;

/// Gives a pipe to the user of the task, who may open it by its path in `/proc` or `/dev/fd`.
fn give(pipe: &OwnedFd, account: Option<&Account>) -> io::Result<()> {
    let Some(account) = account else { return Ok(()) };
    let (user, group) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    Ok(rustix::fs::fchown(pipe, Some(user), Some(group))?)
}

/// Why a process did not start, for users.
pub(super) fn explain(failure: &LaunchError, prepared: &Prepared, memory_mib: u32) -> EndReason {
    let error = &failure.error;
    if let Some(mounts) = &prepared.mounts
        && error.raw_os_error() == Some(libc::ENOENT)
        && let Some(hidden) = match failure.step {
            Step::Exec => isolation::hidden(mounts, &prepared.tried().1),
            Step::Directory => isolation::hidden(mounts, Path::new(OsStr::from_bytes(prepared.directory.as_bytes()))),
            _ => None,
        }
    {
        return hidden;
    }
    match failure.step {
        // These errors of another user's process are caused by what the user has: its number of processes, its mounts.
        Step::Exec | Step::Directory
            if prepared.is_of_another_user && matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOTCONN)) =>
        {
            EndReason::LaunchFailed(format!("the task's user cannot start it on this node: {error}"))
        }
        Step::Exec => exec_failure::exec_failure(prepared, error, memory_mib),
        Step::User => node_fault("start a process as the task's user", error),
        Step::Directory => {
            prepare::directory_failure(Path::new(OsStr::from_bytes(prepared.directory.as_bytes())), error)
        }
        Step::Clone => node_fault("start another process", error),
        Step::Cgroup => node_fault("put the task into its cgroup", error),
        Step::Session => node_fault("create a session for the task", error),
        Step::Streams => node_fault("connect the task's streams", error),
        Step::Limits => node_fault("set the task's limits", error),
        Step::Namespace => isolation::failure("creating a namespace", error),
        Step::Mount => isolation::failure("mounting", error),
        Step::Devices => isolation::failure("mounting a `/dev`", error),
        Step::Processes => isolation::failure("mounting a `/proc`, which requires that this one is complete,", error),
        Step::ReadOnly => isolation::failure("making mounts read-only", error),
        Step::Privileges => isolation::failure("giving up privileges", error),
    }
}
