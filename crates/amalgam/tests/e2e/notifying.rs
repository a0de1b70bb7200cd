//! What daemons report to the service manager that starts them.

use crate::support::{Cluster, Daemon, Federation, Scene, free_port, is_alive, until, until_true};
use amalgam_daemon::server::executor_paths;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The process counts as hung after this time.
const LIMIT: Duration = Duration::from_millis(600);

/// The service manager's side.
pub struct Manager(UnixDatagram);

impl Manager {
    pub fn at(path: &Path) -> Manager {
        Manager::over(UnixDatagram::bind(path).unwrap())
    }

    fn over(socket: UnixDatagram) -> Manager {
        socket.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        Manager(socket)
    }

    pub fn next(&self) -> String {
        let mut message = [0; 4096];
        let length = self.0.recv(&mut message).expect("a message in time");
        String::from_utf8(message[..length].to_vec()).unwrap()
    }

    /// The next message that is not about the event loop.
    pub fn next_news(&self) -> String {
        loop {
            let message = self.next();
            if message != "WATCHDOG=1\n" {
                return message;
            }
        }
    }

    /// Forgets the messages that have arrived.
    fn drain(&self) {
        self.0.set_nonblocking(true).unwrap();
        while self.0.recv(&mut [0; 4096]).is_ok() {}
        self.0.set_nonblocking(false).unwrap();
    }

    fn is_silent_for(&self, time: Duration) -> bool {
        self.drain();
        self.0.set_read_timeout(Some(time)).unwrap();
        let is_silent = self.0.recv(&mut [0; 4096]).is_err();
        self.0.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        is_silent
    }
}

/// The same command as a service manager starts it: only this process may send messages.
pub fn as_service(command: &Command, socket: &str) -> Command {
    let mut service = Command::new("sh");
    service.args(["-c", "WATCHDOG_PID=$$ exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    service.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    service.current_dir(command.get_current_dir().unwrap());
    service.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
    service
}

/// Sends a daemon a signal.
fn signal(daemon: &Daemon, signal: i32) {
    // SAFETY: kill has no preconditions; the daemon has not been waited for.
    unsafe { libc::kill(daemon.pid() as libc::pid_t, signal) };
}

/// Checks the whole life of a daemon. `answers` is called as soon as it has reported that it is ready.
fn lives_as_service(command: &Command, socket: &Path, says: &str, answers: impl FnOnce()) -> Daemon {
    let manager = Manager::at(socket);
    let mut daemon = Daemon::spawn(as_service(command, socket.to_str().unwrap()));
    let ready = manager.next_news();
    assert!(ready.starts_with("READY=1\nSTATUS=") && ready.contains(says), "{ready}");
    answers();
    daemon.await_ready().unwrap();
    // Without any work, too.
    let turns = std::time::Instant::now();
    manager.drain();
    for _ in 0..4 {
        assert_eq!(manager.next(), "WATCHDOG=1\n");
    }
    assert!(turns.elapsed() > LIMIT, "more messages than necessary: four in {:?}", turns.elapsed());
    signal(&daemon, libc::SIGSTOP);
    until_true("the stopped daemon's silence", || manager.is_silent_for(2 * LIMIT));
    signal(&daemon, libc::SIGCONT);
    assert_eq!(manager.next(), "WATCHDOG=1\n");
    daemon
}

fn stops(daemon: Daemon, manager: &Manager) {
    let stopped = daemon.stop();
    assert!(stopped.success(), "{stopped}");
    assert_eq!(manager.next_news().lines().next(), Some("STOPPING=1"));
}

#[test]
fn a_server_reports_to_its_service_manager_while_its_loop_turns() {
    let scene = Scene::new();
    let listen = format!("127.0.0.1:{}", free_port());
    let server = scene.command(&["server", "--listen", &listen, "--listen-agents", "127.0.0.1:0"]);
    let socket = scene.path().join("notify");
    let daemon = lives_as_service(&server, &socket, &listen, || {
        assert_eq!(scene.http().text("/readyz").trim(), "ready");
    });
    drop(daemon);

    // An abstract socket, and no watchdog.
    let name = format!("amalgam-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = Manager::over(UnixDatagram::bind_addr(&address).unwrap());
    let mut server = scene.command(&["server", "--listen", &listen, "--listen-agents", "127.0.0.1:0"]);
    server.env("NOTIFY_SOCKET", format!("@{name}"));
    let daemon = Daemon::start(server).unwrap();
    assert!(manager.next().starts_with("READY=1\n"));
    assert!(manager.is_silent_for(2 * LIMIT), "nobody asked for messages about the loop");
    stops(daemon, &manager);

    // A service manager that is gone does not matter.
    let mut server = scene.command(&["server", "--listen", &listen, "--listen-agents", "127.0.0.1:0"]);
    server.env("NOTIFY_SOCKET", "/no/such/socket").env("WATCHDOG_USEC", "100000");
    let daemon = Daemon::start(server).unwrap();
    let daemon = daemon.stop();
    assert!(daemon.success());
}

#[test]
fn an_agent_reports_to_its_service_manager_but_its_executor_and_tasks_cannot() {
    let cluster = Cluster::start(0, 2, "");
    let scene = &cluster.scene;
    let home = scene.path().join("home");
    let tokens = scene.state().join("tokens.toml");
    let mut agent = scene.agent_command(&["--server", cluster.agents_address(), "--name", "a"]);
    agent.arg("--work-dir").arg(&home).arg("--token-file").arg(tokens);
    scene.has_executor(&home);
    let socket = scene.path().join("notify");
    let daemon = lives_as_service(&agent, &socket, "node a", || {
        until_true("the node", || scene.ok(&["node", "list"]).contains(" up "));
    });
    let variables = scene.ok(&["run", "--", "env"]);
    assert!(variables.contains("AMALGAM_JOB_ID="), "{variables}");
    let executor = until("the executor", || executor_of(&home));
    let of_executor = fs::read(format!("/proc/{executor}/environ")).unwrap();
    let of_executor = String::from_utf8_lossy(&of_executor).into_owned();
    assert!(of_executor.contains("AMALGAM_STATE="), "{of_executor}");
    for seen in [variables, of_executor] {
        assert!(!seen.contains("NOTIFY_SOCKET") && !seen.contains("WATCHDOG"), "{seen}");
    }
    fs::remove_file(&socket).unwrap();
    let manager = Manager::at(&socket);
    stops(daemon, &manager);
    assert!(is_alive(&executor.to_string()), "the executor outlives the agent");
}

/// The process whose command line names the executor's directory.
fn executor_of(home: &Path) -> Option<u32> {
    let (state, _) = executor_paths(home);
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("\0executor\0") && line.contains(state.to_str().unwrap())
    })
}

#[test]
fn global_masters_report_to_their_service_manager() {
    let federation = Federation::start(1, 1, 0, "");
    federation.kill_global(0);
    let socket = federation.scene.path().join("notify");
    let daemon = lives_as_service(&federation.global_command(0), &socket, "global master 0", || {
        assert_eq!(federation.scene.http().text("/healthz").trim(), "ok");
    });
    fs::remove_file(&socket).unwrap();
    let manager = Manager::at(&socket);
    stops(daemon, &manager);
}

#[test]
fn job_hosts_report_to_their_service_manager() {
    let cluster = Cluster::start(0, 2, "preset = 'apollo'\njob_hosts = 1\n");
    let socket = cluster.scene.path().join("notify");
    let daemon = lives_as_service(&cluster.jobs_command(1), &socket, "job host 1", || {});
    fs::remove_file(&socket).unwrap();
    let manager = Manager::at(&socket);
    stops(daemon, &manager);
}
