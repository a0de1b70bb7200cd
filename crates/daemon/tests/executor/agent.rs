//! A simple agent for tests: blocking, one frame at a time, with a state directory that is removed at the end.

use amalgam_core::protocol::{ExecutorReport, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{
    EnforcementChoice, ExecutorConfig, ExecutorFrame, ExecutorReply, Hello, Mechanism, RunAs, ensure_running,
    output_path,
};
use amalgam_daemon::frames::{self, Decoder};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_amalgam-executor");

/// How long to wait for something that takes this many seconds at most on a processor; in the virtual machine, longer.
pub fn patience(seconds: u64) -> Duration {
    let slowness = std::env::var("AMALGAM_TEST_SLOWNESS").map_or(1, |times| times.parse().unwrap());
    Duration::from_secs(seconds * slowness)
}

pub struct Home {
    _dir: tempfile::TempDir,
    pub state: PathBuf,
    pub config: ExecutorConfig,
    executors: RefCell<Vec<u32>>,
}

impl Home {
    pub fn new(enforcement: EnforcementChoice) -> Home {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        let socket = state.join("socket");
        let config = ExecutorConfig {
            socket,
            state: state.clone(),
            enforcement,
            idle_exit: Duration::from_secs(20),
            leash: None,
            run_as: RunAs::Agent,
            devices: Vec::new(),
        };
        Home { _dir: dir, state, config, executors: RefCell::default() }
    }

    pub fn agent(&self) -> Agent {
        self.agent_by(Path::new(PROGRAM))
    }

    /// Connects to the executor; this program starts it if none runs.
    pub fn agent_by(&self, program: &Path) -> Agent {
        let stream = ensure_running(program, &[], &self.config).unwrap();
        let agent = Agent::greet(stream);
        self.executors.borrow_mut().push(agent.hello.pid);
        agent
    }

    pub fn run_executor(&self, config: &ExecutorConfig) -> Output {
        Command::new(PROGRAM).args(config.arguments()).output().unwrap()
    }

    pub fn output(&self, number: u32, stream: Stream) -> String {
        fs::read_to_string(output_path(&self.state, attempt(number), stream)).unwrap()
    }

    /// Number of files in tasks' scratch directories. A few empty directories are kept for the next tasks.
    pub fn scratch_files(&self) -> usize {
        let directories: Vec<PathBuf> =
            fs::read_dir(self.state.join("tasks")).unwrap().map(|dir| dir.unwrap().path()).collect();
        assert!(directories.len() <= 10, "{directories:?}");
        directories.iter().map(|directory| fs::read_dir(directory).unwrap().count()).sum()
    }

    pub fn pids(&self, file: &Path) -> Vec<i32> {
        fs::read_to_string(file).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    pub fn wait_for_lines(&self, file: &Path, count: usize) {
        self.wait_until("the task has started", || self.pids(file).len() >= count);
    }

    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        // An emulated machine is slow, and files are removed with the lowest priority.
        let deadline = Instant::now() + patience(60);
        while !condition() {
            assert!(Instant::now() < deadline, "still waiting until {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, pid: u32, signal: i32) {
        // SAFETY: plain kill of an executor that this test started.
        unsafe { libc::kill(pid as i32, signal) };
    }

    pub fn kill_executor(&self, pid: u32) {
        self.signal(pid, libc::SIGKILL);
        self.wait_until("the executor is dead", || !exists(pid as i32));
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for pid in self.executors.borrow().iter() {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains(&*self.state.to_string_lossy()) {
                self.signal(*pid, libc::SIGTERM);
                self.wait_until("the executor has exited", || !exists(*pid as i32));
            }
        }
    }
}

pub struct Agent {
    stream: UnixStream,
    decoder: Decoder,
    pub hello: Hello,
    /// Ends that arrived while the test waited for another one.
    ends: HashMap<AttemptId, Arc<Ended>>,
}

impl Agent {
    fn greet(stream: UnixStream) -> Agent {
        let hello = Hello {
            version: String::new(),
            pid: 0,
            enforcement: amalgam_daemon::executor::Enforcement {
                mechanism: Mechanism::None,
                enforces_memory: false,
                enforces_cpu: false,
                notes: Vec::new(),
            },
            wire: amalgam_daemon::versions::WIRE,
            run_as: RunAs::Agent,
        };
        let mut agent = Agent { stream, decoder: Decoder::default(), hello, ends: HashMap::new() };
        match agent.reply_within(patience(10)) {
            Some(ExecutorReply::Hello(hello)) => agent.hello = hello,
            other => panic!("expected a hello: {other:?}"),
        }
        agent
    }

    pub fn send(&mut self, order: ToExecutor) {
        self.send_frame(&ExecutorFrame::Order(order));
    }

    pub fn send_frame(&mut self, frame: &ExecutorFrame) {
        let mut bytes = Vec::new();
        frames::encode(frame, &mut bytes).unwrap();
        self.send_bytes(&bytes);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Launches the attempt and waits for its start.
    pub fn start(&mut self, order: LaunchOrder) -> AttemptId {
        let attempt = order.attempt;
        self.send(ToExecutor::Launch(Box::new(order)));
        match self.report_within(patience(20)) {
            Some(ExecutorReport::Started { attempt: started, .. }) if started == attempt => attempt,
            other => panic!("{attempt} did not start: {other:?}"),
        }
    }

    /// Launches the attempt and waits for its end.
    pub fn run(&mut self, order: LaunchOrder) -> Ended {
        let attempt = order.attempt;
        self.send(ToExecutor::Launch(Box::new(order)));
        self.end_of(attempt)
    }

    pub fn run_batch(&mut self, orders: Vec<LaunchOrder>) -> Vec<AttemptId> {
        let attempts: Vec<AttemptId> = orders.iter().map(|order| order.attempt).collect();
        for order in orders {
            self.send(ToExecutor::Launch(Box::new(order)));
        }
        for attempt in &attempts {
            assert_eq!(self.end_of(*attempt).reason, EndReason::Exit(0));
        }
        attempts
    }

    pub fn end_of(&mut self, wanted: AttemptId) -> Ended {
        loop {
            if let Some(ended) = self.ends.remove(&wanted) {
                return Arc::unwrap_or_clone(ended);
            }
            match self.report_within(patience(30)) {
                Some(ExecutorReport::Finished { attempt, ended }) => {
                    self.ends.insert(attempt, ended);
                }
                Some(_) => {}
                None => panic!("{wanted} did not end"),
            }
        }
    }

    /// The next report that is not an end. Ends are stored for `end_of`.
    pub fn report_beside_ends(&mut self) -> Option<ExecutorReport> {
        loop {
            match self.report_within(patience(20))? {
                ExecutorReport::Finished { attempt, ended } => self.ends.insert(attempt, ended),
                other => return Some(other),
            };
        }
    }

    pub fn report_within(&mut self, patience: Duration) -> Option<ExecutorReport> {
        match self.reply_within(patience)? {
            ExecutorReply::Report(report) => Some(report),
            ExecutorReply::Hello(_) => panic!("a second hello"),
            ExecutorReply::Note(note) => panic!("unexpected note: {note}"),
        }
    }

    pub fn is_closed(&mut self) -> bool {
        self.stream.set_read_timeout(Some(patience(10))).unwrap();
        matches!(self.stream.read(&mut [0]), Ok(0)) || self.stream.take_error().is_ok_and(|error| error.is_some())
    }

    fn reply_within(&mut self, patience: Duration) -> Option<ExecutorReply> {
        let deadline = Instant::now() + patience;
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(reply) = self.decoder.next().unwrap() {
                return Some(reply);
            }
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the executor closed the connection"),
                Ok(length) => self.decoder.push(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn attempt(number: u32) -> AttemptId {
    AttemptId { job: JobId(1), epoch: Epoch(1), number }
}

pub fn order(number: u32, command: &[&str]) -> LaunchOrder {
    let program = Program {
        command: command.iter().map(|part| (*part).into()).collect(),
        output_cap: 1 << 20,
        ..Program::default()
    };
    let program = Arc::new(program);
    let template = TaskTemplate { program, submit_dir: "/".into(), ..TaskTemplate::default() };
    LaunchOrder {
        attempt: attempt(number),
        task: TaskId { job: JobId(1), stage: 0, index: number },
        node: NodeId(1),
        node_name: "node".to_owned(),
        hosts: None,
        shared_gpu: None,
        template: Arc::new(template),
        index: u64::from(number),
        item: None,
        devices: Vec::new(),
        inputs: Arc::default(),
        grant: None,
        expected: None,
    }
}

/// The template of an order, to change it.
pub fn change(order: &mut LaunchOrder) -> &mut TaskTemplate {
    Arc::make_mut(&mut order.template)
}

pub fn change_shape(order: &mut LaunchOrder) -> &mut TaskShape {
    Arc::make_mut(&mut change(order).shape)
}

pub fn change_program(order: &mut LaunchOrder) -> &mut Program {
    Arc::make_mut(&mut change(order).program)
}

pub fn sh(number: u32, script: &str) -> LaunchOrder {
    order(number, &["sh", "-c", script])
}

/// Whether a process exists and is not a zombie.
pub fn exists(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(')').is_some_and(|(_, after)| !after.starts_with(" Z") && !after.starts_with(" X"))
}

/// The processes `sleep MARK`, in all namespaces.
pub fn sleeping(mark: &str) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_marked = |pid: &i32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        exists(*pid) && command == format!("sleep\0{mark}\0").into_bytes()
    };
    pids.filter(is_marked).collect()
}

pub fn cgroups_or_skip() -> Option<Home> {
    let home = Home::new(EnforcementChoice::Auto);
    let enforcement = home.agent().hello.enforcement;
    let usable = enforcement.enforces_cpu && matches!(enforcement.mechanism, Mechanism::CgroupV1 | Mechanism::CgroupV2);
    if !usable {
        println!("skipped: cgroups cannot be used here: {:?}", enforcement.notes);
    }
    usable.then_some(home)
}

/// The groups of an executor, in any hierarchy.
pub fn cgroups_of(executor: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from("/sys/fs/cgroup")];
    let ours = format!("amalgam-{executor}-");
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = entry.path();
                if path.to_string_lossy().contains(&ours) {
                    found.push(path.clone());
                }
                waiting.push(path);
            }
        }
    }
    found
}
