//! A cluster of several machines: each daemon is on a host of its own, in a network namespace, and connects without a tunnel.

mod direct;
mod slow;

use crate::support::{
    Daemon, Fault, Namespace, Network, Proxy, Scene, address, free_port, result, saying_into, until_true,
};
use amalgam_daemon::api::{JobState, NodeDetail, NodeState};
use amalgam_daemon::authority::Authority;
use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// What a file contains that one node sends to another.
const SECRET: &str = "the quick brown fox";

/// Each stage runs on one of two nodes, and the second stage reads a file of the first.
const ACROSS: &str = r#"
name = "across"
wait_for_nodes = true
[[stage]]
name = "write"
constraints = ["host=1"]
outputs = ["text"]
command = 'for i in $(seq 1000); do echo the quick brown fox; done > text'
[[stage]]
name = "read"
after = ["write"]
constraints = ["host=2"]
inputs = ["write/*"]
command = 'tail -n 1 inputs/write/0/text'
"#;

pub struct Machines {
    pub network: Network,
    pub scene: Scene,
    /// Where the server listens for agents, for all hosts.
    pub agents: String,
    pub daemons: RefCell<Vec<Daemon>>,
}

impl Machines {
    /// A server on the first host, whose HTTP interface only that host reaches. `None` if namespaces are not permitted, which is printed.
    pub fn start(hosts: usize, config: &str) -> Option<Machines> {
        Machines::listening("127.0.0.1:0", hosts, config)
    }

    pub fn listening(interface: &str, hosts: usize, config: &str) -> Option<Machines> {
        let machines = Machines::within(Network::new(hosts), format!("{}:{}", address(0), free_port()))?;
        machines.scene.write("server.toml", config);
        machines.start_server(interface);
        Some(machines)
    }

    /// Hosts of this network, of which the first will have a server that listens for agents there.
    pub fn within(network: Result<Network, String>, agents: String) -> Option<Machines> {
        let network = match network {
            Ok(network) => network,
            Err(why) => {
                let _ = writeln!(std::io::stderr(), "skipped: a cluster of several machines: {why}");
                return None;
            }
        };
        let scene = Scene::new();
        drop(scene.namespace.set(network.hosts[0].clone()));
        Some(Machines { network, scene, agents, daemons: RefCell::default() })
    }

    /// Starts the server, also after it was killed.
    pub fn start_server(&self, interface: &str) {
        let mut command = self.scene.command(&["server", "--listen", interface, "--listen-agents", &self.agents]);
        command.arg("--config").arg(self.scene.work().join("server.toml"));
        self.scene.start(command, &self.scene.state());
    }

    /// A join string of the server.
    pub fn join_string(&self, arguments: &[&str]) -> String {
        self.scene.ok(&[&["token", "join"], arguments].concat()).trim().to_owned()
    }

    /// The agent of a host, which joins with a string, or has done so.
    pub fn joining_agent(&self, host: usize, name: &str, string: &str) -> Command {
        let home = self.scene.path().join(format!("host-{host}"));
        self.scene.has_executor(&home);
        let mut command = self.scene.agent_command(&["--join", string, "--name", name, "--cpus", "2"]);
        command.args(["--memory", "1GiB", "--attribute", &format!("host={host}"), "--work-dir"]).arg(home);
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        command
    }

    pub fn host(&self, number: usize) -> &Namespace {
        &self.network.hosts[number]
    }

    pub fn started(&self, host: usize, mut command: Command) -> String {
        self.host(host).has(&mut command);
        let daemon = Daemon::start(command).unwrap_or_else(|output| panic!("no daemon on host {host}: {output}"));
        let ready = daemon.ready.clone();
        self.daemons.borrow_mut().push(daemon);
        ready
    }

    /// A file with the token of an agent, as it is copied to its machine.
    pub fn token_of(&self, node: &str) -> PathBuf {
        let token = self.scene.ok(&["token", "add", "--agent", node]);
        self.private(&format!("{node}.token"), &token)
    }

    pub fn private(&self, name: &str, text: &str) -> PathBuf {
        let path = self.scene.write(name, text);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// The agent of this host reports this reason, and keeps trying.
    fn is_refused(&self, host: usize, token: &Path, why: &str) {
        let output = self.scene.path().join("refused");
        let mut command = saying_into(self.agent(host, &self.agents, token), &output);
        self.host(host).has(&mut command);
        let daemon = Daemon::spawn(command);
        until_true(why, || fs::read_to_string(&output).unwrap_or_default().contains(why));
        daemon.kill();
    }

    /// The agent of a host, which connects to this address.
    pub fn agent(&self, host: usize, server: &str, token: &Path) -> Command {
        self.agent_in(&format!("host-{host}"), host, server, token)
    }

    /// The agent of a host, with another work directory.
    pub fn agent_in(&self, work_dir: &str, host: usize, server: &str, token: &Path) -> Command {
        let name = format!("host-{host}");
        let home = self.scene.path().join(work_dir);
        self.scene.has_executor(&home);
        let mut command = self.scene.agent_command(&["--server", server, "--name", &name]);
        command.args(["--cpus", "2", "--memory", "1GiB", "--attribute", &format!("host={host}")]);
        command.arg("--token-file").arg(token).arg("--work-dir").arg(home);
        // It is another machine's.
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        command
    }

    pub fn start_agent(&self, host: usize, server: &str) -> String {
        let token = self.token_of(&format!("host-{host}"));
        self.started(host, self.agent(host, server, &token))
    }

    pub fn run_across(&self) {
        let job = self.scene.write("across.toml", ACROSS);
        let id = self.scene.submit(&[job.to_str().unwrap()]);
        until_true("the end of the job", || self.scene.job(&id).summary.state.has_ended());
        assert_eq!(self.scene.job(&id).summary.state, JobState::Succeeded, "{}", self.scene.ok(&["story", &id]));
        assert_eq!(self.scene.ok(&["logs", &format!("{id}.read.0")]), format!("{SECRET}\n"));
    }

    /// What a connection from this host to an address receives until the other side closes it.
    pub fn received(&self, host: usize, address: &str, sent: &'static [u8]) -> Vec<u8> {
        let (namespace, address) = (self.host(host).clone(), address.to_owned());
        let connect = move || {
            namespace.enter().unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            stream.write_all(sent).unwrap();
            let mut received = Vec::new();
            match stream.read_to_end(&mut received) {
                Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("it stays open: {error}"),
                _ => received,
            }
        };
        thread::spawn(connect).join().unwrap()
    }
}

/// They go through the server, where its stream carries them.
#[test]
fn agents_on_other_machines_exchange_files_that_the_network_cannot_read() {
    let Some(machines) = Machines::start(3, "") else { return };
    let on_the_way = format!("{}:{}", address(2), free_port());
    let wire = Proxy::recording(Some(machines.host(2)), on_the_way.clone(), &machines.agents);
    let token = machines.token_of("host-1");
    let mut command = machines.agent(1, &machines.agents, &token);
    command.args(["--listen-files", "none"]);
    let ready = machines.started(1, command);
    assert_eq!(ready, format!("ready: node host-1, server {}", machines.agents));
    machines.start_agent(2, &on_the_way);
    machines.run_across();
    let seen = wire.recorded();
    // The file passed here, in both senses: it is longer than anything else that was sent.
    assert!(seen.len() > SECRET.len() * 1_000, "{} bytes passed", seen.len());
    for text in [SECRET, "host-2", "across", "quick"] {
        assert!(!seen.windows(text.len()).any(|part| part == text.as_bytes()), "`{text}` is readable");
    }
}

#[test]
fn what_is_not_an_agent_is_refused_from_another_machine_and_the_cluster_works_on() {
    let Some(machines) = Machines::start(3, "") else { return };
    machines.start_agent(1, &machines.agents);
    // Neither plain text nor a port scanner nor a daemon without encryption learns anything.
    for sent in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"\x00", b"", b"\x16\x03\x01\x00\x05hello"] {
        let received = machines.received(2, &machines.agents, sent);
        // An alert of TLS, at most: seven bytes.
        assert!(received.len() <= 7, "{sent:?}: {received:?}");
    }
    machines.is_refused(2, &machines.private("wrong.token", "0000\n"), "does not know this token");
    machines.is_refused(2, &machines.token_of("host-9"), "the token belongs to the agent of node host-9");
    machines.start_agent(2, &machines.agents);
    machines.run_across();
    let log = machines.scene.kill_daemon();
    for said in ["the peer does not use TLS", "did not complete the handshake in time", "received corrupt message"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

#[test]
fn both_sides_notice_a_man_in_the_middle_who_changes_what_passes() {
    let Some(machines) = Machines::start(3, "") else { return };
    machines.start_agent(1, &machines.agents);
    let on_the_way = format!("{}:{}", address(2), free_port());
    let wire = Proxy::recording(Some(machines.host(2)), on_the_way.clone(), &machines.agents);
    let token = machines.token_of("host-2");
    let mut command = machines.agent(2, &on_the_way, &token);
    let of_agent = machines.scene.path().join("altered");
    command = saying_into(command, &of_agent);
    machines.started(2, command);
    machines.run_across();
    wire.break_by(Fault::Altered);
    let said = || fs::read_to_string(&of_agent).unwrap_or_default();
    until_true("what the agent says", || said().contains("lost the connection to the server"));
    thread::sleep(Duration::from_millis(300));
    wire.heal();
    machines.run_across();
    let log = machines.scene.kill_daemon();
    assert!(log.contains("refused the connection of a daemon"), "{log}");
}

#[test]
fn a_job_host_on_another_machine_advertises_its_address() {
    let Some(machines) = Machines::start(3, "preset = 'apollo'\njob_hosts = 1") else { return };
    let tokens = machines.scene.state().join("tokens.toml");
    let port = free_port();
    let listen = format!("0.0.0.0:{port}");
    let host = |arguments: &[&str]| {
        let mut command = machines.scene.command(&["jobs", "--number", "1", "--server", &machines.agents]);
        command.args(["--listen", &listen]).args(arguments);
        command.arg("--token-file").arg(&tokens).arg("--work-dir").arg(machines.scene.path().join("jobs"));
        command
    };
    let mut command = host(&[]);
    machines.host(1).has(&mut command);
    let refused = Daemon::start(command).err().expect("no agent can connect to 0.0.0.0");
    assert!(refused.contains(&format!("agents cannot connect to `{listen}`")), "{refused}");
    let mut command = host(&["--advertise", &format!("127.0.0.1:{port}")]);
    machines.host(1).has(&mut command);
    let refused = Daemon::start(command).err().expect("other machines cannot connect there");
    assert!(refused.contains("agents on other machines cannot connect to 127.0.0.1"), "{refused}");
    let advertised = format!("{}:{port}", address(1));
    machines.started(1, host(&["--advertise", &advertised]));
    machines.start_agent(1, &machines.agents);
    machines.start_agent(2, &machines.agents);
    let is_up = |name: &str| machines.scene.json::<NodeDetail>(&["node", "info", name]).summary.state == NodeState::Up;
    until_true("both nodes", || is_up("host-1") && is_up("host-2"));
    machines.run_across();
}

#[test]
fn clients_on_other_machines_use_an_encrypted_interface_that_they_verify() {
    let port = free_port();
    // A name of the server that it cannot find itself: here the address of a proxy, which records what passes.
    let config = format!("listen_names = ['{}']", address(2));
    let Some(machines) = Machines::listening(&format!("0.0.0.0:{port}"), 3, &config) else { return };
    machines.start_agent(1, &machines.agents);
    let interface = format!("{}:{port}", address(0));
    // The client has copies of a token and of the authority's certificate, and no state directory.
    let token = machines.private("grace.token", &machines.scene.ok(&["token", "add", "grace"]));
    let authority = machines.scene.path().join("copied-ca.pem");
    fs::copy(machines.scene.state().join("ca.pem"), &authority).unwrap();
    let call = |server: &str, authority: Option<&Path>, arguments: &[&str]| {
        let mut command = machines.scene.command(&[arguments[0], "--server", server]);
        command.arg("--token-file").arg(&token);
        if let Some(path) = authority {
            command.arg("--ca-file").arg(path);
        }
        command.args(&arguments[1..]);
        command.env_remove("AMALGAM_STATE").env("HOME", machines.scene.path().join("home"));
        machines.host(2).has(&mut command);
        result(command)
    };
    let on_the_way = format!("{}:{}", address(2), free_port());
    let wire = Proxy::recording(Some(machines.host(2)), on_the_way.clone(), &interface);
    let https = format!("https://{interface}");
    let ran = call(&https, Some(&authority), &["run", "--name", "across", "--", "echo", SECRET]);
    assert_eq!((ran.code, ran.out.trim_end()), (0, SECRET), "{ran:?}");
    let by_proxy = call(&format!("https://{on_the_way}"), Some(&authority), &["run", "--", "echo", SECRET]);
    assert_eq!((by_proxy.code, by_proxy.out.trim_end()), (0, SECRET), "{by_proxy:?}");
    let seen = wire.recorded();
    let secret_token = fs::read_to_string(&token).unwrap();
    for text in [SECRET, secret_token.trim(), "HTTP/1.1", "authorization"] {
        assert!(
            !seen.is_empty() && !seen.windows(text.len()).any(|part| part == text.as_bytes()),
            "`{text}` is readable"
        );
    }
    // Another address that leads there is not in the certificate.
    let elsewhere = format!("127.0.0.2:{}", free_port());
    let _other = Proxy::within(Some(machines.host(2)), elsewhere.clone(), &interface);
    let unnamed = call(&format!("https://{elsewhere}"), Some(&authority), &["list"]);
    assert!(unnamed.code != 0 && unnamed.err.contains("certificate not valid for name"), "{unnamed:?}");

    let other = tempfile::tempdir().unwrap();
    Authority::open(other.path()).unwrap();
    let asked = Instant::now();
    let wrong = call(&https, Some(&other.path().join("ca.pem")), &["submit", "--", "true"]);
    assert!(
        wrong.code != 0 && wrong.err.contains("UnknownIssuer") && wrong.err.contains("check --ca-file"),
        "{wrong:?}"
    );
    assert!(asked.elapsed() < Duration::from_secs(10), "it is not tried again");
    let none = call(&https, None, &["list"]);
    assert!(none.code != 0 && none.err.contains("pass --ca-file"), "{none:?}");
    let plain = call(&format!("http://{interface}"), None, &["list"]);
    assert!(plain.code != 0 && plain.err.contains("would send your token unencrypted"), "{plain:?}");
    let answer = machines.received(2, &interface, b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\n\r\n");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("have to be encrypted"), "{answer}");
    // On the server's own machine nothing has to be named.
    assert!(machines.scene.ok(&["list", "--all"]).contains("across"));
}

#[test]
fn a_server_at_one_address_is_found_on_its_own_machine() {
    let interface = format!("{}:{}", address(0), free_port());
    let Some(machines) = Machines::listening(&interface, 2, "") else { return };
    machines.start_agent(1, &machines.agents);
    assert_eq!(machines.scene.ok(&["run", "--", "echo", SECRET]).trim_end(), SECRET);
}

#[test]
fn a_join_string_is_all_that_another_machine_needs_and_is_useless_afterwards() {
    let Some(machines) = Machines::start(3, "") else { return };
    let join = |arguments: &[&str]| machines.join_string(arguments);
    let agent = |host: usize, name: &str, string: &str| machines.joining_agent(host, name, string);
    let refused = |host: usize, name: &str, string: &str| {
        let mut command = agent(host, name, string);
        machines.host(host).has(&mut command);
        Daemon::start(command).err().expect("it is refused")
    };
    let string = join(&["--ttl", "5m"]);
    assert!(string.starts_with(&format!("{}/", machines.agents)), "{string}");
    machines.started(1, agent(1, "host-1", &string));
    let recorded = |host: usize, name: &str, result: &str| {
        let audit = fs::read_to_string(machines.scene.state().join("audit.log")).unwrap();
        let from = format!("\"from\":\"{}:", address(host));
        let of_host = audit.lines().filter(|line| line.contains("join with a string") && line.contains(&from));
        of_host.filter(|line| line.contains(name) && line.contains(result)).count()
    };
    assert_eq!(recorded(1, "host-1", "\"ok\""), 1);
    // Replayed, made up, expired, or for the name of another node: nothing is given, and the reason is said.
    let expired = join(&["--ttl", "1s"]);
    thread::sleep(Duration::from_millis(1_100));
    let (known, _) = string.rsplit_once('/').unwrap();
    for useless in [string.clone(), format!("{known}/{}", "0a".repeat(32)), expired] {
        let said = refused(2, "host-2", &useless);
        assert!(said.contains("the join string is unknown, used up, expired"), "{said}");
    }
    assert_eq!(recorded(2, "host-2", "used up"), 3);
    let two = join(&["--uses", "2"]);
    let said = refused(2, "host-1", &two);
    assert!(said.contains("a node named host-1 has a token or certificates already"), "{said}");
    assert_eq!(recorded(2, "host-1", "certificates already"), 1);
    // Nor the name of a node that is connected with an administrator's token.
    let tokens = machines.scene.state().join("tokens.toml");
    machines.started(2, machines.agent_in("administrated", 2, &machines.agents, &tokens));
    let said = refused(0, "host-2", &two);
    assert!(said.contains("a node named host-2 is connected"), "{said}");
    machines.daemons.borrow_mut().remove(1).kill();
    let is_down = |node| machines.scene.json::<NodeDetail>(&["node", "info", node]).summary.state != NodeState::Up;
    until_true("the end of that agent", || is_down("host-2"));
    machines.started(2, agent(2, "host-2", &two));
    machines.run_across();
    // A restart with the same command needs no string: the agent has certificates. Nor does one without it, and it knows the server.
    machines.daemons.borrow_mut().remove(0).kill();
    machines.started(1, agent(1, "host-1", &string));
    machines.daemons.borrow_mut().remove(1).kill();
    let mut without = machines.scene.agent_command(&["--name", "host-1", "--cpus", "2"]);
    without.args(["--memory", "1GiB", "--attribute", "host=1", "--work-dir"]).arg(machines.scene.path().join("host-1"));
    without.env_remove("AMALGAM_STATE").env("HOME", machines.scene.path().join("home"));
    machines.started(1, without);
    machines.run_across();
    // A revoked certificate ends the connection that uses it. Another string gives the node a new one.
    machines.scene.ok(&["token", "revoke", "--agent", "host-1"]);
    until_true("the end of the agent's connection", || is_down("host-1"));
    machines.daemons.borrow_mut().remove(1).kill();
    machines.started(1, agent(1, "host-1", &join(&[])));
    machines.run_across();
    let held = machines.scene.ok(&["token", "list"]);
    assert!(held.contains("host-1") && held.contains("host-2"), "{held}");
}

#[test]
fn a_server_that_only_its_machine_reaches_makes_no_join_string() {
    let scene = Scene::new();
    let server = ["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"];
    scene.start(scene.command(&server), &scene.state());
    let refused = scene.run(&["token", "join"]);
    assert!(refused.code != 0 && refused.err.contains("--listen-agents 0.0.0.0:7434"), "{refused:?}");
    let string = scene.ok(&["token", "join", "--address", "head:7434"]);
    assert!(string.starts_with("head:7434/") && string.trim().len() == "head:7434/".len() + 129, "{string}");
}

/// Its connections have no end: the machine lost its power or its network.
#[test]
fn the_name_of_a_machine_that_is_gone_is_free_again_for_another_one() {
    let Some(machines) = Machines::start(3, "") else { return };
    machines.start_agent(1, &machines.agents);
    let state = || machines.scene.json::<NodeDetail>(&["node", "info", "host-1"]).summary.state;
    until_true("the node", || state() == NodeState::Up);
    machines.network.cut(1);
    until_true("missed heartbeats", || state() != NodeState::Up);
    let token = machines.scene.work().join("host-1.token");
    machines.started(2, machines.agent_in("replacement", 1, &machines.agents, &token));
    until_true("the node on another machine", || state() == NodeState::Up);
}
