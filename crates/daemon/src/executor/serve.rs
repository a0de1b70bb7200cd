//! The executor's loop, its lock and socket, the agent's link, and when to exit.

use super::cgroups::Cgroups;
use super::devices::KnownDevices;
use super::hierarchy::Hierarchy;
use super::link::Link;
use super::tasks::{Enforcer, Tasks};
use super::{Enforcement, EnforcementChoice, ExecutorConfig, ExecutorError, ExecutorFrame, ExecutorReply, Hello};
use super::{Mechanism, precedence, sys};
use crate::frames::Decoder;
use crate::lock::{self, LockError};
use crate::private;
use crate::versions::{PROGRAM, WIRE};
use rustix::event::{Timespec, epoll};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

const SIGNALS: u64 = 0;
const LISTENER: u64 = 1;
/// Tokens between `LISTENER` and `ACCOUNTS` belong to pipes.
const LINK: u64 = u64::MAX;
const OUTPUTS: u64 = u64::MAX - 1;
const REMOVAL: u64 = u64::MAX - 2;
const ACCOUNTS: u64 = u64::MAX - 3;
/// How often a process that stops looks whether it may.
const ENDING_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of notes that wait for an agent.
const MOST_NOTES: usize = 64;
/// Orders are not read while more than this number of bytes waits to be sent to the agent.
const MOST_UNSENT: usize = 4 << 20;
const MOST_LOG: u64 = 256 << 10;
const LOCK: &str = "executor.lock";
/// What a new executor reports to the process that started it: `READY`, or an error. If another executor uses the state
/// directory, the error starts with `LOCKED`.
const READY: &str = "ready";
const LOCKED: &str = "locked: ";

/// Starts an executor, which serves agents until it has nothing left to do. The calling process must have a single
/// thread. It forks a child that becomes the executor in a session of its own. The caller returns when the socket
/// accepts connections, or with the error of the child. In the child, this function does not return.
pub fn run(config: ExecutorConfig) -> Result<(), ExecutorError> {
    let config = absolute(config)?;
    let (ready, report) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(ExecutorError::system("make a pipe"))?;
    if !sys::fork().map_err(ExecutorError::system("fork"))? {
        drop(report);
        let mut output = String::new();
        let _ = File::from(ready).read_to_string(&mut output);
        return match output.as_str() {
            READY => Ok(()),
            "" => Err(ExecutorError::NotStarted("its process exited immediately".to_owned())),
            error => Err(match error.strip_prefix(LOCKED) {
                Some(error) => ExecutorError::Locked(error.to_owned()),
                None => ExecutorError::NotStarted(error.to_owned()),
            }),
        };
    }
    drop(ready);
    let mut report = File::from(report);
    match Executor::start(&config) {
        Ok(mut executor) => {
            let _ = report.write_all(READY.as_bytes());
            drop(report);
            let result = executor.serve();
            if let Err(error) = &result {
                executor.log.say(&error.to_string());
            }
            executor.stop();
            sys::exit_at_once(result.is_err().into())
        }
        Err(error) => {
            let kind = if matches!(error, ExecutorError::AlreadyRunning { .. }) { LOCKED } else { "" };
            let _ = report.write_all(format!("{kind}{error}").as_bytes());
            sys::exit_at_once(1)
        }
    }
}

/// Makes the paths absolute, because the executor changes its working directory.
fn absolute(mut config: ExecutorConfig) -> Result<ExecutorConfig, ExecutorError> {
    for path in [&mut config.socket, &mut config.state] {
        *path = std::path::absolute(&*path).map_err(ExecutorError::file("resolve", path))?;
    }
    Ok(config)
}

struct Executor<'a> {
    config: &'a ExecutorConfig,
    /// Held for as long as the process runs.
    _lock: File,
    log: Log,
    poll: OwnedFd,
    signals: OwnedFd,
    listener: UnixListener,
    /// The inode of the socket's file: if the state directory was removed and made anew, another executor has another one.
    socket: Option<u64>,
    hello: Hello,
    agent: Option<Agent>,
    tasks: Tasks,
    /// Lines for the agent's diagnostics.
    notes: Vec<String>,
    stops_since: Option<Instant>,
    idle_since: Instant,
    /// When an agent was last connected.
    alone_since: Instant,
}

/// The agent's connection.
struct Agent {
    link: Link,
    /// The events that epoll watches for.
    interest: epoll::EventFlags,
}

impl<'a> Executor<'a> {
    fn start(config: &'a ExecutorConfig) -> Result<Executor<'a>, ExecutorError> {
        let state = &config.state;
        let lock = lock(state)?;
        let log = Log::open(&state.join("executor.log"))?;
        let _ = rustix::process::setsid();
        let null = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(ExecutorError::file("open", Path::new("/dev/null")))?;
        let no_stdio = ExecutorError::system("detach from the terminal");
        rustix::stdio::dup2_stdin(&null)
            .and_then(|()| rustix::stdio::dup2_stdout(&null))
            .and_then(|()| rustix::stdio::dup2_stderr(&null))
            .map_err(no_stdio)?;
        std::env::set_current_dir("/").map_err(ExecutorError::file("enter", Path::new("/")))?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(ExecutorError::system("become a subreaper"))?;
        crate::priority::answer_soon();
        let signals = sys::signal_descriptor().map_err(ExecutorError::system("receive signals"))?;
        let (enforcer, enforcement) = enforcer(config)?;
        let tasks = Tasks::new(config, enforcer, sys::raise_open_files())
            .map_err(ExecutorError::file("prepare the state directory", state))?;
        let listener = listen(&config.socket)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ExecutorError::system("create an epoll"))?;
        let sources = [
            (signals.as_fd(), SIGNALS),
            (listener.as_fd(), LISTENER),
            (tasks.outputs_bell(), OUTPUTS),
            (tasks.remover().bell(), REMOVAL),
        ];
        let sources = sources.into_iter().chain(tasks.accounts_bell().map(|bell| (bell, ACCOUNTS)));
        for (source, token) in sources {
            epoll::add(&poll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(ExecutorError::system("watch a descriptor"))?;
        }
        let hello = Hello {
            version: PROGRAM.to_owned(),
            pid: std::process::id(),
            enforcement,
            wire: WIRE,
            run_as: config.run_as,
        };
        let idle_since = Instant::now();
        Ok(Executor {
            config,
            _lock: lock,
            log,
            poll,
            signals,
            listener,
            socket: inode(&config.socket),
            hello,
            agent: None,
            tasks,
            notes: Vec::new(),
            stops_since: None,
            idle_since,
            alone_since: idle_since,
        })
    }

    /// Runs the loop. Each turn handles all events that are ready and sends all replies with one write.
    fn serve(&mut self) -> Result<(), ExecutorError> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout().map(timespec);
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ExecutorError::system("wait for events")(error)),
            }
            for event in &events {
                match event.data.u64() {
                    SIGNALS => self.on_signals(),
                    LISTENER => self.on_connection(),
                    LINK => self.on_link(),
                    OUTPUTS => self.tasks.on_stored(),
                    REMOVAL => self.on_removal(),
                    ACCOUNTS => self.tasks.on_accounts(),
                    pipe => self.tasks.on_output(pipe),
                }
            }
            self.tasks.settle();
            self.tasks.announce(&self.poll);
            self.tasks.watch_memory();
            self.watch_container_removals();
            self.send_reports();
            if self.is_done() {
                return Ok(());
            }
        }
    }

    fn on_signals(&mut self) {
        if sys::take_signals(self.signals.as_fd()) {
            self.log.say("terminated by a signal: killing all tasks");
            self.start_to_stop();
        }
        self.tasks.on_children();
    }

    /// Accepts a new agent, which replaces the connected one: it is the same agent after a crash, or its successor.
    fn on_connection(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.log.say(&format!("cannot accept a connection: {error}")),
            };
            match self.greet(stream) {
                Ok(agent) => self.agent = Some(agent),
                Err(error) => self.log.say(&format!("cannot greet an agent: {error}")),
            }
        }
    }

    fn greet(&self, stream: UnixStream) -> io::Result<Agent> {
        let interest = epoll::EventFlags::IN;
        let mut link = Link::new(stream, Decoder::default())?;
        link.queue(&ExecutorReply::Hello(self.hello.clone())).map_err(io::Error::other)?;
        epoll::add(&self.poll, &link, epoll::EventData::new_u64(LINK), interest)?;
        Ok(Agent { link, interest })
    }

    fn on_link(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let open = match agent.link.receive() {
            Ok(open) => open,
            Err(error) => return self.drop_agent(&error.to_string()),
        };
        loop {
            let Some(agent) = &mut self.agent else { return };
            match agent.link.next::<ExecutorFrame>() {
                Ok(Some(ExecutorFrame::Order(order))) if self.stops_since.is_none() => self.tasks.on_order(order),
                Ok(Some(ExecutorFrame::Order(_))) => {}
                Ok(Some(ExecutorFrame::Serve { nodes })) => self.tasks.serve_only(nodes),
                Ok(Some(ExecutorFrame::Shutdown)) => self.start_to_stop(),
                Ok(None) => break,
                Err(error) => return self.drop_agent(&error.to_string()),
            }
        }
        if !open {
            self.agent = None;
            self.idle_since = Instant::now();
        }
    }

    /// Writes and forwards messages about files that could not be removed.
    fn on_removal(&mut self) {
        self.tasks.remover().take_notes().into_iter().for_each(|note| self.note(note));
    }

    fn watch_container_removals(&mut self) {
        self.tasks.watch_removals();
        self.tasks.take_removal_notes().into_iter().for_each(|note| self.note(note));
    }

    fn note(&mut self, note: String) {
        self.log.say(&note);
        if self.notes.len() < MOST_NOTES {
            self.notes.push(note);
        }
    }

    fn send_reports(&mut self) {
        let reports = std::mem::take(&mut self.tasks.reports);
        // Reports without an agent are not lost: the next agent gets the state with `List`.
        let Some(agent) = &mut self.agent else { return };
        let notes = self.notes.drain(..).map(ExecutorReply::Note);
        let replies = notes.chain(reports.into_iter().map(ExecutorReply::Report)).collect();
        if let Err(error) = agent.send(replies, &self.poll) {
            self.drop_agent(&error.to_string());
        }
    }

    fn drop_agent(&mut self, why: &str) {
        self.log.say(&format!("dropped the agent's connection: {why}"));
        self.agent = None;
        self.idle_since = Instant::now();
    }

    fn start_to_stop(&mut self) {
        self.stops_since.get_or_insert_with(Instant::now);
        self.tasks.kill_all();
    }

    fn is_done(&mut self) -> bool {
        if let Some(since) = self.stops_since {
            return self.tasks.may_stop(since);
        }
        if self.agent.is_some() {
            self.alone_since = Instant::now();
        }
        if self.agent.is_some() || !self.tasks.is_idle() {
            self.idle_since = Instant::now();
        }
        if self.config.leash.is_some_and(|leash| self.alone_since.elapsed() >= leash) {
            self.log.say("no agent for too long: killing all tasks");
            self.start_to_stop();
            return self.tasks.may_stop(Instant::now());
        }
        self.idle_since.elapsed() >= self.config.idle_exit
    }

    fn timeout(&self) -> Option<Duration> {
        let idle = (self.agent.is_none() && self.tasks.is_idle()).then(|| self.idle_since + self.config.idle_exit);
        let leash = self.config.leash.filter(|_| self.agent.is_none() && self.stops_since.is_none());
        let leash = leash.map(|leash| self.alone_since + leash);
        let ending = self.stops_since.map(|_| Instant::now() + ENDING_INTERVAL);
        let next = self.tasks.next_wakeup().into_iter().chain(idle).chain(leash).chain(ending).min()?;
        // Rounded up; otherwise the loop would spin during the last fraction.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_micros(100))
    }

    /// Removes the socket, so that a connecting agent finds none instead of one that nothing listens on.
    fn stop(self) {
        if self.socket == inode(&self.config.socket) {
            let _ = fs::remove_file(&self.config.socket);
        }
        drop(self.tasks);
    }
}

impl Agent {
    /// Writes as much as the socket accepts, and the rest when it is writable again.
    fn send(&mut self, replies: Vec<ExecutorReply>, poll: &OwnedFd) -> io::Result<()> {
        for reply in replies {
            self.link.queue(&reply).map_err(io::Error::other)?;
        }
        self.link.send()?;
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, self.link.unsent() < MOST_UNSENT);
        interest.set(epoll::EventFlags::OUT, self.link.unsent() > 0);
        if interest != self.interest {
            epoll::modify(poll, &self.link, epoll::EventData::new_u64(LINK), interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

fn enforcer(config: &ExecutorConfig) -> Result<(Enforcer, Enforcement), ExecutorError> {
    let choice = config.enforcement;
    let devices = KnownDevices::new(&config.devices);
    let no_cgroups = match choice {
        EnforcementChoice::None => {
            let mut notes = vec!["nothing is enforced: the executor was started with `--enforcement none`".to_owned()];
            notes.extend(precedence::note(false));
            notes.extend(devices.notes(Some("that requires cgroups")));
            let mechanism = Mechanism::None;
            return Ok((
                Enforcer::Nothing,
                Enforcement { mechanism, enforces_memory: false, enforces_cpu: false, notes },
            ));
        }
        EnforcementChoice::Polling => "the executor was started with `--enforcement polling`".to_owned(),
        EnforcementChoice::Auto | EnforcementChoice::Cgroup => match Hierarchy::find() {
            Ok((mut hierarchy, mut notes)) => {
                let devices = restrict_devices(&mut hierarchy, devices, &mut notes);
                notes.extend(precedence::note(hierarchy.limits_cpu()));
                let enforcement = Enforcement {
                    mechanism: hierarchy.mechanism(),
                    enforces_memory: hierarchy.limits_memory(),
                    enforces_cpu: hierarchy.limits_cpu(),
                    notes,
                };
                return Ok((Enforcer::Cgroups(Box::new(Cgroups::new(hierarchy, devices))), enforcement));
            }
            Err(why) if choice == EnforcementChoice::Cgroup => return Err(ExecutorError::NoCgroups(why)),
            Err(why) => why,
        },
    };
    let mut notes = vec![
        format!("cgroups are not used: {no_cgroups}"),
        "memory is measured 5 times per second, and a task above its limit is killed: until then it can use up to \
         twice its memory plus 1 GiB (RLIMIT_DATA)"
            .to_owned(),
        "CPU is not limited: a task can use more cores than it requested".to_owned(),
    ];
    notes.extend(precedence::note(false));
    notes.extend(devices.notes(Some("that requires cgroups")));
    let mechanism = Mechanism::Polling;
    Ok((Enforcer::Census, Enforcement { mechanism, enforces_memory: true, enforces_cpu: false, notes }))
}

/// Prepares the hierarchy for the devices. Returns none if it cannot restrict access to them.
fn restrict_devices(hierarchy: &mut Hierarchy, devices: KnownDevices, notes: &mut Vec<String>) -> KnownDevices {
    if devices.is_empty() {
        return devices;
    }
    let error = hierarchy.prepare_devices(devices.any()).err();
    notes.extend(devices.notes(error.as_deref()));
    if error.is_none() { devices } else { KnownDevices::default() }
}

/// Takes the lock of the state directory, which only one executor can have.
fn lock(state: &Path) -> Result<File, ExecutorError> {
    lock::lock(state, LOCK).map_err(|error| match error {
        LockError::InUse { dir, pid } => ExecutorError::AlreadyRunning { pid, state: dir },
        other => ExecutorError::Lock(other),
    })
}

fn listen(socket: &Path) -> Result<UnixListener, ExecutorError> {
    if let Some(directory) = socket.parent() {
        // The directory may be in `/tmp`, where another user can have created one with this name.
        let made = match private::check_private_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => private::make_private_dir(directory),
            checked => checked,
        };
        made.map_err(ExecutorError::file("use the directory", directory))?;
    }
    // This process has the lock, so an existing socket belongs to an executor that has exited.
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(ExecutorError::file("listen on", socket))?;
    fs::set_permissions(socket, Permissions::from_mode(0o600)).map_err(ExecutorError::file("protect", socket))?;
    listener.set_nonblocking(true).map_err(ExecutorError::file("listen on", socket))?;
    Ok(listener)
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|metadata| metadata.ino())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// The executor's diagnostics in a file, which is emptied when it becomes too long.
struct Log {
    file: File,
    started: Instant,
}

impl Log {
    fn open(path: &Path) -> Result<Log, ExecutorError> {
        let mut options = OpenOptions::new();
        let file =
            options.create(true).append(true).mode(0o600).open(path).map_err(ExecutorError::file("open", path))?;
        Ok(Log { file, started: Instant::now() })
    }

    fn say(&mut self, line: &str) {
        if self.file.metadata().is_ok_and(|metadata| metadata.len() > MOST_LOG) {
            let _ = self.file.set_len(0);
        }
        let pid = std::process::id();
        let _ = writeln!(self.file, "[{pid} +{:.3}s] {line}", self.started.elapsed().as_secs_f64());
    }
}
