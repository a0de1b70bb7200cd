//! A scene: a directory, and the daemons and commands that run in it. All of them end with it.

mod cluster;
mod daemon;
mod federation;
mod http;
mod namespace;
mod proxy;
pub mod recording;

pub use cluster::Cluster;
pub use daemon::{Daemon, die_with_us, free_port, is_alive, saying_into};
pub use federation::Federation;
pub use http::{Http, job_spec};
pub use namespace::{Namespace, Network, address, interface, ipv6_address};
pub use proxy::{Fault, Proxy};

use amalgam_daemon::api::{JobDetail, JobSummary, ServerFile, StoryLine, TaskSummary};
use amalgam_daemon::executor::{EnforcementChoice, ExecutorConfig, RunAs};
use amalgam_daemon::server::executor_paths;
use amalgam_daemon::shell::shut_down;
use amalgam_workload::path_of;
use serde::de::DeserializeOwned;
use std::cell::{OnceCell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polling interval for conditions without a notification.
const GLANCE: Duration = Duration::from_millis(10);

pub struct Scene {
    dir: TempDir,
    /// State directories that may have an executor.
    hosts: RefCell<Vec<PathBuf>>,
    pub daemons: RefCell<Vec<Daemon>>,
    /// Working directory of commands, if it is another one.
    pub namespace: OnceCell<Namespace>,
}

impl Scene {
    pub fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        for name in ["state", "work", "tmp"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Scene { dir, hosts: RefCell::default(), daemons: RefCell::default(), namespace: OnceCell::new() }
    }

    /// A scene with `amalgam dev` of one node of two CPUs and 1 GiB.
    pub fn dev(arguments: &[&str]) -> Scene {
        let scene = Scene::new();
        scene.start_dev(arguments);
        scene
    }

    pub fn start_dev(&self, arguments: &[&str]) {
        let state = self.state();
        let size = ["--cpus", "2", "--memory", "1GiB"];
        let size: &[&str] = if arguments.contains(&"--cpus") { &[] } else { &size };
        let mut command = self.command(&[&["dev", "--listen", "127.0.0.1:0"], size, arguments].concat());
        command.arg("--journal").arg(self.journals());
        self.start(command, &state);
    }

    /// Starts a daemon and returns its `ready:` line.
    pub fn start(&self, command: Command, host: &Path) -> String {
        self.has_executor(host);
        let daemon = Daemon::start(command).unwrap_or_else(|printed| panic!("no daemon: {printed}"));
        let ready = daemon.ready.clone();
        self.daemons.borrow_mut().push(daemon);
        ready
    }

    /// A daemon with this state directory is about to start an executor, which has to end with the scene.
    pub fn has_executor(&self, host: &Path) {
        self.hosts.borrow_mut().push(host.to_owned());
    }

    /// The daemons' directory of journals.
    pub fn journals(&self) -> PathBuf {
        self.path().join("journals")
    }

    /// Replays the journals of all daemons: the roles must have the same effects without clock, disk and network.
    fn replay_journals(&self) {
        let journals = self.journals();
        if journals.exists() {
            self.ok(&["sim", "replay", journals.to_str().unwrap()]);
        }
    }

    /// Kills the newest daemon; returns its output on stderr.
    pub fn kill_daemon(&self) -> String {
        self.daemons.borrow_mut().pop().expect("a daemon runs").kill()
    }

    /// Sends the newest daemon a signal, such as `STOP`.
    pub fn signal_daemon(&self, name: &str) {
        let daemons = self.daemons.borrow();
        let pid = daemons.last().expect("a daemon runs").pid().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// The working directory of commands and their tasks.
    pub fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.work().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    /// An agent whose tasks run as its own user: the user of the tests' jobs has no account on this machine, and the tests may be
    /// run by root.
    pub fn agent_command(&self, arguments: &[&str]) -> Command {
        self.command(&[&["agent", "--run-as", "agent"], arguments].concat())
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_amalgam"));
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        command
            .args(arguments)
            .current_dir(self.work())
            .env_clear()
            .env("PATH", path)
            .env("AMALGAM_STATE", self.state())
            .env("TMPDIR", self.path().join("tmp"))
            .env("USER", "ada")
            .stdin(Stdio::null());
        self.namespace.get().into_iter().for_each(|namespace| namespace.has(&mut command));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        result(self.command(arguments))
    }

    /// The output of a command that succeeds.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let result = self.run(arguments);
        assert_eq!(result.code, 0, "{arguments:?}: {result:?}");
        result.out
    }

    pub fn json<T: DeserializeOwned>(&self, arguments: &[&str]) -> T {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Submits and returns the job's id.
    pub fn submit(&self, arguments: &[&str]) -> String {
        self.ok(&[&["submit", "-q"], arguments].concat()).trim().to_owned()
    }

    pub fn job(&self, id: &str) -> JobDetail {
        self.json::<Vec<JobDetail>>(&["info", id]).remove(0)
    }

    pub fn jobs(&self) -> Vec<JobSummary> {
        self.json(&["list", "--all"])
    }

    pub fn tasks(&self, id: &str) -> Vec<TaskSummary> {
        self.json(&["info", id, "--tasks", "-n", "100000"])
    }

    pub fn story(&self, target: &str) -> Vec<StoryLine> {
        self.json(&["story", target])
    }

    pub fn http(&self) -> Http {
        let file: ServerFile =
            serde_json::from_str(&fs::read_to_string(self.state().join(ServerFile::NAME)).unwrap()).unwrap();
        let token = amalgam_daemon::auth::client_token(path_of(&file.token_file), "ada").unwrap();
        Http::new(&file.address, &token)
    }

    /// Waits until a file in the work directory has a whole line, and returns it.
    pub fn line_in(&self, name: &str) -> String {
        until(&format!("a line in {name}"), || self.read(name).split_once('\n').map(|(line, _)| line.to_owned()))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.daemons.borrow_mut().clear();
        for host in self.hosts.borrow().iter() {
            let (state, socket) = executor_paths(host);
            shut_down(&ExecutorConfig {
                socket,
                state,
                enforcement: EnforcementChoice::Auto,
                idle_exit: Duration::ZERO,
                leash: None,
                run_as: RunAs::Agent,
                devices: Vec::new(),
            });
        }
        if !thread::panicking() {
            self.replay_journals();
        }
    }
}

#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs a command to its end, which it must reach in time.
pub fn result(command: Command) -> CommandOutput {
    reported_within(PATIENCE, command)
}

pub fn reported_within(patience: Duration, mut command: Command) -> CommandOutput {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as libc::pid_t;
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    match is_done.recv_timeout(patience) {
        Ok(output) => read(output.unwrap()),
        Err(_) => {
            // SAFETY: kill has no preconditions; the child has not been waited for, so the process id is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            let output = is_done.recv().map(Result::unwrap).map(read);
            panic!("{command:?} did not end in time: {output:?}")
        }
    }
}

pub fn read(output: Output) -> CommandOutput {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// Polls until there is a value, within the time limit.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(GLANCE);
    }
}

pub fn until_true(what: &str, mut look: impl FnMut() -> bool) {
    until(what, || look().then_some(()));
}
