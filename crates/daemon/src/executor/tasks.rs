//! The life of an attempt on this machine: launch, output, exit, leftovers, end, acknowledgement.

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

/// How often leftovers that do not die at once are looked after.
const LEFTOVER_INTERVAL: Duration = Duration::from_millis(5);
/// A process in an uninterruptible wait cannot be killed; after this long the attempt ends without it.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(10);
/// How often memory is added up where no cgroup limits it.
const CENSUS_INTERVAL: Duration = Duration::from_millis(200);

/// A task that ends within this time wakes nobody twice: it is reported as started and finished at once, and its
/// output is read when it has ended. Until then the pipes hold what it writes.
const YOUTH: Duration = Duration::from_millis(1);

/// How limits are kept.
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
    /// Those not yet reported as started and when they will be, in the order of their launches.
    young: VecDeque<(Instant, u64)>,
    /// Ends that nobody has acknowledged.
    ends: BTreeMap<AttemptId, (NodeId, Arc<Ended>)>,
    outputs: Outputs,
    /// Those that ended well and whose output is being stored: until then they have not ended.
    storing: BTreeMap<AttemptId, (Executing, Ended)>,
    children: Children,
    strays: Strays,
    next_serial: u64,
    next_census: Option<Instant>,
    /// The nodes whose attempts have an owner; all of them before an agent says which.
    served: Option<Vec<NodeId>>,
    /// What the agent is to be told.
    pub reports: Vec<ExecutorReport>,
}

/// The attempts that have not ended.
#[derive(Default)]
struct Table {
    by_serial: BTreeMap<u64, Attempt>,
    serial_of: HashMap<AttemptId, u64>,
    serial_of_pid: HashMap<i32, u64>,
    /// Those whose main process has exited.
    leaving: BTreeMap<u64, Leaving>,
}

struct Attempt {
    order: LaunchOrder,
    program: PathBuf,
    pid: i32,
    launched: Instant,
    captures: [Capture; 2],
    /// Open for as long as the attempt.
    _input: Option<Input>,
    task_dir: PathBuf,
    leaf: Option<Leaf>,
    oom_kills_before: u64,
    cpu_before: u64,
    /// It was reported as started.
    announced: bool,
    /// Why the agent wanted it ended.
    ordered_end: Option<EndReason>,
    /// We killed it because it passed its memory limit: it had so many bytes.
    over_memory: Option<u64>,
    /// It gets what others leave of CPU and disks.
    is_lower: bool,
    /// Others are to have its CPU since then, and had it for so long before.
    yields_since: Option<Instant>,
    yielded: Duration,
}

struct Leaving {
    exit: Exit,
    since: Instant,
    /// Seen once, it stays so: from then on the group's number may be anyone's.
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

    /// Nothing runs and nothing waits to be acknowledged.
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
            // The agent's process has the connection to other nodes, and sees to these itself.
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

    /// Takes what an attempt needs; what was taken is given back when it cannot be launched after all.
    fn launch(&mut self, order: LaunchOrder) -> Result<(), EndReason> {
        let task_dir = self.task_dirs.take().map_err(|error| node_fault("make a directory for it", &error))?;
        let leaf = match &mut self.enforcer {
            Enforcer::Cgroups(cgroups) => cgroups.take(shape(&order)).map(Some),
            Enforcer::Census | Enforcer::Nothing => Ok(None),
        };
        let leaf = leaf.inspect_err(|_| drop(self.task_dirs.give_back(task_dir.clone())));
        let leaf = leaf.map_err(|error| node_fault("make a cgroup for it", &error))?;
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

    /// From an order to a process and our ends of its pipes.
    fn start(
        &mut self,
        order: &LaunchOrder,
        task_dir: &Path,
        leaf: Option<&Leaf>,
    ) -> Result<(i32, PathBuf, [Capture; 2], Option<Input>), EndReason> {
        let no_pipe = |error: io::Error| node_fault("make a pipe for its output", &error);
        let prepared = prepare::prepare(order, task_dir, &self.state, &self.base, &self.remover)?;
        let open =
            |stream| Capture::new(output_path(&self.state, order.attempt, stream), order.template.program.output_cap);
        let (stdout, stdout_writer) = open(Stream::Stdout).map_err(no_pipe)?;
        let (stderr, stderr_writer) = open(Stream::Stderr).map_err(no_pipe)?;
        let input = match order.template.program.stdin {
            true => Some(
                Input::open(&self.state, order.attempt)
                    .map_err(|error| node_fault("make a pipe for its input", &error))?,
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

    /// Between two looks at its memory a task must not take all that the machine has. Programs map more than they use,
    /// so the limit is wide: twice what was asked for and 1 GiB.
    fn backstop(&self, order: &LaunchOrder) -> Option<libc::rlimit> {
        let memory_mib = order.template.shape.resources.memory_mib();
        if memory_mib == 0 || !matches!(self.enforcer, Enforcer::Census) {
            return None;
        }
        let bytes = (u64::from(memory_mib) * 2 + 1_024) << 20;
        Some(libc::rlimit { rlim_cur: bytes, rlim_max: bytes })
    }

    /// Reports those that have outlived their youth as started, and listens to their output from here on.
    pub fn announce(&mut self, poll: &OwnedFd) {
        let now = Instant::now();
        // One that has ended leaves at once, so that nobody wakes up for it.
        while let Some((_, serial)) =
            self.young.pop_front_if(|(grown, serial)| *grown <= now || !self.table.by_serial.contains_key(serial))
        {
            let Some(attempt) = self.table.by_serial.get_mut(&serial) else { continue };
            attempt.announced = true;
            self.reports.push(attempt.started());
            for (place, capture) in attempt.captures.iter().enumerate() {
                if let Some(pipe) = capture.descriptor() {
                    let token = epoll::EventData::new_u64(token(serial, place));
                    // Should the kernel lack memory for this, the output is read at the end, as far as it fits.
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

    /// A group that could not be entered would fail the next attempt as well.
    fn give_back_unused(&mut self, leaf: Option<Leaf>, reason: &EndReason) {
        match reason {
            EndReason::NodeFault(_) => leaf.into_iter().for_each(Leaf::remove),
            _ => self.give_back(leaf),
        }
    }

    fn on_signal(&mut self, attempt: AttemptId, signal: TaskSignal, reason: EndReason) {
        let Some(&serial) = self.table.serial_of.get(&attempt) else { return };
        // A process group is safe to signal only until its leader is reaped.
        if !self.table.is_running(serial) {
            return;
        }
        let Some(running) = self.table.by_serial.get_mut(&serial) else { return };
        running.ordered_end.get_or_insert(reason);
        match signal {
            TaskSignal::Terminate => {
                sys::kill(-running.pid, libc::SIGTERM);
                // A stopped process takes the signal only when it goes on.
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

    /// A pipe has something to read, or was closed.
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
                // While its leader is a zombie, the group's number cannot be anyone else's.
                sys::kill(-pid, libc::SIGKILL);
            }
            let Ok(exit) = sys::reap(pid) else { return };
            if let Some(serial) = serial {
                self.table.leaving.insert(serial, Leaving { exit, since: Instant::now(), group_gone: false });
            }
        }
    }

    /// Ends the attempts whose main process has exited and that have nothing left to kill.
    pub fn settle(&mut self) {
        if self.table.leaving.is_empty() {
            return;
        }
        // Whatever an attempt left behind lost its parent and is our child now, or a descendant of such a child.
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
            messages.push("the kernel killed one of its processes at the memory limit".to_owned());
        }
        if !all_gone {
            messages.push("a process that it left behind could not be killed".to_owned());
        }
        let past_cap: u64 = attempt.captures.iter().map(Capture::past_cap).sum();
        messages.extend(attempt.captures.iter_mut().filter_map(|capture| capture.trouble.take()));
        if past_cap > 0 {
            messages.push(format!("{past_cap} bytes at the end of its output, past the cap, were not kept"));
        }
        let message = (!messages.is_empty()).then(|| messages.join("\n"));
        let ended = Ended { reason, usage, message, files: None };
        // A group that still has a member cannot be passed on.
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

    /// What removes their directories.
    pub fn remover(&self) -> &Remover {
        &self.remover
    }

    /// Rings when [`Tasks::on_stored`] has something to do.
    pub fn outputs_bell(&self) -> BorrowedFd<'_> {
        self.outputs.bell()
    }

    /// Ends the attempts whose output is stored.
    pub fn on_stored(&mut self) {
        for Stored { attempt, outputs, failure } in self.outputs.take_done() {
            let Some((executing, mut ended)) = self.storing.remove(&attempt) else { continue };
            // The node has them, whatever became of the rest.
            ended.files = (!outputs.is_empty()).then(|| Box::new(words::EndedFiles { outputs, missing: Vec::new() }));
            ended.reason = failure.unwrap_or(ended.reason);
            self.end(attempt, executing.order.node, Arc::new(ended));
        }
    }

    /// Ends what belongs to other nodes; nobody would ever ask for it or acknowledge it.
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

    /// When the loop must come back without an event.
    pub fn next_wakeup(&self) -> Option<Instant> {
        let leftovers = (!self.table.leaving.is_empty()).then(|| Instant::now() + LEFTOVER_INTERVAL);
        let young = self.young.front().map(|(grown, _)| *grown);
        leftovers.into_iter().chain(young).chain(self.next_census).min()
    }

    /// Kills what passed its memory limit, where no cgroup does it.
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
    /// What is guaranteed gives way no longer, once it has its CPU.
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

    /// An ordered end has the reason it was ordered for. Else a kernel's kill for memory is the reason, unless the
    /// task coped with it and succeeded.
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
            // What the kernel ends a program with whose file is not all there.
            EndReason::Signal(signal) if [libc::SIGSEGV, libc::SIGBUS, libc::SIGKILL].contains(&signal.into()) => {
                exec_failure::cut_short(&self.program).unwrap_or(plain)
            }
            _ => plain,
        }
    }

    /// What helps to understand a failure, beside what the task says itself.
    fn why_failed(&self, reason: &EndReason) -> Option<String> {
        match reason {
            EndReason::OutOfMemory => {
                // Else it met a limit of the node's own.
                let limit = Some(self.order.template.shape.resources.memory_mib()).filter(|limit| *limit > 0)?;
                // The kernel lets none have more than its limit.
                let used = self.over_memory.map_or(u64::from(limit), |bytes| bytes.div_ceil(1 << 20));
                Some(format!("used {used} of {limit} MiB; ask for more with -r memory"))
            }
            // What shells, `env` and interpreters exit with that cannot make sense of their arguments.
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

    /// Without the time for which others were to have its CPU.
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
        // Its pid was free since it was reaped, so a newer attempt may have it by now.
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

/// Names one pipe in epoll; serial numbers start at 1, so the lowest tokens are free for others.
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
        Step::Cgroup => node_fault("put it into its cgroup", error),
        Step::Session => node_fault("give it a session", error),
        Step::Streams => node_fault("connect its streams", error),
        Step::Limits => node_fault("set its limits", error),
    }
}
