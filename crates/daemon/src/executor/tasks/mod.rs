//! The steps of an attempt on this machine: launch, output, exit, remaining processes, end, acknowledgement.

mod attempt;
mod end;
mod launch;
mod removal;
mod table;

use super::accounts::Accounts;
use super::cgroups::Cgroups;
use super::container_removal::Records;
use super::members::{self, Census, Children, Owners, Strays};
use super::outputs::Outputs;
use super::prepare::{self, BaseEnvironment};
use super::progress::{self, Measured};
use super::sys::{self, ChildStack};
use super::task_dirs::TaskDirs;
use super::{DeviceFiles, ExecutorConfig, RunAs};
use crate::files::FileStore;
use crate::private::make_passable_dir;
use crate::removal::Remover;
use amalgam_core::protocol::{Executing, ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::{AttemptId, EndReason, Ended, LaunchOrder, NodeId};
use attempt::Attempt;
use removal::Removals;
use rustix::event::epoll;
use rustix::fs::Mode;
use std::collections::{BTreeMap, VecDeque};
use std::fs::Permissions;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::Table;

/// Interval at which remaining processes of ended tasks are checked and killed again.
const LEFTOVER_INTERVAL: Duration = Duration::from_millis(5);

/// Interval at which memory is measured, without cgroups.
const CENSUS_INTERVAL: Duration = Duration::from_millis(200);

/// A task that ends within this time causes only one wake-up: its start and its end are reported together, and its
/// output is read when it has ended. Until then its output stays in the pipes.
const YOUTH: Duration = Duration::from_millis(1);

/// How limits are enforced.
pub enum Enforcer {
    Cgroups(Box<Cgroups>),
    Census,
    Nothing,
}

pub struct Tasks {
    state: PathBuf,
    enforcer: Enforcer,
    /// The declared devices of the node.
    declared: Vec<DeviceFiles>,
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
    /// The accounts that tasks run as; `None` if they run as this process's own.
    accounts: Option<Accounts>,
    /// Attempts that wait until their account is looked up.
    awaiting: BTreeMap<AttemptId, LaunchOrder>,
    outputs: Outputs,
    /// Attempts that succeeded and whose outputs are being stored. They end when this is done.
    storing: BTreeMap<AttemptId, (Executing, Ended)>,
    children: Children,
    strays: Strays,
    containers: Records,
    removals: Removals,
    next_serial: u64,
    next_census: Option<Instant>,
    /// The nodes that the agent serves; `None` means all, before an agent has sent its nodes.
    served: Option<Vec<NodeId>>,
    /// Reports to send to the agent.
    pub reports: Vec<ExecutorReport>,
}

impl Tasks {
    pub fn new(config: &ExecutorConfig, enforcer: Enforcer, open_files: Option<libc::rlimit>) -> io::Result<Tasks> {
        let state = config.state.as_path();
        let accounts = match config.run_as {
            RunAs::Agent => None,
            RunAs::JobUser { allows_root } => {
                // Other users pass through it to the directories of their tasks. All else in it is closed to them.
                make_passable_dir(state)?;
                close_what_is_there(state);
                rustix::process::umask(Mode::RWXG | Mode::RWXO);
                Some(Accounts::new(allows_root)?)
            }
        };
        let scratch = state.join("tasks");
        members::kill_remains(&scratch);
        let remover = Arc::new(Remover::new(state)?);
        prepare::remove_remaining_inputs(state, &remover);
        let mut tasks = Tasks {
            state: state.to_owned(),
            enforcer,
            declared: config.devices.clone(),
            task_dirs: TaskDirs::new(scratch, accounts.is_some(), Arc::clone(&remover))?,
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
            accounts,
            awaiting: BTreeMap::new(),
            outputs: Outputs::new(state)?,
            storing: BTreeMap::new(),
            children: Children::new(),
            strays: Strays::default(),
            containers: Records::new(state),
            removals: Removals::default(),
            next_serial: 1,
            next_census: None,
            served: None,
            reports: Vec::new(),
        };
        tasks.remove_remaining_containers();
        Ok(tasks)
    }

    /// Whether no attempt runs and no end waits for its acknowledgement.
    pub fn is_idle(&self) -> bool {
        let is_busy = !self.storing.is_empty() || !self.awaiting.is_empty() || !self.removals.is_idle();
        !is_busy && self.table.by_serial.is_empty() && self.ends.is_empty()
    }

    /// Whether nothing runs that a process waits for which stops since then.
    pub fn may_stop(&self, since: Instant) -> bool {
        !self.is_running_any() && self.removals.may_stop(since)
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
                } else if let Some(order) = self.awaiting.get_mut(&attempt) {
                    order.promote(grant);
                }
            }
            ToExecutor::SetTimeout { attempt, timeout } => {
                if let Some(running) = self.table.get_mut(attempt) {
                    running.order.set_timeout(timeout);
                } else if let Some(order) = self.awaiting.get_mut(&attempt) {
                    order.set_timeout(timeout);
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

    fn on_signal(&mut self, attempt: AttemptId, signal: TaskSignal, reason: EndReason) {
        if let Some(order) = self.awaiting.remove(&attempt) {
            return self.end(attempt, order.node, Ended::without_run(reason));
        }
        let Some(&serial) = self.table.serial_of.get(&attempt) else { return };
        // After its leader is reaped, the number of a process group may belong to other processes.
        if !self.table.is_running(serial) {
            return;
        }
        let Some(running) = self.table.by_serial.get_mut(&serial) else { return };
        running.ordered_end.get_or_insert(reason);
        match signal {
            TaskSignal::Terminate => {
                sys::kill_group(running.pid, libc::SIGTERM);
                // A stopped process handles the signal only when it continues.
                sys::kill_group(running.pid, libc::SIGCONT);
                self.strays.signal(serial, libc::SIGTERM);
            }
            TaskSignal::Kill => {
                running.kill();
                self.strays.signal(serial, libc::SIGKILL);
            }
        }
    }

    fn on_list(&mut self, node: NodeId) {
        // The agent takes an attempt that is not listed for one whose order was lost.
        self.awaiting.retain(|_, order| order.node != node);
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
        for attempt in attempts {
            self.table.get_mut(*attempt).into_iter().for_each(Attempt::note_exec);
        }
        let running = attempts.iter().filter_map(|attempt| Some((*attempt, self.table.get(*attempt)?)));
        let (attempts, measured): (Vec<AttemptId>, Vec<Measured>) =
            running.map(|(attempt, running)| (attempt, running.measured())).unzip();
        let samples = attempts.into_iter().zip(progress::measure(&measured)).collect();
        self.reports.push(ExecutorReport::Measured { node, samples });
    }

    /// Reports the start of attempts that have run for `YOUTH`, and watches their output from then on.
    pub fn announce(&mut self, poll: &OwnedFd) {
        let now = Instant::now();
        // Attempts that have ended are removed immediately, so that they cause no wake-up.
        while let Some((_, serial)) =
            self.young.pop_front_if(|(grown, serial)| *grown <= now || !self.table.by_serial.contains_key(serial))
        {
            let Some(attempt) = self.table.by_serial.get_mut(&serial) else { continue };
            attempt.note_exec();
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

    /// Reads a pipe that is readable or closed.
    pub fn on_output(&mut self, token: u64) {
        let (serial, place) = (token / 2, (token % 2) as usize);
        // The attempt may have ended in the same turn.
        if let Some(attempt) = self.table.by_serial.get_mut(&serial) {
            attempt.note_exec();
            attempt.captures[place].read(&mut self.buffer);
        }
    }

    /// The remover of the tasks' directories.
    pub fn remover(&self) -> &Remover {
        &self.remover
    }

    /// Readable when [`Tasks::on_accounts`] has to be called.
    pub fn accounts_bell(&self) -> Option<BorrowedFd<'_>> {
        self.accounts.as_ref().map(Accounts::bell)
    }

    /// Stops the attempts of other nodes and forgets their ends, because no agent would acknowledge them.
    pub fn serve_only(&mut self, nodes: Vec<NodeId>) {
        let foreign = self.table.by_serial.values().filter(|attempt| !nodes.contains(&attempt.order.node));
        let foreign: Vec<AttemptId> = foreign.map(|attempt| attempt.order.attempt).collect();
        self.ends.retain(|_, (node, _)| nodes.contains(node));
        self.awaiting.retain(|_, order| nodes.contains(&order.node));
        self.served = Some(nodes);
        for attempt in foreign {
            self.on_signal(attempt, TaskSignal::Kill, EndReason::NodeLost);
        }
    }

    /// When the loop has to run without an event.
    pub fn next_wakeup(&self) -> Option<Instant> {
        let leftovers = (!self.table.leaving.is_empty()).then(|| Instant::now() + LEFTOVER_INTERVAL);
        let young = self.young.front().map(|(grown, _)| *grown);
        let removals = self.removals.next_wakeup(LEFTOVER_INTERVAL);
        leftovers.into_iter().chain(young).chain(self.next_census).chain(removals).min()
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
        self.awaiting.clear();
        let all: Vec<AttemptId> = self.table.serial_of.keys().copied().collect();
        for attempt in all {
            self.on_signal(attempt, TaskSignal::Kill, EndReason::NodeLost);
        }
    }
}

/// The epoll token of a pipe. Serial numbers start at 1, so the tokens 0 and 1 are free for other sources.
fn token(serial: u64, place: usize) -> u64 {
    debug_assert!(place < 2);
    serial * 2 + place as u64
}

/// Closes files of earlier executors, which had a closed directory above, to other users.
fn close_what_is_there(state: &Path) {
    let entries = |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let own = entries(state.join("own")).flat_map(|job| entries(job.path()));
    let others =
        entries(state.to_owned()).filter(|entry| !["own", "tasks"].iter().any(|name| entry.file_name() == *name));
    let user = rustix::process::geteuid().as_raw();
    for entry in own.chain(others) {
        if let Ok(found) = entry.metadata()
            && !found.is_symlink()
            && found.uid() == user
            && found.mode() & 0o077 != 0
        {
            let _ = std::fs::set_permissions(entry.path(), Permissions::from_mode(found.mode() & 0o7700));
        }
    }
}
