//! The steps of an attempt on this machine: launch, output, exit, remaining processes, end, acknowledgement.

use super::capture::Capture;
use super::cgroups::Cgroups;
use super::exec_failure;
use super::hierarchy::{Leaf, Shape};
use super::input::Input;
use super::members::{Census, Children, Owners, Strays};
use super::output_path;
use super::outputs::{Outputs, Stored};
use super::precedence;
use super::prepare::{self, BaseEnvironment, Prepared, node_fault};
use super::progress::{self, Measured};
use super::sys::{self, ChildStack, Exit, Launch, LaunchError, Lower, Step};
use super::task_dirs::TaskDirs;
use crate::files::FileStore;
use crate::removal::Remover;
use amalgam_core::protocol::{Executing, ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary as words;
use rustix::event::epoll;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use words::{AttemptId, EndReason, Ended, LaunchOrder, NodeId, Stream, Usage};

/// Interval at which remaining processes of ended tasks are checked and killed again.
const LEFTOVER_INTERVAL: Duration = Duration::from_millis(5);
/// A process in an uninterruptible wait cannot be killed. After this time, the attempt ends although the process
/// remains.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which memory is measured, without cgroups.
const CENSUS_INTERVAL: Duration = Duration::from_millis(200);

/// A task that ends within this time causes only one wake-up: its start and its end are reported together, and its
/// output is read when it has ended. Until then its output stays in the pipes.
const YOUTH: Duration = Duration::from_millis(1);

/// How limits are enforced.
pub enum Enforcer {
    Cgroups(Cgroups),
    Census,
    Nothing,
}

pub struct Tasks {
    state: PathBuf,
    enforcer: Enforcer,
    task_dirs: TaskDirs,
    remover: Arc<Remover>,
    base: BaseEnvironment,
    null: OwnedFd,
    open_files: Option<libc::rlimit>,
    is_spared: bool,
    stack: ChildStack,
    buffer: Vec<u8>,
    table: Table,
    /// Attempts whose start is not reported yet, with the time of the report, in the order of their launches.
    young: VecDeque<(Instant, u64)>,
    /// Ends that are not acknowledged.
    ends: BTreeMap<AttemptId, (NodeId, Arc<Ended>)>,
    outputs: Outputs,
    /// Attempts that succeeded and whose outputs are being stored. They end when this is done.
    storing: BTreeMap<AttemptId, (Executing, Ended)>,
    children: Children,
    strays: Strays,
    next_serial: u64,
    next_census: Option<Instant>,
    /// The nodes that the agent serves; `None` means all, before an agent has sent its nodes.
    served: Option<Vec<NodeId>>,
    /// Reports to send to the agent.
    pub reports: Vec<ExecutorReport>,
}

/// The attempts that have not ended.
#[derive(Default)]
struct Table {
    by_serial: BTreeMap<u64, Attempt>,
    serial_of: HashMap<AttemptId, u64>,
    serial_of_pid: HashMap<i32, u64>,
    /// Attempts whose main process has exited.
    leaving: BTreeMap<u64, Leaving>,
}

struct Attempt {
    order: LaunchOrder,
    program: PathBuf,
    pid: i32,
    launched: Instant,
    captures: [Capture; 2],
    /// The input ends when this is dropped.
    _input: Option<Input>,
    task_dir: PathBuf,
    leaf: Option<Leaf>,
    oom_kills_before: u64,
    cpu_before: u64,
    /// Whether its start was reported.
    announced: bool,
    /// The reason for which the agent ordered its end.
    ordered_end: Option<EndReason>,
    /// Set if it was killed because it exceeded its memory limit: its memory in bytes.
    over_memory: Option<u64>,
    /// Whether it gets only the CPU and disk time that others leave idle.
    is_lower: bool,
    /// When it started to yield its CPU, if it yields now.
    yields_since: Option<Instant>,
    /// The time for which it yielded before that.
    yielded: Duration,
}

struct Leaving {
    exit: Exit,
    since: Instant,
    /// Whether the process group was found empty. It is not checked again, because its number may be reused.
    group_gone: bool,
}

impl Tasks {
    pub fn new(state: &Path, enforcer: Enforcer, open_files: Option<libc::rlimit>) -> io::Result<Tasks> {
        let scratch = state.join("tasks");
        super::members::kill_remains(&scratch);
        let remover = Arc::new(Remover::new(state)?);
        prepare::remove_remaining_inputs(state, &remover);
        Ok(Tasks {
            state: state.to_owned(),
            enforcer,
            task_dirs: TaskDirs::new(scratch, Arc::clone(&remover))?,
            remover,
            base: BaseEnvironment::of_this_process(),
            null: std::fs::File::open("/dev/null")?.into(),
            open_files,
            is_spared: sys::is_spared(),
            stack: ChildStack::default(),
            buffer: Vec::new(),
            table: Table::default(),
            young: VecDeque::new(),
            ends: BTreeMap::new(),
            outputs: Outputs::new(state)?,
            storing: BTreeMap::new(),
            children: Children::new(),
            strays: Strays::default(),
            next_serial: 1,
            next_census: None,
            served: None,
            reports: Vec::new(),
        })
    }

    /// Whether no attempt runs and no end waits for its acknowledgement.
    pub fn is_idle(&self) -> bool {
        self.table.by_serial.is_empty() && self.ends.is_empty() && self.storing.is_empty()
    }

    pub fn is_running_any(&self) -> bool {
        !self.table.by_serial.is_empty()
    }

    pub fn on_order(&mut self, order: ToExecutor) {
        match order {
            ToExecutor::Launch(order) => self.on_launch(*order),
            ToExecutor::Signal { attempt, signal, reason } => self.on_signal(attempt, signal, reason),
            ToExecutor::Promote { attempt, grant } => {
                if let Some(running) = self.table.get_mut(attempt) {
                    running.order.promote(grant);
                    running.set_precedence();
                }
            }
            ToExecutor::SetTimeout { attempt, timeout } => {
                if let Some(running) = self.table.get_mut(attempt) {
                    running.order.set_timeout(timeout);
                }
            }
            ToExecutor::Yield { attempt } => {
                if let Some(running) = self.table.get_mut(attempt) {
                    running.yields_since.get_or_insert_with(Instant::now);
                    running.set_precedence();
                }
            }
            ToExecutor::Resume { attempt } => {
                if let Some(running) = self.table.get_mut(attempt) {
                    running.yielded += running.yields_since.take().map_or(Duration::ZERO, |since| since.elapsed());
                    running.set_precedence();
                }
            }
            ToExecutor::Acknowledge { attempt } => {
                self.ends.remove(&attempt);
            }
            ToExecutor::List { node } => self.on_list(node),
            ToExecutor::Measure { node, attempts } => self.on_measure(node, &attempts),
            // The agent handles these orders itself, because it has the connection to other nodes.
            ToExecutor::Fetch { .. } | ToExecutor::Drop { .. } => {}
        }
    }

    fn on_launch(&mut self, order: LaunchOrder) {
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

    /// Reports the start of attempts that have run for `YOUTH`, and watches their output from then on.
    pub fn announce(&mut self, poll: &OwnedFd) {
        let now = Instant::now();
        // Attempts that have ended are removed immediately, so that they cause no wake-up.
        while let Some((_, serial)) =
            self.young.pop_front_if(|(grown, serial)| *grown <= now || !self.table.by_serial.contains_key(serial))
        {
            let Some(attempt) = self.table.by_serial.get_mut(&serial) else { continue };
            attempt.announced = true;
            self.reports.push(attempt.started());
            for (place, capture) in attempt.captures.iter().enumerate() {
                if let Some(pipe) = capture.descriptor() {
                    let token = epoll::EventData::new_u64(token(serial, place));
                    // If the kernel lacks memory for this, the output in the pipe is read at the end.
                    let _ = epoll::add(poll, pipe, token, epoll::EventFlags::IN);
                }
            }
        }
    }

    fn give_back(&mut self, leaf: Option<Leaf>) {
        if let (Enforcer::Cgroups(cgroups), Some(leaf)) = (&mut self.enforcer, leaf) {
            cgroups.give_back(leaf);
        }
    }

    /// Returns the cgroup of an attempt that did not start. After a node fault it is removed, because the next attempt
    /// might fail to enter it, too.
    fn give_back_unused(&mut self, leaf: Option<Leaf>, reason: &EndReason) {
        match reason {
            EndReason::NodeFault(_) => leaf.into_iter().for_each(Leaf::remove),
            _ => self.give_back(leaf),
        }
    }

    fn on_signal(&mut self, attempt: AttemptId, signal: TaskSignal, reason: EndReason) {
        let Some(&serial) = self.table.serial_of.get(&attempt) else { return };
        // After its leader is reaped, the number of a process group may belong to other processes.
        if !self.table.is_running(serial) {
            return;
        }
        let Some(running) = self.table.by_serial.get_mut(&serial) else { return };
        running.ordered_end.get_or_insert(reason);
        match signal {
            TaskSignal::Terminate => {
                sys::kill(-running.pid, libc::SIGTERM);
                // A stopped process handles the signal only when it continues.
                sys::kill(-running.pid, libc::SIGCONT);
                self.strays.signal(serial, libc::SIGTERM);
            }
            TaskSignal::Kill => {
                running.kill();
                self.strays.signal(serial, libc::SIGKILL);
            }
        }
    }

    fn on_list(&mut self, node: NodeId) {
        for (attempt, (_, ended)) in self.ends.iter().filter(|(_, (owner, _))| *owner == node) {
            self.reports.push(ExecutorReport::Finished { attempt: *attempt, ended: ended.clone() });
        }
        let of_node = self.table.by_serial.values().filter(|attempt| attempt.order.node == node);
        let storing = self.storing.values().map(|(executing, _)| executing).filter(|one| one.order.node == node);
        let attempts = of_node.map(Attempt::describe).chain(storing.cloned()).collect();
        let files = FileStore::of(&self.state, node).list();
        if !files.is_empty() {
            self.reports.push(ExecutorReport::Stored { node, files });
        }
        self.reports.push(ExecutorReport::Executing { attempts });
    }

    fn on_measure(&mut self, node: NodeId, attempts: &[AttemptId]) {
        let running = attempts.iter().filter_map(|attempt| Some((*attempt, self.table.get(*attempt)?)));
        let (attempts, measured): (Vec<AttemptId>, Vec<Measured>) =
            running.map(|(attempt, running)| (attempt, running.measured())).unzip();
        let samples = attempts.into_iter().zip(progress::measure(&measured)).collect();
        self.reports.push(ExecutorReport::Measured { node, samples });
    }

    /// Reads a pipe that is readable or closed.
    pub fn on_output(&mut self, token: u64) {
        let (serial, place) = (token / 2, (token % 2) as usize);
        // The attempt may have ended in the same turn.
        if let Some(attempt) = self.table.by_serial.get_mut(&serial) {
            attempt.captures[place].read(&mut self.buffer);
        }
    }

    /// Reaps every child that has exited.
    pub fn on_children(&mut self) {
        while let Some(pid) = sys::exited_child() {
            let serial = self.table.serial_of_pid.get(&pid).copied();
            if serial.is_some() {
                // While its leader is a zombie, the group's number cannot be reused.
                sys::kill(-pid, libc::SIGKILL);
            }
            let Ok(exit) = sys::reap(pid) else { return };
            if let Some(serial) = serial {
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
        let children = self.children.pids();
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
        if !attempt.announced {
            self.reports.push(attempt.started());
        }
        for capture in &mut attempt.captures {
            capture.finish(&mut self.buffer);
        }
        let oom_killed = attempt.leaf.as_ref().is_some_and(|leaf| leaf.oom_kills() > attempt.oom_kills_before);
        let reason = attempt.reason(exit.status, oom_killed);
        let usage = attempt.usage(&exit);
        let leaves_files = reason.is_success() && !attempt.order.template.outputs.is_empty();
        let executing = leaves_files.then(|| attempt.describe());
        let why_failed = attempt.why_failed(&reason);
        let mut messages: Vec<String> = self.task_dirs.give_back(attempt.task_dir).into_iter().collect();
        messages.extend(why_failed);
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
            Some(executing) => self.store(executing, ended),
            None => self.end(attempt.order.attempt, attempt.order.node, Arc::new(ended)),
        }
    }

    fn store(&mut self, executing: Executing, ended: Ended) {
        let LaunchOrder { attempt, node, .. } = executing.order;
        match self.outputs.store(executing.order.clone()) {
            Ok(()) => drop(self.storing.insert(attempt, (executing, ended))),
            Err(reason) => self.end(attempt, node, Arc::new(Ended { reason, ..ended })),
        }
    }

    /// The remover of the tasks' directories.
    pub fn remover(&self) -> &Remover {
        &self.remover
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
            ended.files = (!outputs.is_empty()).then(|| Box::new(words::EndedFiles { outputs, missing: Vec::new() }));
            ended.reason = failure.unwrap_or(ended.reason);
            self.end(attempt, executing.order.node, Arc::new(ended));
        }
    }

    /// Stops the attempts of other nodes and forgets their ends, because no agent would acknowledge them.
    pub fn serve_only(&mut self, nodes: Vec<NodeId>) {
        let foreign = self.table.by_serial.values().filter(|attempt| !nodes.contains(&attempt.order.node));
        let foreign: Vec<AttemptId> = foreign.map(|attempt| attempt.order.attempt).collect();
        self.ends.retain(|_, (node, _)| nodes.contains(node));
        self.served = Some(nodes);
        for attempt in foreign {
            self.on_signal(attempt, TaskSignal::Kill, EndReason::NodeLost);
        }
    }

    fn end(&mut self, attempt: AttemptId, node: NodeId, ended: Arc<Ended>) {
        if self.served.as_ref().is_some_and(|served| !served.contains(&node)) {
            return;
        }
        self.ends.insert(attempt, (node, ended.clone()));
        self.reports.push(ExecutorReport::Finished { attempt, ended });
    }

    /// When the loop has to run without an event.
    pub fn next_wakeup(&self) -> Option<Instant> {
        let leftovers = (!self.table.leaving.is_empty()).then(|| Instant::now() + LEFTOVER_INTERVAL);
        let young = self.young.front().map(|(grown, _)| *grown);
        leftovers.into_iter().chain(young).chain(self.next_census).min()
    }

    /// Kills attempts above their memory limit, without cgroups.
    pub fn watch_memory(&mut self) {
        if self.next_census.is_none_or(|due| due > Instant::now()) {
            return;
        }
        let limited = |attempt: &&mut Attempt| attempt.order.template.shape.resources.memory_mib() > 0;
        let mut watched: Vec<&mut Attempt> = self.table.by_serial.values_mut().filter(limited).collect();
        if watched.is_empty() {
            self.next_census = None;
            return;
        }
        let mains: Vec<i32> = watched.iter().map(|attempt| attempt.pid).collect();
        let resident = Census::take().resident_bytes(&mains);
        for (attempt, bytes) in watched.iter_mut().zip(resident) {
            if bytes > u64::from(attempt.order.template.shape.resources.memory_mib()) << 20
                && attempt.over_memory.is_none()
            {
                attempt.over_memory = Some(bytes);
                attempt.kill();
            }
        }
        self.next_census = Some(Instant::now() + CENSUS_INTERVAL);
    }

    pub fn kill_all(&mut self) {
        let all: Vec<AttemptId> = self.table.serial_of.keys().copied().collect();
        for attempt in all {
            self.on_signal(attempt, TaskSignal::Kill, EndReason::NodeLost);
        }
    }
}

impl Attempt {
    /// Sets the CPU and disk priority: low for opportunistic attempts and while an attempt yields, otherwise normal.
    fn set_precedence(&mut self) {
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

    fn kill(&self) {
        sys::kill(-self.pid, libc::SIGKILL);
        if let Some(leaf) = &self.leaf {
            leaf.kill_members();
        }
    }

    /// The reason of the attempt's end. The reason of an ordered end has priority. A kill at the memory limit is the
    /// reason unless the task succeeded in spite of it.
    fn reason(&self, status: i32, oom_killed: bool) -> EndReason {
        if let Some(ordered) = &self.ordered_end {
            return ordered.clone();
        }
        let plain = match libc::WIFSIGNALED(status) {
            true => EndReason::Signal(libc::WTERMSIG(status) as u8),
            false => EndReason::Exit(libc::WEXITSTATUS(status) as u8),
        };
        let for_memory = self.over_memory.is_some() || oom_killed;
        match plain {
            _ if for_memory && !plain.is_success() => EndReason::OutOfMemory,
            // The kernel sends these signals to a program whose file is incomplete.
            EndReason::Signal(signal) if [libc::SIGSEGV, libc::SIGBUS, libc::SIGKILL].contains(&signal.into()) => {
                exec_failure::cut_short(&self.program).unwrap_or(plain)
            }
            _ => plain,
        }
    }

    /// A message that explains a failure, in addition to the task's own.
    fn why_failed(&self, reason: &EndReason) -> Option<String> {
        match reason {
            EndReason::OutOfMemory => {
                // Without a limit of its own, the task exceeded a limit of the node.
                let limit = Some(self.order.template.shape.resources.memory_mib()).filter(|limit| *limit > 0)?;
                // With a cgroup, the kernel does not allow more than the limit.
                let used = self.over_memory.map_or(u64::from(limit), |bytes| bytes.div_ceil(1 << 20));
                Some(format!("used {used} of {limit} MiB; request more with -r memory"))
            }
            // Exit codes of shells, `env` and interpreters with invalid arguments.
            EndReason::Exit(2 | 126 | 127) => exec_failure::carriage_return(&self.program),
            _ => None,
        }
    }

    fn usage(&self, exit: &Exit) -> Usage {
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

    fn measured(&self) -> Measured<'_> {
        Measured {
            pid: self.pid,
            running_for: self.running_for(),
            task_dir: &self.task_dir,
            leaf: self.leaf.as_ref(),
            cpu_before: self.cpu_before,
        }
    }

    fn started(&self) -> ExecutorReport {
        ExecutorReport::Started { attempt: self.order.attempt, pid: self.pid as u32 }
    }

    fn describe(&self) -> Executing {
        Executing {
            order: self.order.clone(),
            running_for: self.running_for(),
            yields_for: self.yields_since.map(|since| micros(since.elapsed())),
            pid: self.pid as u32,
            asked_to_end: self.ordered_end.clone(),
        }
    }
}

impl Table {
    fn get(&self, attempt: AttemptId) -> Option<&Attempt> {
        self.by_serial.get(self.serial_of.get(&attempt)?)
    }

    fn get_mut(&mut self, attempt: AttemptId) -> Option<&mut Attempt> {
        self.by_serial.get_mut(self.serial_of.get(&attempt)?)
    }

    fn is_running_main(&self, pid: i32) -> bool {
        self.serial_of_pid.get(&pid).is_some_and(|serial| self.is_running(*serial))
    }

    fn insert(&mut self, serial: u64, attempt: Attempt) {
        self.serial_of.insert(attempt.order.attempt, serial);
        self.serial_of_pid.insert(attempt.pid, serial);
        self.by_serial.insert(serial, attempt);
    }

    fn remove(&mut self, serial: u64) -> Option<(Attempt, Exit)> {
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

/// The epoll token of a pipe. Serial numbers start at 1, so the tokens 0 and 1 are free for other sources.
fn token(serial: u64, place: usize) -> u64 {
    debug_assert!(place < 2);
    serial * 2 + place as u64
}

fn micros(length: Duration) -> words::Duration {
    words::Duration::from_micros(length.as_micros() as u64)
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
