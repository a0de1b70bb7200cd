//! A master with a standby and its records in etcd: when the active one fails, the standby takes its nodes over, and every task
//! ends once.

mod servers;

use crate::federations::ended_once;
use crate::notifying::{Manager, as_service};
use crate::support::{Daemon, Scene, die_with_us, free_port, until, until_true};
use amalgam_daemon::api::{NodeState, NodeSummary};
use amalgam_daemon::auth::Tokens;
pub use servers::Servers;
use std::fs;
use std::net::TcpStream;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The lease of the active server in seconds.
const LEASE: u64 = 2;

/// One member of etcd.
pub struct Etcd {
    process: Child,
    pub endpoint: String,
}

impl Etcd {
    /// `None` if etcd is not installed, which is printed.
    pub fn start(scene: &Scene) -> Option<Etcd> {
        Etcd::start_with(scene, "http", &[])
    }

    /// With these additional arguments, at an endpoint with this scheme.
    pub fn start_with(scene: &Scene, scheme: &str, arguments: &[String]) -> Option<Etcd> {
        let (client, peer) = (free_port(), free_port());
        let (endpoint, peer) = (format!("{scheme}://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new("etcd");
        command.args(arguments);
        command.arg("--data-dir").arg(scene.path().join("etcd")).args(["--name", "only", "--log-level", "error"]);
        command.args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("only={peer}")]).stdout(Stdio::null()).stderr(Stdio::null());
        die_with_us(&mut command);
        let process = match command.spawn() {
            Ok(process) => process,
            Err(why) => {
                println!("skipped: etcd cannot be started, install etcd-server: {why}");
                return None;
            }
        };
        until_true("etcd", || TcpStream::connect(("127.0.0.1", client)).is_ok());
        Some(Etcd { process, endpoint })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A cluster of two nodes with two CPUs each under one global master, and two servers, one of which is its master.
struct Pair(Servers);

impl Deref for Pair {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        &self.0
    }
}

impl Pair {
    /// The first server is the active one.
    fn start() -> Option<Pair> {
        let pair = Pair(Servers::prepare(LEASE)?);
        let master = pair.listen_agents.join(",");
        Tokens::open(&pair.scene.state(), "ada").unwrap();
        pair.start_server(0);
        pair.await_active(0);
        pair.start_server(1);
        let mut global = pair.scene.command(&["global", "--listen", &format!("127.0.0.1:{}", free_port()), "--config"]);
        global.arg(&pair.config).arg("--state-dir").arg(pair.scene.state());
        pair.others.borrow_mut().push(Daemon::start(global).unwrap());
        for node in ["a", "b"] {
            pair.start_agent(node, &master);
        }
        until_true("both nodes", || pair.nodes_up() == 2);
        Some(pair)
    }

    fn home(&self, server: usize) -> PathBuf {
        let home = self.scene.path().join(format!("server-{server}"));
        if !home.exists() {
            fs::create_dir(&home).unwrap();
            fs::copy(self.scene.state().join(Tokens::FILE), home.join(Tokens::FILE)).unwrap();
        }
        home
    }

    /// Does not wait for the ready line: a standby is not ready.
    fn start_server(&self, server: usize) {
        self.spawn(server, self.server_command(server));
    }

    fn server_command(&self, server: usize) -> Command {
        self.command(server, &self.home(server))
    }

    fn start_agent(&self, name: &str, master: &str) {
        let home = self.scene.path().join(name);
        let mut command = self.scene.agent_command(&["--server", master, "--name", name, "--work-dir"]);
        command.arg(&home).args(["--cpus", "2", "--memory", "1GiB"]);
        command.arg("--token-file").arg(self.scene.state().join(Tokens::FILE));
        self.scene.has_executor(&home);
        self.others.borrow_mut().push(Daemon::start(command).unwrap());
    }

    fn signal(&self, server: usize, signal: i32) {
        let pid = self.pid(server);
        // SAFETY: kill has no preconditions; the child has not been waited for.
        unsafe { libc::kill(pid as libc::pid_t, signal) };
    }

    /// In the global master's view.
    fn nodes_up(&self) -> usize {
        self.states().into_iter().filter(|state| *state == NodeState::Up).count()
    }

    fn states(&self) -> Vec<NodeState> {
        let nodes: Vec<NodeSummary> = self.scene.json(&["node", "list"]);
        let mut states: Vec<NodeState> = nodes.iter().map(|node| node.state).collect();
        states.sort_unstable();
        states
    }

    /// As reported by this server.
    fn nodes(&self, server: usize) -> Vec<NodeSummary> {
        self.scene.json(&["node", "list", "--state-dir", self.home(server).to_str().unwrap()])
    }

    fn numbers(&self, server: usize) -> Vec<(String, u32)> {
        let mut numbers: Vec<_> = self.nodes(server).into_iter().map(|node| (node.name, node.id)).collect();
        numbers.sort();
        numbers
    }

    fn submit(&self, tasks: u32) -> String {
        let last = format!("0-{}", tasks - 1);
        let script = "echo $AMALGAM_INDEX >> began; sleep 0.4; echo $AMALGAM_INDEX >> ran";
        let id = self.scene.submit(&["--array", &last, "--", "sh", "-c", script]);
        until_true("some that ended", || self.scene.read("ran").lines().count() >= 6);
        id
    }

    fn until_more_than(&self, began: usize) {
        until_true("tasks that the new master let through", || self.started() > began);
    }

    fn started(&self) -> usize {
        self.scene.read("began").lines().count()
    }

    fn all_ran_once(&self, id: &str, tasks: u32) {
        self.scene.ok(&["wait", id]);
        for file in ["began", "ran"] {
            let mut ran: Vec<u32> = self.scene.read(file).lines().map(|line| line.parse().unwrap()).collect();
            ran.sort_unstable();
            assert_eq!(ran, (0..tasks).collect::<Vec<_>>(), "{file}");
        }
        // A launch that was lost with its master is an additional attempt that did not start.
        for task in self.scene.tasks(id) {
            if task.attempts > 1 {
                println!("{} attempts: {:#?}", task.attempts, self.scene.story(&format!("{id}.0.{}", task.index)));
            }
        }
        ended_once(&self.scene, id, tasks);
    }
}

#[test]
fn a_standby_takes_over_from_a_killed_master_without_losing_a_task() {
    const TASKS: u32 = 60;
    let Some(pair) = Pair::start() else { return };
    let home = pair.home(1);
    let refused = until("the standby's answer", || {
        let listed = pair.scene.run(&["node", "list", "--state-dir", home.to_str().unwrap()]);
        listed.err.contains("standby").then_some(listed)
    });
    assert!(refused.code != 0 && refused.err.contains("this is a standby of cluster 0"), "{refused:?}");
    let before = pair.numbers(0);
    let id = pair.submit(TASKS);
    pair.take(0).kill();
    let killed = Instant::now();
    pair.await_active(1);
    let active = killed.elapsed();
    let began = pair.started();
    pair.until_more_than(began);
    println!("takeover after a kill: active after {active:?}, tasks begin after {:?}", killed.elapsed());
    assert!(active < Duration::from_secs(LEASE + 10), "{active:?}");
    pair.all_ran_once(&id, TASKS);
    assert_eq!(pair.numbers(1), before, "nodes keep their numbers");
    // And back: the previously active one is the next standby.
    pair.start_server(0);
    let home = pair.home(1);
    pair.scene.ok(&["node", "drain", "--state-dir", home.to_str().unwrap(), "a"]);
    assert!(pair.take(1).stop().success());
    let stopped = Instant::now();
    pair.await_active(0);
    println!("takeover after a stop: {:?}", stopped.elapsed());
    until_true("both nodes again, of which one is drained", || pair.states() == [NodeState::Up, NodeState::Closed]);
    assert_eq!(pair.numbers(0), before);
    assert!(pair.nodes(0).iter().any(|node| node.name == "a" && node.state == NodeState::Drained));
}

#[test]
fn a_standby_is_ready_for_its_service_manager_and_reports_while_it_waits() {
    let Some(pair) = Pair::start() else { return };
    assert!(pair.take(1).stop().code().is_none(), "a standby has nothing to finish");
    let socket = pair.scene.path().join("notify");
    let manager = Manager::at(&socket);
    pair.spawn(1, as_service(&pair.server_command(1), socket.to_str().unwrap()));
    assert_eq!(manager.next_news(), "READY=1\nSTATUS=standby of cluster 0\n");
    (0..4).for_each(|_| assert_eq!(manager.next(), "WATCHDOG=1\n"));
    pair.take(0).kill();
    let active = manager.next_news();
    assert!(active.starts_with("READY=1\nSTATUS=http"), "{active}");
    (0..4).for_each(|_| assert_eq!(manager.next(), "WATCHDOG=1\n"));
}

#[test]
fn a_master_that_was_paused_for_longer_than_its_lease_ends_itself_and_nothing_runs_twice() {
    const TASKS: u32 = 80;
    let Some(pair) = Pair::start() else { return };
    let id = pair.submit(TASKS);
    pair.signal(0, libc::SIGSTOP);
    let paused = Instant::now();
    pair.await_active(1);
    let active = paused.elapsed();
    let began = pair.started();
    // While the old one is paused: its connections are open, and it sends nothing.
    pair.until_more_than(began);
    println!("takeover from a paused master: active after {active:?}, tasks begin after {:?}", paused.elapsed());
    pair.signal(0, libc::SIGCONT);
    let (status, output) = pair.take(0).ended();
    assert!(!status.success() && output.contains("not the active master any more"), "{status}: {output}");
    pair.all_ran_once(&id, TASKS);
}
