//! The launch of an attempt.

use super::attempt::Attempt;
use super::{CENSUS_INTERVAL, Enforcer, Tasks, YOUTH};
use crate::executor::capture::Capture;
use crate::executor::exec_failure;
use crate::executor::hierarchy::{Leaf, Shape};
use crate::executor::input::Input;
use crate::executor::output_path;
use crate::executor::prepare::{self, Prepared, node_fault};
use crate::executor::sys::{self, Launch, LaunchError, Lower, Step};
use amalgam_core::protocol::ExecutorReport;
use amalgam_core::vocabulary::{EndReason, Ended, LaunchOrder, Stream};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
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
        if let Some((executing, _)) = self.storing.get(&attempt) {
            return self.reports.push(ExecutorReport::Started { attempt, pid: executing.pid });
        }
        let node = order.node;
        if let Some(ended) = prepare::lacking(&order, &self.state) {
            return self.end(attempt, node, ended);
        }
        if let Err(reason) = self.launch(order) {
            self.end(attempt, node, Ended::without_run(reason));
        }
    }

    /// Launches an attempt. If this fails, its directory and cgroup are returned.
    fn launch(&mut self, order: LaunchOrder) -> Result<(), EndReason> {
        let task_dir = self.task_dirs.take().map_err(|error| node_fault("create a directory for the task", &error))?;
        let leaf = match &mut self.enforcer {
            Enforcer::Cgroups(cgroups) => cgroups.take(shape(&order)).map(Some),
            Enforcer::Census | Enforcer::Nothing => Ok(None),
        };
        let leaf = leaf.inspect_err(|_| drop(self.task_dirs.give_back(task_dir.clone())));
        let leaf = leaf.map_err(|error| node_fault("create a cgroup for the task", &error))?;
        let launched = Instant::now();
        let oom_kills_before = leaf.as_ref().map_or(0, Leaf::oom_kills);
        let cpu_before = leaf.as_ref().and_then(Leaf::cpu_micros).unwrap_or(0);
        let (pid, program, captures, input) = match self.start(&order, &task_dir, leaf.as_ref()) {
            Ok(started) => started,
            Err(reason) => {
                prepare::remove_inputs(&order, &self.state, &self.remover);
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
            program,
            pid,
            launched,
            captures,
            _input: input,
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

    /// Starts the process of an order. Returns its pid, its program and the executor's ends of its pipes.
    fn start(
        &mut self,
        order: &LaunchOrder,
        task_dir: &Path,
        leaf: Option<&Leaf>,
    ) -> Result<(i32, PathBuf, [Capture; 2], Option<Input>), EndReason> {
        let no_pipe = |error: io::Error| node_fault("create a pipe for the task's output", &error);
        let prepared = prepare::prepare(order, task_dir, &self.state, &self.base, &self.remover)?;
        let open =
            |stream| Capture::new(output_path(&self.state, order.attempt, stream), order.template.program.output_cap);
        let (stdout, stdout_writer) = open(Stream::Stdout).map_err(no_pipe)?;
        let (stderr, stderr_writer) = open(Stream::Stderr).map_err(no_pipe)?;
        let input = match order.template.program.stdin {
            true => Some(
                Input::open(&self.state, order.attempt)
                    .map_err(|error| node_fault("create a pipe for the task's input", &error))?,
            ),
            false => None,
        };
        let (input, stdin) = input.unzip();
        let request = Launch {
            program: &prepared.program,
            arguments: &prepared.arguments,
            environment: &prepared.environment,
            directory: &prepared.directory,
            stdio: [stdin.as_ref().unwrap_or(&self.null).as_fd(), stdout_writer.as_fd(), stderr_writer.as_fd()],
            join: leaf.map_or(&[], |leaf| leaf.join.as_slice()),
            born_in: leaf.and_then(|leaf| leaf.born_in.as_ref()).map(AsFd::as_fd),
            open_files: self.open_files,
            data: self.backstop(order),
            lower: order.is_opportunistic().then(|| match leaf.is_some_and(Leaf::weighs_cpu) {
                true => Lower::Io,
                false => Lower::CpuAndIo,
            }),
            is_spared: self.is_spared,
            umask: order.template.program.umask,
        };
        let memory_mib = order.template.shape.resources.memory_mib();
        let pid = match sys::launch(&request, &mut self.stack) {
            Err(failure) if failure.step == Step::Exec && failure.error.raw_os_error() == Some(libc::ENOEXEC) => {
                let arguments = exec_failure::as_script(&prepared)?;
                let request = Launch { program: c"/bin/sh", arguments: &arguments, ..request };
                sys::launch(&request, &mut self.stack)
            }
            launched => launched,
        };
        let pid = pid.map_err(|failure| explain(&failure, &prepared, memory_mib))?;
        Ok((pid, exec_failure::file(&prepared), [stdout, stderr], input))
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

fn explain(failure: &LaunchError, prepared: &Prepared, memory_mib: u32) -> EndReason {
    let error = &failure.error;
    match failure.step {
        Step::Exec => exec_failure::exec_failure(prepared, error, memory_mib),
        Step::Directory => {
            prepare::directory_failure(Path::new(OsStr::from_bytes(prepared.directory.as_bytes())), error)
        }
        Step::Clone => node_fault("start another process", error),
        Step::Cgroup => node_fault("put the task into its cgroup", error),
        Step::Session => node_fault("create a session for the task", error),
        Step::Streams => node_fault("connect the task's streams", error),
        Step::Limits => node_fault("set the task's limits", error),
    }
}
